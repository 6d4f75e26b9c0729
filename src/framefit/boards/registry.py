"""The user's boards: ``boards.toml``, and the options of ``framefit board``."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from framefit.core.boards import Board, Boards
from framefit.core.files import read_record, to_toml, write_whole
from framefit.core.settings import Settings, option
from framefit.core.target import BUILTIN_TARGETS
from framefit.errors import InputError

__all__ = ["BoardSettings"]


class BoardSettings(Settings, kw_only=True):
    """Options of ``framefit board``."""

    action: Annotated[
        Literal["add", "list", "check", "remove", "jobs", "attach", "stop"],
        option(
            "What to do: add a board and install Framefit there, list the boards, check one, remove one from the list, "
            "list its jobs, follow a job to its end, or end it.",
            argument=True,
        ),
    ]
    name: Annotated[str | None, option("Name of the board.", argument=True, metavar="NAME")] = None
    which: Annotated[
        str | None,
        option(
            "With add: ssh://user@host[:port], or a Host of your ssh configuration; with attach and stop: the job.",
            argument=True,
            metavar="ADDRESS_OR_JOB",
        ),
    ] = None
    python: Annotated[
        str,
        option(
            "Python program on the board whose environment has this version of Framefit (default: an environment of "
            "its own, which is made there).",
            metavar="PROGRAM",
        ),
    ] = ""
    cores: Annotated[
        tuple[int, ...], option("Core of the board for its jobs (default: all).", "--core", metavar="N")
    ] = ()
    lock_minutes: Annotated[
        float, option("The longest time in minutes that a job may take.", metavar="MINUTES", gt=0, le=100_000)
    ] = 120.0
    wheels: Annotated[
        str | None,
        option(
            "Folder of wheels to send, for a board without a network: those of numpy and all else that Framefit needs "
            "there.",
            metavar="DIR",
            names="path",
        ),
    ] = None
    now: Annotated[bool, option("With stop: at once, without what the job has so far.")] = False
    force: Annotated[bool, option("Replace a board of this name; with attach: overwrite existing files.")] = False


def config_folder() -> Path:
    """The user's settings: ``FRAMEFIT_CONFIG``, else ``XDG_CONFIG_HOME/framefit``, else ``~/.config/framefit``."""
    given = os.environ.get("FRAMEFIT_CONFIG")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "framefit"


def boards_file() -> Path:
    """``boards.toml`` of the current folder, beside ``app.toml``, if there is one; else the user's."""
    beside = Path("boards.toml")
    return beside if beside.is_file() else config_folder() / "boards.toml"


def read_boards() -> dict[str, Board]:
    """All boards by their names. Raises: InputError: the file cannot be used."""
    path = boards_file()
    return {board.name: board for board in read_record(path, Boards).boards} if path.exists() else {}


def board_named(name: str) -> Board:
    """One board. Raises: InputError: there is none of this name."""
    boards = read_boards()
    if name not in boards:
        known = f"known: {', '.join(sorted(boards))}" if boards else "there is none yet"
        raise InputError(
            f"no board {name!r}; {known}", where=boards_file(), remedy=f"framefit board add {name} ssh://user@host"
        )
    return boards[name]


def named_board(workload: Path) -> str | None:
    """The board that a workload names as its target; ``None``: it names none, or is no file that can be read."""
    if workload.suffix != ".toml" or not workload.is_file():
        return None
    try:
        target = tomllib.loads(workload.read_text()).get("target")
    except (OSError, ValueError):
        return None  # the verb says better what is wrong
    return next(iter(named_boards([target] if isinstance(target, str) else [])), None)


def named_boards(targets: Iterable[str]) -> tuple[str, ...]:
    """Those of the names of targets that are boards; a built-in target is none, whatever the list of boards is like."""
    names = [name for name in targets if name not in BUILTIN_TARGETS]
    known = read_boards() if names and boards_file().exists() else {}
    return tuple(name for name in dict.fromkeys(names) if name in known)


def new_board(settings: BoardSettings) -> Board:
    """The board that options describe.

    Raises:
        InputError: name or address have another form, or the name is taken.
    """
    if settings.name is None or settings.which is None:
        raise InputError("a name or an address is missing", remedy="framefit board add NAME ssh://user@host")
    if settings.name in BUILTIN_TARGETS:
        raise InputError(
            f"{settings.name!r} is a target, and workloads name boards as their target, too",
            remedy="choose another name",
        )
    if settings.name in read_boards() and not settings.force:
        raise InputError(
            f"there is a board {settings.name!r} already", where=boards_file(), remedy="replace it with --force"
        )
    try:
        return Board(
            name=settings.name,
            address=settings.which,
            python=settings.python,
            cores=settings.cores,
            lock_minutes=settings.lock_minutes,
        )
    except ValueError as error:
        raise InputError(str(error), remedy="correct it") from error


def write_board(board: Board) -> Path:
    """Add or replace a board, and give the file. Raises: InputError: it cannot be written."""
    return _written({**read_boards(), board.name: board})


def remove_board(name: str) -> Path:
    """Remove a board from the list, and give the file. Raises: InputError: it cannot be written."""
    return _written({other: board for other, board in read_boards().items() if other != name})


def _written(boards: dict[str, Board]) -> Path:
    path = boards_file()
    with write_whole(path, force=True) as file:
        file.write(to_toml(Boards(boards=tuple(boards.values()))).encode())
    return path


def as_line(board: Board) -> str:
    """A board in one line, for people."""
    details = [board.address, board.python and f"python {board.python}"]
    details += [f"cores {', '.join(map(str, board.cores))}"] if board.cores else []
    return ", ".join(filter(None, [*details, f"jobs of up to {board.lock_minutes:g} minutes"]))
