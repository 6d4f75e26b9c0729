"""Decision trees in place of layers, where the device runs them faster than these."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from framefit.core.fits import ProposedStep
from framefit.errors import InfeasibleError
from framefit.trees.groups import boundaries
from framefit.workflows.fitting.bench import Bench, entry_of
from framefit.workflows.fitting.labelled import opened
from framefit.workflows.fitting.measures import Change, Offer
from framefit.workflows.fitting.situation import Situation

__all__ = ["Treeify"]

_LEAST_LAYERS = 3  # with weights: a group, and something on either side of it


class Treeify:
    """``framefit treeify`` of a group of layers of one model.

    What that gains only planning the hybrid tells, and what it costs only fitting: it comes after what can be told.

    Args:
        bench: where models are changed.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def propose(self, situation: Situation) -> list[Offer]:
        """Each model that has groups to replace."""
        offers = []
        for entry in self._bench.candidates(situation):
            book = self._bench.book(entry)
            if book.trees or len(boundaries(opened(entry, book.float_path))) < _LEAST_LAYERS:
                continue
            step = ProposedStep(
                key=f"trees: {entry.name}",
                measure="trees",
                model=entry.name,
                what=f"trees for a group of layers of {entry.name!r}",
                cost="accuracy",
                needs=self._bench.labelled.lacks(entry.name),
            )
            offers.append(Offer(step, functools.partial(self._take, situation, entry.name)))
        return offers

    def _take(self, situation: Situation, name: str, folder: Path) -> Change:
        from framefit.workflows.treeify import treeify

        bench, entry = self._bench, entry_of(situation.workload, name)
        book = bench.book(entry)
        search = folder / "search"
        done = treeify(
            opened(entry, book.float_path),
            bench.labelled.data(name),
            objective="speed",
            max_drop=bench.settings.max_drop,
            finetune_epochs=bench.settings.finetune_epochs,
            finetune_seconds=max(bench.seconds_left() / 2, 1.0),
            seed=bench.settings.seed,
            resume=search if (search / "treeify.json").is_file() else None,  # of a step that was interrupted
            output=search,
            notify=bench.notify,
        )
        if done.result.chosen is None:
            raise InfeasibleError("no group is worth replacing", where=name)
        path = str(search / "model.onnx")
        reference = bench.labelled.reference(name, trained=True)
        top1 = bench.labelled.top1(name, opened(entry, path))
        drop = reference - top1
        made = msgspec.structs.replace(
            book, float_path=path, path=path, trees=True, int8="no", float_drop=drop, drop=drop
        )
        return bench.change(situation, entry, made, top1, bench.labelled.reference(name, trained=False))
