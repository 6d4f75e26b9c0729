"""Arrays of an ``.npz``: nothing is pickled, and sizes that a file claims are checked before memory is allocated."""

from __future__ import annotations

import contextlib
import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from framefit.errors import InputError

__all__ = ["ArrayFile", "shape_text", "transposed"]


Array = npt.NDArray[Any]
_SUFFIX = ".npy"
_LENGTHS_AT = 26  # of a member's name and extra field, in its local header (PKWARE, "APPNOTE", 4.3.7)
_PIECE_BYTES = 1 << 20
_MOST_RATIO = 100  # unpacked bytes over the file's: deflate reaches 1,032 (zlib, "Technical Details"), data rarely 10
_ALWAYS_BYTES = 1 << 28  # may be unpacked at any ratio: masks of zeros are real data, too


class ArrayFile:
    """An ``.npz`` on disk, of which only the list of contents has been read.

    Args:
        path: the archive.

    Raises:
        InputError: it is missing, not an archive, or claims to unpack to far more than it can hold.

    Attributes:
        names: names of its arrays, in order; other members are ignored.
        bytes: size of all arrays as the file claims.
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
        """Read the arrays of these names, each of which has to exist; default: all.

        Raises:
            InputError: the file is damaged, or holds an array of objects.
        """
        with self._opened() as archive:
            return {name: _read(archive, name) for name in (self.names if names is None else names)}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an array, of which only the header is read.

        Raises:
            InputError: the file is damaged.
        """
        with self._opened() as archive, archive.open(name + _SUFFIX) as member:
            return _header(member)[0]

    def mapped(self, name: str) -> Array | None:
        """An array that stays on disk, once its checksum has been compared; ``None``: its form does not allow that.

        Raises:
            InputError: the file is damaged.
        """
        with self._opened() as archive, Path(self._path).open("rb") as file:
            member = archive.getinfo(name + _SUFFIX)
            with archive.open(member) as content:
                shape, turned, dtype = _header(content)
                begin = content.tell()
                empty = 0 in (*shape, dtype.itemsize)
                if member.compress_type != zipfile.ZIP_STORED or turned or dtype.hasobject or empty:
                    return None
                piece = content.read(_PIECE_BYTES)
                while piece:  # at the end the checksum is compared
                    piece = content.read(_PIECE_BYTES)
            file.seek(member.header_offset + _LENGTHS_AT)
            begin += member.header_offset + _LENGTHS_AT + 4 + sum(struct.unpack("<HH", file.read(4)))
            return np.memmap(self._path, dtype, "r", begin, shape)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            with Path(self._path).open("rb") as file, zipfile.ZipFile(file) as archive:
                yield archive
        except FileNotFoundError:
            raise InputError("no such file", where=self._path, remedy="check the path") from None
        except Exception as error:  # zip, header and value errors of a damaged file have no common class
            raise InputError(f"not a readable .npz: {error}", where=self._path, remedy="check the file") from error


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran's order, and type of an array."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, turned, dtype = read(member)
    return shape, turned, dtype


def _read(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(name + _SUFFIX) as member:
        array: Array = np.lib.format.read_array(member, allow_pickle=False)
    if array.size and not array.itemsize:  # any number of them takes no bytes, but time
        raise ValueError(f"array {name!r} has elements of no bytes")
    return array


def read_arrays(path: str | Path, dtypes: dict[str, str], optional: dict[str, str] | None = None) -> dict[str, Array]:
    """Read arrays of an ``.npz``, converted where no value changes.

    Args:
        path: the archive.
        dtypes: name -> dtype of each required array.
        optional: the same for arrays that may be missing, which are then missing in the result.

    Raises:
        InputError: a file or array is missing, the archive is damaged, or an array has another type.
    """
    file = ArrayFile(path)
    missing = [name for name in dtypes if name not in file.names]
    if missing:
        raise InputError(
            f"array {missing[0]!r} is missing; it has: {', '.join(file.names)}",
            where=path,
            remedy="check that this is the right file",
        )
    expected = dtypes | (optional or {})
    arrays = file.read(name for name in expected if name in file.names)
    try:
        return {name: _converted(array, name, expected[name]) for name, array in arrays.items()}
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


def shape_text(shape: Iterable[object]) -> str:
    """A shape as messages show it."""
    return " x ".join(map(str, shape)) or "a scalar"


def transposed(given: Sequence[int], wanted: Sequence[int | str]) -> str:
    """The remedy for frames whose channels are at the other end of their shape.

    Args:
        given: shape of a frame, with or without leading axes.
        wanted: the shape that is taken; sizes that are left open are text.

    Returns:
        A sentence that names the transposition; empty: no such transposition fits.
    """
    for order in ((2, 0, 1), (1, 2, 0)):
        sizes = tuple(given)[-3:]
        moved = tuple(sizes[axis] for axis in order) if len(sizes) == 3 else ()
        pairs = list(zip(moved, tuple(wanted)[-3:], strict=False))
        if len(pairs) == 3 and all(isinstance(size, str) or size == have for have, size in pairs):
            axes = ", ".join(str(axis + 1) for axis in order)
            return f"transpose the frames: store them as x.transpose(0, {axes}), where the first axis counts frames"
    return ""
