"""Which layers of a model kernels execute: those for which a measurement says that they are faster.

Candidates have enough zeros, or are in int8.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from framefit.core.model import Model
from framefit.devices.kernels.network import Network, NoKernelError, Vectors, has_kernel, network_of

_LEAST_ZEROS = 0.25  # of a layer's weights, for a closer look at the model
_MOST_KEPT = 0.85  # of the multiplications, where skipping the others may pay
_FASTER = 0.95  # of the runtime's time, at most
_TURNS, _TURN_NS = 7, 2_000_000


@dataclass(frozen=True)
class Region:
    """Adjacent layers of a model that kernels can execute together.

    Attributes:
        first, last: layers.
        network: what they are.
    """

    first: int
    last: int
    network: Network


class Comparison(msgspec.Struct, frozen=True):
    """Medians of what the layers of a region take in turn, in ns."""

    kernels_ns: float
    runtime_ns: float

    @property
    def faster(self) -> bool:
        """Whether the kernels are clearly faster."""
        return self.kernels_ns <= _FASTER * self.runtime_ns


def may_be_faster(network: Network, vectors: Vectors) -> bool:
    """Whether a comparison is worth its time: with so many zeros, or in int8 on a processor that multiplies bytes."""
    if any(step.scales is not None for step in network.steps):
        return bool(vectors.dot)
    return network.kept_ratio(vectors.lanes) <= _MOST_KEPT


def regions_of(model: Model, but: Collection[int] = ()) -> list[Region]:
    """Find regions of a model with zeros or in int8.

    Args:
        model: its layers; both ends of a region are legal cuts.
        but: layers that something else executes.
    """
    in_bytes = any(node.op == "QuantizeLinear" for nodes in model.nodes for node in nodes)
    if not in_bytes and max(model.weight_zeros(), default=0.0) < _LEAST_ZEROS:
        return []
    able = [place not in but and all(map(has_kernel, nodes)) for place, nodes in enumerate(model.nodes)]
    return _found(model, able, 0, len(able))


def marked_regions(model: Model) -> list[Region]:
    """Regions of a lowered model that were chosen before it was lowered."""
    if model.unlowered.isdisjoint(name for layer in model.layers for name in layer.nodes):
        return []
    able = [
        model.unlowered.issuperset(layer.nodes) and all(map(has_kernel, nodes))
        for layer, nodes in zip(model.layers, model.nodes, strict=True)
    ]
    return _found(model, able, 0, len(able))


def _found(model: Model, able: Sequence[bool], begin: int, end: int) -> list[Region]:
    """Longest regions among the layers from ``begin`` to below ``end``."""
    legal = {0, len(able), *(cut.position for cut in model.legal_cuts)}
    regions = []
    place = begin
    for fits, run in itertools.groupby(able[begin:end]):
        first, place = place, place + len(list(run))
        last = place
        while first < last and first not in legal:
            first += 1
        while first < last and last not in legal:
            last -= 1
        if not fits or first >= last:
            continue
        try:
            regions.append(Region(first, last - 1, network_of(model.segment(first, last - 1))))
        except NoKernelError as error:
            odd = next((n for n in range(first, last) if error.node in model.layers[n].nodes), None)
            if odd is not None:
                regions += _found(model, able, first, odd) + _found(model, able, odd + 1, last)
    return regions


def compared(kernels: Callable[[], Any], runtime: Callable[[], Any]) -> Comparison:
    """Run both in turn."""
    kernels_ns, runtime_ns = in_turn([kernels, runtime])
    return Comparison(kernels_ns=kernels_ns, runtime_ns=runtime_ns)


def in_turn(runs: Sequence[Callable[[], Any]], turns: int = _TURNS) -> list[float]:
    """Run all of them in turn, again and again; return the median of what each one takes, in ns."""
    launches = []
    for run in runs:
        run()
        begun = time.perf_counter_ns()
        run()
        launches.append(max(1, _TURN_NS // max(time.perf_counter_ns() - begun, 1)))
    took = np.empty((turns, len(runs)))
    for turn in range(turns):
        for number, run in enumerate(runs):
            begun = time.perf_counter_ns()
            for _ in range(launches[number]):
                run()
            took[turn, number] = (time.perf_counter_ns() - begun) / launches[number]
    return [float(median) for median in np.median(took, axis=0)]


def vectors_here() -> Vectors | None:
    """Vector registers of this processor; ``None``: there are no kernels for it."""
    from framefit.devices.kernels.compiled import host, vectors_of  # importing LLVM takes 0.1 s

    return vectors_of(host()[1])


def lanes_here() -> int:
    """How many outputs share their zeros in this machine's kernels; 0: it has none."""
    vectors = vectors_here()
    return 0 if vectors is None else vectors.lanes
