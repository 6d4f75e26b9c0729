"""What became of a model over time: its figures by commit, and which of them got worse."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import msgspec
import pytest
from reported import fit, run, sparsity

import framefit
from framefit.cli.app import main
from framefit.core.files import write_record
from framefit.core.latency_table import LatencyTable, MeasuredNetwork
from framefit.core.store import Store


def table_file(path: Path, in_turn_ns: int, *, half: float = 0.01, cpu: str = "A53", name: str = "doors") -> Path:
    """A latency table that holds one whole network."""
    interval = (round(in_turn_ns * (1 - half)), round(in_turn_ns * (1 + half)))
    network = MeasuredNetwork(
        name=name,
        digest="ab",
        unit="cpu0",
        alone_ns=in_turn_ns,
        alone_interval_ns=interval,
        in_turn_ns=in_turn_ns,
        in_turn_interval_ns=interval,
    )
    table = LatencyTable(target="pi5", fingerprint={"target": "pi5", "cpu": cpu}, entries=(), networks=(network,))
    write_record(path, table, force=True)
    return path


@pytest.fixture
def doors(tmp_path: Path) -> str:
    """A model, whose bytes the store has never seen."""
    path = tmp_path / "doors.onnx"
    path.write_bytes(b"bytes")
    return str(path)


def test_what_got_worse_is_marked(tmp_path: Path, doors: str) -> None:
    """By more than both intervals, on one device, and for the worse only."""
    store = str(tmp_path / "store")
    times = [(10.0, "A53"), (10.1, "A53"), (30.0, "A72"), (12.0, "A53"), (9.0, "A53")]
    for number, (ms, cpu) in enumerate(times):
        path = table_file(tmp_path / f"{number}.table.json", round(1e6 * ms), cpu=cpu)
        framefit.push(str(path), store=store, commit=f"c{number}")
    framefit.push(str(table_file(tmp_path / "other.table.json", 5, name="other")), store=store)
    listed = framefit.log(store, model=doors)
    assert [(row.commit, row.figure.value / 1e6, row.worse) for row in listed.history] == [
        (f"c{number}", ms, number == 3) for number, (ms, _) in enumerate(times)
    ]
    assert [row.before and row.before.value / 1e6 for row in listed.history] == [None, 10.0, None, 10.1, 12.0]
    assert [file.name for file in listed.files] == [f"{number}.table.json" for number in range(len(times))]
    assert not listed.worse
    assert not framefit.log(store).history


def test_figures_without_an_interval_are_never_called_worse(tmp_path: Path, doors: str) -> None:
    """Response times of a run are one figure."""
    store = str(tmp_path / "store")
    for number in range(2):
        metrics = run().metrics
        percentiles = msgspec.structs.replace(metrics.models[0].release_to_finish_ns, count=9, p99=5 + 50 * number)
        model = msgspec.structs.replace(
            metrics.models[0], name="doors", releases=1000, missed=200 * number, release_to_finish_ns=percentiles
        )
        path = tmp_path / "metrics.json"
        write_record(path, msgspec.structs.replace(metrics, models=(model,)), force=True)
        framefit.push(str(path), store=store)
    listed = framefit.log(store, model=doors)
    assert {(row.figure.name, row.figure.value, row.worse) for row in listed.history} == {
        ("missed", 0.0, False),
        ("missed", 0.2, True),
        ("response", 5.0, False),
        ("response", 55.0, False),
    }


def test_accuracy_is_worse_where_it_is_lower(tmp_path: Path) -> None:
    """Of a sparse model, and of one that a fit changed; each in the file of its command."""
    store, model = str(tmp_path / "store"), tmp_path / "net.onnx"
    model.write_bytes(b"bytes")
    sparse = msgspec.structs.replace(sparsity(), model="models/net.onnx")
    for name, content in (("result.json", sparse), ("fit.json", fit()), ("fit.json", fit(fits=False))):
        write_record(tmp_path / name, content, force=True)
        framefit.push(str(tmp_path / name), store=store)
    assert [file.kind for file in framefit.log(store).files] == ["sparsity", "fit", "fit"]
    rows = framefit.log(store, model=str(model)).history
    assert [(row.figure.value, row.worse) for row in rows] == [(0.9, False), (0.88, False)]
    low = msgspec.structs.replace(
        sparse,
        configurations=tuple(
            msgspec.structs.replace(row, top1_interval=(0.7, 0.72), top1=0.71) for row in sparse.configurations
        ),
    )
    write_record(tmp_path / "result.json", low, force=True)
    framefit.push(str(tmp_path / "result.json"), store=store)
    (worse,) = framefit.log(store, model=str(model)).worse
    assert worse.figure.value == 0.71


def test_a_run_says_on_which_device_it_was(tmp_path: Path, doors: str) -> None:
    """The plan beside it says it; a plan says it of itself."""
    store = str(tmp_path / "store")
    metrics = run().metrics
    write_record(tmp_path / "metrics.json", metrics, force=True)
    plan = {"hyperperiod_windows": 1, "windows": [], "source": {"device": {"target": "pi5", "cpu": "A76"}}}
    (tmp_path / "timetable.json").write_text(json.dumps(plan))
    pushed = framefit.push(str(tmp_path / "metrics.json"), str(tmp_path / "timetable.json"), store=store).files
    assert [(file.kind, file.fingerprint["cpu"]) for file in pushed] == [("run", "A76"), ("plan", "A76")]
    (tmp_path / "timetable.json").write_text("{")
    assert framefit.push(str(tmp_path / "metrics.json"), store=store).files[0].fingerprint == {}


def test_boards_have_histories_of_their_own(tmp_path: Path, doors: str) -> None:
    """By the name that they were pushed under, whatever their fingerprints say."""
    store = str(tmp_path / "store")
    for number, (board, ms) in enumerate((("pi5", 10), ("cm4", 30), ("pi5", 10))):
        path = table_file(tmp_path / f"{number}.table.json", 1_000_000 * ms)
        framefit.push(str(path), store=store, board=board)
    both = framefit.log(store, model=doors)
    assert [row.device for row in both.history] == ["pi5", "cm4", "pi5"]
    assert both.worse == []
    one = framefit.log(store, model=doors, board="pi5")
    assert [(row.device, row.figure.value) for row in one.history] == [("pi5", 10_000_000)] * 2
    assert framefit.log(store, model=doors, board="none").files == ()
    fetched = framefit.pull(store=store, board="cm4", output=str(tmp_path / "fetched"))
    assert [Path(path).name for path in fetched.paths] == ["1.table.json"]


def test_a_file_that_this_version_cannot_read_is_pushed_without_figures(tmp_path: Path) -> None:
    """With a remark, not an error: what lies in a run's folder is stored, whoever wrote it."""
    path, remarks = tmp_path / "metrics.json", list[str]()
    path.write_text(json.dumps({"residual_utilisation_ratio": 1, "misses": [], "models": "none"}))
    (file,) = framefit.push(str(path), store=str(tmp_path / "store"), notify=remarks.append).files
    assert file.figures == ()
    assert "no figures" in remarks[0]


