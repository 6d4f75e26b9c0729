"""Where outputs go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import ListSink
from framefit.core.journal import Journal
from framefit.core.workload import OutputEntry
from framefit.errors import FramefitError, InputError, UnsupportedError
from framefit.execution.streams import check_sink
from framefit.runtime.sinks import AggregatingSink, Sink, SinkPlace, open_sink, write_outputs


def entry(sink: str, **keys: Any) -> OutputEntry:
    """An entry of ``[[outputs]]``."""
    return OutputEntry(model="a", sink=sink, **keys)


def opened(sink: str, **options: Any) -> Sink:
    """The sink of an entry without other keys."""
    return open_sink(entry(sink), **options)


def test_npz_stacks_outputs_in_order(tmp_path: Path) -> None:
    """One array a tensor, frame after frame, names as in the model; the file appears when it is closed."""
    path = tmp_path / "new" / "out.npz"
    sink = opened(str(path), force=False)
    for frame in (0, 2, 5):
        sink.put(frame, {"/head/boxes": np.full((1, 4), frame, np.float32), "n": np.asarray(frame)})
        assert not path.exists()
    sink.close()
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive.files) == {"frame", "/head/boxes", "n"}
        assert archive["frame"].tolist() == [0, 2, 5]
        assert archive["/head/boxes"].shape == (3, 1, 4)
        assert archive["/head/boxes"].dtype == np.float32
        assert archive["/head/boxes"][:, 0, 0].tolist() == [0, 2, 5]
        assert archive["n"].tolist() == [0, 2, 5]


def test_npz_of_varying_shapes(tmp_path: Path) -> None:
    """Outputs whose shape varies get an array a frame."""
    sink = opened(str(tmp_path / "out.npz"), force=False)
    for frame in (3, 4):
        sink.put(frame, {"where": np.arange(frame), "same": np.zeros(2)})
    sink.close()
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"frame", "same", "where.3", "where.4"}
        assert archive["where.4"].tolist() == [0, 1, 2, 3]


def test_npz_without_frames(tmp_path: Path) -> None:
    """A run that gave nothing leaves an empty list of frames."""
    opened(str(tmp_path / "out.npz"), force=False).close()
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert archive["frame"].tolist() == []


def test_json_lines_grow_line_by_line(tmp_path: Path) -> None:
    """Each frame is a complete line as soon as it is put, so that others can follow the file."""
    path = tmp_path / "new" / "out.jsonl"
    sink = opened(str(path), force=False)
    for frame in range(3):
        sink.put(frame, {"y": np.asarray([[frame, 0.5]], np.float32), "ok": np.asarray(frame < 9)})
        lines = path.read_text().splitlines()
        assert len(lines) == frame + 1
        assert json.loads(lines[-1]) == {"frame": frame, "y": [[frame, 0.5]], "ok": True}
    sink.close()
    assert path.read_text().endswith("\n")


@pytest.mark.parametrize("name", ["out.npz", "out.jsonl", "out.parquet"])
def test_nothing_is_overwritten_unless_asked(tmp_path: Path, name: str) -> None:
    """An existing file is refused before the run begins, and replaced with ``force``."""
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(InputError, match="already exists"):
        opened(str(path), force=False)
    assert path.read_text() == "old"
    sink = opened(str(path), force=True)
    sink.put(0, {"y": np.zeros(1)})
    sink.close()
    assert b"old" not in path.read_bytes()[:3]


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the folder's place is refused."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        opened(str(tmp_path / "file" / "out.jsonl"), force=False)


def test_npz_of_unlucky_names(tmp_path: Path) -> None:
    """Outputs may be called like anything: no array is lost, and "frame" gets out of the way."""
    sink = opened("out.npz", force=False, folder=tmp_path)
    names = ("file", "frame", "frame_", "allow_pickle", "arr_0", "args", "y.1", "../up")
    for frame in range(2):
        outputs = {name: np.full(3, 10 * frame + index) for index, name in enumerate(names)}
        sink.put(frame, outputs | {"y": np.zeros(frame)})
    sink.close()
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert archive["frame"].tolist() == [0, 1]
        for index, name in enumerate(names):
            stored = archive["frame__" if name == "frame" else name]
            assert stored.tolist() == [[index] * 3, [10 + index] * 3]
        assert (archive["y.0"].size, archive["y.1_"].size) == (0, 1)
        assert len(archive.files) == len(names) + 3


def test_npz_of_outputs_that_come_and_go(tmp_path: Path) -> None:
    """An output that is missing in some frames, or changes its type, gets an array a frame."""
    sink = opened("out.npz", force=False, folder=tmp_path)
    sink.put(4, {"a": np.zeros(2), "b": np.zeros(1, np.int64)})
    sink.put(5, {"b": np.full(1, 0.5)})
    sink.close()
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"frame", "a.4", "b.4", "b.5"}
        assert archive["b.5"].tolist() == [0.5]
        assert archive["b.4"].dtype == np.int64


def test_npz_refuses_objects(tmp_path: Path) -> None:
    """Python objects are refused when they come, not when everything is written."""
    sink = opened("out.npz", force=False, folder=tmp_path)
    sink.put(0, {"y": np.zeros(1)})
    with pytest.raises(InputError, match="output 'y' holds Python objects"):
        sink.put(1, {"y": np.asarray([None])})
    sink.close()
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert archive["y"].tolist() == [[0.0]]


def test_json_lines_of_unlucky_names(tmp_path: Path) -> None:
    """An output called "frame" does not hide the frame's number; numbers that JSON does not know become null."""
    sink = opened("out.jsonl", force=False, folder=tmp_path)
    sink.put(7, {"frame": np.asarray([1]), "frame_": np.asarray([2]), "y": np.asarray([np.nan, 1])})
    sink.close()
    expected = {"frame": 7, "frame__": [1], "frame_": [2], "y": [None, 1.0]}
    assert json.loads((tmp_path / "out.jsonl").read_text()) == expected


