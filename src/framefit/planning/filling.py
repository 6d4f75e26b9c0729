"""The residuals filled by playing the run's own policy through at the planned quantiles."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framefit.core.timetable import PlannedModel, Slot
from framefit.planning.beat import Beat, Span
from framefit.planning.playback import Playback, PlayedModel

MOST_WINDOWS = 10_000
_SEARCHED_WINDOWS = 64  # a longer hyperperiod gains less than 1/64 of a round
_SEARCHED_STAGED = 128  # frames in flight at its end are lost to it, several of each model


@dataclass(frozen=True)
class Filled:
    """Windows that may repeat.

    Attributes:
        windows: background slots of each.
        launches: of each background model in them.
        idle_ns: the least that is left before a reserved instant.
    """

    windows: Sequence[Sequence[Slot]]
    launches: Sequence[int]
    idle_ns: int


def fill(
    beat: Beat,
    models: Sequence[PlannedModel],
    free: Mapping[str, Sequence[Sequence[Span]]],
    handed_out: Sequence[Sequence[tuple[int, PlannedModel]]],
) -> Filled:
    """Windows of background slots that may repeat.

    The policy is played through at the planned quantiles. Of the repetitions within the
    horizon the one with most slots' time a window is taken; slots of frames that would be
    in flight at its end are left out. One that would launch a model more often than its
    frames arrive is none: the first frames are there at once.

    Args:
        beat: windows, guard, demands.
        models: in the order of service; priority models only as those that others read.
        free: unit -> where background segments may run in each window, until that repeats.
        handed_out: in each window, when priority models are done.
    """
    play = Playback(beat, models)
    count = len(handed_out)
    staged = any(len(model.stages) > 1 for model in play.models)
    searched = _SEARCHED_STAGED if staged else _SEARCHED_WINDOWS
    windows: list[list[Slot]] = []
    best: tuple[float, int] = (0.0, 0)
    begin = 0
    while len(windows) < searched or (not best[1] and len(windows) < MOST_WINDOWS):
        index = len(windows)
        for after, plan in handed_out[index % count]:
            play.hand_out(plan, begin + after, index)
        windows.append(play.window(index, begin, {name: spans[index % count] for name, spans in free.items()}))
        begin += beat.pattern_ns[index % len(beat.pattern_ns)]
        if len(windows) % count or not all(_lasts(beat, model, len(windows)) for model in play.models):
            continue
        complete = sum(model.done * model.plan.duration_ns for model in play.models)
        if complete / len(windows) > best[0]:
            best = (complete / len(windows), len(windows))
    return _whole(beat, play.models, windows[: best[1] or len(windows)], free)


def _lasts(beat: Beat, model: PlayedModel, windows: int) -> bool:
    """Whether the launches so far may be repeated: there were as many frames for them."""
    demand = model.demand
    needed = model.done * demand.every * demand.frames
    if model.plan.after:
        return 0 < needed <= model.read_frames
    if demand.releases is None:
        return 0 < needed <= windows
    return 0 < needed <= windows // len(beat.pattern_ns) * len(demand.releases)


def _whole(
    beat: Beat,
    models: Sequence[PlayedModel],
    windows: Sequence[Sequence[Slot]],
    free: Mapping[str, Sequence[Sequence[Span]]],
) -> Filled:
    """Without what would be in flight at the end."""
    left: dict[tuple[str, int], int] = {}  # of each frame's launches
    segments = {model.plan.name: model.plan.segments for model in models}
    taken = {
        model.plan.name: [sum(s.duration_ns for s in replica.segments) for replica in model.plan.replicas]
        for model in models
    }
    for slot in itertools.chain.from_iterable(windows):
        frame = slot.model, slot.frame
        if frame not in left:
            left[frame] = taken[slot.model][segments[slot.model][slot.segment].replica]
        left[frame] -= slot.duration_ns
    kept = [[slot for slot in placed if not left[slot.model, slot.frame]] for placed in windows]
    done = [sum(name == m.plan.name and not rest for (name, _), rest in left.items()) for m in models]
    idle = beat.window_ns
    for index, placed in enumerate(kept):
        for unit, spans in free.items():
            for begin, end in spans[index % len(spans)]:
                within = [s.start_ns + s.duration_ns for s in placed if s.unit == unit and begin <= s.start_ns < end]
                idle = min(idle, end - max(within, default=begin))
    return Filled(kept, done, idle)
