"""Frames: what is damaged is one error, and nothing else happens."""

from __future__ import annotations

import os
import random
import sys
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest

from framefit.boards.agent import serve
from framefit.boards.frames import (
    ANSWER_S,
    BODY_LIMIT,
    GREETING_MARK,
    PREFIX,
    Answer,
    Channel,
    Command,
    Done,
    Failed,
    FileEntry,
    FrameError,
    Greeting,
    Jobs,
    LostConnectionError,
    Missing,
    Put,
    Request,
    Start,
    Time,
    check_content,
    confined,
    lengths_of,
    packed,
    unpacked,
)
from framefit.boards.jobs import Store
from framefit.errors import FramefitError, InputError


def read(frame: bytes) -> object:
    """Take a frame apart, as both sides do."""
    prefix = frame[: PREFIX.size]
    if len(prefix) < PREFIX.size:
        raise LostConnectionError("too short")
    head, body = lengths_of(prefix)
    text, data = frame[PREFIX.size : PREFIX.size + head], frame[PREFIX.size + head : PREFIX.size + head + body]
    if len(text) < head or len(data) < body:
        raise LostConnectionError("too short")
    return unpacked(prefix, text, data, Request)


def damaged(frame: bytes, chance: random.Random) -> bytes:
    """The frame with a bit turned, bytes lost, or others in their place."""
    at = chance.randrange(len(frame))
    match chance.randrange(4):
        case 0:
            changed = frame[:at] + bytes([frame[at] ^ (1 << chance.randrange(8))]) + frame[at + 1 :]
        case 1:
            changed = frame[:at]
        case 2:
            changed = frame[:at] + frame[at + 1 + chance.randrange(20) :]
        case _:
            changed = frame[:at] + chance.randbytes(1 + chance.randrange(40)) + frame[at:]
    return changed if changed != frame and not changed.startswith(frame) else frame[:-1]


def test_ten_thousand_damaged_frames_are_one_error_each() -> None:
    """None of them is taken for a request."""
    chance = random.Random(1)
    whole = [
        packed(Jobs()),
        packed(Time()),
        packed(Missing(), b'["' + b"0" * 64 + b'"]'),
        packed(Put(digest="0" * 64, size=100, offset=0), chance.randbytes(100)),
        packed(Start(job="plan-0123456789ab"), b"{}"),
    ]
    for frame in whole:
        read(frame)
    errors = 0
    for number in range(10_000):
        with pytest.raises(FramefitError):
            read(damaged(whole[number % len(whole)], chance))
        errors += 1
    assert errors == 10_000


class Agent:
    """An agent in a thread, and a channel to it."""

    def __init__(self, folder: Path) -> None:
        there, self._to = os.pipe()
        self._source, back = os.pipe()
        self.channel = Channel(self._source, self._to)
        self.store = Store(folder)

        def run() -> None:
            serve(Channel(there, back), self.store)
            os.close(back)
            os.close(there)

        self.thread = threading.Thread(target=run)
        self.thread.start()
        self.channel.pass_over(GREETING_MARK, within_s=ANSWER_S)
        self.channel.receive(Greeting)

    def close(self) -> None:
        """End it, as a host that goes away does."""
        os.close(self._to)
        self.thread.join(10)
        os.close(self._source)
        assert not self.thread.is_alive()


def test_an_agent_answers_a_damaged_frame_by_one_error_and_ends(tmp_path: Path) -> None:
    """After it nobody knows where the next frame begins; the following bytes are no requests."""
    chance = random.Random(2)
    frame = packed(Put(digest="0" * 64, size=5, offset=0), b"hello")
    for _ in range(50):
        agent = Agent(tmp_path)
        turned = bytearray(frame)
        turned[chance.randrange(PREFIX.size, len(frame))] ^= 1 << chance.randrange(8)
        agent.channel.write(bytes(turned) + frame)
        answer, _ = agent.channel.receive(Answer)
        assert isinstance(answer, Failed)
        assert answer.ends
        with pytest.raises(LostConnectionError):
            agent.channel.receive(Answer)
        agent.close()
    assert not list((tmp_path / "files").iterdir())


@pytest.mark.parametrize(
    "head",
    [
        b"{}",
        b"[]",
        b'{"kind":"exec"}',
        b'{"kind":"jobs","more":1}',
        b'{"kind":"stop","job":"../../x-0123456789ab"}',
        b'{"kind":"fetch","job":"run-0123456789ab","path":"../../etc/passwd","offset":0}',
        b'{"kind":"put","digest":"../x","size":1,"offset":0}',
        b'{"kind":"poll","job":"run-0123456789ab","output":-1,"messages":0}',
        b"[" * 5000,
        b"\xff\xfe",
    ],
)
def test_a_whole_frame_that_says_nothing_known_is_refused(tmp_path: Path, head: bytes) -> None:
    """One error; the next request is answered."""
    import zlib

    agent = Agent(tmp_path)
    agent.channel.write(PREFIX.pack(b"FFB1", len(head), 0, zlib.crc32(head)) + head)
    answer, _ = agent.channel.receive(Answer)
    assert isinstance(answer, Failed)
    agent.channel.send(Time())
    answer, _ = agent.channel.receive(Answer)
    assert isinstance(answer, Done)
    agent.close()


