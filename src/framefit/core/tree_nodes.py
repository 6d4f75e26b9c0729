"""Groups of trees inside a model: each is one node, and carries its ensemble."""

from __future__ import annotations

import functools
import math

import msgspec

from framefit.core.files import from_text
from framefit.core.model import Model, with_part
from framefit.core.trees import Ensemble

__all__ = ["TREES", "ensembles_in", "operations", "tree_layers", "with_ensemble"]

TREES = "Trees"
"""Operator of such a node.

Its attributes say what a cost depends on: ``kind`` of the leaves, number of ``trees``, ``bytes`` of memory, and
``operations``, see :func:`operations`.
"""


def with_ensemble(model: Model, ensemble: Ensemble, part: Model) -> Model:
    """The model with trees in place of what lies between an ensemble's tensors.

    Args:
        model: stays as it is.
        ensemble: whose name no other ensemble of the model has.
        part: the ensemble as a graph, for whoever knows nothing of trees.

    Raises:
        InputError: tensors, types or shapes that the model does not have.
    """
    return with_part(
        model,
        ensemble.input,
        ensemble.output,
        part,
        op=TREES,
        name=ensemble.name,
        attributes={
            "kind": ensemble.kind,
            "trees": len(ensemble.members),
            "bytes": ensemble.bytes,
            "operations": operations(ensemble),
        },
        note=msgspec.json.encode(ensemble).decode(),
    )


def operations(ensemble: Ensemble) -> int:
    """Comparisons, selections and additions of one example, on single numbers.

    Two comparisons of each value that is read; at every position a selection for each test on the longest way to
    a leaf and an addition for each number in that leaf; for each output two comparisons and a selection, or, where
    it is scaled, an addition and a product: the only one.
    """
    selections = sum(tree.depth for tree in ensemble.members)
    additions = len(ensemble.members) * ensemble.width
    decoding = (3 if ensemble.levels else 2) * ensemble.outputs
    return 2 * math.prod(ensemble.input_shape) + ensemble.positions * (selections + additions + decoding)


def tree_layers(model: Model) -> tuple[int, ...]:
    """Numbers of the layers that are trees and nothing else."""
    notes = model.notes
    return tuple(index for index, layer in enumerate(model.layers) if layer.op == TREES and layer.name in notes)


def ensembles_in(model: Model) -> dict[str, Ensemble]:
    """The ensembles that nodes of a model carry, by the names of the nodes.

    Raises:
        InputError: a damaged one.
    """
    return {name: _ensemble(note, f"trees {name!r}") for name, note in model.notes.items()}


@functools.lru_cache(maxsize=16)  # of megabytes, and asked for with every segment
def _ensemble(note: str, where: str) -> Ensemble:
    return from_text(note.encode(), Ensemble, where)
