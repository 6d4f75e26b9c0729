"""What a model costs at any sparsity of its layers: as a description prices it, or as this machine's kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.model import Listing, Model, epilogue_groups, listing, with_weights
from framefit.core.run_record import LayerCycles
from framefit.core.target import Target
from framefit.devices.kernel_times import kernel_times
from framefit.devices.npu.costs import CostSource
from framefit.devices.ort import quantised
from framefit.errors import InputError
from framefit.sparsity.database import Database
from framefit.sparsity.layers import WeightLayer, neighbours
from framefit.sparsity.problem import Assignment, Floats, Ints

Array = npt.NDArray[Any]


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


_THINNED = 0.7  # zeros of the network that is measured as a whole


class KernelPrices(Prices):
    """Cycles of one model on this machine, whose kernels skip blocks of zeros: measured times, at the clock of ``cpu``.

    A layer's products take time in proportion to the blocks that it keeps; what else a launch takes stays, and is
    shared among the other layers as the description of a core has it.

    Args:
        block: outputs and inputs of a layer that share their zeros.
        examples: inputs with which the network is quantised, as it is deployed; ``None``: it stays in float32.

    Raises:
        InputError: kernels execute none of the layers that may lose weights.
    """

    def __init__(
        self,
        target: Target,
        source: CostSource,
        model: Model,
        written: Listing,
        layers: Sequence[WeightLayer],
        block: tuple[int, int],
        examples: npt.NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(target, source, model, written, layers)
        self._block = block
        random, weights = np.random.default_rng(0), {}
        for layer in layers:
            if layer.groups > 1:  # blocks of outputs would belong to several groups: nothing is gained there
                continue
            matrix, shared = layer.matrix(written.arrays[layer.weight])[0], neighbours(layer, block[1], of_images=True)
            kept = (random.random((-(-len(matrix) // block[0]), shared.max() + 1)) >= _THINNED)[:, shared]
            weights[layer.weight] = layer.weight_of(matrix * np.repeat(kept, block[0], axis=0)[: len(matrix)])
        names = [layer.name for layer in layers if layer.groups == 1]
        thinned = with_weights(model, weights)
        self._times = kernel_times(thinned if examples is None else quantised(thinned, examples), names)
        if not self._times.layers_ns:
            raise InputError(
                "kernels that skip zeros execute none of its layers, or are not faster here",
                where=model.name,
                remedy="choose --pattern channel",
            )

    def of(self, model: Model, zeros: Mapping[str, float]) -> dict[str, LayerCycles]:
        """See :meth:`Prices.of`."""
        described, arrays = super().of(model, zeros), listing(model).arrays
        kept = {layer.name: self._kept(layer, arrays[layer.weight]) for layer in self._layers}
        return self._priced(described, kept)

    def of_zeros(self, sparsities: Floats, zeros: Mapping[str, float]) -> tuple[Ints, int]:
        """See :meth:`Prices.of_zeros`; ``sparsities`` are parts of the blocks."""
        dense = self._priced(super().of(self._model, zeros), {layer.name: 1.0 for layer in self._layers})
        weighted = np.asarray([dense[layer.name].cycles for layer in self._layers])
        table: Ints = np.rint(weighted[:, None] * (1 - sparsities)).astype(np.int64)
        return table, sum(cost.cycles for cost in dense.values()) - int(weighted.sum())

    def _kept(self, layer: WeightLayer, weight: Array) -> float:
        there, shared = layer.matrix(weight)[0] != 0, neighbours(layer, self._block[1], of_images=True)
        rows = np.logical_or.reduceat(there, np.arange(0, len(there), self._block[0]), axis=0)
        order = np.argsort(shared, kind="stable")
        return float(
            np.logical_or.reduceat(rows[:, order], np.flatnonzero(np.diff(shared[order], prepend=-1)), axis=1).mean()
        )

    def _priced(self, described: Mapping[str, LayerCycles], kept: Mapping[str, float]) -> dict[str, LayerCycles]:
        others = sum(cost.cycles for name, cost in described.items() if name not in kept)
        priced = {}
        for name, cost in described.items():
            if name in kept:
                took = self._times.layers_ns.get(name, 0.0) * kept[name]
            else:
                took = self._times.rest_ns * cost.cycles / max(others, 1)
            cycles = round(took * self._source.clock_mhz / 1000)
            priced[name] = msgspec.structs.replace(cost, cycles=cycles, latency_ns=round(took))
        return priced
