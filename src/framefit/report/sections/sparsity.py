"""A search for sparsity: accuracy against cycles, zeros of each layer, and what the search cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from framefit.core.sparsity import Configuration, SparsityResult
from framefit.report.charts import Axis, Chart, Line, colour, percent_axis, row_height_px, svg_chart
from framefit.report.csv_files import write_table, write_text
from framefit.report.description import (
    NONE,
    Block,
    Cell,
    Description,
    Facts,
    Kind,
    Quantity,
    Section,
    Sentences,
    Verdict,
    columns,
    count,
    ratio,
)
from framefit.report.formats import format_percent, format_ratio

__all__ = ["write_sparsity_files"]


_MOST_BARS = 32
_MOST_LAYERS = 60  # on a terminal


def _score(result: SparsityResult) -> str:
    """What the scores are: accuracy, or agreement with the dense model where the data have no labels."""
    acceptance = result.acceptance
    return "top-1" if acceptance is None or acceptance.measure == "top1" else "agreement"


def _chosen(result: SparsityResult) -> Configuration | None:
    return None if result.chosen is None else result.configurations[result.chosen]


def _describe(result: SparsityResult, **_: object) -> Description:
    """A search for sparsity: the verdict, all configurations, and the layers of the chosen one."""
    return Description(_verdict(result), list(_quantities(result)), list(_blocks(result)))


def _verdict(result: SparsityResult) -> Verdict:
    chosen = _chosen(result)
    if chosen is None:
        return Verdict("fails", "Nothing was found", f"for {result.model} on {result.target}.")
    low, high = chosen.top1_interval
    text = (
        f"{format_ratio(chosen.cycles_ratio)} of the cycles of the dense model{' in int8' if result.int8 else ''}, "
        f"{_score(result)} {format_percent(chosen.top1)} "
        f"(90 %: {format_percent(low)} to {format_percent(high)}; {chosen.difference_top1:+.2f} points): "
        f"{result.model} on {result.target}."
    )
    if result.interrupted:
        text += " The search was interrupted."
    if result.deployed:
        return Verdict("fits", "Deployed:", text)
    return Verdict("plain" if result.satisfied else "fails", f"Not deployed ({result.decision}):", text)


def _quantities(result: SparsityResult) -> Iterator[Quantity]:
    chosen, dense = _chosen(result), result.dense
    if chosen is not None:
        remark = f"of {dense.cycles:,}; asked: {format_ratio(result.target_cycles_ratio)}"
        yield Quantity("Cycles", chosen.cycles_ratio, format_ratio(chosen.cycles_ratio), remark, "less", card=True)
        remark = f"dense {format_percent(dense.top1)}, {dense.images:,} test examples"
        yield Quantity(_score(result).capitalize(), chosen.top1, format_percent(chosen.top1), remark, "more", card=True)
        before = f"before fine-tuning {format_percent(chosen.top1_before_finetune)}"
        remark = before if chosen.finetune_epochs else "not fine-tuned"
        points = f"{chosen.difference_top1:+.2f} points"
        yield Quantity("To the dense model", chosen.difference_top1, points, remark, "more", card=True)
        remark, pruned = f"{chosen.zeros:,} of {chosen.parameters:,} left are zero", chosen.sparsity_ratio
        yield Quantity("Weights pruned", pruned, format_ratio(pruned), remark, "more", card=True)
    spent = result.ledger
    remark = f"{spent.images_forwarded:,} examples forwarded"
    yield Quantity("Search", spent.seconds, f"{spent.seconds:,.0f} s", remark, "less", card=True)
    yield Quantity("Evaluations", spent.evaluations, f"{spent.evaluations:,}", "", "less", card=True)


def _blocks(result: SparsityResult) -> Iterator[Block]:
    chosen = _chosen(result)
    if result.reasons:
        yield Sentences("Reasons", result.reasons)
    if result.thresholds:
        thresholds = [
            f"Round {threshold.round}: {_score(result)} {format_percent(threshold.top1)} at "
            f"{format_ratio(threshold.cycles_ratio)} of the cycles, {threshold.source} ({threshold.reason})."
            for threshold in result.thresholds
        ]
        yield Sentences("What was asked", thresholds)
    if result.notes:
        yield Sentences("What to know of these figures", result.notes)
    facts = (
        ("model", result.model),
        ("target", f"{result.target}, unit {result.unit}"),
        ("pattern of zeros", result.pattern),
        ("written in", "int8" if result.int8 else "float32"),
        ("seed", result.seed),
    )
    yield Facts("Settings", facts)
    yield _configurations(result)
    if chosen is not None:
        yield _layers(chosen)


def _configurations(result: SparsityResult) -> Section:
    dense = result.dense
    rows: list[Sequence[Cell | str]] = [
        (
            "dense",
            "-",
            _accuracy(dense.top1),
            _between(dense.top1_interval),
            NONE,
            Cell(format_percent(dense.top5, 1), dense.top5),
            _thousands(dense.parameters),
            NONE,
            ratio(0.0),
            _thousands(dense.cycles),
            ratio(1.0),
        )
    ]
    for at, (name, row) in enumerate(zip(result.names, result.configurations, strict=True)):
        points = row.difference_top1
        rows.append(
            (
                name + (" (chosen)" if at == result.chosen else ""),
                "cycles" if row.hardware else "blind",
                _accuracy(row.top1),
                _between(row.top1_interval),
                Cell(f"{points:+.2f}", points, tone="bad" if points < 0 else ""),
                Cell(format_percent(row.top5, 1), row.top5),
                _thousands(row.parameters),
                _thousands(row.zeros),
                ratio(row.sparsity_ratio),
                _thousands(row.cycles),
                ratio(row.cycles_ratio),
            )
        )
    score = _score(result)
    figures: tuple[str, ...] = (score, "90 %", "points", "top-5", "weights", "zeros", "pruned", "cycles", "left")
    note = f"Points: to the dense model's {score}. "
    if result.acceptance is not None and result.acceptance.measure == "outputs":
        figures = tuple(name for name in figures if name != "top-5")
        rows = [(*row[:5], *row[6:]) for row in rows]
        note = (
            "Agreement: variance of the dense model's outputs over the sum of it and the squared error. "
            "Random zeros: as many in the same layers, nothing refitted. "
        )
    note += "Weights: left in the model, and how many of them are zero. "
    note += "Left: of the dense model's cycles."
    shown = columns(("model", "search knew"), figures, page=("search knew", "90 %"))
    return Section("Configurations", shown, rows, note)


def _accuracy(top1: float) -> Cell:
    return Cell(format_percent(top1), top1)


def _between(bounds: tuple[float, float]) -> Cell:
    return Cell(f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %", bounds[0])


def _thousands(number: int) -> Cell:
    """A number with about four digits."""
    for unit_size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 10 * unit_size:
            return Cell(f"{number / unit_size:.{1 if number < 1000 * unit_size else 0}f} {unit}", number)
    return count(number)


def _layers(row: Configuration) -> Section:
    rows = [
        (
            layer.name,
            ratio(layer.sparsity_ratio),
            ratio(layer.activation_sparsity_ratio),
            count(layer.cycles),
            ratio(layer.share_ratio),
            ratio(layer.cycles_ratio),
        )
        for layer in row.layers
    ]
    note = "Zeros: of its weights, and of what it reads. Share: of the network's cycles."
    figures = ("zeros", "zeros read", "cycles", "share", "of dense")
    return Section("Layers of the chosen model", columns(("layer",), figures), rows, note, _MOST_LAYERS)


def _charts(named: Sequence[tuple[str, SparsityResult]]) -> Iterator[Chart]:
    yield _accuracy_chart(named)
    yield from _zeros(named)
    yield from _curves(named)


def _accuracy_chart(named: Sequence[tuple[str, SparsityResult]]) -> Chart:
    """Every configuration between cycles and accuracy, and those that none of the others beats."""
    lines, sentences, ends = [], [], []
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
        front = tuple((100 * cycles_ratio, 100 * top1) for cycles_ratio, top1 in result.front)
        if len(front) > 1:
            label = f"front of {name}" if len(named) > 1 else "front"
            lines.append(Line(name=label, kind="line", data=front, colour=colour(place), dashed=True))
        row = _chosen(result)
        if row is not None and result.chosen is not None:
            who = f"{name}: " if len(named) > 1 else ""
            where = f"{format_ratio(row.cycles_ratio)} of the cycles at {format_percent(row.top1)}"
            sentences.append(f"{who}{result.names[result.chosen]} is chosen, {where}.")
    first = named[0][1]
    lines.append(Line(name="asked", kind="upright", data=((100 * first.target_cycles_ratio,),), colour=-1, dashed=True))
    if first.thresholds:
        least = 100 * first.threshold.top1
        ends.append(least)
        lines.append(Line(name=f"least {_score(first)}", kind="across", data=((least,),), colour=-1, dashed=True))
    return Chart(
        title="Accuracy against cycles",
        summary=f"On the test data, with 90 % intervals; left and above is better. {' '.join(sentences)}",
        x=Axis(name="cycles, of the dense model", unit="%"),
        y=percent_axis(_score(first), ends),
        lines=tuple(lines),
        height_px=340,
    )


def _zeros(named: Sequence[tuple[str, SparsityResult]]) -> Iterator[Chart]:
    rows = [(name, row) for name, result in named if (row := _chosen(result)) is not None]
    layers = tuple(dict.fromkeys(layer.name for _, row in rows for layer in row.layers))[:_MOST_BARS]
    if not layers:
        return
    lines = []
    for place, (name, row) in enumerate(rows):
        zeros = {layer.name: layer for layer in row.layers}
        weights = tuple(
            (float(at), 100 * zeros[name].sparsity_ratio, None, None) for at, name in enumerate(layers) if name in zeros
        )
        label = name if len(named) > 1 else "weights"
        lines.append(Line(name=label, kind="bars", data=weights, colour=colour(place)))
        if len(named) == 1:
            inputs = tuple(
                (float(at), 100 * zeros[name].activation_sparsity_ratio, None, None) for at, name in enumerate(layers)
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


def _best_lines(named: Sequence[tuple[str, SparsityResult]]) -> list[Line]:
    """Best so far of each solver, over the examples forwarded."""
    lines: list[Line] = []
    for name, result in named:
        for solver in dict.fromkeys(point.solver for point in result.curve):
            points = [point for point in result.curve if point.solver == solver]
            label = f"{name}, {solver}" if len(named) > 1 else solver
            data = tuple((point.images_forwarded / 1e3, 100 * point.top1) for point in points)
            lines.append(Line(name=label, kind="line", data=data, colour=colour(len(lines))))
    return lines


def _curves(named: Sequence[tuple[str, SparsityResult]]) -> Iterator[Chart]:
    if lines := _best_lines(named):
        best = max((point for _, result in named for point in result.curve), key=lambda point: point.top1)
        yield Chart(
            title="Best so far",
            summary=f"Of each solver, on the validation subset. Best: {best.solver}, {format_percent(best.top1)} after "
            f"{best.images_forwarded:,} examples.",
            x=Axis(name="examples forwarded", unit="thousands"),
            y=Axis(name=f"validation {_score(named[0][1])}", unit="%"),
            lines=tuple(lines),
        )


def write_sparsity_files(folder: Path, result: SparsityResult) -> None:
    """Write ``configurations.csv``, ``layers.csv``, ``accuracy_cycles.svg``, ``sparsity_layers.svg``, ``search.svg``.

    Args:
        folder: of the search.
        result: of the search.
    """
    write_table(folder / "configurations.csv", _CONFIGURATION_COLUMNS, _configuration_rows(result))
    write_table(folder / "layers.csv", _LAYER_COLUMNS, _layer_rows(result))
    write_text(folder / "accuracy_cycles.svg", _accuracy_svg(result))
    write_text(folder / "sparsity_layers.svg", _zeros_svg(result))
    best = _best_lines([("", result)])
    write_text(
        folder / "search.svg",
        svg_chart("Best so far", "examples forwarded, thousands", f"validation {_score(result)}, %", best),
    )


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
    lines = [Line(name="dense", kind="points", data=((100.0, 100 * result.dense.top1),))]
    for name, row in zip(result.names, result.configurations, strict=True):
        label = name + (", fine-tuned" if row.finetune_epochs else "")
        lines.append(Line(name=label, kind="points", data=((100 * row.cycles_ratio, 100 * row.top1),)))
    return svg_chart("Accuracy against cycles", "cycles, % of the dense model", f"{_score(result)}, %", lines)


def _zeros_svg(result: SparsityResult) -> str:
    """Of the chosen model and the same search without the hardware."""
    named = list(zip(result.names, result.configurations, strict=True))
    rows = [] if result.chosen is None else [named[result.chosen]]
    rows += [(name, row) for name, row in named if not row.hardware][:1]
    lines = []
    for name, row in rows:
        weights = tuple((float(at), 100 * layer.sparsity_ratio) for at, layer in enumerate(row.layers))
        inputs = tuple((float(at), 100 * layer.activation_sparsity_ratio) for at, layer in enumerate(row.layers))
        lines.append(Line(name=f"weights, {name}", kind="line", data=weights))
        lines.append(Line(name=f"activations, {name}", kind="line", data=inputs, dashed=True))
    return svg_chart("Sparsity of each layer", "layer", "zeros, %", lines)


KIND: Kind[SparsityResult] = Kind(
    noun="sparsity search",
    plural="sparsity searches",
    describe=_describe,
    charts=_charts,
)
