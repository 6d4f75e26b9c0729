"""Measures that leave the models as they are: other cuts, other units, fewer frames."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from framefit.core.fit_results import MeasureName, ProposedStep, Standing, StepCost
from framefit.core.workload import ModelEntry, Workload
from framefit.devices.host import available_cores, realtime_priority_permitted
from framefit.errors import FramefitError
from framefit.fit.situation import SERVED, Change, Offer, Situation, is_better
from framefit.planning.plan import Notify

__all__ = ["Cuts", "Rate", "Units"]


_MODES: tuple[Literal["fill", "fewest", "equal"], ...] = ("fill", "fewest", "equal")
_MORE_EVERY = 8  # windows between a background model's frames, above what it gets now
_RATES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.1)  # of the present ones


class Cuts:
    """Other segments: another mode of segmentation, models that would fit whole cut all the same, interruption.

    Args:
        notify: receives what is being done.
    """

    def __init__(self, notify: Notify) -> None:
        self._notify = notify

    def propose(self, situation: Situation) -> list[Offer]:
        """Each way that planning again shows to be better."""
        return [
            _arranged("cuts", what, "none", workload, found, situation)
            for what, workload in self._ways(situation)
            for found in _tried(situation, workload, self._notify)
        ]

    @staticmethod
    def _ways(situation: Situation) -> Iterator[tuple[str, Workload]]:
        workload, timetable = situation.workload, situation.planned.timetable
        schedule = workload.schedule
        units = situation.planned.device.target.units
        if schedule.preemption == "never" and all(unit.preemptive for unit in units) and realtime_priority_permitted():
            interrupted = msgspec.structs.replace(schedule, preemption="auto")
            told = "let the operating system interrupt background models"
            yield told, msgspec.structs.replace(workload, schedule=interrupted)
        if timetable.preemptive or not any(model.role == "background" for model in timetable.models):
            return
        for mode in _MODES:
            if mode != schedule.segmentation:
                cut = msgspec.structs.replace(schedule, segmentation=mode)
                yield f"cut by the mode {mode!r}", msgspec.structs.replace(workload, schedule=cut)
        whole = [m.name for m in timetable.models if m.role == "background" and len(m.segments) == 1]
        if whole:
            changed = _entries(workload, whole, lambda entry: msgspec.structs.replace(entry, always_split=True))
            yield f"cut {' and '.join(map(repr, whole))}, too", changed


class Units:
    """Units that models were kept from; on this machine further cores where the workload names none.

    Args:
        app: the workload's file.
        notify: receives what is being done.
    """

    def __init__(self, app: Path, notify: Notify) -> None:
        self._app, self._notify = app, notify

    def propose(self, situation: Situation) -> list[Offer]:
        """Each that planning anew shows to be better: the device is opened again."""
        offers = []
        for what, workload in self._ways(situation):
            try:
                found = Situation.of(self._app, workload, situation.margin_ratio, self._notify).standing
            except FramefitError:
                continue  # a model does not run there: no step
            if is_better(situation.standing, found):
                offers.append(_arranged("units", what, "none", workload, found, situation))
        return offers

    @staticmethod
    def _ways(situation: Situation) -> Iterator[tuple[str, Workload]]:
        workload = situation.workload
        kept = [entry.name for entry in workload.models if entry.units is not None]
        if kept:
            freed = _entries(workload, kept, lambda entry: msgspec.structs.replace(entry, units=None))
            yield f"let {' and '.join(map(repr, kept))} use all units", freed
        cores = available_cores()
        if not situation.described and workload.target == "cpu" and workload.cores is None and len(cores) > 1:
            yield f"use cores {', '.join(map(str, cores))}", msgspec.structs.replace(workload, cores=cores)


class Rate:
    """Fewer frames: of background models that do not keep up, else of everything.

    Args:
        notify: receives what is being done.
    """

    def __init__(self, notify: Notify) -> None:
        self._notify = notify

    def propose(self, situation: Situation) -> list[Offer]:
        """The most frames that fit."""
        found = self._rarer(situation) if situation.standing.feasible else None
        found = found or self._slower(situation)
        return [] if found is None else [_arranged("rate", found[0], "rate", found[1], found[2], situation)]

    def _rarer(self, situation: Situation) -> tuple[str, Workload, Standing] | None:
        """Models that get a part of their frames take every second, third, ... of them from the start.

        The one that asks for most alone, where that is enough for the others, too; else all of them.
        """
        models = {entry.name: entry for entry in situation.workload.models}
        short = [one for one in situation.standing.models if one.share_ratio < SERVED and one.planned_hz > 0]
        if not short:
            return None
        most = max(short, key=lambda one: one.duration_ns * one.asked_hz)
        ways = [{most.name: models[most.name].every + 1}]
        if len(short) > 1:
            ways.append({one.name: math.ceil(models[one.name].every / one.share_ratio - 1e-9) for one in short})
        for least, more in itertools.product(ways, range(_MORE_EVERY)):
            every = {name: count + more for name, count in least.items()}
            workload = _rarer(situation.workload, every)
            if workload is None:
                continue
            standing = situation.what_if(workload=workload, notify=self._notify)
            if standing.fits:
                told = " and ".join(f"every {_ordinal(count)} frame to {name!r}" for name, count in every.items())
                return f"give {told}", workload, standing
        return None

    def _slower(self, situation: Situation) -> tuple[str, Workload, Standing] | None:
        """All streams, and the beat."""
        found: tuple[str, Workload, Standing] | None = None
        low, high = 0, len(_RATES)  # the first that fits lies between
        while low < high:
            middle = (low + high) // 2
            workload = _slowed(situation.workload, _RATES[middle])
            standing = situation.what_if(workload=workload, notify=self._notify)
            if standing.fits:
                found = f"{_RATES[middle]:g} x all rates: {workload.beat_hz:.4g} windows a second", workload, standing
                high = middle
            else:
                low = middle + 1
        return found


def _tried(situation: Situation, workload: Workload, notify: Notify) -> list[Standing]:
    """What planning again says of a workload, where that is better."""
    try:
        found = situation.what_if(workload=workload, notify=notify)
    except FramefitError:
        return []
    return [found] if is_better(situation.standing, found) else []


def _arranged(
    measure: MeasureName, what: str, cost: StepCost, workload: Workload, found: Standing, situation: Situation
) -> Offer:
    """A step that is a workload of the same models, and was planned already."""
    step = ProposedStep(
        key=f"{measure}: {what}",
        measure=measure,
        what=what,
        cost=cost,
        predicted_load_ratio=found.load_ratio,
        enough=found.fits,
    )
    detail = "" if found.fits else f"least-served {situation.standing.least_share_ratio:.0%} -> "
    detail += "" if found.fits else f"{found.least_share_ratio:.0%}"
    return Offer(step, lambda _: Change(workload, detail=detail))


def _entries(workload: Workload, names: Sequence[str], changed: Callable[[ModelEntry], ModelEntry]) -> Workload:
    models = tuple(changed(entry) if entry.name in names else entry for entry in workload.models)
    return msgspec.structs.replace(workload, models=models)


def _rarer(workload: Workload, every: Mapping[str, int]) -> Workload | None:
    """With so many windows between models' frames; ``None``: those of all models repeat too late to be planned."""
    try:
        return _entries(workload, list(every), lambda entry: msgspec.structs.replace(entry, every=every[entry.name]))
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
            changes=tuple(msgspec.structs.replace(one, rate_hz=scaled(one.rate_hz)) for one in stream.changes),
            rates_hz=tuple(scaled(rate) or rate for rate in stream.rates_hz),
        )
        for stream in workload.streams
    )
    window_ms = None if workload.window_ms is None else workload.window_ms / ratio
    return msgspec.structs.replace(workload, rate_hz=scaled(workload.rate_hz), window_ms=window_ms, streams=streams)


def _ordinal(count: int) -> str:
    return {2: "second", 3: "third"}.get(count, f"{count}th")
