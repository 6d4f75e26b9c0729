"""The layer database: every layer at every level of sparsity, refitted, with the error that it adds.

After Frantar and Alistarh, 2022, "SPDY", section 3.4, and "Optimal Brain Compression", section 5: since each
layer was refitted to reproduce the dense layer's output from the dense network's inputs, levels of
different layers can be combined without looking at the data again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.arrays import ArrayFile
from framefit.core.files import write_whole
from framefit.core.sparsity import Pattern
from framefit.errors import InputError
from framefit.sparsity.layers import ChannelGroup, WeightLayer, neighbours, shrunk
from framefit.sparsity.problem import Assignment, Floats, Ints, PrunableLayer
from framefit.sparsity.reconstruction import Reader, reconstruct, reconstruct_channels
from framefit.sparsity.statistics import LayerStatistics

Array = npt.NDArray[Any]
_MANY = 2_000_000  # weights; the database of a larger network has half as many levels
_CHANNEL_LEVELS = 24
_BLOCKS = (16, 8, 4, 2, 1)  # channels that are computed together; AVX-512 and many accelerators: 16


@dataclass(frozen=True)
class Entry:
    """A layer, or a group of channels, at each of S levels.

    Attributes:
        facts: what the search knows of the layer.
        levels: part of its weights (or channels) that is zero (or removed); ascending.
        errors: estimated increase of the loss; masked: the same without the refit.
        weights: initializer -> float32, S x its shape.
        order: channels in the order of removal, and how many are removed at each level; empty for other patterns.
    """

    facts: PrunableLayer
    levels: Floats
    errors: Floats
    masked: Floats
    weights: Mapping[str, npt.NDArray[np.float32]]
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Database:
    """Entries that can be combined freely.

    Attributes:
        pattern: of the zeros.
        entries: in the order of execution; all have S levels.
        groups: of channels, one for each entry; empty for other patterns.
    """

    pattern: Pattern
    entries: tuple[Entry, ...]
    groups: tuple[ChannelGroup, ...] = ()

    @property
    def levels(self) -> Floats:
        """Levels of all entries: L x S."""
        return np.stack([entry.levels for entry in self.entries])

    @property
    def errors(self) -> Floats:
        """Errors of all entries: L x S."""
        return np.stack([entry.errors for entry in self.entries])

    def weights(self, assignment: Assignment) -> dict[str, npt.NDArray[np.float32]]:
        """New values of initializers; removed channels are zeros where they are read.

        A layer that reads several groups is refitted to what each of them loses by itself: changes add up.
        """
        weights: dict[str, npt.NDArray[np.float32]] = {}
        for entry, level in zip(self.entries, assignment, strict=True):
            for name, arrays in entry.weights.items():
                if name not in weights or not level:
                    weights.setdefault(name, arrays[level])
                    continue
                weights[name] = _both(weights[name], arrays[level], arrays[0])
        return weights

    def masks(self, assignment: Assignment) -> dict[str, npt.NDArray[np.bool_]]:
        """Initializer -> where its weights are kept; for layers that lose any."""
        kept: dict[str, npt.NDArray[np.bool_]] = {}
        for entry, level in zip(self.entries, assignment, strict=True):
            for name, arrays in entry.weights.items() if level else ():
                there = arrays[level] != 0
                kept[name] = there & kept[name] if name in kept else there
        return kept

    def removed(self, assignment: Assignment) -> list[tuple[ChannelGroup, Sequence[int]]]:
        """The channels of each group that are removed."""
        removed: list[tuple[ChannelGroup, Sequence[int]]] = []
        for group, entry, level in zip(self.groups, self.entries, assignment, strict=bool(self.groups)):
            count = round(float(entry.levels[level]) * group.channels)
            if count:
                removed.append((group, entry.order[:count]))
        return removed

    def final(
        self, assignment: Assignment, arrays: Mapping[str, Array], layers: Sequence[WeightLayer]
    ) -> dict[str, Array]:
        """Every initializer that changes, without the removed channels."""
        return shrunk(arrays, self.weights(assignment), self.removed(assignment), layers)

    def save(self, path: Path) -> None:
        """Write the arrays to an ``.npz`` file."""
        arrays: dict[str, Array] = {"pattern": np.asarray(self.pattern)}
        for index, entry in enumerate(self.entries):
            arrays |= {
                f"{index}.levels": entry.levels,
                f"{index}.errors": entry.errors,
                f"{index}.masked": entry.masked,
            }
            arrays |= {f"{index}.extra": np.asarray(entry.facts.extra), f"{index}.order": np.asarray(entry.order, int)}
            arrays |= {f"{index}.weight.{name}": array for name, array in entry.weights.items()}
        with write_whole(path, force=True) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # of any names


def read_database(
    path: Path, facts: Sequence[PrunableLayer], arrays: Mapping[str, Array], groups: Sequence[ChannelGroup] = ()
) -> Database:
    """Read a database that was saved for the same layers.

    Raises:
        InputError: it is unreadable, or was made of other layers or other weights.
    """
    try:
        stored = ArrayFile(path).read()
        entries = tuple(
            Entry(
                facts=replace(fact, extra=float(stored[f"{index}.extra"])),
                levels=stored[f"{index}.levels"],
                errors=stored[f"{index}.errors"],
                masked=stored[f"{index}.masked"],
                weights={
                    name.split(".weight.", 1)[1]: array
                    for name, array in stored.items()
                    if name.startswith(f"{index}.weight.")
                },
                order=tuple(stored[f"{index}.order"].tolist()),
            )
            for index, fact in enumerate(facts)
        )
        kept = {name: weights[0] for entry in entries for name, weights in entry.weights.items()}
        if not all(np.array_equal(weights, arrays[name].astype(np.float32)) for name, weights in kept.items()):
            raise ValueError("it was computed from other weights than the model's")
        return Database(str(stored["pattern"]), entries, tuple(groups))  # type: ignore[arg-type]  # a Pattern
    except (InputError, KeyError, TypeError, ValueError) as error:
        what = error.what if isinstance(error, InputError) else error
        raise InputError(
            f"cannot be read: {what}", where=path, remedy="start the search again without --resume"
        ) from error


def sparsity_levels(parameters: int) -> Floats:
    """Sparsity of each level: a level keeps 0.9 of the weights of the one before, in large networks 0.8.

    The steps are equal in what remains, as in "SPDY", section 4.
    """
    factor, count = (0.9, 40) if parameters < _MANY else (0.8, 19)
    return np.asarray(1 - factor ** np.arange(count))


def build_layer(
    layer: WeightLayer,
    weight: Array,
    statistics: LayerStatistics,
    levels: Floats,
    *,
    of_m: tuple[int, int] | None,
    block: tuple[int, int] = (1, 1),
) -> Entry:
    """The entry of a layer whose weights are removed; ``block``: outputs and inputs that share their zeros."""
    pruned = reconstruct(
        layer.matrix(weight),
        statistics.hessian,
        levels if of_m is None else np.asarray([0, 1.0]),
        statistics.importance,
        blocks=None if of_m is None else neighbours(layer, of_m[1]),
        keep=0 if of_m is None else of_m[0],
        together=block[0],
        shared=neighbours(layer, block[1], of_images=True) if block[1] > 1 else None,
    )
    return Entry(
        facts=replace(layer.facts, extra=_extra(statistics)),
        levels=pruned.levels,
        errors=pruned.errors,
        masked=pruned.masked,
        weights={layer.weight: np.stack([layer.weight_of(matrix) for matrix in pruned.weights])},
    )


def build_group(
    group: ChannelGroup,
    layers: Sequence[WeightLayer],
    arrays: Mapping[str, Array],
    statistics: Mapping[str, LayerStatistics],
) -> Entry:
    """The entry of a group whose channels are removed."""
    by_name = {layer.name: layer for layer in layers}
    members = [(by_name[place.name], place) for place in group.readers]
    counts = group.channels - kept_channels(group.channels)
    pruned = reconstruct_channels(
        [
            Reader(
                layer.matrix(arrays[layer.weight])[0],
                statistics[layer.name].hessian[0],
                layer.area * place.times,
                statistics[layer.name].importance[0],
                layer.area * place.first,
            )
            for layer, place in members
        ],
        group.channels,
        counts.tolist(),
    )
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for (layer, _), matrices in zip(members, pruned.weights, strict=True):
        made = np.stack([layer.weight_of(matrix) for matrix in matrices])
        weights[layer.weight] = _both(weights[layer.weight], made, made[0]) if layer.weight in weights else made
    return Entry(
        facts=replace(group_facts(group, layers), extra=_extra(statistics[members[0][0].name])),
        levels=counts / group.channels,
        errors=pruned.errors,
        masked=pruned.masked,
        weights=weights,
        order=tuple(pruned.order.tolist()),
    )


def _both(
    one: npt.NDArray[np.float32], other: npt.NDArray[np.float32], dense: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Weights with what two removals did to the dense ones: zeros of both, and the sum of their changes elsewhere."""
    return np.where((one == 0) | (other == 0), np.float32(0), one + other - dense)


