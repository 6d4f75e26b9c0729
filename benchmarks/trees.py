"""Trees in place of layers: what they keep of the accuracy, what they take in memory and tables, and how fast they run.

    python benchmarks/trees.py fit [--seeds 5] [--resnet resnet20-cifar10.onnx --cifar CIFAR] [--folder trees-bench]
    python benchmarks/trees.py time [--resnet resnet20-cifar10.onnx] [--rounds 200] [--folder trees-bench]
    python benchmarks/trees.py untrained [--seeds 3] [--folder trees-bench]
    python benchmarks/trees.py window [--windows 2000]

``fit``: on load_digits the last two hidden layers of 64-128-128-64-10 are replaced by trees that read and make ternary
values, by the defaults of ``framefit treeify``, in vectors, in votes, and in votes whose count is the output, which
then has no levels: the loss of test accuracy in points (goal: at most 1.0, mean over seeds) and the time of a fit
(goal: at most 10 s of one core). In ResNet-20 a late residual block (goal: at most 2.0 points), and an early one, which
shows where trees lose. Hybrids stay in the folder.

``untrained``: the same group of the same network of digits, not trained before: trained first, then replaced and
fine-tuned, or trained end to end with the trees in it, in about as many mini-batches; accuracy and processor time.

``time``: how fast the device launches these groups, comparing and packing included, against ONNX Runtime's float32 and
int8 of the layers that they replace, one core, batch 1 and 64 (goal: the late block three times as fast as float32 at
batch 1). Then kernels of random trees, all of depth 6, by their number. Arms take turns within a round, and ratios
are of the same round.

``window``: a network of residual blocks as priority model of an ``app.toml``, in windows shorter by a quarter of what
(random) trees in place of its blocks save: planned as it is, and planned and run with trees.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from stored import RESULTS, interval, store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from digits import RECIPE, mlp, write_data, write_network

from framefit.core.model import GraphBuilder, Model, rebatched
from framefit.core.trees import Ensemble, Forest, ensembles_in, tree_layers
from framefit.devices.device import Completion, allocate, random_inputs
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.measure import measure
from framefit.devices.ort import predictor, quantised
from framefit.devices.pieces import HostDevice
from framefit.planning.plan import Plan
from framefit.trees.exporting import lut6_of, with_trees
from framefit.workflows.plan import plan
from framefit.workflows.run import run
from framefit.workflows.search import treeify
from trees_cases import stand_in

Array = np.ndarray[Any, Any]
Row = dict[str, object]
FORMS = {"gradient": "vectors", "ada": "votes", "counted": "counted votes"}
BLOCKS = {"late": 19, "early": 1}  # number of the first layer with weights
WAYS = {"network": 30, "hybrid": 80}  # epochs: 30 of training and the fine-tuning are about as many mini-batches as 80
NORMALISED = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}  # as the network was trained
BATCHES = (1, 64)
CALIBRATION = 256  # examples that the int8 group's ranges come from


def fitted(folder: Path, what: str, model: Path | Model, data: Path, **options: Any) -> Row:
    """Replace one group of two layers, and tell what became of the network."""
    begun = folder if (folder / "treeify.json").is_file() else None  # by this benchmark: what is there already is taken
    result = treeify(model, data, layers=2, resume=begun, output=folder, **options).result
    row: Row = {"what": what, "before_top1": result.original.top1, "options": {k: str(v) for k, v in options.items()}}
    row |= {"notes": result.notes}
    if result.chosen is not None:
        (group,) = result.chosen.groups
        row |= msgspec.to_builtins(group) | {
            "after_top1": result.chosen.top1,
            "untuned_top1": result.chosen.top1_before_finetune,
            "points": 100 * (result.chosen.top1 - result.original.top1),
            "bytes": result.chosen.bytes,
            "lut6": result.chosen.lut6,
            "finetune_seconds": result.chosen.finetune_seconds,
        }
    print(
        f"  {what:28s} {row['before_top1']:.4f} -> {row.get('after_top1', float('nan')):.4f}, "
        f"fit {row.get('fit_seconds', float('nan')):.1f} s, fine-tuning {row.get('finetune_seconds', 0.0):.0f} s",
        flush=True,
    )
    return row


def fit(given: argparse.Namespace) -> None:
    """Accuracies; hybrids into the folder."""
    digits: list[Row] = []
    for seed in range(given.seeds):
        place = given.folder / f"digits-{seed}"
        place.mkdir(parents=True, exist_ok=True)
        data = write_data(place / "digits.npz", images=False)
        write_network(mlp(), data, place / "mlp.onnx", msgspec.structs.replace(RECIPE, seed=seed))
        for form in given.form or FORMS:
            what = f"digits, {FORMS[form]}, seed {seed}"
            options = {"first": 1, "method": form, "seed": seed, "max_drop": 1.0, "finetune": given.finetune}
            options |= {"method": "ada", "scope": "input"} if form == "counted" else {}
            made = fitted(place / form, what, place / "mlp.onnx", data, **options)
            digits.append(made | {"form": form, "seed": seed})
    points = {form: [row["points"] for row in digits if row["form"] == form and "points" in row] for form in FORMS}
    summary = {
        form: {"points": float(np.mean(values)), "points_interval": interval(values), "seeds": len(values)}
        for form, values in points.items()
        if values
    }
    for form, row in summary.items():
        print(f"{FORMS[form]}: {row['points']:+.2f} points {row['points_interval']}", flush=True)
    tuned = f" --finetune {given.finetune}" if given.finetune else ""
    kind = "_untuned" if given.finetune == "none" else ""
    if digits:
        forms = "".join(f" --form {form}" for form in given.form or ())
        figures = {"digits": digits, "summary": summary}
        store(f"trees_digits{kind}", figures, f"trees.py fit --seeds {given.seeds}{forms}{tuned}")
    resnet: list[Row] = []
    named = {name: getattr(given, name) for name in ("block", "trees", "examples", "epochs", "seconds")}
    limits = "".join(f" --{name} {value}" for name, value in named.items() if value is not None)
    for place, first in BLOCKS.items() if given.resnet and given.cifar else ():
        if given.block not in (None, place):
            continue
        options = NORMALISED | {"first": first, "max_drop": 1.0, "trees": given.trees, "examples": given.examples}
        options |= {"finetune": given.finetune, "finetune_epochs": given.epochs, "finetune_seconds": given.seconds}
        made = fitted(given.folder / place, f"resnet20, {place} block", given.resnet, given.cifar, **options)
        resnet.append(made | {"group": place})
        store(f"trees_resnet20{kind}", {"resnet20": resnet}, f"trees.py fit --seeds 0{tuned}{limits}")


def untrained(given: argparse.Namespace) -> None:
    """Two ways to a hybrid of a network that nothing was taught yet."""
    rows: list[Row] = []
    for seed in range(given.seeds):
        place = given.folder / f"untrained-{seed}"
        place.mkdir(parents=True, exist_ok=True)
        data = write_data(place / "digits.npz", images=False)
        for way, epochs in WAYS.items():
            options = {"first": 1, "seed": seed, "max_drop": 1.0, "train": way, "train_epochs": epochs}
            begun = time.process_time()
            made = fitted(place / way, f"digits, {way}, seed {seed}", mlp(), data, **options)
            rows.append(made | {"way": way, "seed": seed, "seconds": time.process_time() - begun})
    summary = {}
    for way in WAYS:
        top1, seconds = ([row[key] for row in rows if row["way"] == way] for key in ("after_top1", "seconds"))
        summary[way] = {
            "top1": float(np.mean(top1)),
            "top1_interval": interval(top1),
            "seconds": float(np.mean(seconds)),
        }
        print(f"{way}: {summary[way]}", flush=True)
    store("trees_untrained", {"digits": rows, "summary": summary}, f"trees.py untrained --seeds {given.seeds}")


def launches(device: HostDevice, model: Model, feed: Array | None = None) -> Callable[[], Completion]:
    """What runs a model of one input once."""
    tensors = random_inputs(model.inputs, np.random.default_rng(0))
    if feed is not None:
        tensors[model.inputs[0].name] = np.ascontiguousarray(feed)
    tensors |= {tensor.name: allocate(tensor) for tensor in model.outputs}
    binding = device.compile(model, device.target.units[0].name, model.name).bind(tensors)
    return lambda: device.submit(binding)


def compared(device: HostDevice, arms: dict[str, Model], rounds: int, feed: Array | None = None) -> Row:
    """Medians, and how much faster the arm called trees is than the others."""
    calls = [launches(device, model, feed) for model in arms.values()]
    found = measure(calls, least_rounds=rounds, most_rounds=rounds, budget_ns=1, runs=3)
    samples = dict(zip(arms, (one.samples_ns for one in found), strict=True))
    row: Row = {f"{name}_us": float(np.median(values)) / 1e3 for name, values in samples.items()}
    for name, values in samples.items():
        if name != "trees":
            ratios = values / samples["trees"]
            row |= {f"faster_than_{name}": float(np.median(ratios))}
            row |= {f"faster_than_{name}_interval": interval(ratios, np.median)}
    return row


def group_arms(network: Model, hybrid: Model, x: Array, batch: int) -> tuple[dict[str, Model], Array]:
    """The layers of a group in float32 and int8, and its trees; and what it reads of examples ``x``."""
    (place,) = tree_layers(hybrid)
    (ensemble,) = ensembles_in(hybrid).values()
    front = next(cut.position for cut in network.cuts if [t.name for t in cut.tensors] == [ensemble.input])
    end = next(cut.position for cut in network.cuts if [t.name for t in cut.tensors] == [ensemble.output])
    layers, trees = (rebatched(m, batch) for m in (network.segment(front, end - 1), hybrid.segment(place, place)))
    read = predictor(network.segment(0, front - 1))(x)
    return {"float32": layers, "int8": quantised(layers, read), "trees": trees}, read[:batch]


def show(row: Row) -> None:
    """A line of the table."""
    int8 = f", int8 {row['int8_us']:8.1f} us" if "int8_us" in row else ""
    print(
        f"  {row['what']:34s} batch {row['batch']:2d}: float32 {row['float32_us']:8.1f} us{int8}, "
        f"trees {row['trees_us']:8.1f} us: {row['faster_than_float32']:.2f} x as fast as float32",
        flush=True,
    )


def of_hybrids(device: HostDevice, given: argparse.Namespace) -> list[Row]:
    """Groups that were fitted."""
    rows: list[Row] = []
    places = [("digits, vectors", "digits-0/gradient"), ("digits, votes", "digits-0/ada")]
    for what, place in [*places, *((f"resnet20, {name} block", name) for name in BLOCKS)]:
        folder = given.folder / place
        if not (folder / "model.onnx").is_file():
            continue
        hybrid = Model.load(folder / "model.onnx")
        network = Model.load(given.folder / "digits-0" / "mlp.onnx" if "digits" in what else given.resnet)
        shape = network.inputs[0].shape or ()
        x = np.random.default_rng(0).standard_normal((CALIBRATION, *shape[1:])).astype(np.float32)
        (ensemble,) = ensembles_in(hybrid).values()
        for batch in BATCHES:
            arms, feed = group_arms(network, hybrid, x, batch)
            row: Row = {"what": what, "batch": batch, "trees": len(ensemble.members), "kind": ensemble.kind}
            row |= {"bytes": ensemble.bytes, "weight_bytes": 4 * arms["float32"].parameters, "lut6": lut6_of(ensemble)}
            rows.append(row | compared(device, arms, given.rounds, feed))
            show(rows[-1])
        whole = {"what": f"{what}: whole network", "batch": 1}
        rows.append(whole | compared(device, {"float32": network, "trees": hybrid}, given.rounds))
        show(rows[-1])
    return rows


def groups(batch: int) -> dict[str, tuple[Model, str]]:
    """What random trees stand for: two dense layers, and ResNet-20's last kind of block; and the tensor in between."""
    dense = GraphBuilder("dense")
    x = dense.op("Neg", dense.input("x", (batch, 128)))
    dense.output(dense.dense(dense.dense(x, 128, activation="Relu"), 64, activation="Relu"), "y")
    block = GraphBuilder("block")
    x = block.op("Neg", block.input("x", (batch, 64, 8, 8)))
    y = block.conv(block.conv(x, 64, activation="Relu"), 64)
    block.output(block.op("Relu", block.op("Add", x, y)), "y")
    return {"128-128-64": (dense.build(), "Relu_2"), "block 64 x 8 x 8": (block.build(), "Relu_2")}


