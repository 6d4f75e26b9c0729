"""Where frames come from, and the queues in which they wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.model import TensorInfo
from framefit.core.workload import StreamEntry
from framefit.errors import InputError, UnsupportedError
from framefit.runtime.streams import Queue, frame_shape, open_stream

IMAGE = TensorInfo(name="image", dtype="float32", shape=(1, 3, 4))


def entry(path: Path | str, **keys: Any) -> StreamEntry:
    """A stream called "camera"."""
    return StreamEntry(name="camera", source=str(path), **keys)


def stored(folder: Path, **arrays: Any) -> Path:
    """An ``.npz``."""
    np.savez(folder / "frames.npz", **arrays)
    return folder / "frames.npz"


def test_synthetic_frames_follow_the_seed() -> None:
    """The same seed gives the same frames, another seed others; frames differ and come again."""
    one, same, other = (open_stream(StreamEntry(name="s"), seed) for seed in (1, 1, 2))
    frames = [one.read(index, IMAGE) for index in range(16)]
    assert one.length is None
    assert {frame.shape for frame in frames} == {(1, 3, 4)}
    assert frames[0].dtype == np.float32
    assert len({frame.tobytes() for frame in frames}) == 8
    for index in (0, 5, 15):
        np.testing.assert_array_equal(frames[index], same.read(index, IMAGE))
        np.testing.assert_array_equal(frames[index], frames[index % 8])
        assert not np.array_equal(frames[index], other.read(index, IMAGE))


def test_synthetic_frames_take_each_inputs_shape() -> None:
    """Two models of different inputs may read one synthetic stream, whoever comes first."""
    stream = open_stream(StreamEntry(name="s"), 0)
    inputs = [
        IMAGE,
        TensorInfo(name="image", dtype="float32", shape=(2, 2)),
        TensorInfo(name="image", dtype="int64", shape=(1, 3, 4)),
    ]
    for tensor in [*inputs, *inputs]:
        frame = stream.read(3, tensor)
        assert (frame.shape, frame.dtype.name) == (tensor.shape, tensor.dtype)


@pytest.mark.parametrize("shape", [(5, 3, 4), (5, 1, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_stored_frames(tmp_path: Path, shape: tuple[int, ...], dtype: type) -> None:
    """Frames of an ``.npz`` are read by number, with or without the leading 1, in the input's type."""
    values = np.arange(60).reshape(shape).astype(dtype)
    given = entry(stored(tmp_path, x=values))
    stream = open_stream(given, 0)
    assert stream.length == 5
    assert frame_shape(given) == shape[1:]
    for index in (4, 0, 2):
        frame = stream.read(index, IMAGE)
        assert (frame.shape, frame.dtype) == ((1, 3, 4), np.float32)
        np.testing.assert_array_equal(frame.ravel(), values[index].ravel())


def test_named_array(tmp_path: Path) -> None:
    """Of several arrays the named one is read."""
    path = stored(tmp_path, x=np.zeros((5, 3, 4)), y=np.ones((7, 3, 4)))
    stream = open_stream(entry(path, array="y"), 0)
    assert stream.length == 7
    assert stream.read(0, IMAGE).all()


@pytest.mark.parametrize("shape", [(5, 3, 5), (5, 12), (5, 2, 3, 4), (5, 1, 1, 3, 4), (5,)])
def test_frames_of_another_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Frames that do not fit an input are refused with both shapes."""
    stream = open_stream(entry(stored(tmp_path, x=np.zeros(shape, np.float32))), 0)
    with pytest.raises(InputError, match=r"frames are .*, input 'image' takes") as found:
        stream.read(0, IMAGE)
    assert str(list(shape[1:])) in found.value.what
    assert str(found.value.where) == "stream 'camera' (frames.npz)"


def test_frames_of_another_type(tmp_path: Path) -> None:
    """Floats are not rounded for an input of whole numbers: they are refused."""
    stream = open_stream(entry(stored(tmp_path, x=np.zeros((5, 3, 4), np.float32))), 0)
    with pytest.raises(InputError, match="int64"):
        stream.read(0, TensorInfo(name="image", dtype="int64", shape=(1, 3, 4)))


@pytest.mark.parametrize(
    ("arrays", "array", "message"),
    [
        ({"x": np.zeros((5, 3)), "y": np.zeros((5, 3))}, "z", "no array 'z' in .*; it has: x, y"),
        ({"x": np.zeros((5, 3)), "y": np.zeros((5, 3))}, None, "no array None in .*; it has: x, y"),
        ({"x": np.zeros((0, 3, 4))}, None, "holds no frames"),
        ({"x": np.asarray(3.0)}, None, "holds no frames"),
        ({"x": np.asarray([{}, {}])}, None, "pickle"),
    ],
)
def test_wrong_arrays(tmp_path: Path, arrays: dict[str, Any], array: str | None, message: str) -> None:
    """An unknown or ambiguous array, one without frames, and pickles are refused."""
    with pytest.raises(InputError, match=message) as found:
        open_stream(entry(stored(tmp_path, **arrays), array=array), 0)
    assert found.value.where == "stream 'camera'"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_damaged_file(tmp_path: Path, share: float) -> None:
    """A truncated file is refused by name."""
    path = stored(tmp_path, x=np.zeros((5, 3, 4)))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=r"frames\.npz cannot be read"):
        open_stream(entry(path), 0)


def test_missing_file(tmp_path: Path) -> None:
    """A missing file is refused by name, for its frames and for their shape."""
    for read in (lambda given: open_stream(given, 0), frame_shape):
        with pytest.raises(InputError, match=r"no such file .*gone\.npz"):
            read(entry(tmp_path / "gone.npz"))


def test_sources_that_are_not_built() -> None:
    """Folders and functions are refused by name."""
    with pytest.raises(UnsupportedError, match="source = 'module:function' is not supported yet"):
        open_stream(entry("module:function"), 0)


def test_shape_of_synthetic_frames() -> None:
    """It is the entry's, or left to the models."""
    assert frame_shape(StreamEntry(name="s")) is None
    assert frame_shape(StreamEntry(name="s", shape=(1, 2))) == (1, 2)


def test_full_queue_drops_the_oldest_or_the_newest() -> None:
    """The frame that gives way is told."""
    oldest, newest = Queue(2), Queue(2, drop_oldest=False)
    assert [oldest.put(frame) for frame in range(4)] == [None, None, 0, 1]
    assert [newest.put(frame) for frame in range(4)] == [None, None, 2, 3]
    assert [oldest.take(), oldest.take()] == [2, 3]
    assert list(newest.clear()) == [0, 1]
    assert len(newest) == 0


@given(st.integers(1, 4), st.booleans(), st.lists(st.booleans(), max_size=40))
def test_queue_keeps_order_and_loses_nothing(depth: int, drop_oldest: bool, puts: list[bool]) -> None:
    """Each frame is taken, dropped or waiting, exactly once; taken in order, and never too many wait."""
    queue, frame = Queue(depth, drop_oldest=drop_oldest), 0
    taken: list[int] = []
    dropped: list[int | None] = []
    for put in puts:
        if put:
            dropped.append(queue.put(frame))
            frame += 1
        elif len(queue):
            taken.append(queue.take())
        assert len(queue) <= depth
    waiting = list(queue.clear())
    assert [*taken, *waiting] == sorted([*taken, *waiting])
    assert sorted([*taken, *waiting, *(d for d in dropped if d is not None)]) == list(range(frame))
