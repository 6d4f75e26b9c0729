"""All errors that Framefit raises on purpose form one tree.

    FramefitError                  exit code
    ├── InputError                 2   a file, key, argument or model that cannot be used
    │   ├── DivergedError          2   a training ended in NaN or infinity
    │   ├── MismatchError          2   data that do not have the model's shape
    │   ├── UnsupportedError       2   valid, but not built yet
    │   └── MissingExtraError      2   needs an optional dependency
    ├── InfeasibleError            1   a valid question with a negative answer
    ├── RecordingError             3   a run could not be recorded to its end
    └── DeviceError                3   the device or its runtime failed
        ├── HangError              3   a launch did not end in time, and was terminated
        └── LostUnitError          3   a launch did not end, and could not be terminated

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
    "MismatchError",
    "MissingExtraError",
    "RecordingError",
    "UnsupportedError",
    "needs_extra",
]


class FramefitError(Exception):
    """Base of all errors that Framefit raises on purpose.

    Args:
        what: what is wrong, with the value received.
        where: the file, key or layer concerned.
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
    """The loss or weights of a training became NaN or infinite; the network has its earlier weights."""


class MismatchError(InputError):
    """Data that do not have the shape of what they are given to."""


class UnsupportedError(InputError):
    """Valid input that this version does not handle yet; never ignored silently."""


class MissingExtraError(InputError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed", remedy=f"pip install 'framefit[{extra}]'")


@contextlib.contextmanager
def needs_extra(package: str, extra: str) -> Iterator[None]:
    """Wrap imports of a package that only an extra installs.

    Args:
        package: name for the message.
        extra: the extra of Framefit that installs it.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, extra) from error


class InfeasibleError(FramefitError):
    """The models do not fit; the message names the binding constraint."""

    exit_code = 1


class RecordingError(FramefitError):
    """A run could not be recorded to its end: the disk is full, or the folder cannot be written any more."""

    exit_code = 3


class DeviceError(FramefitError):
    """The device or the runtime on it failed."""

    exit_code = 3


class HangError(DeviceError):
    """A launch did not end in time, and was terminated: its unit can be used again."""


class LostUnitError(DeviceError):
    """A launch does not end, and cannot be terminated: its unit cannot be used any more."""
