"""Random ensembles of every form, for tests of the trees and of their hardware."""

from __future__ import annotations

import math

import numpy as np

from framefit.core.trees import Encoder, Ensemble, FreeTree, Levels, ObliviousTree, Patch, Scaled, TreeKind, TreeNode


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
    channels = input_shape[0] if patch else math.prod(input_shape)
    low = random.normal(-0.4, 0.3, channels).astype(np.float32)
    high = low if binary else low + random.uniform(0, 1, channels).astype(np.float32)
    area = patch.area if patch else 1
    features = (channels + (patch.border if patch else 0)) * area
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
        output_shape=(outputs, *patch.positions(*input_shape[1:])) if patch else (outputs,),
        kind=kind,
        encoder=Encoder(low=tuple(low.tolist()), high=tuple(high.tolist())),
        patch=patch,
        trees=tuple(oblivious),
        free_trees=tuple(nodes),
        levels=levels if levelled else None,
        scaled=None if levelled else scaled,
    )


def random_inputs(random: np.random.Generator, ensemble: Ensemble, count: int) -> np.ndarray:
    """Inputs around the thresholds; some are exactly on them."""
    x = random.normal(size=(count, *ensemble.input_shape)).astype(np.float32)
    on = random.random(x.shape) < 0.1
    side = np.asarray(ensemble.encoder.low, np.float32)
    side = side[:, None, None] if ensemble.patch else side.reshape(ensemble.input_shape)
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
