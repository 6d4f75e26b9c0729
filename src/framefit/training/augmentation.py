"""Random crops and flips of a whole batch at once, and mixtures of examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["augmented", "mixed"]

Array = npt.NDArray[Any]


def mixed(x: Array, count: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Examples between two others, for a network that says itself what becomes of them.

    Zhang et al., 2018, "mixup: Beyond Empirical Risk Minimization", section 2; labels are not mixed here: a teacher
    knows what it makes of any input.

    Args:
        x: examples x any shape, float32.
        count: how many to make.
        random: draws pairs, and where between them an example lies, uniformly.
    """
    first, second = random.integers(0, len(x), (2, count))
    part = random.random((count, *(1,) * (x.ndim - 1)), np.float32)
    made: npt.NDArray[np.float32] = x[first] + part * (x[second] - x[first])
    return made


def augmented(images: Array, random: np.random.Generator, *, pad: int = 4, flip: bool = True) -> Array:
    """A random crop of each image, reflected ``pad`` pixels beyond its border, half of them mirrored.

    He et al., 2016, "Deep Residual Learning for Image Recognition", section 4.2, with reflection in
    place of zeros.

    Args:
        images: N x C x H x W; of any other rank: returned as they are.
        random: decides crops and flips.
        pad: at most so many pixels in each direction; less where the image is smaller.
        flip: left and right.

    Returns:
        The same shape and type.
    """
    if images.ndim != 4:
        return images
    count, _, height, width = images.shape
    reach = min(pad, height - 1, width - 1)
    if reach:
        wide = np.pad(images, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(wide, (height, width), axis=(2, 3))
        down, right = random.integers(0, 2 * reach + 1, (2, count))
        images = windows[np.arange(count), :, down, right]
    if flip:
        mirrored = random.random((count, 1, 1, 1)) < 0.5
        images = np.where(mirrored, images[..., ::-1], images)
    return images
