"""The loop of ``framefit fit``: plan, take the cheapest step that may help, plan again, until it is shown to fit."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from framefit.core.fit_results import (
    FitResult,
    FitSettings,
    FitStep,
    FittedModel,
    FrontPlan,
    ProposedStep,
    Standing,
    StepCost,
    StepOutcome,
    Verification,
    front_of,
)
from framefit.core.settings import Notify, part_of, silent, verb
from framefit.core.target import absolute_target
from framefit.core.verdict import SERVED, share_ratio
from framefit.core.workload import Workload, load_workload
from framefit.errors import FramefitError, InputError
from framefit.fit.accuracy import Labelled, sized
from framefit.fit.folder import FitFolder, located
from framefit.fit.free import free_steps
from framefit.fit.settings import FitOptions
from framefit.fit.situation import Situation, is_better
from framefit.fit.step import COSTS, Change, FreeStep, Offer, StepContext, entry_of, ranked, with_entry
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
        verification: how it was done, and how many frames it missed.
        share_ratio: of its frames that the worst-served model got in time, 0 to 1.
        holds: whether that is enough.
        missed: models that got fewer.
        detail: the worst-served model, as a sentence.
        more_ratio: times the present margin to plan with next, where it does not hold.
    """

    verification: Verification
    share_ratio: float
    holds: bool
    missed: tuple[str, ...]
    detail: str
    more_ratio: float


