"""Trees in place of layers: what they keep of the accuracy, and the time and hardware that they take."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from framefit.core.files import write_whole
from framefit.core.tree_results import Candidate, TreeifyResult
from framefit.report.charts import Axis, Chart, Line, colour, percent_axis, row_height_px
from framefit.report.description import Kind, Quantity
from framefit.report.drawing import ChartSeries, svg_chart
from framefit.report.formats import format_bytes, format_duration
from framefit.report.markup import Markup, bullet_list, facts_panel, joined, panel, panels, quantity, table, verdict

__all__ = ["TREES", "write_tree_files"]


_HEADER = (
    *("first_layer", "last_layer", "bound_top1_percent", "top1_percent", "latency_us", "layers_latency_us"),
    *("saved_us", "lut6", "pareto"),
)


def write_tree_files(folder: Path, result: TreeifyResult) -> None:
    """Write ``candidates.csv``, ``accuracy_latency.svg`` and ``accuracy_luts.svg``.

    Args:
        folder: of the search.
        result: what it found.
    """
    _write(folder / "candidates.csv", _csv(result))
    fitted = [one for one in result.candidates if one.top1 is not None]
    whole = result.original.latency_ns or 0
    for name, words, unit in (
        ("accuracy_latency", "a frame's latency with the group replaced", "us"),
        ("accuracy_luts", "tables of six inputs for the group", ""),
    ):
        timed = unit == "us"
        points = sorted(
            (((whole - _saved_ns(one)) / 1e3 if timed else float(one.lut6 or 0)), 100 * (one.top1 or 0), one.pareto)
            for one in fitted
        )
        series = [
            ChartSeries(name="network", x=(whole / 1e3,) if timed else (), y=(100 * result.original.validation_top1,),
                   kind="points"),
            ChartSeries(name="candidates", x=tuple(x for x, _, best in points if not best),
                   y=tuple(y for _, y, best in points if not best), kind="points"),
            ChartSeries(name="not beaten", x=tuple(x for x, _, best in points if best),
                   y=tuple(y for _, y, best in points if best)),
        ]  # fmt: skip
        axis = f"{words}, {unit}" if unit else words
        title = f"Accuracy against {'latency' if timed else 'look-up tables'}"
        _write(folder / f"{name}.svg", svg_chart(title, axis, "validation top-1, %", series))


def _saved_ns(one: Candidate) -> int:
    return (one.layers_latency_ns or 0) - (one.latency_ns or 0)


def _csv(result: TreeifyResult) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    for one in result.candidates:
        fitted: tuple[object, ...] = ("", "", "", "", "", "")
        if one.top1 is not None and one.latency_ns is not None and one.layers_latency_ns is not None:
            times = (one.latency_ns, one.layers_latency_ns, _saved_ns(one))
            fitted = (round(100 * one.top1, 2), *(round(time / 1e3, 1) for time in times), one.lut6, int(one.pareto))
        writer.writerow((one.first_layer, one.last_layer, round(100 * one.bound_top1, 2), *fitted))
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    with write_whole(path, force=True) as file:
        file.write(text.encode())


_NONE = "\u2013"


def _verdict(result: TreeifyResult) -> Markup:
    chosen, original = result.chosen, result.original
    if chosen is None or not chosen.groups:
        return verdict("fails", "No group was replaced:", f"none is worth it, {result.model} stays as it is.")
    points = 100 * (chosen.top1 - original.top1)
    groups = " and ".join(_group(one.first_layer, one.last_layer) for one in chosen.groups)
    trees = sum(one.trees for one in chosen.groups)
    text = f"of {result.model} are {trees:,} trees now: top-1 {_percent(chosen.top1)} ({points:+.2f} points)"
    if chosen.latency_ns is not None and original.latency_ns is not None:
        text += (
            f", a frame takes {format_duration(chosen.latency_ns)} instead of {format_duration(original.latency_ns)}"
        )
    return verdict("plain", groups[0].upper() + groups[1:], f"{text}.")


def _quantities(result: TreeifyResult) -> Iterator[Quantity]:
    chosen, original = result.chosen, result.original
    fitted = sum(one.top1 is not None for one in result.candidates)
    yield Quantity("Groups tried", len(result.candidates), str(len(result.candidates)), f"{fitted} fitted", card=True)
    if chosen is None:
        return
    yield Quantity("Top-1", chosen.top1, _percent(chosen.top1), f"before: {_percent(original.top1)}", "more", card=True)
    if (ns := chosen.latency_ns) is not None:
        before = "" if original.latency_ns is None else f"before: {format_duration(original.latency_ns)}"
        yield Quantity("A frame takes", ns, format_duration(ns), before, "less", card=True)
    trees = sum(one.trees for one in chosen.groups)
    yield Quantity("Trees", trees, f"{trees:,}", format_bytes(chosen.bytes), "less", card=True)
    yield Quantity("Tree bytes", chosen.bytes, format_bytes(chosen.bytes), "", "less")
    if (tables := chosen.lut6) is not None:
        yield Quantity("Look-up tables", tables, f"{tables:,}", "of a fixed-function circuit", "less", card=True)


def _charts(named: Sequence[tuple[str, TreeifyResult]]) -> Iterator[Chart]:
    several = len(named) > 1
    lines = []
    for place, (name, result) in enumerate(named):
        timed = [
            (one, one.top1, one.latency_ns) for one in result.candidates if one.top1 is not None and one.latency_ns
        ]
        points = tuple((ns / 1e3, 100 * top1) for _, top1, ns in timed)
        labels = tuple(_group(one.first_layer, one.last_layer) for one, _, _ in timed)
        if points:
            lines.append(
                Line(name=name if several else "", kind="points", data=points, labels=labels, colour=colour(place))
            )
    validation = 100 * named[0][1].original.validation_top1
    network = Line(name="the network", kind="across", data=((validation,),), colour=-1, dashed=True)
    if lines:
        yield Chart(
            title="Accuracy against the trees' time",
            summary="Top-1 on validation data with trees in place of each group, before fine-tuning; the network "
            f"itself has {validation:.2f} %. Left and above is better.",
            x=Axis(name="a frame's trees", unit="us"),
            y=percent_axis("top-1", [validation, *(y for line in lines for _, y in line.data if y is not None)]),
            lines=(*lines, network),
        )
    yield from _bound_chart(named)


def _bound_chart(named: Sequence[tuple[str, TreeifyResult]]) -> Iterator[Chart]:
    """What quantising a group costs, and what its trees cost beyond that."""
    first = named[0][1]
    groups = tuple(_group(one.first_layer, one.last_layer) for one in first.candidates)
    if len(named) > 1 or not groups:
        return
    bounds = tuple((100 * one.bound_top1, float(at)) for at, one in enumerate(first.candidates))
    fitted = tuple((100 * one.top1, float(at)) for at, one in enumerate(first.candidates) if one.top1 is not None)
    network = Line(
        name="the network", kind="upright", data=((100 * first.original.validation_top1,),), colour=-1, dashed=True
    )
    yield Chart(
        title="Accuracy of each group",
        summary="Top-1 on validation data with the group's output quantised, and with trees in its place: no trees are "
        "better than the former but by chance.",
        x=percent_axis("top-1", [100 * first.original.validation_top1, *(x for x, _ in (*bounds, *fitted))]),
        y=Axis(name="", scale="category", categories=groups),
        lines=(
            Line(name="quantised", kind="points", data=bounds, colour=7),
            Line(name="with trees", kind="points", data=fitted, colour=0),
            network,
        ),
        height_px=row_height_px(len(groups)),
    )


def _tables(result: TreeifyResult, _: str) -> Markup:
    tried = [
        (
            _group(one.first_layer, one.last_layer),
            quantity(one.bound_top1, _percent(one.bound_top1)),
            _NONE if one.top1 is None else quantity(one.top1, _percent(one.top1)),
            _time(one.latency_ns),
            _time(one.layers_latency_ns),
            _NONE if one.lut6 is None else quantity(one.lut6, f"{one.lut6:,}"),
            "yes" if one.pareto else "",
        )
        for one in result.candidates
    ]
    right = ("quantised", "with trees", "trees' time", "layers' time", "look-up tables", "not beaten")
    parts = [panel("Groups tried", table("Groups tried", tried, left=("layers",), right=right))]
    few = []
    if result.chosen is not None:
        chosen = [
            (
                _group(one.first_layer, one.last_layer),
                one.kind,
                quantity(one.trees, f"{one.trees:,}"),
                quantity(one.depth, str(one.depth)),
                quantity(one.fit_seconds, f"{one.fit_seconds:.1f} s"),
            )
            for one in result.chosen.groups
        ]
        listed = table("Groups replaced", chosen, left=("layers", "leaves"), right=("trees", "depth", "fitted in"))
        few.append(panel("Groups replaced", listed))
    few += [panel("What to know of these figures", bullet_list(result.notes))] if result.notes else []
    few.append(facts_panel("Settings", (("model", result.model), ("seed", result.seed))))
    return joined([panels(parts, one=True), panels(few)])


def _time(ns: int | None) -> str:
    return _NONE if ns is None else quantity(ns, format_duration(ns))


def _group(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f} %"


TREES = Kind(
    noun="tree search",
    plural="tree searches",
    verdict=_verdict,
    quantities=lambda result: list(_quantities(result)),
    charts=lambda named: list(_charts(named)),
    tables=_tables,
)
