"""Crops and flips of a batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framefit.training.fine_tune import augmented, mixed


@given(height=st.integers(1, 9), width=st.integers(1, 9), pad=st.integers(0, 12), seed=st.integers(0, 99))
def test_a_crop_holds_only_pixels_of_its_image(height: int, width: int, pad: int, seed: int) -> None:
    """Shape and type stay, and each pixel comes from its own image and channel."""
    images = np.arange(3 * 2 * height * width, dtype=np.uint16).reshape(3, 2, height, width)
    result = augmented(images, np.random.default_rng(seed), pad=pad)
    assert result.shape == images.shape
    assert result.dtype == images.dtype
    for made, given_ in zip(result.reshape(6, -1), images.reshape(6, -1), strict=True):
        assert set(made.tolist()) <= set(given_.tolist())


def test_every_shift_and_both_sides_occur() -> None:
    """Over many images each of the 25 crops of pad 2 occurs, mirrored and not."""
    ramp = (10 * np.arange(8)[:, None] + np.arange(8)[None]).astype(np.int16)
    images = np.broadcast_to(ramp, (2000, 1, 8, 8))
    result = augmented(images, np.random.default_rng(0), pad=2)
    mirrored = result[:, 0, 4, 4] < result[:, 0, 4, 3]
    assert 0.4 < mirrored.mean() < 0.6
    upright = np.where(mirrored[:, None, None], result[:, 0, :, ::-1], result[:, 0])
    assert len(set(upright[:, 4, 4].tolist())) == 25
    assert set((upright[:, 4, 4] - ramp[4, 4]).tolist()) == {10 * a + b for a in range(-2, 3) for b in range(-2, 3)}


def test_nothing_random_leaves_images_alone() -> None:
    """Without crops and flips, and of rows of numbers, the examples come back as they are."""
    images = np.random.default_rng(0).random((4, 3, 5, 5))
    np.testing.assert_array_equal(augmented(images, np.random.default_rng(0), pad=0, flip=False), images)
    rows = images.reshape(4, -1)
    np.testing.assert_array_equal(augmented(rows, np.random.default_rng(0)), rows)


def test_mixtures_lie_between_two_examples() -> None:
    """Each is on the line between two examples, all along it."""
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    made = mixed(x, 400, np.random.default_rng(1))
    assert (made.shape, made.dtype) == ((400, 5), np.float32)
    parts = []
    for row in made:
        found = []
        for first in range(3):
            for second in range(3):
                way = x[second] - x[first]
                part = float((row - x[first]) @ way / max(float(way @ way), 1e-9))
                if np.allclose(x[first] + part * way, row, atol=1e-5) and -1e-5 <= part <= 1 + 1e-5:
                    found.append(part)
        assert found
        parts.append(found[0])
    assert np.ptp(parts) > 0.8
