"""Runs of a device that is written from the file formats alone and shares no assumption with the alignment.

Each operation waits in the queue of its unit until the unit, what it comes after, and every unit that excludes its
own are free (an event queue, not a recursion through the program). Durations are gamma-distributed, their table is
wrong by a factor, the clock follows the temperature (strong, slow changes), one operation in a hundred stalls, the
host pauses now and then. The trace unit loses single packets, bursts of any length, or whole inferences, and its
clock may be coarse and wrap around.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace, TraceMeta
from framefit.core.profile import OperationLog
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram

__all__ = ["ForeignCase", "ForeignRun", "ForeignScore", "make_run", "oracle_error", "score"]

_UNITS = ("FILE", "PU", "RU", "DMA")
_KINDS = (("conv", "matmul"), ("pad_pool",), ("reformat",), ("transfer",))  # of each unit
_LEFT = 0.02  # of the packets of operations that are hidden
_MEDIAN_NS = (28_000.0, 9_000.0, 6_000.0, 12_000.0)


@dataclass(frozen=True)
class ForeignCase:
    """What is simulated.

    Attributes:
        operations, inferences: of one network, and how often it runs.
        units: number of units; all of them send their packets on core 0.
        overlap: whether the last half of the units run beside the first one, else one operation runs at a time.
        variation: coefficient of variation of a duration.
        drift: amplitude of the clock's slow changes, as a ratio.
        own_speed: standard deviation of each inference's own speed, as a ratio.
        stalls: part of the operations that stall, for about twice their time more.
        pause_ns: mean pause between inferences; ``rest_ratio`` of them last ``rest_ns``.
        table_error: spread of the logarithm of expected over true duration.
        loss: part of the packets that are lost, ``burst`` in a row in the mean (1: each for itself).
        whole: part of the inferences that are lost as a whole.
        hidden: part of the operations, from a third of them on, that lose all but one in fifty of their packets.
        markers: whether the device reports losses.
        resolution_ns, wrap_bits: of the clock.
    """

    operations: int = 90
    inferences: int = 150
    units: int = 3
    overlap: bool = False
    variation: float = 0.03
    drift: float = 0.0
    own_speed: float = 0.0
    stalls: float = 0.01
    pause_ns: float = 25_000.0
    rest_ratio: float = 0.0
    rest_ns: float = 0.0
    table_error: float = 0.25
    loss: float = 0.1
    burst: float = 1.0
    whole: float = 0.0
    hidden: float = 0.0
    markers: bool = False
    resolution_ns: int = 1
    wrap_bits: int | None = None


@dataclass(frozen=True)
class ForeignRun:
    """A run as it was, and what is left of its trace.

    Attributes:
        program: with the wrong table.
        trace: the packets that were kept.
        times_ns: int64, inferences x operations x (START, END).
        kept: bool, of the same shape.
        packet: int64, of the same shape, position in ``trace``; -1: lost.
        unit: int64, of each operation.
    """

    program: Program
    trace: Trace
    times_ns: npt.NDArray[np.int64]
    kept: npt.NDArray[np.bool_]
    packet: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int64]


@dataclass(frozen=True)
class ForeignScore:
    """How a profile compares with the truth.

    Attributes:
        matched: part of the received packets with the right inference, operation and type.
        duration_error: mean relative error of operations that lost a packet; 1 where one is missing from the log.
        coverage: part of the lost edges whose interval holds the true time.
        utilisation_error: greatest difference of a unit's busy time, as part of the whole time.
        inferences: in the log, less those that there were from the first to the last one received.
    """

    matched: float
    duration_error: float
    coverage: float
    utilisation_error: float
    inferences: int


def make_run(case: ForeignCase, seed: int) -> ForeignRun:
    """Simulate ``case``."""
    random = np.random.default_rng(seed)
    unit = random.choice(case.units, case.operations, p=_shares(case.units))
    kind_names = [_KINDS[u][random.integers(len(_KINDS[u]))] for u in unit]
    true = np.array(_MEDIAN_NS)[unit] * np.exp(0.7 * random.standard_normal(case.operations))
    expected = true * np.exp(case.table_error * random.standard_normal(case.operations))
    free_beside = (case.units + 1) // 2 if case.overlap else case.units  # the first ones exclude each other
    after = _dependencies(case, unit, free_beside, random)
    times = _execute(case, unit, true, after, free_beside, random)
    kept = _lose(case, times, random)
    groups = np.cumsum(random.random(case.operations) < 0.15)
    names = _UNITS[: case.units]
    program = Program(
        window_ns=round(float(np.median(np.diff(times[:, 0, 0])))) if case.inferences > 1 else 1_000_000,
        units=tuple(ProgramUnit(name=name, core=0) for name in names),
        exclusive=(tuple(names[:free_beside]),),
        programs=(
            SegmentProgram(
                name="net",
                model="net",
                segment=0,
                groups=tuple(
                    Group(
                        index=int(number),
                        operations=tuple(
                            Operation(
                                index=int(at),
                                name=f"op{at}",
                                layer=f"layer{at // 2}",
                                kind=kind_names[at],
                                unit=names[unit[at]],
                                expected_ns=int(expected[at]),
                                sigma_ratio=0.25,
                                after=after[at],
                            )
                            for at in np.flatnonzero(groups == number)
                        ),
                    )
                    for number in np.unique(groups)
                ),
            ),
        ),
    )
    kinds = tuple(sorted(set(kind_names)))
    order = np.argsort(times.ravel(), kind="stable")
    flat = order[kept.ravel()[order]]
    lost_before = np.diff(np.cumsum(~kept.ravel()[order])[kept.ravel()[order]], prepend=0) > 0
    packet = np.full(times.size, -1, np.int64)
    packet[flat] = np.arange(len(flat))
    ticks = times.ravel()[flat] // case.resolution_ns
    if case.wrap_bits is not None:
        ticks %= 1 << case.wrap_bits
    operation = flat // 2 % case.operations
    trace = Trace(
        time_ns=ticks * case.resolution_ns,
        id=np.array([kinds.index(name) for name in kind_names], np.int32)[operation],
        type=(flat % 2).astype(np.uint8),
        core=np.zeros(len(flat), np.int16),
        operation=np.full(len(flat), -1, np.int64),
        kinds=kinds,
        loss_after=np.flatnonzero(lost_before & case.markers),
        meta=TraceMeta(resolution_ns=case.resolution_ns, wrap_bits=case.wrap_bits),
    )
    return ForeignRun(program, trace, times, kept, packet.reshape(times.shape), unit)


def _shares(units: int) -> npt.NDArray[np.float64]:
    share = np.array([0.5, 0.2, 0.2, 0.1])[:units]
    return np.asarray(share / share.sum())


def _dependencies(
    case: ForeignCase, unit: npt.NDArray[np.int64], free_beside: int, random: np.random.Generator
) -> list[tuple[int, ...]]:
    """Each operation comes after the one before it; beside others, after one or two a little further back."""
    after: list[tuple[int, ...]] = []
    for at in range(case.operations):
        if not at:
            after.append(())
        elif unit[at] < free_beside:
            after.append((at - 1,))
        else:
            back = [max(at - int(random.integers(2, 5)), 0) for _ in range(1 + int(random.random() < 0.3))]
            after.append(tuple(sorted(set(back))))
    return after


def _execute(
    case: ForeignCase,
    unit: npt.NDArray[np.int64],
    true: npt.NDArray[np.float64],
    after: list[tuple[int, ...]],
    free_beside: int,
    random: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Play all inferences with a queue of events; an inference begins when the one before it has ended."""
    shape = 1 / case.variation**2
    phase, wave = random.uniform(0, 6.28), random.uniform(90, 180)
    times = np.zeros((case.inferences, case.operations, 2), np.int64)
    begin = 1_000_000.0
    queues = [np.flatnonzero(unit == u).tolist() for u in range(case.units)]
    for inference in range(case.inferences):
        warm = 1 + case.drift * np.sin(phase + 6.28 * inference / wave)
        if case.own_speed:
            warm *= np.exp(case.own_speed * random.standard_normal())
        took = true * warm * random.gamma(shape, 1 / shape, case.operations)
        stalled = random.random(case.operations) < case.stalls
        took[stalled] += 2 * true[stalled] * random.weibull(0.8, int(stalled.sum()))
        wait = 60 + random.gamma(2.0, 140.0, case.operations)
        place, running, done = [0] * case.units, [False] * case.units, np.zeros(case.operations, np.bool_)
        events: list[tuple[float, int]] = []
        now = begin
        while True:
            for u in range(case.units):
                if running[u] or place[u] >= len(queues[u]):
                    continue
                op = queues[u][place[u]]
                rivals = range(free_beside) if u < free_beside else range(u, u + 1)
                if all(done[p] for p in after[op]) and not any(running[r] for r in rivals):
                    if u < free_beside and any(
                        place[r] < len(queues[r]) and queues[r][place[r]] < op for r in rivals if r != u
                    ):
                        continue  # of units that exclude each other the program decides who is next
                    running[u] = True
                    times[inference, op] = round(now + wait[op]), round(now + wait[op] + took[op])
                    heapq.heappush(events, (now + wait[op] + took[op], op))
            if not events:
                break
            now, op = heapq.heappop(events)
            done[op], running[unit[op]] = True, False
            place[unit[op]] += 1
        rest = case.rest_ns if random.random() < case.rest_ratio else 0.0
        begin = now + random.gamma(4.0, case.pause_ns / 4) + rest
    return times


