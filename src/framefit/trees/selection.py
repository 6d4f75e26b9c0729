"""Which groups of layers are tried, which of them are given up early, and which is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from framefit.core.model import Model
from framefit.core.trees import Ensemble, Patch
from framefit.errors import InputError
from framefit.trees.groups import Boundary, boundaries, patch_between

__all__ = ["DRAFTS", "Fit", "Objective", "Span", "Trial", "halved", "pareto", "preferred", "spans"]


Objective = Literal["accuracy", "speed", "luts"]
DRAFTS = (4, 1)
"""Parts of the trees that are fitted, stage by stage: a quarter first."""
_CLOSE = 0.005  # of validation accuracy: as good as the best, and decided by the number of layers


@dataclass(frozen=True)
class Span:
    """A group: the layers between two boundaries, and what one position of its output reads."""

    start: Boundary
    end: Boundary
    patch: Patch | None

    @property
    def first(self) -> int:
        """Its first layer with weights."""
        return self.start.weighted

    @property
    def last(self) -> int:
        """Its last layer with weights."""
        return self.end.weighted - 1

    @property
    def layers(self) -> int:
        """Layers with weights."""
        return self.end.weighted - self.start.weighted

    def __str__(self) -> str:
        return f"layers {self.first} to {self.last}" if self.layers > 1 else f"layer {self.first}"


@dataclass(frozen=True)
class Fit:
    """Trees for a group, and what they are worth.

    Attributes:
        ensemble: the trees.
        depth: of them.
        seconds: of processor time that fitting took.
        top1: on the validation data, with the group replaced.
        latency_ns: of the trees, a frame; ``layers_ns``: of the layers.
        layers_ns: see ``latency_ns``.
        lut6: see :func:`framefit.trees.exporting.lut6_of`.
    """

    ensemble: Ensemble
    depth: int
    seconds: float
    top1: float
    latency_ns: int
    layers_ns: int
    lut6: int


@dataclass
class Trial:
    """A group, and what is known of it; ``fit``: all of its trees."""

    span: Span
    bound: float
    fit: Fit | None = None


def spans(
    model: Model,
    *,
    first: int | None = None,
    layers: int | None = None,
    step: int = 1,
    free: Callable[[Span], bool] = lambda _: True,
    drawn: np.random.Generator | None = None,
) -> list[Span]:
    """Candidates, by their first layer and then their length.

    Args:
        model: with one input.
        first: number of the first layer with weights; ``None``: each, or one that is drawn.
        layers: their number; ``None``: 1, 1 + step, ...
        step: by which groups grow.
        free: whether none of a group's layers is replaced already: groups end there.
        drawn: draws the first layer.

    Raises:
        InputError: both ends are given, and one tensor does not lead into and out of that group.
    """
    places: dict[int, Boundary] = {boundary.weighted: boundary for boundary in boundaries(model)}
    if first is not None and layers is not None and not {first, first + layers} <= places.keys():
        ends = ", ".join(map(str, sorted(places)))
        raise InputError(
            f"layers {first} to {first + layers - 1} are no group that one tensor leads into and out of",
            where=model.name,
            remedy=f"begin and end a group in front of one of the layers {ends}: residual blocks are whole",
        )
    found = []
    for start in [first] if first is not None else sorted(places):
        for length in [layers] if layers is not None else range(1, max(places, default=0) + 1, step):
            if start in places and start + length in places:
                a, b = places[start], places[start + length]
                span = Span(a, b, patch_between(model, a, b))
                if free(span):
                    found.append(span)
    if drawn is not None and first is None and found:
        start = drawn.choice(sorted({span.first for span in found}))
        found = [span for span in found if span.first == start]
    return found


def halved(
    trials: list[Trial],
    fit: Callable[[Trial, int], Fit],
    better: Callable[[Fit], tuple[float, ...]],
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Successive halving (Jamieson and Talwalkar, 2016, "Non-stochastic Best Arm Identification"), in place.

    The half with the better bound is drafted with a part of the trees, the better half of these is fitted in full.

    Args:
        trials: with their bounds.
        fit: trees for a group, and the part of them that is fitted: one in so many.
        better: what drafts are ordered by, the greatest first.
        enough: asked before all but the first fit of a round; true ends the round with those that were made.
    """
    left = sorted(trials, key=lambda one: -one.bound)
    for share in DRAFTS if len(trials) > 1 else DRAFTS[-1:]:
        left = left[: math.ceil(len(left) / 2)]
        fits: dict[int, Fit] = {}
        for one in left:
            if fits and enough():
                break
            fits[id(one)] = fit(one, share)
        left = left[: len(fits)]
        left.sort(key=lambda one: better(fits[id(one)]), reverse=True)
        if share == 1:
            for one in left:
                one.fit = fits[id(one)]


def preferred(trials: Sequence[Trial], objective: Objective, least: float) -> Trial | None:
    """The best of those that were fitted in full; ``None``: there is none.

    Args:
        trials: any.
        objective: "accuracy": of those as accurate as the best the one of most layers; "speed": of those of high
            accuracy the one that saves most time, if any does; "luts": the one that takes the fewest tables.
        least: what is high accuracy in any case; so is whatever is as good as the best.
    """
    fitted = [(one, one.fit) for one in trials if one.fit is not None]
    if not fitted:
        return None
    most = max(fit.top1 for _, fit in fitted)
    if objective == "accuracy":
        good = [pair for pair in fitted if pair[1].top1 >= most - _CLOSE]
        return max(good, key=lambda pair: (pair[0].span.layers, pair[1].top1))[0]
    good = [pair for pair in fitted if pair[1].top1 >= min(least, most - _CLOSE)]
    if objective == "speed":
        faster = [pair for pair in good if pair[1].latency_ns < pair[1].layers_ns]
        return max(faster, key=lambda pair: pair[1].layers_ns - pair[1].latency_ns)[0] if faster else None
    return min(good, key=lambda pair: pair[1].lut6)[0]


def pareto(trials: Sequence[Trial]) -> list[bool]:
    """Whether each trial is one that no other beats: neither in accuracy and time saved, nor in accuracy and tables."""
    fits = [one.fit for one in trials if one.fit is not None]

    def kept(fit: Fit | None, cost: Callable[[Fit], float]) -> bool:
        return fit is not None and not any(
            other.top1 >= fit.top1 and cost(other) <= cost(fit) and (other.top1, cost(other)) != (fit.top1, cost(fit))
            for other in fits
        )

    return [
        kept(one.fit, lambda fit: fit.latency_ns - fit.layers_ns) or kept(one.fit, lambda fit: fit.lut6)
        for one in trials
    ]
