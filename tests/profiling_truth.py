"""Simulated runs of which everything is known: programs, their full traces, and the true times.

Durations are log-normal around a speed of their own, which the program's table states wrongly; a unit
runs its operations in program order, each as soon as its unit is free and what it comes after has
ended; now and then one stalls; the device's clock drifts from inference to inference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import Trace, TraceMeta
from framefit.core.program import Group, Launches, Operation, Program, ProgramUnit, SegmentProgram
from framefit.profiling.sequence import Reconstruction

__all__ = ["Score", "Setting", "Truth", "scored", "simulate"]

KINDS = ("conv", "pad_pool", "reformat", "matmul", "elementwise", "reduce", "transfer", "recurrent", "control", "sort")


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Attributes:
        operations: of each model.
        inferences: launches in all.
        kinds: number of event ids.
        units: each with a core of its own.
        models: more than one: launches of several models, interleaved at random.
        sigma_ratio: spread of a duration from inference to inference.
        table_error_ratio: spread of what the program expects around the truth, per operation.
        median_ns: of the operations' durations, which spread log-normally by ``spread_ratio``.
        gap_ns: median wait between what an operation waits for and its start.
        stall_rate: part of operations that stall, taking 5 to 20 times as long.
        drift_ratio: step of the random walk of the clock, each inference.
        dependent_ratio: part of operations that wait for an earlier one, on any unit.
        exclusive: names of units that never run at once.
        period_ns: launches are submitted at this pace; ``None``: as fast as they run.
        barrier: whether an inference waits for the whole one before it.
        resolution_ns, wrap_bits: of the time stamps.
        identified: whether packets name their operation.
    """

    operations: int = 120
    inferences: int = 200
    kinds: int = 5
    units: int = 3
    models: int = 1
    sigma_ratio: float = 0.05
    table_error_ratio: float = 0.25
    median_ns: float = 20_000.0
    spread_ratio: float = 0.7
    gap_ns: float = 300.0
    stall_rate: float = 2e-4
    drift_ratio: float = 0.002
    dependent_ratio: float = 0.5
    exclusive: tuple[str, ...] = ()
    period_ns: float | None = None
    barrier: bool = False
    resolution_ns: int = 1
    wrap_bits: int | None = None
    identified: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Truth:
    """A run as it was.

    Attributes:
        program: with a wrong table.
        launches: where there are several models, or a pace.
        trace: all packets, in order of time.
        inference, operation, type: int64, of each packet.
        start_ns, end_ns: int64, of each operation, launch by launch in program order.
        first: int64, one more than launches: where each begins in ``start_ns``.
    """

    program: Program
    launches: Launches | None
    trace: Trace
    inference: npt.NDArray[np.int64]
    operation: npt.NDArray[np.int64]
    type: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]


@njit(cache=True)
def _run(
    launches: Any, first: Any, unit: Any, after: Any, exclusive: Any, ready: Any, busy: Any, gap: Any, barrier: bool
) -> Any:
    """Start and end of each operation, as early as its unit and its predecessors let it."""
    free = np.zeros(len(exclusive))
    start, end = np.empty(len(busy)), np.empty(len(busy))
    at, everything = 0, 0.0
    for launch in range(len(launches)):
        base, begin = at, everything if barrier else 0.0
        for op in range(first[launches[launch]], first[launches[launch] + 1]):
            time = max(begin, ready[launch])
            for other in range(len(free)):
                if exclusive[unit[op], other]:
                    time = max(time, free[other])
            for one in after[op]:
                if one >= 0:
                    time = max(time, end[base + one])
            start[at] = time + gap[at]
            end[at] = start[at] + busy[at]
            free[unit[op]] = end[at]
            everything = max(everything, end[at])
            at += 1
    return start, end


