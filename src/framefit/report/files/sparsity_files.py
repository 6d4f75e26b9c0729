"""Tables and pictures of a search for sparsity, as files of its folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from framefit.core.files import write_whole
from framefit.core.sparsity import SparsityResult
from framefit.report.files.charts import Series, chart

__all__ = ["write_report"]


def write_report(folder: Path, result: SparsityResult) -> None:
    """Write ``configurations.csv``, ``layers.csv``, ``accuracy_cycles.svg``, ``sparsity_layers.svg``, ``search.svg``.

    Args:
        folder: of the search.
        result: what it found.
    """
    _write(folder / "configurations.csv", _table(_CONFIGURATION, _configurations(result)))
    _write(folder / "layers.csv", _table(_LAYER, _layers(result)))
    _write(folder / "accuracy_cycles.svg", _accuracy(result))
    _write(folder / "sparsity_layers.svg", _sparsity(result))
    _write(folder / "search.svg", _search(result))


_CONFIGURATION = (
    *("configuration", "hardware", "top1_percent", "top5_percent", "parameters", "zeros", "sparsity_percent", "cycles"),
    *("cycles_percent", "difference_top1_points", "top1_before_finetune_percent", "finetune_epochs"),
)
_LAYER = (
    *("configuration", "layer", "sparsity_percent", "activation_sparsity_percent", "cycles", "share_percent"),
    "cycles_percent_of_dense",
)


def _configurations(result: SparsityResult) -> Iterable[Sequence[object]]:
    dense = result.dense
    top1 = round(100 * dense.top1, 2)
    yield "dense", "", top1, round(100 * dense.top5, 2), dense.parameters, "", 0, dense.cycles, 100, 0, top1, ""
    for name, row in zip(result.names, result.configurations, strict=True):
        yield (
            name,
            "aware" if row.hardware else "blind",
            round(100 * row.top1, 2),
            round(100 * row.top5, 2),
            row.parameters,
            row.zeros,
            round(100 * row.sparsity_ratio, 2),
            row.cycles,
            round(100 * row.cycles_ratio, 2),
            round(row.difference_top1, 2),
            round(100 * row.top1_before_finetune, 2),
            row.finetune_epochs,
        )


def _layers(result: SparsityResult) -> Iterable[Sequence[object]]:
    tables = [result.dense_layers, *(row.layers for row in result.configurations)]
    for name, layers in zip(("dense", *result.names), tables, strict=True):
        for layer in layers:
            ratios = (layer.sparsity_ratio, layer.activation_sparsity_ratio)
            shares = (layer.share_ratio, layer.cycles_ratio)
            zeros, activations = (round(100 * ratio, 2) for ratio in ratios)
            share, of_dense = (round(100 * ratio, 2) for ratio in shares)
            yield name, layer.name, zeros, activations, layer.cycles, share, of_dense


def _accuracy(result: SparsityResult) -> str:
    dense = Series(name="dense", x=(100.0,), y=(100 * result.dense.top1,), kind="points")
    series = [
        Series(
            name=name + (", fine-tuned" if row.finetune_epochs else ""),
            x=(100 * row.cycles_ratio,),
            y=(100 * row.top1,),
            kind="points",
        )
        for name, row in zip(result.names, result.configurations, strict=True)
    ]
    return chart("Accuracy against cycles", "cycles, % of the dense model", "top-1, %", [dense, *series])


def _sparsity(result: SparsityResult) -> str:
    """Of the chosen model and the same search without the hardware."""
    named = list(zip(result.names, result.configurations, strict=True))
    rows = [] if result.chosen is None else [named[result.chosen]]
    rows += [(name, row) for name, row in named if not row.hardware][:1]
    series = []
    for name, row in rows:
        index = tuple(map(float, range(len(row.layers))))
        weights = tuple(100 * layer.sparsity_ratio for layer in row.layers)
        activations = tuple(100 * layer.activation_sparsity_ratio for layer in row.layers)
        series.append(Series(name=f"weights, {name}", x=index, y=weights))
        series.append(Series(name=f"activations, {name}", x=index, y=activations, kind="dashed"))
    return chart("Sparsity of each layer", "layer", "zeros, %", series)


def _search(result: SparsityResult) -> str:
    """Best so far over the images forwarded."""
    series = []
    for name in dict.fromkeys(point.solver for point in result.curve):
        points = [point for point in result.curve if point.solver == name]
        x = tuple(point.images_forwarded / 1e3 for point in points)
        series.append(Series(name=name, x=x, y=tuple(100 * point.top1 for point in points)))
    return chart("Best so far", "images forwarded, thousands", "validation top-1, %", series)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    with write_whole(path, force=True) as file:
        file.write(text.encode())
