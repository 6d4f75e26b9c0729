"""``framefit check``: whether a workload's models got slower, measured in turn with an earlier version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.bundle import names_bundle, read_bundle
from framefit.core.check import CheckDecision, CheckedModel, CheckResult
from framefit.core.files import read_record
from framefit.core.model import Model
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import absolute_target
from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.device import Completion, Device, is_modelled
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.measure import launch_of, measure
from framefit.devices.registry import open_device
from framefit.errors import InputError
from framefit.execution.bundled import wired_again
from framefit.execution.compiled import laid_out_as
from framefit.execution.unit_support import home_unit, usable_units
from framefit.execution.wiring import WiredModel, wire
from framefit.stats import two_sided_z
from framefit.workflows.plan import names_plan
from framefit.workflows.settings import CheckSettings

__all__ = ["check"]

_CONFIDENCE = 0.99
_FLOOR_NS = 2_000  # a launch's own time varies so much with where its memory lies
_BINDINGS = 5  # anew each time, so that one placement in memory does not decide
_LEAST_ROUNDS, _MOST_ROUNDS = 8, 60  # of each binding


@verb(CheckSettings, "app")
def check(settings: CheckSettings, *, notify: Notify = silent) -> CheckResult:
    """Compare the latency of a workload's models with an earlier version's, launched in turn on one device.

    A model is slower if the whole interval of its ratio lies above ``most`` and the difference is more than what a
    launch varies by anyway. The check is undecided if the interval reaches to both sides of ``most`` in the given time.
    On a described device the durations are stated, and compared as they are.

    Args:
        settings: both versions, and limits.
        notify: receives what is being done.

    Raises:
        InputError: a file cannot be used, the versions are for different targets, or have no model in common.
        DeviceError: a model does not run.

    Example:
        >>> framefit.check("app.toml", against="../main/app.toml").decision  # doctest: +SKIP
        'pass'
    """
    here, there = arms = [_Version.read(text, settings.target) for text in (settings.app, settings.against)]
    if here.workload.target != there.workload.target:
        raise InputError(
            f"it is for target {here.workload.target!r}, and {settings.against} for {there.workload.target!r}",
            where=here.path,
            remedy="name one target with --target",
        )
    common = [name for name in here.workload.model_names if name in there.models]
    if not common:
        raise InputError(
            f"no model has the same name as one of {settings.against}", where=here.path, remedy="name the models alike"
        )
    models = []
    for number, name in enumerate(common):
        notify(f"comparing {name} ({number + 1} of {len(common)})")
        models.append(_checked(name, arms, settings))
    decisions = {model.decision for model in models}
    order: tuple[CheckDecision, ...] = ("fail", "cannot tell", "pass")
    return CheckResult(
        app=settings.app,
        against=settings.against,
        target=here.device.target.name,
        most=settings.most,
        decision=next(one for one in order if one in decisions),
        models=tuple(models),
        only_here=tuple(name for name in here.models if name not in there.models),
        only_there=tuple(name for name in there.models if name not in here.models),
    )


@dataclass(frozen=True)
class _Version:
    """One of both: a workload, or the one that a bundle, a plan or a run was made of.

    Attributes:
        path: of its file; functions are searched beside it.
        workload: with its target.
        device: that it runs on.
        models: by name; those of a bundle are stored ones.
        cut: of a bundle, how each model is cut that it does not have whole, and the names of its segments' last layers.
    """

    path: Path
    workload: Workload
    device: Device
    models: dict[str, WiredModel]
    cut: dict[str, tuple[PlannedModel, tuple[str, ...]]]

    @classmethod
    def read(cls, text: str, target: str | None) -> _Version:
        """From its file or folder."""
        models: list[WiredModel] | None = None
        cut = {}
        if names_bundle(text):
            bundle, timetable, workload = read_bundle(Path(text))
            path = Path(text) / "app.toml"
            models = [wired_again(model, workload, Path(text).resolve()) for model in bundle.models]
            for model in bundle.models:
                planned, layer_of = timetable.model(model.name), {part.span: part.layer for part in model.parts}
                if not model.uncut:
                    cut[model.name] = planned, tuple(layer_of[span] for span in planned.spans)
        elif names_plan(text):
            place = Path(text) / "timetable.json" if Path(text).is_dir() else Path(text)
            source = read_record(place, Timetable).source
            if source is None:
                raise InputError(
                    "this timetable does not say what it was made of", where=place, remedy="name a workload instead"
                )
            path, workload = Path(source.app), source.workload
        else:
            path, workload = Path(text), load_workload(text)
        workload = msgspec.structs.replace(workload, target=absolute_target(target or workload.target, path.parent))
        models = wire(workload, path) if models is None else models
        device = open_device(workload.target, folder=path.parent, settings=workload.machine, computes=True)
        return cls(path, workload, device, {model.entry.name: model for model in models}, cut)

    def launched(self, name: str, other: _Version) -> list[tuple[Model, str]]:
        """What is launched for a frame, one after the other, with its unit: whole, or as the bundle of one is cut."""
        model = self.models[name]
        if name not in self.cut and name not in other.cut:
            unit = home_unit(self.device.target, usable_units(self.workload, self.device, self.path), model)
            if not unit:
                raise InputError(
                    f"no unit supports all of model {name!r}",
                    where=self.path,
                    remedy="compare its plan instead: framefit plan",
                )
            return [(model.model, unit)]
        planned, last_layers = self.cut.get(name) or other.cut[name]
        if name in self.cut:
            laid_out: Model | None = model.model
        else:
            laid_out = None if model.model.stored else laid_out_as(model.model, planned, self.device)
            layers = () if laid_out is None else laid_out.layers
            alike = len(layers) - 1 == planned.spans[-1][1]
            if not alike or last_layers != tuple(layers[last].name for _, last in planned.spans):
                raise InputError(
                    f"model {name!r} has other layers than those between which the bundle is cut",
                    where=self.path,
                    remedy="compare with the app.toml or the plan that the bundle was made of",
                )
        assert laid_out is not None
        pieces = zip(planned.spans, planned.segments, strict=True)
        return [(laid_out.segment(*span), segment.unit) for span, segment in pieces]


def _checked(name: str, arms: Sequence[_Version], settings: CheckSettings) -> CheckedModel:
    """One model of both versions."""
    here, there = arms
    same = here.models[name].model.digest == there.models[name].model.digest
    if same and here.workload.machine == there.workload.machine:
        return CheckedModel(name=name, decision="pass", same=True)
    pieces = [here.launched(name, there), there.launched(name, here)]
    if is_modelled(here.device) and is_modelled(there.device):
        took = [
            sum(_stated_ns(arm.device, model, unit) for model, unit in run)
            for arm, run in zip(arms, pieces, strict=True)
        ]
        ratio = took[0] / max(took[1], 1)
        slower = ratio > settings.most
        return CheckedModel(
            name=name,
            decision="fail" if slower else "pass",
            here_ns=took[0],
            there_ns=took[1],
            difference_ns=took[0] - took[1],
            ratio=ratio,
            interval=(ratio, ratio),
        )

    def launches() -> list[Callable[[], Completion]]:
        return [
            _in_turn([launch_of(arm.device, model, unit) for model, unit in run])
            for arm, run in zip(arms, pieces, strict=True)
        ]

    with pinned(here.device.host_core), flushed_denormals():
        samples = in_both_orders(launches, settings.seconds)
    return judged(name, samples, settings.most)


def _in_turn(launches: Sequence[Callable[[], Completion]]) -> Callable[[], Completion]:
    """Launches one after the other as one that takes what they take together."""
    if len(launches) == 1:
        return launches[0]

    def launch() -> Completion:
        done = [one() for one in launches]
        return Completion(done[0].started_ns, done[0].started_ns + sum(one.duration_ns for one in done))

    return launch


def _stated_ns(device: Device, model: Model, unit: str) -> int:
    """What a launch takes by a description."""
    assert is_modelled(device)
    return device.segment_ns(model, 0, len(model.layers) - 1, unit)


def in_both_orders(
    launches: Callable[[], Sequence[Callable[[], Completion]]], seconds: float
) -> npt.NDArray[np.float64]:
    """Durations of two launches in turn, A B B A, with memory of their own for each part of the time.

    Returns:
        float64, rounds x 2, ns.
    """
    parts = []
    for _ in range(_BINDINGS):
        first, second = launches()
        measured = measure(
            [first, second, second, first],
            budget_ns=round(seconds * 1e9 / _BINDINGS),
            least_rounds=_LEAST_ROUNDS,
            most_rounds=_MOST_ROUNDS,
        )
        columns = [one.samples_ns.astype(np.float64) for one in measured]
        parts.append(np.stack([(columns[0] + columns[3]) / 2, (columns[1] + columns[2]) / 2], axis=1))
    return np.concatenate(parts)


def judged(name: str, samples: npt.NDArray[np.float64], most: float) -> CheckedModel:
    """What rounds of two versions say; the interval is that of the median, from order statistics.

    Args:
        name: of the model.
        samples: rounds x 2, ns: here and there.
        most: ratio above which it counts as slower.
    """
    ratios = np.sort(samples[:, 0] / np.maximum(samples[:, 1], 1.0))
    here_ns, there_ns = (float(np.median(column)) for column in samples.T)
    count = len(ratios)
    spread = two_sided_z(_CONFIDENCE) * np.sqrt(count) / 2
    low = ratios[max(int(np.floor((count - 1) / 2 - spread)), 0)]
    high = ratios[min(int(np.ceil((count - 1) / 2 + spread)), count - 1)]
    far = here_ns - there_ns > _FLOOR_NS
    decision: CheckDecision = "cannot tell"
    if low > most and far:
        decision = "fail"
    elif high <= most or not far:
        decision = "pass"
    return CheckedModel(
        name=name,
        decision=decision,
        here_ns=round(here_ns),
        there_ns=round(there_ns),
        difference_ns=round(here_ns - there_ns),
        floor_ns=_FLOOR_NS,
        ratio=float(np.median(ratios)),
        interval=(float(low), float(high)),
        rounds=count,
    )
