"""Ensembles as ONNX graphs in one file with the rest of the model, in two flavours with exactly equal results.

"core" has core operators only, "ml" the tree operator of ``ai.onnx.ml``. Both are for portability: any runtime
executes the first, tools for trees read the second, and neither is fast; kernels and hardware are for speed. Each
ensemble is a function in the file, which also holds the ensemble itself: it is read back from there.

The look-up tables of a fixed-function circuit are counted as it is built, without synthesis. Yosys shares and
removes some of them. For the circuits in benchmarks/results/hardware.json it needs 15.9 tables for an output of nine
votes where these rules count 16, and 647 for 32 vector trees where they count 628.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.core.model import GraphBuilder, Model, free_batch
from framefit.core.tree_results import Export
from framefit.core.trees import (
    Ensemble,
    Forest,
    FreeTree,
    ObliviousTree,
    Patch,
    TreeNode,
    ensembles_in,
    evaluate,
    with_ensemble,
)
from framefit.devices.device import Device, allocate
from framefit.devices.measure import medians_ns
from framefit.devices.registry import open_runtime
from framefit.errors import DeviceError

Flavour = Literal["core", "ml"]


def with_trees(model: Model, forest: Forest, flavour: Flavour = "core") -> Model:
    """Return the model with ensembles in place of the layers between their tensors.

    Raises:
        InputError: the model does not have these tensors or shapes.
    """
    for ensemble in forest.ensembles:
        shape = next((t.shape for t in model.inputs if t.shape), (1,))
        model = with_ensemble(model, ensemble, as_model(ensemble, shape[0], flavour))
    return model


def read_trees(path: Path) -> Forest | None:
    """Read the ensembles of a file that was saved with them; ``None``: it has none.

    Raises:
        InputError: the file is not ONNX, or its ensembles are damaged.
    """
    model = Model.load(path)
    ensembles = ensembles_in(model)
    return Forest(model=model.name, ensembles=tuple(ensembles.values())) if ensembles else None


def as_model(ensemble: Ensemble, batch: int = 1, flavour: Flavour = "core") -> Model:
    """An ensemble as a graph whose batch can be made dynamic."""
    b = GraphBuilder(ensemble.name)
    x = b.input(ensemble.input, (batch, *ensemble.input_shape))
    graph = _Graph(b, ensemble.flat)
    x = graph.images(x, ensemble)
    sums = graph.regressed(x) if flavour == "ml" else graph.oblivious(x) if ensemble.trees else graph.free(x)
    b.output(graph.outputs(graph.decoded(sums), ensemble), ensemble.output)
    return b.build()


class _Graph:
    """Builds the steps of one ensemble; data without positions have a single one."""

    def __init__(self, b: GraphBuilder, ensemble: Ensemble) -> None:
        self.b, self.ensemble = b, ensemble
        self.patch = ensemble.patch or Patch(kernel=(1, 1))
        self.shape = ensemble.image
        self.positions = ensemble.positions

    def images(self, x: str, ensemble: Ensemble) -> str:
        """The images as which an input is seen, see :func:`framefit.core.trees.images_of`."""
        b, patch, rank = self.b, ensemble.patch, len(ensemble.input_shape) + 1
        if patch is None or patch.layout == "image":
            return x
        if patch.layout == "tokens":
            return self._reshaped(b.op("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]), ensemble.image)
        kernel, stride, before, behind = patch.depth
        if before or behind:
            below = b.constant(np.float32(-np.inf), b.fresh("below"))
            x = b.op("Pad", x, self._ints([0, 0, before, 0, 0, 0, 0, behind, 0, 0]), below)
        slices = patch.slices(ensemble.input_shape)
        seen = []
        for first in range(kernel):
            ends = first + (slices - 1) * stride + 1
            part = b.op("Slice", x, *(self._ints([value]) for value in (first, ends, 2, stride)))
            seen.append(b.op("Unsqueeze", part, self._ints([2])))
        stacked = seen[0] if kernel == 1 else b.op("Concat", *seen, axis=2)
        turned = b.op("Transpose", stacked, perm=[0, 3, 1, 2, 4, 5])
        return str(b.op("Reshape", turned, self._ints([-1, *ensemble.image])))

    def outputs(self, y: str, ensemble: Ensemble) -> str:
        """Outputs, for those of the images: as :func:`framefit.core.trees.outputs_of` arranges them."""
        b, patch = self.b, ensemble.patch
        if patch is None or patch.layout == "image":
            return y
        if patch.layout == "tokens":
            rows = b.op("Transpose", self._reshaped(y, (ensemble.outputs, self.positions)), perm=[0, 2, 1])
            return self._reshaped(rows, ensemble.output_shape)
        split = [-1, patch.slices(ensemble.input_shape), *self.ensemble.output_shape]
        return str(b.op("Transpose", b.op("Reshape", y, self._ints(split)), perm=[0, 2, 1, 3, 4]))

    def bits(self, x: str, tests: list[tuple[int, int]]) -> str:
        """Results of tests (feature, bit) at all positions: N x tests x rows x columns, int32."""
        b, channels, area = self.b, self.shape[0], self.patch.area
        if self.ensemble.input_shape != self.shape:
            x = self._reshaped(x, self.shape)
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
        result = b.op("Cast", b.op("Gather", stacked, self._ints(numbers), axis=1), to=6)  # int32
        if not border.any():
            return str(result)
        outside = np.pad(np.zeros(self.shape[1:], np.int32), ((top, bottom), (left, right)), constant_values=1)
        border_results = np.zeros((len(tests), *self.patch.positions(*self.shape[1:])), np.int32)
        for row, ((feature, _), out) in enumerate(zip(tests, border, strict=True)):
            if out:
                y, start = divmod(feature - channels * area, self.patch.kernel[1])
                lines, columns = border_results.shape[1:]
                picked = outside[y :: self.patch.stride[0], start :: self.patch.stride[1]]
                border_results[row] = picked[:lines, :columns]
        kept = b.op("Mul", result, self._column(~border, np.int32, 2))
        return str(b.op("Add", kept, b.constant(border_results[None], b.fresh("border"))))

    def oblivious(self, x: str) -> str:
        """Sums of oblivious trees."""
        b, trees = self.b, self.ensemble.trees
        depth = max(1, *(len(tree.inputs) for tree in trees))
        # Trees with fewer tests are padded with a test of weight 0.
        tests = [
            test
            for tree in trees
            for test in [*zip(tree.inputs, tree.bits, strict=True), *[(0, 0)] * (depth - len(tree.inputs))]
        ]
        weights = [1 << level if level < len(tree.inputs) else 0 for tree in trees for level in range(depth)]
        weighted = b.op("Mul", self.bits(x, tests), self._column(weights, np.int32, 2))
        levels = self._reshaped(weighted, (len(trees), depth, self.positions))
        leaf = b.op("ReduceSum", levels, self._ints([2]), keepdims=0)
        starts = np.cumsum([0, *(tree.leaf_count for tree in trees)])[:-1]
        return self._summed(str(b.op("Add", leaf, self._column(starts, np.int32, 1))))

    def free(self, x: str) -> str:
        """Sums of free trees: all of them advance by one node at once, and a leaf leads to itself."""
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
        for _ in range(max(tree.depth for tree in trees)):
            read = b.op("Gather", self._table(tested), place)
            word = b.op("GatherElements", words, read, axis=1)
            place = b.op("Gather", self._table(following), b.op("Add", b.op("Mul", place, self._table([3])), word))
        return self._summed(str(b.op("Gather", self._table(leaf), place)))

    def regressed(self, x: str) -> str:
        """Sums by one tree operator, which adds in float32: exactly, as they are whole numbers far below 2 ** 24."""
        b, ensemble = self.b, self.ensemble
        if ensemble.trees:
            pairs = (pair for tree in ensemble.trees for pair in zip(tree.inputs, tree.bits, strict=True))
            columns = {pair: place for place, pair in enumerate(sorted(set(pairs)) or [(0, 0)])}
            read = self.bits(x, list(columns))
        else:
            tested = {node.x for tree in ensemble.free_trees for node in tree.nodes} or {0}
            columns = {(feature, 0): place for place, feature in enumerate(sorted(tested))}
            read = str(b.op("Add", *(self.bits(x, [(feature, bit) for feature, _ in columns]) for bit in (0, 1))))
        rows = b.op("Reshape", b.op("Transpose", read, perm=[0, 2, 3, 1]), self._ints([-1, len(columns)]))
        sums = b.op(
            "TreeEnsembleRegressor", b.op("Cast", rows, to=1), domain="ai.onnx.ml", **_operator(ensemble, columns)
        )
        shape = self._ints([-1, self.positions, ensemble.outputs])
        return str(b.op("Transpose", b.op("Reshape", b.op("Cast", sums, to=6), shape), perm=[0, 2, 1]))

    def _summed(self, leaf: str) -> str:
        """Sums of leaves, N x outputs x positions int32, for leaf numbers N x trees x positions."""
        b, ensemble = self.b, self.ensemble
        rows = [np.asarray(tree.leaves, np.int8).reshape(-1, ensemble.width) for tree in ensemble.members]
        table = b.constant(np.concatenate(rows), b.fresh("leaves"))
        values = b.op("Cast", b.op("Gather", table, leaf, axis=0), to=6)  # N x trees x positions x width
        if ensemble.kind == "vector":
            return str(b.op("Transpose", b.op("ReduceSum", values, self._ints([1]), keepdims=0), perm=[0, 2, 1]))
        each = self._reshaped(values, (ensemble.outputs, ensemble.trees_each, self.positions))
        return str(b.op("ReduceSum", each, self._ints([2]), keepdims=0))

    def decoded(self, sums: str) -> str:
        """Outputs that belong to sums."""
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
        """Values of all positions at one place of their patches."""
        lines, columns = self.patch.positions(*self.shape[1:])
        down, right = self.patch.stride
        ends = [y + (lines - 1) * down + 1, x + (columns - 1) * right + 1]
        indices = (self._ints(values) for values in ([y, x], ends, [2, 3], [down, right]))
        return str(self.b.op("Slice", planes, *indices))

    def _reshaped(self, x: str, shape: tuple[int, ...]) -> str:
        return str(self.b.op("Reshape", x, self._ints([0, *shape])))

    def _column(self, values: Any, dtype: npt.DTypeLike, behind: int) -> str:
        """A constant along axis 1, followed by axes of size 1."""
        array = np.asarray(values).astype(dtype)
        return self.b.constant(array.reshape(-1, *(1,) * behind), self.b.fresh("constant"))

    def _table(self, values: list[int]) -> str:
        return self.b.constant(np.asarray(values, np.int32), self.b.fresh("table"))

    def _ints(self, values: list[int]) -> str:
        return self.b.constant(np.asarray(values, np.int64), self.b.fresh("integers"))


def _operator(ensemble: Ensemble, columns: dict[tuple[int, int], int]) -> dict[str, Any]:
    """Attributes of ``TreeEnsembleRegressor`` (ONNX, "ai.onnx.ml Operators")."""
    nodes: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", *_NODE)}
    targets: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for number, tree in enumerate(ensemble.members):
        if isinstance(tree, ObliviousTree):
            made, leaves = _oblivious_nodes(tree, columns)
        else:
            made, leaves = _free_nodes(tree, columns)
        nodes["treeids"] += [number] * len(made)
        nodes["nodeids"] += range(len(made))
        for name, values in zip(_NODE, zip(*made, strict=True), strict=True):
            nodes[name] += values
        first = 0 if ensemble.kind == "vector" else number // ensemble.trees_each
        rows = np.reshape(tree.leaves, (-1, ensemble.width))
        for place, leaf in leaves:
            targets["treeids"] += [number] * ensemble.width
            targets["nodeids"] += [place] * ensemble.width
            targets["ids"] += range(first, first + ensemble.width)
            targets["weights"] += rows[leaf].astype(float).tolist()
    return {
        "n_targets": ensemble.outputs,
        **{f"nodes_{name}": values for name, values in nodes.items()},
        **{f"target_{name}": values for name, values in targets.items()},
    }


_NODE = ("featureids", "modes", "values", "truenodeids", "falsenodeids")
_LEAF = (0, "LEAF", 0.0, 0, 0)
_Nodes = tuple[list[tuple[int, str, float, int, int]], list[tuple[int, int]]]  # nodes; (place, leaf) of leaves


def _oblivious_nodes(tree: ObliviousTree, columns: dict[tuple[int, int], int]) -> _Nodes:
    """Nodes level by level; within a level ordered by the results so far, the first test in the lowest bit."""
    nodes, first = [], 0
    for level, test in enumerate(zip(tree.inputs, tree.bits, strict=True)):
        size = 1 << level
        below = first + size
        nodes += [(columns[test], "BRANCH_GT", 0.5, below + size + k, below + k) for k in range(size)]
        first = below
    return [*nodes, *[_LEAF] * tree.leaf_count], [(first + leaf, leaf) for leaf in range(tree.leaf_count)]


def _free_nodes(tree: FreeTree, columns: dict[tuple[int, int], int]) -> _Nodes:
    """Nodes in their own numbering: leaves follow the inner nodes."""
    inner = len(tree.nodes)
    nodes = [(columns[node.x, 0], *_comparison(node), node.i1, node.i0) for node in tree.nodes]
    return [*nodes, *[_LEAF] * tree.leaf_count], [(inner + leaf, leaf) for leaf in range(tree.leaf_count)]


def _comparison(node: TreeNode) -> tuple[str, float]:
    """Mode and value of a comparison that holds for the words 0 to 2 whose part exceeds the node's reference."""
    above = [word >> node.l & (1 << node.h - node.l + 1) - 1 > node.a for word in range(3)]
    if above == [False, True, False]:
        return "BRANCH_EQ", 1.0
    return "BRANCH_GT", 2.5 - sum(above)


