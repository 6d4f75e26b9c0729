"""The dispatcher on a simulated unit that cannot be preempted, in virtual and in real time.

    python benchmarks/runtime_simulated.py [--windows 100000] [--real-windows 2000] [--part virtual]

Durations vary log-normally (sigma 2 %, cut at +10 %); cutting costs 10 us a boundary. Arms:

- ``timetable``: as planned; ``whole``: the same models, dispatched whole as they come.
- in real time also ``idle`` (the priority model alone, the control), ``loop`` (all models in
  turn in one thread) and ``threads`` (a thread each, first come first served at the unit),
  in rounds that take turns.
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from stored import interval, store

from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.core.target import Target, Unit, Variation
from framefit.core.timetable import PlannedModel, Segment, Timetable
from framefit.devices.clock import Clock, RealClock, VirtualClock
from framefit.devices.host import default_core, pinned
from framefit.devices.measure import measure_floor
from framefit.devices.npu.device import NpuDevice
from framefit.planning.beat import Beat
from framefit.planning.check import check_timetable
from framefit.planning.cutting import Candidate, arrange
from framefit.planning.partition import Pieces
from framefit.runtime.log import FrameLog, FrameOutcome, LaunchLog
from framefit.runtime.loop import Dispatcher, steady
from framefit.workflows.record import throughput_bounds_hz

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from timed_runs import timed_dispatcher

SIGMA, MOST = 0.02, 0.10
QUANTILE = math.exp(2.326 * SIGMA)  # p99 over the median
BOUNDARY_NS = 10_000
TARGET = Target(
    name="unit",
    kind="npu",
    units=(Unit(name="npu0", preemptive=False),),
    variation=Variation(sigma_ratio=SIGMA, most_ratio=MOST),
)
CHUNK = 250


def candidate(name: str, total_ms: float, layers: int, seed: int = 0) -> Candidate:
    """A model of so many layers of unequal duration; one layer: the priority model."""
    random = np.random.default_rng(seed)
    median = (random.dirichlet(np.full(layers, 4.0)) * total_ms * 1e6).astype(np.int64)
    whole = int(median.sum())
    segment = Segment(
        index=0,
        unit="npu0",
        fill_layer=name,
        first_layer=name,
        last_layer=name,
        output_layers=(),
        duration_ns=math.ceil(whole * QUANTILE),
        median_ns=whole,
        boundary_bytes=0,
        tensors=(),
    )
    model = PlannedModel(
        name=name,
        role="priority" if layers == 1 else "background",
        level=0,
        reasons=(),
        duration_ns=segment.duration_ns,
        segments=(segment,),
    )
    if layers == 1:
        return Candidate(model)
    # A piece pays half of the boundaries beside it.
    median = median + BOUNDARY_NS
    median[[0, -1]] -= BOUNDARY_NS // 2
    boundary = np.full(layers - 1, BOUNDARY_NS)
    return Candidate(model, Pieces(median, np.ceil(median * QUANTILE).astype(np.int64), boundary))


WORKLOADS: dict[str, tuple[float, list[Candidate]]] = {
    "camera, one": (30, [candidate("face", 6.5, 1), candidate("depth", 50, 60, 1)]),
    "camera, three": (
        30,
        [
            candidate("face", 6.5, 1),
            candidate("depth", 50, 60, 1),
            candidate("pose", 12, 20, 2),
            candidate("seg", 90, 60, 3),
        ],
    ),
    "audio, three": (
        100,
        [
            candidate("vad", 1.5, 1),
            candidate("asr", 20, 60, 1),
            candidate("scene", 5, 20, 2),
            candidate("tags", 40, 60, 3),
        ],
    ),
}


def planned(rate_hz: float, candidates: list[Candidate], floor_ns: int = 0) -> Timetable:
    """The timetable with the default guard: the longest segment's greatest excess, or the floor."""
    excess = (1 + MOST) / QUANTILE - 1 + 1e-6
    return arrange(
        candidates, Beat(window_ns=int(1e9 / rate_hz), guard_ns=floor_ns, excess_ratio=excess, late_ns=floor_ns)
    )


def uncut(rate_hz: float, candidates: list[Candidate]) -> Timetable:
    """Whole models, started whenever the unit is free."""
    timetable = arrange(candidates, Beat(window_ns=int(1e9 / rate_hz), guard_ns=0))
    models = tuple(
        msgspec.structs.replace(
            c.model,
            segments=tuple(
                msgspec.structs.replace(s, duration_ns=0 if c.model.role == "background" else s.duration_ns)
                for s in c.model.segments
            ),
        )
        for c in candidates
    )
    return msgspec.structs.replace(timetable, models=models, guard_ns=0)


