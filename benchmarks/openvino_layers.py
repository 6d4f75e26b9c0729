"""Layers that ``framefit measure`` times from outside, beside the times that OpenVINO tells of them.

    python benchmarks/openvino_layers.py [--seconds 40] [--models DIR]      # for each of some ten networks

A closed device tells start and end of a launch only, and ``framefit measure`` finds each layer's time by an auxiliary
layer and a model of the overhead. OpenVINO is used as such a device; what it counts for each operator of the whole
network (``PERF_COUNT``, in whole microseconds) is asked before and after, and is no part of the measurement. A shared
machine's speed changes by more than layers' errors from minute to minute, so what was counted is scaled by what
launches of the whole network took in the rounds of the measurement, over what they took beside the counting. It counts
within a network: a layer that others evict from the caches takes longer there than by itself, which is in the errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from stored import interval, store
from zoo import ARCHITECTURES

import framefit
from framefit.core.model import Model
from framefit.core.model.builtin import load_model
from framefit.core.model.graph import configuration
from framefit.devices import open_device
from framefit.devices.device import LayerTimesDevice, allocate, random_inputs, tells_layer_times
from framefit.devices.host import pinned

REAL = ("face-slim-320", "resnet20-cifar10")
FLOORS = (1, 3, 10)  # layers count from so many noise floors on
SIZES_NS = (0, 100_000, 400_000, 10**12)  # and are told apart by what was counted
TURNS, LAUNCHES = 4, 10
OWN = ("plain-s", "plain-m", "residual-s", "residual-m", "inverted-s", "squeeze-s", "unet-s", "unet-m")


def compared(model: Model, device: LayerTimesDevice, seconds: float) -> list[dict[str, object]]:
    """Each layer, as measured and as counted."""
    unit = device.target.units[0]
    arrays = random_inputs(model.inputs, np.random.default_rng(0))
    arrays |= {tensor.name: allocate(tensor) for tensor in model.outputs}
    binding = device.compile(model, unit.name, model.name).bind(arrays)
    counted: list[npt.NDArray[np.int64]] = []
    launches_ns: list[int] = []

    def count() -> None:
        for _ in range(TURNS):
            counted.append(device.layer_times_ns(model, unit.name, LAUNCHES))
            launches_ns.extend(device.submit(binding).duration_ns for _ in range(LAUNCHES))

    with pinned(unit.core):
        count()
        table = framefit.measure(model, target=device, max_seconds=seconds, audit="none")
        count()
    (whole,) = (run for run in table.runs if run.role == "network")
    scale = float(np.median(whole.samples_ns) / np.median(launches_ns))
    grouped, times = model.grouped(device.fusions(model)), scale * np.concatenate(counted)
    rows: list[dict[str, object]] = []
    for place, layer in enumerate(grouped.layers):
        entry = table.find(layer.op, configuration(grouped.nodes[place]), unit.name)
        if entry is None or entry.below_noise:
            continue
        own = times[:, place]
        rows.append(
            {
                "network": model.name,
                "scale": scale,
                "layer": layer.name,
                "op": layer.op,
                "measured_ns": entry.latency_ns,
                "interval_ns": entry.interval_ns,
                "floors": entry.latency_ns / max(entry.noise_floor_ns, 1),
                "counted_ns": float(np.median(own)),
                "counted_interval_ns": interval(own, np.median),
            }
        )
    print(f"{model.name}: scale {scale:.2f}, {len(rows)} of {len(grouped.layers)} layers", flush=True)
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Errors of layers from so many noise floors on, and of layers by their size."""
    rows = [row for row in rows if row["counted_ns"]]
    groups = {f"from_{floors}_floors": [row for row in rows if row["floors"] >= floors] for floors in FLOORS}
    for low, high in pairwise(SIZES_NS):
        groups[f"from_{low}_ns"] = [row for row in rows if row["floors"] >= 1 and low <= row["counted_ns"] < high]
    return {name: _errors(group) for name, group in groups.items()}


def _errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    measured, counted = (np.array([row[key] for row in rows]) for key in ("measured_ns", "counted_ns"))
    low, high = np.array([row["interval_ns"] for row in rows]).reshape(-1, 2).T
    return {
        "count": len(rows),
        "median_ratio": float(np.median(measured / counted)) if rows else None,
        "median_error": float(np.median(np.abs(measured / counted - 1))) if rows else None,
        "intervals_hold": float(np.mean((low <= counted) & (counted <= high))) if rows else None,
    }


def main() -> None:
    """Measure, compare, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--models", type=Path, help=f"folder with {', '.join(REAL)} as .onnx files")
    given = parser.parse_args()
    models = [ARCHITECTURES[name]() for name in OWN]
    if given.models is not None:
        models += [load_model(given.models / f"{name}.onnx", {}, {}) for name in REAL]
    device = open_device("openvino:CPU")
    assert tells_layer_times(device)
    rows = [row for model in models for row in compared(model, device, given.seconds)]
    figures = summary(rows)
    print(figures)
    store("openvino_layers", figures | {"layers": rows}, f"openvino_layers.py --seconds {given.seconds:g} --models DIR")


if __name__ == "__main__":
    main()
