"""Where frames come from, and the queues in which they wait."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framefit import FramefitError, InputError
from framefit.core.model import TensorInfo
from framefit.core.workload import StreamEntry
from framefit.devices.device import Array
from framefit.execution import streams
from framefit.execution.streams import (
    ArrayStream,
    EndOfStream,
    FunctionStream,
    ImageStream,
    SyntheticStream,
    check_stream,
    frame_shape,
    open_stream,
    sample_rate_note,
)

RAW = TensorInfo(name="image", dtype="", shape=None)
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
    with pytest.raises(InputError, match=r"frames are .*, but input 'image' takes") as found:
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
    with pytest.raises(InputError, match=r"frames\.npz: not a readable \.npz"):
        open_stream(entry(path), 0)


def test_missing_file(tmp_path: Path) -> None:
    """A missing file is refused by name, for its frames and for their shape."""
    for read in (lambda given: open_stream(given, 0), frame_shape):
        with pytest.raises(InputError, match=r"gone\.npz: no such file"):
            read(entry(tmp_path / "gone.npz"))


def sound(path: Path, samples: np.ndarray, width: int = 2) -> Path:
    """A ``.wav`` at 16 kHz; ``samples`` are whole numbers, samples x channels, of so many bytes."""
    levels = samples.astype("<i4").view(np.uint8).reshape(*samples.shape, 4)[..., :width]
    with wave.open(str(path), "wb") as file:
        file.setparams((samples.shape[1], width, 16_000, 0, "NONE", ""))
        file.writeframes(levels.tobytes())
    return path


@pytest.mark.parametrize(("width", "most"), [(1, 128), (2, 2**15), (3, 2**23), (4, 2**31)])
def test_sounds(tmp_path: Path, width: int, most: int) -> None:
    """Of any width, between -1 and 1, in blocks behind each other."""
    values = np.array([[-most], [most // 2], [0], [most - 1], [1], [-1], [2]])
    stream = open_stream(entry(sound(tmp_path / "a.wav", values + (128 if width == 1 else 0), width), block=3), 0)
    assert stream.length == 2
    tensor = TensorInfo(name="samples", dtype="float32", shape=(1, 3))
    assert np.allclose(stream.read(0, tensor), values[:3].T / most, atol=1e-7)
    assert np.allclose(stream.read(1, tensor), values[3:6].T / most, atol=1e-7)


def test_sounds_that_overlap(tmp_path: Path) -> None:
    """With a hop, of several channels, for an input with a batch."""
    values = np.arange(20).reshape(10, 2)
    camera = entry(sound(tmp_path / "a.wav", values), block=4, hop=2)
    stream = open_stream(camera, 0)
    assert (stream.length, frame_shape(camera)) == (4, (2, 4))
    tensor = TensorInfo(name="samples", dtype="float32", shape=(1, 2, 4))
    assert np.allclose(stream.read(3, tensor)[0], values[6:10].T / 2**15)


def test_a_sound_that_is_played_at_another_rate_is_noted(tmp_path: Path) -> None:
    """16,000 samples a second are a hundred blocks of 160; what overlaps counts by its hop."""
    path = sound(tmp_path / "a.wav", np.arange(2000)[:, None])
    assert sample_rate_note(entry(path, block=160), 100) is None
    assert sample_rate_note(entry(path, block=512, hop=160), 100.2) is None
    slow = sample_rate_note(entry(path, block=160), 50)
    assert slow is not None
    assert "recorded with 16,000 samples a second, and is taken slower: 8,000 a second" in slow
    assert "faster: 51,200" in str(sample_rate_note(entry(path, block=512), 100))
    assert sample_rate_note(entry(tmp_path / "gone.wav", block=512), 100) is None
    assert sample_rate_note(entry("synthetic"), 100) is None


def test_sounds_that_cannot_be_used(tmp_path: Path) -> None:
    """Too short, cut off in its header, of another coding, missing; what is cut off later is read as far as it goes."""
    path = sound(tmp_path / "a.wav", np.arange(8)[:, None])
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert open_stream(entry(path, block=2), 0).length == 2
    with pytest.raises(InputError, match="has 5 samples, and a frame takes 6"):
        open_stream(entry(path, block=6), 0)
    for damaged, message in (
        (content[:20], "ends early"),
        (content.replace(b"\x01\0\x01\0", b"\x03\0\x01\0"), "format"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=message) as caught:
            open_stream(entry(path, block=2), 0)
        assert "pcm_s16le" in str(caught.value.remedy)
    with pytest.raises(InputError, match="No such file"):
        open_stream(entry(tmp_path / "none.wav", block=2), 0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"source": "a.wav"}, "block, the samples of a frame, is missing"),
        ({"source": "a.wav", "block": 0}, "must be 1 or more"),
        ({"source": "a.npz", "hop": 2}, "go with a source of sound"),
    ],
)
def test_blocks_are_of_sounds(keys: dict[str, Any], message: str) -> None:
    """A block has to be given, and goes with nothing else."""
    with pytest.raises(ValueError, match=message):
        StreamEntry(name="camera", **keys)


def test_arrays_for_several_inputs(tmp_path: Path) -> None:
    """One array is read as inputs of several types and shapes, and as it is."""
    values = np.arange(60, dtype=np.uint8).reshape(5, 3, 4)
    stream = open_stream(entry(stored(tmp_path, x=values)), 0)
    for _ in range(2):
        for dtype, shape in (("float32", (1, 3, 4)), ("float32", (3, 4)), ("uint8", (1, 3, 4))):
            frame = stream.read(2, TensorInfo(name="image", dtype=dtype, shape=shape))
            assert (frame.dtype.name, frame.shape) == (dtype, shape)
            np.testing.assert_array_equal(frame.ravel(), values[2].ravel())
        raw = stream.read(2, RAW)
        assert (raw.dtype.name, raw.shape) == ("uint8", (3, 4))
    with pytest.raises(EndOfStream, match="ended after 5 frames"):
        stream.read(5, IMAGE)


def test_synthetic_images_use_all_bytes() -> None:
    """Raw images are uint8 from 0 to 255; other whole numbers stay small."""
    stream = open_stream(StreamEntry(name="s"), 0)
    frame = stream.read(0, TensorInfo(name="x", dtype="uint8", shape=(40, 40, 3)))
    assert (frame.min(), frame.max()) == (0, 255)
    assert stream.read(0, TensorInfo(name="x", dtype="int64", shape=(40, 40, 3))).max() == 1


def images(folder: Path, names: tuple[str, ...] = ("b.png", "a/z.png", "c.BMP", "a.png")) -> Path:
    """Images 6 wide and 4 high, image k filled with 10 x k, and a file that is none."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 6, 3), 10 * number, np.uint8)).save(path)
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.mark.parametrize("limit", [512 * 2**20, 100])
def test_image_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Images come by name, folders within included, whether they are decoded ahead or when they are read."""
    monkeypatch.setattr(streams, "_EAGER_BYTES", limit)
    monkeypatch.setattr(streams, "_KEPT_IMAGES", 2)
    given = entry(images(tmp_path))
    stream = open_stream(given, 0)
    assert stream.length == 4
    assert frame_shape(given) == (4, 6, 3)
    for index in (0, 1, 2, 3, 0, 3):
        frame = stream.read(index, RAW)
        assert (frame.dtype.name, frame.shape) == ("uint8", (4, 6, 3))
        assert (frame == [10, 30, 0, 20][index]).all()  # a/z.png, a.png, b.png, c.BMP
    with pytest.raises(EndOfStream, match="ended after 4 frames"):
        stream.read(4, RAW)


def test_images_become_rgb(tmp_path: Path) -> None:
    """Gray, palette and transparent images are read as three channels."""
    for mode in ("L", "P", "RGBA", "1"):
        Image.new(mode, (6, 4)).save(tmp_path / f"{mode}.png")
    stream = open_stream(entry(tmp_path), 0)
    assert {stream.read(index, RAW).shape for index in range(4)} == {(4, 6, 3)}


def test_images_without_preprocess(tmp_path: Path) -> None:
    """An input of their shape takes them as they are; for another one preprocess is suggested."""
    stream = open_stream(entry(images(tmp_path)), 0)
    frame = stream.read(1, TensorInfo(name="x", dtype="float32", shape=(1, 4, 6, 3)))
    assert (frame.dtype.name, frame.max()) == ("float32", 30)
    with pytest.raises(InputError, match=r"frames are \[4, 6, 3\], but input 'image' takes \[1, 3, 4\]") as found:
        stream.read(1, IMAGE)
    assert "preprocess" in str(found.value.remedy)


@pytest.mark.parametrize("limit", [512 * 2**20, 100])
@pytest.mark.parametrize("cut", [0, 40])
def test_damaged_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, cut: int) -> None:
    """The first damaged image is refused at opening, a later one when it is read, each by name."""
    monkeypatch.setattr(streams, "_EAGER_BYTES", limit)
    images(tmp_path, ("a.png", "b.png", "c.png"))
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:cut])
    stream = open_stream(entry(tmp_path), 0)
    assert (stream.read(2, RAW) == 20).all()
    for _ in range(2):
        with pytest.raises(InputError, match=r"b\.png cannot be read as an image"):
            stream.read(1, RAW)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.png cannot be read as an image"):
        open_stream(entry(tmp_path), 0)


@pytest.mark.parametrize(
    ("name", "message"), [("gone", "no such folder"), ("empty", "no images in"), ("file", "no .npz")]
)
def test_folders_without_images(tmp_path: Path, name: str, message: str) -> None:
    """A missing or empty folder, and any other file, are refused, for their frames and their shape."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for read in (lambda given: open_stream(given, 0), frame_shape):
        with pytest.raises(InputError, match=message) as found:
            read(entry(tmp_path / name))
        assert found.value.where == "stream 'camera'"


