"""How a workload stands: its plan, what each model asks for and gets, and what would be if models were cheaper."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from framefit.core.fit_results import ServedModel, Standing
from framefit.core.model import Model, epilogue_groups
from framefit.core.settings import Notify, silent
from framefit.core.verdict import SERVED, gets, verdict_of
from framefit.core.workload import Workload
from framefit.devices.device import ModelledDevice
from framefit.devices.registry import open_device
from framefit.execution.unit_support import usable_units
from framefit.planning.plan import Plan
from framefit.planning.planner import PlanRequest
from framefit.workflows.plan import again, plan

_GAIN = 0.01  # of the load, or of what the least-served model gets: less is no gain


@dataclass(frozen=True)
class Situation:
    """A workload, its plan and where that leaves it.

    Attributes:
        planned: at present; its workload has absolute paths.
        margin_ratio: times what they take that launches are planned to take.
        standing: of the plan.
        notes: of planning.
    """

    planned: Plan
    margin_ratio: float
    standing: Standing
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, app: Path, workload: Workload, margin_ratio: float, notify: Notify, *, computes: bool = True
    ) -> Situation:
        """Plan a workload.

        Args:
            app: its file.
            workload: with absolute paths.
            margin_ratio: times what they take that launches are planned to take.
            notify: receives what is being done.
            computes: whether it can be run; else only its standing is of use.

        Raises:
            InputError: see :func:`framefit.plan`.
            DeviceError: likewise.
        """
        planned = plan(
            app,
            workload=workload,
            priority_ratio=margin_ratio,
            background_ratio=margin_ratio,
            explained=False,
            computes=computes,
            notify=notify,
        )
        return cls(planned, margin_ratio, standing_of(planned))

    @property
    def workload(self) -> Workload:
        """That it is about."""
        return self.planned.workload

    @property
    def described(self) -> bool:
        """Whether the target is a described device; else it is this machine."""
        return self.planned.device.capabilities.modelled

    def share_of_load(self, model: str) -> float:
        """Part of all units' time that a model asks for."""
        entry = next(each for each in self.standing.models if each.name == model)
        total = sum(each.work_ratio for each in self.standing.models)
        return self.standing.load_ratio * entry.work_ratio / total if total else 0.0

    def if_model_took(self, model: str, ratio: float) -> float:
        """The load if launches of a model took so many times as long."""
        return self.standing.load_ratio - (1 - ratio) * self.share_of_load(model)

    def __reduce__(self) -> tuple[object, ...]:
        """Another process plans it anew: open models and devices are this one's."""
        return _planned_anew, (self.planned.app, msgspec.json.encode(self.workload), self.margin_ratio)

    def elsewhere(self, workload: Workload, notify: Notify) -> Situation:
        """Another workload of the same models on other units, planned on a device of its own.

        Raises:
            InputError: see :func:`framefit.plan`.
            DeviceError: likewise.
        """
        key = msgspec.json.encode(workload)
        if key not in self._elsewhere:
            self._elsewhere[key] = Situation.of(self.planned.app, workload, self.margin_ratio, notify, computes=False)
        return self._elsewhere[key]

    @functools.cached_property
    def _elsewhere(self) -> dict[bytes, Situation]:
        return {}

    def what_if(
        self,
        ratios: Mapping[str, float] | None = None,
        workload: Workload | None = None,
        *,
        whether_fits: bool = False,
        notify: Notify,
    ) -> Standing:
        """Where other durations, or another workload of the same models on the same device, would leave it.

        Args:
            ratios: model -> times what it takes now.
            workload: with absolute paths; default: the present one.
            whether_fits: where it does not fit, no more is to be known.
            notify: receives what is being done.
        """
        key = msgspec.json.encode((workload or self.workload, ratios))
        keys = [(key, False), (key, True)] if whether_fits else [(key, False)]
        known = next((self._standings[each] for each in keys if each in self._standings), None)
        if known is None:
            known = self._planned_again(ratios or {}, workload or self.workload, notify, whether_fits=whether_fits)
            self._standings[keys[0] if known.fits else keys[-1]] = known
        return known

    @functools.cached_property
    def _standings(self) -> dict[tuple[bytes, bool], Standing]:
        """What planning again has said, by what was planned, and whether only to know if it fits."""
        return {}

    def _planned_again(
        self, ratios: Mapping[str, float], workload: Workload, notify: Notify, *, whether_fits: bool
    ) -> Standing:
        request = PlanRequest(
            self.planned.app,
            workload,
            in_real_time=self.planned.in_real_time,
            priority_ratio=self.margin_ratio,
            background_ratio=self.margin_ratio,
            ratios=ratios,
            explained=False,
            whether_fits=whether_fits,
        )
        return standing_of(again(self._priced, request, notify))

    @functools.cached_property
    def _priced(self) -> Plan:
        """The plan on a device that computes nothing, where durations are known without: no segment is compiled."""
        if not self.described:
            return self.planned
        workload = self.workload
        device = open_device(workload.target, folder=self.planned.app.parent, settings=workload.machine)
        return replace(self.planned, device=device)


