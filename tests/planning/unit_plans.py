"""Beats and models of several units in plain numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from plans import planned

from framefit.core.target import Link
from framefit.core.timetable import PlannedModel, Timetable
from framefit.planning.beat import Beat, Demand
from framefit.planning.check import check_timetable

__all__ = ["checked", "link", "on_units", "several_units"]


def link(one: str, other: str, latency_ns: int = 0, byte_ns: float = 0) -> Link:
    """A link that carries a byte in ``byte_ns``."""
    return Link(between=(one, other), latency_ns=latency_ns, bandwidth_gbps=1 / byte_ns if byte_ns else None)


def on_units(
    name: str,
    segments: Sequence[tuple[str, int]],
    *,
    priority: bool = False,
    slots: int = 1,
    after: tuple[str, ...] = (),
    boundary_bytes: int = 0,
    turns: int = 1,
) -> PlannedModel:
    """A model of segments, each with its unit and duration."""
    model = planned(name, [duration for _, duration in segments], priority=priority)
    placed = [
        msgspec.structs.replace(segment, unit=unit, boundary_bytes=boundary_bytes)
        for segment, (unit, _) in zip(model.segments, segments, strict=True)
    ]
    return msgspec.structs.replace(model, segments=tuple(placed), slots=slots, after=after, turns=turns)


def several_units(random: np.random.Generator) -> tuple[Beat, list[PlannedModel]]:
    """Any beat with 1 to 3 units, models of several stages, some of which read others; not all fit."""

    def between(low: int, high: int) -> int:
        return int(random.integers(low, max(high, low) + 1))

    def maybe(chance: float) -> bool:
        return bool(random.random() < chance)

    lengths = [between(40, 400)] if maybe(0.7) else [between(40, 400) for _ in range(between(2, 4))]
    window = min(lengths)
    units = [f"npu{number}" for number in range(between(1, 3))]
    first, later = between(0, 2), between(1, 4)
    longest = max(int(window * random.choice([0.05, 0.15, 0.3])), 1)
    models: list[PlannedModel] = []
    demands: dict[str, Demand] = {}

    def route(count: int, most: int) -> list[tuple[str, int]]:
        unit, found = str(random.choice(units)), []
        for _ in range(count):
            unit = str(random.choice(units)) if maybe(0.4) else unit
            found.append((unit, between(1, most)))
        return found

    for number in range(first + later):
        priority = number < first
        name = f"first{number}" if priority else f"later{number}"
        route_of = route(between(1, 3), max(window // 12, 1)) if priority else route(between(1, 5), longest)
        readable = [m.name for m in models if m.role == "priority" or not priority]
        after = tuple(random.choice(readable, between(1, min(len(readable), 2)), replace=False).tolist()) if (
            readable and maybe(0.25)
        ) else ()  # fmt: skip
        size = between(0, 20)
        turns = between(1, 3) if not priority and maybe(0.4) else 1
        slots = between(1, 4)
        models.append(
            on_units(name, route_of, priority=priority, slots=slots, after=after, boundary_bytes=size, turns=turns)
        )
        releases = None
        if len(lengths) > 1 and not after and maybe(0.6):
            releases = tuple(sorted(random.choice(len(lengths), between(1, len(lengths)), replace=False).tolist()))
        # A priority model's own next frame may be further away than the next of any stream.
        deadline = _apart(lengths, releases) if priority and releases and maybe(0.7) else None
        demands[name] = Demand(
            deadline_ns=deadline,
            queue=between(1, 3),
            every=between(1, 2) if maybe(0.3) else 1,
            frames=between(1, 2) if not priority and maybe(0.3) else 1,
            refuses=not priority and maybe(0.3),
            releases=releases,
        )
    links = [
        link(a, b, between(0, window // 10), float(random.choice([0, 0.5, 1])))
        for a, b in itertools.combinations(units, 2)
        if maybe(0.8)
    ]
    beat = Beat(
        window_ns=window,
        guard_ns=between(0, window // 20),
        late_ns=between(0, window // 30) if maybe(0.6) else 0,
        position=str(random.choice(["start", "start", "middle", "end"])),  # type: ignore[arg-type]
        preemptive=maybe(0.15),
        demands=demands,
        lengths_ns=tuple(lengths) if len(lengths) > 1 else (),
        links=tuple(links),
    )
    return beat, models


def _apart(lengths: Sequence[int], releases: Sequence[int]) -> int:
    """The least time between two releases."""
    begins = [0, *itertools.accumulate(lengths)]
    at = [begins[window] for window in releases]
    return min(end - begin for begin, end in itertools.pairwise([*at, at[0] + begins[-1]]))


def checked(
    beat: Beat, timetable: Timetable, supported: Mapping[str, Sequence[Sequence[str]]] | None = None
) -> list[str]:
    """What the independent check finds."""
    return check_timetable(
        timetable,
        deadlines_ns={n: d.deadline_ns for n, d in beat.demands.items() if d.deadline_ns is not None},
        every={name: demand.every for name, demand in beat.demands.items()},
        releases={name: d.releases for name, d in beat.demands.items() if d.releases is not None},
        lengths_ns=beat.lengths_ns,
        supported=supported,
    )
