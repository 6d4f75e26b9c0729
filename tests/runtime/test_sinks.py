"""Where outputs go."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from framefit.errors import InputError, UnsupportedError
from framefit.runtime.sinks import open_sink


def test_npz_stacks_outputs_in_order(tmp_path: Path) -> None:
    """One array a tensor, frame after frame, names as in the model; the file appears when it is closed."""
    path = tmp_path / "new" / "out.npz"
    sink = open_sink(str(path), force=False)
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
    sink = open_sink(str(tmp_path / "out.npz"), force=False)
    for frame in (3, 4):
        sink.put(frame, {"where": np.arange(frame), "same": np.zeros(2)})
    sink.close()
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"frame", "same", "where.3", "where.4"}
        assert archive["where.4"].tolist() == [0, 1, 2, 3]


def test_npz_without_frames(tmp_path: Path) -> None:
    """A run that gave nothing leaves an empty list of frames."""
    open_sink(str(tmp_path / "out.npz"), force=False).close()
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert archive["frame"].tolist() == []


def test_json_lines_grow_line_by_line(tmp_path: Path) -> None:
    """Each frame is a complete line as soon as it is put, so that others can follow the file."""
    path = tmp_path / "new" / "out.jsonl"
    sink = open_sink(str(path), force=False)
    for frame in range(3):
        sink.put(frame, {"y": np.asarray([[frame, 0.5]], np.float32), "ok": np.asarray(frame < 9)})
        lines = path.read_text().splitlines()
        assert len(lines) == frame + 1
        assert json.loads(lines[-1]) == {"frame": frame, "y": [[frame, 0.5]], "ok": True}
    sink.close()
    assert path.read_text().endswith("\n")


@pytest.mark.parametrize("name", ["out.npz", "out.jsonl"])
def test_nothing_is_overwritten_unless_asked(tmp_path: Path, name: str) -> None:
    """An existing file is refused before the run begins, and replaced with ``force``."""
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(InputError, match="already exists"):
        open_sink(str(path), force=False)
    assert path.read_text() == "old"
    sink = open_sink(str(path), force=True)
    sink.put(0, {"y": np.zeros(1)})
    sink.close()
    assert b"old" not in path.read_bytes()[:3]


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the folder's place is refused."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        open_sink(str(tmp_path / "file" / "out.jsonl"), force=False)


def test_sinks_that_are_not_built() -> None:
    """A function as a sink is refused by name."""
    with pytest.raises(UnsupportedError, match="sink = 'module:function' is not supported yet"):
        open_sink("module:function", force=False)
