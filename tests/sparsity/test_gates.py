"""Gates on intervals, and thresholds that move."""

from __future__ import annotations

import re

import numpy as np
import pytest
from problems import random_problem

from framefit.core.acceptance import Acceptance
from framefit.core.sparsity import Threshold
from framefit.sparsity.gates import derived_ratio, derived_top1, given_top1, judge, moved_cycles, moved_top1
from framefit.training.acceptance import compared


def threshold(ratio: float, round_number: int = 0) -> Threshold:
    """At least 87 % within this part of the cycles."""
    return Threshold(round=round_number, top1=0.87, cycles_ratio=ratio, source="given", reason="")


def _lost(better: int, worse: int, images: int, allowed: float) -> Acceptance:
    """A sparse model that gets so many of the dense model's errors right, and so many others wrong."""
    dense = np.arange(images) >= better
    sparse = dense.copy()
    sparse[:better] = True
    sparse[images - worse :] = False
    return compared(dense, sparse, allowed, data="test")


CASES = [
    (10, 20, 0.5, "deploy"),
    (10, 100, 0.5, "retrain"),
    (10, 120, 0.5, "retrain"),
    (10, 300, 0.5, "discard"),
    (10, 10, 0.51, "discard"),
]


@pytest.mark.parametrize(("better", "worse", "cycles", "decision"), CASES)
def test_the_whole_interval_decides(better: int, worse: int, cycles: float, decision: str) -> None:
    """A loss that is allowed is not enough, one that is not is not the end; cycles are exact."""
    verdict = judge(_lost(better, worse, 10_000, 0.01), cycles, threshold(0.5))
    assert verdict.decision == decision
    assert len(verdict.reasons) == 2


def test_more_images_decide_what_few_cannot() -> None:
    """The same loss is undecided on 300 images, says how many would do, and is deployed on these."""
    few = judge(_lost(3, 4, 300, 0.01), 0.4, threshold(0.5))
    assert few.decision == "retrain"
    told = re.search(r"about ([\d,]+) test examples", few.reasons[1])
    assert told is not None
    enough = int(told[1].replace(",", "")) // 300 + 1
    assert judge(_lost(3 * enough, 4 * enough, 300 * enough, 0.01), 0.4, threshold(0.5)).decision == "deploy"


def test_the_dense_model_is_deployed() -> None:
    """Half a point may be lost, nothing is, and 540 images are there; no more is allowed on fewer."""
    for images, drop, decision in ((540, 0.005, "deploy"), (360, 0.005, "retrain"), (360, 0.0075, "deploy")):
        assert judge(_lost(0, 0, images, drop), 0.4, threshold(0.5)).decision == decision


@pytest.mark.parametrize("images", [360, 540])
@pytest.mark.parametrize(("better", "allowed"), [(0.0, 0.005), (0.0, 0.01), (0.005, 0.01), (0.01, 0.02)])
def test_few_models_that_lose_too_much_are_deployed(images: int, better: float, allowed: float) -> None:
    """At most a tenth of 1,000 models that lose exactly what is allowed, get some of the dense one's errors right."""
    random = np.random.default_rng(1)
    deployed = 0
    for _ in range(1000):
        draws = random.random(images)
        dense, sparse = draws >= 0.02, (draws < better) | (draws >= 0.02 + better + allowed)
        acceptance = compared(dense, sparse, allowed, data="test")
        deployed += judge(acceptance, 0.4, threshold(0.5)).decision == "deploy"
    assert deployed <= 100


def test_given_and_derived_thresholds_say_where_they_come_from() -> None:
    """Less the drop; less twice the interval."""
    assert given_top1(0.884, 0.01, 0.5).top1 == pytest.approx(0.874)
    derived = derived_top1(0.884, (0.879, 0.889), 0.5)
    assert derived.top1 == pytest.approx(0.874)
    assert derived.source == "derived"


@pytest.mark.parametrize("fewest", [0.0, 0.37, 0.9, 1.0])
def test_a_derived_ratio_was_evaluated(fewest: float) -> None:
    """It is reachable, kept the accuracy in an evaluation unless it is all of the cycles, and one less did not."""
    problem = random_problem(3)
    asked: dict[float, bool] = {}

    def holds(ratio: float) -> bool:
        asked[ratio] = ratio >= fewest
        return asked[ratio]

    ratio, _ = derived_ratio(problem, problem.dense_cycles, holds)
    assert problem.least_cycles / problem.dense_cycles <= ratio <= 1
    assert ratio == 1 or asked[ratio]
    assert ratio == pytest.approx(max(fewest, min(asked)))
    assert len(asked) <= 7


def test_dynamic_thresholds_close_in_on_what_can_be_met() -> None:
    """Raised while they are met, lowered when not, until nothing lies between; each move is recorded."""
    history = (threshold(0.5),)
    while (following := moved_cycles(history, met=history[-1].cycles_ratio >= 0.41, least_ratio=0.2)) is not None:
        history = (*history, following)
    ratios = [one.cycles_ratio for one in history]
    assert ratios[1] == pytest.approx(0.45)
    assert min(ratio for ratio in ratios if ratio >= 0.41) < 0.43
    assert all(one.source == "dynamic" and one.reason for one in history[1:])
    assert [one.round for one in history] == list(range(len(history)))


def test_a_threshold_is_not_raised_beyond_what_is_reachable() -> None:
    """At the least cycles it ends."""
    assert moved_cycles((threshold(0.3),), met=True, least_ratio=0.3) is None


def test_a_dynamic_accuracy_is_what_was_reached_for_sure() -> None:
    """Raised while that grows, lowered where it is out of reach, at the same cycles, never above the dense model's."""
    raised = moved_top1(threshold(0.5, 3), met=True, low=0.875, dense_low=0.879)
    assert raised is not None
    assert (raised.round, raised.top1, raised.cycles_ratio, raised.source) == (4, 0.875, 0.5, "dynamic")
    assert "raised" in raised.reason
    lowered = moved_top1(threshold(0.5), met=False, low=0.861, dense_low=0.879)
    assert lowered is not None
    assert lowered.top1 == 0.861
    assert "lowered" in lowered.reason
    most = moved_top1(raised, met=True, low=0.885, dense_low=0.879)
    assert most is not None
    assert most.top1 == 0.879
    assert moved_top1(raised, met=True, low=0.8755, dense_low=0.879) is None
