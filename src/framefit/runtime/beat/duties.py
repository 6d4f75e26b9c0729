"""Which unit does what in a run: the stages of a timetable's models, and when they are due."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefit.core.timetable import Timetable
from framefit.runtime.beat.crew import Duty
from framefit.runtime.beat.dispatcher import Service, instants
from framefit.runtime.models.job import Job

__all__ = ["MakeService", "duties_of"]

MakeService = Callable[[int, Sequence[int]], Service]  # number of background jobs, and the turns of each in a round


def duties_of(
    timetable: Timetable,
    jobs: Sequence[Sequence[Job]],
    service: MakeService,
    *,
    order: Sequence[int] | None = None,
    stalls: Callable[[str], Callable[[], int] | None] = lambda _: None,
) -> dict[str, Duty]:
    """Each unit's jobs.

    Args:
        timetable: its units, models and priority periods.
        jobs: of each model's stages, in order.
        service: makes a unit's policy among its background jobs.
        order: numbers of the models in order of service, priority models first; default: as they are.
        stalls: of a unit: reads how long the host kept its core from running.
    """
    by_unit: dict[str, list[Job]] = {unit: [] for unit in timetable.units}
    turns: dict[str, list[int]] = {unit: [] for unit in timetable.units}
    numbers: dict[str, dict[str, list[int]]] = {unit: {} for unit in timetable.units}
    for number in range(len(timetable.models)) if order is None else order:
        model = timetable.models[number]
        for stage, job in zip(model.stages, jobs[number], strict=True):
            unit = stage[0].unit
            numbers[unit].setdefault(model.name, []).append(len(by_unit[unit]))
            by_unit[unit].append(job)
            if model.role == "background":
                turns[unit].append(model.turns)
    return {
        unit: Duty(
            jobs=own,
            service=service(len(turns[unit]), turns[unit]),
            reserved=instants(timetable, numbers[unit], unit),
            guard_ns=timetable.guard_ns,
            preemptive=timetable.preemptive,
            stalls=stalls(unit),
        )
        for unit, own in by_unit.items()
    }
