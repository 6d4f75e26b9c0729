"""``framefit choose``: on which targets, and at which rates, a workload fits."""

from __future__ import annotations

import contextlib
import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from framefit.core.choice import Choice, ChoiceCell, ChoiceModel
from framefit.core.executor import executor_of
from framefit.core.files import check_folder, read_bytes, read_record, write_record
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import absolute_target, resolve_target
from framefit.core.workload import Workload, load_workload
from framefit.devices.registry import capabilities_of
from framefit.errors import DeviceError, InfeasibleError, InputError, UnsupportedError
from framefit.fit.settings import ChooseSettings
from framefit.fit.situation import standing_of
from framefit.report.description import Subject
from framefit.report.html import write_report_page
from framefit.workflows.plan import plan

__all__ = ["choose"]

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
class _Task:
    """A cell to plan: everything that another process needs for it."""

    app: Path
    workload: Workload
    target: str
    rate_hz: float


@verb(ChooseSettings, "app")
def choose(settings: ChooseSettings, *, notify: Notify = silent) -> Chosen:
    """Plan a workload on several targets at several rates.

    Cells are planned for themselves, those of described targets by ``workers``, those that are measured one after the
    other in this process. Each is stored in ``output`` when it is known, so that the same command goes on where
    it was interrupted, and plans again only what has changed.

    Args:
        settings: workload, targets and rates.
        notify: receives what is being done.

    Raises:
        InputError: a file or target cannot be used.

    Example:
        >>> framefit.choose("app.toml", targets=("vpu", "edge-8"), rates=(15, 30)).choice.front  # doctest: +SKIP
        ['vpu']
    """
    app, folder = Path(settings.app), None if settings.output is None else Path(settings.output)
    workload = load_workload(app)
    targets = settings.targets or (workload.target,)
    prices = _prices(settings.prices, targets)
    for name in targets:
        resolve_target(name)
    if folder is not None and not (folder / _MARK).exists():
        check_folder(folder, _MARK, _WHAT, force=False)
    fastest = max(workload.rates_hz.values(), default=workload.beat_hz)
    rates = sorted(set(settings.rates or (fastest,)))
    tasks = [
        _Task(app, at_rate(workload, rate_hz / fastest), absolute_target(name, Path()), rate_hz)
        for name in targets
        for rate_hz in rates
    ]
    names = [name for name in targets for _ in rates]
    places = [None if folder is None else folder / "cells" / f"{_key(task)}.json" for task in tasks]
    cells: list[ChoiceCell | None] = [_kept(place) for place in places]
    interrupted = False
    try:
        missing = [number for number, cell in enumerate(cells) if cell is None]
        for number, cell in _planned(tasks, missing, settings.workers):
            cells[number] = cell = msgspec.structs.replace(cell, target=names[number])
            done = sum(one is not None for one in cells)
            notify(f"{done} of {len(cells)}: {cell.target} at {cell.rate_hz:g} Hz {cell.verdict or 'cannot run it'}")
            place = places[number]
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                write_record(place, cell, force=True)
    except KeyboardInterrupt:
        interrupted = True
    choice = Choice(
        app=str(app),
        prices=prices,
        cells=tuple(
            msgspec.structs.replace(cell, target=name)
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


def _key(task: _Task) -> str:
    """Digest of everything that a cell depends on but Framefit and the models' files' contents, which are stated."""
    files = [(entry.path, Path(entry.path).stat().st_mtime_ns) for entry in task.workload.models]
    target = Path(task.target).read_text() if Path(task.target).is_file() else task.target
    facts = (msgspec.json.encode(task.workload), target, task.rate_hz, files, version("framefit"))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _kept(place: Path | None) -> ChoiceCell | None:
    if place is not None and place.is_file():
        with contextlib.suppress(InputError):  # a damaged file: plan again
            return read_record(place, ChoiceCell)
    return None


def _planned(tasks: Sequence[_Task], missing: Sequence[int], workers: int | str) -> Iterator[tuple[int, ChoiceCell]]:
    """Cells as they are planned: those that are measured here, one after the other."""
    described = [n for n in missing if capabilities_of(resolve_target(tasks[n].target)).modelled]
    for number in missing:
        if number not in described:
            yield number, plan_cell(None, tasks[number])
    if described:
        with executor_of(workers if len(described) > 1 else 1) as executor:
            for at, cell in executor.each(plan_cell, None, [tasks[number] for number in described]):
                yield described[at], cell


def plan_cell(_: None, task: _Task) -> ChoiceCell:
    """Plan one cell."""
    workload = msgspec.structs.replace(task.workload, target=task.target)
    try:
        planned = plan(task.app, workload=workload, computes=False)
    except (UnsupportedError, InfeasibleError, DeviceError, InputError) as error:
        return ChoiceCell(target=task.target, rate_hz=task.rate_hz, binding=error.what)
    standing = standing_of(planned)
    verified = [fix for fix in planned.timetable.fixes if fix.verified]
    return ChoiceCell(
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
