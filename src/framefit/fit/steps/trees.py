"""Decision trees in place of layers, where the device runs them faster than these."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from framefit.core.files import read_record
from framefit.core.model import Model
from framefit.core.tree_results import TreeifyResult, TreeifySettings
from framefit.core.trees import TREES
from framefit.core.workload import ModelEntry
from framefit.errors import InfeasibleError
from framefit.fit.accuracy import opened
from framefit.fit.situation import Situation
from framefit.fit.step import Change, Offer, Step, entry_of, step
from framefit.trees.groups import boundaries

_LEAST_LAYERS = 3  # with weights: a group, and something on either side of it
_SETTINGS = "treeify.json"


@step("trees", cost="accuracy", rank=2)
class Treeify(Step):
    """``framefit treeify`` of a group of layers of one model.

    Only planning the hybrid shows the gain, and only fitting the cost: it comes after steps whose effect is known.
    """

    def propose(self, situation: Situation) -> list[Offer]:
        """Each model that has groups to replace, where a unit that it may use runs trees."""
        offers = []
        for entry in self.context.candidates(situation):
            version = self.context.version(entry)
            if version.trees or not _tree_units(situation, entry) or not self.context.labelled.classes(entry.name):
                continue
            model = opened(entry, version.float_path)
            if len(model.inputs) > 1 or len(boundaries(model)) < _LEAST_LAYERS:
                continue
            what, take = (
                f"trees for a group of layers of {entry.name!r}",
                functools.partial(self._take, situation, entry.name),
            )
            offers.append(self.offer(what, take, key=entry.name, model=entry.name))
        return offers

    def _take(self, situation: Situation, name: str, folder: Path) -> Change:
        from framefit.workflows.search import treeify

        context, entry = self.context, entry_of(situation.workload, name)
        version = context.version(entry)
        model = opened(entry, version.float_path)
        reference = context.labelled.reference(name)
        search = folder / "search"
        begun = (search / _SETTINGS).is_file()  # a step that was interrupted
        search_seconds, finetune_seconds = self._seconds(search)
        search_result = treeify(
            model,
            context.labelled.search_data(name),
            objective="speed",
            target=situation.workload.target,
            unit=self._unit(situation, entry),
            max_drop=self._left(name, model, reference),
            finetune_epochs=context.settings.finetune_epochs,
            max_seconds=search_seconds,
            finetune_seconds=finetune_seconds,
            seed=context.settings.seed,
            workers=context.settings.workers,
            resume=search if begun else None,
            output=search,
            notify=context.notify,
        )
        if search_result.result.chosen is None:
            raise InfeasibleError(f"no group is worth replacing: {_why(search_result.result)}", where=name)
        path = str(search / "model.onnx")
        accuracy = context.labelled.accuracy(name, opened(entry, path))
        drop = reference - accuracy.top1
        new_version = msgspec.structs.replace(
            version, float_path=path, path=path, trees=True, int8="no", float_drop=drop, drop=drop
        )
        return context.change(situation, entry, new_version, reference, accuracy)

    def _left(self, name: str, model: Model, reference: float) -> float:
        """What earlier steps left of the accuracy that may be lost, 0 to 1."""
        top1 = self.context.labelled.accuracy(name, model).top1
        return max(self.context.settings.max_drop + top1 - reference, 0.0)

    def _seconds(self, search: Path) -> tuple[float | None, float | None]:
        """Of search and fine-tuning at most; as before a break, for a search with other settings begins anew."""
        if (search / _SETTINGS).is_file():
            stored = read_record(search / _SETTINGS, TreeifySettings)
            return stored.max_seconds, stored.finetune_seconds
        third = max(self.context.seconds_left() / 3, 1.0)
        return third, third

    @staticmethod
    def _unit(situation: Situation, entry: ModelEntry) -> str | None:
        """Whose times decide: that which runs the model, where it runs trees, too."""
        if not situation.described:
            return None
        home = situation.planned.timetable.model(entry.name).segments[0].unit
        return home if home in _tree_units(situation, entry) else None


def _why(result: TreeifyResult) -> str:
    """What is against the groups that were tried."""
    times = [
        (candidate.latency_ns, candidate.layers_latency_ns)
        for candidate in result.candidates
        if candidate.top1 is not None
    ]
    faster = [trees for trees, layers in times if trees is not None and layers is not None and trees < layers]
    return "those that save time lose too much accuracy" if faster else "trees save no time"


def _tree_units(situation: Situation, entry: ModelEntry) -> list[str]:
    """Units that a model may use and that run trees; none where what they take there is not known."""
    device = situation.planned.device
    names = [unit.name for unit in device.target.units if entry.units is None or unit.name in entry.units]
    if not device.capabilities.modelled:
        return names
    if device.target.cost.source == "table":
        return []
    return [name for name in names if device.target.unit(name).supports(TREES)]