def proven(situation: Situation, settings: FitSettings, folder: Path, table: Path, notify: Notify) -> Proof:
    """Simulate or run a plan that fits; of a run, write what layers took into a latency table.

    A simulation's layers take what the description says: profiling it would take longer than the fit.

    Sinks stay closed: nothing that the user has is written.

    Args:
        situation: its plan.
        settings: length, seed and what may be missed.
        folder: gets the run folder.
        table: is written, or updated, by a run.
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
        update_table=None if situation.described else table,
        notify=notify,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    shares = {model.name: share_ratio(model) for model in result.metrics.models}
    share = min(shares.values())
    degraded = [model.name for model in result.metrics.models if model.degraded]
    windows, models = result.metrics.windows, result.metrics.models
    missed = {model.name: round((1 - shares[model.name]) * model.releases) for model in models}
    misses = [
        f"{each.name!r} missed {missed[each.name]} of {each.releases} frames" for each in models if missed[each.name]
    ]
    detail = f"{', '.join(misses) or 'every frame of every model was done in time'} in {windows} windows"
    return Proof(
        verification=Verification(
            by="simulated" if situation.described else "run",
            windows=windows,
            missed=sum(missed.values()),
        ),
        share_ratio=share,
        holds=share >= 1 - settings.max_miss_ratio and not degraded,
        missed=tuple(name for name, share in shares.items() if share < 1 - settings.max_miss_ratio),
        detail=detail + "".join(f"; {name!r} ended degraded" for name in degraded),
        more_ratio=min(max(1.01 / max(share, 0.01), _LEAST_MORE), _MOST_MORE),
    )


def _without_sinks(planned: Plan) -> Plan:
    return dataclasses.replace(planned, workload=msgspec.structs.replace(planned.workload, outputs=()))


_MOST_MARGIN = 2.0  # beyond it the machine is not what was planned for
_ROUNDING = 1e-9
_MOST_FRONT = 5
_MOST_BACKS = 3  # times that a step is taken half as far after a failed final test


class FitLoop:
    """One fit, from how the user's workload stands to the record.

    Args:
        settings: what was asked for.
        original: the user's workload, located.
        labelled: data of its models.
        folder: where everything new goes; ``None``: nothing is written, and no step taken.
        notify: receives what is being done.
        begun: the record of a fit that is gone on with, and the workload as it left that.
        on_step: receives each step that begins.
    """

    def __init__(
        self,
        settings: FitSettings,
        original: Workload,
        labelled: Labelled,
        folder: FitFolder | None,
        notify: Notify,
        begun: tuple[FitResult, Workload] | None = None,
        on_step: Notify = silent,
    ) -> None:
        self.on_step = on_step
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
        self._path: deque[Offer] = deque()
        self._plans: list[FrontPlan] = []
        self._lost: list[str] = []
        self._backs = self._known = 0
        self._verified: Verification | None = None
        self._before: Standing | None = None
        self._notes: list[str] = []
        margin, workload = 1.0, original
        if begun is not None:
            earlier, workload = begun
            self._steps, self._before, margin = list(earlier.steps), earlier.before, earlier.margin_ratio
            self._plans = [plan for plan in earlier.front if not plan.chosen]
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
        interrupted = fits = accurate = False
        offers: Sequence[Offer] = ()
        if self.folder is not None and self._before is self._situation.standing:
            self.folder.write_before(self._situation.planned.timetable)
        try:
            if apply:
                self._context.taking = True
                self._written(self._so_far())  # a folder that can be gone on with, whatever ends the first step
                self._fit()
                accurate = self._accurate()
                while self._verified is not None and not accurate and self._step_back():
                    self._fit()
                    accurate = self._accurate()
            fits = self._situation.standing.fits and (not apply or (self._verified is not None and accurate))
            if not self._situation.standing.fits:
                self._context.taking = False
                offers = self._offers(*COSTS)
                if not apply:
                    self._price(None)
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
            self._price(offer)
            if offer is None:
                return
            self._take(offer)
            self._note(lacking)

    def _next(self, lacking: list[Offer]) -> Offer | None:
        """The cheapest step that may be taken; steps that cost more are not even looked for.

        Args:
            lacking: gets the steps that would be as cheap or cheaper, and need something.
        """
        if self._path:
            return self._path.popleft()
        for cost in COSTS:
            offers = self._offers(cost)
            self._known = len(self._steps) + len(offers) + 1  # and a verification
            if cost == "none" and offers:
                self._path.extend(offers[1:])
                return offers[0]
            lacking += [offer for offer in offers if offer.step.needs is not None]
            if offers and offers[0].step.needs is None:  # those that need something come last
                return offers[0]
        return None

    def _price(self, following: Offer | None) -> None:
        """Note what fewer frames would do here, unless this belongs to what comes next: planned, and not taken."""
        if self._path or (following is not None and following.part):
            return
        for kind in self._kinds:
            for offer in kind.alternatives(self._situation):
                standing = self._situation.what_if(workload=offer.take(Path()).workload, notify=self.notify)
                self._plans.append(self._front_plan(standing, offer.step.what))

    def _front_plan(self, standing: Standing, *more: str, chosen: bool = False) -> FrontPlan:
        """A plan that fits, beside the others."""
        assert self._before is not None
        models = standing.models_by(self._before)
        asked_hz = sum(model.asked_hz for model in models)
        lost_hz = sum(max(model.asked_hz - model.served_hz, 0.0) for model in models if model.share_ratio < SERVED)
        return FrontPlan(
            steps=(*(step.what for step in self._steps if step.outcome == "kept"), *more),
            frames_lost_ratio=lost_hz / asked_hz if asked_hz else 0.0,
            accuracy_lost=max([0.0, *(version.drop for version in self._context.versions.values())]),
            load_ratio=standing.load_ratio,
            served_hz={model.name: model.served_hz for model in models},
            chosen=chosen,
        )

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
        offers = [offer for offer in ranked(offers) if offer.step.key not in self._tried]
        return [*(self._free() if "none" in costs else ()), *offers]

    def _free(self) -> list[Offer]:
        """Steps without cost that belong together, in order; looked for once in a situation."""
        if self._nothing_free is self._situation:
            return []
        kinds = [kind for kind in self._kinds if isinstance(kind, FreeStep)]
        offers = free_steps(self._situation, kinds, self._context)
        if not offers or any(offer.step.key in self._tried for offer in offers):
            self._nothing_free = self._situation
            return []
        return offers

    def _take(self, offer: Offer) -> None:
        """Make a change, plan again, and keep it where that is better and accurate enough."""
        step, before, started = offer.step, self._situation, time.monotonic()
        assert self.folder is not None
        folder = self.folder.step(len(self._steps) + 1, step.key)
        self._tell(step.what)
        after: Situation | None = None
        change: Change | None = None
        outcome: StepOutcome = "failed"
        try:
            change = offer.take(folder)
            outcome, detail = self._inaccurate(change)
            if outcome == "kept":
                after = Situation.of(self._app, change.workload, before.margin_ratio, self.notify)
                if not offer.part and not is_better(before.standing, after.standing):
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

    def _tell(self, what: str) -> None:
        """Say which step begins, of how many that are known of, and how long is left."""
        number = len(self._steps) + 1
        self.on_step(f"step {number} of {max(self._known, number)}: {what}, {max(self._seconds_left(), 0):,.0f} s left")

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
            if self._situation.what_if(workload=self._with_own_weights(name), notify=self.notify).fits:
                self._own_weights(name, "it fits without")

    def _with_own_weights(self, name: str) -> Workload:
        """The present workload with the user's own version of a model."""
        original, entry = entry_of(self._original, name), entry_of(self._situation.workload, name)
        return with_entry(
            self._situation.workload,
            msgspec.structs.replace(entry, path=original.path, constants=original.constants),
        )

    def _own_weights(self, name: str, detail: str) -> None:
        """Give a model its own weights back, as a step."""
        before, started = self._situation, time.monotonic()
        self._situation = Situation.of(self._app, self._with_own_weights(name), before.margin_ratio, self.notify)
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
                detail=detail,
                seconds=time.monotonic() - started,
            )
        )

    def _prove(self) -> bool:
        """Simulate or run the plan; where it does not hold, do what costs nothing, or plan with a greater margin.

        Returns:
            Whether to go on.
        """
        assert self.folder is not None
        situation, started = self._situation, time.monotonic()
        number = sum(step.name == "verify" for step in self._steps) + 1
        folder = self.folder.step(len(self._steps) + 1, "verify")
        self._tell("simulate the plan" if situation.described else "run the plan")
        share_ratio = situation.standing.least_share_ratio
        share: float | None = None
        outcome: StepOutcome = "failed"
        going_on, steadier = False, None
        try:
            proof = proven(situation, self.settings, folder / "run", self.folder.table, self.notify)
            share, detail, outcome = proof.share_ratio, proof.detail, "verified" if proof.holds else "missed"
            self._verified = proof.verification if proof.holds else None
            margin = situation.margin_ratio * proof.more_ratio
            going_on = proof.holds or (margin <= _MOST_MARGIN and self._seconds_left() > 0)
            steadier = self._steadier(proof.missed) if going_on and not proof.holds else None
            if going_on and not proof.holds and steadier is None:
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
        if steadier is not None:
            self._take(steadier)
        return going_on

    def _steadier(self, missed: Sequence[str]) -> Offer | None:
        """What costs nothing and keeps frames of these models in time, where the plan with it fits, too."""
        situation = self._situation
        for kind in self._kinds:
            for way in kind.against_misses(situation, missed) if isinstance(kind, FreeStep) else ():
                try:
                    standing = situation.what_if(workload=way.workload, notify=self.notify)
                except FramefitError:
                    continue
                offer = kind.replanned(way.what, way.workload, standing, situation, part=True)
                if standing.fits and offer.step.key not in self._tried:
                    return offer
        return None

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
        predicted = step.predicted_load_ratio
        self._append(
            FitStep(
                number=len(self._steps) + 1,
                key=step.key,
                name=step.name,
                model=step.model,
                what=step.what,
                cost=step.cost,
                folder=self.folder.name_of(folder) if files else None,
                predicted=None if predicted is None else before.load_ratio - predicted,
                gained=None if after is None else before.load_ratio - after.load_ratio,
                cycles_ratio=step.cycles_ratio,
                load_ratio=(before.load_ratio, None if after is None else after.load_ratio),
                share_ratio=(before.least_share_ratio, None if after is None else after.least_share_ratio),
                accuracy=None if change is None else change.accuracy,
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

    def _step_back(self) -> bool:
        """Take back what lost too much in the final test, so that it is tried half as far.

        What is tried then is judged by the data that decide, which the final test does not use.

        Returns:
            Whether to go on.
        """
        lost = [version for version in self._context.versions.values() if not self._kept(version)]
        if self._backs >= _MOST_BACKS or self._seconds_left() <= 0 or not lost:
            return False
        self._backs += 1
        for version in lost:
            if version.cycles_ratio < 1:
                self._context.rejected.setdefault(version.name, []).append(version.cycles_ratio)
            elif version.int8 != "no":
                self._context.inexact.setdefault(version.name, set()).add(version.int8)
                self._tried.discard(f"int8: {version.name}")
            assert version.test is not None
            self._own_weights(version.name, f"{100 * version.test.drop:.2f} points lost in the final test")
        self._verified = None
        return True

    def _kept(self, version: FittedModel) -> bool:
        """Whether a model lost no more than it may in its final test."""
        return version.test is None or version.test.drop <= self.settings.max_drop + _ROUNDING

    def _accurate(self) -> bool:
        """The models that were changed, on test data: whether each is within what may be lost."""
        if self._verified is None:
            return False
        within = True
        self._lost = []
        for name, fitted in self._context.versions.items():
            self.notify(f"final accuracy of {name}")
            test = self.labelled.final(fitted, Path(fitted.path))
            self._context.versions[name] = msgspec.structs.replace(fitted, test=test)
            if not self._kept(self._context.versions[name]):
                within = False
                low, high = test.interval
                self._lost.append(
                    f"{name!r} lost {100 * test.drop:.2f} points on its {test.images:,} test examples, "
                    f"{100 * self.settings.max_drop:g} are allowed (90 %: {100 * low:.1f} to {100 * high:.1f} % right)"
                )
        return within

    def _so_far(self) -> FitResult:
        """What stays where the fit ends at once."""
        return self._record(fits=False, applied=True, offers=(), interrupted=True)

    def _record(self, *, fits: bool, applied: bool, offers: Sequence[Offer], interrupted: bool) -> FitResult:
        assert self._before is not None
        table = self.folder is not None and self.folder.table.is_file()
        standing = self._situation.standing
        verdict = standing.by(self._before)
        plans = [*self._plans, self._front_plan(standing, chosen=True)] if standing.fits else self._plans
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
            front=front_of(plans, _MOST_FRONT),
            notes=(*self._notes, *self._lost, *self._situation.planned.timetable.reasons),
            seconds=self._ledger.seconds,
        )

    def _written(self, result: FitResult) -> FitResult:
        if self.folder is None:
            return result
        return self.folder.write(result, self._situation.planned, self._app)

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
def fit(settings: FitOptions, *, notify: Notify = silent, on_step: Notify = silent) -> Fitted:
    """Plan a workload; where it does not fit, propose what would help, or do it until it fits and a run proves it.

    A workload fits where its plan is feasible and no model gets fewer launches than its frames ask for
    (docs/fit.md). The user's files stay as they are.

    With ``resume``, what is not given is as in the earlier fit.

    Args:
        settings: what to fit.
        notify: receives what is being done.
        on_step: receives each step that begins: its number, what it does, the seconds that are left.

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
        target=target if target is None else absolute_target(target, Path()),
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
    loop = FitLoop(fit_settings, original, Labelled(fit_settings, original), folder, notify, begun, on_step)
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
