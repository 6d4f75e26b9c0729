"""Plans none of which is better than another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framefit.core.fit_results import FrontPlan, front_of


def plan(frames: float, accuracy: float, load: float, *, chosen: bool = False) -> FrontPlan:
    """A plan that costs so much."""
    return FrontPlan(
        steps=(), frames_lost_ratio=frames, accuracy_lost=accuracy, load_ratio=load, served_hz={}, chosen=chosen
    )


def test_what_another_plan_beats_is_left_out() -> None:
    """Fewer frames, less accuracy and more load for nothing; what is alike is told once."""
    free, dear, rare = plan(0, 0, 0.9), plan(0, 0.01, 0.95), plan(0.2, 0, 0.7)
    assert front_of([rare, dear, free, free], 5) == (free, rare)


def test_the_chosen_plan_is_always_there() -> None:
    """Even where another one is better: the reader shall see it."""
    chosen = plan(0.1, 0, 0.9, chosen=True)
    assert chosen in front_of([plan(0, 0, 0.8), chosen], 5)


parts = st.floats(0, 1).map(lambda part: round(part, 2))


@given(st.lists(st.builds(plan, parts, parts, parts), max_size=12), st.integers(3, 5))
def test_none_is_better_than_another(plans: list[FrontPlan], most: int) -> None:
    """At most so many, all of them given, and the one that loses the fewest frames is among them."""
    front = front_of(plans, most)
    assert len(front) <= most
    assert not any(one.is_beaten_by(other) for one in front for other in front)
    assert {*map(id, front)} <= {*map(id, plans)}
    if plans:
        assert front[0].frames_lost_ratio == min(one.frames_lost_ratio for one in plans)
