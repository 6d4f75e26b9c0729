"""A run as a self-contained SVG, one row a window; it adapts to light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from framefit.report.looks import step_ms
from framefit.report.pictures.rows import Bar, Row, RunRows

__all__ = ["run_picture"]


def run_picture(shown: RunRows) -> str:
    """Draw windows of a run.

    Args:
        shown: the windows.

    Returns:
        The SVG's text.
    """
    return _Drawing(shown).svg()


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

    def __init__(self, shown: RunRows) -> None:
        self._shown, self._rows = shown, shown.rows
        self._lanes = max(len(shown.program.units), 1)
        self._longest_ns = max(row.length_ns for row in shown.rows)
        self._row_height = self._lanes * self._LANE
        self._legend, legend_bottom = self._make_legend()
        self._top = legend_bottom + 24
        self._bottom = self._top + len(shown.rows) * (self._row_height + self._GAP)

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
        return f"{' + '.join(self._shown.looks)} at {self._shown.rate}"

    def _subtitle(self) -> str:
        first, last = self._rows[0].window, self._rows[-1].window
        which = f"window {first}" if first == last else f"windows {first} to {last}"
        text = f"{which} of {self._shown.windows}; each row is one window, from its frame's release to the next"
        return text + (f"; units, from the top: {self._shown.units}" if self._lanes > 1 else "")

    def _make_legend(self) -> tuple[list[str], float]:
        """Its elements, in as many lines as it needs, and the last line's y."""
        entries = self._shown.legend("unknown: events were lost", "over the window's end")
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

    def _row(self, row: Row, y: float) -> Iterator[str]:
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

    def _bar(self, bar: Bar, y: float) -> Iterator[str]:
        look = self._shown.look(bar)
        left, right = self._x(bar.start_ns), self._x(bar.end_ns)
        gap = min(1.2, (right - left) / 4)  # neighbours stay apart, and short ones visible
        width = max(right - left - gap, 0.8)
        fill = look.alternate if bar.odd else look.fill
        top, height = y + 2, self._LANE - 4
        label = self._shown.label(bar)
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

    def _tooltip(self, bar: Bar) -> str:
        times = f"{bar.start_ns / 1e6:.2f} to {bar.end_ns / 1e6:.2f} ms, takes {bar.whole_ns / 1e6:.2f} ms"
        if bar.program < 0:
            return f"unknown, {times}"
        segment = self._shown.program.programs[bar.program]
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
        if any(look.fill != look.alternate for look in self._shown.looks.values()):
            yield _text(end, y + 22, "number: segment; shade: changes with the frame", "text", anchor="end")


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
