"""The graph of a model as rows of a table, with a lane for each tensor that is still needed.

Layers stand one below the other in the order in which they are executed, so a network of any depth can be read, and
cuts are lines across.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from framefit.core.explanation import GraphLayer, ModelGraph
from framefit.report.formats import format_bytes, format_duration

_LANE_PX, _ROW_PX = 12, 26
_MOST_ROWS, _MOST_NAME = 1000, 44


@dataclass(frozen=True)
class GraphRow:
    """A row: a layer, or where a segment begins.

    Attributes:
        lines: of the picture, as an SVG path.
        dot: of the layer, from the left, in pixels; ``None``: the row is the beginning of a segment.
        layer: ``None``: likewise.
        name: of the layer, its end where it is long.
        cost: of the layer, as text.
        bar: its part of the greatest one, 0 to 1.
        text: of a segment.
    """

    lines: str
    dot: float | None = None
    layer: GraphLayer | None = None
    name: str = ""
    cost: str = ""
    bar: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class DrawnGraph:
    """A graph, ready for a page.

    Attributes:
        width: of the picture, in pixels; so is ``height``, of a row.
        more: layers that are left out.
    """

    rows: Sequence[GraphRow]
    width: int
    height: int
    cost_name: str
    more: int


def drawn_graph(graph: ModelGraph) -> DrawnGraph:
    """Place the layers of a model on lanes.

    A layer stands on the lane of the first of its inputs that nobody reads after it, else on the first free lane; its
    outputs keep that lane until the last layer that reads them.
    """
    lanes = _lanes(graph.layers)
    rows = list(_rows(graph, lanes))
    width = _LANE_PX * (max(lanes, default=0) + 1)
    more = max(len(graph.layers) - _MOST_ROWS, 0)
    cost_name = "nominal time" if graph.costs == "time" else "multiply-accumulates"
    return DrawnGraph(rows, width, _ROW_PX, cost_name, more)


def _lanes(layers: Sequence[GraphLayer]) -> list[int]:
    """Lane of each layer."""
    last = _last_readers(layers)
    taken: list[int | None] = []  # by lane: the layer whose outputs are on it
    lanes: list[int] = []
    for number, layer in enumerate(layers):
        ending = [lanes[read] for read in layer.reads if last[read] == number]
        for lane in ending:
            taken[lane] = None
        lane = ending[0] if ending else next((at for at, one in enumerate(taken) if one is None), len(taken))
        if lane == len(taken):
            taken.append(None)
        taken[lane] = number if last[number] > number else None
        lanes.append(lane)
    return lanes


def _last_readers(layers: Sequence[GraphLayer]) -> list[int]:
    """Number of the last layer that reads each one; its own where none does."""
    last = list(range(len(layers)))
    for number, layer in enumerate(layers):
        for read in layer.reads:
            last[read] = number
    return last


def _rows(graph: ModelGraph, lanes: Sequence[int]) -> Iterator[GraphRow]:
    layers, last = graph.layers, _last_readers(graph.layers)
    most = max((layer.cost for layer in layers), default=0)
    live: set[int] = set()  # layers whose outputs are needed below
    segment = -1
    for number, layer in enumerate(layers[:_MOST_ROWS]):
        if layer.segment != segment:
            segment = layer.segment
            through = " ".join(f"M{_x(lanes[one])} 0V{_ROW_PX}" for one in sorted(live))
            yield GraphRow(through, text=_segment_text(graph, segment))
        lines = [f"M{_x(lanes[one])} 0V{_ROW_PX}" for one in sorted(live) if last[one] > number]
        here, middle = _x(lanes[number]), _ROW_PX / 2
        for read in layer.reads:
            there = _x(lanes[read])
            lines.append(f"M{there} 0C{there} {middle} {here} 0 {here} {middle}")
        if last[number] > number:
            lines.append(f"M{here} {middle}V{_ROW_PX}")
        live = {one for one in (*live, number) if last[one] > number}
        bar = layer.cost / most if most else 0.0
        name = layer.name if len(layer.name) <= _MOST_NAME else f"\u2026{layer.name[1 - _MOST_NAME :]}"
        yield GraphRow(" ".join(lines), here, layer, name, _cost_text(graph, layer.cost), bar)


def _x(lane: int) -> float:
    return _LANE_PX * (lane + 0.5)


def _cost_text(graph: ModelGraph, cost: int) -> str:
    if graph.costs == "time":
        return format_duration(cost)
    return f"{cost / 1e6:,.2f} M" if cost else "-"


def _segment_text(graph: ModelGraph, number: int) -> str:
    segments = graph.model.segments
    segment = segments[number]
    handed = f", {format_bytes(segments[number - 1].boundary_bytes)} handed on to it" if number else ""
    what = f"segment {segment.index} " if len(segments) > 1 else ""
    return f"{what}on {segment.unit}: {format_duration(segment.duration_ns)} planned{handed}"
