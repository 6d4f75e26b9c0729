"""Other segments of the same models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from framefit.core.fit_results import Standing
from framefit.core.settings import Notify
from framefit.core.workload import Workload
from framefit.devices.host import realtime_priority_permitted
from framefit.errors import FramefitError
from framefit.fit.situation import Situation, is_better
from framefit.fit.step import Offer, Step, step, with_entries

_MODES: tuple[Literal["fill", "fewest", "equal"], ...] = ("fill", "fewest", "equal")


@step("cuts", cost="none", rank=0)
class Cuts(Step):
    """Other segments: another mode of segmentation, models that would fit whole cut all the same, interruption."""

    def propose(self, situation: Situation) -> list[Offer]:
        """Each way that planning again shows to be better."""
        return [
            self.replanned(what, workload, standing, situation)
            for what, workload in self._ways(situation)
            for standing in _tried(situation, workload, self.context.notify)
        ]

    @staticmethod
    def _ways(situation: Situation) -> Iterator[tuple[str, Workload]]:
        workload, timetable = situation.workload, situation.planned.timetable
        schedule = workload.schedule
        units = situation.planned.device.target.units
        if schedule.preemption == "never" and all(unit.preemptive for unit in units) and realtime_priority_permitted():
            interrupted = msgspec.structs.replace(schedule, preemption="auto")
            what = "let the operating system interrupt background models"
            yield what, msgspec.structs.replace(workload, schedule=interrupted)
        if timetable.preemptive or not any(model.role == "background" for model in timetable.models):
            return
        for mode in _MODES:
            if mode != schedule.segmentation:
                cut = msgspec.structs.replace(schedule, segmentation=mode)
                yield f"cut by the mode {mode!r}", msgspec.structs.replace(workload, schedule=cut)
        whole = [m.name for m in timetable.models if m.role == "background" and len(m.segments) == 1]
        if whole:
            changed = with_entries(workload, whole, lambda entry: msgspec.structs.replace(entry, always_split=True))
            yield f"cut {' and '.join(map(repr, whole))}, too", changed


def _tried(situation: Situation, workload: Workload, notify: Notify) -> list[Standing]:
    """What planning again says of a workload, where that is better."""
    try:
        standing = situation.what_if(workload=workload, notify=notify)
    except FramefitError:
        return []
    return [standing] if is_better(situation.standing, standing) else []
