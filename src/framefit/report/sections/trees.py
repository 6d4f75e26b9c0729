"""Trees in place of layers: what they keep of the accuracy, and the time and hardware that they take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from framefit.core.tree_results import Candidate, GroupCircuit, RtlReport, TreeifiedModel, TreeifyResult
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
    duration,
)
from framefit.report.formats import format_bytes, format_duration, format_percent

__all__ = ["write_tree_files"]


_OPERATORS = {"core": "core operators", "ml": "tree operators of ai.onnx.ml"}


def _describe(result: TreeifyResult, **_: object) -> Description:
    """The hybrid beside the network, and the groups that were tried."""
    return Description(_verdict(result), list(_quantities(result)), list(_blocks(result)))


def _verdict(result: TreeifyResult) -> Verdict:
    chosen, original = result.chosen, result.original
    if chosen is None or not chosen.groups:
        text = f"no group of layers is worth replacing, {result.model} stays as it is."
        return Verdict("fails", "No group was replaced:", text)
    points = 100 * (chosen.top1 - original.top1)
    groups = " and ".join(_group(group.first_layer, group.last_layer) for group in chosen.groups)
    trees = sum(group.trees for group in chosen.groups)
    text = f"of {result.model} are {trees:,} trees now: top-1 {format_percent(chosen.top1)} ({points:+.2f} points)"
    if chosen.latency_ns is not None and original.latency_ns is not None:
        text += (
            f", a frame takes {format_duration(chosen.latency_ns)} instead of {format_duration(original.latency_ns)}"
        )
    return Verdict("plain", groups[0].upper() + groups[1:], f"{text}.")


def _quantities(result: TreeifyResult) -> Iterator[Quantity]:
    chosen, tried = result.chosen, len(result.candidates)
    fitted = sum(candidate.top1 is not None for candidate in result.candidates)
    yield Quantity("Groups tried", tried, str(tried), f"{fitted} fitted", card=True)
    validation = result.original.validation_top1
    remark = "of the network, on the images that decide"
    yield Quantity("Top-1 where it is decided", validation, format_percent(validation), remark, card=chosen is None)
    if chosen is None:
        return
    remark = f"before: {format_percent(result.original.top1)}"
    yield Quantity("Top-1", chosen.top1, format_percent(chosen.top1), remark, "more", card=True)
    if (ns := chosen.latency_ns) is not None:
        before = "" if result.original.latency_ns is None else f"before: {format_duration(result.original.latency_ns)}"
        yield Quantity("A frame takes", ns, format_duration(ns), before, "less", card=True)
    if (final := chosen.final) is not None:
        low, high = (100 * each for each in final.interval)
        remark = f"{low:.2f} to {high:.2f} with 90 %, on {final.examples:,} images that decided nothing"
        yield Quantity("Lost in the final test", 100 * final.drop, f"{100 * final.drop:.2f} points", remark, "less")
    trees = sum(group.trees for group in chosen.groups)
    yield Quantity("Trees", trees, f"{trees:,}", format_bytes(chosen.bytes), "less", card=True)
    yield Quantity("Tree bytes", chosen.bytes, format_bytes(chosen.bytes), "", "less")
    if (tables := chosen.lut6) is not None:
        yield Quantity("Look-up tables", tables, f"{tables:,}", "of a fixed-function circuit", "less", card=True)


def _blocks(result: TreeifyResult) -> Iterator[Block]:
    rows = [
        (
            _group(candidate.first_layer, candidate.last_layer),
            Cell(format_percent(candidate.bound_top1), candidate.bound_top1),
            NONE if candidate.top1 is None else Cell(format_percent(candidate.top1), candidate.top1),
            duration(candidate.latency_ns),
            duration(candidate.layers_latency_ns),
            count(candidate.lut6),
            "yes" if candidate.pareto else "",
        )
        for candidate in result.candidates
    ]
    figures = ("quantised", "with trees", "trees' time", "layers' time", "tables", "not beaten")
    note = (
        f"Top-1 on the images that decide; the network itself has {format_percent(result.original.validation_top1)}. "
    )
    note += "Tables: look-up tables of six inputs. Not beaten: in accuracy and time, or accuracy and tables."
    yield Section("Groups tried", columns(("layers",), figures), rows, note)
    if (chosen := result.chosen) is not None:
        yield _groups(chosen)
        yield Sentences("The hybrid", list(_hybrid_sentences(chosen)))
    if result.notes:
        yield Sentences("What to know of these figures", result.notes)
    yield Facts("Settings", (("model", result.model), ("seed", result.seed)))


def _groups(chosen: TreeifiedModel) -> Section:
    rows = [
        (
            _group(group.first_layer, group.last_layer),
            group.kind,
            count(group.trees),
            count(group.depth),
            count(group.accumulator_bits),
            Cell(f"{group.fit_seconds:.1f} s", group.fit_seconds),
        )
        for group in chosen.groups
    ]
    figures = ("trees", "depth", "bits of sums", "fitted in")
    return Section("Groups replaced", columns(("layers", "leaves"), figures), rows)


def _hybrid_sentences(chosen: TreeifiedModel) -> Iterator[str]:
    yield (
        f"Before {chosen.finetune_seconds:.1f} s of fine-tuning its top-1 was "
        f"{format_percent(chosen.top1_before_finetune)}; trees take {chosen.bytes:,} bytes."
    )
    for export in chosen.exports:
        latency = "-" if export.runtime_latency_ns is None else format_duration(export.runtime_latency_ns)
        yield (
            f"{export.file}: trees as {_OPERATORS[export.flavour]}, equal to the last bit; a frame takes {latency} "
            "where ONNX Runtime alone executes it."
        )


def _group(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def _circuits(report: RtlReport, **_: object) -> Description:
    """What trees take in hardware: each group's circuit, whether it is equal to the model, and its costs."""
    wrong = sum(group.mismatches for group in report.groups)
    rows = sum(group.rows for group in report.groups)
    text = f"{report.core} core, {len(report.groups)} group{'s' * (len(report.groups) != 1)} of trees."
    verdict = Verdict("fails", f"{wrong:,} of {rows:,} rows differ from the model:", text)
    if not wrong:
        verdict = Verdict("plain", f"All {rows:,} rows are equal to the model:", text)
    blocks: list[Block] = []
    for group in report.groups:
        blocks.append(Sentences(f"{group.group}, {report.core}", list(_circuit_sentences(group))))
        if group.costs:
            blocks.append(_costs(group))
    return Description(verdict, (), blocks)


