"""Framefit's process on a board: it answers frames on its standard input and output, and ends with them.

``ssh`` starts it; nothing listens on a port. It does what :data:`~framefit.boards.frames.Request` lists and nothing
else: it stores files, begins jobs of known verbs, and hands out what they wrote. Nothing that it receives is executed.
It imports no engine, so a runtime that crashes when it is imported ends a job and not the agent.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import framefit
from framefit.boards.frames import (
    CHUNK_BYTES,
    COUNT_LIMIT,
    GREETING_MARK,
    Channel,
    Command,
    Done,
    Failed,
    Fetch,
    Forget,
    FrameError,
    Greeting,
    Jobs,
    LostConnectionError,
    Missing,
    Poll,
    Put,
    Request,
    Results,
    Start,
    Stop,
    Time,
    check_digest,
    decoded,
)
from framefit.boards.jobs import Store
from framefit.core.files import Record
from framefit.errors import FramefitError

_IDLE_S = 300.0
"""A host that says nothing for so long is gone: its network may never say so."""
_LOOK_S = 0.05


def version() -> str:
    """Framefit's version, or "unknown" where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("framefit")
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def source_digest() -> str:
    """SHA-256 of all of Framefit's own files: host and board have the same, or do not work together."""
    root = Path(framefit.__file__).parent
    digest = hashlib.sha256()
    for path in package_files(root):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def package_files(root: Path) -> list[Path]:
    """Framefit's own files, in order."""
    return sorted(
        path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    )


def serve(channel: Channel, store: Store) -> None:
    """Answer requests until the host is gone. A frame that is none is answered by one error, which is the last."""
    channel.write(GREETING_MARK)
    channel.send(
        Greeting(
            version=version(),
            digest=source_digest(),
            python=platform.python_version(),
            machine=platform.machine(),
            jobs=str(store.jobs),
        )
    )
    while True:
        try:
            try:
                request, body = channel.receive(Request, within_s=_IDLE_S)
                answer, data = answered(request, body, store)
            except FrameError as error:
                channel.send(_failed(error, ends=True))
                return
            except LostConnectionError:
                return
            except FramefitError as error:
                answer, data = _failed(error), b""
            except OSError as error:
                answer, data = Failed(what=f"{error.strerror or error}", remedy="check the board's disk"), b""
            channel.send(answer, data)
        except LostConnectionError:
            return


def _failed(error: FramefitError, *, ends: bool = False) -> Failed:
    return Failed(what=error.what[:2000], where=error.where and error.where[:2000], remedy=error.remedy, ends=ends)


def answered(request: Any, body: bytes, store: Store) -> tuple[Record, bytes]:
    """The answer to one request, and its body.

    Raises:
        FramefitError: it cannot be done.
        OSError: likewise.
    """
    match request:
        case Missing():
            return Done(), msgspec.json.encode(_missing(body, store))
        case Put():
            return Done(size=store.add(request.digest, request.size, request.offset, body)), b""
        case Start():
            store.start(request.job, decoded(body, Command, "a command"))
            return Done(state=store.state(request.job)), b""
        case Poll():
            return _polled(request, store)
        case Results():
            files = store.results(request.job)
            return Done(state=store.state(request.job)), msgspec.json.encode(files)
        case Fetch():
            place = store.result_file(request.job, request.path)
            data = _part(place, request.offset, CHUNK_BYTES)
            return Done(size=place.stat().st_size), data
        case Stop():
            store.stop(request.job, now=request.now)
            return Done(state=store.state(request.job)), b""
        case Forget():
            store.forget(request.job)
            return Done(), b""
        case Jobs():
            return Done(), msgspec.json.encode(store.states())
        case Time():
            return Done(time_ns=time.perf_counter_ns()), b""
    raise AssertionError(request)


def _missing(body: bytes, store: Store) -> list[tuple[str, int]]:
    digests = decoded(body, list[str], "a list of digests")
    missing = []
    for digest in digests[:COUNT_LIMIT]:
        try:
            check_digest(digest)
        except ValueError as error:
            raise FrameError(str(error)) from None
        present = store.present_bytes(digest)
        if present is not None:
            missing.append((digest, present))
    return missing


def _polled(request: Poll, store: Store) -> tuple[Record, bytes]:
    """Output from some offset on, as soon as there is any, or the job has ended or begun to wait."""
    folder = store.jobs / request.job
    end_s = time.monotonic() + request.wait_ms / 1000
    first = store.state(request.job)
    while True:
        state = store.state(request.job)  # before its output is read: then all of it is there
        output = _part(folder / "output", request.output, CHUNK_BYTES)
        messages = _part(folder / "messages", request.messages, CHUNK_BYTES)
        changed = (state.state, state.waits_for) != (first.state, first.waits_for)
        if output or messages or changed or state.state in ("ended", "lost") or time.monotonic() >= end_s:
            return Done(state=state, output=len(output)), output + messages
        time.sleep(_LOOK_S)


def _part(path: Path, offset: int, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(count)
    except FileNotFoundError:
        return b""


def main() -> None:
    """Keep standard output for frames, whatever libraries print, and serve."""
    sink = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o077)
    try:
        serve(Channel(os.dup(0), sink), Store())
    except (LostConnectionError, KeyboardInterrupt):
        sys.exit(0)


if __name__ == "__main__":
    main()
