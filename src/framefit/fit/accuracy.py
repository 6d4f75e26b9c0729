"""Labelled data of a workload's models, and how accurate what became of a model is on them."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from framefit.core.fit_results import FinalAccuracy, FitSettings, FittedModel
from framefit.core.model import Model
from framefit.core.model.loading import declared_inputs
from framefit.core.workload import ModelEntry, Preprocess, Workload
from framefit.devices.ort import predictor
from framefit.errors import InputError, MismatchError
from framefit.execution.wiring import wire

if TYPE_CHECKING:
    from framefit.training.acceptance import UnseenData
    from framefit.training.data import Dataset, Examples
    from framefit.training.evaluate import Accuracy


def opened(entry: ModelEntry, path: str | Path | None = None) -> Model:
    """A workload's model with its shapes fixed.

    Args:
        entry: its part of the workload, with an absolute path.
        path: of what became of it, which holds what never changes already; default: the entry's.
    """
    constants = entry.constants if path is None or str(path) == entry.path else {}
    return Model.load(path or entry.path, shapes=entry.shapes, constants=constants, name=entry.name)


def sized(workload: Workload, app: Path) -> Workload:
    """A workload whose models have their shapes without its streams: what files leave open, streams define.

    Raises:
        InputError: a model or stream that cannot be used.
    """
    left_open = {entry.name: _left_open(entry) for entry in workload.models}
    if not any(left_open.values()):
        return workload
    shapes = {
        wired.entry.name: {
            tensor.name: tensor.shape
            for tensor in wired.model.inputs
            if tensor.name in left_open[wired.entry.name] and tensor.shape is not None
        }
        for wired in wire(workload, app)
    }
    models = tuple(msgspec.structs.replace(each, shapes=each.shapes | shapes[each.name]) for each in workload.models)
    return msgspec.structs.replace(workload, models=models)


def _left_open(entry: ModelEntry) -> set[str]:
    """Inputs without a shape, or with open sizes behind the batch, of which the workload's file says nothing."""
    return {
        name
        for name, sizes in declared_inputs(entry.path).items()
        if (sizes is None or None in sizes[1:]) and name not in entry.shapes and name not in entry.constants
    }


