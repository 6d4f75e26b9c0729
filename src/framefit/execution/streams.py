"""Files that frames are read from."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from framefit.core.arrays import ArrayFile
from framefit.core.functions import error_text, load_function
from framefit.core.model import TensorInfo
from framefit.core.workload import StreamEntry, names_function
from framefit.devices.device import Array, random_inputs
from framefit.errors import FramefitError, InputError, UnsupportedError

__all__ = ["EndOfStream", "Stream", "check_sink", "fitted", "open_stream"]


_IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def image_paths(folder: Path, where: str) -> list[Path]:
    """Paths of a folder's images, by name.

    Raises:
        InputError: no such folder, or no images in it.
    """
    if not folder.is_dir():
        what = f"{folder} is neither an .npz nor a folder" if folder.exists() else f"no such folder {folder}"
        raise InputError(
            what, where=where, remedy='use "synthetic", an .npz, a folder of images, or a "module:function"'
        )
    paths = [path for path in folder.rglob("*") if path.suffix.lower() in _IMAGE_SUFFIXES and path.is_file()]
    if not paths:
        kinds = ", ".join(sorted(_IMAGE_SUFFIXES))
        raise InputError(f"no images in {folder}", where=where, remedy=f"put files there: {kinds}")
    return sorted(paths, key=lambda path: path.relative_to(folder).parts)


def opened_image(path: Path, where: str, *, decode: bool = True) -> Image.Image:
    """An image, decoded or only its header.

    Raises:
        InputError: it is damaged.
    """
    try:
        with warnings.catch_warnings(), contextlib.ExitStack() as opened:
            warnings.simplefilter("ignore")  # about size and metadata; what matters is raised
            image = opened.enter_context(Image.open(path))
            if decode:
                image.load()
            opened.pop_all()  # of a damaged one the file is closed
    except Exception as error:  # Pillow's errors about damaged files have no common class
        raise InputError(
            f"{path} cannot be read as an image: {error}", where=where, remedy="replace or remove it"
        ) from error
    return image


def stored_array(entry: StreamEntry) -> Array:
    """The array of an ``.npz``; its first axis counts frames.

    Raises:
        InputError: a missing or damaged file, or no such array.
    """
    where = f"stream {entry.name!r}"
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


def check_sink(sink: str, *, force: bool, folder: Path) -> Callable[..., object] | None:
    """Refuse what :func:`open_sink` would, and leave everything as it is.

    Args:
        sink: a ``.npz``, a ``.jsonl`` or "module:function".
        force: a file may exist.
        folder: the app's.

    Returns:
        The function, where it names one.

    Raises:
        InputError: the file exists or cannot be written, or there is no such function.
        UnsupportedError: no such kind of sink.
    """
    if sink.endswith((".npz", ".jsonl")):
        check_path(folder / sink, force=force)
        return None
    if names_function(sink):
        return load_function(sink, folder, f"sink {sink!r}")
    raise UnsupportedError(
        f"sink = {sink!r} is not supported", where="$.outputs", remedy='use an .npz, a .jsonl or a "module:function"'
    )


def check_path(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise InputError("already exists", where=path, remedy="choose another sink, or overwrite it with --force")
    above = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
    if path.is_dir() or not above.is_dir() or not os.access(path if path.exists() else above, os.W_OK):
        raise InputError("cannot be written", where=path, remedy="check folder and permissions")


_SYNTHETIC_FRAMES = 8
_KEPT_FRAMES = 64  # of a function's stream, for models that are behind
_KEPT_IMAGES = 8  # decoded, of a folder that does not fit into memory
_EAGER_BYTES = 512 * 2**20  # folders up to this size are decoded before the run


class EndOfStream(FramefitError):  # noqa: N818  # what a stream comes to, no fault
    """A frame past a stream's last one was asked for: the stream has ended, nothing failed."""


class Stream(Protocol):
    """Frames by number."""

    @property
    def length(self) -> int | None:
        """How many there are; ``None``: no end, or not known yet."""

    def has(self, frame: int) -> bool:
        """Whether there is a frame of that number; asks for it where that is not known."""

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Frame number ``frame`` as the input ``tensor``; as it is where that has no shape.

        Raises:
            EndOfStream: there are not so many.
            InputError: the frame does not fit the input, or cannot be read.
        """


class SyntheticStream:
    """Random frames, a few of them over and over; each input gets its own shape.

    Args:
        seed: of the frames.
    """

    length = None

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._frames: dict[tuple[str, str, tuple[int, ...] | None], list[Array]] = {}

    def has(self, frame: int) -> bool:  # noqa: ARG002 - the protocol's form
        """Always."""
        return True

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """The same array every ``8`` frames; raw images (uint8, height x width or x 1 or 3) use all 256 values."""
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
        """Whether the array is that long."""
        return frame < self.length

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """The frame, in the input's shape and type."""
        if frame >= self.length:
            raise _ended(self._where, self.length)
        key = (tensor.dtype, tensor.shape)
        if key not in self._ready:
            self._ready[key] = fitted(self._array, tensor, self._where, count=self.length)
        array: Array = self._ready[key][frame]
        return array


