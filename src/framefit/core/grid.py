"""The grid of windows: when they begin, and which streams release a frame in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from framefit.errors import InputError

__all__ = ["Grid"]


_MOST_WINDOWS = 1000  # in a pattern
_DENOMINATOR = 1001  # 30000/1001: the broadcast rates; other rates are assumed to be as exact as these


@dataclass(frozen=True)
class Grid:
    """Absolute releases: windows lie between successive releases of any stream, in a pattern that repeats.

    If all streams have one rate, the pattern is a single window, and window k begins round(k x 1e9 / rate) after the
    first. Otherwise repetition k begins then, and its windows begin ``offsets_ns`` later.

    Attributes:
        rate_hz: repetitions a second.
        offsets_ns: begin of each window of a repetition; the first is 0.
        releases: stream -> windows of the pattern that begin with a frame of it; a missing stream: all windows.
    """

    rate_hz: float
    offsets_ns: tuple[int, ...] = (0,)
    releases: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def release_ns(self, window: int) -> int:
        """Begin of a window, after window 0."""
        if len(self.offsets_ns) == 1:
            return round(window * 1e9 / self.rate_hz)
        repeat, place = divmod(window, len(self.offsets_ns))
        return round(repeat * 1e9 / self.rate_hz) + self.offsets_ns[place]

    @property
    def lengths_ns(self) -> tuple[int, ...]:
        """Lengths of the windows of the first repetition; later ones may be a nanosecond longer."""
        edges = [*self.offsets_ns, self.release_ns(len(self.offsets_ns))]
        return tuple(end - begin for begin, end in itertools.pairwise(edges))

    @property
    def shortest_ns(self) -> int:
        """Length of the shortest window, or one nanosecond more."""
        return min(self.lengths_ns)

    @property
    def shortest_hz(self) -> float:
        """Windows a second if all of them were as long as the shortest."""
        return self.rate_hz if len(self.offsets_ns) == 1 else 1e9 / self.shortest_ns

    @property
    def windows_hz(self) -> float:
        """Mean number of windows a second."""
        return len(self.offsets_ns) * self.rate_hz

    def windows_in(self, seconds: float) -> int:
        """Number of windows that begin within ``seconds``, including window 0; rounded if windows are equal."""
        if len(self.offsets_ns) == 1:
            return round(seconds * self.rate_hz)
        repeats = math.floor(seconds * self.rate_hz)
        rest_ns = seconds * 1e9 - self.release_ns(repeats * len(self.offsets_ns))
        return repeats * len(self.offsets_ns) + sum(offset < rest_ns for offset in self.offsets_ns)

    def repeated(self, times: int) -> Grid:
        """The same windows where the pattern is a single one, as a pattern of so many."""
        if times == 1:
            return self
        return Grid(self.rate_hz / times, tuple(self.release_ns(window) for window in range(times)))

    def places(self, stream: str) -> tuple[int, ...]:
        """Windows of the pattern that bring a frame of a stream."""
        return self.releases.get(stream, tuple(range(len(self.offsets_ns))))

    def period_ns(self, stream: str) -> int:
        """Time from the first release of a stream to the next one; later ones may be a nanosecond longer."""
        return round(1e9 / (len(self.places(stream)) * self.rate_hz))

    def occurrence(self, stream: str, window: int) -> int:
        """Number of frames of a stream in the windows before this one."""
        repeat, place = divmod(window, len(self.offsets_ns))
        places = self.places(stream)
        return repeat * len(places) + sum(before < place for before in places)


def merged(rates_hz: Mapping[str, float], beat_hz: float | None = None) -> Grid:
    """Make the windows of streams that all begin at once.

    Release k of a stream is round(k x 1e9 / rate), as everywhere; the pattern's length is the least time that is a
    whole number of periods of all streams.

    Args:
        rates_hz: of each stream; where they differ, they are rounded to fractions with denominators up to 1001.
        beat_hz: rate of additional windows.

    Raises:
        InputError: there are no streams, or rates repeat only after more than 1000 windows.
    """
    rates = [*rates_hz.values(), *([] if beat_hz is None else [beat_hz])]
    if not rates:
        raise InputError("no stream determines the windows", remedy="give a stream's rate_hz")
    if min(rates) <= 0:
        raise InputError(f"rates must be greater than 0, are {rates}", remedy="correct rate_hz")
    if min(rates) == max(rates):
        return Grid(float(rates[0]))
    periods = [1 / (Fraction(rate).limit_denominator(_DENOMINATOR) or Fraction(rate)) for rate in rates]
    denominator = math.lcm(*(period.denominator for period in periods))
    whole = Fraction(math.lcm(*(int(period * denominator) for period in periods)), denominator)
    counts = [int(whole / period) for period in periods]
    instants: set[Fraction] = set()
    if max(counts) <= _MOST_WINDOWS:
        instants = {number * period for period, count in zip(periods, counts, strict=True) for number in range(count)}
    if not 0 < len(instants) <= _MOST_WINDOWS:
        raise InputError(
            f"releases at rates {', '.join(f'{rate:g}' for rate in rates)} Hz coincide again only after "
            f"{float(whole):.4g} s",
            remedy="choose rates that are closer to multiples of each other",
        )
    ordered = sorted(instants)
    return Grid(
        float(1 / whole),
        tuple(round(at * 10**9) for at in ordered),
        {
            name: tuple(place for place, at in enumerate(ordered) if (at / period).denominator == 1)
            for name, period in zip(rates_hz, periods, strict=False)
        },
    )
