"""The journal of a run: a folder that is claimed at the start, and files that grow during the run.

A journal survives its process. Each file is a sequence of whole rows or whole lines; a file that ends in the middle of
one, wherever it was cut off, is read without that one. Recording code only passes bytes on: a thread of the journal
writes them within a second. Written data are held by the operating system, so that they survive a killed process, but
not a loss of power.

Without a folder the same files have no names: they are deleted with the journal, and only spare memory in a long run.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import platform
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from framefit.core.files import Record, check_folder, claim_number, from_text, to_json
from framefit.errors import InputError

__all__ = [
    "JOURNAL",
    "Claim",
    "Journal",
    "JournalFile",
    "claimed",
    "journal_parts",
    "numbered_files",
    "read_lines",
    "read_rows",
    "released",
]

JOURNAL = "journal"
"""Folder in a run folder that holds the journal during the run, and after it was cut off."""
_CLAIM = "claim.json"
_WRITE_S = 0.4  # least time between two writes
_WAKE_S = 0.3  # additional time that the thread waits for a moment in which nothing else is due
Data = bytes | memoryview
R = TypeVar("R", bound=Record)


class JournalFile:
    """A file to which bytes are appended.

    One thread appends; any thread may read all appended bytes, whether they are written yet or not.

    Args:
        journal: decides which thread writes.
        path: of the file; ``None``: it has no name.
        size: present size of the file.
    """

    def __init__(self, journal: Journal, path: Path | None, size: int = 0) -> None:
        self._journal = journal
        self._path = path
        self._pending: deque[Data | Callable[[], Data]] = deque()
        self._rotation: tuple[int, int] | None = None
        self.observer: Callable[[Data], None] | None = None
        """Called with appended bytes, by the thread that appends them."""
        self._written = size
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()  # between writing and reading threads

    @property
    def named(self) -> bool:
        """Whether it survives the process."""
        return self._path is not None

    @property
    def failed(self) -> bool:
        """Whether the recording has ended."""
        return self._journal.failure is not None

    def rotate(self, size: int, keep: int) -> None:
        """From now on a file of this size gets a number, and a new one begins; the oldest of them are deleted.

        Args:
            size: bytes that a file with a name must reach.
            keep: how many earlier files stay; see :func:`numbered_files`.
        """
        self._rotation = (size, keep)

    def append(self, data: Data | Callable[[], Data]) -> None:
        """Append bytes, or a function that makes them in the writing thread; returns at once."""
        if self.observer is not None and not callable(data):
            self.observer(data)
        if self._journal.failure is None:
            self._pending.append(data)
            if not self._journal.in_thread:
                self.write()

    def write(self) -> None:
        """Write all appended bytes; if they cannot be written, the recording ends."""
        with self._lock:
            while self._pending and self._journal.failure is None:
                try:
                    self._write(self._pending[0])
                except OSError as error:
                    if self._path is None:  # the run continues, so data that cannot be written stay in memory
                        return
                    self._journal.failure = error
                    break
                self._pending.popleft()
            if self._journal.failure is not None:
                self._pending.clear()

    def read(self) -> bytes:
        """Return all appended bytes."""
        with self._lock:
            pending = list(self._pending)  # at once: another thread may append
            rest = [bytes(data() if callable(data) else data) for data in pending]
            parts, at = list[bytes](), 0
            while self._file is not None and at < self._written:
                parts.append(os.pread(self._file.fileno(), self._written - at, at))
                at += len(parts[-1])
        return b"".join([*parts, *rest])

    def open(self) -> BinaryIO:
        """Open a file of all appended bytes at its beginning, after the last append."""
        self.write()
        if self._file is None or self._pending:
            return io.BytesIO(self.read())
        file = os.fdopen(os.dup(self._file.fileno()), "rb")
        file.seek(0)
        return file

    def clear(self) -> None:
        """Delete the contents."""
        with self._lock:
            self._pending.clear()
            self._written = 0

    def discard(self) -> None:
        """Remove the file."""
        with self._lock:
            self._pending.clear()
            if self._file is not None:
                self._file.close()
                self._file = None
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            self._written = 0

    def _write(self, data: Data | Callable[[], Data]) -> None:
        if callable(data):
            data = data()
        if self._rotation is not None and self._path is not None and self._written >= self._rotation[0]:
            self._begin_anew(self._path, self._rotation[1])
        if self._file is None:
            if self._path is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open as long as this object lives
            else:
                self._file = self._path.open("r+b" if self._path.exists() else "w+b", buffering=0)
            weakref.finalize(self, self._file.close)
        view, at = memoryview(data).cast("B"), self._written
        while len(view):
            written = os.pwrite(self._file.fileno(), view, at)
            view, at = view[written:], at + written
            if self._path is not None:  # otherwise it is tried again from the beginning
                self._written = at
        self._written = at

    def _begin_anew(self, path: Path, keep: int) -> None:
        """Number the file that is full, and those before it."""
        files = [path, *numbered_files(path, keep)]
        for newer, older in reversed(list(itertools.pairwise(files))):
            if newer.exists():
                newer.replace(older)
        if self._file is not None:
            self._file.close()
        self._file, self._written = None, 0


class Journal:
    """The files of one part of a run, and the thread that writes them.

    Args:
        folder: existing folder of the part; ``None``: the files have no names, and are written at once.

    Attributes:
        folder: the same.
        in_thread: whether a thread writes, so that no other one waits for the disk.
        failure: error that ended the recording; ``None``: there was none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.in_thread = False
        self.failure: OSError | None = None
        self._files: dict[str, JournalFile] = {}
        self._thread: threading.Thread | None = None
        self._asleep = threading.Lock()
        self._ended = threading.Event()

    @property
    def named(self) -> bool:
        """Whether it survives the process."""
        return self.folder is not None

    def file(self, name: str) -> JournalFile:
        """The file of a name; its first bytes create it."""
        if self.folder is None:
            return JournalFile(self, None)
        return self._files.setdefault(name, JournalFile(self, self.folder / name))

    def observe(self, prefix: str, observer: Callable[[Data], None]) -> None:
        """Have what is appended to files whose names begin so handed to a function, too, which returns at once."""
        for name, file in self._files.items():
            if name.startswith(prefix):
                file.observer = observer

    def adopt(self, path: Path) -> JournalFile:
        """An existing file anywhere, which grows from its present end on."""
        return self._files.setdefault(str(path), JournalFile(self, path, path.stat().st_size))

    def start(
        self,
        note: Callable[[], bytes],
        place: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """Write in a thread from now on.

        Args:
            note: called by the thread before each write; makes a line about the state of the run.
            place: entered by the thread, to leave the core of the thread that starts it, which it has else.
        """
        if self.folder is None:
            return
        self.in_thread, self._note, self._notes = True, note, self.file("state.jsonl")
        self._thread = threading.Thread(target=self._work, args=(place,), name="framefit-journal", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the thread write, since nothing else is due for a while; the caller does not wait."""
        if self._asleep.locked():
            with contextlib.suppress(RuntimeError):  # another caller has done so
                self._asleep.release()

    def stop(self) -> None:
        """Write all appended bytes, and end the thread."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
        self.in_thread = False

    def _work(self, place: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        with place():
            while True:
                ended = self._ended.wait(_WRITE_S)
                if not ended:
                    self._asleep.acquire(blocking=False)  # earlier wake-ups do not count
                    self._asleep.acquire(timeout=_WAKE_S)
                self._notes.append(self._note() + b"\n")
                for file in list(self._files.values()):
                    if file is not self._notes:
                        file.write()
                self._notes.write()  # last, since its lines refer to data in the other files
                if ended:
                    return


def numbered_files(path: Path, keep: int) -> list[Path]:
    """Names of the earlier files of one that is rotated, newest first: ``x.1.jsonl``, ``x.2.jsonl``, ... ."""
    return [path.with_name(f"{path.stem}.{number}{path.suffix}") for number in range(1, keep + 1)]


def read_rows(path: Path, size: int) -> bytes:
    """Read whole rows of a journal's file, of ``size`` bytes each; empty if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    return data[: len(data) // size * size]


def read_lines(path: Path, kind: type[R]) -> list[R]:
    """Read whole lines of a journal's file, each a record; empty if there is no file.

    Raises:
        InputError: a line is not such a record.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [from_text(line, kind, path) for line in data[: data.rfind(b"\n") + 1].splitlines()]


class _ClaimNote(Record, kw_only=True):
    """The process that writes into a run folder."""

    schema_version: int = 1
    process: int
    host: str
    since: str


class Claim:
    """A run folder that belongs to this process until it is complete, or the process ends.

    The claim is a lock on a file in the journal. The system releases it when the process ends, in whatever way.

    Attributes:
        folder: the run folder.
        journal: the folder of its journal.
        recording: whether the run has begun to record; then the folder stays in any case.
    """

    def __init__(self, folder: Path, lock: int, *, made: bool) -> None:
        self.folder = folder
        self.journal = folder / JOURNAL
        self.recording = False
        self._lock = lock
        self._made = made

    def part(self, *, resumes: bool) -> Path:
        """The folder of the run's next part."""
        return self.journal / f"part-{len(journal_parts(self.folder)) + 1 if resumes else 1}"

    def begin(self, *, resumes: bool) -> Path:
        """Make the folder of the run's next part, and remove the run that is replaced.

        Args:
            resumes: whether the journal has parts already, which stay.

        Raises:
            InputError: the folder cannot be written.
        """
        try:
            for path in self.folder.iterdir():
                if path != self.journal:
                    _remove(path)
            for path in [] if resumes else self.journal.iterdir():
                if path.name != _CLAIM:
                    _remove(path)
            part = self.part(resumes=resumes)
            part.mkdir()
        except OSError as error:
            raise InputError(
                f"cannot be written: {error}", where=self.folder, remedy="check folder and space"
            ) from error
        self.recording = True
        return part

    def complete(self) -> None:
        """Remove the journal, since the run folder has all of its files."""
        shutil.rmtree(self.journal, ignore_errors=True)

    def release(self) -> None:
        """Release the folder; if nothing was recorded, it is as it was before."""
        if not self.recording:
            with contextlib.suppress(OSError):
                if not journal_parts(self.folder):
                    shutil.rmtree(self.journal)
                if self._made:
                    self.folder.rmdir()
                    self.folder.parent.rmdir()  # if it is empty
        os.close(self._lock)


def claimed(place: Path, mark: str, what: str, *, numbers: bool, force: bool, resumes: bool = False) -> Claim:
    """Claim a run folder before any work for the run; see :class:`Claim`.

    Args:
        place: the folder, or its name without the number.
        mark: name of a file that only complete run folders have.
        what: name of such a folder in messages.
        numbers: whether to take the first free number.
        force: whether to replace a run, also one that was cut off.
        resumes: whether to continue a run that was cut off.

    Raises:
        InputError: another process writes there, something there must not be replaced, or there is nothing to
            continue.
    """
    folder = claim_number(place) if numbers else place.resolve()
    journal = folder / JOURNAL
    if not journal_parts(folder) and not _in_use(folder):
        if resumes:
            raise InputError(
                "is not the folder of a run that was cut off, so nothing can be resumed",
                where=folder,
                remedy="leave --resume out, or name the run folder",
            )
        if not numbers:
            check_folder(folder, mark, what, force=force)
    made = numbers or not folder.exists()
    try:
        journal.mkdir(parents=True, exist_ok=True)
        lock = os.open(journal / _CLAIM, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"cannot be written: {error}", where=folder, remedy="check folder and space") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino != (journal / _CLAIM).stat().st_ino:
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        raise InputError(
            f"another run writes into it{_who(journal)}",
            where=folder,
            remedy="choose another folder, or wait until that run has ended; --force does not replace it",
        ) from None
    try:
        if not numbers and not journal_parts(folder) and any(path != journal for path in folder.iterdir()):
            check_folder(folder, mark, what, force=force)
    except InputError:
        os.close(lock)
        raise
    if journal_parts(folder) and not (force or resumes):
        os.close(lock)
        raise InputError(
            "holds a run that was cut off",
            where=folder,
            remedy="framefit report FOLDER shows what is left, --resume goes on with it, --force overwrites it",
        )
    note = _ClaimNote(
        process=os.getpid(), host=platform.node(), since=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    )
    os.truncate(lock, 0)
    os.pwrite(lock, to_json(note).encode(), 0)
    return Claim(folder, lock, made=made)


def journal_parts(folder: Path) -> list[Path]:
    """The parts of a run folder's journal, in order; it exists during the run, and after it was cut off."""
    parts = (folder / JOURNAL).glob("part-*")
    return sorted(parts, key=lambda part: int(part.name.removeprefix("part-")))


@contextlib.contextmanager
def released(claim: Claim) -> Iterator[Claim]:
    """Release a claim in the end."""
    try:
        yield claim
    finally:
        claim.release()


def _in_use(folder: Path) -> bool:
    return (folder / JOURNAL / _CLAIM).exists()


def _who(journal: Path) -> str:
    """The process that has claimed a folder, as far as it is known."""
    try:
        note = msgspec.json.decode((journal / _CLAIM).read_bytes(), type=_ClaimNote)
    except (OSError, msgspec.DecodeError):
        return ""
    return f": process {note.process} on {note.host}, since {note.since}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
