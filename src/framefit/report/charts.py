"""Charts as data: what a page's script draws with Apache ECharts, and the sentence that says the same.

:func:`svg_chart` draws lines and points into a file of their own, which lies in the folder of a search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record

Datum = tuple[float | None, ...]
_LEAST_BINS, _MOST_BINS = 12, 60
_MOST_POINTS = 400
_HEIGHT_PX, _ROW_PX, _FRAME_PX = 300, 24, 74
_TALL_PX = 360  # a chart that is higher stands alone
_COLOURS = 8  # of the page's palette


class Axis(Record, kw_only=True):
    """What an axis shows.

    Attributes:
        unit: behind its numbers; "" for none.
        categories: names in place of numbers.
        low, high: its ends; ``None``: as the data are.
        whole: its numbers are whole.
    """

    name: str
    unit: str = ""
    scale: Literal["linear", "log", "category"] = "linear"
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    whole: bool = False


class Line(Record, kw_only=True):
    """One series of a chart.

    Attributes:
        kind: "line", "points", "boxes" (bars between two values of x), "bars" (of categories, with an interval),
            "band" (between two values of y), "across" and "upright" (a straight line at one value).
        data: (x, y); boxes: (x, x, y); bars: (category, value, low, high); band: (x, low, high); points may have an
            interval (x, y, low, high); across and upright: (value,).
        labels: of its data, one each; or none.
        colour: place in the page's palette; -1: as inconspicuous as the axes.
        fill: a colour of its own instead: a model's, as in all pictures of a run.
    """

    name: str
    kind: Literal["line", "points", "boxes", "bars", "band", "across", "upright"]
    data: tuple[Datum, ...]
    labels: tuple[str, ...] = ()
    colour: int = 0
    fill: str = ""
    dashed: bool = False


class Chart(Record, kw_only=True):
    """A chart.

    Attributes:
        title: above.
        summary: what it shows, as sentences with figures: for those who do not see it, and for everybody else.
        lines: its series.
        height_px: as high as it is.
    """

    title: str
    summary: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    height_px: int = _HEIGHT_PX

    @property
    def tall(self) -> bool:
        """Whether it stands alone."""
        return self.height_px > _TALL_PX


def row_height_px(rows: int) -> int:
    """Height of a chart of so many horizontal bars."""
    return _FRAME_PX + _ROW_PX * rows


def colour(place: int) -> int:
    """The colour of the series at a place."""
    return place % _COLOURS


def histogram(
    named: Sequence[tuple[str, npt.NDArray[np.float64]]], *, log: bool = False
) -> tuple[tuple[Line, ...], float]:
    """How samples are distributed, of several in the same bins.

    Args:
        named: name and samples of each; in the unit of the axis.
        log: bins of equal ratios; all samples are positive.

    Returns:
        Boxes with shares in percent, and where a logarithmic axis of these begins: below that of one sample.
    """
    filled = [samples for _, samples in named if len(samples)]
    if not filled:
        return (), 1.0
    both = np.concatenate(filled)
    bins = int(np.clip(1.5 * np.sqrt(max(map(len, filled))), _LEAST_BINS, _MOST_BINS))
    low, high = float(both.min()), float(both.max())
    if log:
        edges = np.geomspace(low, max(high, 1.01 * low), bins + 1)
    else:
        room = 0.5 if high == low else 0.0
        edges = np.linspace(low - room, high + room, bins + 1)
    lines, least = [], 100.0
    for place, (name, samples) in enumerate(named):
        if not len(samples):
            continue
        counts, _ = np.histogram(np.clip(samples, edges[0], edges[-1]), edges)
        share = 100 * counts / len(samples)
        least = min(least, 100 / len(samples))
        at = np.flatnonzero(counts)
        data = tuple(zip(edges[at].tolist(), edges[at + 1].tolist(), share[at].tolist(), strict=True))
        lines.append(Line(name=name, kind="boxes", data=data, colour=colour(place)))
    return tuple(lines), decades([least / 2, 100.0])[0]


def percent_axis(name: str, percents: Iterable[float]) -> Axis:
    """An axis as wide as some percentages need it, with room around them.

    Args:
        name: of the axis.
        percents: what it has to show; 0 to 100.
    """
    shown = list(percents)
    room = max(0.12 * (max(shown) - min(shown)), 0.4)
    low, high = max(min(shown) - room, 0.0), min(max(shown) + room, 100.0)
    return Axis(name=name, unit="%", low=math.floor(5 * low) / 5, high=math.ceil(5 * high) / 5)


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Powers of ten around positive values: the ends of a logarithmic axis."""
    low = 10.0 ** math.floor(math.log10(min(values)))
    high = 10.0 ** math.ceil(math.log10(max(values)))
    low, high = low / 10 if low > min(values) else low, high * 10 if high < max(values) else high
    return low, max(high, 10 * low)