def _circuit_sentences(group: GroupCircuit) -> Iterator[str]:
    yield f"{group.trees} trees ({group.kind}), {group.features} features, {group.outputs} outputs"
    yield f"equal to the model on {group.rows - group.mismatches} of {group.rows} rows"
    if group.positions > 1:
        yield f"one of {group.positions} positions"
    if group.latency_cycles is not None:
        yield f"latency {group.latency_cycles} cycles, a row a cycle" if group.latency_cycles else "no register"
    if group.cycles_per_node is not None:
        yield f"{group.cycles_per_node:.3f} cycles a node ({group.nodes:,} nodes)"
    if group.lut6_per_output is not None:
        yield f"{group.lut6_per_output:.1f} LUT6 an output"
    if group.placed is not None:
        placed = group.placed
        speed = f"{placed.max_mhz:.1f} MHz at most" if math.isfinite(placed.max_mhz) else "no register"
        yield f"on {placed.device}: {placed.cells:,} of {placed.of:,} logic cells, {speed}; {placed.bitstream}"
    yield from group.notes


def _costs(group: GroupCircuit) -> Section:
    rows: list[Sequence[Cell | str]] = []
    for cost in group.costs:
        numbers = (cost.lut6, cost.lut6_depth, cost.lut4, cost.lut4_depth, cost.flip_flops, cost.memory_bits)
        scaled = "" if cost.factor == 1 else f" (times {cost.factor:,.4g})"
        rows.append((cost.circuit, *map(count, numbers), cost.synthesised + scaled))
    figures = ("LUT6", "depth", "LUT4", "depth", "flip-flops", "memory bits")
    return Section(f"Circuits of {group.group}", columns(("circuit",), figures, ("synthesised",)), rows, plain=True)


