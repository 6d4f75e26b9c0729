"""Every workload that can fit is found to fit: random workloads beside an exact search of this script's own.

Claims: what this search finds a schedule for, `framefit plan` calls feasible; what it calls feasible misses no
priority frame in simulation, and no result is older than its bound; the order of the models in the file changes
neither the answer nor the slack.

The workloads: "rates", two to four streams of different rates on one unit, and "units", one or two rates on two or
three units of different speeds. Priority models are chains of one to four layers, background models of short ones; all
layers take as long as their names say (a described device, no variation). The search (CP-SAT, one interval a layer,
frame and unit) shares nothing with the planner: layers of a model in order, one unit a layer for all frames, and
room for each background model's longest layer somewhere between two releases.

    python benchmarks/feasibility.py [--workloads 100] [--seed 0] [--windows 1000]
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ortools.sat.python import cp_model
from stored import store

import framefit

RATES_HZ = (10, 15, 20, 25, 30, 50, 60, 100)
SPEEDS = {"slow": 0.6, "plain": 1.0, "other": 1.0, "fast": 1.5}
GROUPS = (
    ("plain", "other"),
    ("fast", "slow"),
    ("plain", "fast"),
    ("slow", "plain", "fast"),
    ("plain", "other", "slow"),
)
WIDTH = 4
MARGIN = 1.001  # times what a layer takes, for the search: rounding decides nothing
SEARCH_S = 20.0
PRICE = """
SPEEDS = {speeds}


def price(layer, unit, target):
    return float(layer.name.split("_")[1]) / SPEEDS[unit]
"""


@dataclass(frozen=True)
class Workload:
    """Streams, and the models that read them.

    Attributes:
        rates_hz: of the streams.
        models: stream and layers (ns on a unit of speed 1) of each priority model.
        background: the same of each background model.
    """

    units: tuple[str, ...]
    rates_hz: tuple[int, ...]
    models: tuple[tuple[int, tuple[int, ...]], ...]
    background: tuple[tuple[int, tuple[int, ...]], ...]


def drawn(kind: str, random: np.random.Generator) -> Workload:
    """A workload whose priority models ask for half to all of the units' time."""
    if kind == "rates":
        units: tuple[str, ...] = ("plain",)
        rates = tuple(int(hz) for hz in random.choice(RATES_HZ, random.integers(2, 5), replace=False))
        count, load = len(rates), random.uniform(0.4, 0.95)
        streams = list(range(count))
    else:
        units = GROUPS[random.integers(len(GROUPS))]
        rates = tuple(int(hz) for hz in random.choice((20, 30, 60), random.integers(1, 3), replace=False))
        count, load = int(len(units) + random.integers(1, 4)), random.uniform(0.6, 0.98)
        streams = [int(random.integers(len(rates))) for _ in range(count)]
        streams[: len(rates)] = range(len(rates))
    shares = random.dirichlet(np.full(count, 4.0)) * load * sum(SPEEDS[unit] for unit in units)
    models = tuple(
        (stream, split(share * 1e9 / rates[stream], random)) for stream, share in zip(streams, shares, strict=True)
    )
    background = tuple(
        (int(random.integers(len(rates))), tuple(int(ns) for ns in random.uniform(1e5, 1.2e6, random.integers(1, 5))))
        for _ in range(random.integers(1, 3))
    )
    return Workload(units, rates, models, background)


def split(total_ns: float, random: np.random.Generator) -> tuple[int, ...]:
    """Into one to four layers."""
    return tuple(max(int(ns), 1000) for ns in random.dirichlet(np.full(random.integers(1, 5), 4.0)) * total_ns)


def fits(workload: Workload) -> bool | None:
    """Whether there is a schedule; ``None``: nobody knows after :data:`SEARCH_S`."""
    model, units = cp_model.CpModel(), workload.units
    total = 1e9 / math.gcd(*workload.rates_hz)
    releases = sorted({round(n * 1e9 / hz) for hz in workload.rates_hz for n in range(round(total * hz / 1e9))})
    busy: dict[str, list[cp_model.IntervalVar]] = {unit: [] for unit in units}
    for stream, layers in workload.models:
        hz = workload.rates_hz[stream]
        on = [{unit: model.new_bool_var("") for unit in units} for _ in layers]
        for row in on:
            model.add_exactly_one(row.values())
        for frame in range(round(total * hz / 1e9)):
            before = round(frame * 1e9 / hz)
            due = round((frame + 1) * 1e9 / hz)
            for row, ns in zip(on, layers, strict=True):
                start, end = (model.new_int_var(round(frame * 1e9 / hz), due, "") for _ in range(2))
                model.add(start >= before)
                for unit, here in row.items():
                    takes = math.ceil(ns * MARGIN / SPEEDS[unit])
                    busy[unit].append(model.new_optional_interval_var(start, takes, end, here, ""))
                before = end
    for _, layers in workload.background:
        spots: dict[str, list[cp_model.IntervalVar]] = {unit: [] for unit in units}
        chosen = []
        edges = itertools.pairwise([*releases, round(total)])
        several = len(workload.rates_hz) > 1
        for (begin, end), unit in itertools.product(list(edges), units):
            takes = math.ceil(max(layers) * MARGIN / SPEEDS[unit])
            if takes <= end - begin:
                chosen.append((begin, model.new_bool_var("")))
                start = model.new_int_var(begin, end - takes, "")
                spots[unit].append(model.new_optional_fixed_size_interval_var(start, takes, chosen[-1][1], ""))
        for group in [releases] if several else [[begin] for begin in releases]:
            model.add_bool_or([literal for begin, literal in chosen if begin in group])
        for unit in units:
            model.add_no_overlap([*busy[unit], *spots[unit]])
    for unit in units:
        model.add_no_overlap(busy[unit])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = SEARCH_S
    return {cp_model.OPTIMAL: True, cp_model.FEASIBLE: True, cp_model.INFEASIBLE: False}.get(solver.solve(model))


