"""What is wrong with a trace, said before and after it is held against its program; nothing here is fatal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.program import Launches, Program
from framefit.errors import InputError
from framefit.profiling.sequence import Fate, Rebuilt, Sequence

__all__ = ["covered", "doubts", "is_complete", "readable"]


_MOST_NS = 1 << 61  # 73 years: beyond it differences of times overflow
_FEW_MATCHED = 0.5
_PAUSE = 1.5  # cycles: an inference that is missing leaves a pause of two
_OF_ANOTHER = 0.02  # of the packets, where they match by chance only


def readable(trace: Trace, sequence: Sequence) -> tuple[Trace, list[str]]:
    """The packets that can be looked at, and what is wrong with the others and with the rest.

    Args:
        trace: as it came.
        sequence: what it will be held against, made with its kinds.
    """
    notes: list[str] = []
    if not len(trace):
        return trace, ["the trace holds no events"]

    def note(wrong: npt.NDArray[np.bool_], what: str) -> None:
        if count := int(np.count_nonzero(wrong)):
            notes.append(f"{count} of {len(trace)} packets {what}")

    note((trace.id < 0) | (trace.id >= len(trace.kinds)), "have an id that the trace does not name: ignored")
    note(trace.type > 1, "are neither START nor END: ignored")
    note(~np.isin(trace.core, sequence.cores), "come from a core that is no unit of the program: ignored")
    told = np.unique([op.kind for op in sequence.operations])
    strange = [index for index, kind in enumerate(trace.kinds) if kind not in told]
    note(
        np.isin(trace.id, strange),
        f"are of kinds that the program does not have ({_few(trace.kinds, strange)}): ignored",
    )
    recorded = sequence.recorded(trace.meta.selected_kinds)
    if not recorded.all():
        kinds = sorted({op.kind for op, one in zip(sequence.operations, recorded, strict=True) if not one})
        notes.append(
            f"{', '.join(kinds)}: not selected for recording; {np.count_nonzero(~recorded)} of {len(recorded)} "
            "operations of the program are neither in the profile nor counted as lost"
        )
    if trace.meta.wrap_bits is not None:
        period = (1 << trace.meta.wrap_bits) * trace.meta.resolution_ns
        note((trace.time_ns < 0) | (trace.time_ns >= period), f"have times beyond {trace.meta.wrap_bits} bits")
    if np.any((trace.loss_after < 0) | (trace.loss_after > len(trace))):
        notes.append("some losses are reported beyond the end of the trace")
    damaged = (trace.time_ns > _MOST_NS) | (trace.time_ns < -_MOST_NS)
    note(damaged, "have impossible times: left out")
    return (_kept(trace, ~damaged) if damaged.any() else trace), notes


def _few(names: tuple[str, ...], which: list[int]) -> str:
    return ", ".join(repr(names[index]) for index in which[:3]) + (", ..." if len(which) > 3 else "")


def _kept(trace: Trace, kept: npt.NDArray[np.bool_]) -> Trace:
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


def doubts(rebuilt: Rebuilt, trace: Trace, program: Program, where: str) -> list[str]:
    """Whether this was the trace's program at all, and what became of packets that are not as they should be.

    Args:
        rebuilt: the trace held against the program.
        trace: for its kinds.
        program: for its kinds.
        where: the trace's name.

    Raises:
        InputError: no packet is the program's.
    """
    counts, size = rebuilt.counts, len(rebuilt.fate)
    matched = int(np.count_nonzero(rebuilt.fate == Fate.MATCHED))
    if not size:
        return []
    if matched <= _OF_ANOTHER * size:
        own = dict.fromkeys(op.kind for one in program.programs for group in one.groups for op in group.operations)
        raise InputError(
            f"{'none' if not matched else f'only {matched}'} of {size} events fit the program; the trace's kinds are "
            f"{_few(trace.kinds, list(range(len(trace.kinds)))) or 'none'}, the program's "
            f"{_few(tuple(own), list(range(len(own))))}",
            where=where,
            remedy="name the program that was executed: --program PROGRAM",
        )
    notes = []
    if matched < _FEW_MATCHED * size:
        notes.append(
            f"only {100 * matched / size:.0f} % of the events fit the program: is it the one that was executed?"
        )
    if counts.out_of_order:
        notes.append(f"{counts.out_of_order} packets arrived after later ones of their core; they were put in order")
    if counts.spurious:
        notes.append(f"{counts.spurious} packets are in nobody's program")
    if counts.duplicated:
        notes.append(f"{counts.duplicated} packets came twice")
    return notes


def is_complete(rebuilt: Rebuilt, trace: Trace, sequence: Sequence) -> bool:
    """Whether nothing at all is missing, so that matching the packets in order is certain.

    That each packet is the next one expected is not enough: whole launches may be missing, and what
    follows looks the same. Known launches have to be there to the last; a program that repeats without end has
    to go on without a pause; a trace of which only the last packets were kept has to say that it lost none.

    Args:
        rebuilt: the packets matched in order.
        trace: as it came.
        sequence: what it was held against.
    """
    counts, log = rebuilt.counts, rebuilt.log
    if not len(log) or counts.lost or counts.spurious or counts.duplicated or counts.out_of_order:
        return False
    launches = sequence.repeats if sequence.launch_program is None else len(sequence.launch_program)
    if launches is None:
        start = np.minimum.reduceat(log.start_ns, np.unique(log.inference, return_index=True)[1])
        taken = np.diff(start)
        return bool(np.all(taken < _PAUSE * np.median(taken))) if len(taken) else True
    ends = int(log.inference[-1]) == launches - 1
    return ends and (trace.meta.lost_events == 0 if trace.meta.overwritten_events else int(log.inference[0]) == 0)


def covered(trace: Trace, program: Program, launches: Launches) -> tuple[int, int]:
    """Where a trace begins among the launches that kept only its last packets.

    By time where device and host share a clock (the last launch and the last packet then fit
    together), else by number of packets, with room for as many losses.

    Returns:
        The first launch that it may hold, and how many packets of this one and later ones were
        overwritten; 0 and 0 where nothing was.
    """
    if not trace.meta.overwritten_events or not len(trace) or not len(launches):
        return 0, 0
    selected = trace.meta.selected_kinds
    each = np.array(
        [
            2 * sum(selected is None or op.kind in selected for group in one.groups for op in group.operations)
            for one in program.programs
        ],
        np.int64,
    )
    sent = np.concatenate([[0], np.cumsum(each[launches.program])])
    room = 2 * max(program.window_ns, 1)
    first, last = int(trace.time_ns.min()), int(trace.time_ns.max())
    begun, ended = int(launches.submit_ns.min()), int(launches.submit_ns.max())
    if trace.meta.wrap_bits is None and begun <= first and ended - room <= last <= ended + 16 * room:
        low = int(np.argmax(launches.submit_ns >= first - room))
        at = low + int(np.count_nonzero(launches.submit_ns[low:] < first))
        return low, int(sent[max(at - 1, low)] - sent[low])
    wanted = max(2 * len(trace), len(trace) + (trace.meta.lost_events or 0))
    low = max(int(np.searchsorted(sent, sent[-1] - wanted, "right")) - 1, 0)
    return low, max(int(sent[-1] - sent[low]) - len(trace), 0) // 2
