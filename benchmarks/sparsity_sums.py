"""What the rows of sparsity.py come to: means over seeds, and what they tell of each other."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np

__all__ = ["Row", "summed"]

Row = dict[str, Any]


def summed(part: str, rows: list[Row]) -> Row:
    """What the rows of a part come to."""
    match part:
        case "bars":
            points, counts = ("difference_points", "untuned_difference_points"), ("cycles", "zeros")
            return means(rows, "ratio", (*points, "top1", "top5", *counts, "cycles_ratio", "sparsity_ratio"))
        case "solvers":
            return means(rows, "solver", ("validation_top1", "test_top1", "cycles_ratio", "evaluations"))
        case "blind":
            return {"saved_at_equal_accuracy": {arm: saved_at_equal_accuracy(rows, arm) for arm in ("macs", "weights")}}
        case "targets":
            return compared_targets(rows)
        case "channel":
            return means(rows, "target", ("cycles_ratio", "latency_ratio", "fall_measured_to_modelled"))
        case "others":
            keys = ("difference_points", "untuned_difference_points", "cycles_ratio")
            return means(rows, "pattern", tuple(f"{whose}{key}" for whose in ("", "our_") for key in keys))
        case "blocks":
            points = ("difference_points", "untuned_difference_points")
            return means(rows, "ratio", (*points, "sparsity_ratio", "cycles_ratio", "latency_ratio", "times_as_fast"))
        case "bytes":
            points = ("difference_points", "untuned_difference_points", "dense_int8_difference_points")
            return means(rows, "ratio", (*points, "sparsity_ratio", "cycles_ratio"))
    return {}


def means(rows: list[Row], by: str, keys: tuple[str, ...]) -> Row:
    """Of each key, over the seeds."""
    groups = dict.fromkeys(row[by] for row in rows)
    return {
        f"mean_{key}": {str(group): statistics.mean(row[key] for row in rows if row[by] == group) for group in groups}
        for key in keys
    }


def saved_at_equal_accuracy(rows: list[Row], arm: str) -> list[float]:
    """For accuracies of a blind arm: the part of its cycles that the aware one saves, over the means of the seeds."""
    arms = {name: {row["ratio"] for row in rows if row["arm"] == name} for name in ("aware", arm)}
    ratios = sorted(set.intersection(*arms.values()))
    if not ratios:
        return []

    def curve(name: str) -> tuple[np.ndarray, np.ndarray]:
        """Accuracies, made monotone, and cycles."""
        own = [row for row in rows if row["arm"] == name]
        points = [
            np.mean([(row["test_top1"], row["cycles_ratio"]) for row in own if row["ratio"] == ratio], axis=0)
            for ratio in ratios
        ]
        accuracies, cycles = np.asarray(points).T
        return np.maximum.accumulate(accuracies), cycles

    (accuracies, cycles), found = curve("aware"), []
    for accuracy, spent in zip(*curve(arm), strict=True):
        if accuracies[0] <= accuracy <= accuracies[-1]:
            found.append(float(1 - np.interp(accuracy, accuracies, cycles) / spent))
    return found


def compared_targets(rows: list[Row]) -> Row:
    """Over the means of the seeds: how alike assignments are, and how zeros in activations explain them."""
    names = list(dict.fromkeys(row["target"] for row in rows))

    def mean(target: str, key: str) -> np.ndarray:
        return np.asarray(np.mean([row[key] for row in rows if row["target"] == target], axis=0))

    weights = {name: mean(name, "weight_sparsity_ratio") for name in names}
    half = len(weights["vpu"]) // 2
    pairs = list(itertools.combinations(names, 2))
    found: Row = {
        "correlation": {f"{one}, {other}": np.corrcoef(weights[one], weights[other])[0, 1] for one, other in pairs},
        "early_half_mean": {name: weights[name][:half].mean() for name in names},
        "late_half_mean": {name: weights[name][half:].mean() for name in names},
    }
    if "weights-only" in names:
        # Two equal devices, but for zero activations: what these change, against how many there are.
        spared = weights["weights-only"] - weights["vpu"]
        found["spared_by_activations"] = np.corrcoef(spared, mean("vpu", "activation_sparsity_ratio"))[0, 1]
    return found
