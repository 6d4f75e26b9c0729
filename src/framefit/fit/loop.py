"""The loop of ``framefit fit``: plan, take the cheapest step that may help, plan again, until it is shown to fit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict

from framefit.core.fit_results import (
    FitResult,
    FitSettings,
    FitStep,
    FittedModel,
    ProposedStep,
    Standing,
    StepCost,
    StepOutcome,
)
from framefit.core.run_record import Metrics
from framefit.core.settings import Notify, part_of, silent, verb
from framefit.core.target import BUILTIN_TARGETS, target_file
from framefit.core.verdict import share_ratio
from framefit.core.workload import Workload, load_workload
from framefit.errors import FramefitError, InputError
from framefit.fit.accuracy import Labelled, sized
from framefit.fit.folder import FitFolder, located
from framefit.fit.settings import FitOptions
from framefit.fit.situation import Situation, is_better
from framefit.fit.step import COSTS, Change, Offer, StepContext, entry_of, ranked, with_entry
from framefit.fit.steps import known_steps
from framefit.planning.plan import Plan
from framefit.training.campaign import Ledger
from framefit.workflows.run import run, simulate

__all__ = ["fit"]


_LEAST_MORE, _MOST_MORE = 1.03, 1.25  # times the margin before


@dataclass(frozen=True)
class Proof:
    """What a run of the plan showed.

    Attributes:
        how: it was done.
        share_ratio: of its frames that the worst-served model got in time, 0 to 1.
        holds: whether that is enough.
        detail: the worst-served model, as a sentence.
        more_ratio: times the present margin to plan with next, where it does not hold.
    """

    how: Literal["simulated", "run"]
    share_ratio: float
    holds: bool
    detail: str
    more_ratio: float


def proven(situation: Situation, settings: FitSettings, folder: Path, table: Path, notify: Notify) -> Proof:
    """Run a plan that fits, profile it, and write what layers took into a latency table.

    Sinks stay closed: nothing that the user has is written.

    Args:
        situation: its plan.
        settings: length, seed and what may be missed.
        folder: gets the run folder.
        table: is written, or updated.
        notify: receives what is being done.

    Raises:
        DeviceError: the device failed in mid-run.
    """
    planned = _without_sinks(situation.planned)
    play = simulate if situation.described else run
    result = play(
        planned,
        seconds=settings.verify_seconds,
        output=folder,
        force=True,
        seed=settings.seed,
        update_table=table,
        notify=notify,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    share = min(map(share_ratio, result.metrics.models))
    degraded = [model.name for model in result.metrics.models if model.degraded]
    detail = f"{_misses_text(result.metrics)} in {result.metrics.windows} windows"
    return Proof(
        how="simulated" if situation.described else "run",
        share_ratio=share,
        holds=share >= 1 - settings.max_miss_ratio and not degraded,
        detail=detail + "".join(f"; {name!r} ended degraded" for name in degraded),
        more_ratio=min(max(1.01 / max(share, 0.01), _LEAST_MORE), _MOST_MORE),
    )


def _without_sinks(planned: Plan) -> Plan:
    return dataclasses.replace(planned, workload=msgspec.structs.replace(planned.workload, outputs=()))


def _misses_text(metrics: Metrics) -> str:
    bad = [(model, round((1 - share_ratio(model)) * model.releases)) for model in metrics.models]
    text = ", ".join(f"{model.name!r} missed {missed} of {model.releases} frames" for model, missed in bad if missed)
    return text or "every frame of every model was done in time"


_MOST_MARGIN = 2.0  # beyond it the machine is not what was planned for
_ROUNDING = 1e-9


class FitLoop:
    """One fit, from how the user's workload stands to the record.

    Args:
        settings: what was asked for.
        original: the user's workload, located.
        labelled: data of its models.
        folder: where everything new goes; ``None``: nothing is written, and no step taken.
        notify: receives what is being done.
        begun: the record of a fit that is gone on with, and the workload as it left that.
    """

    def __init__(
        self,
        settings: FitSettings,
        original: Workload,
        labelled: Labelled,
        folder: FitFolder | None,
        notify: Notify,
        begun: tuple[FitResult, Workload] | None = None,
    ) -> None:
        self.settings, self.labelled, self.folder, self.notify = settings, labelled, folder, notify
        self._app, self._original = Path(settings.app), original
        self._ledger = Ledger(earlier_s=0.0 if begun is None else begun[0].seconds)
        self._context = StepContext(
            *(self._app, settings, labelled, self._seconds_left, notify),
            folder=Path() if folder is None else folder.steps,
        )
        self._steps: list[FitStep] = []
        self._tried: set[str] = set()
        self._nothing_free: Situation | None = None
        self._verified: Literal["simulated", "run"] | None = None
        self._before: Standing | None = None
        self._notes: list[str] = []
        margin, workload = 1.0, original
        if begun is not None:
            earlier, workload = begun
            self._steps, self._before, margin = list(earlier.steps), earlier.before, earlier.margin_ratio
            self._context.versions = {model.name: model for model in earlier.models}
            alike = msgspec.structs.replace(earlier.settings, max_seconds=settings.max_seconds) == settings
            for step in earlier.steps:
                if alike or step.outcome in ("kept", "no gain"):  # what failed may do with other settings
                    self._remember(step)
        self._situation = Situation.of(self._app, workload, margin, notify)
        self._before = self._before or self._situation.standing
        self._kinds = [kind(self._context) for name, kind in known_steps().items() if name not in settings.exclude]

    def run(self, *, apply: bool) -> tuple[FitResult, Plan]:
        """The fit; what was done so far, where the user interrupts it."""
        interrupted = fits = False
        offers: Sequence[Offer] = ()
        try:
            if apply:
                self._written(self._so_far())  # a folder that can be gone on with, whatever ends the first step
                self._fit()
            fits = self._situation.standing.fits and (not apply or (self._verified is not None and self._accurate()))
            if not self._situation.standing.fits:
                offers = self._offers(*COSTS)
        except KeyboardInterrupt:
            interrupted = True
        result = self._record(fits=fits, applied=apply, offers=offers, interrupted=interrupted)
        return self._written(result), self._situation.planned

    def _fit(self) -> None:
        while self._verified is None:
            if self._situation.standing.fits:
                self._restore()
                if not self._prove():
                    return
                continue
            if self._seconds_left() <= 0:
                self._notes.append(f"no step began after {self.settings.max_seconds:g} s; --resume goes on")
                return
            lacking: list[Offer] = []
            offer = self._next(lacking)
            if offer is None:
                return
            self._take(offer)
            self._note(lacking)

    def _next(self, lacking: list[Offer]) -> Offer | None:
        """The cheapest step that may be taken; steps that cost more are not even looked for.

        Args:
            lacking: gets the steps that would be as cheap or cheaper, and need something.
        """
        for cost in COSTS:
            if cost == "none" and self._nothing_free is self._situation:
                continue  # asked before, and nothing has changed since
            offers = self._offers(cost)
            if cost == "none" and not offers:
                self._nothing_free = self._situation
            lacking += [offer for offer in offers if offer.step.needs is not None]
            if offers and offers[0].step.needs is None:  # those that need something come last
                return offers[0]
        return None

    def _note(self, lacking: Sequence[Offer]) -> None:
        """Where frames were given up: what might have been done instead."""
        last = self._steps[-1]
        alternatives = [f"{offer.step.what} {offer.step.needs}" for offer in lacking]
        if last.name == "rate" and last.outcome == "kept" and alternatives:
            self._notes.append(f"before fewer frames would come: {'; '.join(alternatives)}")

    def _offers(self, *costs: StepCost) -> list[Offer]:
        """What may be done next at these costs and was not, the cheapest first."""
        kinds = [kind for cost in costs for kind in self._kinds if kind.cost == cost]
        offers = [offer for kind in kinds for offer in kind.propose(self._situation)]
        return [offer for offer in ranked(offers) if offer.step.key not in self._tried]

    def _take(self, offer: Offer) -> None:
        """Make a change, plan again, and keep it where that is better and accurate enough."""
        step, before, started = offer.step, self._situation, time.monotonic()
        assert self.folder is not None
        folder = self.folder.step(len(self._steps) + 1, step.key)
        self.notify(step.what)
        after: Situation | None = None
        change: Change | None = None
        outcome: StepOutcome = "failed"
        try:
            change = offer.take(folder)
            outcome, detail = self._inaccurate(change)
            if outcome == "kept":
                after = Situation.of(self._app, change.workload, before.margin_ratio, self.notify)
                if not is_better(before.standing, after.standing):
                    outcome, detail = "no gain", "planned again, it is no better"
        except FramefitError as error:
            outcome, detail = "failed", error.what + (f" ({error.remedy})" if error.remedy else "")
        except Exception as error:  # noqa: BLE001 - whatever a tool on the way raises ends the step, not the fit
            outcome, detail = "failed", f"{type(error).__name__}: {error}"
        if change is not None and change.detail:
            detail = f"{detail}; {change.detail}".lstrip("; ")
        if outcome == "kept" and after is not None and change is not None:
            self._keep(after, change.fitted)
        standing = None if after is None else after.standing
        self._add(step, folder, before.standing, standing, change, outcome, detail, time.monotonic() - started)

    def _inaccurate(self, change: Change) -> tuple[StepOutcome, str]:
        """Whether a change costs more accuracy than is allowed."""
        fitted = change.fitted
        if fitted is None or fitted.drop <= self.settings.max_drop + _ROUNDING:
            return "kept", ""
        return "too inaccurate", f"{100 * fitted.drop:.2f} points lost on validation data"

    def _keep(self, after: Situation, fitted: FittedModel | None) -> None:
        """Go on from there; a new version of a model moves to where the workload finds it."""
        if fitted is not None and self.folder is not None:
            fitted = self.folder.adopt(fitted)
            self._context.versions[fitted.name] = fitted
            entry = msgspec.structs.replace(entry_of(after.workload, fitted.name), path=fitted.path)
            planned = dataclasses.replace(after.planned, workload=with_entry(after.workload, entry))
            after = dataclasses.replace(after, planned=planned)
        self._situation = after

    def _restore(self) -> None:
        """Models that were changed, and need not have been: what came later is enough without."""
        for name in list(self._context.versions):
            before, started = self._situation, time.monotonic()
            original = entry_of(self._original, name)
            entry = msgspec.structs.replace(
                entry_of(before.workload, name), path=original.path, constants=original.constants
            )
            workload = with_entry(before.workload, entry)
            if not before.what_if(workload=workload, notify=self.notify).fits:
                continue
            self._situation = Situation.of(self._app, workload, before.margin_ratio, self.notify)
            del self._context.versions[name]
            self._append(
                FitStep(
                    number=len(self._steps) + 1,
                    key=f"restore: {name} {len(self._steps) + 1}",
                    name="restore",
                    model=name,
                    what=f"give {name!r} its own weights back",
                    load_ratio=(before.standing.load_ratio, self._situation.standing.load_ratio),
                    share_ratio=(before.standing.least_share_ratio, self._situation.standing.least_share_ratio),
                    outcome="kept",
                    detail="it fits without",
                    seconds=time.monotonic() - started,
                )
            )

    def _prove(self) -> bool:
        """Simulate or run the plan; where it does not hold, plan with a greater margin.

        Returns:
            Whether to go on.
        """
        assert self.folder is not None
        situation, started = self._situation, time.monotonic()
        number = sum(step.name == "verify" for step in self._steps) + 1
        folder = self.folder.step(len(self._steps) + 1, "verify")
        share_ratio = situation.standing.least_share_ratio
        share: float | None = None
        outcome: StepOutcome = "failed"
        going_on = False
        try:
            proof = proven(situation, self.settings, folder / "run", self.folder.table, self.notify)
            share, detail, outcome = proof.share_ratio, proof.detail, "verified" if proof.holds else "missed"
            self._verified = proof.how if proof.holds else None
            margin = situation.margin_ratio * proof.more_ratio
            going_on = proof.holds or (margin <= _MOST_MARGIN and self._seconds_left() > 0)
            if going_on and not proof.holds:
                detail += f"; planned again with launches that take {margin:.2f} times as long"
                self._situation = Situation.of(self._app, situation.workload, margin, self.notify)
        except FramefitError as error:
            detail = error.what
        load = situation.standing.load_ratio
        self._append(
            FitStep(
                number=len(self._steps) + 1,
                key=f"verify {number}",
                name="verify",
                what="simulate the plan" if situation.described else "run the plan",
                folder=self.folder.name_of(folder),
                load_ratio=(load, load),
                share_ratio=(share_ratio, share),
                outcome=outcome,
                detail=detail,
                seconds=time.monotonic() - started,
            )
        )
        return going_on

    def _add(
        self,
        step: ProposedStep,
        folder: Path,
        before: Standing,
        after: Standing | None,
        change: Change | None,
        outcome: StepOutcome,
        detail: str,
        seconds: float,
    ) -> None:
        assert self.folder is not None
        files = any(folder.iterdir())
        if not files:
            folder.rmdir()
        self._append(
            FitStep(
                number=len(self._steps) + 1,
                key=step.key,
                name=step.name,
                model=step.model,
                what=step.what,
                folder=self.folder.name_of(folder) if files else None,
                predicted_load_ratio=step.predicted_load_ratio,
                cycles_ratio=step.cycles_ratio,
                load_ratio=(before.load_ratio, None if after is None else after.load_ratio),
                share_ratio=(before.least_share_ratio, None if after is None else after.least_share_ratio),
                top1=None if change is None else change.top1,
                outcome=outcome,
                detail=detail,
                seconds=seconds,
            )
        )

    def _append(self, step: FitStep) -> None:
        """Take down a step; what is not written yet is all that an interruption costs."""
        self._steps.append(step)
        self._remember(step)
        self._written(self._so_far())

    def _remember(self, step: FitStep) -> None:
        """No step is taken twice, and what was too sparse is not tried sparser."""
        self._tried.add(step.key)
        if step.cycles_ratio is not None and step.outcome == "too inaccurate" and step.model is not None:
            self._context.rejected.setdefault(step.model, []).append(step.cycles_ratio)

    def _accurate(self) -> bool:
        """The models that were changed, on test data: whether each is within what may be lost."""
        within = True
        for name, fitted in self._context.versions.items():
            self.notify(f"final accuracy of {name}")
            test = self.labelled.final(fitted, Path(fitted.path))
            self._context.versions[name] = msgspec.structs.replace(fitted, test=test)
            if test.drop > self.settings.max_drop + _ROUNDING:
                within = False
                low, high = test.interval
                self._notes.append(
                    f"{name!r} lost {100 * test.drop:.2f} points on its {test.images:,} test images, "
                    f"{100 * self.settings.max_drop:g} are allowed (90 %: {100 * low:.1f} to {100 * high:.1f} % right)"
                )
        return within

    def _so_far(self) -> FitResult:
        """What stays where the fit ends at once."""
        return self._record(fits=False, applied=True, offers=(), interrupted=True)

    def _record(self, *, fits: bool, applied: bool, offers: Sequence[Offer], interrupted: bool) -> FitResult:
        assert self._before is not None
        table = self.folder is not None and self.folder.table.is_file()
        verdict = self._situation.standing.by(self._before)
        return FitResult(
            verdict=verdict if fits or not applied else "does not fit",
            settings=self.settings,
            target=self._situation.planned.device.target.name,
            fits=fits,
            applied=applied,
            before=self._before,
            after=self._situation.standing,
            verified=self._verified,
            margin_ratio=self._situation.margin_ratio,
            steps=tuple(self._steps),
            proposals=tuple(offer.step for offer in offers),
            models=tuple(self._context.versions.values()),
            table=self.folder.table.name if table and self.folder is not None else None,
            interrupted=interrupted,
            notes=(*self._notes, *self._situation.planned.timetable.reasons),
            seconds=self._ledger.seconds,
        )

    def _written(self, result: FitResult) -> FitResult:
        if self.folder is None:
            return result
        return self.folder.write(result, self._situation.workload, self._app)

    def _seconds_left(self) -> float:
        return self.settings.max_seconds - self._ledger.running_s


@dataclass(frozen=True)
class Fitted:
    """What a fit left behind.

    Attributes:
        result: the record.
        plan: of the workload as it stands now.
        folder: with ``app.toml`` and ``fit.json``; ``None``: nothing was written.
    """

    result: FitResult
    plan: Plan
    folder: Path | None


def _earlier(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the fit that is resumed.

    Raises:
        InputError: another workload is given beside it.
    """
    if given.get("resume") is None:
        return {}
    if {"app", "target"} & given.keys():
        raise InputError("a fit that goes on keeps its workload", remedy="give --resume DIR without APP.toml, --target")
    earlier, _ = FitFolder(Path(given["resume"])).earlier()
    return asdict(earlier.settings)


