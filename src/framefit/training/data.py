"""Examples for training and evaluation: read, checked and split; and opened together with their classifier.

There are three sources: an image folder, decoded once and stored decoded in the user's cache; an ``.npz``; any
iterable of examples or batches. Validation and calibration data are taken from the training part with the seed; all
parts are disjoint. Test data are for the final figures: they are only read when they are needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from framefit.core.arrays import ArrayFile, shape_text, transposed
from framefit.core.files import cache_folder, write_whole
from framefit.core.functions import load_function
from framefit.core.model import Model, free_batch
from framefit.core.model.builtin import load_model
from framefit.core.workload import names_function
from framefit.errors import InputError, MismatchError, UnsupportedError
from framefit.training import mapped
from framefit.training.mapped import MappedRows, Rows, Stored, pieces, taken, together
from framefit.training.tasks import Classes, Outputs, Task

__all__ = [
    "Dataset",
    "Examples",
    "at_once",
    "batch_left_open",
    "check_fits",
    "open_classifier",
    "open_data",
    "open_together",
]


Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
_LAYOUT = "put images into one folder for each class, optionally below train/, val/ and test/"


class ImageFolder:
    """A folder of images with one folder for each class, optionally below ``train``, ``val`` and ``test``.

    Args:
        root: the folder.
        size: height and width to which every image is resized; default: the first image's, which all must have.
        channels: 1 (grey) or 3 (RGB); default: the first image's.

    Raises:
        InputError: the folder does not exist, has no classes, or a class has no images.

    Attributes:
        classes: names of the folders, in alphabetical order; a label is an index of it.
    """

    def __init__(self, root: Path, *, size: tuple[int, int] | None = None, channels: int | None = None) -> None:
        if not root.is_dir():
            what = "is neither a folder nor an .npz" if root.exists() else "no such folder"
            raise InputError(what, where=root, remedy=_LAYOUT)
        if channels not in (None, 1, 3):
            raise InputError(f"channels is {channels}", where=root, remedy="choose 1 or 3")
        self._root = root
        train = root / "train"
        self._train = train if train.is_dir() else root
        self._test, self._validation = (
            root / part if train.is_dir() and (root / part).is_dir() else None for part in ("test", "val")
        )
        self.classes = tuple(sorted(path.name for path in _folders(self._train)))
        if len(self.classes) < 2:
            classes = f"only the class {self.classes[0]!r}" if self.classes else "no folders of classes"
            raise InputError(classes, where=self._train, remedy=_LAYOUT)
        first = self._listed(self._train)[0][0]
        with _quiet(), _opened(first) as image:
            self._size = size or (image.height, image.width)
            self._channels = channels or (1 if image.mode in ("1", "L", "I;16") else 3)
        self._brought = size is not None

    @property
    def has_test(self) -> bool:
        """Whether there are separate test images."""
        return self._test is not None

    def train(self) -> tuple[Stored, Labels]:
        """Training images, N x C x H x W, and their labels.

        Raises:
            InputError: an image is damaged, or has another size.
        """
        return self._read(self._train)

    def test(self) -> tuple[Stored, Labels]:
        """Test images and their labels, as :meth:`train`.

        Raises:
            InputError: there are none, an image is damaged, or a class has no training images.
        """
        if self._test is None:
            raise InputError("no folder test", where=self._root, remedy=_LAYOUT)
        return self._read(self._test)

    def validation(self) -> tuple[Stored, Labels] | None:
        """Validation images and their labels, as :meth:`test`; ``None``: the user set none aside."""
        return None if self._validation is None else self._read(self._validation)

    def _read(self, folder: Path) -> tuple[Stored, Labels]:
        paths, labels = self._listed(folder)
        kept = cache_folder() / "images" / f"{self._key(folder, paths)}.npy"
        if kept.is_file():
            try:
                return _cached(kept, self._bytes(paths)), labels
            except (OSError, ValueError, EOFError):
                kept.unlink(missing_ok=True)  # it is damaged: decode again
        with _quiet(), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, write_whole(kept, force=True) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(paths), self._channels, *self._size)}
            np.lib.format.write_array_header_1_0(file, header)
            for first in range(0, len(paths), _DECODED):
                for pixels in pool.map(self._decoded, paths[first : first + _DECODED], chunksize=256):
                    file.write(np.ascontiguousarray(pixels).data)
        return _cached(kept, self._bytes(paths)), labels

    def _bytes(self, paths: Sequence[Path]) -> int:
        return len(paths) * self._channels * math.prod(self._size)

    def _listed(self, folder: Path) -> tuple[list[Path], Labels]:
        """Paths of images in the order of classes and names, with their labels."""
        unknown = sorted({path.name for path in _folders(folder)} - set(self.classes))
        if unknown:
            raise InputError(
                f"class {unknown[0]!r} has no training images", where=folder, remedy="use the same classes in both"
            )
        paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(self.classes):
            if not (folder / name).is_dir():
                continue  # in test data a class need not occur
            images = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in _SUFFIXES)
            if not images:
                kinds = ", ".join(sorted(_SUFFIXES))
                raise InputError("no images", where=folder / name, remedy=f"put images ({kinds}) there, or remove it")
            paths += images
            labels += [label] * len(images)
        return paths, np.asarray(labels, np.int64)

    def _decoded(self, path: Path) -> Pixels:
        with _opened(path) as image:
            converted = image.convert("L" if self._channels == 1 else "RGB")
            height, width = self._size
            if converted.size != (width, height):
                if not self._brought:
                    raise InputError(
                        f"the image has {converted.height} x {converted.width} pixels, others have {height} x {width}",
                        where=path,
                        remedy="give size = height and width to which images are resized",
                    )
                converted = converted.resize((width, height), Image.Resampling.BILINEAR)
            array = np.asarray(converted)
        return array[None] if self._channels == 1 else array.transpose(2, 0, 1)

    def _key(self, folder: Path, paths: Sequence[Path]) -> str:
        """Key of the decoded images: it changes with the list of files, their sizes and times."""
        digest = hashlib.sha256(repr((str(folder.resolve()), self._size, self._channels, self._brought)).encode())
        for path in paths:
            facts = path.stat()
            digest.update(os.fsencode(f"{path.parent.name}/{path.name} {facts.st_size} {facts.st_mtime_ns}\n"))
        return digest.hexdigest()


def _cached(path: Path, size_bytes: int) -> Stored:
    """Decoded images, which stay on disk if they are many."""
    if size_bytes <= mapped.IN_MEMORY_BYTES:
        pixels: Pixels = np.load(path, allow_pickle=False)
        return pixels
    return MappedRows.of(np.load(path, mmap_mode="r", allow_pickle=False))


def _folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Pillow's warnings about size and metadata: real errors are raised. Not for threads of a pool."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _opened(path: Path) -> Image.Image:
    """Open and decode an image."""
    try:
        with contextlib.ExitStack() as opened:
            image = opened.enter_context(Image.open(path))
            image.load()
            opened.pop_all()  # the file of a damaged image is closed
    except Exception as error:  # Pillow's errors about damaged files have no common class
        raise InputError(f"cannot be read as an image: {error}", where=path, remedy="replace or remove it") from error
    return image


Array = npt.NDArray[Any]
_DECODED = 4096  # images at once, before they are written
Scores = Callable[[npt.NDArray[np.float32]], tuple[Array, ...]]
Scorer = Callable[[], Scores]
_MOST_VALIDATION = 5000  # at an accuracy of 90 % the 90 % interval is then +-0.7 points
_MOST_CALIBRATION = 1024  # as for layer-wise reconstruction (Frantar and Alistarh, 2022, "Optimal Brain Compression")
_MOST_CLASSES = 1 << 20  # fifty times as many as in ImageNet-21k
_PREDICTED, _TOLD = 32, 512  # examples at once, and those that tell how outputs are distributed
_MOST_NUMBERS = 1 << 25  # of outputs that tell it
_KEYS = ("x_train", "y_train", "x_test", "y_test")
_STORED = f"store {', '.join(_KEYS)}; or x alone, without labels"


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Normalisation of stored pixels by channel: (value / 255 - mean) / deviation.

    Attributes:
        mean: of values between 0 and 1, one for each channel.
        deviation: standard deviation, likewise.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation) or not all(value > 0 for value in self.deviation):
            raise InputError(
                f"mean {self.mean} and deviation {self.deviation} do not match",
                where="mean, std",
                remedy="give one mean and one positive deviation for each channel, of values between 0 and 1",
            )

    def applied(self, stored: Array) -> npt.NDArray[np.float32]:
        """Normalise uint8, N x C x ..., to float32."""
        shape = (1, -1) + (1,) * (stored.ndim - 2)
        factor = (1 / (255 * np.asarray(self.deviation))).astype(np.float32).reshape(shape)
        shift = (np.asarray(self.mean) / np.asarray(self.deviation)).astype(np.float32).reshape(shape)
        scaled: npt.NDArray[np.float32] = stored * factor  # the product of uint8 and float32 is float32
        scaled -= shift
        return scaled


@dataclasses.dataclass(frozen=True)
class Examples:
    """Inputs with their labels.

    Attributes:
        stored: uint8 if ``scaling`` says how they become inputs, else floating point; N x C x H x W or N x F.
            Those that are larger than memory should hold are read from disk where they are used.
        labels: what is right: classes, int64, N; or answers of the original network, float32, N x D.
        scaling: normalisation of images.
        task: how answers are read and scored.
    """

    stored: Stored
    labels: Array
    scaling: Scaling | None = None
    task: Task = Classes()  # noqa: RUF009 - it is frozen

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def digest(self) -> str:
        """SHA-256 of the inputs and labels."""
        digest = hashlib.sha256(f"{self.stored.shape} {self.stored.dtype} {self.scaling}".encode())
        for array in itertools.chain(pieces(self.stored), [self.labels]):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def inputs(self, rows: Rows = slice(None)) -> npt.NDArray[np.float32]:
        """Inputs of a network: float32, normalised."""
        return self.normalised(self.stored[rows])

    def normalised(self, stored: Array) -> npt.NDArray[np.float32]:
        """Normalise stored examples that were changed, by augmentation for example."""
        if self.scaling is None:
            return np.ascontiguousarray(stored, np.float32)
        return self.scaling.applied(stored)

    def take(self, rows: Rows) -> Examples:
        """Select examples."""
        return dataclasses.replace(self, stored=taken(self.stored, rows), labels=self.labels[rows])

    def sample(self, count: int, seed: int) -> Examples:
        """Draw at most ``count`` examples without replacement."""
        order = np.random.default_rng(seed).permutation(len(self))
        return self.take(np.sort(order[:count]))

    def joined(self, others: Examples) -> Examples:
        """Join these and other examples; they stay as stored if both are stored alike."""
        labels = np.concatenate([self.labels, others.labels])
        if self.scaling == others.scaling and self.stored.dtype == others.stored.dtype:
            return dataclasses.replace(self, stored=together(self.stored, others.stored), labels=labels)
        return Examples(np.concatenate([self.inputs(), others.inputs()]), labels, task=self.task)

    def batches(self, size: int) -> Iterator[tuple[npt.NDArray[np.float32], Array]]:
        """Iterate over batches of inputs and labels, in order."""
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            yield self.inputs(rows), self.labels[rows]


def at_once(shape: tuple[int, ...], most: int, numbers: int) -> int:
    """Examples that fit together: ``most``, or fewer where each, of this shape, has so many of the ``numbers``."""
    return max(min(most, numbers // max(math.prod(shape), 1)), 1)


class Feeds(NamedTuple):
    """What a model's file leaves open about its inputs.

    Attributes:
        shapes: input -> shape, see :meth:`framefit.core.model.Model.load`.
        constants: input -> value that never changes.
        states: input -> output that is its next value.
    """

    shapes: Mapping[str, tuple[int, ...]] = {}
    constants: Mapping[str, Any] = {}
    states: Mapping[str, str] = {}


class ExampleInputs(NamedTuple):
    """Examples without labels that are read already.

    Attributes:
        train: float32, N x ...
        test: likewise; ``None``: a part of the others.
    """

    train: Array
    test: Array | None = None


class Dataset:
    """Data for a search, split into disjoint parts.

    Attributes:
        classes: names in the order of the labels.
        train: examples for training.
        validation: examples for choices during a search.
        calibration: examples for statistics of layers.
        validation_given: whether the user set ``validation`` aside; else they were taken from the training part.
        test_given: likewise, of ``test``.
    """

    def __init__(
        self,
        classes: tuple[str, ...],
        train: Examples,
        validation: Examples,
        calibration: Examples,
        test: Callable[[], Examples],
        *,
        validation_given: bool = False,
        test_given: bool = True,
    ) -> None:
        self.classes = classes
        self.train = train
        self.validation = validation
        self.calibration = calibration
        self.validation_given, self.test_given = validation_given, test_given
        self._read_test = test

    @cached_property
    def test(self) -> Examples:
        """Test examples, for the final figures only; they are read from disk when first needed."""
        return self._read_test()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.stored.shape[1:])

    @property
    def scaling(self) -> Scaling | None:
        """Normalisation of stored pixels, if the examples are images."""
        return self.train.scaling


def load_data(
    source: str | Path | Iterable[Any],
    *,
    scorer: Scorer | None = None,
    seed: int = 0,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
) -> Dataset:
    """Read, check and split data.

    Args:
        source: an image folder, an ``.npz`` with ``x_train, y_train, x_test, y_test`` and optionally ``x_val,
            y_val``, or an iterable of (x, y): one example (y a whole number) or a batch (y: N). Float data are taken
            as normalised already; images (a folder, or uint8 arrays) are normalised with ``mean`` and ``std``. An
            ``.npz`` without labels has ``x`` alone, or ``x_train``, ``x_test`` and optionally ``x_val``.
        scorer: makes a function from inputs to all outputs, of the original network, if it is needed: examples without
            labels have the classes that it says, or, where it has none, its outputs.
        seed: for the split. Data without test data use a tenth for them first.
        size: height and width to which a folder's images are resized; default: they have one size.
        channels: 1 or 3, of a folder's images; default: the first image's.
        mean: of values between 0 and 1, one for each channel; default: that of the training part.
        std: likewise.

    Raises:
        InputError: something cannot be used; the message names the file or key.
    """
    if (mean is None) != (std is None):
        raise InputError("mean without std, or std without mean", where="mean, std", remedy="give both, or neither")
    random = np.random.default_rng(seed)
    unlabelled = _without_labels(source)
    if unlabelled and scorer is None:
        raise InputError("the data have no labels", where=_named(source), remedy="store y_train and y_test, too")
    classes, whole, given, test = _read(source, size, channels)
    test_given = test is not None
    if test is None:
        order = np.sort(random.permutation(len(whole))[: max(len(whole) // 10, 1)])
        final, whole = whole.take(order), whole.take(np.delete(np.arange(len(whole)), order))
        test = lambda: final  # noqa: E731 - what was split off
    order = random.permutation(len(whole))
    counts = (
        0 if given is not None else min(max(len(whole) // 10, 1), _MOST_VALIDATION),
        min(max(len(whole) // 20, 1), _MOST_CALIBRATION),
    )
    if len(whole) < sum(counts) + 2:
        raise InputError(f"only {len(whole)} training examples", where=_named(source), remedy="give more data")
    first, second = counts[0], sum(counts)
    parts = [whole.take(np.sort(rows)) for rows in (order[second:], order[:first], order[first:second])]
    if given is not None:
        parts[1] = given
    scaling = _scaling(parts[0], None if mean is None or std is None else Scaling(tuple(mean), tuple(std)), source)
    parts = [dataclasses.replace(part, scaling=scaling) for part in parts]

    def final_part() -> Examples:
        final = dataclasses.replace(test(), scaling=scaling)
        return final if answered is None else answered(final)

    answered = _Answered(scorer(), parts[0]) if unlabelled and scorer is not None else None
    if answered is not None:
        parts = [answered(part) for part in parts]
        classes = _numbered(*parts) if answered.classes else ()
    train, validation, calibration = parts
    return Dataset(
        *(classes, train, validation, calibration, final_part),
        validation_given=given is not None,
        test_given=test_given,
    )


def check_fits(data: Dataset, model: Model) -> None:
    """Check that a model takes these examples and has an output for each class.

    Raises:
        MismatchError: it does not; the message has both shapes.
    """
    _check_shape(data.input_shape, model)
    shape = model.outputs[0].shape
    if shape is not None and math.prod(shape[1:]) < len(data.classes):
        raise MismatchError(
            f"the data have {len(data.classes)} classes, but output {model.outputs[0].name!r} is {shape_text(shape)}",
            where=model.name,
            remedy="give data with the classes of the model",
        )


def _check_shape(shape: tuple[int, ...], model: Model) -> None:
    """Refuse examples of another shape than a model takes."""
    expected = model.inputs[0].shape or ()
    if model.example_shape != shape:
        takes = ", ".join(f"{tensor.name} {shape_text((tensor.shape or ())[1:])}" for tensor in model.inputs)
        raise MismatchError(
            f"the examples are {shape_text(shape)}, but the model takes {takes}",
            where=model.name,
            remedy=transposed(shape, expected)
            or "give data in the model's shape; images: size = height and width of its input",
        )


def _read(
    source: str | Path | Iterable[Any], size: tuple[int, int] | None, channels: int | None
) -> tuple[tuple[str, ...], Examples, Examples | None, Callable[[], Examples] | None]:
    """Class names, training and validation examples, and a function that reads test examples; ``None``: none given."""
    if isinstance(source, ExampleInputs):
        whole, *held = (_checked(x, np.zeros(len(x), np.int64), "data") for x in source if x is not None)
        return ("0",), whole, None, (lambda: held[0]) if held else None
    if not isinstance(source, str | Path):
        whole = _from_iterable(source)
        return _numbered(whole), whole, None, None
    path = Path(source)
    if path.suffix == ".npz":
        whole, *held = _from_npz(path)
        if not held:
            return ("0",), whole, None, None
        final = held.pop()
        return _numbered(whole, *held, final), whole, held[0] if held else None, lambda: final
    folder = ImageFolder(path, size=size, channels=channels)
    validation = folder.validation()
    return (
        folder.classes,
        Examples(*folder.train()),
        None if validation is None else Examples(*validation),
        (lambda: Examples(*folder.test())) if folder.has_test else None,
    )


def _from_npz(path: Path) -> list[Examples]:
    """Training, validation (where they are given) and test examples."""
    file = ArrayFile(path)
    if _without_labels(path):
        return _unlabelled(file, path)
    missing = [key for key in _KEYS if key not in file.names]
    if missing:
        raise InputError(
            f"no array {', '.join(missing)}; the file holds {', '.join(file.names) or 'nothing'}",
            where=path,
            remedy=_STORED,
        )
    parts = ("train", "val", "test") if "x_val" in file.names else ("train", "test")
    keys = [f"{axis}_{part}" for part in parts for axis in "xy"]
    if "y_val" not in file.names and "x_val" in file.names:
        raise InputError("x_val without y_val", where=path, remedy="store both, or neither")
    arrays = _arrays(file, keys, path)
    read = [_checked(arrays[f"x_{part}"], arrays[f"y_{part}"], f"{path}: x_{part}, y_{part}") for part in parts]
    train = read[0]
    for part, other in zip(parts[1:], read[1:], strict=True):
        if train.stored.shape[1:] != other.stored.shape[1:] or train.stored.dtype != other.stored.dtype:
            raise InputError(
                f"x_train is {shape_text(train.stored.shape)} {train.stored.dtype}, but "
                f"x_{part} is {shape_text(other.stored.shape)} {other.stored.dtype}",
                where=path,
                remedy="store all with the same shape and type",
            )
    return read


def _arrays(file: ArrayFile, keys: Sequence[str], path: Path) -> dict[str, Any]:
    """Arrays of a file; where they are large, inputs stay on disk.

    Raises:
        InputError: they are larger than the memory that is free, and compressed.
    """
    if file.bytes <= mapped.IN_MEMORY_BYTES:
        return file.read(keys)
    arrays = {key: file.mapped(key) for key in keys if key.startswith("x")}
    rest = [key for key in keys if arrays.get(key) is None]
    free = mapped.free_bytes()
    if any(key in arrays for key in rest) and file.bytes > free:
        raise InputError(
            f"{file.bytes / 1e9:.1f} GB of data, more than the {free / 1e9:.1f} GB of memory that are free",
            where=path,
            remedy="store them without compression (numpy.savez): then they are read in pieces",
        )
    on_disk = {key: MappedRows.of(array) for key, array in arrays.items() if array is not None}
    return file.read(rest) | on_disk


def _without_labels(source: object) -> bool:
    """Whether it is an ``.npz`` with inputs and no labels, or such examples."""
    if isinstance(source, ExampleInputs):
        return True
    if not isinstance(source, str | Path) or Path(source).suffix != ".npz":
        return False
    names = ArrayFile(Path(source)).names
    return bool({"x", "x_train"} & set(names)) and not any(name == "y" or name.startswith("y_") for name in names)


def _unlabelled(file: ArrayFile, path: Path) -> list[Examples]:
    """Training, validation and test inputs, as far as they are given; their labels are 0 so far."""
    keys = ["x"] if "x" in file.names else [key for key in ("x_train", "x_val", "x_test") if key in file.names]
    arrays = _arrays(file, keys, path)
    return [_checked(arrays[key], np.zeros(len(arrays[key]), np.int64), f"{path}: {key}") for key in keys]


def _outputs_of(network: Model) -> Scores:
    """A network as a function from inputs to all outputs."""
    import torch

    from framefit.training.network import to_torch

    converted = to_torch(network).eval()

    def predict(x: npt.NDArray[np.float32]) -> tuple[Array, ...]:
        _check_shape(x.shape[1:], network)
        with torch.inference_mode():
            made = converted(torch.from_numpy(x))
        return tuple(each.numpy() for each in (made if isinstance(made, tuple) else (made,)))

    return predict


class _Answered:
    """What a network says to examples without labels: its classes, or all of its outputs.

    Args:
        predict: from inputs to outputs.
        some: examples that tell which, and how outputs are distributed.
    """

    def __init__(self, predict: Scores, some: Examples) -> None:
        self._predict = predict
        self._task: Task = Classes("classes")
        outputs: list[tuple[Array, ...]] = []
        for x, _ in some.sample(_TOLD, 0).batches(_PREDICTED):
            outputs.append(predict(x))
            if sum(each.size for made in outputs for each in made) > _MOST_NUMBERS:
                break
        first = outputs[0][0]
        if len(first.shape) < 2 or first.shape[1] < 2 or math.prod(first.shape[2:]) != 1:
            self._task = Outputs.like([np.concatenate(each) for each in zip(*outputs, strict=True)])

    @property
    def classes(self) -> bool:
        """Whether it says classes."""
        return isinstance(self._task, Classes)

    def __call__(self, examples: Examples) -> Examples:
        """The examples with what it says."""
        task, answers = self._task, []
        for x, labels in examples.batches(_PREDICTED):
            answers.append(task.read(self._predict(x), len(x), labels))
        labels = np.concatenate(answers)
        if isinstance(task, Classes):
            labels = labels.argmax(axis=1).astype(np.int64)
        return dataclasses.replace(examples, labels=labels, task=task)


def _from_iterable(source: Iterable[Any]) -> Examples:
    inputs: list[Array] = []
    labels: list[Array] = []
    for index, item in enumerate(source):
        try:
            x, y = item
            x, y = np.asarray(x), np.asarray(y)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"item {index} is not a pair of input and label: {error}",
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
            f"the examples have different shapes: {error}", where="data", remedy="yield arrays of one shape"
        ) from error


def _checked(x: Stored, y: Array, where: str) -> Examples:
    """Check that a network can be trained on these examples, with one clear error for each cause."""
    what = None
    if x.ndim < 2:
        what = f"inputs are {shape_text(x.shape)}", "store one example behind the other, such as N x F or N x C x H x W"
    elif y.ndim != 1 or len(y) != len(x):
        what = f"{len(x)} inputs, but labels of shape {shape_text(y.shape)}", "store one label for each input"
    elif not len(x) or 0 in x.shape:
        what = f"inputs are {shape_text(x.shape)}", "store some examples"
    elif x.dtype != np.uint8 and x.dtype.kind != "f":
        what = f"inputs are {x.dtype}", "store float32, normalised, or uint8 images"
    elif x.dtype == np.uint8 and x.ndim != 4:
        what = "inputs are uint8, but not images", "store float32, normalised"
    elif y.dtype.kind not in "iu":
        what = f"labels are {y.dtype}", "store whole numbers (int64), from 0"
    elif int(y.min()) < 0 or int(y.max()) >= _MOST_CLASSES:
        odd = y.min() if y.min() < 0 else y.max()
        what = f"a label is {int(odd)}", f"number the classes from 0, at most to {_MOST_CLASSES}"
    elif x.dtype.kind == "f" and (wrong := sum(int((~np.isfinite(piece)).sum()) for piece in pieces(x))):
        what = f"{wrong} inputs are infinite or NaN", "remove or replace them"
    if what is not None:
        raise InputError(what[0], where=where, remedy=what[1])
    if isinstance(x, np.ndarray) and x.dtype != np.uint8:
        x = x.astype(np.float32, copy=False)
    return Examples(x, y.astype(np.int64))


def _scaling(train: Examples, given: Scaling | None, source: object) -> Scaling | None:
    """Normalisation of images: the given one, or that of the training part."""
    if train.stored.dtype != np.uint8:
        if given is not None:
            raise InputError("these data are already normalised", where=_named(source), remedy="leave out mean and std")
        return None
    channels = train.stored.shape[1]
    if given is None:
        counts = np.zeros((channels, 256), np.int64)
        for piece in pieces(train.stored):  # each is read once
            for channel in range(channels):
                counts[channel] += np.bincount(piece[:, channel].ravel(), minlength=256)
        values = np.arange(256) / 255
        means = [float(count @ values / count.sum()) for count in counts]
        spreads = [
            math.sqrt(count @ (values - mean) ** 2 / count.sum()) for count, mean in zip(counts, means, strict=True)
        ]
        return Scaling(tuple(means), tuple(max(spread, 1 / 255) for spread in spreads))
    if len(given.mean) != channels:
        raise InputError(
            f"mean and std have {len(given.mean)} values, but the images have {channels} channels",
            where="mean, std",
            remedy="give one value for each channel",
        )
    return given


def _numbered(*parts: Examples) -> tuple[str, ...]:
    return tuple(str(label) for label in range(max(int(part.labels.max()) for part in parts) + 1))


def _named(source: object) -> str:
    return str(source) if isinstance(source, str | Path) else "data"


def open_classifier(
    model: Any,
    data: Any,
    *,
    seed: int = 0,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
) -> tuple[Model, Dataset]:
    """Read model and data as :func:`open_together` does, and check that the model has classes.

    Raises:
        InputError: model or data cannot be used.
    """
    opened, split = open_together(model, data, seed=seed, mean=mean, std=std)
    if not isinstance(split.train.task, Classes):
        shape = opened.outputs[0].shape
        raise InputError(
            f"no labels, and output {opened.outputs[0].name!r} ({shape_text(shape or ())}) is no row of classes",
            where=opened.name,
            remedy="give a classifier",
        )
    return opened, split


def open_together(
    model: Any,
    data: Any,
    *,
    seed: int = 0,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
    feeds: Feeds = Feeds(),  # noqa: B008 - it is a tuple
) -> tuple[Model, Dataset]:
    """Read model and data, and check that they match.

    Args:
        model: path of an ONNX file, name of a built-in model, "module:function" that returns a
            ``torch.nn.Module``, such a module, or a model.
        data: see :func:`open_data`; for models with several inputs
            :func:`~framefit.training.joined.joined_examples`.
        seed: for the split of the data.
        mean: of images, one for each channel, of values 0 to 1; std: likewise.
        std: see ``mean``.
        feeds: what a file leaves open about its inputs.

    Raises:
        InputError: model or data cannot be used.
    """
    opened, split = _opened_together(model, data, (seed, mean, std), feeds)
    check_fits(split, opened)
    return opened, split


def open_data(
    source: Any,
    shape: tuple[int, ...] | None,
    *,
    scorer: Scorer | None = None,
    seed: int = 0,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
) -> Dataset:
    """Read data and split them with the seed.

    Args:
        source: path, iterable, or data that are already split.
        shape: of the model's input, without the batch; images of a folder are resized to it.
        scorer: see :func:`load_data`.
        seed: for the split.
        mean: of images, one for each channel, of values 0 to 1; std: likewise.
        std: see ``mean``.
    """
    if isinstance(source, Dataset):
        return source
    image = shape is not None and len(shape) == 3 and isinstance(source, str | Path) and Path(source).is_dir()
    return load_data(
        source,
        scorer=scorer,
        seed=seed,
        size=(shape[1], shape[2]) if image and shape else None,
        channels=shape[0] if image and shape and shape[0] in (1, 3) else None,
        mean=mean,
        std=std,
    )


def _opened_together(
    model: Any, data: Any, choices: tuple[int, Iterable[float] | None, Iterable[float] | None], feeds: Feeds
) -> tuple[Model, Dataset]:
    def split(source: Any, shape: tuple[int, ...] | None, scorer: Scorer | None = None) -> Dataset:
        seed, mean, std = choices
        return open_data(source, shape, scorer=scorer, seed=seed, mean=mean, std=std)

    name = model if isinstance(model, str) else ""
    if names_function(name):
        model = load_function(name, Path(), "MODEL")()
    if not isinstance(model, str | Path | Model):
        from framefit.training.network import from_module  # loads torch

        called = re.sub(r"\W+", "-", name).strip("-") or "network"
        if not _without_labels(data):
            dataset = split(data, None)
            return from_module(model, dataset.input_shape, name=called), dataset
        opened = from_module(model, _shape_of_examples(data, "x"), name=called)
    else:
        opened = _loaded(model, data, feeds)
    source = data
    if (len(opened.inputs) > 1 or feeds.states) and not isinstance(data, Dataset):
        from framefit.training.joined import joined_examples  # loads torch

        source = ExampleInputs(*joined_examples(opened, data, feeds.states))
    return opened, split(source, opened.example_shape, lambda: _outputs_of(opened))


def _loaded(model: str | Path | Model, data: Any, feeds: Feeds) -> Model:
    """A model from a file; the data determine the sizes that it leaves open."""
    try:
        return load_model(model, feeds.shapes, feeds.constants)
    except InputError as error:
        unknown = re.match(r"input '(.+)' has (the dynamic dimension|no shape)", error.what)
        if unknown is None:
            raise
        shape = _shape_of_examples(data, unknown[1])
        return load_model(model, {**feeds.shapes, unknown[1]: (1, *shape)}, feeds.constants)


def _shape_of_examples(data: Any, name: str) -> tuple[int, ...]:
    """Shape of an example for the input of this name."""
    if isinstance(data, str | Path) and Path(data).suffix == ".npz":
        file = ArrayFile(Path(data))
        key = next((key for key in (name, "x", "x_train") if key in file.names), None)
        if key is not None and not any(each.startswith("y_") for each in file.names):
            return file.shape(key)[1:]
    return open_data(data, None).input_shape


def batch_left_open(source: Any, opened: Model) -> tuple[bool, tuple[str, ...]]:
    """Whether files of models made from this one leave the batch open, as the user's file or a module does.

    Args:
        source: of the model, as for :func:`open_classifier`.
        opened: the model.

    Returns:
        Whether they do, and remarks on what prevents it.
    """
    if len(opened.inputs) > 1:
        return False, ()
    from_file = isinstance(source, Model | Path) or (isinstance(source, str) and not names_function(source))
    if from_file and not opened.defaulted_dims:
        return False, ()
    try:
        free_batch(opened)
    except UnsupportedError as error:
        return False, (f"model.onnx takes only one example at once: {error.what}",)
    return True, ()
