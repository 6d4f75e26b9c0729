"""Whole networks that others designed: what tables say of them, held against a stopwatch in the same run.

    python benchmarks/latency_zoo.py FOLDER [--networks 20] [--minutes 20]

FOLDER holds ONNX files. The machine is calibrated first (``framefit calibrate``), unless it is already. Then each
network in turn: ``framefit measure``, and the stopwatch between its rounds, so that drift of the machine's speed is in
both. The stopwatch is a plain session of ONNX Runtime on what Framefit loads, a loop and a clock; the first launches
of each loop, in which caches and predictors settle, are not kept. Samples are kept after each network, in
``results/latency_zoo.part``: started again, the benchmark goes on with the networks that are missing. Without time for
all of them it evaluates those that it has.

These answers are held against the stopwatch:

- again: a second stopwatch in turn with the first, a session of its own: what no answer can be better than here;

- measured: the whole network, as ``framefit measure`` launched it in turn with its layers;
- predicted: its layers, corrected by the built-in networks and all others of the folder, each left out in turn;
- built-in: the same, corrected by the built-in networks alone;
- fallback: the network's own layers are not in the table, only those of all others (``--fallback``);
- and as baselines the plain sum, ONNX Runtime's own profiled kernel times, and multiply-accumulates times one constant.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from stored import RESULTS, store

from framefit import FramefitError, InputError, calibrate, measure
from framefit.core.files import Record, read_record, write_record
from framefit.core.latency_table import AuditedNetwork, LatencyTable, MachineCorrection, merged
from framefit.core.model import Model
from framefit.core.run_record import LatencyEstimate
from framefit.devices.device import random_inputs
from framefit.devices.host import flushed_denormals, kept_denormals, pinned
from framefit.devices.ort import OrtDevice
from framefit.latency.audit import audited_network, stored_correction, with_audit
from framefit.latency.estimate import Estimator, analytical_model
from framefit.stats import wilson

KEPT_LAUNCHES = 5  # of a stopwatch between two rounds, behind those in which caches and predictors settle
SETTLING_NS, MOST_SETTLING = 120_000_000, 20
KEPT = 0.8  # of the stopwatch's blocks, the shortest, as of a processor's rounds
SHARE = 0.3  # of the time that passes, for the stopwatches
PROFILED = 15  # launches
WITHIN = (0.05, 0.1)
PREDICTORS = ("again", "measured", "predicted", "built-in", "fallback", "plain", "profiler", "macs")


class Visit(Record, kw_only=True):
    """What was measured of one network.

    Attributes:
        stopwatches_ns: of two stopwatches, medians of their blocks between rounds of the campaign.
        profiled_ns: sum of the kernel times that ONNX Runtime's profiler tells, median of its launches.
    """

    name: str
    table: LatencyTable
    network: AuditedNetwork
    stopwatches_ns: tuple[tuple[int, ...], tuple[int, ...]]
    profiled_ns: float
    macs: int
    seconds: float

    @property
    def stopwatch_ns(self) -> float:
        """What the first stopwatch shows."""
        return usual(self.stopwatches_ns[0])

    @property
    def drift_ratio(self) -> float:
        """By how much the stopwatches differ between the two halves of the campaign."""
        first, second = (
            np.mean([usual(half(blocks)) for blocks in self.stopwatches_ns])
            for half in (lambda blocks: blocks[: len(blocks) // 2], lambda blocks: blocks[len(blocks) // 2 :])
        )
        return float(second / first - 1)


def session_of(model: Model, prefix: str = "") -> ort.InferenceSession:
    """A plain session, of one thread; profiled where its file is named."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if prefix:
        options.enable_profiling, options.profile_file_prefix = True, prefix
    with kept_denormals():
        return ort.InferenceSession(model.to_bytes(), options, providers=["CPUExecutionProvider"])


def usual(blocks_ns: Sequence[int]) -> float:
    """Mean of the shortest blocks: how rounds are condensed, too, where others use the processor."""
    kept = max(round(KEPT * len(blocks_ns)), 1)
    return float(np.mean(sorted(blocks_ns)[:kept]))


