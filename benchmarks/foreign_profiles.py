"""Claim: alignment holds on traces of a device that shares none of its assumptions.

``tests/foreign_runs.py`` simulates a device from the file formats alone: units that share a core, a strongly drifting
clock, one operation in a hundred stalled, whole inferences lost, clocks that wrap around. Each case has its bars;
beside alignment stand the rule, and, where one operation runs at a time, an oracle that knows what every packet is.
Means over seeds; a case that does not hold says so.

    python benchmarks/foreign_profiles.py --seeds 5
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stored import store

from framefit.profiling.profile import ProfileInput, profile_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from foreign_runs import ForeignCase, make_run, oracle_error, score

_BEHIND_RULE = 0.005


@dataclass(frozen=True)
class Bars:
    """What a case has to reach: means over the seeds, and how many seeds have to be matched so well."""

    matched: float
    duration_error: float | None = None
    covers: bool = True
    counts_inferences: bool = False
    seeds_ratio: float = 1.0


CASES: dict[str, tuple[ForeignCase, Bars]] = {
    "P9 bursts of 20, drift": (ForeignCase(burst=20, drift=0.15), Bars(0.998, 0.042)),
    "P9 40 %, drift": (ForeignCase(loss=0.4, drift=0.15), Bars(0.998, 0.023)),
    "P10 one core": (ForeignCase(overlap=True), Bars(0.998, 0.05)),
    "P10 one core, bursts of 5": (ForeignCase(overlap=True, burst=5), Bars(0.998, 0.05)),
    "P10 one core, bursts of 20": (ForeignCase(overlap=True, burst=20), Bars(0.998, 0.05)),
    **{
        f"P11 {100 * whole:.0f} % of inferences": (
            ForeignCase(loss=0.0, whole=whole),
            Bars(0.998, covers=False, counts_inferences=True),
        )
        for whole in (0.05, 0.1, 0.2)
    },
    "P11 30 % in bursts of 20": (ForeignCase(loss=0.3, burst=20), Bars(0.99, covers=False, seeds_ratio=0.9)),
    "P11 20 % in bursts of 60": (ForeignCase(loss=0.2, burst=60), Bars(0.99, covers=False, seeds_ratio=0.9)),
    "P11 30 % in bursts of 60": (ForeignCase(loss=0.3, burst=60), Bars(0.99, covers=False, seeds_ratio=0.9)),
    **{f"P12 {bits} bits": (ForeignCase(burst=20, wrap_bits=bits), Bars(0.998, covers=False)) for bits in (20, 21, 24)},
}


def measured(case: ForeignCase, seeds: int) -> dict[str, list[Any]]:
    """Scores of alignment over seeds, with those of the rule and the oracle's error."""
    row: dict[str, list[Any]] = {}
    for seed in range(seeds):
        run = make_run(case, seed)
        source = ProfileInput(run.trace, run.program, None, None, "trace")
        aligned, by_rule = (profile_trace(source, method=method) for method in ("align", "rule"))  # type: ignore[arg-type]
        scores = asdict(score(run, aligned.log, aligned.profile.utilisation_by_unit))
        scores["rule_matched"] = score(run, by_rule.log).matched
        scores["calibrated"] = aligned.profile.calibrated
        if not case.overlap:
            scores["oracle_error"] = oracle_error(run)
        for key, value in scores.items():
            row.setdefault(key, []).append(value)
    return row


def failures(row: dict[str, list[Any]], bars: Bars) -> list[str]:
    """Return the bars that are not reached."""
    matched = np.array(row["matched"])
    missed = []
    if np.mean(matched >= bars.matched) < bars.seeds_ratio:
        missed.append("matched")
    if np.any(matched < np.array(row["rule_matched"]) - _BEHIND_RULE):
        missed.append("behind the rule")
    if bars.duration_error is not None and np.mean(row["duration_error"]) > bars.duration_error:
        missed.append("duration error")
    if bars.covers and not 0.87 <= np.mean(row["coverage"]) <= 0.93:
        missed.append("coverage")
    if bars.covers and max(row["utilisation_error"]) > 0.005:
        missed.append("utilisation")
    if bars.counts_inferences and any(row["inferences"]):
        missed.append("number of inferences")
    return missed


def main() -> None:
    """Run all cases, print the table, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    table = {}
    for name, (case, bars) in CASES.items():
        row = measured(case, options.seeds)
        missed = failures(row, bars)
        table[name] = {"scores": row, "bars": asdict(bars), "missed": missed}
        means = {key: float(np.mean(values)) for key, values in row.items()}
        told = "  ".join(f"{key} {value:.4f}" for key, value in means.items())
        print(f"{name:28} {'missed: ' + ', '.join(missed) if missed else 'holds'}\n    {told}", flush=True)
    store("foreign_profiles", {"table": table}, f"foreign_profiles.py --seeds {options.seeds}")


if __name__ == "__main__":
    main()
