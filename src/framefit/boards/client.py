"""The host's side of a connection: the system's ``ssh``, what its failures mean, and connecting again."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from framefit.boards.agent import source_digest, version
from framefit.boards.frames import (
    ANSWER_S,
    CHUNK_BYTES,
    GREETING_MARK,
    Answer,
    Channel,
    Done,
    Failed,
    FrameError,
    Greeting,
    LostConnectionError,
    Missing,
    Put,
    Time,
    decoded,
)
from framefit.core.boards import Board, destination
from framefit.core.files import Record
from framefit.core.settings import Notify, silent
from framefit.errors import DeviceError, FramefitError, InputError

CONNECT_S = 20.0
GIVE_UP_S = 120.0
"""A connection that does not come back for so long is given up; the job goes on."""
_BACK_OFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_SSH = (
    "ssh",
    "-T",
    "-x",
    *("-o", "BatchMode=yes"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "ForwardAgent=no"),
    *("-o", f"ConnectTimeout={CONNECT_S:.0f}"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
)


class Clock(NamedTuple):
    """How far a board's monotonic clock is ahead of this machine's, which lines up traces and nothing else.

    Attributes:
        offset_ns: the middle of the shortest round trip.
        bound_ns: the offset is right within this.
    """

    offset_ns: int
    bound_ns: int


def ssh_command(board: Board, remote: str) -> list[str]:
    """The command that executes ``remote`` in the board's shell.

    Raises:
        InputError: this machine has no ``ssh``.
    """
    if shutil.which("ssh") is None:
        raise InputError("no ssh here", remedy="install the OpenSSH client (openssh-client)")
    place, port = destination(board.address)
    return [*_SSH, *(("-p", port) if port else ()), "--", place, remote]


def environment_folder() -> str:
    """Where this version's environment is on a board, below the home folder."""
    return f".local/share/framefit/{source_digest()[:16]}"


def agent_command(board: Board) -> str:
    """What the board's shell starts."""
    return f"exec {shell_path(board.python or f'~/{environment_folder()}/bin/python')} -P -u -m framefit.boards.agent"


def shell_path(path: str) -> str:
    """A path for the shell of a board; a leading ``~/`` is its home folder."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


class Ssh:
    """One ``ssh`` process, and the end of what it says on standard error.

    Args:
        board: where to.
        remote: what is executed there.
    """

    def __init__(self, board: Board, remote: str) -> None:
        self._board = board
        self.process = subprocess.Popen(  # noqa: S603 - the system's own ssh, and no shell
            ssh_command(board, remote),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this program, which asks the board to stop
            bufsize=0,
        )
        self._end = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while data := self.process.stderr.read(4096):
                self._end = (self._end + data)[-8192:]

    def close(self) -> None:
        """End it."""
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(1.0)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def error(self, otherwise: FramefitError) -> FramefitError:
        """What went wrong, once it has ended: by what ``ssh`` and the board's shell said, else ``otherwise``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
            self._reader.join(1.0)
        text = plain(self._end.decode(errors="replace"))
        return explained(self._board, text, self.process.poll()) or otherwise


_NOT_INSTALLED = "this version of Framefit is not installed there"
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another one than it was",
        "if the board was set up anew, ssh-keygen -R {host}, then ssh {ssh} once and compare the key",
    ),
    (
        r"Host key verification failed|No .* host key is known",
        "its host key is not known",
        "connect once by ssh {ssh}, compare the key with the board's, and accept it",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "it asks for a password, or does not know your key",
        "let it know your key by ssh-copy-id {ssh}, or start ssh-agent; passwords are never asked for",
    ),
    (
        r"Could not resolve hostname",
        "its name is not known in this network",
        "check the address, or give it as a number",
    ),
    (r"Connection refused", "no ssh server answers there", "start the board's ssh server, or check the port"),
    (
        r"timed out|No route to host|Network is unreachable|Connection closed|Connection reset|Broken pipe",
        "it cannot be reached",
        "check that it is switched on and in the network",
    ),
    (
        r"No module named|not found|No such file or directory|cannot execute|can't open",
        _NOT_INSTALLED,
        "install it by framefit board check {name}",
    ),
)


