"""Two networks that read handwritten digits, trained in seconds, as examples for sparsity and trees.

    python examples/digits.py [--network mlp] [-o FOLDER]

Writes ``digits.npz`` and ``mlp.onnx`` (64-128-128-64-10 on rows of 64 numbers), ``digits-images.npz``
and ``conv.onnx`` (three convolutions on 1 x 8 x 8), from scikit-learn's 1,797 images of 8 x 8 pixels.
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


def write_network(model: Model, data: Path, path: Path, recipe: Recipe = RECIPE) -> float:
    """Train a network on ``data`` and write it; return its accuracy on the test digits."""
    digits = load_data(data)
    network = to_torch(model)
    fine_tune(network, digits.train, recipe)
    with write_whole(path, force=True) as file:
        file.write(free_batch(to_model(network)))
    return evaluate(network, digits.test).top1


def main() -> None:
    """Write both networks, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("digits"))
    parser.add_argument("--network", choices=("mlp", "conv"), help="only this one")
    options = parser.parse_args()
    for build, name, images in ((mlp, "digits.npz", False), (conv, "digits-images.npz", True)):
        if options.network in (None, build.__name__):
            data = write_data(options.output / name, images=images)
            file = options.output / f"{build.__name__}.onnx"
            accuracy = write_network(build(), data, file)
            print(f"{file}: {accuracy:.4f} of the test digits right; data in {data}")


if __name__ == "__main__":
    main()