def dispatched(timetable: Timetable, rate_hz: float, clock: Clock, windows: int, seed: int) -> Dispatcher:
    """Run a timetable."""
    device = NpuDevice(TARGET, clock, seed=seed)
    background = sum(model.role == "background" for model in timetable.models)
    dispatcher = timed_dispatcher(timetable, device, Grid(rate_hz), Rotation(background))
    dispatcher.run(windows)
    return dispatcher


def figures(timetable: Timetable, run: Dispatcher, rate_hz: float, candidates: list[Candidate]) -> dict[str, object]:
    """Misses, throughput beside its bounds, ages beside theirs."""
    rows = run.frames.rows()
    launches = run.launches.finished()
    names = [model.name for model in timetable.models]
    whole = {c.model.name: c.model.segments[0].median_ns for c in candidates}
    done = rows[np.isin(rows[:, FrameLog.OUTCOME], (FrameOutcome.DONE, FrameOutcome.LATE))]
    count = {name: int((done[:, FrameLog.MODEL] == index).sum()) for index, name in enumerate(names)}
    first = rows[rows[:, FrameLog.MODEL] == 0]
    background = [model for model in timetable.models if model.role == "background"]
    useful = sum(count[model.name] * whole[model.name] for model in background)
    quantiles = np.asarray([segment.duration_ns for model in timetable.models for segment in model.segments])
    took = launches[:, LaunchLog.FINISHED] - launches[:, LaunchLog.STARTED]
    result: dict[str, object] = {
        "windows": run.windows,
        "missed": int((first[:, FrameLog.OUTCOME] != FrameOutcome.DONE).sum()),
        "background_hz": {model.name: round(count[model.name] * rate_hz / run.windows, 3) for model in background},
        "age_windows": {},
        "exceeded_ratio": float((took > quantiles[launches[:, LaunchLog.PROGRAM]]).mean()),
    }
    for index, model in enumerate(timetable.models):
        own = done[done[:, FrameLog.MODEL] == index]
        age = (own[:, FrameLog.FINISHED] - own[:, FrameLog.RELEASED]).max() if len(own) else 0
        ages = result["age_windows"]
        assert isinstance(ages, dict)
        ages[model.name] = [math.ceil(age * rate_hz / 1e9 - 1e-9), model.result_age_windows]
    medians = [segment.median_ns for model in timetable.models for segment in model.segments]
    bounds_hz = throughput_bounds_hz(timetable, run, [1] * len(names), medians, [whole[name] for name in names])
    # Of several models: of all their work, in the proportions in which they were served.
    for bound, hz in zip(("fluid", "packing"), zip(*bounds_hz.values(), strict=True), strict=True):
        possible = sum(most * whole[name] for name, most in zip(bounds_hz, hz, strict=True))
        result[f"{bound}_ratio"] = useful * rate_hz / run.windows / possible
    result["useful_ratio"] = useful / (run.windows * timetable.window_ns)
    return result


def virtual(windows: int) -> dict[str, object]:
    """All workloads in virtual time."""
    table: dict[str, object] = {}
    for name, (rate_hz, candidates) in WORKLOADS.items():
        timetable = planned(rate_hz, candidates)
        wrong = check_timetable(timetable)
        begin = time.process_time()  # other programs may have the processor meanwhile
        cut = figures(timetable, dispatched(timetable, rate_hz, VirtualClock(), windows, 1), rate_hz, candidates)
        seconds = time.process_time() - begin
        whole = uncut(rate_hz, candidates)
        plain = figures(whole, dispatched(whole, rate_hz, VirtualClock(), windows, 1), rate_hz, candidates)
        table[name] = {
            "feasible": timetable.feasible,
            "check": wrong,
            "segments": {model.name: len(model.segments) for model in timetable.models},
            "guard_ns": timetable.guard_ns,
            "seconds": round(seconds, 1),
            "timetable": cut,
            "whole": plain,
        }
        print(
            f"{name:14} {windows} windows, {seconds:4.1f} s: missed {cut['missed']} (whole: {plain['missed']}), "
            f"fluid {cut['fluid_ratio']:.3f}, packing {cut['packing_ratio']:.3f}, "
            f"over p99 {cut['exceeded_ratio']:.2%}, ages {cut['age_windows']}, check {wrong}"
        )
    return table


