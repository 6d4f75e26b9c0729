"""Looking for the group that trees stand for best: bounds, drafts, fits, each of them kept for a run that goes on.

What groups and networks take, as layers and with trees.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record, read_record, write_record
from framefit.core.model import Model
from framefit.core.target import resolve_target
from framefit.core.tree_results import TreeifySettings
from framefit.core.trees import Ensemble, Forest
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Completion, allocate, random_inputs
from framefit.devices.measure import measure
from framefit.devices.npu import NpuDevice
from framefit.devices.npu.costs import pricing
from framefit.devices.npu.cycles import unit_named
from framefit.devices.ort import OrtDevice
from framefit.devices.trees.device import TreesDevice
from framefit.training.data import Examples
from framefit.trees.boosting import Boosting, depth_of
from framefit.trees.exporting import lut6_of, with_trees
from framefit.trees.fitting import Place, columns, fit_ensemble
from framefit.trees.hybrid import Course, run
from framefit.trees.quantising import fit_level_map
from framefit.trees.selection import Fit, Span, Trial, halved, spans
from framefit.trees.tuning import enlarged, refitted

__all__ = ["Latencies", "Search", "latencies", "medians"]


Latencies = Callable[[Sequence[Model]], list[int]]
"""What models take a frame, ns."""


def latencies(target: str, unit: str | None) -> Latencies:
    """What tells a target's times: its description, or a measurement where it is this machine.

    Args:
        target: a built-in one, or the path of a ``target.toml``.
        unit: of a described one; ``None``: the first that can run what is timed.

    Raises:
        InputError: no such target or unit; models: one that the unit does not support.
    """
    described = resolve_target(target)
    if described.kind == "ort":
        return medians
    unit_named(described, unit)

    def times(model: Model, name: str) -> list[int]:
        return [layer.latency_ns for layer in pricing(target, model, name).layers(model)]

    device = NpuDevice(described, VirtualClock(), times)
    return lambda models: [
        device.compile(model, unit or pricing(target, model).unit.name, model.name).duration_ns for model in models
    ]


def medians(models: Sequence[Model], runtime: OrtDevice | None = None) -> list[int]:
    """What models take a frame on this core; ns, in turn.

    Args:
        models: to launch.
        runtime: that launches them; ``None``: kernels for trees and ONNX Runtime for all else.
    """
    device = TreesDevice() if runtime is None else runtime
    unit = device.target.units[0].name

    def launch(model: Model) -> Callable[[], Completion]:
        tensors = random_inputs(model.inputs, np.random.default_rng(0))
        tensors |= {tensor.name: allocate(tensor) for tensor in model.outputs}
        binding = device.compile(model, unit, model.name).bind(tensors)
        return lambda: device.submit(binding)

    return [one.median_ns for one in measure([launch(model) for model in models], clock=device.clock)]


Array = npt.NDArray[Any]
R = TypeVar("R", bound=Record)
_TREES = {"gradient": 96, "ada": 9}  # of 96 vectors a late block of ResNet-20 takes a third of its layers' time
_EXAMPLES = 4000
_ROWS, _LEAST_EXAMPLES = 1 << 16, 64  # each tree's tests are chosen on 8,192 of the rows; all of them are in memory
_RATE = 0.15  # of a vector tree's leaves: smaller ones need more trees, and the joint refit sets leaves anew anyway


class _Known(Record, kw_only=True):
    """A fit in a file."""

    ensemble: Ensemble
    depth: int
    seconds: float
    top1: float
    latency_ns: int
    layers_ns: int
    lut6: int


class _Bound(Record, kw_only=True):
    """A bound in a file."""

    top1: float


class Search:
    """The candidates of one course.

    Args:
        settings: what was asked for.
        examples: of the training data; held: of the validation data.
        held: see ``examples``.
        folder: keeps what was found; what is there already is taken from it.
        latencies: of layers and trees.
        say: told what is being done.
    """

    def __init__(
        self,
        settings: TreeifySettings,
        examples: Examples,
        held: Examples,
        folder: Path,
        latencies: Latencies,
        say: Callable[[str], None],
    ) -> None:
        self.settings, self.held, self.say = settings, held, say
        self.notes: list[str] = []
        """What a reader of the result should know."""
        self._begun = time.monotonic()
        self._latencies = latencies
        self._folder = folder
        most = settings.examples or _EXAMPLES
        self._examples = examples.sample(most, settings.seed)
        self._inputs = enlarged(self._examples, most, settings.seed)

    def trials(self, course: Course, number: int, least: float) -> list[Trial]:
        """The groups that one more may be, and what is known of them; some are fitted in full.

        Args:
            course: the network so far.
            number: of the group, from 0.
            least: validation accuracy that is allowed.

        Raises:
            InputError: the group that was asked for is none.
        """
        wanted = self.settings
        drawn = np.random.default_rng((wanted.seed, number)) if wanted.search == "random" else None
        found = spans(
            course.model, first=wanted.first, layers=wanted.layers, step=wanted.step, free=course.free, drawn=drawn
        )
        trials: list[Trial] = []
        for span in found:
            if trials and self._late():
                break
            self.say(f"bound of {span}")
            key = f"{number}-{span.first}-{span.last}"
            bound = self._kept(f"{key}-bound", _Bound, lambda span=span: _Bound(top1=self._bound(course, span)))  # type: ignore[misc]
            trials.append(Trial(span, bound.top1))
        halved(
            trials, lambda trial, share: self._fit(course, trial.span, number, share), self._better(least), self._late
        )
        if self._late():
            tried = sum(trial.fit is not None for trial in trials)
            self.notes.append(
                f"time was up: bounds of {len(trials)} of {len(found)} groups are known, {tried} were fitted in full"
            )
        return trials

    def _late(self) -> bool:
        """Whether the search has taken as long as it may."""
        limit = self.settings.max_seconds
        return limit is not None and time.monotonic() - self._begun >= limit

    def _better(self, least: float) -> Callable[[Fit], tuple[float, ...]]:
        """What drafts are ordered by; accuracy that is high enough counts alike where something else is wanted."""
        if self.settings.objective == "speed":
            return lambda fit: (min(fit.top1, least), fit.layers_ns - fit.latency_ns)
        if self.settings.objective == "luts":
            return lambda fit: (min(fit.top1, least), -fit.lut6)
        return lambda fit: (fit.top1,)

    def _bound(self, course: Course, span: Span) -> float:
        """Accuracy with the group's own output, quantised as trees would, and the layers behind fitted to that."""
        made, seen = (course.pair(span, part.inputs())[1] for part in (self._examples, self.held))
        if self.settings.scope != "input":
            levels: Literal[2, 3] = 3 if self.settings.quantise == "ternary" else 2
            exact = fit_level_map(columns(made, span.patch), levels, self.settings.threshold)
            made, seen = exact(made), exact(seen)
        return refitted(course, span, Examples(made, self._examples.labels), Examples(seen, self.held.labels))

    def _fit(self, course: Course, span: Span, number: int, share: int) -> Fit:
        """Trees for a group: one in ``share`` of as many as were asked for; of the method that is right more often."""
        methods = ("gradient", "ada") if self.settings.method == "auto" else (self.settings.method,)
        fits = []
        for method in methods:
            self.say(f"{'drafting' if share > 1 else 'fitting'} {span}")
            key = f"{number}-{span.first}-{span.last}-{method}-{share}"
            known = self._kept(key, _Known, lambda method=method: self._fitted(course, span, method, share))  # type: ignore[misc]
            fits.append(Fit(**{field: getattr(known, field) for field in known.__struct_fields__}))
        return max(fits, key=lambda fit: fit.top1)

    def _fitted(self, course: Course, span: Span, method: Literal["gradient", "ada"], share: int) -> _Known:
        wanted = self.settings
        depth = depth_of(span.layers, wanted.depth)
        boosting = Boosting(
            method=method,
            trees=math.ceil((wanted.trees or _TREES[method]) / share),
            depth=depth,
            rate=_RATE,
            loss=wanted.loss or ("squared" if method == "gradient" else "exponential"),
        )
        place = Place(f"layers_{span.first}_{span.last}", span.start.tensor, span.end.tensor, span.patch)
        levels = 3 if wanted.quantise == "ternary" else 2
        x, y = course.pair(span, self._fitted_on(span))
        started = time.process_time()
        ensemble = fit_ensemble(
            *(x, y, place, boosting),
            seed=wanted.seed,
            output_levels=0 if wanted.scope == "input" else levels,
            input_levels=levels,
            threshold=wanted.threshold,
        ).ensemble
        seconds = time.process_time() - started
        right = course.right_with(span, lambda read: run(ensemble, read), self.held)
        layers = course.part(span.start.position, span.end.position)
        layers_ns, trees_ns = self._latencies(
            [layers, with_trees(layers, Forest(model=place.name, ensembles=(ensemble,)))]
        )
        return _Known(
            ensemble=ensemble,
            depth=depth,
            seconds=seconds,
            top1=float(right.mean()),
            latency_ns=trees_ns,
            layers_ns=layers_ns,
            lut6=lut6_of(ensemble),
        )

    def _fitted_on(self, span: Span) -> Array:
        """Inputs of the network that trees are fitted on: each gives a row for each position of the group's output."""
        positions = math.prod(span.end.shape[1:]) if span.patch else 1
        count = max(_ROWS // positions, _LEAST_EXAMPLES)
        if self.settings.examples is not None or len(self._inputs) <= count:
            return self._inputs
        drawn = np.random.default_rng(self.settings.seed).permutation(len(self._inputs))[:count]
        return self._inputs[np.sort(drawn)]

    def _kept(self, key: str, kind: type[R], find: Callable[[], R]) -> R:
        """What was found before, else found now and kept."""
        path = self._folder / f"{key}.json"
        if path.exists():
            return read_record(path, kind)
        made = find()
        write_record(path, made)
        return made
