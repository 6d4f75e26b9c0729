"""Finds why events were lost, and what would have kept them: a larger buffer, a higher drain rate, or fewer events.

All events of the run, received and inferred ones, are sent again through buffers of other sizes and rates. The
buffer is the fluid queue of :func:`framefit.devices.npu.packets.admit`: events arrive at their times and leave at
the drain rate. Events that were placed at fixed offsets (rule 3) lie close together at the end of their gap, so
they are first spread over the gap as the program expects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace
from framefit.core.profile import How, OperationLog
from framefit.profiling.sequence import Reconstruction, Sequence

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_SPARE = 1.1  # times of lost events are guesses: a tenth on top of what these need
_EXPLAINED = 0.3  # of the losses: if the buffer as it is would lose less than that, it was not the buffer
_ONE_TYPE = 0.95  # of the losses
_RUN = 3  # events lost in a row, in the median: chance makes no such runs unless it takes most events
_BISECTIONS = 40


@dataclass(frozen=True)
class Remedies:
    """Changes that would each, by itself, have kept all events.

    Attributes:
        buffer_events: size of the buffer at the drain rate that it had; ``None`` if unknown, or no size would do.
        drain_rate_hz: drain rate at the size that the buffer had; ``None`` if unknown.
        kinds: kinds to record with buffer and rate as they were; ``None`` if no selection of kinds would do.
        starts_only: whether it would have been enough to record STARTs only.
        a_core: whether each core has a buffer of its own.
    """

    buffer_events: int | None = None
    drain_rate_hz: float | None = None
    kinds: tuple[str, ...] | None = None
    starts_only: bool = False
    a_core: bool = False


@dataclass(frozen=True)
class _Events:
    """All events of a run by time, as arrays of one length."""

    time_ns: Ints
    core: Ints
    kind: Ints
    inference: Ints
    starts: Bools
    lost: Bools

    def by_core(self) -> list[_Events]:
        """Split the events by core."""
        return [self.only(self.core == core) for core in np.unique(self.core)]

    def of(self, type_: EventType) -> Bools:
        """Mark the events of a type."""
        return np.asarray(self.starts == (type_ is EventType.START))

    def only(self, which: Bools) -> _Events:
        """Some of the events."""
        return _Events(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


def diagnose(trace: Trace, sequence: Sequence, reconstruction: Reconstruction) -> tuple[str, ...]:
    """Describe how events were lost and what would have kept them, as sentences; empty where none were lost.

    ``trace`` is as it was received, ``sequence`` what it was matched with.
    """
    sentences = list(_describe_ends(trace))
    log = reconstruction.log
    events = _all_events(log, sequence)
    lost = int(np.count_nonzero(events.lost))
    if not lost:
        return tuple(sentences)
    never = [type_ for type_ in (EventType.START, EventType.END) if not np.any(events.of(type_) & ~events.lost)]
    if len(never) == 1 and lost > 1:
        sentences.append(_describe_missing_type(never[0]))
        events = events.only(~events.of(never[0]))
        if not np.any(events.lost):
            return tuple(sentences)
    sentences += _describe_pattern(log, events)
    remedies = find_remedies(trace, sequence, reconstruction)
    if remedies is None:
        sentences += _describe_unexplained(trace, events)
        return tuple(sentences)
    each = " for each core" if remedies.a_core else ""
    size, rate = trace.meta.buffer_events, trace.meta.drain_rate_hz
    if remedies.buffer_events is not None and size is not None:
        sentences.append(
            f"a buffer of {remedies.buffer_events} events{each} (it was {size}) would have kept all of them"
        )
    if remedies.drain_rate_hz is not None and rate is not None:
        sentences.append(
            f"a drain rate of {_format_rate(remedies.drain_rate_hz)}{each} (it was {_format_rate(rate)}) "
            "would have kept all of them"
        )
    if remedies.kinds is not None:
        dropped = [log.kinds[kind] for kind in np.unique(log.kind) if log.kinds[kind] not in remedies.kinds]
        sentences.append(f"without events of {', '.join(dropped)} the buffer would have kept all others")
    enough = "would have kept them all" if remedies.starts_only else "would not have been enough by itself"
    sentences.append(f"recording STARTs only would have halved the rate and {enough}")
    return tuple(sentences)


def find_remedies(trace: Trace, sequence: Sequence, reconstruction: Reconstruction) -> Remedies | None:
    """Find what would have kept all events.

    Returns ``None`` if nothing was lost, or if a buffer such as the trace describes does not explain the losses.
    """
    meta, log = trace.meta, reconstruction.log
    events = _all_events(log, sequence)
    lost = int(np.count_nonzero(events.lost))
    if not lost or meta.buffer_events is None:
        return None
    size = meta.buffer_events
    per_ns = -1.0 if meta.drain_rate_hz is None else meta.drain_rate_hz / 1e9
    shared, separate = (
        sum(_count_dropped(stream, size, per_ns) for stream in split) for split in ([events], events.by_core())
    )
    a_core = abs(separate - lost) < abs(shared - lost)
    if max(shared, separate) < _EXPLAINED * lost:
        return None
    streams = events.by_core() if a_core else [events]
    return Remedies(
        buffer_events=math.ceil(_SPARE * max(_least_buffer(stream, per_ns) for stream in streams)),
        drain_rate_hz=None if per_ns < 0 else _SPARE * 1e9 * max(_least_drain_rate(stream, size) for stream in streams),
        kinds=_kinds_that_fit(log, streams, size, per_ns),
        starts_only=not any(_count_dropped(stream, size, per_ns, stream.starts) for stream in streams),
        a_core=a_core,
    )


def least_buffers(log: OperationLog, sequence: Sequence, per_ns: float) -> int:
    """Find the size at which no core's buffer drops an event, if each drains at ``per_ns`` events per nanosecond."""
    return max((_least_buffer(stream, per_ns) for stream in _all_events(log, sequence).by_core()), default=1)


