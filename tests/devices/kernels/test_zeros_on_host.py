"""Models with zeros on this machine: kernels where a measurement says that they are faster, else ONNX Runtime."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from framefit import GraphBuilder, InputError, Model, plan, run
from framefit.core.model import listing, with_weights
from framefit.core.workload import MachineSettings
from framefit.devices import pieces
from framefit.devices.device import Binding
from framefit.devices.kernel_times import kernel_times
from framefit.devices.kernels.selection import Comparison, lanes_here
from framefit.devices.measure import medians_ns
from framefit.devices.pieces import HostDevice
from framefit.errors import HangError
from framefit.report.terminal import view
from framefit.testing import DeviceConformance, arrays_for
from workloads import no_noise

TOLERANCE = 1e-4


def network(zeros: float = 0.8, *, middle: str = "Sigmoid", size: int = 16) -> Model:
    """Two pairs of convolutions with zeros in blocks, and between them an operator without a kernel."""
    b = GraphBuilder("zeros", 1)
    x = b.input("image", (1, 16, size, size))
    for part in range(2):
        for _ in range(2):
            x = b.op("Relu", b.op("Conv", x, b.weight((32, b.channels(x), 3, 3), 144), pads=[1] * 4))
        x = b.op(middle, x) if part == 0 else x
    b.output(b.op("GlobalAveragePool", x), "pooled")
    model, random = b.build(), np.random.default_rng(0)
    new = {}
    for name, array in listing(model).arrays.items():
        if array.ndim == 4:
            kept = random.random((len(array) // 16, *array.shape[1:])) >= zeros
            new[name] = array * np.repeat(kept, 16, axis=0)
    return with_weights(model, new)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what a comparison will find, the runtime's time over that of the kernels."""
    no_noise(monkeypatch)

    def decide(ratio: float) -> None:
        found = Comparison(kernels_ns=1.0, runtime_ns=ratio)
        monkeypatch.setattr(pieces, "compared", lambda kernels, runtime: (kernels(), runtime(), found)[2])

    return decide


def results(device: HostDevice, segments: list[Model]) -> dict[str, np.ndarray]:
    """Outputs of segments in turn, for one frame."""
    arrays = arrays_for(segments[0])
    for segment in segments:
        arrays |= {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in segment.outputs}
        binding = device.compile(segment, device.target.units[0].name, "net").bind(arrays)
        device.submit(binding)
    return arrays


