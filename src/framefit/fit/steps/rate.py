"""Fewer frames: of models that do not keep up, or of everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import msgspec

from framefit.core.fit_results import Standing
from framefit.core.verdict import SERVED
from framefit.core.workload import Workload
from framefit.fit.situation import Situation
from framefit.fit.step import Offer, Step, step, with_entries

_MORE_EVERY = 8  # windows between a background model's frames, above what it gets now
_RATES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.1)  # of the present ones


@step("rate", cost="rate", rank=0)
class Rate(Step):
    """Fewer frames: of background models that do not keep up, else of everything."""

    def propose(self, situation: Situation) -> list[Offer]:
        """The most frames that fit."""
        way = self._rarer(situation) if situation.standing.feasible else None
        way = way or self._slower(situation)
        return [] if way is None else [self.replanned(*way, situation)]

    def _rarer(self, situation: Situation) -> tuple[str, Workload, Standing] | None:
        """Models that get a part of their frames take every second, third, ... of them from the start.

        The one that asks for most alone, where that is enough for the others, too; else all of them.
        """
        models = {entry.name: entry for entry in situation.workload.models}
        short = [served for served in situation.standing.models if served.share_ratio < SERVED and served.served_hz > 0]
        if not short:
            return None
        most = max(short, key=lambda served: served.duration_ns * served.asked_hz)
        ways = [{most.name: models[most.name].every + 1}]
        if len(short) > 1:
            ways.append(
                {served.name: math.ceil(models[served.name].every / served.share_ratio - 1e-9) for served in short}
            )
        for least, more in itertools.product(ways, range(_MORE_EVERY)):
            every = {name: count + more for name, count in least.items()}
            workload = _rarer(situation.workload, every)
            if workload is None:
                continue
            standing = situation.what_if(workload=workload, notify=self.context.notify)
            if standing.fits:
                frames = " and ".join(f"every {_ordinal(count)} frame to {name!r}" for name, count in every.items())
                return f"give {frames}", workload, standing
        return None

    def _slower(self, situation: Situation) -> tuple[str, Workload, Standing] | None:
        """All streams, and the beat."""
        way: tuple[str, Workload, Standing] | None = None
        low, high = 0, len(_RATES)  # the first that fits lies between
        while low < high:
            middle = (low + high) // 2
            workload = _slowed(situation.workload, _RATES[middle])
            standing = situation.what_if(workload=workload, notify=self.context.notify)
            if standing.fits:
                way = f"{_RATES[middle]:g} x all rates: {workload.beat_hz:.4g} windows a second", workload, standing
                high = middle
            else:
                low = middle + 1
        return way


def _rarer(workload: Workload, every: Mapping[str, int]) -> Workload | None:
    """With so many windows between models' frames; ``None``: those of all models repeat too late to be planned."""
    try:
        return with_entries(
            workload, list(every), lambda entry: msgspec.structs.replace(entry, every=every[entry.name])
        )
    except ValueError:
        return None


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


def _ordinal(count: int) -> str:
    return {2: "second", 3: "third"}.get(count, f"{count}th")
