"""Whether what ``sparsify`` and ``treeify`` promise holds on images that neither they nor the network ever saw.

    python benchmarks/promise.py treeify --network mlp=mlp.onnx,digits.npz --network ... --seeds 5
    python benchmarks/promise.py sparsify --network ...

Half of each file's test data is taken away, another half with each seed. The verb gets the rest and ``--max-drop``;
what it deploys is compared with the original on the half that was taken, in ONNX Runtime, image by image. A model that
is not deployed keeps the promise, and is counted on its own.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from stored import store

import framefit
from framefit.core.model import Model
from framefit.devices.ort import predictor
from framefit.stats import paired_interval, wilson

Row = dict[str, object]


def parted(data: Path, folder: Path, seed: int) -> tuple[Path, np.ndarray, np.ndarray]:
    """The data without half of the test images, and these with their labels."""
    with np.load(data) as file:
        arrays = dict(file)
    order = np.random.default_rng((seed, 7)).permutation(len(arrays["y_test"]))
    taken, left = np.split(order, [len(order) // 2])
    x, y = arrays["x_test"][taken], arrays["y_test"][taken]
    arrays |= {"x_test": arrays["x_test"][left], "y_test": arrays["y_test"][left]}
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz", x.astype(np.float32), y


def right(model: Path | Model, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which images a network is right on."""
    opened = model if isinstance(model, Model) else Model.load(model)
    scores, *_ = predictor(opened)(x)
    return np.asarray(scores.reshape(len(x), -1).argmax(axis=1) == y)


def deployed(
    part: str, model: Path, data: Path, folder: Path, seed: int, max_drop: float, cycles: float
) -> tuple[Path | None, Row]:
    """What a verb deploys, and its own figures."""
    if part == "treeify":
        made = framefit.treeify(model, data, max_drop=max_drop, seed=seed, output=folder / "out")
        chosen = made.result.chosen
        if chosen is None:
            return None, {"decision": "no group"}
        groups = [[group.first_layer, group.last_layer] for group in chosen.groups]
        drop = None if chosen.final is None else chosen.final.drop
        return next((folder / "out").glob("*core*.onnx"), folder / "out" / chosen.exports[0].file), {
            "decision": "deploy",
            "groups": groups,
            "told_drop": drop,
        }
    found = framefit.sparsify(
        model, data, "vpu", cycles=cycles, accuracy_drop=max_drop, seed=seed, compare=False, output=folder / "out"
    ).result
    row: Row = {"decision": found.decision, "told_drop": found.acceptance.drop if found.acceptance else None}
    return (folder / "out" / "model.onnx" if found.decision == "deploy" else None), row


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all networks with all seeds, and store what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("treeify", "sparsify"))
    parser.add_argument("--network", action="append", required=True, metavar="NAME=MODEL,DATA")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--max-drop", type=float, default=0.01)
    parser.add_argument("--cycles", type=float, default=0.6, help="that sparsify leaves on vpu")
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    for seed in range(given.seeds):
        for text in given.network:
            name, _, files = text.partition("=")
            model, data = map(Path, files.split(","))
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                known, x, y = parted(data, folder, seed)
                path, row = deployed(given.part, model, known, folder, seed, given.max_drop, given.cycles)
                if path is not None:
                    losses = right(model, x, y).astype(float) - right(path, x, y)
                    row |= {"drop": float(losses.mean()), "interval": paired_interval(losses), "images": len(x)}
            rows.append({"network": name, "seed": seed, **row})
            print(rows[-1], flush=True)
    drops = [float(row["drop"]) for row in rows if "drop" in row]  # type: ignore[arg-type]
    kept = len(rows) - sum(drop > given.max_drop + 1e-9 for drop in drops)
    refuted = sum(row["interval"][0] > given.max_drop for row in rows if "interval" in row)  # type: ignore[index]
    networks = " ".join(f"--network {text.partition('=')[0]}=MODEL,DATA" for text in given.network)
    figures = {
        "max_drop": given.max_drop,
        "cycles": given.cycles if given.part == "sparsify" else None,
        "runs": len(rows),
        "deployed": len(drops),
        "kept": kept,
        "kept_ratio": kept / len(rows),
        "kept_interval": wilson(kept, len(rows)),
        "certainly_broken": refuted,
        "mean_drop": float(np.mean(drops)) if drops else None,
        "rows": rows,
    }
    print({key: value for key, value in figures.items() if key != "rows"})
    command = f"promise.py {given.part} {networks} --seeds {given.seeds} --max-drop {given.max_drop}"
    store(f"promise_{given.part}", figures, command)


if __name__ == "__main__":
    main()
