"""Whose turn it is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.policy import Rotation, order_of, turns_between, turns_in_proportion


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


def test_a_segment_whose_own_guard_is_shorter_may_reach_into_the_longest_one() -> None:
    """What it needs before the longest guard is less than nothing then, and it fits where nothing is left but that."""
    rotation = Rotation(3)
    assert rotation.choose([5, -3, -4], 0) == 1
    assert rotation.choose([5, -3, -4], -4) == 2
    assert rotation.choose([5, -3, -4], -5) is None


def test_of_several_that_fit_the_longest_uses_what_is_left() -> None:
    """A shorter one may still fit after it; of equals it is the next in turn."""
    rotation = Rotation(4)
    assert rotation.choose([20, 3, 8, 8], 10) == 2
    assert rotation.choose([20, 3, None, 12], 10) == 1
    assert rotation.turn == 0


def test_a_model_with_nothing_to_do_is_passed_over_for_this_round() -> None:
    """It waits for the one that has taken its turn, even if it has something to do by then."""
    rotation = Rotation(2)
    assert rotation.choose([None, 5], 10) == 1
    assert rotation.choose([5, 5], 10) == 1
    rotation.finished(1)
    assert rotation.choose([5, 5], 10) == 0


def yielding(needed: list[int | None], room: int, then: int | None) -> list[int | None]:
    """What is chosen first and next in a span, where the segment after the one of the model in turn needs so much."""
    rotation = Rotation(len(needed), yields=True)
    return [rotation.choose(needed, room, "span", lambda _: then) for _ in range(2)]


def test_the_rest_of_a_span_is_yielded_to_what_fills_it_better() -> None:
    """To one segment or to two; not where the model in turn fills as much itself, or with another one."""
    assert yielding([5, 9, 3], 9, 6) == [0, 1]
    assert yielding([5, 4, 4], 8, 6) == [0, 1]
    assert yielding([5, 8, 4], 9, 6) == [0, 0]
    assert yielding([5, 10, 3], 9, 6) == [0, 0]


def test_the_only_segment_of_a_span_and_the_last_one_of_a_frame_are_not_yielded() -> None:
    """Nor one after which another of the model in turn fits."""
    rotation = Rotation(2, yields=True)
    for span in range(3):
        assert rotation.choose([5, 8], 9, span, lambda _: 6) == 0
    assert yielding([5, 8], 9, None) == [0, 0]
    assert yielding([4, 8], 9, 5) == [0, 0]
    rotation.finished(0)
    assert rotation.choose([8, 5], 9, 2, lambda _: 6) == 1  # a new turn begins with its own segment


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


@pytest.mark.parametrize(
    ("turns", "order"),
    [
        ([], ()),
        ([1, 1, 1], (0, 1, 2)),
        ([2, 2], (0, 1)),
        ([3, 1], (0, 0, 1, 0)),
        ([1, 2], (1, 0, 1)),
        ([6, 3, 2], (0, 1, 0, 2, 0, 1, 0, 0, 2, 1, 0)),
    ],
)
def test_turns_are_spread_evenly_over_a_round(turns: list[int], order: tuple[int, ...]) -> None:
    """The order of a round, as short as can be; equal turns are the order of the models."""
    assert order_of(turns) == order


def test_more_turns_serve_more_frames() -> None:
    """Two that always have something to do: three frames of the first for each of the second."""
    rotation, served = Rotation(2, [3, 1]), [0, 0]
    for _ in range(400):
        chosen = rotation.choose([5, 5], 5)
        assert chosen is not None
        served[chosen] += 1
        rotation.finished(chosen)
    assert served == [300, 100]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_between_two_turns_of_its_own_a_model_waits_for_what_is_said(turns: list[int], data: st.DataObject) -> None:
    """Whatever round it is, the turns of others between two of a model's are those that bounds on ages count."""
    model = data.draw(st.integers(0, len(turns) - 1))
    order = order_of(turns)
    places = [place for place, one in enumerate(order) if one == model]
    twice = [*order, *order]
    found = [
        tuple(twice[before + 1 : after]) for before, after in itertools.pairwise([*places, places[0] + len(order)])
    ]
    assert sorted(tuple(between) for between in turns_between(turns, model)) == sorted(found)


@pytest.mark.parametrize(
    ("weights", "turns"),
    [
        ([], []),
        ([0.3, 0.3], [1, 1]),
        ([1, 0.5, 1 / 3], [6, 3, 2]),
        ([0.62, 0.31], [2, 1]),
        ([0, 0], [1, 1]),
        ([1, 0], [8, 1]),
    ],
)
def test_turns_in_proportion(weights: list[float], turns: list[int]) -> None:
    """The smallest numbers; who is to have nothing has one all the same."""
    assert turns_in_proportion(weights) == turns


@given(st.lists(st.floats(0.125, 1), min_size=1, max_size=5))
def test_turns_are_at_most_eight_and_not_far_off(weights: list[float]) -> None:
    """No share is wrong by more than a third, in rounds of at most eight turns a model."""
    turns = turns_in_proportion(weights)
    assert all(1 <= turn <= 8 for turn in turns)
    for turn, weight in zip(turns, weights, strict=True):
        assert turn / max(turns) == pytest.approx(weight / max(weights), rel=0.5)


def test_other_turns_take_effect_in_mid_round() -> None:
    """Whose turn it is stays; models that joined keep theirs."""
    rotation = Rotation(2, [1, 1])
    rotation.join()
    rotation.finished(0)
    assert rotation.turn == 1
    rotation.rearrange([3, 1])
    assert rotation.turn == 1
    served = []
    for _ in range(10):
        served.append(rotation.choose([1, 1, 1], 5))
        rotation.finished(served[-1] or 0)
    assert [served.count(model) for model in range(3)] == [6, 2, 2]
    rotation.rearrange([3, 1])
    assert rotation.choose([1, 1, 1], 5) == rotation.turn
