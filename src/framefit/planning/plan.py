"""What planning gives: a workload with its timetable.

What a plan knows beyond its own timetable: further ones, planned, cut and compiled before the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from framefit.core.timetable import Instruction, PlannedModel, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.execution.execution import Execution
from framefit.execution.measured import Costs
from framefit.planning.task import PlannedTask
from framefit.planning.timetable import instructions

__all__ = [
    "Cuts",
    "Plan",
    "PlannedLadder",
    "PlannedRung",
    "rates_name",
]


@dataclass(frozen=True)
class Cuts:
    """All models of a plan, in its order, cut in one way.

    Attributes:
        models: segments with their planned durations.
        executions: of these; all ways to cut a model share its tensors.
        begins: first layer of each segment.
    """

    models: tuple[PlannedModel, ...]
    executions: tuple[Execution, ...]
    begins: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PlannedRung:
    """A timetable that may be in force in a run.

    Attributes:
        name: for people.
        timetable: feasible.
        workload: with the rates of its streams.
        covers: how much longer launches may take than they were planned for, of priority and of background models.
        cuts: of the models in it.
    """

    name: str
    timetable: Timetable
    workload: Workload
    covers: tuple[float, float]
    cuts: Cuts


@dataclass(frozen=True)
class PlannedLadder:
    """All timetables that a run may change between.

    Launches are numbered through the cuts of all rungs, and the finest ones, in order.

    Attributes:
        rungs: the plan's own first; of the same rates in the order of what they cover.
        finest: every model cut wherever any rung cuts it: for frames in flight when the timetable changes.
        changes: seconds after the first release, and the rates from then on.
    """

    rungs: tuple[PlannedRung, ...]
    finest: Cuts
    changes: Sequence[tuple[float, Workload]]

    @property
    def cuts(self) -> tuple[Cuts, ...]:
        """In the order of the programs."""
        return (*(rung.cuts for rung in self.rungs), self.finest)

    def tracks(self) -> list[list[PlannedRung]]:
        """Rungs of the same rates together, the plan's own first."""
        found: list[list[PlannedRung]] = []
        for rung in self.rungs:
            track = next((track for track in found if track[0].workload.grid == rung.workload.grid), None)
            if track is None:
                found.append([rung])
            else:
                track.append(rung)
        return found


def rates_name(workload: Workload) -> str:
    """What its streams' rates are called in labels and file names: "30Hz", or one for each stream where they differ."""
    rates_hz = list(workload.rates_hz.values()) or [workload.beat_hz]
    if len(set(rates_hz)) == 1:
        return f"{rates_hz[0]:g}Hz"
    return "-".join(f"{rate_hz:g}Hz" for rate_hz in rates_hz)


@dataclass(frozen=True)
class Plan:
    """A workload with its timetable; models are compiled when they are first launched.

    Attributes:
        app: its file.
        workload: with absolute paths.
        device: where everything is compiled.
        costs: what launches cost there.
        timetable: the plan; see ``feasible``.
        tasks: in the order of ``timetable.models``.
        in_real_time: whether a described device's plan leaves time for this host's late wake-ups.
        ladder: further timetables that a run may change to; ``None``: none.
    """

    app: Path
    workload: Workload
    device: Device
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
