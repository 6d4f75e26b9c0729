"""What a search has spent, the database included, and what it had at each point."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from framefit.core.sparsity import Spent

__all__ = ["Ledger"]


@dataclass
class Ledger:
    """Counts images forwarded, evaluations and seconds.

    Args:
        clock: seconds that only grow.
        images_forwarded: through the network, for whatever reason.
        evaluations: of the accuracy of an assignment.
        earlier_s: of runs that this one goes on from.
    """

    clock: Callable[[], float] = time.monotonic
    images_forwarded: int = 0
    evaluations: int = 0
    earlier_s: float = 0.0
    _start_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._start_s = self.clock()

    @property
    def seconds(self) -> float:
        """Since it was made, and of earlier runs."""
        return self.earlier_s + self.clock() - self._start_s

    def forwarded(self, images: int, *, evaluations: int = 0) -> None:
        """Note images that went through the network."""
        self.images_forwarded += images
        self.evaluations += evaluations

    def catch_up(self, earlier: Spent) -> None:
        """Be at least where a run before stood: what is looked up costs what it cost then, and nothing now."""
        self.images_forwarded = max(self.images_forwarded, earlier.images_forwarded)
        self.evaluations = max(self.evaluations, earlier.evaluations)
        self.earlier_s += max(earlier.seconds - self.seconds, 0.0)

    def spent(self) -> Spent:
        """As a record."""
        return Spent(
            images_forwarded=self.images_forwarded, seconds=round(self.seconds, 3), evaluations=self.evaluations
        )
