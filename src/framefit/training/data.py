"""Examples to train and judge a network with: read, checked, split.

Three sources: an image folder (:mod:`framefit.training.image_folder`), an ``.npz``, and any iterable
of examples or batches. Validation and calibration data are split off the training part with the
seed; all parts are disjoint. Test data are for the final figures: they are read when first asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.arrays import ArrayFile
from framefit.core.model import Model
from framefit.errors import InputError
from framefit.training.image_folder import ImageFolder

__all__ = ["Dataset", "Examples", "Scaling", "check_fits", "load_data"]

Array = npt.NDArray[Any]
Rows = slice | npt.NDArray[np.int64]

_MOST_VALIDATION = 5000  # at an accuracy of 90 % its 90 % interval is 0.7 points to either side
_MOST_CALIBRATION = (
    1024  # what layer-wise reconstruction takes (Frantar and Alistarh, 2022, "Optimal Brain Compression")
)
_MOST_CLASSES = 1 << 20  # fifty times those of ImageNet-21k

_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclasses.dataclass(frozen=True)
class Scaling:
    """What is done to stored pixels, channel by channel: (value / 255 - mean) / deviation.

    Attributes:
        mean: of values between 0 and 1, one a channel.
        deviation: likewise.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation) or not all(value > 0 for value in self.deviation):
            raise InputError(
                f"mean {self.mean} and deviation {self.deviation} do not fit each other",
                where="mean, std",
                remedy="give one mean and one positive deviation a channel, of values between 0 and 1",
            )

    def applied(self, stored: Array) -> npt.NDArray[np.float32]:
        """uint8, N x C x ... to float32."""
        shape = (1, -1) + (1,) * (stored.ndim - 2)
        factor = (1 / (255 * np.asarray(self.deviation))).astype(np.float32).reshape(shape)
        shift = (np.asarray(self.mean) / np.asarray(self.deviation)).astype(np.float32).reshape(shape)
        scaled: npt.NDArray[np.float32] = stored * factor  # of uint8 and float32: float32
        scaled -= shift
        return scaled


@dataclasses.dataclass(frozen=True)
class Examples:
    """Inputs with their labels.

    Attributes:
        stored: uint8 where ``scaling`` says how they become inputs, else float32; N x C x H x W or N x F.
        labels: int64, N.
        scaling: of images.
    """

    stored: Array
    labels: npt.NDArray[np.int64]
    scaling: Scaling | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, rows: Rows = slice(None)) -> npt.NDArray[np.float32]:
        """What a network is given: float32, normalised."""
        return self.normalised(self.stored[rows])

    def normalised(self, stored: Array) -> npt.NDArray[np.float32]:
        """The same of stored examples that were changed, by augmentation for example."""
        if self.scaling is None:
            return np.ascontiguousarray(stored, np.float32)
        return self.scaling.applied(stored)

    def take(self, rows: Rows) -> Examples:
        """Some of them."""
        return dataclasses.replace(self, stored=self.stored[rows], labels=self.labels[rows])

    def sample(self, count: int, seed: int) -> Examples:
        """At most ``count``, drawn without replacement."""
        order = np.random.default_rng(seed).permutation(len(self))
        return self.take(np.sort(order[:count]))

    def batches(self, size: int) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        """Inputs and labels, in order."""
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            yield self.inputs(rows), self.labels[rows]


class Dataset:
    """Data split for a search: disjoint parts.

    Attributes:
        classes: names in the order of the labels.
        train: what is left for fitting.
        validation: for choosing.
        calibration: for statistics of layers.
    """

    def __init__(
        self,
        classes: tuple[str, ...],
        train: Examples,
        validation: Examples,
        calibration: Examples,
        test: Callable[[], Examples],
    ) -> None:
        self.classes = classes
        self.train = train
        self.validation = validation
        self.calibration = calibration
        self._read_test = test

    @cached_property
    def test(self) -> Examples:
        """For the final figures only; read from disk when first asked for."""
        return self._read_test()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.train.stored.shape[1:])

    @property
    def scaling(self) -> Scaling | None:
        """Of stored pixels, where they are images."""
        return self.train.scaling


