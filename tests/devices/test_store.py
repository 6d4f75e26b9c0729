"""Measurements kept between plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framefit import GraphBuilder, Model
from framefit.core.latency_table import LatencyTable
from framefit.core.workload import MachineSettings
from framefit.devices.host import fingerprint
from framefit.devices.measure import Measurement
from framefit.devices.store import MeasurementStore
from framefit.testing import small_network

CPU = MachineSettings()
SAMPLES = np.asarray([5, 3, 4, 8], np.int64)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tables."""
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path))
    return tmp_path / "tables"


def other_network() -> Model:
    """Another content."""
    b = GraphBuilder("other")
    b.output(b.op("Relu", b.input("x", (1, 4))), "y")
    return b.build()


def filled() -> MeasurementStore:
    """A store that knows the small network."""
    store = MeasurementStore(CPU)
    store.add("alone", [(small_network(), "cpu1", Measurement(SAMPLES))])
    return store


def test_later_plans_find_what_was_measured(tables: Path) -> None:
    """All samples come back in order, found by the segment's content, from a table that names the machine."""
    filled()
    found = MeasurementStore(CPU).find(small_network(), "cpu1", "alone", 4)
    assert found is not None
    assert found.samples_ns.tolist() == SAMPLES.tolist()
    assert found.median_ns == 4
    (file,) = tables.iterdir()
    assert file.name.endswith(".table.json")
    from framefit.core.files import read_record

    table = read_record(file, LatencyTable)
    assert fingerprint().items() <= table.fingerprint.items()
    (entry,) = table.entries
    assert (entry.op, entry.unit, entry.latency_ns, entry.samples_ns) == ("segment", "cpu1", 4, (5, 3, 4, 8))


@pytest.mark.usefixtures("tables")
def test_nothing_else_is_found() -> None:
    """Another content, unit, company or provider, or more samples than there are, find nothing."""
    store = filled()
    assert store.find(other_network(), "cpu1", "alone", 1) is None
    assert store.find(small_network(), "cpu2", "alone", 1) is None
    assert store.find(small_network(), "cpu1", "beside a big one", 1) is None
    assert store.find(small_network(), "cpu1", "alone", 5) is None
    assert (
        MeasurementStore(MachineSettings(providers=("OtherProvider",))).find(small_network(), "cpu1", "alone", 1)
        is None
    )


@pytest.mark.usefixtures("tables")
def test_a_fresh_store_forgets_nothing_for_others() -> None:
    """A plan that measures anew ignores old samples, but keeps them, and replaces only what it measured."""
    filled()
    fresh = MeasurementStore(CPU, fresh=True)
    assert fresh.find(small_network(), "cpu1", "alone", 1) is None
    fresh.add("alone", [(other_network(), "cpu1", Measurement(np.asarray([9])))])
    assert fresh.find(other_network(), "cpu1", "alone", 1) is not None
    later = MeasurementStore(CPU)
    assert later.find(small_network(), "cpu1", "alone", 4) is not None
    assert later.find(other_network(), "cpu1", "alone", 1) is not None
    later.add("alone", [(small_network(), "cpu1", Measurement(np.asarray([7, 7])))])
    replaced = MeasurementStore(CPU).find(small_network(), "cpu1", "alone", 1)
    assert replaced is not None
    assert replaced.samples_ns.tolist() == [7, 7]


@pytest.mark.parametrize("content", ["", "{", '{"schema_version": 2}', '{"target": "cpu", "entries": 3}'])
def test_an_unreadable_table_is_measured_anew(tables: Path, content: str) -> None:
    """A damaged table, or another version's, holds nothing, and is replaced."""
    filled()
    (file,) = tables.iterdir()
    file.write_text(content)
    store = MeasurementStore(CPU)
    assert store.find(small_network(), "cpu1", "alone", 1) is None
    store.add("alone", [(small_network(), "cpu1", Measurement(SAMPLES))])
    assert MeasurementStore(CPU).find(small_network(), "cpu1", "alone", 4) is not None


@pytest.mark.usefixtures("tables")
def test_drift_is_kept_with_what_it_touched() -> None:
    """Numbers that were measured while the machine's speed changed say so to later plans; others do not."""
    store = MeasurementStore(CPU)
    store.add_numbers("pieces", {"model": "a"}, "cpu1", [1, 2, 3], drifted=True)
    store.add_numbers("pieces", {"model": "b"}, "cpu1", [4])
    later = MeasurementStore(CPU)
    assert later.find_numbers("pieces", {"model": "a"}, "cpu1") == (1, 2, 3)
    assert [later.drifted("pieces", {"model": model}, "cpu1") for model in "abc"] == [True, False, False]
