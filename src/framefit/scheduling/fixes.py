"""The smallest changes that make an infeasible workload fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from framefit.core.timetable import Fix, PlannedModel
from framefit.scheduling.partition import Pieces, partition
from framefit.scheduling.timetable import Beat, build_timetable

__all__ = ["later_deadlines", "slower_beat"]


def later_deadlines(beat: Beat, models: Sequence[PlannedModel]) -> Fix | None:
    """The least deadlines (to 0.01 ms) at which no priority model is late; verified by placing again.

    Args:
        beat: windows, guard, deadlines.
        models: measured.

    Returns:
        The change, or ``None`` where every deadline that was given holds.
    """
    end, later = 0, {}
    for model in models:
        if model.role == "priority":
            end += model.duration_ns
            if end > beat.deadlines_ns.get(model.name, end):
                later[model.name] = math.ceil(end / 1e4) / 100
    if not later:
        return None
    deadlines = {**beat.deadlines_ns, **{name: round(after_ms * 1e6) for name, after_ms in later.items()}}
    moved = dataclasses.replace(beat, deadlines_ns=deadlines)
    return Fix(
        change=", ".join(f"deadline_ms = {after_ms:g} for {name!r}" for name, after_ms in later.items()),
        effect="the planned quantiles of the priority models, one after the other, end before it",
        verified=build_timetable(moved, models).feasible,
    )


def slower_beat(priority_ns: int, guard_ns: int, pieces: Sequence[Pieces], rate_hz: float) -> Fix:
    """The highest rate (to 1 %) at which every model can be placed; verified by cutting again.

    Args:
        priority_ns: planned priority period.
        guard_ns: guard.
        pieces: of each background model.
        rate_hz: what was asked for.
    """
    longest = max((int(piece.quantile_ns.max()) for piece in pieces), default=0)
    needed_ns = priority_ns + guard_ns + longest
    slower = math.floor(min(1e9 / needed_ns, rate_hz) * 0.99 * 100) / 100
    if slower <= 0:
        return Fix(change="a faster device", effect="no rate above 0.01 Hz fits", verified=False)
    residual = int(1e9 / slower) - priority_ns
    fits = residual >= guard_ns and all(partition(piece, residual, residual - guard_ns) is not None for piece in pieces)
    return Fix(
        change=f"rate_hz = {slower:g}",
        effect=f"a window of {1e3 / slower:.4g} ms holds the priority period, the guard and the longest layer",
        verified=fits,
    )
