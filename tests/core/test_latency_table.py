"""Latency tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.files import read_record, write_record
from framefit.core.latency_table import Correction, LatencyEntry, LatencyTable, Overhead


def entry(latency_ns: int = 5, unit: str = "cpu1", op: str = "Conv", **configuration: object) -> LatencyEntry:
    """An entry whose samples are around its latency."""
    return LatencyEntry(
        op=op,
        configuration={"kernel": [3, 3], "stride": 1} | configuration,
        unit=unit,
        latency_ns=latency_ns,
        interval_ns=(latency_ns - 1, latency_ns + 1),
        samples_ns=(latency_ns - 1, latency_ns, latency_ns + 1),
    )


def table(*entries: LatencyEntry) -> LatencyTable:
    """A table of one machine."""
    return LatencyTable(target="cpu", fingerprint={"cpu": "x", "cores": 2, "virtualised": False}, entries=entries)


def test_found_by_configuration() -> None:
    """Operator, unit and every part of the configuration have to agree; the order of its keys does not matter."""
    made = table(entry(1), entry(2, unit="cpu2"), entry(3, op="Conv+Relu"), entry(4, stride=2))
    assert [made.find("Conv", {"stride": s, "kernel": [3, 3]}, "cpu1").latency_ns for s in (1, 2)] == [1, 4]
    assert made.find("Conv", {"kernel": [3, 3], "stride": 1}, "cpu2").latency_ns == 2
    assert made.find("Conv+Relu", {"kernel": [3, 3], "stride": 1}, "cpu1").latency_ns == 3
    assert made.find("Conv", {"kernel": [3, 1], "stride": 1}, "cpu1") is None
    assert made.find("Conv", {"kernel": [3, 3]}, "cpu1") is None
    assert made.find("Gemm", {"kernel": [3, 3], "stride": 1}, "cpu1") is None
    assert made.find("Conv", {"kernel": [3, 3], "stride": 1}, "cpu3") is None


def test_round_trip(tmp_path: Path) -> None:
    """A table reads back equal, and finds the same entries."""
    made = LatencyTable(
        target="cpu",
        fingerprint={"cpu": "x"},
        overhead=Overhead(input_ns_per_byte=0.5, output_ns_per_byte=1, intercept_ns=3, condition_number=9),
        correction=Correction(scale=1.1),
        entries=(entry(), entry(7, precision="int8", groups=None, ratio=0.5)),
    )
    write_record(tmp_path / "a.table.json", made)
    read = read_record(tmp_path / "a.table.json", LatencyTable)
    assert read == made
    for item in made.entries:
        assert read.find(item.op, item.configuration, item.unit) == item


def test_new_entries_replace_equal_ones() -> None:
    """Of equal configurations the new entry stays, others stay too, and the old table is not changed."""
    old = table(entry(1), entry(2, unit="cpu2"))
    assert old.find("Conv", {"kernel": [3, 3], "stride": 1}, "cpu1").latency_ns == 1
    new = old.with_entries((entry(9), entry(4, stride=2)))
    assert sorted(item.latency_ns for item in new.entries) == [2, 4, 9]
    assert new.find("Conv", {"kernel": [3, 3], "stride": 1}, "cpu1").latency_ns == 9
    assert old.find("Conv", {"kernel": [3, 3], "stride": 1}, "cpu1").latency_ns == 1


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40), st.integers(0, 1000).map(lambda share: share / 1000))
def test_quantiles_were_seen(samples: list[int], quantile: float) -> None:
    """A quantile is one of the samples, never one between two of them."""
    made = LatencyEntry(
        op="Conv", configuration={}, unit="cpu1", latency_ns=1, interval_ns=(1, 1), samples_ns=tuple(samples)
    )
    assert made.quantile_ns(quantile) in samples
    assert made.quantile_ns(1) == max(samples)


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.99])
def test_without_samples_the_latency_counts(quantile: float) -> None:
    """A modelled entry has one value for all quantiles."""
    made = LatencyEntry(op="Conv", configuration={}, unit="cpu1", latency_ns=8, interval_ns=(7, 9), source="modelled")
    assert made.quantile_ns(quantile) == 8