class Labelled:
    """What is known about the accuracy of a workload's models.

    Raises:
        InputError: data of a model that is not there or does not fit them, or data that fit no model or several.
    """

    def __init__(self, settings: FitSettings, workload: Workload) -> None:
        self._seed, self._max_drop = settings.seed, settings.max_drop
        self._entries = {entry.name: entry for entry in workload.models}
        self._sources = {name: source for name, source in settings.data.items() if name}
        self._data: dict[str, Dataset] = {}
        self._unseen: dict[str, UnseenData] = {}
        self._references: dict[str, float] = {}
        self.trains = importlib.util.find_spec("torch") is not None
        for name in self._sources:
            if name not in self._entries:
                near = difflib.get_close_matches(name, self._entries, n=1)
                raise InputError(
                    f"no model {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                    where="--data",
                    remedy=f"choose from {', '.join(self._entries)}",
                )
        if self.trains:
            self._check(settings.data)

    def lacks(self, name: str) -> str | None:
        """What is missing to change a model and judge it, with the remedy; ``None``: nothing."""
        if not self.trains:
            return "needs pip install 'framefit[train]'"
        return None if name in self._sources else f"needs data: --data {name}=DATA"

    def data(self, name: str) -> Dataset:
        """A model's data, split with the seed."""
        return self._data[name]

    def classes(self, name: str) -> bool:
        """Whether a model may be a classifier: whether its data, if there are any, have classes."""
        return name not in self._data or bool(self._data[name].classes)

    def original(self, name: str) -> Model:
        """The user's own."""
        return opened(self._entries[name])

    def search_data(self, name: str) -> Dataset:
        """A model's data for a search: it decides on unseen data, and never sees those of the final test.

        Raises:
            InfeasibleError: nothing is unseen, see :func:`~framefit.training.acceptance.unseen_data`.
        """
        from framefit.training.data import Dataset

        data, unseen = self._data[name], self.unseen(name)
        train = data.train.joined(data.validation) if unseen.learnt else data.train
        choice = unseen.choice
        return Dataset(data.classes, train, choice, data.calibration, lambda: choice, validation_given=True)

    def unseen(self, name: str) -> UnseenData:
        """Data that a model was not trained on: what decides about steps, and what the final test uses.

        Raises:
            InfeasibleError: nothing is unseen.
        """
        from framefit.training.acceptance import unseen_data

        if name not in self._unseen:
            self._unseen[name] = unseen_data(predictor(self.original(name)), self._data[name], seed=self._seed)
        return self._unseen[name]

    def accuracy(self, name: str, model: Model) -> Accuracy:
        """What became of a model, on the data that decide."""
        return self._judged(model, self.unseen(name).choice)

    def reference(self, name: str) -> float:
        """What a model's accuracy on the data that decide is to be compared with: the original's there."""
        if name not in self._references:
            self._references[name] = self._judged(self.original(name), self.unseen(name).choice).top1
        return self._references[name]

    def final(self, fitted: FittedModel, path: Path) -> FinalAccuracy:
        """What became of a model, on data that decided nothing before."""
        from framefit.training.acceptance import compared_on
        from framefit.training.evaluate import evaluate
        from framefit.training.joined import InSequence

        entry, unseen = self._entries[fitted.name], self.unseen(fitted.name)
        model = opened(entry, path)
        original, changed = predictor(opened(entry)), predictor(model)

        def running() -> Any:
            """What became of the model, from the first example on, as it runs: with its own states."""
            return InSequence(model, changed, entry.state) if entry.state else changed

        after = evaluate(running(), unseen.final)
        acceptance = compared_on(original, running(), unseen.final, self._max_drop, unseen.final_from)
        return FinalAccuracy(
            top1=(acceptance.before, acceptance.after),
            interval=after.top1_interval,
            images=after.images,
            acceptance=acceptance,
        )

    @staticmethod
    def _judged(model: Model, examples: Examples) -> Accuracy:
        from framefit.training.evaluate import evaluate

        return evaluate(predictor(model), examples)

    def _check(self, given: Mapping[str, str]) -> None:
        """Read the data, and find the model of those that no model is named for."""
        if "" in given:
            data_of = {name: self._fitting(name, given[""]) for name in self._entries if name not in self._sources}
            fitting = [name for name, data in data_of.items() if data is not None]
            if len(fitting) != 1:
                which = f"fit {' and '.join(map(repr, fitting))}" if fitting else "fit no model of the workload"
                raise InputError(
                    f"the data {which}", where=given[""], remedy="name their model: --data MODEL=DATA, for each model"
                )
            self._sources[fitting[0]] = given[""]
        from framefit.training.data import check_fits

        for name, source in self._sources.items():
            self._data[name] = self._read(name, source)
            check_fits(self._data[name], opened(self._entries[name]))

    def _fitting(self, name: str, source: str) -> Dataset | None:
        """The data as a model reads them; ``None``: they do not fit it."""
        from framefit.training.data import check_fits

        try:
            data = self._read(name, source)
            check_fits(data, opened(self._entries[name]))
        except MismatchError:
            return None
        return data

    def _read(self, name: str, source: str) -> Dataset:
        from framefit.training.data import ExampleInputs, open_data
        from framefit.training.joined import joined_examples

        entry = self._entries[name]
        model = opened(entry)
        several = len(model.inputs) > 1
        examples = ExampleInputs(*joined_examples(model, source, entry.state)) if several else source
        preprocess = entry.preprocess if Path(source).is_dir() else None
        mean, std = (None, None) if preprocess is None else _normalising(preprocess, source)
        return open_data(
            examples, model.example_shape, scorer=lambda: predictor(model), seed=self._seed, mean=mean, std=std
        )


def _normalising(preprocess: Preprocess, source: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What the workload does to images, as means and deviations of values between 0 and 1.

    Raises:
        InputError: a folder's images cannot be had like that.
    """
    if preprocess.channels == "BGR" or preprocess.scale < 0:
        raise InputError(
            "a folder's images are RGB, and divided by a positive deviation",
            where=source,
            remedy="give the data as the network takes them, in an .npz",
        )
    count = 1 if preprocess.channels == "GRAY" else 3
    means = preprocess.mean or (0.0,)
    means = means * count if len(means) == 1 else means
    return tuple(mean / 255 for mean in means), (1 / (255 * preprocess.scale),) * count
