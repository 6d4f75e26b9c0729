"""Points and lines as SVG: axes, series, a legend; for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal
from xml.sax.saxutils import escape

from framefit.core.files import Record

__all__ = ["Series", "chart"]


_WIDTH, _HEIGHT = 900, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 220, 56, 52
_COLOURS = ("#2563eb", "#e8590c", "#2f9e44", "#9c36b5", "#0c8599", "#e03131", "#b08900", "#5b6675")
_STYLE = (
    "text{font-family:system-ui,sans-serif;fill:#1c2430;font-size:13px}.title{font-weight:700;font-size:15px}"
    ".tick{fill:#5b6675;font-size:12px}.grid{stroke:#e8ecf1}.card{fill:#fff;stroke:#e2e6ec}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.tick{fill:#9aa5b4}.card{fill:#151a21;stroke:#2a323d}"
    ".grid{stroke:#2a323d}}"
)


class Series(Record, kw_only=True):
    """One line of a chart.

    Attributes:
        name: in the legend.
        x, y: of its points.
        kind: "line" with points, "points" alone, or "dashed".
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: Literal["line", "points", "dashed"] = "line"


def chart(title: str, x_name: str, y_name: str, series: Sequence[Series]) -> str:
    """Draw series into one pair of axes.

    Args:
        title: above.
        x_name: of the horizontal axis, with its unit.
        y_name: of the vertical axis, with its unit.
        series: at most one colour each; without points they are left out.

    Returns:
        The SVG's text.
    """
    shown = [one for one in series if one.x]
    xs, ys = _range([x for one in shown for x in one.x]), _range([y for one in shown for y in one.y])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[1] - xs[0]) * (_WIDTH - _LEFT - _RIGHT)
        up = (y - ys[0]) / (ys[1] - ys[0]) * (_HEIGHT - _TOP - _BOTTOM)
        return round(_LEFT + across, 1), round(_HEIGHT - _BOTTOM - up, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="12" class="card"/>',
        f'<text x="20" y="34" class="title">{escape(title)}</text>',
        f'<text x="{(_WIDTH - _RIGHT + _LEFT) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(x_name)}</text>',
        f'<text x="20" y="{_TOP - 6}" class="tick">{escape(y_name)}</text>',
    ]
    for value in _ticks(*ys):
        _, y = place(xs[0], value)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end" class="tick">{value:g}</text>')
    for value in _ticks(*xs):
        x, y = place(value, ys[0])
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle" class="tick">{value:g}</text>')
    for index, one in enumerate(shown):
        colour = _COLOURS[index % len(_COLOURS)]
        parts += _drawn(one, colour, [place(*point) for point in zip(one.x, one.y, strict=True)])
        y = _TOP + 12 + 22 * index
        across = (20,) if one.kind == "points" else (10, 30)
        parts += _drawn(one, colour, [(_WIDTH - _RIGHT + x, y) for x in across])
        parts.append(f'<text x="{_WIDTH - _RIGHT + 36}" y="{y + 4}">{escape(one.name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _drawn(one: Series, colour: str, points: list[tuple[float, float]]) -> list[str]:
    parts = []
    if one.kind != "points" and len(points) > 1:
        dashes = ' stroke-dasharray="6 4"' if one.kind == "dashed" else ""
        path = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
    return [*parts, *(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>' for x, y in points)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Least and greatest, with some room; never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between, about six."""
    rough = (high - low) / 6
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [round(step * (first + index), 10) for index in range(int((high - first * step) / step + 1e-9) + 1)]
