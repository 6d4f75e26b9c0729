"""A search for sparsity: accuracy against cycles, zeros of each layer, and what the search cost."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from framefit.core.files import write_whole
from framefit.core.sparsity import Configuration, SparsityResult
from framefit.report.charts import Axis, Chart, Line, colour, percent_axis, row_height_px
from framefit.report.description import Kind, Quantity
from framefit.report.drawing import ChartSeries, svg_chart
from framefit.report.formats import format_ratio
from framefit.report.markup import Markup, bullet_list, facts_panel, joined, panel, panels, quantity, table, verdict

__all__ = ["SPARSITY", "write_sparsity_files"]


def write_sparsity_files(folder: Path, result: SparsityResult) -> None:
    """Write ``configurations.csv``, ``layers.csv``, ``accuracy_cycles.svg``, ``sparsity_layers.svg``, ``search.svg``.

    Args:
        folder: of the search.
        result: what it found.
    """
    _write(folder / "configurations.csv", _csv(_CONFIGURATION_COLUMNS, _configuration_rows(result)))
    _write(folder / "layers.csv", _csv(_LAYER_COLUMNS, _layer_rows(result)))
    _write(folder / "accuracy_cycles.svg", _accuracy_svg(result))
    _write(folder / "sparsity_layers.svg", _zeros_svg(result))
    _write(folder / "search.svg", _search_svg(result))


_CONFIGURATION_COLUMNS = (
    *("configuration", "hardware", "top1_percent", "top5_percent", "parameters", "zeros", "sparsity_percent", "cycles"),
    *("cycles_percent", "difference_top1_points", "top1_before_finetune_percent", "finetune_epochs"),
)
_LAYER_COLUMNS = (
    *("configuration", "layer", "sparsity_percent", "activation_sparsity_percent", "cycles", "share_percent"),
    "cycles_percent_of_dense",
)


def _configuration_rows(result: SparsityResult) -> Iterable[Sequence[object]]:
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


def _layer_rows(result: SparsityResult) -> Iterable[Sequence[object]]:
    tables = [result.dense_layers, *(row.layers for row in result.configurations)]
    for name, layers in zip(("dense", *result.names), tables, strict=True):
        for layer in layers:
            ratios = (layer.sparsity_ratio, layer.activation_sparsity_ratio)
            shares = (layer.share_ratio, layer.cycles_ratio)
            zeros, activations = (round(100 * ratio, 2) for ratio in ratios)
            share, of_dense = (round(100 * ratio, 2) for ratio in shares)
            yield name, layer.name, zeros, activations, layer.cycles, share, of_dense


def _accuracy_svg(result: SparsityResult) -> str:
    dense = ChartSeries(name="dense", x=(100.0,), y=(100 * result.dense.top1,), kind="points")
    series = [
        ChartSeries(
            name=name + (", fine-tuned" if row.finetune_epochs else ""),
            x=(100 * row.cycles_ratio,),
            y=(100 * row.top1,),
            kind="points",
        )
        for name, row in zip(result.names, result.configurations, strict=True)
    ]
    return svg_chart("Accuracy against cycles", "cycles, % of the dense model", "top-1, %", [dense, *series])


def _zeros_svg(result: SparsityResult) -> str:
    """Of the chosen model and the same search without the hardware."""
    named = list(zip(result.names, result.configurations, strict=True))
    rows = [] if result.chosen is None else [named[result.chosen]]
    rows += [(name, row) for name, row in named if not row.hardware][:1]
    series = []
    for name, row in rows:
        index = tuple(map(float, range(len(row.layers))))
        weights = tuple(100 * layer.sparsity_ratio for layer in row.layers)
        activations = tuple(100 * layer.activation_sparsity_ratio for layer in row.layers)
        series.append(ChartSeries(name=f"weights, {name}", x=index, y=weights))
        series.append(ChartSeries(name=f"activations, {name}", x=index, y=activations, kind="dashed"))
    return svg_chart("Sparsity of each layer", "layer", "zeros, %", series)


def _search_svg(result: SparsityResult) -> str:
    """Best so far over the images forwarded."""
    series = []
    for name in dict.fromkeys(point.solver for point in result.curve):
        points = [point for point in result.curve if point.solver == name]
        x = tuple(point.images_forwarded / 1e3 for point in points)
        series.append(ChartSeries(name=name, x=x, y=tuple(100 * point.top1 for point in points)))
    return svg_chart("Best so far", "images forwarded, thousands", "validation top-1, %", series)


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    with write_whole(path, force=True) as file:
        file.write(text.encode())


_MOST_BARS = 32
_NONE = "\u2013"


def _chosen(result: SparsityResult) -> Configuration | None:
    return None if result.chosen is None else result.configurations[result.chosen]


def _verdict(result: SparsityResult) -> Markup:
    row = _chosen(result)
    if row is None:
        return verdict("fails", "Nothing was found", f"for {result.model} on {result.target}.")
    low, high = row.top1_interval
    text = (
        f"{format_ratio(row.cycles_ratio)} of the cycles of the dense model, top-1 {_percent(row.top1)} "
        f"(90 %: {_percent(low)} to {_percent(high)}; {row.difference_top1:+.2f} points): {result.model} on "
        f"{result.target}."
    )
    if result.interrupted:
        text += " The search was interrupted."
    if result.deployed:
        return verdict("fits", "Deployed:", text)
    return verdict("plain" if result.satisfied else "fails", f"Not deployed ({result.decision}):", text)


def _quantities(result: SparsityResult) -> Iterator[Quantity]:
    row, dense = _chosen(result), result.dense
    if row is not None:
        remark = f"of {dense.cycles:,}; asked: {format_ratio(result.target_cycles_ratio)}"
        yield Quantity("Cycles", row.cycles_ratio, format_ratio(row.cycles_ratio), remark, "less", card=True)
        remark = f"dense {_percent(dense.top1)}, {dense.images:,} test images"
        yield Quantity("Top-1", row.top1, _percent(row.top1), remark, "more", card=True)
        remark = f"before fine-tuning {_percent(row.top1_before_finetune)}" if row.finetune_epochs else "not fine-tuned"
        points = f"{row.difference_top1:+.2f} points"
        yield Quantity("To the dense model", row.difference_top1, points, remark, "more", card=True)
        remark = f"{row.zeros:,} of {row.parameters:,} left are zero"
        yield Quantity(
            "Weights pruned", row.sparsity_ratio, format_ratio(row.sparsity_ratio), remark, "more", card=True
        )
    spent = result.ledger
    remark = f"{spent.images_forwarded:,} images forwarded"
    yield Quantity("Search", spent.seconds, f"{spent.seconds:,.0f} s", remark, "less", card=True)
    yield Quantity("Evaluations", spent.evaluations, f"{spent.evaluations:,}", "", "less")


def _charts(named: Sequence[tuple[str, SparsityResult]]) -> Iterator[Chart]:
    yield _accuracy(named)
    yield from _zeros(named)
    yield from _curves(named)


def _accuracy(named: Sequence[tuple[str, SparsityResult]]) -> Chart:
    """Every configuration between cycles and accuracy, and those that no other one beats."""
    lines, told, ends = [], [], []
    for place, (name, result) in enumerate(named):
        dense = result.dense
        points = [(100.0, 100 * dense.top1, 100 * dense.top1_interval[0], 100 * dense.top1_interval[1])]
        points += [
            (100 * row.cycles_ratio, 100 * row.top1, 100 * row.top1_interval[0], 100 * row.top1_interval[1])
            for row in result.configurations
        ]
        ends += [bound for *_, low, high in points for bound in (low, high)]
        labels = ("dense", *result.names)
        series = name if len(named) > 1 else "configurations"
        lines.append(Line(name=series, kind="points", data=tuple(points), labels=labels, colour=colour(place)))
        front = _front([(x, y) for x, y, *_ in points])
        if len(front) > 1:
            label = f"front of {name}" if len(named) > 1 else "front"
            lines.append(Line(name=label, kind="line", data=tuple(front), colour=colour(place), dashed=True))
        row = _chosen(result)
        if row is not None and result.chosen is not None:
            who = f"{name}: " if len(named) > 1 else ""
            where = f"{format_ratio(row.cycles_ratio)} of the cycles at {_percent(row.top1)}"
            told.append(f"{who}{result.names[result.chosen]} is chosen, {where}.")
    first = named[0][1]
    lines.append(Line(name="asked", kind="upright", data=((100 * first.target_cycles_ratio,),), colour=-1, dashed=True))
    if first.thresholds:
        least = 100 * first.threshold.top1
        ends.append(least)
        lines.append(Line(name="least top-1", kind="across", data=((least,),), colour=-1, dashed=True))
    return Chart(
        title="Accuracy against cycles",
        summary=f"On the test data, with 90 % intervals; left and above is better. {' '.join(told)}",
        x=Axis(name="cycles, of the dense model", unit="%"),
        y=percent_axis("top-1", ends),
        lines=tuple(lines),
        height_px=340,
    )


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other one beats: fewer cycles and more accuracy."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front


def _zeros(named: Sequence[tuple[str, SparsityResult]]) -> Iterator[Chart]:
    rows = [(name, row) for name, result in named if (row := _chosen(result)) is not None]
    layers = tuple(dict.fromkeys(layer.name for _, row in rows for layer in row.layers))[:_MOST_BARS]
    if not layers:
        return
    lines = []
    for place, (name, row) in enumerate(rows):
        zeros = {layer.name: layer for layer in row.layers}
        weights = tuple(
            (float(at), 100 * zeros[one].sparsity_ratio, None, None) for at, one in enumerate(layers) if one in zeros
        )
        label = name if len(named) > 1 else "weights"
        lines.append(Line(name=label, kind="bars", data=weights, colour=colour(place)))
        if len(named) == 1:
            inputs = tuple(
                (float(at), 100 * zeros[one].activation_sparsity_ratio, None, None) for at, one in enumerate(layers)
            )
            lines.append(Line(name="what they read", kind="bars", data=inputs, colour=1))
    row = rows[0][1]
    most = max(row.layers, key=lambda layer: layer.sparsity_ratio)
    yield Chart(
        title="Zeros of each layer",
        summary=f"Of the chosen model. Most: {most.name}, {format_ratio(most.sparsity_ratio)} of its weights.",
        x=Axis(name="zeros", unit="%", low=0.0, high=100.0),
        y=Axis(name="", scale="category", categories=layers),
        lines=tuple(lines),
        height_px=row_height_px(len(layers)),
    )


def _curves(named: Sequence[tuple[str, SparsityResult]]) -> Iterator[Chart]:
    lines: list[Line] = []
    for name, result in named:
        for solver in dict.fromkeys(point.solver for point in result.curve):
            points = [point for point in result.curve if point.solver == solver]
            label = f"{name}, {solver}" if len(named) > 1 else solver
            data = tuple((point.images_forwarded / 1e3, 100 * point.top1) for point in points)
            lines.append(Line(name=label, kind="line", data=data, colour=colour(len(lines))))
    if lines:
        best = max((point for _, result in named for point in result.curve), key=lambda point: point.top1)
        yield Chart(
            title="Best so far",
            summary=f"Of each solver, on the validation subset. Best: {best.solver}, {_percent(best.top1)} after "
            f"{best.images_forwarded:,} images.",
            x=Axis(name="images forwarded", unit="thousands"),
            y=Axis(name="validation top-1", unit="%"),
            lines=tuple(lines),
        )


def _tables(result: SparsityResult, _: str) -> Markup:
    row = _chosen(result)
    parts = [panel("Configurations", _configurations(result))]
    if row is not None:
        parts.append(panel("Layers of the chosen model", _layers(row)))
    said = [panel("Reasons", bullet_list(result.reasons))] if result.reasons else []
    if result.thresholds:
        asked = (
            f"Round {one.round}: top-1 {_percent(one.top1)} at {format_ratio(one.cycles_ratio)} of the cycles, "
            f"{one.source} ({one.reason})."
            for one in result.thresholds
        )
        said.append(panel("What was asked", bullet_list(asked)))
    said += [panel("What to know of these figures", bullet_list(result.notes))] if result.notes else []
    facts = (
        ("model", result.model),
        ("target", f"{result.target}, unit {result.unit}"),
        ("pattern of zeros", result.pattern),
        ("seed", result.seed),
    )
    return joined([panels(parts, one=True), panels([*said, facts_panel("Settings", facts)])])


def _configurations(result: SparsityResult) -> Markup:
    dense = result.dense
    rows: list[tuple[str, ...]] = [
        (
            "dense",
            _NONE,
            quantity(dense.top1, _percent(dense.top1)),
            quantity(dense.top1_interval[0], _interval(dense.top1_interval)),
            _NONE,
            quantity(dense.top5, _percent(dense.top5)),
            quantity(dense.parameters, f"{dense.parameters:,}"),
            quantity(0, "0 %"),
            quantity(dense.cycles, f"{dense.cycles:,}"),
            quantity(1, "100 %"),
        )
    ]
    for at, (name, row) in enumerate(zip(result.names, result.configurations, strict=True)):
        rows.append(
            (
                name + (" (chosen)" if at == result.chosen else ""),
                "cycles" if row.hardware else "blind",
                quantity(row.top1, _percent(row.top1)),
                quantity(row.top1_interval[0], _interval(row.top1_interval)),
                quantity(
                    row.difference_top1, f"{row.difference_top1:+.2f}", kind="bad" if row.difference_top1 < 0 else ""
                ),
                quantity(row.top5, _percent(row.top5)),
                quantity(row.parameters, f"{row.parameters:,}"),
                quantity(row.sparsity_ratio, format_ratio(row.sparsity_ratio)),
                quantity(row.cycles, f"{row.cycles:,}"),
                quantity(row.cycles_ratio, format_ratio(row.cycles_ratio)),
            )
        )
    right = ("top-1", "90 %", "points", "top-5", "weights left", "pruned", "cycles", "of dense")
    return table("Configurations", rows, left=("model", "search knew"), right=right)


def _layers(row: Configuration) -> Markup:
    rows = [
        (
            layer.name,
            quantity(layer.sparsity_ratio, format_ratio(layer.sparsity_ratio)),
            quantity(layer.activation_sparsity_ratio, format_ratio(layer.activation_sparsity_ratio)),
            quantity(layer.cycles, f"{layer.cycles:,}"),
            quantity(layer.share_ratio, format_ratio(layer.share_ratio)),
            quantity(layer.cycles_ratio, format_ratio(layer.cycles_ratio)),
        )
        for layer in row.layers
    ]
    return table("Layers", rows, left=("layer",), right=("zeros", "zeros read", "cycles", "share", "of dense"))


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f} %"


def _interval(bounds: tuple[float, float]) -> str:
    return f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %"


SPARSITY = Kind(
    noun="sparsity search",
    plural="sparsity searches",
    verdict=_verdict,
    quantities=lambda result: list(_quantities(result)),
    charts=lambda named: list(_charts(named)),
    tables=_tables,
)
