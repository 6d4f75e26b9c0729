"""Windows of a run or a plan as pictures (SVG, or cells of a terminal), and points and lines as SVG."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from framefit.core.explanation import FramePath, ModelSchedule
from framefit.core.profile import ExecutedPart, ExecutedWindow, RunWindows
from framefit.core.timetable import FreeTime, Slot, Timetable, Window, free_times, window_starts, within_windows
from framefit.report.formats import format_duration

__all__ = ["run_picture"]


@dataclass(frozen=True)
class Look:
    """How a model's bars look: plain, in every other frame, and without colour."""

    fill: str
    alternate: str
    ink: str
    block: str
    ascii_block: str


# Chosen so that neighbours differ also for colour-blind readers (blue against yellow to
# orange) and in grey, on white and on dark ground; red is left for overruns.
_PRIORITY_LOOKS = (
    Look("#2563eb", "#2563eb", "#ffffff", "█", "#"),
    Look("#0891b2", "#0891b2", "#ffffff", "▉", "%"),
)
_BACKGROUND_LOOKS = (
    Look("#f5b041", "#fad7a0", "#3d2a05", "▒", "="),
    Look("#45b39d", "#a2d9ce", "#04302a", "░", "-"),
    Look("#af7ac5", "#d7bde2", "#2c1038", "▓", "+"),
    Look("#ec7fa9", "#f7c5da", "#420c23", "▞", "*"),
    Look("#9bb53c", "#d3e09a", "#262e08", "▙", "o"),
    Look("#aab7b8", "#d5dbdb", "#1c2526", "▌", "~"),
)
UNKNOWN_LOOK = Look("#8a94a6", "#8a94a6", "#ffffff", "▘", "?")
OVERRUN_LOOK = Look("#e5383b", "#e5383b", "#ffffff", "▚", "!")


def looks_of(models: Iterable[str], priority_models: Collection[str]) -> dict[str, Look]:
    """The look of each model, in the given order, priority models first.

    Args:
        models: their names.
        priority_models: names of those that have a priority period.
    """
    names = list(dict.fromkeys(models))
    looks = {}
    for choice, has_priority in ((_PRIORITY_LOOKS, True), (_BACKGROUND_LOOKS, False)):
        chosen = [model for model in names if (model in priority_models) is has_priority]
        looks.update({model: choice[place % len(choice)] for place, model in enumerate(chosen)})
    return looks


def block_of(*, coloured: bool, ascii_only: bool) -> Callable[[Look], str]:
    """The character that fills a model's bar on a terminal.

    Args:
        coloured: the terminal shows colours: one block serves all models.
        ascii_only: it shows ASCII characters only.
    """
    if ascii_only:
        return lambda look: look.ascii_block
    return (lambda _: "█") if coloured else (lambda look: look.block)


def step_ms(span_ms: float, most: int) -> float:
    """A round distance of ticks.

    Args:
        span_ms: what they divide.
        most: ticks at most.
    """
    raw = span_ms / most
    magnitude = 10.0 ** np.floor(np.log10(raw))
    return float(next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= raw * 0.999))


