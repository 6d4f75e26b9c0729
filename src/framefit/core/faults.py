"""Faults to inject into a run, and the words for them: ``raise:depth@2s``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from typing import Literal, NamedTuple, get_args

from framefit.core.files import Record
from framefit.errors import InputError

__all__ = ["Fault", "Injection", "check_fault", "injected_in", "mark_of", "read_fault"]


FaultKind = Literal["raise", "hang", "stick", "slow", "nan", "inf", "stall", "burst", "end", "shape"]
_OF_STREAMS = ("stall", "burst", "end", "shape")
_ENDURING = ("slow", "stall", "end")  # a moment alone means: from then on
_NEEDS_AMOUNT = {"slow": "*RATIO", "burst": "*FRAMES"}
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|w)?")
_MARKED = re.compile(r"\(injected: ([^)]*)\)")
_FORM = "KIND:NAME[*AMOUNT][@FROM[..[TO]]], such as raise:depth@2s or slow:face*1.4@100w..200w"


class Fault(Record, kw_only=True):
    """An injected fault, and when it occurs.

    Attributes:
        kind: of a launch: "raise" (it fails), "hang" (it does not end until it is terminated), "stick" (it cannot be
            terminated either), "slow", "nan" and "inf" (all of its floats); of a stream: "stall" (no frames), "burst"
            (several at once), "end", "shape" (a frame of another shape).
        name: of a model, a segment's label or a unit; of a stream.
        begin_ns: time after the first release.
        end_ns: likewise; ``None``: no end.
        times: largest number of occurrences; ``None``: unlimited.
        amount: for slow: factor on the duration; for burst: number of frames; for hang: ns after which the launch
            ends by itself, 0: never.
    """

    kind: FaultKind
    name: str
    begin_ns: int = 0
    end_ns: int | None = None
    times: int | None = None
    amount: float = 0.0

    def __post_init__(self) -> None:
        if self.end_ns is not None and self.end_ns <= self.begin_ns:
            raise ValueError(f"it ends at {self.end_ns} ns, and begins at {self.begin_ns} ns")
        if self.times is not None and self.times < 1:
            raise ValueError(f"times must be at least 1, is {self.times}")
        if self.kind in _NEEDS_AMOUNT and not self.amount > 0:
            raise ValueError(f"{self.kind} needs an amount: {self.kind}:NAME{_NEEDS_AMOUNT[self.kind]}")

    @property
    def label(self) -> str:
        """Its name in results: kind, name and amount, without its times."""
        amount = f"{self.amount / 1e6:g}ms" if self.kind == "hang" else f"{self.amount:g}"
        return f"{self.kind}:{self.name}" + (f"*{amount}" if self.amount else "")

    @property
    def mark(self) -> str:
        """The end of a message about its effects; see :func:`mark_of`."""
        return mark_of(self.label)

    @property
    def of_stream(self) -> bool:
        """Whether it affects a stream, not launches."""
        return self.kind in _OF_STREAMS

    def due(self, after_ns: int) -> bool:
        """Whether it can occur at this time."""
        return self.begin_ns <= after_ns and (self.end_ns is None or after_ns < self.end_ns)


class Injection(NamedTuple):
    """One injection of a fault.

    Attributes:
        fault: label of the fault.
        place: the affected unit or stream.
        at_ns: on the run's clock: the start of the launch, or the release of the window.
    """

    fault: str
    place: str
    at_ns: int


def mark_of(label: str) -> str:
    """The end of a message about an injected fault's effects, which identifies it."""
    return f"(injected: {label})"


def injected_in(text: str) -> str:
    """Label of the injected fault that a message names; "": none."""
    match = _MARKED.search(text)
    return "" if match is None else match[1]


def read_fault(text: str, release_ns: Callable[[int], int]) -> Fault:
    """Read a fault: ``KIND:NAME[*AMOUNT][@FROM[..[TO]]]``.

    ``AMOUNT`` is a number of occurrences (raise, hang, stick, nan, inf, shape), a time after which it ends (hang), a
    ratio (slow), or a number of frames (burst). Times are numbers with ns, us, ms or s, or windows (``100w``), from the
    first release on. ``FROM`` alone means once from then on, or as often as the amount says; for slow, stall and end it
    means from then on. ``FROM..`` has no end. Without times a fault begins with the first window.

    Args:
        text: the fault as text.
        release_ns: gives the begin of a window, after the first release.

    Raises:
        InputError: the kind is unknown, or the form is wrong.
    """
    word, _, rest = text.partition(":")
    kind: FaultKind | None = next((kind for kind in get_args(FaultKind) if kind == word), None)
    if kind is None:
        near = difflib.get_close_matches(word, get_args(FaultKind), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; kinds: {', '.join(get_args(FaultKind))}"
        raise InputError(f"no fault of kind {word!r}{hint}", where=f"inject {text!r}", remedy=f"write {_FORM}")
    name, *marks = re.split(r"([*@])", rest)
    marked = dict(zip(marks[::2], marks[1::2], strict=True))
    if not name or len(marked) * 2 != len(marks) or not all(marked.values()):
        raise InputError("cannot be read", where=f"inject {text!r}", remedy=f"write {_FORM}")
    try:
        begin_ns, end_ns, once = _times(marked.get("@"), release_ns)
        times, amount = _amount(kind, marked.get("*"))
        if once and times is None and kind not in _ENDURING:
            times = 1
        return Fault(kind=kind, name=name, begin_ns=begin_ns, end_ns=end_ns, times=times, amount=amount)
    except ValueError as error:
        raise InputError(str(error), where=f"inject {text!r}", remedy=f"write {_FORM}") from error


def check_fault(fault: Fault, launched: Collection[str], streams: Collection[str]) -> None:
    """Refuse a fault that could not affect anything.

    Args:
        fault: the fault to inject.
        launched: names of models, labels of their segments, and names of units.
        streams: names of the workload's streams.

    Raises:
        InputError: the fault's name is unknown.
    """
    what, known = ("stream", sorted(streams)) if fault.of_stream else ("model, segment or unit", sorted(launched))
    if fault.name not in known:
        near = difflib.get_close_matches(fault.name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
        raise InputError(
            f"no {what} is called {fault.name!r}{hint}", where=f"inject {fault.kind}:{fault.name}", remedy="correct it"
        )


def _times(text: str | None, release_ns: Callable[[int], int]) -> tuple[int, int | None, bool]:
    """Begin, end, and whether only a single time is given."""
    if text is None:
        return 0, None, False
    begin, dots, end = text.partition("..")
    return _ns(begin, release_ns), _ns(end, release_ns) if end else None, not dots


def _amount(kind: str, text: str | None) -> tuple[int | None, float]:
    """Number of occurrences, and amount."""
    if text is None:
        return None, 0.0
    number, unit = _number(text)
    if unit is not None:
        if kind != "hang" or unit == "w":
            raise ValueError(f"the amount {text!r} of {kind} cannot be a time")
        return None, number * _UNITS_NS[unit]
    if kind == "slow":
        return None, number
    if number != int(number) or number < 1 or kind in ("stall", "end"):
        raise ValueError(f"{kind} has no amount {text!r}")
    return (None, number) if kind == "burst" else (int(number), 0.0)


def _ns(text: str, release_ns: Callable[[int], int]) -> int:
    number, unit = _number(text)
    if unit is None:
        raise ValueError(f"the time {text!r} needs a unit: ns, us, ms, s, or w for windows")
    if unit == "w":
        return release_ns(int(number))
    return round(number * _UNITS_NS[unit])


def _number(text: str) -> tuple[float, str | None]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is neither a number nor a time")
    return float(match[1]), match[2]
