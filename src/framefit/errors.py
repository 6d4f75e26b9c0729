"""The one tree of errors that Framefit raises on purpose.

    FramefitError                  exit code
    ├── InputError                 2   a file, key, argument or model that cannot be used
    │   ├── DivergedError          2   a training ended in numbers that are none
    │   ├── UnsupportedError       2   valid, but not built yet
    │   └── MissingExtraError      2   needs an optional dependency
    ├── InfeasibleError            1   a valid question with a negative answer
    ├── RecordingError             3   a run could not be recorded to its end
    └── DeviceError                3   the device or its runtime failed
        ├── HangError              3   a launch did not end in time, and was terminated
        └── LostUnitError          3   one that could not be

Each says what is wrong (with the value received), where, and the remedy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "DeviceError",
    "DivergedError",
    "FramefitError",
    "HangError",
    "InfeasibleError",
    "InputError",
    "LostUnitError",
    "MissingExtraError",
    "RecordingError",
    "UnsupportedError",
    "needs_extra",
]


class FramefitError(Exception):
    """Anything that Framefit refuses or fails to do.

    Args:
        what: what is wrong, with the value received.
        where: file, key or layer that it is about.
        remedy: what the user can do.
    """

    exit_code = 3

    def __init__(self, what: str, *, where: str | Path | None = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.what if self.where is None else f"{self.where}: {self.what}"]
        if self.remedy:
            parts.append(f"remedy: {self.remedy}")
        return "\n".join(parts)


class InputError(FramefitError):
    """A file, key, argument or model that cannot be used as it is."""

    exit_code = 2


class DivergedError(InputError):
    """A training whose loss or weights became infinite or no number; the network has the weights from before."""


class UnsupportedError(InputError):
    """Valid input that this version does not handle yet; never ignored silently."""


class MissingExtraError(InputError):
    """An optional dependency is needed and absent."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed", remedy=f"pip install 'framefit[{extra}]'")


@contextlib.contextmanager
def needs_extra(package: str, extra: str) -> Iterator[None]:
    """Around imports of a package that only an extra brings.

    Args:
        package: its name, for the message.
        extra: of Framefit, that brings it.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, extra) from error


class InfeasibleError(FramefitError):
    """The models do not fit; the message names what binds."""

    exit_code = 1


class RecordingError(FramefitError):
    """A run could not be recorded to its end: the disk is full, or the folder cannot be written any more."""

    exit_code = 3


class DeviceError(FramefitError):
    """The device or the runtime on it failed."""

    exit_code = 3


class HangError(DeviceError):
    """A launch did not end in time, and was terminated: its unit is free again."""


class LostUnitError(DeviceError):
    """A launch does not end, and cannot be terminated: nothing more can be run on its unit."""
