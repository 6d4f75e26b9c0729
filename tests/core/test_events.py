"""Traces as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefit import InputError
from framefit.core.events import EventType, Trace, TraceMeta

FIELDS = ("time_ns", "id", "type", "core", "operation", "loss_after")


def arrays(count: int = 6) -> dict[str, Any]:
    """The arrays that a trace has to have."""
    return {
        "time_ns": np.arange(count, dtype=np.int64) * 2**40,
        "id": np.arange(count, dtype=np.int32) % 2,
        "type": np.arange(count, dtype=np.uint8) % 2,
        "core": np.full(count, 3, np.int16),
        "kinds": np.asarray(["conv", "pad_pool"]),
    }


def write(folder: Path, **changed: Any) -> Path:
    """A ``trace.npz``; an array given as ``None`` is left out."""
    path = folder / "trace.npz"
    np.savez(path, **{name: array for name, array in (arrays() | changed).items() if array is not None})
    return path


def refusal(path: Path) -> str:
    """The message with which a trace is refused."""
    with pytest.raises(InputError) as found:
        Trace.read(path)
    assert found.value.where == str(path)
    return found.value.what


@pytest.mark.parametrize("count", [0, 6])
def test_round_trip(tmp_path: Path, count: int) -> None:
    """Every array, the kinds, losses and facts of the recorder come back as they were."""
    given = arrays(count)
    given["kinds"] = tuple(given["kinds"].tolist())
    meta = TraceMeta(resolution_ns=30, wrap_bits=32, selected_kinds=("conv",), buffer_events=9, lost_events=4)
    made = Trace(**given, operation=np.arange(count) - 1, loss_after=np.asarray([count // 2, count]), meta=meta)
    made.write(tmp_path / "trace.npz")
    read = Trace.read(tmp_path / "trace.npz")
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    assert [getattr(read, name).dtype.name for name in FIELDS] == ["int64", "int32", "uint8", "int16", "int64", "int64"]
    assert (read.kinds, read.meta, len(read)) == (("conv", "pad_pool"), meta, count)
    assert read.loss_after.tolist() == [count // 2, count]
    assert EventType(1) is EventType.END


def test_optional_arrays_may_be_absent(tmp_path: Path) -> None:
    """Another program's trace without operations, losses and facts is read: unknown, none, defaults."""
    read = Trace.read(write(tmp_path))
    assert read.operation.tolist() == [-1] * 6
    assert read.loss_after.tolist() == []
    assert read.meta == TraceMeta()


def test_smaller_integers_are_welcome(tmp_path: Path) -> None:
    """Arrays of another integer type are converted where no value changes, and refused where one would."""
    assert Trace.read(write(tmp_path, id=np.asarray([0, 1, 0, 1, 0, 1], np.int64))).id.dtype == np.int32
    assert "'id' holds values that do not fit" in refusal(write(tmp_path, id=np.full(6, 2**40)))


@pytest.mark.parametrize("name", ["time_ns", "id", "type", "core", "kinds"])
def test_missing_array(tmp_path: Path, name: str) -> None:
    """A missing array is named beside those that are there."""
    message = refusal(write(tmp_path, **{name: None}))
    assert f"array {name!r} is missing" in message
    assert "it has: " in message


@pytest.mark.parametrize("name", ["time_ns", "kinds", "operation", "loss_after", "meta"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    """An array of Python objects is never unpickled, whichever array it is."""
    assert "pickle" in refusal(write(tmp_path, **{name: np.asarray([{}] * 6, object)}))


@pytest.mark.parametrize(
    "changed",
    [
        {"time_ns": np.zeros(5, np.int64)},
        {"operation": np.zeros(7, np.int64)},
        {"time_ns": np.zeros((6, 2), np.int64)},
        {"time_ns": np.zeros(6)},
        {"id": np.asarray(["a"] * 6)},
        {"meta": np.asarray("{")},
        {"meta": np.asarray('{"wrap_bit": 3}')},
        {"meta": np.asarray('{"wrap_bits": "3"}')},
        {"kinds": np.asarray("conv")},
    ],
    ids=lambda changed: f"{next(iter(changed))}",
)
def test_wrong_arrays(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Arrays of unequal length, of more dimensions, of another kind, or no JSON where it belongs are refused."""
    assert refusal(write(tmp_path, **changed))


def test_scalars_are_no_arrays(tmp_path: Path) -> None:
    """Single numbers in all places are refused."""
    single = {name: np.asarray(array[0]) for name, array in arrays().items() if name != "kinds"}
    assert "shapes [()]" in refusal(write(tmp_path, **single))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_file(tmp_path: Path, share: float) -> None:
    """A file that ends too early is refused."""
    path = write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "not a readable .npz" in refusal(path)


@pytest.mark.parametrize("name", ["time_ns", "operation"])
def test_damaged_array(tmp_path: Path, name: str) -> None:
    """An array whose bytes changed is refused."""
    path = write(tmp_path, operation=np.arange(6))
    content = bytearray(path.read_bytes())
    at = content.find(f"{name}.npy".encode()) + 150
    content[at : at + 2] = b"zz"
    path.write_bytes(content)
    assert "CRC" in refusal(path)


def test_other_files(tmp_path: Path) -> None:
    """A missing file, a single array and a text are refused."""
    assert refusal(tmp_path / "trace.npz") == "no such file"
    np.save(tmp_path / "trace.npy", np.zeros(3))
    assert "not a readable .npz" in refusal(tmp_path / "trace.npy")
    (tmp_path / "trace.txt").write_text("text")
    assert "not a readable .npz" in refusal(tmp_path / "trace.txt")


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    """An existing trace stays unless ``force`` is given."""
    trace = Trace.read(write(tmp_path))
    with pytest.raises(InputError, match="already exists"):
        trace.write(tmp_path / "trace.npz")
    trace.write(tmp_path / "trace.npz", force=True)
    assert len(Trace.read(tmp_path / "trace.npz")) == 6
