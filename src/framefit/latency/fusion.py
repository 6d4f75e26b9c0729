"""Which layers a device fuses, where it does not say: one launch of two layers against two launches.

T1 + T2 - T12, each without the overhead of its own transfers and its launch (see
:mod:`framefit.latency.overhead`), is 0 for two layers that are not fused. Otherwise it is the time that
fusing them saves.

Most gains are as small as the noise of a launch. But devices fuse by rules: what holds for a convolution and its
activation holds for most of them. So pairs of the same operators are decided together, by the part of the shorter
layers' time that they save in sum, and a pair is decided by itself only where its own gain is beyond doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import MeasuredFusion, Value
from framefit.core.model import Model, Node, configuration, with_auxiliary
from framefit.devices.device import Device
from framefit.errors import FramefitError
from framefit.latency.overhead import Contrast, fit_overhead, overhead_design
from framefit.latency.rounds import RUNS, Rounds, interval

_DETECTION = 4.65  # standard deviations (Currie, 1968)
_NOTHING = 0.01  # of a network's time: pairs of one kind that take no more are left apart
_SURE = 3.29  # standard deviations of a kind's share from the limit
_MOST = 20  # times as many repeats, where some kind is undecided
_LEAST_SHARE = 0.5  # of the shorter layer: caches alone save less
_TURNS = 4  # a chain grows by one layer in each turn


@dataclass(frozen=True)
class FusedPair:
    """Two adjacent layers, and the time that running them as one saves.

    Attributes:
        nodes: of both layers.
        gain_ns: T1 + T2 - T12, all without overhead.
        interval_ns: 90 %.
        fused: whether the gain, or that of all pairs of these operators, is at least half of the shorter layer.
        decided: whether noise cannot explain that; otherwise ``fused`` is only the likelier answer.
    """

    nodes: tuple[str, ...]
    gain_ns: float
    interval_ns: tuple[float, float]
    fused: bool
    decided: bool = True


@dataclass(frozen=True)
class _Test:
    """A pair that was measured: its operators; in ns, for each replicate, the gain and the shorter layer's time."""

    nodes: tuple[str, ...]
    kind: tuple[str, str]
    gain: npt.NDArray[np.float64]
    shorter: npt.NDArray[np.float64]
    both_ns: float

    def alone(self) -> bool | None:
        """Whether it is fused, by its own gain; ``None``: that may be noise."""
        gain, shorter = self.gain[0], max(self.shorter[0], 0.0)
        noise = _DETECTION * float(np.std(self.gain[1:]))
        if gain > max(noise, _LEAST_SHARE * shorter):
            return True
        return False if gain + noise < _LEAST_SHARE * shorter else None


def measured_fusions(
    device: Device,
    unit: str,
    model: Model,
    *,
    known: Collection[MeasuredFusion] = (),
    repeats: int = 100,
    refine: bool = False,
    seed: int = 0,
    stop: Callable[[], bool] | None = None,
) -> tuple[FusedPair, ...]:
    """Test every layer with its only reader, then what was fused with the next one.

    ``known`` pairs, of this model or another, are not tested again. Returns all pairs that were tested here; with
    ``known``, the fused ones are groups for ``Model.grouped``, and :func:`recorded` converts them for the table.
    """
    decided = {_bytes(pair.op, pair.configuration): not pair.apart for pair in known}
    order = _order(model)
    measured: dict[tuple[str, ...], FusedPair] = {}
    is_fused: dict[tuple[str, ...], bool] = {}
    for _ in range(_TURNS):
        current = model.grouped(nodes for nodes, fused in is_fused.items() if fused)
        fresh = {nodes: decided.get(_key(order, nodes)) for nodes in _pairs(current) if nodes not in is_fused}
        is_fused |= {nodes: fused for nodes, fused in fresh.items() if fused is not None}
        unknown = [nodes for nodes, fused in fresh.items() if fused is None]
        tried = {pair.nodes: pair for pair in _tried(device, unit, current, unknown, repeats, refine, seed, stop)}
        measured |= tried
        is_fused |= {nodes: pair.fused for nodes, pair in tried.items()}
        if (stop is not None and stop()) or not any(is_fused.get(nodes) for nodes in fresh):
            break
    return tuple(measured.values())


def recorded(model: Model, pairs: Iterable[FusedPair]) -> tuple[MeasuredFusion, ...]:
    """Convert a model's pairs from :func:`measured_fusions` to configurations, which apply to every model."""
    order = _order(model)
    fusions: dict[bytes, MeasuredFusion] = {}
    for pair in pairs:
        op, together = _together(order, pair.nodes)
        fusions.setdefault(_bytes(op, together), MeasuredFusion(op=op, configuration=together, apart=not pair.fused))
    return tuple(fusions.values())