def test_the_commit_is_that_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mark where files have changed since; none outside a repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    path, store = table_file(tmp_path / "one.table.json", 10), str(tmp_path / "store")
    assert framefit.push(str(path), store=store).files[0].commit == ""
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", path.name], [*name, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], check=True)
    commit = framefit.push(str(path), store=store).files[0].commit
    assert len(commit) == 10
    path.write_bytes(path.read_bytes() + b"\n")
    assert framefit.push(str(path), store=store).files[0].commit == f"{commit}-dirty"


def test_the_command_shows_it_and_writes_a_page(
    tmp_path: Path, doors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 where the latest figure is worse; the page has a chart that says so in words."""
    store, page = str(tmp_path / "store"), tmp_path / "doors.html"
    for number, ms in enumerate((10, 12)):
        path = table_file(tmp_path / f"{number}.table.json", 1_000_000 * ms)
        framefit.push(str(path), store=store, commit=f"c{number}")
    monkeypatch.setattr("sys.argv", ["framefit", "log", store, "--model", doors, "--page", str(page)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    shown = capsys.readouterr().out
    assert "IT GOT WORSE: latency on pi5, A53 10.0 ms before, 12.0 ms now" in " ".join(shown.split())
    text = page.read_text()
    assert (
        "Worse by more than both intervals: latency on pi5, A53 10.0 ms before, 12.0 ms now (c1, 1.table.json)" in text
    )
    with pytest.raises(SystemExit) as again:
        main()
    assert again.value.code == 2


def test_records_of_before_have_no_figures(tmp_path: Path) -> None:
    """A store that an earlier version filled is read as it is."""
    store = tmp_path / "store"
    framefit.push(str(table_file(tmp_path / "one.table.json", 10)), store=str(store))
    (record,) = (store / "index").rglob("*.json")
    old = {key: value for key, value in json.loads(record.read_bytes()).items() if key not in {"figures", "commit"}}
    record.write_text(json.dumps(old))
    assert Store(str(store)).records()[0][0].figures == ()
