"""``framefit fit``: make a workload fit, by the cheapest steps that do, and prove it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from framefit.core.files import from_data
from framefit.core.fits import FitResult, FitSettings
from framefit.core.target import BUILTIN_TARGETS, target_file
from framefit.core.workload import Workload, load_workload
from framefit.errors import InputError
from framefit.workflows.fitting.course import Course
from framefit.workflows.fitting.folder import FitFolder, located
from framefit.workflows.fitting.labelled import Labelled, sized
from framefit.workflows.plan import Notify, Plan, silent

__all__ = ["Fitted", "fit"]


@dataclass(frozen=True)
class Fitted:
    """What a fit left behind.

    Attributes:
        result: the record.
        plan: of the workload as it stands now.
        folder: with ``app.toml`` and ``fit.json``; ``None``: nothing was written.
    """

    result: FitResult
    plan: Plan
    folder: Path | None


def fit(
    app: str | Path | None = None,
    *,
    data: str | Path | Mapping[str, str | Path] | None = None,
    apply: bool = False,
    target: str | None = None,
    max_drop: float | None = None,
    without: Collection[str] = (),
    max_miss_ratio: float | None = None,
    max_seconds: float | None = None,
    verify_seconds: float | None = None,
    finetune_epochs: float | None = None,
    seed: int | None = None,
    resume: str | Path | None = None,
    output: str | Path | None = None,
    force: bool = False,
    notify: Notify = silent,
) -> Fitted:
    """Plan a workload; where it does not fit, propose what would help, or do it until it fits and a run shows it.

    A workload fits where its plan is feasible and no model gets fewer launches than its frames ask for
    (docs/fit.md). The user's files stay as they are.

    What is not given is as :class:`~framefit.core.fits.FitSettings` says, or as in the fit that is resumed.

    Args:
        app: an ``app.toml``.
        data: labelled data of the models: an image folder or an ``.npz``, or model -> such; alone it is the data of the
            one model that it fits. Without data no model is changed.
        apply: take the steps; else they are proposed.
        target: instead of the workload's: a built-in name, or the path of a ``target.toml``.
        max_drop: of each model's top-1 that is allowed, 0 to 1.
        without: measures that are not to be taken: "cuts", "units", "int8", "sparsify", "trees", "rate".
        max_miss_ratio: of the frames of each model that a verification may show late or dropped, 0 to 1.
        max_seconds: after which no further step begins.
        verify_seconds: length of each verification, of the device's time.
        finetune_epochs: of a model that lost weights or layers.
        seed: of everything that is drawn.
        resume: a folder of an earlier fit to go on with; its steps are applied.
        output: the folder; default: the app's name and "-fit". Without ``apply`` and ``output`` nothing is written.
        force: overwrite it.
        notify: receives what is being done.

    Returns:
        The record, the plan and the folder; where the user interrupted it, what was done so far.

    Raises:
        InputError: app, data, folder or settings that cannot be used; see :func:`framefit.plan`.
        DeviceError: a model does not run.

    Example:
        >>> framefit.fit("app.toml", data={"tags": "tags.npz"}, apply=True).result.fits  # doctest: +SKIP
        True
    """
    given = {
        "app": None if app is None else str(Path(app).resolve()),
        "target": target if target is None or target in BUILTIN_TARGETS else str(target_file(target).resolve()),
        "data": _named(data),
        "max_drop": max_drop,
        "without": tuple(without) or None,
        "max_miss_ratio": max_miss_ratio,
        "max_seconds": max_seconds,
        "verify_seconds": verify_seconds,
        "finetune_epochs": finetune_epochs,
        "seed": seed,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    if resume is not None:
        return _gone_on(FitFolder(Path(resume)), asked, notify)
    if app is None:
        raise InputError("APP.toml missing", remedy="give it, or --resume DIR")
    settings = from_data(msgspec.to_builtins(asked), FitSettings, "options")
    folder = FitFolder(Path(output or f"{Path(app).stem}-fit")) if apply or output is not None else None
    if folder is not None:
        folder.check(force=force)
    original = _original(settings)
    course = Course(settings, original, Labelled(settings, original), folder, notify)
    if folder is not None:  # last: whatever is refused before leaves what is there
        folder.begin()
    result, planned = course.run(apply=apply)
    return Fitted(result, planned, None if folder is None else folder.path)


def _gone_on(folder: FitFolder, asked: Mapping[str, object], notify: Notify) -> Fitted:
    """A fit that ended, or was interrupted, with other settings where they are given."""
    if {"app", "target"} & asked.keys():
        raise InputError("a fit that goes on keeps its workload", remedy="give --resume DIR without APP.toml, --target")
    earlier, workload = folder.earlier()
    settings = from_data(msgspec.to_builtins(earlier.settings) | msgspec.to_builtins(asked), FitSettings, "options")
    original = _original(settings)
    begun = earlier, located(workload, folder.path)
    course = Course(settings, original, Labelled(settings, original), folder, notify, begun)
    result, planned = course.run(apply=True)
    return Fitted(result, planned, folder.path)


def _original(settings: FitSettings) -> Workload:
    """The user's workload, on the target that is asked for, with all shapes."""
    workload = load_workload(settings.app)
    if settings.target is not None:
        workload = msgspec.structs.replace(workload, target=settings.target)
    return sized(located(workload, Path(settings.app).parent), Path(settings.app))


def _named(data: str | Path | Mapping[str, str | Path] | None) -> dict[str, str] | None:
    """Model -> absolute path of its data; "" for data of whichever model they fit."""
    if data is None:
        return None
    named = data if isinstance(data, Mapping) else {"": data}
    return {name: str(Path(path).resolve()) for name, path in named.items()}