def test_long_frames_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """No memory is taken for them."""
    with pytest.raises(FrameError):
        packed(Jobs(), bytes(BODY_LIMIT + 1))
    agent = Agent(tmp_path)
    agent.channel.write(PREFIX.pack(b"FFB1", 0xFFFFFFFF, 0xFFFFFFFF, 0))
    answer, _ = agent.channel.receive(Answer)
    assert isinstance(answer, Failed)
    agent.close()


@pytest.mark.parametrize("path", ["", "/etc", "..", "a/../b", "a//b", "./a", "a\0b", "a\nb", "x" * 300, "a/" * 2000])
def test_paths_stay_below_a_folder(path: str) -> None:
    """Whatever leads out, or is no plain name, is refused."""
    with pytest.raises(ValueError, match="not a path"):
        confined(path)


@pytest.mark.parametrize(
    "change",
    [
        {"verb": "demo"},
        {"verb": "os.system"},
        {"cwd": "/"},
        {"files": [{"path": "a/x.py", "digest": "0" * 64, "size": 1}]},
        {"files": [{"path": "../x", "digest": "0" * 64, "size": 1}]},
        {"files": [{"path": "x", "digest": "0" * 64, "size": 1 << 50}]},
        {"folders": ["a/../../b"]},
        {"lock_minutes": -1},
        {"shell": "rm -rf"},
    ],
)
def test_commands_that_a_board_does_not_take(change: dict[str, object]) -> None:
    """Verbs come from a fixed list, paths stay below the job's folder, and programs are not taken."""
    command = {"verb": "plan", "given": {}, "screen": {}, "cwd": "home/me"}
    msgspec.json.decode(msgspec.json.encode(command), type=Command)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(command | change), type=Command)


def test_contents_that_neither_side_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs, whatever they are called, and archives that grow beyond the limit once they are decompressed."""
    place = tmp_path / "net.onnx"
    place.write_bytes(Path(sys.executable).resolve().read_bytes()[:5000])
    with pytest.raises(InputError, match="programs"):
        check_content(place, "net.onnx")
    place.write_bytes(b"\x08\x07 something")
    check_content(place, "net.onnx")
    grown = tmp_path / "content"
    with zipfile.ZipFile(grown, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(2 << 20))
    check_content(grown, "x.npz")
    monkeypatch.setattr("framefit.boards.frames.ARRAYS_LIMIT", 1 << 20)
    with pytest.raises(InputError, match="GiB"):
        check_content(grown, "x.npz")
    grown.write_bytes(b"PK nothing")
    with pytest.raises(InputError, match="archive"):
        check_content(grown, "x.npz")


def test_contents_are_stored_under_their_hash_only(tmp_path: Path) -> None:
    """Damaged ones leave nothing, parts go on, and the oldest are dropped at the limit."""
    import hashlib

    store = Store(tmp_path, limit_bytes=250)
    data = [bytes([number]) * 100 for number in range(4)]
    digests = [hashlib.sha256(each).hexdigest() for each in data]
    with pytest.raises(InputError, match="damaged"):
        store.add(digests[0], 100, 0, data[1])
    assert not list((tmp_path / "files").iterdir())
    assert store.add(digests[0], 100, 0, data[0][:40]) == 40
    assert store.add(digests[0], 100, 0, data[0][:60]) == 40
    assert store.present_bytes(digests[0]) == 40
    assert store.add(digests[0], 100, 40, data[0][40:]) == 100
    assert store.present_bytes(digests[0]) is None
    for digest, each in zip(digests[1:], data[1:], strict=True):
        os.utime(store.content(digests[0]))
        store.add(digest, 100, 0, each)
    kept = {entry.name for entry in (tmp_path / "files").iterdir()}
    assert len(kept) == 2
    assert digests[3] in kept


def test_entries_have_limits() -> None:
    """What a board says that it wrote is checked as it is read."""
    with pytest.raises(ValueError, match="SHA"):
        FileEntry(path="a", digest="x", size=1)
    with pytest.raises(ValueError, match="bytes"):
        FileEntry(path="a", digest="0" * 64, size=-1)


def test_a_job_that_is_removed_meanwhile_is_not_listed(tmp_path: Path) -> None:
    """Another agent may forget a job while jobs are listed."""
    store = Store(tmp_path)
    (store.jobs / "plan-0123456789ab").mkdir()
    assert store.states() == []
