"""``framefit choose``: on which targets, and at which rates, a workload fits."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import msgspec

from framefit.core.choice import Choice, ChoiceCell, ChoiceModel
from framefit.core.executor import Here, executor_of
from framefit.core.files import check_folder, read_bytes, read_record, write_record
from framefit.core.fit_results import FitResult, FitSettings
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import absolute_target, resolve_target
from framefit.core.workload import Workload, load_workload
from framefit.devices.registry import capabilities_of
from framefit.errors import DeviceError, InfeasibleError, InputError, UnsupportedError
from framefit.fit.accuracy import Labelled, sized
from framefit.fit.folder import slug, write_workload
from framefit.fit.loop import fit
from framefit.fit.settings import ChooseSettings
from framefit.fit.situation import standing_of
from framefit.report.description import Subject
from framefit.report.html import write_report_page
from framefit.workflows.plan import plan

__all__ = ["OnBoard", "choose"]

OnBoard = Callable[[ChooseSettings], Choice]
"""Makes a choice on a board, whose own processor is its only target; ``output`` is a folder here for what it makes."""
_MARK, _WHAT = "choice.json", "a choice of targets"


@dataclass(frozen=True)
class Chosen:
    """What :func:`choose` returns.

    Attributes:
        choice: all targets and rates.
        folder: where it was written; ``None`` if it was not.
    """

    choice: Choice
    folder: Path | None = None


@dataclass(frozen=True)
class _Fit:
    """How what does not fit is fitted.

    Attributes:
        folder: of the whole choice; ``None``: fits are not kept.
        data: model -> absolute path.
        max_drop, max_seconds: see :class:`~framefit.core.fit_results.FitSettings`.
    """

    folder: Path | None
    data: dict[str, str]
    max_drop: float
    max_seconds: float


@dataclass(frozen=True)
class _Task:
    """A cell to plan: everything that another process needs for it.

    Attributes:
        board: whether the target is the name of a board.
    """

    app: Path
    workload: Workload
    target: str
    rate_hz: float
    fit: _Fit | None
    board: bool = False


@verb(ChooseSettings, "app")
def choose(
    settings: ChooseSettings, *, boards: Mapping[str, OnBoard] = MappingProxyType({}), notify: Notify = silent
) -> Chosen:
    """Plan a workload on several targets at several rates.

    Cells are planned for themselves, those of described targets by ``workers``, those that are measured one after the
    other in this process, and those of a board there. With ``fit`` those that do not fit are fitted, too
    (:func:`framefit.fit`). Each is stored in ``output`` when it is known, so that the same command goes on where it was
    interrupted, also within a fit, and does again only what has changed.

    Args:
        settings: workload, targets and rates.
        boards: those that ``targets`` may name.
        notify: receives what is being done.

    Raises:
        InputError: a file or target cannot be used.

    Example:
        >>> framefit.choose("app.toml", targets=("vpu", "edge-8"), rates=(15, 30)).choice.front  # doctest: +SKIP
        ['vpu']
    """
    app, folder = Path(settings.app), None if settings.output is None else Path(settings.output)
    workload = load_workload(app.resolve())
    targets = settings.targets or (absolute_target(workload.target, app.resolve().parent),)
    prices = _prices(settings.prices, targets)
    for name in targets:
        if name not in boards:
            resolve_target(name)
    if folder is not None and not (folder / _MARK).exists():
        check_folder(folder, _MARK, _WHAT, force=False)
    fit_settings = _fit_of(settings, workload, folder)
    fastest = max(workload.rates_hz.values(), default=workload.beat_hz)
    rates = sorted(set(settings.rates or (fastest,)))
    tasks = [
        _Task(
            app.resolve(),
            at_rate(workload, rate_hz / fastest),
            name if name in boards else absolute_target(name, Path()),
            rate_hz,
            fit_settings,
            board=name in boards,
        )
        for name in targets
        for rate_hz in rates
    ]
    names = [name for name in targets for _ in rates]
    places = [None if folder is None else folder / "cells" / f"{_key(task)}.json" for task in tasks]
    cells: list[ChoiceCell | None] = [_kept(place) for place in places]
    interrupted = False
    try:
        missing = [number for number, cell in enumerate(cells) if cell is None]
        there = _on_boards(settings, tasks, missing, boards)
        here = [number for number in missing if not tasks[number].board]
        for number, cell in itertools.chain(there, _planned(tasks, here, settings.workers, notify)):
            cells[number] = cell = msgspec.structs.replace(cell, target=names[number])
            done = sum(one is not None for one in cells)
            after = f", after a fit {cell.fitted}" if cell.fitted else ""
            verdict = cell.verdict or "cannot run it"
            notify(f"{done} of {len(cells)}: {cell.target} at {cell.rate_hz:g} Hz {verdict}{after}")
            place = places[number]
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                write_record(place, cell, force=True)
    except KeyboardInterrupt:
        interrupted = True
    choice = Choice(
        app=str(app),
        cells=tuple(
            msgspec.structs.replace(cell, target=name, price=prices.get(name))
            for cell, name in zip(cells, names, strict=True)
            if cell is not None
        ),
        interrupted=interrupted,
    )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder / _MARK, choice, force=True)
        write_report_page(folder / "report.html", [Subject(folder.name, str(app), choice)], force=True)
    return Chosen(choice, folder)


def at_rate(workload: Workload, ratio: float) -> Workload:
    """A workload with all of its rates multiplied; deadlines in milliseconds stay."""
    streams = tuple(
        msgspec.structs.replace(
            stream,
            rate_hz=stream.rate_hz and stream.rate_hz * ratio,
            rates_hz=tuple(rate_hz * ratio for rate_hz in stream.rates_hz),
            changes=tuple(msgspec.structs.replace(change, rate_hz=change.rate_hz * ratio) for change in stream.changes),
        )
        for stream in workload.streams
    )
    return msgspec.structs.replace(
        workload,
        rate_hz=workload.rate_hz and workload.rate_hz * ratio,
        window_ms=workload.window_ms and workload.window_ms / ratio,
        streams=streams,
    )


def _prices(path: str | None, targets: Sequence[str]) -> dict[str, float]:
    """Prices by target, from a file with a line ``target = price`` each.

    Raises:
        InputError: it cannot be read, holds something else, or lacks a target.
    """
    if path is None:
        return {}
    try:
        given = tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=path, remedy='write a line as "vpu" = 25.0 each') from error
    for name in targets:
        price = given.get(name)
        if isinstance(price, bool) or not isinstance(price, int | float) or price < 0:
            raise InputError(
                f"no price of target {name!r}" if price is None else f"the price of {name!r} is {price!r}",
                where=path,
                remedy=f'add a line such as "{name}" = 25.0',
            )
    return {name: float(given[name]) for name in targets}


def _fit_of(settings: ChooseSettings, workload: Workload, folder: Path | None) -> _Fit | None:
    """How to fit, if that is asked for.

    Raises:
        InputError: data that cannot be used.
    """
    if not settings.fit:
        return None
    data = {name: str(Path(path).resolve()) for name, path in settings.data.items()}
    given = FitSettings(app=settings.app, data=data, max_drop=settings.max_drop)
    Labelled(given, sized(workload, Path(settings.app).resolve()))
    place = None if folder is None else folder.resolve()
    return _Fit(place, data, settings.max_drop, settings.max_seconds)


def _key(task: _Task) -> str:
    """Digest of everything that a cell depends on but Framefit and the contents of models and data, which are dated."""
    fit_settings = None if task.fit is None else replace(task.fit, folder=None)
    named = [entry.path for entry in task.workload.models] + list(() if task.fit is None else task.fit.data.values())
    files = [(path, Path(path).stat().st_mtime_ns) for path in named]
    target = Path(task.target).read_text() if Path(task.target).is_file() else task.target
    facts = (msgspec.json.encode(task.workload), target, task.rate_hz, files, fit_settings, version("framefit"))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _kept(place: Path | None) -> ChoiceCell | None:
    if place is not None and place.is_file():
        with contextlib.suppress(InputError):  # a damaged file: plan again
            return read_record(place, ChoiceCell)
    return None


def _on_boards(
    settings: ChooseSettings, tasks: Sequence[_Task], missing: Sequence[int], boards: Mapping[str, OnBoard]
) -> Iterator[tuple[int, ChoiceCell]]:
    """Cells of boards, each board's at once."""
    for name in dict.fromkeys(tasks[number].target for number in missing if tasks[number].board):
        wanted = [number for number in missing if tasks[number].target == name]
        rates = tuple(tasks[number].rate_hz for number in wanted)
        with contextlib.ExitStack() as stack:
            if settings.output is None:
                place = Path(stack.enter_context(TemporaryDirectory(prefix="framefit-"))) / name
            else:
                place = Path(settings.output, "boards", name)
            request = {"targets": ("cpu",), "rates": rates, "prices": None, "output": str(place)}
            choice = boards[name](msgspec.structs.replace(settings, **request))
        cells = {cell.rate_hz: cell for cell in choice.cells}
        for number in wanted:
            cell = cells.get(tasks[number].rate_hz)
            if cell is not None:
                fitted = None if cell.fit is None else f"boards/{name}/{cell.fit}"
                yield number, msgspec.structs.replace(cell, fit=fitted if settings.output else None)
        if choice.interrupted:
            raise KeyboardInterrupt


