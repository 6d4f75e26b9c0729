"""Latency tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from framefit import InputError
from framefit.core.files import read_record, write_record
from framefit.core.latency_table import (
    Correction,
    LatencyEntry,
    LatencyTable,
    Overhead,
    Unmeasured,
    check_fingerprint,
    compared,
    merged,
    read_table,
)


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
        correction=Correction(node_ns=11),
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


def test_tables_merge() -> None:
    """Of equal configurations the last one stays; overhead and correction are the first that there are."""
    overhead = Overhead(input_ns_per_byte=1, output_ns_per_byte=1, intercept_ns=1, condition_number=1)
    missing = Unmeasured(
        op="Conv", configuration={"kernel": [3, 3], "stride": 2}, layers=("a",), unit="cpu1", reason=""
    )
    first = replace(table(entry(1), entry(2, unit="cpu2")), correction=Correction(node_ns=11), unmeasured=(missing,))
    second = replace(table(entry(9), entry(4, stride=2)), overhead=overhead, correction=Correction(node_ns=20))
    whole = merged([first, second])
    assert sorted(item.latency_ns for item in whole.entries) == [2, 4, 9]
    assert (whole.overhead, whole.correction) == (overhead, Correction(node_ns=11))
    assert whole.unmeasured == ()
    assert merged([first]) == first


def test_tables_compare() -> None:
    """Ratios there over here with an interval from both, what each lacks, and facts that differ."""
    here, there = table(entry(100), entry(50, stride=2), entry(0, stride=3)), table(entry(150), entry(7, stride=4))
    there = replace(there.with_entries((entry(5, stride=3),)), fingerprint={"cpu": "y", "cores": 2, "os": "Linux"})
    found = compared(here, there)
    assert found.ratio == 1.5
    first = found.entries[0]
    assert (first.here_ns, first.there_ns, first.ratio) == (100, 150, 1.5)
    assert first.ratio_interval is not None
    spread = (0.01**2 + (1 / 150) ** 2) ** 0.5
    assert first.ratio_interval == pytest.approx((1.5 * np.exp(-spread), 1.5 * np.exp(spread)))
    assert (found.entries[1].ratio, found.entries[1].ratio_interval) == (None, None)
    assert [item.latency_ns for item in found.only_here] == [50]
    assert [item.latency_ns for item in found.only_there] == [7]
    assert [(one.fact, one.here, one.there) for one in found.differences] == [
        ("cpu", "x", "y"),
        ("virtualised", False, None),
        ("os", None, "Linux"),
    ]
    assert compared(table(entry(0)), table(entry(0))).ratio is None


def test_another_fingerprint_is_refused() -> None:
    """Every differing fact is named, with both values."""
    check_fingerprint(table(), {"virtualised": False, "cores": 2, "cpu": "x"}, "a.table.json", "measure again")
    with pytest.raises(InputError) as error:
        check_fingerprint(table(), {"cpu": "x", "cores": 4, "os": "Linux"}, "a.table.json", "measure again")
    assert error.value.exit_code == 2
    assert error.value.where == "a.table.json"
    assert "cores: 2 in the table, 4 here" in error.value.what
    assert "virtualised: False in the table, not stated here" in error.value.what
    assert "os: not stated in the table, 'Linux' here" in error.value.what
    assert "cpu" not in error.value.what.replace("another", "")


def test_old_files_stay_readable(tmp_path: Path) -> None:
    """A table as the first version wrote it: what it does not state has its default."""
    path = tmp_path / "old.table.json"
    path.write_text(
        '{"schema_version": 1, "target": "cpu", "fingerprint": {"cpu": "x"}, "overhead": {"input_ns_per_byte": 0.5, '
        '"output_ns_per_byte": 1, "intercept_ns": 3, "condition_number": 9}, "correction": {"scale": 1.1, '
        '"boundary_ns": 20}, "entries": [{"op": "Conv", "configuration": {"kernel": [3, 3]}, "unit": "cpu1", '
        '"latency_ns": 5, "interval_ns": [4, 6], "samples_ns": [4, 5, 6], "source": "measured"}]}'
    )
    read = read_table(path)
    assert read.units == ("cpu1",)
    assert read.entries[0].deviation_ns == pytest.approx(1 / 1.645, rel=1e-3)
    assert read.correction is None
    assert ["of an earlier version" in warning for warning in read.warnings] == [True]


def test_a_correction_of_an_earlier_version_is_not_kept(tmp_path: Path) -> None:
    """Its terms were others: the table reads without it and its audit, says so, and is written in today's form."""
    path, again = tmp_path / "old.table.json", tmp_path / "new.table.json"
    audit = '{"correction": {"scale": 1.5}, "terms": ["scale"], "networks": [], "plain_error_ratio": 0.1}'
    path.write_text(
        '{"schema_version": 1, "target": "cpu", "fingerprint": {}, "entries": [], "warnings": ["drift"], '
        f'"correction": {{"scale": 1.5, "beyond_ratio": 0.54, "cache_bytes": 2097152}}, "audit": {audit}}}'
    )
    read = read_table(path)
    assert (read.correction, read.audit, read.warnings[0], len(read.warnings)) == (None, None, "drift", 2)
    write_record(again, read)
    assert read_table(again) == read


@pytest.mark.parametrize("wrong", [{"node_ns": -1.0}, {"class_factors": {"element": -0.1}}])
def test_no_term_of_a_correction_is_negative(wrong: dict[str, object]) -> None:
    """A node that takes time away, or layers that do, are refused by name."""
    with pytest.raises(ValueError, match="of a correction must be at least 0"):
        Correction(**wrong)  # type: ignore[arg-type]


def test_one_entry_a_configuration(tmp_path: Path) -> None:
    """A file with two entries of one configuration is refused: nobody knows which one counts."""
    write_record(tmp_path / "twice.table.json", table(entry(1), entry(2, unit="cpu2"), entry(3)))
    with pytest.raises(InputError, match=r"\$\.entries\[2\] \(Conv\) has the configuration of an earlier entry"):
        read_table(tmp_path / "twice.table.json")


def test_how_wide_its_intervals_are() -> None:
    """The middle one of all that take time; none where nothing does."""
    assert table(entry(2), entry(10), entry(50), entry(0)).interval_ratio == pytest.approx(0.1)
    assert table(entry(0)).interval_ratio is None
    assert table().interval_ratio is None
