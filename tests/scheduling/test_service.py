"""Whose turn it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framefit.scheduling.service import Rotation


def test_models_take_turns_frame_by_frame() -> None:
    """The one in turn goes on until its frame is done, then the next one."""
    rotation = Rotation(2)
    assert rotation.choose([5, 5], 10) == 0
    assert rotation.choose([5, 5], 10) == 0
    rotation.finished(0)
    assert rotation.choose([5, 5], 10) == 1
    rotation.finished(1)
    assert rotation.choose([5, 5], 10) == 0


def test_time_that_the_model_in_turn_cannot_use_goes_to_the_next_that_fits() -> None:
    """It stays the others' turn: a frame done in a gap passes nothing on."""
    rotation = Rotation(3)
    assert rotation.choose([9, 8, 3], 5) == 2
    rotation.finished(2)
    assert rotation.choose([9, 8, 3], 10) == 0


def test_a_model_with_nothing_to_do_is_passed_over_for_this_round() -> None:
    """It waits for the one that has taken its turn, even if it has something to do by then."""
    rotation = Rotation(2)
    assert rotation.choose([None, 5], 10) == 1
    assert rotation.choose([5, 5], 10) == 1
    rotation.finished(1)
    assert rotation.choose([5, 5], 10) == 0


def test_nothing_that_fits_is_none() -> None:
    """No model with work, or none short enough."""
    assert Rotation(2).choose([None, None], 10) is None
    assert Rotation(2).choose([11, 12], 10) is None
    assert Rotation(1).choose([10], 10) == 0


@given(
    st.lists(
        st.tuples(st.lists(st.none() | st.integers(0, 10), min_size=3, max_size=3), st.integers(-1, 10), st.booleans())
    )
)
def test_the_model_in_turn_is_never_passed_over_where_it_fits(steps: list[tuple[list[int | None], int, bool]]) -> None:
    """Whoever else is chosen, the model in turn has a longer segment than there is room; what is chosen fits."""
    rotation = Rotation(3)
    for needed, room, done in steps:
        chosen = rotation.choose(needed, room)
        in_turn = needed[rotation.turn]
        assert in_turn is not None or all(n is None for n in needed)
        if chosen is None:
            assert all(n is None or n > room for n in needed)
            continue
        assert needed[chosen] is not None
        assert needed[chosen] <= room
        assert chosen == rotation.turn or (in_turn is not None and in_turn > room)
        if done:
            rotation.finished(chosen)
