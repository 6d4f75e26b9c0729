"""Claim: alignment keeps up with 1.5 million events a second on one core, in memory that does not grow.

A simulated stream, thinned at random or in bursts, is fed in chunks. Beside it, in turns within the same
run, a reference kernel that says how fast the machine is: a compiled loop over the same packets that
looks up each one's symbol and adds up times (``reference``). Peak memory is that of a process of its own
for each length of stream.

    python benchmarks/profiling_speed.py --packets 1000000 --rounds 5
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from stored import store

from framefit.core.events import Trace
from framefit.devices.host import default_core, pinned
from framefit.profiling.align.aligner import Aligner
from framefit.profiling.inject import drop_packets
from framefit.profiling.sequence import Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from profiling_truth import Setting, simulate

CHUNK = 65_536
ARMS = {
    "random 10 %": ("random", 0.1),
    "burst 10 %": ("burst", 0.1),
    "random 40 %": ("random", 0.4),
    "burst 40 %": ("burst", 0.4),
}


@njit(cache=True, nogil=True)
def reference(time_ns: Any, id_: Any, type_: Any, core: Any, table: Any) -> Any:
    """A loop over packets that no method can do without: look each one up, add its time to a sum."""
    latest = np.zeros(table.shape[0])
    total = 0.0
    for at in range(len(time_ns)):
        here = core[at]
        step = time_ns[at] - latest[here]
        latest[here] = time_ns[at]
        mean = table[here, 2 * id_[at] + type_[at]]
        total += -0.5 * (step - mean) * (step - mean) / (mean * mean + 1.0) - np.log(mean + 1.0)
    return total


def thinned(kind: str, rate: float, inferences: int, seed: int = 0) -> tuple[Trace, Sequence]:
    """A lossy stream and its program."""
    truth = simulate(Setting(inferences=inferences, seed=seed, drift_ratio=2e-4))
    lossy = drop_packets(truth.trace, truth.program, truth.launches, kind=kind, rate=rate, seed=seed)  # type: ignore[arg-type]
    return lossy.trace, Sequence.of(truth.program, truth.launches, truth.trace.kinds)


def part(trace: Trace, begin: int, shift_ns: int = 0) -> Trace:
    """A chunk of a stream, later by ``shift_ns``."""
    here = slice(begin, begin + CHUNK)
    return replace(
        trace,
        time_ns=trace.time_ns[here] + shift_ns,
        id=trace.id[here],
        type=trace.type[here],
        core=trace.core[here],
        operation=trace.operation[here],
    )


def aligned(trace: Trace, sequence: Sequence) -> int:
    """Feed the stream; the operations that came out."""
    aligner = Aligner(sequence, len(trace.kinds), trace.meta)
    count = 0
    for begin in range(0, len(trace), CHUNK):
        count += len(aligner.feed(part(trace, begin)).log)
    return count + len(aligner.close().log)


def measure(packets: int, rounds: int) -> dict[str, Any]:
    """Events a second of all arms, in turns."""
    inferences = packets // 240 + 1
    streams = {name: thinned(kind, rate, int(inferences / (1 - rate))) for name, (kind, rate) in ARMS.items()}
    table = np.full((8, 64), 1000.0)
    taken: dict[str, list[float]] = {name: [] for name in ARMS}
    reference_per_s: dict[str, list[float]] = {name: [] for name in ARMS}
    for trace, sequence in streams.values():
        reference(trace.time_ns[:9], trace.id[:9], trace.type[:9], trace.core[:9], table)
        aligned(part(trace, 0), sequence)
    for turn in range(rounds):
        for name in list(ARMS) if turn % 2 == 0 else list(ARMS)[::-1]:
            trace, sequence = streams[name]
            begin = time.perf_counter()
            aligned(trace, sequence)
            middle = time.perf_counter()
            reference(trace.time_ns, trace.id, trace.type, trace.core, table)
            reference_per_s[name].append(len(trace) / (time.perf_counter() - middle))
            taken[name].append(len(trace) / (middle - begin))
    result = {}
    for name in ARMS:
        result[name] = {
            "packets": len(streams[name][0]),
            "events_per_s": {"median": float(np.median(taken[name])), "rounds": taken[name]},
            "reference_per_s": {"median": float(np.median(reference_per_s[name])), "rounds": reference_per_s[name]},
        }
        mine, its = float(np.median(taken[name])), float(np.median(reference_per_s[name]))
        best = max(taken[name]) / 1e6
        print(f"{name:12} {mine / 1e6:.2f} M events/s (best {best:.2f}), reference {its / 1e6:.0f}: {its / mine:.0f}")
    return result


def one_stream(packets: int) -> None:
    """Feed a long stream made of one short one again and again; print the peak memory in MiB."""
    trace, sequence = thinned("burst", 0.1, 500)
    period = int(trace.time_ns[-1] - trace.time_ns[0]) + 10_000
    aligner = Aligner(sequence, len(trace.kinds), trace.meta)
    fed = turn = 0
    while fed < packets:
        for begin in range(0, len(trace), CHUNK):
            piece = part(trace, begin, turn * period)
            aligner.feed(piece)
            fed += len(piece)
        turn += 1
    aligner.close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Run all, print the table, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_stream(options.one)
        return
    with pinned(default_core()):
        speed = measure(options.packets, options.rounds)
        memory = {}
        for packets in options.memory:
            measured = subprocess.run(
                [sys.executable, __file__, "--one", str(packets)], capture_output=True, text=True, check=True
            )
            memory[str(packets)] = float(measured.stdout)
            print(f"{packets:>10} packets: peak {memory[str(packets)]:.0f} MiB")
    command = f"profiling_speed.py --packets {options.packets} --rounds {options.rounds}"
    store("profiling_speed", {"speed": speed, "peak_memory_mib": memory}, command)


if __name__ == "__main__":
    main()
