"""What a device fuses, where it cannot be asked: one launch of two layers against two launches.

T1 + T2 - T12, each without the overhead of its own transfers and its launch (see
:mod:`framefit.latency.overhead`), is 0 for two layers that stay apart. What is left is what running
them as one saves.

What a runtime's operators take, told of the layers that the user knows.

A runtime names what it makes of a layer after the layer's result, and puts its own copies between
layouts around it: such a copy counts with what made the tensor, or, at the beginning, with what
reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from framefit.core.latency_table import MeasuredFusion, Value
from framefit.core.model import Layer, Model, Node, configuration, with_auxiliary
from framefit.core.run_record import LatencyEstimate, LayerLatency
from framefit.devices.device import Device
from framefit.errors import FramefitError
from framefit.latency.overhead import fit_overhead, interval, overhead_design
from framefit.latency.rounds import RUNS, Rounds

__all__ = ["FusedPair", "attributed", "known_groups", "measured_fusions", "recorded"]


_DETECTION = 4.65  # standard deviations (Currie, 1968)
_LEAST_SHARE = 0.5  # of the shorter layer: caches alone save less than that
_TURNS = 4  # chains grow by one layer a turn


@dataclass(frozen=True)
class FusedPair:
    """Two adjacent layers, and what running them as one saves.

    Attributes:
        nodes: of both.
        gain_ns: T1 + T2 - T12, all without overhead.
        interval_ns: 90 %.
        fused: whether that is more than noise, and at least half of the shorter layer.
    """

    nodes: tuple[str, ...]
    gain_ns: float
    interval_ns: tuple[float, float]
    fused: bool


def measured_fusions(
    device: Device,
    unit: str,
    model: Model,
    *,
    known: Collection[MeasuredFusion] = (),
    repeats: int = 100,
    seed: int = 0,
    stop: Callable[[], bool] | None = None,
) -> tuple[FusedPair, ...]:
    """Try every layer with its only reader, then what was fused with the next one.

    Args:
        device: any; only start and end of its launches are used.
        unit: of its target.
        model: its layers; groups count as one.
        known: what was found before, of this model or another one, and is not tried again.
        repeats: samples of every launch.
        seed: of inputs and resampling.
        stop: asked between launches.

    Returns:
        All pairs that were tried here; with ``known``, those that are fused are groups for ``Model.grouped``,
        and :func:`recorded` for the table.
    """
    decided = {_bytes(one.op, one.configuration): not one.apart for one in known}
    order = _order(model)
    found: dict[tuple[str, ...], FusedPair] = {}
    told: dict[tuple[str, ...], bool] = {}
    for _ in range(_TURNS):
        current = model.grouped(nodes for nodes, fused in told.items() if fused)
        fresh = {nodes: decided.get(_key(order, nodes)) for nodes in _pairs(current) if nodes not in told}
        told |= {nodes: fused for nodes, fused in fresh.items() if fused is not None}
        unknown = [nodes for nodes, fused in fresh.items() if fused is None]
        tried = {pair.nodes: pair for pair in _tried(device, unit, current, unknown, repeats, seed, stop)}
        found |= tried
        told |= {nodes: pair.fused for nodes, pair in tried.items()}
        if (stop is not None and stop()) or not any(told.get(nodes) for nodes in fresh):
            break
    return tuple(found.values())


def recorded(model: Model, pairs: Iterable[FusedPair]) -> tuple[MeasuredFusion, ...]:
    """Pairs for a table: by configuration, each once, so that they serve every model.

    Args:
        model: that was measured, as it was given to :func:`measured_fusions`.
        pairs: of it.
    """
    order = _order(model)
    found: dict[bytes, MeasuredFusion] = {}
    for pair in pairs:
        op, together = _together(order, pair.nodes)
        found.setdefault(_bytes(op, together), MeasuredFusion(op=op, configuration=together, apart=not pair.fused))
    return tuple(found.values())


def known_groups(model: Model, fusions: Collection[MeasuredFusion]) -> tuple[tuple[str, ...], ...]:
    """Nodes of a model that run as one by what was found before, in this model or in another one.

    Pairs are joined as :func:`measured_fusions` joins them: each layer with its only reader, then what
    they became with the next one.

    Args:
        model: its layers; groups count as one.
        fusions: of a table.
    """
    known = {_bytes(one.op, one.configuration) for one in fusions if not one.apart}
    operators = {tuple(sorted(one.op.split("+"))) for one in fusions if not one.apart}
    order = _order(model)
    found: list[tuple[str, ...]] = []
    while True:
        fresh = [
            nodes
            for nodes in _pairs(model.grouped(found))
            if tuple(sorted(order[name][1].op for name in nodes)) in operators and _key(order, nodes) in known
        ]
        if not fresh:
            return tuple(found)
        found += fresh


def _order(model: Model) -> dict[str, tuple[int, Node]]:
    """Node -> its place and description."""
    nodes = [node for nodes in model.nodes for node in nodes]
    return {node.name: (place, node) for place, node in enumerate(nodes)}


def _together(order: dict[str, tuple[int, Node]], names: Iterable[str]) -> tuple[str, dict[str, Value]]:
    """Operators and configuration of nodes as one layer."""
    nodes = [node for _, node in sorted((order[name] for name in names), key=lambda placed: placed[0])]
    return "+".join(node.op for node in nodes), configuration(nodes)


def _key(order: dict[str, tuple[int, Node]], names: Iterable[str]) -> bytes:
    return _bytes(*_together(order, names))


def _bytes(op: str, together: dict[str, Value]) -> bytes:
    return msgspec.json.encode((op, together), order="sorted")


def _pairs(model: Model) -> list[tuple[str, ...]]:
    """Nodes of each layer with one output and of that output's only reader."""
    readers: dict[str, list[int]] = {}
    for index, layer in enumerate(model.layers):
        for tensor in layer.inputs:
            readers.setdefault(tensor.name, []).append(index)
    results = {tensor.name for tensor in model.outputs}
    pairs = []
    for layer in model.layers:
        (*others, tensor) = layer.outputs
        if not others and tensor.name not in results and len(reading := readers.get(tensor.name, [])) == 1:
            pairs.append((*layer.nodes, *model.layers[reading[0]].nodes))
    return pairs


