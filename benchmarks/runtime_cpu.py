"""What a user would build by hand against Framefit, on one CPU core.

    python benchmarks/runtime_cpu.py [--windows 1500] [--face face.onnx]   # 10000: some 45 minutes

A face model 30 times a second and a background model longer than a window, both pinned to
one core. The arms take turns in rounds of 250 windows, forwards and backwards, in one process:

- ``alone``: the face model only; the control.
- ``loop``: one thread, face then depth, in turn; a tenth of the windows, for nearly all of them miss.
- ``threads``: two plain threads.
- ``nice``: the background thread at nice 19.
- ``fifo``: the face thread at real-time priority, by hand (needs permission).
- ``framefit``: as planned by default; ``segments``: with ``preemption = "never"``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from stored import interval, store

import framefit
from framefit.core.model.builtin import BUILTIN
from framefit.devices.clock import RealClock
from framefit.devices.host import flushed_denormals, pinned, realtime_priority_permitted
from framefit.execution.execution import Execution

RATE_HZ = 30
CHUNK = 250
FRAMES = 8
Frames = tuple[list[int], list[int], int]  # release to start, release to finish, background frames


def by_hand(face: Execution, depth: Execution | None, windows: int, kind: str) -> Frames:
    """One round of an arm without Framefit's dispatcher."""
    random = np.random.default_rng(0)
    # As many different frames as a synthetic stream has: the caches are no warmer than Framefit's.
    face_frames = [face.example(random) for _ in range(FRAMES)]
    depth_frames = [] if depth is None else [depth.example(random) for _ in range(FRAMES)]
    clock, starts, finishes, done = RealClock(), [], [], [0]
    closing = threading.Event()

    def background() -> None:
        if kind == "nice":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        while not closing.is_set():
            depth.load(depth_frames[done[0] % FRAMES])
            depth.launch(0)
            done[0] += 1

    worker = threading.Thread(target=background, daemon=True) if depth is not None and kind != "loop" else None
    if worker is not None:
        worker.start()
    if kind == "fifo":
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    try:
        begin = clock.now_ns() + 20_000_000
        for window in range(windows):
            release = begin + round(window * 1e9 / RATE_HZ)
            if clock.now_ns() < release:
                time.sleep(max(release - clock.now_ns(), 0) / 1e9) if kind != "alone" else clock.sleep_until_ns(release)
            face.load(face_frames[window % FRAMES])
            completion = face.launch(0)
            starts.append(completion.started_ns - release)
            finishes.append(completion.finished_ns - release)
            if kind == "loop" and depth is not None:
                depth.load(depth_frames[done[0] % FRAMES])
                depth.launch(0)
                done[0] += 1
        end = begin + round(windows * 1e9 / RATE_HZ)
        clock.sleep_until_ns(end)
        count = round(done[0] * (end - begin) / (clock.now_ns() - begin))  # late windows took longer
    finally:
        if kind == "fifo":
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        closing.set()
        if worker is not None:
            worker.join()
    return starts, finishes, count


def by_framefit(plan: framefit.Plan, windows: int, folder: Path, found: list[dict[str, float]]) -> Frames:
    """One round of Framefit's dispatcher."""
    result = framefit.run(plan, windows=windows, output=folder / f"run-{time.monotonic_ns()}")
    frames = result.frames
    face = [f for f in frames if f.model == "face" and f.finished_ns is not None]
    launches = result.launches
    first = launches.program == 0
    released = {f.frame: f.released_ns for f in face}
    begin = result.releases_ns[0]
    starts = [
        int(submit - begin - released[int(frame)])
        for frame, submit in zip(launches.frame[first], launches.submit_ns[first], strict=True)
        if int(frame) in released
    ]
    depth = result.metrics.models[1]
    found.append(
        {
            "fluid_ratio": depth.throughput_hz / (depth.fluid_bound_hz or 1),
            "packing_ratio": depth.throughput_hz / (depth.packing_bound_hz or 1),
            "segmentation_overhead_ratio": depth.segmentation_overhead_ratio,
            "estimate_exceeded_ratio": result.metrics.estimate_exceeded_ratio,
            "floor_p99_ns": result.metrics.floor_release_to_start_ns.p99,
            "dispatch_p50_ns": result.metrics.dispatch_ns.p50,
        }
    )
    finishes = [f.finished_ns - f.released_ns for f in face if f.finished_ns is not None]
    return starts, finishes, depth.completed


def ratio_interval(arm: list[Frames], base: list[Frames], quantile: float) -> list[float]:
    """90 % bootstrap interval over rounds of a quantile of release to finish, over another arm's."""
    random = np.random.default_rng(0)
    own, other = ([np.asarray(r[1]) for r in rounds] for rounds in (arm, base))
    ratios = []
    for _ in range(500):
        drawn = random.integers(0, len(own), len(own))
        ratios.append(
            np.quantile(np.concatenate([own[n] for n in drawn]), quantile)
            / np.quantile(np.concatenate([other[n] for n in drawn]), quantile)
        )
    return [float(np.quantile(ratios, q)) for q in (0.05, 0.5, 0.95)]


