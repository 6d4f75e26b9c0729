"""What a step of ``framefit fit`` is, how kinds of steps are entered, and what they share."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from framefit.core.fit_results import FitSettings, FittedModel, ProposedStep, Standing, StepAccuracy, StepCost
from framefit.core.model import Model
from framefit.core.settings import Notify
from framefit.core.workload import ModelEntry, Workload
from framefit.devices.ort import quantised, weight_nodes
from framefit.fit.accuracy import Labelled
from framefit.fit.situation import Situation, fewer, losers

if TYPE_CHECKING:
    from framefit.training.evaluate import Accuracy

COSTS: tuple[StepCost, ...] = ("none", "accuracy", "rate")
"""What steps cost, the cheapest first."""


@dataclass(frozen=True)
class Change:
    """What a step made.

    Attributes:
        workload: with it, absolute paths.
        fitted: the model that it changed; ``None``: none.
        accuracy: of that model.
        detail: as a sentence.
    """

    workload: Workload
    fitted: FittedModel | None = None
    accuracy: StepAccuracy | None = None
    detail: str = ""


@dataclass(frozen=True)
class Way:
    """A workload of the same models, changed in one respect that costs nothing.

    Attributes:
        what: the change, as a part of a sentence.
        workload: with it.
        anew: it is planned on other units: the device has to be opened again.
    """

    what: str
    workload: Workload
    anew: bool = False


@dataclass(frozen=True)
class Offer:
    """A step that may be taken.

    Attributes:
        step: what it is.
        take: makes the change; its files go to the folder that it is handed.
        rank: of its kind, see :func:`step`.
        part: it is kept whatever it gains: further steps belong to it.
    """

    step: ProposedStep
    take: Callable[[Path], Change]
    rank: int = 0
    part: bool = False


class Step(abc.ABC):
    """A kind of step: it looks at a situation and offers what may help there. :func:`step` enters it."""

    name: ClassVar[str]
    cost: ClassVar[StepCost]
    rank: ClassVar[int]

    def __init__(self, context: StepContext) -> None:
        self.context = context

    @abc.abstractmethod
    def propose(self, situation: Situation) -> Sequence[Offer]:
        """Steps that may help, by cheap means: nothing is trained, and nothing is kept."""

    def alternatives(self, _: Situation) -> Sequence[Offer]:
        """Ways to make everything fit by this kind of step alone, whatever they cost: to compare, not to be taken."""
        return []

    def offer(
        self,
        what: str,
        take: Callable[[Path], Change],
        *,
        key: str | None = None,
        model: str | None = None,
        predicted_load_ratio: float | None = None,
        enough: bool = False,
        cycles_ratio: float | None = None,
    ) -> Offer:
        """A step of this kind; a step that changes a model says what it lacks of labelled data and tools.

        Args:
            what: it is, as a part of a sentence.
            take: makes the change.
            key: distinguishes it from other steps of the kind; default: ``what``.
            model: that it changes.
            predicted_load_ratio: see :class:`~framefit.core.fit_results.ProposedStep`; so are the others.
            enough: whether it alone is predicted to be.
            cycles_ratio: where sparsity is asked for.
        """
        step = ProposedStep(
            key=f"{self.name}: {key or what}",
            name=self.name,
            model=model,
            what=what,
            cost=self.cost,
            predicted_load_ratio=predicted_load_ratio,
            enough=enough,
            cycles_ratio=cycles_ratio,
            needs=None if model is None else self.context.labelled.lacks(model),
        )
        return Offer(step, take, self.rank)

    def replanned(
        self, what: str, workload: Workload, standing: Standing, situation: Situation, *, part: bool = False
    ) -> Offer:
        """A step that is a workload of the same models, and was planned already."""
        least = "" if standing.fits else f"least-served {situation.standing.least_share_ratio:.0%} -> "
        least += "" if standing.fits else f"{standing.least_share_ratio:.0%}"
        losses = losers(situation.standing, standing) or fewer(situation.standing, standing)
        detail = "; ".join(text for text in (least, losses) if text)
        change = Change(workload, detail=detail)
        offer = self.offer(what, lambda _: change, predicted_load_ratio=standing.load_ratio, enough=standing.fits)
        return replace(offer, part=part)


class FreeStep(Step):
    """A kind of step that costs nothing: changes of a workload, which :mod:`framefit.fit.free` combines."""

    @abc.abstractmethod
    def ways(self, situation: Situation, workload: Workload) -> Iterator[Way]:
        """Changes of a workload.

        Args:
            situation: a plan on the same units, for roles and durations.
            workload: to change, which need not be the planned one.
        """

    def propose(self, _: Situation) -> Sequence[Offer]:
        """Nothing alone."""
        return []

    def against_misses(self, situation: Situation, missed: Sequence[str]) -> Iterator[Way]:  # noqa: ARG002
        """Those that keep frames in time where launches take other times than were planned.

        Args:
            situation: its plan fits, and a run of it missed frames.
            missed: models whose frames these were.
        """
        return iter(())


STEPS: dict[str, type[Step]] = {}
"""Kinds of steps that were entered, by name; :func:`framefit.fit.steps.known_steps` has all of them."""
K = TypeVar("K", bound=type[Step])


def step(name: str, *, cost: StepCost, rank: int) -> Callable[[K], K]:
    """Enter a kind of step."""

    def enter(kind: K) -> K:
        kind.name, kind.cost, kind.rank = name, cost, rank
        STEPS[name] = kind
        return kind

    return enter


def ranked(offers: Sequence[Offer]) -> list[Offer]:
    """The cheapest first: what lacks nothing; what costs nothing, then accuracy, then frames; what is enough alone.

    Of those alike, in the order of their kinds, and then the one that is predicted to gain most.
    """

    def place(offer: Offer) -> tuple[bool, int, bool, int, float]:
        step = offer.step
        predicted = float("inf") if step.predicted_load_ratio is None else step.predicted_load_ratio
        return step.needs is not None, COSTS.index(step.cost), not step.enough, offer.rank, predicted

    return sorted(offers, key=place)


def with_entries(workload: Workload, names: Sequence[str], changed: Callable[[ModelEntry], ModelEntry]) -> Workload:
    """A workload with some of its models' entries changed."""
    models = tuple(changed(entry) if entry.name in names else entry for entry in workload.models)
    return msgspec.structs.replace(workload, models=models)


