"""A workload that does not fit at first: what ``framefit fit`` is for.

    python examples/crowded.py [-o FOLDER] [--target vpu] [--small]
    framefit fit FOLDER/app.toml --data FOLDER/digits.npz --apply

A camera watches a conveyor belt. A detector processes every frame, a network reads the digit on each parcel, a third
one measures the light. The reader is accurate and too slow: it takes 1.6 times as long as the others leave. Writes
``detector.onnx``, ``light.onnx``, ``reader.onnx`` (trained on scikit-learn's 1,797 handwritten digits), ``digits.npz``
and ``app.toml``, whose rate follows from the models' durations on the target. With ``--small`` all three are a
hundredth of that size, made and trained in seconds.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import framefit
from framefit.core.files import write_whole
from framefit.core.model import GraphBuilder, Model, free_batch
from framefit.core.model.builtin import detector
from framefit.core.target import BUILTIN_TARGETS
from framefit.devices.host import default_core
from framefit.training.data import load_data
from framefit.training.evaluate import evaluate
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import to_model, to_torch

TOO_SLOW = 1.6
RECIPE = Recipe(epochs=8, batch=64, rate=0.1, pad=2, flip=False)
SMALL = Recipe(epochs=8, batch=64, rate=0.1, pad=1, flip=False, bf16=False)

APP = """\
# A conveyor belt: "reader" takes {ratio:g} times as long for a frame as the other models leave.
schema_version = 1
target = "{target}"
{cores}rate_hz = {rate_hz:.6g}

[[models]]
name = "detector"
path = "detector.onnx"
priority = "every-window"

[[models]]
name = "light"
path = "light.onnx"
priority = "background"

[[models]]
name = "reader"
path = "reader.onnx"
priority = "background"
"""


def reader(size: int = 16, channels: tuple[int, ...] = (64, 128, 128, 128)) -> Model:
    """Wide convolutions on 1 x 16 x 16 pixels; weights are not trained yet."""
    b = GraphBuilder("reader")
    x = b.input("image", (1, 1, size, size))
    for count in channels:
        x = b.conv(x, count, norm=True, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 10), "logits")
    return b.build()


def light(name: str = "light", height: int = 60, width: int = 80) -> Model:
    """A few convolutions that measure brightness; random weights."""
    b = GraphBuilder(name, 3)
    x = b.input("image", (1, 3, height, width))
    for channels in (8, 16, 16):
        x = b.conv(x, channels, stride=2, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "brightness")
    return b.build()


def write_models(folder: Path, *, small: bool) -> float:
    """Write the three models and the data; return the reader's accuracy on the test digits."""
    folder.mkdir(parents=True, exist_ok=True)
    first, second = (light("detector", 48, 64), light("light", 24, 32)) if small else (detector(), light())
    first.save(folder / "detector.onnx", force=True)
    second.save(folder / "light.onnx", force=True)
    size = 8 if small else 16
    untrained = reader(size, (16, 32, 32)) if small else reader(size)
    data = write_data(folder / "digits.npz", size)
    return write_reader(untrained, data, folder / "reader.onnx", SMALL if small else RECIPE)


def write_data(path: Path, size: int = 16) -> Path:
    """Write the digits to an ``.npz`` of images: a fifth of them for the test, normalised by the others."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = np.kron(digits.images[order], np.ones((1, size // 8, size // 8))).astype(np.float32)[:, None]
    y = digits.target[order].astype(np.int64)
    held = len(x) // 5
    x = (x - x[held:].mean()) / x[held:].std()
    with write_whole(path, force=True) as file:
        np.savez(file, x_train=x[held:], y_train=y[held:], x_test=x[:held], y_test=y[:held])
    return path


def write_reader(model: Model, data: Path, path: Path, recipe: Recipe = RECIPE) -> float:
    """Train the reader and write it; return its accuracy on the test digits."""
    digits = load_data(data)
    network = to_torch(model)
    fine_tune(network, digits.train, recipe)
    with write_whole(path, force=True) as file:
        file.write(free_batch(to_model(network)))
    return evaluate(network, digits.test).top1


def write_app(folder: Path, target: str, ratio: float = TOO_SLOW) -> Path:
    """Write ``app.toml`` with a rate at which the reader takes ``ratio`` times as long as the others leave in a window.

    On this machine the workload has one core, the last one. The path of a ``target.toml`` is relative to this folder.
    """
    app = folder / "app.toml"
    if target not in BUILTIN_TARGETS:
        target = Path(os.path.relpath(target, folder)).as_posix()
    measured = target == "cpu"  # durations of launches depend on how long the core slept before
    cores = f"cores = [{default_core()}]\n" if measured else ""
    rate_hz = 50.0 if measured else 1.0
    for _ in range(2 if measured else 1):
        app.write_text(APP.format(ratio=ratio, target=target, cores=cores, rate_hz=rate_hz))
        planned = framefit.plan(app, cache=not measured).timetable
        duration_ns = {model.name: model.duration_ns for model in planned.models}
        window_ns = duration_ns["detector"] + duration_ns["light"] + planned.guard_ns + duration_ns["reader"] / ratio
        rate_hz = math.floor(1e10 / window_ns) / 10
    app.write_text(APP.format(ratio=ratio, target=target, cores=cores, rate_hz=rate_hz))
    return app


def main() -> None:
    """Write models, data and workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("crowded"))
    parser.add_argument("--target", default="vpu", help="a built-in target, or the path of a target.toml")
    parser.add_argument("--small", action="store_true", help="small networks, for a first look")
    options = parser.parse_args()
    folder: Path = options.output
    accuracy = write_models(folder, small=options.small)
    app = write_app(folder, options.target)
    print(f"{folder}/reader.onnx: {accuracy:.4f} of the test digits right")
    print(f"framefit fit {app} --data reader={folder}/digits.npz --apply")


if __name__ == "__main__":
    main()