def full(ensemble: Ensemble, random: np.random.Generator) -> Ensemble:
    """All trees of depth 6, in patches of 5 x 5 as two convolutions have them."""
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


def of_random_trees(device: HostDevice, rounds: int) -> list[Row]:
    """Speed by the number of trees."""
    rows: list[Row] = []
    for batch in BATCHES:
        for name, (network, made) in groups(batch).items():
            ends = {t.name: t for layer in network.layers for t in layer.outputs}
            for kind, trees in (("vote", 9), ("vector", 32), ("vector", 64), ("vector", 128), ("vector", 256)):
                random = np.random.default_rng(0)
                drawn = stand_in(random, ends["Neg_1"], ends[made], kernel=5, kind=kind, trees=trees)
                forest = Forest(model=name, ensembles=(full(drawn, random),))
                hybrid = with_trees(network, forest)
                arms = {"float32": network.segment(1, len(network.layers) - 2), "trees": hybrid.segment(1, 1)}
                row: Row = {"what": f"{name}, {kind} {trees}", "batch": batch, "kind": kind, "trees": trees}
                rows.append(row | compared(device, arms, rounds))
                show(rows[-1])
    return rows


def timed(given: argparse.Namespace) -> None:
    """Speeds."""
    device = HostDevice()
    with pinned(device.host_core), flushed_denormals():
        figures = {"fitted": of_hybrids(device, given), "random": of_random_trees(device, given.rounds)}
    store("trees_speed", figures, f"trees.py time --rounds {given.rounds}")


