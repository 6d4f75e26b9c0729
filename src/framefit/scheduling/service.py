"""Whose segment runs next in a residual: one policy for the plan and for the run."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Rotation"]


class Rotation:
    """Background models take turns, frame by frame; what a turn cannot use goes to the others.

    The model whose turn it is runs whenever its next segment fits. Where that does not
    fit any more, the next model in turn whose segment does may use the time: it would
    be lost otherwise, so nobody is delayed by it. Shorter durations never make the
    model in turn later, which is what the bound on a result's age rests on.

    Args:
        count: number of models, in order of service.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.turn = 0

    def choose(self, needed_ns: Sequence[int | None], room_ns: int) -> int | None:
        """Whose next segment is to start now.

        Args:
            needed_ns: for each model the quantile of its next segment, or ``None``
                where it has nothing to do.
            room_ns: time before the next reserved instant, less guard.

        Returns:
            Number of the model, or ``None``: nothing fits.
        """
        due = needed_ns[self.turn] if needed_ns else None
        if due is not None and due <= room_ns:  # nearly always; short, for it runs between two launches
            return self.turn
        for _ in range(self._count):
            if needed_ns[self.turn] is not None:
                break
            self.turn = (self.turn + 1) % self._count
        for step in range(self._count):
            model = (self.turn + step) % self._count
            needed = needed_ns[model]
            if needed is not None and needed <= room_ns:
                return model
        return None

    def finished(self, model: int) -> None:
        """A frame of ``model`` is done; if it was its turn, the next one's begins."""
        if model == self.turn:
            self.turn = (self.turn + 1) % self._count
