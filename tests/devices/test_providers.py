"""Execution providers that packages add to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from framefit import InputError
from framefit.core.workload import MachineSettings
from framefit.devices import providers
from framefit.devices.ort import OrtDevice
from framefit.testing import small_network

FAST = "def get_library_path(): return '/fast.so'\ndef get_ep_name(): return 'FastExecutionProvider'\n"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """A package that adds a provider; the libraries that were registered."""
    calls: list[tuple[str, str]] = []
    (tmp_path / "onnxruntime_ep_fast.py").write_text(FAST)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", lambda *given: calls.append(given))
    providers._registered.cache_clear()
    return calls


def test_a_provider_without_a_device_here_is_refused(registered: list[tuple[str, str]]) -> None:
    """The package is named, and its library registered once."""
    for _ in range(2):
        with pytest.raises(InputError, match="of the package onnxruntime-ep-fast finds no device of this machine"):
            OrtDevice(MachineSettings(providers=("FastExecutionProvider",)))
    assert registered == [("onnxruntime_ep_fast", "/fast.so")]


def test_providers_that_are_built_in_load_no_package(registered: list[tuple[str, str]]) -> None:
    """They are there without."""
    providers.require_provider("CPUExecutionProvider", "")
    assert registered == []


def test_what_packages_add_is_listed_and_proposed(
    registered: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device with its number; a name that is nearly one of them is told."""
    devices = onnxruntime.get_ep_devices()
    monkeypatch.setattr(providers, "_devices", lambda name: devices if name == "FastExecutionProvider" else [])
    listed = {one.description for one in providers.found_providers() if one.name == "FastExecutionProvider"}
    assert any("CPU, device_id = 0, by onnxruntime-ep-fast" in text for text in listed)
    with pytest.raises(InputError, match="did you mean 'FastExecutionProvider'"):
        providers.require_provider("FastExecutionProvidr", "")
    assert len(registered) == 1


def test_a_broken_package_is_named_and_the_others_are_listed(
    registered: list[tuple[str, str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is the message."""
    (tmp_path / "onnxruntime_ep_broken.py").write_text("raise ImportError('no such library')\n")
    assert [one.name for one in providers.found_providers()] == ["CPUExecutionProvider"]
    assert "onnxruntime-ep-broken cannot be loaded: no such library" in caplog.text
    with pytest.raises(InputError, match="cannot be loaded: no such library"):
        providers.require_provider("FastExecutionProvider", "")
    assert registered == []


def test_a_session_runs_on_an_added_provider_s_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the device is its place in the list; the processor's own stands for it."""
    devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == "CPUExecutionProvider"]
    monkeypatch.setattr(providers, "_devices", lambda _: devices)
    model, x = small_network(), np.ones((1, 3, 8, 8), np.float32)
    plain = providers.started(model.to_bytes(), onnxruntime.SessionOptions(), ["CPUExecutionProvider"])
    chosen = [("FastExecutionProvider", {"device_id": "0"}), "CPUExecutionProvider"]
    session = providers.started(model.to_bytes(), onnxruntime.SessionOptions(), chosen)
    np.testing.assert_array_equal(session.run(None, {"image": x})[0], plain.run(None, {"image": x})[0])
    with pytest.raises(ValueError, match="has 1 devices here, and device_id is 3"):
        providers.started(
            model.to_bytes(), onnxruntime.SessionOptions(), [("FastExecutionProvider", {"device_id": "3"})]
        )
