"""The campaign of ``framefit sparsify``: search, fine-tune, judge, and repeat where thresholds are dynamic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.acceptance import Acceptance, Unseen
from framefit.core.executor import Executor, Here
from framefit.core.files import read_record, write_record, write_whole
from framefit.core.model.builtin import load_model
from framefit.core.settings import Notify
from framefit.core.sparsity import Configuration, DenseModel, SearchPoint, SparsifySettings, SparsityResult, Threshold
from framefit.devices.ort import predictor
from framefit.errors import DivergedError, InputError
from framefit.sparsity.allocation import allocate, tightened
from framefit.sparsity.deploy import configuration, dense_model, deployment
from framefit.sparsity.gates import Verdict, derived_ratio, derived_top1, given_top1, judge, moved_cycles, moved_top1
from framefit.sparsity.problem import Assignment
from framefit.sparsity.search import (
    Arm,
    Searched,
    TrialLog,
    check_reachable,
    fitted_budget,
    make_problem,
    own_cycles,
    own_zeros,
    quick,
    search_arms,
    sparse_network,
    with_statistics,
)
from framefit.sparsity.solver import Solution
from framefit.sparsity.subject import Subject, make_database, open_subject
from framefit.training.acceptance import VALIDATION_LEARNT, UnseenData, compared_on, unseen_data
from framefit.training.campaign import Campaign, SearchFolder
from framefit.training.data import Examples, check_fits, open_data
from framefit.training.evaluate import Accuracy, evaluate
from framefit.training.fine_tune import fine_tune_or_keep, fingerprint, recipe_for
from framefit.training.joined import InSequence
from framefit.training.network import Network, load_state, state, to_model, to_torch
from framefit.training.rounding import round_as

Override = Literal["deploy", "retrain"]
_EPOCHS = 5.0
_OWN_STATES = (
    "the decision is on the last tenth of the examples as a sequence in which the model gets its own states; in the "
    "other figures each example has the dense model's"
)
_RANDOM = "random zeros"
_WRITTEN, _TRAINED = "model.onnx", "float32.onnx"  # of a model in int8 the second one can be trained again
_INT8 = (
    "the model is in int8: its accuracy is that of the file in ONNX Runtime, and its cycles are parts of the dense "
    "model's in int8"
)
_MARK = 12  # digits that identify a fine-tuning in the name of its checkpoint
_MOST_ROUNDS = 8  # for each dynamic threshold; a round is a search and a fine-tuning, or a fine-tuning alone
_TUNINGS = 3  # fine-tunings of one assignment, each with more weights removed
_FITS = 4  # steps until an assignment meets its cycles with the activation sparsity of its own network


@dataclass(frozen=True)
class _Round:
    """One search with its best model, or a continued training of an earlier round's model.

    Attributes:
        threshold: the threshold of this round.
        searched: the results of all arms.
        assignment: of the network: the main arm's, or one with more removed.
        network: the fine-tuned network.
        before: its arrays before fine-tuning.
        epochs: of fine-tuning.
        accuracy: on the data that decide, see :class:`~framefit.training.acceptance.UnseenData`.
        interrupted: whether the user ended the search.
        reasons: remarks on the fine-tuning, as sentences.
    """

    threshold: Threshold
    searched: Searched
    assignment: Assignment
    network: Network
    before: Mapping[str, npt.NDArray[Any]]
    epochs: float
    accuracy: Accuracy
    interrupted: bool
    reasons: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        """Whether the accuracy reaches its threshold."""
        return self.accuracy.top1 >= self.threshold.top1

    @property
    def arm(self) -> Arm:
        """The arm whose model is used."""
        return self.searched.arms[self.searched.main]


class SparsifyCampaign(Campaign[SparsifySettings]):
    """A search for sparsity in its folder.

    Raises:
        InputError: model, data or target cannot be used.
        InfeasibleError: no sparsity reaches the cycles.
    """

    def __init__(
        self,
        place: SearchFolder,
        settings: SparsifySettings,
        notify: Notify,
        model: Any = None,
        data: Any = None,
        *,
        compare: bool = True,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(place, settings, notify)
        self._executor = Here() if executor is None else executor
        self.subject = open_subject(settings, self.ledger, model, data)
        self._compare = compare
        self._dense_cycles = self.subject.prices.total(self.subject.model, self.subject.zeros)
        self._unseen: UnseenData
        self._learnt, self._notes = self.subject.data.train, _notes(self.subject)
        if settings.states:
            self._notes = (*self._notes, _OWN_STATES)
        if settings.cycles is not None:
            check_reachable(self.subject, settings.cycles)

    def begin(self, *, keep: bool) -> None:
        """Begin as :meth:`Campaign.begin` says; also open the layer database and the stored evaluations."""
        super().begin(keep=keep)
        subject, settings = self.subject, self.settings
        self._book = TrialLog(self.folder / "trials.json", TrialLog.key_of(subject, settings), self.ledger)
        self._database = make_database(
            subject, self.folder / "database.npz", self.ledger, settings.seed, self._executor, self.notify
        )
        self._problem = make_problem(subject, self._database, self.ledger)

    def finish(self, targets: Sequence[str], override: Override | None) -> SparsityResult:
        """Search, fine-tune, judge and write the files.

        Raises:
            KeyboardInterrupt: interrupted before any result; evaluations are kept.
        """
        self._unseen = unseen_data(self.subject.network(), self.subject.data, seed=self.settings.seed)
        self.ledger.forwarded(self._unseen.forwarded)
        validated = self._validated(self.subject.network())
        self.ledger.forwarded(validated.images)
        if self._unseen.learnt:
            self._learnt = self._learnt.joined(self.subject.data.validation)
            self._notes = (*self._notes, VALIDATION_LEARNT)
        rounds = self._rounds(validated, override)
        self.notify("evaluating on the test data")
        dense, dense_layers = dense_model(self.subject)
        rows = [self._row(arm, self._sparse(arm.best.assignment), 0.0, None, dense) for arm in self._others(rounds[0])]
        best = _best(rounds)
        if self._by_outputs and rounds[best].assignment.any():
            rows.append(self._random_row(rounds[best].assignment, dense))
        rows += [self._row(round_.arm, round_.network, round_.epochs, round_.before, dense) for round_ in rounds]
        chosen = len(rows) - len(rounds) + best
        thresholds = tuple(self._threshold(round_.threshold, rounds[0].threshold, dense) for round_ in rounds)
        row, network = rows[chosen], rounds[best].network
        allowed = dense.top1 - thresholds[best].top1
        acceptance = self._accepted(network, self._unseen.final, allowed, self._unseen.final_from)
        verdict = judge(acceptance, row.cycles_ratio, thresholds[best])
        searched = rounds[best].searched
        result = SparsityResult(
            model=self.settings.model or self.subject.model.name,
            target=self.subject.target.name,
            unit=self.subject.unit,
            pattern=self.subject.pattern,
            int8=self.subject.int8,
            target_cycles_ratio=thresholds[best].cycles_ratio,
            seed=self.settings.seed,
            dense=dense,
            dense_layers=dense_layers,
            configurations=tuple(rows),
            chosen=chosen,
            decision=verdict.decision,
            deployed=verdict.decision == "deploy" or override == "deploy",
            reasons=(*verdict.reasons, *_overridden(verdict, override), *rounds[best].reasons),
            additive_bound=searched.additive_bound,
            additive_error=searched.additive_error,
            thresholds=thresholds,
            judged_by=best,
            curve=tuple(_curve(rounds)),
            ledger=self.ledger.spent(),
            acceptance=acceptance,
            interrupted=any(round_.interrupted for round_ in rounds),
            notes=(*self._notes, *self.subject.notes),
        )
        self._write(result, network, own_zeros(self.subject, network, self.ledger), targets)
        return result

    def feedback(
        self, source: str | Path | Iterable[Any], targets: Sequence[str], override: Override | None
    ) -> SparsityResult:
        """Judge the folder's model on new data, and train it again where its accuracy there is too low.

        The new data are split as all data are: their test part judges before and after, their training part
        joins the old training data.

        Raises:
            InputError: the folder holds no model, or the data do not match it.
        """
        subject, settings, folder = self.subject, self.settings, self.folder
        stored = folder / "result.json"
        result = read_record(stored, SparsityResult) if stored.is_file() else None
        if result is None or result.chosen is None:
            raise InputError(
                "the folder holds no finished model", where=folder, remedy="let the search end: --resume alone"
            )
        row = result.configurations[result.chosen]
        model = load_model(folder / (_TRAINED if subject.int8 else _WRITTEN), None, None)
        shape = subject.data.input_shape
        new = open_data(source, shape, seed=settings.seed, mean=settings.mean, std=settings.std)
        check_fits(new, model)
        network = self._rounded(to_torch(model))
        first = evaluate(self._answers(network), new.test)
        self.ledger.forwarded(first.images)
        threshold = result.threshold.top1
        low, high = first.top1_interval
        interval = f"{100 * low:.2f} to {100 * high:.2f} %"
        accuracy = f"feedback: top-1 {100 * first.top1:.2f} % ({interval}) on {first.images:,} new examples"
        if first.top1 >= threshold and override != "retrain":
            note = f"{accuracy}, at least the threshold {100 * threshold:.2f} %: not trained again"
            result = msgspec.structs.replace(result, notes=(*result.notes, note))
            self._write(result, network, own_zeros(subject, network, self.ledger), targets)
            return result
        self.notify("training again on old and new data")
        examples = subject.data.train.joined(new.train)
        # Without a teacher: the dense model may be wrong on the new data, too.
        epochs, reasons = self._fine_tuned(network, examples, new.validation, distill_ratio=0.0)
        after = evaluate(self._answers(network), new.test)
        arm = Arm(Solution(row.solver, np.zeros(0, np.int64), row.validation_top1, 0, ()), hardware=row.hardware)
        zeros, model = own_zeros(subject, network, self.ledger), to_model(network)
        now = configuration(subject, arm, model, zeros, first.top1, after, row.finetune_epochs + epochs, result.dense)
        note = f"{accuracy}, below the threshold {100 * threshold:.2f} %: trained again, now {100 * after.top1:.2f} %"
        allowed = result.dense.top1 - threshold
        acceptance = self._accepted(network, new.test, allowed, "test")
        result = _rejudged(result, now, acceptance, override, reasons)
        result = msgspec.structs.replace(result, notes=(*result.notes, note), ledger=self.ledger.spent())
        self._write(result, network, zeros, targets)
        return result

    def _write(
        self, result: SparsityResult, network: Network, zeros: Mapping[str, float], targets: Sequence[str]
    ) -> None:
        """Write the folder's files: model, result, tables, pictures, and the deployment if there is one."""
        path = self.folder / _WRITTEN
        models = {path: self.subject.finished(network)}
        if self.subject.int8:
            models[self.folder / _TRAINED] = to_model(network)
        for place, model in models.items():
            with write_whole(place, force=True) as file:
                file.write(self.subject.file_of(model))
        (self.folder / "deploy.json").unlink(missing_ok=True)
        if result.deployed:
            self.notify("compiling for the targets")
            registered = deployment(self.subject, result, path, zeros, targets)
            write_record(self.folder / "deploy.json", registered, force=True)
        write_record(self.folder / "result.json", result, force=True)

    def _rounds(self, dense: Accuracy, override: Override | None) -> list[_Round]:
        """One round, or as many as dynamic thresholds need: first the one on cycles, then the one on accuracy."""
        ratio, reason = self.settings.cycles, "as given"
        top1 = self._asked_top1(dense.top1, dense.top1_interval, ratio or 1.0).top1
        if ratio is None:
            ratio, reason = derived_ratio(self._problem, self._dense_cycles, functools.partial(self._keeps, top1))
        source: Literal["given", "derived"] = "given" if self.settings.cycles is not None else "derived"
        rounds = [
            self._round(Threshold(round=0, top1=top1, cycles_ratio=ratio, source=source, reason=reason), override)
        ]
        least = self._problem.least_cycles / max(self._dense_cycles, 1)
        for _ in range(1, _MOST_ROUNDS if self.settings.dynamic else 1):
            tried = [round_.threshold for round_ in rounds]
            following = moved_cycles(tried, met=rounds[-1].met, least_ratio=least)
            if following is None or self._ended(rounds):
                break
            rounds.append(self._round(following, override))
        last = rounds[_best(rounds)]
        for _ in range(1, _MOST_ROUNDS if self.settings.dynamic_accuracy else 1):
            low, dense_low = (round_.top1_interval[0] for round_ in (last.accuracy, dense))
            following = moved_top1(last.threshold, met=last.met, low=low, dense_low=dense_low)
            if following is None or self._ended(rounds):
                break
            last = self._trained_on(last, msgspec.structs.replace(following, round=len(rounds)))
            rounds.append(last)
        return rounds

    def _keeps(self, top1: float, ratio: float) -> bool:
        """Whether the exact allocation at a part of the dense cycles is this accurate without any fine-tuning."""
        self.notify(f"deriving the cycles: {ratio:.2f} of the dense model's")
        target = int(ratio * self._dense_cycles)
        budget = fitted_budget(self.subject, self._database, self._problem, target, self.ledger)
        return self._judged(self._sparse(allocate(self._problem, budget)), self._unseen.choice).top1 >= top1

    def _ended(self, rounds: Sequence[_Round]) -> bool:
        """Whether the user ended the search, or its time is up."""
        return rounds[-1].interrupted or self.ledger.seconds > (self.settings.max_seconds or np.inf)

    def _round(self, threshold: Threshold, override: Override | None) -> _Round:
        """Search, and fine-tune the best model."""
        searched = search_arms(
            self.subject,
            self._database,
            self._problem,
            self.settings,
            threshold.cycles_ratio,
            self.ledger,
            self._book,
            compare=self._compare and not threshold.round,
            executor=self._executor,
            notify=self.notify,
        )
        if searched is None:
            raise KeyboardInterrupt
        return self._tuned(searched, threshold, 1 + (override == "retrain"))

    def _tuned(self, searched: Searched, threshold: Threshold, turns: int) -> _Round:
        """Fine-tune the network of the main arm's assignment, up to ``turns`` times; not where nothing is removed.

        Fine-tuning changes the activations, too. Where that brings the cycles above the target, more is removed: a
        few weights of the tuned network; for other patterns, whose steps are large, before it is tuned anew.
        """
        assignment, interrupted = searched.arms[searched.main].best.assignment, searched.interrupted
        target = goal = int(threshold.cycles_ratio * self._dense_cycles)
        for _ in range(_TUNINGS):
            network, fitted = self._fitted(self._sparse, assignment, goal)
            network = self._rounded(network)
            before, epochs = state(network), 0.0
            reasons: tuple[str, ...] = ()
            try:
                for _ in range(0 if interrupted or not fitted.any() else turns):
                    network, fitted, passes, remarks = self._trained(network, fitted, target)
                    epochs += passes
                    reasons += remarks
            except KeyboardInterrupt:
                load_state(network, before)
                epochs, interrupted, reasons = 0.0, True, ()
                break
            real = own_cycles(self.subject, network, self.ledger)
            if real <= target:
                break
            goal = int(goal * target / real) - 1
        accuracy = self._validated(network)
        return _Round(threshold, searched, fitted, network, before, epochs, accuracy, interrupted, reasons)

    def _trained_on(self, earlier: _Round, threshold: Threshold) -> _Round:
        """Fine-tune a round's network once more; keep it as it was if that gains nothing, or costs too many cycles."""
        solution = replace(earlier.arm.best, curve=())  # nothing is searched for
        searched = replace(earlier.searched, arms=(replace(earlier.arm, best=solution),), main=0)
        kept = replace(earlier, threshold=threshold, searched=searched)
        target = int(threshold.cycles_ratio * self._dense_cycles)
        try:
            copied = self._rounded(to_torch(to_model(earlier.network)))
            network, assignment, passes, remarks = self._trained(copied, earlier.assignment, target)
        except KeyboardInterrupt:
            return replace(kept, interrupted=True)
        accuracy = self._validated(network)
        if accuracy.top1 < earlier.accuracy.top1 or own_cycles(self.subject, network, self.ledger) > target:
            return kept
        epochs, reasons = earlier.epochs + passes, (*earlier.reasons, *remarks)
        kept = replace(kept, assignment=assignment, network=network, epochs=epochs, accuracy=accuracy)
        return replace(kept, reasons=tuple(dict.fromkeys(reasons)))

    def _trained(
        self, network: Network, assignment: Assignment, target: int
    ) -> tuple[Network, Assignment, float, tuple[str, ...]]:
        """Fine-tune a network, and thin it to the target if zeros may be anywhere; return epochs and remarks, too."""
        epochs, reasons = self._fine_tuned(network, self._learnt, self._unseen.choice)
        if epochs and self.subject.pattern == "unstructured":
            network, assignment = self._fitted(functools.partial(self._thinned, network), assignment, target)
        return network, assignment, epochs, reasons

    def _fine_tuned(
        self, network: Network, examples: Examples, validation: Examples, distill_ratio: float | None = None
    ) -> tuple[float, tuple[str, ...]]:
        """Fine-tune in place; zeros stay zero. Where training diverges or does harm it starts over at a lower rate.

        Args:
            network: a sparse network.
            examples: training data.
            validation: data that decide whether the new weights are better.
            distill_ratio: weight of the dense network's answers in the loss; default: as in the settings.

        Returns:
            Epochs, 0 where all rates did harm and the earlier weights stay; and remarks for the result, as sentences.

        Raises:
            KeyboardInterrupt: by the user; the checkpoint is written, the network is in an intermediate state.
        """
        settings = self.settings
        recipe = msgspec.structs.replace(
            recipe_for(
                examples,
                epochs=settings.finetune_epochs,
                least_epochs=_EPOCHS,
                rate=settings.rate,
                seed=settings.seed,
            ),
            seconds=settings.finetune_seconds,
            decay=settings.decay,
            distill_ratio=settings.distill_ratio if distill_ratio is None else distill_ratio,
        )
        if self._by_outputs:  # of a crop or a mirrored image only the dense network knows what is right
            recipe = msgspec.structs.replace(recipe, distill_ratio=1.0)
        if not recipe.epochs:
            return 0.0, ()
        before = state(network)
        weights = [(layer.weight, before[layer.weight] != 0) for layer in self.subject.layers]
        masks = {name: kept for name, kept in weights if not kept.all()}
        mark = fingerprint(before, recipe, masks, examples)
        known = self._judged(network, validation)

        def check() -> None:
            now = self._judged(network, validation)
            if now.top1 < known.top1 and now.loss > known.loss:
                what = f"top-1 {100 * known.top1:.2f} -> {100 * now.top1:.2f} % on {now.images:,} examples that decide"
                raise DivergedError(what, where="fine-tuning", remedy="lower the learning rate")

        tuning = fine_tune_or_keep(
            *(network, examples, recipe, self.notify),
            checkpoint=self.folder / f"finetune-{mark[:_MARK]}.npz",
            masks=masks,
            teacher=self.subject.network() if recipe.distill_ratio else None,
            check=check,
        )
        return 0.0 if tuning.done is None else tuning.done.epochs, (tuning.note,) if tuning.note else ()

    def _accepted(self, network: Network, examples: Examples, allowed: float, data: Unseen) -> Acceptance:
        """Compare a network with the dense one; that a network without a change loses nothing is no estimate."""
        original = self.subject.network()
        states = self.settings.states
        changed = InSequence.of(network, states) if states else self._answers(network)
        acceptance = compared_on(original, changed, examples, allowed, data)
        self.ledger.forwarded(2 * len(examples))
        arrays, dense = state(network), state(original)
        same = not self.subject.int8 and all(np.array_equal(arrays[name], array) for name, array in dense.items())
        return msgspec.structs.replace(acceptance, interval=(0.0, 0.0)) if same else acceptance

    def _judged(self, network: Network, examples: Examples) -> Accuracy:
        """Evaluate a network, and count its images in the ledger."""
        with quick():
            accuracy = evaluate(network, examples)
        self.ledger.forwarded(len(examples))
        return accuracy

    def _validated(self, network: Network) -> Accuracy:
        with quick():
            return evaluate(network, self._unseen.choice)

    def _threshold(self, threshold: Threshold, first: Threshold, dense: DenseModel) -> Threshold:
        """The threshold on the test data: the first one, moved as far as on the validation data."""
        requested = self._asked_top1(dense.top1, dense.top1_interval, threshold.cycles_ratio)
        moved = threshold.top1 - first.top1
        reason = f"accuracy: {requested.reason}; cycles: {threshold.reason}"
        if moved:
            reason = f"accuracy: {threshold.reason}, by {100 * abs(moved):.2f} points in all; cycles: held"
        return msgspec.structs.replace(threshold, top1=requested.top1 + moved, reason=reason)

    def _asked_top1(self, top1: float, interval: tuple[float, float], ratio: float) -> Threshold:
        drop = self.settings.accuracy_drop
        return derived_top1(top1, interval, ratio) if drop is None else given_top1(top1, drop, ratio)

    def _fitted(
        self, made: Callable[[Assignment], Network], assignment: Assignment, target: int
    ) -> tuple[Network, Assignment]:
        """A network of an assignment, or of one with as little more removed as its own cycles require."""
        budget = self._problem.total(assignment)
        for _ in range(_FITS):
            network = made(assignment)
            real = own_cycles(self.subject, network, self.ledger)
            if real <= target:
                break
            budget = max(int(budget * target / real), self._problem.least_cycles)
            assignment = tightened(self._problem, assignment, budget)
        return network, assignment

    def _rounded(self, network: Network) -> Network:
        """The network itself, which rounds from now on where its files will be in int8."""
        if not self.subject.int8:
            return network
        self.ledger.forwarded(len(self.subject.inputs))
        return round_as(network, self.subject.finished(network))

    def _answers(self, network: Network) -> Any:
        """What makes the outputs of the model that is written for a network."""
        return predictor(self.subject.finished(network)) if self.subject.int8 else network

    def _sparse(self, assignment: Assignment) -> Network:
        return sparse_network(self.subject, self._database, assignment, self.ledger)

    def _thinned(self, network: Network, assignment: Assignment) -> Network:
        """Set weights of a tuned network to zero where an assignment has zeros; in place."""
        arrays, masks = state(network), self._database.masks(assignment)
        if all((arrays[name][~mask] == 0).all() for name, mask in masks.items()):
            return network
        load_state(network, {name: arrays[name] * mask for name, mask in masks.items()})
        return with_statistics(self.subject, network, self.ledger)

    def _others(self, first: _Round) -> list[Arm]:
        """The first round's arms except the main one."""
        return [arm for arm in first.searched.arms if arm is not first.arm]

    @property
    def _by_outputs(self) -> bool:
        """Whether agreement with the dense network's outputs is all that tells how good a network is."""
        return self.subject.examples.task.measure == "outputs"

    def _random_row(self, assignment: Assignment, dense: DenseModel) -> Configuration:
        """The figures of a network with as many zeros in the same layers, at random: what the agreement is held to."""
        random = np.random.default_rng(self.settings.seed)
        network = self.subject.network()
        arrays = state(network)
        masks = self._database.masks(assignment)
        zeros = {
            name: arrays[name] * random.permutation(mask.ravel()).reshape(mask.shape) for name, mask in masks.items()
        }
        load_state(network, zeros)
        with_statistics(self.subject, network, self.ledger)
        score = self._judged(network, self._unseen.choice).top1
        return self._row(Arm(Solution(_RANDOM, assignment, score, 0, ()), hardware=True), network, 0.0, None, dense)

    def _row(
        self,
        arm: Arm,
        network: Network,
        epochs: float,
        before: Mapping[str, npt.NDArray[Any]] | None,
        dense: DenseModel,
    ) -> Configuration:
        """The figures of a network on the test data, and those before it was fine-tuned."""
        accuracy = evaluate(self._answers(network), self.subject.data.test)
        first = accuracy.top1
        if epochs and before is not None:
            now = state(network)
            load_state(network, before)
            first = evaluate(self._answers(network), self.subject.data.test).top1
            load_state(network, now)
        zeros = own_zeros(self.subject, network, self.ledger)
        return configuration(self.subject, arm, to_model(network), zeros, first, accuracy, epochs, dense)


