"""Whose background segment runs next, as a dispatcher asks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Service"]


class Service(Protocol):
    """The planner's own policy."""

    def choose(self, needed_ns: Sequence[int | None], room_ns: int) -> int | None:
        """Number of the background model, or None: nothing fits into ``room_ns``."""

    def finished(self, model: int) -> None:
        """A frame of that background model is done."""

    def join(self) -> None:
        """There is one background model more."""

    def rearrange(self, turns: Sequence[int]) -> None:
        """So many turns of each background model in a round from here on; those that joined keep theirs."""
