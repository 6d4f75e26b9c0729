"""Latency tables and estimates as a terminal shows them."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from framefit.core.latency_table import (
    AdditivityAudit,
    AuditedNetwork,
    Correction,
    LatencyEntry,
    LatencyTable,
    MachineCorrection,
    Overhead,
    compared,
)
from framefit.core.run_record import LatencyEstimate, LayerLatency
from framefit.report.terminal import view


def shown(view: RenderableType, width: int = 120) -> str:
    """The text that a console without colour shows."""
    console = Console(width=width, file=io.StringIO(), no_color=True)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def layer(name: str, latency_ns: int, low: int, high: int, source: str = "measured") -> LayerLatency:
    """A convolution."""
    return LayerLatency(name=name, op="Conv+Relu", latency_ns=latency_ns, interval_ns=(low, high), source=source)


ESTIMATE = LatencyEstimate(
    model="net",
    target="vpu",
    unit="vpu0",
    total_ns=1_500_000,
    interval_ns=(1_470_000, 1_530_000),
    plain_sum_ns=1_000_000,
    correction_ns=-50_000,
    overhead_ns=550_000,
    coverage_ratio=0.5,
    estimated_ns=250_000,
    layers=(layer("a[b]", 750_000, 742_500, 757_500), layer("c", 250_000, 150_000, 400_000, "interpolated")),
    notes=("batch taken as 1",),
)
ENTRY = LatencyEntry(
    op="Conv",
    configuration={"inputs": ["1x3x8x8 float32"], "outputs": ["1x4x8x8 float32"], "kernel": [3, 3], "groups": 1},
    unit="vpu0",
    latency_ns=10_000,
    interval_ns=(9_900, 10_100),
    samples_ns=(9_900, 10_000, 10_100),
)
TABLE = LatencyTable(
    target="vpu",
    fingerprint={"cpu": "x[y]", "cores": 2},
    overhead=Overhead(input_ns_per_byte=0.25, output_ns_per_byte=0.5, intercept_ns=100_000, condition_number=4.2),
    correction=Correction(class_factors={"convolution": 0.97}, node_ns=300.0, error_ratio=0.02, networks=6),
    entries=(ENTRY,),
    warnings=("the machine drifted",),
)


def test_an_estimate() -> None:
    """The total first, its parts, layers with relative bounds and their source."""
    text = shown(view(ESTIMATE))
    assert text.startswith("1.50 ms (90 %: ± 2.0 %): net on vpu, unit vpu0\n")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["Plain"][2:4] == ["1.00", "ms"]
    assert rows["Correction"][1:3] == ["-50", "us"]
    assert rows["Coverage"][1:3] == ["50.0", "%"]
    assert rows["a[b]"] == ["a[b]", "Conv+Relu", "750", "us", "±", "1.0", "%", "50.0", "%", "measured"]
    assert rows["c"] == ["c", "Conv+Relu", "250", "us", "-40", "..", "+60", "%", "16.7", "%", "interpolated"]
    assert "batch taken as 1" in text


def test_nothing_to_do() -> None:
    """A model of views has no latency and no shares."""
    free = replace(
        ESTIMATE, total_ns=0, interval_ns=(0, 0), plain_sum_ns=0, layers=(layer("flat", 0, 0, 0, "view"),), notes=()
    )
    text = shown(view(free))
    assert text.startswith("0 ms")
    assert "view" in text


def test_a_table() -> None:
    """Facts, overhead, correction, entries and warnings."""
    text = shown(view(TABLE))
    assert text.startswith("1 entries of vpu, unit vpu0.")
    assert "x[y]" in text
    assert re.search(r"Entries +1 +1 measured", text)
    assert re.search(r"Overhead of a launch +100 us +condition number 4.2", text)
    assert re.search(r"Overhead of an input byte +0.25 ns", text)
    assert re.search(r"Overhead of an output byte +0.5 ns", text)
    assert "0.970 x layers of class convolution" in text
    assert "from 6 networks" in text
    row = next(line for line in text.splitlines() if line.startswith("Conv"))
    assert "1x3x8x8 float32 -> 1x4x8x8 float32; kernel 3x3" in row
    assert row.split()[:9] == ["Conv", "vpu0", "10", "us", "±", "1.0", "%", "3", "measured"]
    assert "the machine drifted" in text


def test_a_calibration() -> None:
    """The correction and the networks, the worst of them too; a refused one says why, and what stays in use."""
    network = AuditedNetwork(
        name="net", measured_ns=110_000, plain_sum_ns=99_000, overhead_ns=1000, corrected_ns=108_000, left_out_ns=99_000
    )
    assert TABLE.correction is not None
    audit = AdditivityAudit(
        correction=TABLE.correction, terms=("node_ns",), networks=(network,), plain_error_ratio=0.09,
        left_out_error_ratio=0.05, greatest_error_ratio=0.1,
    )  # fmt: skip
    correction = MachineCorrection(
        target="cpu", unit="cpu1", fingerprint={}, date="2026-01-02T03:04:05+00:00", launches_ns={}, audit=audit
    )
    text = " ".join(shown(view(correction)).split())
    assert text.startswith("CALIBRATED cpu, unit cpu1, 2026-01-02")
    assert "0.970 x layers of class convolution" in text
    assert "of the worst of these 10.0 %" in text
    refused = replace(correction, audit=None, refused=("9 of 20 rounds were slow",), earlier="2025-01-01")
    text = " ".join(shown(view(refused)).split())
    assert text.startswith("REFUSED 9 of 20 rounds were slow. So that of 2025-01-01 stays in use.")


def test_a_comparison() -> None:
    """The median, facts that differ, the greatest difference first, and what one lacks."""
    twice = replace(ENTRY, latency_ns=20_000, interval_ns=(19_800, 20_200))
    other = replace(ENTRY, op="Gemm")
    there = replace(TABLE, fingerprint={"cpu": "z", "cores": 2}, entries=(twice, replace(other, latency_ns=10_001)))
    here = replace(TABLE, entries=(other, ENTRY, replace(ENTRY, op="Add")))
    text = shown(view(compared(here, there)))
    assert text.startswith("1.500 x is the median of 2 entries of vpu over those of vpu; 1 only here, 0 only there")
    assert "Facts that differ" in text
    rows = [line for line in text.splitlines() if line.startswith(("Conv", "Gemm", "Add"))]
    assert [row.split()[0] for row in rows] == ["Conv", "Gemm", "Add"]
    assert "2.000" in rows[0]
    assert "Only here" in text
    assert "Only there" not in text


def test_nothing_in_common() -> None:
    """It says so instead of a ratio."""
    text = shown(view(compared(TABLE, replace(TABLE, entries=()))))
    assert text.startswith("no entry in common")


@pytest.mark.parametrize("width", [80, 120])
def test_names_give_way(width: int) -> None:
    """No line is wider than the console, and figures are whole."""
    long = replace(ENTRY, op="Conv+BatchNormalization+HardSwish+Add+Relu")
    contents = [
        replace(ESTIMATE, layers=(layer("/backbone/stage1/block2/very/long/name/conv", 5, 4, 6),)),
        replace(TABLE, entries=(long,)),
        compared(replace(TABLE, entries=(long,)), replace(TABLE, entries=(long,))),
    ]
    for content in contents:
        text = shown(view(content), width)
        assert max(map(len, text.splitlines())) <= width
    assert "1.000" in text


def test_many_rows_are_cut_off() -> None:
    """The caption says how many are left out."""
    many = replace(ESTIMATE, layers=tuple(layer(f"l{index}", 5, 4, 6) for index in range(250)))
    assert "... 51 more" in shown(view(many))
