"""What planning gives: a workload with its timetable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from framefit.core.latency_table import Value
from framefit.core.target import absolute_target
from framefit.core.timetable import Instruction, PlannedModel, PlanSource, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.execution.compiled import Compiler, OpenTimetable, open_timetable
from framefit.execution.wiring import WiredModel
from framefit.planning.durations import Durations
from framefit.planning.timetable import instructions

__all__ = ["Plan", "plan_facts"]


@dataclass(frozen=True)
class Plan:
    """A workload with its timetable, and the device that it was planned on.

    Attributes:
        app: its file.
        workload: with absolute paths.
        timetable: the plan; see ``feasible``.
        in_real_time: whether a described device's plan leaves time for this host's late wake-ups.
        device: where everything is compiled.
        durations: what launches take there.
        wired: the models, loaded, in the order of ``timetable.models``.
        compiler: of the device; it has what planning compiled last.
    """

    app: Path
    workload: Workload
    timetable: Timetable
    in_real_time: bool
    device: Device
    durations: Durations
    wired: tuple[WiredModel, ...]
    compiler: Compiler

    def __repr__(self) -> str:
        """The workload, and its timetable in a line."""
        return f"<Plan of {self.app}: {self.timetable!r}>"

    def _repr_html_(self) -> str:
        return self.timetable._repr_html_()

    @property
    def instructions(self) -> dict[str, tuple[Instruction, ...]]:
        """What each unit loads, runs and stores in one repetition of the timetable."""
        return instructions(self.timetable)

    @property
    def identified(self) -> Plan:
        """The plan with the digests of its models in its timetables, as it is stored and run; itself where it has them.

        They are not computed while planning: serialising a model of 500 layers takes 25 ms.
        """
        if all(model.layers is not None and model.layers.digest is not None for model in self.timetable.models):
            return self
        digests = {model.entry.name: model.model.digest for model in self.wired}
        return dataclasses.replace(self, timetable=_identified(self.timetable, digests))

    @property
    def stored(self) -> Timetable:
        """The timetable with all that a run needs beside it, as it is written to a file."""
        app = self.app.resolve()
        source = PlanSource(
            app=str(app),
            workload=msgspec.structs.replace(self.workload, target=absolute_target(self.workload.target, app.parent)),
            device=plan_facts(self.device),
            in_real_time=self.in_real_time,
        )
        return msgspec.structs.replace(self.identified.timetable, source=source)

    def opened(self) -> OpenTimetable:
        """The plan with its models compiled.

        Raises:
            DeviceError: a segment cannot be.
        """
        models = open_timetable(self.timetable, self.wired, self.workload, self.app, self.compiler)
        return OpenTimetable(self.app, self.workload, self.timetable, self.device, self.durations, models)


def _identified(timetable: Timetable, digests: Mapping[str, str]) -> Timetable:
    def models(planned: Sequence[PlannedModel]) -> tuple[PlannedModel, ...]:
        return tuple(
            msgspec.structs.replace(model, layers=msgspec.structs.replace(model.layers, digest=digests[model.name]))
            if model.layers is not None
            else model
            for model in planned
        )

    ladder = timetable.ladder
    if ladder is not None:
        rungs = tuple(
            msgspec.structs.replace(rung, timetable=_identified(rung.timetable, digests)) for rung in ladder.rungs
        )
        ladder = msgspec.structs.replace(ladder, rungs=rungs, finest=models(ladder.finest))
    return msgspec.structs.replace(timetable, models=models(timetable.models), ladder=ladder)


def plan_facts(device: Device) -> dict[str, Value]:
    """Facts of a device by which a plan's file is accepted again: its fingerprint, whatever clock it is on."""
    return {name: value for name, value in device.fingerprint().items() if name != "clock"}
