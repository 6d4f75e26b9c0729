"""What trees take in hardware, as tables for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.tree_results import GroupCircuit, RtlReport

__all__ = ["rtl_view"]


def rtl_view(report: RtlReport) -> RenderableType:
    """Each group's circuit: whether it is equal to the model, and what it takes.

    Args:
        report: what the workflow found.

    Returns:
        A rich renderable, at its best from 100 columns.
    """
    blocks: list[RenderableType] = []
    for group in report.groups:
        blocks += [_headline(group, report), *([_costs(group)] if group.costs else [])]
        blocks += [Text(f"note: {note}") for note in group.notes]
    return Group(*(Padding(block, (0, 0, 1 if isinstance(block, Table) else 0, 0)) for block in blocks))


def _headline(group: GroupCircuit, report: RtlReport) -> Text:
    parts = [
        f"{group.trees} trees ({group.kind}), {group.features} features, {group.outputs} outputs",
        f"equal to the model on {group.rows - group.mismatches} of {group.rows} rows",
    ]
    if group.positions > 1:
        parts.append(f"one of {group.positions} positions")
    if group.latency_cycles is not None:
        parts.append(f"latency {group.latency_cycles} cycles, a row a cycle" if group.latency_cycles else "no register")
    if group.cycles_per_node is not None:
        parts.append(f"{group.cycles_per_node:.3f} cycles a node ({group.nodes:,} nodes)")
    if group.lut6_per_output is not None:
        parts.append(f"{group.lut6_per_output:.1f} LUT6 an output")
    return Text.assemble((group.group, "bold"), f", {report.core}: " + "; ".join(parts))


def _costs(group: GroupCircuit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("circuit", no_wrap=True)
    for name in ("LUT6", "depth", "LUT4", "depth", "flip-flops", "memory bits"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("synthesised", overflow="fold")
    for cost in group.costs:
        numbers = (cost.lut6, cost.lut6_depth, cost.lut4, cost.lut4_depth, cost.flip_flops, cost.memory_bits)
        cells = ["-" if number is None else f"{number:,}" for number in numbers]
        scaled = "" if cost.factor == 1 else f" (times {cost.factor:,.4g})"
        table.add_row(cost.circuit, *cells, Text(cost.synthesised + scaled))
    return table
