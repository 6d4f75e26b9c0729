"""OpenVINO as a device: its processor, and on it the way in which a GPU or an NPU is launched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import framefit
from framefit.core.model import AUXILIARY_KINDS, Auxiliary, AuxiliaryKind, GraphBuilder, Model, with_auxiliary
from framefit.core.target import Target, Unit, resolve_target
from framefit.core.workload import MachineSettings
from framefit.devices.device import Device
from framefit.devices.host import pinned
from framefit.devices.openvino import OpenVinoDevice
from framefit.devices.registry import capabilities_of, open_device
from framefit.errors import DeviceError, InputError
from framefit.testing import DeviceConformance, arrays_for, small_network
from networks import NETWORKS, Runner, difference, random_inputs

pytest.importorskip("openvino", reason="the extra 'openvino' is not installed")

ONE = Target(name="openvino:CPU", kind="openvino", units=(Unit(name="cpu0", device="CPU"),))
TWO = Target(name="two", kind="openvino", units=tuple(Unit(name=f"cpu{n}", core=n, device="CPU") for n in range(2)))


class TestOpenVinoDevice(DeviceConformance):
    """It keeps the protocol on the processor."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> OpenVinoDevice:
        """One core."""
        return OpenVinoDevice(ONE, cache=cache, trace_events=trace_events)

    def make_two(self, cache: Path) -> Device:
        """Two cores."""
        return OpenVinoDevice(TWO, cache=cache)


class TestOpenVinoThatWaits(DeviceConformance):
    """And where launches are started and waited for, as on a GPU or an NPU: they can be ended."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> OpenVinoDevice:
        """One unit."""
        return OpenVinoDevice(ONE, cache=cache, trace_events=trace_events, waits=True)

    def test_it_ends_launches(self, tmp_path: Path) -> None:
        """Which the processor's own launches do not claim."""
        assert self.make(tmp_path).capabilities.ends_launches
        assert not OpenVinoDevice(ONE, cache=tmp_path).capabilities.ends_launches


@pytest.mark.parametrize("name", ["residual", "lstm", "attention", "quantised", "unet"])
def test_outputs_are_the_models_own(name: str, tmp_path: Path) -> None:
    """In float32, and within 1e-4 of ONNX Runtime's."""
    model, device = NETWORKS[name](), OpenVinoDevice(ONE, cache=tmp_path)
    feeds, arrays = random_inputs(model, 0), arrays_for(model)
    for key, array in feeds.items():
        arrays[key][...] = array
    binding = device.compile(model, "cpu0", "net").bind(arrays)
    device.submit(binding)
    found = {tensor.name: binding.output(tensor.name) for tensor in model.outputs}
    assert difference(Runner(model).whole(feeds), found) <= (0.05 if name == "quantised" else 1e-4)


def test_output_whose_shape_depends_on_the_data(tmp_path: Path) -> None:
    """It has the shape of the latest launch."""
    b = GraphBuilder("positions")
    x = b.op("Relu", b.input("x", (1, 6)))
    b.output(x, "positive")
    b.output(b.op("NonZero", x), "where")
    model, device = b.build(), OpenVinoDevice(ONE, cache=tmp_path)
    arrays = arrays_for(model)
    binding = device.compile(model, "cpu0", "positions").bind(arrays)
    for row in ([1, -1, 0, 2, 0, 3], [0, 0, -1, 0, 5, 0]):
        arrays["x"][...] = row
        device.submit(binding)
        np.testing.assert_array_equal(binding.output("where"), np.nonzero(np.maximum([row], 0)))


def test_fusions_are_what_one_operator_executes(tmp_path: Path) -> None:
    """A convolution belongs to the normalisation and activation that it takes in, though OpenVINO drops its name."""
    model = small_network()
    (first, *_) = OpenVinoDevice(ONE, cache=tmp_path).fusions(model)
    assert first == ("Conv_1", "BatchNormalization_1", "Relu_1")


def test_layer_times_find_the_heavy_layer(tmp_path: Path) -> None:
    """A convolution of a hundred times the work takes most of the launch's time."""
    b = GraphBuilder("uneven", 3)
    x = b.conv(b.input("image", (1, 16, 48, 48)), 4, kernel=1, activation="Relu")
    b.output(b.op("Tanh", b.conv(x, 128, kernel=7)), "y")
    model, device = b.build(), OpenVinoDevice(ONE, cache=tmp_path)
    layers = model.grouped(device.fusions(model)).layers
    times = np.median(device.layer_times_ns(model, "cpu0", 9), axis=0)
    heavy = next(i for i, layer in enumerate(layers) if any("Conv_2" in node for node in layer.nodes))
    assert times[heavy] > 0.5 * times.sum() > 0


