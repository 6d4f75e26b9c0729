"""The service policy of residuals, which decides whose segment runs next, for the plan and for the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

__all__ = ["Rotation", "turns_between", "turns_in_proportion"]


_MOST_TURNS = 8  # of a model in a round: bounds on ages count whole rounds
_WRONG = 0.1  # largest error of a share


class Rotation:
    """Background models take turns, frame by frame; others use the time that does not suffice for the present turn.

    The model whose turn it is runs whenever its next segment fits. Where it does not fit any more, the longest segment
    that does may use the time: it would be lost otherwise, so no model is delayed, and longer segments leave less of
    it. Shorter durations never delay the model in turn, on which the bound on a result's age relies.

    A rotation that yields fills spans better: where only one more segment of the model in turn fits, which is not the
    last one of its frame, another model's segment, or two of them, run instead if more of the span is used then. This
    costs the model in turn at most that one segment in a span, and never the only one: bounds count it.

    Args:
        count: number of models, in order of service.
        turns: of each model in a round; default: one.
        yields: whether the model in turn yields the rest of a span that others fill better.
    """

    def __init__(self, count: int, turns: Sequence[int] = (), *, yields: bool = False) -> None:
        self.yields = yields
        self._span: object = None  # the latest one in which the model in turn has run in this turn
        self._turns = list(turns or [1] * count)
        self._order = order_of(self._turns)
        self._place = 0
        self.turn = 0
        """Number of the model whose turn it is."""

    @property
    def place(self) -> int:
        """Place of the present turn in a round."""
        return self._place

    def choose(
        self,
        needed_ns: Sequence[int | None],
        room_ns: int,
        span: object = None,
        then_ns: Callable[[int], int | None] | None = None,
    ) -> int | None:
        """Choose the model whose next segment starts now.

        Args:
            needed_ns: for each model what its next segment needs, which may be less than nothing where its own guard
                is shorter than the one that ``room_ns`` leaves, or ``None`` if it has nothing to do.
            room_ns: time before the next reserved instant, less guard.
            span: what tells spans between reserved instants, and windows, from each other; if the rotation yields.
            then_ns: number of a model -> what the segment after its next one needs, ``None``: the next one ends its
                frame; if the rotation yields.

        Returns:
            Number of the model, or ``None``: no segment fits.
        """
        due = needed_ns[self.turn] if needed_ns else None
        if due is not None and due <= room_ns:  # the usual case, kept short since it runs between two launches
            return self.turn if then_ns is None else self._yielded(needed_ns, room_ns, due, span, then_ns)
        for _ in self._order:
            if needed_ns[self.turn] is not None:
                break
            self._pass_on()
        due = needed_ns[self.turn] if needed_ns else None
        if due is not None and due <= room_ns:
            self._span = span
            return self.turn
        longest = max((needed for needed in needed_ns if needed is not None and needed <= room_ns), default=None)
        if longest is None:
            return None
        places = (self._order[place - len(self._order)] for place in range(self._place, self._place + len(self._order)))
        return next(model for model in places if needed_ns[model] == longest)  # of equals the next in turn

    def goes_on(self, room_ns: int, due_ns: int, span: object, then_ns: Callable[[int], int | None]) -> bool:
        """Whether the model in turn runs whatever others would, if the rotation yields.

        Args:
            room_ns: time before the next reserved instant, less guard.
            due_ns: what its next segment needs, which fits.
            span: see :meth:`choose`.
            then_ns: see there.
        """
        then = then_ns(self.turn) if self._span == span else None
        self._span = span
        return then is None or due_ns + then <= room_ns

    def _yielded(
        self,
        needed_ns: Sequence[int | None],
        room_ns: int,
        due_ns: int,
        span: object,
        then_ns: Callable[[int], int | None],
    ) -> int:
        """The model in turn, or one of others that use more of what is left of the span."""
        if self.goes_on(room_ns, due_ns, span, then_ns):
            return self.turn
        others = [(ns, model) for model, ns in enumerate(needed_ns) if ns is not None and model != self.turn]
        others.sort(key=lambda other: -other[0])
        most, chosen = max([due_ns, *(due_ns + ns for ns, _ in others if due_ns + ns <= room_ns)]), self.turn
        for place, (first, model) in enumerate(others):
            second = max(next((ns for ns, _ in others[place + 1 :] if first + ns <= room_ns), 0), 0)
            if most < first + second and first <= room_ns:
                most, chosen = first + second, model
        return chosen

    def finished(self, model: int) -> None:
        """Record that a frame of ``model`` is done; if it was its turn, the next turn begins."""
        if model == self.turn:
            self._pass_on()

    def join(self) -> None:
        """Add a model, whose turn comes last in a round."""
        self._turns.append(1)
        self._order = (*self._order, len(self._turns) - 1)

    def rearrange(self, turns: Sequence[int]) -> None:
        """Change the turns in a round; the present turn stays the same.

        Args:
            turns: of each model; joined models keep theirs.
        """
        if list(turns) == self._turns[: len(turns)]:
            return
        self._turns[: len(turns)] = turns
        self._order = order_of(self._turns)
        self._place = self._order.index(self.turn)

    def _pass_on(self) -> None:
        self._span = None
        self._place = (self._place + 1) % len(self._order)
        self.turn = self._order[self._place]


def order_of(turns: Sequence[int]) -> tuple[int, ...]:
    """Order of the turns in a round: each model's turns are evenly spread over it.

    Turn k of n is at (k + 1/2) / n of the round; in a tie the earlier model comes first. With one turn each it is
    the order of the models.

    Args:
        turns: of each model in a round, at least 1.
    """
    common = math.gcd(*turns)
    counts = [count // common for count in turns]
    length = math.lcm(*counts)  # of a round, so that places are whole numbers
    places = [((2 * k + 1) * length // n, model) for model, n in enumerate(counts) for k in range(n)]
    return tuple(model for _, model in sorted(places))


def turns_between(turns: Sequence[int], model: int) -> list[list[int]]:
    """Other models' turns before each turn of a model, since its preceding one, in order.

    Args:
        turns: of each model in a round.
        model: its number.
    """
    order = order_of(turns)
    places = [place for place, turn in enumerate(order) if turn == model]
    begins = [places[-1] - len(order), *places[:-1]]
    return [[order[place] for place in range(begin + 1, end)] for begin, end in zip(begins, places, strict=True)]


def turns_in_proportion(weights: Sequence[float]) -> list[int]:
    """Turns of each model in a round: the smallest whole numbers whose shares are all within a tenth.

    Args:
        weights: service of each model, at least 0; if no numbers up to 8 are that close, the closest are used.
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
