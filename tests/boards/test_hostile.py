"""A board that is broken or taken over writes nothing where the command would not have written, and shows only text."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from loopback import SOURCE, Place, write_program

from framefit.boards.forward import JobFiles
from framefit.core.settings import options
from framefit.latency.settings import MeasureSettings
from workloads import write_models

AGENT = """\
#!{python}
import hashlib, json, os, sys
sys.path.insert(0, {source!r})
from framefit.boards.agent import source_digest
from framefit.boards.frames import *
import msgspec
FILES = json.load(open({files!r}))
channel = Channel(os.dup(0), os.dup(1))
channel.write(GREETING_MARK)
channel.send(Greeting(version="1\\x1b[2J", digest=source_digest(), python="3", machine="x", jobs="/b"))
while True:
    try:
        request, body = channel.receive(Request)
    except LostConnectionError:
        break
    if isinstance(request, Missing):
        channel.send(Done(), b"[]")
    elif isinstance(request, Poll):
        text = b"" if request.output else b"\\x1b]0;title\\x07done \\x9b31m\\xff\\n"
        state = JobState(job=request.job, state="ended", exit_code=0)
        channel.send(Done(state=state, output=len(text)), text)
    elif isinstance(request, Results):
        entries = [
            dict(path=path, digest=hashlib.sha256(text.encode()).hexdigest(), size=len(text) + more)
            for path, text, more in FILES
        ]
        channel.send(Done(), msgspec.json.encode(entries))
    elif isinstance(request, Fetch):
        text = next(text for path, text, _ in FILES if path == request.path)
        channel.send(Done(size=len(text)), text.encode())
    else:
        channel.send(Done())
"""


@pytest.fixture
def hostile(place: Place, tmp_path: Path) -> Path:
    """A file in which a test says what the board claims to have written: path, text, bytes more than there are."""
    files = tmp_path / "files.json"
    program = write_program(
        tmp_path / "agent", AGENT.format(python=sys.executable, source=str(SOURCE), files=str(files))
    )
    (tmp_path / "config" / "boards.toml").write_text(
        f'schema_version = 1\n[[boards]]\nname = "lab"\naddress = "lab"\npython = "{program}"\n'
    )
    write_models(tmp_path / "models")
    return files


def measured(place: Place, tmp_path: Path) -> tuple[int, str, str]:
    """Exit code, output and messages of a command on the hostile board."""
    ended = place("measure", str(tmp_path / "models" / "small.onnx"), "--on", "lab", "-o", "t.json")
    return ended.returncode, ended.stdout, ended.stderr


def test_only_what_the_command_writes_is_written(place: Place, hostile: Path, tmp_path: Path) -> None:
    """All else is dropped; text has lost what a terminal would obey."""
    here = str(place.here)[1:]
    victim = place.here / "mine.txt"
    victim.write_text("mine")
    files = [
        (f"{here}/t.json", "{}", 0),
        (f"{here}/mine.txt", "theirs", 0),
        (f"{here}/t.json.d/x", "x", 0),
        (f"{here}/runs/app-1/run.json", "{}", 0),
        (f"{tmp_path}/models/small.onnx"[1:], "x", 0),
        ("etc/cron.d/x", "x", 0),
    ]
    hostile.write_text(json.dumps(files))
    before = hashlib.sha256((tmp_path / "models" / "small.onnx").read_bytes()).digest()
    code, output, messages = measured(place, tmp_path)
    assert code == 0, messages
    assert output == "]0;titledone 31m\ufffd\n" or output == "]0;titledone \ufffd31m\ufffd\n"
    assert victim.read_text() == "mine"
    assert sorted(entry.name for entry in place.here.iterdir()) == ["mine.txt", "t.json"]
    assert hashlib.sha256((tmp_path / "models" / "small.onnx").read_bytes()).digest() == before
    assert not Path("/etc/cron.d/x").exists()


@pytest.mark.parametrize(
    ("path", "text", "more"),
    [
        ("../../etc/passwd", "x", 0),
        ("{here}/t.json", "x", 5),
        ("{here}/t.json", "\x7fELF", 0),
    ],
)
def test_what_is_not_as_it_was_announced_is_refused(
    place: Place, hostile: Path, tmp_path: Path, path: str, text: str, more: int
) -> None:
    """Paths that lead out, other sizes, programs: one error, and nothing is written."""
    hostile.write_text(json.dumps([(path.format(here=str(place.here)[1:]), text, more)]))
    code, _, messages = measured(place, tmp_path)
    assert code in (2, 3), messages
    assert messages.count("framefit: ") == 1
    assert "Traceback" not in messages
    assert not list(place.here.iterdir())


def test_links_are_not_followed(place: Place, hostile: Path, tmp_path: Path) -> None:
    """A link in the place of the file stays, and so does what it leads to."""
    target = tmp_path / "target"
    target.write_text("mine")
    files = JobFiles("measure", options(MeasureSettings), {"output": str(place.here / "t.json"), "force": True})
    assert [entry.overwrites for entry in files.places] == [True]
    (place.here / "t.json").symlink_to(target)
    hostile.write_text(json.dumps([(f"{place.here}/t.json"[1:], "theirs", 0)]))
    ended = place("measure", str(tmp_path / "models" / "small.onnx"), "--on", "lab", "-o", "t.json", "--force")
    assert ended.returncode == 2, ended.stderr
    assert "link" in ended.stderr
    assert target.read_text() == "mine"
