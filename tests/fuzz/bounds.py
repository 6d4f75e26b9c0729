"""What reading a file may cost at most, and where it may write."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

__all__ = ["OutOfBoundsError", "bounded"]

MOST_BYTES = 600 << 20
"""Of memory that one file may take: arrays unpack to 256 MiB whatever the file's size, and are converted."""
_ALLOWED_BYTES = 4 << 30  # beyond that allocations fail, so that a bug does not take the machine with it
MOST_CPU_S = 20.0

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class OutOfBoundsError(BaseException):
    """A file took more than it may; nothing that a reader catches."""


@contextlib.contextmanager
def bounded(folder: Path, output: Path) -> Iterator[None]:
    """Watch what happens inside.

    Args:
        folder: nothing in it may change,
        output: but what lies here.

    Raises:
        OutOfBoundsError: too much processor time or memory, or a file elsewhere.
    """
    before = _listing(folder, output)
    start = _resident_bytes()

    def stop(signum: int, frame: FrameType | None) -> None:
        raise OutOfBoundsError(f"more than {MOST_CPU_S} s of processor time")

    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + _ALLOWED_BYTES, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    if (taken := _peak_bytes() - start) > MOST_BYTES:
        raise OutOfBoundsError(f"{taken >> 20} MiB of memory")
    if (after := _listing(folder, output)) != before:
        raise OutOfBoundsError(f"files changed: {sorted(after ^ before)}")


def _listing(folder: Path, output: Path) -> frozenset[tuple[str, int, int]]:
    found = ((path, path.lstat()) for path in folder.rglob("*") if not path.is_relative_to(output) and path.is_file())
    return frozenset((str(path), status.st_size, status.st_mtime_ns) for path, status in found)


def _resident_bytes() -> int:
    """Of this process; its peak is counted anew from here on."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")
    return _claimed_bytes("VmRSS")


def _peak_bytes() -> int:
    return _claimed_bytes("VmHWM")


def _virtual_bytes() -> int:
    return _claimed_bytes("VmSize")


def _claimed_bytes(key: str) -> int:
    """A line of Linux's ``/proc/self/status``; 0 elsewhere, where memory is not watched."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)
