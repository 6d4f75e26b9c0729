"""``framefit treeify``: decision trees in place of groups of layers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy.typing as npt

from framefit.core.files import check_folder, write_record, write_whole_folder
from framefit.core.model import Model, with_weights
from framefit.core.treeified import Candidate, ChosenGroup, Original, TreeifiedModel, TreeifyResult
from framefit.core.trees import Ensemble, Forest
from framefit.errors import InfeasibleError, InputError
from framefit.trees.boosting import Boosting, DepthRule, depth_of
from framefit.trees.exporting import with_trees, write_hybrid
from framefit.trees.fitting import Place, fit_ensemble
from framefit.trees.groups import Boundary, boundaries, patch_between
from framefit.workflows.cycles import load_model
from framefit.workflows.tree_course import Course, Span, checked_export, latencies

__all__ = ["TreeifyOutcome", "treeify"]

Array = npt.NDArray[Any]

_MARK = "result.json"
_WHAT = "a folder of framefit treeify"
_CLOSE = 0.005  # of validation accuracy: as good as the best, and decided by the number of layers
_DRAFT = 4  # a draft has so many times fewer trees


@dataclass(frozen=True)
class TreeifyOutcome:
    """The result, the hybrid, its trees, and the folder where all of it is."""

    result: TreeifyResult
    model: Model
    forest: Forest
    folder: Path


@dataclass
class _Tried:
    """A group, and what is known of it."""

    span: Span
    bound: float
    top1: float | None = None
    ensemble: Ensemble | None = None
    depth: int = 0
    seconds: float = 0.0


def treeify(
    model: str | Path | Model,
    data: Any,
    *,
    first: int | None = None,
    layers: int | None = None,
    step: int = 1,
    groups: int = 1,
    method: Literal["gradient", "ada"] = "gradient",
    trees: int | None = None,
    depth: DepthRule = "bounded",
    levels: int = 3,
    threshold: float | None = None,
    examples: int = 4000,
    epochs: float = 0.0,
    seed: int = 0,
    output: str | Path | None = None,
    force: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> TreeifyOutcome:
    """Find groups of layers that trees can stand for, fit these, and write the hybrid.

    Args:
        model: a classifier with one input.
        data: what :func:`framefit.training.data.load_data` takes.
        first: number of the first layer with weights that is replaced; default: each of them is tried.
        layers: that are replaced together; default: 1, 1 + step, ... up to the last but one are tried.
        step: by which candidates grow.
        groups: to replace at most.
        method: "gradient" (vectors, 256 trees) or "ada" (votes, 9 trees an output).
        trees: at most, another number of them.
        depth: "bounded": min(6, 4 + layers); "layers": as many as layers.
        levels: of what trees make: 2, 3, or 0: not quantised.
        threshold: of normalised values; default: the thresholds of least error.
        examples: of the training data that trees are fitted on, at most.
        epochs: that the layers behind the last group are fine-tuned for.
        seed: of all that is drawn.
        output: folder; default: the model's name with ``-trees``, here.
        force: overwrite it.
        notify: is told what is being done.

    Raises:
        InputError: what cannot be used.
        InfeasibleError: no group of the model can be replaced.

    Example:
        >>> import framefit
        >>> framefit.treeify("mlp.onnx", "digits.npz", first=1, layers=2).result.chosen.top1  # doctest: +SKIP
        0.98
    """
    from framefit.training.data import check_fits, load_data
    from framefit.training.evaluate import evaluate

    if step < 1 or groups < 1 or examples < 8 or (layers is not None and layers < 1):
        raise InputError(f"step {step}, groups {groups}, examples {examples}, layers {layers}", remedy="take 1 or more")
    opened = load_model(model, None, None)
    folder = Path(output) if output is not None else Path(f"{opened.name}-trees")
    check_folder(folder.resolve(), _MARK, _WHAT, force=force)
    split = load_data(data, seed=seed)
    check_fits(split, opened)
    settings = Boosting(
        method=method,
        trees=trees or (256 if method == "gradient" else 9),
        rate=0.15,
        loss="squared" if method == "gradient" else "exponential",
    )
    fitting = _Fitting(settings, depth, levels, threshold, seed)
    course = Course(opened)
    train, held = split.train.sample(examples, seed), split.validation
    tried: list[_Tried] = []
    for _ in range(groups):
        spans = [span for span in _spans(opened, first, layers, step) if course.free(span)]
        found = _best(course, spans, fitting, (train, held), notify)
        tried += found
        best = _preferred(found)
        if best is None:
            break
        assert best.ensemble is not None
        course.replace(best.span, best.ensemble)
    if not course.chosen:
        raise InfeasibleError(
            "no group of layers can be replaced",
            where=opened.name,
            remedy="give a sequence of layers that one tensor leads into and out of, such as --first 1 --layers 2",
        )
    notes = []
    if epochs:
        notify("fine-tuning the layers behind")
        notes.append(course.tune(train, held, epochs, seed))
    forest = Forest(model=opened.name, ensembles=tuple(ensemble for _, ensemble in course.chosen))
    hybrid = with_trees(with_weights(opened, course.tuned), forest)
    for ensemble in forest.ensembles:
        checked_export(ensemble, course.reads(ensemble, held.inputs(slice(0, 8))))
    whole, each = latencies(opened, course.chosen)
    kept = [one for one in tried if any(one.ensemble is ensemble for ensemble in forest.ensembles)]
    kept.sort(key=lambda one: one.span.start.position)
    chosen = TreeifiedModel(
        groups=tuple(_told(one) for one in kept),
        top1=evaluate(course.predict, split.test).top1,
        latency_ns=max(whole + sum(trees_ns - layers_ns for layers_ns, trees_ns in each), 0),
        lut6=None,
        bytes=sum(ensemble.bytes for ensemble in forest.ensembles),
    )
    taken = {id(ensemble): trees_ns for ensemble, (_, trees_ns) in zip(forest.ensembles, each, strict=True)}
    result = TreeifyResult(
        model=opened.name,
        seed=seed,
        original=Original(top1=evaluate(Course(opened).predict, split.test).top1, latency_ns=whole),
        candidates=tuple(
            Candidate(
                first_layer=one.span.start.weighted,
                last_layer=one.span.end.weighted - 1,
                bound_top1=one.bound,
                top1=one.top1,
                latency_ns=taken.get(id(one.ensemble)),
                lut6=None,
            )
            for one in tried
        ),
        chosen=chosen,
        notes=(*notes, "candidates' top1 is of the validation data; latencies are of this machine"),
    )
    with write_whole_folder(folder, _MARK, _WHAT, force=force) as part:
        write_hybrid(part / "model.onnx", hybrid, forest)
        write_record(part / "trees.json", forest)
        write_record(part / _MARK, result)
    return TreeifyOutcome(result, hybrid, forest, folder)


@dataclass(frozen=True)
class _Fitting:
    settings: Boosting
    rule: DepthRule
    levels: int
    threshold: float | None
    seed: int

    def fit(self, x: Array, y: Array, span: Span, share: int) -> tuple[Ensemble, int]:
        """An ensemble with a part of the trees, and its depth."""
        depth = depth_of(span.end.weighted - span.start.weighted, self.rule)
        settings = msgspec.structs.replace(
            self.settings, depth=depth, trees=max(1, math.ceil(self.settings.trees / share))
        )
        place = Place(f"layers_{span.start.weighted}_{span.end.weighted - 1}", span.start.tensor, span.end.tensor)
        if span.patch is not None:
            place = Place(place.name, place.input, place.output, span.patch)
        fitted = fit_ensemble(
            x, y, place, settings, seed=self.seed, output_levels=self.levels, threshold=self.threshold
        )
        return fitted.ensemble, depth


def _spans(model: Model, first: int | None, layers: int | None, step: int) -> list[Span]:
    """Candidates, by their first layer and then their length."""
    places: dict[int, Boundary] = {boundary.weighted: boundary for boundary in boundaries(model)}
    starts = [first] if first is not None else sorted(places)
    found = []
    for start in starts:
        lengths = [layers] if layers is not None else range(1, max(places, default=0) + 1, step)
        for length in lengths:
            if start in places and start + length in places:
                a, b = places[start], places[start + length]
                found.append(Span(a, b, patch_between(model, a, b)))
    return found


def _best(
    course: Course, spans: list[Span], fitting: _Fitting, data: tuple[Any, Any], notify: Callable[[str], None]
) -> list[_Tried]:
    """Candidates: all judged by their bound, half of them by a draft, half of these with all trees."""
    train, held = data
    tried = []
    for span in spans:
        notify(f"bound of layers {span.start.weighted} to {span.end.weighted - 1}")
        tried.append(_Tried(span, course.bound(span, held, fitting.levels, fitting.threshold)))
    left = tried
    for share in (_DRAFT, 1) if len(spans) > 1 else (1,):
        left = sorted(left, key=lambda one: -(one.bound if one.top1 is None else one.top1))
        left = left[: max(1, -(-len(left) // 2))] if len(left) > 1 else left
        for one in left:
            notify(f"fitting layers {one.span.start.weighted} to {one.span.end.weighted - 1}")
            x, y = course.pair(one.span, train.inputs())
            started = time.perf_counter()
            one.ensemble, one.depth = fitting.fit(x, y, one.span, share)
            one.seconds = time.perf_counter() - started
            one.top1 = course.accuracy(one.span, one.ensemble, held)
    for one in tried:
        if one not in left:
            one.top1 = one.ensemble = None  # of a draft at most
    return tried


def _preferred(tried: list[_Tried]) -> _Tried | None:
    """Of those as accurate as the best the one of most layers."""
    fitted = [one for one in tried if one.top1 is not None]
    if not fitted:
        return None
    most = max(one.top1 or 0.0 for one in fitted)
    good = [one for one in fitted if (one.top1 or 0.0) >= most - _CLOSE]
    return max(good, key=lambda one: (one.span.end.weighted - one.span.start.weighted, one.top1 or 0.0))


def _told(one: _Tried) -> ChosenGroup:
    assert one.ensemble is not None
    return ChosenGroup(
        first_layer=one.span.start.weighted,
        last_layer=one.span.end.weighted - 1,
        depth=one.depth,
        trees=len(one.ensemble.members),
        kind=one.ensemble.kind,
        fit_seconds=one.seconds,
    )
