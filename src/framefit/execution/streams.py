"""Files from which frames are read."""

from __future__ import annotations

import contextlib
import os
import warnings
import wave
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from framefit.core.arrays import ArrayFile, transposed
from framefit.core.functions import error_text, load_function, load_plugin
from framefit.core.journal import numbered_files
from framefit.core.model import TensorInfo
from framefit.core.workload import OutputEntry, StreamEntry, address_scheme, names_function, without_password
from framefit.devices.device import Array, random_inputs
from framefit.errors import FramefitError, InputError, UnsupportedError, needs_extra
from framefit.execution.live import live_frames, live_shape
from framefit.execution.messages import MqttSink, check_mqtt
from framefit.execution.video import VIDEO_SUFFIXES, DecodedVideo, video_shape

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["EndOfStream", "Stream", "check_sink", "fitted", "open_stream", "sample_rate_note"]

SINK_GROUP = "framefit.sinks"
"""Entry points of packages that bring sinks: ``scheme = "module:make"``, called with the address."""
_SAME_RATE = 0.005  # of a file's sample rate: what cameras' and sound cards' clocks differ by is less
_IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def image_paths(folder: Path, where: str) -> list[Path]:
    """Paths of a folder's images, by name.

    Raises:
        InputError: the folder does not exist, or holds no images.
    """
    if not folder.is_dir():
        what = (
            f"{folder} is no .npz, no .wav, no video and no folder" if folder.exists() else f"no such folder {folder}"
        )
        raise InputError(
            what,
            where=where,
            remedy='use "synthetic", an .npz, a .wav, a video, a folder of images, or a "module:function"',
        )
    paths = [path for path in folder.rglob("*") if path.suffix.lower() in _IMAGE_SUFFIXES and path.is_file()]
    if not paths:
        kinds = ", ".join(sorted(_IMAGE_SUFFIXES))
        raise InputError(f"no images in {folder}", where=where, remedy=f"put images there: {kinds}")
    return sorted(paths, key=lambda path: path.relative_to(folder).parts)


def opened_image(path: Path, where: str, *, decode: bool = True) -> Image.Image:
    """Open an image, decoded or its header only.

    Raises:
        InputError: it is damaged.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings(), contextlib.ExitStack() as opened:
            warnings.simplefilter("ignore")  # about size and metadata; real errors are raised
            image = opened.enter_context(Image.open(path))
            if decode:
                image.load()
            opened.pop_all()  # the file of a damaged image is closed
    except Exception as error:  # Pillow's errors about damaged files have no common class
        raise InputError(
            f"{path} cannot be read as an image: {error}", where=where, remedy="replace or remove it"
        ) from error
    return image


def _is_stored(entry: StreamEntry) -> bool:
    """Whether a stream's frames are those of one file."""
    return entry.is_file and entry.source.lower().endswith((".npz", ".wav"))


def is_video(entry: StreamEntry) -> bool:
    """Whether a stream's frames are those of a video file."""
    return entry.is_file and entry.source.lower().endswith(VIDEO_SUFFIXES)


def stored_frames(entry: StreamEntry) -> Array:
    """Read the frames of an ``.npz`` or a ``.wav``; the first axis counts them.

    Raises:
        InputError: the file is missing or damaged, or does not have the array, or fewer samples than a frame.
    """
    where = f"stream {entry.name!r}"
    if entry.source.lower().endswith(".wav"):
        return _blocks(_samples(Path(entry.source), where), entry, where)
    try:
        file = ArrayFile(entry.source)
        name = entry.array or (file.names[0] if len(file.names) == 1 else None)
        array: Array | None = file.read([name])[name] if name in file.names else None
    except InputError as error:
        raise InputError(f"{entry.source}: {error.what}", where=where, remedy=error.remedy) from error
    if array is None:
        has = ", ".join(file.names)
        raise InputError(f"no array {name!r} in {entry.source}; it has: {has}", where=where, remedy="set array")
    if array.ndim == 0 or not len(array):
        raise InputError(f"{entry.source} holds no frames", where=where, remedy="its first axis counts frames")
    return array