def _planned(
    tasks: Sequence[_Task], missing: Sequence[int], workers: int | str, notify: Notify
) -> Iterator[tuple[int, ChoiceCell]]:
    """Cells as they are planned: those that are measured here, one after the other."""
    described = [n for n in missing if capabilities_of(resolve_target(tasks[n].target)).modelled]
    for number in missing:
        if number not in described:
            yield number, plan_cell(notify, tasks[number])
    if described:
        with executor_of(workers if len(described) > 1 else 1) as executor:
            shared = notify if isinstance(executor, Here) else None  # it stays in this process
            for at, cell in executor.each(plan_cell, shared, [tasks[number] for number in described]):
                yield described[at], cell


def plan_cell(notify: Notify | None, task: _Task) -> ChoiceCell:
    """Plan one cell, and fit the workload where it does not fit.

    Args:
        notify: receives what a fit does; ``None``: this is another process, which tells nothing.
        task: the cell.
    """
    workload = msgspec.structs.replace(task.workload, target=task.target)
    try:
        planned = plan(task.app, workload=workload, computes=False)
    except (UnsupportedError, InfeasibleError, DeviceError, InputError) as error:
        return ChoiceCell(target=task.target, rate_hz=task.rate_hz, binding=error.what)
    standing = standing_of(planned)
    verified = [fix for fix in planned.timetable.fixes if fix.verified]
    cell = ChoiceCell(
        target=task.target,
        rate_hz=task.rate_hz,
        verdict=standing.verdict,
        worst_slack_ns=standing.worst_slack_ns,
        load_ratio=standing.load_ratio,
        models=tuple(
            ChoiceModel(name=model.name, asked_hz=model.asked_hz, served_hz=model.served_hz)
            for model in standing.models
        ),
        binding=standing.binding,
        remedy=f"{verified[0].change} ({verified[0].effect})" if verified else None,
    )
    return cell if cell.fits or task.fit is None else _after_fit(cell, task, task.fit, notify or silent)


