"""Studies what losses cost: thins a trace in many ways, profiles what is left, and compares with the whole trace.

Two questions are answered for whoever sizes a trace buffer. How far off are durations and totals if events are lost
at some rate, one by one or in bursts? And which buffer loses nothing at a drain rate, and what does a smaller one
cost? Buffers are the fluid queue of :func:`framefit.devices.npu.packets.admit`, one for each core.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import replace

import msgspec
import numpy as np

from framefit.core.loss_study import BufferSize, LossPoint, LossStudy
from framefit.core.profile import Profile
from framefit.core.settings import Notify, silent
from framefit.errors import InputError
from framefit.profiling.diagnosis import least_buffers
from framefit.profiling.inject import ThinnedTrace, drop_by_buffer, drop_packets
from framefit.profiling.profile import ProfileInput, ProfileResult, profile_trace
from framefit.profiling.validation import compare_repair

__all__ = ["study_losses"]

_MARGINS = (1.1, 1.25, 1.5, 2.0, 3.0)  # drain rates over the busiest core's mean rate
_ASSUMED = 1.25
_MOST_HELD = 0.5  # of a core's events: a buffer that holds more is a recording
_SMALLER = (2, 4, 8, 16, 32)  # parts of the buffer that loses nothing
_LEAST_BUFFER = 2


def study_losses(
    source: ProfileInput,
    *,
    repeats: int,
    rates: Many[float],
    bursts: Many[int],
    drain_rate_hz: float | None = None,
    seed: int = 0,
    notify: Notify = silent,
) -> LossStudy:
    """Thin a trace in many ways, profile each rest, and compare it with the profile of the whole.

    Args:
        source: a trace with its program; it should have lost nothing.
        repeats: profiles at each rate and burst length, with another seed each.
        rates: parts of the packets that are lost, above 0 and below 1.
        bursts: consecutive packets of one loss; 1: one by one.
        drain_rate_hz: packets that leave the buffer of each core in a second; ``None``: as the trace says, or a quarter
            more than come in the mean.
        seed: of the losses.
        notify: receives progress messages.

    Raises:
        InputError: a rate or burst is not possible, or the trace cannot be profiled.
    """
    whole = profile_trace(source)
    events = whole.profile.events
    warnings = []
    if events.lost:
        warnings.append(
            f"the trace itself has lost {events.lost} of {events.expected} events: buffers are sized with their "
            "inferred times, and errors are found with the rest"
        )
    span_ns = max(whole.profile.covered_ns, 1)
    mean_hz = 2e9 * int(np.bincount(whole.log.core - whole.log.core.min()).max(initial=0)) / span_ns
    known = drain_rate_hz or source.trace.meta.drain_rate_hz
    drain_hz = known or _ASSUMED * mean_hz
    held = _MOST_HELD * mean_hz * span_ns / 1e9

    def size(rate_hz: float) -> int | None:
        least = least_buffers(whole.log, whole.sequence, rate_hz / 1e9)
        return least if least <= held else None

    buffer_events = size(drain_hz)
    runs = list(itertools.product(rates, bursts))
    drawn = []
    for number, (rate, burst) in enumerate(runs):
        notify(f"losing {100 * rate:g} % in bursts of {burst} ({number + 1} of {len(runs)})")
        thinned = (
            drop_packets(
                source.trace,
                source.program,
                source.launches,
                kind="random" if burst == 1 else "burst",
                rate=rate,
                burst=burst,
                seed=each,
            )
            for each in range(seed, seed + repeats)
        )
        drawn.append(_point(whole, thinned, LossPoint(rate=rate, burst=burst, repeats=repeats)))
    buffers = []
    for part in _SMALLER if buffer_events is not None else ():
        smaller = (buffer_events or 0) // part
        if smaller < _LEAST_BUFFER:
            break
        notify(f"losing what a buffer of {smaller} events loses")
        lossy = drop_by_buffer(source.trace, smaller, drain_hz)
        ratio = lossy.lost / max(len(source.trace), 1)
        buffers.append(_point(whole, iter([lossy]), LossPoint(rate=ratio, buffer_events=smaller, repeats=1)))
    return LossStudy(
        trace=source.where,
        repeats=repeats,
        seed=seed,
        events=events.expected,
        lost_before=events.lost,
        mean_rate_hz=mean_hz,
        drain_rate_hz=drain_hz,
        drain_known=known is not None,
        buffer_events=buffer_events,
        certificate=_certificate(buffer_events, drain_hz, mean_hz, known is not None),
        drawn=tuple(drawn),
        buffers=tuple(buffers),
        sizes=tuple(
            BufferSize(drain_rate_hz=margin * mean_hz, buffer_events=size(margin * mean_hz)) for margin in _MARGINS
        ),
        warnings=tuple(warnings),
    )


def _certificate(buffer_events: int | None, drain_hz: float, mean_hz: float, known: bool) -> str:
    where = f"at a drain rate of {drain_hz:,.0f} events/s for each core"
    if not known:
        where += " (assumed: a quarter more than the busiest core sends in the mean)"
    if buffer_events is None:
        return f"no buffer would have lost nothing {where}: the busiest core sends {mean_hz:,.0f} events/s in the mean"
    if drain_hz < mean_hz:
        where += f"; {mean_hz:,.0f} events/s come in the mean, so that a longer run needs a larger one"
    return f"a buffer of {buffer_events} events for each core would have lost nothing {where}"


def _point(whole: ProfileResult, thinned: Iterator[ThinnedTrace], point: LossPoint) -> LossPoint:
    """Profile thinned traces, and fill in what became of the durations."""
    figures, refused = [], 0
    for each in thinned:
        try:
            result = profile_trace(replace(whole.source, trace=each.trace))
        except InputError:  # what is left shows nothing of the program
            refused += 1
            continue
        repair = compare_repair(whole.log, result.log, each.kept)
        if repair is None:
            refused += each.lost > 0
            continue
        total = _greatest_error(whole.profile, result.profile)
        figures.append(
            (
                repair.recognised_ratio,
                repair.duration_error_ratio,
                total,
                repair.coverage_ratio,
                result.profile.calibrated,
            )
        )
    if not figures:
        return msgspec.structs.replace(point, refused=refused)
    columns = np.array(figures, np.float64)
    mean = columns.mean(axis=0).tolist()
    return msgspec.structs.replace(
        point,
        refused=refused,
        recognised_ratio=mean[0],
        duration_error_ratio=mean[1],
        duration_error_range=(float(columns[:, 1].min()), float(columns[:, 1].max())),
        total_error_ratio=mean[2],
        coverage_ratio=mean[3],
        calibrated_ratio=mean[4],
    )


def _greatest_error(whole: Profile, thin: Profile) -> float:
    """Return the greatest relative error of what a layer takes in the mean; inferences at the ends may be missing."""
    errors = [0.0]
    for name, total in whole.totals_by_layer.items():
        if total.duration_ns and name in thin.totals_by_layer:
            other = thin.totals_by_layer[name]
            errors.append(abs(other.duration_ns / other.count * total.count / total.duration_ns - 1))
    return max(errors)
