"""Several frames in one input: what each of them is, and where it lies."""

from __future__ import annotations

import msgspec

from framefit.core.model import TensorInfo
from framefit.devices.device import Array
from framefit.errors import InputError

__all__ = ["one_frame", "place_of"]


def one_frame(tensor: TensorInfo, frames: int, axis: int, where: str) -> TensorInfo:
    """An input's part for one of several frames stacked along ``axis``.

    Raises:
        InputError: there is no such axis, or it cannot be divided.
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


def place_of(array: Array, one: TensorInfo, number: int, axis: int) -> Array:
    """Where frame ``number`` lies in an input.

    Args:
        array: of the input.
        one: each frame.
        number: from 0.
        axis: along which they are stacked.
    """
    if array.shape == one.shape:
        return array
    assert one.shape is not None
    size = one.shape[axis]
    places: list[slice] = [slice(None)] * array.ndim
    places[axis] = slice(number * size, (number + 1) * size)
    return array[tuple(places)]