def _after_fit(cell: ChoiceCell, task: _Task, how: _Fit, notify: Notify) -> ChoiceCell:
    """A cell with what a fit makes of it; one that was interrupted, or that another process has done, is gone on with.

    Raises:
        KeyboardInterrupt: the user ended it.
    """
    with contextlib.ExitStack() as stack:
        if how.folder is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="framefit-")))
        else:
            folder = how.folder / "fits" / f"{slug(Path(task.target).stem)}-{task.rate_hz:g}hz-{_key(task)[:6]}"
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_alone(folder / "lock"))  # a late task is given out once more
        place = folder / "fit"
        begun = read_record(place / "fit.json", FitResult) if (place / "fit.json").is_file() else None
        if begun is None or begun.interrupted:
            try:
                begun = _fit_cell(task, how, folder, notify, going_on=begun is not None)
            except (UnsupportedError, InfeasibleError, DeviceError) as error:
                return msgspec.structs.replace(cell, binding=error.what)
    if begun.interrupted:
        raise KeyboardInterrupt
    if not begun.fits:
        return cell
    chosen = next(plan for plan in begun.front if plan.chosen)
    drops = [model.test.drop for model in begun.models if model.test is not None]
    return msgspec.structs.replace(
        cell,
        remedy="; ".join(chosen.steps),
        fitted=begun.verdict,
        accuracy_lost=max([0.0, *drops]),
        frames_lost_ratio=chosen.frames_lost_ratio,
        fit=None if how.folder is None else place.relative_to(how.folder).as_posix(),
    )


def _fit_cell(task: _Task, how: _Fit, folder: Path, notify: Notify, *, going_on: bool) -> FitResult:
    place = folder / "fit"
    if going_on:
        return fit(resume=str(place), max_seconds=how.max_seconds, notify=notify).result
    shutil.rmtree(place, ignore_errors=True)  # ended before its first record
    app = write_workload(folder, msgspec.structs.replace(task.workload, target=task.target), task.app)
    limits = {"max_drop": how.max_drop, "max_seconds": how.max_seconds}
    return fit(str(app), data=how.data, apply=True, output=str(place), notify=notify, **limits).result


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is here."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