def function(folder: Path, text: str) -> StreamEntry:
    """A stream from a function "frames" with this body, in a module of its own."""
    module = f"source_{folder.name}"
    (folder / f"{module}.py").write_text(f"import numpy as np\ndef frames():\n    {text}\n")
    return entry(f"{module}:frames")


def test_functions_give_frames(tmp_path: Path) -> None:
    """Frames are pulled in order, also over those that nobody asks for, and the last 64 can be read again."""
    given = function(tmp_path, "yield from (np.full((3, 4), k, np.float32) for k in range(100))")
    stream = open_stream(given, 0, folder=tmp_path)
    assert (stream.length, frame_shape(given)) == (None, None)
    for index in (0, 3, 3, 1, 70, 7):
        assert (stream.read(index, IMAGE) == index).all()
    assert stream.read(70, RAW).shape == (3, 4)
    with pytest.raises(FramefitError, match="frame 6 is gone: the last 64 of 71 are kept"):
        stream.read(6, IMAGE)
    for _ in range(2):
        with pytest.raises(EndOfStream, match="ended after 100 frames"):
            stream.read(100, IMAGE)
    assert (stream.read(99, IMAGE) == 99).all()


def test_a_function_is_called_once(tmp_path: Path) -> None:
    """A list is as good as a generator, and the function runs once for all readers."""
    given = function(tmp_path, "frames.calls = getattr(frames, 'calls', 0) + 1; return [np.full(1, frames.calls)] * 3")
    stream = open_stream(given, 0, folder=tmp_path)
    assert [stream.read(index, RAW).item() for index in (0, 1, 2, 0)] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no camera')", r"ValueError: no camera \(source_.*\.py, line 3\)"),
        ("return 3", "the function returned int"),
        ("yield np.zeros((3, 4)); raise OSError('gone')", r"OSError: gone \(source_.*\.py, line 3\)"),
        ("yield np.zeros((3, 4)); yield 'text'", "the function yielded str"),
        ("yield np.zeros((3, 4)); yield np.zeros((4, 3))", r"frames are \[4, 3\], but input 'image' takes \[1, 3, 4\]"),
    ],
)
def test_functions_that_fail(tmp_path: Path, text: str, message: str) -> None:
    """What a function raises, or gives that is no frame, is told with the stream and the frame."""

    def read() -> list[object]:
        stream = open_stream(function(tmp_path, text), 0, folder=tmp_path)
        return [stream.read(index, IMAGE) for index in range(2)]

    with pytest.raises(FramefitError, match=message) as found:
        read()
    assert "stream 'camera' (source_" in str(found.value.where)
    assert ("frame 1" in str(found.value.where)) == text.startswith("yield")