def axis_line(cells: int, span_ms: float) -> str:
    """Times below a row that is ``cells`` wide and stands between two walls.

    Args:
        cells: of the row, without the walls.
        span_ms: that it shows; it stands at the end.
    """
    line = [" "] * (cells + 3)
    step = step_ms(span_ms, max(cells // 10, 1))
    end = f"{span_ms:.4g} ms"
    at_end = len(line) - len(end)
    for tick in range(int(span_ms / step) + 1):
        at, label = 1 + round(tick * step * cells / span_ms), f"{tick * step:g}"
        if at + len(label) < at_end:
            line[at : at + len(label)] = label
    line[at_end:] = end
    return "".join(line)


def run_picture(run: RunWindows) -> str:
    """Draw windows of a run.

    Args:
        run: the windows.

    Returns:
        The SVG's text.
    """
    return _SvgPicture(run).svg()


_PICTURE_STYLE = """
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


class _RunPicture:
    """What both pictures of a run's windows show: a bar for each part of a launch, in its model's look."""

    def __init__(self, run: RunWindows) -> None:
        self._program, self._rows, self._windows = run.program, run.rows, run.windows
        models = (segment.model for segment in run.program.programs)
        self._looks = looks_of(models, run.priority_models)

    def _label(self, bar: ExecutedPart) -> str:
        """What stands in a bar: the segment's number, or the model's name where it is not cut."""
        if bar.program < 0:
            return "?"
        segment = self._program.programs[bar.program]
        cut = sum(other.model == segment.model for other in self._program.programs) > 1
        return str(segment.segment) if cut else segment.model

    def _look(self, bar: ExecutedPart) -> Look:
        if bar.overrun:
            return OVERRUN_LOOK
        return UNKNOWN_LOOK if bar.program < 0 else self._looks[self._program.programs[bar.program].model]

    def _entries(self, unknown: str, over: str) -> list[tuple[str, Look]]:
        """Names and looks of the models, and of what else appears: parts that are unknown, or beyond their window."""
        bars = [bar for row in self._rows for bar in row.parts]
        entries = list(self._looks.items())
        if any(bar.program < 0 for bar in bars):
            entries.append((unknown, UNKNOWN_LOOK))
        if any(bar.overrun or bar.runs_over for bar in bars):
            entries.append((over, OVERRUN_LOOK))
        return entries

    @property
    def _rate(self) -> str:
        return f"{1e9 / self._program.period_ns:.4g} Hz"

    @property
    def _units(self) -> str:
        return ", ".join(unit.name for unit in self._program.units)


class _SvgPicture(_RunPicture):
    """The SVG, laid out in pixels of a 960 wide view box."""

    _WIDTH, _LEFT, _RIGHT = 960.0, 84.0, 54.0
    _LEGEND, _LEGEND_LINE, _LANE, _GAP = 82.0, 20.0, 24.0, 6.0

    def __init__(self, run: RunWindows) -> None:
        super().__init__(run)
        self._lanes = max(len(run.program.units), 1)
        self._longest_ns = max(row.length_ns for row in run.rows)
        self._row_height = self._lanes * self._LANE
        self._legend, legend_bottom = self._make_legend()
        self._top = legend_bottom + 24
        self._bottom = self._top + len(run.rows) * (self._row_height + self._GAP)

    def svg(self) -> str:
        height = self._bottom + 54
        title = self._title()
        frame = f'viewBox="0 0 {self._WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>',
            f"<style>{_PICTURE_STYLE}</style>",
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
        return f"{' + '.join(self._looks)} at {self._rate}"

    def _subtitle(self) -> str:
        first, last = self._rows[0].window, self._rows[-1].window
        which = f"window {first}" if first == last else f"windows {first} to {last}"
        text = f"{which} of {self._windows}; each row is one window, from its frame's release to the next"
        return text + (f"; units, from the top: {self._units}" if self._lanes > 1 else "")

    def _make_legend(self) -> tuple[list[str], float]:
        """Its elements, in as many lines as it needs, and the last line's y."""
        entries = self._entries("unknown: events were lost", "over the window's end")
        parts, x, y = [], 24.0, self._LEGEND
        for name, look in entries:
            shades = dict.fromkeys((look.fill, look.alternate))
            width = 17 * len(shades) + 4 + _text_width(name, 12)
            if x > 24 and x + width > self._WIDTH - 24:
                x, y = 24.0, y + self._LEGEND_LINE
            for place, shade in enumerate(shades):
                box = f'x="{x + 17 * place:g}" y="{y - 10:g}" width="14" height="12" rx="3.5"'
                parts.append(f'<rect {box} fill="{shade}"/>')
            parts.append(_text(x + 17 * len(shades) + 4, y, name, "text"))
            x += width + 22
        return parts, y

    def _row(self, row: ExecutedWindow, y: float) -> Iterator[str]:
        end = self._x(row.length_ns)
        height = self._row_height
        size = f'width="{end - self._LEFT:.1f}" height="{height:g}"'
        yield f'<rect class="row" x="{self._LEFT:g}" y="{y:.1f}" {size} rx="5"/>'
        for tick in self._ticks():
            if tick and self._x(tick * 1e6) < end - 2:
                yield _upright("grid", self._x(tick * 1e6), y, y + height)
        yield _text(self._LEFT - 12, y + height / 2 + 4, str(row.window), "text num", anchor="end")
        for bar in sorted(row.parts, key=lambda bar: bar.start_ns):
            yield from self._bar(bar, y + bar.unit * self._LANE)
        yield _upright("end", end, y - 1, y + height + 1)
        for bar in row.parts:
            if bar.runs_over:
                middle = y + (bar.unit + 0.5) * self._LANE
                yield (
                    f'<path class="over" d="M{end + 3:.1f} {middle - 6:.1f}l8 6l-8 6z">'
                    f"<title>runs over the window's end</title></path>"
                )

    def _bar(self, bar: ExecutedPart, y: float) -> Iterator[str]:
        look = self._look(bar)
        left, right = self._x(bar.start_ns), self._x(bar.end_ns)
        gap = min(1.2, (right - left) / 4)  # neighbours stay apart, and short ones visible
        width = max(right - left - gap, 0.8)
        fill = look.alternate if bar.odd else look.fill
        top, height = y + 2, self._LANE - 4
        label = self._label(bar)
        yield f"<g><title>{escape(self._tooltip(bar))}</title>"
        yield (
            f'<rect x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{height:g}" '
            f'rx="{min(4.5, width / 2):.2f}" fill="{fill}"/>'
        )
        if _text_width(label, 11.5) + 6 <= width:
            x, base = left + width / 2, top + height / 2 + 4
            yield (
                f'<text class="in num" x="{x:.1f}" y="{base:.1f}" text-anchor="middle" fill="{look.ink}">'
                f"{escape(label)}</text>"
            )
        yield "</g>"

    def _tooltip(self, bar: ExecutedPart) -> str:
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


def _text_width(text: str, size: float) -> float:
    """Width in pixels, on the safe side: sans-serif letters are about 0.56 of their size wide."""
    return 0.58 * size * len(text)


def _upright(style: str, x: float, top: float, bottom: float) -> str:
    return f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def _text(x: float, y: float, text: str, style: str, *, anchor: str = "start", size: float | None = None) -> str:
    inline = "" if size is None else f' style="font-size:{size:g}px"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{inline}>{escape(text)}</text>'


def terminal_picture(run: RunWindows) -> RenderableType:
    """Draw windows of a run with block characters, as wide as the console; readable without colour.

    Args:
        run: the windows.
    """
    return _TerminalPicture(run)


_Mark = tuple[str, str]  # character and style of a cell


def _cells(marks: Sequence[_Mark]) -> Text:
    """Cells of a row as text, those of one style together."""
    text = Text()
    for style, run in groupby(marks, key=operator.itemgetter(1)):
        text.append("".join(mark for mark, _ in run), style=style)
    return text


class _TerminalPicture(_RunPicture):
    """The same rows in cells; each cell shows what ran in its middle."""

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
        entries = self._entries("unknown", "over the end")
        legend = Text(f"{self._rate}")
        for name, look in entries:
            legend.append_text(Text.assemble("   ", (block(look) * 2, look.fill), f" {name}"))
        if len(self._program.units) > 1:
            legend.append(f"   units: {self._units}")
        return legend

    def _lane(self, row: ExecutedWindow, lane: int, cells: int, block: Callable[[Look], str]) -> Text:
        ascii_only = block(OVERRUN_LOOK).isascii()
        wall = "|" if ascii_only else "│"
        marks: list[_Mark] = [(" ", "")] * cells
        over = False
        for bar in sorted(row.parts, key=lambda bar: bar.start_ns):
            if bar.unit != lane:
                continue
            over = over or bar.runs_over
            look = self._look(bar)
            first = min(round(bar.start_ns * cells / row.length_ns), cells - 1)
            after = max(round(bar.end_ns * cells / row.length_ns), first + 1)
            colour = look.alternate if bar.odd else look.fill
            text = block(look) * (after - first)
            label = self._label(bar)
            inked = len(label) < after - first
            if inked:
                text = label + text[len(label) :]
            for place, mark in enumerate(text[: cells - first]):
                lettered = inked and place < len(label)
                marks[first + place] = (mark, f"bold {look.ink} on {colour}" if lettered else colour)
        line = Text(wall).append_text(_cells(marks))
        mark = (">" if ascii_only else "▶") if over else " "
        return Text.assemble(line, wall, (mark, f"bold {OVERRUN_LOOK.fill}"))

    def _axis(self, margin: int, cells: int, span_ms: float) -> Text:
        return Text(f"{'window':>{margin}} " + axis_line(cells, span_ms), style="dim")


_UNIT_NAME, _CAPTION, _TRACK, _UNIT_GAP = 17, 17, 36, 8
_LANE, _LANE_GAP, _AXIS = 22, 4, 20
_TICKS = 5


@dataclass(frozen=True)
class _FlightLane:
    """Where the frames of a model are drawn that are in flight one after the other."""

    model: str
    paths: tuple[FramePath, ...]


class WindowPictures:
    """Draws the windows of one plan, all to the same scale."""

    def __init__(self, timetable: Timetable, schedules: Sequence[ModelSchedule]) -> None:
        """Lay the plan out.

        Args:
            timetable: the plan.
            schedules: of its models.
        """
        self._timetable = timetable = within_windows(timetable)
        self._units = timetable.units
        self._starts = window_starts(timetable)
        names = [model.name for model in timetable.models]
        self.looks = looks_of(names, [model.name for model in timetable.models if model.role != "background"])
        self._places = {name: place for place, name in enumerate(names)}
        self._cut = {model.name for model in timetable.models if len(model.segments) > 1}
        self._lanes = [
            _FlightLane(schedule.model.name, paths) for schedule in schedules for paths in _in_lanes(schedule.paths)
        ]
        self._flying: dict[tuple[int, int], list[FramePath]] = {}  # lane and window
        for number, lane in enumerate(self._lanes):
            for path in lane.paths:
                for place in range(path.release_window, path.hops[-1].window + 1):
                    self._flying.setdefault((number, place), []).append(path)
        ends = [period.end_ns for window in timetable.windows for period in window.priority]
        self._span_ns = max([1, *(window.length_ns for window in timetable.windows), *ends])
        self._unit_name = _UNIT_NAME if len(self._units) > 1 else 0
        self._unit_height = self._unit_name + _CAPTION + _TRACK + _UNIT_GAP
        self._lanes_top = len(self._units) * self._unit_height + (_LANE_GAP if self._lanes else 0)
        self._bottom = self._lanes_top + len(self._lanes) * _LANE
        self._height = self._bottom + _AXIS

    def window(self, place: int) -> str:
        """One window as a figure.

        Args:
            place: in ``Timetable.windows``.
        """
        window, start = self._timetable.windows[place], self._starts[place]
        flying = sum(len(self._flying.get((number, place), ())) for number in range(len(self._lanes)))
        caption = f"from {format_duration(start)}"
        if self._lanes:
            caption += f"; {flying} frame{'s' * (flying != 1)} in flight"
        parts = [
            f'<figure class="cell" data-window="{window.index}">',
            f"<figcaption><b>Window {window.index}</b> <span>{caption}</span></figcaption>",
            f'<svg class="window" width="100%" height="{self._height}" role="img" aria-label="Window {window.index}">',
            *self._beat(window),
        ]
        for number, unit in enumerate(self._units):
            parts += self._track(place, window, unit, number * self._unit_height)
        for number, lane in enumerate(self._lanes):
            paths = self._flying.get((number, place), [])
            parts += self._flights(place, window, self.looks[lane.model], paths, self._lanes_top + number * _LANE)
        return "\n".join([*parts, "</svg></figure>"])

    def _x(self, ns: float) -> str:
        return f"{100 * ns / self._span_ns:.4f}%"

    def _beat(self, window: Window) -> Iterator[str]:
        """Times across, and the window's ends."""
        length_ms, step = window.length_ns / 1e6, step_ms(self._span_ns / 1e6, _TICKS)
        y = self._bottom + 14
        for number in range(int(length_ms / step) + 1):
            x = self._x(number * step * 1e6)
            yield f'<line class="tick" x1="{x}" x2="{x}" y1="{self._unit_name + _CAPTION}" y2="{self._bottom}"/>'
            if number and length_ms - number * step > 0.5 * step:
                yield f'<text class="at" x="{x}" y="{y}" text-anchor="middle">{number * step:g}</text>'
        end = self._x(window.length_ns)
        yield f'<line class="release" x1="0" x2="0" y1="0" y2="{self._bottom}"/>'
        yield f'<line class="release" x1="{end}" x2="{end}" y1="0" y2="{self._bottom}"/>'
        yield f'<text class="at" x="0" dx="4" y="{y}">0</text>'
        yield f'<text class="at" x="{end}" dx="-4" y="{y}" text-anchor="end">{length_ms:.4g} ms</text>'

    def _track(self, place: int, window: Window, unit: str, top: int) -> Iterator[str]:
        if self._unit_name:
            yield f'<text class="unit" x="0" dx="6" y="{top + 12}">{escape(unit)}</text>'
        captions, y = top + self._unit_name, top + self._unit_name + _CAPTION
        free = free_times(self._timetable, window, unit)
        yield f'<rect class="lane" x="0" y="{y}" width="{self._x(window.length_ns)}" height="{_TRACK}"/>'
        for stretch in free:
            yield self._residual(stretch, captions, y)
        periods = sorted((p for p in window.priority if p.unit == unit), key=lambda period: period.start_ns)
        for period in periods:
            length = format_duration(period.end_ns - period.start_ns)
            over = " over" if period.end_ns > window.length_ns else ""
            box = f'x="{self._x(period.start_ns)}" width="{self._x(period.end_ns - period.start_ns)}"'
            yield f'<rect class="reserved{over}" {box} y="{captions}" height="{_CAPTION + _TRACK}"/>'
            yield (
                f'<svg {box} y="{captions}" height="{_CAPTION}"><text class="caption" x="4" y="12" '
                f"{texts(f'priority {length}', 'priority', length)}</text></svg>"
            )
        for slot in window.slots:
            if slot.unit == unit:
                yield from self._slot(place, slot, y)

    def _residual(self, free: FreeTime, captions: int, y: int) -> str:
        length = format_duration(free.end_ns - free.start_ns)
        box = f'x="{self._x(free.start_ns)}" width="{self._x(free.end_ns - free.start_ns)}"'
        caption = (
            f'<svg {box} y="{captions}" height="{_CAPTION}"><text class="caption" x="4" y="12" '
            f"{texts(f'residual {length}', 'residual', '')}</text></svg>"
        )
        if not free.guard_ns:
            return caption
        guard = f'x="{self._x(free.end_ns - free.guard_ns)}" width="{self._x(free.guard_ns)}" y="{y}" height="{_TRACK}"'
        return f'{caption}<rect class="guard" {guard}><title>guard: {format_duration(free.guard_ns)}</title></rect>'

    def _slot(self, place: int, slot: Slot, y: int) -> Iterator[str]:
        look = self.looks[slot.model]
        box = f'x="{self._x(slot.start_ns)}" width="{self._x(slot.duration_ns)}" y="{y + 3}" height="{_TRACK - 6}"'
        which = f"segment {slot.segment}" if slot.model in self._cut else "whole"
        title = (
            f"{slot.model}, {which}, frame {slot.frame}: {format_duration(slot.start_ns)} to "
            f"{format_duration(slot.start_ns + slot.duration_ns)}"
        )
        facts = (place, slot.start_ns, slot.duration_ns, self._places[slot.model], slot.segment, slot.frame)
        yield (
            f'<g class="slot" data-slot="{",".join(map(str, facts))}" '
            f'data-way="{self._places[slot.model]}/{slot.frame}"><title>{escape(title)}</title>'
            f'<rect {box} rx="4" fill="{_shade(look, slot.frame)}"/><svg {box}>'
            f'<text class="in" x="50%" y="50%" dy="0.35em" text-anchor="middle" fill="{look.ink}" '
        )
        label = (str(slot.segment),) if slot.model in self._cut else (slot.model, slot.model[:1])
        yield f"{texts(*label, '')}</text></svg></g>"

    def _flights(self, place: int, window: Window, look: Look, paths: Sequence[FramePath], top: int) -> Iterator[str]:
        """The pieces of the arcs from release to result that lie in this window."""
        start, y = self._starts[place], top + _LANE - 6
        end = start + window.length_ns
        for path in paths:
            left, right = max(path.release_ns, start) - start, min(path.result_ns, end) - start
            begun = min(max(path.start_ns - start, left), right)
            begins, ends = path.release_ns >= start, path.result_ns <= end
            name = f"{path.model} frame {path.frame}"
            age = format_duration(path.age_ns)
            yield (
                f'<g class="way" data-way="{self._places[path.model]}/{path.frame}" stroke="{look.fill}" '
                f'data-flight="{path.release_window},{path.start_ns},{path.result_ns},{path.age_ns}">'
                f"<title>{escape(name)}: result {age} after its release</title>"
            )
            x1, x2, x3 = self._x(left), self._x(begun), self._x(right)
            yield f'<rect class="hit" x="{x1}" width="{self._x(right - left)}" y="{top}" height="{_LANE}"/>'
            if begun > left:
                yield f'<line class="waits" x1="{x1}" x2="{x2}" y1="{y}" y2="{y}"/>'
            if right > begun:
                yield f'<line x1="{x2}" x2="{x3}" y1="{y}" y2="{y}"/>'
            if begins:
                yield f'<circle cx="{x1}" cy="{y}" r="4" fill="{look.fill}"/>'
            rise = y - len(self._units) * self._unit_height + _UNIT_GAP - 3
            if ends:
                yield (
                    f'<svg x="{x3}" y="{y}" overflow="visible"><path fill="none" d="M-1 0Q0 0 0 -5V{-rise}'
                    f'm-4 6l4 -6l4 6"/></svg>'
                )
            labels: tuple[str, ...] = (name, f"frame {path.frame}", str(path.frame))
            if ends:
                labels = (*(f"{label}: {age}" for label in labels), age)
            yield (
                f'<svg x="{x1}" width="{self._x(right - left)}" y="{top}" height="{_LANE}">'
                f'<text class="flight" x="8" y="11" {texts(*labels, "")}</text></svg></g>'
            )


def need_picture(schedule: ModelSchedule, timetable: Timetable, look: Look) -> str:
    """What a model needs above what it finds in the tightest window, to the same scale.

    Args:
        schedule: of the model.
        timetable: its plan.
        look: of the model.
    """
    model = schedule.model
    window_ns = max((window.length_ns for window in timetable.windows), default=timetable.window_ns)
    finds_ns = max(schedule.residual_ns[0] if schedule.residual_ns else window_ns, 0)
    span = max(model.duration_ns, finds_ns, 1)

    def box(start: float, length: float, y: int) -> str:
        return f'x="{100 * start / span:.3f}%" width="{100 * length / span:.3f}%" y="{y}" height="20"'

    needs = f"needs {format_duration(model.duration_ns)}"
    finds = ("residual" if schedule.residual_ns else "window") + f" of {format_duration(finds_ns)}"
    finds = finds if finds_ns else "no residual"
    parts = [
        f'<svg class="need" width="100%" height="76" role="img" aria-label="{escape(model.name)} {needs}, {finds}">',
        f'<text class="caption" y="11">{needs}</text>',
    ]
    now = 0
    for segment in max(model.replicas, key=lambda replica: replica.duration_ns).segments:
        place = box(now, segment.duration_ns, 17)
        label = str(segment.index) if len(model.segments) > 1 else ""
        parts.append(
            f'<rect {place} rx="3" fill="{_shade(look, segment.index)}"/><svg {place}><text class="in" x="50%" y="14" '
            f'text-anchor="middle" fill="{look.ink}" {texts(label, "")}</text></svg>'
        )
        now += segment.duration_ns
    parts.append(f'<rect class="finds" {box(0, finds_ns, 41)} rx="3"/>')
    guard = min(timetable.guard_ns, finds_ns)
    if schedule.residual_ns and guard:
        parts.append(f'<rect class="guard" {box(finds_ns - guard, guard, 41)}/>')
    return "".join([*parts, f'<text class="caption" y="73">{finds}</text></svg>'])


def texts(*variants: str) -> str:
    """The end of a text element's start tag, and its content: the page shows the longest variant that has room."""
    listed = "|".join(variant.replace("|", "/") for variant in variants)
    return f'data-texts="{escape(listed)}">{escape(variants[0])}'


def _shade(look: Look, frame: int) -> str:
    return look.alternate if frame % 2 else look.fill


def _in_lanes(paths: Sequence[FramePath]) -> list[tuple[FramePath, ...]]:
    """As few lanes as hold all frames of a model that are in flight at once."""
    lanes: list[list[FramePath]] = []
    for path in sorted(paths, key=lambda path: path.release_ns):
        lane = next((lane for lane in lanes if lane[-1].result_ns <= path.release_ns), None)
        if lane is None:
            lanes.append([path])
        else:
            lane.append(path)
    return [tuple(lane) for lane in lanes]


_MOST_ROWS = 12  # windows of a plan on a terminal
_FIRST_ROWS, _LAST_ROWS = 8, 2  # of more windows than those
_LEAST_CELLS = 8


def plan_pictures(timetable: Timetable) -> list[RenderableType]:
    """The windows of a plan in characters, one picture a unit, as wide as the console."""
    return [_UnitPicture(timetable, unit) for unit in timetable.units] if timetable.windows else []


class _UnitPicture:
    """What one unit does in each window, in cells; each cell shows what is planned in its middle."""

    def __init__(self, timetable: Timetable, unit: str) -> None:
        self._timetable = timetable = within_windows(timetable)
        self._unit = unit
        priority = [model.name for model in timetable.models if model.role != "background"]
        self._looks = looks_of((model.name for model in timetable.models), priority)
        self._cut = {model.name for model in timetable.models if len(model.segments) > 1}
        ends = [period.end_ns for window in timetable.windows for period in window.priority]
        self._span_ns = max(*(window.length_ns for window in timetable.windows), *ends, 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        block = block_of(coloured=coloured, ascii_only=options.ascii_only)
        margin = max(len("window"), len(str(len(self._timetable.windows) - 1)))
        cells = max(options.max_width - margin - 4, _LEAST_CELLS)
        ascii_only = options.ascii_only
        yield self._legend(block, ascii_only=ascii_only)
        lines = [Text(), Text(f"{'':>{margin}} ") + self._parts(cells, ascii_only=ascii_only)]
        for window in self._shown():
            if window is None:
                lines.append(Text(f"{'...':>{margin}}  windows {self._left_out()} are left out", style="dim"))
                continue
            lines.append(Text(f"{window.index:>{margin}} ") + self._row(window, cells, block, ascii_only=ascii_only))
            lines.append(Text(f"{'':>{margin}}  ") + self._frames(window, cells))
        lines.append(Text(f"{'window':>{margin}} {axis_line(cells, self._span_ns / 1e6)}", style="dim"))
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        yield Group(*lines)

    def _shown(self) -> Iterator[Window | None]:
        windows = self._timetable.windows
        if len(windows) <= _MOST_ROWS:
            yield from windows
            return
        yield from windows[:_FIRST_ROWS]
        yield None
        yield from windows[-_LAST_ROWS:]

    def _left_out(self) -> str:
        return f"{_FIRST_ROWS} to {len(self._timetable.windows) - _LAST_ROWS - 1}"

    def _legend(self, block: Callable[[Look], str], *, ascii_only: bool) -> Text:
        legend = Text.assemble(("Unit ", "bold"), (self._unit, "bold"))
        named = {slot.model for window in self._timetable.windows for slot in window.slots if slot.unit == self._unit}
        for name, look in self._looks.items():
            if name in named:
                legend.append_text(Text.assemble("   ", (block(look) * 2, look.fill), f" {name}"))
        waking = "." if ascii_only else "·"
        marks = [(f"{waking}{waking}", "reserved for waking up late")] if self._timetable.priority_ns else []
        marks += [("//", "guard")] if self._timetable.guard_ns else []
        for mark, text in marks:
            legend.append(f"   {mark} {text}", style="dim")
        return legend.append("   numbers: segments", style="dim")

    def _cell(self, ns: int, cells: int) -> int:
        return round(ns * cells / self._span_ns)

    def _parts(self, cells: int, *, ascii_only: bool) -> Text:
        """What the first window is divided into, as brackets with names above the rows."""
        wall, rule = ("|", "-") if ascii_only else ("├", "─")
        window = self._timetable.windows[0]
        parts = [(p.start_ns, p.end_ns, "priority") for p in window.priority if p.unit == self._unit]
        joined: list[tuple[int, int, str]] = []
        for start, end, name in sorted([*parts, *((f.start_ns, f.end_ns, "residual") for f in self._free(window))]):
            if joined and joined[-1][2] == name:
                start = joined.pop()[0]
            joined.append((start, end, name))
        line = Text(style="dim")
        for start, end, name in joined:
            width = self._cell(end, cells) - self._cell(start, cells) - 1
            texts = (f" {name} {format_duration(end - start)} ", f" {name} ", "")
            text = next(text for text in texts if len(text) <= max(width, 0))
            line.append(wall + text.center(max(width, 0), rule))
        return line.append("|" if ascii_only else "┤")

    def _free(self, window: Window) -> list[FreeTime]:
        return free_times(self._timetable, window, self._unit)

    def _row(self, window: Window, cells: int, block: Callable[[Look], str], *, ascii_only: bool) -> Text:
        marks = self._kept(window, cells, ascii_only=ascii_only)
        for slot in window.slots:
            if slot.unit == self._unit:
                first = min(self._cell(slot.start_ns, cells), cells - 1)
                after = min(max(self._cell(slot.start_ns + slot.duration_ns, cells), first + 1), cells)
                marks[first:after] = self._bar(slot, after - first, block)
        width = max(self._cell(window.length_ns, cells), 1)
        wall = "|" if ascii_only else "│"
        line = Text(wall).append_text(_cells(marks[:width]))
        beyond = "".join("!" if mark != " " else " " for mark, _ in marks[width:]).rstrip()
        return line.append(wall).append(beyond, style=f"bold {OVERRUN_LOOK.fill}")

    def _kept(self, window: Window, cells: int, *, ascii_only: bool) -> list[_Mark]:
        """The window before anything is placed in it: guards and priority periods."""
        marks: list[_Mark] = [(" ", "")] * cells
        for free in self._free(window):
            if free.guard_ns:
                after = self._cell(free.end_ns, cells)
                first = min(self._cell(free.end_ns - free.guard_ns, cells), after - 1)
                marks[first:after] = [("/", "dim")] * (after - first)
        for period in window.priority:
            if period.unit == self._unit:
                first, after = self._cell(period.start_ns, cells), self._cell(period.end_ns, cells)
                waking = ("." if ascii_only else "·", self._looks[period.model].fill)
                marks[first:after] = [waking] * (after - first)
        return marks

    def _bar(self, slot: Slot, cells: int, block: Callable[[Look], str]) -> list[_Mark]:
        """A segment, with its number where there is room for it."""
        look = self._looks[slot.model]
        colour = look.alternate if slot.frame % 2 else look.fill
        label = str(slot.segment) if slot.model in self._cut else slot.model
        label = label if len(label) < cells else ""
        lettered = [(letter, f"bold {look.ink} on {colour}") for letter in label]
        return [*lettered, *[(block(look), colour)] * (cells - len(label))]

    def _frames(self, window: Window, cells: int) -> Text:
        """Below each run of segments the frame that they belong to, where there is room to say so."""
        line, reached = Text(style="dim"), 0
        slots = [slot for slot in sorted(window.slots, key=lambda slot: slot.start_ns) if slot.unit == self._unit]
        for (_, frame), run in groupby(slots, key=lambda slot: (slot.model, slot.frame)):
            group = list(run)
            first = self._cell(group[0].start_ns, cells)
            room = self._cell(group[-1].start_ns + group[-1].duration_ns, cells) - first
            text = next((text for text in (f"frame {frame}", f"f{frame}") if len(text) < max(room, 4)), "")
            if first < reached or not text:
                continue
            line.append(" " * (first - reached) + text)
            reached = first + len(text)
        return line
