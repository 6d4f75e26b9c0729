"""``framefit board``, and ``--on`` of other commands."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from framefit.boards import client, forward, install, registry
from framefit.boards.frames import Jobs, JobState, Stop
from framefit.cli.screen import BoardScreen, Interrupt, Progress, Screen, show, show_json
from framefit.core.boards import Board
from framefit.core.choice import Choice
from framefit.core.files import Record, read_record
from framefit.core.settings import Option, options, settings_of
from framefit.errors import DeviceError, InputError
from framefit.fit.settings import ChooseSettings

if TYPE_CHECKING:
    from framefit.fit.choose import OnBoard


class BoardList(Record, kw_only=True):
    """The user's boards, as ``--json`` prints them."""

    file: str
    boards: tuple[Board, ...]


class BoardCheck(Record, kw_only=True):
    """What a check of a board showed, as ``--json`` prints it.

    Attributes:
        clock_offset_ns, clock_bound_ns: how far its clock is ahead of this machine's, and how well that is known.
    """

    board: Board
    version: str
    python: str
    machine: str
    clock_offset_ns: int
    clock_bound_ns: int


class BoardJobs(Record, kw_only=True):
    """Jobs of a board, as ``--json`` prints them."""

    jobs: tuple[JobState, ...]


def perform_there(
    on: str,
    screen: Screen,
    verb: str,
    every: Mapping[str, Option],
    given: dict[str, Any],
    screen_given: dict[str, Any],
    show_output: Callable[[str], object] | None = None,
) -> int:
    """Do a verb on the board of this name, and give its exit code; its output goes to the terminal by default.

    Raises:
        FramefitError: it cannot be sent, or the board cannot be reached.
    """
    if screen_given.get("follow"):
        raise InputError("--follow reads a stream of this machine", remedy="leave --follow or --on out")
    board = registry.board_named(on)
    with Interrupt() as interrupt, Progress(screen) as progress:
        return forward.perform(
            board,
            verb,
            every,
            given,
            screen_given,
            notify=progress,
            stop=interrupt,
            columns=shutil.get_terminal_size((80, 24)).columns,
            show=show_output,
        )


def choosers(targets: Sequence[str], screen: BoardScreen) -> dict[str, OnBoard]:
    """What makes the choice of ``framefit choose`` on each of the boards that are among the targets."""
    return {name: functools.partial(_choose_there, name, screen) for name in registry.named_boards(targets)}


def _choose_there(on: str, screen: BoardScreen, settings: ChooseSettings) -> Choice:
    """Make a choice on a board, and read it.

    Raises:
        DeviceError: the board cannot be reached, or made no choice.
    """
    every = options(ChooseSettings) | options(BoardScreen)
    known = msgspec.structs.asdict(settings)
    given = {name: list(known[name]) if isinstance(known[name], tuple) else known[name] for name in known}
    given = {name: value for name, value in given.items() if value != every[name].default}
    there: dict[str, Any] = {"quiet": True} if screen.quiet else {}
    perform_there(on, screen, "choose", every, given, there, show_output=lambda _: None)  # the choice is read instead
    assert settings.output is not None
    place = Path(settings.output, "choice.json")
    if not place.is_file():
        raise DeviceError("no choice was made there", where=f"board {on}", remedy="see what it wrote above")
    return read_record(place, Choice)


def board(given: dict[str, Any], screen: Screen) -> int:
    """Do what ``framefit board`` is asked to, and give the exit code.

    Raises:
        FramefitError: the board is not known, or cannot be reached.
    """
    settings = settings_of(registry.BoardSettings, given)
    if settings.action == "list":
        boards = tuple(registry.read_boards().values())
        if screen.json:
            show_json(BoardList(file=str(registry.boards_file()), boards=boards))
        else:
            lines = [f"{each.name}: {registry.as_line(each)}" for each in boards]
            show(*(lines or ["no board yet: framefit board add NAME ssh://user@host"]))
        return 0
    if settings.action == "add":
        added = registry.new_board(settings)
        with Progress(screen) as progress:
            checked = _checked(added, settings, progress)
        place = registry.write_board(added)
        show_json(checked) if screen.json else show(_as_text(checked), f"written to {place}")
        return 0
    if settings.name is None:
        raise InputError("the name of a board is missing", remedy="framefit board list shows the names")
    known = registry.board_named(settings.name)
    if settings.action == "remove":
        show(f"{known.name} removed from {registry.remove_board(known.name)}; nothing was removed on the board")
        return 0
    if settings.action == "check":
        with Progress(screen) as progress:
            checked = _checked(known, settings, progress)
        show_json(checked) if screen.json else show(_as_text(checked))
        return 0
    return _of_job(known, settings, screen)


def _checked(board: Board, settings: registry.BoardSettings, progress: Progress) -> BoardCheck:
    """Connect; where this version of Framefit is missing in its own environment there, install it."""
    progress(f"connecting to {board.name}")
    try:
        remote = client.Remote(board, progress)
    except DeviceError as error:
        if board.python or not client.installs(error):
            raise
        install.install(board, wheels=None if settings.wheels is None else Path(settings.wheels), notify=progress)
        remote = client.Remote(board, progress)
    with remote:
        clock = remote.clock()
        return BoardCheck(
            board=board,
            version=client.plain(remote.greeting.version),
            python=client.plain(remote.greeting.python),
            machine=client.plain(remote.greeting.machine),
            clock_offset_ns=clock.offset_ns,
            clock_bound_ns=clock.bound_ns,
        )


def _as_text(checked: BoardCheck) -> str:
    return (
        f"{checked.board.name}: Framefit {checked.version}, Python {checked.python}, {checked.machine}; "
        f"shortest round trip {2 * checked.clock_bound_ns / 1e6:.2f} ms\n{registry.as_line(checked.board)}"
    )


def _of_job(board: Board, settings: registry.BoardSettings, screen: Screen) -> int:
    with Interrupt() as interrupt, Progress(screen) as progress, client.Remote(board, progress) as remote:
        if settings.action == "jobs":
            jobs = remote.listed(Jobs(), tuple[JobState, ...])
            if screen.json:
                show_json(BoardJobs(jobs=jobs))
            else:
                show(*([_job_line(job) for job in jobs] or ["no jobs"]))
            return 0
        if settings.which is None:
            raise InputError("the job is missing", remedy=f"framefit board jobs {board.name} lists them")
        if settings.action == "stop":
            remote.ask(Stop(job=settings.which, now=settings.now))
            if not screen.json:
                typer.echo(f"{settings.which} was asked to stop", err=True)
            return 0
        ticket = forward.ticket_of(board.name, settings.which)
        return forward.follow(remote, ticket, notify=progress, stop=interrupt, force=settings.force)


def _job_line(job: JobState) -> str:
    details = [job.state if job.exit_code is None else f"ended with exit code {job.exit_code}"]
    details += [f"for {job.age_s:.0f} s"] if job.age_s is not None else []
    details += [f"waits for {job.waits_for}"] if job.waits_for else []
    return client.plain(f"{job.job}: {', '.join(details)}, of {job.who}")