def test_shape_of_synthetic_frames() -> None:
    """It is the entry's, or left to the models."""
    assert frame_shape(StreamEntry(name="s")) is None
    assert frame_shape(StreamEntry(name="s", shape=(1, 2))) == (1, 2)


def test_a_function_is_asked_whether_there_is_another_frame() -> None:
    """No frame is skipped by asking; how many there were is known at the end."""
    stream = FunctionStream(lambda: (np.full(2, n, np.float32) for n in range(3)), "s")
    assert stream.length is None
    assert [stream.has(frame) for frame in (0, 2, 3, 9, 1)] == [True, True, False, False, True]
    assert stream.length == 3
    assert [stream.read(n, TensorInfo(name="x", dtype="float32", shape=(2,)))[0] for n in range(3)] == [0, 1, 2]
    with pytest.raises(EndOfStream):
        stream.read(3, TensorInfo(name="x", dtype="float32", shape=(2,)))


def test_a_function_stream_keeps_what_deep_queues_need() -> None:
    """A model may be as far behind as its queue is deep."""
    frames = [np.full(2, n, np.float32) for n in range(200)]
    tensor = TensorInfo(name="x", dtype="float32", shape=(2,))
    deep, plain = FunctionStream(lambda: frames, "s", keep=100), FunctionStream(lambda: frames, "s")
    assert deep.has(150)
    assert plain.has(150)
    assert deep.read(51, tensor)[0] == 51
    with pytest.raises(FramefitError, match="frame 51 is gone: the last 64 of 151"):
        plain.read(51, tensor)


