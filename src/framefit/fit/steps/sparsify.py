"""Sparsity: as many of a model's cycles as are missing."""

from __future__ import annotations

import functools
import math
import re
import shutil
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.fit_results import FittedModel
from framefit.core.model import Model
from framefit.core.sparsity import SparsifySettings
from framefit.core.workload import ModelEntry
from framefit.devices.device import is_modelled
from framefit.devices.ort import weight_nodes
from framefit.fit.accuracy import opened
from framefit.fit.folder import slug
from framefit.fit.situation import Situation, layers_ratio
from framefit.fit.step import Change, Offer, Step, entry_of, step

_SAFE = 0.97  # of the cycles that are asked for: a launch's quantile and its cuts move, too
_LEAST, _MOST = 0.2, 0.95  # of the original's cycles: sparser networks are others; denser ones gain nothing
_ALIKE = 0.05  # of the cycles: no new attempt
_ATTEMPTS = 3  # that cost too much accuracy
_PARTIAL = 0.5  # of what it takes now, where no sparsity alone is enough
_LEVELS = 101  # of equal sparsity
_PARTS = 4  # of the time that is left: search, fine-tuning, one more where that did harm, and the final test
_KEPT = ("sparsify.json", "database.npz")  # of an earlier search of the same network: they serve any cycles


