"""What a long run lays aside, so that its memory does not grow with it."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import BinaryIO

__all__ = ["Aside"]


class Aside:
    """A file without a name in the folder for temporary files; it goes with this object.

    One thread puts bytes there, any thread may read what was put there. It is made with the first ones.
    """

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._full = False

    def put(self, data: bytes, at: int) -> bool:
        """Lay bytes aside; false where there is no room for them.

        Args:
            data: any number of bytes.
            at: where they begin in the file.
        """
        if self._full:
            return False
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open as long as this object lives
                weakref.finalize(self, self._file.close)
            view = memoryview(data)
            while len(view):
                written = os.pwrite(self._file.fileno(), view, at)
                view, at = view[written:], at + written
        except OSError:
            self._full = True  # a run goes on; what it cannot lay aside, it keeps
        return not self._full

    def read(self, size: int, at: int = 0) -> bytes:
        """``size`` bytes that were put there, from ``at`` on."""
        parts: list[bytes] = []
        while self._file is not None and size > 0:
            parts.append(os.pread(self._file.fileno(), size, at))
            at, size = at + len(parts[-1]), size - len(parts[-1])
        return b"".join(parts)