def steps(values: npt.NDArray[np.float64], first: int = 0) -> tuple[tuple[Datum, ...], tuple[Datum, ...], int]:
    """A long row of values as a line and a band: median, least and greatest of as many values as share a point.

    Args:
        values: float64, in order.
        first: place of the first one.

    Returns:
        (place, median) and (place, least, greatest) of each point, and how many values share one.
    """
    if not len(values):
        return (), (), 1
    size = -(-len(values) // _MOST_POINTS)
    padded = np.append(values, np.full(-len(values) % size, np.nan)).reshape(-1, size)
    at = (first + np.arange(len(padded)) * size).tolist()
    middle, low, high = (column.tolist() for column in np.nanquantile(padded, (0.5, 0.0, 1.0), axis=1))
    return tuple(zip(at, middle, strict=True)), tuple(zip(at, low, high, strict=True)), size


_CHART_WIDTH, _CHART_HEIGHT = 900, 420
_CHART_LEFT, _CHART_RIGHT, _CHART_TOP, _CHART_BOTTOM = 70, 220, 56, 52
_CHART_COLOURS = ("#2563eb", "#e8590c", "#2f9e44", "#9c36b5", "#0c8599", "#e03131", "#b08900", "#5b6675")
_CHART_STYLE = (
    "text{font-family:system-ui,sans-serif;fill:#1c2430;font-size:13px}.title{font-weight:700;font-size:15px}"
    ".tick{fill:#5b6675;font-size:12px}.grid{stroke:#e8ecf1}.card{fill:#fff;stroke:#e2e6ec}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.tick{fill:#9aa5b4}.card{fill:#151a21;stroke:#2a323d}"
    ".grid{stroke:#2a323d}}"
)


def svg_chart(title: str, x_name: str, y_name: str, lines: Sequence[Line]) -> str:
    """Draw lines and points into one pair of axes, a line's points too.

    Args:
        title: above.
        x_name: of the horizontal axis, with its unit.
        y_name: of the vertical axis, with its unit.
        lines: of the kinds "line" and "points", in the palette's order; without data they are left out.

    Returns:
        The SVG's text.
    """
    points = [[(x, y) for x, y, *_ in line.data if x is not None and y is not None] for line in lines]
    shown = [(line, pairs) for line, pairs in zip(lines, points, strict=True) if pairs]
    xs, ys = (_chart_range([pair[axis] for _, pairs in shown for pair in pairs]) for axis in (0, 1))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[1] - xs[0]) * (_CHART_WIDTH - _CHART_LEFT - _CHART_RIGHT)
        up = (y - ys[0]) / (ys[1] - ys[0]) * (_CHART_HEIGHT - _CHART_TOP - _CHART_BOTTOM)
        return round(_CHART_LEFT + across, 1), round(_CHART_HEIGHT - _CHART_BOTTOM - up, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_CHART_STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{_CHART_WIDTH - 1}" height="{_CHART_HEIGHT - 1}" rx="12" class="card"/>',
        f'<text x="20" y="34" class="title">{escape(title)}</text>',
        (
            f'<text x="{(_CHART_WIDTH - _CHART_RIGHT + _CHART_LEFT) / 2}" y="{_CHART_HEIGHT - 12}" '
            f'text-anchor="middle">{escape(x_name)}</text>'
        ),
        f'<text x="20" y="{_CHART_TOP - 6}" class="tick">{escape(y_name)}</text>',
    ]
    for value in _chart_ticks(*ys):
        _, y = place(xs[0], value)
        parts.append(f'<line x1="{_CHART_LEFT}" x2="{_CHART_WIDTH - _CHART_RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
        parts.append(f'<text x="{_CHART_LEFT - 8}" y="{y + 4}" text-anchor="end" class="tick">{value:g}</text>')
    for value in _chart_ticks(*xs):
        x, y = place(value, ys[0])
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle" class="tick">{value:g}</text>')
    for index, (line, pairs) in enumerate(shown):
        colour = _CHART_COLOURS[index % len(_CHART_COLOURS)]
        parts += _chart_line(line, colour, [place(*pair) for pair in pairs])
        y = _CHART_TOP + 12 + 22 * index
        across = (20,) if line.kind == "points" else (10, 30)
        parts += _chart_line(line, colour, [(_CHART_WIDTH - _CHART_RIGHT + x, y) for x in across])
        parts.append(f'<text x="{_CHART_WIDTH - _CHART_RIGHT + 36}" y="{y + 4}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _chart_line(line: Line, colour: str, points: list[tuple[float, float]]) -> list[str]:
    parts = []
    if line.kind != "points" and len(points) > 1:
        dashes = ' stroke-dasharray="6 4"' * line.dashed
        path = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
    return [*parts, *(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>' for x, y in points)]


def _chart_range(values: Sequence[float]) -> tuple[float, float]:
    """Least and greatest, with some room; never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _chart_ticks(low: float, high: float) -> list[float]:
    """Round numbers between, about six."""
    rough = (high - low) / 6
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [round(step * (first + index), 10) for index in range(int((high - first * step) / step + 1e-9) + 1)]
