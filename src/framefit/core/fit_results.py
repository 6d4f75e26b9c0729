"""Result of ``framefit fit``: ``fit.json`` of its folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from framefit.core.acceptance import Acceptance, Unseen
from framefit.core.files import Record, Result
from framefit.core.settings import Settings, Workers, check_workers, option
from framefit.core.verdict import SERVED, Verdict, share_ratio, verdict_of
from framefit.core.workload import Role

__all__ = [
    "PLAN_AFTER",
    "PLAN_BEFORE",
    "FinalAccuracy",
    "FitResult",
    "FitSettings",
    "FitStep",
    "FittedModel",
    "FrontPlan",
    "MaxDrop",
    "ModelData",
    "ProposedStep",
    "ServedModel",
    "Standing",
    "StepAccuracy",
    "StepCost",
    "StepOutcome",
    "Verification",
    "front_of",
]


PLAN_BEFORE, PLAN_AFTER = "before.timetable.json", "after.timetable.json"
"""Files of a fit's folder: the plan of the workload as it was given, and as the fit left it."""

StepCost = Literal["none", "accuracy", "rate"]
StepOutcome = Literal["kept", "no gain", "too inaccurate", "failed", "verified", "missed"]


ModelData = Annotated[
    dict[str, str],
    option(
        "Labelled data of a model: an image folder, or an .npz file; without MODEL= it is the data of the one "
        "model that it fits. A model without data is not changed.",
        metavar="[MODEL=]DATA",
        names="path",
    ),
]
MaxDrop = Annotated[float, option("Top-1 accuracy that each model may lose, 0 to 1.", metavar="RATIO", ge=0, lt=1)]


class FitSettings(Settings, kw_only=True):
    """Settings of a fit: ``--resume`` continues with them. Stored paths are absolute."""

    app: Annotated[
        str,
        option(
            "Workload to fit (default: app.toml of this folder).", argument=True, metavar="APP.toml", names="workload"
        ),
    ] = "app.toml"
    target: Annotated[
        str | None,
        option(
            "Target instead of the workload's: a built-in name, or path of a target.toml.",
            metavar="TARGET",
            names="target",
        ),
    ] = None
    data: ModelData = {}
    max_drop: MaxDrop = 0.01
    exclude: Annotated[tuple[str, ...], option("Kind of step that must not be taken.")] = ()
    max_miss_ratio: Annotated[
        float, option("Part of each model's frames that may be late or dropped in a verification.", ge=0, lt=1)
    ] = 0.01
    max_seconds: Annotated[float, option("Begin no further step after this many seconds.", metavar="SECONDS", gt=0)] = (
        1200.0
    )
    verify_seconds: Annotated[
        float, option("Length of each verification in seconds of the device's time.", metavar="SECONDS", gt=0)
    ] = 10.0
    finetune_epochs: Annotated[
        float | None,
        option(
            "Epochs of fine-tuning of a model that lost weights or layers (default: as sparsify and treeify do).",
            metavar="EPOCHS",
            ge=0,
        ),
    ] = None
    seed: Annotated[int, option("Random seed for data splits, searches and training.", ge=0)] = 0
    workers: Workers = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_workers(self.workers)
        for name in ("max_seconds", "verify_seconds", "finetune_epochs"):
            if not (getattr(self, name) or 0) < math.inf:
                raise ValueError(f"{name} must be finite, is {getattr(self, name)}")


class ServedModel(Record, kw_only=True):
    """What a model requires, and what a plan provides.

    Attributes:
        duration_ns: planned quantile of a launch of the whole model.
        frames: taken by each launch.
        asked_hz: frames a second that it asks for, see :class:`~framefit.core.timetable.PlannedModel`.
        served_hz: frames a second that it gets in the timetable; 0 without one.
    """

    name: str
    role: Role
    duration_ns: int
    frames: int = 1
    asked_hz: float
    served_hz: float

    @property
    def share_ratio(self) -> float:
        """Part of the frames that it asks for which it gets, 0 to 1."""
        return share_ratio(self)

    @property
    def work_ratio(self) -> float:
        """Part of one unit's time that all of its frames take at the planned quantile."""
        return self.duration_ns * self.asked_hz / (1e9 * self.frames)