class ResumedStream:
    """A stream that goes on behind the frames that a run's earlier parts have had.

    Args:
        stream: from its beginning.
        first: number of its frame that is frame 0 here.
    """

    def __init__(self, stream: Stream, first: int) -> None:
        self._stream, self._first = stream, first

    @property
    def length(self) -> int | None:
        """How many are left."""
        return None if self._stream.length is None else max(self._stream.length - self._first, 0)

    def has(self, frame: int) -> bool:
        """Whether the stream has it."""
        return self._stream.has(frame + self._first)

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """See :class:`Stream`."""
        return self._stream.read(frame + self._first, tensor)


class ImageStream:
    """The images of a folder, in the order of their names: height x width x 3, uint8, RGB.

    All are decoded at once while they fit into 512 MB, else each when it is read.

    Args:
        folder: searched with its folders; .jpg, .jpeg, .png, .bmp and .webp count.
        where: for messages.
        ahead: decode at once; else only the first one, whatever fits.

    Raises:
        InputError: no such folder, no images in it, or a damaged first one.
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
        """Whether there are so many."""
        return frame < self.length

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """The image, in the input's shape and type."""
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
        """Whether all images together fit, by their headers."""
        total = 0
        for path in self._paths:
            try:
                with opened_image(path, self._where, decode=False) as image:
                    total += 3 * image.width * image.height
            except InputError:
                continue  # takes no place
            if total > _EAGER_BYTES:
                return False
        return True


class FunctionStream:
    """Arrays that a function of the user's gives, one after the other.

    Args:
        function: called once, without arguments; what it returns is iterated over.
        where: for messages.
        keep: frames that a model may be behind; 64 at least.

    Raises:
        FramefitError: the function fails.
        InputError: it returns nothing that can be iterated over.
    """

    def __init__(self, function: Callable[[], Any], where: str, *, keep: int = 0) -> None:
        self._where = where
        try:
            frames = function()
        except Exception as error:  # whatever the user's code raises
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
        """How many there were; ``None`` before the function's end."""
        return self._count if self._over else None

    def has(self, frame: int) -> bool:
        """Whether the function gives so many; pulls all up to it."""
        try:
            while self._count <= frame:
                self._pull()
        except EndOfStream:
            return False
        return True

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """The frame; pulls all up to it, and keeps the last ones."""
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
        except Exception as error:  # whatever the user's code raises
            raise FramefitError(
                f"the function raised {error_text(error)}",
                where=f"{self._where}, frame {self._count}",
                remedy="correct it",
            ) from error
        array = np.asarray(frame)
        if array.dtype.kind not in "biufcV":
            raise InputError(
                f"the function gave {type(frame).__name__}",
                where=f"{self._where}, frame {self._count}",
                remedy="give arrays of numbers",
            )
        self._kept.append(array)
        self._count += 1


def open_stream(
    entry: StreamEntry, seed: int, *, folder: Path | None = None, keep: int = 0, ahead: bool = True
) -> Stream:
    """The stream that an entry of ``app.toml`` describes.

    Args:
        entry: with an absolute path.
        seed: of synthetic frames.
        folder: the app's, where functions are looked for first; default: the current one.
        keep: frames that a model may be behind.
        ahead: decode images before they are asked for.

    Raises:
        InputError: a missing or malformed file, folder or function.
    """
    if entry.source == "synthetic":
        return SyntheticStream(seed)
    where = f"stream {entry.name!r}"
    if entry.source.endswith(".npz"):
        return ArrayStream(stored_array(entry), f"{where} ({Path(entry.source).name})")
    if names_function(entry.source):
        where = f"{where} ({entry.source})"
        return FunctionStream(load_function(entry.source, folder or Path(), where), where, keep=keep)
    return ImageStream(Path(entry.source), where, ahead=ahead)


def check_stream(
    entry: StreamEntry, readers: Sequence[tuple[TensorInfo, Callable[[Array], object] | None]], *, folder: Path
) -> None:
    """Find out before a run what :func:`open_stream` and the first frame would refuse.

    Nothing is consumed: a function is imported, and not called.

    Args:
        entry: with an absolute path.
        readers: what it is asked for, one frame of an input, and what prepares that, if anything does.
        folder: the app's.

    Raises:
        InputError: a missing or malformed file, folder or function, or frames that do not fit an input.
    """
    if names_function(entry.source):
        load_function(entry.source, folder, f"stream {entry.name!r} ({entry.source})")
        return
    stream = open_stream(entry, 0, folder=folder, ahead=False)
    for tensor, prepare in readers:
        frame = stream.read(0, tensor)
        if prepare is not None:
            prepare(frame)


def frame_shape(entry: StreamEntry) -> tuple[int, ...] | None:
    """Shape of one frame where the stream decides it; of an image folder's first.

    ``None`` for a function's frames, and synthetic ones without ``shape``.

    Raises:
        InputError: a missing or malformed file or folder.
    """
    if entry.source == "synthetic" or names_function(entry.source):
        return entry.shape if entry.source == "synthetic" else None
    if entry.source.endswith(".npz"):
        return tuple(stored_array(entry).shape[1:])
    where = f"stream {entry.name!r}"
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
    """One frame, or ``count`` of them, in the input's shape and type; as they are where it has none.

    Raises:
        InputError: another shape, or a type that would lose something.
    """
    if tensor.shape is None:
        return array
    shape = array.shape if count is None else array.shape[1:]
    if shape != tensor.shape and (1, *shape) != tensor.shape:
        raise InputError(
            f"frames are {list(shape)}, input {tensor.name!r} takes {list(tensor.shape)}", where=where, remedy=remedy
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
