"""Gates: whether a sparse model may be deployed, by thresholds and by the intervals of what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framefit.core.acceptance import Acceptance
from framefit.core.sparsity import Decision, Threshold
from framefit.sparsity.problem import Problem

_STEP = 0.9  # factor on the cycles after a threshold was met; divided by it after one was missed
_LEAST_MOVE = 0.01  # of the dense cycles; the threshold does not move by less
_LEAST_GAIN = 0.001  # of top-1: one image of a thousand; the threshold does not move by less


@dataclass(frozen=True)
class Verdict:
    """Decision of the gates on a model.

    Attributes:
        decision: "deploy": both thresholds are met, that on accuracy by its whole interval; "discard": one is
            missed, that on accuracy by its whole interval; "retrain": the threshold lies within the interval.
        reasons: of the decision, as sentences.
    """

    decision: Decision
    reasons: tuple[str, ...]


def judge(acceptance: Acceptance, cycles_ratio: float, threshold: Threshold) -> Verdict:
    """Compare a model's loss against the dense one on the same images, and its cycles, with what is allowed.

    A test of non-inferiority for pairs (Tango, "Equivalence test and confidence interval for the difference in
    proportions for the paired-sample design", Statistics in Medicine 17, 1998): what both models get wrong tells
    nothing, so far fewer images decide than where one model's accuracy is held against a number.

    Args:
        acceptance: on the test data, with the loss that the threshold leaves.
        cycles_ratio: of the dense model's cycles.
        threshold: for both.
    """
    cycles = f"cycles {cycles_ratio:.3f} of the dense model's, threshold {threshold.cycles_ratio:.3f}"
    if cycles_ratio > threshold.cycles_ratio:
        return Verdict("discard", (f"{cycles}: above it", acceptance.text))
    within, (low, high) = f"{cycles}: within it", acceptance.interval
    if high <= acceptance.max_drop:
        return Verdict("deploy", (within, f"{acceptance.text}: all of the interval is allowed"))
    if low > acceptance.max_drop:
        return Verdict("discard", (within, f"{acceptance.text}: all of the interval is above that"))
    images = acceptance.deciding
    many = "no number of test examples decides" if images is None else f"about {images:,} test examples would decide"
    more = f"{many}; train for longer, give more test examples, or allow a greater drop"
    return Verdict("retrain", (within, f"{acceptance.text}: the interval does not exclude that; {more}"))


def given_top1(dense: float, drop: float, cycles_ratio: float) -> Threshold:
    """The threshold that the user gave."""
    reason = f"the dense model's {100 * dense:.2f} % less the drop of {100 * drop:g} points that was given"
    return Threshold(round=0, top1=dense - drop, cycles_ratio=cycles_ratio, source="given", reason=reason)


def derived_top1(dense: float, interval: tuple[float, float], cycles_ratio: float) -> Threshold:
    """A threshold from the model: twice the uncertainty that its test data leave."""
    top1 = dense - 2 * (dense - interval[0])
    reason = f"the dense model's {100 * dense:.2f} % less twice the way to the lower end of its interval"
    return Threshold(round=0, top1=top1, cycles_ratio=cycles_ratio, source="derived", reason=reason)


def derived_ratio(problem: Problem, dense_cycles: int, holds: Callable[[float], bool]) -> tuple[float, str]:
    """The fewest cycles at which the exact allocation keeps the accuracy without any fine-tuning.

    Args:
        problem: layers and levels on the target.
        dense_cycles: of the dense network.
        holds: prunes the network to a part of these cycles, and evaluates it; at most seven times.

    Returns:
        The ratio to the dense cycles, and the reason.
    """
    least = min(math.ceil(100 * problem.least_cycles / max(dense_cycles, 1)), 100)
    below, kept = least - 1, 100
    while kept - below > 1:
        middle = (below + kept) // 2
        below, kept = (below, middle) if holds(middle / 100) else (middle, kept)
    return kept / 100, "the fewest at which the accuracy was kept before any fine-tuning, found by evaluations"


def moved_cycles(history: Sequence[Threshold], *, met: bool, least_ratio: float) -> Threshold | None:
    """The next round's threshold on cycles: harder after it was met, easier after it was not.

    After it was met: a tenth fewer cycles, or half way towards a number that was out of reach. After it was out of
    reach: half way back to the last one that was met, or to the dense model.

    Returns:
        ``None``: no number lies between those that were met and those that were not.
    """
    last = history[-1]
    tried = [threshold.cycles_ratio for threshold in history]
    harder = [ratio for ratio in tried if ratio < last.cycles_ratio]
    easier = [ratio for ratio in tried if ratio > last.cycles_ratio]
    if met:
        ratio = (last.cycles_ratio + max(harder)) / 2 if harder else last.cycles_ratio * _STEP
        ratio, reason = max(ratio, least_ratio), "met: raised to fewer cycles"
    else:
        ratio = (last.cycles_ratio + min(easier)) / 2 if easier else min(last.cycles_ratio / _STEP, 1.0)
        reason = "out of reach: lowered to more cycles"
    if abs(ratio - last.cycles_ratio) < _LEAST_MOVE:
        return None
    return Threshold(round=last.round + 1, top1=last.top1, cycles_ratio=ratio, source="dynamic", reason=reason)


def moved_top1(last: Threshold, *, met: bool, low: float, dense_low: float) -> Threshold | None:
    """The next threshold on accuracy, at the same cycles: what the model has certainly reached.

    After it was met, it rises to the lower end of the interval of the accuracy, but not above the dense model's own.
    After it was out of reach, it falls to that. So the gate, which needs the whole interval, can accept such a model.

    Returns:
        ``None``: it was met, and less than a tenth of a point can be added to it.
    """
    top1 = min(low, dense_low)
    if met and top1 - last.top1 < _LEAST_GAIN:
        return None
    what = "met: raised" if met else "out of reach: lowered"
    reason = f"{what} to the lower end of the interval of what was reached"
    return Threshold(round=last.round + 1, top1=top1, cycles_ratio=last.cycles_ratio, source="dynamic", reason=reason)
