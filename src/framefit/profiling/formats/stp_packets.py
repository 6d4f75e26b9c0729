"""The compiled loop over the nibbles of a system trace (STPv2), for :mod:`framefit.profiling.formats.stp`.

Sources: MIPI Alliance, "Specification for System Trace Protocol", version 2.1 (the opcodes and their
payloads are those of "Arm CoreSight STM-500 Technical Reference Manual", section 2.4), as two public
decoders read them: Zephyr's ``subsys/debug/mipi_stp_decoder.c`` and stm-rs's ``stp_decoder.rs``.

A byte's low nibble comes first. Numbers are sent from their highest nibble on, unless VERSION says
otherwise. A time stamp is a nibble that tells its length (0 to 12; 13: 14, 14: 16) and the low
nibbles that have changed since the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["COUNTS", "LOSS_DAMAGE", "LOSS_GLOBAL", "LOSS_MASTER", "UNTIMED", "async_ends", "decode"]


_ASYNC = 21  # nibbles of ones, then one of zeros
UNTIMED = 1
"""Flag of a data packet that carries no time stamp of its own."""
MARKED = 2
"""Flag of a data packet with a marker."""
LOSS_MASTER, LOSS_GLOBAL, LOSS_DAMAGE = 0, 1, 2
"""Why something is missing: MERR (a source overflowed), GERR (the trace unit did), or nibbles that make no sense."""
COUNTS = ("packets", "losses", "damaged", "frequencies", "unusable_times", "flags")
"""What :func:`decode` counts."""
_NO_TIME, _DELTA, _NATURAL, _GRAY = 0, 2, 3, 4  # of VERSION


@njit(cache=True)
def async_ends(raw: Any) -> Any:
    """Nibble numbers right after each ASYNC."""
    size = 2 * len(raw)
    ends = np.empty(size // (_ASYNC + 1) + 1, np.int64)
    found = ones = 0
    for at in range(size):
        nibble = (raw[at >> 1] >> (4 * (at & 1))) & 15
        if nibble == 15:
            ones += 1
            continue
        if nibble == 0 and ones >= _ASYNC:
            ends[found] = at + 1
            found += 1
        ones = 0
    return ends[:found]


@njit(cache=True)
def _number(raw: Any, at: Any, count: Any, little: Any) -> Any:
    """``count`` nibbles as a number; those above 64 bits are shifted out."""
    value = np.uint64(0)
    for step in range(count):
        place = at + (count - 1 - step if little else step)
        nibble = (raw[place >> 1] >> (4 * (place & 1))) & 15
        value = (value << np.uint64(4)) | np.uint64(nibble)
    return value


@njit(cache=True)
def _binary(gray: Any) -> Any:
    """The number that a Gray code stands for."""
    for shift in (1, 2, 4, 8, 16, 32):
        gray ^= gray >> np.uint64(shift)
    return gray


@njit(cache=True)
def _form(raw: Any, at: Any, size: Any) -> Any:
    """Opcode at a nibble: one to four nibbles as a number, its length, nibbles of payload, and time stamp or not.

    A payload of -1 has a length of its own (USER), of -2 is a time (TIME); an opcode of -1 is none.
    """
    one = (raw[at >> 1] >> (4 * (at & 1))) & 15
    if one < 15:
        payload = (0, 2, 2, 2, 2, 4, 8, 16, 2, 4, 8, 16, 1, 1, 0)[one]
        return np.int64(one), 1, payload, 8 <= one < 12 or one >= 13
    if at + 1 >= size:
        return np.int64(-1), 1, 0, False
    two = (raw[(at + 1) >> 1] >> (4 * ((at + 1) & 1))) & 15
    if two == 15:
        return np.int64(-1), 2, 0, False
    if two:
        payload = (0, 4, 2, 4, 2, 4, 8, 16, 2, 4, 8, 16, 1, 1, 0)[two]
        return np.int64(0xF0 + two), 2, payload, 4 <= two < 8 or two == 12
    if at + 2 >= size:
        return np.int64(-1), 2, 0, False
    three = (raw[(at + 2) >> 1] >> (4 * ((at + 2) & 1))) & 15
    if three < 12:
        payload = (1, 0, -1, -1, -2, -2, 2, 2, 8, 8, 2, 2)[three]
        return np.int64(0xF00 + three), 3, payload, three % 2 == 1
    if three == 15 and at + 3 < size:
        four = (raw[(at + 3) >> 1] >> (4 * ((at + 3) & 1))) & 15
        if four < 2:
            return np.int64(0xF0F0 + four), 4, 10, four == 1
    return np.int64(-1), 3, 0, False


@njit(cache=True)
def _length(raw: Any, at: Any, size: Any) -> Any:
    """Nibbles of the time stamp whose length is told at ``at``; -1: none such, -2: the stream ends here."""
    if at >= size:
        return -2
    told = (raw[at >> 1] >> (4 * (at & 1))) & 15
    if told == 15:
        return -1
    return told if told < 13 else 14 if told == 13 else 16


@njit(cache=True)
def decode(
    raw: Any,
    syncs: Any,
    store: Any,
    master: Any,
    channel: Any,
    payload: Any,
    ticks: Any,
    flags: Any,
    loss: Any,
    hz: Any,
) -> Any:
    """Data packets of a stream, and what was lost between them.

    Args:
        raw: uint8, the stream.
        syncs: of :func:`async_ends`; nibbles before the first one are skipped.
        store: whether the arrays are filled; else packets, losses and frequencies are only counted.
        master: int32,
        channel: int32,
        payload: uint64,
        ticks: uint64, the latest time stamp,
        flags: uint8, of each data packet.
        loss: int64, a row each: number of data packets before, why, master.
        hz: int64, a row each: number of data packets before, ticks a second.

    Returns:
        int64, :data:`COUNTS`.
    """
    size = 2 * len(raw)
    counts = np.zeros(6, np.int64)
    packets = losses = frequencies = 0
    source = np.int64(0)
    port = np.int64(0)
    kind = _NATURAL
    little = False
    last = np.uint64(0)  # as sent, a Gray code or a number
    now = np.uint64(0)
    timed = False
    sync = 0
    at = syncs[0] if len(syncs) else size
    while at < size:
        while sync < len(syncs) and syncs[sync] <= at:
            sync += 1
        until = syncs[sync] - (_ASYNC + 1) if sync < len(syncs) else size
        if at >= until:  # this is the next ASYNC
            at = syncs[sync] if sync < len(syncs) else size
            continue
        operation, length, nibbles, stamped = _form(raw, at, until)
        body = at + length
        good = operation >= 0
        if nibbles == -1:
            good = good and body < until
            if good:
                nibbles = ((raw[body >> 1] >> (4 * (body & 1))) & 15) + 1
                body += 1
        elif nibbles == -2:
            span = _length(raw, body + 2, until)
            good = good and span >= 0
            nibbles = 3 + max(span, 0)
        if operation == 0xF00 and body < until and (raw[body >> 1] >> (4 * (body & 1))) & 8:
            nibbles = 3
        end = body + nibbles
        span = 0
        if good and stamped:
            if kind == _NO_TIME:
                end += 2
            else:
                span = _length(raw, end, until)
                good = span >= 0
                end += 1 + max(span, 0)
        if not good or end > until:
            if until < size or (operation < 0 and length > 1):  # else the stream was cut off here
                if store:
                    loss[losses, 0], loss[losses, 1], loss[losses, 2] = packets, LOSS_DAMAGE, -1
                losses += 1
                counts[2] += 1
            timed = False
            at = until if until == size else syncs[sync]
            continue
        value = _number(raw, body, nibbles, little and nibbles > 1 and operation != 0xF00)
        if stamped:
            if kind == _NO_TIME:
                counts[4] += 1
            else:
                part = _number(raw, end - span, span, little)
                if kind == _DELTA:
                    now += part
                else:
                    mask = np.uint64(0xFFFFFFFFFFFFFFFF)
                    if span < 16:
                        mask = (np.uint64(1) << np.uint64(4 * span)) - np.uint64(1)
                    last = (last & ~mask) | part
                    now = _binary(last) if kind == _GRAY else last
                timed = True
        if operation == 0x1 or operation == 0xF1:
            source = (source & ~np.int64(255)) | np.int64(value) if operation == 0x1 else np.int64(value)
            port = np.int64(0)
        elif operation == 0x3:
            port = (port & ~np.int64(255)) | np.int64(value)
        elif operation == 0xF3:
            port = np.int64(value)
        elif operation == 0x2 or operation == 0xF2:
            if store:
                loss[losses, 0] = packets
                loss[losses, 1] = LOSS_MASTER if operation == 0x2 else LOSS_GLOBAL
                loss[losses, 2] = source if operation == 0x2 else -1
            losses += 1
            port = np.int64(0)
            if operation == 0xF2:
                source = np.int64(0)
        elif operation == 0xF00:
            first = (raw[body >> 1] >> (4 * (body & 1))) & 15
            kind = first & 7
            little = nibbles == 3 and ((raw[(body + 1) >> 1] >> (4 * ((body + 1) & 1))) & 8) != 0
            source = port = np.int64(0)
            if kind == 1:
                kind = _NO_TIME
            if kind > _GRAY:  # of a later version: what follows cannot be understood
                if store:
                    loss[losses, 0], loss[losses, 1], loss[losses, 2] = packets, LOSS_DAMAGE, -1
                losses += 1
                counts[2] += 1
                kind, end = _NATURAL, syncs[sync] if sync < len(syncs) else size
        elif operation == 0xF08 or operation == 0xF09 or operation == 0xF0F0 or operation == 0xF0F1:
            if store:
                hz[frequencies, 0], hz[frequencies, 1] = packets, np.int64(value)
            frequencies += 1
        elif operation == 0xE or operation == 0xFE:
            counts[5] += 1
        elif 0x4 <= operation <= 0xD or 0xF4 <= operation <= 0xFD:
            if store:
                master[packets], channel[packets] = source, port
                payload[packets], ticks[packets] = value, now
                own = stamped and timed
                marked = 8 <= operation < 12 or operation == 13 or 0xF8 <= operation < 0xFC or operation == 0xFD
                flags[packets] = (0 if own else UNTIMED) | (MARKED if marked else 0)
            packets += 1
        at = end
    counts[0], counts[1], counts[3] = packets, losses, frequencies
    return counts
