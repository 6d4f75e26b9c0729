"""Bundles: what ``framefit bundle`` writes, and ``framefit-runtime`` checks and runs."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import framefit
from framefit import GraphBuilder, InputError
from framefit.core.bundle import Bundle, read_bundle, write_sums
from framefit.core.timetable import Timetable
from framefit.errors import UnsupportedError
from framefit.runtime import deployed
from framefit.runtime.log import FrameLog, FrameOutcome

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timed  # plans are of measured durations

LAYERS = 48  # of "big": cut between them, and one of them fits beside "eye" where a core is slow, too
APP = """
rate_hz = 150
schedule = { preemption = "never" }
[[streams]]
name = "camera"
source = "eyes:frames"
[[models]]
name = "eye"
path = "eye.onnx"
priority = "every-window"
state = { h = "h_out" }
inputs = { x = "camera" }
postprocess = "eyes:doubled"
[[models]]
name = "big"
path = "big.onnx"
inputs = { x = "camera" }
[[outputs]]
model = "eye"
sink = "eye.jsonl"
"""
FUNCTIONS = """
import numpy as np

def frames():
    while True:
        yield np.ones((1, 8, 48, 48), np.float32)

def doubled(outputs):
    return {name: 2 * array for name, array in outputs.items()}
"""


def convolutions(count: int, *, state: bool = False, seed: int = 0) -> GraphBuilder:
    """A chain of layers, with state that counts frames where it is asked for."""
    b = GraphBuilder("net", seed)
    x = b.input("x", (1, 8, 48, 48))
    if state:
        h = b.input("h", (1, 8, 48, 48))
        x = b.op("Add", x, h)
        b.output(b.op("Relu", x), "h_out")
    for _ in range(count):
        x = b.conv(x, 8 if state else 24, activation="Relu")
    b.output(x, "y")
    return b


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload with state, functions of the user, and a sink."""
    folder = tmp_path_factory.mktemp("doors")
    convolutions(2, state=True).build().save(folder / "eye.onnx")
    convolutions(LAYERS).build().save(folder / "big.onnx")
    (folder / "eyes.py").write_text(FUNCTIONS)
    (folder / "app.toml").write_text(APP)
    return folder / "app.toml"


@pytest.fixture(scope="module")
def bundle(app: Path) -> Path:
    """Its bundle."""
    folder = app.parent / "doors.bundle"
    framefit.bundle(app, output=str(folder), docker=True)
    return folder


def damaged(bundle: Path, file: str, change: Callable[[bytes], bytes], folder: Path) -> Path:
    """A copy by links of which one file differs."""
    for path in (path for path in bundle.rglob("*") if path.is_file()):
        there = folder / path.relative_to(bundle)
        there.parent.mkdir(parents=True, exist_ok=True)
        if path.relative_to(bundle).as_posix() == file:
            there.write_bytes(change(path.read_bytes()))
        else:
            os.link(path, there)
    return folder


def test_a_bundle_gives_the_outputs_that_it_holds(bundle: Path) -> None:
    """Bit for bit, on the machine that made it."""
    assert deployed.check(deployed.open_bundle(bundle)) == {"eye": 0.0, "big": 0.0}


