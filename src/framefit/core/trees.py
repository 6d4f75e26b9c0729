"""Tree ensembles as data, which replace a group of layers in a model.

An ensemble reads comparator bits of its input and adds up whole numbers from its trees' leaves; an output is
selected by the sum, or is the sum times a scale. The functions at the end evaluate it in plain numpy: kernels, ONNX
files and hardware have to equal them bit for bit.

Groups of trees inside a model: each is one node, and carries its ensemble.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import Record, from_text, read_record
from framefit.core.model import Model, with_part
from framefit.core.tree_results import TreeKind
from framefit.errors import InputError

__all__ = [
    "MAX_DEPTH",
    "TREES",
    "Encoder",
    "Ensemble",
    "Forest",
    "FreeTree",
    "Levels",
    "ObliviousTree",
    "Patch",
    "Scaled",
    "TreeKind",
    "TreeNode",
    "accumulate",
    "as_image",
    "encode",
    "ensembles_in",
    "evaluate",
    "images_of",
    "levels_of",
    "outputs_of",
    "read_forest",
    "tree_layers",
    "with_ensemble",
]


Array = npt.NDArray[Any]
MAX_DEPTH = 6
"""Tests of an oblivious tree: a leaf bit is then one look-up table of six inputs, as in FPGAs."""
_WORD_BITS = 2  # of an encoded input


class Encoder(Record, kw_only=True):
    """Two comparators for each channel (with a patch) or feature.

    Bit 0 of a value is ``value > low``, bit 1 ``value > high``; their sum is the word 0, 1 or 2 for the
    ternary level -1, 0 or 1. Where the thresholds are equal the word is 0 or 2: binary.

    Attributes:
        low, high: float32 values, ``low <= high``.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high):
            raise ValueError(f"{len(self.low)} low thresholds and {len(self.high)} high ones")
        _check_floats(self.low, "a threshold")
        _check_floats(self.high, "a threshold")
        if any(low > high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("a low threshold lies above its high one")


_ALONE = (1, 1, 1, 1, 0, 0, 0, 0, False)  # kernel, stride, padding and border of a token


class Patch(Record, kw_only=True):
    """The part of an image that the trees read, as for a convolution: applied at every output position.

    What is no image is seen as one or more of them (:func:`images_of`): a signal, channels x length, is an image of
    one row; tokens are an image whose channels come last; a volume is an image for each position along its depth, with
    a channel for each channel and each of the slices that are read there.

    Feature ``(channel, y, x)`` of a patch has the number ``channel * area + y * width + x``. In padding all comparator
    bits are 0.

    Attributes:
        kernel, stride: height and width.
        padding: top, left, bottom, right.
        border: ``area`` more features, one for each place of the patch: both bits are 1 in padding, else 0.
        layout: "image": channels x height x width, or channels x length; "tokens": the channels are the last axis, and
            each token is read on its own; "volume": channels x depth x height x width.
        depth: of a volume: slices that are read, stride, and padding before and behind.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    border: bool = False
    layout: Literal["image", "tokens", "volume"] = "image"
    depth: tuple[int, int, int, int] = (1, 1, 0, 0)

    def __post_init__(self) -> None:
        if min(*self.kernel, *self.stride, *self.depth[:2]) < 1 or min(*self.padding, *self.depth[2:]) < 0:
            raise ValueError(f"not a patch: kernel {self.kernel}, stride {self.stride}, padding {self.padding}")
        if self.layout == "tokens" and (*self.kernel, *self.stride, *self.padding, self.border) != _ALONE:
            raise ValueError("a token is read on its own: kernel and stride are 1, and nothing is padded")
        if self.layout != "volume" and self.depth != (1, 1, 0, 0):
            raise ValueError(f"only a volume has a depth, not: {self.layout}")

    @property
    def area(self) -> int:
        """Number of places in a patch."""
        return self.kernel[0] * self.kernel[1]

    def image(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Channels, height and width of the images as which an input of this shape is seen."""
        if self.layout == "tokens":
            shape = (shape[-1], *shape[:-1])
        elif self.layout == "volume":
            shape = (shape[0] * self.depth[0], *shape[2:])
        return as_image(shape)

    def features(self, shape: tuple[int, ...]) -> int:
        """Number of features of one position, for an input of this shape."""
        return (self.image(shape)[0] + self.border) * self.area

    def outputs(self, shape: tuple[int, ...]) -> int:
        """Number of sums of one position, for an output of this shape."""
        return shape[-1 if self.layout == "tokens" else 0]

    def slices(self, shape: tuple[int, ...]) -> int:
        """How many images an input of this shape is."""
        if self.layout != "volume":
            return 1
        kernel, stride, before, behind = self.depth
        return (shape[1] + before + behind - kernel) // stride + 1

    def positions(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of outputs for an image of this size."""
        top, left, bottom, right = self.padding
        return (
            (height + top + bottom - self.kernel[0]) // self.stride[0] + 1,
            (width + left + right - self.kernel[1]) // self.stride[1] + 1,
        )


class ObliviousTree(Record, kw_only=True):
    """A tree with one test at each level: the test results form the leaf's number, the first in its lowest bit.

    Attributes:
        inputs: the feature that each test reads.
        bits: which of its two comparator bits.
        leaves: row by row, one row for each leaf; see :class:`Ensemble`.
    """

    inputs: tuple[int, ...]
    bits: tuple[int, ...]
    leaves: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.bits) or len(self.inputs) > MAX_DEPTH:
            raise ValueError(f"{len(self.inputs)} inputs, {len(self.bits)} bits; at most {MAX_DEPTH} of each")
        if any(bit not in (0, 1) for bit in self.bits):
            raise ValueError("a test reads comparator bit 0 or 1")

    @property
    def depth(self) -> int:
        """Number of tests on the way to a leaf."""
        return len(self.inputs)

    @property
    def leaf_count(self) -> int:
        """Number of rows of ``leaves``."""
        return 1 << len(self.inputs)


class TreeNode(Record, array_like=True):
    """An inner node: to ``i1`` if bits ``h`` .. ``l`` of input ``x``'s word exceed ``a``, else to ``i0``."""

    x: int
    a: int
    l: int  # noqa: E741 - the tuple's own letters
    h: int
    i0: int
    i1: int


class FreeTree(Record, kw_only=True):
    """A tree of any shape, as nodes in a memory.

    With N inner nodes a place K < N is one of them, and K >= N is the leaf K - N; evaluation begins at 0.

    Attributes:
        nodes: each leads to later places only, so that evaluation ends.
        leaves: row by row, one row for each leaf; see :class:`Ensemble`.
    """

    nodes: tuple[TreeNode, ...]
    leaves: tuple[int, ...]

    def __post_init__(self) -> None:
        for place, node in enumerate(self.nodes):
            if not (0 <= node.l <= node.h < _WORD_BITS) or node.a < 0 or node.x < 0:
                raise ValueError(f"node {place} compares bits {node.h}..{node.l} of input {node.x} with {node.a}")
            if min(node.i0, node.i1) <= place or max(node.i0, node.i1) > 2 * len(self.nodes):
                raise ValueError(f"node {place} of {len(self.nodes)} leads to {node.i0} and {node.i1}")

    @property
    def depth(self) -> int:
        """Number of tests on the longest way to a leaf."""
        inner = len(self.nodes)
        longest = [0] * (2 * inner + 1)
        for place in range(inner - 1, -1, -1):
            node = self.nodes[place]
            longest[place] = 1 + max(longest[node.i0], longest[node.i1])
        return longest[0]

    @property
    def leaf_count(self) -> int:
        """Number of rows of ``leaves``: as in any binary tree one more than inner nodes."""
        return len(self.nodes) + 1


class Levels(Record, kw_only=True):
    """An output selected by its sum: ``values[(sum >= low) + (sum >= high)]``; nothing is multiplied.

    Attributes:
        low, high: of each output; equal ones: a binary output.
        values: float32 values of each output's three levels.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    values: tuple[tuple[float, float, float], ...]

    def __post_init__(self) -> None:
        if not len(self.low) == len(self.high) == len(self.values):
            raise ValueError(f"{len(self.low)} low, {len(self.high)} high, {len(self.values)} rows of values")
        if any(low > high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("a low threshold lies above its high one")
        _check_whole((*self.low, *self.high), 32, "a threshold")
        for row in self.values:
            _check_floats(row, "a level's value")


class Scaled(Record, kw_only=True):
    """An output as ``float32(sum + bias) * scale``, rounded once.

    Attributes:
        bias: of each output, in the sum's units.
        scale: of each output, float32.
    """

    bias: tuple[int, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.bias) != len(self.scale):
            raise ValueError(f"{len(self.bias)} biases and {len(self.scale)} scales")
        _check_floats(self.scale, "a scale")
        _check_whole(self.bias, 31, "a bias")


class Ensemble(Record, kw_only=True):
    """The trees in place of one group of layers.

    Attributes:
        name: of the group.
        input, output: tensors between which the trees are placed.
        input_shape, output_shape: of one example; with a patch as its ``layout`` says.
        kind: "vote": a leaf is one bit, and the trees of an output are successive, the same number for each;
            "scalar": the same with an int8 as leaf; "vector": a leaf is an int8 for each output, and every
            tree adds to all of them.
        encoder: of the input.
        patch: ``None``: every element of the input is a feature.
        trees, free_trees: one of the two.
        levels, scaled: how an output is computed from its sum; one of the two.
    """

    name: str
    input: str
    output: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    kind: TreeKind
    encoder: Encoder
    patch: Patch | None = None
    trees: tuple[ObliviousTree, ...] = ()
    free_trees: tuple[FreeTree, ...] = ()
    levels: Levels | None = None
    scaled: Scaled | None = None

    def __post_init__(self) -> None:
        self._check_shapes()
        members = self.members
        if bool(self.trees) == bool(self.free_trees):
            raise ValueError(f"ensemble {self.name!r} has either trees or free_trees")
        if (self.levels is None) == (self.scaled is None):
            raise ValueError(f"ensemble {self.name!r} has either levels or scaled")
        decoded = len(self.levels.low) if self.levels else len(self.scaled.bias) if self.scaled else 0
        if decoded != self.outputs:
            raise ValueError(f"{decoded} outputs are decoded, but the ensemble has {self.outputs}")
        if self.kind != "vector" and len(members) % self.outputs:
            raise ValueError(f"{len(members)} trees for {self.outputs} outputs: each needs the same number")
        least, most = (0, 1) if self.kind == "vote" else (-128, 127)
        for place, tree in enumerate(members):
            if len(tree.leaves) != tree.leaf_count * self.width:
                raise ValueError(f"tree {place} has {len(tree.leaves)} leaf values, not {tree.leaf_count * self.width}")
            if min(tree.leaves) < least or max(tree.leaves) > most:
                raise ValueError(f"a leaf of tree {place} is outside {least} .. {most}")
        if any(not 0 <= feature < self.features for feature in self._tested()):
            raise ValueError(f"a tree reads a feature outside 0 .. {self.features - 1}")

    def _check_shapes(self) -> None:
        if min((*self.input_shape, *self.output_shape), default=0) < 1:
            raise ValueError(f"not shapes: input {self.input_shape}, output {self.output_shape}")
        patch, rank = self.patch, len(self.input_shape)
        if patch is not None:
            right = rank == 4 if patch.layout == "volume" else rank in (2, 3)
            if not right or len(self.output_shape) != rank:
                raise ValueError(f"no {patch.layout} for a patch: {self.input_shape} to {self.output_shape}")
        if len(self.encoder.low) != self.image[0]:
            raise ValueError(f"{len(self.encoder.low)} comparators for {self.image[0]} channels or features")
        if patch is None:
            return
        if patch.layout == "image" and rank == 2 and (patch.kernel[0], patch.stride[0]) != (1, 1):
            raise ValueError(f"a patch of a signal has the height 1, not {patch.kernel[0]}")
        positions = patch.slices(self.input_shape), *patch.positions(*self.image[1:])
        output = self.output_shape if patch.layout == "volume" else (0, 1, *self._output_image[1:])
        if min(positions) < 1 or positions != output[1:]:
            raise ValueError(f"the patch has {positions} positions, but the output is {self.output_shape}")

    def _tested(self) -> set[int]:
        features = {feature for tree in self.trees for feature in tree.inputs}
        return features | {node.x for tree in self.free_trees for node in tree.nodes}

    @property
    def members(self) -> tuple[ObliviousTree | FreeTree, ...]:
        """Its trees, in either form."""
        return self.trees or self.free_trees

    @property
    def image(self) -> tuple[int, int, int]:
        """The input as channels x height x width, see :class:`Patch`; without positions 1 x 1."""
        return self.patch.image(self.input_shape) if self.patch else (math.prod(self.input_shape), 1, 1)

    @property
    def _output_image(self) -> tuple[int, int, int]:
        assert self.patch is not None
        shape = self.output_shape
        if self.patch.layout == "volume":
            return shape[0], shape[2], shape[3]
        return as_image((shape[-1], *shape[:-1]) if self.patch.layout == "tokens" else shape)

    @property
    def flat(self) -> Ensemble:
        """The same trees on the images as which the input is seen: what is no image needs no form of its own."""
        if self.patch is None or self.patch.layout == "image":
            return self
        plain = Patch(
            kernel=self.patch.kernel, stride=self.patch.stride, padding=self.patch.padding, border=self.patch.border
        )
        return msgspec.structs.replace(self, input_shape=self.image, output_shape=self._output_image, patch=plain)

    @property
    def outputs(self) -> int:
        """Number of sums in a row: channels of the output with a patch, else its elements."""
        return self.patch.outputs(self.output_shape) if self.patch else math.prod(self.output_shape)

    @property
    def width(self) -> int:
        """Number of values in one leaf."""
        return self.outputs if self.kind == "vector" else 1

    @property
    def features(self) -> int:
        """Number of words in one row, including border features."""
        if self.patch is None:
            return math.prod(self.input_shape)
        return self.patch.features(self.input_shape)

    @property
    def positions(self) -> int:
        """Number of rows in one example."""
        return math.prod(self.output_shape) // self.outputs

    @property
    def accumulator_bits(self) -> int:
        """Number of bits for every sum with its sign."""
        return (self.trees_each if self.kind == "vote" else 128 * self.trees_each).bit_length() + (self.kind != "vote")

    @property
    def trees_each(self) -> int:
        """Number of trees that add to one output."""
        return len(self.members) // (1 if self.kind == "vector" else self.outputs)

    @property
    def bytes(self) -> int:
        """Memory of the trees: a leaf bit, an int8 leaf value; two bytes for a test, eight for a node."""
        leaves = sum(len(tree.leaves) for tree in self.members)
        tests = sum(2 * len(tree.inputs) for tree in self.trees) + sum(8 * len(tree.nodes) for tree in self.free_trees)
        return tests + (-(-leaves // 8) if self.kind == "vote" else leaves)


def as_image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of an image, or of a signal as an image of one row."""
    channels, width = shape[0], shape[-1]
    return channels, shape[1] if len(shape) == 3 else 1, width


class Forest(Record, kw_only=True):
    """``*.trees.json``: the ensembles of a model, in the order of its layers.

    Attributes:
        model: name of the model with the trees.
    """

    file_kind: ClassVar[str] = "trees (*.trees.json)"

    schema_version: int = 1
    model: str
    ensembles: tuple[Ensemble, ...]


def read_forest(path: str | Path) -> Forest:
    """Read a ``*.trees.json``.

    Raises:
        InputError: the file is missing, damaged, or violates :class:`Ensemble`.
    """
    return read_record(path, Forest)


def encode(ensemble: Ensemble, x: Array) -> npt.NDArray[np.uint8]:
    """Encode the input of the trees.

    Args:
        ensemble: the ensemble with the encoder.
        x: N x input_shape, float32.

    Returns:
        Rows x features, words 0 .. 2; one row for an example, or with a patch for each of its positions, row by row.

    Raises:
        InputError: the shape differs.
    """
    if x.shape[1:] != ensemble.input_shape:
        raise InputError(
            f"the input is {x.shape[1:]}, not {ensemble.input_shape}",
            where=ensemble.name,
            remedy="give a batch of examples of that shape",
        )
    low, high = (np.asarray(side, np.float32) for side in (ensemble.encoder.low, ensemble.encoder.high))
    x = x.astype(np.float32, copy=False)
    if ensemble.patch is None:
        x = x.reshape(len(x), -1)
    else:
        x = images_of(ensemble, x)
        low, high = low[:, None, None], high[:, None, None]
    words = (x > low).astype(np.uint8) + (x > high)
    return words if ensemble.patch is None else _patches(ensemble.patch, words)


def images_of(ensemble: Ensemble, x: Array) -> Array:
    """The images as which inputs of an ensemble are seen: M x channels x height x width, for N x input_shape.

    A volume gives an image for each position along its depth; where it is padded there, values lie below every
    threshold.
    """
    patch = ensemble.patch
    if patch is not None and patch.layout == "tokens":
        x = np.moveaxis(x, -1, 1)
    elif patch is not None and patch.layout == "volume":
        kernel, stride, before, behind = patch.depth
        frame = ((0, 0), (0, 0), (before, behind), (0, 0), (0, 0))
        padded = np.pad(x, frame, constant_values=-np.inf)
        seen = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=2)[:, :, ::stride]
        x = seen.transpose(0, 2, 1, 5, 3, 4)
    return x.reshape(-1, *ensemble.image)


def outputs_of(ensemble: Ensemble, y: Array) -> Array:
    """Outputs N x output_shape, for those of the images: M x outputs x positions."""
    patch = ensemble.patch
    if patch is None or patch.layout == "image":
        return y.reshape(-1, *ensemble.output_shape)
    if patch.layout == "tokens":
        return np.moveaxis(y.reshape(len(y), ensemble.outputs, -1), 1, 2).reshape(-1, *ensemble.output_shape)
    slices = patch.slices(ensemble.input_shape)
    return np.moveaxis(y.reshape(-1, slices, ensemble.outputs, y[0, 0].size), 1, 2).reshape(-1, *ensemble.output_shape)


def _patches(patch: Patch, words: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Patches of N x C x H x W words, as rows."""
    top, left, bottom, right = patch.padding
    frame = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(words, frame)
    if patch.border:
        outside = np.pad(np.zeros_like(words[:, :1]), frame, constant_values=2)
        padded = np.concatenate([padded, outside], axis=1)
    seen = np.lib.stride_tricks.sliding_window_view(padded, patch.kernel, axis=(2, 3))
    seen = seen[:, :, :: patch.stride[0], :: patch.stride[1]].transpose(0, 2, 3, 1, 4, 5)
    return np.ascontiguousarray(seen).reshape(-1, padded.shape[1] * patch.area)


def accumulate(ensemble: Ensemble, words: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Sum the leaves that rows reach: rows x outputs, for rows x features of words."""
    sums = np.zeros((len(words), ensemble.outputs), np.int32)
    for place, tree in enumerate(ensemble.members):
        leaf = _leaf(tree, words)
        leaves = np.asarray(tree.leaves, np.int32).reshape(-1, ensemble.width)[leaf]
        if ensemble.kind == "vector":
            sums += leaves
        else:
            sums[:, place // ensemble.trees_each] += leaves[:, 0]
    return sums


def _leaf(tree: ObliviousTree | FreeTree, words: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Number of the leaf that each row reaches."""
    if isinstance(tree, ObliviousTree):
        tests = words[:, list(tree.inputs)] > np.asarray(tree.bits, np.uint8)
        return tests @ (1 << np.arange(len(tree.inputs), dtype=np.int64))
    inner = len(tree.nodes)
    place = np.zeros(len(words), np.int64)
    for number, node in enumerate(tree.nodes):  # nodes lead to later ones: one pass is enough
        here = np.flatnonzero(place == number)
        part = words[here, node.x] >> node.l & (1 << node.h - node.l + 1) - 1
        place[here] = np.where(part > node.a, node.i1, node.i0)
    return place - inner


def levels_of(ensemble: Ensemble, sums: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Level 0, 1 or 2 of each output, for an ensemble with levels."""
    assert ensemble.levels is not None
    low, high = np.asarray(ensemble.levels.low), np.asarray(ensemble.levels.high)
    return (sums >= low).astype(np.uint8) + (sums >= high)


def decode(ensemble: Ensemble, sums: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Outputs of sums; rows x outputs."""
    if ensemble.levels is not None:
        values = np.asarray(ensemble.levels.values, np.float32)
        return values[np.arange(ensemble.outputs), levels_of(ensemble, sums)]
    assert ensemble.scaled is not None
    shifted = sums + np.asarray(ensemble.scaled.bias, np.int32)
    return shifted.astype(np.float32) * np.asarray(ensemble.scaled.scale, np.float32)


def evaluate(ensemble: Ensemble, x: Array) -> npt.NDArray[np.float32]:
    """Compute the output of the group: N x output_shape, for N x input_shape.

    Raises:
        InputError: the shape differs.
    """
    rows = decode(ensemble, accumulate(ensemble, encode(ensemble, x)))
    if ensemble.patch is not None and ensemble.patch.layout != "tokens":
        rows = rows.reshape(len(x), ensemble.positions, ensemble.outputs).transpose(0, 2, 1)
    return np.ascontiguousarray(rows).reshape(len(x), *ensemble.output_shape)


def _check_floats(values: tuple[float, ...], what: str) -> None:
    array = np.asarray(values, np.float64)
    if not np.array_equal(array.astype(np.float32), array):  # NaN does not equal itself, either
        raise ValueError(f"{what} is not a float32 number")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} is not finite")


def _check_whole(values: tuple[int, ...], bits: int, what: str) -> None:
    if values and not -(1 << bits - 1) <= min(values) <= max(values) < 1 << bits - 1:
        raise ValueError(f"{what} does not fit {bits} bits")


TREES = "Trees"
"""Operator of a node of trees.

Its attributes determine its cost: ``kind`` of the leaves, number of ``trees``, ``bytes`` of memory, and
``operations``, see :func:`operations`.
"""


def with_ensemble(model: Model, ensemble: Ensemble, part: Model) -> Model:
    """Replace the layers between an ensemble's tensors by trees.

    Args:
        model: it is not changed.
        ensemble: no other ensemble of the model may have its name.
        part: the ensemble as a graph, for runtimes without trees.

    Raises:
        InputError: the model does not have the tensors, types or shapes.
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
    """Number of comparisons, selections and additions for one example, on single numbers.

    These are two comparisons of each value read; at every position a selection for each test on the longest way
    to a leaf, and an addition for each number in that leaf; for each output two comparisons and a selection, or,
    if it is scaled, an addition and a product: the only one.
    """
    selections = sum(tree.depth for tree in ensemble.members)
    additions = len(ensemble.members) * ensemble.width
    decoding = (3 if ensemble.levels else 2) * ensemble.outputs
    return 2 * math.prod(ensemble.input_shape) + ensemble.positions * (selections + additions + decoding)


def tree_layers(model: Model) -> tuple[int, ...]:
    """Numbers of the layers that consist of trees."""
    notes = model.notes
    return tuple(index for index, layer in enumerate(model.layers) if layer.op == TREES and layer.name in notes)


def ensembles_in(model: Model) -> dict[str, Ensemble]:
    """The ensembles that a model's nodes carry, by the names of the nodes.

    Raises:
        InputError: an ensemble is damaged.
    """
    return {name: _ensemble(note, f"trees {name!r}") for name, note in model.notes.items()}


@functools.lru_cache(maxsize=16)  # of megabytes, and needed for every segment
def _ensemble(note: str, where: str) -> Ensemble:
    return from_text(note.encode(), Ensemble, where)
