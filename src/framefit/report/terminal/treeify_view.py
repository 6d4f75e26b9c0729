"""What trees in place of layers came to, for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from framefit.core.tree_results import TreeifiedModel, TreeifyResult

__all__ = ["treeify_view"]


_OPERATORS = {"core": "core operators", "ml": "tree operators of ai.onnx.ml"}
_COLUMNS = ("layers", "quantised", "with trees", "trees' time", "layers' time", "tables", "")


def treeify_view(result: TreeifyResult) -> RenderableType:
    """The hybrid beside the network, and the groups that were tried.

    Args:
        result: what the workflow found.

    Returns:
        A rich renderable.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for tried in result.candidates:
        table.add_row(
            f"{tried.first_layer} to {tried.last_layer}",
            f"{tried.bound_top1:.4f}",
            "-" if tried.top1 is None else f"{tried.top1:.4f}",
            _time(tried.latency_ns),
            _time(tried.layers_latency_ns),
            "-" if tried.lut6 is None else f"{tried.lut6:,}",
            "*" if tried.pareto else "",
        )
    shown = "; * is not beaten in accuracy and time, or accuracy and tables"
    return Group(
        Text(f"validation accuracy of the network {result.original.validation_top1:.4f}{shown}", style="dim"),
        table,
        *_chosen(result, result.chosen),
        *(Text(f"note: {note}") for note in result.notes),
    )


def _chosen(result: TreeifyResult, chosen: TreeifiedModel | None) -> list[RenderableType]:
    if chosen is None:
        return [Text.assemble("\n", (result.model, "bold"), ": no group of layers is worth replacing")]
    groups = "; ".join(
        f"layers {g.first_layer} to {g.last_layer} by {g.trees} trees of depth {g.depth} ({g.kind}, sums of "
        f"{g.accumulator_bits} bits), fitted in {g.fit_seconds:.1f} s"
        for g in chosen.groups
    )
    difference = 100 * (chosen.top1 - result.original.top1)
    return [
        Text.assemble("\n", (result.model, "bold"), f": {groups}"),
        Text(
            f"test accuracy {result.original.top1:.4f} -> {chosen.top1:.4f} ({difference:+.2f} points; "
            f"{chosen.top1_before_finetune:.4f} before {chosen.finetune_seconds:.1f} s of fine-tuning); a frame "
            f"{_time(result.original.latency_ns)} -> {_time(chosen.latency_ns)}; trees take {chosen.bytes:,} bytes"
        ),
        *(
            Text(
                f"{one.file}: trees as {_OPERATORS[one.flavour]}, equal to the last bit; a frame takes "
                f"{_time(one.runtime_latency_ns)} where ONNX Runtime alone executes it"
            )
            for one in chosen.exports
        ),
    ]


def _time(value_ns: int | None) -> str:
    return "-" if value_ns is None else f"{value_ns / 1e3:,.1f} us"
