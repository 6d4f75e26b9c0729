"""Subject of a search for sparsity: model, data, target, the layers that may lose weights, and their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.executor import Executor
from framefit.core.model import Listing, Model, folded, free_batch, listing
from framefit.core.settings import Notify
from framefit.core.sparsity import Pattern, SparsifySettings
from framefit.core.target import Target, load_target, resolve_target
from framefit.devices.kernels.network import FOUR
from framefit.devices.kernels.selection import lanes_here
from framefit.devices.npu.costs import pricing
from framefit.devices.ort import quantised
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
from framefit.sparsity.prices import KernelPrices, Prices
from framefit.sparsity.statistics import LayerStatistics, activation_zeros, collect
from framefit.training.campaign import Ledger
from framefit.training.data import Dataset, Examples, Feeds, batch_left_open, open_together
from framefit.training.network import Network, to_model, to_torch

__all__ = ["open_subject"]


def chosen_pattern(target: Target, requested: Pattern | None, lanes: int = 0) -> Pattern:
    """The pattern of zeros that a target rewards.

    Args:
        target: the device.
        requested: the user's choice.
        lanes: outputs that share their zeros in this machine's kernels; 0: another device, or it has none.

    Raises:
        InputError: zeros of the requested pattern save nothing on the target.
    """
    rule = target.sparsity
    rewarded: tuple[Pattern, ...] = ("block",) if lanes else ()
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


_PROCESSOR = Path(__file__).with_name("processor.toml")
_IMAGES = 512  # of the calibration data in Hessians and batch-norm statistics (SPDY and SparseGPT: 128 to 1,024)
_DRAFTED = 16  # of the calibration data for a network of which only the latency counts
_FEWEST = 128  # see _IMAGES; where the calibration data have fewer, images of the training data join them


@dataclass(frozen=True)
class Subject:
    """Everything that the search works on.

    Attributes:
        model: the dense model.
        written: its nodes and initializers.
        data: split into parts.
        target: the device; unit: of it.
        pattern: of the zeros; of_m: N and M; block: outputs and inputs that share their zeros.
        int8: whether its files are in int8.
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
    block: tuple[int, int]
    int8: bool
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

    def finished(self, network: Network) -> Model:
        """A network as a model that is deployed."""
        model = to_model(network)
        return quantised(model, self.inputs) if self.int8 else model

    def file_of(self, model: Model) -> bytes:
        """A model as an ONNX file."""
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
    target = resolve_target(settings.target)
    here = not capabilities_of(target).modelled
    if here:  # a processor is measured: a description of a core like it prices what is not
        target = load_target(_PROCESSOR)
    lanes = lanes_here() if here else 0
    pattern = chosen_pattern(target, settings.pattern, lanes)
    if settings.int8 and not (here or pattern == "n:m"):
        raise InputError(
            f"int8 is a choice on this machine and for n:m zeros: the description of {target.name!r} says how many "
            "bits it has",
            remedy="leave it out, or choose --target cpu",
        )
    source_model = settings.model if model is None else model
    opened, split = open_together(
        source_model,
        settings.data if data is None else data,
        seed=settings.seed,
        mean=settings.mean,
        std=settings.std,
        feeds=Feeds(settings.shapes, settings.constants, settings.states),
    )
    if settings.int8:
        if len(opened.inputs) > 1:
            raise InputError(
                "ONNX Runtime's tool quantises models of one input only", where=opened.name, remedy="leave out int8"
            )
        opened = folded(opened)  # as it is quantised
    written = listing(opened)
    network = to_torch(opened)
    inputs, few = _calibration(split, settings.seed)
    layers, notes = find_layers(written.nodes, written.arrays)
    if not layers:
        raise InputError(
            "no convolution or fully connected layer with weights of its own",
            where=opened.name,
            remedy="choose another",
        )
    source = pricing(target, opened, settings.unit)
    prices = Prices(target, source, opened, written, layers)
    block = (lanes, FOUR if settings.int8 else 1)
    if pattern == "block":
        try:
            prices = KernelPrices(
                target, source, opened, written, layers, block, inputs[:_DRAFTED] if settings.int8 else None
            )
        except InputError as error:
            if settings.pattern == "block":
                raise
            pattern, notes = "channel", (*notes, f"{error.what}: channels are removed instead")
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
    rule = target.sparsity
    of_m = (rule.n or settings.n, rule.m or settings.m) if pattern == "n:m" else None
    zeros = activation_zeros(network, [layer.name for layer in layers], inputs, ledger)
    return Subject(
        model=opened,
        written=written,
        data=split,
        target=target,
        unit=source.unit.name,
        pattern=pattern,
        of_m=of_m,
        block=block if pattern == "block" else (1, 1),
        int8=settings.int8,
        layers=layers,
        groups=groups,
        prices=prices,
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


@dataclass(frozen=True)
class _Ground:
    """What the entries of a layer database share."""

    layers: Sequence[WeightLayer]
    groups: Sequence[ChannelGroup]
    arrays: Mapping[str, npt.NDArray[np.float32]]
    statistics: Mapping[str, LayerStatistics]
    levels: npt.NDArray[np.float64]
    of_m: tuple[int, int] | None
    block: tuple[int, int]


def entry_of(ground: _Ground, index: int) -> Entry:
    """Entry of a layer, or of a group of channels; a task of an executor."""
    if ground.groups:
        return build_group(ground.groups[index], ground.layers, ground.arrays, ground.statistics)
    layer = ground.layers[index]
    return build_layer(
        layer,
        ground.arrays[layer.weight],
        ground.statistics[layer.name],
        ground.levels,
        of_m=ground.of_m,
        block=ground.block,
    )


def make_database(
    subject: Subject, path: Path, ledger: Ledger, seed: int, executor: Executor, notify: Notify
) -> Database:
    """Return the layer database of a subject: the one in its folder, else a new one that is stored there.

    Each layer is stored when it is built, so an interrupted construction continues.
    """
    arrays, layers, groups = subject.written.arrays, subject.layers, subject.groups
    facts = [group_facts(group, layers) for group in groups] if groups else [layer.facts for layer in layers]
    if path.exists():
        return read_database(path, facts, arrays, groups)
    notify("layer statistics on calibration data")
    statistics = collect(subject.network(), layers, subject.inputs, ledger, seed, subject.examples.task)
    levels = sparsity_levels(sum(layer.facts.parameters for layer in layers))
    ground = _Ground(layers, groups, arrays, statistics, levels, subject.of_m, subject.block)
    parts = [path.with_name(f"{path.stem}.part-{index}.npz") for index in range(len(facts))]
    missing = [index for index, part in enumerate(parts) if not part.exists()]
    notify(f"layer database: {len(missing)} of {len(facts)} entries are missing")
    for done, (place, entry) in enumerate(executor.each(entry_of, ground, missing)):
        index = missing[place]
        Database(subject.pattern, (entry,), groups[index : index + 1]).save(parts[index])
        notify(f"layer database: {facts[index].name} ({done + 1} of {len(missing)})")
    entries: list[Entry] = []
    for index, (fact, part) in enumerate(zip(facts, parts, strict=True)):
        entries += read_database(part, [fact], arrays, groups[index : index + 1]).entries
    database = Database(subject.pattern, tuple(entries), groups)
    database.save(path)
    for part in parts:
        part.unlink()
    return database
