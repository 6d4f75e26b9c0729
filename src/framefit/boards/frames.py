"""What host and board say to each other: frames of a JSON head and raw bytes, with limits on both sides.

A frame is a prefix of 16 bytes (mark, lengths of head and body, CRC-32 of both), the head and the body. A head is one
of the records of this module, told apart by ``kind``; unknown kinds, keys and types are errors. Nothing is unpickled,
and no name that is received is imported or called.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import struct
import time
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import msgspec

from framefit.core.files import Record
from framefit.errors import DeviceError, InputError

MARK = b"FFB1"
GREETING_MARK = b"\n\x00framefit-board-1\x00\n"
"""Stands before the first frame: what a shell's start-up files print before it is passed over."""
PREFIX = struct.Struct(">4sIII")
HEAD_LIMIT = 64 << 10
BODY_LIMIT = 4 << 20
CHUNK_BYTES = 1 << 20
NOISE_LIMIT = 256 << 10
FILE_LIMIT = 4 << 30
JOB_LIMIT = 16 << 30
COUNT_LIMIT = 10_000
ARRAYS_LIMIT = 8 << 30
"""Bytes of an archive of arrays once it is decompressed."""
ANSWER_S = 30.0
"""After this time without an answer a connection is taken for lost."""

VERBS = (
    "doctor",
    "measure",
    "calibrate",
    "estimate",
    "plan",
    "run",
    "soak",
    "profile",
    "report",
    "fit",
    "choose",
    "bundle",
)
"""All that a board does for a host."""
MEASURING = frozenset({"measure", "calibrate", "plan", "run", "soak", "fit", "choose", "bundle"})
"""Verbs that hold the board's lock: one measures at a time."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_JOB = re.compile(r"[a-z]{1,12}-[0-9a-f]{12}")
CODE = (".py", ".pyc", ".pyo", ".pyd", ".pth", ".so", ".dll", ".dylib", ".sh")
_EXECUTABLE = (b"\x7fELF", b"#!", b"MZ", b"\xfe\xed\xfa", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


class FrameError(DeviceError):
    """Bytes that are no valid frame, or a frame that says what must not be said: the connection ends."""


class LostConnectionError(DeviceError):
    """The other side is gone, or does not answer."""


class FileEntry(Record, kw_only=True):
    """A file of a job: its path below the job's folder of files, and its content."""

    path: str
    digest: str
    size: int

    def __post_init__(self) -> None:
        confined(self.path)
        check_digest(self.digest)
        if not 0 <= self.size <= FILE_LIMIT:
            raise ValueError(f"{self.path}: {self.size} bytes are more than {FILE_LIMIT}")


class Command(Record, kw_only=True):
    """A verb with its options, and the files that it reads.

    Attributes:
        given: the options that the user gave; the verb's settings record decodes them.
        screen: likewise those of the command line.
        cwd: current folder below the job's folder of files.
        folders: further folders that are there, without their content: names that are not free.
        who: user and machine that asked, for others who wait.
        columns: width of the user's terminal.
        cores: of the board, for the job; empty: all.
        lock_minutes: the longest time that the job may take.
    """

    verb: str
    given: dict[str, Any]
    screen: dict[str, Any]
    cwd: str
    files: tuple[FileEntry, ...] = ()
    folders: tuple[str, ...] = ()
    who: str = ""
    columns: int = 100
    cores: tuple[int, ...] = ()
    lock_minutes: float = 120

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise ValueError(f"{self.verb[:40]!r} is not done for others; known: {', '.join(VERBS)}")
        confined(self.cwd)
        for folder in self.folders:
            confined(folder)
        if len(self.files) + len(self.folders) > COUNT_LIMIT:
            raise ValueError(f"more than {COUNT_LIMIT} files")
        if sum(file.size for file in self.files) > JOB_LIMIT:
            raise ValueError(f"files of more than {JOB_LIMIT} bytes")
        for file in self.files:
            if PurePosixPath(file.path).suffix.lower() in CODE:
                raise ValueError(f"{file.path}: programs are not taken")
        if not (len(self.who) <= 200 and 20 <= self.columns <= 1000 and 0 < self.lock_minutes <= 100_000):
            raise ValueError("who, columns or lock_minutes are beyond their limits")


State = Literal["waiting", "running", "ended", "lost"]


class JobState(Record, kw_only=True):
    """Where a job is.

    Attributes:
        job: its id.
        verb: what it does.
        who: user and machine that asked.
        state: "lost": its process is gone without a result, as after the board was started anew.
        waits_for: who measures meanwhile.
        exit_code: of the verb, once it has ended.
        age_s: seconds since it was begun, by a clock that nobody sets; ``None``: the board was started anew since.
    """

    job: str
    verb: str = ""
    who: str = ""
    state: State
    waits_for: str = ""
    exit_code: int | None = None
    age_s: float | None = None


