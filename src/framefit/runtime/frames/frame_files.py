"""Files that frames are read from."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

from PIL import Image

from framefit.core.arrays import ArrayFile
from framefit.core.workload import StreamEntry
from framefit.devices.device import Array
from framefit.errors import InputError

__all__ = ["image_paths", "opened_image", "stored_array"]

_IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def image_paths(folder: Path, where: str) -> list[Path]:
    """Paths of a folder's images, by name.

    Raises:
        InputError: no such folder, or no images in it.
    """
    if not folder.is_dir():
        what = f"{folder} is neither an .npz nor a folder" if folder.exists() else f"no such folder {folder}"
        raise InputError(
            what, where=where, remedy='use "synthetic", an .npz, a folder of images, or a "module:function"'
        )
    found = [path for path in folder.rglob("*") if path.suffix.lower() in _IMAGE_SUFFIXES and path.is_file()]
    if not found:
        kinds = ", ".join(sorted(_IMAGE_SUFFIXES))
        raise InputError(f"no images in {folder}", where=where, remedy=f"put files there: {kinds}")
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def opened_image(path: Path, where: str, *, decode: bool = True) -> Image.Image:
    """An image, decoded or only its header.

    Raises:
        InputError: it is damaged.
    """
    try:
        with warnings.catch_warnings(), contextlib.ExitStack() as opened:
            warnings.simplefilter("ignore")  # about size and metadata; what matters is raised
            image = opened.enter_context(Image.open(path))
            if decode:
                image.load()
            opened.pop_all()  # of a damaged one the file is closed
    except Exception as error:  # Pillow's errors about damaged files have no common class
        raise InputError(
            f"{path} cannot be read as an image: {error}", where=where, remedy="replace or remove it"
        ) from error
    return image


def stored_array(entry: StreamEntry) -> Array:
    """The array of an ``.npz``; its first axis counts frames.

    Raises:
        InputError: a missing or damaged file, or no such array.
    """
    where = f"stream {entry.name!r}"
    try:
        file = ArrayFile(entry.source)
        name = entry.array or (file.names[0] if len(file.names) == 1 else None)
        array: Array | None = file.read([name])[name] if name in file.names else None
    except InputError as error:
        raise InputError(f"{entry.source}: {error.what}", where=where, remedy=error.remedy) from error
    if array is None:
        has = ", ".join(file.names)
        raise InputError(f"no array {name!r} in {entry.source}; it has: {has}", where=where, remedy="set array")
    if array.ndim == 0 or not len(array):
        raise InputError(f"{entry.source} holds no frames", where=where, remedy="its first axis counts frames")
    return array
