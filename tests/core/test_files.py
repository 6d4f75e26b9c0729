"""Records as files: checked, versioned, written whole."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framefit import InputError
from framefit.core.files import (
    Record,
    cache_folder,
    claimed_folder,
    from_data,
    read_record,
    to_json,
    to_toml,
    write_record,
    write_whole,
    write_whole_folder,
)
from framefit.core.formats import format_of
from framefit.core.latency_table import LatencyTable
from framefit.core.program import Program
from framefit.core.target import Target
from framefit.core.timetable import Timetable
from framefit.core.trees import Forest
from framefit.core.workload import Workload


class Wheel(Record, kw_only=True):
    """Within a list."""

    radius: float = 1.0
    spokes: int = 8


class Bell(Record, kw_only=True):
    """On its own."""

    pitch: int = 440

    def __post_init__(self) -> None:
        if self.pitch <= 0:
            raise ValueError(f"pitch must be positive, is {self.pitch}")


class Bicycle(Record, kw_only=True):
    """A file."""

    schema_version: int = 1
    wheels: tuple[Wheel, ...] = ()
    bell: Bell | None = None
    bags: dict[str, Bell] = {}
    pairs: tuple[tuple[str, ...], ...] = ()


def refused(data: object) -> str:
    """The message with which data is refused."""
    with pytest.raises(InputError) as found:
        from_data(data, Bicycle, "bicycle.toml")
    assert found.value.exit_code == 2
    assert found.value.where == "bicycle.toml"
    assert found.value.remedy
    return found.value.what


@pytest.mark.parametrize(
    ("data", "path", "near"),
    [
        ({"whels": []}, "$.whels", "wheels"),
        ({"wheels": [{}, {"radios": 1}]}, "$.wheels[1].radios", "radius"),
        ({"bell": {"pitc": 1}}, "$.bell.pitc", "pitch"),
        ({"bags": {"left": {"pitsch": 1}}}, "$.bags.left.pitsch", "pitch"),
    ],
)
def test_unknown_key(data: dict[str, object], path: str, near: str) -> None:
    """An unknown key is named with its path and the nearest key that exists."""
    assert refused(data) == f"unknown key {path}; did you mean {near!r}?"


def test_unknown_key_unlike_any() -> None:
    """Where no key is near, all known ones are listed."""
    assert refused({"wheels": [{"zzz": 1}]}) == "unknown key $.wheels[0].zzz; known keys: radius, spokes"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"wheels": [{}, {"spokes": "8"}]}, "$.wheels[1].spokes"),
        ({"wheels": [{}, {"spokes": 8.5}]}, "$.wheels[1].spokes"),
        ({"wheels": {}}, "$.wheels"),
        ({"bell": [1]}, "$.bell"),
        ({"bell": {"pitch": True}}, "$.bell.pitch"),
        ({"pairs": [["a"], [1]]}, "$.pairs[1][0]"),
    ],
)
def test_wrong_type(data: dict[str, object], path: str) -> None:
    """A value of the wrong type is named by its path; nothing is converted silently."""
    assert f"{path} must be " in refused(data)


@pytest.mark.parametrize("data", [None, 3, [], "text"])
def test_no_object_at_all(data: object) -> None:
    """A file that holds no object is refused."""
    assert refused(data) == f"$ must be a table of keys, is {data!r}"


def test_broken_invariant() -> None:
    """What a record refuses on construction is named by its path too."""
    message = refused({"bell": {"pitch": -3}})
    assert "pitch must be positive, is -3" in message
    assert "at `$.bell`" in message


@pytest.mark.parametrize("version", [2, 0, "1"])
def test_other_version(version: object) -> None:
    """A file of another version says so, before its unknown keys are complained about."""
    assert refused({"schema_version": version, "motor": 1}) == f"$.schema_version is {version!r}; this Framefit reads 1"


def test_defaults_and_whole_numbers() -> None:
    """Absent keys take their defaults, and a whole number may stand for a float."""
    assert from_data({}, Bicycle, "x") == Bicycle()
    assert from_data({"wheels": [{"radius": 2}]}, Bicycle, "x").wheels[0].radius == 2.0


def test_round_trip(tmp_path: Path) -> None:
    """A record that was written reads back equal, from a file of one JSON object and a final newline."""
    record = Bicycle(wheels=(Wheel(radius=0.1), Wheel()), bell=Bell(), bags={"ä": Bell(pitch=1)}, pairs=(("a",), ()))
    write_record(tmp_path / "new" / "a.json", record)
    assert read_record(tmp_path / "new" / "a.json", Bicycle) == record
    assert (tmp_path / "new" / "a.json").read_text(encoding="utf-8") == to_json(record) + "\n"


def test_paths_that_are_not_utf8(tmp_path: Path) -> None:
    """Their bytes come back from a JSON file, numbers that it lacks are null as ever, and TOML says what to rename."""
    name = os.fsdecode(b"models\xe9/\xff.onnx")
    record = Change(change=name, effect="none", ratio=math.nan)
    write_record(tmp_path / "a.json", record)
    read = read_record(tmp_path / "a.json", Change)
    assert os.fsencode(read.change) == b"models\xe9/\xff.onnx"
    assert (read.effect, read.ratio) == ("none", None)
    assert to_json(record, indent=None).count("\n") == 0
    with pytest.raises(InputError, match=r"udcff.onnx' is not UTF-8, which TOML files are"):
        to_toml(record)
    (tmp_path / "b.json").write_text('{"change": "\\udcff", "effect": ')
    with pytest.raises(InputError, match="not valid JSON"):
        read_record(tmp_path / "b.json", Change)


class Change(Record, kw_only=True):
    """A record with text, and a number that may be none."""

    change: str
    effect: str
    ratio: float | None = None


def test_toml(tmp_path: Path) -> None:
    """A ``.toml`` file is read as TOML."""
    (tmp_path / "a.toml").write_text("[[wheels]]\nspokes = 3\n[bell]\npitch = 2\n")
    assert read_record(tmp_path / "a.toml", Bicycle) == Bicycle(wheels=(Wheel(spokes=3),), bell=Bell(pitch=2))


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a.json", b"{", "JSON"),
        ("a.json", b"", "JSON"),
        ("a.json", b'{"bell": "\xff"}', "JSON"),
        ("a.toml", b"wheels = [", "TOML"),
        ("a.toml", b"\xff\xfe\x00", "TOML"),
    ],
)
def test_malformed(tmp_path: Path, name: str, content: bytes, form: str) -> None:
    """A file that is no JSON or TOML says so and where it is."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"not valid {form}") as found:
        read_record(tmp_path / name, Bicycle)
    assert found.value.where == str(tmp_path / name)


