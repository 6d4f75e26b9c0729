"""The layers of a model on a page: branches side by side, cuts, and what each layer costs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import framefit
from framefit.core.explanation import GraphLayer, ModelGraph
from framefit.core.timetable import PlannedModel, Segment
from framefit.planning.explain import explain
from framefit.planning.graphs import graphs_of
from framefit.planning.plan import Plan
from framefit.report.graph import DrawnGraph, drawn_graph
from framefit.report.html import write_plan_page
from framefit.report.sections.plan import PlanContent
from workloads import write_app, write_models, write_target

LANE = 12  # pixels


def drawn(*reads: tuple[int, ...], cuts: tuple[int, ...] = ()) -> DrawnGraph:
    """Layers that read others, cut before some of them."""
    edges = [0, *cuts, len(reads)]
    segments = tuple(
        Segment(
            index=place, unit="npu0", fill_layer="", first_layer="", last_layer="", output_layers=(), duration_ns=1000,
            median_ns=900, boundary_bytes=2048, tensors=(), span=(first, end - 1),
        )
        for place, (first, end) in enumerate(itertools.pairwise(edges))
    )  # fmt: skip
    model = PlannedModel(name="net", role="background", level=0, reasons=(), duration_ns=1000, segments=segments)
    layers = tuple(
        GraphLayer(f"n{at}", "Add", read, "1 x 4", at + 1, sum(at >= cut for cut in cuts))
        for at, read in enumerate(reads)
    )
    return drawn_graph(ModelGraph(model, layers, "time"))


def lanes(graph: DrawnGraph) -> list[int]:
    """Of the layers, from the left."""
    return [int(row.dot // LANE) for row in graph.rows if row.dot is not None]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (((), (0,), (1,)), [0, 0, 0]),  # a chain
        (((), (0,), (1, 0), (2,)), [0, 1, 1, 1]),  # a connection around a layer keeps its lane
        (((), (0,), (0,), (1, 2)), [0, 1, 0, 1]),  # two branches, the second one on the lane that ends
        (((), (), (0, 1)), [0, 1, 0]),  # two beginnings
    ],
)
def test_layers_stand_on_the_lanes_of_what_they_read(reads: tuple[tuple[int, ...], ...], expected: list[int]) -> None:
    """No layer stands on a lane that another one's output still needs."""
    assert lanes(drawn(*reads)) == expected


def test_lines_join_what_belongs_together() -> None:
    """From each output to those that read it, past the rows between them, also where the model is cut."""
    graph = drawn((), (0,), (1, 0), cuts=(1,))
    begins = [number for number, row in enumerate(graph.rows) if row.layer is None]
    assert begins == [0, 2]
    second = graph.rows[2]
    assert second.text == "segment 1 on npu0: 1.0 us planned, 2.0 KiB handed on to it"
    assert second.lines == "M6.0 0V26"
    middle, last = graph.rows[3], graph.rows[4]
    assert middle.lines == "M6.0 0V26 M6.0 0C6.0 13.0 18.0 0 18.0 13.0 M18.0 13.0V26"
    assert last.lines == "M18.0 0C18.0 13.0 18.0 0 18.0 13.0 M6.0 0C6.0 13.0 18.0 0 18.0 13.0"
    assert graph.width == 2 * LANE
    assert [row.bar for row in graph.rows if row.layer] == pytest.approx([1 / 3, 2 / 3, 1])


def test_what_is_left_out_is_counted() -> None:
    """A page stays readable with a network of any size."""
    graph = drawn(*(() if at == 0 else (at - 1,) for at in range(1200)))
    assert (len(lanes(graph)), graph.more) == (1000, 200)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A model that is cut behind one that is not, on a described device."""
    folder = write_models(tmp_path_factory.mktemp("graph"))
    write_target(folder)
    return framefit.plan(write_app(folder, target="target.toml", rate_hz=100))


def test_layers_of_a_plan_are_those_of_its_segments(planned: Plan) -> None:
    """With their nominal times, which are those of the segments less what a launch costs."""
    small, chain = graphs_of(planned)
    assert (small.costs, chain.costs) == ("time", "time")
    segments = chain.model.segments
    assert len(segments) > 1
    assert [layer.segment for layer in chain.layers] == [
        segment.index for segment in segments for _ in range(segment.span[0], segment.span[1] + 1)
    ]
    for segment in segments[1:-1]:
        total = sum(layer.cost for layer in chain.layers if layer.segment == segment.index)
        assert segment.median_ns == pytest.approx(total + 20_000, rel=0.02)
    assert chain.layers[1].reads == (0,)
    assert chain.layers[0].output.startswith("1 x ")


def test_a_page_shows_the_layers_of_each_model(planned: Plan, tmp_path: Path) -> None:
    """With a row for each layer, and one where each segment begins."""
    timetable, workload, graphs = planned.timetable, planned.workload, graphs_of(planned)
    content = PlanContent(timetable, workload, explain(timetable, workload), graphs)
    write_plan_page(tmp_path / "plan.html", content, title="app.toml")
    text = (tmp_path / "plan.html").read_text()
    assert "Layers of chain" in text
    assert text.count('r="4"/></svg></td>') == sum(len(graph.layers) for graph in graphs)
    assert text.count('class="begin"') == sum(len(graph.model.segments) for graph in graphs)


def test_this_machine_tells_no_times_of_layers(tmp_path: Path) -> None:
    """Multiply-accumulates stand for them, and a plan that does not fit has no segments to show."""
    folder = write_models(tmp_path, brief=True)
    app = write_app(folder, guard_ms=None, schedule="", target="cpu", rate_hz=20)
    assert {graph.costs for graph in graphs_of(framefit.plan(app))} == {"macs"}
    write_target(folder)
    assert graphs_of(framefit.plan(write_app(folder, target="target.toml", rate_hz=30_000))) == ()
