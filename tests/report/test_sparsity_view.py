"""A search for sparsity as tables and pictures."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

from framefit.core.sparsity import (
    Configuration,
    DenseModel,
    LayerSparsity,
    SearchPoint,
    SparsityResult,
    Spent,
    Threshold,
)
from framefit.report.charts import Line, svg_chart
from framefit.report.sections.sparsity import KIND, write_sparsity_files
from framefit.report.terminal import view


def layer(name: str, zeros: float) -> LayerSparsity:
    """A layer that costs what its zeros leave."""
    return LayerSparsity(
        name=name,
        sparsity_ratio=zeros,
        activation_sparsity_ratio=0.4,
        cycles=round(1000 * (1 - zeros)),
        share_ratio=0.5,
        cycles_ratio=1 - zeros,
    )


def row(solver: str, top1: float, *, hardware: bool = True) -> Configuration:
    """A configuration at half of the cycles."""
    return Configuration(
        solver=solver,
        hardware=hardware,
        validation_top1=top1 + 0.01,
        top1_before_finetune=top1 - 0.01,
        top1=top1,
        top1_interval=(top1 - 0.005, top1 + 0.005),
        top5=0.99,
        parameters=272_000,
        zeros=150_000,
        sparsity_ratio=0.55,
        cycles=1000,
        cycles_ratio=0.5,
        difference_top1=100 * (top1 - 0.88),
        finetune_epochs=5.0 if hardware else 0.0,
        layers=(layer("first [stem]", 0.6), layer("last", 0.4)),
    )


@pytest.fixture
def result() -> SparsityResult:
    """Two arms."""
    point = SearchPoint(solver="dp", evaluations=1, images_forwarded=2000, seconds=3.0, top1=0.88, cycles=1000)
    return SparsityResult(
        model="net.onnx",
        target="vpu",
        unit="vpu0",
        pattern="unstructured",
        target_cycles_ratio=0.5,
        seed=0,
        dense=DenseModel(
            top1=0.88, top1_interval=(0.875, 0.885), top5=0.995, cycles=2000, parameters=272_000, images=10_000
        ),
        dense_layers=(layer("first [stem]", 0.0), layer("last", 0.0)),
        configurations=(row("dp", 0.875), row("dp", 0.86, hardware=False)),
        chosen=0,
        decision="retrain",
        deployed=False,
        reasons=("the interval does not exclude the threshold",),
        additive_bound=0.001,
        additive_error=0.0011,
        thresholds=(Threshold(round=0, top1=0.87, cycles_ratio=0.5, source="given", reason="as given"),),
        curve=(point,),
        ledger=Spent(images_forwarded=12_000, seconds=30.0, evaluations=5),
        notes=("no gain in ONNX Runtime: it multiplies zeros, too",),
    )


def test_the_view_says_verdict_table_layers_and_what_not_to_expect(result: SparsityResult) -> None:
    """Within 80 columns, nothing of a figure cut off; names with brackets are text."""
    console = Console(width=80, record=True, highlight=False)
    console.print(view(result), markup=False)
    text = console.export_text()
    for part in (
        "retrain",
        "dp (chosen)",
        "dp, blind",
        "87.50",
        "-0.50",
        "272.0 k",
        "first [stem]",
        "no gain in ONNX Runtime",
    ):
        assert part in text
    assert "…" not in text


def test_the_front_has_what_no_other_one_beats(result: SparsityResult) -> None:
    """Fewer cycles or more accuracy than all others; equal cycles count with the better accuracy only."""
    rows = [
        replace(row("greedy", top1), cycles_ratio=cycles)
        for cycles, top1 in ((0.5, 0.8), (0.5, 0.7), (0.3, 0.6), (0.7, 0.75), (0.8, 0.85))
    ]
    searched = replace(result, configurations=tuple(rows), dense=replace(result.dense, top1=0.85), chosen=0)
    assert searched.front == ((0.3, 0.6), (0.5, 0.8), (0.8, 0.85))
    (chart, *_) = KIND.charts([("a", searched)])
    (front,) = [line for line in chart.lines if line.name == "front"]
    assert np.array(front.data) == pytest.approx(np.array([(30, 60), (50, 80), (80, 85)]))


def test_the_files_hold_the_published_columns(result: SparsityResult, tmp_path: Path) -> None:
    """One row a configuration and one a layer, the dense model first; pictures are well-formed."""
    write_sparsity_files(tmp_path, result)
    with (tmp_path / "configurations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [one["configuration"] for one in rows] == ["dense", "dp", "dp, blind"]
    assert rows[1]["difference_top1_points"] == "-0.5"
    assert rows[1]["cycles_percent"] == "50.0"
    with (tmp_path / "layers.csv").open() as file:
        layers = list(csv.DictReader(file))
    assert [one["sparsity_percent"] for one in layers if one["configuration"] == "dp"] == ["60.0", "40.0"]
    for name in ("accuracy_cycles", "sparsity_layers", "search"):
        root = ET.parse(tmp_path / f"{name}.svg").getroot()
        assert root.tag.endswith("svg")
        assert root.findall(".//{*}circle")


def test_a_chart_without_points_and_with_a_single_one_is_drawn() -> None:
    """Axes need no more."""
    for data in ((), ((1.0, 2.0),)):
        ET.fromstring(svg_chart("title", "x", "y", [Line(name="one <&>", kind="line", data=data)]))
    ET.fromstring(svg_chart("title", "x", "y", []))
