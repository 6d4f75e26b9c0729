"""What a search for sparsity works on: model, data, target, and the layers that may lose weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Listing, Model, free_batch, listing
from framefit.core.sparsity import Pattern, SparsifySettings
from framefit.core.target import Target, load_target, resolve_target
from framefit.errors import InputError
from framefit.sparsity.channels import ChannelGroup, find_groups
from framefit.sparsity.database import (
    Database,
    Entry,
    build_group,
    build_layer,
    group_facts,
    read_database,
    sparsity_levels,
)
from framefit.sparsity.layers import WeightLayer, find_layers
from framefit.sparsity.ledger import Ledger
from framefit.sparsity.statistics import activation_zeros, collect
from framefit.training.data import Dataset, Examples
from framefit.training.network import Network, to_torch
from framefit.workflows.classifiers import batch_left_open, open_classifier
from framefit.workflows.cycles import pricing
from framefit.workflows.sparsifying.prices import Prices, chosen_pattern

__all__ = ["Subject", "make_database", "open_subject"]

_PROCESSOR = Path(__file__).with_name("processor.toml")
_IMAGES = 512  # of the calibration data in Hessians and batch-norm statistics (SPDY and SparseGPT: 128 to 1,024)


@dataclass(frozen=True)
class Subject:
    """Everything that the search is given.

    Attributes:
        model: the dense one.
        written: its nodes and initializers.
        data: split.
        target: the device; unit: of it.
        pattern: of the zeros; of_m: N and M.
        layers: that may lose weights; groups: of channels, for that pattern.
        prices: of any sparsity.
        inputs: calibration data, float32.
        examples: of the validation data, for the search.
        zeros: weight layer -> part of what it reads that is zero, in the dense network.
        batch_open: whether files of it leave the batch open.
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
        """The dense network, anew."""
        return to_torch(self.model)

    def file_of(self, model: Model) -> bytes:
        """A sparse model as an ONNX file."""
        return free_batch(model) if self.batch_open else model.to_bytes()


def open_subject(settings: SparsifySettings, ledger: Ledger, model: Any = None, data: Any = None) -> Subject:
    """Read model, data and target, and check that they fit each other.

    Args:
        settings: what the user asked for.
        ledger: gets the images.
        model: a model, or a ``torch.nn.Module``, instead of what ``settings`` names.
        data: a data set, or an iterable of (x, y), likewise.

    Raises:
        InputError: what cannot be used; a target that rewards no such zeros; a model without a layer to prune.
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
    inputs = split.calibration.sample(_IMAGES, settings.seed).inputs()
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
        notes=(*notes, *closed),
    )


def _described(target: Target) -> Target:
    """A processor of this machine is measured, so its target holds no figures: a core like it stands in."""
    return load_target(_PROCESSOR) if target.kind == "ort" else target


def make_database(subject: Subject, path: Path, ledger: Ledger, seed: int, say: Callable[[str], None]) -> Database:
    """The layer database of a subject: the one in its folder, else built, and stored there.

    Each layer is stored once it is built, so one that was interrupted goes on.

    Args:
        subject: what it is of.
        path: the ``.npz``.
        ledger: gets the images.
        seed: of the labels that importances are drawn with.
        say: told what is being done.
    """
    arrays, layers, groups = subject.written.arrays, subject.layers, subject.groups
    facts = [group_facts(group, layers) for group in groups] if groups else [layer.facts for layer in layers]
    if path.exists():
        return read_database(path, facts, arrays, groups)
    say("layer statistics on calibration data")
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
        say(f"layer database: {fact.name} ({index + 1} of {len(facts)})")
        own_groups = groups[index : index + 1]
        if not part.exists():
            Database(subject.pattern, (built(index),), own_groups).save(part)
        entries += read_database(part, [fact], arrays, own_groups).entries
    database = Database(subject.pattern, tuple(entries), groups)
    database.save(path)
    for part in parts:
        part.unlink()
    return database
