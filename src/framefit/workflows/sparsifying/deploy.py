"""Compiling a model for its targets, and registering it there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from framefit.core.model import Model
from framefit.core.sparsity import Pattern, Registration
from framefit.core.target import Target, resolve_target
from framefit.devices.device import Completion, allocate, random_inputs
from framefit.devices.host import pinned
from framefit.devices.measure import measure
from framefit.devices.ort import OrtDevice
from framefit.workflows.cycles import pricing
from framefit.workflows.sparsifying.prices import Prices
from framefit.workflows.sparsifying.subject import Subject

__all__ = ["measured", "register"]

_BUDGET_NS = 1_000_000_000


def register(
    subject: Subject, model: Model, zeros: Mapping[str, float], targets: Sequence[str]
) -> tuple[Registration, ...]:
    """Compile a model for each target, and say what a frame takes there beside the dense one.

    Args:
        subject: what it was made from.
        model: sparse.
        zeros: weight layer -> part of what it reads that is zero.
        targets: names, or paths of ``target.toml`` files; "cpu" is this machine.

    Raises:
        InputError: no such target, or one that does not run the model.
    """
    return tuple(_registered(resolve_target(name), name, subject, model, zeros) for name in targets)


def _registered(target: Target, name: str, subject: Subject, model: Model, zeros: Mapping[str, float]) -> Registration:
    if target.kind == "ort":
        return _measured(target, model, subject.model, subject.pattern)
    source = pricing(name, subject.model)
    prices = Prices(target, source, subject.model, subject.written, subject.layers)
    sparse, dense = (
        sum(cost.latency_ns for cost in prices.of(one, part).values())
        for one, part in ((model, zeros), (subject.model, subject.zeros))
    )
    return Registration(
        target=target.name,
        unit=source.unit.name,
        cycles=prices.total(model, zeros),
        latency_ns=sparse,
        dense_latency_ns=dense,
        note="modelled cycles: nothing ran on this target",
    )


def _measured(target: Target, model: Model, dense: Model, pattern: Pattern) -> Registration:
    sparse, full = measured(model, dense)
    gained = f"measured: {sparse / max(full, 1):.2f} of the dense model's latency"
    note = gained if pattern == "channel" else f"no gain in ONNX Runtime: it multiplies zeros, too ({gained})"
    return Registration(
        target=target.name, unit=target.units[0].name, cycles=None, latency_ns=sparse, dense_latency_ns=full, note=note
    )


def measured(model: Model, dense: Model) -> tuple[int, int]:
    """Median latencies of two models on this machine, measured in turn, in nanoseconds."""
    device = OrtDevice()
    unit = device.target.units[0]
    with pinned(device.core):
        sparse, full = measure([_launch(device, one, unit.name) for one in (model, dense)], budget_ns=_BUDGET_NS)
    return sparse.median_ns, full.median_ns


def _launch(device: OrtDevice, model: Model, unit: str) -> Callable[[], Completion]:
    handle = device.compile(model, unit, model.name)
    tensors = random_inputs(model.inputs, np.random.default_rng(0))
    bound = handle.bind(tensors | {tensor.name: allocate(tensor) for tensor in model.outputs})
    return lambda: device.submit(bound)
