"""What a killed run leaves: kill -9 at random instants, a report on the rest, and how much of the record is gone.

    python benchmarks/journal.py [--kills 20] [--start-rounds 0] [--memory-windows 0]

``framefit run`` plays a described device beside this machine's clock; a sink of the user's notes each frame in a file
at once, so that it is known what had happened. The process is killed between 0.3 and 6 s after its first record,
``framefit report`` makes the run folder, and the frames that it lacks at the end are counted.

With ``--start-rounds N`` runs on this machine with and without a journal take turns, forwards and backwards,
so many rounds: how late priority models start after their release, and the difference with a 90 % interval.
With ``--memory-windows N`` a simulation of so many windows is watched, too: its resident memory at each tenth.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from stored import interval, store

import framefit
from framefit.core.journal import Journal
from framefit.core.model import GraphBuilder
from framefit.workflows import record
from framefit.workflows import run as run_module

RATE_HZ = 30
MAIN = "import sys; from framefit.cli.app import main; sys.exit(main())"
APP = f"""schema_version = 1
target = "{{target}}"
rate_hz = {RATE_HZ}
[[streams]]
name = "camera"
source = "synthetic"
[[models]]
name = "small"
path = "small.onnx"
priority = "every-window"
[[models]]
name = "large"
path = "large.onnx"
priority = "background"
[[outputs]]
model = "small"
sink = "small.npz"
[[outputs]]
model = "small"
sink = "witness:note"
"""
WITNESS = """import os
file = os.open(os.environ.get("WITNESS", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(frame, outputs):
    os.write(file, f"{frame}\\n".encode())
"""


def write_workload(folder: Path) -> Path:
    """Two networks on the built-in device with two queues less one."""
    for name, convolutions, size in (("small", 3, 32), ("large", 12, 96)):
        b = GraphBuilder(name)
        x = b.input("x", (1, 8, size, size))
        for _ in range(convolutions):
            x = b.conv(x, 8, activation="Relu")
        b.output(b.op("GlobalAveragePool", x), "pooled")
        b.build().save(folder / f"{name}.onnx")
    (folder / "witness.py").write_text(WITNESS)
    app = folder / "app.toml"
    app.write_text(APP.format(target="vpu"))
    return app


def killed(app: Path, out: Path, after_s: float) -> dict[str, float]:
    """Frames that were given out, that are recorded, and whether the report was made."""
    witness = out.with_suffix(".txt")
    command = [sys.executable, "-c", MAIN, "run", str(app), "-o", str(out), "--seconds", "600", "--force"]
    process = subprocess.Popen(command, env=os.environ | {"WITNESS": str(witness)}, stderr=subprocess.DEVNULL)
    while not (out / "journal" / "part-1" / "state.jsonl").exists():
        if process.poll() is not None:
            raise SystemExit(f"the run ended by itself: {process.returncode}")
        time.sleep(0.01)
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    report = subprocess.run([sys.executable, "-c", MAIN, "report", str(out)], capture_output=True, check=False)
    given = [int(line) for line in witness.read_text().split()]
    recorded = [
        int(row.split(",")[1])
        for row in (out / "frames.csv").read_text().splitlines()[1:]
        if row.split(",")[2] == "small"
    ]
    lost = max(given) - max(recorded, default=-1)
    return {
        "after_s": after_s,
        "frames": len(given),
        "lost_frames": lost,
        "lost_s": lost / RATE_HZ,
        "report": report.returncode,
    }


def resident_bytes(app: Path, out: Path, windows: int) -> list[int]:
    """Resident memory of a simulation at each tenth of its windows."""
    resident: dict[int, int] = {}

    def look(begun: int, count: int) -> None:
        tenth = 10 * begun // count
        if tenth not in resident:
            resident[tenth] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    framefit.simulate(app, windows=windows, output=out, force=True, on_idle=look)
    return [resident[tenth] for tenth in sorted(resident)]


def start_ns(app: Path, out: Path, rounds: int) -> dict[str, list[list[int]]]:
    """Arm -> median and 99th percentile from release to start, of each run."""
    journals = {"journal": record.next_part, "none": lambda claim, *, resumes=False: Journal()}  # noqa: ARG005
    planned = framefit.plan(app)
    found: dict[str, list[list[int]]] = {arm: [] for arm in journals}
    for number in range(rounds):
        for arm in list(journals) if number % 2 == 0 else reversed(journals):
            setattr(run_module, "next_part", journals[arm])  # noqa: B010 - the module's own name for it
            result = framefit.run(planned, windows=300, output=out, force=True)
            late = result.metrics.models[0].release_to_start_ns
            found[arm].append([late.p50, late.p99])
    return found


def main() -> None:
    """Kill runs, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--start-rounds", type=int, default=0)
    parser.add_argument("--memory-windows", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = write_workload(folder)
        rows = [killed(app, folder / f"out-{number}", rng.uniform(0.3, 6.0)) for number in range(options.kills)]
        memory = resident_bytes(app, folder / "long", options.memory_windows) if options.memory_windows else []
        cpu = folder / "cpu.toml"
        cpu.write_text(APP.format(target="cpu").split("[[outputs]]")[0])
        starts = start_ns(cpu, folder / "starts", options.start_rounds) if options.start_rounds else {}
    for row in rows:
        print("  ".join(f"{key} {value:7.2f}" for key, value in row.items()))
    worst = max((row["lost_s"] for row in rows), default=0.0)
    print(f"{len(rows)} kills, {sum(row['report'] == 0 for row in rows)} reports; at most {worst:.2f} s are gone")
    figures: dict[str, object] = {"kills": rows, "most_lost_s": worst}
    if starts:
        more = np.asarray(starts["journal"]) - np.asarray(starts["none"])
        low, high = interval(more[:, 1], np.median)
        median = float(np.median(more[:, 1]))
        print(f"release to start, p99: {median / 1e3:+.1f} us with a journal ({low / 1e3:+.1f} to {high / 1e3:+.1f})")
        results = {"start_ns": starts, "p99_difference_ns": median, "interval_ns": [low, high]}
        store("journal_starts", results, f"journal.py --kills 0 --start-rounds {options.start_rounds}")
    if memory:
        print("resident memory at each tenth, MB:", *(f"{size / 1e6:.1f}" for size in memory))
        command = f"journal.py --kills 0 --memory-windows {options.memory_windows}"
        store("journal_memory", {"resident_bytes": memory}, command)
    if rows:
        store("journal", figures, f"journal.py --kills {options.kills}")


if __name__ == "__main__":
    main()