def explained(board: Board, text: str, code: int | None) -> DeviceError | None:
    """What a failure of ``ssh`` means, by its words; ``None``: it did not fail, or says nothing."""
    place, port = destination(board.address)
    words = {"name": board.name, "host": place.rpartition("@")[2], "ssh": f"-p {port} {place}" if port else place}
    for pattern, what, remedy in _MEANINGS:
        if re.search(pattern, text):
            kind = _NotInstalledError if what == _NOT_INSTALLED else DeviceError
            return kind(what, where=f"board {board.name}", remedy=remedy.format(**words))
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    if code in (0, None) and not last:
        return None
    return DeviceError(
        f"ssh ended with code {code}: {last[:300]}", where=f"board {board.name}", remedy=f"try ssh {words['ssh']}"
    )


class _NotInstalledError(DeviceError):
    """The board can be reached, and has no agent of this version."""


def installs(error: DeviceError) -> bool:
    """Whether an installation would help."""
    return isinstance(error, _NotInstalledError)


def plain(text: str) -> str:
    """Text of a board without what a terminal would obey."""
    return "".join(letter for letter in text if letter in "\n\t" or (letter.isprintable() and letter != "\x7f"))


class Link:
    """One connection to an agent.

    Raises:
        DeviceError: the board cannot be reached, or has no agent of this version.
    """

    def __init__(self, board: Board) -> None:
        self._ssh = Ssh(board, agent_command(board))
        process = self._ssh.process
        assert process.stdin is not None
        assert process.stdout is not None
        self._channel = Channel(process.stdout.fileno(), process.stdin.fileno())
        try:
            self._channel.pass_over(GREETING_MARK, within_s=CONNECT_S + 20)
            self.greeting: Greeting
            self.greeting, _ = self._channel.receive(Greeting, within_s=ANSWER_S)
        except FramefitError as error:
            cause = self._ssh.error(
                DeviceError(
                    "no agent answers", where=f"board {board.name}", remedy=f"framefit board check {board.name}"
                )
                if isinstance(error, LostConnectionError)
                else error
            )
            self._ssh.close()
            raise cause from error
        if self.greeting.digest != source_digest():
            self._ssh.close()
            raise DeviceError(
                f"Framefit {self.greeting.version} is there, and {version()} with other files is here",
                where=f"board {board.name}",
                remedy="install the same there, or leave python away from boards.toml and framefit board check "
                f"{board.name}",
            )

    def ask(self, request: Record, body: bytes = b"") -> tuple[Done, bytes]:
        """Put one request, and wait for its answer.

        Raises:
            LostConnectionError: there is none.
            FrameError: what came is none.
            InputError: the board says that it cannot be done.
        """
        self._channel.send(request, body)
        try:
            answer, data = self._channel.receive(Answer)
        except InputError as error:
            raise FrameError(error.what, remedy=error.remedy) from error
        if isinstance(answer, Failed):
            texts = [
                None if text is None else plain(text)[:2000] for text in (answer.what, answer.where, answer.remedy)
            ]
            kind = FrameError if answer.ends else InputError
            raise kind(texts[0] or "it failed", where=texts[1], remedy=texts[2])
        if not isinstance(answer, Done):
            raise FrameError("the agent greets twice", remedy="connect again")
        return answer, data

    def close(self) -> None:
        """End the connection; jobs go on."""
        self._ssh.close()


