"""What trees in place of layers came to, for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from framefit.core.treeified import TreeifyResult

__all__ = ["treeify_view"]


def treeify_view(result: TreeifyResult) -> RenderableType:
    """The hybrid beside the network, and the groups that were tried.

    Args:
        result: what the workflow found.

    Returns:
        A rich renderable.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("layers", "quantised", "with trees", "trees' time"):
        table.add_column(name, justify="right", no_wrap=True)
    for tried in result.candidates:
        table.add_row(
            f"{tried.first_layer} to {tried.last_layer}",
            f"{tried.bound_top1:.4f}",
            "-" if tried.top1 is None else f"{tried.top1:.4f}",
            _time(tried.latency_ns),
        )
    chosen = result.chosen
    groups = "; ".join(
        f"layers {g.first_layer} to {g.last_layer} by {g.trees} trees of depth {g.depth} ({g.kind}), fitted in "
        f"{g.fit_seconds:.1f} s"
        for g in chosen.groups
    )
    difference = 100 * (chosen.top1 - result.original.top1)
    return Group(
        table,
        Text.assemble("\n", (result.model, "bold"), f": {groups}"),
        Text(
            f"test accuracy {result.original.top1:.4f} -> {chosen.top1:.4f} ({difference:+.2f} points); a frame "
            f"{_time(result.original.latency_ns)} -> {_time(chosen.latency_ns)}; trees take {chosen.bytes:,} bytes"
        ),
        *(Text(f"note: {note}") for note in result.notes),
    )


def _time(value_ns: int | None) -> str:
    return "-" if value_ns is None else f"{value_ns / 1e3:,.1f} us"
