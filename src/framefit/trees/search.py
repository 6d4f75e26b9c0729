"""The search for the group that trees replace best: bounds, drafts, fits; all are stored, so that a run can resume."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.executor import Executor
from framefit.core.files import Record
from framefit.core.model import Model
from framefit.core.settings import Notify
from framefit.core.target import resolve_target
from framefit.core.tree_results import TreeifySettings
from framefit.core.trees import Ensemble, Forest
from framefit.devices.measure import medians_ns
from framefit.devices.npu.costs import pricing
from framefit.devices.npu.cycles import unit_named
from framefit.devices.registry import capabilities_of, open_device
from framefit.errors import InputError
from framefit.training.campaign import KeptRecords, Ledger
from framefit.training.data import Examples
from framefit.training.extra import one_thread
from framefit.training.mapped import free_bytes
from framefit.trees.boosting import Boosting, depth_of
from framefit.trees.exporting import lut6_of, with_trees
from framefit.trees.fitting import Place, columns, fit_ensemble
from framefit.trees.groups import Span, spans
from framefit.trees.hybrid import HybridModel, distance, right_classes, run
from framefit.trees.quantising import fit_level_map
from framefit.trees.tuning import enlarged, refitted

Objective = Literal["accuracy", "speed", "luts"]
Method = Literal["gradient", "ada"]
FLOAT_BYTES = 4
"""Of a weight of a layer."""
DRAFTS = (4, 1)
"""Divisors of the number of trees in each stage: a quarter of them is fitted first."""


class Fit(Record, kw_only=True):
    """Trees for a group, with their accuracy and costs; also a file of the search's folder.

    Attributes:
        ensemble: the trees.
        depth: of the trees.
        seconds: processor time of the fit.
        top1: on the data that decide, with the group replaced.
        distance: of its classes from the original's there, see :func:`~framefit.trees.hybrid.distance`.
        latency_ns: of the trees, for one frame; ``layers_ns``: of the layers.
        layers_ns: see ``latency_ns``.
        bytes: of the trees; ``layers_bytes``: of the layers' weights.
        layers_bytes: see ``bytes``.
        lut6: see :func:`framefit.trees.exporting.lut6_of`.
    """

    ensemble: Ensemble
    depth: int
    seconds: float
    top1: float
    distance: float
    latency_ns: int
    layers_ns: int
    bytes: int
    layers_bytes: int
    lut6: int


class Bound(Record, kw_only=True):
    """A bound on what trees can reach in place of a group; also a file of the search's folder.

    Attributes:
        top1: see :class:`Fit`.
        distance: likewise.
    """

    top1: float
    distance: float


@dataclass
class Trial:
    """A group with its bound; ``fit``: all of its trees."""

    span: Span
    bound: Bound
    fit: Fit | None = None


def resolution(top1: float, images: int) -> float:
    """Difference of accuracy that so many images cannot tell: its standard error, and at least one image."""
    return max(math.sqrt(top1 * (1 - top1) / images), 1 / images)


def halved(
    trials: list[Trial],
    fits_of: Callable[[Sequence[Trial], int], Sequence[Fit | None]],
    better: Callable[[Fit], tuple[float, ...]],
    images: int,
) -> None:
    """Successive halving (Jamieson and Talwalkar, 2016, "Non-stochastic Best Arm Identification"), in place.

    The half with the better bound is drafted with a part of the trees, and the better half of these is fitted in full.
    Groups whose bound is as good as that of the last one in the better half, as far as the images can tell, are drafted
    as well.

    Args:
        trials: all groups.
        fits_of: of some groups, with one in so many of their trees; ``None``: time was up.
        better: order of fits.
        images: on which accuracies were found.
    """
    left = sorted(trials, key=lambda trial: (-trial.bound.top1, trial.bound.distance))
    for share in DRAFTS if len(trials) > 1 else DRAFTS[-1:]:
        half = math.ceil(len(left) / 2)
        if share != 1 and left:
            last = left[half - 1].bound.top1
            half = sum(trial.bound.top1 >= last - resolution(last, images) for trial in left)
        left = left[:half]
        fits = {id(trial): fit for trial, fit in zip(left, fits_of(left, share), strict=True) if fit is not None}
        left = [trial for trial in left if id(trial) in fits]
        left.sort(key=lambda trial: better(fits[id(trial)]), reverse=True)
        if share == 1:
            for trial in left:
                trial.fit = fits[id(trial)]


def preferred(trials: Sequence[Trial], objective: Objective, least: float, images: int) -> Trial | None:
    """The best trial that was fitted in full; ``None``: there is none.

    Of groups that the images cannot tell apart, the one whose classes are nearest to the original's is the most
    accurate; of those alike, the one that takes the least time.

    Args:
        trials: candidates.
        objective: what counts among accurate ones.
        least: accuracy that is enough for the other objectives.
        images: on which accuracies were found.
    """
    fitted = [(trial, trial.fit) for trial in trials if trial.fit is not None]
    if not fitted:
        return None
    most = max(fit.top1 for _, fit in fitted)
    close = most - resolution(most, images)
    if objective == "accuracy":
        good = [pair for pair in fitted if pair[1].top1 >= close]
        return min(good, key=lambda pair: (pair[1].distance, pair[1].latency_ns - pair[1].layers_ns))[0]
    good = [pair for pair in fitted if pair[1].top1 >= min(least, close)]
    if objective == "speed":
        faster = [pair for pair in good if pair[1].latency_ns < pair[1].layers_ns]
        return max(faster, key=lambda pair: pair[1].layers_ns - pair[1].latency_ns)[0] if faster else None
    return min(good, key=lambda pair: (pair[1].lut6, pair[1].distance))[0]


def pareto(trials: Sequence[Trial]) -> list[bool]:
    """Which trials are Pareto-optimal: in accuracy and time saved, or in accuracy and tables."""
    fits = [trial.fit for trial in trials if trial.fit is not None]

    def kept(fit: Fit | None, cost: Callable[[Fit], float]) -> bool:
        return fit is not None and not any(
            rival.top1 >= fit.top1 and cost(rival) <= cost(fit) and (rival.top1, cost(rival)) != (fit.top1, cost(fit))
            for rival in fits
        )

    return [
        kept(trial.fit, lambda fit: fit.latency_ns - fit.layers_ns) or kept(trial.fit, lambda fit: fit.lut6)
        for trial in trials
    ]


Latencies = Callable[[Sequence[Model]], Sequence[int]]
"""Latencies of models for one frame, in ns."""


def latencies(target: str, unit: str | None) -> Latencies:
    """Return a function for latencies on a target, by its description, or by measurement on this machine.

    Raises:
        InputError: the target or unit is unknown, or the unit does not support a model.
    """
    described = resolve_target(target)
    if not capabilities_of(described).modelled:
        return lambda models: medians_ns(models, open_device("cpu", computes=True))
    unit_named(described, unit)
    device = open_device(target)

    def launch_ns(model: Model) -> int:
        handle = device.compile(model, unit or pricing(target, model).unit.name, model.name)
        return sum(operation.expected_ns for operation in handle.operations)

    return lambda models: [launch_ns(model) for model in models]


Array = npt.NDArray[Any]
_TREES = {"gradient": 96, "ada": 9}  # of 96 vectors a late block of ResNet-20 takes a third of its layers' time
_EXAMPLES = 4000
_ROWS, _LEAST_EXAMPLES = 1 << 16, 64  # each tree's tests are chosen on 8,192 of the rows; all rows are in memory
_RATE = 0.15  # of a vector tree's leaves: smaller rates need more trees, and the joint refit replaces the leaves


@dataclass(frozen=True)
class Ground:
    """What all tasks of a step share: the network, and the examples.

    Attributes:
        settings: of the campaign.
        hybrid: the network with the trees that it has.
        examples: trees are fitted on these.
        inputs: more of these, augmented.
        held: accuracies are found on these.
        teacher: the original's classes of the latter, as logits or probabilities.
    """

    settings: TreeifySettings
    hybrid: HybridModel
    examples: Examples
    inputs: Array
    held: Examples
    teacher: Array

    def bound(self, span: Span) -> Bound:
        """Accuracy with the group's own output quantised as by trees, and the later layers fitted to that."""
        made, seen = (self.hybrid.pair(span, part.inputs())[1] for part in (self.examples, self.held))
        if self.settings.scope != "input":
            levels: Literal[2, 3] = 3 if self.settings.quantise == "ternary" else 2
            exact = fit_level_map(columns(made, span.patch), levels, self.settings.threshold)
            if span.patch is not None and span.patch.layout == "tokens":
                made, seen = (np.moveaxis(exact(np.moveaxis(part, -1, 1)), 1, -1) for part in (made, seen))
            else:
                made, seen = exact(made), exact(seen)
        return self._judged(refitted(self.hybrid, span, Examples(made, self.examples.labels), seen))

    def draft(self, span: Span, method: Method, share: int) -> Draft:
        """Fit one in ``share`` of a group's trees."""
        settings = self.settings
        depth = depth_of(span.layers, settings.depth)
        boosting = Boosting(
            method=method,
            trees=math.ceil((settings.trees or _TREES[method]) / share),
            depth=depth,
            rate=_RATE,
            loss=settings.loss or ("squared" if method == "gradient" else "exponential"),
        )
        place = Place(f"layers_{span.first}_{span.last}", span.start.tensor, span.end.tensor, span.patch)
        levels = 3 if settings.quantise == "ternary" else 2
        x, y = self.hybrid.pair(span, self._fitted_on(span))
        started = time.process_time()
        ensemble = fit_ensemble(
            *(x, y, place, boosting),
            seed=settings.seed,
            output_levels=0 if settings.scope == "input" else levels,
            input_levels=levels,
            threshold=settings.threshold,
        ).ensemble
        seconds = time.process_time() - started
        judged = self._judged(self.hybrid.predict_with(span, lambda read: run(ensemble, read), self.held))
        return Draft(place.name, ensemble, depth, seconds, judged)

    def _judged(self, logits: Array) -> Bound:
        top1 = float(right_classes(logits, self.held.labels).mean())
        return Bound(top1=top1, distance=distance(self.teacher, logits))

    def _fitted_on(self, span: Span) -> Array:
        """Inputs of the network for fitting trees: each gives a row for each position of the group's output."""
        count = self._count(span)
        if count == len(self.inputs):
            return self.inputs
        drawn = np.random.default_rng(self.settings.seed).permutation(len(self.inputs))[:count]
        return self.inputs[np.sort(drawn)]

    def _count(self, span: Span) -> int:
        count = max(_ROWS // _positions(span), _LEAST_EXAMPLES)
        return len(self.inputs) if self.settings.examples is not None else min(count, len(self.inputs))

    def fitting_bytes(self, span: Span) -> int:
        """Memory that fitting a group's trees takes at most, estimated from its shapes.

        Examples are there as float32 twice, their rows as words, comparisons and candidate bits, outputs as they are,
        as targets and as sums in up to eight bytes, and the leaves that are fitted again at once as float64 beside
        the matrix of their equations.
        """
        settings, examples, patch = self.settings, self._count(span), span.patch
        features = patch.features(span.start.shape) if patch else math.prod(span.start.shape)
        outputs = patch.outputs(span.end.shape) if patch else math.prod(span.end.shape)
        data = examples * 2 * FLOAT_BYTES * (math.prod(span.start.shape) + math.prod(span.end.shape))
        rows = examples * _positions(span) * (9 * features + 24 * outputs)
        most = 0
        for method in ("gradient", "ada") if settings.method == "auto" else (settings.method,):
            leaves = (settings.trees or _TREES[method]) << depth_of(span.layers, settings.depth)
            most = max(most, 16 * leaves * (leaves + outputs) if method == "gradient" else leaves * outputs)
        return data + rows + most


def _positions(span: Span) -> int:
    shape = span.end.shape
    return math.prod(shape) // span.patch.outputs(shape) if span.patch else 1


class Draft(NamedTuple):
    """Trees without their costs."""

    name: str
    ensemble: Ensemble
    depth: int
    seconds: float
    judged: Bound


def bound_of(ground: Ground, span: Span) -> Bound:
    """A task of an executor; see :meth:`Ground.bound`."""
    with one_thread():
        return ground.bound(span)


def draft_of(ground: Ground, task: tuple[Span, Method, int]) -> Draft:
    """A task of an executor; see :meth:`Ground.draft`."""
    with one_thread():
        return ground.draft(*task)


class Search:
    """The search for candidates in one campaign.

    Args:
        settings: of the campaign.
        examples: trees are fitted on these.
        held: accuracies are found on these.
        teacher: the original's classes of the latter, as logits or probabilities.
        kept: what was found before.
        latencies: of models.
        executor: does what is independent.
        notify: receives messages on the progress.
    """

    def __init__(
        self,
        settings: TreeifySettings,
        examples: Examples,
        held: Examples,
        teacher: Array,
        kept: KeptRecords,
        latencies: Latencies,
        executor: Executor,
        notify: Notify,
    ) -> None:
        self.settings, self.held, self.notify = settings, held, notify
        self._teacher = teacher
        self.notes: list[str] = []
        """Remarks for the reader of the result."""
        self._ledger = Ledger()
        self._latencies, self._executor = latencies, executor
        self._kept = kept
        most = settings.examples or _EXAMPLES
        self._examples = examples.sample(most, settings.seed)
        self._inputs = enlarged(self._examples, most, settings.seed)

    def trials(self, hybrid: HybridModel, number: int, least: float) -> list[Trial]:
        """Evaluate the groups that can be replaced next; some of them are fitted in full.

        Raises:
            InputError: the requested group cannot be replaced.
        """
        settings = self.settings
        drawn = np.random.default_rng((settings.seed, number)) if settings.search == "random" else None
        groups = spans(
            hybrid.model,
            first=settings.first,
            layers=settings.layers,
            step=settings.step,
            free=hybrid.free,
            drawn=drawn,
        )
        ground = Ground(settings, hybrid, self._examples, self._inputs, self.held, self._teacher)
        groups = self._small_enough(ground, groups, hybrid.model.name)
        trials = self._bounds(ground, groups, number)
        halved(trials, lambda left, share: self._fits(ground, left, number, share), self._better(least), len(self.held))
        if self._late():
            tried = sum(trial.fit is not None for trial in trials)
            self.notes.append(
                f"time was up: bounds of {len(trials)} of {len(groups)} groups are known, {tried} were fitted in full"
            )
        return trials

    def _small_enough(self, ground: Ground, groups: Sequence[Span], model: str) -> list[Span]:
        """Groups that can be fitted in the memory that is free; others are named.

        Raises:
            InputError: none can.
        """
        free = free_bytes()
        needed = [ground.fitting_bytes(span) for span in groups]
        left_out = []
        for span, size in zip(groups, needed, strict=True):
            if size > free:
                inputs, outputs = (math.prod(place.shape) for place in (span.start, span.end))
                flat = "" if span.patch else f", {inputs:,} inputs and {outputs:,} outputs at once"
                limit = f"{size / 1e9:.1f} GB of memory, and {free / 1e9:.1f} are free"
                left_out.append(f"{span}{flat}: fitting trees would take {limit}")
        if groups and len(left_out) == len(groups):
            least = left_out[int(np.argmin(needed))]
            raise InputError(least, where=model, remedy="choose another group, or give fewer --examples")
        self.notes += [f"left out: {what}" for what in left_out]
        return [span for span, size in zip(groups, needed, strict=True) if size <= free]

    def _late(self) -> bool:
        """Whether the search has used up its time."""
        limit = self.settings.max_seconds
        return limit is not None and self._ledger.seconds >= limit

    def _better(self, least: float) -> Callable[[Fit], tuple[float, ...]]:
        """Order of drafts; for other objectives than accuracy, any accuracy from ``least`` on is equally good."""
        if self.settings.objective == "speed":
            return lambda fit: (min(fit.top1, least), fit.layers_ns - fit.latency_ns)
        if self.settings.objective == "luts":
            return lambda fit: (min(fit.top1, least), -fit.lut6)
        return lambda fit: (-fit.distance,)

    def _bounds(self, ground: Ground, groups: Sequence[Span], number: int) -> list[Trial]:
        """Groups with their bounds; at least one of them, whatever the time."""
        keys = [f"{number}-{span.first}-{span.last}-bound" for span in groups]
        bounds = [self._kept.stored(key, Bound) for key in keys]
        missing = [at for at, bound in enumerate(bounds) if bound is None]
        self.notify(f"bounds of {len(groups)} groups")
        with contextlib.closing(self._executor.each(bound_of, ground, [groups[at] for at in missing])) as results:
            while any(bound is None for bound in bounds) and not (any(bounds) and self._late()):
                place, bound = next(results)
                self._kept.store(keys[missing[place]], bound)
                bounds[missing[place]] = bound
                self.notify(f"bound of {groups[missing[place]]}, {sum(map(bool, bounds))} of {len(groups)}")
        return [Trial(span, bound) for span, bound in zip(groups, bounds, strict=True) if bound is not None]

    def _fits(self, ground: Ground, trials: Sequence[Trial], number: int, share: int) -> list[Fit | None]:
        """Fit one in ``share`` of the trees of some groups, each with the method that is right more often.

        Of at least one group, whatever the time; of those for which it does not suffice: ``None``.
        """
        methods: tuple[Method, ...] = ("gradient", "ada") if self.settings.method == "auto" else (self.settings.method,)
        tasks = [(trial.span, method, share) for trial in trials for method in methods]
        keys = [f"{number}-{span.first}-{span.last}-{method}-{share}" for span, method, _ in tasks]
        fits = [self._kept.stored(key, Fit) for key in keys]
        drafts: dict[int, Draft] = {}

        def of(trial: int) -> list[Fit | None]:
            return fits[trial * len(methods) : (trial + 1) * len(methods)]

        def enough() -> bool:
            return self._late() and any(None not in of(trial) for trial in range(len(trials)))

        def price() -> None:
            for at in sorted(drafts):
                fits[at] = fit = self._priced(ground, tasks[at][0], drafts.pop(at))
                self._kept.store(keys[at], fit)

        missing = [at for at, fit in enumerate(fits) if fit is None]
        doing = "drafting" if share > 1 else "fitting"
        try:
            with contextlib.closing(self._executor.each(draft_of, ground, [tasks[at] for at in missing])) as results:
                for left in range(len(missing), 0, -1):
                    if enough():
                        break
                    self.notify(f"{doing} {tasks[missing[-left]][0]}, {len(missing) - left + 1} of {len(missing)}")
                    place, draft = next(results)
                    drafts[missing[place]] = draft
                    if self._executor.workers == 1 or self._stated:
                        price()
        finally:
            price()  # what is measured here is measured when nothing else is done here
        return [
            None if None in of(trial) else max(filter(None, of(trial)), key=lambda fit: (fit.top1, -fit.distance))
            for trial in range(len(trials))
        ]

    @property
    def _stated(self) -> bool:
        """Whether latencies are known from a description."""
        return capabilities_of(resolve_target(self.settings.target)).modelled

    def _priced(self, ground: Ground, span: Span, draft: Draft) -> Fit:
        """Trees with their costs, beside those of their layers."""
        layers = ground.hybrid.part(span.start.position, span.end.position)
        layers_ns, trees_ns = self._latencies(
            [layers, with_trees(layers, Forest(model=draft.name, ensembles=(draft.ensemble,)))]
        )
        return Fit(
            ensemble=draft.ensemble,
            depth=draft.depth,
            seconds=draft.seconds,
            top1=draft.judged.top1,
            distance=draft.judged.distance,
            latency_ns=trees_ns,
            layers_ns=layers_ns,
            bytes=draft.ensemble.bytes,
            layers_bytes=FLOAT_BYTES * layers.parameters,
            lut6=lut6_of(draft.ensemble),
        )