_COSTS = tuple(step / 100 for step in range(20, 99, 2))  # of what a model takes now
_LEAST_LOAD = 0.03  # of the units' time: less cannot be what is missing
_CALIBRATION = 256  # examples that ranges of activations are found on


@dataclass
class StepContext:
    """What all steps share: the versions of each model, how accurate these are, and how cheap one must be.

    Attributes:
        app: the user's file.
        settings: what was asked for.
        labelled: data and accuracy of the models.
        seconds_left: until no further step begins.
        notify: receives what is being done.
        folder: of all steps' files.
        versions: model -> what became of it so far; those that were changed.
        rejected: model -> parts of the original's cycles at which sparsity was tried and cost too much accuracy.
        inexact: model -> kinds of int8 that lost too much in its final test.
        taking: steps are being taken; else they are only listed, with those that lack something.
    """

    app: Path
    settings: FitSettings
    labelled: Labelled
    seconds_left: Callable[[], float]
    notify: Notify
    folder: Path
    versions: dict[str, FittedModel] = field(default_factory=dict)
    rejected: dict[str, list[float]] = field(default_factory=dict)
    inexact: dict[str, set[str]] = field(default_factory=dict)
    taking: bool = False
    _needs: tuple[Situation, dict[str, float | None]] | None = field(default=None, repr=False)

    def version(self, entry: ModelEntry) -> FittedModel:
        """What became of a model so far."""
        fresh = FittedModel(name=entry.name, original=entry.path, float_path=entry.path, path=entry.path)
        return self.versions.get(entry.name, fresh)

    def candidates(self, situation: Situation) -> list[ModelEntry]:
        """Models that it may pay to change: of one frame at once, and of some weight in the load."""
        return [
            entry
            for entry in situation.workload.models
            if entry.frames == 1 and situation.share_of_load(entry.name) >= _LEAST_LOAD
        ]

    def load_if(self, situation: Situation, name: str, ratio: float) -> float:
        """The load if launches of a model took so many times as long, planned again: it may be cut otherwise then.

        Where steps are being taken nothing is planned of a model that lacks data: the load alone is estimated.
        """
        if self.taking and self.labelled.lacks(name) is not None:
            return situation.if_model_took(name, ratio)
        return situation.what_if({name: ratio}, notify=self.notify).load_ratio

    def cost_that_fits(self, situation: Situation, name: str) -> float | None:
        """The greatest part of what a model takes now at which everything fits, 0 to 1; ``None``: there is none.

        Where steps are being taken it is not looked for of a model that lacks data.
        """
        if self.taking and self.labelled.lacks(name) is not None:
            return None
        if self._needs is None or self._needs[0] is not situation:
            self._needs = situation, {}
        known = self._needs[1]
        if name not in known:
            known[name] = self._search(situation, name)
        return known[name]

    def _search(self, situation: Situation, name: str) -> float | None:
        if situation.if_model_took(name, _COSTS[0]) > 1:
            return None  # nothing has to be planned to see that
        self.notify(f"how much cheaper {name} would have to be")
        low, high = -1, len(_COSTS)  # it fits at the first, not at the second
        while high - low > 1:
            middle = (low + high) // 2
            fits = situation.what_if({name: _COSTS[middle]}, whether_fits=True, notify=self.notify).fits
            low, high = (middle, high) if fits else (low, middle)
        return _COSTS[low] if low >= 0 else None

    def in_int8(self, entry: ModelEntry, model: Model, folder: Path, *, ends: bool) -> Path:
        """A version in floating point as int8, calibrated on the model's data."""
        nodes = weight_nodes(model)
        inputs = self.labelled.data(entry.name).calibration.sample(_CALIBRATION, self.settings.seed).inputs()
        path = folder / ("int8-inner.onnx" if ends else "int8.onnx")
        quantised(model, inputs, but={nodes[0], nodes[-1]} if ends else ()).save(path, force=True)
        return path

    def change(
        self,
        situation: Situation,
        entry: ModelEntry,
        version: FittedModel,
        before: float,
        after: Accuracy,
        detail: str = "",
    ) -> Change:
        """The workload with a new version of a model, and its accuracy on the data that decide."""
        # Values that never change are in the new file already.
        changed = msgspec.structs.replace(entry, path=version.path, constants={})
        workload = with_entry(situation.workload, changed)
        workload = msgspec.structs.replace(workload, table=None, table_fallback=False)
        if situation.workload.table is not None:
            detail = f"{detail}; planned without the latency table, which knows none of its new layers".lstrip("; ")
        accuracy = StepAccuracy(
            before=before,
            after=after.top1,
            interval=after.top1_interval,
            images=after.images,
            on=self.labelled.unseen(entry.name).choice_from,
        )
        return Change(workload, version, accuracy, detail)


def entry_of(workload: Workload, name: str) -> ModelEntry:
    """A model's part of a workload."""
    return next(entry for entry in workload.models if entry.name == name)


def with_entry(workload: Workload, entry: ModelEntry) -> Workload:
    """A workload with another part for the model of this name."""
    models = tuple(entry if each.name == entry.name else each for each in workload.models)
    return msgspec.structs.replace(workload, models=models)
