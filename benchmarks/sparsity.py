"""Sparsity on CIFAR-10: solvers at equal budget, the bars, the blind arm, channels.

Claims (docs/benchmarks.md says which of them hold), for the target "vpu" as it is built in:

- bars: 60, 50 and 40 % of the dense cycles within 0.5, 1.0 and 2.0 points of the dense test accuracy after at most
  5 epochs of fine-tuning, the mean of the seeds; at 50 % before any fine-tuning within 3 points;
- solvers: at equal numbers of evaluations the best solver is above DDPG; a reward evaluation of 2,000 images takes at
  most 3 s, the whole search at most 15 minutes;
- blind: at equal accuracy (before fine-tuning) the exact allocation needs at least 10 % fewer cycles than the same
  allocation over multiply-accumulates, or over weights;
- channel: the latency in ONNX Runtime falls by at least 0.8 x the fall that is modelled.

    python benchmarks/sparsity.py --data DIR --model resnet20.onnx [--part bars solvers blind channel]
        [--seeds 3] [--ratios 0.6 0.5 0.4] [--evaluations 100] [--work DIR]

Data: an image folder with train/ and test/, or an .npz of uint8 images; normalised as the model's README says.
Searches are kept in --work and gone on with.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from stored import store

import framefit
from framefit.core.files import read_record
from framefit.core.sparsity import SparsifySettings, SparsityResult
from framefit.sparsity.allocation import allocate, blind_budget, bound
from framefit.sparsity.database import Database
from framefit.sparsity.ledger import Ledger
from framefit.sparsity.problem import Problem
from framefit.sparsity.solver import Limits, search
from framefit.sparsity.solvers import ONCE, make_solver
from framefit.training.data import Dataset, load_data
from framefit.training.evaluate import evaluate
from framefit.workflows.cycles import load_model
from framefit.workflows.sparsifying.deploy import measured
from framefit.workflows.sparsifying.search import make_problem, own_cycles, sparse_network
from framefit.workflows.sparsifying.subject import Subject, make_database, open_subject

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of resnet20-cifar10.onnx
SOLVERS = (*ONCE, "random", "spdy", "swaps", "auto", "ddpg", "ddpg-warm")
BLIND_RATIOS = (0.7, 0.6, 0.5, 0.45, 0.4, 0.36, 0.33, 0.31, 0.3, 0.29)


def data_of(options: argparse.Namespace, seed: int) -> Dataset:
    """The data set, split with the seed."""
    return load_data(options.data, seed=seed, mean=MEAN, std=STD)


def settings_of(options: argparse.Namespace, seed: int, **changed: Any) -> SparsifySettings:
    """Of a search without its folder."""
    return SparsifySettings(
        model=str(options.model), data="", target="vpu", seed=seed, evaluations=options.evaluations, **changed
    )


class Opened(NamedTuple):
    """What a seed works on."""

    subject: Subject
    database: Database
    problem: Problem
    ledger: Ledger


def opened(options: argparse.Namespace, seed: int, **changed: Any) -> Opened:
    """Subject, database and problem of a seed; the database is kept."""
    settings, ledger = settings_of(options, seed, **changed), Ledger()
    subject = open_subject(settings, ledger, None, data_of(options, seed))
    path = Path(options.work) / f"database-{seed}.npz"
    database = make_database(subject, path, ledger, seed, print)
    return Opened(subject, database, make_problem(subject, database, ledger), ledger)


def made(options: argparse.Namespace, name: str, ratio: float, seed: int, **changed: Any) -> SparsityResult:
    """The whole command in a folder; one that was interrupted goes on."""
    folder = Path(options.work) / name
    stored = folder / "result.json"
    if not stored.exists() or read_record(stored, SparsityResult).interrupted:
        begun = (folder / "sparsify.json").exists()
        found = framefit.sparsify(
            str(options.model),
            data_of(options, seed),
            "vpu",
            cycles=ratio,
            seed=seed,
            episodes=options.evaluations,
            finetune_epochs=options.epochs,
            compare=False,
            resume=folder if begun else None,
            output=folder,
            **changed,
        ).result
        if found.interrupted:
            raise KeyboardInterrupt
    return read_record(stored, SparsityResult)


def bars(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The whole command, for each ratio and seed."""
    rows = []
    for ratio in options.ratios:
        for seed in range(options.seeds):
            result = made(options, f"bars-{ratio}-{seed}", ratio, seed)
            row = result.configurations[result.chosen or 0]
            rows.append(
                {
                    "ratio": ratio,
                    "seed": seed,
                    "dense_top1": result.dense.top1,
                    "top1": row.top1,
                    "difference_points": row.difference_top1,
                    "untuned_difference_points": 100 * (row.top1_before_finetune - result.dense.top1),
                    "cycles_ratio": row.cycles_ratio,
                    "sparsity_ratio": row.sparsity_ratio,
                    "epochs": row.finetune_epochs,
                    "decision": result.decision,
                    "seconds": result.ledger.seconds,
                    "evaluations": result.ledger.evaluations,
                    "images_forwarded": result.ledger.images_forwarded,
                }
            )
            print(rows[-1], flush=True)
    return rows


