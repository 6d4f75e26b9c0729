"""Who is served first: reserved time for a model, or another order among background models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from framefit.core.timetable import PlannedModel
from framefit.core.workload import ModelEntry, Workload
from framefit.fit.situation import Situation
from framefit.fit.step import FreeStep, Way, step, with_entries, with_entry

_THRESHOLD = 5  # docs/priorities.md: from this level on, unless the workload sets one


@step("levels", cost="none", rank=1)
class Levels(FreeStep):
    """A part of every window for a background model; none for a model of automatic level; another order of service."""

    def ways(self, situation: Situation, workload: Workload) -> Iterator[Way]:
        """Each background model raised, the cheapest first; where nothing is feasible, each "auto" model lowered."""
        roles = situation.planned.timetable.models
        takes = {model.name: model.duration_ns for model in roles}
        background = [entry for entry in workload.models if _is_background(entry, roles)]
        for entry in sorted(background, key=lambda entry: takes[entry.name]):
            if entry.frames == 1:
                raised = msgspec.structs.replace(entry, priority="every-window")
                yield Way(f"serve {entry.name!r} first, in time of its own", _counted(workload, raised, 1))
        if not situation.standing.feasible:
            for entry in workload.models:
                if entry.priority == "auto" and not _is_background(entry, roles):
                    lowered = msgspec.structs.replace(entry, priority="background")
                    yield Way(f"run {entry.name!r} in the background", _counted(workload, lowered, -1))
        if len(background) > 1:
            shortest = sorted(background, key=lambda entry: takes[entry.name])
            yield Way("serve the shortest background model first", _in_order(workload, shortest))
            if any(entry.deadline_ms for entry in background):
                earliest = sorted(background, key=lambda entry: entry.deadline_ms or math.inf)
                yield Way("serve the background model with the earliest deadline first", _in_order(workload, earliest))

    def against_misses(self, situation: Situation, missed: Sequence[str]) -> Iterator[Way]:
        """Each of these models raised, the cheapest first."""
        for way in self.ways(situation, situation.workload):
            if any(_raised(way.workload, situation.workload, name) for name in missed):
                yield way


def _raised(after: Workload, before: Workload, name: str) -> bool:
    """Whether a model has become one of priority."""
    old, new = (next(entry for entry in each.models if entry.name == name) for each in (before, after))
    return new.priority == "every-window" and old.priority != new.priority


def _is_background(entry: ModelEntry, planned: tuple[PlannedModel, ...]) -> bool:
    """As the workload says, or where it says nothing, as it was planned."""
    if entry.priority in ("background", "every-window"):
        return entry.priority == "background"
    return next(model.role for model in planned if model.name == entry.name) == "background"


def _counted(workload: Workload, entry: ModelEntry, more: int) -> Workload:
    """With another entry of a model, and so many more priority models where the workload counts them."""
    count, changed = workload.schedule.num_priority, with_entry(workload, entry)
    if count is None:
        return changed
    schedule = msgspec.structs.replace(workload.schedule, num_priority=max(count + more, 0))
    return msgspec.structs.replace(changed, schedule=schedule)


def _in_order(workload: Workload, models: list[ModelEntry]) -> Workload:
    """With background models in this order of service: levels below the threshold, the first one's the highest."""
    highest = (workload.schedule.priority_threshold or _THRESHOLD) - 1
    level = {entry.name: max(highest - place, 0) for place, entry in enumerate(models)}
    return with_entries(workload, list(level), lambda entry: msgspec.structs.replace(entry, priority=level[entry.name]))
