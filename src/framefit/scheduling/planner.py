"""From costs to a timetable, without a device: cut what is too long, place, or say what binds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from framefit.core.timetable import Fix, PlannedModel, Timetable
from framefit.scheduling.bounds import Work, packing_bounds_hz
from framefit.scheduling.fixes import verified_fixes
from framefit.scheduling.partition import Pieces, partition
from framefit.scheduling.timetable import Beat, build_timetable, reserved_periods, segment_room

__all__ = [
    "Candidate",
    "Cutting",
    "arrange",
    "choose_segments",
    "cut",
    "estimated",
    "fixes",
    "limits",
    "served_ratio",
    "split_limit",
]

Mode = Literal["fill", "fewest", "equal"]

_FINER, _MOST_FINER = 0.75, 11  # longest segments that are tried where the guard follows from them
_PLAYED = 200  # windows
_ALIKE = 0.005  # of the time: less is not worth another cut


@dataclass(frozen=True)
class Candidate:
    """A model with everything that planning needs to know of its cost.

    Attributes:
        model: as it would run uncut: one segment, its role and level.
        pieces: its finest pieces; ``None``: it cannot be cut, or need not be.
        always_split: cut it even where it would fit whole.
    """

    model: PlannedModel
    pieces: Pieces | None = None
    always_split: bool = False


def choose_segments(
    candidates: Sequence[Candidate], beat: Beat, mode: Mode = "fill", limit_ns: int | None = None
) -> dict[str, list[tuple[int, int]] | None]:
    """Runs of pieces for each background model that has to be cut, or is to be.

    Args:
        candidates: priority models first.
        beat: windows, guard, demands.
        mode: of segmentation.
        limit_ns: no segment's quantile is to be greater, though the room may be; default: the room.

    Returns:
        Model -> first and last piece of each segment; ``None`` where no cut makes it fit.
        Models that stay whole are not in it.
    """
    room = segment_room(beat, [c.model for c in candidates if c.model.role == "priority"])
    most = room if limit_ns is None else min(room, limit_ns)
    chosen: dict[str, list[tuple[int, int]] | None] = {}
    for candidate in candidates:
        model = candidate.model
        if model.role == "priority" or candidate.pieces is None:
            continue
        too_long = model.duration_ns > most and not beat.preemptive
        if too_long or candidate.always_split:
            limit = split_limit(candidate.pieces, most, fits=not too_long)
            chosen[model.name] = partition(candidate.pieces, room + beat.guard_ns, limit, mode) if room > 0 else None
    return chosen


def split_limit(pieces: Pieces, room_ns: int, *, fits: bool) -> int:
    """Greatest quantile of a segment: the room, or less than the whole model where that fits and is to be split."""
    return min(room_ns, int(pieces.joined()[1][0, -1]) - 1) if fits else room_ns


def arrange(candidates: Sequence[Candidate], beat: Beat, mode: Mode = "fill") -> Timetable:
    """Cut and place at the estimated costs.

    Where the guard follows from the longest segment (``beat.excess_ratio``), segments are
    made as short as pays: also of models that would fit whole.

    Args:
        candidates: priority models first.
        beat: windows, least guard, demands.
        mode: of segmentation.
    """
    cutting = cut(candidates, beat, mode)
    return build_timetable(cutting.beat, cutting.models)


@dataclass(frozen=True)
class Cutting:
    """Models in segments at their estimated costs.

    Attributes:
        beat: with the guard that they need.
        runs: model -> first and last piece of each segment, ``None`` where no cut makes it
            fit; models that stay whole are not in it.
        models: in the order of the candidates.
    """

    beat: Beat
    runs: Mapping[str, list[tuple[int, int]] | None]
    models: list[PlannedModel]

    @property
    def fits(self) -> bool:
        """Whether a cut was found wherever one is needed."""
        return None not in self.runs.values()


def cut(candidates: Sequence[Candidate], beat: Beat, mode: Mode = "fill") -> Cutting:
    """Cut what has to be cut, and what is better cut; see :func:`arrange`.

    Each greatest length of a segment is played through; of what serves the background
    models alike, the one with the fewest segments is taken.
    """
    ways = [(limit, mode) for limit in _limits(candidates, beat, mode)]
    if len(ways) > 1:
        ways.insert(0, (ways[0][0], "fewest"))
    best: tuple[bool, float, int, Cutting] | None = None
    played: list[Mapping[str, list[tuple[int, int]] | None]] = []
    for limit, way in ways:
        runs = choose_segments(candidates, beat.covering(limit), way, limit)
        if runs in played:
            continue
        played.append(runs)
        models = estimated(candidates, runs)
        found = Cutting(beat.guarded(models), runs, models)
        if len(ways) == 1:
            return found
        useful = served_ratio(candidates, models, found.beat) if found.fits else 0.0
        rank = not found.fits, -round(useful / _ALIKE) * _ALIKE, sum(len(model.segments) for model in models)
        if best is None or rank < best[:3]:
            best = *rank, found
    assert best is not None
    return best[3]


def _limits(candidates: Sequence[Candidate], beat: Beat, mode: Mode) -> Sequence[int | None]:
    """Greatest segments to be tried where the guard follows from them."""
    if not beat.excess_ratio:
        return [None]
    return limits(candidates, beat)[: None if mode == "fill" else 1]


def limits(candidates: Sequence[Candidate], beat: Beat) -> list[int]:
    """Greatest lengths of a segment, from the longest downwards; that one leaves room for its own guard."""
    room = segment_room(beat, [c.model for c in candidates if c.model.role == "priority"])
    return [int(room / (1 + beat.excess_ratio) * _FINER**step) for step in range(_MOST_FINER)]


def estimated(
    candidates: Sequence[Candidate], chosen: Mapping[str, list[tuple[int, int]] | None]
) -> list[PlannedModel]:
    """The candidates in runs of their pieces, at estimated costs.

    Args:
        candidates: of which these
        chosen: are cut; ``None``: into all pieces, for no cut makes it fit.
    """
    models = []
    for candidate in candidates:
        if candidate.model.name not in chosen:
            models.append(candidate.model)
            continue
        runs = chosen[candidate.model.name]
        if runs is None and candidate.pieces is not None:
            runs = [(piece, piece) for piece in range(len(candidate.pieces))]  # the one that is too long gets named
        models.append(_cut(candidate, runs or []))
    return models


def served_ratio(
    candidates: Sequence[Candidate], models: Sequence[PlannedModel], beat: Beat, *, varied: bool = False
) -> float:
    """Part of the time that is useful background work: the uncut models' medians, played through.

    Args:
        candidates: uncut.
        models: the same as they are cut.
        beat: with its guard.
        varied: every second frame takes half of the excess over the median more: nobody knows
            exactly what launches take, so no window may be filled to the brim.
    """
    reserved = reserved_periods(beat, [model for model in models if model.role == "priority"])
    taken = max(sum(period.end_ns - period.start_ns for period in periods) for periods in reserved)
    background = [(c, m) for c, m in zip(candidates, models, strict=True) if m.role == "background"]
    whole = [sum(segment.median_ns for segment in c.model.segments) for c, _ in background]
    work = [
        Work(
            ns,
            [segment.median_ns for segment in model.segments],
            every=demand.every,
            frames=demand.frames,
            queue=demand.queue,
            needed_ns=[segment.duration_ns for segment in model.segments],
            varied_ns=_varied(model) if varied else (),
        )
        for ns, (_, model) in zip(whole, background, strict=True)
        for demand in [beat.of(model.name)]
    ]
    rates = packing_bounds_hz(beat.window_ns, taken, work, guard_ns=beat.guard_ns, windows=_PLAYED)
    return sum(rate / one.frames * ns for rate, one, ns in zip(rates, work, whole, strict=True)) / 1e9


def _varied(model: PlannedModel) -> tuple[list[int], list[int]]:
    return (
        [segment.median_ns for segment in model.segments],
        [(segment.median_ns + segment.duration_ns) // 2 for segment in model.segments],
    )


def _cut(candidate: Candidate, runs: Sequence[tuple[int, int]]) -> PlannedModel:
    """The model in segments at their estimated costs; layers are numbered by piece."""
    assert candidate.pieces is not None
    median, quantile = candidate.pieces.of(runs)
    whole = candidate.model.segments[0]
    segments = tuple(
        msgspec.structs.replace(
            whole,
            index=index,
            duration_ns=round(quantile[index]),
            median_ns=round(median[index]),
            fill_layer=f"{whole.first_layer}#{first}",
            first_layer=f"{whole.first_layer}#{first}",
            last_layer=f"{whole.first_layer}#{last}",
        )
        for index, (first, last) in enumerate(runs)
    )
    total = sum(segment.duration_ns for segment in segments)
    overhead = sum(segment.median_ns for segment in segments) / max(whole.median_ns, 1) - 1
    return msgspec.structs.replace(
        candidate.model, segments=segments, duration_ns=total, segmentation_overhead_ratio=max(overhead, 0.0)
    )


def fixes(candidates: Sequence[Candidate], beat: Beat, rate_hz: float, mode: Mode = "fill") -> tuple[Fix, ...]:
    """Small changes that make a workload of one unit fit; see :func:`~framefit.scheduling.fixes.verified_fixes`.

    Args:
        candidates: at their measured costs.
        beat: that is infeasible.
        rate_hz: of the beat.
        mode: of segmentation.
    """

    def arranged(other: Beat, costs: Mapping[str, float]) -> Timetable:
        return arrange(
            [_scaled(c, costs[c.model.name]) if c.model.name in costs else c for c in candidates], other, mode
        )

    return verified_fixes(arranged, beat, [c.model.name for c in candidates], rate_hz)


def _scaled(candidate: Candidate, factor: float) -> Candidate:
    segments = tuple(
        msgspec.structs.replace(s, duration_ns=int(s.duration_ns * factor), median_ns=int(s.median_ns * factor))
        for s in candidate.model.segments
    )
    model = msgspec.structs.replace(
        candidate.model, segments=segments, duration_ns=sum(s.duration_ns for s in segments)
    )
    pieces = None if candidate.pieces is None else candidate.pieces.scaled(np.full(len(candidate.pieces), factor))
    return Candidate(model, pieces, candidate.always_split)
