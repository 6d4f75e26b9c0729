"""What blocks of zeros are worth on this processor: Framefit's kernels beside ONNX Runtime, on one pinned core in turn.

Layers, then whole networks as the device launches them. Zeros are drawn at random: 16 outputs x 1 input in float32, 16
x 4 in int8, in every convolution with at least 8 inputs. Accuracy is not looked at; outputs are compared with those of
ONNX Runtime. int8 networks are made by ONNX Runtime's own tool. OpenVINO stands beside where it is installed, on one
thread.

    python benchmarks/kernels.py [MODEL.onnx ...] [--rounds 15] [--result kernels]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from stored import interval, store

from framefit import GraphBuilder, Model
from framefit.core.model import folded, listing, with_weights
from framefit.core.workload import MachineSettings
from framefit.devices.device import allocate
from framefit.devices.host import default_core, pinned
from framefit.devices.kernels.network import FOUR
from framefit.devices.ort import quantised
from framefit.devices.pieces import HostDevice

LANES = 16
LAYERS = {  # inputs, outputs, size, kernel
    "64-64, 56x56, 3x3": (64, 64, 56, 3),
    "128-128, 28x28, 3x3": (128, 128, 28, 3),
    "256-256, 14x14, 3x3": (256, 256, 14, 3),
    "512-512, 7x7, 3x3": (512, 512, 7, 3),
    "16-16, 32x32, 3x3": (16, 16, 32, 3),
    "64-64, 8x8, 3x3": (64, 64, 8, 3),
    "96-576, 14x14, 1x1": (96, 576, 14, 1),
}
LEVELS = (0.0, 0.5, 0.7, 0.8, 0.9)
NETWORK_LEVELS = (0.0, 0.5, 0.7, 0.8)
ROUND_S = 0.02


def layer(inputs: int, outputs: int, size: int, kernel: int) -> Model:
    """A convolution with a ReLU."""
    b = GraphBuilder("layer", 0)
    x = b.input("x", (1, inputs, size, size))
    weight = b.weight((outputs, inputs, kernel, kernel), inputs * kernel * kernel)
    bias = b.constant(np.zeros(outputs, np.float32))
    b.output(b.op("Relu", b.op("Conv", x, weight, bias, pads=[kernel // 2] * 4)), "y")
    return b.build()


def with_zeros(model: Model, zeros: float, together: int) -> Model:
    """The model with zeros in blocks of outputs and ``together`` inputs."""
    random, arrays, new = np.random.default_rng(0), listing(model).arrays, {}
    for nodes in model.nodes:
        for node in nodes:
            name = node.inputs[1].name if node.op == "Conv" and node.inputs[1] is not None else ""
            if name not in arrays or arrays[name].shape[1] < 8:
                continue
            weight = arrays[name]
            blocks = -(-len(weight) // LANES), -(-weight.shape[1] // together), *weight.shape[2:]
            kept = np.repeat(np.repeat(random.random(blocks) >= zeros, LANES, 0), together, 1)
            new[name] = weight * kept[: len(weight), : weight.shape[1]]
    return with_weights(model, new)


def launcher(model: Model, folder: Path, *, kernels: bool) -> tuple[Callable[[], Any], dict[str, npt.NDArray[Any]]]:
    """A launch of a model by this machine's device, and its tensors."""
    device = HostDevice(MachineSettings(kernels="auto" if kernels else "never"), cache=folder)
    random = np.random.default_rng(1)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for tensor in (*model.inputs, *model.outputs):
        tensors[tensor.name] = allocate(tensor)
    for tensor in model.inputs:
        tensors[tensor.name][...] = random.standard_normal(tensor.shape or ())
    binding = device.compile(model, device.target.units[0].name, "net").bind(tensors)
    device.submit(binding)
    return lambda: device.submit(binding), tensors


def openvino_launcher(model: Model, tensors: dict[str, npt.NDArray[Any]]) -> Callable[[], Any] | None:
    """A launch by OpenVINO on one thread; ``None``: it is not installed."""
    try:
        import openvino
    except ImportError:
        return None
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model.to_bytes()), "CPU", settings)
    request = compiled.create_infer_request()
    for tensor in model.inputs:
        request.set_tensor(tensor.name, openvino.Tensor(tensors[tensor.name], shared_memory=True))
    request.infer()
    return request.infer


