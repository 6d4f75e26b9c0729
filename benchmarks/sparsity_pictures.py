"""Draws docs/sparsity_*.svg from the stored results of sparsity.py.

python benchmarks/sparsity_pictures.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.report.charts import Line, svg_chart

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Rows = list[dict[str, Any]]


def mean(rows: Rows, key: str, **where: object) -> np.ndarray:
    """Of the seeds."""
    chosen = [row[key] for row in rows if all(row[name] == value for name, value in where.items())]
    return np.asarray(np.mean(chosen, axis=0))


def series(name: str, x: npt.ArrayLike, y: npt.ArrayLike, *, dashed: bool = False) -> Line:
    """A line of a chart, ratios as percent."""
    across, up = np.asarray(x, np.float64), 100 * np.asarray(y, np.float64)
    data = tuple(zip(across.tolist(), up.tolist(), strict=True))
    return Line(name=name, kind="line", data=data, dashed=dashed)


def accuracy(rows: Rows) -> str:
    """Test accuracy against cycles, with and without the hardware."""
    ratios = sorted({row["ratio"] for row in rows})
    names = {"aware": "over cycles", "macs": "over multiply-accumulates", "weights": "over weights"}
    lines = [
        series(
            name,
            [100 * mean(rows, "cycles_ratio", arm=arm, ratio=ratio) for ratio in ratios],
            [mean(rows, "test_top1", arm=arm, ratio=ratio) for ratio in ratios],
        )
        for arm, name in names.items()
    ]
    return svg_chart(
        "Exact allocation, not fine-tuned: accuracy", "cycles, % of the dense model", "test top-1, %", lines
    )


def search(rows: Rows) -> str:
    """Best so far of each solver over its evaluations, the mean of the seeds."""
    most = max(row["evaluations"] for row in rows)
    steps = np.arange(1, most + 1)
    lines = []
    for name in dict.fromkeys(row["solver"] for row in sorted(rows, key=lambda row: -row["evaluations"])):
        own = [row for row in rows if row["solver"] == name]
        if max(row["evaluations"] for row in own) == 1:
            best = mean(own, "validation_top1")
            lines.append(series(name, (1, most), (best, best), dashed=True))
            continue
        best = np.mean([[best_at(row["curve"], step) for step in steps] for row in own], axis=0)
        changes = np.flatnonzero(np.diff(best))
        corners = np.unique([0, *changes, *(changes + 1), most - 1])
        lines.append(series(name, steps[corners], best[corners]))
    return svg_chart("Best so far at equal budget", "evaluations", "validation top-1, %", lines)


def best_at(curve: list[list[float]], step: int) -> float:
    """What the search's best by reward had after so many evaluations."""
    return [top1 for evaluations, _, top1 in curve if evaluations <= step][-1]


def layers(rows: Rows) -> str:
    """Zeros in weights for each target, and in activations, against the layer's index."""
    names = {row["target"]: f"{row['target']}, {100 * row['ratio']:.0f} %" for row in rows}
    index = range(len(rows[0]["layers"]))
    lines = [series(label, index, mean(rows, "weight_sparsity_ratio", target=name)) for name, label in names.items()]
    activations = mean(rows, "activation_sparsity_ratio", target=rows[0]["target"])
    lines.append(series("zeros in activations", index, activations, dashed=True))
    return svg_chart("Zeros in weights, at a part of each target's cycles", "layer", "zeros, %", lines)


PICTURES: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "sparsity_accuracy": ("sparsity_blind", accuracy),
    "sparsity_search": ("sparsity_solvers", search),
    "sparsity_layers": ("sparsity_targets", layers),
}


def main() -> None:
    """Write the pictures whose results are there."""
    for name, (result, draw) in PICTURES.items():
        stored = RESULTS / f"{result}.json"
        if stored.exists():
            (ROOT / "docs" / f"{name}.svg").write_text(draw(msgspec.json.decode(stored.read_bytes())["rows"]))


if __name__ == "__main__":
    main()
