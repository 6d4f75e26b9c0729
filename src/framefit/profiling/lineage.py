"""What the assignments that are still possible have in common: their matches lead back to earlier ones.

Each row of ``nodes`` is a match: the packet's token, launch, place, and the row of the match before (-1:
none, or settled long ago). Assignments end with a row, and share all rows before the one where they part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["agreed", "compacted", "matches_of", "path_of"]

_NODE = 10  # column of an assignment, see framefit.profiling.chain


@njit(cache=True, nogil=True, error_model="numpy")
def agreed(beam: Any, size: Any, nodes: Any) -> Any:
    """The latest match that all assignments have in common; -1: none."""
    live = np.empty(size, np.int64)
    for row in range(size):
        live[row] = np.int64(beam[row, _NODE])
    while True:
        low, high = live.min(), live.max()
        if low == high or low < 0:
            return max(low, -1) if low == high else -1
        for row in range(size):
            if live[row] == high:
                live[row] = nodes[high, 3]


@njit(cache=True, nogil=True, error_model="numpy")
def path_of(nodes: Any, node: Any) -> Any:
    """Rows of ``nodes`` from the first match to ``node``."""
    path = np.empty(node + 1, np.int64)  # matches come after those that they follow
    begin = node + 1
    while node >= 0:
        begin -= 1
        path[begin] = node
        node = nodes[node, 3]
    return path[begin:]


@njit(cache=True, nogil=True, error_model="numpy")
def matches_of(nodes: Any, path: Any, token: Any, first: Any, programs: Any, times: Any, marks: Any) -> Any:
    """What :class:`framefit.profiling.estimates.Match` says of each match.

    Args:
        nodes: all matches.
        path: rows of them.
        token: of the first packet in
        times: float64,
        marks: bool, of the packets.
        first: int64, where each program's events begin.
        programs: int64, of the launches; empty: the first one repeats.

    Returns:
        int64 packets, launches and events, float64 times, bool marks.
    """
    count = len(path)
    packet, launch, event = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    time, marked = np.empty(count), np.empty(count, np.bool_)
    for at in range(count):
        row = path[at]
        packet[at], launch[at] = nodes[row, 0] - token, nodes[row, 1]
        event[at] = nodes[row, 2] + (first[programs[launch[at]]] if len(programs) > 0 else first[0])
        time[at], marked[at] = times[packet[at]], marks[packet[at]]
    return packet, launch, event, time, marked


@njit(cache=True, nogil=True, error_model="numpy")
def compacted(beam: Any, size: Any, nodes: Any, used: Any) -> Any:
    """Drop the matches that no assignment contains; how many rows are left."""
    kept = np.zeros(used, np.bool_)
    for row in range(size):
        at = np.int64(beam[row, _NODE])
        while at >= 0 and not kept[at]:
            kept[at] = True
            at = nodes[at, 3]
    rank = np.empty(used, np.int64)
    count = 0
    for old in range(used):
        rank[old] = count
        if kept[old]:
            for column in range(4):
                nodes[count, column] = nodes[old, column]
            if nodes[count, 3] >= 0:
                nodes[count, 3] = rank[nodes[count, 3]]
            count += 1
    for row in range(size):
        if beam[row, _NODE] >= 0:
            beam[row, _NODE] = rank[np.int64(beam[row, _NODE])]
    return count
