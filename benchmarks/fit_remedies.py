"""Which remedies ``framefit fit`` finds for workloads of networks of others, and what it takes from whom.

Claims, on seeded workloads (networks x described targets x rates, without labelled data, so that nothing is trained):
no model gets fewer frames than the plan before gave it, unless a step says so; what costs nothing is found wherever
brute force over levels and cuts finds that every model has all of its frames (--brute, on the workloads with the fewest
models); ``plan`` says the same as ``fit``; how long it takes.

    python benchmarks/fit_remedies.py --models DIR [DIR ...] [--count 30] [--seed 0] [--brute 10] [--work DIR]

DIR holds networks as .onnx files, of which those of at most --most-mib are used; open batches are 1.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from stored import store

import framefit
from framefit.core.fit_results import FitResult
from framefit.core.model.loading import declared_inputs
from framefit.core.workload import Workload, load_workload
from framefit.errors import FramefitError
from framefit.fit.situation import Situation

TARGETS = ("vpu", "micro-npu", "vpu-two-queues", "edge-8")
LOADS = (0.6, 1.3)  # what the models ask for together: some fit as they are, some cannot


def quiet(_: str) -> None:
    """Nobody is told."""


def written(folder: Path, target: str, rate_hz: float, models: Sequence[tuple[Path, str, int]]) -> Path:
    """An ``app.toml`` over networks, each with its role and its ``every``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f'target = "{target}"\nrate_hz = {rate_hz:.6g}\n'
    for number, (path, role, every) in enumerate(models):
        text += f'[[models]]\nname = "{path.stem}-{number}"\npath = "{path}"\npriority = "{role}"\nevery = {every}\n'
        shapes = {name: sizes for name, sizes in declared_inputs(str(path)).items() if sizes and None in sizes}
        if shapes:
            closed = ", ".join(f"{name} = {[size or 1 for size in sizes]}" for name, sizes in shapes.items())
            text += f"shapes = {{ {closed} }}\n"
    app = folder / "app.toml"
    app.write_text(text)
    return app


def made(seed: int, files: Sequence[Path], work: Path) -> Path | None:
    """A workload whose load lies where it may have to be fitted; ``None``: a network does not run there."""
    random = np.random.default_rng(seed)
    target = str(random.choice(TARGETS))
    chosen = [files[which] for which in random.choice(len(files), size=int(random.integers(2, 5)))]
    every = [int(random.choice([1, 1, 2])) for _ in chosen]
    load = random.uniform(*LOADS)
    try:
        slow = written(work / "slow", target, 1.0, [(path, "background", 1) for path in chosen])
        planned = framefit.plan(slow)
        timetable, units = planned.timetable, planned.device.target.units
        takes_s = [timetable.model(f"{path.stem}-{number}").duration_ns / 1e9 for number, path in enumerate(chosen)]
        first, *others = sorted(range(len(chosen)), key=lambda number: takes_s[number])  # the shortest has priority
        models = [(chosen[first], "every-window", 1), *((chosen[n], "background", every[n]) for n in others)]
        taken_s = takes_s[first] + sum(takes_s[number] / every[number] for number in others)
        return written(work / f"{seed:03d}", target, load * len(units) / taken_s, models)
    except FramefitError as error:
        print(f"seed {seed}: {error.what}", flush=True)
        return None


def everything(workload: Workload) -> Iterator[Workload]:
    """All levels of background models, with all ways to cut."""
    background = [entry.name for entry in workload.models if entry.priority == "background"]
    for size in range(len(background), -1, -1):
        for raised in itertools.combinations(background, size):
            models = tuple(
                msgspec.structs.replace(entry, priority="every-window") if entry.name in raised else entry
                for entry in workload.models
            )
            for mode, split in itertools.product(("fill", "fewest", "equal"), (False, True)):
                yield msgspec.structs.replace(
                    workload,
                    schedule=msgspec.structs.replace(workload.schedule, segmentation=mode),
                    models=tuple(msgspec.structs.replace(entry, always_split=split) for entry in models),
                )


def possible(app: Path) -> bool:
    """Whether brute force finds levels and cuts with which every model has all of its frames."""
    situation = Situation.of(app, load_workload(app), 1.0, quiet)
    for workload in everything(situation.workload):
        try:
            if situation.what_if(workload=workload, notify=quiet).fits:
                return True
        except FramefitError:
            continue
    return False


