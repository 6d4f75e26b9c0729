"""Arrays of an ``.npz``: nothing is pickled, and what a file claims is checked before memory is taken."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.errors import InputError

__all__ = ["ArrayFile"]


Array = npt.NDArray[Any]
_SUFFIX = ".npy"
_MOST_RATIO = 100  # of unpacked bytes to the file's: deflate reaches 1,032 (zlib, "Technical Details"), data seldom 10
_ALWAYS_BYTES = 1 << 28  # so much may be unpacked whatever the ratio: masks of zeros are real data, too


class ArrayFile:
    """An ``.npz`` on disk, of which only the list of contents has been read.

    Args:
        path: the archive.

    Raises:
        InputError: missing, no archive, or one that claims to unpack to far more than it can hold.

    Attributes:
        names: of its arrays, in order; members of other kinds are not among them.
        bytes: that all arrays claim to take.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with self._opened() as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(_SUFFIX)]
        self.names = tuple(member.filename.removesuffix(_SUFFIX) for member in members)
        self.bytes = sum(member.file_size for member in members)
        size = Path(path).stat().st_size
        if self.bytes > max(_ALWAYS_BYTES, _MOST_RATIO * size):
            raise InputError(
                f"claims to hold {self.bytes} bytes in {size}",
                where=self._path,
                remedy="check the file; if it really does, store it without compression (numpy.savez)",
            )

    def read(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """The arrays of these names, of which each has to be there; default: all.

        Raises:
            InputError: damaged, or an array of objects.
        """
        with self._opened() as archive:
            return {name: _read(archive, name) for name in (self.names if names is None else names)}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            with Path(self._path).open("rb") as file, zipfile.ZipFile(file) as archive:
                yield archive
        except FileNotFoundError:
            raise InputError("no such file", where=self._path, remedy="check the path") from None
        except Exception as error:  # zip, header and value errors of a damaged file have no common class
            raise InputError(f"not a readable .npz: {error}", where=self._path, remedy="check the file") from error


def _read(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(name + _SUFFIX) as member:
        array: Array = np.lib.format.read_array(member, allow_pickle=False)
    if array.size and not array.itemsize:  # any number of them takes no bytes, but time
        raise ValueError(f"array {name!r} has elements of no bytes")
    return array


def read_arrays(path: str | Path, dtypes: dict[str, str], optional: dict[str, str] | None = None) -> dict[str, Array]:
    """The named arrays of an ``.npz``, converted where no value changes.

    Args:
        path: the archive.
        dtypes: name -> dtype of each array that has to be there.
        optional: the same for arrays that may be absent; they are then absent in the result.

    Raises:
        InputError: missing file or array, damaged archive, wrong kind of array.
    """
    file = ArrayFile(path)
    missing = [name for name in dtypes if name not in file.names]
    if missing:
        raise InputError(
            f"array {missing[0]!r} is missing; it has: {', '.join(file.names)}",
            where=path,
            remedy="check that this is the right file",
        )
    wanted = dtypes | (optional or {})
    arrays = file.read(name for name in wanted if name in file.names)
    try:
        return {name: _converted(array, name, wanted[name]) for name, array in arrays.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"not a readable .npz: {error}", where=path, remedy="check the file") from error


def _converted(array: Array, name: str, dtype: str) -> Array:
    whole = array.dtype.kind in "iu" and np.dtype(dtype).kind in "iu"  # of any width, as long as the values fit
    if not (whole or not array.size or np.can_cast(array.dtype, dtype, "same_kind")):
        raise ValueError(f"array {name!r} is {array.dtype}, not {np.dtype(dtype)}")
    converted = array.astype(dtype)
    if array.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise ValueError(f"array {name!r} holds values that do not fit {converted.dtype}")
    return converted