class Remote:
    """A board, however often the connection is lost.

    Args:
        board: which one.
        notify: hears of lost connections.

    Raises:
        DeviceError: it cannot be reached at first.
    """

    def __init__(self, board: Board, notify: Notify = silent) -> None:
        self.board, self._notify = board, notify
        self.job: str | None = None
        self.sent_bytes = 0
        self._link: Link | None = Link(board)
        self.greeting = self._link.greeting

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *details: object) -> None:
        if self._link is not None:
            self._link.close()

    def ask(self, request: Record, body: bytes = b"") -> tuple[Done, bytes]:
        """Put a request, again after every lost connection: no request does harm when it is put twice.

        Raises:
            DeviceError: the connection does not come back.
            InputError: the board says that it cannot be done.
        """
        for pause_s in (0.0, *_BACK_OFF_S):
            time.sleep(pause_s)
            if self._link is None:
                self._connect_again()
            assert self._link is not None
            try:
                return self._link.ask(request, body)
            except (LostConnectionError, FrameError) as error:
                self._notify(f"connection to {self.board.name} lost ({error.what}), connecting again; its job goes on")
                self._link.close()
                self._link = None
                what = error.what
        raise DeviceError(
            f"every connection ends at the same request ({what})",
            where=f"board {self.board.name}",
            remedy=self._then("once the board works"),
        )

    def _then(self, when: str) -> str:
        what = f"framefit board attach {self.board.name} {self.job}" if self.job else "try again"
        return f"{what}, {when}"

    def _connect_again(self) -> None:
        end_s, failure = time.monotonic() + GIVE_UP_S, "it does not answer"
        for pause_s in (*_BACK_OFF_S, *[_BACK_OFF_S[-1]] * 1000):
            try:
                self._link = Link(self.board)
            except DeviceError as error:
                failure = error.what
            else:
                self._notify(f"connected to {self.board.name} again")
                return
            if time.monotonic() + pause_s > end_s:
                break
            time.sleep(pause_s)
        raise DeviceError(
            f"the connection was lost and did not come back in {GIVE_UP_S:.0f} s ({failure})",
            where=f"board {self.board.name}",
            remedy=self._then("once the board can be reached"),
        )

    def clock(self, trips: int = 32) -> Clock:
        """Compare clocks by the shortest of many round trips. Raises: DeviceError: the board does not answer."""
        best: tuple[int, int] | None = None
        for _ in range(trips):
            before_ns = time.perf_counter_ns()
            answer, _ = self.ask(Time())
            after_ns = time.perf_counter_ns()
            trip = (after_ns - before_ns, answer.time_ns - (before_ns + after_ns) // 2)
            best = trip if best is None else min(best, trip)
        assert best is not None
        return Clock(offset_ns=best[1], bound_ns=best[0] // 2 + 1)

    def send(self, files: Mapping[str, tuple[Path, int]]) -> int:
        """Send contents that the board lacks.

        Args:
            files: digest -> file and its size.

        Returns:
            How many bytes were sent.

        Raises:
            InputError: a file changes while it is sent, or the board does not take it.
            DeviceError: the connection does not come back.
        """
        sent = 0
        _, body = self.ask(Missing(), msgspec.json.encode(list(files)))
        missing = dict(decoded(body, list[tuple[str, int]], "the board's answer"))
        for digest, present in missing.items():
            if digest not in files:
                raise FrameError("the board asks for what is not offered", remedy="check the board")
            path, size = files[digest]
            if size > 8 * CHUNK_BYTES:
                self._notify(f"sending {path.name} ({size / 1e6:.0f} MB)")
            with path.open("rb") as file:
                offset, puts = min(present, size), 0
                while puts == 0 or offset < size:
                    file.seek(offset)
                    data = file.read(min(CHUNK_BYTES, size - offset))
                    answer, _ = self.ask(Put(digest=digest, size=size, offset=offset), data)
                    sent, puts = sent + len(data), puts + 1
                    if not 0 <= answer.size <= size or (size and not data) or puts > 2 * size / CHUNK_BYTES + 100:
                        raise InputError("changed while it was sent", where=path, remedy="try again")
                    offset = answer.size
        self.sent_bytes += sent
        return sent

    def listed(self, request: Record, kind: Any) -> Any:
        """The answer to a request whose body is JSON.

        Raises:
            InputError: it has another form.
            DeviceError: the connection does not come back.
        """
        _, body = self.ask(request)
        return decoded(body, kind, "the board's answer")


def new_job(verb: str) -> str:
    """An id that no other job has."""
    return f"{verb}-{secrets.token_hex(6)}"


Stopped = Callable[[], bool]
