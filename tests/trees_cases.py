"""Random ensembles of every form, for tests of the trees and of their hardware."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from framefit.core.model import GraphBuilder, Model, TensorInfo
from framefit.core.trees import (
    Encoder,
    Ensemble,
    Forest,
    FreeTree,
    Levels,
    ObliviousTree,
    Patch,
    Scaled,
    TreeKind,
    TreeNode,
)
from framefit.trees.exporting import Flavour, with_trees


def random_ensemble(
    random: np.random.Generator,
    *,
    kind: TreeKind = "vote",
    free: bool = False,
    levelled: bool = True,
    patch: Patch | None = None,
    input_shape: tuple[int, ...] = (7,),
    outputs: int = 3,
    trees: int = 4,
    depth: int = 6,
    binary: bool = False,
) -> Ensemble:
    """An ensemble that nothing was fitted to; ``trees`` are those of one output unless the leaves are vectors."""
    channels = patch.image(input_shape)[0] if patch else math.prod(input_shape)
    low = random.normal(-0.4, 0.3, channels).astype(np.float32)
    high = low if binary else low + random.uniform(0, 1, channels).astype(np.float32)
    features = patch.features(input_shape) if patch else channels
    width = outputs if kind == "vector" else 1
    count = trees if kind == "vector" else trees * outputs
    lowest, top = (0, 2) if kind == "vote" else (-127, 128)

    def leaves(number: int) -> tuple[int, ...]:
        return tuple(random.integers(lowest, top, number * width).tolist())

    oblivious, nodes = [], []
    for _ in range(count):
        tests = int(random.integers(0, depth + 1))
        if free:
            made = _nodes(random, tests, features)
            nodes.append(FreeTree(nodes=made, leaves=leaves(tests + 1)))
        else:
            chosen = random.integers(0, features, tests).tolist()
            bits = random.integers(0, 2, tests).tolist()
            oblivious.append(ObliviousTree(inputs=tuple(chosen), bits=tuple(bits), leaves=leaves(1 << tests)))
    edges = np.sort(random.integers(0, trees + 2, (2, outputs)), axis=0) - (kind != "vote") * trees // 2
    levels = Levels(
        low=tuple(edges[0].tolist()),
        high=tuple(edges[1].tolist()),
        values=tuple((row[0], row[1], row[2]) for row in random.normal(size=(outputs, 3)).astype(np.float32).tolist()),
    )
    scaled = Scaled(
        bias=tuple(random.integers(-50, 50, outputs).tolist()),
        scale=tuple(random.normal(size=outputs).astype(np.float32).tolist()),
    )
    return Ensemble(
        name="group",
        input="x",
        output="y",
        input_shape=input_shape,
        output_shape=output_of(patch, input_shape, outputs) if patch else (outputs,),
        kind=kind,
        encoder=Encoder(low=tuple(low.tolist()), high=tuple(high.tolist())),
        patch=patch,
        trees=tuple(oblivious),
        free_trees=tuple(nodes),
        levels=levels if levelled else None,
        scaled=None if levelled else scaled,
    )


def output_of(patch: Patch, input_shape: tuple[int, ...], outputs: int) -> tuple[int, ...]:
    """Shape of the output, in as many dimensions as the input's."""
    if patch.layout == "tokens":
        return (*input_shape[:-1], outputs)
    positions = patch.positions(*patch.image(input_shape)[1:])
    if patch.layout == "volume":
        return (outputs, patch.slices(input_shape), *positions)
    return (outputs, *positions[-len(input_shape) + 1 :])


def simulate_encoder(encoder: Encoder, x: np.ndarray) -> list[int]:
    """Comparator bits of rows x channels (or features) by the circuit, as values of ``FloatEncoder.y``."""
    from framefit.trees.hardware.fixed import FloatEncoder  # needs the extra hw
    from framefit.trees.hardware.simulation import _stream

    circuit = FloatEncoder(encoder)
    inputs = [int.from_bytes(row.astype("<f4").tobytes(), "little") for row in x]
    return _stream(circuit, circuit.x, circuit.y, inputs, 0)


def random_inputs(random: np.random.Generator, ensemble: Ensemble, count: int) -> np.ndarray:
    """Inputs around the thresholds; some are exactly on them."""
    x = random.normal(size=(count, *ensemble.input_shape)).astype(np.float32)
    on = random.random(x.shape) < 0.1
    side = np.asarray(ensemble.encoder.low, np.float32)
    if ensemble.patch is None:
        side = side.reshape(ensemble.input_shape)
    elif ensemble.patch.layout != "tokens":
        side = side[:: ensemble.patch.depth[0]].reshape(-1, *(1,) * (len(ensemble.input_shape) - 1))
    return np.where(on, np.broadcast_to(side, x.shape), x)


def _nodes(random: np.random.Generator, inner: int, features: int) -> tuple[TreeNode, ...]:
    """A random binary tree: each place behind the first is led to exactly once."""
    free: list[tuple[int, int]] = []  # (node, side) that lead nowhere yet
    targets: dict[tuple[int, int], int] = {}
    for place in range(inner):
        if place:
            targets[free.pop(int(random.integers(len(free))))] = place
        free += [(place, 0), (place, 1)]
    targets |= {end: inner + leaf for leaf, end in enumerate(free)}
    made = []
    for place in range(inner):
        low = int(random.integers(0, 2))
        high = int(random.integers(low, 2))
        made.append(
            TreeNode(
                x=int(random.integers(features)),
                a=int(random.integers(0, 2)),
                l=low,
                h=high,
                i0=targets[place, 0],
                i1=targets[place, 1],
            )
        )
    return tuple(made)


def stand_in(
    random: np.random.Generator, source: TensorInfo, result: TensorInfo, *, kernel: int = 3, **given: Any
) -> Ensemble:
    """A random ensemble between two tensors of a model, with a square patch where these are pictures."""
    assert source.shape is not None
    assert result.shape is not None
    square = Patch(kernel=(kernel, kernel), padding=(kernel // 2,) * 4, border=True)
    patch = square if len(source.shape) == 4 else None
    made = random_ensemble(random, patch=patch, input_shape=source.shape[1:], outputs=result.shape[1], **given)
    return msgspec.structs.replace(made, input=source.name, output=result.name)


def hybrid(kind: TreeKind = "vector", *, flavour: Flavour = "core") -> tuple[Model, Model, Ensemble]:
    """A network with trees, the network that it was, and the trees; reads "image", 1 x 3 x 8 x 8, gives "pooled"."""
    b = GraphBuilder("hybrid", 3)
    x = b.conv(b.input("image", (1, 3, 8, 8)), 8, norm=True, activation="Relu")
    y = b.conv(b.conv(x, 8, activation="Relu"), 8)
    b.output(b.op("GlobalAveragePool", y), "pooled")
    network = b.build()
    tensors = {tensor.name: tensor for layer in network.layers for tensor in layer.outputs}
    ensemble = stand_in(np.random.default_rng(5), tensors[x], tensors[y], kind=kind, trees=8, levelled=False)
    return with_trees(network, Forest(model="hybrid", ensembles=(ensemble,)), flavour), network, ensemble