class Greeting(Record, tag="greeting", tag_field="kind", kw_only=True):
    """What an agent says first.

    Attributes:
        version: of Framefit.
        digest: of Framefit's own files there.
        python: version of Python.
        machine: name of the machine's architecture.
        jobs: absolute folder of the jobs.
    """

    version: str
    digest: str
    python: str
    machine: str
    jobs: str


class Missing(Record, tag="missing", tag_field="kind"):
    """Which contents are not there? Body: list of digests. Answer: list of (digest, bytes that are there already)."""


class Put(Record, tag="put", tag_field="kind", kw_only=True):
    """Body: bytes of a content from ``offset`` on."""

    digest: str
    size: int
    offset: int

    def __post_init__(self) -> None:
        check_digest(self.digest)
        if not 0 <= self.offset <= self.size <= FILE_LIMIT:
            raise ValueError("offset or size are beyond their limits")


class _OfJob(Record, kw_only=True):
    job: str

    def __post_init__(self) -> None:
        if not _JOB.fullmatch(self.job):
            raise ValueError(f"{self.job[:40]!r} is not the name of a job")


class Start(_OfJob, tag="start", tag_field="kind", kw_only=True):
    """Begin a job, or say where it is. Body: :class:`Command`."""


class Poll(_OfJob, tag="poll", tag_field="kind", kw_only=True):
    """Wait a moment for output from these offsets on. Answer: the state; body: output, then messages."""

    output: int
    messages: int
    wait_ms: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.output, self.messages, self.wait_ms) < 0 or self.wait_ms > 5000:
            raise ValueError("offsets or wait_ms are beyond their limits")


class Results(_OfJob, tag="results", tag_field="kind", kw_only=True):
    """Which files did the job write? Answer: a list of :class:`FileEntry`."""


class Fetch(_OfJob, tag="fetch", tag_field="kind", kw_only=True):
    """Answer: bytes of a file that the job wrote, from ``offset`` on."""

    path: str
    offset: int

    def __post_init__(self) -> None:
        super().__post_init__()
        confined(self.path)
        if not 0 <= self.offset <= FILE_LIMIT:
            raise ValueError("offset is beyond its limits")


class Stop(_OfJob, tag="stop", tag_field="kind", kw_only=True):
    """End a job: it keeps what it has; with ``now`` it does not."""

    now: bool = False


class Forget(_OfJob, tag="forget", tag_field="kind", kw_only=True):
    """Remove an ended job."""


class Jobs(Record, tag="jobs", tag_field="kind"):
    """Which jobs are there? Answer: a list of :class:`JobState`."""


class Time(Record, tag="time", tag_field="kind"):
    """What does the board's clock say?"""


class Done(Record, tag="done", tag_field="kind", kw_only=True):
    """The answer to what could be done.

    Attributes:
        state: of the job that was asked for.
        output: bytes of the body that are the verb's output; the others are its messages.
        size: bytes of the content or file that are there.
        time_ns: the board's monotonic clock.
    """

    state: JobState | None = None
    output: int = 0
    size: int = 0
    time_ns: int = 0


class Failed(Record, tag="failed", tag_field="kind", kw_only=True):
    """The answer to what could not be done: an error of Framefit, in words."""

    what: str
    where: str | None = None
    remedy: str | None = None
    ends: bool = False


Request = Missing | Put | Start | Poll | Results | Fetch | Stop | Forget | Jobs | Time
Answer = Greeting | Done | Failed
T = TypeVar("T")


def packed(head: Record, body: bytes = b"") -> bytes:
    """A frame.

    Raises:
        FrameError: head or body are too long.
    """
    text = msgspec.json.encode(head)
    _check_lengths(len(text), len(body))
    return PREFIX.pack(MARK, len(text), len(body), zlib.crc32(body, zlib.crc32(text))) + text + body


def lengths_of(prefix: bytes) -> tuple[int, int]:
    """Lengths of the head and body that follow a prefix.

    Raises:
        FrameError: it is not one, or the lengths are beyond the limits.
    """
    mark, head, body, _ = PREFIX.unpack(prefix)
    if mark != MARK:
        raise FrameError(f"no frame begins with {mark!r}", remedy="connect again")
    _check_lengths(head, body)
    return head, body


def unpacked(prefix: bytes, text: bytes, body: bytes, kinds: Any) -> tuple[Any, bytes]:
    """The record and the body of a frame.

    Raises:
        FrameError: its checksum is wrong.
        InputError: the head is none of the known records.
    """
    if PREFIX.unpack(prefix)[3] != zlib.crc32(body, zlib.crc32(text)):
        raise FrameError("a frame was damaged on its way", remedy="connect again")
    return decoded(text, kinds, "a frame's head"), body


