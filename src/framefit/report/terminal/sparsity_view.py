"""What a search for sparsity found, as tables for a terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from framefit.core.sparsity import Configuration, SparsityResult, Threshold
from framefit.report.terminal.tables import add_row, bullets, headed, plain_table, spaced

__all__ = ["sparsity_view"]


_MAX_LAYERS = 60


def sparsity_view(result: SparsityResult) -> RenderableType:
    """The verdict, all configurations, and the layers of the chosen one.

    Args:
        result: of the workflow.

    Returns:
        A rich renderable, at its best from 110 columns.
    """
    chosen = None if result.chosen is None else result.configurations[result.chosen]
    blocks: list[RenderableType] = [_headline(result, chosen), _configurations(result)]
    if chosen is not None:
        blocks.append(_layers(chosen))
    spent = result.ledger
    said = [
        *result.reasons,
        f"{spent.evaluations:,} evaluations, {spent.images_forwarded:,} images forwarded, {spent.seconds:.0f} s in all",
        *map(_threshold, result.thresholds),
        *result.notes,
    ]
    return spaced([*blocks, headed("Reasons and notes", bullets((None, one) for one in said))])


def _threshold(threshold: Threshold) -> str:
    asked = f"top-1 {100 * threshold.top1:.2f} % at {threshold.cycles_ratio:.3f} of the cycles"
    return f"threshold of round {threshold.round}: {asked} ({threshold.reason})"


def _headline(result: SparsityResult, chosen: Configuration | None) -> Text:
    word = "deployed" if result.deployed else result.decision
    if chosen is None:
        return Text.assemble((word, "bold"), f"  {result.model} on {result.target}: nothing was found")
    tuned = f", {_percent(chosen.top1_before_finetune)} before fine-tuning" if chosen.finetune_epochs else ""
    return Text.assemble(
        (word, "bold"),
        f"  {100 * chosen.cycles_ratio:.1f} % of the cycles, top-1 {_percent(chosen.top1)} "
        f"({chosen.difference_top1:+.2f} points{tuned}): {result.model} on {result.target}, {result.pattern}",
        " (interrupted)" if result.interrupted else "",
    )


def _configurations(result: SparsityResult) -> RenderableType:
    columns = ["top-1", "top-5", "weights", "zeros", "sparse", "cycles", "left", "points"]
    caption = "top-1, top-5, sparse, left (of the dense cycles): in %; points: to the dense top-1; *: chosen"
    table = plain_table("Configurations", ["model"], columns, caption=caption)
    dense = result.dense
    weights, cycles = _count(dense.parameters), _count(dense.cycles)
    add_row(table, "dense", f"{100 * dense.top1:.2f}", f"{100 * dense.top5:.1f}", weights, "", "", cycles, "100", "")
    for index, (name, row) in enumerate(zip(result.names, result.configurations, strict=True)):
        add_row(
            table,
            ("* " if index == result.chosen else "") + name,
            f"{100 * row.top1:.2f}",
            f"{100 * row.top5:.1f}",
            _count(row.parameters),
            _count(row.zeros),
            f"{100 * row.sparsity_ratio:.1f}",
            _count(row.cycles),
            f"{100 * row.cycles_ratio:.1f}",
            f"{row.difference_top1:+.2f}",
        )
    return table


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f} %"


def _count(number: int) -> str:
    """A number with about four digits."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 10 * size:
            return f"{number / size:.{1 if number < 1000 * size else 0}f} {unit}"
    return f"{number:,}"


def _layers(row: Configuration) -> RenderableType:
    more = len(row.layers) - _MAX_LAYERS
    caption = "zeros: of weights, of what the layer reads; share: of the network's cycles"
    caption += f"; ... {more} more" if more > 0 else ""
    table = plain_table("Layers", ["layer"], ["zeros", "inputs", "cycles", "share", "of dense"], caption=caption)
    for layer in row.layers[:_MAX_LAYERS]:
        ratios = (layer.share_ratio, layer.cycles_ratio)
        zeros = (layer.sparsity_ratio, layer.activation_sparsity_ratio)
        shown = [f"{100 * ratio:.1f} %" for ratio in (*zeros, *ratios)]
        add_row(table, layer.name, *shown[:2], f"{layer.cycles:,}", *shown[2:])
    return table
