"""The figures of a sparse model, and the targets that it is compiled for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from framefit.core.model import Model, listing
from framefit.core.run_record import LayerCycles
from framefit.core.sparsity import Configuration, DenseModel, Deployment, LayerSparsity, Registration, SparsityResult
from framefit.core.target import Target, resolve_target
from framefit.devices.measure import medians_ns
from framefit.devices.npu.costs import pricing
from framefit.devices.registry import capabilities_of, open_device
from framefit.sparsity.prices import Prices
from framefit.sparsity.search import Arm
from framefit.sparsity.subject import Subject
from framefit.training.evaluate import Accuracy, evaluate


def dense_model(subject: Subject) -> tuple[DenseModel, tuple[LayerSparsity, ...]]:
    """The figures of the model as it was given, on the test data."""
    accuracy = evaluate(subject.network(), subject.data.test)
    costs = subject.prices.of(subject.model, subject.zeros)
    dense = DenseModel(
        top1=accuracy.top1,
        top1_interval=accuracy.top1_interval,
        top5=accuracy.top5,
        cycles=sum(cost.cycles for cost in costs.values()),
        parameters=subject.model.parameters,
        images=accuracy.images,
    )
    return dense, layer_table(subject, subject.model, subject.zeros, costs)


def configuration(
    subject: Subject,
    arm: Arm,
    model: Model,
    zeros: Mapping[str, float],
    before: float,
    accuracy: Accuracy,
    epochs: float,
    dense: DenseModel,
) -> Configuration:
    """Make a row of the table of results; see :class:`~framefit.core.sparsity.Configuration`."""
    costs = subject.prices.of(model, zeros)
    table = layer_table(subject, model, zeros, costs)
    arrays = listing(model).arrays
    weights = [arrays[layer.weight] for layer in subject.layers]
    elements = sum(layer.facts.parameters for layer in subject.layers)
    left = sum(int(np.count_nonzero(weight)) for weight in weights)
    cycles = sum(cost.cycles for cost in costs.values())
    return Configuration(
        solver=arm.best.solver,
        hardware=arm.hardware,
        validation_top1=arm.best.accuracy,
        top1_before_finetune=before,
        top1=accuracy.top1,
        top1_interval=accuracy.top1_interval,
        top5=accuracy.top5,
        parameters=model.parameters,
        zeros=sum(weight.size for weight in weights) - left,
        sparsity_ratio=1 - left / elements,
        cycles=cycles,
        cycles_ratio=cycles / max(dense.cycles, 1),
        difference_top1=100 * (accuracy.top1 - dense.top1),
        finetune_epochs=epochs,
        layers=table,
    )


def layer_table(
    subject: Subject, model: Model, zeros: Mapping[str, float], costs: Mapping[str, LayerCycles]
) -> tuple[LayerSparsity, ...]:
    """List each layer with weights: its zeros, the zeros in its input, and its cycles."""
    arrays = listing(model).arrays
    dense = subject.prices.of(subject.model, subject.zeros)
    total = max(sum(cost.cycles for cost in costs.values()), 1)
    return tuple(
        LayerSparsity(
            name=layer.name,
            sparsity_ratio=1 - int(np.count_nonzero(arrays[layer.weight])) / layer.facts.parameters,
            activation_sparsity_ratio=zeros[layer.name],
            cycles=costs[layer.name].cycles,
            share_ratio=costs[layer.name].cycles / total,
            cycles_ratio=costs[layer.name].cycles / max(dense[layer.name].cycles, 1),
        )
        for layer in subject.layers
    )


def check_targets(model: Model, targets: Sequence[str]) -> None:
    """Refuse targets that could not run the model in the end, before anything is searched for.

    Raises:
        InputError: an unknown target, or one that does not run the model.
    """
    for name in targets:
        if capabilities_of(resolve_target(name)).modelled:
            pricing(name, model).layers(model)


def deployment(
    subject: Subject, result: SparsityResult, path: Path, zeros: Mapping[str, float], targets: Sequence[str]
) -> Deployment:
    """Compile a model for each target, and compare the time of a frame there with the dense model's.

    Raises:
        InputError: an unknown target, or one that does not run the model.
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
    if not capabilities_of(target).modelled:
        return _measured(target, subject.model, result, model)
    source = pricing(name, subject.model)
    prices = Prices(target, source, subject.model, subject.written, subject.layers)
    sparse, dense = (
        sum(cost.latency_ns for cost in prices.of(each, part).values())
        for each, part in ((model, zeros), (subject.model, subject.zeros))
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
    elif result.pattern == "block":
        assert result.chosen is not None
        predicted = result.configurations[result.chosen].cycles_ratio
        of_what = "of its own in int8 " if result.int8 else ""
        note += f", {predicted:.2f} {of_what}by its layers' kernels; other runtimes multiply these zeros"
    else:
        note = f"no gain in ONNX Runtime: it multiplies zeros, too ({note})"
    return Registration(
        target=target.name, unit=target.units[0].name, cycles=None, latency_ns=sparse, dense_latency_ns=full, note=note
    )


def measured(model: Model, dense: Model) -> tuple[int, int]:
    """Median latencies of two models on this machine, measured alternately, in nanoseconds."""
    sparse_ns, dense_ns = medians_ns([model, dense], open_device("cpu"))
    return sparse_ns, dense_ns
