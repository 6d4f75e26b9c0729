"""Trace of a run: what a device recorded (``trace.npz``), and what it lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.arrays import read_arrays
from framefit.core.files import Record, write_whole
from framefit.errors import InputError

__all__ = ["EventType", "Trace", "TraceMeta", "unwrapped_ns"]


class EventType(IntEnum):
    """Type of an event packet."""

    START = 0
    END = 1


class TraceMeta(Record, kw_only=True):
    """How the device makes its packets.

    Attributes:
        wrap_bits: time stamps are modulo 2**wrap_bits x resolution_ns.
        lost_events: number of packets that the recorder dropped, if it counts them.
        overwritten_events: number of packets at the beginning that the host did not keep: the trace of a
            long run holds its last ones.
    """

    resolution_ns: int = 1
    wrap_bits: int | None = None
    selected_kinds: tuple[str, ...] | None = None
    buffer_events: int | None = None
    drain_rate_hz: float | None = None
    lost_events: int | None = None
    overwritten_events: int = 0

    def __post_init__(self) -> None:
        if self.resolution_ns < 1:
            raise ValueError(f"resolution_ns must be at least 1, is {self.resolution_ns}")
        if self.wrap_bits is not None and not 1 <= self.wrap_bits <= 64:
            raise ValueError(f"wrap_bits must be 1 to 64, is {self.wrap_bits}")
        for key in ("buffer_events", "drain_rate_hz", "lost_events", "overwritten_events"):
            value = getattr(self, key)
            if value is not None and not 0 <= value < 1 << 63:
                raise ValueError(f"{key} must not be negative, is {value}")


@dataclass(frozen=True)
class Trace:
    """Event packets in order of arrival.

    Attributes:
        time_ns: int64.
        id: int32, index into ``kinds``.
        type: uint8, :class:`EventType`.
        core: int16.
        operation: int64, index within the launch's program, -1 unknown.
        kinds: event ids by name.
        loss_after: int64, numbers of packets after which the device reported a loss.
    """

    time_ns: npt.NDArray[np.int64]
    id: npt.NDArray[np.int32]
    type: npt.NDArray[np.uint8]
    core: npt.NDArray[np.int16]
    operation: npt.NDArray[np.int64]
    kinds: tuple[str, ...]
    loss_after: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    meta: TraceMeta = field(default_factory=TraceMeta)

    def __post_init__(self) -> None:
        shapes = {np.shape(array) for array in (self.time_ns, self.id, self.type, self.core, self.operation)}
        if len(shapes) > 1 or len(min(shapes)) != 1:
            raise ValueError(f"event arrays need one length, have shapes {sorted(shapes)}")
        if np.ndim(self.loss_after) != 1:
            raise ValueError(f"loss_after is a list of positions, has {np.ndim(self.loss_after)} dimensions")

    def __len__(self) -> int:
        return len(self.time_ns)

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Read ``trace.npz``.

        Raises:
            InputError: the file is not a trace.
        """
        arrays = read_arrays(
            path,
            {"time_ns": "i8", "id": "i4", "type": "u1", "core": "i2", "kinds": "U"},
            {"operation": "i8", "loss_after": "i8", "meta": "U"},
        )
        try:
            return cls(
                time_ns=arrays["time_ns"],
                id=arrays["id"],
                type=arrays["type"],
                core=arrays["core"],
                operation=arrays.get("operation", np.full(np.shape(arrays["id"]), -1, np.int64)),
                kinds=_names(arrays["kinds"]),
                loss_after=arrays.get("loss_after", np.zeros(0, np.int64)),
                meta=msgspec.json.decode(str(arrays.get("meta", "{}")), type=TraceMeta),
            )
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            raise InputError(f"not a trace: {error}", where=path, remedy="check the file") from error

    def write(self, path: str | Path, *, force: bool = False) -> None:
        """Write ``trace.npz``, as a whole or not at all."""
        with write_whole(path, force=force) as file:
            np.savez(
                file,
                time_ns=self.time_ns,
                id=self.id,
                type=self.type,
                core=self.core,
                operation=self.operation,
                kinds=np.asarray(self.kinds, dtype=np.str_),
                loss_after=self.loss_after,
                meta=np.asarray(msgspec.json.encode(self.meta).decode()),
            )


def _names(array: npt.NDArray[np.str_]) -> tuple[str, ...]:
    if array.ndim != 1:
        raise ValueError(f"kinds is a list of names, has {array.ndim} dimensions")
    return tuple(array.tolist())


_LATE_PART = 8  # of a period: packets are late by what buffers hold, and silent for as long as losses last


def unwrapped_ns(time_ns: npt.NDArray[np.int64], meta: TraceMeta) -> npt.NDArray[np.int64]:
    """Times without the jumps of a counter that wraps around.

    A step back by up to an eighth of the counter's period is a packet that arrives a little late, if the next one is
    not behind it but behind the one before; any other step goes forward. A silence of a period or more cannot be
    detected.

    Args:
        time_ns: int64, in order of arrival.
        meta: of the trace; without ``wrap_bits`` times are unchanged.

    Returns:
        int64, of the same length; the first one is unchanged.
    """
    if meta.wrap_bits is None or not len(time_ns):
        return time_ns
    period = (1 << meta.wrap_bits) * meta.resolution_ns
    if period > np.iinfo(np.int64).max // 2:
        return time_ns
    steps = np.diff(time_ns) % period
    back = np.flatnonzero(steps > period - period // _LATE_PART)
    over = time_ns[np.minimum(back + 2, len(time_ns) - 1)] - time_ns[back]
    late = back[(back + 2 == len(time_ns)) | (over % period < steps[np.minimum(back + 1, len(steps) - 1)])]
    steps[late] -= period
    return np.concatenate([time_ns[:1], time_ns[0] + np.cumsum(steps)]).astype(np.int64)
