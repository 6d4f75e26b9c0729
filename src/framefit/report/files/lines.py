"""Tables that Framefit wrote, read back line by line."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path

from framefit.errors import InputError

__all__ = ["read_lines"]


@contextlib.contextmanager
def read_lines(path: str | Path, columns: tuple[str, ...], remedy: str) -> Iterator[Iterator[list[str]]]:
    """The lines of a CSV file behind its heading; a ``ValueError`` about one of them becomes an error that names it.

    Args:
        path: of the file.
        columns: its heading.
        remedy: what the user can do about a file that is damaged.

    Raises:
        InputError: missing, unreadable, another table, or what the lines' reader did not understand.
    """
    number = 1
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            if tuple(next(lines, ())) != columns:
                raise ValueError(f"is not {','.join(columns)}")
            try:
                yield lines
            finally:
                number = lines.line_num
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path, remedy="check the path") from error
    except (ValueError, OverflowError, csv.Error) as error:
        raise InputError(f"line {number}: {error}", where=path, remedy=remedy) from error
