"""What sensors said while a table was measured."""

from __future__ import annotations

import io
from importlib import import_module

import pytest
from rich.console import Console

import framefit
from framefit.core.conditions import Conditions
from framefit.core.latency_table import LatencyTable, merged
from framefit.report.terminal import view
from framefit.testing import small_network


class Warming:
    """Sensors of a device that gets warm."""

    def __init__(self) -> None:
        self.celsius = 40.0

    def read(self) -> Conditions:
        """Ten degrees more each time; from 60 on it is held down."""
        self.celsius += 10
        clocks = {"0": 1500.0, "1": 600.0}
        return Conditions(
            time_ns=0, clocks_mhz=clocks, temperatures_c={"soc": self.celsius}, throttled=self.celsius >= 60
        )


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> LatencyTable:
    """Of this machine."""
    monkeypatch.setattr(import_module("framefit.latency.measure"), "Sensors", Warming)
    return framefit.measure(small_network(), target="cpu", repeats=20, audit="none")


def test_a_table_says_how_warm_the_device_was(table: LatencyTable) -> None:
    """Before and after, in the file and where it is shown, with a warning where heat held the device down."""
    assert table.conditions is not None
    before, after = table.conditions
    assert (before.hottest, after.hottest) == (("soc", 50), ("soc", 60))
    assert any("throttled when the measurement ended" in warning for warning in table.warnings)
    console = Console(width=200, file=io.StringIO(), no_color=True)
    console.print(view(table))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for word in ("50 \u00b0C (soc)", "60 \u00b0C (soc)", "600 to 1,500 MHz", "throttled after"):
        assert word in text


def test_tables_in_one_have_no_conditions(table: LatencyTable) -> None:
    """They were measured at different times."""
    assert merged([table, table]).conditions is None
    assert merged([table]).conditions == table.conditions


def test_a_described_device_has_no_sensors() -> None:
    """Those of this machine say nothing about it."""
    assert framefit.measure(small_network(), target="vpu", repeats=20, audit="none").conditions is None
