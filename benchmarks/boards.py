"""A board that is this machine, against doing the same here: start, layers' latencies, bytes sent, kills.

    framefit board add loopback ...    # an address of this machine
    python benchmarks/boards.py loopback --store ~/.cache/framefit/board --rounds 4 --kills 20

``--store`` is the board's own folder. Here and there take turns (A B B A) on
the core that the caller has pinned this to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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

from framefit.boards.jobs import Store
from framefit.core.model.builtin import detector

FRAMEFIT = [sys.executable, "-c", "from framefit.cli.app import main; main()"]


def framefit(*arguments: str, cwd: Path) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Seconds of a command, and what came of it."""
    begun_s = time.perf_counter()
    ended = subprocess.run([*FRAMEFIT, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    return time.perf_counter() - begun_s, ended


def layer_ratios(board: str, folder: Path, rounds: int) -> list[float]:
    """Median over layers of what was measured there over what was measured here, for each round."""
    ratios = []
    for turn in range(rounds):
        tables: dict[str, dict[str, float]] = {}
        for arm in ("here", "there") if turn % 2 == 0 else ("there", "here"):
            path = folder / f"{arm}-{turn}.table.json"
            where = () if arm == "here" else ("--on", board)
            _, ended = framefit(
                "measure", "detector", "--audit", "none", "--repeats", "100", "-o", str(path), *where, cwd=folder
            )
            assert ended.returncode == 0, ended.stderr
            entries = json.loads(path.read_text())["entries"]
            tables[arm] = {
                json.dumps([entry["op"], entry["configuration"]]): float(entry["latency_ns"])
                for entry in entries
                if not entry["below_noise"]
            }
        both = tables["here"].keys() & tables["there"].keys()
        ratios.append(float(np.median([tables["there"][key] / tables["here"][key] for key in both])))
        print(f"round {turn}: layers there over here {ratios[-1]:.3f}", flush=True)
    return ratios


def children(process: int) -> list[int]:
    """Processes that a process started."""
    with contextlib.suppress(OSError):
        return [int(part) for part in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def below(folder: Path) -> list[int]:
    """Processes of jobs."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
    return sorted(pids)


def killed(board: str, folder: Path, jobs: Store, kind: str, after_s: float) -> dict[str, object]:
    """One measurement that something is done to; what came of it."""
    output = folder / f"{kind}-{after_s:.6f}.table.json"
    command = [*FRAMEFIT, "measure", "detector", "--audit", "none", "--repeats", "20", "-o", str(output), "--on", board]
    before = {state.job for state in jobs.states()}
    host = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(after_s)
    begun = sorted({state.job for state in jobs.states()} - before)
    if kind == "client":
        host.kill()
    elif kind == "connection":
        for process in children(host.pid):
            os.kill(process, signal.SIGKILL)
    elif kind == "job" and begun:
        for process in below(jobs.jobs / begun[0])[:1]:
            os.kill(process, signal.SIGKILL)
    elif kind == "ctrl-c":
        host.send_signal(signal.SIGINT)
    since_s = time.perf_counter()
    _, messages = host.communicate(timeout=120)
    took_s = time.perf_counter() - since_s
    code = host.returncode
    if kind == "client" and begun:
        _, ended = framefit("board", "attach", board, begun[0], cwd=folder)
        code, messages = ended.returncode, ended.stderr
    time.sleep(0.3)
    complete = output.exists() and bool(json.loads(output.read_text())["entries"])
    words = [line for line in messages.splitlines() if line.startswith("framefit: ")]
    return {
        "kind": kind,
        "after_s": after_s,
        "job_begun": bool(begun),
        "exit_code": code,
        "complete": complete,
        "error_in_words": words[:1],
        "took_s": took_s,
        "processes_left": len(below(jobs.jobs)),
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("board")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    chance, jobs = random.Random(0), Store(options.store)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        doctor_s = [framefit("doctor", "--on", options.board, cwd=folder)[0] for _ in range(6)][1:]
        print(f"warm doctor: {np.median(doctor_s):.2f} s (at most {max(doctor_s):.2f})", flush=True)
        detector().save(folder / "detector.onnx")
        (folder / "app.toml").write_text(
            'target = "vpu"\nrate_hz = 30\n[[models]]\nname = "detector"\npath = "detector.onnx"\n'
        )
        sent = []
        for _ in range(2):
            _, ended = framefit("plan", "app.toml", "--on", options.board, cwd=folder)
            assert ended.returncode in (0, 1), ended.stderr
            lines = [line for line in ended.stderr.splitlines() if line.endswith(f"sent to {options.board}")]
            sent.append(lines[0].split()[0] if lines else "0")
        print(f"MB of files sent for a plan, and for a second one: {sent}", flush=True)
        rows: list[dict[str, object]] = []
        for kind in ("client", "connection", "job", "ctrl-c"):
            instants = [chance.uniform(0.2, 5.0) for _ in range(options.kills)]
            rows += [killed(options.board, folder, jobs, kind, instant) for instant in instants]
            done = [row for row in rows if row["kind"] == kind]
            print(
                f"{kind}: {sum(bool(row['complete']) for row in done)} complete, "
                f"{sum(not row['complete'] and bool(row['error_in_words']) for row in done)} errors in words, "
                f"{sum(int(str(row['processes_left'])) for row in done)} processes left, "
                f"at most {max(float(str(row['took_s'])) for row in done):.1f} s",
                flush=True,
            )
        ratios = layer_ratios(options.board, folder, options.rounds)
    figures = {"doctor_s": doctor_s, "sent_mb": sent, "kills": rows, "layer_ratios": ratios}
    if ratios:
        figures["layer_ratio"] = float(np.median(ratios))
        figures["layer_ratio_interval"] = interval(ratios, np.median)
    command = f"boards.py {options.board} --store STORE --rounds {options.rounds} --kills {options.kills}"
    store("boards", figures, command)


if __name__ == "__main__":
    main()
