"""Whose segment runs next in a residual: one policy for the plan and for the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Rotation", "turns_between", "turns_in_proportion"]


_MOST_TURNS = 8  # of a model in a round: bounds on ages count whole rounds
_WRONG = 0.1  # by which a share may be


class Rotation:
    """Background models take turns, frame by frame; what a turn cannot use goes to the others.

    The model whose turn it is runs whenever its next segment fits. Where that does not
    fit any more, the next model in turn whose segment does may use the time: it would
    be lost otherwise, so nobody is delayed by it. Shorter durations never make the
    model in turn later, which is what the bound on a result's age rests on.

    Args:
        count: number of models, in order of service.
        turns: of each in a round; default: one.
    """

    def __init__(self, count: int, turns: Sequence[int] = ()) -> None:
        self._turns = list(turns or [1] * count)
        self._order = order_of(self._turns)
        self._place = 0
        self.turn = 0
        """Number of the model whose turn it is."""

    @property
    def place(self) -> int:
        """Of the present turn in a round."""
        return self._place

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
        for _ in self._order:
            if needed_ns[self.turn] is not None:
                break
            self._pass_on()
        for step in range(len(self._order)):
            model = self._order[(self._place + step) % len(self._order)]
            needed = needed_ns[model]
            if needed is not None and needed <= room_ns:
                return model
        return None

    def finished(self, model: int) -> None:
        """A frame of ``model`` is done; if it was its turn, the next one's begins."""
        if model == self.turn:
            self._pass_on()

    def join(self) -> None:
        """There is one more model, whose turn comes last in a round."""
        self._turns.append(1)
        self._order = (*self._order, len(self._turns) - 1)

    def rearrange(self, turns: Sequence[int]) -> None:
        """Other turns in a round from here on; whose turn it is stays.

        Args:
            turns: of each model; those that joined keep theirs.
        """
        if list(turns) == self._turns[: len(turns)]:
            return
        self._turns[: len(turns)] = turns
        self._order = order_of(self._turns)
        self._place = self._order.index(self.turn)

    def _pass_on(self) -> None:
        self._place = (self._place + 1) % len(self._order)
        self.turn = self._order[self._place]


def order_of(turns: Sequence[int]) -> tuple[int, ...]:
    """Whose turns follow each other in a round: each model's spread evenly over it.

    Turn k of n lies at (k + 1/2) / n of the round; of equals the earlier model comes first. One turn each
    is the order of the models.

    Args:
        turns: of each model in a round, at least 1.
    """
    common = math.gcd(*turns)
    counts = [count // common for count in turns]
    length = math.lcm(*counts)  # of a round, so that places are whole numbers
    places = [((2 * k + 1) * length // n, model) for model, n in enumerate(counts) for k in range(n)]
    return tuple(model for _, model in sorted(places))


def turns_between(turns: Sequence[int], model: int) -> list[list[int]]:
    """The others whose turns lie before each of a model's own, since the one before, in order.

    Args:
        turns: of each model in a round.
        model: its number.
    """
    order = order_of(turns)
    places = [place for place, turn in enumerate(order) if turn == model]
    begins = [places[-1] - len(order), *places[:-1]]
    return [[order[place] for place in range(begin + 1, end)] for begin, end in zip(begins, places, strict=True)]


def turns_in_proportion(weights: Sequence[float]) -> list[int]:
    """Turns of each model in a round: the smallest whole numbers of which none is wrong by more than a tenth.

    Args:
        weights: what each is to be served, at least 0; where no numbers up to 8 are so close, the closest.
    """
    greatest = max(weights, default=1.0) or 1.0
    parts = [max(weight / greatest, 1 / _MOST_TURNS) for weight in weights]
    best: tuple[float, list[int]] = (math.inf, [1] * len(weights))
    for most in range(1, _MOST_TURNS + 1):
        numbers = [max(round(part * most), 1) for part in parts]
        wrong = max((abs(n / most / part - 1) for n, part in zip(numbers, parts, strict=True)), default=0.0)
        if wrong < best[0]:
            best = wrong, numbers
        if wrong <= _WRONG:
            break
    return best[1]
