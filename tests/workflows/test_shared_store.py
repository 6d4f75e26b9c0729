"""A store that a team shares: nothing is lost, nothing damaged is read, and nobody outside chooses where files go."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import framefit
from framefit import InputError
from framefit.cli.app import main
from framefit.core.latency_table import LatencyEntry, LatencyTable, read_table
from framefit.core.store import Store
from framefit.core.stored import StoredFile

TABLES_EACH, KILLS = 60, 6


def table_file(path: Path, *, ns: int = 1000, cpu: str = "A53") -> Path:
    """A latency table with one entry."""
    entry = LatencyEntry(
        op="Conv",
        configuration={"kernel": [3, 3]},
        unit="cpu0",
        latency_ns=ns,
        interval_ns=(ns - ns // 50, ns + ns // 50),
        samples_ns=(ns - ns // 50, ns, ns + ns // 50),
    )
    table = LatencyTable(target="pi5", fingerprint={"target": "pi5", "cpu": cpu}, entries=(entry,))
    path.write_bytes(msgspec.json.encode(table))
    return path


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path.name}"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of an object store that runs here."""
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed").ThreadedMotoServer(
        "127.0.0.1", port=0
    )
    server.start()
    host, port = server.get_host_and_port()
    facts = {"ENDPOINT_URL": f"http://{host}:{port}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    for name, value in (facts | {"DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().makedirs("tables", exist_ok=True)
    yield "s3://tables"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_what_is_pushed_is_pulled(url: str, tmp_path: Path) -> None:
    """The same bytes, under its name, with what it is."""
    given = table_file(tmp_path / "pi5.table.json")
    other = tmp_path / "notes.txt"
    other.write_text("a note")
    pushed = framefit.push(str(given), str(other), store=url, command="framefit measure")
    assert [file.kind for file in pushed.files] == ["table", "file"]
    assert pushed.files[0].fingerprint["cpu"] == "A53"
    assert framefit.log(url).files == pushed.files
    assert [file.name for file in framefit.log(url, kind="table").files] == ["pi5.table.json"]
    pulled = framefit.pull("pi5.table.json", store=url, output=str(tmp_path / "here"))
    assert pulled.paths[0].read_bytes() == given.read_bytes()
    with pytest.raises(InputError, match="--force"):
        framefit.pull("pi5.table.json", store=url, output=str(tmp_path / "here"))
    by_hash = framefit.pull(pushed.files[1].object[:8], store=url, output=str(tmp_path / "there"))
    assert [path.name for path in by_hash.paths] == ["notes.txt"]
    with pytest.raises(InputError, match="no file matches"):
        framefit.pull("nothing", store=url)


def test_what_is_about_a_model_is_found(url: str, tmp_path: Path) -> None:
    """By the model's bytes, whatever its name."""
    model, same = tmp_path / "a.onnx", tmp_path / "b.onnx"
    model.write_bytes(b"bytes")
    same.write_bytes(b"bytes")
    framefit.push(str(table_file(tmp_path / "one.table.json")), store=url, models=(str(model),))
    framefit.push(str(table_file(tmp_path / "two.table.json", ns=5)), store=url)
    assert [file.name for file in framefit.log(url, model=str(same)).files] == ["one.table.json"]


class _RefusedError(Exception):
    """As clients of object stores raise: no error of the system."""


@pytest.mark.parametrize("broken", ["find", "cat", "cat_file", "pipe_file"])
def test_errors_of_a_file_system_are_one_of_ours(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their class is; the store is named."""
    url, given = f"memory://{tmp_path.name}", str(table_file(tmp_path / "pi5.table.json"))
    framefit.push(given, store=url)

    def refuse(*_: object, **__: object) -> None:
        raise _RefusedError("no credentials")

    monkeypatch.setattr(MemoryFileSystem, broken, refuse)
    act = (
        partial(framefit.push, given)
        if broken == "pipe_file"
        else partial(framefit.pull, output=str(tmp_path / "here"))
    )
    with pytest.raises(InputError, match="no credentials") as error:
        act(store=url)
    assert tmp_path.name in str(error.value)


def test_what_others_push_is_seen(url: str, tmp_path: Path) -> None:
    """A store that stays open does not remember what it listed."""
    store = Store(url)
    for number in range(2):
        framefit.push(str(table_file(tmp_path / f"{number}.table.json", ns=1 + number)), store=url)
        assert len(store.records()[0]) == number + 1


def test_no_bucket_is_made_of_a_mistyped_one(bucket: str, tmp_path: Path) -> None:
    """It is refused."""
    with pytest.raises(InputError, match="cannot be written"):
        framefit.push(str(table_file(tmp_path / "a.table.json")), store=bucket.replace("tables", "tables-2"))


def test_equal_bytes_are_stored_once_with_a_record_each(url: str, tmp_path: Path) -> None:
    """Two pushes are two records of one file."""
    given = table_file(tmp_path / "pi5.table.json")
    for _ in range(2):
        framefit.push(str(given), store=url)
    assert len(framefit.log(url).files) == 2
    assert len(framefit.pull(store=url, output=str(tmp_path / "here")).paths) == 1


def test_tables_of_one_name_are_both_kept_and_merged(url: str, tmp_path: Path) -> None:
    """What differs by more than the intervals is told, and the latest is kept; other devices are refused."""
    for ns in (1000, 2000):
        framefit.push(str(table_file(tmp_path / "pi5.table.json", ns=ns)), store=url)
    whole = tmp_path / "whole.table.json"
    pulled = framefit.pull(store=url, output=str(tmp_path / "here"), merge=str(whole))
    assert len({path.name for path in pulled.paths}) == 2
    (entry,) = read_table(whole).entries
    assert entry.latency_ns == 2000
    (remark,) = pulled.remarks
    assert "1,000 ns" in remark
    assert "2,000 ns" in remark
    framefit.push(str(table_file(tmp_path / "other.table.json", cpu="A72")), store=url)
    with pytest.raises(InputError, match="its cpu differs"):
        framefit.pull(store=url, output=str(tmp_path / "again"), merge=str(tmp_path / "no.table.json"))


def test_a_flipped_byte_is_named(tmp_path: Path) -> None:
    """In the file, and in a record."""
    store = tmp_path / "store"
    framefit.push(str(table_file(tmp_path / "pi5.table.json")), store=str(store))
    (stored,) = (path for path in (store / "objects").rglob("*") if path.is_file())
    data = bytearray(stored.read_bytes())
    data[10] ^= 1
    stored.write_bytes(data)
    with pytest.raises(InputError, match="its bytes have changed") as error:
        framefit.pull(store=str(store), output=str(tmp_path / "here"))
    assert "pi5.table.json" in str(error.value)
    assert not (tmp_path / "here" / "pi5.table.json").exists()
    (record,) = (store / "index").rglob("*.json")
    record.write_bytes(record.read_bytes()[:-9])
    assert framefit.log(str(store)).damaged == (record.name,)


@pytest.mark.parametrize("name", ["../out.json", "/etc/out.json", ".profile", "a/b", "..\\out.json", ""])
def test_a_store_does_not_choose_where_files_go(name: str, tmp_path: Path) -> None:
    """A record of a name that is no plain file's counts as damaged."""
    store = Store(str(tmp_path / "store"))
    data = b"anything"
    record = StoredFile(
        object=hashlib.sha256(data).hexdigest(),
        name=name,
        bytes=8,
        kind="file",
        time="2026-01-01T00:00:00Z",
        version="0",
    )
    store.push(data, record)
    assert store.records()[0] == []
    assert len(store.records()[1]) == 1


def push_many(url: str, folder: Path, process: int) -> None:
    """Push tables one by one."""
    for number in range(TABLES_EACH):
        framefit.push(str(table_file(folder / f"{process}-{number}.table.json", ns=1 + number)), store=url)


def test_several_processes_lose_nothing(tmp_path: Path) -> None:
    """Each file of each process is there, whole."""
    url, context = str(tmp_path / "store"), multiprocessing.get_context("fork")
    processes = [context.Process(target=push_many, args=(url, tmp_path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    listed = framefit.log(url)
    assert len(listed.files) == 4 * TABLES_EACH
    assert listed.damaged == ()
    store = Store(url)
    assert all(store.read(file) for file in listed.files)


def test_kills_leave_nothing_damaged(tmp_path: Path) -> None:
    """A process that is killed while it pushes leaves whole files, or none."""
    url, context = str(tmp_path / "store"), multiprocessing.get_context("fork")
    for kill in range(KILLS):
        process = context.Process(target=push_many, args=(url, tmp_path, kill))
        process.start()
        time.sleep(0.02 + 0.03 * kill)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    listed = framefit.log(url)
    assert listed.damaged == ()
    store = Store(url)
    assert all(store.read(file) for file in listed.files)


def test_wrong_uses_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store, an unknown protocol, and a store from the environment."""
    given = str(table_file(tmp_path / "pi5.table.json"))
    monkeypatch.delenv("FRAMEFIT_STORE", raising=False)
    with pytest.raises(InputError, match="--store missing"):
        framefit.push(given)
    with pytest.raises(InputError, match="cannot be opened"):
        framefit.push(given, store="carrier-pigeon://loft")
    with pytest.raises(InputError, match="there is no store"):
        framefit.log(str(tmp_path / "nowhere"))
    monkeypatch.setenv("FRAMEFIT_STORE", str(tmp_path / "store"))
    framefit.push(given)
    assert len(framefit.log().files) == 1


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Push, log and pull from the command line."""

    def ended(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["framefit", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    store, given = str(tmp_path / "store"), str(table_file(tmp_path / "pi5.table.json"))
    assert "pi5.table.json" in ended("push", given, "--store", store, "--command", "framefit measure")
    assert "framefit measure" in " ".join(ended("log", store).split())
    assert json.loads(ended("log", store, "--json"))["files"][0]["kind"] == "table"
    out = ended("pull", "--store", store, "-o", str(tmp_path / "here"), "--merge", str(tmp_path / "all.table.json"))
    assert "all.table.json" in "".join(out.split())
    assert isinstance(read_table(tmp_path / "all.table.json"), LatencyTable)
