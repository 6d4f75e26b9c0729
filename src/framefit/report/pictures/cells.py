"""A run in a terminal's characters, one row a window."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from framefit.report.looks import OVERRUN_LOOK, Look, axis_line, block_of
from framefit.report.pictures.rows import Row, RunRows

__all__ = ["terminal_picture"]


def terminal_picture(shown: RunRows) -> RenderableType:
    """Draw windows of a run with block characters, as wide as the console; readable without colour.

    Args:
        shown: the windows.
    """
    return _TerminalDrawing(shown)


class _TerminalDrawing:
    """The same rows in cells; each cell shows what ran in its middle."""

    def __init__(self, shown: RunRows) -> None:
        self._shown, self._rows = shown, shown.rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        block = block_of(coloured=coloured, ascii_only=options.ascii_only)
        margin = max(len("window"), len(str(self._rows[-1].window)))
        cells = max(options.max_width - margin - 4, 8)
        longest_ns = max(row.length_ns for row in self._rows)
        lines = [self._legend(block), Text()]
        for row in self._rows:
            for lane in range(max(len(self._shown.program.units), 1)):
                name = f"{row.window if lane == 0 else '':>{margin}} "
                width = cells * row.length_ns // longest_ns
                lines.append(Text(name).append_text(self._lane(row, lane, width, block)))
        lines.append(self._axis(margin, cells, longest_ns / 1e6))
        for line in lines[1:]:
            line.no_wrap, line.overflow = True, "crop"
        yield Group(*lines)

    def _legend(self, block: Callable[[Look], str]) -> Text:
        entries = self._shown.legend("unknown", "over the end")
        legend = Text(f"{self._shown.rate}")
        for name, look in entries:
            legend.append_text(Text.assemble("   ", (block(look) * 2, look.fill), f" {name}"))
        if len(self._shown.program.units) > 1:
            legend.append(f"   units: {self._shown.units}")
        return legend

    def _lane(self, row: Row, lane: int, cells: int, block: Callable[[Look], str]) -> Text:
        ascii_only = block(OVERRUN_LOOK).isascii()
        wall = "|" if ascii_only else "│"
        shown: list[tuple[str, str]] = [(" ", "")] * cells
        over = False
        for bar in sorted(row.bars, key=lambda bar: bar.start_ns):
            if bar.lane != lane:
                continue
            over = over or bar.runs_over
            look = self._shown.look(bar)
            first = min(round(bar.start_ns * cells / row.length_ns), cells - 1)
            after = max(round(bar.end_ns * cells / row.length_ns), first + 1)
            colour = look.alternate if bar.odd else look.fill
            text = block(look) * (after - first)
            label = self._shown.label(bar)
            inked = len(label) < after - first
            if inked:
                text = label + text[len(label) :]
            for place, mark in enumerate(text[: cells - first]):
                lettered = inked and place < len(label)
                shown[first + place] = (mark, f"bold {look.ink} on {colour}" if lettered else colour)
        drawn = Text(wall)
        for style, run in groupby(shown, key=operator.itemgetter(1)):
            drawn.append("".join(mark for mark, _ in run), style=style)
        mark = (">" if ascii_only else "▶") if over else " "
        return Text.assemble(drawn, wall, (mark, f"bold {OVERRUN_LOOK.fill}"))

    def _axis(self, margin: int, cells: int, span_ms: float) -> Text:
        return Text(f"{'window':>{margin}} " + axis_line(cells, span_ms), style="dim")