def _samples(path: Path, where: str) -> Array:
    """Samples of a ``.wav`` between -1 and 1: samples x channels, float32.

    Raises:
        InputError: it is missing or damaged, or has another coding than whole numbers.
    """
    remedy = f"convert it: ffmpeg -i {path.name} -c:a pcm_s16le new.wav"
    try:
        with wave.open(str(path), "rb") as file:
            width, channels = file.getsampwidth(), file.getnchannels()
            data = file.readframes(file.getnframes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", where=where, remedy="check the path") from error
    except (wave.Error, EOFError) as error:
        raise InputError(
            f"{path} cannot be read: {str(error) or 'it ends early'}", where=where, remedy=remedy
        ) from error
    whole = len(data) // (width * channels) * channels  # a file that was cut off may end within a sample
    levels = np.frombuffer(data, np.uint8, whole * width).reshape(whole, width)
    if width == 1:
        values = levels[:, 0].astype(np.float32) / 128 - 1  # of eight bits without a sign
    else:  # the upper bytes of 32 bits
        wide = np.zeros((whole, 4), np.uint8)
        wide[:, 4 - width :] = levels
        values = (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    return values.reshape(-1, channels)


def sample_rate_note(entry: StreamEntry, rate_hz: float) -> str | None:
    """A sentence about a ``.wav`` that a stream plays faster or slower than it was recorded; ``None``: it does not."""
    if not (entry.is_file and entry.source.lower().endswith(".wav")):
        return None
    recorded_hz = 0
    with contextlib.suppress(OSError, wave.Error, EOFError), wave.open(entry.source, "rb") as file:
        recorded_hz = file.getframerate()  # where it cannot be read, what opens the stream says so
    taken_hz = rate_hz * (entry.hop or entry.block or 0)
    if not recorded_hz or abs(taken_hz / recorded_hz - 1) <= _SAME_RATE:
        return None
    name, how = Path(entry.source).name, "faster" if taken_hz > recorded_hz else "slower"
    return (
        f"{entry.name}: {name} was recorded with {recorded_hz:,} samples a second, and is taken {how}: "
        f"{taken_hz:,.0f} a second (rate_hz x hop)"
    )


def _blocks(samples: Array, entry: StreamEntry, where: str) -> Array:
    """Frames of so many samples: frames x channels x samples."""
    assert entry.block is not None
    if len(samples) < entry.block:
        raise InputError(
            f"{entry.source} has {len(samples)} samples, and a frame takes {entry.block}",
            where=where,
            remedy="set a smaller block",
        )
    return np.lib.stride_tricks.sliding_window_view(samples, entry.block, axis=0)[:: entry.hop or entry.block]


def check_sink(output: OutputEntry, *, force: bool, folder: Path) -> Callable[..., Any] | None:
    """Refuse a sink that :func:`open_sink` would refuse, without any change.

    Args:
        output: with a path that is absolute or seen from the folder.
        force: whether files may exist.
        folder: folder of the app.

    Returns:
        The function, or what makes a sink of an address; ``None`` for a file.

    Raises:
        InputError: the file exists or cannot be written, or the function does not exist.
        UnsupportedError: unknown kind of sink.
    """
    sink = output.sink
    if output.is_file:
        if sink.endswith(".parquet"):
            with needs_extra("pyarrow", "parquet"):
                import pyarrow.parquet  # noqa: F401 - before anything is run
        earlier = numbered_files(folder / sink, output.keep) if output.rotate_mb is not None else []
        for path in (folder / sink, *earlier):
            check_path(path, force=force)
        return None
    if names_function(sink):
        return load_function(sink, folder, f"sink {sink!r}")
    scheme = address_scheme(sink)
    if scheme in ("mqtt", "mqtts"):
        check_mqtt(sink)
        return MqttSink
    plugin = None if scheme is None else load_plugin(SINK_GROUP, scheme, f"sink {without_password(sink)!r}")
    if plugin is not None:
        return plugin
    raise UnsupportedError(
        f"sink = {without_password(sink)!r} is not supported",
        where="$.outputs",
        remedy='use an .npz, a .parquet, a .jsonl, a "module:function", mqtt://host/topic, '
        f"or install a package with an entry point {scheme or 'NAME'!r} in {SINK_GROUP}",
    )


def check_path(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise InputError("already exists", where=path, remedy="choose another sink, or overwrite it with --force")
    above = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
    if path.is_dir() or not above.is_dir() or not os.access(path if path.exists() else above, os.W_OK):
        raise InputError("cannot be written", where=path, remedy="check folder and permissions")


_SYNTHETIC_FRAMES = 8
_KEPT_FRAMES = 64  # of a function's stream, for models that are behind
_KEPT_IMAGES = 8  # decoded ones of a folder that does not fit into memory
_EAGER_BYTES = 512 * 2**20  # folders up to this size are decoded before the run


class EndOfStream(FramefitError):  # noqa: N818  # the end of a stream is not an error
    """A frame beyond a stream's last one was requested: the stream has ended."""


class Stream(Protocol):
    """Frames by number."""

    @property
    def length(self) -> int | None:
        """Number of frames; ``None``: unlimited, or not known yet."""

    def has(self, frame: int) -> bool:
        """Whether there is a frame of that number; waits for it if that is not known."""

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Return frame number ``frame`` as the input ``tensor``; unchanged if the input has no shape.

        Raises:
            EndOfStream: there are fewer frames.
            InputError: the frame does not match the input, or cannot be read.
        """


class SyntheticStream:
    """Random frames, a few of them repeatedly; each input gets its own shape.

    Args:
        seed: for the frames.
    """

    length = None

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._frames: dict[tuple[str, str, tuple[int, ...] | None], list[Array]] = {}

    def has(self, frame: int) -> bool:  # noqa: ARG002 - the protocol's form
        """Return True."""
        return True

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Return the same array every 8 frames; raw images (uint8, height x width or x 1 or 3) use all 256 values."""
        key = (tensor.name, tensor.dtype, tensor.shape)
        if key not in self._frames:
            random = np.random.default_rng(self._seed)
            self._frames[key] = [_random_frame(tensor, random) for _ in range(_SYNTHETIC_FRAMES)]
        return self._frames[key][frame % _SYNTHETIC_FRAMES]


class ArrayStream:
    """Frames along the first axis of an array.

    Args:
        array: frames x shape; a frame may leave out the input's leading 1.
        where: for messages.
    """

    def __init__(self, array: Array, where: str) -> None:
        self._array = array
        self._where = where
        self.length = len(array)
        self._ready: dict[tuple[str, tuple[int, ...] | None], Array] = {}

    def has(self, frame: int) -> bool:
        """Whether the array has that many frames."""
        return frame < self.length

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Return the frame in the input's shape and type."""
        if frame >= self.length:
            raise _ended(self._where, self.length)
        key = (tensor.dtype, tensor.shape)
        if key not in self._ready:
            self._ready[key] = fitted(self._array, tensor, self._where, count=self.length)
        array: Array = self._ready[key][frame]
        return array


class ResumedStream:
    """A stream that continues behind the frames of a run's earlier parts.

    Args:
        stream: from its beginning.
        first: number of the frame that is frame 0 here.
    """

    def __init__(self, stream: Stream, first: int) -> None:
        self._stream, self._first = stream, first

    @property
    def length(self) -> int | None:
        """Number of remaining frames."""
        return None if self._stream.length is None else max(self._stream.length - self._first, 0)

    def has(self, frame: int) -> bool:
        """Whether the stream has the frame."""
        return self._stream.has(frame + self._first)

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """See :class:`Stream`."""
        return self._stream.read(frame + self._first, tensor)


class ImageStream:
    """The images of a folder, in the order of their names: height x width x 3, uint8, RGB.

    All are decoded in advance if they fit into 512 MB, else each one when it is read.

    Args:
        folder: searched with its subfolders; .jpg, .jpeg, .png, .bmp and .webp count.
        where: for messages.
        ahead: whether to decode in advance; otherwise only the first image is decoded.

    Raises:
        InputError: the folder does not exist, holds no images, or the first one is damaged.
    """

    def __init__(self, folder: Path, where: str, *, ahead: bool = True) -> None:
        self._where = where
        self._paths = image_paths(folder, where)
        self.length = len(self._paths)
        self._decoded: OrderedDict[int, Array] = OrderedDict()
        first = self._decode(0)
        self._eager = ahead and self._fits()
        self._decoded[0] = first
        if self._eager:
            for index in range(1, self.length):
                try:
                    self._decoded[index] = self._decode(index)
                except InputError:
                    continue  # reported when it is read

    def has(self, frame: int) -> bool:
        """Whether the folder has that many images."""
        return frame < self.length

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Return the image in the input's shape and type."""
        if frame >= self.length:
            raise _ended(self._where, self.length)
        image = self._decoded.get(frame)
        if image is None:
            image = self._decoded[frame] = self._decode(frame)
            if not self._eager and len(self._decoded) > _KEPT_IMAGES:
                self._decoded.popitem(last=False)
        return fitted(image, tensor, f"{self._where}, {self._paths[frame].name}", remedy=_AS_IMAGE)

    def _decode(self, index: int) -> Array:
        with opened_image(self._paths[index], self._where) as image:
            return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))

    def _fits(self) -> bool:
        """Whether all images together fit into memory, by their headers."""
        total = 0
        for path in self._paths:
            try:
                with opened_image(path, self._where, decode=False) as image:
                    total += 3 * image.width * image.height
            except InputError:
                continue  # needs no memory
            if total > _EAGER_BYTES:
                return False
        return True


class FunctionStream:
    """Arrays that a user's function yields, one after the other.

    Args:
        function: called once, without arguments; its result is iterated over. What is no Framefit error is the
            function's fault.
        where: for messages.
        keep: frames by which a model may be behind; at least 64.

    Raises:
        FramefitError: the function fails.
        InputError: its result cannot be iterated over.
    """

    def __init__(self, function: Callable[[], Any], where: str, *, keep: int = 0) -> None:
        self._where = where
        try:
            frames = function()
        except Exception as error:  # the user's code may raise anything
            raise FramefitError(f"the function raised {error_text(error)}", where=where, remedy="correct it") from error
        try:
            self._source: Iterator[Any] = iter(frames)
        except TypeError:
            raise InputError(
                f"the function returned {type(frames).__name__}", where=where, remedy="yield or return arrays"
            ) from None
        self._kept: deque[Array] = deque(maxlen=max(keep, _KEPT_FRAMES))
        self._count = 0
        self._over = False

    @property
    def length(self) -> int | None:
        """Number of frames; ``None`` before the function's end."""
        return self._count if self._over else None

    def has(self, frame: int) -> bool:
        """Whether the function yields that many frames; calls it up to the frame."""
        try:
            while self._count <= frame:
                self._pull()
        except EndOfStream:
            return False
        return True

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Return the frame; calls the function up to it, and keeps the latest frames."""
        while self._count <= frame:
            self._pull()
        behind = self._count - frame
        if behind > len(self._kept):
            raise FramefitError(
                f"frame {frame} is gone: the last {self._kept.maxlen} of {self._count} are kept",
                where=self._where,
                remedy="give the model a shorter queue",
            )
        return fitted(self._kept[-behind], tensor, f"{self._where}, frame {frame}", remedy=_AS_IMAGE)

    def _pull(self) -> None:
        if self._over:
            raise _ended(self._where, self._count)
        try:
            frame = next(self._source)
        except StopIteration:
            self._over = True
            raise _ended(self._where, self._count) from None
        except FramefitError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise FramefitError(
                f"the function raised {error_text(error)}",
                where=f"{self._where}, frame {self._count}",
                remedy="correct it",
            ) from error
        array = np.asarray(frame)
        if array.dtype.kind not in "biufcV":
            raise InputError(
                f"the function yielded {type(frame).__name__}",
                where=f"{self._where}, frame {self._count}",
                remedy="yield arrays of numbers",
            )
        self._kept.append(array)
        self._count += 1


def open_stream(
    entry: StreamEntry, seed: int, *, folder: Path | None = None, keep: int = 0, ahead: bool = True
) -> Stream:
    """Open the stream that an entry of ``app.toml`` describes.

    Args:
        entry: with an absolute path.
        seed: for synthetic frames.
        folder: folder of the app, where functions are searched first; default: the current one.
        keep: frames by which a model may be behind.
        ahead: whether to decode images in advance.

    Raises:
        InputError: a file, folder or function is missing or malformed.
    """
    if entry.source == "synthetic":
        return SyntheticStream(seed)
    where = f"stream {entry.name!r}"
    if _is_stored(entry):
        return ArrayStream(stored_frames(entry), f"{where} ({Path(entry.source).name})")
    if names_function(entry.source):
        where = f"{where} ({entry.source})"
        return FunctionStream(load_function(entry.source, folder or Path(), where), where, keep=keep)
    path = Path(entry.source)
    if entry.live:
        raise UnsupportedError(
            f"{without_password(entry.source)} is a live source, and a simulation does not wait for it",
            where=where,
            remedy="simulate without --outputs, or with a file instead",
        )
    if is_video(entry):
        named = f"{where} ({path.name})"
        video = DecodedVideo(entry.source, named)
        return FunctionStream(lambda: video, named, keep=keep)
    return ImageStream(path, where, ahead=ahead)


def check_stream(
    entry: StreamEntry, readers: Sequence[tuple[TensorInfo, Callable[[Array], object] | None]], *, folder: Path
) -> None:
    """Refuse before a run what :func:`open_stream` and the first frame would refuse.

    Nothing is consumed: a function is imported, but not called.

    Args:
        entry: with an absolute path.
        readers: inputs for one frame of the stream, each with its preparation if there is one.
        folder: folder of the app.

    Raises:
        InputError: a file, folder or function is missing or malformed, or frames do not match an input.
    """
    if names_function(entry.source):
        load_function(entry.source, folder, f"stream {entry.name!r} ({entry.source})")
        return
    if entry.live:
        live_frames(entry, f"stream {entry.name!r}", sample_hz=1)
        black = np.zeros(frame_shape(entry) or (), np.uint8 if entry.block is None else np.float32)
        for tensor, prepare in readers:
            frame = fitted(black, tensor, f"stream {entry.name!r}", remedy=_AS_IMAGE)
            if prepare is not None:
                prepare(frame)
        return
    stream = open_stream(entry, 0, folder=folder, ahead=False)
    for tensor, prepare in readers:
        frame = stream.read(0, tensor)
        if prepare is not None:
            prepare(frame)


def frame_shape(entry: StreamEntry) -> tuple[int, ...] | None:
    """Shape of one frame where the stream determines it; for an image folder that of the first image.

    ``None`` for a function's frames, and synthetic ones without ``shape``.

    Raises:
        InputError: a file or folder is missing or malformed.
    """
    if entry.source == "synthetic":
        return entry.shape
    if names_function(entry.source):
        return None
    if _is_stored(entry):
        return tuple(stored_frames(entry).shape[1:])
    where = f"stream {entry.name!r}"
    if entry.live:
        return live_shape(entry, where)
    if is_video(entry):
        return video_shape(entry.source, where)
    with opened_image(image_paths(Path(entry.source), where)[0], where, decode=False) as image:
        return (image.height, image.width, 3)


_AS_IMAGE = "give frames in the input's shape, or say preprocess = { ... } where they are images"


def fitted(
    array: Array,
    tensor: TensorInfo,
    where: str,
    *,
    count: int | None = None,
    remedy: str = "store the frames in the input's shape",
) -> Array:
    """Return one frame, or ``count`` of them, in the input's shape and type; unchanged if it has no shape.

    Raises:
        InputError: the shape differs, or the type would lose information.
    """
    if tensor.shape is None:
        return array
    shape = array.shape if count is None else array.shape[1:]
    if shape != tensor.shape and (1, *shape) != tensor.shape:
        raise InputError(
            f"frames are {list(shape)}, but input {tensor.name!r} takes {list(tensor.shape)}",
            where=where,
            remedy=transposed(shape, tensor.shape) or remedy,
        )
    try:
        fitted = array.astype(tensor.dtype, casting="same_kind", copy=False)
    except TypeError as error:
        raise InputError(str(error), where=where, remedy=f"give the frames as {tensor.dtype}") from error
    return np.ascontiguousarray(fitted).reshape(tensor.shape if count is None else (count, *tensor.shape))


def _random_frame(tensor: TensorInfo, random: np.random.Generator) -> Array:
    shape = tensor.shape or ()
    if tensor.dtype == "uint8" and ((len(shape) == 2 and shape[0] > 1) or (len(shape) == 3 and shape[2] in (1, 3))):
        return random.integers(0, 256, shape, np.uint8)
    return random_inputs([tensor], random)[tensor.name]


def _ended(where: str, length: int) -> EndOfStream:
    return EndOfStream(f"ended after {length} frames", where=where)