def test_settings_choose_cores() -> None:
    """A unit for each; what is ONNX Runtime's is refused by name."""
    device = open_device("openvino:CPU", settings=MachineSettings(cores=(1, 0)))
    assert [(unit.name, unit.core, unit.preemptive) for unit in device.target.units] == [
        ("cpu1", 1, True),
        ("cpu0", 0, True),
    ]
    with pytest.raises(InputError, match="belong to ONNX Runtime"):
        open_device("openvino:CPU", settings=MachineSettings(providers=("CUDAExecutionProvider",)))


def test_options_of_a_unit(tmp_path: Path) -> None:
    """They count for the fingerprint; one that the device does not have is refused with the nearest one."""
    path = tmp_path / "mine.toml"
    text = 'name = "mine"\nkind = "openvino"\n[[units]]\nname = "a"\ncore = 1\ndevice = "CPU"\noptions = { %s }\n'
    path.write_text(text % 'EXECUTION_MODE_HINT = "ACCURACY"')
    assert "EXECUTION_MODE_HINT=ACCURACY" in str(open_device(path).fingerprint()["units"])
    path.write_text(text % 'EXECUTION_MODE_HIN = "ACCURACY"')
    with pytest.raises(InputError, match="no property 'EXECUTION_MODE_HIN'; did you mean 'EXECUTION_MODE_HINT'"):
        open_device(path)


def test_its_threads_are_not_left_on_a_core_that_is_pinned_to(tmp_path: Path) -> None:
    """They may run on every core, so that a run can have its own to itself."""
    target = resolve_target("openvino:CPU")
    cores = os.sched_getaffinity(0)
    for waits in (False, True):
        with pinned(max(cores)):
            device = OpenVinoDevice(target, cache=tmp_path, waits=waits)
            model = small_network()
            handle = device.compile(model, device.target.units[0].name, "net")
            device.submit(handle.bind(arrays_for(model)))
    assert all(os.sched_getaffinity(int(thread.name)) == cores for thread in Path("/proc/self/task").iterdir())


def test_a_device_that_is_not_here() -> None:
    """Its driver may be missing: exit code 2, with the devices that there are."""
    with pytest.raises(InputError, match="finds no device 'NPU7' here") as raised:
        open_device("openvino:NPU7")
    assert "CPU" in str(raised.value.remedy)


def test_what_it_cannot_compile_is_named(tmp_path: Path) -> None:
    """In a line, with the operator."""
    b = GraphBuilder("foreign")
    b.output(b.op("NoSuchOperator", b.input("x", (1, 4)), domain="mine"), "y")
    with pytest.raises(DeviceError, match=r"OpenVINO cannot compile it for CPU: .*NoSuchOperator"):
        OpenVinoDevice(ONE, cache=tmp_path).compile(b.build(), "cpu0", "net")


def test_without_openvino_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's name and capabilities are known all the same."""
    from framefit.devices import openvino

    openvino._core.cache_clear()
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert capabilities_of(resolve_target("openvino:CPU")).runs_on_host
    with pytest.raises(InputError, match=r"pip install 'framefit\[openvino\]'"):
        open_device("openvino:CPU")
    openvino._core.cache_clear()


def _app(folder: Path, model: Model) -> Path:
    model.save(folder / "net.onnx")
    app = folder / "app.toml"
    app.write_text(
        'target = "openvino:CPU"\nrate_hz = 100\n[schedule]\nguard_ms = 0.3\n'
        '[[models]]\nname = "net"\npath = "net.onnx"\n'
    )
    return app


@pytest.mark.timed
def test_it_is_planned_for_run_and_measured(tmp_path: Path) -> None:
    """By the same verbs as any other device, with the same words."""
    app = _app(tmp_path, NETWORKS["residual"]())
    framefit.plan(app, output=tmp_path / "plan.json")
    result = framefit.run(tmp_path / "plan.json", windows=5, output=tmp_path / "run")
    assert result.metrics.models[0].max_relative_difference <= 1e-4
    table = framefit.measure(NETWORKS["residual"](), target="openvino:CPU", repeats=20, audit="none")
    assert table.target == "openvino:CPU"
    assert framefit.estimate(NETWORKS["residual"](), table).coverage_ratio == 1


@pytest.mark.parametrize("kind", AUXILIARY_KINDS)
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_layer_before_an_auxiliary_one_does_all_of_its_work(kind: AuxiliaryKind, stride: int, tmp_path: Path) -> None:
    """OpenVINO moves a strided 1x1 convolution's stride into the layer before it, which then takes less time."""
    b = GraphBuilder("layer", 1)
    b.output(b.conv(b.input("image", (1, 3, 16, 16)), 8, activation="Relu"), "y")
    model = with_auxiliary(b.build(), [Auxiliary(kind=kind, stride=stride)], tensor="y")
    compiled = OpenVinoDevice(ONE, cache=tmp_path)._compiled(model, ONE.units[0], "x")
    shapes = [tuple(op.output(0).shape) for op in compiled.get_runtime_model().get_ordered_ops() if op.outputs()]
    assert (1, 8, 16, 16) in shapes
