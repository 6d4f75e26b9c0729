"""What commands share: options of one form, results on stdout, progress on one line of stderr."""

from __future__ import annotations

import io
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from framefit.core.files import Record
    from framefit.profiling.streaming import StreamPosition


_CLEAR = "\r\x1b[2K"
_REFRESH_S = 0.25


class Progress:
    """A status line, on a terminal only; steps of minutes are told elsewhere, too.

    It draws when it is called, and never from a thread of its own: that would disturb
    what is being measured.
    """

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._drawn_s = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *details: object) -> None:
        self.end()

    def __call__(self, message: str) -> None:
        """Say what is being done."""
        self._draw(f"{message} ...")

    def step(self, message: str) -> None:
        """Say which step begins: off a terminal, too, where each is a line."""
        if self._on:
            self._draw(f"{message} ...")
        else:
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()

    def windows(self, begun: int, count: int) -> None:
        """Say how far a run is, a few times a second."""
        self._bar("running", "window", begun, count)

    def rounds(self, done: int, count: int) -> None:
        """Say how far a measurement is, a few times a second."""
        self._bar("measuring", "round", done, count)

    def _bar(self, doing: str, what: str, part: int, count: int) -> None:
        now = time.monotonic()
        if self._on and now - self._drawn_s >= _REFRESH_S:
            self._drawn_s = now
            filled = 24 * part // max(count, 1)
            self._draw(f"{doing} [{'#' * filled}{'.' * (24 - filled)}] {what} {part} of {count}")

    def end(self) -> None:
        """Remove the line."""
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._on:
            sys.stderr.write(_CLEAR + text)
            sys.stderr.flush()


class Interrupt:
    """Turns the first Ctrl-C into a request to stop; a second one ends the program."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        def ask(number: int, frame: object) -> None:  # noqa: ARG001 - the signal module's form
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True

        self._before = signal.signal(signal.SIGINT, ask)
        return self

    def __exit__(self, *details: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.asked


def show(*parts: RenderableType) -> None:
    """Print rich renderables on stdout; NO_COLOR, pipes and their encoding are honoured."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that the encoding lacks ends no command
    console = Console(highlight=False)
    for part in parts:
        console.print(part, markup=False)


def show_json(record: Record) -> None:
    """Print only JSON on stdout."""
    from framefit.core.files import to_json

    sys.stdout.write(to_json(record) + "\n")


def show_line(record: Record) -> None:
    """Print one JSON document on one line, at once: a reader follows too."""
    from framefit.core.files import to_json

    sys.stdout.write(to_json(record, indent=None) + "\n")
    sys.stdout.flush()


class Positions:
    """Where a followed device is: positions as JSON lines, or on one changing line of a terminal; else nowhere."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._live: Live | None = None

    def __enter__(self) -> Positions:
        if not self._json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, at: StreamPosition) -> None:
        """Show the position."""
        if self._json:
            show_line(at)
        elif self._live is not None:
            from rich.text import Text

            where = f"inference {at.inference}, group {at.group}, {at.name} ({100 * at.confidence:.0f} % sure)"
            known = where if at.inference >= 0 else "no event of the program yet"
            self._live.update(Text(f"{known}; {at.received} events, {at.lost} lost"), refresh=True)
