"""Converts a raw image to a model's input: size, channels, mean and scale, layout.

Also divides an input into the frames that it consists of.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from framefit.core.model import TensorInfo
from framefit.core.workload import Preprocess
from framefit.devices.device import Array
from framefit.errors import InputError

__all__ = ["Preparation", "one_frame"]


def image_axes(layout: str, rank: int, frames_axis: int = 0) -> str | None:
    """Meaning of each axis of an image input: N, C, H, W, or F where frames have an axis of their own.

    Args:
        layout: "NCHW" or "NHWC".
        rank: of the input; 3 (without N), 4, or 5 (with F).
        frames_axis: index of F.

    Returns:
        One letter for each axis; None for a rank that holds no image.
    """
    if rank == 3:
        return layout[1:]
    if rank == 5:
        at = frames_axis % rank
        return layout[:at] + "F" + layout[at:]
    return layout if rank == 4 else None


class Preparation:
    """Converts a raw image to the input of one frame.

    A raw image is height x width x 3 (RGB), or gray: height x width, or x 1; uint8, or numbers of any other
    type. It is resized where its size differs from the input's (Pillow's bilinear filter, which averages when it
    shrinks), its channels are reordered, and each becomes ``(x - mean) * scale`` in float32. For inputs of whole
    numbers, results are rounded and limited to the range of the type.

    Args:
        preprocess: parameters of the conversion.
        tensor: the input for one frame; axes of size 1 beside the image's are ignored.
        raw: tensor that a stream has to provide; default: any.
        example: shape of a typical raw image; default: one of the input's size.
        where: name of the model, for messages.

    Raises:
        InputError: the input does not match ``preprocess``.

    Example:
        >>> tensor = TensorInfo(name="x", dtype="float32", shape=(1, 3, 4, 4))
        >>> Preparation(Preprocess(mean=(255,), scale=2), tensor)(np.zeros((2, 2, 3), np.uint8)).min()
        np.float32(-510.0)
    """

    def __init__(
        self,
        preprocess: Preprocess,
        tensor: TensorInfo,
        *,
        raw: TensorInfo | None = None,
        example: tuple[int, ...] | None = None,
        where: str = "preprocess",
    ) -> None:
        assert tensor.shape is not None
        self._where = where
        self._planar = preprocess.layout == "NCHW"
        self._gray, self._reverse = preprocess.channels == "GRAY", preprocess.channels == "BGR"
        self._count = 1 if self._gray else 3
        shape = list(tensor.shape)
        while len(shape) > 3 and 1 in shape:
            shape.remove(1)
        channels, *size = shape if self._planar else [*shape[2:], *shape[:2]]
        if len(shape) != 3 or channels != self._count:
            raise InputError(
                f"input {tensor.name!r} takes {list(tensor.shape)}, not {preprocess.channels} as {preprocess.layout}",
                where=where,
                remedy="correct layout and channels",
            )
        self.size: tuple[int, int] = (size[0], size[1])
        if preprocess.size not in (None, self.size):
            raise InputError(
                f"size = {list(preprocess.size or ())}, but input {tensor.name!r} takes {list(self.size)}",
                where=where,
                remedy="leave size out, or correct it",
            )
        self.raw = raw or TensorInfo(name=tensor.name, dtype="", shape=None)
        self.example = example or (*self.size, 1 if self._gray else 3)
        self._shape, self._view_shape = tensor.shape, tuple(shape)
        self._dtype = np.dtype(tensor.dtype)
        self._scale = np.float32(preprocess.scale)
        bias = np.asarray(preprocess.mean or (0.0,), np.float64) * float(preprocess.scale)
        self._bias = bias.astype(np.float32).reshape((-1, 1, 1) if self._planar else (1, 1, -1))
        if not self._planar:  # work on a whole row: numpy adds three numbers at a time slowly (4 x here)
            self._bias = np.ascontiguousarray(np.broadcast_to(self._bias, (1, *shape[1:])))
        self._plain = bool(self._scale == 1), not bias.any()
        # Channels are separated while they are bytes: a quarter of the memory traffic.
        self._bytes = np.empty(self._view_shape, np.uint8)
        self._floats: Array | None = None

    def __call__(self, raw: Array, out: Array | None = None) -> Array:
        """Prepare one image.

        Args:
            raw: the image.
            out: array of the input; default: a new array.

        Returns:
            ``out``.

        Raises:
            InputError: ``raw`` is not an image.
        """
        image = self._ordered(self._resized(self._checked(raw)))
        result = np.empty(self._shape, self._dtype) if out is None else out
        view = result.reshape(self._view_shape)  # only drops axes of size 1: never a copy
        direct = self._dtype == np.float32
        if not direct and self._floats is None:
            self._floats = np.empty(self._view_shape, np.float32)
        target = view if direct or self._floats is None else self._floats
        self._scaled(image, target)
        if not direct:
            if self._dtype.kind in "iu":
                limits = np.iinfo(self._dtype)
                np.clip(np.rint(target, out=target), limits.min, limits.max, out=target)
            np.copyto(view, target, casting="unsafe")
        return result

    def _checked(self, raw: Array) -> Array:
        """Convert to height x width (gray) or height x width x 3; uint8 or float32."""
        shape = raw.shape
        if len(shape) == 3 and shape[2] == 1:
            raw = raw[..., 0]
        if raw.ndim not in (2, 3) or (raw.ndim == 3 and shape[2] != 3) or 0 in shape or raw.dtype.kind not in "biuf":
            raise InputError(
                f"a frame is {raw.dtype} {list(shape)}, not an image",
                where=self._where,
                remedy="give height x width x 3 (RGB) or height x width (gray), or leave preprocess out",
            )
        return raw if raw.dtype in (np.uint8, np.float32) else raw.astype(np.float32)

    def _resized(self, raw: Array) -> Array:
        if raw.shape[:2] == self.size:
            return raw
        Image = _pillow(self._where)  # noqa: N806 - a module
        size = (self.size[1], self.size[0])
        bilinear = Image.Resampling.BILINEAR
        if raw.dtype == np.uint8 or raw.ndim == 2:
            return np.asarray(Image.fromarray(raw).resize(size, bilinear))
        planes = [
            np.asarray(Image.fromarray(np.ascontiguousarray(raw[..., c])).resize(size, bilinear)) for c in range(3)
        ]
        return np.stack(planes, axis=-1)

    def _ordered(self, image: Array) -> Array:
        """Arrange channels in the input's order and layout; a view where possible."""
        if self._gray:
            if image.ndim == 3 and image.dtype == np.uint8:
                Image = _pillow(self._where)  # noqa: N806 - a module
                image = np.asarray(Image.fromarray(image).convert("L"))
            elif image.ndim == 3:
                image = image @ np.asarray([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as Pillow
            return image.reshape(self._view_shape)
        if image.ndim == 2:
            image = np.broadcast_to(image[..., None], (*image.shape, 3))
        elif self._reverse:
            image = image[..., ::-1]
        if not self._planar:
            return image
        image = image.transpose(2, 0, 1)
        if image.dtype != np.uint8:
            return image
        np.copyto(self._bytes, image)
        return self._bytes

    def _scaled(self, image: Array, target: Array) -> None:
        unscaled, unbiased = self._plain
        if unscaled and unbiased:
            np.copyto(target, image)
        elif unscaled:
            np.subtract(image, self._bias, out=target)
        else:
            np.multiply(image, self._scale, out=target)
            if not unbiased:
                np.subtract(target, self._bias, out=target)


def _pillow(where: str) -> Any:
    """Pillow's module of images; frames that have the input's size and channels do without.

    Raises:
        InputError: it is not installed, as on a device where nothing else needs it.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            "Pillow is not installed, and a frame has another size or other channels than the input",
            where=where,
            remedy="pip install pillow, or give frames of the input's size",
        ) from error
    return Image


def one_frame(tensor: TensorInfo, frames: int, axis: int, where: str) -> TensorInfo:
    """The part of an input for one of several frames stacked along ``axis``.

    Raises:
        InputError: the axis does not exist, or cannot be divided.
    """
    if frames == 1:
        return tensor
    shape = list(tensor.shape or ())
    if not -len(shape) <= axis < len(shape) or shape[axis] % frames:
        raise InputError(
            f"input {tensor.name!r} is {shape}: {frames} frames cannot be stacked along axis {axis}",
            where=where,
            remedy="correct frames and frames_axis, or give shapes",
        )
    shape[axis] //= frames
    return msgspec.structs.replace(tensor, shape=tuple(shape))


def place_of(array: Array, frame: TensorInfo, number: int, axis: int) -> Array:
    """The part of an input array for frame ``number``.

    Args:
        array: the input.
        frame: tensor of one frame.
        number: from 0.
        axis: along which they are stacked.
    """
    if array.shape == frame.shape:
        return array
    assert frame.shape is not None
    size = frame.shape[axis]
    places: list[slice] = [slice(None)] * array.ndim
    places[axis] = slice(number * size, (number + 1) * size)
    return array[tuple(places)]