def known_groups(model: Model, fusions: Collection[MeasuredFusion]) -> tuple[tuple[str, ...], ...]:
    """Nodes of a model that run as one layer, by earlier measurements of this model or another.

    Pairs are joined as in :func:`measured_fusions`: each layer with its only reader, then the result with
    the next one.
    """
    known = {_bytes(fusion.op, fusion.configuration) for fusion in fusions if not fusion.apart}
    operators = {tuple(sorted(fusion.op.split("+"))) for fusion in fusions if not fusion.apart}
    order = _order(model)
    groups: list[tuple[str, ...]] = []
    while True:
        fresh = [
            nodes
            for nodes in _pairs(model.grouped(groups))
            if tuple(sorted(order[name][1].op for name in nodes)) in operators and _key(order, nodes) in known
        ]
        if not fresh:
            return tuple(groups)
        groups += fresh


def _order(model: Model) -> dict[str, tuple[int, Node]]:
    """Node -> its index and description."""
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
    """Nodes of each layer that has one output, with those of that output's only reader."""
    readers: dict[str, list[int]] = {}
    for index, layer in enumerate(model.layers):
        for tensor in layer.inputs:
            readers.setdefault(tensor.name, []).append(index)
    results = {tensor.name for tensor in model.outputs}
    pairs = []
    for layer in model.layers:
        (*further, tensor) = layer.outputs
        if not further and tensor.name not in results and len(reading := readers.get(tensor.name, [])) == 1:
            pairs.append((*layer.nodes, *model.layers[reading[0]].nodes))
    return pairs


def _tried(
    device: Device,
    unit: str,
    model: Model,
    pairs: Iterable[tuple[str, ...]],
    repeats: int,
    refine: bool,
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
        except FramefitError:  # it cannot run alone, so it is no pair
            continue
        launches.append((nodes, (parts[0].op, parts[1].op), (first, second, both)))
    if not launches:
        return []
    design = overhead_design("avgpool", (run.input_bytes for run in rounds.runs), seed)
    grid = [rounds.add("overhead", auxiliary) for auxiliary in design.models]
    contrasts = [contrast.over(grid) for contrast in design.contrasts]
    count = max(math.ceil(repeats / RUNS), 1)
    most = _MOST * count if refine else count
    while True:
        complete = rounds.measure(count, stop)
        if not rounds.measured:
            return []
        tried = _judged(_tests(rounds, contrasts, launches))
        if not complete or count >= most or all(pair.decided for pair in tried):
            return tried
        count = min(2 * count, most)


_Launches = tuple[tuple[str, ...], tuple[str, str], tuple[int, int, int]]


def _tests(rounds: Rounds, contrasts: Sequence[Contrast], launches: Iterable[_Launches]) -> list[_Test]:
    medians = rounds.medians()
    fit = fit_overhead(contrasts, medians)
    tests = []
    for nodes, kind, places in launches:
        over = [fit.of(rounds.runs[place].input_bytes, rounds.runs[place].output_bytes) for place in places]
        first_ns, second_ns, both_ns = (medians[:, place] - ns for place, ns in zip(places, over, strict=True))
        shorter_ns = first_ns if first_ns[0] < second_ns[0] else second_ns
        tests.append(_Test(nodes, kind, first_ns + second_ns - both_ns, shorter_ns, both_ns[0]))
    return tests


def _judged(tests: Sequence[_Test]) -> list[FusedPair]:
    """Decide pairs of the same operators together, and those by themselves whose own gain is beyond doubt."""
    kinds: dict[tuple[str, str], list[_Test]] = {}
    for test in tests:
        kinds.setdefault(test.kind, []).append(test)
    whole_ns = sum(test.both_ns for test in tests) / 2  # each layer is in two pairs
    shares = {}
    for kind, same in kinds.items():
        open_ones = [test for test in same if test.alone() is None]
        if not open_ones:
            continue
        gain, shorter = (np.sum([getattr(test, name) for test in open_ones], axis=0) for name in ("gain", "shorter"))
        beyond = gain - _LEAST_SHARE * shorter
        noise = _SURE * float(np.std(shorter[1:]))
        if shorter[0] < noise:  # whether they take any time is not known
            shares[kind] = False, bool(shorter[0] + noise < _NOTHING * whole_ns)
        else:
            shares[kind] = bool(beyond[0] > 0), bool(abs(beyond[0]) > _SURE * float(np.std(beyond[1:])))
    pairs = []
    for test in tests:
        alone = test.alone()
        fused, decided = shares[test.kind] if alone is None else (alone, True)
        pairs.append(FusedPair(test.nodes, float(test.gain[0]), interval(test.gain), fused, decided))
    return pairs


def _alone(model: Model, nodes: set[str]) -> Model:
    """The layer of these nodes as a model whose tensors come from the host and return to it."""
    place = next(index for index, layer in enumerate(model.layers) if nodes <= set(layer.nodes))
    return with_auxiliary(model.segment(place, place), [])
