"""Claim: alignment finds the operation of nearly every packet, and times with intervals that hold.

Simulated runs of which all is known (``tests/profiling_truth.py``: 120 operations x 200 inferences, five
kinds on three units that overlap, a table wrong by 25 %, stalls, a drifting clock) lose packets; the
alignment, the rule, greedy matching, and dropping what is incomplete rebuild them. Mean over seeds, with
90 % intervals.

    python benchmarks/profiling_accuracy.py --seeds 8
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from lossy_baselines import rebuild_dropping, rebuild_greedy
from stored import interval, store

from framefit.core.events import Trace
from framefit.profiling import rule
from framefit.profiling.align import aligner as align
from framefit.profiling.inject import drop_packets
from framefit.profiling.sequence import Reconstruction, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from profiling_truth import Setting, Truth, scored, simulate

LOSSES = (("random", 0.1), ("burst", 0.1), ("random", 0.4), ("burst", 0.4))


def arms(truth: Truth) -> dict[str, Callable[[Trace, Sequence], Reconstruction]]:
    """The methods that are compared."""
    return {
        "align": align.reconstruct,
        "rule": lambda trace, sequence: rule.reconstruct(trace, sequence, truth.program.rule_offsets_ns),
        "greedy": lambda trace, sequence: rebuild_greedy(trace, sequence, truth.program.rule_offsets_ns),
        "drop": rebuild_dropping,
    }


def main() -> None:
    """Run all, print the table, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    found: dict[tuple[str, float, str], dict[str, list[float]]] = {}
    for seed in range(options.seeds):
        truth = simulate(Setting(seed=seed))
        sequence = Sequence.of(truth.program, truth.launches, truth.trace.kinds)
        for kind, rate in LOSSES:
            lossy = drop_packets(truth.trace, truth.program, truth.launches, kind=kind, rate=rate, seed=seed)  # type: ignore[arg-type]
            for name, method in arms(truth).items():
                rebuilt = method(lossy.trace, sequence)
                score = scored(truth, lossy.kept, rebuilt)
                row = found.setdefault((kind, rate, name), {})
                row.setdefault("matched", []).append(score.matched)
                row.setdefault("found", []).append(score.found)
                if name != "drop":  # it says nothing of operations that lost a packet
                    row.setdefault("duration_error", []).append(score.duration_error)
                if name == "align":  # the others give no intervals
                    row.setdefault("coverage", []).append(score.coverage)
    table: list[dict[str, Any]] = []
    for (kind, rate, name), row in found.items():
        entry: dict[str, Any] = {"loss": kind, "rate": rate, "method": name}
        for key, values in row.items():
            mean, (low, high) = float(np.mean(values)), interval(values)
            entry[key] = {"mean": mean, "interval": [low, high], "seeds": values}
        table.append(entry)
        shown = [
            f"{key} {entry[key]['mean']:.4f} ({low:.4f} to {high:.4f})"
            for key in row
            for low, high in [entry[key]["interval"]]
        ]
        print(f"{kind:7} {rate:.0%} {name:7} {'  '.join(shown)}")
    store("profiling_accuracy", {"table": table}, f"profiling_accuracy.py --seeds {options.seeds}")


if __name__ == "__main__":
    main()
