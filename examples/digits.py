"""Networks that read handwritten digits, trained in seconds, as examples for sparsity and trees.

    python examples/digits.py [--network mlp] [-o FOLDER]

Writes ``digits.npz`` and ``mlp.onnx`` (64-128-128-64-10 on rows of 64 numbers), ``digits-images.npz``
and ``conv.onnx`` (three convolutions on 1 x 8 x 8), from scikit-learn's 1,797 images of 8 x 8 pixels. By name only:
``gates`` (depthwise convolutions with gates) and ``branches`` (convolutions side by side, concatenated).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from framefit.core.files import write_whole
from framefit.core.model import GraphBuilder, Model, free_batch
from framefit.training.data import load_data
from framefit.training.evaluate import evaluate
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import to_model, to_torch

RECIPE = Recipe(epochs=30, batch=64, rate=0.1, pad=1, flip=False, bf16=False)


def mlp() -> Model:
    """Three hidden layers; weights are not trained yet."""
    b = GraphBuilder("mlp")
    x = b.input("pixels", (1, 64))
    for width in (128, 128, 64):
        x = b.dense(x, width, activation="Relu")
    b.output(b.dense(x, 10), "logits")
    return b.build()


def conv() -> Model:
    """Three convolutions with batch normalisation; weights are not trained yet."""
    b = GraphBuilder("conv")
    x = b.input("image", (1, 1, 8, 8))
    for channels, stride in ((16, 1), (32, 2), (32, 1)):
        x = b.conv(x, channels, stride=stride, norm=True, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 10), "logits")
    return b.build()


def gates() -> Model:
    """Two inverted residuals with depthwise convolutions and gates (squeeze and excitation); not trained yet."""
    b = GraphBuilder("gates")
    x = b.conv(b.input("image", (1, 1, 8, 8)), 16, norm=True, activation="Relu")
    for _ in range(2):
        y = b.conv(x, 48, kernel=1, norm=True, activation="Relu")
        y = b.conv(y, 48, groups=48, norm=True, activation="Relu")
        gate = b.conv(b.conv(b.op("GlobalAveragePool", y), 12, kernel=1, activation="Relu"), 48, kernel=1)
        y = b.op("Mul", y, b.op("Sigmoid", gate))
        x = b.op("Add", x, b.conv(y, 16, kernel=1, norm=True))
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 10), "logits")
    return b.build()


def branches() -> Model:
    """Convolutions of two sizes side by side, concatenated, twice; weights are not trained yet."""
    b = GraphBuilder("branches")
    x = b.input("image", (1, 1, 8, 8))
    for width, stride in ((16, 1), (24, 2)):
        sides = [b.conv(x, width, kernel=size, stride=stride, norm=True, activation="Relu") for size in (3, 5)]
        x = b.op("Concat", *sides, axis=1)
    x = b.conv(x, 32, norm=True, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 10), "logits")
    return b.build()


def write_data(path: Path, *, images: bool) -> Path:
    """Write the digits to an ``.npz``: a fifth of them for the test, normalised by the others."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = digits.data[order].astype(np.float32)
    y = digits.target[order].astype(np.int64)
    held = len(x) // 5
    x = (x - x[held:].mean()) / x[held:].std()
    x = x.reshape(-1, 1, 8, 8) if images else x
    with write_whole(path, force=True) as file:
        np.savez(file, x_train=x[held:], y_train=y[held:], x_test=x[:held], y_test=y[:held])
    return path


NETWORKS = {"mlp": mlp, "conv": conv, "gates": gates, "branches": branches}


def write_network(model: Model, data: Path, path: Path, recipe: Recipe = RECIPE) -> float:
    """Train a network on ``data`` and write it; return its accuracy on the test digits."""
    digits = load_data(data)
    network = to_torch(model)
    fine_tune(network, digits.train, recipe)
    with write_whole(path, force=True) as file:
        file.write(free_batch(to_model(network)))
    return evaluate(network, digits.test).top1


def main() -> None:
    """Write the first two networks, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("digits"))
    parser.add_argument("--network", choices=tuple(NETWORKS), help="only this one")
    options = parser.parse_args()
    for name in ("mlp", "conv") if options.network is None else (options.network,):
        images = name != "mlp"
        data = write_data(options.output / ("digits-images.npz" if images else "digits.npz"), images=images)
        file = options.output / f"{name}.onnx"
        accuracy = write_network(NETWORKS[name](), data, file)
        print(f"{file}: {accuracy:.4f} of the test digits right; data in {data}")


if __name__ == "__main__":
    main()
