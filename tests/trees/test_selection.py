"""Which groups are tried, which are given up, and which is the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from framefit import GraphBuilder, InputError, Model
from framefit.trees.groups import Span, spans
from framefit.trees.search import Bound, Fit, Trial, halved, pareto, preferred, resolution
from trees_cases import random_ensemble


def _network(layers: int = 5) -> Model:
    b = GraphBuilder("dense")
    x = b.input("x", (1, 8))
    for _ in range(layers - 1):
        x = b.dense(x, 8, activation="Relu")
    b.output(b.dense(x, 8))
    return b.build()


_IMAGES = 40_000  # a standard error is less than half a point


def _fit(top1: float, latency_ns: int = 1, layers_ns: int = 2, lut6: int = 10, distance: float = 0.1) -> Fit:
    ensemble = random_ensemble(np.random.default_rng(0))
    return Fit(
        ensemble=ensemble,
        depth=6,
        seconds=0.1,
        top1=top1,
        distance=distance,
        bytes=10,
        layers_bytes=20,
        latency_ns=latency_ns,
        layers_ns=layers_ns,
        lut6=lut6,
    )


def _trials(fits: list[Fit | None]) -> list[Trial]:
    made = spans(_network())
    return [Trial(span, Bound(top1=1.0, distance=0.0), fit) for span, fit in zip(made, fits, strict=False)]


def test_groups_grow_by_the_step() -> None:
    """Every layer begins groups of 1, 1 + step, ... layers, up to the last layer but one."""
    assert [(span.first, span.last) for span in spans(_network(4), step=2)] == [(0, 0), (0, 2), (1, 1), (2, 2)]
    assert [(span.first, span.last) for span in spans(_network(4), first=1)] == [(1, 1), (1, 2)]
    assert [(span.first, span.last) for span in spans(_network(4), layers=2)] == [(0, 1), (1, 2)]


def test_groups_end_at_what_is_replaced() -> None:
    """A group with a layer that is replaced already is none."""

    def free(span: Span) -> bool:
        return not span.first <= 2 <= span.last

    assert {(span.first, span.last) for span in spans(_network(), free=free)} == {(0, 0), (0, 1), (1, 1), (3, 3)}


def test_a_first_layer_is_drawn() -> None:
    """All groups begin at one layer, and the draws differ."""
    firsts = set()
    for seed in range(12):
        drawn = {span.first for span in spans(_network(), drawn=np.random.default_rng(seed))}
        assert len(drawn) == 1
        firsts |= drawn
    assert len(firsts) > 1


def test_a_group_that_is_none_is_named() -> None:
    """Both ends are given, and the network has no such layers: the error says where groups may begin and end."""
    with pytest.raises(InputError, match="layers 3 to 7 are not a group") as told:
        spans(_network(), first=3, layers=5)
    assert "0, 1, 2, 3, 4" in str(told.value)


def each(
    fit: Callable[[Trial, int], Fit], enough: Callable[[], bool] = lambda: False
) -> Callable[[Sequence[Trial], int], list[Fit | None]]:
    """Fit groups one after the other, the first one in any case."""

    def fits(trials: Sequence[Trial], share: int) -> list[Fit | None]:
        made: list[Fit | None] = []
        for trial in trials:
            made.append(None if made and enough() else fit(trial, share))
        return made

    return fits


def test_halving_fits_the_best_in_full() -> None:
    """The half with the better bound is drafted, the better half of that is fitted with all trees."""
    trials = _trials([None] * 8)
    for place, trial in enumerate(trials):
        trial.bound = Bound(top1=place / 10, distance=0.0)
    asked: list[tuple[int, int]] = []

    def fit(trial: Trial, share: int) -> Fit:
        place = trials.index(trial)
        asked.append((place, share))
        return _fit(1 - place / 10)  # drafts contradict the bounds

    halved(trials, each(fit), lambda found: (found.top1,), _IMAGES)
    assert sorted(place for place, share in asked if share > 1) == [4, 5, 6, 7]
    assert sorted(place for place, share in asked if share == 1) == [4, 5]
    assert [trial.fit is not None for trial in trials] == [place in (4, 5) for place in range(8)]


def test_when_time_is_up_the_best_of_those_that_were_tried_is_fitted() -> None:
    """At least one draft and one fit are made, whatever the time."""
    trials, asked = _trials([None] * 8), []

    def fit(trial: Trial, share: int) -> Fit:
        asked.append((trials.index(trial), share > 1))
        return _fit(0.5)

    halved(trials, each(fit, lambda: len(asked) >= 2), lambda found: (found.top1,), _IMAGES)
    assert asked == [(0, True), (1, True), (0, False)]
    assert [trial.fit is not None for trial in trials] == [True] + [False] * 7


def test_one_group_is_fitted_at_once() -> None:
    """Nothing is drafted where nothing is to be chosen."""
    trials, shares = _trials([None]), []

    def fit(trial: Trial, share: int) -> Fit:
        shares.append(share)
        return _fit(0.5)

    halved(trials, each(fit), lambda found: (found.top1,), _IMAGES)
    assert shares == [1]


def test_all_groups_are_drafted_where_bounds_cannot_tell() -> None:
    """Bounds are alike: the order in which groups are enumerated decides nothing."""
    trials, drafted = _trials([None] * 8), []

    def fit(trial: Trial, share: int) -> Fit:
        if share > 1:
            drafted.append(trials.index(trial))
        return _fit(1.0, distance=8 - trials.index(trial))

    halved(trials, each(fit), lambda found: (-found.distance,), _IMAGES)
    assert sorted(drafted) == list(range(8))
    assert [trial.fit is not None for trial in trials] == [False] * 4 + [True] * 4


def test_what_is_preferred() -> None:
    """Accuracy: the nearest to the original of those alike; speed: most time saved; tables: the fewest, of accurate."""
    fits = [_fit(0.90), _fit(0.898, lut6=5), _fit(0.60, 1, 900, 1), _fit(0.89, 10, 200, 8)]
    trials = _trials(list(fits))
    assert preferred(trials, "accuracy", 0.8, _IMAGES) is trials[0]
    assert preferred(trials, "speed", 0.8, _IMAGES) is trials[3]
    assert preferred(trials, "luts", 0.8, _IMAGES) is trials[1]
    assert preferred(trials, "speed", 0.5, _IMAGES) is trials[2]
    assert preferred(_trials([None, None]), "accuracy", 0.0, _IMAGES) is None


def test_ties_are_broken_by_the_distance_to_the_original_and_by_cost() -> None:
    """What few images cannot tell apart is as accurate; with many images the accuracy decides."""
    trials = _trials([_fit(0.96, distance=0.3), _fit(0.95, distance=0.02), _fit(0.95, 1, 9, distance=0.02)])
    assert resolution(0.96, 200) > 0.01 > resolution(0.96, 40_000)
    assert preferred(trials, "accuracy", 0.9, 200) is trials[2]
    assert preferred(trials, "accuracy", 0.9, _IMAGES) is trials[0]


def test_what_no_other_beats() -> None:
    """A candidate is shown as such where none has more accuracy at less time, or at fewer tables."""
    fits = [_fit(0.9, 10, 20, 50), _fit(0.8, 5, 20, 60), _fit(0.7, 15, 20, 40), _fit(0.6, 18, 20, 70), None]
    assert pareto(_trials(fits)) == [True, True, True, False, False]