def window(given: argparse.Namespace) -> None:
    """A window that a network does not fit, and fits with trees."""
    folder = given.folder / "window"
    folder.mkdir(parents=True, exist_ok=True)
    b, random = GraphBuilder("blocks"), np.random.default_rng(0)
    x = b.conv(b.input("image", (1, 3, 32, 32)), 64, activation="Relu")
    ends = [x]
    for _ in range(10):
        y = b.conv(b.conv(x, 64, activation="Relu"), 64)
        x = b.op("Relu", b.op("Add", x, y))
        ends.append(x)
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 10), "classes")
    network = b.build()
    made = {t.name: t for layer in network.layers for t in layer.outputs}
    drawn = (stand_in(random, made[a], made[b], kernel=5, kind="vector", trees=32) for a, b in itertools.pairwise(ends))
    ensembles = tuple(msgspec.structs.replace(full(one, random), name=f"block{i}") for i, one in enumerate(drawn))
    network.save(folder / "blocks.onnx", force=True)
    with_trees(network, Forest(model="blocks", ensembles=ensembles)).save(folder / "trees.onnx", force=True)

    def planned(name: str, rate_hz: float) -> Plan:
        head = f'schema_version = 1\nrate_hz = {rate_hz}\n[[streams]]\nname = "camera"\nsource = "synthetic"\n'
        head += "[schedule]\nguard_ms = 1\n"  # nothing runs in the background that it would have to keep back
        app = folder / f"{name}.toml"
        app.write_text(f'{head}[[models]]\nname = "{name}"\npath = "{name}.onnx"\npriority = "every-window"\n')
        return plan(app)

    taken = {name: planned(name, 50).timetable.models[0].duration_ns for name in ("blocks", "trees")}
    rate_hz = round(1e9 / (0.75 * taken["blocks"] + 0.25 * taken["trees"]))
    blocks, hybrid = planned("blocks", rate_hz), planned("trees", rate_hz)
    feasible = {"blocks": blocks.timetable.feasible, "trees": hybrid.timetable.feasible}
    row: Row = {"rate_hz": rate_hz, "planned_ns": taken, "feasible": feasible}
    print(f"windows of {1e3 / rate_hz:.2f} ms; planned: {taken} ns; feasible: {feasible}")
    if hybrid.timetable.feasible:
        (metrics,) = run(hybrid, windows=given.windows, output=folder / "run", force=True).metrics.models
        row |= {"windows": given.windows, "completed": metrics.completed, "missed": metrics.missed}
        print(f"  {metrics.completed} frames of {given.windows} windows, {metrics.missed} late")
    store("trees_window", row, f"trees.py window --windows {given.windows}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fit", "untrained", "time", "window"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--form", action="append", choices=FORMS, help="of the trees for digits (default: both)")
    parser.add_argument("--trees", type=int, help="of ResNet-20's groups, at most")
    parser.add_argument("--examples", type=int, help="that these are fitted on, at most")
    parser.add_argument("--finetune", help="what learns behind, as framefit treeify takes it")
    parser.add_argument("--epochs", type=float, help="of fine-tuning ResNet-20")
    parser.add_argument("--seconds", type=float, help="of fine-tuning ResNet-20, at most")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--windows", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=Path("trees-bench"), help="of hybrids and networks")
    parser.add_argument("--block", choices=BLOCKS, help="of ResNet-20 (default: both)")
    parser.add_argument("--resnet", type=Path, help="resnet20-cifar10.onnx")
    parser.add_argument("--cifar", type=Path, help="CIFAR-10: folder of images, or .npz of uint8")
    given = parser.parse_args(arguments)
    RESULTS.mkdir(exist_ok=True)
    {"fit": fit, "untrained": untrained, "time": timed, "window": window}[given.part](given)


if __name__ == "__main__":
    main()
