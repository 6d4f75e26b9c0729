"""What planning gives: a workload with its timetable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from framefit.core.timetable import Instruction, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.runtime.models.costs import Costs
from framefit.scheduling.instructions import instructions
from framefit.workflows.planning.rungs import Cuts, PlannedLadder
from framefit.workflows.planning.task import PlannedTask

__all__ = ["Notify", "Plan", "silent"]

Notify = Callable[[str], None]


def silent(message: str) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Plan:
    """A workload with its timetable; models are compiled when they are first launched.

    Attributes:
        app: its file.
        workload: with absolute paths.
        device: where everything is compiled.
        core: of this host, that executes or drives the device's first unit.
        costs: what launches cost there.
        timetable: the plan; see ``feasible``.
        tasks: in the order of ``timetable.models``.
        in_real_time: whether a described device's plan leaves time for this host's late wake-ups.
        ladder: further timetables that a run may change to; ``None``: none.
    """

    app: Path
    workload: Workload
    device: Device
    core: int
    costs: Costs
    timetable: Timetable
    tasks: tuple[PlannedTask, ...]
    in_real_time: bool
    ladder: PlannedLadder | None = None

    @property
    def cuts(self) -> tuple[Cuts, ...]:
        """All ways in which a run may cut its models; launches are numbered through them."""
        if self.ladder is not None:
            return self.ladder.cuts
        begins = tuple(tuple(first for first, _ in task.segments) for task in self.tasks)
        return (Cuts(self.timetable.models, tuple(task.execution for task in self.tasks), begins),)

    @property
    def timetables(self) -> tuple[Timetable, ...]:
        """All that a run may change between, as far as they are planned."""
        return (self.timetable,) if self.ladder is None else tuple(rung.timetable for rung in self.ladder.rungs)

    @property
    def launched(self) -> Timetable:
        """The timetable with its models once for each of their cuts: launches of a run are numbered through these."""
        if self.ladder is None:
            return self.timetable
        models = tuple(model for cuts in self.ladder.cuts for model in cuts.models)
        return msgspec.structs.replace(self.timetable, models=models)

    @property
    def instructions(self) -> dict[str, tuple[Instruction, ...]]:
        """What each unit loads, runs and stores in one repetition of the timetable."""
        return instructions(self.timetable)
