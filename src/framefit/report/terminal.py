"""Descriptions on a terminal: tables and pictures of rich's, at their best from 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.report.description import (
    NONE,
    Beside,
    Block,
    Cell,
    Description,
    Facts,
    Folded,
    Graph,
    PlanPicture,
    Prose,
    Quantity,
    RunPicture,
    Section,
    Sentences,
    Shares,
    Story,
    Timeline,
    Tone,
    Verdict,
)
from framefit.report.drawing import plan_pictures, terminal_picture
from framefit.report.formats import format_ratio
from framefit.report.sections import kind_of

__all__ = ["view"]


_BAR_CELLS, _SHARE_CELLS = 12, 40
_MOST_BARRED = 5  # columns: wider tables have no room for bars
_LEAST_NAME, _LEAST_WORDS = 12, 18  # characters in which a name or a sentence is readable
_STYLES: dict[Tone, str] = {
    "": "",
    "good": "green",
    "bad": "bold red",
    "uncertain": "yellow",
    "faint": "dim",
    "priority": "bold blue",
    "background": "yellow",
    "sporadic": "bold magenta",
}
_VERDICT_STYLES = {"fits": "bold green", "fails": "bold red", "plain": "bold"}
_SHARE_MARKS = {  # parts differ without colour, too
    "work": ("#", "green"),
    "used": ("#", "green"),
    "boundaries": ("+", "magenta"),
    "guard": ("-", "yellow"),
    "packing": (".", "red"),
    "no work": ("_", "dim"),
}


def show(content: object, console: Console, **options: Any) -> None:
    """Print a result; see :func:`view`."""
    console.print(view(content, **options), markup=False)


def view(content: object, **options: Any) -> RenderableType:
    """How a result looks on a terminal: verdict, figures that matter most, tables and pictures; nothing is printed.

    Args:
        content: a record of ``core`` (timetable, metrics, profile, latency table, a search's result, ...), or what
            a file of ``sections`` makes of several, such as ``RunContent``.
        options: ``detail`` ("brief", "normal" or "full"), and what only this kind has, such as the folder of a fit.
    """
    _, kind = kind_of(content)
    return _described(kind.describe(content, **options))


def _described(description: Description) -> RenderableType:
    blocks = [_verdict(description.verdict)]
    if description.cards:
        blocks.append(_quantities(description.cards))
    for block in description.blocks:
        blocks += _block(block)
    return Group(blocks[0], *(Padding(block, (1, 0, 0, 0)) for block in blocks[1:]))


def _verdict(verdict: Verdict) -> RenderableType:
    word = verdict.word if verdict.kind == "plain" else verdict.word.upper()  # an answer stands out without colour
    return Text.assemble((word, _VERDICT_STYLES[verdict.kind]), f" {verdict.text}" if verdict.text else "")


def _quantities(quantities: Sequence[Quantity]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", overflow="fold")
    grid.add_column(no_wrap=True)
    grid.add_column(style="dim", overflow="fold")
    for quantity in quantities:
        grid.add_row(Text(quantity.name), Text(quantity.text), Text(quantity.remark))
    return grid


def _block(block: Block) -> list[RenderableType]:
    match block:
        case Section():
            return [_Table(block)]
        case Sentences():
            return [_headed(block.title, _list(block.items))]
        case Prose():
            return [_headed(block.title, Text(block.text))]
        case Facts():
            return [_headed(block.title, _facts(block.shown))]
        case Shares():
            return [_headed(block.title, _shares(block.parts))]
        case RunPicture():
            return [terminal_picture(block.rows)]
        case PlanPicture():
            return [*plan_pictures(block.timetable), *map(_story, block.stories)]
        case Timeline() | Folded() | Beside() | Graph():  # of pages
            return []


def _headed(title: str, block: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold"), block)


class _Table:
    """A table without frame that stays readable where it is narrow.

    Names are shortened and sentences folded. Where words would get less than a few each, they stand below the table,
    each row's on a line of its own; figures that still have no room are left out from the right, and it says so.
    """

    def __init__(self, section: Section) -> None:
        self._section = section
        self._cells = [
            [_cell(cell, bars=sum(not column.page for column in section.columns) <= _MOST_BARRED) for cell in row]
            for row in section.rows[: section.most]
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, and what stands below it."""
        columns = self._section.columns
        shown = [at for at, column in enumerate(columns) if not column.page]
        below: list[int] = []
        if self._needed(shown) > options.max_width:
            below = [at for at in shown if columns[at].kind == "words" and at != shown[0]]
            shown = [at for at in shown if at not in below]
        dropped: list[str] = []
        while self._needed(shown) > options.max_width and columns[shown[-1]].kind == "figure" and len(shown) > 2:
            dropped.insert(0, columns[shown.pop()].name)
        yield self._table(shown, dropped)
        if below:
            yield self._lines(shown, below)

    def _needed(self, shown: Sequence[int]) -> int:
        """Characters with which it is readable: figures whole, names and words folded or shortened to some."""
        width = 0
        for at in shown:
            cells = [cell[at].cell_len for cell in self._cells]
            most = _LEAST_WORDS if self._section.columns[at].kind == "words" else _LEAST_NAME
            longest = max(cells, default=0)
            figure = self._section.columns[at].kind == "figure"
            width += max(longest if figure else min(longest, most), len(self._section.columns[at].name)) + 2
        return width

    def _table(self, shown: Sequence[int], dropped: Sequence[str]) -> Table:
        section = self._section
        more = len(section.rows) - section.most
        room = f"No room for: {', '.join(dropped)} (see --json, or the page)." if dropped else ""
        caption = " ".join(filter(None, [section.note, f"... {more} more" if more > 0 else "", room]))
        table = Table(
            title=Text(section.title, style="bold"),
            caption=Text(caption, style="dim") if caption else None,
            box=box.SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
            header_style="dim",
        )
        table.title_justify = table.caption_justify = "left"
        for at in shown:
            column = section.columns[at]
            if column.kind == "figure":
                table.add_column(column.name, justify="right", no_wrap=True)
            else:
                table.add_column(column.name, overflow="fold")
        before = ""
        for row in self._cells:
            cells = [row[at].copy() for at in shown]
            for at, cell in zip(shown, cells, strict=True):
                if section.columns[at].short:
                    cell.no_wrap, cell.overflow = True, "ellipsis"
            if cells and section.columns[shown[0]].kind == "name":  # of rows about one thing, the first one names it
                name = cells[0].plain
                cells[0] = Text("") if name == before and _repeats(section) else cells[0]
                before = name
            table.add_row(*cells)
        return table

    def _lines(self, shown: Sequence[int], below: Sequence[int]) -> RenderableType:
        """Words of the rows, behind what begins each row, and its first figure where several begin alike."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        names = [row[shown[0]].plain for row in self._cells]
        figures = [at for at in shown[1:] if self._section.columns[at].kind == "figure"]
        alike = len(set(names)) < len(names)
        for row, name in zip(self._cells, names, strict=True):
            words = [row[at].plain for at in below if row[at].plain not in ("", NONE.text)]
            if words:
                label = " ".join([name, *(row[at].plain for at in figures[:1] if alike)])
                grid.add_row(Text(label, style="dim"), Text(": ".join(words)))
        return grid


def _repeats(section: Section) -> bool:
    """Whether its rows come in groups that begin with the same name and differ in the second column."""
    return section.columns[0].name == "model" and len(section.columns) > 1


def _cell(cell: Cell | str, *, bars: bool) -> Text:
    """Text, not markup: names may contain brackets."""
    if isinstance(cell, str):
        return Text(cell)
    text = Text(cell.text, style=_STYLES[cell.tone])
    if cell.note:
        text.append(f" {cell.note}", style="dim")
    if cell.bar is not None and bars:
        cells = round(_BAR_CELLS * min(max(cell.bar, 0.0), 1.0))
        text.append(" " + "#" * cells, style="blue").append("." * (_BAR_CELLS - cells), style="dim")
    return text


def _list(items: Sequence[str | tuple[str, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for item in items:
        text = Text(item) if isinstance(item, str) else Text.assemble((f"{item[0]}: ", "bold"), item[1])
        grid.add_row(Text(" -"), text)
    return grid


def _facts(facts: Sequence[tuple[str, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(f"  {name}"), Text(value))
    return grid


def _shares(parts: Sequence[tuple[str, float, str]]) -> RenderableType:
    """A bar whose parts differ without colour, its legend, and what each part is."""
    bar, reached, cells = Text("["), 0.0, 0
    for name, ratio, _ in parts:
        mark, style = _SHARE_MARKS[name]
        reached = min(1.0, reached + max(0.0, ratio))
        until = round(reached * _SHARE_CELLS)
        bar.append(mark * (until - cells), style=style)
        cells = until
    bar.append(" " * (_SHARE_CELLS - cells) + "]")
    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(overflow="fold")
    for name, ratio, why in parts:
        mark, style = _SHARE_MARKS[name]
        if ratio:
            grid.add_row(Text.assemble(f"  {mark} ", (name, style)), Text(format_ratio(ratio)), Text(why, style="dim"))
    return Group(bar, grid)


def _story(story: Story) -> RenderableType:
    roles: dict[str, Tone] = {"priority": "priority", "sporadic": "sporadic"}
    role = roles.get(story.role, "background")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in story.items:
        grid.add_row(Text(f"  {label}"), Text(text))
    name = Text(story.name, style=_STYLES[role], no_wrap=True, overflow="ellipsis")
    return Group(Text.assemble(name, f"  {story.role}"), grid)
