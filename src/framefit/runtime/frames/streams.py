"""Where frames come from, and the queues in which they wait."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from framefit.core.model import TensorInfo
from framefit.core.workload import StreamEntry, WhenFull, names_function
from framefit.devices.device import Array, random_inputs
from framefit.errors import FramefitError, InputError
from framefit.runtime.frames.frame_files import image_paths, opened_image, stored_array
from framefit.runtime.frames.functions import load_function, told
from framefit.runtime.records.log import Fate

__all__ = [
    "ArrayStream",
    "Arrival",
    "EndOfStream",
    "Feed",
    "FunctionStream",
    "Gate",
    "ImageStream",
    "Intake",
    "Queue",
    "Stream",
    "SyntheticStream",
    "check_stream",
    "fitted",
    "frame_shape",
    "open_stream",
]

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
                    continue  # told when it is read

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
            raise FramefitError(f"the function raised {told(error)}", where=where, remedy="correct it") from error
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
                f"the function raised {told(error)}", where=f"{self._where}, frame {self._count}", remedy="correct it"
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


class Arrival(NamedTuple):
    """A frame that has come: its number in the stream, and the window with whose release it came."""

    frame: int
    window: int


class Intake(Protocol):
    """Frames that wait until a window takes them."""

    def __len__(self) -> int:
        """How many wait."""

    def take(self) -> int:
        """Let the next one come, if there is one; how many come."""


class Gate(Protocol):
    """What decides for several units whether a window brings a frame."""

    def __call__(self, window: int) -> None:
        """Let the next frame come to all of them, if this has not been decided yet and it may."""

    def dry(self, unit: object) -> bool:
        """Told by a unit that nothing will be left for it to do; whether all of them have said so."""


@dataclass
class Feed:
    """Streams that stay in step: a window brings the next frame of all of them, or none.

    Streams that one model reads together are of one feed.

    Attributes:
        streams: their names, which tell the windows that may bring a frame; none: all may.
        waits: a window brings no frame while a model has no room for it.
        delivered: frames that came; the next one's number.
        waited: windows that brought none, though there was one.
        missing: windows that brought none, for there was none.
        over: the streams have ended.
        intake: where the next frame comes from; ``None``: there always is one.
        gate: lets the next frame come to several units, whichever asks first for a window; ``None``: one reads it.
    """

    waits: bool = False
    streams: frozenset[str] = frozenset()
    delivered: int = 0
    waited: int = 0
    missing: int = 0
    over: bool = False
    intake: Intake | None = None
    gate: Gate | None = None

    @property
    def empty(self) -> bool:
        """Whether there is no frame that could come."""
        return self.over or (self.intake is not None and not len(self.intake))


class Queue:
    """Frames that wait for one model.

    Args:
        depth: how many may wait.
        when_full: which frame goes when another arrives; "block": the feed asks for
            :attr:`full` first, and none goes.
    """

    def __init__(self, depth: int, when_full: WhenFull = "drop-oldest") -> None:
        self._frames: deque[Arrival] = deque()
        self.depth = depth
        self.when_full = when_full

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def refusal(self) -> Fate:
        """What becomes of a frame that it does not take."""
        return Fate.REFUSED

    @property
    def full(self) -> bool:
        """Whether a frame that arrives has to wait outside: never where one is dropped instead."""
        return self.when_full == "block" and len(self._frames) >= self.depth

    def put(self, frame: Arrival) -> Arrival | None:
        """Add a frame; the one that is dropped for it, or None."""
        dropped = None
        if len(self._frames) == self.depth:
            if self.when_full != "drop-oldest":
                return frame
            dropped = self._frames.popleft()
        self._frames.append(frame)
        return dropped

    def take(self) -> Arrival:
        """The one that waited longest."""
        return self._frames.popleft()

    def clear(self) -> Sequence[Arrival]:
        """All that wait, and none any more."""
        frames = list(self._frames)
        self._frames.clear()
        return frames