class Stopwatches:
    """Two sessions of one model, launched in turn between the rounds of a campaign, for a part of the time."""

    def __init__(self, model: Model, inputs: dict[str, npt.NDArray[Any]]) -> None:
        self.blocks_ns: tuple[list[int], list[int]] = ([], [])
        self._sessions, self._inputs = (session_of(model), session_of(model)), inputs
        self._settling = min(max(SETTLING_NS // min(self._launch_ns(place) for place in (0, 1)), 3), MOST_SETTLING)
        self._begun_ns, self._used_ns = time.perf_counter_ns(), 0

    def between_rounds(self, _done: int, _all: int) -> None:
        """Launch both, if their part of the time is not used."""
        if self._used_ns > SHARE * (time.perf_counter_ns() - self._begun_ns):
            return
        order = (0, 1) if len(self.blocks_ns[0]) % 2 else (1, 0)
        for place in order:
            samples = [self._launch_ns(place) for _ in range(self._settling + KEPT_LAUNCHES)]
            self._used_ns += sum(samples)
            self.blocks_ns[place].append(int(np.median(samples[self._settling :])))

    def _launch_ns(self, place: int) -> int:
        begun_ns = time.perf_counter_ns()
        self._sessions[place].run(None, self._inputs)
        return time.perf_counter_ns() - begun_ns


def profiled_ns(model: Model, inputs: dict[str, npt.NDArray[Any]]) -> float:
    """Sum of kernel times of a launch, as the profiler tells them."""
    with tempfile.TemporaryDirectory() as folder:
        session = session_of(model, str(Path(folder) / "profile"))
        for _ in range(PROFILED):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event.get("name", "").endswith("_kernel_time"):
            times.setdefault(event["name"], []).append(1e3 * event["dur"])
    return sum(float(np.median(values)) for values in times.values())


def visit(path: Path, device: OrtDevice, seconds: float) -> Visit:
    """A campaign with stopwatches between its rounds, for about so many seconds."""
    begun = time.monotonic()
    model, unit = Model.load(path), device.target.units[0].name
    inputs = random_inputs(model.inputs, np.random.default_rng(0))
    with pinned(device.host_core), flushed_denormals():
        stopwatches = Stopwatches(model, inputs)
    table = measure(model, target=device, max_seconds=max(seconds, 5.0), on_round=stopwatches.between_rounds)
    with pinned(device.host_core), flushed_denormals():
        kernels_ns = profiled_ns(model, inputs)
    (whole,) = table.networks
    plain = Estimator(msgspec.structs.replace(table, correction=None, audit=None), unit)
    entries = tuple(msgspec.structs.replace(entry, samples_ns=()) for entry in table.entries)
    return Visit(
        name=path.stem,
        table=msgspec.structs.replace(table, entries=entries, runs=()),
        network=audited_network(device.lowered(model), whole.alone_ns, plain),
        stopwatches_ns=(tuple(stopwatches.blocks_ns[0]), tuple(stopwatches.blocks_ns[1])),
        profiled_ns=kernels_ns,
        macs=model.macs,
        seconds=time.monotonic() - begun,
    )


def visited(paths: Sequence[Path], device: OrtDevice, minutes: float, part: Path) -> tuple[list[Visit], dict[str, str]]:
    """Visits of all networks, stored ones first, and why others have none."""
    ends = time.monotonic() + 60 * minutes
    files = {path: part / f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.json" for path in paths}
    missing = [path for path, file in files.items() if not file.is_file()]
    failed: dict[str, str] = {}
    for place, path in enumerate(missing):
        left = (ends - time.monotonic()) / (len(missing) - place)
        if left < 5:
            failed |= {later.stem: "no time was left" for later in missing[place:]}
            break
        try:
            seen = visit(path, device, 0.7 * left)
        except (FramefitError, RuntimeError, ValueError) as error:
            failed[path.stem] = str(error)
            print(f"{path.stem}: {error}", flush=True)
            continue
        write_record(files[path], seen, force=True)
        print(
            f"{place + 1}/{len(missing)} {path.stem}: {seen.stopwatch_ns / 1e6:.3f} ms, {seen.seconds:.0f} s",
            flush=True,
        )
    return [read_record(file, Visit) for file in files.values() if file.is_file()], failed


def estimates(visits: Sequence[Visit], paths: Sequence[Path], calibrated: MachineCorrection, device: OrtDevice) -> Any:
    """Of each network the estimates by the three kinds of tables."""
    unit = device.target.units[0].name
    assert calibrated.audit is not None
    builtin = calibrated.audit.networks
    known = [*builtin, *(seen.network for seen in visits)]
    models = {path.stem: device.lowered(Model.load(path)) for path in paths if path.stem in {v.name for v in visits}}
    found: dict[str, dict[str, LatencyEstimate]] = {}
    for seen in visits:
        others = merged([other.table for other in visits if other is not seen])
        elsewhere = [network for network in known if network.digest != seen.network.digest]
        tables: dict[str, tuple[LatencyTable, Sequence[AuditedNetwork], bool]] = {
            "predicted": (seen.table, known, False),
            "built-in": (seen.table, builtin, False),
            "fallback": (others, elsewhere, True),
        }
        for predictor, (table, networks, fallback) in tables.items():
            bare = msgspec.structs.replace(table, correction=None, audit=None, networks=())
            corrected = with_audit(bare, [], unit, networks)
            estimator = Estimator(corrected, unit, fallback=fallback, analytical=analytical_model(None, unit))
            answers = found.setdefault(seen.name, {})
            try:
                answers[predictor] = estimator.estimate(models[seen.name])
            except InputError as error:  # counts as 0 ns: beyond all limits
                print(f"{seen.name}, {predictor}: {error}", flush=True)
    return found


def evaluated(visits: Sequence[Visit], found: dict[str, dict[str, LatencyEstimate]]) -> dict[str, Any]:
    """Errors of every answer, their shares within limits, and how often intervals hold."""
    speed = {
        seen.name: float(np.median([other.stopwatch_ns / other.macs for other in visits if other is not seen]))
        for seen in visits
    }
    rows = []
    for seen in visits:
        answers: dict[str, float] = {
            "again": usual(seen.stopwatches_ns[1]),
            "measured": seen.table.networks[0].alone_ns,
            **dict.fromkeys(("predicted", "built-in", "fallback"), 0.0),
            **{name: estimate.predicted_ns for name, estimate in found[seen.name].items()},
            "plain": seen.network.plain_sum_ns + seen.network.overhead_ns,
            "profiler": seen.profiled_ns,
            "macs": speed[seen.name] * seen.macs,
        }
        rows.append(
            {
                "network": seen.name,
                "stopwatch_ns": round(seen.stopwatch_ns),
                "drift": round(seen.drift_ratio, 4),
                "in_turn_ns": seen.table.networks[0].in_turn_ns,
                "error": {name: round(ns / seen.stopwatch_ns - 1, 4) for name, ns in answers.items()},
                "held": {
                    name: name in found[seen.name] and held(found[seen.name][name], seen.stopwatch_ns)
                    for name in ("predicted", "built-in", "fallback")
                },
                "coverage": {name: estimate.coverage_ratio for name, estimate in found[seen.name].items()},
                "seconds": round(seen.seconds, 1),
                "warnings": seen.table.warnings,
            }
        )
    figures: dict[str, Any] = {}
    for name in PREDICTORS:
        off = np.abs([row["error"][name] for row in rows])
        figures[name] = {f"within_{100 * limit:.0f}": share(off <= limit) for limit in WITHIN}
        figures[name] |= {"median": float(np.median(off)), "greatest": float(off.max())}
        if name in rows[0]["held"]:
            figures[name]["intervals_hold"] = share(np.asarray([row["held"][name] for row in rows]))
    return {"networks": rows, "figures": figures}


def held(estimate: LatencyEstimate, ns: float) -> bool:
    """Whether a prediction's interval holds what was measured."""
    return estimate.predicted_interval_ns[0] <= ns <= estimate.predicted_interval_ns[1]


def share(hits: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """A share, with its 90 % interval."""
    return {"ratio": float(hits.mean()), "interval": wilson(int(hits.sum()), len(hits))}


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    print(f"\n{'network':26} {'stopwatch':>10} {'drift':>7} " + " ".join(f"{name:>9}" for name in PREDICTORS))
    for row in result["networks"]:
        errors = " ".join(f"{row['error'][name]:9.1%}" for name in PREDICTORS)
        print(f"{row['network']:26} {row['stopwatch_ns'] / 1e6:7.3f} ms {row['drift']:7.1%} {errors}")
    print(f"\n{'':10} {'within 5 %':>11} {'within 10 %':>12} {'median':>8} {'greatest':>9} {'intervals hold':>15}")
    for name, figures in result["figures"].items():
        held = f"{figures['intervals_hold']['ratio']:15.0%}" if "intervals_hold" in figures else ""
        print(
            f"{name:10} {figures['within_5']['ratio']:11.0%} {figures['within_10']['ratio']:12.0%} "
            f"{figures['median']:8.1%} {figures['greatest']:9.1%} {held}"
        )


def timed(call: Callable[[], MachineCorrection]) -> tuple[MachineCorrection, float]:
    """A result, and the seconds that it took."""
    begun = time.monotonic()
    return call(), time.monotonic() - begun


def main() -> None:
    """Calibrate, visit, evaluate, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of ONNX files")
    parser.add_argument("--networks", type=int, default=None, help="so many of them, the first by name (default: all)")
    parser.add_argument("--minutes", type=float, default=20.0, help="for everything")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "latency_zoo.json")
    options = parser.parse_args()
    begun = time.monotonic()
    paths = sorted(options.folder.glob("*.onnx"))[: options.networks]
    if len(paths) < 2:
        parser.error(f"{options.folder} holds fewer than two ONNX files")
    device = OrtDevice()
    correction = stored_correction(device, device.target.units[0].name)
    seconds = 0.0
    if correction is None:
        correction, seconds = timed(lambda: calibrate(target=device))
        if correction.refused:
            parser.exit(1, f"not calibrated: {'; '.join(correction.refused)}\n")
        print(f"calibrated in {seconds:.0f} s", flush=True)
    left = options.minutes - (time.monotonic() - begun) / 60
    part = options.output.with_suffix(".part")
    visits, failed = visited(paths, device, left, part)
    if len(visits) < 2:
        parser.exit(1, f"measured too few networks: {failed}\n")
    result = evaluated(visits, estimates(visits, paths, correction, device))
    result |= {"failed": failed, "calibration": correction, "calibration_seconds": round(seconds)}
    result["seconds"] = round(time.monotonic() - begun)
    show(result)
    command = f"latency_zoo.py FOLDER --networks {len(visits)} --minutes {options.minutes:g}"
    store("latency_zoo", result, command, path=options.output)


if __name__ == "__main__":
    main()