@step("sparsify", cost="accuracy", rank=1)
class Sparsify(Step):
    """``framefit sparsify`` of the models whose cycles are missing, from the user's own network each time.

    Zeros of the pattern that the target rewards; on this machine blocks that its kernels skip, or whole channels. What
    costs too much accuracy is tried again half as far.
    """

    def propose(self, situation: Situation) -> list[Offer]:
        """A model at the part of its cycles at which everything would fit; else at half of what it takes."""
        offers = []
        for entry in self.context.candidates(situation):
            version = self.context.version(entry)
            model = opened(entry, version.float_path)
            if version.trees or not weight_nodes(model):
                continue
            if situation.described and situation.planned.device.target.processor is None:
                continue  # nobody knows what zeros are worth there
            cost_ratio = self.context.cost_that_fits(situation, entry.name)
            cycles_ratio = version.cycles_ratio * self._layers(
                situation, entry, model, _PARTIAL if cost_ratio is None else cost_ratio
            )
            cycles = self._untried(entry.name, version, cycles_ratio)
            if cycles is None:
                continue
            ratio = cycles / version.cycles_ratio
            offer = self.offer(
                f"sparsify {entry.name!r} to {cycles:g} of its cycles",
                functools.partial(self._take, situation, entry.name, cycles),
                key=f"{entry.name}{' int8' if _in_bytes(situation, version) else ''} {cycles:g}",
                model=entry.name,
                predicted_load_ratio=self.context.load_if(situation, entry.name, ratio),
                enough=cost_ratio is not None and cycles <= cycles_ratio,
                cycles_ratio=cycles,
            )
            offers.append(offer)
        return offers

    @staticmethod
    def _layers(situation: Situation, entry: ModelEntry, model: Model, ratio: float) -> float:
        """What part of its cycles that part of its launch's time is."""
        device = situation.planned.device
        if not is_modelled(device):
            return _SAFE * ratio
        unit = situation.planned.timetable.model(entry.name).segments[0].unit
        return _SAFE * layers_ratio(device, model, unit, ratio)

    def _untried(self, name: str, version: FittedModel, cycles_ratio: float) -> float | None:
        """These cycles, or half as far where so few cost too much accuracy before; ``None``: all was tried."""
        rejected = self.context.rejected.get(name, [])
        worst = max(rejected, default=_LEAST - _ALIKE)
        cycles = max(cycles_ratio, _LEAST)
        if cycles < worst + _ALIKE:
            cycles = (worst + version.cycles_ratio) / 2
        cycles = math.floor(100 * cycles) / 100
        new = worst + _ALIKE / 2 <= cycles <= min(version.cycles_ratio - _ALIKE, _MOST)
        return cycles if new and len(rejected) < _ATTEMPTS else None

    def _take(self, situation: Situation, name: str, cycles: float, folder: Path) -> Change:
        from framefit.workflows.search import sparsify

        context, entry = self.context, entry_of(situation.workload, name)
        version = context.version(entry)
        model = context.labelled.original(name)
        search, int8 = folder / "search", _in_bytes(situation, version)
        _keep_database(search, context.folder, f"{name} int8" if int8 else name)
        going_on = (search / "sparsify.json").is_file()
        settings = SparsifySettings(
            model="",
            data="",
            target=situation.workload.target,
            unit=situation.planned.timetable.model(name).segments[0].unit if situation.described else None,
            cycles=cycles,
            seed=context.settings.seed,
            int8=int8,
        )
        seconds = max(context.seconds_left() / _PARTS, 1.0)
        search_result = sparsify(
            model,
            context.labelled.search_data(name),
            settings.target,
            unit=settings.unit,
            cycles=self._own_cycles(settings, model, name),
            accuracy_drop=context.settings.max_drop,
            finetune_epochs=context.settings.finetune_epochs,
            max_seconds=seconds,
            finetune_seconds=seconds,
            seed=context.settings.seed,
            int8=int8,
            workers=context.settings.workers,
            compare=False,
            resume=search if going_on else None,
            output=None if going_on else search,
            notify=context.notify,
        )
        if search_result.result.interrupted:
            raise KeyboardInterrupt
        path = search / ("float32.onnx" if int8 else "model.onnx")
        sparse_model = opened(entry, path)
        reference, accuracy = context.labelled.reference(name), context.labelled.accuracy(name, sparse_model)
        version = msgspec.structs.replace(
            version, float_path=str(path), path=str(path), cycles_ratio=cycles, float_drop=reference - accuracy.top1
        )
        version = msgspec.structs.replace(version, drop=version.float_drop)
        detail = ""
        if version.int8 != "no":
            ends = version.int8 == "ends"
            path = search / "model.onnx" if int8 else context.in_int8(entry, sparse_model, folder, ends=ends)
            narrow = context.labelled.accuracy(name, opened(entry, path))
            drop = version.float_drop + accuracy.top1 - narrow.top1
            version = msgspec.structs.replace(version, path=str(path), drop=drop)
            accuracy, detail = narrow, "with zeros for kernels of bytes" if int8 else "and quantised again"
        return context.change(situation, entry, version, reference, accuracy, detail)

    def _own_cycles(self, settings: SparsifySettings, model: Model, name: str) -> float:
        """The cycles that a search is to be asked for, so that a plan has the part that it needs.

        A plan knows the zeros in weights. Where the target skips zeros in activations as well, the search counts
        these, too, and the same weights are another part of the cycles: it is that of equally sparse layers.
        """
        from framefit.sparsity.subject import open_subject
        from framefit.training.campaign import Ledger

        assert settings.cycles is not None
        subject = open_subject(settings, Ledger(), model, self.context.labelled.search_data(name))
        if subject.pattern != "unstructured":
            return settings.cycles
        levels = np.linspace(0, 1, _LEVELS)
        table = np.tile(levels, (len(subject.layers), 1))
        planned, counted = (
            cycles.sum(axis=0) + rest
            for zeros in ({}, subject.zeros)
            for cycles, rest in [subject.prices.of_zeros(table, zeros)]
        )
        fewest = np.minimum.accumulate(planned) / planned[0]  # a little sparsity may cost more than none
        place = int(np.argmax(fewest <= settings.cycles)) if fewest[-1] <= settings.cycles else -1
        return min(float(counted[place] / counted[0]), 1.0)


def _in_bytes(situation: Situation, version: FittedModel) -> bool:
    """Whether a search is for zeros in int8: this machine's kernels for bytes skip larger blocks."""
    return not situation.described and version.int8 == "all"


def _keep_database(search: Path, steps: Path, name: str) -> None:
    """Nothing but the layer database of an earlier search, or of one that was interrupted in this place."""
    pattern = re.compile(rf"\d+-{re.escape(slug(f'sparsify {name}'))}-0-\d+")  # with the cycles that were asked for
    earlier_steps = sorted(path for path in steps.glob("*") if pattern.fullmatch(path.name))
    for earlier in (search, *(folder / "search" for folder in earlier_steps)):
        if all((earlier / file).is_file() for file in _KEPT):
            known = {file: (earlier / file).read_bytes() for file in _KEPT}
            shutil.rmtree(search, ignore_errors=True)
            search.mkdir(parents=True)
            for file, content in known.items():
                (search / file).write_bytes(content)
            return
    shutil.rmtree(search, ignore_errors=True)