class Standing(Record, kw_only=True):
    """How far a workload is from fitting.

    Attributes:
        verdict: of the plan.
        load_ratio: time that all models require over the time of all units that they may use, at planned quantiles;
            above 1 only cheaper models or fewer frames can make them fit.
        worst_slack_ns: of the plan.
        models: what each requires and gets.
        binding: the binding constraint, as a sentence; ``None``: there is none.
    """

    verdict: Verdict
    load_ratio: float
    worst_slack_ns: int
    models: tuple[ServedModel, ...]
    binding: str | None = None

    @property
    def fits(self) -> bool:
        """Whether the plan is feasible, and every model gets all frames that it asks for."""
        return self.verdict == "fits"

    @property
    def feasible(self) -> bool:
        """Whether priority models and all deadlines hold."""
        return self.verdict != "does not fit"

    @property
    def least_share_ratio(self) -> float:
        """Part of its required launches that the least-served model gets, 0 to 1."""
        return min((model.share_ratio for model in self.models), default=1.0) if self.feasible else 0.0

    def by(self, original: Standing) -> Verdict:
        """The verdict where models ask for what they asked for in another standing."""
        return verdict_of(self.models_by(original), feasible=self.feasible)

    def models_by(self, original: Standing) -> list[ServedModel]:
        """Its models, each asking for what it asked for in another standing; what counts as all frames is all."""
        rates_hz = {model.name: model.asked_hz for model in original.models}
        return [
            msgspec.structs.replace(
                model,
                asked_hz=rates_hz.get(model.name, 0.0),
                served_hz=model.asked_hz if model.share_ratio >= SERVED else model.served_hz,
            )
            for model in self.models
        ]


class ProposedStep(Record, kw_only=True):
    """A step that can be taken.

    Attributes:
        key: no step of this key is taken twice with the same settings.
        name: kind of the step.
        model: the model that it changes; ``None``: the workload.
        what: description, as a part of a sentence ("sparsify 'tags' to 0.55 of its cycles").
        cost: what is lost: nothing but time, accuracy, or frames.
        predicted_load_ratio: after the step; ``None``: not predictable.
        enough: whether this step alone is predicted to suffice.
        cycles_ratio: part of the original's cycles that sparsity shall reach.
        needs: what is missing for the step, with the remedy; ``None``: nothing.
    """

    key: str
    name: str
    model: str | None = None
    what: str
    cost: StepCost
    predicted_load_ratio: float | None = None
    enough: bool = False
    cycles_ratio: float | None = None
    needs: str | None = None


class StepAccuracy(Record, kw_only=True):
    """Accuracy of the model that a step changed, on the data that decide about steps.

    Attributes:
        before, after: top-1, or agreement with the user's model, 0 to 1.
        interval: 90 %, of the latter.
        images: number of examples.
        on: where these come from.
    """

    before: float
    after: float
    interval: tuple[float, float]
    images: int
    on: Unseen


class FitStep(Record, kw_only=True):
    """A step that was taken, or a verification.

    Attributes:
        number: from 1.
        key: of the proposal.
        name: kind of the step; "verify": the plan was simulated or run; "restore": a model was restored, since the
            workload fits without its change.
        what: description of the step.
        cost: of the proposal; what is no proposal costs nothing.
        folder: of its files, relative to the result's; ``None``: it has none.
        predicted, gained: what the step was predicted to take off the load, and took off it as planned again;
            ``None``: not predictable, or it failed.
        cycles_ratio: of the proposal.
        load_ratio: (before, after); after is ``None`` if it failed.
        share_ratio: part of its required launches that the least-served model gets, (before, after); of a verification
            the planned part, and the real one.
        accuracy: of the model; ``None``: unchanged.
        outcome: "kept": the workload has changed; "no gain", "too inaccurate", "failed": it has not; "verified",
            "missed": result of a verification.
        detail: reason, as a sentence.
        seconds: wall clock.
    """

    number: int
    key: str
    name: str
    model: str | None = None
    what: str
    cost: StepCost = "none"
    folder: str | None = None
    predicted: float | None = None
    gained: float | None = None
    cycles_ratio: float | None = None
    load_ratio: tuple[float, float | None]
    share_ratio: tuple[float, float | None]
    accuracy: StepAccuracy | None = None
    outcome: StepOutcome
    detail: str = ""
    seconds: float


class FinalAccuracy(Record, kw_only=True):
    """Top-1 on test data that decided nothing before, and are used once at the end.

    Attributes:
        top1: (of the user's model, of the final model), 0 to 1.
        interval: 90 % interval of the latter, Wilson's.
        images: number of images for both.
        acceptance: both on the same images, with an interval of the loss; ``None``: of a version that did not tell.
    """

    top1: tuple[float, float]
    interval: tuple[float, float]
    images: int
    acceptance: Acceptance | None = None

    @property
    def drop(self) -> float:
        """Loss of accuracy; negative: a gain."""
        return self.top1[0] - self.top1[1]


