"""A profile is written as a Perfetto trace at 5 million events a second or more, on one core.

    python benchmarks/perfetto_writing.py [--inferences 10000] [--rounds 9]

120 operations an inference on two units; a START and an END are two events. Arms, in turn,
forwards and backwards: nothing inferred, 10 % and 40 % of the edges inferred (each then carries
its interval), and a reference: the bytes of the second arm's file, ready made, written to a new file.
Everything is counted that is needed from the log in memory to the closed file. Times are the process's
own (user and system), so that a neighbour on the machine does not count; elapsed time stands beside it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from stored import interval, store

from framefit.core.profile import How, OperationLog
from framefit.core.program import Group, Launches, Operation, Program, ProgramUnit, SegmentProgram
from framefit.report.perfetto import write_perfetto

OPERATIONS = 120
KINDS = ("conv", "pad_pool", "reformat", "eltwise")
ARMS = {"measured": 0.0, "10 % inferred": 0.1, "40 % inferred": 0.4}


def program() -> Program:
    """One segment of 120 operations, in turn on two units."""
    operations = tuple(
        Operation(
            index=index,
            name=f"{KINDS[index % 4]}_{index}",
            layer=f"layer_{index}",
            kind=KINDS[index % 4],
            unit=f"npu{index % 2}",
            expected_ns=40_000,
            sigma_ratio=0.05,
        )
        for index in range(OPERATIONS)
    )
    segment = SegmentProgram(
        name="network.0", model="network", segment=0, groups=(Group(index=0, operations=operations),)
    )
    units = (ProgramUnit(name="npu0", core=0), ProgramUnit(name="npu1", core=1))
    return Program(window_ns=5_000_000, units=units, programs=(segment,), launches="launches.npz")


def log(inferences: int, lost_ratio: float, random: np.random.Generator) -> OperationLog:
    """Operations of 40 us and gaps of 1 us; every edge is lost with the same probability."""
    count = inferences * OPERATIONS
    index = np.tile(np.arange(OPERATIONS), inferences)
    duration = random.normal(40_000, 2_000, count).astype(np.int64)
    start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for unit in (0, 1):
        on = index % 2 == unit
        end[on] = 3_600_000_000_000 + np.cumsum(duration[on] + 1_000)  # an hour after the device was started
        start[on] = end[on] - duration[on]
    lost = random.random((2, count)) < lost_ratio
    how = np.where(lost, How.BETWEEN, How.MEASURED).astype(np.uint8)
    margin = np.where(lost, random.integers(100, 4_000, (2, count)), 0)
    event = np.where(lost, -1, 2 * np.arange(count) + np.array([[0], [1]]))
    return OperationLog(
        inference=np.repeat(np.arange(inferences), OPERATIONS),
        program=np.zeros(count, np.int32),
        operation=index.astype(np.int32),
        kind=(index % 4).astype(np.int32),
        core=(index % 2).astype(np.int16),
        unit=(index % 2).astype(np.int16),
        start_ns=start,
        end_ns=end,
        start_how=how[0],
        end_how=how[1],
        start_low_ns=start - margin[0],
        start_high_ns=start + margin[0],
        end_low_ns=end - margin[1],
        end_high_ns=end + margin[1],
        start_event=event[0],
        end_event=event[1],
        kinds=KINDS,
    )


def main() -> None:
    """Run the arms, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inferences", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    executed, count = program(), options.inferences
    launches = Launches(
        program=np.zeros(count, np.int32), window=np.arange(count), frame=np.arange(count), submit_ns=np.arange(count)
    )
    events = 2 * OPERATIONS * count
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in (*ARMS, "reference")}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace.pftrace"

        def written(of: OperationLog) -> Callable[[], None]:
            return lambda: write_perfetto(path, of, executed, launches)

        arms = {arm: written(log(count, ratio, np.random.default_rng(0))) for arm, ratio in ARMS.items()}
        arms["10 % inferred"]()
        ready = path.read_bytes()
        arms["reference"] = lambda: path.open("wb").write(ready) and None
        for turn in range(options.rounds):
            for arm in list(arms) if turn % 2 == 0 else list(arms)[::-1]:
                path.unlink()
                own, elapsed = time.process_time(), time.perf_counter()
                arms[arm]()
                rows[arm].append((time.process_time() - own, time.perf_counter() - elapsed))
                sizes[arm] = path.stat().st_size
    table: dict[str, dict[str, object]] = {}
    print(f"{'':14} {'own M events/s':>15} {'90 %':>16} {'elapsed':>9} {'x reference':>12} {'bytes an event':>15}")
    reference = np.array(rows["reference"])[:, 0]
    for arm, found in rows.items():
        own, elapsed = np.array(found).T
        rate, ratio = events / own / 1e6, own / reference
        low, high = interval(rate)
        table[arm] = {
            "own_events_per_second": {"median": 1e6 * float(np.median(rate)), "interval": [1e6 * low, 1e6 * high]},
            "elapsed_events_per_second": events / float(np.median(elapsed)),
            "time_over_reference": {"median": float(np.median(ratio)), "interval": interval(ratio)},
            "bytes_per_event": sizes[arm] / events,
        }
        elapsed_rate = events / np.median(elapsed) / 1e6
        print(
            f"{arm:14} {np.median(rate):15.2f} {f'{low:.2f} .. {high:.2f}':>16} {elapsed_rate:9.2f}"
            f" {np.median(ratio):12.2f} {sizes[arm] / events:15.1f}"
        )
    command = f"perfetto_writing.py --inferences {count} --rounds {options.rounds}"
    store("perfetto_writing", {"events": events, "arms": table}, command)


if __name__ == "__main__":
    main()
