"""ONNX Runtime as a device."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from framefit.core.model import GraphBuilder, Model
from framefit.core.workload import DeviceOptions, MachineSettings, UnitEntry
from framefit.devices.host import available_cores, pinned
from framefit.devices.ort import OrtDevice
from framefit.errors import DeviceError, InputError
from framefit.testing import DeviceConformance, arrays_for, small_network
from networks import NETWORKS, Runner, difference, random_inputs


def results(device: OrtDevice, model: Model, feeds: dict[str, np.ndarray], unit: str = "") -> dict[str, np.ndarray]:
    """Copies of a model's outputs for one frame."""
    arrays = arrays_for(model)
    for name, array in feeds.items():
        arrays[name][...] = array
    binding = device.compile(model, unit or device.target.units[0].name, "net").bind(arrays)
    device.submit(binding)
    return {tensor.name: binding.output(tensor.name).copy() for tensor in model.outputs}


def heads() -> Model:
    """Convolutions beside each other, joined by what the runtime does not execute in its own layout."""
    b = GraphBuilder("heads", 3)
    image = b.input("image", (1, 16, 8, 8))
    b.output(b.op("Concat", *(b.conv(image, 16, activation="Relu") for _ in range(6)), axis=3), "joined")
    return b.build()


def cached_files(cache: Path) -> list[Path]:
    """Compiled segments in a cache."""
    return sorted(path for path in cache.rglob("*") if path.is_file())