def start_interval(arm: list[Frames], floors_ns: list[float]) -> list[float]:
    """90 % bootstrap interval over rounds of the 99th percentile of release to start less that of the idle control."""
    random = np.random.default_rng(0)
    over = []
    for _ in range(500):
        drawn = random.integers(0, len(arm), len(arm))
        starts = np.concatenate([np.asarray(arm[n][0]) for n in drawn])
        over.append(np.quantile(starts, 0.99) - np.median([floors_ns[n] for n in drawn]))
    return [float(np.quantile(over, q)) for q in (0.05, 0.5, 0.95)]


def main() -> None:
    """Run all arms, print a table, write the result."""
    shared = Path(os.environ.get("FRAMEFIT_SHARED", Path(__file__).parents[2] / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1500, help="of each arm")
    parser.add_argument("--face", type=Path, default=shared / "models" / "face-slim-320.onnx")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        BUILTIN["depth"](0).save(folder / "depth.onnx")
        plans = {}
        for arm, preemption in (("framefit", "auto"), ("segments", "never")):
            app = folder / f"{arm}.toml"
            app.write_text(
                f'rate_hz = {RATE_HZ}\n[schedule]\npreemption = "{preemption}"\n'
                f'[[models]]\nname = "face"\npath = "{options.face}"\npriority = "every-window"\n'
                '[[models]]\nname = "depth"\npath = "depth.onnx"\npriority = "background"\n'
            )
            plans[arm] = framefit.plan(app, cache=False)
        face, depth = (model.whole for model in plans["framefit"].opened().models)
        core = plans["framefit"].device.target.units[0].core
        details: dict[str, list[dict[str, float]]] = {"framefit": [], "segments": []}
        arms: dict[str, Callable[[int], Frames]] = {
            "alone": lambda n: by_hand(face, None, n, "alone"),
            "loop": lambda n: by_hand(face, depth, n // 10, "loop"),
            "threads": lambda n: by_hand(face, depth, n, "threads"),
            "nice": lambda n: by_hand(face, depth, n, "nice"),
            "fifo": lambda n: by_hand(face, depth, n, "fifo"),
            "framefit": lambda n: by_framefit(plans["framefit"], n, folder, details["framefit"]),
            "segments": lambda n: by_framefit(plans["segments"], n, folder, details["segments"]),
        }
        if not realtime_priority_permitted():
            del arms["fifo"]
        taken: dict[str, list[Frames]] = {arm: [] for arm in arms}
        with pinned(core), flushed_denormals():
            for turn in range(max(options.windows // CHUNK, 1)):
                for arm in list(arms) if turn % 2 == 0 else list(arms)[::-1]:
                    taken[arm].append(arms[arm](CHUNK))
    window_ns = 1e9 / RATE_HZ
    table: dict[str, dict[str, object]] = {}
    print(f"{'arm':9} {'start p50/p99':>18} {'finish p50/p99/p99.9':>26} {'missed':>14} {'background':>11}")
    for arm, rounds in taken.items():
        starts = np.concatenate([np.asarray(r[0]) for r in rounds])
        finish = np.concatenate([np.asarray(r[1]) for r in rounds])
        seconds = len(finish) / RATE_HZ
        count = (CHUNK // 10 if arm == "loop" else CHUNK) * len(rounds)
        missed = int((finish > window_ns).sum()) + count - len(finish)
        share = np.asarray([(np.asarray(r[1]) > window_ns).mean() for r in rounds])
        alone = np.asarray([(np.asarray(r[1]) > window_ns).mean() for r in taken["alone"]])
        row = {
            "frames": count,
            "start_ns": [float(np.quantile(starts, q)) for q in (0.5, 0.99)],
            "finish_ns": [float(np.quantile(finish, q)) for q in (0.5, 0.99, 0.999)],
            "missed": missed,
            "missed_ratio_interval": interval(share),
            "missed_ratio_above_alone_interval": interval(share - alone),
            "background_hz": sum(r[2] for r in rounds) / seconds,
            "background_hz_interval": interval(np.asarray([r[2] * RATE_HZ / max(len(r[1]), 1) for r in rounds])),
        }
        table[arm] = row
        s, f = row["start_ns"], row["finish_ns"]
        print(
            f"{arm:9} {s[0] / 1e3:7.0f} {s[1] / 1e3:7.0f} us {f[0] / 1e6:7.2f} {f[1] / 1e6:7.2f} {f[2] / 1e6:7.2f} ms "
            f"{missed:5} of {row['frames']:5} {row['background_hz']:8.2f} Hz"
        )
    for arm, rows in details.items():
        table[arm] |= {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
        print(arm, {key: round(float(np.median([row[key] for row in rows])), 4) for key in rows[0]})
    ratios = {
        f"{arm} over {base}, p{100 * q:g}": ratio_interval(taken[arm], taken[base], q)
        for arm, base, q in (("framefit", "nice", 0.999), ("framefit", "nice", 0.99), ("framefit", "fifo", 0.99))
        if base in taken
    }
    floors_ns = [row["floor_p99_ns"] for row in details["framefit"]]
    over = {arm: start_interval(taken[arm], floors_ns) for arm in ("fifo", "framefit") if arm in taken}
    print(ratios, "start p99 over the idle control's:", over)
    figures = {"arms": table, "ratios": ratios, "start_p99_over_floor_ns": over}
    store("runtime_cpu", figures, f"runtime_cpu.py --windows {options.windows}")


if __name__ == "__main__":
    main()
