"""What no dispatcher can exceed: the fluid and the packing bound on background throughput."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fluid_bound_hz", "packing_bound_hz"]


def fluid_bound_hz(window_ns: float, priority_ns: float, model_ns: float, every: int = 1) -> float:
    """Frames a second if the residual were one fluid: no guard, no boundaries.

    Args:
        window_ns: length of a window.
        priority_ns: median priority time in it.
        model_ns: median duration of the whole background model, or of all of them.
        every: a model starts at most one frame in so many windows.
    """
    return min(max(window_ns - priority_ns, 0) / model_ns, 1 / every) * 1e9 / window_ns


def packing_bound_hz(
    window_ns: int, priority_ns: int, segments_ns: Sequence[int], windows: int = 10_000, every: int = 1
) -> float:
    """Frames a second of these segments, dispatched greedily at exact durations without a guard.

    Args:
        window_ns: length of a window.
        priority_ns: median priority time at its beginning.
        segments_ns: median durations, in order.
        windows: how many to play through.
        every: a frame starts at most once in so many windows.
    """
    turn = frames = waiting = 0
    for window in range(windows):
        now = priority_ns
        if window % every == 0:
            waiting = 1
        while now + segments_ns[turn] <= window_ns and (turn or waiting):
            if turn == 0:
                waiting = 0
            now += segments_ns[turn]
            turn += 1
            if turn == len(segments_ns):
                turn, frames = 0, frames + 1
    return frames / windows * 1e9 / window_ns