def simulate(setting: Setting) -> Truth:
    """Run ``setting``."""
    random = np.random.default_rng(setting.seed)
    models, count = setting.models, setting.operations
    total = models * count
    unit = np.where(
        random.random(total) < 0.5, random.integers(0, setting.units, total), np.arange(total) // 3 % setting.units
    )
    kind = random.integers(0, setting.kinds, total)
    median = setting.median_ns * np.exp(setting.spread_ratio * random.standard_normal(total))
    expected = median * np.exp(setting.table_error_ratio * random.standard_normal(total))
    after = np.full((total, 2), -1)
    for op in range(total):
        here = op % count
        if here and random.random() < setting.dependent_ratio:
            after[op, 0] = max(here - random.integers(1, 5), 0)
            after[op, 1] = max(here - random.integers(1, 8), -1) if random.random() < 0.3 else -1
    names = [f"npu{number}" for number in range(setting.units)]
    exclusive = np.eye(setting.units, dtype=bool)
    both = [names.index(name) for name in setting.exclusive]
    exclusive[np.ix_(both, both)] = True
    first = np.arange(models + 1) * count

    launched = random.integers(0, models, setting.inferences)
    if models == 1:
        launched[:] = 0
    place = (launched[:, None] * count + np.arange(count)).ravel()
    speed = np.exp(np.cumsum(setting.drift_ratio * random.standard_normal(setting.inferences)))
    busy = median[place] * np.exp(setting.sigma_ratio * random.standard_normal(len(place))) * np.repeat(speed, count)
    stalled = random.random(len(place)) < setting.stall_rate
    busy[stalled] *= random.uniform(5, 20, int(stalled.sum()))
    gap = setting.gap_ns * np.exp(0.3 * random.standard_normal(len(place)))
    ready = np.zeros(setting.inferences)
    submit = None
    offset = 123_456_789
    if setting.period_ns is not None:
        submit = np.arange(setting.inferences) * setting.period_ns + random.exponential(2_000.0, setting.inferences)
        ready = submit + offset + 5_000.0 * np.exp(0.1 * random.standard_normal(setting.inferences))
    start, end = _run(launched, first, unit, after, exclusive, ready, busy, gap, setting.barrier)
    start_ns, end_ns = (np.rint(one).astype(np.int64) + 1_000_000 for one in (start, end))

    times = np.stack([start_ns, end_ns], 1).ravel()
    order = np.argsort(times, kind="stable")
    type_, flat = order % 2, order // 2
    operation = place[flat] % count
    ticks = times[order] // setting.resolution_ns
    if setting.wrap_bits is not None:
        ticks &= (1 << setting.wrap_bits) - 1
    trace = Trace(
        time_ns=ticks * setting.resolution_ns,
        id=kind[place[flat]].astype(np.int32),
        type=type_.astype(np.uint8),
        core=unit[place[flat]].astype(np.int16),
        operation=operation.astype(np.int64) if setting.identified else np.full(len(order), -1, np.int64),
        kinds=KINDS[: setting.kinds],
        meta=TraceMeta(resolution_ns=setting.resolution_ns, wrap_bits=setting.wrap_bits),
    )

    def operations(model: int, low: int, high: int) -> tuple[Operation, ...]:
        return tuple(
            Operation(
                index=here,
                name=f"op{here}",
                layer=f"layer{here // 2}",
                kind=KINDS[kind[at]],
                unit=names[unit[at]],
                expected_ns=max(int(expected[at]), 1),
                sigma_ratio=setting.sigma_ratio,
                after=tuple(sorted({int(one) for one in after[at] if one >= 0})),
            )
            for here in range(low, high)
            for at in (model * count + here,)
        )

    step = max(count // 6, 1)
    launches = None
    if models > 1 or submit is not None:
        numbers = np.arange(setting.inferences, dtype=np.int64)
        host = np.zeros(setting.inferences) if submit is None else submit
        launches = Launches(launched.astype(np.int32), numbers, numbers, np.rint(host).astype(np.int64))
    program = Program(
        window_ns=int(setting.period_ns or end.max() / setting.inferences),
        units=tuple(ProgramUnit(name=name, core=core) for core, name in enumerate(names)),
        exclusive=(setting.exclusive,) if setting.exclusive else (),
        programs=tuple(
            SegmentProgram(
                name=f"model{model}.0",
                model=f"model{model}",
                segment=0,
                groups=tuple(
                    Group(index=number, operations=operations(model, low, min(low + step, count)))
                    for number, low in enumerate(range(0, count, step))
                ),
            )
            for model in range(models)
        ),
        launches=None if launches is None else "launches.npz",
        repeats=None,
    )
    return Truth(
        program=program,
        launches=launches,
        trace=trace,
        inference=flat // count,
        operation=operation,
        type=type_,
        start_ns=start_ns,
        end_ns=end_ns,
        first=np.arange(setting.inferences + 1) * count,
    )


@dataclass(frozen=True)
class Score:
    """How well a run was rebuilt.

    Attributes:
        matched: part of the received packets with the right inference, operation and type.
        duration_error: mean relative error of the durations of operations that lost a packet.
        coverage: part of the inferred edges whose interval holds the true time.
        found: operations in the log, over those that were executed.
    """

    matched: float
    duration_error: float
    coverage: float
    found: float


def scored(truth: Truth, kept: npt.NDArray[np.bool_], rebuilt: Reconstruction) -> Score:
    """Hold what was rebuilt from the packets that were ``kept`` against the truth."""
    log = rebuilt.log
    size = int(np.count_nonzero(kept))
    told = np.full((3, size), -1, np.int64)
    for type_, event in enumerate((log.start_event, log.end_event)):
        there = event >= 0
        told[:, event[there]] = log.inference[there], log.operation[there], np.full(int(there.sum()), type_)
    true = np.stack([truth.inference[kept], truth.operation[kept], truth.type[kept]])
    known = log.inference < len(truth.first) - 1
    flat = truth.first[np.minimum(log.inference, len(truth.first) - 2)] + log.operation
    took = truth.end_ns[flat] - truth.start_ns[flat]
    error = np.abs(log.end_ns - log.start_ns - took) / np.maximum(took, 1)
    within = []
    for how, low, high, time in (
        (log.start_how, log.start_low_ns, log.start_high_ns, truth.start_ns[flat]),
        (log.end_how, log.end_low_ns, log.end_high_ns, truth.end_ns[flat]),
    ):
        lost = (how > 0) & known
        within.append((low[lost] <= time[lost]) & (time[lost] <= high[lost]))
    inside = np.concatenate(within)
    affected = log.inferred & known
    return Score(
        matched=float(np.mean(np.all(told == true, axis=0))) if size else 1.0,
        duration_error=float(error[affected].mean()) if affected.any() else 0.0,
        coverage=float(inside.mean()) if len(inside) else float("nan"),
        found=len(log) / len(truth.start_ns),
    )
