"""Images in folders, one folder a class: found, decoded once, kept decoded in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from framefit.core.files import cache_folder, write_whole
from framefit.errors import InputError

__all__ = ["ImageFolder"]

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
_LAYOUT = "put images into one folder a class, optionally under train/ and test/"


class ImageFolder:
    """A folder of images, one folder a class, optionally under ``train`` and ``test``.

    Args:
        root: the folder.
        size: height and width that every image is brought to; default: the first image's, which all must have.
        channels: 1 (grey) or 3 (RGB); default: the first image's.

    Raises:
        InputError: no such folder, no classes in it, a class without images.

    Attributes:
        classes: names of the folders, in alphabetical order; a label is a place in it.
    """

    def __init__(self, root: Path, *, size: tuple[int, int] | None = None, channels: int | None = None) -> None:
        if not root.is_dir():
            what = "is neither a folder nor an .npz" if root.exists() else "no such folder"
            raise InputError(what, where=root, remedy=_LAYOUT)
        if channels not in (None, 1, 3):
            raise InputError(f"{channels} channels", where=root, remedy="images have 1 or 3")
        self._root = root
        train = root / "train"
        self._train = train if train.is_dir() else root
        self._test = root / "test" if train.is_dir() and (root / "test").is_dir() else None
        self.classes = tuple(sorted(path.name for path in _folders(self._train)))
        if len(self.classes) < 2:
            found = f"only the class {self.classes[0]!r}" if self.classes else "no folders of classes"
            raise InputError(found, where=self._train, remedy=_LAYOUT)
        first = self._listed(self._train)[0][0]
        with _quiet(), _opened(first) as image:
            self._size = size or (image.height, image.width)
            self._channels = channels or (1 if image.mode in ("1", "L", "I;16") else 3)
        self._brought = size is not None

    @property
    def has_test(self) -> bool:
        """Whether test images lie apart."""
        return self._test is not None

    def train(self) -> tuple[Pixels, Labels]:
        """Training images, N x C x H x W, and their labels.

        Raises:
            InputError: a damaged image, or one of another size.
        """
        return self._read(self._train)

    def test(self) -> tuple[Pixels, Labels]:
        """Test images and their labels, as :meth:`train`.

        Raises:
            InputError: there are none, a damaged image, or a class that the training images do not have.
        """
        if self._test is None:
            raise InputError("no folder test", where=self._root, remedy=_LAYOUT)
        return self._read(self._test)

    def _read(self, folder: Path) -> tuple[Pixels, Labels]:
        paths, labels = self._listed(folder)
        kept = cache_folder() / "images" / f"{self._key(folder, paths)}.npy"
        if kept.is_file():
            try:
                pixels = np.load(kept, allow_pickle=False)
            except (OSError, ValueError, EOFError):
                kept.unlink(missing_ok=True)  # damaged: decode again
            else:
                return pixels, labels
        pixels = np.empty((len(paths), self._channels, *self._size), np.uint8)

        def decode(index: int) -> None:
            pixels[index] = self._decoded(paths[index])

        with _quiet(), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for _ in pool.map(decode, range(len(paths)), chunksize=256):
                pass
        with write_whole(kept, force=True) as file:
            np.save(file, pixels, allow_pickle=False)
        return pixels, labels

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
                continue  # of a test: a class need not occur
            found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in _SUFFIXES)
            if not found:
                kinds = ", ".join(sorted(_SUFFIXES))
                raise InputError("no images", where=folder / name, remedy=f"put files there ({kinds}), or remove it")
            paths += found
            labels += [label] * len(found)
        return paths, np.asarray(labels, np.int64)

    def _decoded(self, path: Path) -> Pixels:
        with _opened(path) as image:
            converted = image.convert("L" if self._channels == 1 else "RGB")
            height, width = self._size
            if converted.size != (width, height):
                if not self._brought:
                    raise InputError(
                        f"{converted.height} x {converted.width} pixels, others have {height} x {width}",
                        where=path,
                        remedy="give size = height and width that images are to be brought to",
                    )
                converted = converted.resize((width, height), Image.Resampling.BILINEAR)
            array = np.asarray(converted)
        return array[None] if self._channels == 1 else array.transpose(2, 0, 1)

    def _key(self, folder: Path, paths: Sequence[Path]) -> str:
        """Of the decoded images: another file, or other sizes and times, give another key."""
        digest = hashlib.sha256(repr((str(folder.resolve()), self._size, self._channels, self._brought)).encode())
        for path in paths:
            facts = path.stat()
            digest.update(f"{path.parent.name}/{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def _folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Pillow's warnings about size and metadata: what matters is raised. Not in a thread of a pool."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _opened(path: Path) -> Image.Image:
    """A decoded image."""
    try:
        with contextlib.ExitStack() as opened:
            image = opened.enter_context(Image.open(path))
            image.load()
            opened.pop_all()  # of a damaged one the file is closed
    except Exception as error:  # Pillow's errors about damaged files have no common class
        raise InputError(f"cannot be read as an image: {error}", where=path, remedy="replace or remove it") from error
    return image
