"""Networks in PyTorch: equal to ONNX Runtime both ways, and how many images a second they judge and learn.

    python benchmarks/training.py [--data CIFAR] [--rounds 5]

Claims: on each network of the tests, the built-in ones and ResNet-20 the largest difference from ONNX
Runtime is below 1e-5 of the largest output, to PyTorch, back to ONNX, with norms folded, and in a batch
of three; 2,000 images through ResNet-20 take at most 3 s. Without --data the images are random.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import torch
from stored import interval, store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from framefit.core.model import Model, free_batch
from framefit.core.model.builtin import BUILTIN
from framefit.errors import UnsupportedError
from framefit.training.data import Examples, load_data
from framefit.training.evaluate import evaluate, reestimate
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import Network, to_model, to_torch
from networks import NETWORKS, Runner, difference, random_inputs

SHARED = Path(os.environ.get("FRAMEFIT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
RESNET = SHARED / "models" / "resnet20-cifar10.onnx"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # its documented input
IMAGES = 2000


def outputs(network: Network, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    network.eval()
    with torch.inference_mode():
        made = network(*(torch.from_numpy(feeds[tensor.name]) for tensor in network.model.inputs))
    made = made if isinstance(made, tuple) else (made,)
    return {tensor.name: np.asarray(one) for tensor, one in zip(network.model.outputs, made, strict=True)}


def equality(name: str, model: Model) -> dict[str, object]:
    """Largest difference from ONNX Runtime, of the largest output."""
    try:
        network = to_torch(model)
    except UnsupportedError as error:
        return {"network": name, "refused": f"{error.where}: {error.what}"}
    feeds = [random_inputs(model, seed) for seed in range(3)]
    run = Runner(model)
    expected = [run.whole(one) for one in feeds]
    found = {
        "network": name,
        "to_torch": difference(expected[0], outputs(network, feeds[0])),
        "back": difference(expected[0], Runner(to_model(network)).whole(feeds[0])),
        "folded": difference(expected[0], Runner(to_model(network, fold=True)).whole(feeds[0])),
    }
    if all(tensor.shape and len(tensor.shape) > 1 for tensor in (*model.inputs, *model.outputs)):
        together = outputs(network, {key: np.concatenate([one[key] for one in feeds]) for key in feeds[0]})
        alone = {key: np.concatenate([one[key] for one in expected]) for key in expected[0]}
        found["batch_of_three"] = difference(alone, together)
    return found


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def speed(model: Model, examples: Examples, rounds: int) -> dict[str, object]:
    """Seconds and images a second, arms in turns (A B .. B A)."""
    network, folded = to_torch(model), to_torch(to_model(to_torch(model), fold=True))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(free_batch(model), options, providers=["CPUExecutionProvider"])
    name = model.inputs[0].name
    part = examples.take(slice(0, IMAGES))
    learned = examples.take(slice(0, 1280))
    inputs = part.inputs(slice(0, 512))

    def learn(*, bf16: bool) -> None:
        fine_tune(to_torch(model), learned, Recipe(epochs=1, rate=0.001, bf16=bf16))

    arms: dict[str, tuple[int, Callable[[], object]]] = {
        "evaluate": (IMAGES, lambda: evaluate(network, part)),
        "evaluate, norms folded": (IMAGES, lambda: evaluate(folded, part)),
        "evaluate, ONNX Runtime": (IMAGES, lambda: evaluate(lambda x: session.run(None, {name: x})[0], part)),
        "re-estimate norms": (512, lambda: reestimate(to_torch(model), inputs)),
        "train, bfloat16": (1280, lambda: learn(bf16=True)),
        "train, float32": (1280, lambda: learn(bf16=False)),
    }
    taken: dict[str, list[float]] = {arm: [] for arm in arms}
    for index in range(rounds + 1):  # the first one warms up
        for arm in list(arms)[:: 1 if index % 2 else -1]:
            time_s = seconds(arms[arm][1])
            if index:
                taken[arm].append(time_s)
    return {
        arm: {
            "images": arms[arm][0],
            "seconds": float(np.median(times)),
            "seconds_interval": interval(times, np.median),
            "images_per_second": arms[arm][0] / float(np.median(times)),
        }
        for arm, times in taken.items()
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    models = {name: build() for name, build in NETWORKS.items()}
    models |= {name: build(0) for name, build in BUILTIN.items()} | {"resnet20-cifar10": Model.load(RESNET)}
    rows = [equality(name, model) for name, model in models.items()]
    keys = ("to_torch", "back", "folded", "batch_of_three")
    print(f"{'network':18} {'  '.join(f'{key:>14}' for key in keys)}")
    for row in rows:
        cells = "  ".join("-".rjust(14) if key not in row else f"{row[key]:14.1e}" for key in keys)
        print(f"{row['network']:18} {row.get('refused', cells)}")

    resnet = models["resnet20-cifar10"]
    figures: dict[str, object] = {"equality": rows, "threads": torch.get_num_threads(), "torch": str(torch.__version__)}
    if arguments.data is None:
        random = np.random.default_rng(0)
        examples = Examples(
            random.standard_normal((IMAGES, 3, 32, 32)).astype(np.float32), random.integers(0, 10, IMAGES)
        )
    else:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["FRAMEFIT_CACHE"] = cache
            figures["reading_seconds"] = {
                "decoded": seconds(lambda: load_data(arguments.data, mean=MEAN, std=STD)),
                "from the cache": seconds(lambda: load_data(arguments.data, mean=MEAN, std=STD)),
            }
            data = load_data(arguments.data, mean=MEAN, std=STD)
            examples = data.test
            figures["accuracy"] = msgspec.to_builtins(evaluate(to_torch(resnet), examples))
        print(f"reading {figures['reading_seconds']}, test {figures['accuracy']}")
    figures["speed"] = speed(resnet, examples, arguments.rounds)
    print(f"{'ResNet-20':24}    images    seconds                 images/s")
    for arm, row in figures["speed"].items():  # type: ignore[attr-defined]
        low, high = row["seconds_interval"]
        spread = f"{row['seconds']:8.2f} ({low:.2f} .. {high:.2f})"
        print(f"{arm:24} {row['images']:9} {spread} {row['images_per_second']:11.0f}")
    store("training", figures, " ".join(["training.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
