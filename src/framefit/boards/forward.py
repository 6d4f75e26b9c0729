"""A verb on a board: its files go there by their hashes, its output comes here, and so do the files that it writes.

Files have the same paths below a job's folder as they have here below ``/``, so relative paths mean the same on both
sides; absolute ones in records (``*.toml``, ``*.json``) are translated. What comes back is written only where the verb
would have written here (:class:`Place`), whatever the board says.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from framefit.boards.client import Remote, Stopped, new_job, plain
from framefit.boards.frames import (
    CODE,
    COUNT_LIMIT,
    FILE_LIMIT,
    JOB_LIMIT,
    Command,
    Fetch,
    FileEntry,
    Forget,
    FrameError,
    Poll,
    Results,
    Start,
    Stop,
    check_content,
    confined,
    digest_of,
)
from framefit.boards.registry import config_folder
from framefit.core.boards import Board
from framefit.core.files import Record, write_record, write_whole
from framefit.core.journal import JOURNAL
from framefit.core.settings import Notify, Option
from framefit.core.workload import names_function
from framefit.errors import DeviceError, InputError

_RECORDS = (".toml", ".json")
_RECORD_LIMIT = 64 << 20
_OUTPUT_LIMIT = 1 << 30
_NAMING = {"path", "source", "table", "target", "app"}
"""Keys of records whose text may name a file."""
_CALLING = {"source", "sink", "postprocess"}
"""Keys whose text may name a function of the user."""
_WRITTEN = {"update_table", "page"}
"""Options that name a file to write and overwrite; those that must not exist say so themselves."""
_POLL_MS = 500


class Place(Record, kw_only=True):
    """Where a board's files may be written here.

    Attributes:
        path: a file, or a folder with all that is below it.
        overwrites: whether what is there may be replaced.
    """

    path: str
    overwrites: bool = False


class Ticket(Record, kw_only=True):
    """What this machine remembers of a job that it began, so that it can attach to it.

    Attributes:
        work: the job's folder of files on the board.
        places: where its files may be written here.
        named: whether workloads name the board as their target, which is ``cpu`` there.
    """

    board: str
    job: str
    work: str
    places: tuple[Place, ...]
    named: bool = False


class JobFiles:
    """What a verb reads and where it writes, as its options say.

    Args:
        verb: its name.
        every: its options, and those of the command line.
        given: option -> value, as far as the user gave them.

    Raises:
        InputError: a workload names functions, or there are too many files.
    """

    def __init__(self, verb: str, every: Mapping[str, Option], given: Mapping[str, Any]) -> None:
        self.sources: dict[str, Path] = {}
        self.places: list[Place] = []
        self.folders: list[str] = []
        self._verb = verb
        for name, option in every.items():
            value = given.get(name, option.default if option.names in ("workload", "workload or plan") else None)
            for text in _texts(value):
                self._take(option, name, text, given)
        self._default_places(given)

    def _take(self, option: Option, name: str, text: str, given: Mapping[str, Any]) -> None:
        path = Path(text)
        if option.names == "new path" or name in _WRITTEN:
            resumes = bool(given.get("resume"))
            self._write(path, overwrites=bool(given.get("force")) or resumes or name in _WRITTEN)
            if (resumes or name in _WRITTEN) and path.exists():
                self._read(path)
        elif option.names is not None and path.exists():
            self._read(path)
            if name == "resume" or (given.get("resume") and option.names == "workload or plan"):
                self._write(path, overwrites=True)

    def _default_places(self, given: Mapping[str, Any]) -> None:
        here = Path.cwd()
        for name in {"run": ("runs",), "soak": ("runs",), "profile": ("profiles",)}.get(self._verb, ()):
            taken = sorted(entry for entry in here.joinpath(name).glob("*") if entry.is_dir())
            self.folders += [_below_root(entry) for entry in taken[:COUNT_LIMIT]]
            self._write(here / name, overwrites=False)
        if self._verb == "profile":
            self._write(Path(given["trace"]) / "profile", overwrites=bool(given.get("force")))
        elif self._verb == "report" and given.get("inputs"):
            first = Path(given["inputs"][0])
            self._write((first if first.is_dir() else first.parent) / "report.html", overwrites=True)
        elif self._verb == "choose" and "output" in given:
            self._write(Path(given["output"]), overwrites=True)
        elif self._verb == "fit" and not given.get("resume") and "output" not in given:
            self._write(here / f"{Path(given.get('app', 'app.toml')).stem}-fit", overwrites=bool(given.get("force")))

    def _write(self, path: Path, *, overwrites: bool) -> None:
        self.places.append(Place(path=_absolute(path), overwrites=overwrites))

    def _read(self, path: Path, place: str | None = None) -> None:
        """Add a file or folder with all that its records name."""
        place = _below_root(path) if place is None else place
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
                for name in sorted(names):
                    file = Path(folder, name)
                    if file.is_file() and not name.startswith(".") and file.suffix.lower() not in CODE:
                        below = f"{place}/{file.relative_to(path).as_posix()}"
                        self._add(file, below)
                        if name in ("timetable.json", "fit.json") and self._verb != "report":
                            self._read_record(file, below)
            return
        self._add(path, place)  # before what it names: that may be itself
        if path.suffix in _RECORDS and self._verb != "report":
            self._read_record(path, place)

    def _add(self, path: Path, place: str) -> None:
        if place in self.sources:
            return
        self.sources[place] = path
        if len(self.sources) > COUNT_LIMIT:
            raise InputError(
                f"more than {COUNT_LIMIT} files would be sent", where=path, remedy="store data as .npz files"
            )
        if path.suffix == ".onnx":
            from framefit.core.model.loading import external_files

            for name in external_files(path):
                self._add(path.parent / name, str(Path(place).parent / name))

    def _read_record(self, path: Path, place: str) -> None:
        try:
            data = path.read_bytes()
            record = tomllib.loads(data.decode()) if path.suffix == ".toml" else msgspec.json.decode(data)
        except (OSError, ValueError, RecursionError):  # the verb says better what is wrong
            return
        for key, text in _named(record):
            if key in _CALLING and names_function(text):
                raise InputError(
                    f"$.{key} names the function {text!r}, and a board executes nothing that it is sent",
                    where=path,
                    remedy="use files for it, or run framefit on the board itself",
                )
            self._read_named(key, text, path, place)

    def _read_named(self, key: str, text: str, path: Path, place: str) -> None:
        absolute = Path(text).is_absolute()
        file = path.resolve().parent / text
        if key == "sink":
            self._write(file, overwrites=True)
        elif key in _NAMING and (file.is_file() or (key == "source" and file.is_dir())):
            below = _below_root(Path(text)) if absolute else os.path.normpath(f"/{Path(place).parent}/{text}")[1:]
            if below in self.sources:
                return
            if file.suffix == ".json":
                self._add(file, below)
            else:
                self._read(file, below)


def _texts(value: Any) -> Iterator[str]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
    return (text for text in values if isinstance(text, str) and text != "")


def _named(data: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts in plain data, with the key that they stand under."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _named(value, name)
    elif isinstance(data, list):
        for value in data:
            yield from _named(value, key)
    elif isinstance(data, str):
        yield key, data


def _below_root(path: Path) -> str:
    return _absolute(path).lstrip("/")


def _absolute(path: Path) -> str:
    """From ``/`` on, without ``..``; links stay, as they are what the user calls it."""
    return os.path.normpath(path.absolute())


def perform(
    board: Board,
    verb: str,
    every: Mapping[str, Option],
    given: Mapping[str, Any],
    screen_given: Mapping[str, Any],
    *,
    notify: Notify,
    stop: Stopped,
    columns: int,
    show: Callable[[str], object] | None = None,
) -> int:
    """Do a verb on a board: send what it reads, follow it, and fetch what it writes.

    Args:
        board: where.
        verb: its name.
        every: its options, and those of the command line.
        given: option -> value, as far as the user gave them.
        screen_given: likewise of the command line.
        notify: hears what is being done here.
        stop: whether the user has asked to stop.
        columns: width of the terminal.
        show: gets the verb's output; default: it is shown on the terminal.

    Returns:
        The verb's exit code.

    Raises:
        InputError: something cannot be sent, or must not be overwritten.
        DeviceError: the board cannot be reached, or the job is lost.
    """
    files = JobFiles(verb, every, {**given, **screen_given})
    with Remote(board, notify) as remote, tempfile.TemporaryDirectory(prefix="framefit-") as scratch:
        job = new_job(verb)
        work = f"{remote.greeting.jobs}/{job}/work"
        known = [f"/{place}" for place in files.sources] + [place.path for place in files.places]
        translation = _Translation(board.name, known, work, Path(scratch))
        entries, contents = _entries(files, translation)
        sent = remote.send(contents)
        if sent:
            notify(f"{sent / 1e6:.1f} MB sent to {board.name}")
        try:
            command = Command(
                verb=verb,
                given=_translated_options(given, work),
                screen=_translated_options(screen_given, work),
                cwd=_below_root(Path.cwd()),
                files=tuple(entries),
                folders=tuple(files.folders),
                who=f"{getpass.getuser()}@{platform.node()}"[:200],
                columns=min(max(columns, 20), 1000),
                cores=board.cores,
                lock_minutes=board.lock_minutes,
            )
        except ValueError as error:
            raise InputError(f"cannot be sent: {error}", remedy="name other files, or fewer") from error
        places, named = tuple(files.places), translation.named
        ticket = Ticket(board=board.name, job=job, work=work, places=places, named=named)
        write_record(_ticket_file(board.name, job), ticket)
        remote.job = job
        remote.ask(Start(job=job), msgspec.json.encode(command))
        return follow(remote, ticket, notify=notify, stop=stop, show=show)


def _entries(files: JobFiles, translation: _Translation) -> tuple[list[FileEntry], dict[str, tuple[Path, int]]]:
    """Files of a command, and where their contents are here."""
    entries, contents = [], {}
    for place, path in files.sources.items():
        try:
            source = translation.of(path)
            digest, size = digest_of(source)
            entries.append(FileEntry(path=place, digest=digest, size=size))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=path, remedy="check the file") from error
        except ValueError as error:
            raise InputError(f"cannot be sent: {error}", where=path, remedy="rename it, or make it smaller") from error
        contents[digest] = (source, size)
    return entries, contents


_TARGET = re.compile(rb"""^(target\s*=\s*)(["'])([^"'\n]*)\2""", re.MULTILINE)


def _with_target(text: bytes, before: str, after: str) -> bytes:
    """A workload with another target, where its target is ``before``."""

    def replaced(line: re.Match[bytes]) -> bytes:
        return line[1] + line[2] + after.encode() + line[2] if line[3] == before.encode() else line[0]

    return _TARGET.sub(replaced, text)


def _named_again(text: bytes, board: str) -> bytes:
    """A workload that a board wrote, where it was called ``cpu``, which workloads need not say."""
    if b"[[models]]" in text and not _TARGET.search(text):
        return text.replace(b"\n", f'\ntarget = "{board}"\n'.encode(), 1)
    return _with_target(text, "cpu", board)


class _Translation:
    """Records as they are on the board: absolute paths of files that are sent, and the board as a target.

    Attributes:
        named: whether a workload has named the board as its target.
    """

    def __init__(self, board: str, known: list[str], work: str, scratch: Path) -> None:
        self._board, self._known, self._work, self._scratch = board, known, work, scratch
        self.named = False

    def of(self, path: Path) -> Path:
        """A file to send in the place of another: itself, if nothing in it has to be translated."""
        if path.suffix not in _RECORDS or path.stat().st_size > _RECORD_LIMIT:
            return path
        data = text = path.read_bytes()
        for place in self._known:
            text = text.replace(f'"{place}"'.encode(), f'"{self._work}{place}"'.encode())
        if path.suffix == ".toml":
            here = _with_target(text, self._board, "cpu")
            self.named |= here != text
            text = here
        if text == data:
            return path
        copy = self._scratch / f"{len(list(self._scratch.iterdir()))}{path.suffix}"
        copy.write_bytes(text)
        return copy


def _translated_options(given: Mapping[str, Any], work: str) -> dict[str, Any]:
    """Options with absolute paths as they are on the board."""

    def there(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: there(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [there(item) for item in value]
        return work + value if isinstance(value, str) and Path(value).is_absolute() else value

    return {name: there(value) for name, value in given.items() if name not in ("on", "log_file")}


def _ticket_file(board: str, job: str) -> Path:
    return config_folder() / "jobs" / board / f"{job}.json"


def ticket_of(board: str, job: str) -> Ticket:
    """What this machine remembers of a job. Raises: InputError: it was not begun here, or has been fetched."""
    try:
        return msgspec.json.decode(_ticket_file(board, job).read_bytes(), type=Ticket)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise InputError(
            f"no job {job!r} of this user and machine is open on {board}",
            remedy=f"list jobs with framefit board jobs {board}",
        ) from error


def follow(
    remote: Remote,
    ticket: Ticket,
    *,
    notify: Notify,
    stop: Stopped,
    force: bool = False,
    show: Callable[[str], object] | None = None,
) -> int:
    """Show what a job says until it ends, fetch what it wrote, and give its exit code.

    Args:
        remote: the board.
        ticket: the job.
        notify: hears what is being done here.
        stop: whether the user has asked to stop: then the job is asked to, and keeps what it has.
        force: overwrite existing files.
        show: gets the output; default: it is shown on the terminal.

    Raises:
        InputError: files must not be overwritten; the job stays there.
        DeviceError: the connection does not come back, or the job is lost.
    """
    remote.job = ticket.job
    output, messages = _Text(show or sys.stdout.write, ticket.work), _Text(sys.stderr.write, ticket.work)
    stopping, waits_for = False, ""
    try:
        while True:
            if stop() and not stopping:
                stopping = True
                notify(f"asking {ticket.board} to stop")
                remote.ask(Stop(job=ticket.job))
            poll = Poll(job=ticket.job, output=output.bytes, messages=messages.bytes, wait_ms=_POLL_MS)
            answer, body = remote.ask(poll)
            output.add(body[: answer.output])
            messages.add(body[answer.output :])
            state = answer.state
            if state is None:
                raise FrameError("the board does not say where the job is", remedy="connect again")
            if state.waits_for and state.waits_for != waits_for:
                notify(f"{ticket.board} measures for {plain(state.waits_for)[:300]}; waiting")
            waits_for = state.waits_for
            if state.state in ("ended", "lost") and not body:
                break
    except KeyboardInterrupt:
        remote.ask(Stop(job=ticket.job, now=True))
        raise
    finally:
        output.end()
        messages.end()
    fetched = _fetch(remote, ticket, notify, force=force)
    remote.ask(Forget(job=ticket.job))
    _ticket_file(ticket.board, ticket.job).unlink(missing_ok=True)
    if state.state == "lost":
        raise DeviceError(
            f"job {ticket.job} is lost: its process ended without a result (was the board started anew?); "
            f"{fetched} files that it had written are here",
            where=f"board {ticket.board}",
            remedy="go on with --resume where the command has it, or start it again",
        )
    return 3 if state.exit_code is None else min(max(state.exit_code, 0), 255)


class _Text:
    """What a job writes, line by line, without what a terminal would obey, with paths as they are here."""

    def __init__(self, write: Callable[[str], object], work: str) -> None:
        self._write, self._work = write, work
        self._line = b""
        self.bytes = 0

    def add(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.bytes > _OUTPUT_LIMIT:
            raise FrameError(f"the job wrote more than {_OUTPUT_LIMIT} bytes of text", remedy="stop the job")
        lines, newline, self._line = (self._line + data).rpartition(b"\n")
        self._show(lines + newline)
        if len(self._line) > 1 << 20:
            self.end()

    def end(self) -> None:
        self._show(self._line)
        self._line = b""

    def _show(self, data: bytes) -> None:
        if data:
            self._write(plain(data.decode(errors="replace").replace(self._work, "")))


def _fetch(remote: Remote, ticket: Ticket, notify: Notify, *, force: bool) -> int:
    """Fetch the files that a job wrote into the places where the verb would have written them here; gives how many."""
    entries = remote.listed(Results(job=ticket.job), tuple[FileEntry, ...])
    if len(entries) > COUNT_LIMIT or sum(entry.size for entry in entries) > JOB_LIMIT:
        raise FrameError("the board offers more files than are taken", remedy="fetch them by scp")
    wanted = [(entry, place) for entry in entries if (place := _place_of(entry.path, ticket.places)) is not None]
    taken = {
        place.path if Path(place.path).is_file() else str(_top(entry.path, place))
        for entry, place in wanted
        if not (place.overwrites or force) and _top(entry.path, place).exists()
    }
    if taken:
        raise InputError(
            "exists here meanwhile",
            where=min(taken),
            remedy=f"move it away, or overwrite it: framefit board attach {ticket.board} {ticket.job} --force",
        )
    for entry, place in wanted:
        _fetch_file(remote, ticket, entry, place)
        if (
            place.overwrites and entry.path == f"{place.path[1:]}/run.json"
        ):  # complete: what it was resumed from is in it
            shutil.rmtree(Path(place.path) / JOURNAL, ignore_errors=True)
    if wanted:
        notify(f"{len(wanted)} files fetched from {ticket.board}")
    return len(wanted)


def _place_of(path: str, places: tuple[Place, ...]) -> Place | None:
    here = Path("/") / confined(path)
    for place in places:
        if here == Path(place.path) or here.is_relative_to(place.path):
            return place
    return None


def _top(path: str, place: Place) -> Path:
    """The file, or the folder of a run or profile, that must not exist before."""
    here = Path("/") / path
    parts = here.relative_to(place.path).parts
    numbered = Path(place.path).name in ("runs", "profiles")
    return Path(place.path, parts[0]) if parts and numbered else Path(place.path)


def _fetch_file(remote: Remote, ticket: Ticket, entry: FileEntry, place: Place) -> None:
    here = Path("/") / confined(entry.path)
    root = Path(place.path)
    inside = here.parent.resolve().is_relative_to(root.resolve()) if here != root else True
    if here.is_symlink() or here.is_dir() or not inside:
        raise InputError("a link or folder is in the place of a file", where=here, remedy="move it away")
    with tempfile.NamedTemporaryFile(prefix="framefit-") as file:
        size = 0
        while size < entry.size:
            answer, data = remote.ask(Fetch(job=ticket.job, path=entry.path, offset=size))
            size += len(data)
            if not data or size > min(entry.size, FILE_LIMIT) or answer.size != entry.size:
                raise FrameError(f"{plain(entry.path)} has another size than the board said", remedy="attach again")
            file.write(data)
        file.flush()
        received = Path(file.name)
        if digest_of(received) != (entry.digest, entry.size):
            raise FrameError(f"{plain(entry.path)} has another content than the board said", remedy="attach again")
        check_content(received, str(here))
        with write_whole(here, force=True) as written:
            if here.suffix in _RECORDS and entry.size <= _RECORD_LIMIT:
                text = received.read_bytes().replace(f"{ticket.work}/".encode(), b"/")
                named = ticket.named and here.suffix == ".toml"
                written.write(_named_again(text, ticket.board) if named else text)
            else:
                with received.open("rb") as source:
                    shutil.copyfileobj(source, written)