def _lose(case: ForeignCase, times: npt.NDArray[np.int64], random: np.random.Generator) -> npt.NDArray[np.bool_]:
    order = np.argsort(times.ravel(), kind="stable")
    lost = np.zeros(len(order), np.bool_)
    if case.burst <= 1:
        lost = random.random(len(order)) < case.loss
    elif case.loss > 0:
        intact = case.burst * (1 - case.loss) / case.loss  # mean number of packets between two bursts
        at = int(random.exponential(intact))
        while at < len(order):
            length = int(random.geometric(1 / case.burst))
            lost[at : at + length] = True
            at += length + 1 + int(random.exponential(intact))
    kept = np.empty(len(order), np.bool_)
    kept[order] = ~lost
    kept = kept.reshape(times.shape)
    kept[random.random(len(times)) < case.whole] = False
    if case.hidden:
        hidden = kept[:, case.operations // 3 :][:, : round(case.hidden * case.operations)]
        hidden &= random.random(hidden.shape) < _LEFT
    return kept


def _rows(log: OperationLog, run: ForeignRun) -> tuple[npt.NDArray[np.int64], int]:
    """Return the true inference of each entry of the log, and how many inferences before it left no packet."""
    seen = np.flatnonzero(run.kept.any(axis=(1, 2)))
    received = log.inference[(log.start_event >= 0) | (log.end_event >= 0)]
    first = int(received.min()) if len(received) else 0
    shift = int(seen[0]) if len(seen) else 0
    return np.asarray(log.inference - first + shift), shift


def score(run: ForeignRun, log: OperationLog, utilisation: dict[str, float] | None = None) -> ForeignScore:
    """Hold the log of a profile against the truth."""
    inference, _ = _rows(log, run)
    inside = (inference >= 0) & (inference < len(run.times_ns))
    at, op = inference[inside], log.operation[inside]
    guess = np.full(run.times_ns.shape, np.nan)
    low, high, packet = guess.copy(), guess.copy(), np.full(run.times_ns.shape, -2, np.int64)
    for edge, (time, least, most, event) in enumerate(
        (
            (log.start_ns, log.start_low_ns, log.start_high_ns, log.start_event),
            (log.end_ns, log.end_low_ns, log.end_high_ns, log.end_event),
        )
    ):
        guess[at, op, edge], packet[at, op, edge] = time[inside], event[inside]
        low[at, op, edge], high[at, op, edge] = least[inside], most[inside]
    kept = run.kept
    matched = float(np.mean(packet[kept] == run.packet[kept])) if kept.any() else 1.0
    offset = 0.0  # of a clock that wraps around: its first packet may be any number of turns late
    if run.trace.meta.wrap_bits is not None and kept.any():
        turn = (1 << run.trace.meta.wrap_bits) * run.trace.meta.resolution_ns
        first = int(np.argmin(np.where(kept, run.times_ns, np.iinfo(np.int64).max)))
        offset = run.times_ns.ravel()[first] // turn * turn
    true = run.times_ns - offset
    step = run.trace.meta.resolution_ns
    lost = ~kept & ~np.isnan(guess)
    inside_interval = (low - step <= true) & (true <= high + step)
    took = np.diff(true, axis=2)[..., 0]
    error = np.abs(np.diff(guess, axis=2)[..., 0] - took) / took
    affected = (~kept).any(axis=2)
    # Inferences before the first and after the last packet were never recorded.
    recorded = np.flatnonzero(kept.any(axis=(1, 2)))
    affected[: recorded[0]] = affected[recorded[-1] + 1 :] = False
    error = np.where(np.isnan(error), 1.0, error)[affected]
    busy = 0.0
    if utilisation is not None:
        whole = float(true.max() - true.min())
        for number, name in enumerate(unit.name for unit in run.program.units):
            part = float(took[:, run.unit == number].sum()) / whole
            busy = max(busy, abs(part - utilisation.get(name, 0.0)))
    return ForeignScore(
        matched=matched,
        duration_error=float(error.mean()) if len(error) else 0.0,
        coverage=float(inside_interval[lost].mean()) if lost.any() else float("nan"),
        utilisation_error=busy,
        inferences=len(np.unique(log.inference)) - int(recorded[-1] - recorded[0] + 1),
    )


def oracle_error(run: ForeignRun) -> float:
    """Return the duration error of one who knows what every packet is, where one operation runs at a time.

    Lost edges divide the time between their received neighbours as the mean steps of the whole run do, at the tempo
    of these neighbours.
    """
    true, kept = run.times_ns.reshape(len(run.times_ns), -1), run.kept.reshape(len(run.times_ns), -1)
    received = np.where(kept, true, np.nan).astype(np.float64)
    step = np.diff(received, axis=1)
    mean = np.concatenate([[0.0], np.nanmedian(step, axis=0)])
    nominal = np.cumsum(mean)
    period = float(np.nanmedian(np.diff(received, axis=0)))
    clock = (nominal + period * np.arange(len(true))[:, None]).ravel()
    flat = kept.ravel()
    guess = np.interp(clock, clock[flat], true.ravel()[flat]).reshape(-1, run.times_ns.shape[1], 2)
    took = np.diff(run.times_ns, axis=2)[..., 0]
    affected = (~run.kept).any(axis=2)
    recorded = np.flatnonzero(run.kept.any(axis=(1, 2)))
    affected[: recorded[0]] = affected[recorded[-1] + 1 :] = False
    return float((np.abs(np.diff(guess, axis=2)[..., 0] - took) / took)[affected].mean())
