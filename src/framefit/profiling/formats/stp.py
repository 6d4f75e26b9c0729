"""System traces in MIPI's System Trace Protocol, version 2 (STPv2), as Arm's CoreSight STM writes them.

Which of its fields mean what is for the software that writes to the trace unit to say:
:class:`StpMapping` is that record. As it stands a master is a core, and a data packet an event:
its lowest bit the type (0 START, 1 END), the bits above it the event id. A packet has the time of
the stamp that it carries, or that came last.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace, TraceMeta
from framefit.core.files import Record
from framefit.errors import InputError

__all__ = ["StpMapping", "is_stp", "read_stp"]


_SEARCHED = 1 << 16  # bytes in which a stream's first ASYNC is looked for; an STM sends one every 4 KiB at most
_MOST_PACKETS = 1 << 26
_MOST_NS = 1 << 62
Bools = npt.NDArray[np.bool_]


class StpMapping(Record, kw_only=True):
    """What the fields of a system trace mean.

    Attributes:
        core: what tells the core: the master's number, or the channel's.
        first_core: number of the master, or channel, that is core 0.
        id: what tells the event id: bits of the payload, or the channel's number.
        id_shift, id_bits: bits of the payload.
        type_bit: bit of the payload that is set in an END; "marker": packets with a marker are ENDs.
        operation_shift, operation_bits: bits of the payload that number the operation; 0 bits: none do.
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
    """Whether there is an ASYNC near the beginning."""
    if b"\xff" * 10 not in raw[:_SEARCHED]:
        return False
    from framefit.profiling.formats.stp_packets import async_ends

    return len(async_ends(np.frombuffer(raw[:_SEARCHED], np.uint8))) > 0


def read_stp(raw: bytes, where: str, mapping: StpMapping | None = None) -> tuple[Trace, tuple[str, ...]]:
    """Decode a stream.

    Losses that the stream tells (MERR, GERR), and places where it makes no sense up to the next
    ASYNC, become ``loss_after``. Packets before the first time stamp are left out.

    Args:
        raw: the stream, from anywhere on.
        where: its name, for messages.
        mapping: what its fields mean; default: see :class:`StpMapping`.

    Returns:
        The trace, and sentences on what is odd about it.

    Raises:
        InputError: no ASYNC, no time stamps, or more packets than can be held.
    """
    from framefit.profiling.formats import stp_packets as packets

    mapping = mapping or StpMapping()
    data = np.frombuffer(raw, np.uint8)
    syncs = packets.async_ends(data)
    if not len(syncs):
        raise InputError(
            "no ASYNC packet: not an STPv2 stream", where=where, remedy="record at least one synchronisation period"
        )
    none = np.zeros(0, np.int32)
    nothing = np.zeros(0, np.uint64)
    rows = np.zeros((0, 3), np.int64)
    counts = packets.decode(data, syncs, False, none, none, nothing, nothing, none.astype(np.uint8), rows, rows)  # noqa: FBT003
    count = dict(zip(packets.COUNTS, counts.tolist(), strict=True))
    if count["packets"] > _MOST_PACKETS:
        raise InputError(
            f"{count['packets']} data packets; at most {_MOST_PACKETS} are read at once",
            where=where,
            remedy="cut the stream at ASYNC packets",
        )
    size = count["packets"]
    master, channel = np.zeros(size, np.int32), np.zeros(size, np.int32)
    payload, ticks, flags = np.zeros(size, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.uint8)
    loss, hz = np.zeros((count["losses"], 3), np.int64), np.zeros((count["frequencies"], 2), np.int64)
    packets.decode(data, syncs, True, master, channel, payload, ticks, flags, loss, hz)  # noqa: FBT003
    warnings = _said(count, loss, int(syncs[0]), packets.LOSS_MASTER, packets.LOSS_GLOBAL)
    timed = np.maximum.accumulate(flags & packets.UNTIMED == 0) if size else np.zeros(0, np.bool_)
    if size and not timed.any():
        raise InputError(
            f"none of {size} data packets has a time stamp", where=where, remedy="switch time stamps on in the STM"
        )
    if before := int(np.count_nonzero(~timed)):
        warnings.append(f"{before} packets came before the first time stamp and were left out")
    if later := int(np.count_nonzero(flags[timed] & packets.UNTIMED)):
        warnings.append(f"{later} packets have no time stamp of their own: they have the time of the one before")
    time_ns, far = _nanoseconds(ticks[timed], np.flatnonzero(timed), hz, mapping, warnings)
    if far.any():
        warnings.append(f"{int(np.count_nonzero(far))} packets have times beyond 146 years and were left out")
        timed[np.flatnonzero(timed)[far]] = False
        time_ns = time_ns[~far]
    return _trace(master, channel, payload, flags, loss, timed, time_ns, mapping), tuple(warnings)


def _said(count: dict[str, int], loss: npt.NDArray[np.int64], first_sync: int, master: int, whole: int) -> list[str]:
    """What is odd about a stream, as sentences."""
    warnings = []
    if first_sync > 22:
        warnings.append(
            f"the stream begins in the middle: {first_sync - 22} nibbles before the first ASYNC were skipped"
        )
    if sources := int(np.count_nonzero(loss[:, 1] == master)):
        warnings.append(f"trace sources reported {sources} times that they lost packets (MERR)")
    if units := int(np.count_nonzero(loss[:, 1] == whole)):
        warnings.append(f"the trace unit reported {units} times that packets were lost (GERR)")
    if count["damaged"]:
        warnings.append(f"the stream makes no sense in {count['damaged']} places; it was read on from the next ASYNC")
    if count["unusable_times"]:
        warnings.append(f"{count['unusable_times']} time stamps are of STPv1 and tell no time")
    return warnings


def _nanoseconds(
    ticks: npt.NDArray[np.uint64],
    number: npt.NDArray[np.int64],
    hz: npt.NDArray[np.int64],
    mapping: StpMapping,
    warnings: list[str],
) -> tuple[npt.NDArray[np.int64], Bools]:
    """Times of packets by the frequency that holds for most of them, and which of them no int64 can hold."""
    told = hz[hz[:, 1] > 0]
    each = np.full(len(ticks), mapping.frequency_hz, np.int64)
    if len(told):
        each = told[np.maximum(np.searchsorted(told[:, 0], number, "right") - 1, 0), 1]
    values, uses = np.unique(each, return_counts=True)
    frequency = int(values[np.argmax(uses)]) if len(values) else mapping.frequency_hz
    if len(values) > 1:
        warnings.append(
            f"the stream tells {len(values)} frequencies of its time stamps; {frequency} Hz was taken throughout"
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
    """Fields by the mapping."""
    from framefit.profiling.formats.stp_packets import MARKED

    master, channel, payload, flags = master[kept], channel[kept], payload[kept], flags[kept]
    core = (master if mapping.core == "master" else channel) - mapping.first_core
    told = _bits(payload, mapping.id_shift, mapping.id_bits) if mapping.id == "payload" else channel.astype(np.int64)
    if mapping.type_bit == "marker":
        type_ = (flags & MARKED) // MARKED
    else:
        type_ = _bits(payload, mapping.type_bit, 1).astype(np.uint8)
    operation = np.full(len(payload), -1, np.int64)
    if mapping.operation_bits:
        operation = _bits(payload, mapping.operation_shift, mapping.operation_bits)
    used, id_ = np.unique(told, return_inverse=True)
    kinds = list(mapping.kinds)
    numbers = []
    for one in used.tolist():
        if one >= len(mapping.kinds):
            kinds.append(f"event_{one}")
        numbers.append(one if one < len(mapping.kinds) else len(kinds) - 1)
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
