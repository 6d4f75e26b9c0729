"""What commands share: results on stdout, progress on one line of stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from framefit.core.files import Record

__all__ = ["Progress", "show", "show_json"]

_CLEAR = "\r\x1b[2K"
_REFRESH_S = 0.25


class Progress:
    """A status line, on a terminal only.

    It draws when told to and never from a thread of its own: that would disturb
    what is being measured.
    """

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._drawn_s = 0.0

    def __call__(self, message: str) -> None:
        """Say what is being done."""
        self._draw(f"{message} ...")

    def windows(self, begun: int, count: int) -> None:
        """Say how far a run is, a few times a second."""
        now = time.monotonic()
        if self._on and now - self._drawn_s >= _REFRESH_S:
            self._drawn_s = now
            done = 24 * begun // max(count, 1)
            self._draw(f"running [{'#' * done}{'.' * (24 - done)}] window {begun} of {count}")

    def end(self) -> None:
        """Remove the line."""
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._on:
            sys.stderr.write(_CLEAR + text)
            sys.stderr.flush()


def show(*parts: RenderableType) -> None:
    """Print rich renderables on stdout; NO_COLOR and pipes are honoured."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in parts:
        console.print(part, markup=False)


def show_json(record: Record) -> None:
    """Print only JSON on stdout."""
    from framefit.core.files import to_json

    sys.stdout.write(to_json(record) + "\n")