_INPUTS = 6
_ADDER_BIT = 1.2  # tables for each bit of a sum without carry chains: benchmarks/results/hardware.json, digits-vectors


def lut6_of(ensemble: Ensemble) -> int:
    """Tables of six inputs for trees, sums and levels of outputs; for images those of one position."""
    each = ensemble.trees_each
    leaves = sum(_leaf_tables(ensemble, place) for place in range(len(ensemble.members)))
    if ensemble.kind == "vote":
        groups = [min(_INPUTS, each - begin) for begin in range(0, each, _INPUTS)]
        widths = [count.bit_length() for count in groups]
        summing = float(sum(width for width, count in zip(widths, groups, strict=True) if count > 1))
    else:
        widths, summing = [8] * each, 0.0
    # Where six bits determine the sum, an output is a table of them; else they are added in pairs.
    direct = ensemble.levels is not None and sum(widths) <= _INPUTS
    while len(widths) > 1 and not direct:
        pairs = [max(pair) + 1 for pair in zip(widths[::2], widths[1::2], strict=False)]
        summing += _ADDER_BIT * sum(pairs)
        widths = pairs + widths[len(pairs) * 2 :]
    compared = 0 if ensemble.levels is None else 2 * -(-max(widths) // _INPUTS)
    return round(leaves + ensemble.outputs * (summing + (2 if direct else compared)))


def _leaf_tables(ensemble: Ensemble, place: int) -> int:
    """One table for each bit of a leaf that differs between leaves; each node of a free tree selects each bit."""
    tree = ensemble.members[place]
    bits = 1 if ensemble.kind == "vote" else 8
    if not isinstance(tree, ObliviousTree):
        return len(tree.nodes) * (1 + bits * ensemble.width)
    tables = 0
    for output in range(ensemble.width):
        column = tree.leaves[output :: ensemble.width]
        tables += sum(len({value >> bit & 1 for value in column}) > 1 for bit in range(bits))
    return tables


_FILES: dict[Flavour, str] = {"core": "model.onnx", "ml": "model-ml.onnx"}
_EXAMPLES, _POSITIONS = 64, 4096  # limits of a comparison of at least one example: a position takes kilobytes


def export(hybrid: Model, forest: Forest, flavour: Flavour, folder: Path, *, batch_open: bool = False) -> Export:
    """Write a hybrid in one flavour.

    Raises:
        DeviceError: ONNX Runtime's result differs from that of the trees, which is a defect.
    """
    model = with_trees(hybrid, forest, flavour)
    with TemporaryDirectory() as cache:
        runtime = open_runtime(cache=Path(cache))
        for ensemble in forest.ensembles:
            _check(runtime, ensemble, flavour)
        (taken_ns,) = medians_ns([model], runtime)
    with write_whole(folder / _FILES[flavour], force=True) as file:
        file.write(free_batch(model) if batch_open else model.to_bytes())
    return Export(file=_FILES[flavour], flavour=flavour, runtime_latency_ns=taken_ns)


def _check(runtime: Device, ensemble: Ensemble, flavour: Flavour) -> None:
    """Compare an ensemble's graph with the reference."""
    x = _around_thresholds(ensemble)
    part = as_model(ensemble, len(x), flavour)
    tensors = {part.inputs[0].name: x, part.outputs[0].name: allocate(part.outputs[0])}
    runtime.submit(runtime.compile(part, runtime.target.units[0].name, ensemble.name).bind(tensors))
    if not np.array_equal(tensors[part.outputs[0].name], evaluate(ensemble, x)):
        raise DeviceError(
            f"the exported graph ({flavour}) differs from the trees",
            where=ensemble.name,
            remedy="this is a defect: report it",
        )


def _around_thresholds(ensemble: Ensemble) -> npt.NDArray[Any]:
    """Inputs that equal one of the thresholds, or the next number above it: all cases of the comparisons."""
    sides = np.asarray([ensemble.encoder.low, ensemble.encoder.high], np.float32)
    values = np.concatenate([sides, np.nextafter(sides, np.float32(np.inf))])
    count = max(1, min(_EXAMPLES, _POSITIONS // ensemble.positions))
    shape = (count, *ensemble.input_shape)
    if ensemble.patch is not None and ensemble.patch.layout == "tokens":
        return values[np.random.default_rng(0).integers(0, len(values), shape), np.arange(shape[-1])]
    if ensemble.patch is not None:
        values = values[:, :: ensemble.patch.depth[0]]
    columns = values.shape[1]
    drawn = np.random.default_rng(0).integers(0, len(values), shape).reshape(count, columns, -1)
    return values[drawn, np.arange(columns)[:, None]].reshape(shape)
