"""What all tables and lists for a terminal are made of; the caller prints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.report.formats import format_ratio

__all__ = ["add_row", "bullets", "facts_grid", "headed", "name_text", "plain_table", "share_bar", "spaced"]


_BAR_CELLS = 40


def spaced(blocks: Sequence[RenderableType]) -> Group:
    """One under the other, an empty line between."""
    return Group(blocks[0], *(Padding(block, (1, 0, 0, 0)) for block in blocks[1:]))


def headed(title: str, block: RenderableType) -> Group:
    """A block under its title."""
    return Group(Text(title, style="bold"), block)


def plain_table(title: str, left: Sequence[str], right: Sequence[str] = (), *, caption: str = "") -> Table:
    """A table without frame: text columns, then figures flush right. Where it is narrow, names give way."""
    table = Table(title=title, caption=caption or None, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    table.title_style, table.header_style, table.caption_style = "bold", "dim", "dim"
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name not in ("model", "detail", "layers"))
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def name_text(name: str, role: str = "") -> Text:
    """A name on one line, shortened where there is no room."""
    style = {"priority": "bold blue", "background": "yellow"}.get(role, "")
    return Text(name, style=style, no_wrap=True, overflow="ellipsis")


def add_row(table: Table, *cells: RenderableType, style: str = "") -> None:
    """Add a row whose strings are text, not markup: names may contain brackets."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style or None)


def facts_grid(facts: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names, dim, and their values beside them."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        add_row(grid, name, value)
    return grid


def bullets(reasons: Iterable[tuple[str | None, str]]) -> RenderableType:
    """A list of sentences, some of them about something that has a name."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, reason in reasons:
        add_row(grid, " -", Text.assemble((f"{name}: ", "bold"), reason) if name else Text(reason))
    return grid


def share_bar(shares: Sequence[tuple[str, float, str, str]]) -> RenderableType:
    """Where something went, as a bar whose parts differ without colour, and its legend.

    Args:
        shares: name, ratio, mark and style of each part.
    """
    bar, reached, cells = Text("["), 0.0, 0
    for _, ratio, mark, style in shares:
        reached = min(1.0, reached + max(0.0, ratio))
        until = round(reached * _BAR_CELLS)
        bar.append(mark * (until - cells), style=style)
        cells = until
    bar.append(" " * (_BAR_CELLS - cells) + "]")
    legend = Text("   ").join(
        Text.assemble((mark, style), f" {name} {format_ratio(ratio)}") for name, ratio, mark, style in shares
    )
    return Group(bar, legend)
