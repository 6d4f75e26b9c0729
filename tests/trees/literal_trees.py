"""Trees as scikit-learn and XGBoost grow them, node by node: what oblivious trees are compared with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.trees import Ensemble, FreeTree, TreeNode, encode
from framefit.trees.fitting import Place, columns, decoded, draft
from framefit.trees.quantising import fit_encoder, quantised

Array = npt.NDArray[Any]
LiteralMethod = Literal["gradient", "ada", "xgboost"]
_Raw = tuple[list[tuple[int, float, int, int]], list[float]]  # inner nodes (feature, threshold, no, yes), leaves


def fit_literal(
    x: Array, y: Array, place: Place, method: LiteralMethod, *, trees: int, depth: int, seed: int = 0, levels: int = 3
) -> Ensemble:
    """Fit one ensemble of binary trees for each output, with the named library's defaults.

    Args:
        x: examples x input shape, float32.
        y: examples x output shape, float32.
        place: of the ensemble in the model.
        method: scikit-learn's GradientBoostingRegressor or AdaBoostRegressor, or XGBoost.
        trees: number for each output.
        depth: greatest depth of a tree.
        seed: for the libraries.
        levels: of the outputs, 2 or 3; 0: not quantised.
    """
    encoder = fit_encoder(columns(x, place.patch))
    empty = draft(place, encoder, x.shape[1:], y.shape[1:])
    words, rows = encode(empty, x), columns(y, place.patch)
    target = quantised(rows, 2 if levels == 2 else 3).astype(np.float64) if levels else rows.astype(np.float64)
    grown = [_fitted(words, target[:, output], method, trees, depth, seed) for output in range(target.shape[1])]
    most = [max((abs(leaf) for tree in output for leaf in tree[1]), default=0) or 1.0 for output in grown]
    fewest = max(map(len, grown))
    members = []
    for output, unit in zip(grown, most, strict=True):
        stump: _Raw = ([], [0.0])  # AdaBoost may stop early, but all outputs need the same number of trees
        members += [_free(tree, unit / 127) for tree in [*output, *[stump] * (fewest - len(output))]]
    ensemble = msgspec.structs.replace(empty, kind="scalar", trees=(), free_trees=tuple(members))
    return decoded(ensemble, words, rows, levels)


def _fitted(words: Array, target: Array, method: LiteralMethod, trees: int, depth: int, seed: int) -> list[_Raw]:
    if np.ptp(target) == 0:
        return [([], [0.0])]
    if method == "xgboost":
        return _by_xgboost(words, target, trees, depth, seed)
    from sklearn.ensemble import AdaBoostRegressor, GradientBoostingRegressor
    from sklearn.tree import DecisionTreeRegressor

    if method == "gradient":
        boosted = GradientBoostingRegressor(n_estimators=trees, max_depth=depth, random_state=seed).fit(words, target)
        return [_of_sklearn(stage[0].tree_, boosted.learning_rate) for stage in boosted.estimators_]
    # AdaBoost.R2 uses the weighted median of its trees; their weighted mean needs sums only.
    base = DecisionTreeRegressor(max_depth=depth)
    voted = AdaBoostRegressor(base, n_estimators=trees, random_state=seed).fit(words, target)
    weights = voted.estimator_weights_[: len(voted.estimators_)]
    total = weights.sum() or 1.0
    return [
        _of_sklearn(estimator.tree_, weight / total)
        for estimator, weight in zip(voted.estimators_, weights, strict=True)
    ]


def _of_sklearn(tree: Any, factor: float) -> _Raw:
    """Convert a tree in which values not above a threshold go left."""
    inner = [node for node in range(tree.node_count) if tree.children_left[node] >= 0]
    outer = [node for node in range(tree.node_count) if tree.children_left[node] < 0]
    place = {node: number for number, node in enumerate([*inner, *outer])}
    nodes = [
        (
            int(tree.feature[node]),
            float(tree.threshold[node]),
            place[int(tree.children_left[node])],
            place[int(tree.children_right[node])],
        )
        for node in inner
    ]
    return nodes, [factor * float(tree.value[node].ravel()[0]) for node in outer]


def _by_xgboost(words: Array, target: Array, trees: int, depth: int, seed: int) -> list[_Raw]:
    """Fit with XGBoost, where values below a threshold go left."""
    import xgboost

    settings = {"max_depth": depth, "seed": seed, "nthread": 1, "verbosity": 0}
    booster = xgboost.train(settings, xgboost.DMatrix(words, target), trees)
    made = []
    for tree in json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]["trees"]:
        left = tree["left_children"]
        inner = [node for node in range(len(left)) if left[node] >= 0]
        outer = [node for node in range(len(left)) if left[node] < 0]
        place = {node: number for number, node in enumerate([*inner, *outer])}
        nodes = [
            (
                int(tree["split_indices"][node]),
                float(np.nextafter(np.float32(tree["split_conditions"][node]), np.float32(-1))),
                place[left[node]],
                place[tree["right_children"][node]],
            )
            for node in inner
        ]
        made.append((nodes, [float(tree["split_conditions"][node]) for node in outer]))
    return made


def _free(tree: _Raw, unit: float) -> FreeTree:
    """Convert to whole numbers: above a threshold means above the whole number below it."""
    nodes: Sequence[tuple[int, float, int, int]] = tree[0]
    return FreeTree(
        nodes=tuple(TreeNode(x=x, a=int(np.floor(a)), l=0, h=1, i0=no, i1=yes) for x, a, no, yes in nodes),
        leaves=tuple(int(np.rint(leaf / unit)) for leaf in tree[1]),
    )