def assert_same(made: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """As far as float32 goes."""
    assert np.abs(made["pooled"] - expected["pooled"]).max() <= TOLERANCE * np.abs(expected["pooled"]).max()


def devices(tmp_path: Path) -> tuple[HostDevice, HostDevice]:
    """With kernels and without."""
    without = HostDevice(MachineSettings(kernels="never"), cache=tmp_path / "without")
    return HostDevice(cache=tmp_path / "with"), without


class TestZerosConformance(DeviceConformance):
    """It keeps the protocol with kernels in a segment."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> HostDevice:
        """On the default core."""
        return HostDevice(cache=cache, trace_events=trace_events)

    def network(self) -> Model:
        """So many zeros that the kernels are faster on any machine."""
        return network(0.95)


def test_outputs_are_those_of_the_runtime(tmp_path: Path, decided: Callable[[float], None]) -> None:
    """Whole, and cut anywhere in the runtime's own graph."""
    decided(2.0)
    device, without = devices(tmp_path)
    model = network()
    expected = results(without, [model])
    assert_same(results(device, [model]), expected)
    lowered = device.lowered(model)
    assert lowered.lowered
    assert any(layer.nodes[0] in lowered.unlowered for layer in lowered.layers)
    for cut in lowered.legal_cuts:
        ends = [lowered.segment(0, cut.position - 1), lowered.segment(cut.position, len(lowered.layers) - 1)]
        assert_same(results(device, ends), expected)


def test_the_same_graph_is_cut_again(tmp_path: Path, decided: Callable[[float], None]) -> None:
    """A plan finds its operators: the decision is kept with the compiled code."""
    decided(2.0)
    model = network()
    first = HostDevice(cache=tmp_path).lowered(model)
    decided(0.5)
    assert HostDevice(cache=tmp_path).lowered(model).digest == first.digest
    assert HostDevice(cache=tmp_path / "other").lowered(model).digest != first.digest


def test_slower_kernels_are_not_used(tmp_path: Path, decided: Callable[[float], None]) -> None:
    """Then all is as without them."""
    decided(1.0)
    device, without = devices(tmp_path)
    model = network()
    assert device.lowered(model).digest == without.lowered(model).digest
    assert device.fusions(model) == without.fusions(model)


def test_few_zeros_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled or measured for a model without zeros in blocks."""
    monkeypatch.setattr(pieces, "compared", None)
    device, without = devices(tmp_path)
    dense = network(0.0)
    scattered = {name: array * (np.random.default_rng(0).random(array.shape) < 0.5) for name, array in arrays(dense)}
    for model in (dense, with_weights(dense, scattered)):
        assert device.lowered(model).digest == without.lowered(model).digest


def arrays(model: Model) -> list[tuple[str, np.ndarray]]:
    """Weights of convolutions."""
    return [(name, array) for name, array in listing(model).arrays.items() if array.ndim == 4]


def test_a_fused_layer_is_not_cut(tmp_path: Path, decided: Callable[[float], None]) -> None:
    """A convolution and its activation are one kernel."""
    decided(2.0)
    model = network()
    groups = HostDevice(cache=tmp_path).fusions(model)
    ops = {node.name: node.op for nodes in model.nodes for node in nodes}
    assert [tuple(ops[name] for name in group) for group in groups].count(("Conv", "Relu")) == 4


def submit_often(device: HostDevice, binding: Binding) -> None:
    """Ten launches."""
    for _ in range(10):
        device.submit(binding)


@pytest.mark.timed
def test_a_launch_ends_between_two_layers(tmp_path: Path, decided: Callable[[float], None]) -> None:
    """From another thread; the next launch runs."""
    decided(2.0)
    device = HostDevice(cache=tmp_path)
    unit = device.target.units[0].name
    model = network(0.3, middle="Relu", size=256)
    tensors = arrays_for(model) | {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in model.outputs}
    binding = device.compile(model, unit, "net").bind(tensors)
    usual = device.submit(binding).duration_ns
    timer = threading.Timer(usual / 4e9, device.terminate, [unit])
    timer.start()
    with pytest.raises(HangError):
        submit_often(device, binding)
    timer.join()
    assert device.submit(binding).duration_ns > 0


@pytest.mark.timed
def test_four_of_five_blocks_of_zeros_are_felt(tmp_path: Path) -> None:
    """On the stopwatch: in turn with the same model without kernels."""
    model = network(0.8, middle="Relu", size=32)
    bound = []
    for device in devices(tmp_path):
        tensors = arrays_for(model) | {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in model.outputs}
        bound.append((device, device.compile(model, device.target.units[0].name, "net").bind(tensors)))
    took = np.array([[device.submit(binding).duration_ns for device, binding in bound] for _ in range(100)])
    assert np.median(took[:, 1]) >= 1.5 * np.median(took[:, 0])


@pytest.mark.timed
def test_times_of_layers_add_up(tmp_path: Path) -> None:
    """What a few numbers of zeros took says what another number takes; what was measured is not measured again.

    It is measured before and after, as the machine's speed may change meanwhile.
    """
    names = [nodes[0].name for nodes in network(middle="Relu", size=48).nodes if nodes[0].op == "Conv"]
    sparse, device = network(0.9, middle="Relu", size=48), HostDevice(cache=tmp_path)
    (step,) = [network.kept_ratio(lanes_here()) for network in device.networks(sparse)]
    before = medians_ns([sparse], device)
    times = kernel_times(network(0.7, middle="Relu", size=48), names, tmp_path)
    after = medians_ns([sparse], device)
    assert set(times.layers_ns) == set(names)
    predicted = times.rest_ns + step * sum(times.layers_ns.values())
    assert np.mean([before, after]) == pytest.approx(predicted, rel=0.25)
    assert kernel_times(network(0.7, middle="Relu", size=48), names, tmp_path) == times


def test_a_run_can_do_without(tmp_path: Path, decided: Callable[[float], None]) -> None:
    """``--kernels never`` plans the runtime's own graph; a stored plan keeps its own."""
    decided(2.0)
    network().save(tmp_path / "net.onnx")
    app = tmp_path / "app.toml"
    app.write_text('rate_hz = 20\n[[models]]\nname = "net"\npath = "net.onnx"\npriority = "background"\n')
    plans = [plan(app, kernels=choice, output=str(tmp_path / choice)) for choice in ("auto", "never")]
    assert [len(made.device.networks(network())) for made in plans] == [2, 0]
    with pytest.raises(InputError, match="its kernels"):
        run(str(tmp_path / "auto"), kernels="never", windows=2)


@pytest.mark.parametrize("cut", [False, True])
def test_a_plan_names_the_layers(tmp_path: Path, decided: Callable[[float], None], cut: bool) -> None:
    """Where a model is cut, and where it runs whole, the kernels' layers are recorded and told."""
    decided(2.0)
    network(size=48).save(tmp_path / "net.onnx")
    app = tmp_path / "app.toml"
    how = 'priority = "background"\nalways_split = true\n' if cut else ""
    app.write_text(f'rate_hz = 20\n[[models]]\nname = "net"\npath = "net.onnx"\n{how}')
    made = plan(app)
    (model,) = made.timetable.models
    assert len(model.kernels) >= 4
    console = Console(file=io.StringIO(), width=200)
    console.print(view(made.timetable))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"execute {len(model.kernels)} of its layers" in " ".join(text.split())
