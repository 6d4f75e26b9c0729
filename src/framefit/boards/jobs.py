"""Jobs on the board: a folder each, a process of its own, and a lock, so that one measures at a time.

The board's folder, below the cache, holds ``files/`` (contents by their SHA-256, the oldest dropped at a limit) and
``jobs/ID/``: ``command.json``, ``process.json``, ``output``, ``messages``, ``work/`` with the files, ``result.json``.
A job's process outlives the connection that began it. It takes the lock, starts the verb as its child, ends it when it
is asked or its time is up, and writes down what came of it. Clocks here are those that nobody sets.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from framefit.boards.frames import (
    MEASURING,
    Command,
    FileEntry,
    JobState,
    check_content,
    confined,
    digest_of,
)
from framefit.core.files import Record, cache_folder
from framefit.errors import DeviceError, FramefitError, InputError

__all__ = ["end_with_parent", "job_command"]


STORE_LIMIT = 8 << 30
"""Bytes of contents that are kept for later jobs."""
KEPT_JOBS = 40
GRACE_S = 20.0
"""Seconds that a verb has for writing down what it has, once it is asked to end."""
_AWAITED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP})
"""Signals that a job's process waits for, and is not ended by."""
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of linux/prctl.h
R = TypeVar("R", bound=Record)


class Process(Record, kw_only=True):
    """A job's process, so that no other one of the same number is taken for it.

    Attributes:
        boot: the board's id since it was started.
        ticks: when the process was started, in the kernel's ticks.
        begun_s: likewise, on the clock that counts since the board was started.
    """

    pid: int
    boot: str
    ticks: int
    begun_s: float


class Result(Record, kw_only=True):
    """What came of a job."""

    exit_code: int
    files: tuple[FileEntry, ...] = ()


