"""A run as a picture, one row a window: SVG for a page, block characters for a terminal."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from framefit.core.events import Trace
from framefit.core.program import Launches, Program
from framefit.errors import InputError
from framefit.report.looks import OVERRUN_LOOK, UNKNOWN_LOOK, Look, axis_line, block_of, looks_of, step_ms
from framefit.report.pairs import executions

__all__ = ["run_picture", "terminal_picture"]


@dataclass(frozen=True)
class _Bar:
    """A part of an executed segment within one window; start and end are from that window's release.

    Attributes:
        lane: the unit's place in ``Program.units``.
        program: index into ``Program.programs``, -1 where it is unknown.
        frame: -1 where it is unknown.
        odd: whether an odd number of frames of this model was executed before.
        whole_ns: duration of the whole segment.
        overrun: the segment started in an earlier window.
        runs_over: it goes on in the next window.
    """

    lane: int
    program: int
    frame: int
    odd: bool
    start_ns: int
    end_ns: int
    whole_ns: int
    overrun: bool
    runs_over: bool


@dataclass(frozen=True)
class _Row:
    window: int
    length_ns: int
    bars: tuple[_Bar, ...]


def run_picture(
    trace: Trace,
    program: Program,
    launches: Launches,
    releases_ns: npt.NDArray[np.int64],
    priority_models: Collection[str],
    *,
    reserved_ns: Mapping[str, Sequence[int]] | None = None,
    overhang_ns: Mapping[str, Sequence[int]] | None = None,
    first_window: int = 0,
    windows: int = 12,
) -> str:
    """Draw a run as a self-contained SVG.

    Args:
        trace: events of the run.
        program: its units, models and segments.
        launches: in the order of submission.
        releases_ns: int64, one release a window, ascending, on the trace's clock.
        priority_models: their names.
        reserved_ns: unit -> for each window of a pattern that repeats, the time from its release to
            its first reserved instant there: until then other segments may run on into it. Default: none.
        overhang_ns: unit -> for each of these windows, how far into the next one its priority models may last.
        first_window: the first row.
        windows: rows at most.

    Returns:
        The SVG's text; it adapts to light and dark pages.

    Raises:
        InputError: the run has no such window.
    """
    rows = _rows(
        trace,
        program,
        launches,
        releases_ns,
        priority_models,
        (reserved_ns or {}, overhang_ns or {}),
        first_window,
        windows,
    )
    return _Drawing(program, rows, len(releases_ns), priority_models).svg()


def terminal_picture(
    trace: Trace,
    program: Program,
    launches: Launches,
    releases_ns: npt.NDArray[np.int64],
    priority_models: Collection[str],
    *,
    reserved_ns: Mapping[str, Sequence[int]] | None = None,
    overhang_ns: Mapping[str, Sequence[int]] | None = None,
    first_window: int = 0,
    windows: int = 8,
) -> RenderableType:
    """Draw a run with block characters, as wide as the console; readable without colour.

    Args:
        trace: events of the run.
        program: its units, models and segments.
        launches: in the order of submission.
        releases_ns: int64, one release a window, ascending, on the trace's clock.
        priority_models: their names.
        reserved_ns: unit -> for each window of a pattern that repeats, the time from its release to
            its first reserved instant there: until then other segments may run on into it. Default: none.
        overhang_ns: unit -> for each of these windows, how far into the next one its priority models may last.
        first_window: the first row.
        windows: rows at most.

    Raises:
        InputError: the run has no such window.
    """
    rows = _rows(
        trace,
        program,
        launches,
        releases_ns,
        priority_models,
        (reserved_ns or {}, overhang_ns or {}),
        first_window,
        windows,
    )
    return _TerminalDrawing(program, rows, _looks(program, priority_models))


def _rows(
    trace: Trace,
    program: Program,
    launches: Launches,
    releases_ns: npt.NDArray[np.int64],
    priority_models: Collection[str],
    rooms_ns: tuple[Mapping[str, Sequence[int]], Mapping[str, Sequence[int]]],
    first_window: int,
    windows: int,
) -> list[_Row]:
    """The asked windows with what was executed in each; a segment is cut at the ends of windows."""
    releases = np.asarray(releases_ns, np.int64)
    if windows < 1 or not 0 <= first_window < len(releases):
        raise InputError(
            f"windows {first_window} to {first_window + windows - 1} of a run that has {len(releases)}",
            remedy=f"ask for windows from 0 to {len(releases) - 1}",
        )
    ends = np.append(releases[1:], releases[-1] + program.window_ns)
    last = min(first_window + windows, len(releases))
    bars: list[list[_Bar]] = [[] for _ in range(len(releases))]
    span = (int(releases[first_window]), int(ends[min(last, len(ends) - 1)]))  # and what interrupts the last window's
    segments = sorted(_segments(trace, program, launches, span), key=lambda segment: segment[4])
    starts = [np.asarray([s[4] for s in segments if s[0] == lane]) for lane in range(len(program.units))]
    for lane, which, frame, odd, start, end in segments:
        # What another segment interrupted may go on in the next window: nobody waited for it.
        interrupted = np.searchsorted(starts[lane], end) > np.searchsorted(starts[lane], start, "right")
        begun = max(int(np.searchsorted(releases, start, "right")) - 1, 0)
        priority = which >= 0 and program.programs[which].model in priority_models
        rooms = rooms_ns[priority].get(program.units[lane].name) or (0,)
        room = rooms[(begun + (not priority)) % len(rooms)]
        in_time = bool(interrupted) or end <= int(ends[begun]) + room
        for window in range(begun, last):
            release, window_end = int(releases[window]), int(ends[window])
            if window > begun and end <= release:
                break
            from_ns, to_ns = max(start, release) - release, min(end, window_end) - release
            over = end > window_end and window + 1 < len(releases) and not in_time
            bars[window].append(
                _Bar(lane, which, frame, odd, from_ns, to_ns, end - start, window > begun and not in_time, over)
            )
    return [
        _Row(window, int(ends[window] - releases[window]), tuple(bars[window])) for window in range(first_window, last)
    ]


def _segments(
    trace: Trace, program: Program, launches: Launches, span: tuple[int, int]
) -> Iterator[tuple[int, int, int, bool, int, int]]:
    """Lane, program, frame, its parity, start and end of what was executed within ``span``.

    The operations of one launch on one unit become one bar. Where launches are unknown, an
    operation's kind still names its segment when only one segment has operations of that kind.
    """
    executed = executions(trace, program, launches)
    lanes = {unit.core: lane for lane, unit in enumerate(program.units)}
    of_kind: dict[str, set[int]] = {}
    for index, segment in enumerate(program.programs):
        for group in segment.groups:
            for operation in group.operations:
                of_kind.setdefault(operation.kind, set()).add(index)
    merged: dict[tuple[int, int], list[int]] = {}
    for at in np.flatnonzero((executed.end_ns > span[0]) & (executed.start_ns < span[1])):
        lane, launch = lanes.get(int(executed.core[at])), int(executed.inference[at])
        if lane is None:  # not a unit of the program
            continue
        start, end = int(executed.start_ns[at]), int(executed.end_ns[at])
        if launch < 0:
            found = of_kind.get(trace.kinds[executed.kind[at]], set())
            yield lane, next(iter(found)) if len(found) == 1 else -1, -1, False, start, end
        elif (lane, launch) in merged:
            whole = merged[lane, launch]
            whole[0], whole[1] = min(whole[0], start), max(whole[1], end)
        else:
            merged[lane, launch] = [start, end]
    model_of = np.asarray([segment.model for segment in program.programs])[launches.program]
    frames = {model: np.unique(launches.frame[model_of == model]) for model in np.unique(model_of)}
    for (lane, launch), (start, end) in merged.items():
        frame = int(launches.frame[launch])
        odd = bool(np.searchsorted(frames[model_of[launch]], frame) % 2)
        yield lane, int(launches.program[launch]), frame, odd, start, end


def _looks(program: Program, priority_models: Collection[str]) -> dict[str, Look]:
    """The look of each model, in the order of the program, priority models first."""
    return looks_of((segment.model for segment in program.programs), priority_models)


def _label(program: Program, bar: _Bar) -> str:
    """What stands in a bar: the segment's number, or the model's name where it is not cut."""
    if bar.program < 0:
        return "?"
    segment = program.programs[bar.program]
    cut = sum(other.model == segment.model for other in program.programs) > 1
    return str(segment.segment) if cut else segment.model


def _look(program: Program, looks: dict[str, Look], bar: _Bar) -> Look:
    if bar.overrun:
        return OVERRUN_LOOK
    return UNKNOWN_LOOK if bar.program < 0 else looks[program.programs[bar.program].model]


_STYLE = """
  .card { fill: #ffffff; stroke: #d8dee6 } .row { fill: #f1f4f8 } .grid { stroke: #ffffff; stroke-width: 1.5 }
  .title { fill: #1b2430 } .text { fill: #5b6675 } .end { stroke: #1b2430; stroke-width: 2 }
  text { font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif }
  .title { font-size: 17px; font-weight: 650 } .text { font-size: 12px } .in { font-size: 11.5px; font-weight: 600 }
  .num { font-variant-numeric: tabular-nums } .over { fill: #e5383b }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0f151d; stroke: #2b3644 } .row { fill: #1a222d } .grid { stroke: #0f151d }
    .title { fill: #eef2f7 } .text { fill: #9aa7b8 } .end { stroke: #eef2f7 }
  }
"""


class _Drawing:
    """The SVG, laid out in pixels of a 960 wide view box."""

    _WIDTH, _LEFT, _RIGHT = 960.0, 84.0, 54.0
    _LEGEND, _LEGEND_LINE, _LANE, _GAP = 82.0, 20.0, 24.0, 6.0

    def __init__(self, program: Program, rows: Sequence[_Row], windows: int, priority_models: Collection[str]) -> None:
        self._program = program
        self._rows = rows
        self._windows = windows
        self._looks = _looks(program, priority_models)
        self._lanes = max(len(program.units), 1)
        self._longest_ns = max(row.length_ns for row in rows)
        self._row_height = self._lanes * self._LANE
        self._legend, legend_bottom = self._make_legend()
        self._top = legend_bottom + 24
        self._bottom = self._top + len(rows) * (self._row_height + self._GAP)

    def svg(self) -> str:
        height = self._bottom + 54
        title = self._title()
        frame = f'viewBox="0 0 {self._WIDTH:g} {height:g}" role="img" aria-label="{_quoted(title)}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>',
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{self._WIDTH - 1:g}" height="{height - 1:g}" rx="14"/>',
            _text(24, 36, title, "title"),
            _text(24, 57, self._subtitle(), "text"),
            *self._legend,
        ]
        for place, row in enumerate(self._rows):
            parts += self._row(row, self._top + place * (self._row_height + self._GAP))
        parts += [*self._axis(), "</svg>"]
        return "\n".join(parts) + "\n"

    def _x(self, ns: float) -> float:
        return self._LEFT + (self._WIDTH - self._LEFT - self._RIGHT) * ns / self._longest_ns

    def _title(self) -> str:
        return f"{' + '.join(self._looks)} at {_rate(self._program.window_ns)}"

    def _subtitle(self) -> str:
        first, last = self._rows[0].window, self._rows[-1].window
        which = f"window {first}" if first == last else f"windows {first} to {last}"
        text = f"{which} of {self._windows}; each row is one window, from its frame's release to the next"
        return text + (f"; units, from the top: {_units(self._program)}" if self._lanes > 1 else "")

    def _make_legend(self) -> tuple[list[str], float]:
        """Its elements, in as many lines as it needs, and the last line's y."""
        bars = [bar for row in self._rows for bar in row.bars]
        entries = list(self._looks.items())
        if any(bar.program < 0 for bar in bars):
            entries.append(("unknown: events were lost", UNKNOWN_LOOK))
        if any(bar.overrun or bar.runs_over for bar in bars):
            entries.append(("over the window's end", OVERRUN_LOOK))
        parts, x, y = [], 24.0, self._LEGEND
        for name, look in entries:
            shades = dict.fromkeys((look.fill, look.alternate))
            width = 17 * len(shades) + 4 + _width(name, 12)
            if x > 24 and x + width > self._WIDTH - 24:
                x, y = 24.0, y + self._LEGEND_LINE
            for place, shade in enumerate(shades):
                box = f'x="{x + 17 * place:g}" y="{y - 10:g}" width="14" height="12" rx="3.5"'
                parts.append(f'<rect {box} fill="{shade}"/>')
            parts.append(_text(x + 17 * len(shades) + 4, y, name, "text"))
            x += width + 22
        return parts, y

    def _row(self, row: _Row, y: float) -> Iterator[str]:
        end = self._x(row.length_ns)
        height = self._row_height
        size = f'width="{end - self._LEFT:.1f}" height="{height:g}"'
        yield f'<rect class="row" x="{self._LEFT:g}" y="{y:.1f}" {size} rx="5"/>'
        for tick in self._ticks():
            if tick and self._x(tick * 1e6) < end - 2:
                yield _upright("grid", self._x(tick * 1e6), y, y + height)
        yield _text(self._LEFT - 12, y + height / 2 + 4, str(row.window), "text num", anchor="end")
        for bar in sorted(row.bars, key=lambda bar: bar.start_ns):
            yield from self._bar(bar, y + bar.lane * self._LANE)
        yield _upright("end", end, y - 1, y + height + 1)
        for bar in row.bars:
            if bar.runs_over:
                middle = y + (bar.lane + 0.5) * self._LANE
                yield (
                    f'<path class="over" d="M{end + 3:.1f} {middle - 6:.1f}l8 6l-8 6z">'
                    f"<title>runs over the window's end</title></path>"
                )

    def _bar(self, bar: _Bar, y: float) -> Iterator[str]:
        look = _look(self._program, self._looks, bar)
        left, right = self._x(bar.start_ns), self._x(bar.end_ns)
        gap = min(1.2, (right - left) / 4)  # neighbours stay apart, and short ones visible
        width = max(right - left - gap, 0.8)
        fill = look.alternate if bar.odd else look.fill
        top, height = y + 2, self._LANE - 4
        label = _label(self._program, bar)
        yield f"<g><title>{escape(self._tooltip(bar))}</title>"
        yield (
            f'<rect x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{height:g}" '
            f'rx="{min(4.5, width / 2):.2f}" fill="{fill}"/>'
        )
        if _width(label, 11.5) + 6 <= width:
            x, base = left + width / 2, top + height / 2 + 4
            yield (
                f'<text class="in num" x="{x:.1f}" y="{base:.1f}" text-anchor="middle" fill="{look.ink}">'
                f"{escape(label)}</text>"
            )
        yield "</g>"

    def _tooltip(self, bar: _Bar) -> str:
        times = f"{bar.start_ns / 1e6:.2f} to {bar.end_ns / 1e6:.2f} ms, takes {bar.whole_ns / 1e6:.2f} ms"
        if bar.program < 0:
            return f"unknown, {times}"
        segment = self._program.programs[bar.program]
        frame = f", frame {bar.frame}" if bar.frame >= 0 else ""
        over = ", over the end of its window" if bar.overrun or bar.runs_over else ""
        return f"{segment.model}, segment {segment.segment}{frame}: {times}{over}"

    def _ticks(self) -> list[float]:
        span_ms = self._longest_ns / 1e6
        step = step_ms(span_ms, 8)
        return [step * number for number in range(int(span_ms / step) + 1)]

    def _axis(self) -> Iterator[str]:
        y = self._bottom + 14
        end_ms = self._longest_ns / 1e6
        end = self._x(self._longest_ns)
        for tick in self._ticks():
            x = self._x(tick * 1e6)
            if end - x > 34:  # leaves room for the label of the end
                yield _text(x, y, f"{tick:g}", "text num", anchor="middle")
        yield _text(end, y, f"{end_ms:.4g} ms", "title num", anchor="middle", size=12)
        yield _text(self._LEFT - 12, y, "window", "text", anchor="end")
        yield _text(self._LEFT, y + 22, "ms after the release; upright line: the next release", "text")
        if any(look.fill != look.alternate for look in self._looks.values()):
            yield _text(end, y + 22, "number: segment; shade: changes with the frame", "text", anchor="end")


def _rate(window_ns: int) -> str:
    return f"{1e9 / window_ns:.4g} Hz"


def _units(program: Program) -> str:
    return ", ".join(unit.name for unit in program.units)


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def _width(text: str, size: float) -> float:
    """Width in pixels, on the safe side: sans-serif letters are about 0.56 of their size wide."""
    return 0.58 * size * len(text)


def _upright(style: str, x: float, top: float, bottom: float) -> str:
    return f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def _text(x: float, y: float, text: str, style: str, *, anchor: str = "start", size: float | None = None) -> str:
    inline = "" if size is None else f' style="font-size:{size:g}px"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{inline}>{escape(text)}</text>'


class _TerminalDrawing:
    """The same rows in cells; each cell shows what ran in its middle."""

    def __init__(self, program: Program, rows: Sequence[_Row], looks: dict[str, Look]) -> None:
        self._program = program
        self._rows = rows
        self._looks = looks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        block = block_of(coloured=coloured, ascii_only=options.ascii_only)
        margin = max(len("window"), len(str(self._rows[-1].window)))
        cells = max(options.max_width - margin - 4, 8)
        longest_ns = max(row.length_ns for row in self._rows)
        lines = [self._legend(block), Text()]
        for row in self._rows:
            for lane in range(max(len(self._program.units), 1)):
                name = f"{row.window if lane == 0 else '':>{margin}} "
                width = cells * row.length_ns // longest_ns
                lines.append(Text(name).append_text(self._lane(row, lane, width, block)))
        lines.append(self._axis(margin, cells, longest_ns / 1e6))
        for line in lines[1:]:
            line.no_wrap, line.overflow = True, "crop"
        yield Group(*lines)

    def _legend(self, block: Callable[[Look], str]) -> Text:
        bars = [bar for row in self._rows for bar in row.bars]
        entries = list(self._looks.items())
        if any(bar.program < 0 for bar in bars):
            entries.append(("unknown", UNKNOWN_LOOK))
        if any(bar.overrun or bar.runs_over for bar in bars):
            entries.append(("over the end", OVERRUN_LOOK))
        legend = Text(f"{_rate(self._program.window_ns)}")
        for name, look in entries:
            legend.append_text(Text.assemble("   ", (block(look) * 2, look.fill), f" {name}"))
        if len(self._program.units) > 1:
            legend.append(f"   units: {_units(self._program)}")
        return legend

    def _lane(self, row: _Row, lane: int, cells: int, block: Callable[[Look], str]) -> Text:
        ascii_only = block(OVERRUN_LOOK).isascii()
        wall = "|" if ascii_only else "│"
        shown: list[tuple[str, str]] = [(" ", "")] * cells
        over = False
        for bar in sorted(row.bars, key=lambda bar: bar.start_ns):
            if bar.lane != lane:
                continue
            over = over or bar.runs_over
            look = _look(self._program, self._looks, bar)
            first = min(round(bar.start_ns * cells / row.length_ns), cells - 1)
            after = max(round(bar.end_ns * cells / row.length_ns), first + 1)
            colour = look.alternate if bar.odd else look.fill
            text = block(look) * (after - first)
            label = _label(self._program, bar)
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