def _curve(rounds: Sequence[_Round]) -> Iterator[SearchPoint]:
    """Curves of all searches, named as their configurations are: each has its own budget or its own knowledge."""
    for round_ in rounds:
        for arm in round_.searched.arms:
            name = arm.best.solver + ("" if arm.hardware else ", blind")
            name += f", round {round_.threshold.round}" if round_.threshold.round else ""
            yield from (msgspec.structs.replace(point, solver=name) for point in arm.best.curve)


def _best(rounds: Sequence[_Round]) -> int:
    """Index of the best round that met its threshold: fewest cycles, then highest threshold. Else the last round."""
    met = [index for index, round_ in enumerate(rounds) if round_.met]

    def cost(index: int) -> tuple[float, float]:
        threshold = rounds[index].threshold
        return threshold.cycles_ratio, -threshold.top1

    return min(met, key=cost, default=len(rounds) - 1)


def _notes(subject: Subject) -> tuple[str, ...]:
    """What the figures do not promise, as sentences."""
    return (*_of_pattern(subject), _INT8) if subject.int8 else _of_pattern(subject)


def _of_pattern(subject: Subject) -> tuple[str, ...]:
    if subject.pattern == "channel":
        less = "modelled cycles; the channels are taken out of the file, so any runtime has less to do"
        return (f"{less}: deploy.json says what was measured" if subject.target.name == "cpu" else less,)
    if subject.pattern == "block":
        outputs, inputs = subject.block
        share = f"{outputs} outputs" if inputs == 1 else f"{outputs} outputs and {inputs} inputs"
        return (
            f"measured on this machine: kernels skip zeros that {share} share",
            "no gain in other runtimes: they multiply zeros, too",
        )
    modelled = f"modelled cycles: the gain is that of {subject.target.name}, which skips zeros"
    if subject.pattern == "n:m":
        of, bits = " of ".join(map(str, subject.of_m or ())), "int8" if subject.int8 else "fp16"
        units = f"{of} zeros are for runtimes with sparse units, such as TensorRT (trtexec --sparsity=enable --{bits})"
        return modelled, f"{units}; ONNX Runtime multiplies them"
    return (modelled, "no gain in ONNX Runtime: it multiplies zeros, too")


def _overridden(verdict: Verdict, override: Override | None) -> tuple[str, ...]:
    """Remark on the user's override of the gates."""
    if override == "deploy" and verdict.decision != "deploy":
        return (f"deployed by the user's override; the gates say {verdict.decision}",)
    return ("fine-tuned once more by the user's override",) if override == "retrain" else ()


def _rejudged(
    result: SparsityResult,
    row: Configuration,
    acceptance: Acceptance,
    override: Override | None,
    reasons: tuple[str, ...],
) -> SparsityResult:
    """A result whose chosen model was trained again."""
    assert result.chosen is not None
    verdict = judge(acceptance, row.cycles_ratio, result.threshold)
    rows = list(result.configurations)
    rows[result.chosen] = row
    return msgspec.structs.replace(
        result,
        configurations=tuple(rows),
        acceptance=acceptance,
        decision=verdict.decision,
        deployed=verdict.decision == "deploy" or override == "deploy",
        reasons=(*verdict.reasons, *_overridden(verdict, override), *reasons),
    )