def _tried(
    device: Device,
    unit: str,
    model: Model,
    pairs: Iterable[tuple[str, ...]],
    repeats: int,
    seed: int,
    stop: Callable[[], bool] | None,
) -> list[FusedPair]:
    rounds = Rounds(device, unit, seed)
    launches = []
    for nodes in pairs:
        joined = model.grouped([nodes])
        parts = [layer for layer in model.layers if set(layer.nodes) <= set(nodes)]
        if len(parts) != 2:
            continue
        try:
            first, second = (rounds.add("layer", _alone(model, set(part.nodes))) for part in parts)
            both = rounds.add("pair", _alone(joined, set(nodes)))
        except FramefitError:  # cannot stand alone, or does not run so: then it is no pair either
            continue
        launches.append((nodes, first, second, both))
    if not launches:
        return []
    design = overhead_design("avgpool", (run.input_bytes for run in rounds.runs), seed)
    grid = [rounds.add("overhead", one) for one in design.models]
    rounds.measure(max(math.ceil(repeats / RUNS), 1), stop)
    if not rounds.measured:
        return []
    medians = rounds.medians()
    fit = fit_overhead([contrast.over(grid) for contrast in design.contrasts], medians)
    tried = []
    for nodes, *places in launches:
        over = [fit.of(rounds.runs[place].input_bytes, rounds.runs[place].output_bytes) for place in places]
        one, two, joint = (medians[:, place] - ns for place, ns in zip(places, over, strict=True))
        gain = one + two - joint
        layers = one[0], two[0]
        enough = max(_DETECTION * float(np.std(gain[1:])), _LEAST_SHARE * min(layers))
        tried.append(FusedPair(nodes, float(gain[0]), interval(gain), bool(gain[0] > max(enough, 0))))
    return tried


def _alone(model: Model, nodes: set[str]) -> Model:
    """The layer of these nodes as a model whose tensors come from the host and go back."""
    place = next(index for index, layer in enumerate(model.layers) if nodes <= set(layer.nodes))
    return with_auxiliary(model.segment(place, place), [])


def attributed(model: Model, places: Sequence[int], found: LatencyEstimate) -> LatencyEstimate:
    """An estimate by the layers of a model, whatever the runtime made of them.

    Args:
        model: as the user has it, with groups as layers.
        places: of :func:`owners`.
        found: the estimate of what the runtime made of it.

    Returns:
        The same total; a layer whose work the runtime gave to another one takes nothing.
    """
    parts: list[list[LayerLatency]] = [[] for _ in model.layers]
    for place, told in zip(places, found.layers, strict=True):
        parts[place].append(told)
    layers = tuple(_joined(layer, own) for layer, own in zip(model.layers, parts, strict=True))
    return msgspec.structs.replace(found, layers=layers)


def _joined(layer: Layer, parts: list[LayerLatency]) -> LayerLatency:
    """Sum of a layer's operators; their errors are independent."""
    total = sum(part.latency_ns for part in parts)
    low = math.sqrt(sum((part.latency_ns - part.interval_ns[0]) ** 2 for part in parts))
    high = math.sqrt(sum((part.interval_ns[1] - part.latency_ns) ** 2 for part in parts))
    sources = list(dict.fromkeys(part.source for part in parts))
    return LayerLatency(
        name=layer.name,
        op=layer.op,
        latency_ns=total,
        interval_ns=(max(round(total - low), 0), round(total + high)),
        source=", ".join(sources) if sources else "part of another layer",
    )
