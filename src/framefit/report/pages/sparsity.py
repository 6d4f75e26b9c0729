"""A search for sparsity in a report: accuracy against cycles, zeros of each layer, and what the search cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefit.core.sparsity import Configuration, SparsityResult
from framefit.report.formats import format_ratio
from framefit.report.pages.charts import Axis, Chart, Line, colour, percent_axis, row_height_px
from framefit.report.pages.facts import facts_panel
from framefit.report.pages.markup import Markup, bullet_list, joined, panel, panels, quantity, table, verdict
from framefit.report.pages.parts import Kind, Quantity

__all__ = ["SPARSITY"]


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
