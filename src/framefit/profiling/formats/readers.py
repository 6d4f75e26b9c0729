"""Reads traces of any known format; the first bytes of a file decide which, not its name.

Framefit's own ``.npz`` and raw stream, STPv2 system traces, ONNX Runtime's profiles, Chrome and Perfetto traces are
known, and the tables of events of a profile. A file that is damaged or cut off is read as far as possible, with a
warning. Any other file is refused with an error.
"""

from __future__ import annotations

import io
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from framefit.core.arrays import ArrayFile
from framefit.core.events import Trace
from framefit.core.files import read_bytes
from framefit.core.formats import format_of
from framefit.core.program import Program
from framefit.errors import InputError
from framefit.profiling.formats.chrome import parse_events, read_chrome_events
from framefit.profiling.formats.events import is_event_table, read_event_table
from framefit.profiling.formats.labels import NamedTrace
from framefit.profiling.formats.ort import is_ort_profile, read_ort_events
from framefit.profiling.formats.perfetto import is_perfetto, read_perfetto
from framefit.profiling.formats.raw import is_raw_stream, read_raw_stream
from framefit.profiling.formats.stp import StpMapping, is_stp, read_stp

_MOST_BYTES = 1 << 31
"""Size of a file that is read at once: 100 million packets of a raw stream; longer ones can be followed."""


class ReadTrace(NamedTuple):
    """The content of a trace file.

    Attributes:
        trace: its packets.
        program: the program that was executed, where the format contains it.
        warnings: sentences on what is odd about the file.
        named: the packets with what the file says of them in words, where it does.
    """

    trace: Trace
    program: Program | None
    warnings: tuple[str, ...]
    named: NamedTrace | None = None

    def match(self, program: Program) -> tuple[Trace, tuple[str, ...]]:
        """Return the trace with kinds, operations and cores of ``program``, and all warnings."""
        if self.named is None:
            return self.trace, self.warnings
        trace, warnings = self.named.match(program)
        return trace, (*self.warnings, *warnings)


class _Source(NamedTuple):
    """Information about a file beside its bytes.

    Attributes:
        where: its path, for messages.
        name: its stem.
        mapping: meaning of the fields of an STPv2 stream.
    """

    where: str
    name: str
    mapping: StpMapping | None


class TraceFormat(NamedTuple):
    """A format of traces. To add another, write its file beside this one and enter it in ``READERS``.

    Attributes:
        name: with its article, for messages.
        matches: whether bytes are of this format.
        read: returns the trace; raises an :class:`~framefit.errors.InputError` if it is damaged beyond use.
    """

    name: str
    matches: Callable[[bytes], bool]
    read: Callable[[bytes, _Source], ReadTrace]


def read_trace(path: str | Path, mapping: StpMapping | None = None) -> ReadTrace:
    """Read a trace of any known format; ``mapping`` is the meaning of the fields of an STPv2 stream.

    Raises :class:`~framefit.errors.InputError` if the file is missing, empty, too large, or of no known format.
    """
    path, where = Path(path), str(path)
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError("no such file", where=path, remedy="check the path") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=path, remedy="check the file") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError("is not a regular file", where=path, remedy="name a file; read streams with --follow")
    if status.st_size > _MOST_BYTES:
        raise InputError(
            f"has {status.st_size} bytes; at most {_MOST_BYTES} are read at once",
            where=path,
            remedy="follow a raw stream with --follow, or record a shorter time",
        )
    with _open_file(path) as file:
        if file.read(4) == b"PK\x03\x04":
            return _read_npz(path)
    raw = read_bytes(path)
    if not raw.strip():
        raise InputError("is empty", where=where, remedy="record a trace first")
    source = _Source(where, path.stem, mapping)
    for reader in READERS:
        if reader.matches(raw):
            return reader.read(raw, source)
    formats, known = [reader.name for reader in READERS], format_of(path)
    what = f"it begins with {raw[:8]!r}" if known is None else f"it is {known.name}"
    raise InputError(
        f"is not a trace of a known format: {what}",
        where=where,
        remedy=f"give a trace.npz, {', '.join(formats[:-1])}, or {formats[-1]}",
    )


def _open_file(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path, remedy="check the file") from error


def _read_npz(path: Path) -> ReadTrace:
    """Read ``trace.npz`` if it is not too large."""
    claimed = ArrayFile(path).bytes
    if claimed > _MOST_BYTES:
        raise InputError(
            f"claims to hold {claimed} bytes; at most {_MOST_BYTES} are read", where=path, remedy="check the file"
        )
    return ReadTrace(Trace.read(path), None, ())


def _is_json(raw: bytes) -> bool:
    return raw.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"[", b"{"))


def _read_json(raw: bytes, source: _Source) -> ReadTrace:
    """Read a profile of ONNX Runtime, or a Chrome trace."""
    events, odd = parse_events(raw, source.where)
    if is_ort_profile(events):
        trace, program, more = read_ort_events(events, source.where, source.name)
        return ReadTrace(trace, program, (*odd, *more))
    named, more = read_chrome_events(events, source.where)
    return ReadTrace(named.trace, None, (*odd, *more), named)


def _read_perfetto(raw: bytes, source: _Source) -> ReadTrace:
    named, warnings = read_perfetto(raw, source.where)
    return ReadTrace(named.trace, None, warnings, named)


def _read_event_table(raw: bytes, source: _Source) -> ReadTrace:
    named, warnings = read_event_table(raw, source.where)
    return ReadTrace(named.trace, None, warnings, named)


def _read_raw(raw: bytes, source: _Source) -> ReadTrace:
    trace, warnings = read_raw_stream(raw, source.where)
    return ReadTrace(trace, None, warnings)


def _read_stp(raw: bytes, source: _Source) -> ReadTrace:
    trace, warnings = read_stp(raw, source.where, source.mapping)
    return ReadTrace(trace, None, warnings)


READERS: tuple[TraceFormat, ...] = (
    TraceFormat("a raw stream with its JSON header", is_raw_stream, _read_raw),
    TraceFormat("the events.csv or events.json of a profile", is_event_table, _read_event_table),
    TraceFormat("a Perfetto trace", is_perfetto, _read_perfetto),
    TraceFormat("a Chrome or ONNX Runtime JSON", _is_json, _read_json),
    TraceFormat("an STPv2 stream", is_stp, _read_stp),
)
"""The formats beside the project's own ``trace.npz``; the first that matches reads the file."""
