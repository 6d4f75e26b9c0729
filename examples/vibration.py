"""A network that hears from a motor's vibration what is wrong with it, for a circuit that listens all the time.

    python examples/vibration.py [--small] [-o FOLDER]

Writes ``vibration.npz`` and ``vibration.onnx``. The data are made here: a shaft at 25 to 35 Hz on a ball bearing,
heard by an accelerometer of 6.4 kHz and 8 bits in windows of 0.16 s, whose amplifier sets its own gain and passes no
low frequencies (so it does not hear the shaft's own swing). A defect on a race or a ball strikes at a multiple of the
shaft's speed, which slips a little, and each blow rings at a resonance of the housing (the model of McFadden and
Smith, 1984, "Model for the vibration produced by a single point defect in a rolling element bearing", J. Sound and
Vibration 96; the multiples are those of a bearing of type 6205, Smith and Randall, 2015, "Rolling element bearing
diagnostics using the Case Western Reserve University data", Mech. Syst. Signal Process. 64).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.core.model import GraphBuilder, Model, free_batch
from framefit.training.data import load_data
from framefit.training.evaluate import evaluate
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import to_model, to_torch

CLASSES = ("healthy", "rubbing", "outer race", "inner race", "ball")
RATE_HZ = 6400
WINDOW = 1024
STEP = 1 / 64
"""What one step of the sensor's 8 bits is worth: a power of two."""
LEVEL = 0.4
"""Root mean square of a window: the sensor's amplifier sets its own gain."""
RECIPE = Recipe(epochs=20, batch=64, rate=0.1, pad=0, flip=False, bf16=False)
_BLOWS = {"outer race": 3.585, "inner race": 5.415, "ball": 4.714}  # for each turn of the shaft
_TURNED_WITH = {"outer race": 0.0, "inner race": 1.0, "ball": 0.398}  # how often for each turn a defect bears load


def window(kind: str, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """One window of a motor in this state, as the sensor gives it."""
    time = np.arange(WINDOW) / RATE_HZ
    shaft_hz = random.uniform(25, 35)
    signal = random.normal(scale=random.uniform(0.05, 0.2), size=WINDOW)
    if kind in _BLOWS:
        signal += _blows(kind, shaft_hz, time, random)
    elif kind == "rubbing":  # for a part of each turn
        turn = (shaft_hz * time + random.uniform()) % 1
        signal += random.normal(scale=random.uniform(0.4, 0.8), size=WINDOW) * (turn < random.uniform(0.15, 0.4))
    signal *= LEVEL / signal.std()
    return np.clip(np.rint(signal / STEP), -128, 127).astype(np.float32) * np.float32(STEP)


def _blows(
    kind: str, shaft_hz: float, time: npt.NDArray[np.float64], random: np.random.Generator
) -> npt.NDArray[np.float64]:
    """A defect's blows, each with the ringing behind it."""
    between = 1 / (_BLOWS[kind] * shaft_hz)
    count = int(time[-1] / between) + 12
    at = np.cumsum(between * random.normal(1, 0.01, count)) - between * random.uniform(5, 6)
    load = 1 + 0.5 * np.cos(2 * np.pi * _TURNED_WITH[kind] * shaft_hz * at + random.uniform(0, 2 * np.pi))
    size = random.uniform(0.8, 1.6) * (load if _TURNED_WITH[kind] else np.ones(count))
    ringing_hz, damping = random.uniform(1200, 2000), random.uniform(500, 900)
    since = time[None, :] - at[:, None]
    ringing = np.exp(-damping * np.maximum(since, 0)) * np.sin(2 * np.pi * ringing_hz * since)
    return np.asarray((size[:, None] * np.where(since >= 0, ringing, 0)).sum(axis=0))


def write_data(path: Path, *, train: int = 6000, test: int = 2000, seed: int = 0) -> Path:
    """Write windows of all states to an ``.npz``, as many of each."""
    random = np.random.default_rng(seed)
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        labels = random.permutation(np.arange(count) % len(CLASSES))
        arrays[f"x_{part}"] = np.stack([window(CLASSES[label], random) for label in labels])[:, None]
        arrays[f"y_{part}"] = labels.astype(np.int64)
    with write_whole(path, force=True) as file:
        np.savez(file, **arrays)
    return path


def network() -> Model:
    """Four convolutions along time; weights are not trained yet."""
    b = GraphBuilder("vibration")
    random = np.random.default_rng(0)
    x, channels = b.input("signal", (1, 1, WINDOW)), 1
    for number, (width, kernel, stride) in enumerate(((12, 16, 4), (24, 5, 2), (32, 5, 2), (32, 3, 2))):
        scale = np.sqrt(2 / (channels * kernel))
        weight = random.normal(scale=scale, size=(width, channels, kernel)).astype(np.float32)
        x = b.op("Conv", x, b.constant(weight, f"weight{number}"), kernel_shape=[kernel], strides=[stride])
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        held = {"scale": ones, "shift": zeros, "mean": zeros, "variance": ones}
        norm = [b.constant(array.copy(), f"{name}{number}") for name, array in held.items()]
        x = b.op("Relu", b.op("BatchNormalization", x, *norm))
        channels = width
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), len(CLASSES)), "logits")
    return b.build()


def write_network(data: Path, path: Path, recipe: Recipe = RECIPE) -> float:
    """Train the network on ``data`` and write it; return its accuracy on the test windows."""
    windows = load_data(data)
    trained = to_torch(network())
    fine_tune(trained, windows.train, recipe)
    with write_whole(path, force=True) as file:
        file.write(free_batch(to_model(trained)))
    return evaluate(trained, windows.test).top1


def main() -> None:
    """Write data and network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("vibration"))
    parser.add_argument("--small", action="store_true", help="a tenth of the data, in seconds: to see how it goes")
    options = parser.parse_args()
    size = {"train": 600, "test": 200} if options.small else {}
    recipe = msgspec.structs.replace(RECIPE, epochs=4) if options.small else RECIPE
    data = write_data(options.output / "vibration.npz", **size)
    file = options.output / "vibration.onnx"
    accuracy = write_network(data, file, recipe)
    print(f"{file}: {accuracy:.4f} of the test windows right; data in {data}")


if __name__ == "__main__":
    main()
