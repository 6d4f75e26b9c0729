"""Search, fine-tune, judge; and again with other thresholds where these are dynamic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import write_record
from framefit.core.model import Model
from framefit.core.sparsity import Configuration, DenseModel, Deployment, SparsifySettings, SparsityResult, Threshold
from framefit.report.files.sparsity_files import write_report
from framefit.sparsity.allocation import tightened
from framefit.sparsity.evaluation import quick
from framefit.sparsity.gates import Verdict, derived_ratio, derived_top1, given_top1, judge, moved
from framefit.sparsity.ledger import Ledger
from framefit.sparsity.problem import Assignment
from framefit.training.evaluate import evaluate, reestimate
from framefit.training.network import Network, load_state, state, to_model
from framefit.workflows.sparsifying.deploy import register
from framefit.workflows.sparsifying.finish import configuration, dense_model, joined, learnt_before, tuned
from framefit.workflows.sparsifying.search import (
    Arm,
    Searched,
    TrialBook,
    check_reachable,
    make_problem,
    own_cycles,
    own_zeros,
    search_arms,
    sparse_network,
)
from framefit.workflows.sparsifying.subject import Subject, make_database

__all__ = ["Override", "Rounds", "rejudged"]

Override = Literal["deploy", "retrain"]
_MOST_ROUNDS = 8  # of dynamic thresholds: each is a search and a fine-tuning
_TUNINGS = 3  # of one assignment, each with more taken away
_FITS = 4  # steps of an assignment towards cycles that its own activations meet
_SEEN = (
    "the model is no worse on the validation data than on the training data: it may have been trained on both, so it "
    "was fine-tuned on both, and accuracies on the validation data may be too high"
)


@dataclass(frozen=True)
class _Round:
    """One search with its best model.

    Attributes:
        threshold: that it was made for.
        searched: all arms.
        network: the main arm's, fine-tuned.
        before: its arrays before that.
        epochs: of fine-tuning.
        met: whether the threshold is met on the validation data.
        interrupted: whether the user ended it.
    """

    threshold: Threshold
    searched: Searched
    network: Network
    before: Mapping[str, npt.NDArray[Any]]
    epochs: float
    met: bool
    interrupted: bool

    @property
    def arm(self) -> Arm:
        """Whose model is taken."""
        return self.searched.arms[self.searched.main]


class Rounds:
    """A search in its folder.

    Args:
        subject: what is pruned.
        settings: what was asked for.
        folder: gets everything.
        ledger: of all that it costs.
        say: told what is being done.
        compare: also run the rules, and the same search without the hardware.
    """

    def __init__(
        self,
        subject: Subject,
        settings: SparsifySettings,
        folder: Path,
        ledger: Ledger,
        say: Callable[[str], None],
        *,
        compare: bool,
    ) -> None:
        self.subject, self.settings, self.folder, self.ledger, self.say = subject, settings, folder, ledger, say
        self._compare = compare
        self._dense_cycles = subject.prices.total(subject.model, subject.zeros)
        if settings.cycles_ratio is not None:
            check_reachable(subject, settings.cycles_ratio)
        self._database = make_database(subject, folder / "database.npz", ledger, settings.seed, say)
        self._problem = make_problem(subject, self._database, ledger)
        self._learnt, self._noted = subject.data.train, _notes(subject)
        self._book = TrialBook(folder / "trials.json", TrialBook.key_of(subject, settings), ledger)

    def finish(self, targets: Sequence[str], override: Override | None) -> SparsityResult:
        """Everything, up to the files.

        Args:
            targets: that a model that passes its gates is compiled for.
            override: of the gates.

        Raises:
            KeyboardInterrupt: nothing was found yet; what was evaluated is kept.
        """
        with quick():
            validated = evaluate(self.subject.network(), self.subject.data.validation)
        self.ledger.forwarded(validated.images)
        if learnt_before(self.subject, validated, self.ledger):
            self._learnt = joined(self._learnt, self.subject.data.validation)
            self._noted = (*self._noted, _SEEN)
        rounds = self._rounds(self._asked_top1(validated.top1, validated.top1_interval, 1.0).top1, override)
        self.say("final figures on the test data")
        dense, dense_layers = dense_model(self.subject)
        rows = [self._row(arm, self._sparse(arm.found.assignment), 0.0, None, dense) for arm in self._others(rounds[0])]
        rows += [self._row(one.arm, one.network, one.epochs, one.before, dense) for one in rounds]
        met = [index for index, one in enumerate(rounds) if one.met]
        best = min(met, key=lambda index: rounds[index].threshold.cycles_ratio, default=len(rounds) - 1)
        chosen = len(rows) - len(rounds) + best
        thresholds = tuple(self._threshold(one.threshold, dense) for one in rounds)
        row = rows[chosen]
        verdict = judge(row.top1, row.top1_interval, dense.images, row.cycles_ratio, thresholds[best])
        searched = rounds[best].searched
        result = SparsityResult(
            model=self.settings.model or self.subject.model.name,
            target=self.subject.target.name,
            unit=self.subject.unit,
            pattern=self.subject.pattern,
            target_cycles_ratio=thresholds[best].cycles_ratio,
            seed=self.settings.seed,
            dense=dense,
            dense_layers=dense_layers,
            configurations=tuple(rows),
            chosen=chosen,
            decision=verdict.decision,
            deployed=verdict.decision == "deploy" or override == "deploy",
            reasons=(*verdict.reasons, *_overridden(verdict, override)),
            additive_bound=searched.additive_bound,
            additive_error=searched.additive_error,
            thresholds=thresholds,
            curve=tuple(point for one in rounds for arm in one.searched.arms for point in arm.found.curve),
            ledger=self.ledger.spent(),
            interrupted=any(one.interrupted for one in rounds),
            notes=(*self._noted, *self.subject.notes),
        )
        network = rounds[best].network
        self.write(result, to_model(network), own_zeros(self.subject, network, self.ledger), targets)
        return result

    def write(self, result: SparsityResult, model: Model, zeros: Mapping[str, float], targets: Sequence[str]) -> None:
        """The files of the folder: model, result, tables, pictures, and the deployment where there is one."""
        model.save(self.folder / "model.onnx", force=True)
        (self.folder / "deploy.json").unlink(missing_ok=True)
        if result.deployed:
            self.say("compiling for its targets")
            deployment = _deployed(self.subject, result, model, zeros, targets)
            write_record(self.folder / "deploy.json", deployment, force=True)
        write_report(self.folder, result)
        write_record(self.folder / "result.json", result, force=True)

    def _rounds(self, least_top1: float, override: Override | None) -> list[_Round]:
        """One, or as many as the thresholds move; what counts as met is judged on the validation data."""
        ratio, reason = self.settings.cycles_ratio, "as given"
        if ratio is None:
            ratio, reason = derived_ratio(self._problem, self._dense_cycles)
        source: Literal["given", "derived"] = "given" if self.settings.cycles_ratio is not None else "derived"
        history = [Threshold(round=0, top1=least_top1, cycles_ratio=ratio, source=source, reason=reason)]
        rounds = [self._round(history[0], override)]
        least = self._problem.least_cycles / max(self._dense_cycles, 1)
        while self.settings.dynamic and not rounds[-1].interrupted and len(rounds) < _MOST_ROUNDS:
            following = moved(tuple(history), met=rounds[-1].met, least_ratio=least)
            if following is None or self.ledger.seconds > (self.settings.max_seconds or np.inf):
                break
            history.append(following)
            rounds.append(self._round(following, override))
        return rounds

    def _round(self, threshold: Threshold, override: Override | None) -> _Round:
        searched = search_arms(
            self.subject,
            self._database,
            self._problem,
            self.settings,
            threshold.cycles_ratio,
            self.ledger,
            self._book,
            compare=self._compare and not threshold.round,
            say=self.say,
        )
        if searched is None:
            raise KeyboardInterrupt
        best = searched.arms[searched.main].found.assignment
        network, before, epochs, stopped = self._tuned(best, threshold, override, interrupted=searched.interrupted)
        with quick():
            met = evaluate(network, self.subject.data.validation).top1 >= threshold.top1
        return _Round(threshold, searched, network, before, epochs, met, stopped)

    def _tuned(
        self, assignment: Assignment, threshold: Threshold, override: Override | None, *, interrupted: bool
    ) -> tuple[Network, dict[str, npt.NDArray[Any]], float, bool]:
        """The network of an assignment, fine-tuned; its arrays before, epochs, and whether the user stopped it.

        Fine-tuning moves the activations, too. Where that brings the cycles above the target, more is taken
        away: a few zeros from the tuned network; of other patterns, whose steps are long, before it is tuned anew.
        """
        target = goal = int(threshold.cycles_ratio * self._dense_cycles)
        turns = 1 + (override == "retrain")
        for attempt in range(_TUNINGS):
            network, taken = self._fitted(self._sparse, assignment, goal)
            before, epochs = state(network), 0.0
            try:
                for turn in range(0 if interrupted else turns):
                    checkpoint = self.folder / f"finetune-{threshold.round}-{attempt * turns + turn}.npz"
                    epochs += tuned(
                        self.subject, network, self.settings, self.ledger, checkpoint, self.say, self._learnt
                    )
            except KeyboardInterrupt:
                load_state(network, before)
                return network, before, 0.0, True
            if epochs and self.subject.pattern == "unstructured":
                network, _ = self._fitted(functools.partial(self._thinned, network), taken, target)
            real = own_cycles(self.subject, network, self.ledger)
            if real <= target:
                break
            goal = int(goal * target / real) - 1
        return network, before, epochs, interrupted

    def _threshold(self, threshold: Threshold, dense: DenseModel) -> Threshold:
        """The same on the test data."""
        asked = self._asked_top1(dense.top1, dense.top1_interval, threshold.cycles_ratio)
        reason = f"top-1: {asked.reason}; cycles: {threshold.reason}"
        return msgspec.structs.replace(threshold, top1=asked.top1, reason=reason)

    def _asked_top1(self, top1: float, interval: tuple[float, float], ratio: float) -> Threshold:
        drop = self.settings.accuracy_drop
        return derived_top1(top1, interval, ratio) if drop is None else given_top1(top1, drop, ratio)

    def _fitted(
        self, made: Callable[[Assignment], Network], assignment: Assignment, target: int
    ) -> tuple[Network, Assignment]:
        """A network of an assignment, or of one that takes as little more away as brings its own cycles to the target.

        Args:
            made: the network of an assignment.
            assignment: to begin with.
            target: cycles.
        """
        budget = self._problem.total(assignment)
        for _ in range(_FITS):
            network = made(assignment)
            real = own_cycles(self.subject, network, self.ledger)
            if real <= target:
                break
            budget = max(int(budget * target / real), self._problem.least_cycles)
            assignment = tightened(self._problem, assignment, budget)
        return network, assignment

    def _sparse(self, assignment: Assignment) -> Network:
        return sparse_network(self.subject, self._database, assignment, self.ledger)

    def _thinned(self, network: Network, assignment: Assignment) -> Network:
        """A tuned network with zeros where an assignment has them, too; in place."""
        arrays, masks = state(network), self._database.masks(assignment)
        if all((arrays[name][~mask] == 0).all() for name, mask in masks.items()):
            return network
        load_state(network, {name: arrays[name] * mask for name, mask in masks.items()})
        if network.norms:
            reestimate(network, self.subject.inputs)
            self.ledger.forwarded(len(self.subject.inputs))
        return network

    def _others(self, first: _Round) -> list[Arm]:
        """Arms of the first round beside the main one."""
        return [arm for arm in first.searched.arms if arm is not first.arm]

    def _row(
        self,
        arm: Arm,
        network: Network,
        epochs: float,
        before: Mapping[str, npt.NDArray[Any]] | None,
        dense: DenseModel,
    ) -> Configuration:
        """The figures of a network on the test data, and those from before it was fine-tuned."""
        found = evaluate(network, self.subject.data.test)
        first = found.top1
        if epochs and before is not None:
            now = state(network)
            load_state(network, before)
            first = evaluate(network, self.subject.data.test).top1
            load_state(network, now)
        zeros = own_zeros(self.subject, network, self.ledger)
        return configuration(self.subject, arm, to_model(network), zeros, first, found, epochs, dense)


def _deployed(
    subject: Subject, result: SparsityResult, model: Model, zeros: Mapping[str, float], targets: Sequence[str]
) -> Deployment:
    """What ``deploy.json`` says of a model."""
    assert result.chosen is not None
    row = result.configurations[result.chosen]
    return Deployment(
        model="model.onnx",
        digest=model.digest,
        top1=row.top1,
        top1_threshold=result.thresholds[-1].top1,
        cycles_ratio=row.cycles_ratio,
        forced=result.decision != "deploy",
        targets=register(subject, model, zeros, targets),
    )


def _notes(subject: Subject) -> tuple[str, ...]:
    """What the figures do not promise."""
    if subject.pattern == "channel":
        less = "modelled cycles; the channels are taken out of the file, so any runtime has less to do"
        return (f"{less}: deploy.json says what was measured" if subject.target.name == "cpu" else less,)
    return (
        f"modelled cycles: the gain is that of {subject.target.name}, which skips zeros",
        "no gain in ONNX Runtime: it multiplies zeros, too",
    )


def _overridden(verdict: Verdict, override: Override | None) -> tuple[str, ...]:
    if override == "deploy" and verdict.decision != "deploy":
        return (f"deployed by the user's override; the gates say {verdict.decision}",)
    return ("fine-tuned once more by the user's override",) if override == "retrain" else ()


def rejudged(result: SparsityResult, row: Configuration, images: int, override: Override | None) -> SparsityResult:
    """A result whose chosen model was trained again.

    Args:
        result: from before.
        row: of the model now.
        images: that its accuracy rests on.
        override: of the gates.
    """
    assert result.chosen is not None
    verdict = judge(row.top1, row.top1_interval, images, row.cycles_ratio, result.thresholds[-1])
    rows = list(result.configurations)
    rows[result.chosen] = row
    return msgspec.structs.replace(
        result,
        configurations=tuple(rows),
        decision=verdict.decision,
        deployed=verdict.decision == "deploy" or override == "deploy",
        reasons=(*verdict.reasons, *_overridden(verdict, override)),
    )
