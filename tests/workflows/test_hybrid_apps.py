"""Models with trees in an ``app.toml``: planned, simulated and run like any other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from framefit import GraphBuilder, InputError, Model, estimate, measure, plan, run, simulate
from framefit.core.trees import Forest
from framefit.devices.pieces import HostDevice
from framefit.testing import arrays_for
from framefit.trees.exporting import with_trees
from trees_cases import stand_in
from workloads import no_noise, small, write_app, write_models, write_target

FRAMES = 8
RATE_HZ = 250  # on the board the network takes 5.1 ms, and 2.1 ms with trees
SLOW = "clock_mhz = 1\nmacs_per_cycle = { fp32 = 64 }\nvector_lanes = 16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, the same with trees in place of a residual block, a board, and a camera."""
    folder = write_models(tmp_path_factory.mktemp("hybrid"))
    b = GraphBuilder("net", 2)
    x = b.conv(b.input("image", (1, 3, 16, 16)), 16, stride=2, activation="Relu")
    y = b.op("Relu", b.op("Add", b.conv(b.conv(x, 16, activation="Relu"), 16), x))
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", y)), 10), "classes")
    network = b.build()
    tensors = {tensor.name: tensor for layer in network.layers for tensor in layer.outputs}
    ensemble = stand_in(np.random.default_rng(1), tensors[x], tensors[y], kind="vector", trees=16)
    network.save(folder / "net.onnx")
    with_trees(network, Forest(model="net", ensembles=(ensemble,))).save(folder / "hybrid.onnx")
    write_target(folder, processor=SLOW)
    frames = np.random.default_rng(1).standard_normal((FRAMES, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "camera.npz", frames=frames)
    return folder


def _app(folder: Path, name: str, **given: str | float | None) -> Path:
    camera = f'source = "{folder / "camera.npz"}"\narray = "frames"'
    sink = f'[[outputs]]\nmodel = "{name}"\nsink = "{name}-classes.npz"\n'
    keys = {"rate_hz": RATE_HZ, "guard_ms": None, "schedule": "", "stream": camera, "more": sink} | given
    return write_app(folder, priority=(name,), **keys)


def _expected(folder: Path) -> np.ndarray:
    """Classes of all frames, launched one by one."""
    device, model = HostDevice(), Model.load(folder / "hybrid.onnx")
    arrays = arrays_for(model)
    binding = device.compile(model, device.target.units[0].name, "hybrid").bind(arrays)
    found = []
    for frame in np.load(folder / "camera.npz")["frames"]:
        arrays["image"][0] = frame
        device.submit(binding)
        found.append(arrays["classes"].copy())
    return np.concatenate(found)


def test_trees_fit_a_window_that_the_network_did_not(folder: Path, tmp_path: Path) -> None:
    """A board whose window is too short for the network meets every deadline with trees in it."""
    target = str(folder / "target.toml")
    network = plan(_app(folder, "net", background=(), target=target)).timetable
    hybrid = plan(_app(folder, "hybrid", background=(), target=target))
    assert not network.feasible
    assert hybrid.timetable.feasible
    taken = [timetable.models[0].segments[0].median_ns for timetable in (hybrid.timetable, network)]
    assert taken[0] < 1e9 / RATE_HZ < taken[1]
    metrics = simulate(hybrid, windows=FRAMES, output=tmp_path / "run").metrics
    (told,) = metrics.models
    assert (told.completed, told.missed) == (FRAMES, 0)


def test_trees_are_a_segment(folder: Path) -> None:
    """Cut as a background model, the trees are a layer between two others, and the joined segments change nothing."""
    short = str(write_target(folder, "short.toml", processor=SLOW.replace("= 1\n", "= 4\n")))
    app = write_app(
        folder,
        priority=(),
        background=("hybrid:5",),
        rate_hz=1000,
        guard_ms=None,
        schedule='segmentation = "equal"',
        stream='source = "synthetic"',
        target=short,
    )
    found = plan(app)
    (model,) = found.timetable.models
    assert found.timetable.feasible
    assert model.max_relative_difference == 0
    (task,) = found.opened().models
    assert "Trees" in {layer.op for layer in task.execution.model.layers}


@pytest.mark.timed
def test_a_table_of_this_machine_has_trees(folder: Path) -> None:
    """Measured like any other layer; with them the hybrid is estimated, and planned without being compiled."""
    path = folder / "cpu.table.json"
    table = measure([small(), Model.load(folder / "hybrid.onnx")], repeats=20, audit="none", output=path)
    (trees,) = (entry for entry in table.entries if entry.op == "Trees")
    assert table.unmeasured == ()
    told = estimate(folder / "hybrid.onnx", table)
    assert told.coverage_ratio == 1
    summed = estimate(folder / "hybrid.onnx", msgspec.structs.replace(table, networks=()))  # layers not scaled
    (layer,) = (layer for layer in summed.layers if layer.op == "Trees")
    assert layer.latency_ns >= trees.latency_ns, "with the copy of what they make into the runtime's layout"
    found = plan(_app(folder, "hybrid", background=(), rate_hz=20, guard_ms=1.0, table=path.name)).timetable
    assert "nothing was measured" in found.reasons[0]
    assert found.models[0].segments[0].median_ns == told.measured_in_turn_ns
    split = plan(write_app(folder, background=("hybrid",), table=path.name, last="always_split = true"))
    assert len(split.timetable.model("hybrid").segments) > 1
    task = next(task for task in split.opened().models if task.name == "hybrid")
    assert task.difference() == 0
    bare = msgspec.structs.replace(table, entries=tuple(entry for entry in table.entries if entry is not trees))
    with pytest.raises(InputError, match="no entry of Trees"):
        estimate(folder / "hybrid.onnx", bare)


def test_a_hybrid_is_cut_on_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what the runtime makes of its layers and the trees; the joined segments change nothing."""
    no_noise(monkeypatch)
    found = plan(write_app(folder, background=("hybrid",), last="always_split = true"), cache=False)
    model = found.timetable.model("hybrid")
    task = next(task for task in found.opened().models if task.name == "hybrid")
    assert len(model.segments) > 1
    assert model.max_relative_difference == 0
    assert task.execution.model.lowered
    assert "Trees" in {layer.op for layer in task.execution.model.layers}


@pytest.mark.timed
def test_a_hybrid_runs_on_this_machine(folder: Path, tmp_path: Path) -> None:
    """Beside a background model, on the beat: each frame gives what its launch alone gives."""
    app = _app(folder, "hybrid", background=("chain",), rate_hz=20, guard_ms=1.0)
    done = run(app, windows=FRAMES, output=tmp_path / "run")
    told = next(model for model in done.metrics.models if model.name == "hybrid")
    assert told.completed
    with np.load(folder / "hybrid-classes.npz") as found:
        expected = _expected(folder)[found["frame"]]
        assert len(expected) == told.completed
        np.testing.assert_array_equal(found["classes"].reshape(expected.shape), expected)
