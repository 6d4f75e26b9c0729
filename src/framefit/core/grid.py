"""When windows begin, and which streams release a frame in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from framefit.errors import InputError

__all__ = ["Grid"]


_MOST_WINDOWS = 1000  # of a pattern
_DENOMINATOR = 1001  # 30000/1001: the broadcast rates; others are taken to be as exact as this


@dataclass(frozen=True)
class Grid:
    """Absolute releases: windows lie between each two releases of any stream, in a pattern that repeats.

    Where all streams have one rate the pattern is a single window, and window k begins round(k x 1e9 / rate)
    after the first. Else repetition k begins then, and its windows as far behind that as ``offsets_ns`` says.

    Attributes:
        rate_hz: repetitions a second.
        offsets_ns: begin of each window of a repetition; the first is 0.
        releases: stream -> windows of the pattern that begin with a frame of it; one that is missing: all do.
    """

    rate_hz: float
    offsets_ns: tuple[int, ...] = (0,)
    releases: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def release_ns(self, window: int) -> int:
        """When a window begins, after window 0."""
        if len(self.offsets_ns) == 1:
            return round(window * 1e9 / self.rate_hz)
        repeat, place = divmod(window, len(self.offsets_ns))
        return round(repeat * 1e9 / self.rate_hz) + self.offsets_ns[place]

    @property
    def lengths_ns(self) -> tuple[int, ...]:
        """Of the windows of the first repetition; later ones may be a nanosecond longer."""
        edges = [*self.offsets_ns, self.release_ns(len(self.offsets_ns))]
        return tuple(end - begin for begin, end in itertools.pairwise(edges))

    @property
    def shortest_ns(self) -> int:
        """Length of the shortest window; or one more."""
        return min(self.lengths_ns)

    @property
    def shortest_hz(self) -> float:
        """Windows a second, were all of them as long as the shortest."""
        return self.rate_hz if len(self.offsets_ns) == 1 else 1e9 / self.shortest_ns

    @property
    def windows_hz(self) -> float:
        """Windows a second, in the mean."""
        return len(self.offsets_ns) * self.rate_hz

    def windows_in(self, seconds: float) -> int:
        """Windows that begin within so many seconds, window 0 included; to the nearest where they are even."""
        if len(self.offsets_ns) == 1:
            return round(seconds * self.rate_hz)
        repeats = math.floor(seconds * self.rate_hz)
        rest_ns = seconds * 1e9 - self.release_ns(repeats * len(self.offsets_ns))
        return repeats * len(self.offsets_ns) + sum(offset < rest_ns for offset in self.offsets_ns)

    def places(self, stream: str) -> tuple[int, ...]:
        """Windows of the pattern that bring a frame of a stream."""
        return self.releases.get(stream, tuple(range(len(self.offsets_ns))))

    def period_ns(self, stream: str) -> int:
        """From one release of a stream to the next: the first of them; later ones may be a nanosecond longer."""
        return round(1e9 / (len(self.places(stream)) * self.rate_hz))

    def occurrence(self, stream: str, window: int) -> int:
        """How many frames of a stream the windows before this one brought."""
        repeat, place = divmod(window, len(self.offsets_ns))
        places = self.places(stream)
        return repeat * len(places) + sum(before < place for before in places)


def merged(rates_hz: Mapping[str, float], beat_hz: float | None = None) -> Grid:
    """The windows of streams that all begin at once.

    Release k of a stream is round(k x 1e9 / rate), as everywhere; the pattern's length is the least time
    that is a whole number of periods of all streams.

    Args:
        rates_hz: of each stream; where they differ, taken as fractions with denominators up to 1001.
        beat_hz: windows begin so often, too.

    Raises:
        InputError: no stream, or rates that repeat only after more than 1000 windows.
    """
    rates = [*rates_hz.values(), *([] if beat_hz is None else [beat_hz])]
    if not rates:
        raise InputError("no stream gives a beat", remedy="give a stream's rate_hz")
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
            f"releases of rates {', '.join(f'{rate:g}' for rate in rates)} Hz meet again only after "
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