@functools.lru_cache(maxsize=2)
def _planned_anew(app: Path, workload: bytes, margin_ratio: float) -> Situation:
    return Situation.of(app, msgspec.json.decode(workload, type=Workload), margin_ratio, silent, computes=False)


def losers(before: Standing, after: Standing) -> str:
    """Which models get fewer frames than before, and for which ones that gain, as a sentence; empty: none does."""
    given = {model.name: model.served_hz for model in before.models}
    more = [model.name for model in after.models if model.served_hz * SERVED > given[model.name]]
    losses = fewer(before, after)
    return f"{losses}: that is for {' and '.join(map(repr, more))}" if losses and more else ""


def fewer(before: Standing, after: Standing) -> str:
    """Which models get fewer frames than before, as a sentence; empty: none does."""
    given = {model.name: model.served_hz for model in before.models}
    return " and ".join(
        f"{model.name!r} gets {model.served_hz:.4g} Hz, {given[model.name]:.4g} before"
        for model in after.models
        if after.feasible and model.served_hz < SERVED * given[model.name]
    )


def is_better(before: Standing, after: Standing) -> bool:
    """Whether a step brings anything."""
    if after.fits or after.feasible != before.feasible:
        return after.feasible
    gain = after.least_share_ratio - before.least_share_ratio
    return gain >= _GAIN or (gain > -_GAIN and after.load_ratio <= (1 - _GAIN) * before.load_ratio)


def standing_of(planned: Plan) -> Standing:
    """What a plan's models ask for and get, and whether that is all of it."""
    timetable, workload = planned.timetable, planned.workload
    frames = {entry.name: entry.frames for entry in workload.models}
    models = tuple(
        ServedModel(
            name=model.name,
            role=model.role,
            duration_ns=model.duration_ns,
            frames=frames[model.name],
            asked_hz=model.asked_hz,
            served_hz=model.served_hz,
        )
        for model in timetable.models
    )
    units = usable_units(workload, planned.device, planned.app)
    binding = timetable.binding_constraint
    if timetable.feasible:
        binding = "; ".join(gets(model) for model in models if model.share_ratio < SERVED) or binding
    return Standing(
        verdict=verdict_of(models, feasible=timetable.feasible),
        load_ratio=sum(model.work_ratio for model in models) / len(units),
        worst_slack_ns=timetable.worst_slack_ns,
        models=models,
        binding=binding,
    )


def fixed_ns(device: ModelledDevice, model: Model) -> int:
    """What a launch costs beside its layers, however cheap these get: the host's part and the transfers."""
    return sum(device.link_ns(model))


def layers_ratio(device: ModelledDevice, model: Model, unit: str, ratio: float) -> float:
    """What part of their time its layers may take, so that a launch takes so many times as long as it does.

    Returns:
        0 or less: the layers cannot make up for it.
    """
    fixed = fixed_ns(device, model)
    layers = sum(device.layers_ns(model.grouped(epilogue_groups(model)), unit))
    return (ratio * (fixed + layers) - fixed) / max(layers, 1)