def _charts(named: Sequence[tuple[str, TreeifyResult]]) -> Iterator[Chart]:
    several = len(named) > 1
    lines = []
    for place, (name, result) in enumerate(named):
        timed = [
            (candidate, candidate.top1, candidate.latency_ns)
            for candidate in result.candidates
            if candidate.top1 is not None and candidate.latency_ns
        ]
        points = tuple((ns / 1e3, 100 * top1) for _, top1, ns in timed)
        labels = tuple(_group(candidate.first_layer, candidate.last_layer) for candidate, _, _ in timed)
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
    groups = tuple(_group(candidate.first_layer, candidate.last_layer) for candidate in first.candidates)
    if len(named) > 1 or not groups:
        return
    bounds = tuple((100 * candidate.bound_top1, float(at)) for at, candidate in enumerate(first.candidates))
    fitted = tuple(
        (100 * candidate.top1, float(at)) for at, candidate in enumerate(first.candidates) if candidate.top1 is not None
    )
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


_HEADER = (
    *("first_layer", "last_layer", "bound_top1_percent", "top1_percent", "latency_us", "layers_latency_us"),
    *("saved_us", "lut6", "pareto"),
)


def write_tree_files(folder: Path, result: TreeifyResult) -> None:
    """Write ``candidates.csv``, ``accuracy_latency.svg`` and ``accuracy_luts.svg``.

    Args:
        folder: of the search.
        result: of the search.
    """
    write_table(folder / "candidates.csv", _HEADER, _candidate_rows(result))
    fitted = [candidate for candidate in result.candidates if candidate.top1 is not None]
    whole = result.original.latency_ns or 0
    for name, words, unit in (
        ("accuracy_latency", "a frame's latency with the group replaced", "us"),
        ("accuracy_luts", "tables of six inputs for the group", ""),
    ):
        timed = unit == "us"
        beaten, best = (
            tuple(
                sorted(
                    (
                        (whole - _saved_ns(candidate)) / 1e3 if timed else float(candidate.lut6 or 0),
                        100 * (candidate.top1 or 0),
                    )
                    for candidate in fitted
                    if candidate.pareto is pareto
                )
            )
            for pareto in (False, True)
        )
        network = ((whole / 1e3, 100 * result.original.validation_top1),) if timed else ()
        lines = [
            Line(name="network", kind="points", data=network),
            Line(name="candidates", kind="points", data=beaten),
            Line(name="not beaten", kind="line", data=best),
        ]
        axis = f"{words}, {unit}" if unit else words
        title = f"Accuracy against {'latency' if timed else 'look-up tables'}"
        write_text(folder / f"{name}.svg", svg_chart(title, axis, "validation top-1, %", lines))


def _saved_ns(candidate: Candidate) -> int:
    return (candidate.layers_latency_ns or 0) - (candidate.latency_ns or 0)


def _candidate_rows(result: TreeifyResult) -> Iterable[Sequence[object]]:
    for candidate in result.candidates:
        fitted: tuple[object, ...] = ("", "", "", "", "", "")
        if candidate.top1 is not None and candidate.latency_ns is not None and candidate.layers_latency_ns is not None:
            times = (candidate.latency_ns, candidate.layers_latency_ns, _saved_ns(candidate))
            fitted = (
                round(100 * candidate.top1, 2),
                *(round(time / 1e3, 1) for time in times),
                candidate.lut6,
                int(candidate.pareto),
            )
        yield candidate.first_layer, candidate.last_layer, round(100 * candidate.bound_top1, 2), *fitted


KIND: Kind[TreeifyResult] = Kind(
    noun="tree search",
    plural="tree searches",
    describe=_describe,
    charts=_charts,
)
CIRCUITS: Kind[RtlReport] = Kind(noun="circuit report", plural="circuit reports", describe=_circuits)