@verb(FitOptions, "app", earlier=_earlier)
def fit(settings: FitOptions, *, notify: Notify = silent) -> Fitted:
    """Plan a workload; where it does not fit, propose what would help, or do it until it fits and a run proves it.

    A workload fits where its plan is feasible and no model gets fewer launches than its frames ask for
    (docs/fit.md). The user's files stay as they are.

    With ``resume``, what is not given is as in the earlier fit.

    Args:
        settings: what to fit.
        notify: receives what is being done.

    Returns:
        The record, the plan and the folder; where the user interrupted it, what was done so far.

    Raises:
        InputError: app, data, folder or settings that cannot be used; see :func:`framefit.plan`.
        DeviceError: a model does not run.

    Example:
        >>> framefit.fit("app.toml", data={"tags": "tags.npz"}, apply=True).result.fits  # doctest: +SKIP
        True
    """
    target = settings.target
    fit_settings = part_of(
        settings,
        FitSettings,
        app=str(Path(settings.app).resolve()),
        target=target if target is None or target in BUILTIN_TARGETS else str(target_file(target).resolve()),
        data={name: str(Path(path).resolve()) for name, path in settings.data.items()},
    )
    apply, begun = settings.apply, None
    folder: FitFolder | None = None
    if settings.resume is not None:
        folder, apply = FitFolder(Path(settings.resume)), True
        earlier, workload = folder.earlier()
        begun = earlier, located(workload, folder.path)
    elif apply or settings.output is not None:
        folder = FitFolder(Path(settings.output or f"{Path(settings.app).stem}-fit"))
        folder.check_free(force=settings.force)
    original = _original(fit_settings)
    loop = FitLoop(fit_settings, original, Labelled(fit_settings, original), folder, notify, begun)
    if folder is not None and begun is None:  # last: whatever is refused before leaves what is there
        folder.clear()
    result, planned = loop.run(apply=apply)
    return Fitted(result, planned, None if folder is None else folder.path)


def _original(settings: FitSettings) -> Workload:
    """The user's workload, on the target that is asked for, with all shapes."""
    workload = load_workload(settings.app)
    if settings.target is not None:
        workload = msgspec.structs.replace(workload, target=settings.target)
    return sized(located(workload, Path(settings.app).parent), Path(settings.app))