def load_data(
    source: str | Path | Iterable[Any],
    *,
    seed: int = 0,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
    validation_ratio: float = 0.1,
    calibration_ratio: float = 0.05,
) -> Dataset:
    """Read, check and split data.

    Args:
        source: an image folder, an ``.npz`` with ``x_train, y_train, x_test, y_test``, or an iterable of
            (x, y): one example (y a whole number) or a batch (y: N). Float data are taken as normalised
            already; images (a folder, or uint8 arrays) are normalised with ``mean`` and ``std``.
        seed: of the split. Data without test data of their own give a tenth to them first.
        size: height and width that a folder's images are brought to; default: they have one size.
        channels: 1 or 3, of a folder's images; default: the first image's.
        mean: of values between 0 and 1, one a channel; default: the training part's own.
        std: likewise.
        validation_ratio: part of the training data, at most 5,000 examples.
        calibration_ratio: likewise, at most 1,024.

    Raises:
        InputError: whatever cannot be used, with file or key.
    """
    if (mean is None) != (std is None):
        raise InputError("mean without std, or std without mean", where="mean, std", remedy="give both, or neither")
    random = np.random.default_rng(seed)
    classes, whole, test = _read(source, size, channels)
    if test is None:
        order = np.sort(random.permutation(len(whole))[: max(len(whole) // 10, 1)])
        final, whole = whole.take(order), whole.take(np.delete(np.arange(len(whole)), order))
        test = lambda: final  # noqa: E731 - what was split off
    order = random.permutation(len(whole))
    counts = (
        min(max(int(len(whole) * validation_ratio), 1), _MOST_VALIDATION),
        min(max(int(len(whole) * calibration_ratio), 1), _MOST_CALIBRATION),
    )
    if len(whole) < sum(counts) + 2:
        raise InputError(f"only {len(whole)} training examples", where=_named(source), remedy="give more data")
    first, second = counts[0], sum(counts)
    parts = [whole.take(np.sort(rows)) for rows in (order[second:], order[:first], order[first:second])]
    scaling = _scaling(parts[0], None if mean is None or std is None else Scaling(tuple(mean), tuple(std)), source)
    train, validation, calibration = (dataclasses.replace(part, scaling=scaling) for part in parts)
    return Dataset(classes, train, validation, calibration, lambda: dataclasses.replace(test(), scaling=scaling))


def check_fits(data: Dataset, model: Model) -> None:
    """Whether a model takes these examples and has an output for each class.

    Raises:
        InputError: it does not; the message says both shapes.
    """
    expected = model.inputs[0].shape or ()
    if len(model.inputs) != 1 or tuple(expected[1:]) != data.input_shape:
        takes = ", ".join(f"{tensor.name} {_shown((tensor.shape or ())[1:])}" for tensor in model.inputs)
        raise InputError(
            f"the examples are {_shown(data.input_shape)}, the model takes {takes}",
            where=model.name,
            remedy="give data in the model's shape; images: size = height and width of its input",
        )
    shape = model.outputs[0].shape
    if shape is not None and math.prod(shape[1:]) < len(data.classes):
        raise InputError(
            f"the data have {len(data.classes)} classes, output {model.outputs[0].name!r} is {_shown(shape)}",
            where=model.name,
            remedy="give data of the classes that the model was made for",
        )


def _read(
    source: str | Path | Iterable[Any], size: tuple[int, int] | None, channels: int | None
) -> tuple[tuple[str, ...], Examples, Callable[[], Examples] | None]:
    """Class names, training examples and what reads test examples, where there are any."""
    if not isinstance(source, str | Path):
        whole = _from_iterable(source)
        return _numbered(whole), whole, None
    path = Path(source)
    if path.suffix == ".npz":
        whole, final = _from_npz(path)
        return _numbered(whole, final), whole, lambda: final
    folder = ImageFolder(path, size=size, channels=channels)
    return folder.classes, Examples(*folder.train()), (lambda: Examples(*folder.test())) if folder.has_test else None


def _from_npz(path: Path) -> tuple[Examples, Examples]:
    file = ArrayFile(path)
    missing = [key for key in _KEYS if key not in file.names]
    if missing:
        raise InputError(
            f"no array {', '.join(missing)}; it holds {', '.join(file.names) or 'nothing'}",
            where=path,
            remedy=f"store {', '.join(_KEYS)}",
        )
    arrays = file.read(_KEYS)
    train, final = (
        _checked(arrays[f"x_{part}"], arrays[f"y_{part}"], f"{path}: x_{part}, y_{part}") for part in ("train", "test")
    )
    if train.stored.shape[1:] != final.stored.shape[1:] or train.stored.dtype != final.stored.dtype:
        raise InputError(
            f"x_train is {_shown(train.stored.shape)} {train.stored.dtype}, "
            f"x_test {_shown(final.stored.shape)} {final.stored.dtype}",
            where=path,
            remedy="store both alike",
        )
    return train, final


def _from_iterable(source: Iterable[Any]) -> Examples:
    inputs: list[Array] = []
    labels: list[Array] = []
    for index, item in enumerate(source):
        try:
            x, y = item
            x, y = np.asarray(x), np.asarray(y)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"item {index} is no pair of input and label: {error}",
                where="data",
                remedy="yield (x, y): one example with its label, or a batch with its labels",
            ) from error
        inputs.append(x[None] if y.ndim == 0 else x)
        labels.append(np.atleast_1d(y))
    if not inputs:
        raise InputError("no examples", where="data", remedy="yield (x, y) pairs")
    try:
        return _checked(np.concatenate(inputs), np.concatenate(labels), "data")
    except ValueError as error:
        raise InputError(
            f"the examples do not have one shape: {error}", where="data", remedy="yield arrays of one shape"
        ) from error


def _checked(x: Array, y: Array, where: str) -> Examples:
    """One clear error for whatever no network can be trained on."""
    what = None
    if x.ndim not in (2, 4):
        what = f"inputs are {_shown(x.shape)}", "store N x C x H x W or N x F"
    elif y.ndim != 1 or len(y) != len(x):
        what = f"{len(x)} inputs, but labels of shape {_shown(y.shape)}", "store one label an input"
    elif not len(x) or 0 in x.shape:
        what = f"inputs are {_shown(x.shape)}", "store some examples"
    elif x.dtype != np.uint8 and x.dtype.kind != "f":
        what = f"inputs are {x.dtype}", "store float32, normalised, or uint8 images"
    elif x.dtype == np.uint8 and x.ndim != 4:
        what = "inputs are uint8, but no images", "store float32, normalised"
    elif y.dtype.kind not in "iu":
        what = f"labels are {y.dtype}", "store whole numbers (int64), from 0"
    elif int(y.min()) < 0 or int(y.max()) >= _MOST_CLASSES:
        odd = y.min() if y.min() < 0 else y.max()
        what = f"a label is {int(odd)}", f"number the classes from 0, {_MOST_CLASSES} at most"
    elif x.dtype.kind == "f" and not np.isfinite(x).all():
        what = f"{int((~np.isfinite(x)).sum())} inputs are infinite or no numbers", "remove or replace them"
    if what is not None:
        raise InputError(what[0], where=where, remedy=what[1])
    return Examples(x if x.dtype == np.uint8 else x.astype(np.float32, copy=False), y.astype(np.int64))


def _scaling(train: Examples, given: Scaling | None, source: object) -> Scaling | None:
    """Of images: as given, or the training part's own."""
    if train.stored.dtype != np.uint8:
        if given is not None:
            raise InputError("these data are normalised already", where=_named(source), remedy="leave out mean and std")
        return None
    channels = train.stored.shape[1]
    if given is None:
        counts = [np.bincount(train.stored[:, channel].ravel(), minlength=256) for channel in range(channels)]
        values = np.arange(256) / 255
        means = [float(count @ values / count.sum()) for count in counts]
        spreads = [
            math.sqrt(count @ (values - mean) ** 2 / count.sum()) for count, mean in zip(counts, means, strict=True)
        ]
        return Scaling(tuple(means), tuple(max(spread, 1 / 255) for spread in spreads))
    if len(given.mean) != channels:
        raise InputError(
            f"mean and std have {len(given.mean)} values, the images {channels} channels",
            where="mean, std",
            remedy="give one a channel",
        )
    return given


def _numbered(*parts: Examples) -> tuple[str, ...]:
    return tuple(str(label) for label in range(max(int(part.labels.max()) for part in parts) + 1))


def _named(source: object) -> str:
    return str(source) if isinstance(source, str | Path) else "data"


def _shown(shape: Iterable[int]) -> str:
    return " x ".join(str(size) for size in shape) or "a scalar"
