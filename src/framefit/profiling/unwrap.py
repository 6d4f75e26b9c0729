"""Time stamps of few bits, laid out on one line."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framefit.core.events import TraceMeta

__all__ = ["unwrapped_ns"]


def unwrapped_ns(time_ns: npt.NDArray[np.int64], meta: TraceMeta) -> npt.NDArray[np.int64]:
    """Times without the jumps of a counter that wraps around.

    Each step between packets is taken as the one of least length: packets that arrive a
    little late stay in the past, and a silence of half a wrap or more cannot be seen.

    Args:
        time_ns: int64, in order of arrival.
        meta: of the trace; without ``wrap_bits`` nothing changes.

    Returns:
        int64, of the same length; the first is unchanged.
    """
    if meta.wrap_bits is None or not len(time_ns):
        return time_ns
    period = (1 << meta.wrap_bits) * meta.resolution_ns
    if period > np.iinfo(np.int64).max // 2:
        return time_ns
    steps = (np.diff(time_ns) + period // 2) % period - period // 2
    return np.concatenate([time_ns[:1], time_ns[0] + np.cumsum(steps)]).astype(np.int64)