def test_json_lines_of_other_numbers(tmp_path: Path) -> None:
    """Complex numbers are refused with the frame."""
    sink = opened("out.jsonl", force=False, folder=tmp_path)
    with pytest.raises(InputError, match="frame 3 cannot be written as JSON"):
        sink.put(3, {"y": np.asarray([1j])})
    sink.close()


def test_functions_as_sinks(tmp_path: Path) -> None:
    """A function gets each frame's number and outputs; what it raises names sink and frame."""
    (tmp_path / "taking.py").write_text(
        "taken = []\ndef put(frame, outputs):\n    taken.append((frame, outputs['y'].sum() / (5 - frame)))\n"
        "def refuse(frame, outputs):\n    raise KeyError('boxes')\n"
    )
    sink = opened("taking:put", force=False, folder=tmp_path)
    for frame in range(3):
        sink.put(frame, {"y": np.full(5, frame)})
    sink.close()
    import sys

    assert sys.modules["taking"].taken == [(0, 0.0), (1, 1.25), (2, 10 / 3)]
    with pytest.raises(FramefitError, match=r"the function raised KeyError: 'boxes' \(taking\.py, line 5\)") as found:
        opened("taking:refuse", force=False, folder=tmp_path).put(9, {})
    assert found.value.where == "sink 'taking:refuse', frame 9"
    assert found.value.exit_code == 3


def test_functions_that_do_not_exist(tmp_path: Path) -> None:
    """They are refused when the sink is opened, with its name."""
    with pytest.raises(InputError, match="no module 'nowhere_at_all'") as found:
        opened("nowhere_at_all:put", force=False, folder=tmp_path)
    assert found.value.where == "sink 'nowhere_at_all:put'"


def test_sinks_of_another_kind() -> None:
    """Any other file is refused by name."""
    with pytest.raises(UnsupportedError, match=r"sink = 'out\.csv' is not supported"):
        opened("out.csv", force=False)


def test_aggregated_outputs() -> None:
    """So many frames come as one stack under the last one's number; what is left at the end is shorter."""
    taken = ListSink()
    sink = AggregatingSink(taken, 3)
    for frame in (0, 1, 4, 5, 9):
        sink.put(frame, {"y": np.full((1, 2), frame), "n": np.asarray(frame)})
    assert [frame for frame, _ in taken.taken] == [4]
    sink.close()
    assert taken.closed
    assert [frame for frame, _ in taken.taken] == [4, 9]
    assert [outputs["y"].shape for _, outputs in taken.taken] == [(3, 1, 2), (2, 1, 2)]
    assert [outputs["n"].tolist() for _, outputs in taken.taken] == [[0, 1, 4], [5, 9]]


def test_full_stacks_leave_nothing() -> None:
    """Where the frames come out even, closing gives nothing more."""
    taken = ListSink()
    sink = AggregatingSink(taken, 2)
    for frame in range(4):
        sink.put(frame, {"y": np.zeros(1)})
    sink.close()
    assert [frame for frame, _ in taken.taken] == [1, 3]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [({"y": np.zeros(3)}, r"is \[2\] in frame 0 and \[3\] in frame 1"), ({}, r"is \[2\] in frame 0 and absent in")],
)
def test_outputs_that_make_no_stack(outputs: dict[str, np.ndarray], message: str) -> None:
    """Outputs of another shape are refused by name; what came before them is given out."""
    taken = ListSink()
    sink = AggregatingSink(taken, 3)
    sink.put(0, {"y": np.zeros(2)})
    with pytest.raises(FramefitError, match=f"output 'y' {message}"):
        sink.put(1, outputs)
    sink.close()
    assert [(frame, stack["y"].shape) for frame, stack in taken.taken] == [(0, (1, 2))]


