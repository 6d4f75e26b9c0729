"""Planned models, timetables and pieces in plain numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from framefit.core.timetable import PlannedModel, Segment
from framefit.planning.beat import Beat, Demand
from framefit.planning.partition import Pieces

__all__ = ["beats_and_models", "one_round", "planned", "some_pieces", "uniform"]


def planned(name: str, durations_ns: Sequence[int], *, priority: bool = False, unit: str = "cpu0") -> PlannedModel:
    """A model of segments that take ``durations_ns``."""
    segments = [
        Segment(
            index=index,
            unit=unit,
            fill_layer=f"{name}_{index}",
            first_layer=f"{name}_{index}",
            last_layer=f"{name}_{index}",
            output_layers=(f"{name}_{index}",),
            duration_ns=duration,
            median_ns=duration,
            boundary_bytes=0,
            tensors=(f"{name}_{index}_out",),
        )
        for index, duration in enumerate(durations_ns)
    ]
    return PlannedModel(
        name=name,
        role="priority" if priority else "background",
        level=10 if priority else 0,
        reasons=(),
        duration_ns=sum(durations_ns),
        segments=tuple(segments),
    )


def uniform(durations_ns: Sequence[int]) -> Pieces:
    """Pieces without spread or boundaries."""
    times = np.asarray(durations_ns, np.int64)
    return Pieces(times, times, np.zeros(len(times) - 1, np.int64))


@st.composite
def some_pieces(draw: st.DrawFn) -> Pieces:
    """One to eight pieces; a boundary costs no more than the pieces beside it."""
    median = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=8))
    excess = draw(st.lists(st.integers(0, 300), min_size=len(median), max_size=len(median)))
    boundary = [draw(st.integers(0, min(pair) // 2)) for pair in itertools.pairwise(median)]
    return Pieces(np.asarray(median), np.asarray(median) + np.asarray(excess), np.asarray(boundary, np.int64))


def one_round(random: np.random.Generator) -> tuple[Beat, list[PlannedModel]]:
    """Any beat with 0 to 3 priority and 0 to 4 background models of windows of 100 to 1000 ns; not all fit."""

    def between(low: int, high: int) -> int:
        return int(random.integers(low, max(high, low) + 1))

    def maybe(chance: float) -> bool:
        return bool(random.random() < chance)

    window = between(100, 1000)
    first, later = between(0, 3), between(0, 4)
    longest = max(int(window * random.choice([0.05, 0.15, 0.3, 0.45])), 1)
    models = [
        planned(f"first{n}", [between(1, window // (4 * first)) for _ in range(between(1, 2))], priority=True)
        for n in range(first)
    ]
    models += [
        planned(f"later{n}", [between(1, longest) for _ in range(between(1, 10 if maybe(0.6) else 3))])
        for n in range(later)
    ]
    demands = {}
    for model in models:
        every = Fraction(between(3, 9), 3) if maybe(0.3) else between(1, 3)
        if model.role == "priority":
            deadline = between(window // 2, window) if maybe(0.15) else None
            demands[model.name] = Demand(deadline_ns=deadline, every=every)
        elif maybe(0.85):
            deadline = between(window // 2, 30 * window) if maybe(0.1) else None
            demands[model.name] = Demand(
                deadline_ns=deadline,
                queue=between(1, 4),
                every=every,
                frames=between(1, 3) if maybe(0.4) else 1,
                refuses=maybe(0.4),
            )
    beat = Beat(
        window_ns=window,
        guard_ns=between(0, window // 10) if maybe(0.8) else 0,
        late_ns=between(0, window // 20) if maybe(0.7) else 0,
        position=str(random.choice(["start", "middle", "end"])),  # type: ignore[arg-type]
        preemptive=maybe(0.25),
        demands=demands,
    )
    return beat, models


@st.composite
def beats_and_models(draw: st.DrawFn) -> tuple[Beat, list[PlannedModel]]:
    """:func:`one_round` of a drawn seed."""
    return one_round(np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
