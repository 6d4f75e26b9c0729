"""A placed model in segments: each of its stages cut for the unit that it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from framefit.scheduling.partition import Pieces, partition
from framefit.scheduling.placement import Stage

__all__ = ["Run", "cut_stages"]


@dataclass(frozen=True)
class Run:
    """Pieces ``first`` to ``last`` as one segment on a unit."""

    unit: str
    first: int
    last: int


def cut_stages(
    pieces: Mapping[str, Pieces],
    stages: Sequence[Stage],
    room_ns: Mapping[str, int],
    guard_ns: int,
    mode: Literal["fill", "fewest", "equal"] = "fill",
    *,
    preemptive: bool = False,
) -> list[Run] | None:
    """The segments of a background model that was placed.

    A model that fits whole into one unit's residual runs whole, and so does a stage that fits, but where residuals are
    to be filled: the model is split all the same, and others share its units. What is longer is cut like a model of
    its own.

    Args:
        pieces: of the whole model, as measured on each unit.
        stages: where they were placed.
        room_ns: unit -> the longest planned duration that a segment may have there
            (:func:`~framefit.scheduling.reserving.segment_room`).
        guard_ns: that this room leaves free.
        mode: of segmentation.
        preemptive: units can be interrupted: no stage need be cut.

    Returns:
        One entry a segment, in order; ``None`` where a single piece is longer than the room.
    """
    runs: list[Run] = []
    for stage in stages:
        own = pieces[stage.unit].part(stage.first, stage.last)
        room = room_ns[stage.unit]
        _, quantile = own.of([(0, len(own) - 1)])
        splits = mode == "fill" and len(stages) > 1
        if preemptive or (quantile[0] <= room and not splits):
            runs.append(Run(stage.unit, stage.first, stage.last))
            continue
        found = partition(own, room + guard_ns, room, mode) if room > 0 else None
        if found is None:
            return None
        runs += [Run(stage.unit, stage.first + first, stage.first + last) for first, last in found]
    return runs
