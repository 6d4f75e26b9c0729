"""Where durations come from: the model, a table, a function."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from targets import convolution, described, only

from framefit import InputError
from framefit.core.files import write_record
from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.core.model import configuration
from framefit.core.target import Cost, Unit
from framefit.devices.npu.costs import cost_source, layer_times
from networks import NETWORKS

VIEWS = ("Flatten", "Identity")


def tabled(path: Path, *, unit: str = "board", latency_ns: int = 12_345):
    """A target whose table knows one convolution."""
    model = convolution(8, 16, 10)
    entry = LatencyEntry(
        op="Conv",
        configuration=configuration(model.nodes[0]),
        unit=unit,
        latency_ns=latency_ns,
        interval_ns=(latency_ns, latency_ns),
    )
    write_record(path, LatencyTable(target="board", fingerprint={}, entries=(entry,)))
    return replace(described(), cost=Cost(source="table", table=str(path)))


def test_the_cycle_model_is_the_default() -> None:
    """A target without [cost] is priced by its description."""
    found = only(cost_source(described()).layers(convolution(8, 16, 10)))
    assert (found.cycles, found.bound) == (1800, "compute")


def test_a_table_is_found_by_configuration(tmp_path: Path) -> None:
    """Its duration is what the layer takes, told in cycles of 100 MHz."""
    source = cost_source(tabled(tmp_path / "board.table.json"))
    found = only(source.layers(convolution(8, 16, 10)))
    assert (found.latency_ns, found.cycles, found.bound) == (12_345, 1235, "table")
    assert found.macs == 16 * 100 * 72


def test_a_layer_that_is_not_in_the_table_is_refused(tmp_path: Path) -> None:
    """Never a silent zero: layer, operator, unit and file are named."""
    source = cost_source(tabled(tmp_path / "board.table.json"))
    with pytest.raises(InputError, match=r"board\.table\.json: no entry for layer Conv_1 \(Conv\) on unit 'board'"):
        source.layers(convolution(8, 17, 10))


def test_another_units_entry_does_not_count(tmp_path: Path) -> None:
    """An entry of one unit says nothing about another."""
    with pytest.raises(InputError, match="no entry"):
        cost_source(tabled(tmp_path / "board.table.json", unit="other")).layers(convolution(8, 16, 10))


def test_a_function_prices_each_layer() -> None:
    """It is called with layer, unit and target; views stay free."""
    target = replace(described(), cost=Cost(source="function", function="mine:price"))
    seen = []

    def price(layer, unit, target):
        seen.append((layer.name, unit, target.name))
        return 1000.5

    model = NETWORKS["plain"]()
    layers = cost_source(target, function=price).layers(model)
    assert {layer.latency_ns for layer in layers if layer.op not in VIEWS} == {1001}
    assert [layer.cycles for layer in layers if layer.op in VIEWS] == [0, 0]
    assert [name for name, *_ in seen] == [layer.name for layer in model.layers if layer.op not in VIEWS]
    assert {tuple(rest) for _, *rest in seen} == {("board", "board")}


@pytest.mark.parametrize(
    ("price", "message"),
    [
        (lambda *_: 1 / 0, "mine:price failed: ZeroDivisionError"),
        (lambda *_: -1, r"mine:price gave -1\.0"),
        (lambda *_: float("nan"), "mine:price gave nan"),
    ],
)
def test_a_function_that_fails_is_named(price, message: str) -> None:
    """With the layer it was asked for."""
    target = replace(described(), cost=Cost(source="function", function="mine:price"))
    with pytest.raises(InputError, match=f"layer Conv_1: {message}"):
        cost_source(target, function=price).layers(convolution(8, 16, 10))


def test_such_sources_know_no_sparsity(tmp_path: Path) -> None:
    """Ratios are refused rather than ignored."""
    source = cost_source(tabled(tmp_path / "board.table.json"))
    with pytest.raises(InputError, match="does not model sparsity"):
        source.layers(convolution(8, 16, 10), weight_sparsity=0.5)


def test_times_of_each_unit() -> None:
    """What a simulated device asks for: nanoseconds of each layer, on the unit that is named."""
    target = described(units=(Unit(name="fast"), Unit(name="slow", speed_ratio=0.5)))
    times = layer_times(target)
    model = convolution(8, 16, 10)
    assert times(model, "fast") == [18_000]
    assert times(model, "slow") == [36_000]
