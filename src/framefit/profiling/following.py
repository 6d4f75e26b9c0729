"""The compiled loop that follows a row of expected packets; :mod:`framefit.profiling.matching` says how."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["follow"]

_GAP = 4
"""Cost of a gap beside the packets lost in it, one each: three short gaps are dearer than one of ten."""
_STRANGE = 16
"""Cost of a packet that nobody sent: devices lose packets often, and make them up hardly ever."""
_AT_SIGHT = 3
"""Packets that have to agree at sight for no other place to be tried."""
_DROPPED = 2
"""Packets in a row that may be tried as strangers."""
_UNDONE = 3
"""Packets already placed that may be taken for strangers after all,"""
_TAKEN_BACK = 16
"""and the cost of each: a place ahead of the truth costs the rest of an inference, if it is kept."""
_BEGIN = 8
"""Times the look-ahead that decides where in the program a trace begins: a mistake there shifts all of it."""


@njit(cache=True)
def _nearest(symbol: Any, expected: Any, place: Any, end: Any) -> Any:
    """The first place from ``place`` on, before ``end``, where the symbol is expected; -1: none."""
    size = len(expected)
    at = place % size
    for here in range(place, end):
        if expected[at] == symbol:
            return here
        at += 1
        if at == size:
            at = 0
    return -1


@njit(cache=True)
def _cost(symbols: Any, first: Any, last: Any, expected: Any, place: Any, limit: Any, reach: Any, bound: Any) -> Any:
    """What it costs to explain packets ``first`` to ``last`` - 1 from ``place`` on; at ``bound`` it gives up."""
    cost = 0
    for packet in range(first, last):
        here = _nearest(symbols[packet], expected, place, min(place + reach, limit))
        skipped = here - place
        if here >= 0 and _GAP + skipped > _STRANGE and packet + 1 < last:  # a stranger, if the next one fits here
            fits = _nearest(symbols[packet + 1], expected, place, min(place + _STRANGE - _GAP, limit))
            if fits >= 0 and fits - place < skipped // 2:
                here = -1
        if here < 0:
            cost += _STRANGE
        else:
            if skipped > 0:
                cost += _GAP + skipped
            place = here + 1
        if cost >= bound:
            break
    return cost


@njit(cache=True)
def _best(
    symbols: Any,
    packet: Any,
    last: Any,
    expected: Any,
    place: Any,
    limit: Any,
    span: Any,
    reach: Any,
    began: Any,
    paid: Any,
    bound: Any,
) -> Any:
    """The least cost below ``bound`` of having ``packet`` within ``span`` from ``place`` on, and where; -1: none."""
    found = -1
    here = place
    while True:
        here = _nearest(symbols[packet], expected, here, min(place + span, limit))
        if here < 0:
            break
        cost = paid
        if here > place:
            cost += _GAP + (here - place if began else 0)
        if cost >= bound and began:
            break
        if cost < bound:
            cost += _cost(symbols, packet + 1, last, expected, here + 1, limit, reach, bound - cost)
        if cost < bound:
            bound, found = cost, here
        here += 1
    return bound, found


@njit(cache=True)
def _matched_before(found: Any, packet: Any) -> Any:
    """Where the latest packet before ``packet`` was found; -1: none was."""
    for earlier in range(packet - 1, -1, -1):
        if found[earlier] >= 0:
            return found[earlier]
    return -1


@njit(cache=True)
def _agrees(symbols: Any, packet: Any, expected: Any, place: Any, limit: Any) -> Any:
    """Whether this and the next packets are the very ones that are expected."""
    size = len(expected)
    for step in range(min(_AT_SIGHT, len(symbols) - packet)):
        if place + step >= limit or expected[(place + step) % size] != symbols[packet + step]:
            return False
    return True


@njit(cache=True)
def follow(symbols: Any, expected: Any, limit: Any, reach: Any, look_ahead: Any, begins_within: Any) -> Any:
    """Where each packet is expected.

    Args:
        symbols: int64, packets of one core in order of time.
        expected: int64, the row, which repeats up to ``limit``.
        limit: expected packets in all.
        reach: of one gap.
        look_ahead: packets that a place has to explain; 0: the nearest place is taken.
        begins_within: expected packets that may lie before the trace began, which costs no more
            than a gap of no length.

    Returns:
        int64, number of the expected packet for each symbol, -1 for none, ascending otherwise.
    """
    found = np.full(len(symbols), -1, np.int64)
    place, packet = 0, 0
    began = begins_within <= 0
    while packet < len(symbols):
        if began and _agrees(symbols, packet, expected, place, limit):
            found[packet] = place
            place, packet = place + 1, packet + 1
            continue
        span = reach if began else max(begins_within, reach)
        if look_ahead == 0:
            here = _nearest(symbols[packet], expected, place, min(place + span, limit))
            if here >= 0:
                found[packet] = here
                place = here + 1
            began = True
            packet += 1
            continue
        last = min(packet + look_ahead * (1 if began else _BEGIN), len(symbols))
        best, best_place, best_dropped, best_undone = _STRANGE * (last - packet) + 1, -1, 0, 0
        for dropped in range(min(_DROPPED + 1, last - packet)):
            paid = dropped * _STRANGE
            best, here = _best(symbols, packet + dropped, last, expected, place, limit, span, reach, began, paid, best)
            if here >= 0:
                best_place, best_dropped = here, dropped
        undone, latest = 0, packet - 1
        while undone < _UNDONE and latest >= 0:  # ahead of the truth: that would cost a whole inference
            if found[latest] >= 0:
                undone += 1
                back = _matched_before(found, latest) + 1
                paid = undone * _TAKEN_BACK
                best, here = _best(symbols, packet, last, expected, back, limit, place - back, reach, 1, paid, best)
                if here >= 0:
                    best_place, best_dropped, best_undone = here, 0, undone
            latest -= 1
        if best_place < 0:
            packet += 1
            continue
        latest = packet - 1
        while best_undone > 0:
            best_undone -= found[latest] >= 0
            found[latest] = -1
            latest -= 1
        began = True
        packet += best_dropped
        found[packet] = best_place
        place, packet = best_place + 1, packet + 1
    return found
