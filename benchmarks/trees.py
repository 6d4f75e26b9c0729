"""Trees in place of layers: what they keep of the accuracy, how long fitting takes, and how fast they run.

    python benchmarks/trees.py [--seeds 5] [--rounds 300]

On load_digits the last two hidden layers of 64-128-128-64-10 are replaced by trees that read and make ternary
values, and the layer behind is fine-tuned for ten epochs: the loss of test accuracy in points (goal: at most
1.0, mean over seeds) and the time of a fit (goal: at most 10 s of one core). How fast the kernels run, comparing
and packing included, is told as a ratio to ONNX Runtime's float32 of the same group, at batch 1 and 64 (goal:
three times as fast for a residual block at batch 1); arms take turns within a round.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from stored import interval, store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from digits import RECIPE, mlp, write_data, write_network

from framefit.core.model import GraphBuilder, Model
from framefit.core.trees import Ensemble, Patch
from framefit.trees.kernels import kernel_of
from framefit.workflows.treeify import treeify
from trees_cases import random_ensemble

Array = np.ndarray[Any, Any]
FORMS = ("gradient", "ada")


def digits(seed: int, folder: Path) -> list[dict[str, object]]:
    """One network, and each form of trees in it."""
    data = write_data(folder / "digits.npz", images=False)
    write_network(mlp(), data, folder / "mlp.onnx", msgspec.structs.replace(RECIPE, seed=seed))
    rows = []
    for form in FORMS:
        used = time.process_time()
        result = treeify(
            *(folder / "mlp.onnx", data),
            first=1,
            layers=2,
            method=form,
            epochs=10,
            seed=seed,
            output=folder / form,
            force=True,
        ).result
        group = result.chosen.groups[0]
        row = {
            "seed": seed,
            "form": form,
            "trees": group.trees,
            "before_top1": result.original.top1,
            "after_top1": result.chosen.top1,
            "points": 100 * (result.chosen.top1 - result.original.top1),
            "fit_s": group.fit_seconds,
            "all_cpu_s": time.process_time() - used,
            "bytes": result.chosen.bytes,
        }
        rows.append(row)
        print(
            f"  seed {seed} {form:8s} {row['before_top1']:.4f} -> {row['after_top1']:.4f}, fit {row['fit_s']:.1f} s "
            f"(all of it {row['all_cpu_s']:.1f} s of CPU)",
            flush=True,
        )
    return rows


def full(ensemble: Ensemble, random: np.random.Generator) -> Ensemble:
    """All trees of depth 6."""
    top = 2 if ensemble.kind == "vote" else 128
    trees = [
        msgspec.structs.replace(
            tree,
            inputs=tuple(random.integers(0, ensemble.features, 6).tolist()),
            bits=tuple(random.integers(0, 2, 6).tolist()),
            leaves=tuple(random.integers(0, top, 64 * ensemble.width).tolist()),
        )
        for tree in ensemble.trees
    ]
    return msgspec.structs.replace(ensemble, trees=tuple(trees))


def groups(batch: int) -> dict[str, tuple[Model, Patch | None, tuple[int, ...]]]:
    """What is replaced: the digits' two layers, and ResNet-20's last kind of block."""
    dense = GraphBuilder("dense")
    x = dense.input("x", (batch, 128))
    dense.output(dense.dense(dense.dense(x, 128, activation="Relu"), 64, activation="Relu"), "y")
    block = GraphBuilder("block")
    x = block.input("x", (batch, 64, 8, 8))
    y = block.conv(block.conv(x, 64, activation="Relu"), 64)
    block.output(block.op("Relu", block.op("Add", x, y)), "y")
    patch = Patch(kernel=(5, 5), padding=(2, 2, 2, 2), border=True)
    return {"128-128-64": (dense.build(), None, (128,)), "block 64 x 8 x 8": (block.build(), patch, (64, 8, 8))}


def timed(arms: Sequence[Callable[[], object]], rounds: int, inner: int) -> Array:
    """Nanoseconds a call: rounds x arms, the arms in turn, forth and back."""
    taken = np.empty((rounds, len(arms)))
    for arm in arms:
        arm()
    for number in range(rounds):
        order = range(len(arms)) if number % 2 else reversed(range(len(arms)))
        for arm in order:
            started = time.perf_counter_ns()
            for _ in range(inner):
                arms[arm]()
            taken[number, arm] = (time.perf_counter_ns() - started) / inner
    return taken


def speed(batch: int, rounds: int) -> list[dict[str, object]]:
    random, rows = np.random.default_rng(0), []
    for name, (model, patch, shape) in groups(batch).items():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.to_bytes(), options)
        x = random.standard_normal((batch, *shape)).astype(np.float32)
        y = np.empty(model.outputs[0].shape, np.float32)
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        arms: list[Callable[[], object]] = [functools.partial(session.run_with_iobinding, binding)]
        forms = [("vote", 9), ("vector", 32), ("vector", 64), ("vector", 128)]
        for kind, trees in forms:
            drawn = random_ensemble(random, kind=kind, patch=patch, input_shape=shape, outputs=64, trees=trees)
            arms.append(functools.partial(kernel_of(full(drawn, random), batch), x, y))
        taken = timed(arms, rounds, 4 if batch == 1 else 1)
        for place, (kind, trees) in enumerate(forms, start=1):
            ratios = taken[:, 0] / taken[:, place]
            row = {
                "group": name,
                "batch": batch,
                "kind": kind,
                "trees": trees,
                "ort_us": float(np.median(taken[:, 0])) / 1e3,
                "trees_us": float(np.median(taken[:, place])) / 1e3,
                "faster": float(np.median(ratios)),
                "faster_interval": interval(ratios, np.median),
            }
            rows.append(row)
            print(
                f"  {name:18s} batch {batch:2d} {kind:6s} {trees:3d} trees: ONNX Runtime {row['ort_us']:8.1f} us, "
                f"trees {row['trees_us']:8.1f} us, {row['faster']:.2f} x as fast"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path("digits"), help="of the digits and the network")
    given = parser.parse_args()
    fits = [row for seed in range(given.seeds) for row in digits(seed, given.folder)]
    speeds = [row for batch in (1, 64) for row in speed(batch, given.rounds)]
    points = {form: [row["points"] for row in fits if row["form"] == form] for form in FORMS}
    summary = {
        form: {"points": float(np.mean(values)), "points_interval": interval(values)}
        for form, values in points.items()
        if values
    }
    for form, row in summary.items():
        print(f"{form}: {row['points']:+.2f} points {row['points_interval']}")
    store("trees", {"speed": speeds, "digits": fits, "summary": summary}, f"trees.py --seeds {given.seeds}")


if __name__ == "__main__":
    main()