def by_hand(kind: str, device: NpuDevice, timetable: Timetable, rate_hz: float, windows: int) -> tuple[int, int]:
    """Misses of the priority model, and background frames, without Framefit's dispatcher."""
    clock, unit = RealClock(), threading.Lock()
    bindings = {m.name: device.timed(f"{m.name}.0", "npu0", m.segments[0].median_ns).bind({}) for m in timetable.models}
    names = [m.name for m in timetable.models if m.role == "background"]
    done, missed, closing = [0], 0, threading.Event()

    def submit(name: str) -> int:
        with unit:
            return device.submit(bindings[name]).finished_ns

    def serve(name: str) -> None:
        while not closing.is_set():
            submit(name)
            done[0] += 1

    workers = [threading.Thread(target=serve, args=(name,), daemon=True) for name in names if kind == "threads"]
    for worker in workers:
        worker.start()
    begin = clock.now_ns() + 20_000_000
    for window in range(windows):
        release = begin + round(window * 1e9 / rate_hz)
        clock.sleep_until_ns(release)
        missed += submit(timetable.models[0].name) - release > timetable.window_ns
        if kind == "loop":
            for name in names:
                submit(name)
                done[0] += 1
    spent = clock.now_ns() - begin
    closing.set()
    for worker in workers:
        worker.join()
    return missed, round(done[0] * windows * 1e9 / rate_hz / spent)  # late windows took longer


def real(windows: int) -> dict[str, object]:
    """The audio workload in real time; arms take turns in rounds."""
    rate_hz, candidates = WORKLOADS["audio, three"]
    clock = RealClock()
    floor = int(np.quantile(measure_floor(clock, 5_000_000, 200), 0.99))
    timetable, whole = planned(rate_hz, candidates, floor), uncut(rate_hz, candidates)
    idle = msgspec.structs.replace(timetable, models=timetable.models[:1])
    print(f"real time: floor p99 {floor / 1e3:.0f} us, feasible {timetable.feasible}")

    def framefit(plan: Timetable, count: int, seed: int) -> tuple[int, int]:
        with steady():
            run = dispatched(plan, rate_hz, clock, count, seed)
        rows = run.frames.rows()
        first, rest = rows[rows[:, FrameLog.MODEL] == 0], rows[rows[:, FrameLog.MODEL] > 0]
        return int((first[:, FrameLog.OUTCOME] != FrameOutcome.DONE).sum()), int(
            (rest[:, FrameLog.OUTCOME] == FrameOutcome.DONE).sum()
        )

    def hand(kind: str, count: int, seed: int) -> tuple[int, int]:
        device = NpuDevice(TARGET, clock, seed=seed)
        return by_hand(kind, device, whole, rate_hz, count)

    arms: dict[str, Callable[[int, int], tuple[int, int]]] = {
        "idle": lambda n, s: framefit(idle, n, s),
        "timetable": lambda n, s: framefit(timetable, n, s),
        "whole": lambda n, s: framefit(whole, n, s),
        "loop": lambda n, s: hand("loop", min(n, 25), s),  # every window misses; a few are enough
        "threads": lambda n, s: hand("threads", min(n, 25), s),
    }
    taken: dict[str, list[tuple[int, int, int]]] = {arm: [] for arm in arms}
    for turn in range(max(windows // CHUNK, 1)):
        for arm in list(arms) if turn % 2 == 0 else list(arms)[::-1]:
            missed, frames = arms[arm](CHUNK, turn)
            taken[arm].append((missed, frames, CHUNK if arm not in ("loop", "threads") else 25))
    table: dict[str, object] = {"floor_p99_ns": floor, "guard_ns": timetable.guard_ns}
    ratio = {arm: np.asarray([m / n for m, _, n in rounds]) for arm, rounds in taken.items()}
    for arm, rounds in taken.items():
        pairs = ratio[arm] - ratio["idle"]
        count = sum(n for _, _, n in rounds)
        table[arm] = {
            "windows": count,
            "missed": sum(m for m, _, _ in rounds),
            "difference_to_idle_upper": interval(pairs)[1],
            "background_hz": sum(f for _, f, _ in rounds) * rate_hz / count,
        }
        print(f"  {arm:10} {table[arm]}")
    return table


def main() -> None:
    """Run both parts, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=100_000, help="in virtual time, each workload and arm")
    parser.add_argument("--real-windows", type=int, default=2_000, help="in real time, each arm")
    parser.add_argument("--part", choices=("virtual", "real"), help="default: both")
    options = parser.parse_args()
    parts = {
        "runtime_virtual": ("virtual", lambda: virtual(options.windows), f"--windows {options.windows}"),
        "runtime_real_time": ("real", lambda: real(options.real_windows), f"--real-windows {options.real_windows}"),
    }
    for name, (part, measure, arguments) in parts.items():
        if options.part in (None, part):
            with pinned(default_core()):
                figures = {part: measure()}
            store(name, figures, f"runtime_simulated.py --part {part} {arguments}")


if __name__ == "__main__":
    main()