def test_streams_that_know_their_length_say_what_they_have(tmp_path: Path) -> None:
    """Arrays and folders end after their last frame, synthetic streams never."""
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    for stream, count in ((ArrayStream(np.zeros((2, 3)), "s"), 2), (ImageStream(tmp_path, "s", ahead=False), 1)):
        assert [stream.has(frame) for frame in range(3)] == [frame < count for frame in range(3)]
    assert SyntheticStream(0).has(10**9)


def test_a_check_consumes_nothing(tmp_path: Path) -> None:
    """A function is imported and not called; frames of files are held against the inputs that they feed."""
    (tmp_path / "own_checked.py").write_text("def frames():\n    raise AssertionError('called')\n")
    tensor = TensorInfo(name="x", dtype="float32", shape=(1, 3))
    check_stream(StreamEntry(name="s", source="own_checked:frames"), [(tensor, None)], folder=tmp_path)
    with pytest.raises(InputError, match="has no 'pictures'"):
        check_stream(StreamEntry(name="s", source="own_checked:pictures"), [(tensor, None)], folder=tmp_path)
    np.savez(tmp_path / "f.npz", np.zeros((2, 3)))
    np.savez(tmp_path / "c.npz", np.zeros((2, 3), np.complex64))
    check_stream(StreamEntry(name="s", source=str(tmp_path / "f.npz")), [(tensor, None)], folder=tmp_path)
    with pytest.raises(InputError, match="complex64"):
        check_stream(StreamEntry(name="s", source=str(tmp_path / "c.npz")), [(tensor, None)], folder=tmp_path)
    seen: list[Array] = []
    check_stream(StreamEntry(name="s", source=str(tmp_path / "c.npz")), [(RAW, seen.append)], folder=tmp_path)
    assert [frame.shape for frame in seen] == [(3,)]
