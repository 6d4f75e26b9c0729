"""Ensembles as ONNX graphs of core operators, in one file with the rest of the model.

Any runtime executes them, with the same result to the last bit; none does so fast: kernels and hardware are for
that. The file carries the ensembles themselves in its metadata, so that they come back from it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import from_data, read_bytes, write_whole
from framefit.core.model import GraphBuilder, Model, file_notes, replaced, to_file
from framefit.core.trees import Ensemble, Forest, Patch

__all__ = ["as_model", "read_trees", "with_trees", "write_hybrid"]

Array = npt.NDArray[Any]

_NOTE = "framefit.trees"


def with_trees(model: Model, forest: Forest) -> Model:
    """The model with ensembles in place of what lies between their tensors.

    Raises:
        InputError: tensors or shapes that the model does not have.
    """
    for ensemble in forest.ensembles:
        shape = next((t.shape for t in model.inputs if t.shape), (1,))
        part = as_model(ensemble, shape[0])
        model = replaced(model, ensemble.input, ensemble.output, part, ensemble.name)
    return model


def write_hybrid(path: Path, model: Model, forest: Forest, *, force: bool = False) -> None:
    """Write a model with trees: each ensemble is a function of the file.

    Args:
        path: of the ONNX file.
        model: with its trees, as :func:`with_trees` makes it.
        forest: they.
        force: replace a file that is there.
    """
    groups = {ensemble.name: (ensemble.input, ensemble.output) for ensemble in forest.ensembles}
    with write_whole(path, force=force) as file:
        file.write(to_file(model, groups, {_NOTE: msgspec.json.encode(forest).decode()}))


def read_trees(path: Path) -> Forest | None:
    """The ensembles that :func:`write_hybrid` put into a file; ``None``: it has none.

    Raises:
        InputError: no ONNX file, or damaged ensembles.
    """
    note = file_notes(read_bytes(path), path).get(_NOTE)
    return None if note is None else from_data(msgspec.json.decode(note), Forest, path)


def as_model(ensemble: Ensemble, batch: int = 1) -> Model:
    """An ensemble as a graph; it keeps its batch where that is made dynamic."""
    b = GraphBuilder(ensemble.name)
    x = b.input(ensemble.input, (batch, *ensemble.input_shape))
    graph = _Graph(b, ensemble)
    sums = graph.oblivious(x) if ensemble.trees else graph.free(x)
    b.output(graph.decoded(sums), ensemble.output)
    return b.build()


class _Graph:
    """The steps of one ensemble; what is no picture is one of a single place."""

    def __init__(self, b: GraphBuilder, ensemble: Ensemble) -> None:
        self.b, self.ensemble = b, ensemble
        self.patch = ensemble.patch or Patch(kernel=(1, 1))
        self.shape = ensemble.input_shape if ensemble.patch else (math.prod(ensemble.input_shape), 1, 1)
        self.positions = ensemble.positions

    def bits(self, x: str, tests: list[tuple[int, int]]) -> str:
        """Results of tests (feature, bit) at all positions: N x tests x rows x columns, int32."""
        b, channels, area = self.b, self.shape[0], self.patch.area
        if self.ensemble.patch is None:
            x = self._reshaped(x, (channels, 1, 1))
        sides = (self.ensemble.encoder.low, self.ensemble.encoder.high)
        compared = [b.op("Greater", x, self._column(side, np.float32, 2)) for side in sides]
        planes = b.op("Cast", b.op("Concat", *compared, axis=1), to=2)  # uint8
        top, left, bottom, right = self.patch.padding
        if any(self.patch.padding):
            planes = b.op("Pad", planes, self._ints([0, 0, top, left, 0, 0, bottom, right]))
        border = np.asarray([feature >= channels * area for feature, _ in tests])
        places = sorted({feature % area for (feature, _), out in zip(tests, border, strict=True) if not out}) or [0]
        seen = [self._slice(planes, *divmod(place, self.patch.kernel[1])) for place in places]
        stacked = seen[0] if len(seen) == 1 else b.op("Concat", *seen, axis=1)
        numbers = [
            0 if out else places.index(feature % area) * 2 * channels + bit * channels + feature // area
            for (feature, bit), out in zip(tests, border, strict=True)
        ]
        found = b.op("Cast", b.op("Gather", stacked, self._ints(numbers), axis=1), to=6)  # int32
        if not border.any():
            return str(found)
        outside = np.pad(np.zeros(self.shape[1:], np.int32), ((top, bottom), (left, right)), constant_values=1)
        told = np.zeros((len(tests), *self.patch.positions(*self.shape[1:])), np.int32)
        for row, ((feature, _), out) in enumerate(zip(tests, border, strict=True)):
            if out:
                y, start = divmod(feature - channels * area, self.patch.kernel[1])
                lines, columns = told.shape[1:]
                picked = outside[y :: self.patch.stride[0], start :: self.patch.stride[1]]
                told[row] = picked[:lines, :columns]
        kept = b.op("Mul", found, self._column(~border, np.int32, 2))
        return str(b.op("Add", kept, b.constant(told[None], b.fresh("border"))))

    def oblivious(self, x: str) -> str:
        """Sums of oblivious trees."""
        b, trees = self.b, self.ensemble.trees
        depth = max(1, *(len(tree.inputs) for tree in trees))
        # A tree of fewer tests is filled up with one of weight 0.
        tests = [
            test
            for tree in trees
            for test in [*zip(tree.inputs, tree.bits, strict=True), *[(0, 0)] * (depth - len(tree.inputs))]
        ]
        weights = [1 << level if level < len(tree.inputs) else 0 for tree in trees for level in range(depth)]
        found = b.op("Mul", self.bits(x, tests), self._column(weights, np.int32, 2))
        levels = self._reshaped(found, (len(trees), depth, self.positions))
        leaf = b.op("ReduceSum", levels, self._ints([2]), keepdims=0)
        starts = np.cumsum([0, *(tree.leaf_count for tree in trees)])[:-1]
        return self._summed(str(b.op("Add", leaf, self._column(starts, np.int32, 1))))

    def free(self, x: str) -> str:
        """Sums of free trees: all of them go on by one node at once, a leaf leads to itself."""
        b, trees = self.b, self.ensemble.free_trees
        features = sorted({node.x for tree in trees for node in tree.nodes}) or [0]
        pairs = [self.bits(x, [(feature, bit) for feature in features]) for bit in (0, 1)]
        words = self._reshaped(str(b.op("Add", *pairs)), (len(features), self.positions))
        tested: list[int] = []
        following: list[int] = []
        leaf: list[int] = []
        roots: list[int] = []
        leaves = 0
        for tree in trees:
            first, inner = len(tested), len(tree.nodes)
            roots.append(first)
            for node in tree.nodes:
                mask = (1 << node.h - node.l + 1) - 1
                sides = (node.i1 if word >> node.l & mask > node.a else node.i0 for word in range(3))
                tested.append(features.index(node.x))
                following += [first + side for side in sides]
                leaf.append(0)
            for number in range(tree.leaf_count):
                tested.append(0)
                following += [first + inner + number] * 3
                leaf.append(leaves + number)
            leaves += tree.leaf_count
        zero = b.op("Mul", b.op("Gather", words, self._ints([0] * len(trees)), axis=1), self._column([0], np.int32, 1))
        place = b.op("Add", zero, self._column(roots, np.int32, 1))
        for _ in range(max(_depth(tree.nodes) for tree in trees)):
            read = b.op("Gather", self._table(tested), place)
            word = b.op("GatherElements", words, read, axis=1)
            place = b.op("Gather", self._table(following), b.op("Add", b.op("Mul", place, self._table([3])), word))
        return self._summed(str(b.op("Gather", self._table(leaf), place)))

    def _summed(self, leaf: str) -> str:
        """Sums of leaves, N x outputs x positions int32, for numbers of leaves N x trees x positions."""
        b, ensemble = self.b, self.ensemble
        rows = [np.asarray(tree.leaves, np.int8).reshape(-1, ensemble.width) for tree in ensemble.members]
        table = b.constant(np.concatenate(rows), b.fresh("leaves"))
        found = b.op("Cast", b.op("Gather", table, leaf, axis=0), to=6)  # N x trees x positions x width
        if ensemble.kind == "vector":
            return str(b.op("Transpose", b.op("ReduceSum", found, self._ints([1]), keepdims=0), perm=[0, 2, 1]))
        each = self._reshaped(found, (ensemble.outputs, ensemble.trees_each, self.positions))
        return str(b.op("ReduceSum", each, self._ints([2]), keepdims=0))

    def decoded(self, sums: str) -> str:
        """Outputs of sums."""
        b, ensemble = self.b, self.ensemble
        if ensemble.levels is not None:
            values = np.asarray(ensemble.levels.values, np.float32)
            low, high = (
                b.op("GreaterOrEqual", sums, self._column(side, np.int32, 1))
                for side in (ensemble.levels.low, ensemble.levels.high)
            )
            minus, zero, plus = (self._column(values[:, level], np.float32, 1) for level in range(3))
            y = b.op("Where", high, plus, b.op("Where", low, zero, minus))
        else:
            assert ensemble.scaled is not None
            shifted = b.op("Add", sums, self._column(ensemble.scaled.bias, np.int32, 1))
            y = b.op("Mul", b.op("Cast", shifted, to=1), self._column(ensemble.scaled.scale, np.float32, 1))
        return self._reshaped(y, ensemble.output_shape)

    def _slice(self, planes: str, y: int, x: int) -> str:
        """What every position finds at one place of its patch."""
        lines, columns = self.patch.positions(*self.shape[1:])
        down, right = self.patch.stride
        ends = [y + (lines - 1) * down + 1, x + (columns - 1) * right + 1]
        indices = (self._ints(values) for values in ([y, x], ends, [2, 3], [down, right]))
        return str(self.b.op("Slice", planes, *indices))

    def _reshaped(self, x: str, shape: tuple[int, ...]) -> str:
        return str(self.b.op("Reshape", x, self._ints([0, *shape])))

    def _column(self, values: Any, dtype: npt.DTypeLike, behind: int) -> str:
        """A constant along axis 1, with axes of size 1 behind it."""
        array = np.asarray(values).astype(dtype)
        return self.b.constant(array.reshape(-1, *(1,) * behind), self.b.fresh("constant"))

    def _table(self, values: list[int]) -> str:
        return self.b.constant(np.asarray(values, np.int32), self.b.fresh("table"))

    def _ints(self, values: list[int]) -> str:
        return self.b.constant(np.asarray(values, np.int64), self.b.fresh("integers"))


def _depth(nodes: Any) -> int:
    """Tests on the longest way to a leaf."""
    longest = [0] * len(nodes)
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        longest[place] = 1 + max((longest[i] for i in (node.i0, node.i1) if i < len(nodes)), default=0)
    return longest[0] if nodes else 0
