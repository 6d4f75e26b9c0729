"""Subject of a search for sparsity: model, data, target, the layers that may lose weights, and their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Listing, Model, epilogue_groups, free_batch, listing, with_weights
from framefit.core.run_record import LayerCycles
from framefit.core.settings import Notify
from framefit.core.sparsity import Pattern, SparsifySettings
from framefit.core.target import Target, load_target, resolve_target
from framefit.devices.npu.costs import CostSource, pricing
from framefit.devices.registry import capabilities_of
from framefit.errors import InputError
from framefit.sparsity.database import (
    Database,
    Entry,
    build_group,
    build_layer,
    group_facts,
    read_database,
    sparsity_levels,
)
from framefit.sparsity.layers import ChannelGroup, WeightLayer, find_groups, find_layers
from framefit.sparsity.problem import Assignment, Floats, Ints
from framefit.sparsity.statistics import activation_zeros, collect
from framefit.training.campaign import Ledger
from framefit.training.data import Dataset, Examples, batch_left_open, open_classifier
from framefit.training.network import Network, to_torch

__all__ = ["open_subject"]


def chosen_pattern(target: Target, requested: Pattern | None) -> Pattern:
    """The pattern of zeros that a target rewards.

    Raises:
        InputError: zeros of the requested pattern save nothing on the target.
    """
    rule = target.sparsity
    rewarded: tuple[Pattern, ...] = ()
    if rule.skips in ("weights", "saturating", "dual"):
        patterns: dict[str, tuple[Pattern, ...]] = {"unstructured": ("unstructured", "n:m"), "n:m": ("n:m",)}
        rewarded = patterns.get(rule.granularity, ())
    if requested is None:
        return rewarded[0] if rewarded else "channel"
    if requested != "channel" and requested not in rewarded:
        known = f"only {rewarded[0]} zeros" if rewarded else "no zeros in weights"
        raise InputError(
            f"target {target.name!r} rewards {known}: {requested} zeros would save nothing",
            remedy=f"choose --pattern {rewarded[0] if rewarded else 'channel'}, or another target",
        )
    return requested


class Prices:
    """Cycles of one model on one unit, for any sparsity of its layers."""

    def __init__(
        self, target: Target, source: CostSource, model: Model, written: Listing, layers: Sequence[WeightLayer]
    ) -> None:
        self._rule, self._source, self._model = target.sparsity, source, model
        self._arrays, self._layers = written.arrays, layers

    def of(self, model: Model, zeros: Mapping[str, float]) -> dict[str, LayerCycles]:
        """Cycles of each layer of a model, by the name of its node with the weight, else of its last node."""
        grouped, places = self._grouped(model)
        names = {place: name for name, place in places.items()}
        costs = self._source.layers(grouped, activation_sparsity=self._activations(grouped, places, zeros))
        return {names.get(index, cost.name): cost for index, cost in enumerate(costs)}

    def total(self, model: Model, zeros: Mapping[str, float]) -> int:
        """Cycles of a model."""
        return sum(layer.cycles for layer in self.of(model, zeros).values())

    def shrunk(self, database: Database, assignment: Assignment) -> Model:
        """The model that an assignment makes of the dense one."""
        return with_weights(self._model, database.final(assignment, self._arrays, self._layers))

    def table(self, database: Database, zeros: Mapping[str, float]) -> tuple[Ints, int]:
        """Cycles of each entry of a database at each level, L x S, and of everything else."""
        return self._of_channels(database, zeros) if database.groups else self.of_zeros(database.levels, zeros)

    def of_zeros(self, sparsities: Floats, zeros: Mapping[str, float]) -> tuple[Ints, int]:
        """Cycles of each weight layer at each of its sparsities, L x S, and of everything else.

        Args:
            sparsities: L x S, in the arrangement that the target rewards.
            zeros: weight layer -> part of its input that is zero.
        """
        grouped, places = self._grouped(self._model)
        activations = self._activations(grouped, places, zeros)
        weighted = [places[layer.name] for layer in self._layers]
        given = np.asarray(grouped.weight_zeros(self._rule.granularity, self._rule.n or 1, self._rule.m or 1))
        n, m = self._rule.n, self._rule.m
        table = []
        for levels in sparsities.T:
            ratios = given.copy()
            ratios[weighted] = levels if n is None or m is None else np.where(levels > 0, 1 - n / m, 0)
            costs = self._source.layers(grouped, weight_sparsity=ratios.tolist(), activation_sparsity=activations)
            table.append([cost.cycles for cost in costs])
        cycles = np.asarray(table, np.int64).T
        return cycles[weighted], int(cycles[:, 0].sum() - cycles[weighted, 0].sum())

    def _of_channels(self, database: Database, zeros: Mapping[str, float]) -> tuple[Ints, int]:
        """Cycles of groups of channels; a layer that several groups affect is shared among them in equal parts.

        Its real cycles are about the product of the groups' ratios, which is at most their mean: an upper bound.
        """
        dense = self._costs(self._model, zeros)
        levels = database.levels
        cycles: Floats = np.zeros((*levels.shape, len(dense)))
        for group, level in np.ndindex(levels.shape):
            if level and levels[group, level] == levels[group, level - 1]:
                cycles[group, level] = cycles[group, level - 1]
                continue
            assignment = np.zeros(len(levels), np.int64)
            assignment[group] = level
            cycles[group, level] = self._costs(self.shrunk(database, assignment), zeros) if level else dense
        touched = (cycles != dense).any(axis=1)
        share = touched / np.maximum(touched.sum(axis=0), 1)
        table = np.rint((cycles * share[:, None, :]).sum(axis=2)).astype(np.int64)
        return table, int(dense.sum()) - int(table[:, 0].sum())

    def _costs(self, model: Model, zeros: Mapping[str, float]) -> Ints:
        return np.asarray([layer.cycles for layer in self.of(model, zeros).values()], np.int64)

    def _grouped(self, model: Model) -> tuple[Model, dict[str, int]]:
        """The model with the layers that an accelerator fuses, and the index of each weight layer among them."""
        grouped = model.grouped(epilogue_groups(model))
        at = {node: index for index, layer in enumerate(grouped.layers) for node in layer.nodes}
        return grouped, {layer.name: at[layer.name] for layer in self._layers}

    @staticmethod
    def _activations(grouped: Model, places: Mapping[str, int], zeros: Mapping[str, float]) -> list[float] | float:
        if not zeros:
            return 0.0
        ratios = [0.0] * len(grouped.layers)
        for name, place in places.items():
            ratios[place] = zeros[name]
        return ratios


_PROCESSOR = Path(__file__).with_name("processor.toml")
_IMAGES = 512  # of the calibration data in Hessians and batch-norm statistics (SPDY and SparseGPT: 128 to 1,024)
_FEWEST = 128  # see _IMAGES; where the calibration data have fewer, images of the training data join them


@dataclass(frozen=True)
class Subject:
    """Everything that the search works on.

    Attributes:
        model: the dense model.
        written: its nodes and initializers.
        data: split into parts.
        target: the device; unit: of it.
        pattern: of the zeros; of_m: N and M.
        layers: those that may lose weights; groups: of channels, for that pattern.
        prices: cycles for any sparsity.
        inputs: calibration data, float32.
        examples: validation data for the search.
        zeros: weight layer -> part of its input that is zero, in the dense network.
        batch_open: whether its files leave the batch dimension open.
        notes: what stays dense, and why.
    """

    model: Model
    written: Listing
    data: Dataset
    target: Target
    unit: str
    pattern: Pattern
    of_m: tuple[int, int] | None
    layers: tuple[WeightLayer, ...]
    groups: tuple[ChannelGroup, ...]
    prices: Prices
    inputs: npt.NDArray[np.float32]
    examples: Examples
    zeros: dict[str, float]
    batch_open: bool
    notes: tuple[str, ...]

    def network(self) -> Network:
        """A new copy of the dense network."""
        return to_torch(self.model)

    def file_of(self, model: Model) -> bytes:
        """A sparse model as an ONNX file."""
        return free_batch(model) if self.batch_open else model.to_bytes()


def open_subject(settings: SparsifySettings, ledger: Ledger, model: Any = None, data: Any = None) -> Subject:
    """Read model, data and target, and check that they match.

    Args:
        settings: the user's options.
        ledger: counts the images.
        model: a model, or a ``torch.nn.Module``, instead of the one that ``settings`` names.
        data: a data set, or an iterable of (x, y), likewise.

    Raises:
        InputError: something cannot be used, the target rewards no such zeros, or no layer can be pruned.
    """
    target = _described(resolve_target(settings.target))
    pattern = chosen_pattern(target, settings.pattern)
    source_model = settings.model if model is None else model
    opened, split = open_classifier(
        source_model,
        settings.data if data is None else data,
        seed=settings.seed,
        mean=settings.mean,
        std=settings.std,
    )
    written = listing(opened)
    network = to_torch(opened)
    layers, notes = find_layers(written.nodes, written.arrays)
    if not layers:
        raise InputError(
            "no convolution or fully connected layer with weights of its own",
            where=opened.name,
            remedy="choose another",
        )
    groups: tuple[ChannelGroup, ...] = ()
    if pattern == "channel":
        groups = find_groups(written.nodes, written.arrays, layers, [tensor.name for tensor in opened.outputs])
        if not groups:
            raise InputError(
                "no channels can be removed: all of them reach the model's ends, or operators that are not followed",
                where=opened.name,
                remedy="choose --pattern unstructured",
            )
    batch_open, closed = batch_left_open(source_model, opened)
    source = pricing(target, opened, settings.unit)
    rule = target.sparsity
    of_m = (rule.n or settings.n, rule.m or settings.m) if pattern == "n:m" else None
    inputs, few = _calibration(split, settings.seed)
    zeros = activation_zeros(network, [layer.name for layer in layers], inputs, ledger)
    return Subject(
        model=opened,
        written=written,
        data=split,
        target=target,
        unit=source.unit.name,
        pattern=pattern,
        of_m=of_m,
        layers=layers,
        groups=groups,
        prices=Prices(target, source, opened, written, layers),
        inputs=inputs,
        examples=split.validation.sample(settings.images, settings.seed),
        zeros=zeros,
        batch_open=batch_open,
        notes=(*few, *notes, *closed),
    )


def _calibration(data: Dataset, seed: int) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """Inputs for statistics, and a remark where they are few; statistics need no labels, so training data will do."""
    examples = data.calibration.sample(_IMAGES, seed)
    if len(examples) < _FEWEST:
        examples = examples.joined(data.train.sample(_FEWEST - len(examples), seed))
    if len(examples) >= _FEWEST:
        return examples.inputs(), ()
    what = f"only {len(examples)} images for the layers' statistics: weights may be fitted to them by chance"
    return examples.inputs(), (f"{what}; give more training data, at least {_FEWEST}",)


def _described(target: Target) -> Target:
    """Return a target with figures: a processor of this machine is measured, so a core like it takes its place."""
    return target if capabilities_of(target).modelled else load_target(_PROCESSOR)


def make_database(subject: Subject, path: Path, ledger: Ledger, seed: int, notify: Notify) -> Database:
    """Return the layer database of a subject: the one in its folder, else a new one that is stored there.

    Each layer is stored when it is built, so an interrupted construction continues.
    """
    arrays, layers, groups = subject.written.arrays, subject.layers, subject.groups
    facts = [group_facts(group, layers) for group in groups] if groups else [layer.facts for layer in layers]
    if path.exists():
        return read_database(path, facts, arrays, groups)
    notify("layer statistics on calibration data")
    statistics = collect(subject.network(), layers, subject.inputs, ledger, seed)
    levels = sparsity_levels(sum(layer.facts.parameters for layer in layers))

    def built(index: int) -> Entry:
        if groups:
            return build_group(groups[index], layers, arrays, statistics)
        layer = layers[index]
        return build_layer(layer, arrays[layer.weight], statistics[layer.name], levels, of_m=subject.of_m)

    parts = [path.with_name(f"{path.stem}.part-{index}.npz") for index in range(len(facts))]
    entries: list[Entry] = []
    for index, (fact, part) in enumerate(zip(facts, parts, strict=True)):
        notify(f"layer database: {fact.name} ({index + 1} of {len(facts)})")
        own_groups = groups[index : index + 1]
        if not part.exists():
            Database(subject.pattern, (built(index),), own_groups).save(part)
        entries += read_database(part, [fact], arrays, own_groups).entries
    database = Database(subject.pattern, tuple(entries), groups)
    database.save(path)
    for part in parts:
        part.unlink()
    return database