def test_missing(tmp_path: Path) -> None:
    """A missing file, and a folder in its place, are refused by path."""
    with pytest.raises(InputError, match="no such file"):
        read_record(tmp_path / "a.json", Bicycle)
    with pytest.raises(InputError, match="cannot be read"):
        read_record(tmp_path, Bicycle)


def write_half(path: Path, error: type[BaseException], *, force: bool = False) -> None:
    """Write something, then fail."""
    with write_whole(path, force=force) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
@pytest.mark.parametrize("old", [None, b"old"])
def test_failed_write_changes_nothing(tmp_path: Path, error: type[BaseException], old: bytes | None) -> None:
    """When writing fails half-way, an old file stays as it was, and no new one or part of it appears."""
    path = tmp_path / "a.bin"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(InputError if error is OSError else error):
        write_half(path, error, force=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == ({} if old is None else {"a.bin": old})


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    """While it is being written, nobody sees it under its name."""
    path = tmp_path / "a.bin"
    with write_whole(path) as file:
        file.write(b"whole")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    """An existing file is refused with its remedy, and replaced with ``force``."""
    path = tmp_path / "a.json"
    write_record(path, Bell(pitch=1))
    with pytest.raises(InputError, match="already exists") as found:
        write_record(path, Bell(pitch=2))
    assert "--force" in str(found.value)
    assert read_record(path, Bell).pitch == 1
    write_record(path, Bell(pitch=2), force=True)
    assert read_record(path, Bell).pitch == 2


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the folder's place is an input error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_record(tmp_path / "file" / "a.json", Bell())


def contents(folder: Path) -> dict[str, str]:
    """All files within, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def begin(
    stack: contextlib.ExitStack, place: Path, text: str, *, force: bool = False, claimed: bool = False
) -> contextlib.ExitStack:
    """A folder that is half written, and completed when the stack that is returned is closed."""
    writer = stack.enter_context(contextlib.ExitStack())
    part = writer.enter_context(write_whole_folder(place, "mark", "a run folder", force=force, claimed=claimed))
    (part / "mark").write_text(text)
    writer.callback(lambda: (part / "end").write_text(text))
    return writer


@pytest.mark.parametrize("there", ["nothing", "empty", "old"])
def test_of_two_forced_writers_the_last_one_stays(tmp_path: Path, there: str) -> None:
    """Neither sees the other's files while they are written, and nothing else is left behind."""
    if there != "nothing":
        (tmp_path / "out").mkdir()
    if there == "old":
        (tmp_path / "out" / "mark").write_text("old")
        (tmp_path / "out" / "more").write_text("old")
    with contextlib.ExitStack() as stack:
        first, second = (begin(stack, tmp_path / "out", text, force=True) for text in ("first", "second"))
        second.close()
        assert contents(tmp_path / "out") == {"mark": "second", "end": "second"}
        first.close()
    assert contents(tmp_path) == {"out/mark": "first", "out/end": "first"}


def test_of_two_writers_the_first_one_stays_and_the_other_is_kept(tmp_path: Path) -> None:
    """Nothing is overwritten without force, and what took long to make is not thrown away."""
    with contextlib.ExitStack() as stack:
        first, second = (begin(stack, tmp_path / "out", text) for text in ("first", "second"))
        first.close()
        with pytest.raises(InputError, match="another process has written it meanwhile") as found:
            second.close()
    assert str(tmp_path / "out-1") in found.value.remedy
    kept = {f"out-1/{name}": "second" for name in ("mark", "end")}
    assert contents(tmp_path) == {"out/mark": "first", "out/end": "first"} | kept


@pytest.mark.parametrize("force", [False, True])
def test_a_writer_that_fails_takes_nothing_of_another_one(tmp_path: Path, force: bool) -> None:
    """What it wrote itself is gone, and the other one's folder complete."""
    with contextlib.ExitStack() as stack:
        first = begin(stack, tmp_path / "out", "first", force=force)

        def fail() -> None:
            with write_whole_folder(tmp_path / "out", "mark", "a run folder", force=force) as part:
                (part / "mark").write_text("second")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        first.close()
    assert contents(tmp_path) == {"out/mark": "first", "out/end": "first"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def _numbered(stem: Path, text: str) -> str:
    """The folder that a process wrote."""
    with claimed_folder(stem) as folder, write_whole_folder(folder, "mark", "a", force=False, claimed=True) as part:
        (part / "mark").write_text(text)
    return folder.name


def test_numbers_are_given_once(tmp_path: Path) -> None:
    """Of many processes that ask for the first free number each gets another one, without a gap."""
    (tmp_path / "runs" / "app-3").mkdir(parents=True)
    texts = [str(number) for number in range(40)]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        names = pool.starmap(_numbered, [(tmp_path / "runs" / "app", text) for text in texts], 1)
    assert sorted(names) == sorted(f"app-{number}" for number in range(1, 42) if number != 3)
    written = dict(zip(names, texts, strict=True))
    assert contents(tmp_path / "runs") == {f"{name}/mark": text for name, text in written.items()}


def test_a_claim_that_comes_to_nothing_is_given_back(tmp_path: Path) -> None:
    """A run that fails leaves no empty folder; what somebody else put there is kept, and the claim's folder beside."""
    with pytest.raises(KeyboardInterrupt), claimed_folder(tmp_path / "app"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with claimed_folder(tmp_path / "app") as folder, contextlib.ExitStack() as stack:
        writer = begin(stack, folder, "own", claimed=True)
        (folder / "mark").write_text("another's")
        with pytest.raises(InputError, match="meanwhile"):
            writer.close()
    kept = {f"app-1-1/{name}": "own" for name in ("mark", "end")}
    assert contents(tmp_path) == {"app-1/mark": "another's"} | kept


def test_a_claim_needs_a_folder(tmp_path: Path) -> None:
    """Where a file is in its place, that is an input error."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError), claimed_folder(tmp_path / "runs" / "app"):
        pass


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache lies where FRAMEFIT_CACHE says, else XDG_CACHE_HOME, else in the home folder."""
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("FRAMEFIT_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "framefit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "framefit"


def test_two_threads_may_write_one_file(tmp_path: Path) -> None:
    """Each completes its own content; the one that ends last stays."""
    with write_whole(tmp_path / "a.bin") as first:
        first.write(b"first")
        with write_whole(tmp_path / "a.bin") as second:
            second.write(b"second")
        assert (tmp_path / "a.bin").read_bytes() == b"second"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.bin": b"first"}


_KILLED = """
import os, signal, sys
from pathlib import Path
from framefit.core import files
place = Path(sys.argv[1])
whole, folder = files.write_whole(place / "a.bin"), files.write_whole_folder(place / "out", "mark", "a", force=True)
with whole as file, folder as part:
    file.write(b"half")
    (part / "mark").write_text("half")
    old = files._beside(place / "kept", "old")
    (place / "kept").rename(old)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    """The next write into the folder removes it, and gives back what was about to be replaced; others' stays."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mark").write_text("kept")
    assert subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 3
    with write_whole(tmp_path / "b.bin") as living, write_whole(tmp_path / "a.bin") as file:
        living.write(b"b")
        file.write(b"a")
    assert contents(tmp_path / "kept") == {"mark": "kept"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "b.bin", "kept"]


@pytest.mark.parametrize("kind", [Forest, LatencyTable, Program, Target, Timetable, Workload])
def test_the_names_of_records_in_messages_are_the_same_everywhere(kind: type[Record], tmp_path: Path) -> None:
    """What a file is recognised as is what it is called where another one is given in its place."""
    keys = {
        Forest: ["ensembles"],
        LatencyTable: ["fingerprint", "entries"],
        Program: ["programs", "units"],
        Target: ["kind", "units"],
        Timetable: ["hyperperiod_windows", "windows", "models"],
        Workload: ["streams", "models"],
    }[kind]
    assert set(keys) <= set(kind.__struct_fields__)
    path = tmp_path / "file.json"
    path.write_text(json.dumps(dict.fromkeys(keys)))
    known = format_of(path)
    assert known is not None
    assert known.name == kind.file_kind


def test_a_latin_letter_is_named_by_its_line(tmp_path: Path) -> None:
    """A file in another encoding than UTF-8 is refused with the line that shows it."""
    path = tmp_path / "a.toml"
    path.write_bytes("bell = { pitch = 3 }\n# \u00e9\n".encode("latin-1"))
    with pytest.raises(InputError, match="line 2 is not UTF-8"):
        read_record(path, Bicycle)
