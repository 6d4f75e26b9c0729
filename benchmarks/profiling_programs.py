"""Claim: a trace is refused with a program that is similar to the executed one, and never with the executed one.

Right programs: traces of a simulated device that shares no assumption with the alignment (``tests/foreign_runs.py``),
from which 0 to 60 % of the packets are lost, one by one and in bursts; and traces of buffers that lose nearly the same
events in every launch. Wrong programs have one layer more or less than the executed one, two neighbours or any two
layers in the other order, or a layer of another kind. Where the units' packets look the same with both programs, and
only ``after`` differs, the two cannot be told apart; these are counted by themselves.

    python benchmarks/profiling_programs.py --right 200 --buffers 40 --wrong 24
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from stored import store

from framefit.core.program import Program
from framefit.errors import InputError
from framefit.profiling.inject import drop_by_buffer
from framefit.profiling.profile import ProfileInput, profile_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from foreign_runs import EDITS, ForeignCase, ForeignRun, edited, make_run, symbols_by_unit

LOSSES = {
    "none": ForeignCase(loss=0.0),
    "10 %": ForeignCase(),
    "10 % in bursts of 20": ForeignCase(burst=20),
    "40 %": ForeignCase(loss=0.4),
    "40 % in bursts of 20": ForeignCase(loss=0.4, burst=20),
    "60 %": ForeignCase(loss=0.6),
    "10 %, side by side": ForeignCase(overlap=True),
}


def refused(run: ForeignRun, program: Program, method: str = "align") -> tuple[bool, float]:
    """Whether a trace is refused with a program, and the seconds that it took if it was."""
    begin = time.process_time()
    try:
        profile_trace(ProfileInput(run.trace, program, None, None, "trace"), method=method)  # type: ignore[arg-type]
    except InputError as error:
        if "not of this program" not in str(error):
            raise
        return True, time.process_time() - begin
    return False, 0.0


def right_case(seed: int) -> ForeignCase:
    """A case with losses of 0 to 60 %, one by one and in bursts."""
    return ForeignCase(
        operations=(30, 90)[seed // 8 % 2],
        inferences=60,
        overlap=seed // 4 % 2 == 1,
        drift=0.15 * (seed // 16 % 2),
        loss=0.6 * ((seed * 0.618034) % 1),
        burst=(1.0, 5.0, 20.0, 60.0)[seed % 4],
    )


def through_buffer(seed: int) -> ForeignRun:
    """A run of steady durations whose buffer loses nearly the same events in every launch and does not say so."""
    run = make_run(ForeignCase(operations=30, loss=0.0, variation=0.002, stalls=0.0, units=1 + seed % 3), seed)
    span_ns = int(run.trace.time_ns[-1] - run.trace.time_ns[0])
    rate_hz = (0.5, 0.7, 0.9)[seed // 3 % 3] * 1e9 * len(run.trace) / span_ns
    thin = drop_by_buffer(run.trace, 2 + 3 * (seed % 4), rate_hz).trace
    silent = replace(thin, loss_after=np.zeros(0, np.int64), meta=run.trace.meta)
    return replace(run, trace=thin if seed % 2 else silent)


def main() -> None:
    """Try all programs, print the table, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--right", type=int, default=200)
    parser.add_argument("--buffers", type=int, default=40)
    parser.add_argument("--wrong", type=int, default=24)
    options = parser.parse_args()
    figures: dict[str, Any] = {"right": {}, "wrong": {}}
    for name, runs in (
        ("losses of 0 to 60 %", (make_run(right_case(seed), seed) for seed in range(options.right))),
        ("buffers", (through_buffer(seed) for seed in range(options.buffers))),
    ):
        wrong = [number for number, run in enumerate(runs) if refused(run, run.program)[0]]
        count = options.right if name != "buffers" else options.buffers
        figures["right"][name] = {"traces": count, "refused": wrong}
        print(f"right, {name}: {len(wrong)} of {count} refused {wrong}", flush=True)
    for name, case in LOSSES.items():
        row = figures["wrong"][name] = {}
        for edit in EDITS:
            outcomes, alike, seconds, missed = 0, 0, 0.0, []
            for seed in range(options.wrong):
                run = make_run(case, seed)
                program = edited(run.program, edit, np.random.default_rng(seed))
                if symbols_by_unit(program) == symbols_by_unit(run.program):
                    alike += 1
                    continue
                outcome, took = refused(run, program)
                outcomes += outcome
                seconds = max(seconds, took)
                if not outcome:
                    missed.append(seed)
            tried = options.wrong - alike
            row[edit] = {"tried": tried, "refused": outcomes, "alike": alike, "seconds": seconds, "missed": missed}
            print(
                f"{name:22} {edit:12} {outcomes} of {tried} refused, {alike} alike, {seconds:.2f} s at most", flush=True
            )
    slow = 0.0
    for number in range(3):
        run = make_run(ForeignCase(inferences=370), number)
        for edit in EDITS:
            outcome, took = refused(run, edited(run.program, edit, np.random.default_rng(number)))
            slow = max(slow, took)
    figures["seconds_60_000"] = slow
    print(f"60,000 events: refused after {slow:.2f} s at most")
    command = f"profiling_programs.py --right {options.right} --buffers {options.buffers} --wrong {options.wrong}"
    store("profiling_programs", figures, command)


if __name__ == "__main__":
    main()
