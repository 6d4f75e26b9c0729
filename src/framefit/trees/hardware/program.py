"""What the programmable core's memories hold: the nodes and leaves of all trees of an ensemble."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.trees import Ensemble, FreeTree, ObliviousTree, TreeKind, TreeNode

__all__ = ["TreeProgram", "as_free", "load_program", "visited_nodes"]

_NEVER_ABOVE = 3  # no word of two bits is above it, so larger references are the same


@dataclass(frozen=True)
class TreeProgram:
    """Nodes and leaves under one numbering: a place K < N is a node, K >= N the leaf K - N.

    Attributes:
        trees: so many; the roots are the places 0 .. trees - 1.
        nodes: the N inner nodes; ``i0`` and ``i1`` are places.
        leaves: of each the output that it adds to and its value; of vector leaves 0 and all values.
        features: words of a row.
        outputs: sums of a row.
        kind: of the ensemble: what a leaf holds.
        sum_bits: that hold every sum, its sign included.
    """

    trees: int
    nodes: tuple[TreeNode, ...]
    leaves: tuple[tuple[int, tuple[int, ...]], ...]
    features: int
    outputs: int
    kind: TreeKind
    sum_bits: int


def as_free(tree: ObliviousTree) -> FreeTree:
    """An oblivious tree as nodes, a test of level k being 2 ** k of them.

    Args:
        tree: of depth d.
    """
    nodes = []
    for level, (feature, bit) in enumerate(zip(tree.inputs, tree.bits, strict=True)):
        below = (2 << level) - 1
        nodes += [TreeNode(feature, bit, 0, 1, below + path, below + path + (1 << level)) for path in range(1 << level)]
    return FreeTree(nodes=tuple(nodes), leaves=tree.leaves)


def load_program(ensemble: Ensemble) -> TreeProgram:
    """The ensemble's trees in one numbering, roots first."""
    width = ensemble.width
    trees = [_with_node(as_free(t) if isinstance(t, ObliviousTree) else t) for t in ensemble.members]
    inner = sum(len(tree.nodes) for tree in trees)
    nodes: list[TreeNode | None] = [None] * inner
    leaves: list[tuple[int, tuple[int, ...]]] = []
    behind = len(trees)  # of the nodes that are no roots
    for number, tree in enumerate(trees):
        output = 0 if ensemble.kind == "vector" else number // ensemble.trees_each
        count = len(tree.nodes)
        places = [number, *range(behind, behind + count - 1)]
        places += range(inner + len(leaves), inner + len(leaves) + count + 1)
        for own, node in enumerate(tree.nodes):
            reference = min(node.a, _NEVER_ABOVE)
            nodes[places[own]] = TreeNode(node.x, reference, node.l, node.h, places[node.i0], places[node.i1])
        leaves += [(output, tree.leaves[begin : begin + width]) for begin in range(0, len(tree.leaves), width)]
        behind += count - 1
    return TreeProgram(
        trees=len(trees),
        nodes=tuple(node for node in nodes if node is not None),
        leaves=tuple(leaves),
        features=ensemble.features,
        outputs=ensemble.outputs,
        kind=ensemble.kind,
        sum_bits=ensemble.accumulator_bits + (ensemble.kind == "vote"),
    )


def _with_node(tree: FreeTree) -> FreeTree:
    """The tree, or one whose only node leads to equal leaves: evaluation begins at a node."""
    return tree if tree.nodes else FreeTree(nodes=(TreeNode(0, 0, 0, 0, 1, 2),), leaves=tree.leaves * 2)


def visited_nodes(program: TreeProgram, words: npt.NDArray[np.uint8]) -> int:
    """Inner nodes that all trees visit for these rows of words, rows x features."""
    count = 0
    table = np.array([tuple(getattr(node, name) for name in node.__struct_fields__) for node in program.nodes])
    for root in range(program.trees):
        place, rows = np.full(len(words), root), np.arange(len(words))
        while len(rows):
            count += len(rows)
            x, a, low, high, i0, i1 = table[place].T
            part = words[rows, x] >> low & (1 << high - low + 1) - 1
            place = np.where(part > a, i1, i0)
            inner = place < len(program.nodes)
            place, rows = place[inner], rows[inner]
    return count
