"""Checks a trace before and after reconstruction, and audits the reconstruction on the trace itself.

The audit masks received events and compares the reconstruction with them. The mask is drawn like the losses of
this trace: runs of as many events, only STARTs where only these were lost, reported where the device reports
losses. It comes on top of the real losses, so its result errs on the side of caution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace
from framefit.core.profile import Certificate, How, OperationLog
from framefit.core.program import Launches, Program
from framefit.core.run_record import Percentiles
from framefit.errors import InputError
from framefit.profiling.sequence import PacketClass, Reconstruction, Sequence
from framefit.profiling.totals import MaskedRepair
from framefit.stats import wilson

_MOST_NS = 1 << 61  # 73 years: beyond it differences of times overflow
_FEW_MATCHED = 0.5
_PAUSE = 1.5  # cycles: an inference that is missing leaves a pause of two
_OF_ANOTHER = 0.02  # of the packets, where they match by chance only


def drop_unreadable(trace: Trace, sequence: Sequence) -> tuple[Trace, list[str]]:
    """Leave out packets with impossible times, and return warnings about these and other odd packets."""
    notes: list[str] = []
    if not len(trace):
        return trace, ["the trace has no events"]

    def note(wrong: npt.NDArray[np.bool_], what: str) -> None:
        if count := int(np.count_nonzero(wrong)):
            notes.append(f"{count} of {len(trace)} packets {what}")

    note((trace.id < 0) | (trace.id >= len(trace.kinds)), "have an id that the trace does not name, and were ignored")
    note(trace.type > 1, "are neither START nor END, and were ignored")
    note(
        ~np.isin(trace.core, sequence.units.track_core),
        "come from a core that is not a unit of the program, and were ignored",
    )
    known_kinds = np.unique([op.kind for op in sequence.operations])
    unknown_kinds = [index for index, kind in enumerate(trace.kinds) if kind not in known_kinds]
    note(
        np.isin(trace.id, unknown_kinds),
        f"are of kinds that the program does not have ({_quote_some(trace.kinds, unknown_kinds)}), and were ignored",
    )
    recorded = sequence.recorded(trace.meta.selected_kinds)
    if not recorded.all():
        kinds = sorted({op.kind for op, sends in zip(sequence.operations, recorded, strict=True) if not sends})
        notes.append(
            f"events of {', '.join(kinds)} were not selected for recording: "
            f"{np.count_nonzero(~recorded)} of {len(recorded)} operations of the program "
            "are neither in the profile nor counted as lost"
        )
    if trace.meta.wrap_bits is not None:
        period = (1 << trace.meta.wrap_bits) * trace.meta.resolution_ns
        note((trace.time_ns < 0) | (trace.time_ns >= period), f"have times beyond {trace.meta.wrap_bits} bits")
    if np.any((trace.loss_after < 0) | (trace.loss_after > len(trace))):
        notes.append("some losses are reported beyond the end of the trace")
    damaged = (trace.time_ns > _MOST_NS) | (trace.time_ns < -_MOST_NS)
    note(damaged, "have impossible times, and were left out")
    return (_select_packets(trace, ~damaged) if damaged.any() else trace), notes


def _quote_some(names: tuple[str, ...], which: list[int]) -> str:
    return ", ".join(repr(names[index]) for index in which[:3]) + (", ..." if len(which) > 3 else "")


def _select_packets(trace: Trace, kept: npt.NDArray[np.bool_]) -> Trace:
    rank = np.concatenate([[0], np.cumsum(kept)])
    return replace(
        trace,
        time_ns=trace.time_ns[kept],
        id=trace.id[kept],
        type=trace.type[kept],
        core=trace.core[kept],
        operation=trace.operation[kept],
        loss_after=np.unique(rank[np.clip(trace.loss_after, 0, len(kept))]).astype(np.int64),
    )


def sanity_warnings(reconstruction: Reconstruction, trace: Trace, program: Program, where: str) -> list[str]:
    """Check whether this was the trace's program, and describe packets of other classes than matched.

    Raises :class:`~framefit.errors.InputError` if no packet is the program's.
    """
    counts, size = reconstruction.counts, len(reconstruction.packet_class)
    matched = int(np.count_nonzero(reconstruction.packet_class == PacketClass.MATCHED))
    if not size:
        return []
    if matched <= _OF_ANOTHER * size:
        kinds = dict.fromkeys(op.kind for part in program.programs for group in part.groups for op in group.operations)
        raise InputError(
            f"{'none' if not matched else f'only {matched}'} of {size} events fit the program; the trace's kinds are "
            f"{_quote_some(trace.kinds, list(range(len(trace.kinds)))) or 'none'}, the program's "
            f"{_quote_some(tuple(kinds), list(range(len(kinds))))}",
            where=where,
            remedy="name the program that was executed: --program PROGRAM",
        )
    notes = []
    if matched < _FEW_MATCHED * size:
        notes.append(
            f"only {100 * matched / size:.0f} % of the events fit the program: "
            "check that it is the one that was executed"
        )
    if counts.out_of_order:
        notes.append(f"{counts.out_of_order} packets arrived after later ones of their core; they were put in order")
    if counts.spurious:
        notes.append(f"{counts.spurious} packets do not belong to the program")
    if counts.duplicated:
        notes.append(f"{counts.duplicated} packets were received twice")
    return notes


def is_complete(reconstruction: Reconstruction, trace: Trace, sequence: Sequence) -> bool:
    """Whether nothing at all is missing, so that matching the packets in order is certain.

    It is not enough that each packet is the next one expected: whole launches may be missing, and what
    follows looks the same. Known launches have to be there to the last; a program that repeats without end has
    to go on without a pause; a trace of which only the last packets were kept has to say that it lost none.
    """
    counts, log = reconstruction.counts, reconstruction.log
    if not len(log) or counts.lost or counts.spurious or counts.duplicated or counts.out_of_order:
        return False
    launches = sequence.repeats if sequence.launch_program is None else len(sequence.launch_program)
    if launches is None:
        start = np.minimum.reduceat(log.start_ns, np.unique(log.inference, return_index=True)[1])
        taken = np.diff(start)
        return bool(np.all(taken < _PAUSE * np.median(taken))) if len(taken) else True
    ends = int(log.inference[-1]) == launches - 1
    return ends and (trace.meta.lost_events == 0 if trace.meta.overwritten_events else int(log.inference[0]) == 0)


def find_first_launch(trace: Trace, program: Program, launches: Launches) -> tuple[int, int]:
    """Find where a trace of which only the last packets were kept begins among the launches.

    The search is by time where device and host share a clock (the last launch and the last packet then fit
    together), else by number of packets, with room for as many losses. Returns the first launch that the trace may
    hold, and how many packets of this and later launches were overwritten; 0 and 0 where nothing was.
    """
    if not trace.meta.overwritten_events or not len(trace) or not len(launches):
        return 0, 0
    selected = trace.meta.selected_kinds
    each = np.array(
        [
            2 * sum(selected is None or op.kind in selected for group in segment.groups for op in group.operations)
            for segment in program.programs
        ],
        np.int64,
    )
    sent = np.concatenate([[0], np.cumsum(each[launches.program])])
    room = 2 * max(program.period_ns, 1)
    first, last = int(trace.time_ns.min()), int(trace.time_ns.max())
    begun, ended = int(launches.submit_ns.min()), int(launches.submit_ns.max())
    lost, overwritten = trace.meta.lost_events or 0, trace.meta.overwritten_events
    counted = sent[-1] == overwritten + len(trace) + lost  # nothing else is missing
    exact = counted and not lost
    if trace.meta.wrap_bits is None and begun <= first and ended - room <= last <= ended + 16 * room:
        low = int(np.argmax(launches.submit_ns >= first - room))
        if exact:
            low = min(low, max(int(np.searchsorted(sent, overwritten, "right")) - 1, 0))
            return low, int(overwritten - sent[low])
        at = low + int(np.count_nonzero(launches.submit_ns[low:] < first))
        return low, int(sent[max(at - 1, low)] - sent[low])
    if counted and lost:  # of what was lost, as much before in proportion
        low = max(int(np.searchsorted(sent, overwritten, "right")) - 1, 0)
        before = overwritten + lost * overwritten // (overwritten + len(trace))
        return low, int(before - sent[low])
    wanted = max(2 * len(trace), len(trace) + lost)
    low = max(int(np.searchsorted(sent, sent[-1] - wanted, "right")) - 1, 0)
    return low, max(int(sent[-1] - sent[low]) - len(trace), 0) // 2


Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_LEAST_RATIO, _MOST_RATIO = 0.02, 0.1  # masked, of what was received: more than a tenth would be another trace
_LEAST_MASKED = 20  # below it a coverage has no meaning
_ONE_TYPE = 0.95  # of the losses: then only this type is masked
_ROUNDS = 5
_MOST_MASKED = 30_000  # packets of the part of a trace that totals are calibrated with
_MOST_HIDDEN = 0.4  # of the received ones: what is left has to be recognised
_FIRST = 25  # packets by which the numbers of inferences of two logs are compared


def certify(
    trace: Trace, reconstruction: Reconstruction, reconstruct: Callable[[Trace], Reconstruction], seed: int
) -> Certificate | None:
    """Mask events, reconstruct, and compare; ``None`` if there are too few events.

    ``reconstruct`` reconstructs any trace of the same program; ``seed`` determines the mask.
    """
    log = reconstruction.log
    event, _, edge = _received(log)
    lost = _LossPattern.of(log)
    masked = lost.mask(edge, np.random.default_rng(seed))
    if np.count_nonzero(masked) < _LEAST_MASKED:
        return None
    kept = np.ones(len(trace), np.bool_)
    kept[event[masked]] = False
    return compare_repair(log, reconstruct(_mask_packets(trace, kept)).log, kept, as_struck=lost.count > 0)


def repair_masked(
    trace: Trace, reconstruction: Reconstruction, reconstruct: Callable[[Trace], Reconstruction], seed: int
) -> list[MaskedRepair]:
    """Mask received events as others were lost, reconstruct, and find the errors of the durations; several times.

    The loss pattern of this trace, in order of time, is shifted and laid over what was received; where inferences are
    lost as a whole, by whole inferences. Of a long trace the first part is enough. Empty where nothing was lost or
    there is nothing to mask.
    """
    log = reconstruction.log
    events = np.concatenate([log.start_event, log.end_event])
    time = np.concatenate([log.start_ns, log.end_ns])
    lost = np.concatenate([log.start_how, log.end_how]) != How.MEASURED
    only = _LossPattern.of(log).only
    places = np.arange(len(time)) if only is None else int(only) * len(log) + np.arange(len(log))
    order = places[np.argsort(time[places], kind="stable")]
    _, launch, size = np.unique(log.inference[places % max(len(log), 1)], return_inverse=True, return_counts=True)
    whole = np.bincount(launch, lost[places], minlength=len(size)) == size
    step = int(np.median(size)) if whole.any() else 1
    random, repairs = np.random.default_rng(seed), []
    for _ in range(_ROUNDS if lost.any() and len(order) > _LEAST_MASKED else 0):
        hidden = np.zeros(len(time), np.bool_)
        hidden[order] = np.roll(lost[order], step * int(random.integers(1, max(len(order) // step, 2))))
        hidden &= ~lost & (events < _MOST_MASKED)
        most = round(_MOST_HIDDEN * min(int(np.count_nonzero(~lost)), _MOST_MASKED))
        if (count := np.count_nonzero(hidden)) > most:  # a part of the run without a break, that bursts stay whole
            struck = order[hidden[order]]
            begin = int(random.integers(0, count - most))
            hidden[struck[:begin]] = hidden[struck[begin + most :]] = False
        if np.count_nonzero(hidden) < _LEAST_MASKED:
            continue
        kept = np.arange(len(trace)) < _MOST_MASKED
        kept[events[hidden]] = False
        again = reconstruct(_mask_packets(trace, kept)).log
        received = _received(log)[0]
        again = _numbered_alike(log, again, received[kept[received]], kept)
        row = _matching_rows(again, log)
        known = (row >= 0) & ~log.inferred[row]
        error = (log.end_ns - log.start_ns)[row] - (again.end_ns - again.start_ns)
        repairs.append(MaskedRepair(again, np.where(known, error, 0).astype(np.float64), known & again.inferred))
    return repairs


def _received(log: OperationLog) -> tuple[Ints, Ints, Ints]:
    """Return packet, entry and type of the edges that were received, in order of arrival."""
    events = np.concatenate([log.start_event, log.end_event])
    entry = np.tile(np.arange(len(log)), 2)[events >= 0]
    edge = np.repeat([EventType.START, EventType.END], len(log))[events >= 0]
    order = np.argsort(events[events >= 0])
    return events[events >= 0][order], entry[order], edge[order]


def compare_repair(
    log: OperationLog, again: OperationLog, kept: Flags, *, as_struck: bool = True
) -> Certificate | None:
    """Compare the log of a thinned trace with that of the whole; ``None`` if no event of the log was lost.

    ``kept`` (bool) says of each packet of the whole trace whether it is in the thinned one. A loss before the first
    packet shifts all numbers of inferences, and does not count as an error.
    """
    event, entry, edge = _received(log)
    masked = ~kept[event]
    if not masked.any():
        return None
    again = _numbered_alike(log, again, event[~masked], kept)
    row = _matching_rows(log, again)
    here = row[entry]
    repaired = np.flatnonzero(masked & (here >= 0))
    start = edge[repaired] == EventType.START
    true = np.where(start, log.start_ns[entry[repaired]], log.end_ns[entry[repaired]])
    time, low, high = (
        np.where(start, s[here[repaired]], e[here[repaired]])
        for s, e in (
            (again.start_ns, again.end_ns),
            (again.start_low_ns, again.end_low_ns),
            (again.start_high_ns, again.end_high_ns),
        )
    )
    count = int(np.count_nonzero(masked))
    covered = int(np.count_nonzero((low <= true) & (true <= high)))
    left = np.flatnonzero(~masked)
    became = np.where(
        edge[left] == EventType.START, again.start_event[here[left]], again.end_event[here[left]]
    )  # of the packets that are left, in their new numbering
    same = (here[left] >= 0) & (became == (np.cumsum(kept) - 1)[event[left]])
    runs = int(np.count_nonzero(np.diff(np.concatenate([[False], masked]).astype(np.int8)) == 1))
    return Certificate(
        masked=count,
        matched=len(event),
        burst=count / max(runs, 1),
        as_struck=as_struck,
        recognised_ratio=float(same.mean()) if len(left) else 1.0,
        edge_error_ns=Percentiles.of(np.abs(time - true)),
        duration_error_ratio=_duration_error(log, again, row, np.unique(entry[masked])),
        coverage_ratio=covered / count,
        coverage_interval=wilson(covered, count),
    )


def _numbered_alike(log: OperationLog, again: OperationLog, left: Ints, kept: Flags) -> OperationLog:
    """Number inferences such that the first packets that both logs know are of the same one; ``left`` are packets."""
    where = (np.cumsum(kept) - 1)[left[:_FIRST]]
    shift = []
    for packet, now in zip(left[:_FIRST].tolist(), where.tolist(), strict=True):
        before, after = (
            each.inference[np.flatnonzero((each.start_event == number) | (each.end_event == number))]
            for each, number in ((log, packet), (again, now))
        )
        if len(before) and len(after):
            shift.append(int(before[0] - after[0]))
    by = int(np.median(shift)) if shift else 0
    return replace(again, inference=again.inference + by) if by else again


def _duration_error(log: OperationLog, again: OperationLog, row: Ints, touched: Ints) -> float:
    """Return the relative error of the durations of operations that were fully measured before."""
    whole = (log.start_how[touched] == How.MEASURED) & (log.end_how[touched] == How.MEASURED) & (row[touched] >= 0)
    touched = touched[whole]
    true = (log.end_ns - log.start_ns)[touched]
    repaired = (again.end_ns - again.start_ns)[row[touched]]
    return float(np.abs(repaired - true).sum() / max(int(true.sum()), 1))


def _matching_rows(log: OperationLog, again: OperationLog) -> Ints:
    """Return where each entry of one log is in another; -1 if it is missing."""
    if not len(again):
        return np.full(len(log), -1, np.int64)
    width = int(max(log.operation.max(initial=0), again.operation.max(initial=0))) + 1
    tall = int(max(log.program.max(initial=0), again.program.max(initial=0))) + 1
    here, there = ((each.inference * tall + each.program) * width + each.operation for each in (log, again))
    order = np.argsort(there, kind="stable")
    at = np.minimum(np.searchsorted(there[order], here), len(order) - 1)
    return np.where(there[order][at] == here, order[at], -1)


def _mask_packets(trace: Trace, kept: Flags) -> Trace:
    """Return a trace that lost more, and reports it if it reported losses before."""
    rank = np.concatenate([[0], np.cumsum(kept)])
    marks = rank[np.clip(trace.loss_after, 0, len(kept))]
    if len(marks):
        marks = np.concatenate([marks, rank[:-1][~kept]])
    return replace(
        trace,
        time_ns=trace.time_ns[kept],
        id=trace.id[kept],
        type=trace.type[kept],
        core=trace.core[kept],
        operation=trace.operation[kept],
        loss_after=np.unique(marks).astype(np.int64),
    )


@dataclass(frozen=True)
class _LossPattern:
    """How a trace lost events.

    Attributes:
        count: lost events.
        ratio: of all expected events.
        runs: int64, lengths of the runs.
        only: the only type that was lost; ``None``: both.
    """

    count: int
    ratio: float
    runs: Ints
    only: EventType | None

    @classmethod
    def of(cls, log: OperationLog) -> _LossPattern:
        """Derive it from the log, all cores together, in order of time."""
        time = np.concatenate([log.start_ns, log.end_ns])
        kind = np.repeat([EventType.START, EventType.END], len(log))
        lost = np.concatenate([log.start_how, log.end_how]) != How.MEASURED
        order = np.lexsort((kind, time))
        steps = np.diff(np.concatenate([[0], lost[order].astype(np.int8), [0]]))
        runs = np.flatnonzero(steps == -1) - np.flatnonzero(steps == 1)
        count = int(np.count_nonzero(lost))
        starts = int(np.count_nonzero(lost & (kind == EventType.START)))
        only = EventType.START if starts >= _ONE_TYPE * count else EventType.END
        either = count == 0 or (1 - _ONE_TYPE) * count < starts < _ONE_TYPE * count
        return cls(count, count / max(len(lost), 1), runs.astype(np.int64), None if either else only)

    def mask(self, edge: npt.NDArray[np.int64], random: np.random.Generator) -> Flags:
        """Draw the received events to mask; ``edge`` is the type of each event. First and last are never masked."""
        masked = np.zeros(len(edge), np.bool_)
        may = np.flatnonzero(edge == self.only) if self.only is not None else np.arange(len(edge))
        may = may[(may > 0) & (may < len(edge) - 1)]
        wanted = round(len(edge) * min(max(self.ratio, _LEAST_RATIO), _MOST_RATIO)) if self.count else len(edge) // 10
        wanted = min(wanted, len(may) // 2)
        if wanted <= 0:
            return masked
        most = max(wanted // 4, 1)  # one long loss is not the whole mask
        lengths = np.minimum(random.choice(self.runs, wanted) if self.count else np.ones(wanted, np.int64), most)
        lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), wanted)) + 1]
        begins = random.choice(len(may), len(lengths), replace=False)
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
            masked[may[begin : begin + length]] = True
        return masked
