"""From a workload that does not fit to one that does: ``framefit fit`` on ``examples/crowded.py``.

Claims: a priority model and two background models, one of them 1.6 times too slow, end feasible and verified, within
one point of accuracy, in at most 20 minutes on two cores: on the target "vpu" in simulation (part vpu), on this machine
in a run (part cpu). What cannot be made to fit ends with what was tried (part hopeless: 8 times too slow, and fewer
frames are not wanted).

    python benchmarks/fit.py [--part vpu cpu hopeless] [--epochs 2] [--work DIR]

Folders of the fits are kept in --work. Fine-tuning is short: the reader is wider than its task asks for.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

from stored import store

import framefit
from framefit.core.files import read_record
from framefit.core.fit_results import FitResult, FitStep
from framefit.core.run_record import Metrics

TARGETS = {"vpu": "vpu", "cpu": "cpu", "hopeless": "vpu"}
TOO_SLOW = {"vpu": 1.6, "cpu": 1.6, "hopeless": 8.0}
MAX_DROP = 0.01


def example() -> ModuleType:
    """``examples/crowded.py``."""
    path = Path(__file__).resolve().parents[1] / "examples" / "crowded.py"
    spec = importlib.util.spec_from_file_location("crowded", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row_of(step: FitStep) -> dict[str, Any]:
    """A step as a row."""
    return {
        "what": step.what,
        "outcome": step.outcome,
        "detail": step.detail,
        "predicted": step.predicted,
        "gained": step.gained,
        "load_ratio": step.load_ratio,
        "accuracy": None if step.accuracy is None else [step.accuracy.before, step.accuracy.after],
        "seconds": round(step.seconds, 1),
    }


def part(name: str, work: Path, epochs: float) -> dict[str, Any]:
    """One fit."""
    given, folder = work / "models", work / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(given, folder)
    app = example().write_app(folder, TARGETS[name], TOO_SLOW[name])
    exclude = ("rate",) if name == "hopeless" else ()
    done = framefit.fit(
        app,
        data={"reader": folder / "digits.npz"},
        apply=True,
        max_drop=MAX_DROP,
        exclude=exclude,
        finetune_epochs=epochs,
        output=folder / "fit",
    )
    result: FitResult = done.result
    row: dict[str, Any] = {
        "target": result.target,
        "rate_hz": done.plan.workload.beat_hz,
        "fits": result.fits,
        "verified": None if result.verified is None else result.verified.by,
        "load_ratio": (result.before.load_ratio, result.after.load_ratio),
        "binding": (result.before.binding, result.after.binding),
        "steps": [row_of(step) for step in result.steps],
        "left": [f"{one.what} ({one.needs})" if one.needs else one.what for one in result.proposals],
        "seconds": round(result.seconds, 1),
    }
    for model in result.models:
        if model.test is not None:
            row["accuracy"] = {"model": model.name, "top1": model.test.top1, "images": model.test.images}
    proofs = [step.folder for step in result.steps if step.name == "verify" and step.folder]
    if proofs:
        metrics = read_record(folder / "fit" / proofs[-1] / "run" / "metrics.json", Metrics)
        row["proof"] = {
            "windows": metrics.windows,
            "models": {m.name: [m.releases, m.missed, m.dropped] for m in metrics.models},
        }
    return row


def main() -> None:
    """The parts that are asked for; others that were stored stay."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", nargs="*", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--work", type=Path, default=Path("fit-work"))
    options = parser.parse_args()
    if not (options.work / "models" / "reader.onnx").is_file():
        accuracy = example().write_models(options.work / "models", small=False)
        print(f"reader: {accuracy:.4f} of the test digits right", flush=True)
    for name in options.part:
        row = part(name, options.work, options.epochs)
        print(f"{name}: fits {row['fits']} ({row['verified']}), load {row['load_ratio']}, {row['seconds']} s")
        for step in row["steps"]:
            print(f"  {step['what']}: {step['outcome']} {step['detail']} ({step['seconds']} s)")
        print(f"  accuracy {row.get('accuracy')}, proof {row.get('proof')}", flush=True)
        store(f"fit_{name}", row, f"fit.py --part {name} --epochs {options.epochs:g}")


if __name__ == "__main__":
    main()
