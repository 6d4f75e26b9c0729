"""Operations as Chrome's trace events (``trace.json``), for chrome://tracing and what else reads them.

Only complete events ("X") and names ("M"); times are microseconds. The form: Trace Event
Format, sections "Complete Events" and "Metadata Events".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.core.profile import HOW_WORDS, How, OperationLog
from framefit.core.program import Launches, Program
from framefit.report.operations import NamedOperation, NamedOperations, UnitTrack, unit_tracks

__all__ = ["write_chrome"]


_CHUNK = 1 << 16
_HOWS = [json.dumps(HOW_WORDS[how]) for how in How]


def write_chrome(path: str | Path, log: OperationLog, program: Program, launches: Launches | None = None) -> None:
    """Write one event an operation, a thread a unit; ``args`` say how each edge is known, and the rest.

    Inferred edges have their interval in ``args``: ``start_ns`` or ``end_ns``, lowest and highest
    (90 % unless asked otherwise).

    Args:
        path: usually ``trace.json``.
        log: operations.
        program: names units, models, segments and layers.
        launches: windows and frames of the inferences; ``None``: not known.

    Raises:
        InputError: the file exists, or it cannot be written.
    """
    operations = NamedOperations.of(log, program)
    heads = [_head(operation) for operation in operations.named]
    with write_whole(path) as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        file.write(_metadata("process_name", "framefit", 0).encode())
        for thread, track in enumerate(unit_tracks(log, program), start=1):
            file.write(f",\n{_metadata('thread_name', track.name, thread)}".encode())
            for first in range(0, len(track.entries), _CHUNK):
                part = UnitTrack(track.name, track.core, track.entries[first : first + _CHUNK])
                file.write("".join(_events(log, launches, part, thread, heads, operations.row)).encode())
        file.write(b"\n]}\n")


def _metadata(what: str, name: str, thread: int) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": 1, "tid": thread, "args": {"name": name}})


def _head(operation: NamedOperation) -> str:
    """An event as far as it is the same for every execution, up to within ``args``."""
    args: dict[str, str | int] = {"kind": operation.kind}
    if operation.program:
        args |= {"model": operation.model, "segment": operation.segment, "layer": operation.layer}
        args |= {"operation": operation.index}
    event = {"ph": "X", "name": operation.name, "cat": operation.kind, "args": args}
    return json.dumps(event)[:-2]


def _events(
    log: OperationLog,
    launches: Launches | None,
    track: UnitTrack,
    thread: int,
    heads: list[str],
    row: npt.NDArray[np.int64],
) -> Iterator[str]:
    at = track.entries
    columns: list[npt.NDArray[np.integer]] = [row, log.inference, log.start_ns, log.end_ns, log.start_how, log.end_how]
    columns += [log.start_low_ns, log.start_high_ns, log.end_low_ns, log.end_high_ns]
    count = 0 if launches is None else len(launches)
    for which, inference, start, end, start_how, end_how, *bounds in zip(
        *(column[at].tolist() for column in columns), strict=True
    ):
        event = f'{heads[which]}, "inference": {inference}, "start": {_HOWS[start_how]}, "end": {_HOWS[end_how]}'
        if launches is not None and 0 <= inference < count:
            event += f', "window": {launches.window[inference]}, "frame": {launches.frame[inference]}'
        if start_how:
            event += f', "start_ns": [{bounds[0]}, {bounds[1]}]'
        if end_how:
            event += f', "end_ns": [{bounds[2]}, {bounds[3]}]'
        yield f',\n{event}}}, "pid": 1, "tid": {thread}, "ts": {_us(start)}, "dur": {_us(end - start)}}}'


def _us(ns: int) -> str:
    """Exact, whatever the size."""
    sign, size = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{size // 1000}.{size % 1000:03}"
