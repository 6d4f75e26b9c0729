"""Fewer frames: of models that do not keep up, or of everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import msgspec

from framefit.core.fit_results import ServedModel, Standing
from framefit.core.spacing import every_of
from framefit.core.verdict import SERVED
from framefit.core.workload import Workload
from framefit.errors import FramefitError
from framefit.fit.situation import Situation, losers
from framefit.fit.step import Offer, Step, step, with_entries

_PARTS = (240, 120, 60, 24, 12)  # of its frames that a model may take, in whole ones: the finest that can be planned
_LEAST, _SCALES = 100, 1000  # rates of everything: thousandths of the present ones, from a tenth on
_SCALE = 50  # parts of what the plan gives: the finest by which all models that do not keep up give way
_FINE = 50  # parts of its frames by which a model takes more, where that fits
_CLEARLY = 0.9  # of what a plan gave: less is a loss
_SIMPLER = SERVED  # of a rate: what a simpler pattern keeps

_Shares = dict[str, Fraction]


@step("rate", cost="rate", rank=0)
class Rate(Step):
    """Fewer frames: of background models that do not keep up, else of everything."""

    def propose(self, situation: Situation) -> list[Offer]:
        """The most frames that fit."""
        way = self._rarer(situation) if situation.standing.feasible else None
        way = way or self._slower(situation)
        return [] if way is None else [self.replanned(*way, situation)]

    def alternatives(self, situation: Situation) -> list[Offer]:
        """Ways to give fewer frames, the one that gives the most first; the others ask for less of the units."""
        ways = [self._rarer(situation)] if situation.standing.feasible else []
        if situation.described or not any(ways):  # other windows need other segments, which would have to be measured
            ways.append(self._slower(situation))
        return [self.replanned(*way, situation) for way in ways if way is not None]

    def _rarer(self, situation: Situation) -> tuple[str, Workload, Standing] | None:
        """Models that get a part of their frames take that part from the start, evenly spread, or more where it fits.

        First as many as the plan gives each of them, or the same part of that; then each in turn takes more, up to what
        the plan gives it before any takes more than that.
        """
        short = [model for model in situation.standing.models if model.share_ratio < SERVED and model.served_hz > 0]
        short.sort(key=lambda model: model.work_ratio)
        for parts in _PARTS if short else ():
            shares = self._shares(situation, short, parts)
            planned = None if shares is None else self._planned(situation, shares)
            if shares is None or planned is None or _takes_for_nothing(situation.standing, planned[1]):
                continue
            frames = " and ".join(f"{_fraction(share)} frames to {name!r}" for name, share in shares.items())
            return f"give {frames}", *planned
        return None

    def _shares(self, situation: Situation, short: Sequence[ServedModel], parts: int) -> _Shares | None:
        """Parts of their frames that models take: the greatest ones, the cheapest model's first."""

        def fits(shares: _Shares) -> bool:
            planned = self._planned(situation, shares) if all(shares.values()) else None
            return planned is not None and planned[1].fits

        def scaled(scale: int) -> _Shares:
            return {m.name: Fraction(int(scale * m.share_ratio * parts / _SCALE), parts) for m in short}

        scale = _SCALE if fits(scaled(_SCALE)) else _greatest(lambda scale: fits(scaled(scale)), 0, _SCALE)
        if not scale:
            return None
        given, least = scaled(_SCALE), scaled(scale)
        shares, step = dict(least), max(parts // _FINE, 1)

        def most(name: str, until: int) -> Fraction:
            more = [Fraction(part, parts) for part in range(int(shares[name] * parts), until, step)]
            return (
                more[_greatest(lambda place: fits(shares | {name: more[place]}), 0, len(more))]
                if more
                else shares[name]
            )

        for name, share in given.items() if scale < _SCALE else ():
            shares[name] = most(name, int(share * parts) + 1)  # before others get more than they had
        for name, share in least.items():
            shares[name] = most(name, parts)
            for simpler in _simpler(shares[name], share):
                if fits(shares | {name: simpler}):
                    shares[name] = simpler
                    break
        return shares

    def _planned(self, situation: Situation, shares: Mapping[str, Fraction]) -> tuple[Workload, Standing] | None:
        """The workload of such models, and where planning again leaves it; ``None``: it cannot be planned."""
        models = {entry.name: entry for entry in situation.workload.models}
        every = {name: every_of(models[name].spacing / share) for name, share in shares.items()}
        try:
            workload = with_entries(
                situation.workload, list(every), lambda entry: msgspec.structs.replace(entry, every=every[entry.name])
            )
            return workload, situation.what_if(workload=workload, whether_fits=True, notify=self.context.notify)
        except (ValueError, FramefitError):  # frames of all models repeat too late
            return None

    def _slower(self, situation: Situation) -> tuple[str, Workload, Standing] | None:
        """All streams, and the beat."""

        def planned(scale: int) -> tuple[Workload, Standing] | None:
            workload = _slowed(situation.workload, scale / _SCALES)
            try:
                return workload, situation.what_if(workload=workload, whether_fits=True, notify=self.context.notify)
            except FramefitError:
                return None  # rates that almost never coincide

        def fits(scale: int) -> bool:
            way = planned(scale)
            return way is not None and way[1].fits

        scale = _greatest(fits, _LEAST - 1, _SCALES)
        way = planned(scale) if scale >= _LEAST else None
        if way is None or _takes_for_nothing(situation.standing, way[1]):
            return None
        return f"{scale / _SCALES:g} x all rates: {way[0].beat_hz:.4g} windows a second", *way


def _takes_for_nothing(before: Standing, after: Standing) -> bool:
    """Whether a model gets clearly fewer frames than a plan gave it, and no other one gains by that."""
    given = {model.name: model.served_hz for model in before.models}
    fewer = any(model.served_hz < _CLEARLY * given[model.name] for model in after.models)
    return fewer and not losers(before, after)


def _greatest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The greatest number from ``low`` on and below ``high`` that fits, where smaller ones do, too; else ``low``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _simpler(share: Fraction, least: Fraction) -> list[Fraction]:
    """Simpler fractions that are hardly less, the simplest first."""
    simple = (Fraction(int(share * windows), windows) for windows in range(1, min(share.denominator, 17)))
    return [fraction for fraction in dict.fromkeys(simple) if fraction >= least and fraction >= _SIMPLER * share]


def _fraction(share: Fraction) -> str:
    return f"{share.numerator} of {share.denominator}"


def _slowed(workload: Workload, ratio: float) -> Workload:
    """All rates so many times as high, to four digits; deadlines that are given stay."""

    def scaled(rate_hz: float | None) -> float | None:
        return None if rate_hz is None else float(f"{ratio * rate_hz:.4g}")

    streams = tuple(
        msgspec.structs.replace(
            stream,
            rate_hz=scaled(stream.rate_hz),
            changes=tuple(msgspec.structs.replace(change, rate_hz=scaled(change.rate_hz)) for change in stream.changes),
            rates_hz=tuple(scaled(rate) or rate for rate in stream.rates_hz),
        )
        for stream in workload.streams
    )
    window_ms = None if workload.window_ms is None else workload.window_ms / ratio
    return msgspec.structs.replace(workload, rate_hz=scaled(workload.rate_hz), window_ms=window_ms, streams=streams)