def timed(runs: Sequence[Callable[[], Any]], rounds: int) -> npt.NDArray[np.float64]:
    """Seconds of a launch: rounds x runs, in turn."""
    launches = []
    for run in runs:
        begun = time.perf_counter()
        run()
        launches.append(max(2, int(ROUND_S / max(time.perf_counter() - begun, 1e-6))))
    took = np.empty((rounds, len(runs)))
    for turn in range(rounds):
        for place, (run, count) in enumerate(zip(runs, launches, strict=True)):
            begun = time.perf_counter()
            for _ in range(count):
                run()
            took[turn, place] = (time.perf_counter() - begun) / count
    return took


def times_faster(took: npt.NDArray[np.float64], slow: int, fast: int) -> dict[str, object]:
    """How many times faster one run is, with its interval over the rounds."""
    ratios = took[:, slow] / took[:, fast]
    return {"median": float(np.median(ratios)), "interval": interval(ratios, np.median)}


def compare(dense: Model, zeros: float, rounds: int, examples: npt.NDArray[np.float32]) -> dict[str, object]:
    """A model with zeros: kernels and ONNX Runtime, in float32 and int8; OpenVINO beside them."""
    with TemporaryDirectory() as kept:
        folder = Path(kept)
        plain, fours = with_zeros(dense, zeros, 1), with_zeros(dense, zeros, FOUR)
        in_bytes = quantised(fours, examples)
        begun = time.perf_counter()
        runs = [launcher(plain, folder, kernels=True), launcher(in_bytes, folder, kernels=True)]
        compile_s = time.perf_counter() - begun
        runs += [launcher(plain, folder, kernels=False), launcher(in_bytes, folder, kernels=False)]
        errors = []
        for made, expected in ((0, 2), (1, 3)):
            name = dense.outputs[0].name
            greatest = np.abs(runs[expected][1][name]).max()
            errors.append(float(np.abs(runs[made][1][name] - runs[expected][1][name]).max() / max(greatest, 1e-9)))
        beside = [openvino_launcher(model, tensors) for model, tensors in ((plain, runs[2][1]), (in_bytes, runs[3][1]))]
        launches = [run for run, _ in runs] + [run for run in beside if run is not None]
        took = timed(launches, rounds)
        row: dict[str, object] = {
            "microseconds": {
                name: float(np.median(took[:, place]) * 1e6)
                for place, name in enumerate(("kernels", "kernels_int8", "runtime", "runtime_int8"))
            },
            "float32": times_faster(took, 2, 0),
            "int8": times_faster(took, 3, 1),
            "int8_over_float32": times_faster(took, 2, 1),
            "greatest_difference": {"float32": errors[0], "int8": errors[1]},
            "compile_s": compile_s,
        }
        if took.shape[1] == 6:
            row["openvino"] = {"float32": times_faster(took, 4, 0), "int8": times_faster(took, 5, 1)}
    return row


def main() -> None:
    """Compare layers, or the networks that are given, and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--result", default="")
    given = parser.parse_args()
    random = np.random.default_rng(0)
    if given.models:
        networks = {path.stem: folded(Model.load(path)) for path in given.models}
        levels = NETWORK_LEVELS
    else:
        networks, levels = {name: layer(*sizes) for name, sizes in LAYERS.items()}, LEVELS
    figures: dict[str, object] = {}
    with pinned(default_core()):
        for name, model in networks.items():
            rows = {}
            for zeros in levels:
                shape = (16, *(model.inputs[0].shape or ())[1:])
                row = compare(model, zeros, given.rounds, random.standard_normal(shape).astype(np.float32))
                rows[f"{zeros:.0%}"] = row
                print(
                    name,
                    f"{zeros:.0%}",
                    {key: row[key] for key in ("float32", "int8", "int8_over_float32")},
                    flush=True,
                )
            figures[name] = rows
    result = given.result or ("kernels_networks" if given.models else "kernels_layers")
    names = " ".join(path.name for path in given.models)
    names = " ".join(path.name for path in given.models)
    command = f"kernels.py {names} --rounds {given.rounds}".replace("  ", " ")
    store(result, {"zeros": figures}, command)


if __name__ == "__main__":
    main()