class Store:
    """The board's folder.

    Args:
        folder: default: ``board`` in the cache.
        limit_bytes: of contents.
    """

    def __init__(self, folder: Path | None = None, *, limit_bytes: int = STORE_LIMIT) -> None:
        self.folder = Path(os.path.realpath(folder or cache_folder() / "board"))
        self._limit_bytes = limit_bytes
        for part in ("files", "jobs"):
            (self.folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def jobs(self) -> Path:
        """Folder of all jobs."""
        return self.folder / "jobs"

    def content(self, digest: str) -> Path:
        """Where a content is, or would be."""
        return self.folder / "files" / digest

    def present_bytes(self, digest: str) -> int | None:
        """Bytes of a content that have arrived so far; ``None``: all of them."""
        content = self.content(digest)
        if content.exists():
            os.utime(content)
            return None
        with contextlib.suppress(FileNotFoundError):
            return content.with_suffix(".part").stat().st_size
        return 0

    def add(self, digest: str, size: int, offset: int, data: bytes) -> int:
        """Add bytes to a content; with the last ones it is checked and takes its name.

        Returns:
            How many bytes are there.

        Raises:
            InputError: the content is not that of its digest.
        """
        content = self.content(digest)
        if content.exists():
            return size
        part = content.with_suffix(".part")
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            present = file.tell()
            if present != offset or present + len(data) > size:
                if present > size:
                    part.unlink()
                return present
            file.write(data)
            file.flush()
            present += len(data)
        if present == size:
            if digest_of(part) != (digest, size):
                part.unlink()
                raise InputError("a file arrived damaged", where=digest[:12], remedy="send it again")
            part.chmod(0o444)
            part.replace(content)
            self._drop_oldest(content)
        return present

    def _drop_oldest(self, newest: Path) -> None:
        """Keep the contents below the limit; those of running jobs have another name there, and stay readable."""
        files = [(file.stat(), file) for file in (self.folder / "files").iterdir()]
        total = sum(facts.st_size for facts, _ in files)
        for facts, file in sorted(files, key=lambda each: each[0].st_mtime_ns):
            if total <= self._limit_bytes:
                return
            if file != newest:
                file.unlink(missing_ok=True)
                total -= facts.st_size

    def start(self, job: str, command: Command) -> None:
        """Make a job's folder and start its process, unless it is there already.

        Raises:
            InputError: a content is missing, or is nothing that a board takes.
        """
        folder = self.jobs / job
        if folder.exists():
            return
        self._forget_oldest()
        part = self.jobs / f".{job}-{secrets.token_hex(4)}"
        try:
            work = part / "work"
            for name in (command.cwd, *command.folders):
                (work / confined(name)).mkdir(parents=True, exist_ok=True)
            for file in command.files:
                self._place(file, work / confined(file.path))
            _write(part / "command.json", command)
            try:
                part.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
                return
        finally:
            shutil.rmtree(part, ignore_errors=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)  # the job's process has them blocked from its start
        try:
            with (folder / "messages").open("ab") as messages:
                process = subprocess.Popen(  # noqa: S603 - this program
                    [sys.executable, "-P", "-m", "framefit.boards.jobs", str(folder)],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _write(folder / "process.json", identified(process.pid))

    def _place(self, file: FileEntry, place: Path) -> None:
        content = self.content(file.digest)
        if not content.exists() or content.stat().st_size != file.size:
            raise InputError("a file of the job has not arrived", where=file.path, remedy="send it again")
        check_content(content, file.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix == ".onnx":  # which no verb writes in its place
            with contextlib.suppress(OSError):
                place.hardlink_to(content)
                return
        shutil.copyfile(content, place)

    def _forget_oldest(self) -> None:
        ended = [state.job for state in self.states() if state.state in ("ended", "lost")]
        for job in ended[: max(0, len(ended) - KEPT_JOBS)]:
            self.forget(job)

    def forget(self, job: str) -> None:
        """Remove a job that has ended."""
        if self.state(job).state in ("ended", "lost"):
            gone = self.jobs / f".{job}-{secrets.token_hex(4)}"  # at once, for others who list jobs meanwhile
            with contextlib.suppress(OSError):
                (self.jobs / job).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def states(self) -> list[JobState]:
        """All jobs, the oldest first."""
        begun = []
        for folder in self.jobs.iterdir():
            with contextlib.suppress(OSError, InputError):  # another agent has removed it meanwhile
                if not folder.name.startswith("."):
                    begun.append((folder.stat().st_mtime_ns, folder.name, self.state(folder.name)))
        return [state for _, _, state in sorted(begun, key=lambda each: each[:2])]

    def state(self, job: str) -> JobState:
        """Where a job is. Raises: InputError: there is none."""
        folder = self.jobs / job
        if not folder.is_dir():
            raise InputError("no such job", where=job, remedy="list them with framefit board jobs NAME")
        command = job_command(folder)
        about: dict[str, Any] = {"job": job, "verb": command.verb, "who": command.who}
        result = _read(folder / "result.json", Result)
        if result is not None:
            return JobState(**about, state="ended", exit_code=result.exit_code)
        process = _process(folder)
        if process is None or not lives(process):
            result = _read(folder / "result.json", Result)  # it may have ended in between
            if result is not None:
                return JobState(**about, state="ended", exit_code=result.exit_code)
            return JobState(**about, state="lost")
        age_s = _since_boot_s() - process.begun_s
        waits_for = folder / "waits"
        if waits_for.exists():
            return JobState(**about, state="waiting", waits_for=_text(waits_for), age_s=age_s)
        return JobState(**about, state="running", age_s=age_s)

    def stop(self, job: str, *, now: bool) -> None:
        """Ask a job to end, and keep what it has; ``now``: end all of its processes."""
        process = _process(self.jobs / job)
        if process is None or not lives(process):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
            os.killpg(process.pid, signal.SIGCONT)  # it may have been frozen
            if now:
                os.killpg(process.pid, signal.SIGKILL)

    def results(self, job: str) -> tuple[FileEntry, ...]:
        """Files that a job wrote, up to where it was lost; none before it has ended."""
        folder = self.jobs / job
        result = _read(folder / "result.json", Result)
        if result is not None:
            return result.files
        if self.state(job).state != "lost":
            return ()
        placed = {(file.path, file.digest) for file in job_command(folder).files}
        files = tuple(file for file in _changed(folder / "work", {}) if (file.path, file.digest) not in placed)
        _write(folder / "written.json", Result(exit_code=3, files=files))
        return files

    def result_file(self, job: str, path: str) -> Path:
        """A file that a job wrote. Raises: InputError: it wrote none of this name."""
        result = _read(self.jobs / job / "result.json", Result) or _read(self.jobs / job / "written.json", Result)
        if result is None or path not in {entry.path for entry in result.files}:
            raise InputError("the job wrote no such file", where=path, remedy="fetch what it wrote")
        place = self.jobs / job / "work" / confined(path)
        if place.is_symlink() or not place.resolve().is_relative_to(self.jobs / job / "work"):
            raise InputError("not a file of the job", where=path, remedy="fetch what it wrote")
        return place


def job_command(folder: Path) -> Command:
    """What a job does. Raises: InputError: it cannot be read."""
    command = _read(folder / "command.json", Command)
    if command is None:
        raise InputError("not the folder of a job", where=folder, remedy="start the job again")
    return command


def job_folder(folder: Path) -> Path:
    """The current folder of a job's verb."""
    return folder / "work" / confined(job_command(folder).cwd)


def end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, whatever ends that, and receive signals."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def identified(pid: int) -> Process:
    """A process of this board, told apart from later ones of its number."""
    return Process(pid=pid, boot=_boot(), ticks=_start_ticks(pid), begun_s=_since_boot_s())


def lives(process: Process) -> bool:
    """Whether it is still there."""
    return process.boot == _boot() and _start_ticks(process.pid) == process.ticks != 0


def _process(folder: Path) -> Process | None:
    """The process of a job; it is written down just after it was started."""
    for _ in range(50):
        process = _read(folder / "process.json", Process)
        if process is not None or not folder.exists():
            return process
        time.sleep(0.02)
    return None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC)


def _start_ticks(pid: int) -> int:
    """When a process was started, in ticks since boot; 0: it is gone, or has ended and nobody has asked how."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0


def _read(path: Path, kind: type[R]) -> R | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError:
        return None
    except (msgspec.DecodeError, ValueError):  # of another version
        return None


def _write(path: Path, record: Record) -> None:
    part = path.with_name(f".{path.name}-{os.getpid()}")
    part.write_bytes(msgspec.json.encode(record))
    part.replace(path)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        text = path.read_bytes()[:300].decode(errors="replace")
        return "".join(letter for letter in text if letter.isprintable())
    return ""


def _lock_file() -> Path:
    """One lock for the whole board, whoever asks; with a cache of one's own it is that cache's."""
    own = os.environ.get("FRAMEFIT_CACHE")
    return Path(own or "/tmp") / "framefit-measures.lock"  # noqa: S108 - every user of the board has the same


@contextlib.contextmanager
def _alone(folder: Path, who: str) -> Iterator[bool]:
    """Wait until nobody else measures; false: the job was asked to end before."""
    place = _lock_file()
    before = os.umask(0)
    try:
        for mode in (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDONLY):
            with contextlib.suppress(OSError):
                lock = os.open(place, mode | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
                break
        else:
            raise DeviceError("the board's lock cannot be opened", where=place, remedy="remove that file")
    finally:
        os.umask(before)
    waits = folder / "waits"
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waits.write_text(_text(place) or "another program that measures")
            if signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, 0.2) is not None:
                yield False
                return
        with contextlib.suppress(OSError):  # it may be another user's
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"job {folder.name} of {who}".encode(), 0)
        waits.unlink(missing_ok=True)
        yield True
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
        os.close(lock)


def keep(folder: Path) -> None:
    """Do a job: this is its process. What it was asked to do is in its folder."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    command = job_command(folder)
    if command.cores:
        allowed = set(command.cores) & os.sched_getaffinity(0)
        if allowed:
            os.sched_setaffinity(0, allowed)
    before = _facts(folder / "work")
    try:
        with contextlib.ExitStack() as stack:
            begins = command.verb not in MEASURING or stack.enter_context(_alone(folder, command.who))
            code = _verb_ended(folder, command) if begins else 130
    except (FramefitError, OSError) as error:
        with (folder / "messages").open("a") as messages:
            messages.write(f"framefit: {error}\n")
        code = 3
    files = tuple(_changed(folder / "work", before))
    _write(folder / "result.json", Result(exit_code=code, files=files))


def _verb_ended(folder: Path, command: Command) -> int:
    """Start the verb, wait for its end or ask for it, and give the exit code."""
    awaited = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    end_s = _since_boot_s() + 60 * command.lock_minutes
    stopping = False
    with (folder / "output").open("ab") as output, (folder / "messages").open("ab") as messages:
        child = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-P", "-u", "-m", "framefit.cli.forwarded", str(folder)],
            cwd=job_folder(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=messages,
            env={**os.environ, "COLUMNS": str(command.columns), "NO_COLOR": "1", "TERM": "dumb"},
        )
        while child.poll() is None:
            left_s = end_s - _since_boot_s()
            received = signal.sigtimedwait(awaited, max(left_s, 0.0)) if left_s > 0 else None
            if received is not None and received.si_signo == signal.SIGCHLD:
                continue
            if stopping and received is None:
                child.kill()
                child.wait()
                messages.write(f"framefit: the verb did not end in {GRACE_S:g} s and was ended\n".encode())
                return 130
            if not stopping:
                if received is None:
                    messages.write(f"framefit: the job's {command.lock_minutes:g} minutes are over\n".encode())
                child.send_signal(signal.SIGINT)
                stopping, end_s = True, _since_boot_s() + GRACE_S
        if child.returncode < 0:
            name = signal.Signals(-child.returncode).name
            messages.write(
                f"framefit: the verb was ended by {name}\nremedy: look into memory and drivers of the board\n".encode()
            )
            return 130 if stopping else 3
        return child.returncode


def _facts(work: Path) -> dict[str, tuple[int, int, int]]:
    """Identity of each file, to see which are new or changed."""
    facts = {}
    for folder, folders, names in os.walk(work):
        folders.sort()
        for name in sorted(names):
            place = Path(folder) / name
            seen = place.lstat()
            unfinished = name.startswith(".") and name.endswith(".part")
            if not (place.is_symlink() or unfinished) and place.is_file():
                facts[place.relative_to(work).as_posix()] = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
    return facts


def _changed(work: Path, before: dict[str, tuple[int, int, int]]) -> Iterator[FileEntry]:
    for path, facts in _facts(work).items():
        if before.get(path) != facts:
            with contextlib.suppress(ValueError, OSError):  # of a name or size that nobody takes
                digest, size = digest_of(work / path)
                yield FileEntry(path=path, digest=digest, size=size)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
