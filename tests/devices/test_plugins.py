"""Backends of other packages: found by entry points, tried in a process of their own, named where they fail."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import framefit
from devices.plugins import install
from framefit import InputError
from framefit.core.target import absolute_target, resolve_target
from framefit.devices import trial
from framefit.devices.registry import open_device, targets
from framefit.testing import small_network

GOOD = "BACKEND = replace(BACKEND, find=lambda: [FoundDevice(name='one', description='the first')])\n"
FOUND = "BACKEND = replace(BACKEND, find=lambda: [FoundDevice(name='d0')])\n"
DRIVERLESS = """
def nothing(target, settings, where, *, computes):
    raise InputError('no driver of d0', remedy='install it')

BACKEND = replace(BACKEND, open=nothing, find=lambda: [FoundDevice(name='d0')])
"""
BROKEN = {
    "absent": ("import no_such_module\n", ["cannot be imported", "no_such_module"]),
    "later": ("BACKEND = replace(BACKEND, api=99)\n", ["version 99", "pip install --upgrade framefit"]),
    "other": ("BACKEND = 3\n", ["is a int"]),
    "exits": ("raise SystemExit(4)\n", ["cannot be imported", "SystemExit"]),
    "crashes": ("import ctypes; ctypes.string_at(0)\n", ["crashed with SIGSEGV", "importing"]),
    "ends": ("os._exit(7)\n", ["exit code 7", "importing"]),
    "driverless": (DRIVERLESS, ["no driver of d0", "install it"]),
    "fails": (f"InstantDevice.compile = lambda *_: 1 // 0\n{FOUND}", ["ZeroDivisionError"]),
    "hangs": (
        f"InstantDevice.compile = lambda *_: time.sleep(60)\n{FOUND}",
        ["did not end within", "compiling a network of one layer"],
    ),
}


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No trial of another test counts, and none waits for long."""
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trial, "LIMIT_S", 8.0)
    monkeypatch.setattr(trial, "LISTED_LIMIT_S", 8.0)


def test_a_package_adds_a_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its device is listed, planned for and run by its name alone; a file may name the kind, too."""
    install(monkeypatch, tmp_path / "site", "good", GOOD)
    listed = {backend.kind: backend for backend in targets().backends}
    assert (listed["good"].package, listed["good"].version, listed["good"].problem) == ("framefit-good", "1.2", "")
    assert [(device.name, device.description) for device in listed["good"].devices] == [("one", "the first")]
    assert any(device.name == "CPUExecutionProvider" for device in listed["ort"].devices)
    small_network().save(tmp_path / "small.onnx")
    app = tmp_path / "app.toml"
    app.write_text(
        'target = "good:one"\nrate_hz = 100\n[schedule]\nguard_ms = 0.1\n'
        '[[models]]\nname = "small"\npath = "small.onnx"\n'
    )
    planned = framefit.plan(app)
    assert planned.timetable.units == ("one",)
    framefit.run(planned, windows=3, output=tmp_path / "run")
    (tmp_path / "mine.toml").write_text('name = "mine"\nkind = "good"\n[[units]]\nname = "u"\ndevice = "one"\n')
    assert open_device(tmp_path / "mine.toml").target.units[0].device == "one"


def test_broken_packages_are_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The list says of each what is wrong, and still has what works."""
    install(monkeypatch, tmp_path / "site", "good", GOOD)
    for kind in ("absent", "crashes", "hangs"):
        install(monkeypatch, tmp_path / "site", kind, BROKEN[kind][0])
    listed = {backend.kind: backend for backend in targets().backends}
    for kind in ("absent", "crashes", "hangs"):
        text = f"{listed[kind].problem} {listed[kind].remedy}"
        assert all(part in text for part in BROKEN[kind][1]), (kind, text)
    assert listed["good"].problem == listed["ort"].problem == ""


@pytest.mark.parametrize("kind", sorted(set(BROKEN) - {"hangs"}))
def test_a_broken_package_that_is_used_is_an_error_with_its_name(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit code 2, whatever it does, and this process goes on."""
    code, said = BROKEN[kind]
    install(monkeypatch, tmp_path / "site", kind, code)
    with pytest.raises(InputError) as raised:
        open_device(f"{kind}:d0")
    assert raised.value.exit_code == 2
    assert kind in str(raised.value) or kind == "driverless"
    assert all(part in str(raised.value) for part in said)


def test_a_backend_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By its step, after the limit."""
    monkeypatch.setattr(trial, "LIMIT_S", 3.0)
    install(monkeypatch, tmp_path / "site", "hangs", BROKEN["hangs"][0])
    with pytest.raises(InputError, match=r"'hangs'.*did not end within 3 s: compiling a network of one layer"):
        framefit.measure(small_network(), target="hangs:d0")


def test_a_backend_that_works_is_tried_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second time nothing is started, until its package changes."""
    install(monkeypatch, tmp_path / "site", "good", GOOD)
    started = []
    start = trial._started

    def counted(request: object) -> object:
        started.append(request)
        return start(request)  # type: ignore[arg-type]

    monkeypatch.setattr(trial, "_started", counted)
    open_device("good:one")
    open_device("good:one")
    assert len(started) == 1
    (tmp_path / "site" / "framefit_good-1.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: framefit-good\nVersion: 1.3\n"
    )
    open_device("good:one")
    assert len(started) == 2


def test_a_runtime_that_crashes_at_import_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Framefit's own backend is tried in the same way: a vendor's build for another processor ends no program."""
    site = tmp_path / "site" / "onnxruntime"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(InputError, match="'ort' of framefit cannot be used for 'cpu': the process crashed with SIGILL"):
        open_device("cpu")


def test_a_name_is_taken_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package cannot replace a backend of Framefit; the list says that it tries."""
    install(monkeypatch, tmp_path / "site", "ort", GOOD)
    listed = [backend for backend in targets().backends if backend.kind == "ort"]
    assert [backend.package for backend in listed] == ["framefit", "framefit-ort"]
    assert "framefit has a backend of this name" in listed[1].problem
    assert open_device("cpu").target.name == "cpu"


def test_an_unknown_backend_is_refused_by_name() -> None:
    """With the ones that there are."""
    with pytest.raises(InputError, match=r"'openvin:CPU': 'openvin' is not a kind of device; did you mean 'openvino'"):
        resolve_target("openvin:CPU")


def test_a_backends_device_has_no_file(tmp_path: Path) -> None:
    """Its name stays as it is wherever a file's path would become absolute."""
    assert absolute_target("openvino:CPU", tmp_path) == "openvino:CPU"
    assert absolute_target("mine.toml", tmp_path) == str(tmp_path / "mine.toml")


def test_a_provider_of_onnx_runtime_by_name(tmp_path: Path) -> None:
    """Alone, or as a unit of a file with options of its own."""
    device = open_device("ort:CPUExecutionProvider")
    assert [unit.name for unit in device.target.units] == ["CPUExecutionProvider"]
    with pytest.raises(InputError, match="no provider 'NoExecutionProvider'"):
        open_device("ort:NoExecutionProvider")
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nkind = "ort"\n[[units]]\nname = "a"\ndevice = "CPUExecutionProvider"\noptions = { speed = 3 }\n'
    )
    with pytest.raises(InputError, match="CPUExecutionProvider has no options, but speed is given"):
        open_device(path)


def test_the_list_is_json_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For other programs."""
    install(monkeypatch, tmp_path / "site", "good", GOOD)
    listed = json.loads(msgspec.json.encode(targets()))
    assert {"kind", "package", "version", "devices", "problem", "remedy"} == set(listed["backends"][0])
