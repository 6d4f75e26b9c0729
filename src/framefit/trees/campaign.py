"""The campaign of ``framefit treeify``: groups of layers are chosen, replaced, fine-tuned and judged one by one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.files import write_record
from framefit.core.model import Model
from framefit.core.settings import Notify
from framefit.core.tree_results import Candidate, ChosenGroup, Original, TreeifiedModel, TreeifyResult, TreeifySettings
from framefit.core.trees import Forest
from framefit.errors import DivergedError, InfeasibleError
from framefit.training.campaign import (
    VALIDATION_LEARNT,
    Campaign,
    KeptRecords,
    SearchFolder,
    validation_was_learnt,
)
from framefit.training.data import batch_left_open, open_classifier
from framefit.training.evaluate import evaluate
from framefit.trees.exporting import export, lut6_of, with_trees
from framefit.trees.hybrid import HybridModel, lost
from framefit.trees.search import Search, Trial, latencies, pareto, preferred
from framefit.trees.tuning import Tuning, quantise_network, quantises, trained, tuned

_JUDGED = 5000  # training examples that show whether the validation data were among them
_FIGURES = "the candidates' top-1 is on the validation data before fine-tuning; latencies are those of"
_UNTRAINED = "the hybrid was trained end to end: the accuracy before is that of the network's initial weights"


class TreeifyCampaign(Campaign[TreeifySettings]):
    """A search for groups of layers that trees can replace, in its folder.

    Raises:
        InputError: model or data cannot be used.
    """

    def __init__(
        self, place: SearchFolder, settings: TreeifySettings, notify: Notify, model: Any = None, data: Any = None
    ) -> None:
        super().__init__(place, settings, notify)
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
        self._right: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._work = self.folder / "work"
        self._batch_open, closed = batch_left_open(source, opened)
        self._notes: list[str] = [*closed]
        self._seconds = self._top1 = 0.0

    def finish(self) -> tuple[TreeifyResult, Model | None, Forest | None]:
        """Search, replace, fine-tune and write the files."""
        start = self._prepared()
        kept, data = KeptRecords(self._work), self.data
        search = Search(self.settings, data.train, data.validation, kept, self._latencies, self.notify)
        hybrid = plain = start
        trials: list[Trial] = []
        chosen: list[Trial] = []
        for number in range(self.settings.groups):
            tried = search.trials(hybrid, number, self._least)
            trials += tried
            replaced = self._replaced(hybrid, start, tried, number)
            if replaced is None:
                break
            best, plain, hybrid = replaced
            chosen.append(best)
        if not trials:
            raise InfeasibleError(
                "no group of layers can be replaced",
                where=self._original.model.name,
                remedy="give a network of layers in sequence",
            )
        self._notes += search.notes
        return self._written(hybrid, plain, trials, chosen)

    def _prepared(self) -> HybridModel:
        """The network in which groups are searched: trained and quantised, if the user wants that."""
        held = self.data.validation
        if self.settings.train_epochs and self.settings.train == "network":
            training = self._trained(self._original, self._work / "training.npz")
            self._original = training.hybrid
            self._notes.append(f"the network {training.note}")
        self._right = self._original.right(held)
        seen = self._original.right(self._learnt.sample(_JUDGED, self.settings.seed))
        learnt = validation_was_learnt(float(self._right.mean()), int(seen.sum()), len(seen))
        if learnt and not self.settings.train_epochs:
            self._notes.append(VALIDATION_LEARNT)
            self._learnt = self._learnt.joined(held)
        if not quantises(self.settings):
            return self._original
        checkpoint = self._work / "levels.npz"
        tuning = quantise_network(self._original, self._learnt, held, self.settings, checkpoint, self.notify)
        self._notes.append(f"the network quantised: {tuning.note}")
        self._seconds += tuning.seconds
        return tuning.hybrid

    def _trained(self, hybrid: HybridModel, checkpoint: Path) -> Tuning:
        return trained(hybrid, self._learnt, self.data.validation, self.settings, checkpoint, self.notify)

    @property
    def _least(self) -> float:
        return float(self._right.mean()) - self.settings.max_drop

    def _replaced(
        self, hybrid: HybridModel, start: HybridModel, trials: list[Trial], number: int
    ) -> tuple[Trial, HybridModel, HybridModel] | None:
        """The best group that loses no more than the limit, and the network with it, fitted and fine-tuned."""
        left = list(trials)
        while (best := preferred(left, self.settings.objective, self._least)) is not None:
            assert best.fit is not None
            before = hybrid.copy()
            before.replace(best.span, best.fit.ensemble)
            checkpoint = self._work / f"{number}-{best.span.first}-{best.span.last}-tuning.npz"
            if self.settings.train == "hybrid":
                try:
                    tuning = self._trained(before, checkpoint)
                except DivergedError as error:
                    top1 = float(before.right(self.data.validation).mean())
                    tuning = Tuning(before, top1, 0.0, f"not trained: the training diverged ({error.what})")
                self._notes.append(_UNTRAINED)
            else:
                held = self.data.validation
                tuning = tuned(before, start, self._learnt, held, self.settings, checkpoint, self.notify)
            if lost(self._right, tuning.hybrid.right(self.data.validation)) <= self.settings.max_drop:
                self._notes.append(f"{best.span}: {tuning.note}")
                self._seconds += tuning.seconds
                self._top1 = tuning.top1
                return best, before, tuning.hybrid
            points, most = 100 * (self._right.mean() - tuning.top1), 100 * self.settings.max_drop
            self._notes.append(
                f"{best.span} as trees: {points:.2f} points of validation accuracy are lost, more than {most:g}"
            )
            left.remove(best)
        return None

    def _written(
        self, hybrid: HybridModel, plain: HybridModel, trials: list[Trial], groups: list[Trial]
    ) -> tuple[TreeifyResult, Model | None, Forest | None]:
        """Write the result to the folder."""
        test, name = self.data.test, self._original.model.name
        forest = Forest(model=name, ensembles=tuple(ensemble for _, ensemble in hybrid.chosen))
        whole = with_trees(hybrid.model, forest) if groups else None
        self.notify("timing")
        times_ns = self._latencies([self._original.model, *([] if whole is None else [whole])])
        chosen = None
        if whole is not None:
            chosen = TreeifiedModel(
                groups=tuple(_chosen(trial, hybrid) for trial in sorted(groups, key=lambda group: group.span.first)),
                top1=evaluate(hybrid.predict, test).top1,
                top1_before_finetune=evaluate(plain.predict, test).top1,
                validation_top1=self._top1,
                latency_ns=times_ns[1],
                lut6=sum(map(lut6_of, forest.ensembles)),
                bytes=sum(ensemble.bytes for ensemble in forest.ensembles),
                finetune_seconds=self._seconds,
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
        bound_top1=trial.bound,
        top1=None if fit is None else fit.top1,
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