class TestOrtDevice(DeviceConformance):
    """It keeps the protocol, and really computes."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> OrtDevice:
        """On the default core."""
        return OrtDevice(cache=cache, trace_events=trace_events)

    @pytest.fixture
    def device(self, tmp_path: Path) -> OrtDevice:
        """With a cache of its own."""
        return self.make(tmp_path)

    @pytest.mark.parametrize("make", [heads, NETWORKS["unet"], NETWORKS["attention"], NETWORKS["quantised"]])
    def test_what_the_runtime_makes_of_a_model_is_the_same_each_time(
        self, make: Callable[[], Model], tmp_path: Path
    ) -> None:
        """Without the cache of the device before, too: a stored plan is opened where that is gone."""
        model = make()
        made = [self.make(tmp_path / str(number)).lowered(model) for number in range(6)]
        again = self.make(tmp_path / "0").lowered(model)
        assert {one.digest for one in (*made, again)} == {made[0].digest}
        device, feeds = self.make(tmp_path), random_inputs(model, 0)
        assert difference(results(device, model, feeds), results(device, made[0], feeds)) < 1e-4

    def test_what_the_runtime_makes_needs_no_cache(self, tmp_path: Path) -> None:
        """A file in the place of the folder."""
        (tmp_path / "segments").write_text("")
        assert self.make(tmp_path).lowered(heads()).lowered

    @pytest.mark.parametrize("name", ["plain", "residual", "lstm", "attention", "two_ends", "branching", "quantised"])
    def test_outputs_are_the_runtimes_own(self, device: OrtDevice, name: str) -> None:
        """A bound session gives what a plain one gives, for two frames in a row, cached or not."""
        model = NETWORKS[name]()
        plain = Runner(model)
        for seed in (0, 1):
            feeds = random_inputs(model, seed)
            expected = plain.whole(feeds)
            tolerance = 0.05 if name == "quantised" else 1e-5  # int8 kernels may round otherwise
            assert difference(expected, results(device, model, feeds)) <= tolerance
            assert any(np.any(array) for array in expected.values())

    def test_output_whose_shape_depends_on_the_data(self, device: OrtDevice) -> None:
        """Such an output is read from each launch in its own shape."""
        b = GraphBuilder("positions")
        x = b.op("Relu", b.input("x", (1, 6)))
        b.output(x, "positive")
        b.output(b.op("NonZero", x), "where")
        model = b.build()
        arrays = arrays_for(model)
        assert set(arrays) == {"x", "positive"}
        binding = device.compile(model, self.unit(device), "positions").bind(arrays)
        for row in ([1, -1, 0, 2, 0, 3], [0, 0, -1, 0, 5, 0], [-1] * 6):
            arrays["x"][...] = row
            device.submit(binding)
            np.testing.assert_array_equal(binding.output("where"), np.nonzero(np.maximum([row], 0)))
            np.testing.assert_array_equal(binding.output("positive"), np.maximum([row], 0))

    def test_a_unit_a_core(self, tmp_path: Path) -> None:
        """Segments are compiled for the unit asked for; threads run them side by side."""
        device, model = OrtDevice(MachineSettings(cores=(4, 9)), cache=tmp_path), small_network()
        assert [(unit.name, unit.core) for unit in device.target.units] == [("cpu4", 4), ("cpu9", 9)]
        assert device.host_core == 4
        feeds = random_inputs(model, 0)
        expected = Runner(model).whole(feeds)
        bindings = {}
        for unit in ("cpu4", "cpu9"):
            arrays = arrays_for(model)
            arrays["image"][...] = feeds["image"]
            handle = device.compile(model, unit, f"net.{unit}")
            assert [operation.unit for operation in handle.operations] == [unit]
            bindings[unit] = handle.bind(arrays)

        def part(unit: str) -> None:
            for _ in range(300):
                device.submit(bindings[unit])

        threads = [threading.Thread(target=part, args=(unit,)) for unit in bindings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for binding in bindings.values():
            assert difference(expected, {"pooled": binding.output("pooled")}) <= 1e-5
        trace = device.events()
        assert len(trace) == 2 * 2 * 300
        for core in (4, 9):
            mine = trace.time_ns[trace.core == core]
            assert len(mine) == 2 * 300
            assert (np.diff(mine) >= 0).all()
        with pytest.raises(DeviceError, match="no unit 'cpu1'; units: cpu4, cpu9"):
            device.compile(model, "cpu1", "net")
        assert device.arrival_ns("cpu4", "cpu9", 10**9, 77) == 77

    def test_second_compile_comes_from_the_cache(self, tmp_path: Path) -> None:
        """A compiled segment is taken from its file; with another network's content there, that one runs."""
        models = []
        for seed in (1, 2):
            b = GraphBuilder("net", seed)
            b.output(b.conv(b.input("image", (1, 3, 8, 8)), 4), "feature")
            models.append(b.build())
        feeds = random_inputs(models[0], 0)
        expected = [results(OrtDevice(cache=tmp_path / str(i)), model, feeds) for i, model in enumerate(models)]
        assert difference(*expected) > 0.1
        (first,), (second,) = cached_files(tmp_path / "0"), cached_files(tmp_path / "1")
        assert first.name != second.name
        first.write_bytes(second.read_bytes())
        assert difference(expected[1], results(OrtDevice(cache=tmp_path / "0"), models[0], feeds)) <= 1e-6
        assert cached_files(tmp_path / "0") == [first]

    @pytest.mark.parametrize("kept", [0.0, 0.5, 0.95])
    def test_damaged_cache_file_is_compiled_anew(self, tmp_path: Path, kept: float) -> None:
        """Whatever is in the file, the network's outputs are right, and the file is whole again."""
        model = small_network()
        feeds = random_inputs(model, 0)
        expected = results(OrtDevice(cache=tmp_path), model, feeds)
        (file,) = cached_files(tmp_path)
        whole = file.read_bytes()
        file.write_bytes(whole[: int(kept * len(whole))] + b"no model" * (kept > 0))
        assert difference(expected, results(OrtDevice(cache=tmp_path), model, feeds)) <= 1e-6
        assert [path.stat().st_size for path in cached_files(tmp_path)] == [len(whole)]

    def test_default_cache_is_the_users(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Without a folder given, compiled segments go below FRAMEFIT_CACHE."""
        monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path / "mine"))
        device = OrtDevice()
        device.compile(small_network(), self.unit(device), "net")
        assert len(cached_files(tmp_path / "mine")) == 1

    def test_a_file_that_is_no_library_of_custom_operators(self, tmp_path: Path) -> None:
        """What ONNX Runtime says of it is passed on, with the file and what would be one."""
        (tmp_path / "ops.so").write_bytes(b"no library")
        settings = MachineSettings(device=DeviceOptions(custom_ops=(str(tmp_path / "ops.so"),)))
        with pytest.raises(InputError, match=r"custom operators of .*ops\.so: .+") as found:
            OrtDevice(settings)
        assert found.value.where == "$.device.custom_ops"
        assert "RegisterCustomOps" in str(found.value.remedy)

    def test_threads_of_a_unit_run_on_its_cores(self, tmp_path: Path) -> None:
        """The first core's thread launches; the pool's threads are on the others, wherever the session was made."""
        cores = available_cores()
        if len(cores) < 2:
            pytest.skip("one core only")
        device = OrtDevice(MachineSettings(units=(UnitEntry(name="both", cores=cores[:2]),)), cache=tmp_path)
        before = {task.name for task in Path("/proc/self/task").iterdir()}
        with pinned(cores[0]):
            handle = device.compile(small_network(), "both", "net")
        pool = {task.name for task in Path("/proc/self/task").iterdir()} - before
        assert handle.outputs
        assert [os.sched_getaffinity(int(task)) for task in pool] == [{cores[1]}]
        assert device.fingerprint()["threads"] == 2
        assert [unit.preemptive for unit in device.target.units] == [False]

    @pytest.mark.parametrize(
        ("entry", "says", "where"),
        [
            (UnitEntry(name="a", provider="CPUExecutionProvidr"), "did you mean 'CPUExecutionProvider'", ".provider"),
            (UnitEntry(name="a", provider="CPUExecutionProvider", options={"x": 1}), "has no options, but x", ""),
            (
                UnitEntry(name="a", provider="AzureExecutionProvider", device_id=1),
                "has no options, but device_id",
                "",
            ),
            (UnitEntry(name="a", threads=999), "unit 'a' needs 999 cores", ""),
        ],
    )
    def test_units_that_are_not_there(self, entry: UnitEntry, says: str, where: str) -> None:
        """The message names the unit's place in the file."""
        with pytest.raises(InputError, match=says) as found:
            OrtDevice(MachineSettings(units=(UnitEntry(name="first"), entry)))
        assert found.value.where == f"$.units[1]{where}"

    def test_unknown_provider(self) -> None:
        """A provider that is not there is refused, with the nearest and all available ones."""
        with pytest.raises(InputError, match=r"no provider 'CPUExecutionProvidr'; did you mean 'CPUExecution") as found:
            OrtDevice(MachineSettings(providers=("CPUExecutionProvidr",)))
        assert found.value.remedy is not None
        assert all(name in found.value.remedy for name in onnxruntime.get_available_providers())

    def test_fused_nodes_are_one_group(self, device: OrtDevice) -> None:
        """Convolution, batch norm and activation are fused; the pooling after them is not."""
        model = small_network()
        grouped = model.grouped(device.fusions(model))
        assert [layer.op for layer in grouped.layers] == ["Conv+BatchNormalization+Relu", "GlobalAveragePool+Identity"]

    def test_asking_for_fusions_leaves_the_cache_alone(self, device: OrtDevice, tmp_path: Path) -> None:
        """Only compiled segments are kept."""
        device.fusions(small_network())
        assert cached_files(tmp_path) == []

    def test_operator_that_the_runtime_does_not_know(self, device: OrtDevice, tmp_path: Path) -> None:
        """A model that cannot be compiled is a device error that names the segment and operator."""
        b = GraphBuilder("odd")
        b.output(b.op("NoSuchThing", b.op("Relu", b.input("x", (1, 4))), domain="nowhere"), "y")
        model = b.build()
        with pytest.raises(DeviceError, match="NoSuchThing") as found:
            device.compile(model, self.unit(device), "odd.0")
        assert found.value.where == "odd.0"
        assert cached_files(tmp_path) == []

    def test_launch_that_fails(self, device: OrtDevice) -> None:
        """A failure while it runs is a device error that names the segment, and leaves no packets."""
        b = GraphBuilder("gathering")
        x, index = b.input("x", (4, 2)), b.input("index", (1,), np.int64)
        b.output(b.op("Gather", x, index), "row")
        model = b.build()
        arrays = arrays_for(model)
        binding = device.compile(model, self.unit(device), "gathering").bind(arrays)
        device.submit(binding)
        assert len(device.events()) == 2
        arrays["index"][...] = 9
        with pytest.raises(DeviceError, match="out of data bounds") as found:
            device.submit(binding)
        assert found.value.where == "gathering"
        assert len(device.events()) == 0


def add_provider(monkeypatch: pytest.MonkeyPatch, *, starts: bool = True) -> list[dict[str, str]]:
    """Lets ONNX Runtime have one more provider, which executes nothing itself; the options of its sessions.

    As providers do, it ignores options that it does not know, refuses values that cannot be, and tells what it has.
    """
    sessions: list[dict[str, str]] = []
    session_class = onnxruntime.InferenceSession

    class Session(session_class):  # type: ignore[misc, valid-type]
        def __init__(self, source: Any, options: Any, *, providers: list[Any], **given: Any) -> None:
            self._fast = [provider[1] for provider in providers if provider[0] == "FastExecutionProvider"]
            assert given == {"enable_fallback": 0}
            if self._fast and not starts:
                raise RuntimeError("no driver")
            if self._fast and int(self._fast[0].get("speed", 0)) > 9:
                raise RuntimeError("speed must be at most 9")
            sessions.extend(self._fast)
            super().__init__(source, options, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return ["FastExecutionProvider"] * len(self._fast) + list(super().get_providers())

        def get_provider_options(self) -> dict[str, dict[str, str]]:
            known = {"device_id": "0", "precision": "f32", "speed": "1"}
            return {"FastExecutionProvider": known | {k: v for o in self._fast for k, v in o.items() if k in known}}

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["FastExecutionProvider", "CPUExecutionProvider"]
    )
    return sessions


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_library_of_custom_operators_is_loaded_for_each_session(tmp_path: Path) -> None:
    """Its entry point is called when the device is opened and for each session, and its content is a fact."""
    source, library = tmp_path / "ops.c", tmp_path / "ops.so"
    source.write_text(
        "#include <stdio.h>\n"
        "void* RegisterCustomOps(void* options, const void* api)\n"
        f'{{ FILE* log = fopen("{tmp_path}/log", "a"); fputs("called\\n", log); fclose(log); return 0; }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    settings = MachineSettings(device=DeviceOptions(custom_ops=(str(library),)))
    device = OrtDevice(settings, cache=tmp_path / "cache")
    assert (tmp_path / "log").read_text() == "called\n"
    device.compile(small_network(), device.target.units[0].name, "net")
    assert (tmp_path / "log").read_text() == "called\n" * 2
    facts = device.fingerprint()
    assert str(facts["custom_ops"]).startswith("ops.so:")
    assert "custom_ops" not in OrtDevice(cache=tmp_path).fingerprint()
    library.write_bytes(library.read_bytes() + b"other")
    assert OrtDevice(settings).fingerprint()["custom_ops"] != facts["custom_ops"]


def test_units_of_their_own(tmp_path: Path) -> None:
    """Each has its name, cores and threads; one with several threads is not interrupted; sessions are its own."""
    first, *rest = available_cores()
    entries = [UnitEntry(name="little", cores=(first,)), UnitEntry(name="wide", threads=len(rest))]
    if len(rest) < 1:
        pytest.skip("one core only")
    device = OrtDevice(MachineSettings(units=tuple(entries)), cache=tmp_path)
    units = {unit.name: (unit.core, unit.preemptive) for unit in device.target.units}
    assert units == {"little": (first, True), "wide": (rest[0], len(rest) == 1)}
    assert device.fingerprint()["units"] == f"little: providers, 1 thread; wide: providers, {entries[1].fact[17:]}"
    model = small_network()
    feeds = random_inputs(model, 0)
    expected = results(OrtDevice(cache=tmp_path), model, feeds)
    for unit in units:
        assert difference(expected, results(device, model, feeds, unit)) <= 1e-6
    assert len(cached_files(tmp_path)) == 3


@pytest.mark.parametrize(
    ("options", "says", "remedy"),
    [
        (
            {"precision": "f16", "spede": 2},
            "FastExecutionProvider has no option 'spede'; did you mean 'speed'",
            "speed",
        ),
        ({"precision": "f16", "speed": 11}, "does not take speed = '11': speed must be at most 9", "leave it out"),
    ],
)
def test_an_option_that_a_provider_does_not_take(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str | int], says: str, remedy: str
) -> None:
    """It is refused before anything is compiled, whether the provider ignores it or does not start with it."""
    add_provider(monkeypatch)
    entry = UnitEntry(name="a", provider="FastExecutionProvider", options=options)
    with pytest.raises(InputError, match=says) as found:
        OrtDevice(MachineSettings(units=(UnitEntry(name="first"), entry)))
    assert found.value.where == "$.units[1]"
    assert found.value.exit_code == 2
    assert remedy in str(found.value.remedy)


def test_options_that_a_provider_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They reach the session."""
    sessions = add_provider(monkeypatch)
    entry = UnitEntry(name="a", provider="FastExecutionProvider", device_id=1, options={"speed": 3})
    device = OrtDevice(MachineSettings(units=(entry,)), cache=tmp_path)
    assert device.compile(small_network(), "a", "net").outputs
    assert sessions[-1] == {"device_id": "1", "speed": "3"}


def test_a_provider_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its options are not to blame: the error is the device's, and nothing goes on without the provider."""
    add_provider(monkeypatch, starts=False)
    entry = UnitEntry(name="a", provider="FastExecutionProvider", options={"speed": 3})
    device = OrtDevice(MachineSettings(units=(entry,)), cache=tmp_path)
    with pytest.raises(DeviceError, match="no driver"):
        device.compile(small_network(), "a", "net")


_ARITHMETIC = """
import numpy as np
from framefit.core.model import GraphBuilder
from framefit.devices.device import allocate
from framefit.devices.ort import OrtDevice

b = GraphBuilder("double")
b.output(b.op("Add", *[b.input("x", (1, 64))] * 2), "y")
model, device = b.build(), OrtDevice()
arrays = {tensor.name: allocate(tensor) for tensor in (*model.inputs, *model.outputs)}
device.submit(device.compile(model, device.target.units[0].name, "net").bind(arrays))
print(float.fromhex("0x0.8p-1022") * 1.0 > 0)
"""


def test_callers_arithmetic_stays_as_it_was() -> None:
    """In a process of its own, numbers near zero count as before once a segment was compiled and run."""
    done = subprocess.run([sys.executable, "-c", _ARITHMETIC], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr


_FIRST_SESSION = """
import sys
from pathlib import Path
from typing import Any

import numpy as np

from framefit.testing import arrays_for
from framefit.core.model import GraphBuilder
from framefit.devices import host
from framefit.devices.ort import OrtDevice
from framefit.devices.ort import predictor

tiny = np.full((1, 64), 1e-40, np.float32)

def flushed():
    return not (tiny * np.float32(1)).any()

builder = GraphBuilder("halved")
builder.output(builder.op("Mul", builder.input("x", (1, 64)), builder.constant(np.float32(0.5))), "y")
model = builder.build()
before = flushed()
with host.flushed_denormals():
    found = [flushed()]
    if sys.argv[2] == "predictor":
        predict = predictor(model)
        found += [flushed(), not predict(tiny)[0].any(), flushed()]
    else:
        device = OrtDevice(cache=Path(sys.argv[1]))
        if sys.argv[2] == "lowered":
            model = device.lowered(model)
        arrays = arrays_for(model)
        arrays["x"][...] = tiny
        binding = device.compile(model, device.target.units[0].name, "net").bind(arrays)
        found.append(flushed())
        device.submit(binding)
        found += [not binding.output("y").any(), flushed()]
print(before, *found, flushed())
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="denormals are flushed on x86-64 Linux"
)
@pytest.mark.parametrize("how", ["compiled", "lowered", "predictor"])
def test_denormals_stay_flushed_when_a_process_makes_its_first_session(how: str, tmp_path: Path) -> None:
    """They are zero before, between and after compiling and launching, and count again behind the context."""
    command = [sys.executable, "-c", _FIRST_SESSION, str(tmp_path), how]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.split() == ["False", *["True"] * 4, "False"], done.stderr


def test_a_cache_that_cannot_be_written_keeps_nothing_from_running(tmp_path: Path) -> None:
    """It only saves time: a full disk, or a folder that is none, costs a compilation and no more."""
    (tmp_path / "file").write_text("in the way")
    model = small_network()
    feeds = random_inputs(model, 1)
    told = results(OrtDevice(cache=tmp_path / "file" / "cache"), model, feeds)
    kept = results(OrtDevice(cache=tmp_path / "cache"), model, feeds)
    assert difference(kept, told) == 0
