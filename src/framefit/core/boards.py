"""The user's boards: how each is reached (``boards.toml``)."""

from __future__ import annotations

import re
from typing import ClassVar

from framefit.core.files import Record

__all__ = ["Board", "Boards", "destination"]

_ADDRESS = re.compile(r"(?:ssh://)?(?:(?P<user>[\w.][\w.-]*)@)?(?P<host>[\w.][\w.:-]*|\[[0-9A-Fa-f:.%\w]+\])")
_PORT = re.compile(r"(?P<rest>ssh://.*):(?P<port>\d{1,5})/?")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


class Board(Record, kw_only=True):
    """How a board is reached.

    Attributes:
        name: what ``--on`` takes.
        address: ``ssh://user@host:port``, or a Host of the ssh configuration.
        python: program there that has Framefit; empty: the environment that ``framefit board add`` makes.
        cores: those that jobs may use; empty: all.
        lock_minutes: the longest time that a job may take.
    """

    name: str
    address: str
    python: str = ""
    cores: tuple[int, ...] = ()
    lock_minutes: float = 120

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name must be small letters, digits, - and _, a letter first; is {self.name[:40]!r}")
        destination(self.address)
        if any(letter in self.python for letter in "\n\0"):
            raise ValueError("python must be one line")
        if any(core < 0 for core in self.cores) or not 0 < self.lock_minutes <= 100_000:
            raise ValueError("cores must be 0 or more, and lock_minutes between 0 and 100000")


class Boards(Record, kw_only=True):
    """The file."""

    file_kind: ClassVar[str] = "a list of boards (boards.toml)"
    smallest: ClassVar[str] = '[[boards]]\nname = "pi5"\naddress = "ssh://pi@pi5.local"'

    schema_version: int = 1
    boards: tuple[Board, ...] = ()

    def __post_init__(self) -> None:
        names = [board.name for board in self.boards]
        if len(set(names)) < len(names):
            raise ValueError("two boards have the same name")


def destination(address: str) -> tuple[str, str | None]:
    """What ``ssh`` takes: a destination, and a port where one is given.

    Raises:
        ValueError: the address has another form; one that ``ssh`` would read as an option is refused.
    """
    rest, port = address, None
    match = _PORT.fullmatch(address)
    if match:
        rest, port = match["rest"], match["port"]
    place = _ADDRESS.fullmatch(rest.removesuffix("/"))
    if place is None or (port is not None and not 0 < int(port) < 65536):
        raise ValueError(
            f"address must read ssh://user@host:port or be a Host of the ssh configuration, is {address!r}"
        )
    host = place["host"].strip("[]")
    return (f"{place['user']}@{host}" if place["user"] else host), port
