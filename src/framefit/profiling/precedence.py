"""What must have ended before what starts, within a launch and across launches."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.profiling.sequence import Sequence

__all__ = ["Precedence", "nominal_times"]

Ints = npt.NDArray[np.int64]

NOT_BOUND = -2
"""No operation of this core has to have ended."""
EARLIER = -1
"""The core's latest operation of an earlier launch has to have ended."""


class Precedence(NamedTuple):
    """Who waits for whom. Operations are counted within their program, cores by position.

    Attributes:
        first: int64, where each program begins in the arrays of one entry an operation.
        order: int64, operations of each program such that each comes after what it waits for.
        core: int64, of each operation.
        before: int64, operations x cores: the latest operation of the core that has to have ended
            because it runs on the same unit or on one that excludes it; ``EARLIER``, ``NOT_BOUND``.
        last: int64, programs x cores: the core's last operation in the program, -1 for none.
        needs_first, needs: int64, the operations of the same program that are named by ``after``.
    """

    first: Ints
    order: Ints
    core: Ints
    before: Ints
    last: Ints
    needs_first: Ints
    needs: Ints

    @classmethod
    def of(cls, sequence: Sequence) -> tuple[Precedence, int]:
        """From ``after``, the units' own order, and what excludes what: program order decides who goes first.

        Returns:
            The precedence, and how many entries of ``after`` contradict the units' order and were left out.
        """
        total, cores = len(sequence.kind), len(sequence.cores)
        core = np.searchsorted(sequence.cores, sequence.core).astype(np.int64)
        before = np.full((total, cores), NOT_BOUND, np.int64)
        last = np.full((len(sequence.first) - 1, cores), -1, np.int64)
        order = np.empty(total, np.int64)
        needs: list[list[int]] = []
        dropped = 0
        for program, (low, high) in enumerate(zip(sequence.first[:-1], sequence.first[1:], strict=True)):
            latest = np.full(cores, EARLIER, np.int64)
            for op in range(low, high):
                bound = sequence.exclusive[core[op]]
                before[op, bound] = latest[bound]
                latest[core[op]] = op - low
            last[program] = latest
            wants = [
                {int(one) - int(low) for one in sequence.after[sequence.after_first[op] : sequence.after_first[op + 1]]}
                for op in range(low, high)
            ]
            placed, left_out = _ordered(before[low:high], wants)
            order[low:high] = placed
            _reduce(before[low:high], wants, placed, core[low:high])
            dropped += left_out
            needs.extend(sorted(want) for want in wants)
        counts = [len(want) for want in needs]
        flat = np.array([one for want in needs for one in want], np.int64)
        found = cls(
            first=sequence.first.astype(np.int64),
            order=order,
            core=core,
            before=before,
            last=last,
            needs_first=np.cumsum([0, *counts], dtype=np.int64),
            needs=flat,
        )
        return found, dropped


def _ordered(before: Ints, wants: list[set[int]]) -> tuple[list[int], int]:
    """Operations so that each comes after what it waits for; wishes in a circle are taken out of ``wants``."""
    count, dropped = len(before), 0
    waits = [{int(one) for one in before[op] if one >= 0} | wants[op] for op in range(count)]
    heirs: list[list[int]] = [[] for _ in range(count)]
    for op, ones in enumerate(waits):
        for one in ones:
            heirs[one].append(op)
    left = [len(ones) for ones in waits]
    free = [op for op in range(count) if not left[op]]
    heapq.heapify(free)
    placed: list[int] = []
    stuck = set(range(count))
    while stuck:
        if not free:  # a circle: the first operation no longer waits for later ones
            op = min(stuck)
            later = {one for one in wants[op] if one in stuck}
            dropped += len(later)
            wants[op] -= later
            for one in later:
                heirs[one].remove(op)
            free.append(op)
        op = heapq.heappop(free)
        stuck.discard(op)
        placed.append(op)
        for heir in heirs[op]:
            left[heir] -= 1
            if not left[heir] and heir in stuck:
                heapq.heappush(free, heir)
    return placed, dropped


def _reduce(before: Ints, wants: list[set[int]], placed: list[int], core: Ints) -> None:
    """Take out, in place, what another predecessor has waited for: it says nothing more.

    Nor may it be asked twice: the maximum of two variables that are one would lie 0.56 deviations above it, for
    normal variables are taken as independent.

    Args:
        before: of one program's operations; see :class:`Precedence`.
        wants: what each waits for beside that.
        placed: an order in which each comes after what it waits for.
        core: of each operation; those of one core wait for each other, so the latest one stands for all.
    """
    reached = np.full(before.shape, NOT_BOUND, np.int64)  # of each core, the latest that has ended before it starts
    for op in placed:
        bound = before[op]
        named = {int(one) for one in bound if one >= 0} | wants[op]
        behind = reached[sorted(named)].max(axis=0, initial=NOT_BOUND)
        wants[op] = {one for one in wants[op] if one > behind[core[one]] and one != bound[core[one]]}
        reached[op] = np.maximum(behind, bound)
        for one in wants[op]:
            reached[op, core[one]] = max(reached[op, core[one]], one)
        bound[bound <= behind] = NOT_BOUND


@njit(cache=True, nogil=True)
def nominal_times(precedence: Any, launches: Any, ready_ns: Any, duration_ns: Any, gap_ns: Any) -> Any:
    """When operations would start and end if each took what is expected.

    Args:
        precedence: of the program.
        launches: int64, the program of each launch.
        ready_ns: float64, when the host submitted each launch.
        duration_ns: float64, of each operation of the programs.
        gap_ns: float64, what each waits after all that it waits for has ended.

    Returns:
        float64: starts, ends, launch by launch in program order.
    """
    total = 0
    for program in launches:
        total += precedence.first[program + 1] - precedence.first[program]
    start, end = np.zeros(total), np.zeros(total)
    free = np.zeros(precedence.before.shape[1])
    base = 0
    for launch in range(len(launches)):
        program = launches[launch]
        first, beyond = precedence.first[program], precedence.first[program + 1]
        for at in range(first, beyond):
            op = first + precedence.order[at]
            time = ready_ns[launch]
            for core in range(len(free)):
                if precedence.before[op, core] == -1:
                    time = max(time, free[core])
                elif precedence.before[op, core] >= 0:
                    time = max(time, end[base + precedence.before[op, core]])
            for one in range(precedence.needs_first[op], precedence.needs_first[op + 1]):
                time = max(time, end[base + precedence.needs[one]])
            here = base + op - first
            start[here] = time + gap_ns[op]
            end[here] = start[here] + duration_ns[op]
        for core in range(len(free)):
            if precedence.last[program, core] >= 0:
                free[core] = end[base + precedence.last[program, core]]
        base += beyond - first
    return start, end
