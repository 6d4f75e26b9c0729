"""Placing 6 models of 30 pieces on 4 units: the heuristic within a second, the solver's gap after ten, and timetables.

Claims: CP-SAT's placement is within 5 % of its bound after 10 s; the heuristic takes at most 1 s and is within
15 % of CP-SAT's least share; every problem has a timetable that passes the independent check, and what placements
promise it serves to the part that is stored. Units differ in speed, and in how well they suit each of five kinds of
operator, some of which they do not support; every second problem has two priority models, the others one.
Searches were changed on problems 0 to 7: others tell how good they are.

    python benchmarks/placement.py [--first 100] [--seeds 8] [--seconds 10]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time

import numpy as np
from stored import store

from framefit.core.target import Link
from framefit.core.timetable import PlannedModel
from framefit.planning.beat import Beat, Demand
from framefit.planning.candidates import UnitCandidate, arrange_on_units
from framefit.planning.check import check_timetable
from framefit.planning.partition import Pieces
from framefit.planning.placement import Placeable, Problem, Room
from framefit.planning.placement_search import place, solve

MODELS, UNITS, PIECES, KINDS = 6, 4, 30, 5
WINDOW_NS, GUARD_NS = 33_333_333, 300_000
QUANTILE = 1.05  # over the median
LOAD = 2.5  # of the background models on units of mean speed, at the demanded rates of 1, 1/2 and 1/3


def problem(seed: int) -> Problem:
    """Any six models on four units that do not serve all of them."""
    random = np.random.default_rng(seed)
    speed = np.exp(random.normal(0, 0.5, UNITS))
    suits = np.exp(random.normal(0, 0.6, (KINDS, UNITS)))
    supports = random.random((KINDS, UNITS)) < 0.85
    supports[:, 0] = True  # a unit that can do everything, and three that cannot
    priority = 1 + seed % 2
    models = []
    for number in range(MODELS):
        kinds = np.repeat(random.integers(0, KINDS, PIECES), 3)[:PIECES]  # runs of three alike
        if random.random() < 0.3:
            random.shuffle(kinds)
        share = random.lognormal(0, 0.7, PIECES)
        whole = 0.2 if number < priority else LOAD * UNITS / (MODELS - priority) * random.uniform(0.5, 1.5)
        base = share / share.sum() * whole * WINDOW_NS
        median = [
            [int(ns / speed[u] / suits[kind, u]) + 1 if supports[kind, u] else None for u in range(UNITS)]
            for ns, kind in zip(base, kinds, strict=True)
        ]
        models.append(
            Placeable(
                name=f"model{number}",
                role="priority" if number < priority else "background",
                duration_ns=[[None if ns is None else int(ns * QUANTILE) + 1 for ns in row] for row in median],
                median_ns=median,
                parameter_bytes=random.integers(1_000, 1_000_000, PIECES).tolist(),
                boundary_bytes=random.integers(10_000, 1_000_000, PIECES + 1).tolist(),
                rate=float(random.choice([1, 1 / 2, 1 / 3])),
            )
        )
    names = [f"npu{number}" for number in range(UNITS)]
    pairs = itertools.combinations(names, 2)
    links = [Link(between=pair, latency_ns=20_000, bandwidth_gbps=4.0) for pair in pairs]
    return Problem(WINDOW_NS, GUARD_NS, [Room(name, 60_000_000) for name in names], models, links)


def workload(case: Problem) -> tuple[list[UnitCandidate], Beat]:
    """The same models to be made into a timetable; boundaries cost nothing but what crosses links."""
    candidates, demands = [], {}
    for model in case.models:
        pieces, supported = {}, {}
        for number, unit in enumerate(case.units):
            columns = [[row[number] or 1 for row in rows] for rows in (model.median_ns, model.duration_ns)]
            median, quantile = (np.asarray(column, np.int64) for column in columns)
            pieces[unit.name] = Pieces(median, quantile, np.zeros(len(median) - 1, np.int64))
            supported[unit.name] = [row[number] is not None for row in model.median_ns]
        planned = PlannedModel(name=model.name, role=model.role, level=0, reasons=(), duration_ns=0, segments=())
        names = [(f"piece{number}", f"piece{number}") for number in range(len(model.median_ns))]
        candidates.append(UnitCandidate(planned, pieces, supported, [*model.boundary_bytes[1:-1], 0], names))
        demands[model.name] = Demand(queue=2, every=round(1 / model.rate) if model.role == "background" else 1)
    return candidates, Beat(case.window_ns, case.guard_ns, links=tuple(case.links), demands=demands)


def main() -> None:
    """Place each problem both ways, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    place(problem(1000))  # warm
    rows = []
    print(
        "seed  heuristic: s   share  gap %   solver: s   share  gap %   heur./solver  timetable: s  share  of quantiles"
    )
    for seed in range(options.first, options.first + options.seeds):
        case = problem(seed)
        spent = []
        for _ in range(3):
            begun = time.perf_counter(), time.process_time()
            quick = place(case)
            spent.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
        begun = time.perf_counter(), 0.0
        exact = solve(case, time_limit_s=options.seconds)
        seconds = time.perf_counter() - begun[0]
        candidates, beat = workload(case)
        begun = time.perf_counter(), 0.0
        arranged = arrange_on_units(candidates, beat, case.units)
        arranging = time.perf_counter() - begun[0]
        every = {name: demand.every for name, demand in beat.demands.items()}
        row = {
            "timetable_feasible": arranged.timetable.feasible,
            "timetable_check": check_timetable(arranged.timetable, every=every),
            "timetable_seconds": arranging,
            "timetable_share": arranged.share,
            "timetable_bound": arranged.bound,
            # Placements count medians; a timetable has the quantiles.
            "timetable_to_solver_at_quantiles_ratio": arranged.share * QUANTILE / exact.least_share,
            "timetable_stages": [len(model.stages) for model in arranged.timetable.models],
            "timetable_turns": [model.turns for model in arranged.timetable.models],
            "timetable_ages_windows": [model.result_age_windows for model in arranged.timetable.models],
            "seed": seed,
            "priority_models": sum(model.role == "priority" for model in case.models),
            "feasible": quick.feasible and exact.feasible,
            "heuristic_seconds": min(wall for wall, _ in spent),
            "heuristic_seconds_all": [wall for wall, _ in spent],
            "heuristic_processor_seconds": statistics.median(processor for _, processor in spent),
            "heuristic_share": quick.least_share,
            "heuristic_gap_ratio": quick.gap_ratio,
            "heuristic_changes": quick.changes,
            "solver_seconds": seconds,
            "solver_share": exact.least_share,
            "solver_bound": exact.bound,
            "solver_gap_ratio": exact.gap_ratio,
            "solver_changes": exact.changes,
            "heuristic_to_solver_ratio": quick.least_share / exact.least_share,
        }
        rows.append(row)
        print(
            f"{seed:4}  {row['heuristic_seconds']:12.2f}  {quick.least_share:.4f}  {quick.gap_ratio:5.1%}"
            f"  {seconds:10.1f}  {exact.least_share:.4f}  {exact.gap_ratio:5.1%}"
            f"   {row['heuristic_to_solver_ratio']:10.3f}  {arranging:12.1f}  {arranged.share:.4f}"
            f"  {row['timetable_to_solver_at_quantiles_ratio']:.3f} {row['timetable_check'] or ''}"
        )
    figures = {
        key: {"median": statistics.median(row[key] for row in rows), "worst": worst(row[key] for row in rows)}
        for key, worst in (
            ("heuristic_seconds", max),
            ("heuristic_gap_ratio", max),
            ("heuristic_to_solver_ratio", min),
            ("solver_gap_ratio", max),
            ("timetable_share", min),
            ("timetable_to_solver_at_quantiles_ratio", min),
            ("timetable_seconds", max),
        )
    }
    for key, both in figures.items():
        print(f"{key}: median {both['median']:.3f}, worst {both['worst']:.3f}")
    setting = {"models": MODELS, "units": UNITS, "pieces": PIECES, "solver_time_limit_seconds": options.seconds}
    store("placement", {**setting, "figures": figures, "problems": rows}, " ".join(["placement.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