def kept_channels(channels: int) -> Ints:
    """Number of channels that a group keeps at each level, from all of them to one.

    Whole blocks are removed first, of 16, of 8, and so on: arithmetic takes channels in blocks, and some runtimes
    leave their fast layout where a tensor does not fill its last block.

    Returns:
        24 numbers, int64, descending; where there are fewer, the last one is repeated.
    """
    chosen = [channels, 1]
    for block in _BLOCKS:
        more = np.setdiff1d(np.arange(block, channels, block), chosen)
        room = min(_CHANNEL_LEVELS - len(chosen), len(more))
        chosen += more[np.rint(np.linspace(0, len(more) - 1, room)).astype(np.int64)].tolist()
    return np.asarray(sorted(chosen, reverse=True) + [1] * (_CHANNEL_LEVELS - len(chosen)), np.int64)


def group_facts(group: ChannelGroup, layers: Sequence[WeightLayer]) -> PrunableLayer:
    """A group of channels as a layer of the search: sizes of its first reader, weights of all layers concerned."""
    by_name = {layer.name: layer for layer in layers}
    readers = [by_name[place.name] for place in group.readers]
    made = {place.name for place in group.makers}
    touched = [layer for layer in layers if layer.weight in made or layer in readers]
    return replace(
        readers[0].facts,
        name=group.name,
        outputs=group.channels,
        parameters=sum(layer.facts.parameters for layer in touched),
        macs=sum(layer.facts.macs for layer in touched),
    )


def _extra(statistics: LayerStatistics) -> float:
    """Logarithm of the Hessian's mean diagonal."""
    return float(np.log1p(np.diagonal(statistics.hessian, axis1=1, axis2=2).mean()))