def solvers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every solver with as many evaluations, at half of the cycles; best accuracy on validation and test data."""
    rows = []
    for seed in range(options.seeds):
        posed = opened(options, seed, images=options.images)
        for name, hardware in [*((name, True) for name in SOLVERS), ("auto", False)]:
            make = functools.partial(one_solver, options, posed, name, seed, hardware=hardware)
            rows.append(kept(options, f"solver-{name}-{'aware' if hardware else 'blind'}-{seed}", make))
            print({key: value for key, value in rows[-1].items() if key != "curve"}, flush=True)
    return rows


def one_solver(options: argparse.Namespace, posed: Opened, name: str, seed: int, *, hardware: bool) -> dict[str, Any]:
    """One search; its best is tested."""
    subject, database, problem = posed.subject, posed.database, posed.problem
    target = int(0.5 * problem.dense_cycles)
    ledger = Ledger()
    own = make_problem(subject, database, ledger)
    faced, room = (own, target) if hardware else (own.blind(), blind_budget(own, target))
    weights = [subject.written.arrays[layer.weight] for layer in subject.layers]
    solver = make_solver(name, faced, room, seed, evaluations=options.evaluations, weights=weights)
    found = search(faced, solver, Limits(options.evaluations), ledger, cycles=own.total, most_cycles=target)
    if found is None or found.interrupted:
        raise KeyboardInterrupt
    spent = ledger.spent()
    network = sparse_network(subject, database, found.assignment, ledger)
    return {
        "solver": name if hardware else f"{name}, blind",
        "seed": seed,
        "validation_top1": found.accuracy,
        "test_top1": evaluate(network, subject.data.test).top1,
        "cycles_ratio": own_cycles(subject, network, ledger) / problem.dense_cycles,
        "additive_error": problem.error(found.assignment),
        "additive_bound": bound(problem, target),
        "evaluations": found.evaluations,
        "images_forwarded": spent.images_forwarded,
        "seconds": spent.seconds,
        "seconds_an_evaluation": spent.seconds / max(found.evaluations, 1),
        "curve": [[point.evaluations, point.seconds, point.top1] for point in found.curve],
    }


def kept(options: argparse.Namespace, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was made before under this name, else what is made now."""
    path = Path(options.work) / f"{name}.json"
    if not path.exists():
        path.write_bytes(msgspec.json.encode(make(), enc_hook=float))
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return found