def _describe_ends(trace: Trace) -> Iterable[str]:
    """Describe losses beyond the ends of the trace, which only the device's counters show."""
    meta = trace.meta
    if meta.overwritten_events:
        yield (
            f"the host kept the last {len(trace)} events and overwrote {meta.overwritten_events} before: "
            f"room for {len(trace) + meta.overwritten_events} would have kept the whole run"
        )
    stopped = len(trace) > 0 and len(trace.loss_after) == 1 and int(trace.loss_after[0]) == len(trace)
    if stopped and meta.lost_events:
        yield (
            f"the recorder was full after {len(trace)} events and dropped the {meta.lost_events} that followed: "
            f"room for {len(trace) + meta.lost_events} would have kept them"
        )


def _all_events(log: OperationLog, sequence: Sequence) -> _Events:
    """Return the edges of all operations, by time."""
    core, kind, inference = (np.repeat(column.astype(np.int64), 2) for column in (log.core, log.kind, log.inference))
    starts = np.tile([True, False], len(log))
    time = np.stack([log.start_ns, log.end_ns], axis=1).ravel()
    how = np.stack([log.start_how, log.end_how], axis=1).ravel()
    expected = sequence.expected_ns[sequence.first[log.program] + log.operation]
    for number in np.unique(core):
        of_core = np.flatnonzero(core == number)
        heaped = how[of_core] == How.T3
        if heaped.any() and not heaped.all():
            passed = np.cumsum(np.where(starts[of_core], 1.0, expected[of_core // 2]))
            known = of_core[~heaped]
            time[of_core[heaped]] = np.interp(passed[heaped], passed[~heaped], time[known])
    order = np.argsort(time, kind="stable")
    return _Events(time[order], core[order], kind[order], inference[order], starts[order], (how != How.MEASURED)[order])


def _count_dropped(events: _Events, size: int, per_ns: float, recorded: Bools | None = None) -> int:
    """Count the events that a buffer drops, of those that are recorded."""
    from framefit.devices.npu.packets import CLOSES, RECORDED, admit

    if not len(events.time_ns):
        return 0
    rows = np.zeros((len(events.time_ns), 6), np.int64)
    rows[:, 0] = events.time_ns
    rows[:, 5] = RECORDED if recorded is None else RECORDED * recorded
    _, last = np.unique(events.inference[::-1], return_index=True)
    rows[len(rows) - 1 - last, 5] |= CLOSES
    return int(admit(rows, size, per_ns, 0.0, int(rows[0, 0]), losing=False, resolution_ns=1, mask=-1)[1])


def _least_buffer(events: _Events, per_ns: float) -> int:
    """Find the smallest buffer that drops nothing."""
    low, high = 0, max(len(events.time_ns), 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _count_dropped(events, middle, per_ns) else (low, middle)
    return high


def _least_drain_rate(events: _Events, size: int) -> float:
    """Find the lowest drain rate, in events per nanosecond, at which a buffer drops nothing."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _count_dropped(events, size, middle) else (low, middle)
    return high


def _kinds_that_fit(log: OperationLog, streams: list[_Events], size: int, per_ns: float) -> tuple[str, ...] | None:
    """Find kinds whose events all fit; kinds of the shortest operations, which tell least, are left out first."""
    length = log.end_ns - log.start_ns
    order = sorted(np.unique(log.kind).tolist(), key=lambda kind: float(np.mean(length[log.kind == kind])))
    for dropped in range(1, len(order)):
        if not any(_count_dropped(stream, size, per_ns, np.isin(stream.kind, order[dropped:])) for stream in streams):
            return tuple(log.kinds[kind] for kind in sorted(order[dropped:]))
    return None


def _loss_runs(events: _Events) -> list[Ints]:
    """Return the lengths of the runs of lost events, core by core."""
    lengths = []
    for stream in events.by_core():
        steps = np.diff(np.concatenate([[False], stream.lost, [False]]).astype(np.int8))
        lengths.append(np.flatnonzero(steps == -1) - np.flatnonzero(steps == 1))
    return lengths


def _describe_missing_type(type_: EventType) -> str:
    """Describe what it means that no event of a type was received."""
    if type_ is EventType.END:
        known = "an operation is taken to end a little before what waits for it starts"
    else:
        known = "an operation is taken to start a little after what it waits for has ended"
    return (
        f"no {type_.name} was received: check which types the device is set to record. {known.capitalize()}, and no "
        "duration here was measured"
    )


def _describe_pattern(log: OperationLog, events: _Events) -> Iterable[str]:
    """Describe the pattern of the losses."""
    lost = int(np.count_nonzero(events.lost))
    runs = np.concatenate(_loss_runs(events))
    yield (
        f"{lost} of {len(events.lost)} events were lost ({100 * lost / len(events.lost):.1f} %), in {len(runs)} runs "
        f"of {int(np.median(runs))} events in the median and {int(runs.max())} at most"
    )
    for type_ in (EventType.START, EventType.END):
        others = ~events.of(type_)
        if np.any(others) and np.count_nonzero(events.lost & others) < (1 - _ONE_TYPE) * lost and lost > 1:
            yield f"nearly all lost events are {type_.name}s: check which types the device is set to record"
    cores = np.unique(events.core)
    if len(cores) > 1:
        ratio = [float(np.mean(events.lost[events.core == core])) for core in cores]
        worst = int(np.argmax(ratio))
        if ratio[worst] > 2 * min(ratio):
            yield f"core {cores[worst]} lost the largest part of its events: {100 * ratio[worst]:.1f} %"
    seen = np.unique(log.inference[~((log.start_how != How.MEASURED) & (log.end_how != How.MEASURED))])
    if whole := len(np.unique(log.inference)) - len(seen):
        yield f"{whole} inferences have no received event at all"


def _describe_unexplained(trace: Trace, events: _Events) -> Iterable[str]:
    """Describe losses that no known buffer explains."""
    runs = np.concatenate(_loss_runs(events))
    if trace.meta.buffer_events is not None:
        yield (
            f"a buffer of {trace.meta.buffer_events} events does not overflow at these rates: "
            "look for the loss on the way to the host"
        )
    elif np.median(runs) >= _RUN:
        yield (
            "events were lost in runs, as by a buffer that overflows; the trace does not tell its size: "
            f"about {math.ceil(_SPARE * int(runs.max()))} events more than it holds would have kept them"
        )
    else:
        yield (
            "events were lost one by one, not in runs as by a buffer that overflows: "
            "look for the loss on the way to the host first"
        )


def _format_rate(rate_hz: float) -> str:
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if rate_hz >= factor:
            return f"{rate_hz / factor:.3g} {unit} events/s"
    return f"{rate_hz:.3g} events/s"
