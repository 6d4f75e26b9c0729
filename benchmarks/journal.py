"""What a killed run leaves: kill -9 at random instants, a report on the rest, and how much of the record is gone.

    python benchmarks/journal.py [--kills 20] [--memory-windows 0]

``framefit run`` plays a described device beside this machine's clock; a sink of the user's notes each frame in a file
at once, so that it is known what had happened. The process is killed between 0.3 and 6 s after its first record,
``framefit report`` makes the run folder, and the frames that it lacks at the end are counted.

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

from stored import store

import framefit
from framefit.core.model import GraphBuilder

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


def main() -> None:
    """Kill runs, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--memory-windows", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = write_workload(folder)
        rows = [killed(app, folder / f"out-{number}", rng.uniform(0.3, 6.0)) for number in range(options.kills)]
        memory = resident_bytes(app, folder / "long", options.memory_windows) if options.memory_windows else []
    for row in rows:
        print("  ".join(f"{key} {value:7.2f}" for key, value in row.items()))
    worst = max(row["lost_s"] for row in rows)
    print(f"{len(rows)} kills, {sum(row['report'] == 0 for row in rows)} reports; at most {worst:.2f} s are gone")
    figures: dict[str, object] = {"kills": rows, "most_lost_s": worst}
    if memory:
        print("resident memory at each tenth, MB:", *(f"{size / 1e6:.1f}" for size in memory))
        figures["resident_bytes"] = memory
    store("journal", figures, f"journal.py --kills {options.kills} --memory-windows {options.memory_windows}")


if __name__ == "__main__":
    main()