def blind(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Exact allocations over cycles, multiply-accumulates and weights: test accuracy at parts of the cycles."""
    rows = []
    for seed in range(options.seeds):
        posed = opened(options, seed)
        for ratio, arm in itertools.product(BLIND_RATIOS, ("aware", "macs", "weights")):
            make = functools.partial(one_allocation, posed, ratio, arm, seed)
            rows.append(kept(options, f"blind-{arm}-{ratio}-{seed}", make))
            print(rows[-1], flush=True)
    return rows


def one_allocation(posed: Opened, ratio: float, arm: Literal["aware", "macs", "weights"], seed: int) -> dict[str, Any]:
    """The exact allocation of an arm, tested without fine-tuning."""
    problem, target = posed.problem, int(ratio * posed.problem.dense_cycles)
    faced = problem if arm == "aware" else problem.blind(arm)
    room = target if arm == "aware" else blind_budget(problem, target, faced)
    network = sparse_network(posed.subject, posed.database, allocate(faced, room), posed.ledger)
    top1 = evaluate(network, posed.subject.data.test).top1
    own = own_cycles(posed.subject, network, posed.ledger) / problem.dense_cycles
    return {"seed": seed, "arm": arm, "ratio": ratio, "cycles_ratio": own, "test_top1": top1}


def saved_at_equal_accuracy(rows: list[dict[str, Any]], arm: str) -> list[float]:
    """For accuracies of a blind arm: the part of its cycles that the aware one saves, over the means of the seeds."""

    def curve(name: str) -> tuple[np.ndarray, np.ndarray]:
        """Accuracies, made monotone, and cycles."""
        ratios = sorted({row["ratio"] for row in rows})
        means = [
            np.mean(
                [
                    (row["test_top1"], row["cycles_ratio"])
                    for row in rows
                    if row["arm"] == name and row["ratio"] == ratio
                ],
                axis=0,
            )
            for ratio in ratios
        ]
        accuracies, cycles = np.asarray(means).T
        return np.maximum.accumulate(accuracies), cycles

    (accuracies, cycles), found = curve("aware"), []
    for accuracy, spent in zip(*curve(arm), strict=True):
        if accuracies[0] <= accuracy <= accuracies[-1]:
            found.append(float(1 - np.interp(accuracy, accuracies, cycles) / spent))
    return found


def channel(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Half of the cycles by channels: what is modelled, and what ONNX Runtime measures in turn with the dense model."""
    rows = []
    for seed in range(options.seeds):
        name = f"channel-{seed}"
        result = made(options, name, 0.5, seed, pattern="channel")
        row = result.configurations[result.chosen or 0]
        small, dense = (
            load_model(one, None, None) for one in (Path(options.work) / name / "model.onnx", options.model)
        )
        sparse_ns, dense_ns = measured(small, dense)
        rows.append(
            {
                "seed": seed,
                "difference_points": row.difference_top1,
                "untuned_difference_points": 100 * (row.top1_before_finetune - result.dense.top1),
                "cycles_ratio": row.cycles_ratio,
                "latency_ratio": sparse_ns / dense_ns,
                "fall_measured_to_modelled": (1 - sparse_ns / dense_ns) / (1 - row.cycles_ratio),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run the parts that are asked for, and store their result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--part", nargs="*", default=["bars", "solvers", "blind", "channel"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ratios", type=float, nargs="*", default=[0.5, 0.4, 0.6])
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--images", type=int, default=1000, help="in each evaluation of the part solvers")
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--work", default="sparsity-work")
    options = parser.parse_args()
    Path(options.work).mkdir(parents=True, exist_ok=True)
    settings = f"--seeds {options.seeds} --evaluations {options.evaluations} --images {options.images}"
    command = f"sparsity.py --data CIFAR10 --model {options.model.name} {settings} --epochs {options.epochs:g}"
    for part in options.part:
        rows = {"bars": bars, "solvers": solvers, "blind": blind, "channel": channel}[part](options)
        result: dict[str, Any] = {"rows": rows}
        if part == "bars":
            result["mean_difference_points"] = {
                str(ratio): statistics.mean(row["difference_points"] for row in rows if row["ratio"] == ratio)
                for ratio in options.ratios
            }
            print(result["mean_difference_points"])
        if part == "blind":
            result["saved_at_equal_accuracy"] = {arm: saved_at_equal_accuracy(rows, arm) for arm in ("macs", "weights")}
            print(result["saved_at_equal_accuracy"])
        store(f"sparsity_{part}", result, f"{command} --part {part}")


if __name__ == "__main__":
    main()
