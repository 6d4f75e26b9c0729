"""A model's cost as a terminal shows it."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from framefit.core.run_record import CycleReport, LayerCycles
from framefit.report.terminal import view


def shown(report: CycleReport, width: int = 100) -> str:
    """The text that a console without colour shows."""
    console = Console(width=width, file=io.StringIO(), no_color=True)
    console.print(view(report))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def layer(name: str, **more: object) -> LayerCycles:
    """A convolution of 3,000 cycles."""
    return replace(
        LayerCycles(
            name=name,
            op="Conv+Relu",
            macs=2_360_000,
            cycles=3000,
            bound="ddr read",
            bytes_read=20_000,
            bytes_written=16_384,
            utilisation_ratio=0.16,
            weight_sparsity_ratio=0.0,
            activation_sparsity_ratio=0.0,
            latency_ns=2308,
            unit="vpu0",
            precision="int8",
            method="products",
            terms={"compute": 500.0, "ddr read": 2500.0},
            overhead_cycles=500.0,
        ),
        **more,
    )


def report(*layers: LayerCycles, **more: object) -> CycleReport:
    """Of these layers."""
    return replace(
        CycleReport(
            model="net",
            target="vpu",
            unit="vpu0",
            source="cycles",
            clock_mhz=1300.0,
            total_cycles=sum(one.cycles for one in layers),
            total_ns=sum(one.latency_ns for one in layers),
            layers=layers,
        ),
        **more,
    )


def test_total_layers_and_what_binds() -> None:
    """The total first; a layer's figures in one row; terms by their share."""
    text = shown(report(layer("a[b]"), layer("c", cycles=1000, bound="compute"), notes=("batch taken as 1",)))
    assert text.startswith("4,000 cycles 4.6 us at 1300 MHz: net on vpu, unit vpu0\n")
    row = next(line for line in text.splitlines() if line.startswith("a[b]"))
    assert row.split() == [
        "a[b]",
        "Conv+Relu",
        "2.36",
        "M",
        "35.5",
        "KiB",
        "3,000",
        "75.0",
        "%",
        "16",
        "%",
        "ddr",
        "read",
    ]
    assert [line.split() for line in text.splitlines() if line.startswith(("ddr read", "compute"))] == [
        ["ddr", "read", "1", "3,000", "75.0", "%"],
        ["compute", "1", "1,000", "25.0", "%"],
    ]
    assert "batch taken as 1" in text
    assert "zeros" not in text


def test_zeros_have_a_column_where_there_are_any() -> None:
    """Of weights and of inputs."""
    text = shown(report(layer("a", weight_sparsity_ratio=0.5, activation_sparsity_ratio=0.25)), 120)
    assert "50 %, 25 %" in text


def test_what_is_priced_otherwise_says_so() -> None:
    """By bytes, or in part."""
    text = shown(report(layer("a", method="bytes", macs=0), layer("b", method="unknown", macs=0)), 120)
    assert "ddr read (by bytes)" in text
    assert "ddr read (in part)" in text


@pytest.mark.parametrize("width", [80, 120])
def test_names_give_way(width: int) -> None:
    """No line is wider than the console, and figures are whole."""
    long = layer("/backbone/stage1/block2/very/long/name/of/a/convolution", op="Conv+BatchNormalization+HardSwish")
    text = shown(report(long), width)
    assert max(map(len, text.splitlines())) <= width
    assert "2.36 M  35.5 KiB   3,000  100.0 %" in text


def test_nothing_to_do() -> None:
    """A model of views has no cycles and no shares."""
    free = layer("flat", op="Flatten", macs=0, cycles=0, latency_ns=0, bound="none", method="view")
    assert shown(report(free)).startswith("0 cycles 0 ms at 1300 MHz")


def test_many_layers_are_cut_off() -> None:
    """The caption says how many are left out."""
    assert "... 50 more" in shown(report(*(layer(f"l{index}") for index in range(250))), 160)
