"""What commands share: options of one form, results on stdout, progress on one line of stderr."""

from __future__ import annotations

import contextlib
import io
import logging
import platform
import re
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from framefit.core.settings import Settings, option
from framefit.errors import FramefitError, InputError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from framefit.core.files import Record
    from framefit.profiling.streaming import StreamPosition


logger = logging.getLogger(__name__)
_CLEAR = "\r\x1b[2K"
_REFRESH_S = 0.25
_ESTIMATED_AFTER_S = 2.0  # of a bar: the time that is left is a guess before
_REPEATED_AFTER_S = 10.0


class Screen(Settings, kw_only=True):
    """What every command takes beside its verb's options."""

    json: Annotated[bool, option("Print the result as JSON, and nothing else; without a result, the reason.")] = False
    quiet: Annotated[bool, option("Show the result and errors only: no progress, no notes.", "-q", "--quiet")] = False
    verbose: Annotated[
        bool,
        option("Show each step on a line of its own, with the seconds since the start.", "-v", "--verbose"),
    ] = False
    log_file: Annotated[
        str | None, option("Append all messages and each step to this file, with date and time.", metavar="PATH")
    ] = None


class BoardScreen(Screen, kw_only=True):
    """What commands take, too, that can be done on a board."""

    on: Annotated[
        str | None,
        option(
            "Run the command on this board of framefit board add: its files go there, its results come back "
            "(docs/boards.md).",
            metavar="BOARD",
        ),
    ] = None


@contextlib.contextmanager
def logged(screen: Screen) -> Iterator[None]:
    """Send the package's messages to stderr, and to the log file, while a command is executed.

    Raises:
        InputError: the log file cannot be written, or options contradict each other.
    """
    if screen.quiet and screen.verbose:
        raise InputError("--quiet and --verbose contradict each other", remedy="leave one of them out")
    package = logging.getLogger("framefit")
    handlers, before = [_messages(screen)], (package.level, package.propagate)
    file = None if screen.log_file is None else _log_file(screen.log_file)
    if file is not None:
        handlers.append(file)
    for handler in handlers:
        package.addHandler(handler)
    package.setLevel(min(handler.level for handler in handlers))
    package.propagate = False  # ONNX Runtime's quantising lets the root logger write to stderr, too
    try:
        if file is not None:
            system = f"Python {platform.python_version()} on {platform.platform()}"
            _log_alone(file, logging.INFO, f"{' '.join(sys.argv)} ({system})")
        yield
    except BaseException as error:
        if file is not None:  # on stderr errors are written where the program ends
            _log_alone(file, logging.ERROR, str(error) or type(error).__name__, error)
        raise
    finally:
        package.setLevel(before[0])
        package.propagate = before[1]
        for handler in handlers:
            package.removeHandler(handler)
            handler.close()


def _messages(screen: Screen) -> logging.Handler:
    """What is written to stderr: warnings, and each step where no line shows the newest one."""
    handler = logging.StreamHandler()
    if screen.quiet:
        handler.setLevel(logging.ERROR)
    elif screen.verbose:
        handler.setLevel(logging.DEBUG)
        handler.setFormatter(_Elapsed())
    else:
        handler.setLevel(logging.WARNING if sys.stderr.isatty() else logging.INFO)
        handler.addFilter(_Repeated())
    return handler


def _log_file(path: str) -> logging.Handler:
    try:
        handler = logging.FileHandler(path, encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot be written: {what}", where=path, remedy="check --log-file") from error
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def _log_alone(handler: logging.Handler, level: int, message: str, error: BaseException | None = None) -> None:
    """Give a message to one handler; an error that is none of the user's comes with its traceback."""
    known = error is None or isinstance(error, FramefitError | KeyboardInterrupt)
    details = None if known or error is None else (type(error), error, error.__traceback__)
    handler.handle(logger.makeRecord(logger.name, level, __file__, 0, message, (), details))


class _Elapsed(logging.Formatter):
    """Messages with the seconds since the command began."""

    def __init__(self) -> None:
        super().__init__()
        self._start_s = time.time()

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.created - self._start_s:7.1f} s  {super().format(record)}"


class _Repeated(logging.Filter):
    """Leaves away a step that differs from the one before in figures only, for some seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._words, self._passed_s = "", 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        words = re.split(r"[:\d]", record.getMessage())[0]
        repeated = words == self._words and record.created - self._passed_s < _REPEATED_AFTER_S
        if record.levelno > logging.INFO or not repeated:
            self._words, self._passed_s = words, record.created
            return True
        return False


class Progress:
    """What a command is doing: a status line on a terminal, and a message of the log for each step.

    It draws when it is called, and never from a thread of its own: that would disturb
    what is being measured.
    """

    def __init__(self, screen: Screen) -> None:
        self._on = sys.stderr.isatty() and not (screen.quiet or screen.verbose)
        self._drawn_s = 0.0
        self._bar_start: tuple[str, float, int] = ("", 0.0, 0)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *details: object) -> None:
        self.end()

    def __call__(self, message: str) -> None:
        """Say what is being done."""
        logger.info(message)
        self._draw(f"{message} ...")

    def windows(self, begun: int, count: int) -> None:
        """Say how far a run is, a few times a second."""
        self._bar("running", "window", begun, count)

    def rounds(self, done: int, count: int) -> None:
        """Say how far a measurement is, a few times a second."""
        self._bar("measuring", "round", done, count)

    def _bar(self, doing: str, what: str, part: int, count: int) -> None:
        now = time.monotonic()
        if self._bar_start[0] != doing or part < self._bar_start[2]:
            self._bar_start = (doing, now, part)
        if self._on and now - self._drawn_s >= _REFRESH_S:
            self._drawn_s = now
            filled = 24 * part // max(count, 1)
            left = _time_left(now - self._bar_start[1], part - self._bar_start[2], count - part)
            self._draw(f"{doing} [{'#' * filled}{'.' * (24 - filled)}] {what} {part} of {count}{left}")

    def end(self) -> None:
        """Remove the line."""
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._on:
            sys.stderr.write(_CLEAR + text)
            sys.stderr.flush()


def _time_left(taken_s: float, done: int, left: int) -> str:
    """What is left at the pace so far, as the end of a line; empty: it is not known yet, or nothing."""
    if taken_s < _ESTIMATED_AFTER_S or done < 1 or left < 1:
        return ""
    seconds = round(taken_s * left / done)
    return f", {seconds} s left" if seconds < 120 else f", {seconds // 60} min left"


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
