"""Measuring as a user asks for it: targets, grids, files, resuming, and the CPU itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import framefit
from framefit import InputError, measure
from framefit.core.latency_table import read_table
from framefit.core.model import configuration
from framefit.core.workload import MachineSettings
from framefit.devices.host import available_cores
from framefit.devices.ort import OrtDevice
from framefit.latency import fusion
from framefit.latency.estimate import open_target
from framefit.latency.subjects import GridSpec, LayerGrid
from networks import NETWORKS

GRID = """
[[layers]]
op = "Conv"
shapes = [[1, 16, 32, 32]]
channels = [16, 32]
kernel = [1, 3]
activation = ["Relu"]

[[layers]]
op = "Add"
shapes = [[1, 16, 32, 32]]
inputs = 2
"""


def test_a_table_serves_other_networks(tmp_path: Path) -> None:
    """What was measured of one is found by configuration, and a described target can be priced from it."""
    table = measure("detector", target="vpu", repeats=20, audit="none", output=tmp_path / "vpu.table.json")
    model = framefit.Model.load(_saved(tmp_path))
    found = framefit.estimate(model, tmp_path / "vpu.table.json", fallback=True)
    assert 0 <= found.coverage_ratio < 1
    assert read_table(tmp_path / "vpu.table.json") == table


def _saved(folder: Path) -> Path:
    NETWORKS["residual"]().save(folder / "residual.onnx")
    return folder / "residual.onnx"


def test_a_grid_needs_no_model(tmp_path: Path) -> None:
    """An entry a point; both can be given together."""
    (tmp_path / "grid.toml").write_text(GRID)
    table = measure(grid=tmp_path / "grid.toml", target="vpu", repeats=10)
    assert sorted(entry.op for entry in table.entries) == ["Add", *["Conv+Relu"] * 4]
    both = measure(NETWORKS["residual"](), grid=tmp_path / "grid.toml", target="vpu", repeats=10, audit="none")
    assert len(both.entries) > len(table.entries)
    for entry in table.entries:
        assert both.find(entry.op, entry.configuration, entry.unit) is not None


def test_weights_as_inputs_are_measured_as_constants(tmp_path: Path) -> None:
    """What is measured is faster than a plain session of such a file, and the table says by how much."""
    path = tmp_path / "exported.onnx"
    path.write_bytes(NETWORKS["plain"]().to_bytes(weights_as_inputs=True))
    assert framefit.Model.load(path).weight_inputs > 1
    table = measure(path, repeats=5, audit="none")
    (warning,) = (warning for warning in table.warnings if "a plain session of that file is" in warning)
    assert re.search(r"exported: \d+ weights are inputs .* is \d+\.\d times slower", warning)
    assert "inputs of its graph" not in " ".join(measure(NETWORKS["plain"](), repeats=5, audit="none").warnings)


def test_several_models_share_their_layers() -> None:
    """Equal configurations are measured once."""
    one, two = NETWORKS["residual"](), NETWORKS["plain"]()
    table = measure([one, two, one], target="vpu", repeats=5, audit="none")
    keys = [(entry.op, str(entry.configuration)) for entry in table.entries]
    assert len(keys) == len(set(keys))
    for model in (one, two):
        device = open_target("vpu")
        grouped = model.grouped(device.fusions(model))
        for layer, nodes in zip(grouped.layers, grouped.nodes, strict=True):
            assert table.find(layer.op, configuration(nodes), "vpu0") is not None


def test_an_interrupted_table_is_resumed(tmp_path: Path) -> None:
    """What was measured is in the file; going on completes it, another device's is refused."""
    path, calls = tmp_path / "t.table.json", iter(range(10_000))
    model = NETWORKS["residual"]()
    part = measure(model, target="vpu", repeats=50, audit="none", output=path, stop=lambda: next(calls) > 600)
    done = {len(entry.samples_ns) for entry in part.entries}
    assert max(done) < 50
    whole = measure(model, target="vpu", repeats=50, audit="none", output=path, resume=True)
    assert {len(entry.samples_ns) for entry in whole.entries} == {50}
    assert read_table(path) == whole
    with pytest.raises(InputError, match="another device: target: 'vpu' in the table, 'edge-8' here"):
        measure(model, target="edge-8", repeats=50, output=path, resume=True)
    with pytest.raises(InputError, match="already exists"):
        measure(model, target="vpu", repeats=5, output=path)


def test_time_can_be_limited() -> None:
    """On the device's clock: what is complete by then is the table."""
    model = NETWORKS["residual"]()
    table = measure(model, target="vpu", repeats=10_000, max_seconds=0.2)
    assert 5 <= len(table.entries[0].samples_ns) < 1000


def test_what_is_one_layer_can_be_measured_too() -> None:
    """The groups that the device would tell, found from start and end alone."""
    model = NETWORKS["residual"]()
    told = measure(model, target="meteor-lake", repeats=5, audit="none")
    found = measure(model, target="meteor-lake", repeats=1000, fusions="measured", audit="none")
    assert [entry.op for entry in found.entries] == [entry.op for entry in told.entries]


def test_measured_fusions_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file has of them is not searched again."""
    path, model = tmp_path / "t.table.json", NETWORKS["residual"]()
    first = measure(model, target="meteor-lake", repeats=20, fusions="measured", audit="none", output=path)
    tried: list[object] = []
    monkeypatch.setattr(fusion, "_tried", lambda *given: tried.extend(given[3]) or [])
    again = measure(model, target="meteor-lake", repeats=20, fusions="measured", audit="none", output=path, resume=True)
    assert again.fusions == first.fusions
    assert tried == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing to measure"),
        ({"model": "detector", "repeats": 0}, "repeats must be at least 1"),
        ({"model": "detector", "resume": True}, "no output is named"),
        ({"model": "detector", "unit": "dpu"}, "dpu"),
        ({"model": "detectr"}, "no built-in model"),
        ({"model": "detector", "target": "vpuu"}, "did you mean 'vpu'"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: dict, message: str) -> None:
    """With the remedy."""
    with pytest.raises(InputError, match=message) as caught:
        measure(**({"target": "vpu"} | arguments))
    assert caught.value.remedy


@pytest.mark.timed
@pytest.mark.parametrize("auxiliary", ["auto", "avgpool", "conv1x1", "conv3x3"])
def test_every_layer_of_a_network_is_measured_on_the_cpu(auxiliary: str) -> None:
    """Whole numbers, views, sums and attention; none is left out, and a heavy layer is told from a light one."""
    device = OrtDevice(MachineSettings(cores=available_cores()[-1:]))
    grid = GridSpec(
        layers=(
            LayerGrid(op="Conv", shapes=((1, 64, 32, 32),), channels=(64,), kernel=(3,)),
            LayerGrid(op="Conv", shapes=((1, 8, 32, 32),), channels=(8,), kernel=(1,)),
        )
    )
    table = measure(NETWORKS["attention"](), grid=grid, target=device, auxiliary=auxiliary, repeats=20, audit="none")
    assert not table.unmeasured
    heavy, light = (entry for entry in table.entries if entry.op == "Conv")
    assert heavy.latency_ns > 5 * light.latency_ns
    assert not heavy.below_noise
    assert table.overhead is not None
    assert table.fingerprint["threads"] == 1
