"""The campaign of ``framefit treeify``: groups of layers are chosen, replaced, fine-tuned and judged one by one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.acceptance import Acceptance
from framefit.core.executor import Executor, Here
from framefit.core.files import write_record
from framefit.core.model import Model
from framefit.core.settings import Notify
from framefit.core.tree_results import Candidate, ChosenGroup, Original, TreeifiedModel, TreeifyResult, TreeifySettings
from framefit.core.trees import Forest
from framefit.errors import DivergedError, InfeasibleError
from framefit.training.acceptance import VALIDATION_LEARNT, UnseenData, compared, unseen_data
from framefit.training.campaign import Campaign, KeptRecords, SearchFolder
from framefit.training.data import batch_left_open, open_classifier
from framefit.training.evaluate import evaluate
from framefit.trees.exporting import export, lut6_of, with_trees
from framefit.trees.hybrid import HybridModel
from framefit.trees.search import FLOAT_BYTES, Search, Trial, latencies, pareto, preferred
from framefit.trees.tuning import Tuning, quantise_network, quantises, trained, tuned

_FINAL_TRIES = 4  # final tests: of the choice, and of up to three others after one failed
_ROUNDING = 1e-9
_FIGURES = "the candidates' top-1 is on the images that decide, before fine-tuning; latencies are those of"
_POINTLESS = "slower and bigger than the layers, and less accurate"
_UNTRAINED = "the hybrid was trained end to end: the accuracy before is that of the network's initial weights"


@dataclass(frozen=True)
class _Replaced:
    """A group that was replaced.

    Attributes:
        trial: the group.
        plain: the network with it, before fine-tuning.
        hybrid: after that.
        acceptance: on the data that decide.
        costlier: whether the search chose what is slower and bigger than the original.
        left: other candidates that were fitted in its place.
    """

    trial: Trial
    plain: HybridModel
    hybrid: HybridModel
    acceptance: Acceptance
    costlier: bool
    left: tuple[Trial, ...]


class TreeifyCampaign(Campaign[TreeifySettings]):
    """A search for groups of layers that trees can replace, in its folder.

    Raises:
        InputError: model or data cannot be used.
    """

    def __init__(
        self,
        place: SearchFolder,
        settings: TreeifySettings,
        notify: Notify,
        model: Any = None,
        data: Any = None,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(place, settings, notify)
        self._executor = Here() if executor is None else executor
        self._latencies = latencies(settings.target, settings.unit)
        source = settings.model if model is None else model
        opened, self.data = open_classifier(
            source,
            settings.data if data is None else data,
            seed=settings.seed,
            mean=settings.mean,
            std=settings.std,
        )
        self._original, self._learnt = HybridModel(opened), self.data.train
        self._unseen: UnseenData
        self._right: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._work = self.folder / "work"
        self._batch_open, closed = batch_left_open(source, opened)
        self._notes: list[str] = [*closed]
        self._seconds = 0.0

    def finish(self) -> tuple[TreeifyResult, Model | None, Forest | None]:
        """Search, replace, fine-tune, judge and write the files.

        Raises:
            InfeasibleError: no group can be replaced, or the network may have seen all of the data.
        """
        start = self._prepared()
        kept, choice = KeptRecords(self._work), self._unseen.choice
        teacher = self._original.predict(choice.inputs())
        search = Search(
            self.settings, self._learnt, choice, teacher, kept, self._latencies, self._executor, self.notify
        )
        steps: list[_Replaced] = []
        trials: list[Trial] = []
        final: Acceptance | None = None
        for number in range(self.settings.groups):
            tried = search.trials(steps[-1].hybrid if steps else start, number, self._least)
            trials += tried
            replaced = self._replaced(steps[-1].hybrid if steps else start, start, tried, number)
            if replaced is None:
                break
            steps.append(replaced)
        if not trials:
            raise InfeasibleError(
                "no group of layers can be replaced",
                where=self._original.model.name,
                remedy="give a network of layers in sequence",
            )
        for again in range(_FINAL_TRIES):
            if not steps:
                break
            final = self._final(steps)
            if self._worth(steps, final):
                break
            withdrawn = steps.pop()
            self._notes.append(f"{withdrawn.trial.span} as trees: withdrawn after the final test: {final.text}")
            final = None
            if again + 1 < _FINAL_TRIES:
                replaced = self._replaced(steps[-1].hybrid if steps else start, start, withdrawn.left, len(steps))
                steps += [] if replaced is None else [replaced]
        if final is None:
            steps = []
        self._notes += [*search.notes, *([] if final is None else [f"the final test: {final.text}"])]
        return self._written(steps[-1] if steps else None, trials, steps, final)

    def _prepared(self) -> HybridModel:
        """The network in which groups are searched: trained and quantised, if the user wants that."""
        trained_here = bool(self.settings.train_epochs)
        if trained_here and self.settings.train == "network":
            training = self._trained(self._original, self._work / "training.npz")
            self._original = training.hybrid
            self._notes.append(f"the network {training.note}")
        self._unseen = unseen_data(
            self._original.predict, self.data, seed=self.settings.seed, trained_here=trained_here
        )
        self._right = self._original.right(self._unseen.choice)
        if self._unseen.learnt:
            self._notes.append(VALIDATION_LEARNT)
            self._learnt = self._learnt.joined(self.data.validation)
        if not quantises(self.settings):
            return self._original
        checkpoint = self._work / "levels.npz"
        choice = self._unseen.choice
        tuning = quantise_network(self._original, self._learnt, choice, self.settings, checkpoint, self.notify)
        self._notes.append(f"the network quantised: {tuning.note}")
        self._seconds += tuning.seconds
        return tuning.hybrid

    def _trained(self, hybrid: HybridModel, checkpoint: Path) -> Tuning:
        return trained(hybrid, self._learnt, self.data.validation, self.settings, checkpoint, self.notify)

    @property
    def _least(self) -> float:
        return float(self._right.mean()) - self.settings.max_drop

    def _replaced(
        self, hybrid: HybridModel, start: HybridModel, trials: Sequence[Trial], number: int
    ) -> _Replaced | None:
        """The best group that loses no more than the limit, and the network with it, fitted and fine-tuned."""
        left, choice = list(trials), self._unseen.choice
        while (best := preferred(left, self.settings.objective, self._least, len(choice))) is not None:
            assert best.fit is not None
            left.remove(best)
            before = hybrid.copy()
            before.replace(best.span, best.fit.ensemble)
            checkpoint = self._work / f"{number}-{best.span.first}-{best.span.last}-tuning.npz"
            if self.settings.train == "hybrid":
                try:
                    tuning = self._trained(before, checkpoint)
                except DivergedError as error:
                    top1 = float(before.right(choice).mean())
                    tuning = Tuning(before, top1, 0.0, f"not trained: the training diverged ({error.what})")
                self._notes.append(_UNTRAINED)
            else:
                tuning = tuned(before, start, self._learnt, choice, self.settings, checkpoint, self.notify)
            self._seconds += tuning.seconds
            right = tuning.hybrid.right(choice)
            acceptance = compared(
                self._right,
                right,
                self.settings.max_drop,
                data=self._unseen.choice_from,
                measure=self._unseen.choice.task.measure,
            )
            if not acceptance.kept:
                self._notes.append(f"{best.span} as trees: too much is lost: {acceptance.text}")
                continue
            costlier = self._searched and self._costlier(tuning.hybrid)
            if costlier and acceptance.drop > 0:
                self._notes.append(f"{best.span} as trees: {_POINTLESS}: {acceptance.text}")
                continue
            self._notes.append(f"{best.span}: {tuning.note}; {acceptance.text}")
            return _Replaced(best, before, tuning.hybrid, acceptance, costlier, tuple(left))
        return None

    @property
    def _searched(self) -> bool:
        """Whether the search chooses the group, for what runs on the target: circuits cost something else."""
        return None in (self.settings.first, self.settings.layers) and self.settings.objective != "luts"

    def _costlier(self, hybrid: HybridModel) -> bool:
        """Whether a network with trees is slower than the original, and its trees are bigger than what they replace."""
        ensembles = tuple(ensemble for _, ensemble in hybrid.chosen)
        layers = [hybrid.part(span.start.position, span.end.position) for span, _ in hybrid.chosen]
        if sum(each.bytes for each in ensembles) <= FLOAT_BYTES * sum(each.parameters for each in layers):
            return False
        whole = with_trees(hybrid.model, Forest(model=self._original.model.name, ensembles=ensembles))
        before_ns, after_ns = self._latencies([self._original.model, whole])
        return after_ns > before_ns

    def _final(self, steps: Sequence[_Replaced]) -> Acceptance:
        """The final test, on data that decided nothing before."""
        unseen = self._unseen
        first, second = (network.right(unseen.final) for network in (self._original, steps[-1].hybrid))
        return compared(
            first, second, self.settings.max_drop, data=unseen.final_from, measure=unseen.final.task.measure
        )

    def _worth(self, steps: Sequence[_Replaced], final: Acceptance) -> bool:
        """Whether the mean loss is allowed, and something is gained where more is lost than nothing."""
        lost = final.drop * final.examples
        if final.data == "part of test":  # the test data as a whole
            lost += steps[-1].acceptance.drop * steps[-1].acceptance.examples
        return final.kept and not (lost > _ROUNDING and steps[-1].costlier)

    def _written(
        self, last: _Replaced | None, trials: list[Trial], steps: Sequence[_Replaced], final: Acceptance | None
    ) -> tuple[TreeifyResult, Model | None, Forest | None]:
        """Write the result to the folder."""
        test, name = self.data.test, self._original.model.name
        hybrid = self._original if last is None else last.hybrid
        groups = [step.trial for step in steps]
        forest = Forest(model=name, ensembles=tuple(ensemble for _, ensemble in hybrid.chosen))
        whole = None if last is None else with_trees(hybrid.model, forest)
        self.notify("timing")
        times_ns = self._latencies([self._original.model, *([] if whole is None else [whole])])
        chosen = None
        if whole is not None and last is not None:
            chosen = TreeifiedModel(
                groups=tuple(_chosen(trial, hybrid) for trial in sorted(groups, key=lambda group: group.span.first)),
                top1=evaluate(hybrid.predict, test).top1,
                top1_before_finetune=evaluate(last.plain.predict, test).top1,
                validation_top1=last.acceptance.after,
                latency_ns=times_ns[1],
                lut6=sum(map(lut6_of, forest.ensembles)),
                bytes=sum(ensemble.bytes for ensemble in forest.ensembles),
                finetune_seconds=self._seconds,
                acceptance=last.acceptance,
                final=final,
                exports=(export(whole, forest, "core", self.folder, batch_open=self._batch_open),),
            )
            write_record(self.folder / "trees.json", forest, force=True)
        result = TreeifyResult(
            model=name,
            seed=self.settings.seed,
            original=Original(
                top1=evaluate(self._original.predict, test).top1,
                validation_top1=float(self._right.mean()),
                latency_ns=times_ns[0],
            ),
            candidates=tuple(_candidate(*pair) for pair in zip(trials, pareto(trials), strict=True)),
            chosen=chosen,
            notes=(*self._notes, f"{_FIGURES} {_whose(self.settings.target)}"),
        )
        write_record(self.folder / "result.json", result, force=True)
        shutil.rmtree(self._work, ignore_errors=True)
        return result, whole, None if whole is None else forest


def _whose(target: str) -> str:
    return "this machine" if target == "cpu" else f"target {target}"


def _candidate(trial: Trial, best: bool) -> Candidate:
    fit = trial.fit
    return Candidate(
        first_layer=trial.span.first,
        last_layer=trial.span.last,
        bound_top1=trial.bound.top1,
        top1=None if fit is None else fit.top1,
        distance=None if fit is None else fit.distance,
        bytes=None if fit is None else fit.bytes,
        layers_bytes=None if fit is None else fit.layers_bytes,
        latency_ns=None if fit is None else fit.latency_ns,
        layers_latency_ns=None if fit is None else fit.layers_ns,
        lut6=None if fit is None else fit.lut6,
        pareto=best,
    )


def _chosen(trial: Trial, hybrid: HybridModel) -> ChosenGroup:
    ensemble = next(ensemble for span, ensemble in hybrid.chosen if span == trial.span)
    assert trial.fit is not None
    return ChosenGroup(
        first_layer=trial.span.first,
        last_layer=trial.span.last,
        depth=trial.fit.depth,
        trees=len(ensemble.members),
        kind=ensemble.kind,
        accumulator_bits=ensemble.accumulator_bits,
        fit_seconds=trial.fit.seconds,
    )