def test_other_outputs_are_an_error(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the model; the exit code is that of devices."""
    manifest = msgspec.json.decode((bundle / "bundle.json").read_bytes(), type=Bundle)
    with np.load(bundle / manifest.models[0].test) as stored:
        arrays = {name: stored[name] + 0.01 for name in stored.files}
    copy = damaged(bundle, manifest.models[0].test, lambda raw: raw, tmp_path / "copy.bundle")
    (copy / manifest.models[0].test).unlink()  # a link
    np.savez(copy / manifest.models[0].test, **arrays)
    write_sums(copy)
    assert deployed.main(["check", str(copy)]) == 3
    assert "model 'eye': outputs differ" in capsys.readouterr().err


def test_a_cut_model_is_stored_in_its_segments(bundle: Path) -> None:
    """One file for each."""
    manifest, timetable, _ = read_bundle(bundle)
    big = timetable.model("big")
    assert len(big.segments) > 1
    assert {part.span for part in manifest.models[1].parts} == set(big.spans)


def test_it_runs_and_counts_frames(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sinks and health lie in the folder of the records."""
    assert deployed.main(["run", str(bundle), "--windows", "50", "--json", "-o", str(tmp_path)]) == 0
    health = json.loads(capsys.readouterr().out)
    assert health["windows"] == 50
    assert sum(health["frames"]["eye"].values()) == 50
    lines = [json.loads(line) for line in (tmp_path / "eye.jsonl").read_text().splitlines()]
    assert len(lines) == health["frames"]["eye"]["done"] + health["frames"]["eye"].get("late", 0)
    assert json.loads((tmp_path / "health.jsonl").read_text().splitlines()[-1])["windows"] == 50
    assert deployed.main(["check", str(bundle)]) == 0  # running has not changed it


def test_what_a_device_does_not_have_is_not_loaded(bundle: Path, tmp_path: Path) -> None:
    """Neither ONNX nor compilers nor what draws pages."""
    code = (
        "import sys; from framefit.runtime import deployed; "
        f"code = deployed.main(['run', {str(bundle)!r}, '--windows', '5', '--json', '-o', {str(tmp_path)!r}]); "
        "names = ('onnx', 'onnx_ir', 'numba', 'llvmlite', 'PIL', 'rich', 'typer', 'ortools', 'jinja2', 'greenlet'); "
        "print(code, [name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout


def test_the_wheel_has_what_is_loaded() -> None:
    """Each module of Framefit that a device loads is in its list, or below a folder there."""
    code = "import sys, framefit.runtime.deployed; print(*[name for name in sys.modules if 'framefit.' in name])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    listed = (ROOT / "packaging" / "runtime" / "pyproject.toml").read_text()
    packed = re.findall(r'= "(framefit/[^"]+)"', listed)
    files = {one.removesuffix(".py").removesuffix("/__init__") for one in packed if one.endswith(".py")}
    folders = tuple(f"{one}/" for one in packed if not one.endswith(".py"))
    paths = [name.replace(".", "/") for name in loaded]
    assert "framefit/devices/ort" in paths
    assert [path for path in paths if path not in files and not f"{path}/".startswith(folders)] == []


def test_a_cut_model_is_compared_in_its_segments(bundle: Path, app: Path, tmp_path: Path) -> None:
    """A later version is cut alike, if it has the same layers."""
    for path in (app, app.with_name("eyes.py"), app.with_name("eye.onnx")):
        shutil.copy(path, tmp_path)
    later = tmp_path / "app.toml"
    convolutions(LAYERS, seed=1).build().save(tmp_path / "big.onnx")
    big = framefit.check(later, against=str(bundle), seconds=1.0, most=2.0).models[1]
    assert (big.name, big.same, big.decision) == ("big", False, "pass")
    assert big.rounds > 0
    convolutions(LAYERS + 1).build().save(tmp_path / "big.onnx", force=True)
    with pytest.raises(InputError, match="'big' has other layers than those between which the bundle is cut"):
        framefit.check(later, against=str(bundle))


def test_a_bundle_knows_no_path_of_the_machine_that_made_it(bundle: Path, app: Path) -> None:
    """Neither in records nor in models, so that one that comes from a board is whole."""
    place = str(app.parent).encode()
    assert [path.name for path in bundle.rglob("*") if path.is_file() and place in path.read_bytes()] == []


def test_files_of_streams_are_in_it(tmp_path: Path) -> None:
    """They are read there, wherever the bundle lies."""
    convolutions(2).build().save(tmp_path / "net.onnx")
    np.savez(tmp_path / "clip.npz", x=np.ones((4, 8, 48, 48), np.float32))
    (tmp_path / "app.toml").write_text(
        'rate_hz = 20\n[[streams]]\nname = "clip"\nsource = "clip.npz"\n[[models]]\nname = "net"\npath = "net.onnx"\n'
        'priority = "every-window"\ninputs = { x = "clip" }\n'
    )
    framefit.bundle(tmp_path / "app.toml", output=str(tmp_path / "net.bundle"))
    moved = (tmp_path / "net.bundle").rename(tmp_path / "other.bundle")
    (tmp_path / "clip.npz").unlink()
    assert deployed.main(["run", str(moved), "--windows", "4", "-o", str(tmp_path / "records")]) == 0
    line = json.loads((tmp_path / "records" / "health.jsonl").read_text().splitlines()[-1])
    assert sum(line["frames"]["net"].values()) == 4


def test_a_damaged_byte_is_refused(bundle: Path, tmp_path: Path) -> None:
    """Any byte of any file."""
    random = np.random.default_rng(0)
    files = sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())

    def change(raw: bytes) -> bytes:
        data = bytearray(raw)
        data[random.integers(len(data))] ^= 1 << int(random.integers(8))
        return bytes(data)

    for number in range(100):
        copy = damaged(bundle, files[number % len(files)], change, tmp_path / str(number))
        with pytest.raises(InputError):
            deployed.open_bundle(copy)


def test_a_file_too_many_or_too_few_is_refused(bundle: Path, tmp_path: Path) -> None:
    """By its name."""
    copy = damaged(bundle, "", bytes, tmp_path / "copy")
    (copy / "more.py").touch()
    with pytest.raises(InputError, match=r"more\.py does not belong"):
        deployed.open_bundle(copy)
    (copy / "more.py").unlink()
    (copy / "eyes.py").unlink()
    with pytest.raises(InputError, match=r"eyes\.py is missing"):
        deployed.open_bundle(copy)


def test_another_device_is_refused_by_name(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless the user wants it anyway."""
    timetable = msgspec.json.decode((bundle / "timetable.json").read_bytes(), type=Timetable)
    assert timetable.source is not None
    source = msgspec.structs.replace(timetable.source, device=timetable.source.device | {"kernel": "another"})
    changed = msgspec.json.encode(msgspec.structs.replace(timetable, source=source))
    copy = damaged(bundle, "timetable.json", lambda _: changed, tmp_path / "copy")
    write_sums(copy)
    assert deployed.main(["check", str(copy)]) == 2
    assert "kernel: 'another' there" in capsys.readouterr().err
    assert deployed.main(["check", str(copy), "--anyway"]) == 0


def test_segments_for_another_processor_are_refused(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a runtime has optimised; what is stored as it was exported runs anywhere."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    exported = damaged(
        bundle, "bundle.json", lambda data: data.replace(b'"lowered": true', b'"lowered": false'), tmp_path / "copy"
    )
    write_sums(exported)
    deployed.open_bundle(exported, anyway=True)
    with pytest.raises(InputError, match=r"segments of big were optimised for \w+, and this is riscv64"):
        deployed.open_bundle(bundle, anyway=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this system has no systemd-analyze")
def test_systemd_takes_the_unit(bundle: Path, tmp_path: Path) -> None:
    """Without a remark, were there a program where the unit says."""
    unit = tmp_path / "framefit.service"
    text = (bundle / "framefit.service").read_text()
    unit.write_text(text.replace("/opt/framefit/venv/bin/framefit-runtime", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_core_that_is_not_there_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for who runs it anyway."""
    monkeypatch.setattr(deployed, "available_cores", lambda: (62, 63))
    with pytest.raises(InputError, match=r"its models run on core \d+, and this process may run on 62-63 only"):
        deployed.open_bundle(bundle, anyway=True)


def test_the_service_manager_hears_of_it(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first window is due, while windows begin, and at the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1200000")
        assert deployed.main(["run", str(bundle), "--seconds", "1.5", "-o", str(tmp_path / "records")]) == 0
        heard = [manager.recv(100).decode()]
        while heard[-1] != "STOPPING=1":
            heard.append(manager.recv(100).decode())
    assert heard[0] == "READY=1"
    assert heard.count("WATCHDOG=1") >= 3


def test_the_watchdog_hears_nothing_while_a_unit_hangs() -> None:
    """However many windows the other units begin."""
    heard: list[str] = []
    journal = deployed.HealthJournal(["eye"], None, 0.08, heard.append)
    group = SimpleNamespace(windows=1, begun_on_all=1)
    journal.group = group  # type: ignore[assignment]
    journal.start(lambda: b"")
    for window in range(2, 12):
        group.windows = group.begun_on_all = window
        time.sleep(0.03)
    alive = heard.count("WATCHDOG=1")
    time.sleep(0.1)  # what was due still comes
    hung = len(heard)
    group.windows = 100  # the other unit goes on
    time.sleep(0.2)
    assert alive >= 3
    assert len(heard) == hung
    journal.stop()


def test_rows_are_counted_and_not_kept() -> None:
    """The memory of a run without an end does not grow."""
    journal = deployed.HealthJournal(["eye", "big"], None, None, lambda _: None)
    log = FrameLog(None, journal.file("frames-0.bin"))
    for frame in range(20_000):
        log.add(frame % 2, frame, FrameOutcome.DONE if frame % 10 else FrameOutcome.LATE, frame, 0)
        if frame % 100 == 0:
            log.settle()
    log.settle()
    log.hand_over()
    assert journal.health()["frames"] == {"eye": {"done": 8_000, "late": 2_000}, "big": {"done": 10_000}}
    assert len(log.snapshot()) == 0


def test_records_take_bounded_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files, one of which is begun anew."""
    monkeypatch.setattr(deployed, "_MOST_BYTES", 1000)
    journal = deployed.HealthJournal(["eye"], tmp_path, None, lambda _: None)
    for _ in range(100):
        journal.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2500
    assert {path.name for path in tmp_path.iterdir()} == {"health.jsonl", "health.1.jsonl"}


def test_what_no_board_could_run_is_refused(app: Path, tmp_path: Path) -> None:
    """Before anything is planned or written."""
    with pytest.raises(UnsupportedError, match="of kind 'npu'"):
        framefit.bundle(app, target="vpu", output=str(tmp_path / "a.bundle"))
    with pytest.raises(InputError, match="already exists"):
        framefit.bundle(app, output=str(app.parent / "doors.bundle"))
    with pytest.raises(InputError, match="is not a bundle"):
        deployed.open_bundle(tmp_path)


def test_the_unit_and_the_dockerfile_name_the_bundle(bundle: Path) -> None:
    """So that they can be used as they are."""
    unit = (bundle / "framefit.service").read_text()
    assert "Type=notify" in unit
    assert "run /opt/framefit/doors.bundle" in unit
    assert "doors.bundle" in (bundle / "Dockerfile").read_text()


@pytest.mark.slow
def test_the_wheel_runs_it_alone(bundle: Path, tmp_path: Path) -> None:
    """In an environment that has nothing else."""
    source = ROOT / "packaging" / "runtime"
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(wheel, check=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    binaries = tmp_path / "venv" / "bin"
    (made,) = tmp_path.glob("framefit_runtime-*.whl")
    subprocess.run([binaries / "pip", "install", "--quiet", made, "onnxruntime"], check=True)
    done = subprocess.run([binaries / "framefit-runtime", "check", "--anyway", "--json", bundle], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert set(json.loads(done.stdout)["models"]) == {"eye", "big"}
