"""Claim: a bundle starts within 3 s, takes at most 60 % of the memory of ``framefit run``, and 150 MB of a disk.

What concerns aarch64 needs a Python for it, which may be an emulated one, with its packages beside it in ``site``.

python benchmarks/bundle.py [--app APP.toml] [--aarch64 PYTHON] [--turns 5]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from stored import store

import framefit
from framefit.workflows.demo import demo

WHEEL = Path(__file__).parents[1] / "packaging/runtime"
DEVICE = [sys.executable, "-m", "framefit.runtime.deployed"]


def peak(command: list[str]) -> int:
    """Resident memory of a process at its most, bytes; rusage would count this process's own before exec."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            most = max(most, int(found[1]) * 1024 if found else 0)
        time.sleep(0.1)
    assert most
    assert process.returncode in (0, 1), process.returncode  # 1: frames were late; others use the machine
    return most


def started(command: list[str], folder: Path) -> float:
    """Seconds from the process's start to its word that the first window is due."""
    place = folder / "notify"
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place))
        manager.settimeout(60)
        begin = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, "NOTIFY_SOCKET": str(place)}, stdout=subprocess.DEVNULL)
        while b"READY=1" not in manager.recv(4096):
            pass
        seconds = time.perf_counter() - begin
        process.wait()
    return seconds


def size(*folders: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def on_aarch64(python: Path, bundle: Path, folder: Path) -> dict[str, object]:
    """What is unpacked there, and how far outputs are from those of this machine."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", str(WHEEL), "-w", str(folder / "wheel")]
    subprocess.run(command, check=True)
    (wheel,) = (folder / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    command = [str(python), "-m", "framefit.runtime.deployed", "check", str(bundle), "--anyway"]
    environment = {**os.environ, "PYTHONPATH_ARM64": str(folder / "site"), "PYTHONPATH": str(folder / "site")}
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    differences = {
        name: float(value) for name, value in re.findall(r"^(.+?): .*difference (\S+)\)", text, re.MULTILINE)
    }
    return {"unpacked_mb": size(folder / "site", python.parent / "site") / 1e6, "differences": differences}


def main() -> None:
    """Bundle a workload, and hold it against its run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--app", type=Path)
    parser.add_argument("--aarch64", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        app = given.app
        if app is None:
            demo(output=str(folder / "demo"), seconds=1)
            app = folder / "demo/app.toml"
        plan = folder / "plan"
        framefit.plan(app, kernels="never", output=str(plan))
        bundle = folder / "demo.bundle"
        framefit.bundle(str(plan), output=str(bundle))
        command = [*DEVICE, "run", str(bundle), "--seconds", "5", "-o", str(folder / "records")]
        memory = []
        seconds = []
        for turn in range(given.turns):
            here = peak(command)
            run = [
                str(Path(sys.executable).with_name("framefit")),
                "run",
                str(plan),
                "--seconds",
                "5",
                "-o",
                str(folder / f"{turn}"),
            ]
            memory.append((here, peak(run)))
            seconds.append(started(command, folder))
        ratios = [here / there for here, there in memory]
        figures: dict[str, object] = {
            "start_s": {"median": float(np.median(seconds)), "max": max(seconds)},
            "memory_mb": [round(here / 1e6, 1) for here, _ in memory],
            "framefit_run_memory_mb": [round(there / 1e6, 1) for _, there in memory],
            "memory_ratio": {"median": float(np.median(ratios)), "max": max(ratios)},
        }
        if given.aarch64 is not None:  # uncut, for segments are optimised for the processor that makes them
            seldom = app.with_name("seldom.toml")
            seldom.write_text(re.sub(r"rate_hz = .*", "rate_hz = 2", app.read_text(), count=1))
            framefit.bundle(str(seldom), output=str(folder / "seldom.bundle"))
            figures["aarch64"] = on_aarch64(given.aarch64, folder / "seldom.bundle", folder)
        print(figures)
        store("bundle", figures, "bundle.py" + (" --aarch64 PYTHON" if given.aarch64 else ""))


if __name__ == "__main__":
    main()