def decoded(text: bytes, kind: Any, what: str) -> Any:
    """Decode JSON of a known form. Raises: InputError: it has another one."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} cannot be used: {str(error)[:300]}", remedy="use the same version of both") from error


def _check_lengths(head: int, body: int) -> None:
    if head > HEAD_LIMIT or body > BODY_LIMIT:
        raise FrameError(
            f"a frame of {head} + {body} bytes is longer than {HEAD_LIMIT} + {BODY_LIMIT}", remedy="send less at once"
        )


def confined(path: str) -> PurePosixPath:
    """A path that stays below the folder that it is relative to.

    Raises:
        ValueError: it is absolute, empty, too long, or leads out.
    """
    parts = path.split("/")
    plain = all(0 < len(part.encode(errors="replace")) <= 255 and part not in (".", "..") for part in parts)
    if not plain or len(path) > 2048 or any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        raise ValueError(f"{path[:80]!r} is not a path below a job's folder")
    return PurePosixPath(path)


def check_digest(digest: str) -> None:
    """Check the form of a SHA-256. Raises: ValueError: it has another one."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest[:80]!r} is not a SHA-256")


def check_content(path: Path, name: str) -> None:
    """Check what was received before anything reads it.

    Args:
        path: the file.
        name: what it is called, which says its kind.

    Raises:
        InputError: it is a program, or an archive of arrays that is too long once it is decompressed.
    """
    with path.open("rb") as file:
        head = file.read(4)
    if head.startswith(_EXECUTABLE):
        raise InputError("programs are not taken", where=name, remedy="install what a board needs on the board itself")
    if name.lower().endswith((".npz", ".zip")):
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, RuntimeError) as error:
            raise InputError(f"not an archive: {error}", where=name, remedy="send it again") from error
        if len(members) > COUNT_LIMIT or sum(member.file_size for member in members) > ARRAYS_LIMIT:
            raise InputError(
                f"holds more than {ARRAYS_LIMIT >> 30} GiB", where=name, remedy="split it into smaller archives"
            )


def digest_of(path: Path) -> tuple[str, int]:
    """SHA-256 and size of a file. Raises: OSError: it cannot be read."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, file.tell()


class Channel:
    """Frames through two pipes, with an end to every waiting.

    Args:
        source: descriptor to read from.
        sink: descriptor to write to.
    """

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self._buffer = bytearray()
        os.set_blocking(source, False)
        os.set_blocking(sink, False)

    def send(self, head: Record, body: bytes = b"", *, within_s: float = ANSWER_S) -> None:
        """Write one frame.

        Raises:
            FrameError: it is too long.
            LostConnectionError: nobody reads it in time.
        """
        self.write(packed(head, body), within_s=within_s)

    def write(self, data: bytes, *, within_s: float = ANSWER_S) -> None:
        """Write bytes. Raises: LostConnectionError: nobody reads them in time."""
        view, end_s = memoryview(data), time.monotonic() + within_s
        while view:
            self._wait(end_s, writing=True)
            try:
                view = view[os.write(self._sink, view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise LostConnectionError(f"the connection has ended ({error.strerror})") from error

    def receive(self, kinds: Any, *, within_s: float = ANSWER_S) -> tuple[Any, bytes]:
        """Read one frame.

        Raises:
            FrameError: what came is none.
            InputError: its head is none of ``kinds``.
            LostConnectionError: it does not come in time.
        """
        end_s = time.monotonic() + within_s
        prefix = self._read(PREFIX.size, end_s)
        head, body = lengths_of(prefix)
        return unpacked(prefix, self._read(head, end_s), self._read(body, end_s), kinds)

    def pass_over(self, mark: bytes, *, within_s: float) -> bytes:
        """Read up to a mark, and give what stood before it.

        Raises:
            FrameError: too much stands before it.
            LostConnectionError: it does not come in time.
        """
        end_s = time.monotonic() + within_s
        while (at := self._buffer.find(mark)) < 0:
            if len(self._buffer) > NOISE_LIMIT:
                raise FrameError(
                    f"{NOISE_LIMIT} bytes came before the agent's greeting", remedy="look into the shell's start-up"
                )
            self._fill(end_s)
        noise = bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
        return noise

    def _read(self, count: int, end_s: float) -> bytes:
        while len(self._buffer) < count:
            self._fill(end_s)
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _fill(self, end_s: float) -> None:
        self._wait(end_s, writing=False)
        try:
            data = os.read(self._source, 1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            raise LostConnectionError(f"the connection has ended ({error.strerror})") from error
        if not data:
            raise LostConnectionError("the connection has ended")
        self._buffer += data

    def _wait(self, end_s: float, *, writing: bool) -> None:
        left_s = end_s - time.monotonic()
        sources, sinks = ([], [self._sink]) if writing else ([self._source], [])
        if left_s <= 0 or not any(select.select(sources, sinks, [], left_s)):
            raise LostConnectionError("no answer came in time")
