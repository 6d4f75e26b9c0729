"""Windows between the releases of streams whose rates need not be multiples of each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from framefit.errors import InputError

__all__ = ["Grid", "merged"]

_MOST_WINDOWS = 1000  # of a pattern
_DENOMINATOR = 1001  # 30000/1001: the broadcast rates; others are taken to be as exact as this


@dataclass(frozen=True)
class Grid:
    """Windows, one between each two releases of any stream, until they repeat.

    Attributes:
        lengths_ns: of the windows.
        releases: stream -> windows that begin with a frame of it.
    """

    lengths_ns: tuple[int, ...]
    releases: Mapping[str, tuple[int, ...]]


def merged(rates_hz: Mapping[str, float]) -> Grid:
    """The windows of streams that all begin at once.

    Release k of a stream is round(k x 1e9 / rate), as everywhere; the pattern's length is the least time
    that is a whole number of periods of all streams, rounded to nanoseconds.

    Args:
        rates_hz: of each stream; taken as fractions with denominators up to 1001.

    Raises:
        InputError: no stream, or rates that repeat only after more than 1000 windows.
    """
    if not rates_hz:
        raise InputError("no stream gives a beat", remedy="give a stream's rate_hz")
    periods = {name: 1 / Fraction(rate).limit_denominator(_DENOMINATOR) for name, rate in rates_hz.items() if rate > 0}
    if len(periods) < len(rates_hz):
        raise InputError(f"rates must be greater than 0, are {dict(rates_hz)}", remedy="correct rate_hz")
    denominator = math.lcm(*(period.denominator for period in periods.values()))
    whole = Fraction(math.lcm(*(int(period * denominator) for period in periods.values())), denominator)
    instants: dict[Fraction, list[str]] = {}
    for name, period in periods.items():
        count = int(whole / period)
        if count > _MOST_WINDOWS:
            break
        for number in range(count):
            instants.setdefault(number * period, []).append(name)
    if not all(int(whole / period) <= _MOST_WINDOWS for period in periods.values()) or len(instants) > _MOST_WINDOWS:
        raise InputError(
            f"releases of rates {', '.join(f'{rate:g}' for rate in rates_hz.values())} Hz meet again only after "
            f"{float(whole):.4g} s",
            remedy="choose rates that are closer to multiples of each other",
        )
    ordered = sorted(instants)
    edges = [round(at * 10**9) for at in [*ordered, whole]]
    return Grid(
        lengths_ns=tuple(end - begin for begin, end in itertools.pairwise(edges)),
        releases={name: tuple(index for index, at in enumerate(ordered) if name in instants[at]) for name in rates_hz},
    )
