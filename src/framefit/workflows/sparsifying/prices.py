"""What levels of sparsity cost on a target: the tables that the search is handed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from framefit.core.model import Listing, Model, epilogue_groups, with_weights
from framefit.core.results import LayerCycles
from framefit.core.sparsity import Pattern
from framefit.core.target import Target
from framefit.devices.npu.costs import CostSource
from framefit.errors import InputError
from framefit.sparsity.database import Database
from framefit.sparsity.layers import WeightLayer
from framefit.sparsity.problem import Assignment, Floats, Ints

__all__ = ["Prices", "chosen_pattern"]


def chosen_pattern(target: Target, asked: Pattern | None) -> Pattern:
    """The pattern of zeros that a target rewards.

    Args:
        target: its description says so.
        asked: the user's choice; ``None``: any.

    Raises:
        InputError: zeros of this pattern save nothing on the target.
    """
    rule = target.sparsity
    rewarded: tuple[Pattern, ...] = ()
    if rule.skips in ("weights", "saturating", "dual"):
        patterns: dict[str, tuple[Pattern, ...]] = {"unstructured": ("unstructured", "n:m"), "n:m": ("n:m",)}
        rewarded = patterns.get(rule.granularity, ())
    if asked is None:
        return rewarded[0] if rewarded else "channel"
    if asked != "channel" and asked not in rewarded:
        known = f"only {rewarded[0]} zeros" if rewarded else "no zeros in weights"
        raise InputError(
            f"target {target.name!r} rewards {known}: {asked} zeros would save nothing",
            remedy=f"choose --pattern {rewarded[0] if rewarded else 'channel'}, or another target",
        )
    return asked


class Prices:
    """Cycles of one model on one unit, for any sparsity of its layers.

    Args:
        target: its device.
        source: prices layers on a unit of it.
        model: the dense one.
        written: its nodes and initializers.
        layers: those that may lose weights.
    """

    def __init__(
        self, target: Target, source: CostSource, model: Model, written: Listing, layers: Sequence[WeightLayer]
    ) -> None:
        self._rule, self._source, self._model = target.sparsity, source, model
        self._arrays, self._layers = written.arrays, layers

    def of(self, model: Model, zeros: Mapping[str, float]) -> dict[str, LayerCycles]:
        """Each layer of a model, under the name of its node with the weight, else of its last one.

        Args:
            model: the dense one, or what became of it; the zeros in its weights count as they lie.
            zeros: weight layer -> part of what it reads that is zero; empty: not known.
        """
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
        """Cycles of each entry of a database at each level, L x S, and of everything else.

        Args:
            database: of zeros in weights, or of channels.
            zeros: weight layer -> part of what it reads that is zero.
        """
        return self._of_channels(database, zeros) if database.groups else self.of_zeros(database.levels, zeros)

    def of_zeros(self, sparsities: Floats, zeros: Mapping[str, float]) -> tuple[Ints, int]:
        """Cycles of each weight layer at each of its sparsities, L x S, and of everything else.

        Args:
            sparsities: L x S, laid out as the target likes it.
            zeros: weight layer -> part of what it reads that is zero.
        """
        grouped, places = self._grouped(self._model)
        activations = self._activations(grouped, places, zeros)
        own = [places[layer.name] for layer in self._layers]
        given = np.asarray(grouped.weight_zeros(self._rule.granularity, self._rule.n or 1, self._rule.m or 1))
        n, m = self._rule.n, self._rule.m
        table = []
        for levels in sparsities.T:
            ratios = given.copy()
            ratios[own] = levels if n is None or m is None else np.where(levels > 0, 1 - n / m, 0)
            costs = self._source.layers(grouped, weight_sparsity=ratios.tolist(), activation_sparsity=activations)
            table.append([cost.cycles for cost in costs])
        found = np.asarray(table, np.int64).T
        return found[own], int(found[:, 0].sum() - found[own, 0].sum())

    def _of_channels(self, database: Database, zeros: Mapping[str, float]) -> tuple[Ints, int]:
        """A layer that several groups touch is shared among them in equal parts.

        It costs about the product of what each leaves of it, which is at most their mean: the sum is an upper bound.
        """
        dense = self._costs(self._model, zeros)
        levels = database.levels
        found: Floats = np.zeros((*levels.shape, len(dense)))
        for group, level in np.ndindex(levels.shape):
            if level and levels[group, level] == levels[group, level - 1]:
                found[group, level] = found[group, level - 1]
                continue
            assignment = np.zeros(len(levels), np.int64)
            assignment[group] = level
            found[group, level] = self._costs(self.shrunk(database, assignment), zeros) if level else dense
        touched = (found != dense).any(axis=1)
        share = touched / np.maximum(touched.sum(axis=0), 1)
        table = np.rint((found * share[:, None, :]).sum(axis=2)).astype(np.int64)
        return table, int(dense.sum()) - int(table[:, 0].sum())

    def _costs(self, model: Model, zeros: Mapping[str, float]) -> Ints:
        return np.asarray([layer.cycles for layer in self.of(model, zeros).values()], np.int64)

    def _grouped(self, model: Model) -> tuple[Model, dict[str, int]]:
        """With the layers that an accelerator fuses; and the place of each weight layer among them."""
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