def test_a_check_opens_nothing(tmp_path: Path) -> None:
    """A path that can be written stays as it is; one that exists is refused unless it may be overwritten."""
    (tmp_path / "there.jsonl").write_text("mine")
    for name in ("new.npz", "deep/er/new.jsonl"):
        assert check_sink(entry(name), force=False, folder=tmp_path) is None
    with pytest.raises(InputError, match="already exists"):
        check_sink(entry("there.jsonl"), force=False, folder=tmp_path)
    assert check_sink(entry("there.jsonl"), force=True, folder=tmp_path) is None
    for name in ("there.jsonl/below.npz", "."):
        with pytest.raises(FramefitError):
            check_sink(entry(name), force=True, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"]
    assert (tmp_path / "there.jsonl").read_text() == "mine"


def read_parquet(path: Path) -> dict[str, list[Any]]:
    """Columns of a table."""
    from pyarrow import parquet

    columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    return columns


def test_a_table_has_a_row_for_each_frame(tmp_path: Path) -> None:
    """Numbers are numbers, tensors lists with their shape in the column's metadata."""
    sink = opened("new/out.parquet", force=False, folder=tmp_path)
    for frame in (0, 2):
        sink.put(frame, {"box": np.full((1, 2), frame, np.float32), "n": np.asarray(frame + 1), "frame": np.ones(1)})
    sink.close()
    path = tmp_path / "new" / "out.parquet"
    assert read_parquet(path) == {
        "frame": [0, 2],
        "box": [[0.0, 0.0], [2.0, 2.0]],
        "n": [1, 3],
        "frame_": [[1.0], [1.0]],
    }
    from pyarrow import parquet

    assert parquet.read_schema(path).field("box").metadata == {b"shape": b"[1, 2]"}


def test_a_table_of_outputs_that_vary(tmp_path: Path) -> None:
    """Shapes that vary stand in a column of their own, what a frame lacks is null, and types are widened."""
    sink = opened("out.parquet", force=False, folder=tmp_path)
    sink.put(3, {"where": np.zeros((1, 2), np.int32), "text": np.asarray("face")})
    sink.put(4, {"where": np.full(1, 0.5)})
    sink.close()
    assert read_parquet(tmp_path / "out.parquet") == {
        "frame": [3, 4],
        "where": [[0.0, 0.0], [0.5]],
        "where.shape": [[1, 2], [1]],
        "text": ["face", None],
    }


def test_a_table_without_frames(tmp_path: Path) -> None:
    """A run that gave nothing leaves an empty table."""
    opened("out.parquet", force=False, folder=tmp_path).close()
    assert read_parquet(tmp_path / "out.parquet") == {"frame": []}


def test_a_table_in_groups_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many rows are in memory at once, and rows of earlier parts of the run come first."""
    monkeypatch.setattr("framefit.runtime.sinks._ROW_GROUP_BYTES", 1_000)
    folders = [tmp_path / "part-1", tmp_path / "part-2"]
    for part, folder in enumerate(folders):
        folder.mkdir()
        sink = open_sink(entry("x.parquet"), force=True, folder=tmp_path, place=SinkPlace(Journal(folder), "s.bin"))
        for frame in range(10 * part, 10 * part + 10):
            sink.put(frame, {"y": np.full(20, frame)})
        sink.close()
    files = [(folder / "s.bin").open("rb") for folder in folders]
    write_outputs(tmp_path / "all.parquet", files)
    for file in files:
        file.close()
    from pyarrow import parquet

    assert parquet.ParquetFile(tmp_path / "all.parquet").num_row_groups > 3
    assert read_parquet(tmp_path / "all.parquet")["frame"] == list(range(20))


def test_rotated_lines(tmp_path: Path) -> None:
    """A file that is full gets a number; the newest earlier one is 1, and only so many stay."""
    sink = open_sink(entry("out.jsonl", rotate_mb=0.001, keep=2), force=False, folder=tmp_path)
    for frame in range(100):
        sink.put(frame, {"y": np.zeros(20)})
    sink.close()
    frames = {
        path.name: [json.loads(line)["frame"] for line in path.read_text().splitlines()]
        for path in sorted(tmp_path.iterdir())
    }
    assert sorted(frames) == ["out.1.jsonl", "out.2.jsonl", "out.jsonl"]
    kept = frames["out.2.jsonl"] + frames["out.1.jsonl"] + frames["out.jsonl"]
    assert kept == list(range(kept[0], 100))
    assert all((tmp_path / name).stat().st_size < 1_200 for name in frames)


def test_rotated_files_of_another_run(tmp_path: Path) -> None:
    """They are refused like any file that is there, and removed where it is overwritten."""
    (tmp_path / "out.2.jsonl").write_text("mine")
    rotated = entry("out.jsonl", rotate_mb=1.0)
    with pytest.raises(InputError, match="already exists"):
        open_sink(rotated, force=False, folder=tmp_path)
    open_sink(rotated, force=True, folder=tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_rotation_goes_with_lines() -> None:
    """Other sinks are refused with it, and so are sizes and numbers that cannot be."""
    for sink, keys in (("x.npz", {"rotate_mb": 1.0}), ("x.jsonl", {"rotate_mb": -1.0}), ("x.jsonl", {"keep": 0})):
        with pytest.raises(ValueError, match=r"rotate_mb|keep"):
            entry(sink, **keys)
