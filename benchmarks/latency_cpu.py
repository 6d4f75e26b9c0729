"""What a table of single layers says of whole networks on one CPU core, held against measured launches.

    python benchmarks/latency_cpu.py [--repeats 150] [--resume]      # some 5 minutes

Layers of all networks are measured once each, in turn with whole launches of the networks and a
reference. The correction is fitted on networks of ``zoo.AUDITED`` alone; whole launches of those of
``zoo.ARCHITECTURES`` and of the models in ``--models`` are only what predictions are held against.
How layers are measured was chosen on every second network of ``zoo.ARCHITECTURES``; the others and the
real models are held out, and reported apart. Samples are kept in a file as they come: ``--resume``
goes on from it. Baselines of the same run: the sum of ONNX Runtime's own profiled kernel times, and
multiply-accumulates times one constant that is fitted on the audited networks.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from stored import store
from zoo import ARCHITECTURES, AUDITED, mobilenet

from framefit.core.files import write_whole
from framefit.core.latency_table import LatencyTable, MeasuredRun
from framefit.core.model import Model
from framefit.core.target import resolve_target
from framefit.core.workload import MachineSettings
from framefit.devices.device import allocate, random_inputs
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.ort import OrtDevice
from framefit.latency.audit import audit, audited_network
from framefit.latency.calibrate import Calibration, entry_work
from framefit.latency.campaign import Campaign
from framefit.latency.estimate import Estimator, analytical_model
from framefit.latency.rounds import RUNS
from framefit.latency.subjects import Subject, distinct_layers, layer_key

REAL = {
    "face-slim-320": {},
    "vad-16k": {"shapes": {"input": (1, 512)}, "constants": {"sr": 16000}},
    "resnet20-cifar10": {},
}
PROFILED_RUNS = 4  # of each network, in each of so many visits
CHUNK = 5  # rounds between visits to the profiled sessions, behind which all samples so far are kept
FLOORS = 10  # a layer counts in the rank agreement from so many noise floors on
QUERY_LAYERS = 100_000


@dataclass
class Profiled:
    """A session that ONNX Runtime profiles, and its launches."""

    name: str
    session: object
    launch: Callable[[], object]


def profiled(name: str, model: Model, folder: Path) -> Profiled:
    """A profiled session of a network as the runtime optimised it: the same operators, the same names."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / name)
    options.log_severity_level = 4
    session = ort.InferenceSession(model.to_bytes(), options, providers=["CPUExecutionProvider"])
    arrays = {tensor.name: allocate(tensor) for tensor in (*model.inputs, *model.outputs)}
    for key, values in random_inputs(model.inputs, np.random.default_rng(0)).items():
        arrays[key][...] = values
    io = session.io_binding()
    for tensor in model.inputs:
        array = arrays[tensor.name]
        io.bind_input(tensor.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for tensor in model.outputs:
        array = arrays[tensor.name]
        io.bind_output(tensor.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    kept = functools.partial(lambda bound, _arrays: session.run_with_iobinding(bound), io, arrays)
    return Profiled(name, session, kept)


Kernels = dict[str, dict[str, list[float]]]


class Partial(msgspec.Struct):
    """Of a benchmark that is not complete: samples of all launches, and of each network's profiled kernels."""

    runs: tuple[MeasuredRun, ...] = ()
    kernels: Kernels = {}


def kernel_times(one: Profiled) -> dict[str, list[float]]:
    """Each node's kernel times, ns."""
    path = Path(one.session.end_profiling())  # type: ignore[attr-defined]
    found: dict[str, list[float]] = {}
    for event in json.loads(path.read_text()):
        name = event.get("name", "")
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            found.setdefault(name.removesuffix("_kernel_time"), []).append(1e3 * event["dur"])
    path.unlink()
    return found


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Rank correlation; ties share their rank."""

    def ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
        array = np.asarray(values, np.float64)
        _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(left), ranks(right))[0, 1])


@dataclass
class Networks:
    """Everything that is measured: networks as they are, and as the runtime makes them."""

    whole: dict[str, Model]
    lowered: dict[str, Model]
    places: dict[str, int]

    def macs(self, name: str) -> int:
        return self.whole[name].macs


def networks(device: OrtDevice, folder: Path, only: Sequence[str]) -> Networks:
    """All of the zoo and the real models; ``only``: some of them by name."""
    whole = {name: build() for name, build in {**ARCHITECTURES, **AUDITED}.items() if not only or name in only}
    for name, keys in REAL.items():
        if (folder / f"{name}.onnx").is_file() and (not only or name in only):
            whole[name] = Model.load(folder / f"{name}.onnx", **keys)  # type: ignore[arg-type]
    return Networks(whole, {name: device.lowered(model) for name, model in whole.items()}, {})


@contextlib.contextmanager
def alone(core: int) -> Iterator[None]:
    """On one core, denormals flushed, as the runtime launches."""
    with pinned(core), flushed_denormals():
        yield


def measured(
    device: OrtDevice, nets: Networks, repeats: int, partial: Path, *, resume: bool
) -> tuple[Campaign, dict[str, dict[str, float]]]:
    """Layers and whole networks in turn, and profiled kernel times of whole networks in visits between."""
    unit = device.target.units[0].name
    subjects: dict[str, Subject] = {}
    for model in nets.lowered.values():
        subjects |= {one.key: one for one in distinct_layers(model, None, unit)[0] if one.key not in subjects}
    kept = Partial()
    if resume and partial.is_file():
        kept = msgspec.msgpack.decode(partial.read_bytes(), type=Partial)
    with alone(device.host_core):
        campaign = Campaign(device, unit, subjects.values(), resident=True, repeats=repeats)
        for name, model in nets.whole.items():
            nets.places[name] = campaign.rounds.add("network", model)
        campaign.rounds.take_over(kept.runs)
        print(f"{len(subjects)} layers, {len(campaign.rounds.runs)} launches", flush=True)
        rounds = -(-repeats // RUNS)
        while (done := min(len(run.samples_ns) for run in campaign.rounds.runs)) < rounds:
            visit(nets, kept.kernels)
            campaign.rounds.measure(min(done + CHUNK, rounds))
            kept.runs = campaign.rounds.records()
            with write_whole(partial, force=True) as file:
                file.write(msgspec.msgpack.encode(kept))
            print(f"round {min(done + CHUNK, rounds)} of {rounds}", flush=True)
    medians = {
        name: {node: float(np.median(values)) for node, values in nodes.items()} for name, nodes in kept.kernels.items()
    }
    return campaign, medians


def visit(nets: Networks, kernels: Kernels) -> None:
    """A few more profiled launches of each network."""
    with tempfile.TemporaryDirectory() as folder:
        for name, model in nets.lowered.items():
            if name not in AUDITED:
                one = profiled(name, model, Path(folder))
                for _ in range(PROFILED_RUNS):
                    one.launch()
                for node, values in kernel_times(one).items():
                    kernels.setdefault(name, {}).setdefault(node, []).extend(values[1:])  # the first one is cold


def repeatability(campaign: Campaign, nets: Networks) -> dict[str, float]:
    """How far each network's launches of the second half of the rounds are from those of the first half.

    What changed for all networks alike, their median, is taken out: that is drift.
    """
    halves = [
        [float(np.sort(part)[: max(len(part) * 4 // 5, 1)].mean()) for part in np.array_split(run.rounds_ns, 2)]
        for run in (campaign.rounds.runs[place] for place in nets.places.values())
    ]
    ratios = np.asarray([second / first for first, second in halves])
    off = np.abs(ratios / np.median(ratios) - 1)
    return {
        "drift": float(np.median(ratios) - 1),
        "median": float(np.median(off)),
        "p90": float(np.quantile(off, 0.9)),
        "max": float(off.max()),
    }


def agreement(table: LatencyTable, nets: Networks, kernels: dict[str, dict[str, float]]) -> dict[str, object]:
    """Ranks of layers, each by its entry and by what the profiler says of that node."""
    entries = {layer_key(one.op, one.configuration): one for one in table.entries}
    found: dict[str, tuple[float, float, str]] = {}
    seen: dict[str, list[float]] = {}
    for name, times in kernels.items():
        for subject in distinct_layers(nets.lowered[name], None, table.units[0])[0]:
            for layer in subject.layers:
                if layer in times:
                    seen.setdefault(subject.key, []).append(times[layer])
    for key, times_ns in seen.items():
        entry = entries.get(key)
        if entry is not None and entry.latency_ns >= FLOORS * entry.noise_floor_ns:
            found[key] = (entry.latency_ns, float(np.median(times_ns)), entry.op)
    ours, theirs = [one[0] for one in found.values()], [one[1] for one in found.values()]
    ratio = np.asarray(theirs) / np.asarray(ours)
    by_op = {
        op: {
            "layers": sum(one[2] == op for one in found.values()),
            "profiler_over_entry": float(
                np.median([r for r, one in zip(ratio, found.values(), strict=True) if one[2] == op])
            ),
            "entry_ns": float(np.median([one[0] for one in found.values() if one[2] == op])),
        }
        for op in sorted({one[2] for one in found.values()})
    }
    rank = spearman(ours, theirs) if len(found) > 1 else None
    return {"layers": len(found), "spearman": rank, "by_operator": by_op}


def query_ns(table: LatencyTable, device: OrtDevice) -> float:
    """What the calibrated model takes a layer, of many at once: the analytical model and its calibration."""
    unit = device.target.units[0].name
    price = analytical_model(None, unit)
    calibration = Calibration(table.entries, price)
    works = [work for one in table.entries if (work := entry_work(one.op, one.configuration)).method == "products"]
    works = (works * (QUERY_LAYERS // len(works) + 1))[:QUERY_LAYERS]
    columns, cycles = calibration.columns(works), CycleModel(resolve_target("vpu"))
    table_of_works = cycles.table(works)

    def ask() -> object:
        priced = np.asarray(cycles.layer_ns(cycles.evaluate(table_of_works, 0.0).cycles), np.float64)
        return calibration.query(lambda rows: priced[rows], columns)

    best = min(_timed(ask) for _ in range(5))
    return best / len(works)


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    call()
    return float(time.perf_counter_ns() - begin)


def table_seconds() -> float:
    """What ``framefit measure`` takes for a full table of a network of MobileNetV2's size."""
    stages = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mobilenet("mobilenet", 224, stages, expansion=6, last=1280).save(folder / "mobilenet.onnx")
        command = [
            str(Path(sys.executable).with_name("framefit")),
            "measure",
            "mobilenet.onnx",
            "-o",
            "board.table.json",
        ]
        begin = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return time.perf_counter() - begin


def main() -> None:
    """Measure, predict, print tables, write the result."""
    shared = Path(os.environ.get("FRAMEFIT_SHARED", Path(__file__).parents[2] / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=150, help="samples of each launch")
    parser.add_argument("--models", type=Path, default=shared / "models", help="folder of the real models")
    parser.add_argument("--only", nargs="*", default=(), help="networks by name; writes no result")
    parser.add_argument("--core", type=int, default=None)
    parser.add_argument("--resume", action="store_true", help="go on from the samples of an interrupted run")
    options = parser.parse_args()
    device = OrtDevice(MachineSettings(cores=None if options.core is None else (options.core,)))
    begin = time.perf_counter()
    nets = networks(device, options.models, options.only)
    path = Path(__file__).parent / "results" / "latency_cpu.json"
    partial = path.with_suffix(".part")
    campaign, kernels = measured(device, nets, options.repeats, partial, resume=options.resume)
    result = evaluated(device, nets, campaign, kernels)
    result["seconds"] = round(time.perf_counter() - begin)
    if options.only:
        partial.unlink()
        return
    result["table_seconds"] = round(table_seconds(), 1)
    print(f"a table of a MobileNetV2: {result['table_seconds']} s")
    partial.unlink()
    store("latency_cpu", result, f"latency_cpu.py --repeats {options.repeats}")


def _within(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Shares of networks within limits, and the mean size of errors, by predictor."""
    found = {}
    for key in ("predicted", "plain", "profiler", "macs"):
        off = np.asarray([abs(row["error"][key]) for row in rows])
        found[key] = {
            "within_5": float(np.mean(off <= 0.05)),
            "within_10": float(np.mean(off <= 0.1)),
            "mean_error": float(off.mean()),
        }
    return found


def evaluated(
    device: OrtDevice, nets: Networks, campaign: Campaign, kernels: dict[str, dict[str, float]]
) -> dict[str, object]:
    """Predictions of every network that is asked about, held against its launches."""
    unit = device.target.units[0].name
    table = campaign.table("auxiliary")
    medians = campaign.rounds.medians()
    took = {name: float(medians[0, place]) for name, place in nets.places.items()}
    audited = [name for name in nets.whole if name in AUDITED]
    plain = Estimator(table, unit)
    found = audit([audited_network(nets.lowered[name], took[name], plain) for name in audited])
    table = msgspec.structs.replace(table, correction=found.correction)
    speed = float(np.median([took[name] / nets.macs(name) for name in audited]))
    estimator = Estimator(table, unit)
    rows: list[dict[str, Any]] = []
    print(
        f"{'architecture':17} {'predicted':>10} {'measured':>10} {'error':>7} {'in 90 %':>8} "
        f"{'plain':>7} {'profiler':>9} {'MACs':>8}"
    )
    for name in [name for name in nets.whole if name not in AUDITED]:
        estimated, ns = estimator.estimate(nets.lowered[name]), took[name]
        predicted = {
            "predicted": estimated.total_ns,
            "plain": estimated.plain_sum_ns + estimated.overhead_ns,
            "profiler": sum(kernels[name].values()),
            "macs": speed * nets.macs(name),
        }
        errors = {key: value / ns - 1 for key, value in predicted.items()}
        low, high = np.quantile(medians[1:, nets.places[name]], (0.05, 0.95))
        row: dict[str, Any] = {
            "architecture": name,
            "predicted_ns": estimated.total_ns,
            "interval_ns": estimated.interval_ns,
            "measured_ns": round(ns),
            "measured_interval_ns": [round(float(low)), round(float(high))],
            "held_out": name not in list(ARCHITECTURES)[::2],
            "hit": estimated.interval_ns[0] <= ns <= estimated.interval_ns[1],
            "layers": len(estimated.layers),
            "error": {key: round(value, 4) for key, value in errors.items()},
        }
        rows.append(row)
        print(
            f"{name:17} {estimated.total_ns / 1e6:7.3f} ms {ns / 1e6:7.3f} ms {errors['predicted']:7.1%} "
            f"{'yes' if row['hit'] else 'no':>8} {errors['plain']:7.1%} {errors['profiler']:9.1%} {errors['macs']:8.1%}"
        )
    result: dict[str, object] = {
        "networks": rows,
        "within": _within(rows),
        "within_held_out": _within([row for row in rows if row["held_out"]]),
        "repeatability": repeatability(campaign, nets),
        "hits": sum(bool(row["hit"]) for row in rows),
        "audit": found,
        "layers": len(table.entries),
        "unmeasured": len(table.unmeasured),
        "drift_ratio": campaign.rounds.drift_ratio,
        "warnings": table.warnings,
        "rank_agreement": agreement(table, nets, kernels),
        "query_ns_a_layer": query_ns(table, device),
    }
    for key in (
        "within",
        "within_held_out",
        "repeatability",
        "hits",
        "drift_ratio",
        "warnings",
        "rank_agreement",
        "query_ns_a_layer",
    ):
        print(key, result[key])
    print("terms", found.terms, found.correction)
    return result


if __name__ == "__main__":
    main()