class FittedModel(Record, kw_only=True):
    """A model that steps have changed; paths are absolute, or relative to the result's folder.

    Attributes:
        original: the user's file.
        float_path: the latest version in floating point, from which int8 is made.
        path: of the version that the workload runs.
        cycles_ratio: part of the original's cycles that sparsity had to reach; 1: no sparsity.
        int8: whether the path is quantised; "ends": all but its first and last layer with weights.
        trees: whether trees have replaced layers.
        float_drop: loss of top-1 of the version in floating point, as estimated from validation data.
        drop: the same of the version that the workload runs.
        test: final accuracy on the test data.
    """

    name: str
    original: str
    float_path: str
    path: str
    cycles_ratio: float = 1.0
    int8: Literal["no", "all", "ends"] = "no"
    trees: bool = False
    float_drop: float = 0.0
    drop: float = 0.0
    test: FinalAccuracy | None = None


class Verification(Record, kw_only=True):
    """What proved the final plan.

    Attributes:
        by: how it was done.
        windows: that were simulated or run.
        missed: frames of all models that were late or dropped, no more than were allowed.
    """

    by: Literal["simulated", "run"]
    windows: int
    missed: int


class FrontPlan(Record, kw_only=True):
    """One way to make the workload fit, as planning again prices it.

    Attributes:
        steps: that lead to it, as parts of sentences.
        frames_lost_ratio: part of the frames that the user's workload asks for that models do not get.
        accuracy_lost: of the model that loses most, 0 to 1, on the data that decide.
        load_ratio: as of a standing.
        served_hz: model -> frames a second that it gets.
        chosen: whether the fit ended with it.
    """

    steps: tuple[str, ...]
    frames_lost_ratio: float
    accuracy_lost: float
    load_ratio: float
    served_hz: dict[str, float]
    chosen: bool = False

    def is_beaten_by(self, other: FrontPlan) -> bool:
        """Whether another plan is better in one respect, and worse in none."""
        mine, others = ((plan.frames_lost_ratio, plan.accuracy_lost, plan.load_ratio) for plan in (self, other))
        return others != mine and all(theirs <= own for theirs, own in zip(others, mine, strict=True))


def front_of(plans: Sequence[FrontPlan], most: int) -> tuple[FrontPlan, ...]:
    """Plans none of which is better than another in all respects, those that lose the fewest frames first.

    Args:
        plans: to choose from; of those that are alike the last one, and the chosen one in any case.
        most: of them; where there are more, those remain whose frames lost are farthest apart.
    """
    alike = {(round(p.frames_lost_ratio, 4), round(p.accuracy_lost, 4), round(p.load_ratio, 4)): p for p in plans}
    kept = [p for p in alike.values() if p.chosen or not any(p.is_beaten_by(other) for other in alike.values())]
    kept.sort(key=lambda plan: (plan.frames_lost_ratio, plan.accuracy_lost, plan.load_ratio))
    while len(kept) > most:
        gaps = [
            (after.frames_lost_ratio - before.frames_lost_ratio, place + 1)
            for place, (before, after) in enumerate(zip(kept, kept[2:], strict=False))
            if not kept[place + 1].chosen
        ]
        kept.pop(min(gaps)[1])
    return tuple(kept)


class FitResult(Result, kw_only=True):
    """``framefit fit --json``, ``fit.json``.

    Attributes:
        verdict: on the resulting workload, by the frames that the user's own asked for.
        fits: the plan fits, a verification proves it, and every changed model is within its accuracy; without
            ``applied``: the workload fits as it is.
        applied: whether steps were taken, or only proposed.
        before, after: state of the user's workload, and of the resulting one.
        verified: what proved the final plan; ``None``: nothing did.
        margin_ratio: factor on planned durations of launches, after a verification missed.
        steps: in the order in which they were taken.
        proposals: remaining ones, the next one first.
        models: those that were changed.
        table: latency table with measured times of layers, relative to the folder; ``None``: none was written.
        front: ways to make it fit, none better than another in frames lost, accuracy lost and load.
        notes: remarks, as sentences.
        seconds: wall clock, including interrupted calls.
    """

    schema_version: int = 1
    settings: FitSettings
    target: str
    verdict: Verdict
    fits: bool
    applied: bool
    before: Standing
    after: Standing
    verified: Verification | None = None
    margin_ratio: float = 1.0
    steps: tuple[FitStep, ...] = ()
    proposals: tuple[ProposedStep, ...] = ()
    models: tuple[FittedModel, ...] = ()
    table: str | None = None
    interrupted: bool = False
    front: tuple[FrontPlan, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
