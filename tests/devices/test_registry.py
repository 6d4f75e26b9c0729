"""A new kind of device is a file and one line: everything above works with it, as far as it says that it can."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

import framefit
from devices import test_ort
from devices.instant import InstantDevice
from devices.npu import test_npu_device
from framefit import InputError
from framefit.core.target import BACKENDS, Target, Unit, load_target
from framefit.core.workload import MachineSettings
from framefit.devices.device import Capabilities
from framefit.devices.registry import capabilities_of, open_device
from framefit.testing import DeviceConformance, small_network

TARGET = Target(name="instant", kind="instant", units=(Unit(name="i0"), Unit(name="i1")))


class TestInstantDevice(DeviceConformance):
    """It keeps the protocol, and all that it claims."""

    computes = False

    def make(self, cache: Path, trace_events: int = 1 << 12) -> InstantDevice:  # noqa: ARG002 - nothing to keep
        """Two units."""
        return InstantDevice(TARGET, trace_events)


@pytest.mark.parametrize(
    ("claimed", "suite"),
    [
        ("runs_on_host", test_npu_device.TestNpuDevice),
        ("shares_host_memory", test_npu_device.TestNpuDevice),
        ("preemptive", test_npu_device.TestNpuDevice),
        ("lowers", test_npu_device.TestNpuDevice),
        ("collects_events", test_npu_device.TestNpuDevice),
        ("ends_launches", test_npu_device.TestNpuDevice),
        ("modelled", test_ort.TestOrtDevice),
        ("simulated", test_ort.TestOrtDevice),
        ("layer_events", test_ort.TestOrtDevice),
        ("tells_layer_times", test_ort.TestOrtDevice),
    ],
)
def test_a_wrong_claim_fails(claimed: str, suite: type[DeviceConformance], tmp_path: Path) -> None:
    """Whatever a device claims without being able to do it, its conformance suite finds out."""
    device = suite().make(tmp_path, trace_events=4)
    assert not getattr(device.capabilities, claimed)
    device.capabilities = replace(device.capabilities, **{claimed: True})  # type: ignore[misc]
    check = "check_collects_events" if claimed == "collects_events" else f"test_{claimed}"
    with pytest.raises((AssertionError, AttributeError)):
        getattr(suite(), check)(device)


def test_every_capability_has_its_check() -> None:
    """One that is added later has to be held to something, too."""
    assert [field.name for field in fields(Capabilities) if not hasattr(DeviceConformance, f"test_{field.name}")] == []


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a target of the new kind, with the line that makes it known."""
    monkeypatch.setitem(BACKENDS, "instant", "devices.instant:BACKEND")
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "target.toml"
    path.write_text('name = "instant"\nkind = "instant"\n[[units]]\nname = "i0"\n')
    return path


def written_app(folder: Path, top: str = "") -> Path:
    """A model on the target in the same folder."""
    small_network().save(folder / "small.onnx")
    app = folder / "app.toml"
    app.write_text(
        f'target = "target.toml"\nrate_hz = 100\n{top}[schedule]\nguard_ms = 0.1\n'
        '[[models]]\nname = "small"\npath = "small.onnx"\n'
    )
    return app


def test_a_new_kind_of_device_is_planned_for_and_run(target: Path) -> None:
    """Nothing above the device knows it: launches are measured, since it does not say what they take."""
    app = written_app(target.parent)
    planned = framefit.plan(app)
    assert isinstance(planned.device, InstantDevice)
    assert planned.timetable.feasible
    assert planned.timetable.units == ("i0",)
    result = framefit.run(planned, windows=5, output=target.parent / "run")
    assert result.timetable.model("small").segments[0].unit == "i0"
    assert (target.parent / "run" / "trace.npz").is_file()


def test_a_new_kind_of_device_is_measured_and_not_simulated(target: Path) -> None:
    """Its layers have entries in a table of its own; virtual time is for devices that say that they are simulated."""
    table = framefit.measure(small_network(), target=target, repeats=20, audit="none")
    assert {entry.unit for entry in table.entries} == {"i0"}
    assert table.fingerprint == open_device(target).fingerprint()
    with pytest.raises(InputError, match="cannot be simulated"):
        framefit.simulate(written_app(target.parent), windows=5)


def test_an_unknown_kind_is_refused_when_it_is_read(tmp_path: Path) -> None:
    """The message names the kinds there are."""
    path = tmp_path / "target.toml"
    path.write_text('name = "b"\nkind = "nqu"\n')
    with pytest.raises(InputError, match=r"'nqu' is not a kind of device; did you mean 'npu'\?"):
        load_target(path)


@pytest.mark.parametrize("name", ["cpu", "vpu", "gpu", "dsp"])
def test_capabilities_are_known_before_a_device_is_opened(name: str) -> None:
    """They are those of the device."""
    device = open_device(name)
    assert capabilities_of(device.target) == device.capabilities


def test_settings_choose_cores_and_none_is_named_twice() -> None:
    """One unit a core."""
    device = open_device("cpu", settings=MachineSettings(cores=(0,)))
    assert (device.host_core, [unit.core for unit in device.target.units]) == (0, [0])
    with pytest.raises(InputError, match="names a core twice"):
        open_device("cpu", settings=MachineSettings(cores=(0, 0)))
