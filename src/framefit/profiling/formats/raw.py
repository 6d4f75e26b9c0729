"""Reads raw streams of packets: a JSON header line, then records of 16 bytes, little-endian ``<qihBx``.

A stream may come from a pipe or from a file that still grows.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec
import numpy as np

from framefit.core.events import Trace, TraceMeta
from framefit.core.files import Record, from_data
from framefit.errors import InputError

_RECORD = np.dtype([("time_ns", "<i8"), ("id", "<i4"), ("core", "<i2"), ("type", "u1"), ("pad", "u1")])
_MOST_HEADER = 1 << 20
_MOST_READ = _RECORD.itemsize << 14  # at once: bounds the memory, and how late a packet is looked at


class _StreamHeader(Record, kw_only=True):
    """First line of a stream: the meaning of the numbers in its records, as in ``trace.npz``.

    Attributes:
        kinds: names of the event ids.
        meta: as in a trace.
    """

    schema_version: int = 1
    kinds: tuple[str, ...]
    meta: TraceMeta = TraceMeta()


class _ByteSource(Protocol):
    """A binary file, buffered or not."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes, and none at the (present) end."""
        ...


def read_header(source: _ByteSource, wait: Callable[[], bool], where: str) -> _StreamHeader | None:
    """Read the header line; ``None`` if the stream ended before its first byte.

    ``wait`` is called when there is nothing to read at present, and returns whether to go on. Raises
    :class:`~framefit.errors.InputError` if the line is not a header.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = source.read(1)
        if not byte:
            if wait():
                continue
            if not line.strip():
                return None
            break
        line += byte
        if len(line) > _MOST_HEADER or (len(line) == 1 and byte not in b"{ \t\r\n"):
            raise _header_error("does not begin with a JSON header line", where)
    try:
        data = msgspec.json.decode(bytes(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _header_error(f"its first line is not JSON: {error}", where) from error
    return from_data(data, _StreamHeader, f"{where}, first line")


def _header_error(what: str, where: str) -> InputError:
    return InputError(what, where=where, remedy='write {"kinds": ["conv", ...], "meta": {}} and a line feed first')


def read_chunks(source: _ByteSource, header: _StreamHeader, wait: Callable[[], bool]) -> Iterator[Trace]:
    """Yield packets as they come; a record that is cut off by the end of the stream is left out.

    ``source`` is behind its header; ``wait`` is as in :func:`read_header`.
    """
    rest = b""
    while True:
        data = source.read(_MOST_READ)
        if not data:
            if wait():
                continue
            return
        rest += data
        whole = len(rest) - len(rest) % _RECORD.itemsize
        if not whole:
            continue
        records, rest = np.frombuffer(rest[:whole], _RECORD), rest[whole:]
        yield Trace(
            time_ns=records["time_ns"].astype(np.int64),
            id=records["id"].astype(np.int32),
            type=records["type"].copy(),
            core=records["core"].astype(np.int16),
            operation=np.full(len(records), -1, np.int64),
            kinds=header.kinds,
            meta=header.meta,
        )


def join_packets(parts: Sequence[Trace]) -> Trace:
    """Return the packets of several parts of one stream, at least one, in order."""
    return replace(
        parts[0],
        time_ns=np.concatenate([part.time_ns for part in parts]),
        id=np.concatenate([part.id for part in parts]),
        type=np.concatenate([part.type for part in parts]),
        core=np.concatenate([part.core for part in parts]),
        operation=np.concatenate([part.operation for part in parts]),
    )


def is_raw_stream(raw: bytes) -> bool:
    """Whether the first line is the header of a raw stream rather than the beginning of a Chrome trace."""
    line = raw[: raw.find(b"\n")] if b"\n" in raw else raw
    return line.startswith(b"{") and b'"kinds"' in line and b'"traceEvents"' not in line


def read_raw_stream(raw: bytes, where: str) -> tuple[Trace, tuple[str, ...]]:
    """Read a whole stream; a warning says whether it ends in the middle of a record."""
    file = io.BytesIO(raw)
    header = read_header(file, lambda: False, where)
    assert header is not None  # there is a line with a key in it
    cut_off = (len(raw) - file.tell()) % _RECORD.itemsize
    parts = list(read_chunks(file, header, lambda: False))
    if not parts:
        raise InputError("has a header, but no whole record", where=where, remedy="record a trace first")
    trace = join_packets(parts)
    return trace, (f"the last record is cut off: {cut_off} bytes at the end were left out",) if cut_off else ()