def worse(result: FitResult) -> list[str]:
    """Models that get fewer frames than the plan before gave them, and no step said so."""
    given = {model.name: model.served_hz for model in result.before.models}
    told = " ".join(step.detail for step in result.steps)
    return [
        model.name
        for model in result.after.models
        if model.served_hz < 0.97 * given[model.name] and f"{model.name!r} gets" not in told
    ]


def fitted(seed: int, app: Path, *, brute: bool) -> dict[str, Any]:
    """One workload: before, after, and what was found."""
    output = app.parent / "fit"
    shutil.rmtree(output, ignore_errors=True)
    began = time.monotonic()
    done = framefit.fit(app, apply=True, output=output, verify_seconds=2)
    seconds, result = time.monotonic() - began, done.result
    row: dict[str, Any] = {
        "seed": seed,
        "target": result.target,
        "models": [model.name for model in result.before.models],
        "rate_hz": round(load_workload(app).beat_hz, 3),
        "load_ratio": [round(result.before.load_ratio, 3), round(result.after.load_ratio, 3)],
        "verdict": [result.before.verdict, result.verdict],
        "fits": result.fits,
        "steps": [f"{step.name}: {step.what} ({step.outcome})" for step in result.steps],
        "served": {
            new.name: [round(old.served_hz, 3), round(new.served_hz, 3), round(old.asked_hz, 3)]
            for old, new in zip(result.before.models, sorted_as(result), strict=True)
        },
        "worse": worse(result),
        "agrees": framefit.plan(app).timetable.verdict == result.before.verdict,
        "front": [[round(p.frames_lost_ratio, 4), round(p.load_ratio, 3), p.chosen] for p in result.front],
        "seconds": round(seconds, 1),
    }
    if brute and result.before.verdict != "fits":
        row["brute_fits"] = possible(app)
    return row


def sorted_as(result: FitResult) -> list[Any]:
    """The models after, in the order of those before."""
    after = {model.name: model for model in result.after.models}
    return [after[model.name] for model in result.before.models]


def main() -> None:
    """All workloads; each is stored as soon as it is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", type=Path, required=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--brute", type=int, default=10)
    parser.add_argument("--most-mib", type=float, default=10.0)
    parser.add_argument("--work", type=Path, default=Path("fit-work"))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    files = sorted(
        path.resolve()
        for folder in options.models
        for path in folder.glob("*.onnx")
        if path.stat().st_size <= options.most_mib * 2**20
    )
    apps: list[tuple[int, Path]] = []
    for seed in itertools.count(options.seed):
        if len(apps) == options.count or seed > options.seed + 10 * options.count:
            break
        app = made(seed, files, options.work.resolve())
        apps += [(seed, app)] if app is not None else []
    smallest = sorted(apps, key=lambda each: len(load_workload(each[1]).models))[: options.brute]
    rows: list[dict[str, Any]] = []
    for seed, app in apps:
        rows.append(fitted(seed, app, brute=(seed, app) in smallest))
        row = rows[-1]
        print(
            f"{seed}: {row['target']} {row['load_ratio']} {row['verdict']} fits {row['fits']} worse {row['worse']} "
            f"brute {row.get('brute_fits')} {row['seconds']} s\n   {row['steps']}",
            flush=True,
        )
        brute = [one for one in rows if one.get("brute_fits")]
        summary = {
            "workloads": len(rows),
            "fits": sum(one["fits"] for one in rows),
            "worse_untold": sum(bool(one["worse"]) for one in rows),
            "agree": sum(one["agrees"] for one in rows),
            "free_by_brute_force": len(brute),
            "free_found": sum(one["verdict"][1] == "fits" for one in brute),
            "median_seconds": float(np.median([one["seconds"] for one in rows])),
            "most_seconds": max(one["seconds"] for one in rows),
        }
        names = sorted({file.stem for file in files})
        command = f"fit_remedies.py --count {options.count} --seed {options.seed} --most-mib {options.most_mib:g}"
        store("fit_remedies", {"summary": summary, "networks": names, "workloads": rows}, command)
    print(summary)


if __name__ == "__main__":
    main()
