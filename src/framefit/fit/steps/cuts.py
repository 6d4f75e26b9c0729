"""Other segments of the same models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from framefit.core.workload import Workload
from framefit.devices.host import realtime_priority_permitted
from framefit.fit.situation import Situation
from framefit.fit.step import FreeStep, Way, step, with_entries

_MODES: tuple[Literal["fill", "fewest", "equal"], ...] = ("fill", "fewest", "equal")


@step("cuts", cost="none", rank=0)
class Cuts(FreeStep):
    """Other segments: another mode of segmentation, models that would fit whole cut all the same, interruption."""

    def ways(self, situation: Situation, workload: Workload) -> Iterator[Way]:
        """Each on its own: on units that can be interrupted, interrupted or cut, and on all of them other cuts."""
        timetable, schedule = situation.planned.timetable, workload.schedule
        background = [model for model in timetable.models if model.role == "background"]
        if not background:
            return
        if all(unit.preemptive for unit in situation.planned.device.target.units) and realtime_priority_permitted():
            other: Literal["auto", "never"] = "never" if schedule.preemption == "auto" else "auto"
            what = {
                "auto": "let the operating system interrupt background models",
                "never": "cut background models instead of interrupting them",
            }[other]
            yield Way(
                what, msgspec.structs.replace(workload, schedule=msgspec.structs.replace(schedule, preemption=other))
            )
        for mode in _MODES:
            if mode != schedule.segmentation:
                cut = msgspec.structs.replace(schedule, segmentation=mode)
                yield Way(f"cut by the mode {mode!r}", msgspec.structs.replace(workload, schedule=cut))
        entries = {entry.name: entry for entry in workload.models}
        whole = [m.name for m in background if len(m.segments) == 1 and not entries[m.name].always_split]
        for names in [whole, *([name] for name in whole if len(whole) > 1)]:
            if names:
                cut_models = with_entries(
                    workload, names, lambda entry: msgspec.structs.replace(entry, always_split=True)
                )
                yield Way(f"cut {' and '.join(map(repr, names))}, too", cut_models)
        if schedule.priority_position != "start":
            first = msgspec.structs.replace(schedule, priority_position="start")
            yield Way("reserve the begin of each window", msgspec.structs.replace(workload, schedule=first))
