"""Compiling a model for its targets, and registering it there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from framefit.core.model import Model
from framefit.core.sparsity import Deployment, Registration, SparsityResult
from framefit.core.target import Target, resolve_target
from framefit.devices.in_turn import medians_ns
from framefit.workflows.cycles import pricing
from framefit.workflows.sparsifying.prices import Prices
from framefit.workflows.sparsifying.subject import Subject

__all__ = ["check_targets", "deployment", "measured"]


def check_targets(model: Model, targets: Sequence[str]) -> None:
    """Refuse, before anything is searched for, what a model could not be deployed to in the end.

    Args:
        model: the dense one.
        targets: names, or paths of ``target.toml`` files; "cpu" is this machine.

    Raises:
        InputError: no such target, or one that does not run the model.
    """
    for name in targets:
        if resolve_target(name).kind != "ort":
            pricing(name, model).layers(model)


def deployment(
    subject: Subject, result: SparsityResult, path: Path, zeros: Mapping[str, float], targets: Sequence[str]
) -> Deployment:
    """Compile a model for each target, and say what a frame takes there beside the dense one.

    Args:
        subject: what it was made from.
        result: whose chosen model it is.
        path: of the model's file.
        zeros: weight layer -> part of what it reads that is zero.
        targets: names, or paths of ``target.toml`` files; "cpu" is this machine.

    Raises:
        InputError: no such target, or one that does not run the model.
    """
    assert result.chosen is not None
    row = result.configurations[result.chosen]
    model = Model.load(path)
    return Deployment(
        model=path.name,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        top1=row.top1,
        top1_threshold=result.threshold.top1,
        cycles_ratio=row.cycles_ratio,
        forced=result.decision != "deploy",
        targets=tuple(_registered(name, subject, result, model, zeros) for name in targets),
    )


def _registered(
    name: str, subject: Subject, result: SparsityResult, model: Model, zeros: Mapping[str, float]
) -> Registration:
    target = resolve_target(name)
    if target.kind == "ort":
        return _measured(target, subject.model, result, model)
    source = pricing(name, subject.model)
    prices = Prices(target, source, subject.model, subject.written, subject.layers)
    sparse, dense = (
        sum(cost.latency_ns for cost in prices.of(one, part).values())
        for one, part in ((model, zeros), (subject.model, subject.zeros))
    )
    gained = "" if sparse < dense else "; no gain: it computes these zeros, too"
    return Registration(
        target=target.name,
        unit=source.unit.name,
        cycles=prices.total(model, zeros),
        latency_ns=sparse,
        dense_latency_ns=dense,
        note=f"modelled cycles: nothing ran on this target{gained}",
    )


def _measured(target: Target, dense: Model, result: SparsityResult, model: Model) -> Registration:
    sparse, full = measured(model, dense)
    note = f"measured: {sparse / max(full, 1):.2f} of the dense model's latency"
    if result.pattern == "channel":
        assert result.chosen is not None
        modelled = result.configurations[result.chosen].cycles_ratio
        note += f", {modelled:.2f} of its cycles as modelled for {result.target}"
    else:
        note = f"no gain in ONNX Runtime: it multiplies zeros, too ({note})"
    return Registration(
        target=target.name, unit=target.units[0].name, cycles=None, latency_ns=sparse, dense_latency_ns=full, note=note
    )


def measured(model: Model, dense: Model) -> tuple[int, int]:
    """Median latencies of two models on this machine, measured in turn, in nanoseconds."""
    sparse_ns, dense_ns = medians_ns([model, dense])
    return sparse_ns, dense_ns