def chain(path: Path, layers: tuple[int, ...]) -> None:
    """Matrix products named after what they take."""
    nodes, weights = [], []
    for number, ns in enumerate(layers):
        weights.append(numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), f"w{number}"))
        source, target = f"t{number}", "out" if number == len(layers) - 1 else f"t{number + 1}"
        nodes.append(helper.make_node("MatMul", [source, f"w{number}"], [target], name=f"ns_{ns}_{number}"))
    tensors = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("t0", "out"))
    ends = [[tensor] for tensor in tensors]
    graph = helper.make_graph(nodes, "chain", *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def written(workload: Workload, folder: Path, order: list[int]) -> Path:
    """Its files; priority models in some order."""
    (folder / "prices.py").write_text(PRICE.format(speeds=SPEEDS))
    units = "".join(f'[[units]]\nname = "{unit}"\n' for unit in workload.units)
    (folder / "target.toml").write_text(
        'name = "board"\nkind = "npu"\n[cost]\nsource = "function"\nfunction = "prices:price"\n'
        f"{units}[variation]\nsigma_ratio = 0.0\nmost_ratio = 0.0\n"
    )
    entries = []
    for role, prefix, models in (
        ("every-window", "first", workload.models),
        ("background", "later", workload.background),
    ):
        for number, (stream, layers) in enumerate(models):
            chain(folder / f"{prefix}{number}.onnx", layers)
            entries.append(
                f'[[models]]\nname = "{prefix}{number}"\npath = "{prefix}{number}.onnx"\npriority = "{role}"\n'
                f'inputs = {{ t0 = "s{stream}" }}\n'
            )
    entries[: len(order)] = [entries[number] for number in order]
    streams = "".join(f'[[streams]]\nname = "s{n}"\nrate_hz = {hz}\n' for n, hz in enumerate(workload.rates_hz))
    app = folder / "app.toml"
    app.write_text(f'target = "target.toml"\n{streams}{"".join(entries)}')
    return app


def compared(kind: str, seed: int, windows: int) -> dict[str, object]:
    """One workload: both answers, and what a simulation shows."""
    random = np.random.default_rng([seed, kind == "units"])
    workload = drawn(kind, random)
    count = len(workload.models)
    with tempfile.TemporaryDirectory() as name:
        app = written(workload, Path(name), list(range(count)))
        begun = time.process_time()
        timetable = framefit.plan(app).timetable
        spent = time.process_time() - begun
        missed = old = 0
        if timetable.feasible:
            metrics = framefit.simulate(app, windows=windows).metrics
            missed = sum(model.missed for model in metrics.models if model.role == "priority")
            old = sum(
                (m.result_age_windows_max or 0) > (timetable.model(m.name).result_age_windows or 0)
                for m in metrics.models
            )
        again = framefit.plan(written(workload, Path(name), [int(n) for n in random.permutation(count)])).timetable
    refusal = timetable.proof
    return {
        "kind": kind,
        "seed": seed,
        "exact": fits(workload),
        "feasible": timetable.feasible,
        "seconds": spent,
        "missed": missed,
        "too_old": old,
        "order_decides": (again.feasible, again.worst_slack_ns) != (timetable.feasible, timetable.worst_slack_ns),
        "refusal": None if refusal is None else refusal.kind,
        "binding": timetable.binding_constraint,
    }


def main() -> None:
    """Go through the workloads, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=100, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--windows", type=int, default=1000)
    options = parser.parse_args()
    figures: dict[str, object] = {}
    print(
        f"{'':8}{'fit':>6}{'refused':>9}{'falsely':>9}{'unknown':>9}{'missed':>8}{'too old':>9}{'order':>7}"
        f"{'s p50':>8}{'s max':>8}"
    )
    for kind in ("rates", "units"):
        rows = [compared(kind, options.seed + number, options.windows) for number in range(options.workloads)]
        seconds = np.array([row["seconds"] for row in rows], np.float64)
        wrong = [row for row in rows if row["exact"] and not row["feasible"]]
        found = {
            "workloads": len(rows),
            "feasible": sum(bool(row["feasible"]) for row in rows),
            "refused": sum(not row["feasible"] for row in rows),
            "falsely_refused": len(wrong),
            "search_without_answer": sum(row["exact"] is None for row in rows),
            "not_proved": sum(row["refusal"] == "not found" for row in rows),
            "missed": sum(int(str(row["missed"])) for row in rows),
            "too_old": sum(int(str(row["too_old"])) for row in rows),
            "order_decides": sum(bool(row["order_decides"]) for row in rows),
            "seconds": dict(zip(("median", "p95", "max"), np.quantile(seconds, (0.5, 0.95, 1)).tolist(), strict=True)),
        }
        figures[kind] = found
        print(
            f"{kind:8}{found['feasible']:6}{found['refused']:9}{len(wrong):9}{found['search_without_answer']:9}"
            f"{found['missed']:8}{found['too_old']:9}{found['order_decides']:7}{np.median(seconds):8.2f}{seconds.max():8.2f}"
        )
        for row in wrong:
            print(f"  {kind} {row['seed']}: {row['binding']}")
        for row in rows:
            if row["missed"] or row["too_old"] or row["order_decides"] or row["refusal"] == "not found":
                print(f"  {row}")
    store(
        "feasibility",
        {"first_seed": options.seed, "windows": options.windows, **figures},
        " ".join(["feasibility.py", *sys.argv[1:]]),
    )


if __name__ == "__main__":
    main()
