"""A backend in a package of its own, by public names: the example's device, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import framefit
from devices.plugins import write_package
from framefit import GraphBuilder, InputError, Model, Target
from framefit.core.target import Unit
from framefit.devices import Array, Device
from framefit.errors import HangError
from framefit.testing import DeviceConformance, arrays_for, small_network
from workloads import write_app

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "socket_device"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a device that runs."""
    program = [sys.executable, str(FOLDER / "device_program.py")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The package, as ``pip`` would install it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    write_package(monkeypatch, tmp_path / "site", "socket", "framefit_socket:BACKEND")
    return import_module("framefit_socket")


def _gathered() -> Model:
    """Rows of a table, by a number; one that is too large makes a launch fail."""
    b = GraphBuilder("gathered", 2)
    table = b.constant(np.ones((4, 3), np.float32))
    rows = b.op("Gather", table, b.input("rows", (2,), np.dtype(np.int64)), axis=0)
    b.output(b.op("Add", rows, b.input("x", (2, 3))), "y")
    return b.build()


class TestSocketDevice(DeviceConformance):
    """It keeps the protocol."""

    @pytest.fixture(autouse=True)
    def _device(self, address: str, backend: ModuleType) -> None:
        self.address, self.backend = address, backend

    def make(self, cache: Path, trace_events: int = 1 << 12) -> Device:  # noqa: ARG002 - it keeps nothing
        """One connection."""
        return self._opened(1, trace_events)

    def make_two(self, cache: Path) -> Device:  # noqa: ARG002
        """Two connections."""
        return self._opened(2)

    def failing(self) -> tuple[Model, dict[str, Array]]:
        """Shapes that depend on the data are refused before."""
        return _gathered(), {"rows": np.asarray([0, 9], np.int64)}

    def _opened(self, count: int, trace_events: int = 1 << 12) -> Device:
        units = tuple(Unit(name=f"d{place}", device=self.address, core=place) for place in range(count))
        device: Device = self.backend.SocketDevice(Target(name="socket", kind="socket", units=units), trace_events)
        return device

    def test_a_launch_after_a_lost_connection(self) -> None:
        """The device has forgotten the segment, which is compiled again."""
        device, model = self._opened(1), small_network()
        binding = device.compile(model, "d0", "small").bind(arrays_for(model))
        device.submit(binding)
        device.terminate("d0")
        with pytest.raises(HangError):
            device.submit(binding)
        device.submit(binding)

    def test_what_is_no_device(self) -> None:
        """It is refused before anything is sent."""
        for address, words in (("nowhere", "no address"), ("127.0.0.1:1", "no device answers")):
            with pytest.raises(InputError, match=words):
                self.backend.SocketDevice(Target(name="x", kind="socket", units=(Unit(name="u", device=address),)))


@pytest.mark.timed
def test_it_is_planned_for_run_and_measured(address: str, backend: ModuleType, tmp_path: Path) -> None:
    """By its address alone."""
    small_network().save(tmp_path / "small.onnx")
    app = write_app(tmp_path, target=f"socket:{address}", rate_hz=20, priority=["small"], background=())
    ran = framefit.run(app, windows=5, output=tmp_path / "run")
    assert ran.metrics.windows == 5
    table = framefit.measure(tmp_path / "small.onnx", target=f"socket:{address}", repeats=20, audit="none")
    assert not table.unmeasured
