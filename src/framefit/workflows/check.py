"""``framefit check``: whether a workload's models got slower, measured in turn with an earlier version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.bundle import names_bundle, read_bundle
from framefit.core.check import CheckedModel, CheckResult, CheckVerdict
from framefit.core.files import read_record
from framefit.core.model import Model
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import absolute_target
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.device import Completion, Device, is_modelled
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.measure import launch_of, measure
from framefit.devices.registry import open_device
from framefit.errors import InputError
from framefit.execution.bundled import wired_again
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
    launch varies by anyway. If the interval reaches to both sides of ``most`` in the given time, nobody can tell. On a
    described device the durations are stated, and compared as they are.

    Args:
        settings: both versions, and limits.
        notify: receives what is being done.

    Raises:
        InputError: a file cannot be used, the versions are for different targets, or have no model in common.
        DeviceError: a model does not run.

    Example:
        >>> framefit.check("app.toml", against="../main/app.toml").verdict  # doctest: +SKIP
        'not slower'
    """
    arms = [_arm(settings.app, settings.target), _arm(settings.against, settings.target)]
    (app, here), (_, there) = arms
    if here.target != there.target:
        raise InputError(
            f"it is for target {here.target!r}, and {settings.against} for {there.target!r}",
            where=app,
            remedy="name one target with --target",
        )
    opened = [open_device(load.target, folder=path.parent, settings=load.machine, computes=True) for path, load in arms]
    wired = [
        {model.entry.name: model for model in _models(text, path, load)}
        for text, (path, load) in zip((settings.app, settings.against), arms, strict=True)
    ]
    common = [name for name in here.model_names if name in wired[1]]
    if not common:
        raise InputError(
            f"no model has the same name as one of {settings.against}", where=app, remedy="name the models alike"
        )
    models = []
    for number, name in enumerate(common):
        notify(f"comparing {name} ({number + 1} of {len(common)})")
        pair = [models_of[name] for models_of in wired]
        models.append(_checked(pair, opened, arms, settings))
    verdicts = {model.verdict for model in models}
    order: tuple[CheckVerdict, ...] = ("slower", "cannot tell", "not slower")
    verdict = next(one for one in order if one in verdicts)
    return CheckResult(
        app=settings.app,
        against=settings.against,
        target=opened[0].target.name,
        most=settings.most,
        floor_ns=_FLOOR_NS,
        verdict=verdict,
        models=tuple(models),
        only_here=tuple(name for name in wired[0] if name not in wired[1]),
        only_there=tuple(name for name in wired[1] if name not in wired[0]),
    )


def _arm(path: str, target: str | None) -> tuple[Path, Workload]:
    """A workload, or the one that a bundle, a plan or a run was made of."""
    if names_bundle(path):
        _, _, workload = read_bundle(Path(path))
        app = Path(path) / "app.toml"  # functions lie there
    elif names_plan(path):
        place = Path(path) / "timetable.json" if Path(path).is_dir() else Path(path)
        source = read_record(place, Timetable).source
        if source is None:
            raise InputError(
                "this timetable does not say what it was made of", where=place, remedy="name a workload instead"
            )
        app, workload = Path(source.app), source.workload
    else:
        app, workload = Path(path), load_workload(path)
    return app, msgspec.structs.replace(workload, target=absolute_target(target or workload.target, app.parent))


def _models(text: str, path: Path, workload: Workload) -> list[WiredModel]:
    """The models of a version; those of a bundle are stored ones.

    Raises:
        InputError: a bundle has a model in segments only.
    """
    if not names_bundle(text):
        return wire(workload, path)
    models = read_bundle(Path(text))[0].models
    for model in models:
        if not model.uncut:
            raise InputError(
                f"model {model.name!r} is stored in segments only",
                where=text,
                remedy="compare with the app.toml or the plan that it was made of",
            )
    return [wired_again(model, workload, Path(text).resolve()) for model in models]


def _checked(
    pair: Sequence[WiredModel],
    devices: Sequence[Device],
    arms: Sequence[tuple[Path, Workload]],
    settings: CheckSettings,
) -> CheckedModel:
    """One model of both versions."""
    name = pair[0].entry.name
    if pair[0].model.digest == pair[1].model.digest and arms[0][1].machine == arms[1][1].machine:
        return CheckedModel(name=name, verdict="not slower", same=True)
    units = []
    for (path, load), device, model in zip(arms, devices, pair, strict=True):
        units.append(home_unit(device.target, usable_units(load, device, path), model))
        if not units[-1]:
            raise InputError(
                f"no unit supports all of model {name!r}", where=path, remedy="compare its plan instead: framefit plan"
            )
    if is_modelled(devices[0]) and is_modelled(devices[1]):
        took = [stated_ns(device, model.model, unit) for device, model, unit in zip(devices, pair, units, strict=True)]
        ratio = took[0] / max(took[1], 1)
        slower = ratio > settings.most
        return CheckedModel(
            name=name,
            verdict="slower" if slower else "not slower",
            here_ns=took[0],
            there_ns=took[1],
            ratio=ratio,
            ratio_interval=(ratio, ratio),
        )

    def launches() -> list[Callable[[], Completion]]:
        return [launch_of(device, model.model, unit) for device, model, unit in zip(devices, pair, units, strict=True)]

    with pinned(devices[0].host_core), flushed_denormals():
        samples = in_both_orders(launches, settings.seconds)
    return judged(name, samples, settings.most)


def stated_ns(device: Device, model: Model, unit: str) -> int:
    """What a launch takes by a description."""
    assert is_modelled(device)
    grouped = model.grouped(device.fusions(model))
    return sum(device.layers_ns(grouped, unit)) + sum(device.link_ns(model))


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
    verdict: CheckVerdict = "cannot tell"
    if low > most and far:
        verdict = "slower"
    elif high <= most or not far:
        verdict = "not slower"
    return CheckedModel(
        name=name,
        verdict=verdict,
        here_ns=round(here_ns),
        there_ns=round(there_ns),
        ratio=float(np.median(ratios)),
        ratio_interval=(float(low), float(high)),
        rounds=count,
    )
