"""From a raw image to a model's input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from framefit import InputError
from framefit.core.model import TensorInfo
from framefit.core.workload import Preprocess
from framefit.execution.prepare import Preparation, image_axes


def tensor(*shape: int, dtype: str = "float32") -> TensorInfo:
    """An input called "x"."""
    return TensorInfo(name="x", dtype=dtype, shape=shape)


def image(height: int = 4, width: int = 6, seed: int = 0) -> np.ndarray:
    """RGB."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@given(
    st.sampled_from(["NCHW", "NHWC"]),
    st.sampled_from(["RGB", "BGR"]),
    st.sampled_from([(), (127.0,), (10.0, 20.5, 250.0)]),
    st.sampled_from([1.0, 1 / 128, -2.0]),
    st.sampled_from([np.uint8, np.float32, np.float64, np.int16]),
)
def test_every_pixel_of_every_channel(layout: Any, channels: Any, mean: Any, scale: float, dtype: Any) -> None:
    """In whatever layout, order and type, a pixel becomes (x - mean) * scale; the image stays as it is."""
    raw = image().astype(dtype)
    kept = raw.copy()
    shape = (1, 3, 4, 6) if layout == "NCHW" else (1, 4, 6, 3)
    prepare = Preparation(Preprocess(layout=layout, channels=channels, mean=mean, scale=scale), tensor(*shape))
    found = prepare(raw)
    assert (found.shape, found.dtype) == (shape, np.float32)
    for channel in range(3):
        source = raw[..., channel if channels == "RGB" else 2 - channel].astype(np.float64)
        expected = (source - (mean[channel] if len(mean) == 3 else sum(mean))) * scale
        given = found[0, channel] if layout == "NCHW" else found[0, ..., channel]
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=2e-4 * abs(scale))
    np.testing.assert_array_equal(raw, kept)


def test_writes_into_the_inputs_place() -> None:
    """Given a place, also one slice of a larger input, the result lies there; the rest stays."""
    prepare = Preparation(Preprocess(scale=0.5), tensor(1, 3, 4, 6))
    whole = np.full((1, 9, 4, 6), 7, np.float32)
    place = whole[:, 3:6]
    assert prepare(image(), place) is place
    np.testing.assert_array_equal(whole[:, 3:6], prepare(image()))
    assert (whole[:, [0, 1, 2, 6, 7, 8]] == 7).all()
    assert not np.array_equal(prepare(image(seed=1)), prepare(image(seed=2)))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("size", [(8, 12), (2, 3), (5, 6)])
def test_resizes_to_the_inputs_size(dtype: type, size: tuple[int, int]) -> None:
    """Images of another size are resized by Pillow's bilinear filter, height and width in their places."""
    raw = image().astype(dtype)
    found = Preparation(Preprocess(), tensor(1, 3, *size))(raw)
    for channel in range(3):
        plane = Image.fromarray(np.ascontiguousarray(raw[..., channel])).resize(size[::-1], Image.Resampling.BILINEAR)
        np.testing.assert_allclose(found[0, channel], np.asarray(plane), atol=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gray(dtype: type, layout: Any) -> None:
    """A gray input gets the luminance, gray images go everywhere; a channel axis of size 1 may be there or not."""
    shape = (1, 1, 4, 6) if layout == "NCHW" else (1, 4, 6, 1)
    prepare = Preparation(Preprocess(channels="GRAY", layout=layout, mean=(1,), scale=2), tensor(*shape))
    raw = image().astype(dtype)
    luminance = raw.astype(np.float64) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(prepare(raw).reshape(4, 6), (luminance - 1) * 2, atol=2.1)
    gray = raw[..., 0]
    for one in (gray, gray[..., None]):
        np.testing.assert_allclose(prepare(one).reshape(4, 6), (gray.astype(float) - 1) * 2, atol=1e-4)
    colour = Preparation(Preprocess(), tensor(1, 3, 4, 6))(gray)
    for channel in range(3):
        np.testing.assert_array_equal(colour[0, channel], gray)


def test_inputs_of_other_types() -> None:
    """Whole numbers are rounded and kept in range; half precision is rounded once."""
    raw = np.asarray([[[0, 100, 255]]], np.uint8)
    plain = Preparation(Preprocess(), tensor(1, 3, 1, 1, dtype="uint8"))(raw)
    assert plain.ravel().tolist() == [0, 100, 255]
    signed = Preparation(Preprocess(mean=(128.0,), scale=1.02), tensor(1, 3, 1, 1, dtype="int8"))(raw)
    assert signed.dtype == np.int8
    assert signed.ravel().tolist() == [-128, -29, 127]
    half = Preparation(Preprocess(scale=1 / 255), tensor(1, 3, 1, 1, dtype="float16"))(raw)
    np.testing.assert_array_equal(half.ravel(), np.asarray([0, 100 / 255, 1], np.float16))


@pytest.mark.parametrize("shape", [(3, 4, 6), (1, 3, 4, 6), (1, 1, 3, 4, 6), (1, 3, 1, 4, 6)])
def test_axes_of_size_one(shape: tuple[int, ...]) -> None:
    """Batch and frame axes do not change what an image becomes."""
    found = Preparation(Preprocess(), tensor(*shape))(image())
    assert found.shape == shape
    np.testing.assert_array_equal(found.reshape(3, 4, 6), image().transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("keys", "shape", "message"),
    [
        ({}, (1, 4, 6, 3), "not RGB as NCHW"),
        ({"layout": "NHWC"}, (1, 3, 4, 6), "not RGB as NHWC"),
        ({"channels": "GRAY"}, (1, 3, 4, 6), "not GRAY as NCHW"),
        ({}, (2, 3, 4, 6), "not RGB as NCHW"),
        ({}, (1, 3), "not RGB as NCHW"),
        ({"size": (6, 4)}, (1, 3, 4, 6), r"size = \[6, 4\], but input 'x' takes \[4, 6\]"),
    ],
)
def test_inputs_that_do_not_fit(keys: dict[str, Any], shape: tuple[int, ...], message: str) -> None:
    """Layout, channels and size have to be the input's."""
    with pytest.raises(InputError, match=message):
        Preparation(Preprocess(**keys), tensor(*shape))


@pytest.mark.parametrize("shape", [(3, 4, 6), (4, 6, 4), (4,), (1, 4, 6, 3), (0, 6, 3)])
def test_frames_that_are_no_images(shape: tuple[int, ...]) -> None:
    """Anything but height x width x 3, or gray, is refused with its shape."""
    with pytest.raises(InputError, match="not an image") as found:
        Preparation(Preprocess(), tensor(1, 3, 4, 6))(np.zeros(shape, np.uint8))
    assert str(list(shape)) in found.value.what


def test_axes_by_rank() -> None:
    """Batch may be absent, and frames may have an axis of their own."""
    assert [image_axes("NCHW", rank) for rank in (2, 3, 4)] == [None, "CHW", "NCHW"]
    assert [image_axes("NHWC", 5, axis) for axis in (0, 1, -1)] == ["FNHWC", "NFHWC", "NHWCF"]
