"""The search over what costs nothing: who is served first, other cuts, other units, deeper queues, in combination."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from framefit.core.executor import Executor, executor_of, in_order
from framefit.core.fit_results import ServedModel, Standing
from framefit.core.settings import silent
from framefit.core.workload import Workload
from framefit.errors import FramefitError
from framefit.fit.situation import Situation
from framefit.fit.step import FreeStep, Offer, StepContext, Way

_PLANS = 100  # that are made at most
_SERVED_PLANS = 20  # the same where models ask for more than all of the time: the most frames are looked for
_MEASURED_S = 60.0  # where launches have to be measured, and each plan may take seconds
_PART_S = 0.25  # of the seconds that are left
_GAIN = 0.01  # of a model's frames: less is no gain

_Score = tuple[bool, float]


@dataclass(frozen=True)
class _Node:
    """A workload that was planned, and the changes that lead to it.

    Attributes:
        base: a plan on the same units.
        moved: it is planned on other units than the base, of which nothing is known but how it stands.
    """

    base: Situation
    workload: Workload
    standing: Standing
    path: tuple[tuple[FreeStep, Way, Standing], ...] = ()
    moved: bool = False

    def based(self, context: StepContext) -> _Node:
        """The same with a plan on its own units."""
        if not self.moved:
            return self
        return replace(self, base=self.base.elsewhere(self.workload, context.notify), moved=False)


def free_steps(situation: Situation, kinds: Sequence[FreeStep], context: StepContext) -> list[Offer]:
    """The changes that together serve the most frames without any cost, one after the other; none: nothing helps.

    Best first: of all workloads that were planned so far, the one that loses the fewest frames is changed next, in
    every way that there is; that ends with the first one that fits. So a change that helps only together with another
    one is found, too.

    Args:
        situation: that does not fit.
        kinds: of changes.
        context: gets what is being done; tells the seconds that are left.
    """
    count = itertools.count()
    start = _Node(situation, situation.workload, situation.standing)
    first_score = _score(start.standing, situation.standing)
    best, best_score = start, first_score
    seen = {_key(start.workload)}
    heap = [(best_score, 0, next(count), start)]
    plans, most = 0, _PLANS if situation.standing.load_ratio <= 1 else _SERVED_PLANS
    left_s = context.seconds_left()
    least_s = left_s - left_s * _PART_S if situation.described else left_s - min(left_s * _PART_S, _MEASURED_S)
    with executor_of(context.settings.workers if situation.described else 1) as executor:
        while heap and not best.standing.fits and plans < most and context.seconds_left() >= least_s:
            _, depth, _, node = heapq.heappop(heap)
            node = node.based(context)
            changes: dict[bytes, tuple[FreeStep, Way]] = {}
            for kind, way in [(each, way) for each in kinds for way in each.ways(node.base, node.workload)]:
                if (key := _key(way.workload)) not in seen:
                    changes.setdefault(key, (kind, way))
            for kind, way, standing in _planned(node, list(changes.values())[: most - plans], executor, context):
                seen.add(_key(way.workload))
                plans += 1
                if standing is not None:
                    child = _Node(node.base, way.workload, standing, (*node.path, (kind, way, standing)), way.anew)
                    score = _score(standing, situation.standing)
                    heapq.heappush(heap, (score, depth + 1, next(count), child))
                    if score < best_score:
                        best, best_score = child, score
                if best.standing.fits or context.seconds_left() < least_s:
                    break
    if not best.standing.fits and best_score > (first_score[0], first_score[1] - _GAIN):
        return []
    return [
        kind.replanned(way.what, way.workload, standing, situation, part=number < len(best.path))
        for number, (kind, way, standing) in enumerate(best.path, 1)
    ]


def _planned(
    node: _Node, changes: Sequence[tuple[FreeStep, Way]], executor: Executor, context: StepContext
) -> Iterator[tuple[FreeStep, Way, Standing | None]]:
    """Each with one more change, in their order; ``None``: that cannot be."""
    with contextlib.closing(executor.each(_standing_with, node.base, [way for _, way in changes])) as results:
        standings = in_order(results)
        for kind, way in changes:
            context.notify(way.what)
            yield kind, way, next(standings)


def _standing_with(base: Situation, way: Way) -> Standing | None:
    """How a changed workload stands; a task of an executor."""
    try:
        if way.anew:
            return base.elsewhere(way.workload, silent).standing
        return base.what_if(workload=way.workload, notify=silent)
    except (FramefitError, ValueError):
        return None


def _score(standing: Standing, before: Standing) -> _Score:
    """Less is better: feasible ones first, by the parts of their frames that models do not get.

    What a model gets less than before counts twice: that is worth it only where another one gains more.
    """
    if not standing.feasible:
        return True, -float(standing.worst_slack_ns)
    given = {model.name: model.share_ratio for model in before.models} if before.feasible else {}

    def lost(model: ServedModel) -> float:
        return 1 - model.share_ratio + max(given.get(model.name, 0.0) - model.share_ratio, 0.0)

    return False, sum(map(lost, standing.models))


def _key(workload: Workload) -> bytes:
    return msgspec.json.encode(workload)
