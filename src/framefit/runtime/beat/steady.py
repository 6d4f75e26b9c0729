"""A loop that nothing of Python's own interrupts."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from framefit.devices.clock import RealClock

__all__ = ["steady"]

_SWITCH_INTERVAL_S = 1e-4  # other Python threads get the lock this often at most


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Keep Python's own housekeeping out of the loop: collector, lock, timers."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    RealClock.sharpen()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
