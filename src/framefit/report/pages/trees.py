"""Trees in place of layers in a report: what they keep of the accuracy, and the time that they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefit.core.tree_results import TreeifyResult
from framefit.report.formats import format_bytes, format_duration
from framefit.report.pages.charts import Axis, Chart, Line, colour, percent_axis, row_height_px
from framefit.report.pages.facts import facts_panel
from framefit.report.pages.markup import Markup, bullet_list, joined, panel, panels, quantity, table, verdict
from framefit.report.pages.parts import Kind, Quantity

__all__ = ["TREES"]


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
