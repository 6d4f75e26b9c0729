"""Where frames come from, and the queues in which they wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from framefit.core.model import TensorInfo
from framefit.core.workload import StreamEntry
from framefit.devices.device import Array, random_inputs
from framefit.errors import InputError, UnsupportedError

__all__ = ["ArrayStream", "Queue", "Stream", "SyntheticStream", "frame_shape", "open_stream"]

_SYNTHETIC_FRAMES = 8


class Stream(Protocol):
    """Frames by number."""

    @property
    def length(self) -> int | None:
        """How many there are; ``None``: no end."""

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Frame number ``frame`` as the input ``tensor``."""


class SyntheticStream:
    """Random frames, a few of them over and over; each input gets its own shape.

    Args:
        seed: of the frames.
    """

    length = None

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._frames: dict[tuple[str, str, tuple[int, ...] | None], list[Array]] = {}

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """The same array every ``8`` frames."""
        key = (tensor.name, tensor.dtype, tensor.shape)
        if key not in self._frames:
            random = np.random.default_rng(self._seed)
            self._frames[key] = [random_inputs([tensor], random)[tensor.name] for _ in range(_SYNTHETIC_FRAMES)]
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
        self._ready: dict[str, Array] = {}

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Raises InputError where the frames do not fit the input."""
        if tensor.name not in self._ready:
            self._ready[tensor.name] = self._fitted(tensor)
        array: Array = self._ready[tensor.name][frame]
        return array

    def _fitted(self, tensor: TensorInfo) -> Array:
        shape = self._array.shape[1:]
        assert tensor.shape is not None
        if shape != tensor.shape and (1, *shape) != tensor.shape:
            raise InputError(
                f"frames are {list(shape)}, input {tensor.name!r} takes {list(tensor.shape)}",
                where=self._where,
                remedy="store the frames in the input's shape",
            )
        try:
            fitted = self._array.astype(tensor.dtype, casting="same_kind", copy=False)
        except TypeError as error:
            raise InputError(str(error), where=self._where, remedy=f"store the frames as {tensor.dtype}") from error
        return np.ascontiguousarray(fitted).reshape(len(fitted), *tensor.shape)


def open_stream(entry: StreamEntry, seed: int) -> Stream:
    """The stream that an entry of ``app.toml`` describes.

    Raises:
        InputError: missing or malformed file.
        UnsupportedError: a source that is not built yet.
    """
    if entry.source == "synthetic":
        return SyntheticStream(seed)
    array = _npz_array(entry)
    return ArrayStream(array, f"stream {entry.name!r} ({Path(entry.source).name})")


def frame_shape(entry: StreamEntry) -> tuple[int, ...] | None:
    """Shape of one frame where the stream decides it."""
    return entry.shape if entry.source == "synthetic" else tuple(_npz_array(entry).shape[1:])


def _npz_array(entry: StreamEntry) -> Array:
    where = f"stream {entry.name!r}"
    if not entry.source.endswith(".npz"):
        raise UnsupportedError(
            f"source = {entry.source!r} is not supported yet", where=where, remedy='use "synthetic" or an .npz'
        )
    try:
        with Path(entry.source).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            name = entry.array or (archive.files[0] if len(archive.files) == 1 else None)
            if name not in archive.files:
                has = ", ".join(archive.files)
                raise InputError(f"no array {name!r} in {entry.source}; it has: {has}", where=where, remedy="set array")
            array: Array = archive[name]
    except FileNotFoundError:
        raise InputError(f"no such file {entry.source}", where=where, remedy="check the path") from None
    except InputError:
        raise
    except Exception as error:  # zip, header and value errors of a damaged file have no common class
        raise InputError(f"{entry.source} cannot be read: {error}", where=where, remedy="check the file") from error
    if array.ndim == 0 or not len(array):
        raise InputError(f"{entry.source} holds no frames", where=where, remedy="its first axis counts frames")
    return array


class Queue:
    """Frames that wait for one model.

    Args:
        depth: how many may wait.
        drop_oldest: which one goes when another arrives at a full queue.
    """

    def __init__(self, depth: int, *, drop_oldest: bool = True) -> None:
        self._frames: deque[int] = deque()
        self._depth = depth
        self._drop_oldest = drop_oldest

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: int) -> int | None:
        """Add a frame; the one that is dropped for it, or None."""
        dropped = None
        if len(self._frames) == self._depth:
            if not self._drop_oldest:
                return frame
            dropped = self._frames.popleft()
        self._frames.append(frame)
        return dropped

    def take(self) -> int:
        """The one that waited longest."""
        return self._frames.popleft()

    def clear(self) -> Sequence[int]:
        """All that wait, and none any more."""
        frames = list(self._frames)
        self._frames.clear()
        return frames
