"""Reads system traces in MIPI's System Trace Protocol, version 2 (STPv2), as Arm's CoreSight STM writes them.

The software that writes to the trace unit decides what the fields mean: :class:`StpMapping` is that record. By
default a master is a core, and a data packet an event: its lowest bit is the type (0 START, 1 END), the bits above
it are the event id. A packet has the time of its own time stamp, or of the latest one.

Sources: MIPI Alliance, "Specification for System Trace Protocol", version 2.1 (the opcodes and their
payloads are those of "Arm CoreSight STM-500 Technical Reference Manual", section 2.4), as two public
decoders read them: Zephyr's ``subsys/debug/mipi_stp_decoder.c`` and stm-rs's ``stp_decoder.rs``.

A byte's low nibble comes first. Numbers are sent from their highest nibble on, unless VERSION says
otherwise. A time stamp is a nibble that tells its length (0 to 12; 13: 14, 14: 16) and the low
nibbles that have changed since the previous stamp.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import Trace, TraceMeta
from framefit.core.files import Record
from framefit.errors import InputError

_SEARCHED = 1 << 16  # bytes in which a stream's first ASYNC is looked for; an STM sends one every 4 KiB at most
_MOST_PACKETS = 1 << 26
_MOST_NS = 1 << 62
_ASYNC = 21  # nibbles of ones, then one of zeros
_UNTIMED = 1
"""Flag of a data packet that carries no time stamp of its own."""
_MARKED = 2
"""Flag of a data packet with a marker."""
_LOSS_MASTER, _LOSS_GLOBAL, _LOSS_DAMAGE = 0, 1, 2
"""Why something is missing: MERR (a source overflowed), GERR (the trace unit did), or the stream is damaged."""
_COUNTS = ("packets", "losses", "damaged", "frequencies", "unusable_times", "flags")
"""What :func:`_decode` counts."""
_NO_TIME, _DELTA, _NATURAL, _GRAY = 0, 2, 3, 4  # of VERSION
Bools = npt.NDArray[np.bool_]


class StpMapping(Record, kw_only=True):
    """Meaning of the fields of a system trace.

    Attributes:
        core: "master" or "channel", the number that identifies the core.
        first_core: number of the master, or channel, that is core 0.
        id: "payload" or "channel", which contains the event id.
        id_shift, id_bits: bits of the payload with the event id.
        type_bit: bit of the payload that is set in an END; "marker": packets with a marker are ENDs.
        operation_shift, operation_bits: bits of the payload with the operation's number; 0 bits: there is none.
        kinds: names of event ids; ids beyond them are called "event_NUMBER".
        frequency_hz: of time stamps, where the stream does not tell it.
    """

    core: Literal["master", "channel"] = "master"
    first_core: int = 0
    id: Literal["payload", "channel"] = "payload"
    id_shift: int = 1
    id_bits: int = 15
    type_bit: int | Literal["marker"] = 0
    operation_shift: int = 16
    operation_bits: int = 0
    kinds: tuple[str, ...] = ()
    frequency_hz: int = 1_000_000_000

    def __post_init__(self) -> None:
        for name in ("id_shift", "operation_shift", "operation_bits"):
            if not 0 <= getattr(self, name) <= 63:
                raise ValueError(f"{name} must be 0 to 63, is {getattr(self, name)}")
        if self.type_bit != "marker" and not 0 <= self.type_bit <= 63:
            raise ValueError(f"type_bit must be 0 to 63, is {self.type_bit}")
        if not 1 <= self.id_bits <= 30:
            raise ValueError(f"id_bits must be 1 to 30, is {self.id_bits}")
        if self.frequency_hz < 1:
            raise ValueError(f"frequency_hz must be positive, is {self.frequency_hz}")


def is_stp(raw: bytes) -> bool:
    """Whether there is an ASYNC packet near the beginning."""
    if b"\xff" * 10 not in raw[:_SEARCHED]:
        return False
    return len(_async_ends(np.frombuffer(raw[:_SEARCHED], np.uint8))) > 0


def read_stp(raw: bytes, where: str, mapping: StpMapping | None = None) -> tuple[Trace, tuple[str, ...]]:
    """Decode a stream, which may begin anywhere; ``where`` is its name, for messages.

    Losses that the stream reports (MERR, GERR) and damaged places, which end at the next ASYNC, become ``loss_after``.
    Packets before the first time stamp are left out. Returns the trace and warnings. Raises
    :class:`~framefit.errors.InputError` if there is no ASYNC, no time stamp, or too many packets.
    """
    mapping = mapping or StpMapping()
    data = np.frombuffer(raw, np.uint8)
    syncs = _async_ends(data)
    if not len(syncs):
        raise InputError(
            "is not an STPv2 stream: it has no ASYNC packet",
            where=where,
            remedy="record at least one synchronisation period",
        )
    none = np.zeros(0, np.int32)
    nothing = np.zeros(0, np.uint64)
    rows = np.zeros((0, 3), np.int64)
    counts = _decode(data, syncs, False, none, none, nothing, nothing, none.astype(np.uint8), rows, rows)  # noqa: FBT003
    count = dict(zip(_COUNTS, counts.tolist(), strict=True))
    if count["packets"] > _MOST_PACKETS:
        raise InputError(
            f"has {count['packets']} data packets; at most {_MOST_PACKETS} are read at once",
            where=where,
            remedy="cut the stream at ASYNC packets",
        )
    size = count["packets"]
    master, channel = np.zeros(size, np.int32), np.zeros(size, np.int32)
    payload, ticks, flags = np.zeros(size, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.uint8)
    loss, hz = np.zeros((count["losses"], 3), np.int64), np.zeros((count["frequencies"], 2), np.int64)
    _decode(data, syncs, True, master, channel, payload, ticks, flags, loss, hz)  # noqa: FBT003
    warnings = _describe_oddities(count, loss, int(syncs[0]))
    timed = np.maximum.accumulate(flags & _UNTIMED == 0) if size else np.zeros(0, np.bool_)
    if size and not timed.any():
        raise InputError(
            f"none of {size} data packets has a time stamp", where=where, remedy="switch time stamps on in the STM"
        )
    if before := int(np.count_nonzero(~timed)):
        warnings.append(f"{before} packets came before the first time stamp and were left out")
    if later := int(np.count_nonzero(flags[timed] & _UNTIMED)):
        warnings.append(f"{later} packets have no time stamp of their own: they have the time of the previous packet")
    time_ns, far = _nanoseconds(ticks[timed], np.flatnonzero(timed), hz, mapping, warnings)
    if far.any():
        warnings.append(f"{int(np.count_nonzero(far))} packets have times beyond 146 years and were left out")
        timed[np.flatnonzero(timed)[far]] = False
        time_ns = time_ns[~far]
    return _trace(master, channel, payload, flags, loss, timed, time_ns, mapping), tuple(warnings)


def _describe_oddities(count: dict[str, int], loss: npt.NDArray[np.int64], first_sync: int) -> list[str]:
    """Return warnings about a stream."""
    warnings = []
    if first_sync > 22:
        warnings.append(
            f"the stream begins in the middle: {first_sync - 22} nibbles before the first ASYNC were skipped"
        )
    if sources := int(np.count_nonzero(loss[:, 1] == _LOSS_MASTER)):
        warnings.append(f"trace sources reported {sources} times that they lost packets (MERR)")
    if units := int(np.count_nonzero(loss[:, 1] == _LOSS_GLOBAL)):
        warnings.append(f"the trace unit reported {units} times that packets were lost (GERR)")
    if count["damaged"]:
        warnings.append(f"the stream is damaged in {count['damaged']} places; reading continued at the next ASYNC")
    if count["unusable_times"]:
        warnings.append(f"{count['unusable_times']} time stamps are of STPv1 and have no usable time")
    return warnings


def _nanoseconds(
    ticks: npt.NDArray[np.uint64],
    number: npt.NDArray[np.int64],
    hz: npt.NDArray[np.int64],
    mapping: StpMapping,
    warnings: list[str],
) -> tuple[npt.NDArray[np.int64], Bools]:
    """Convert time stamps by the frequency that holds for most packets; mark those that no int64 can hold."""
    stated = hz[hz[:, 1] > 0]
    each = np.full(len(ticks), mapping.frequency_hz, np.int64)
    if len(stated):
        each = stated[np.maximum(np.searchsorted(stated[:, 0], number, "right") - 1, 0), 1]
    values, uses = np.unique(each, return_counts=True)
    frequency = int(values[np.argmax(uses)]) if len(values) else mapping.frequency_hz
    if len(values) > 1:
        warnings.append(
            f"the stream has {len(values)} frequencies for its time stamps; {frequency} Hz was used throughout"
        )
    whole, part = np.divmod(ticks, np.uint64(frequency))
    far = whole > np.uint64(_MOST_NS // 1_000_000_000)
    whole = np.where(far, np.uint64(0), whole)
    if frequency <= 1 << 33:  # the product with 1e9 fits 64 bits
        fraction = (part * np.uint64(1_000_000_000) + np.uint64(frequency // 2)) // np.uint64(frequency)
    else:
        fraction = np.rint(part.astype(np.float64) * (1e9 / frequency)).astype(np.uint64)
    return (whole * np.uint64(1_000_000_000) + fraction).astype(np.int64), far


def _trace(
    master: npt.NDArray[np.int32],
    channel: npt.NDArray[np.int32],
    payload: npt.NDArray[np.uint64],
    flags: npt.NDArray[np.uint8],
    loss: npt.NDArray[np.int64],
    kept: Bools,
    time_ns: npt.NDArray[np.int64],
    mapping: StpMapping,
) -> Trace:
    """Make a trace from the fields of the packets by the mapping."""
    master, channel, payload, flags = master[kept], channel[kept], payload[kept], flags[kept]
    core = (master if mapping.core == "master" else channel) - mapping.first_core
    event_id = (
        _bits(payload, mapping.id_shift, mapping.id_bits) if mapping.id == "payload" else channel.astype(np.int64)
    )
    if mapping.type_bit == "marker":
        type_ = (flags & _MARKED) // _MARKED
    else:
        type_ = _bits(payload, mapping.type_bit, 1).astype(np.uint8)
    operation = np.full(len(payload), -1, np.int64)
    if mapping.operation_bits:
        operation = _bits(payload, mapping.operation_shift, mapping.operation_bits)
    used, id_ = np.unique(event_id, return_inverse=True)
    kinds = list(mapping.kinds)
    numbers = []
    for number in used.tolist():
        if number >= len(mapping.kinds):
            kinds.append(f"event_{number}")
        numbers.append(number if number < len(mapping.kinds) else len(kinds) - 1)
    rank = np.concatenate([[0], np.cumsum(kept)])
    return Trace(
        time_ns=time_ns,
        id=np.array(numbers, np.int32)[id_] if numbers else np.zeros(0, np.int32),
        type=np.asarray(type_, np.uint8),
        core=np.clip(core, -1, np.iinfo(np.int16).max).astype(np.int16),
        operation=operation,
        kinds=tuple(kinds),
        loss_after=np.unique(rank[loss[:, 0]]).astype(np.int64),
        meta=TraceMeta(),
    )


def _bits(payload: npt.NDArray[np.uint64], shift: int, bits: int) -> npt.NDArray[np.int64]:
    return ((payload >> np.uint64(shift)) & np.uint64((1 << bits) - 1)).astype(np.int64)


@njit(cache=True)
def _async_ends(raw: Any) -> Any:
    """Return nibble numbers right after each ASYNC."""
    size = 2 * len(raw)
    ends = np.empty(size // (_ASYNC + 1) + 1, np.int64)
    count = ones = 0
    for at in range(size):
        nibble = (raw[at >> 1] >> (4 * (at & 1))) & 15
        if nibble == 15:
            ones += 1
            continue
        if nibble == 0 and ones >= _ASYNC:
            ends[count] = at + 1
            count += 1
        ones = 0
    return ends[:count]


@njit(cache=True)
def _number(raw: Any, at: Any, count: Any, little: Any) -> Any:
    """Read ``count`` nibbles as a number; those above 64 bits are shifted out."""
    value = np.uint64(0)
    for step in range(count):
        place = at + (count - 1 - step if little else step)
        nibble = (raw[place >> 1] >> (4 * (place & 1))) & 15
        value = (value << np.uint64(4)) | np.uint64(nibble)
    return value


@njit(cache=True)
def _binary(gray: Any) -> Any:
    """Convert from Gray code."""
    for shift in (1, 2, 4, 8, 16, 32):
        gray ^= gray >> np.uint64(shift)
    return gray


@njit(cache=True)
def _parse_opcode(raw: Any, at: Any, size: Any) -> Any:
    """Parse the opcode at a nibble: its value, its length, nibbles of payload, and whether it has a time stamp.

    Opcodes have one to four nibbles. A payload of -1 has a length of its own (USER), of -2 is a time (TIME); an opcode
    of -1 is invalid.
    """
    first = (raw[at >> 1] >> (4 * (at & 1))) & 15
    if first < 15:
        payload = (0, 2, 2, 2, 2, 4, 8, 16, 2, 4, 8, 16, 1, 1, 0)[first]
        return np.int64(first), 1, payload, 8 <= first < 12 or first >= 13
    if at + 1 >= size:
        return np.int64(-1), 1, 0, False
    second = (raw[(at + 1) >> 1] >> (4 * ((at + 1) & 1))) & 15
    if second == 15:
        return np.int64(-1), 2, 0, False
    if second:
        payload = (0, 4, 2, 4, 2, 4, 8, 16, 2, 4, 8, 16, 1, 1, 0)[second]
        return np.int64(0xF0 + second), 2, payload, 4 <= second < 8 or second == 12
    if at + 2 >= size:
        return np.int64(-1), 2, 0, False
    third = (raw[(at + 2) >> 1] >> (4 * ((at + 2) & 1))) & 15
    if third < 12:
        payload = (1, 0, -1, -1, -2, -2, 2, 2, 8, 8, 2, 2)[third]
        return np.int64(0xF00 + third), 3, payload, third % 2 == 1
    if third == 15 and at + 3 < size:
        fourth = (raw[(at + 3) >> 1] >> (4 * ((at + 3) & 1))) & 15
        if fourth < 2:
            return np.int64(0xF0F0 + fourth), 4, 10, fourth == 1
    return np.int64(-1), 3, 0, False


@njit(cache=True)
def _time_length(raw: Any, at: Any, size: Any) -> Any:
    """Number of nibbles of the time stamp whose length is at ``at``; -1: invalid, -2: the stream ends here."""
    if at >= size:
        return -2
    code = (raw[at >> 1] >> (4 * (at & 1))) & 15
    if code == 15:
        return -1
    return code if code < 13 else 14 if code == 13 else 16


@njit(cache=True)
def _decode(
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
    """Decode the data packets of a stream, and what was lost between them.

    Args:
        raw: uint8, the stream.
        syncs: of :func:`_async_ends`; nibbles before the first one are skipped.
        store: whether the arrays are filled; else packets, losses and frequencies are only counted.
        master: int32, of each data packet.
        channel: int32, of each data packet.
        payload: uint64, of each data packet.
        ticks: uint64, the latest time stamp at each data packet.
        flags: uint8, of each data packet.
        loss: int64, a row each: number of data packets before, reason, master.
        hz: int64, a row each: number of data packets before, ticks a second.

    Returns:
        int64, :data:`_COUNTS`.
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
        operation, length, nibbles, stamped = _parse_opcode(raw, at, until)
        body = at + length
        good = operation >= 0
        if nibbles == -1:
            good = good and body < until
            if good:
                nibbles = ((raw[body >> 1] >> (4 * (body & 1))) & 15) + 1
                body += 1
        elif nibbles == -2:
            span = _time_length(raw, body + 2, until)
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
                span = _time_length(raw, end, until)
                good = span >= 0
                end += 1 + max(span, 0)
        if not good or end > until:
            if until < size or (operation < 0 and length > 1):  # else the stream was cut off here
                if store:
                    loss[losses, 0], loss[losses, 1], loss[losses, 2] = packets, _LOSS_DAMAGE, -1
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
                loss[losses, 1] = _LOSS_MASTER if operation == 0x2 else _LOSS_GLOBAL
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
                    loss[losses, 0], loss[losses, 1], loss[losses, 2] = packets, _LOSS_DAMAGE, -1
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
                has_time = stamped and timed
                marked = 8 <= operation < 12 or operation == 13 or 0xF8 <= operation < 0xFC or operation == 0xFD
                flags[packets] = (0 if has_time else _UNTIMED) | (_MARKED if marked else 0)
            packets += 1
        at = end
    counts[0], counts[1], counts[3] = packets, losses, frequencies
    return counts
