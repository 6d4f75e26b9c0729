"""Sparsity on CIFAR-10: the bars, solvers at equal budget, the blind arm, other targets, channels, speed.

Claims (docs/benchmarks.md says which of them hold), for the target "vpu" as it is built in:

- bars: 60, 50 and 40 % of the dense cycles within 0.5, 1.0 and 2.0 points of the dense test accuracy after at most
  5 epochs of fine-tuning, the mean of the seeds; at 50 % before any fine-tuning within 3 points;
- solvers: at equal numbers of evaluations the best solver is above DDPG;
- blind: at equal accuracy (before fine-tuning) the exact allocation needs at least 10 % fewer cycles than the same
  allocation over multiply-accumulates, or over weights;
- targets: other targets get other assignments; where activations are skipped, too, early layers lose more weights;
- blocks: with half of the latency on this machine at most 1.0 point is lost;
- bytes: zeros in int8, beside ONNX Runtime's int8 of the dense network in turn, on one core: 1.5 times as fast with at
  most 1.5 points lost to the network in float32;
- channel: the latency in ONNX Runtime falls by at least 0.8 x the fall that is modelled;
- others: more accurate at half of the cycles than the smallest weights of all layers (zeros anywhere), and than
  Torch-Pruning (channels; Fang et al., 2023, "DepGraph", which needs pip install torch-pruning), fine-tuned alike;
- speed: a reward evaluation of 2,000 images takes at most 3 s, database and search at most 15 minutes.

    python benchmarks/sparsity.py --data DIR --model resnet20.onnx
        [--part bars solvers blind targets channel others blocks bytes speed] [--seeds 3] [--ratios 0.6 0.5 0.4]
        [--evaluations 100] [--work DIR]

Data: an image folder with train/ and test/, or an .npz of uint8 images; normalised as the model's README says, or by
the training part's own mean where the model was trained so (--own-scaling). Searches are kept in --work and gone on
with; results are stored row by row.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from kernels import launcher, timed, times_faster
from sparsity_sums import Row, summed
from stored import interval, store

import framefit
from framefit.core.executor import Here
from framefit.core.files import read_record, write_record
from framefit.core.model import Listing, folded, with_weights
from framefit.core.model.builtin import load_model
from framefit.core.sparsity import Pattern, SparsifySettings, SparsityResult
from framefit.core.target import target_file
from framefit.devices.host import default_core, pinned
from framefit.devices.ort import predictor, quantised
from framefit.sparsity.allocation import allocate, blind_budget, bound
from framefit.sparsity.database import Database
from framefit.sparsity.deploy import measured
from framefit.sparsity.problem import Problem
from framefit.sparsity.search import evaluations, make_problem, own_cycles, quick, sparse_network, with_statistics
from framefit.sparsity.solver import Limits, search
from framefit.sparsity.solvers import ONCE, make_solver
from framefit.sparsity.subject import Subject, make_database, open_subject
from framefit.training.campaign import Ledger
from framefit.training.data import Dataset, load_data
from framefit.training.evaluate import evaluate
from framefit.training.extra import torch
from framefit.training.fine_tune import fine_tune_or_keep, recipe_for
from framefit.training.network import Network, state, to_torch

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of resnet20-cifar10.onnx
SOLVERS = (*ONCE, "random", "spdy", "swaps", "auto", "ddpg", "ddpg-warm")
BLIND_RATIOS = (0.7, 0.6, 0.5, 0.45, 0.4, 0.36, 0.33, 0.31, 0.3, 0.29)
TARGETS = {"vpu": 0.5, "weights-only": 0.5, "meteor-lake": 0.9}  # part of the cycles; the last one waits for memory
CHANNEL_TARGETS = {"vpu": 0.5, "cpu": 0.7}
Arm = Literal["aware", "macs", "weights"]
ARMS: tuple[Arm, ...] = ("aware", "macs", "weights")
ROUNDS = 5  # of what is timed
HALVINGS = 12  # of the interval of what another tool removes
LAUNCHES = 25  # rounds of launches in turn
LONG = (
    "curve",
    "layers",
    "weight_sparsity_ratio",
    "activation_sparsity_ratio",
    "dense_cycles",
    "cycles",
)  # not printed


def data_of(options: argparse.Namespace, seed: int) -> Dataset:
    """The data set, split with the seed."""
    if options.own_scaling:
        return load_data(options.data, seed=seed)
    return load_data(options.data, seed=seed, mean=MEAN, std=STD)


def settings_of(options: argparse.Namespace, seed: int, **changed: Any) -> SparsifySettings:
    """Of a search."""
    given = {"target": "vpu", "images": options.images, "episodes": options.evaluations} | changed
    return SparsifySettings(model=str(options.model), data="", seed=seed, **given)


class Opened(NamedTuple):
    """What a seed works on."""

    subject: Subject
    database: Database
    problem: Problem
    ledger: Ledger


def opened(options: argparse.Namespace, seed: int, **changed: Any) -> Opened:
    """Subject, database and problem of a seed; the database is kept, for it is the same for every target."""
    settings, ledger = settings_of(options, seed, **changed), Ledger()
    subject = open_subject(settings, ledger, None, data_of(options, seed))
    database = make_database(subject, database_of(options, seed, settings), ledger, seed, Here(), show)
    return Opened(subject, database, make_problem(subject, database, ledger), ledger)


def database_of(options: argparse.Namespace, seed: int, settings: SparsifySettings) -> Path:
    """Where a seed's database is kept."""
    pattern = "" if settings.pattern is None else f"{settings.pattern}-"
    pattern += "int8-" if settings.int8 else ""
    return Path(options.work) / f"database-{pattern}{seed}.npz"


def show(message: str) -> None:
    """What is being done, on a terminal."""
    if sys.stderr.isatty():
        print(message, file=sys.stderr)


def made(options: argparse.Namespace, name: str, seed: int, **changed: Any) -> SparsityResult:
    """The whole command in a folder; one that was interrupted goes on, and a database that is known is taken."""
    folder = Path(options.work) / name
    settings = settings_of(options, seed, finetune_epochs=options.epochs, **changed)
    stored, kept_database = folder / "result.json", database_of(options, seed, settings)
    if not stored.exists() or read_record(stored, SparsityResult).interrupted:
        if not (folder / "sparsify.json").exists():
            write_record(folder / "sparsify.json", settings)
            if kept_database.exists():
                shutil.copy(kept_database, folder / "database.npz")
        found = framefit.sparsify(
            str(options.model), data_of(options, seed), compare=False, resume=folder, notify=show
        ).result
        if found.interrupted:
            raise KeyboardInterrupt
        if not kept_database.exists():
            shutil.copy(folder / "database.npz", kept_database)
    return read_record(stored, SparsityResult)


def bars(options: argparse.Namespace) -> Iterator[Row]:
    """The whole command, for each seed and ratio: the published columns, and what it took."""
    for seed, ratio in itertools.product(range(options.seeds), options.ratios):
        result = made(options, f"bars-{ratio}-{seed}", seed, cycles=ratio)
        row = result.configurations[result.chosen or 0]
        yield {
            "ratio": ratio,
            "seed": seed,
            "solver": row.solver,
            "dense_top1": result.dense.top1,
            "dense_top5": result.dense.top5,
            "top1": row.top1,
            "top5": row.top5,
            "parameters": row.parameters,
            "zeros": row.zeros,
            "sparsity_ratio": row.sparsity_ratio,
            "cycles": row.cycles,
            "cycles_ratio": row.cycles_ratio,
            "difference_points": row.difference_top1,
            "untuned_difference_points": untuned_points(result),
            "epochs": row.finetune_epochs,
            "decision": result.decision,
            "seconds": result.ledger.seconds,
            "evaluations": result.ledger.evaluations,
            "images_forwarded": result.ledger.images_forwarded,
        }


def untuned_points(result: SparsityResult) -> float:
    """Top-1 of the chosen model before it was fine-tuned, to the dense model's."""
    return 100 * (result.configurations[result.chosen or 0].top1_before_finetune - result.dense.top1)


def solvers(options: argparse.Namespace) -> Iterator[Row]:
    """Every solver with as many evaluations, at half of the cycles; best accuracy on validation and test data."""
    for seed in range(options.seeds):
        posed = opened(options, seed)
        for name, hardware in [*((name, True) for name in SOLVERS), ("auto", False)]:
            make = functools.partial(one_solver, options, posed, name, seed, hardware=hardware)
            yield kept(options, f"solver-{name}-{'aware' if hardware else 'blind'}-{seed}", make)


def one_solver(options: argparse.Namespace, posed: Opened, name: str, seed: int, *, hardware: bool) -> Row:
    """One search; its best is tested."""
    subject, database, problem = posed.subject, posed.database, posed.problem
    target = int(0.5 * problem.dense_cycles)
    ledger = Ledger()
    own = make_problem(subject, database, ledger)
    faced, room = (own, target) if hardware else (own.blind(), blind_budget(own, target))
    weights = [subject.written.arrays[layer.weight] for layer in subject.layers]
    solver = make_solver(name, faced, room, seed, evaluations=options.evaluations, weights=weights)
    each = functools.partial(evaluations, own.evaluate, Here(), ledger)
    limits = Limits(options.evaluations)
    found = search(faced, solver, limits, ledger, cycles=own.total, most_cycles=target, evaluate=each)
    if found is None or found.interrupted:
        raise KeyboardInterrupt
    spent = ledger.spent()
    network = sparse_network(subject, database, found.assignment, ledger)
    with quick():  # solvers are compared with each other
        test_top1 = evaluate(network, subject.data.test).top1
    return {
        "solver": name if hardware else f"{name}, blind",
        "seed": seed,
        "validation_top1": found.accuracy,
        "test_top1": test_top1,
        "cycles_ratio": own_cycles(subject, network, ledger) / problem.dense_cycles,
        "additive_error": problem.error(found.assignment),
        "additive_bound": bound(problem, target),
        "evaluations": found.evaluations,
        "images_forwarded": spent.images_forwarded,
        "seconds": spent.seconds,
        "seconds_an_evaluation": spent.seconds / max(found.evaluations, 1),
        "curve": [[point.evaluations, point.seconds, point.top1] for point in found.curve],
    }


def kept(options: argparse.Namespace, name: str, make: Callable[[], Row]) -> Row:
    """What was made before under this name, else what is made now."""
    path = Path(options.work) / f"{name}.json"
    if not path.exists():
        path.write_bytes(msgspec.json.encode(make(), enc_hook=float))
    found: Row = msgspec.json.decode(path.read_bytes())
    return found


def blind(options: argparse.Namespace) -> Iterator[Row]:
    """Exact allocations over cycles, multiply-accumulates and weights: test accuracy at parts of the cycles."""
    for seed in range(options.seeds):
        posed = opened(options, seed)
        for ratio, arm in itertools.product(BLIND_RATIOS, ARMS):
            make = functools.partial(one_allocation, posed, ratio, arm, seed)
            yield kept(options, f"blind-{arm}-{ratio}-{seed}", make)


def one_allocation(posed: Opened, ratio: float, arm: Arm, seed: int) -> Row:
    """The exact allocation of an arm, tested without fine-tuning."""
    problem, target = posed.problem, int(ratio * posed.problem.dense_cycles)
    faced = problem if arm == "aware" else problem.blind(arm)
    room = target if arm == "aware" else blind_budget(problem, target, faced)
    network = sparse_network(posed.subject, posed.database, allocate(faced, room), posed.ledger)
    top1 = evaluate(network, posed.subject.data.test).top1
    own = own_cycles(posed.subject, network, posed.ledger) / problem.dense_cycles
    return {"seed": seed, "arm": arm, "ratio": ratio, "cycles_ratio": own, "test_top1": top1}


def targets(options: argparse.Namespace) -> Iterator[Row]:
    """The exact allocation for several targets over the same database: zeros of each layer, and test accuracy."""
    skipping = target_file("vpu").read_text()
    weights_only = Path(options.work) / "weights-only.toml"  # the same device, but it multiplies zero activations
    weights_only.write_text(skipping.replace('skips = "dual"', 'skips = "weights"').replace('"vpu"', '"weights-only"'))
    for seed, (target, ratio) in itertools.product(range(options.seeds), TARGETS.items()):
        posed = opened(options, seed, target=str(weights_only) if target == "weights-only" else target)
        make = functools.partial(one_target, posed, target, ratio, seed)
        yield kept(options, f"target-{target}-{seed}", make)


def one_target(posed: Opened, target: str, ratio: float, seed: int) -> Row:
    """Zeros in weights and activations of each layer, and what the layers cost."""
    subject, problem = posed.subject, posed.problem
    assignment = allocate(problem, int(ratio * problem.dense_cycles))
    network = sparse_network(subject, posed.database, assignment, posed.ledger)
    every, names = np.arange(len(problem.layers)), [layer.name for layer in problem.layers]
    return {
        "target": target,
        "ratio": ratio,
        "seed": seed,
        "cycles_ratio": own_cycles(subject, network, posed.ledger) / problem.dense_cycles,
        "test_top1": evaluate(network, subject.data.test).top1,
        "layers": names,
        "weight_sparsity_ratio": problem.sparsities(assignment).tolist(),
        "activation_sparsity_ratio": [subject.zeros[name] for name in names],
        "dense_cycles": problem.cycles[:, 0].tolist(),
        "cycles": problem.cycles[every, assignment].tolist(),
    }


def channel(options: argparse.Namespace) -> Iterator[Row]:
    """Channels out of the file: what is modelled, and what ONNX Runtime measures in turn with the dense model.

    For the target "vpu", and for "cpu", whose stand-in knows that ONNX Runtime computes channels in blocks.
    """
    for seed, (target, ratio) in itertools.product(range(options.seeds), CHANNEL_TARGETS.items()):
        yield launched(options, f"channel-{target}-{seed}", seed, target=target, cycles=ratio, pattern="channel")


def others(options: argparse.Namespace) -> Iterator[Row]:
    """Other ways to choose what goes, at the same cycles, with the same data, rate and epochs of fine-tuning."""
    ways: dict[Pattern, Callable[[Subject, float], dict[str, Any]]] = {
        "unstructured": smallest_weights,
        "channel": torch_pruned,
    }
    for ratio, seed, (pattern, way) in itertools.product(options.ratios, range(options.seeds), ways.items()):
        name = f"others-{pattern}-{ratio}-{seed}"
        ours = made(options, name, seed, cycles=ratio, pattern=pattern)
        row = ours.configurations[ours.chosen or 0]
        theirs = kept(options, name, functools.partial(one_other, options, pattern, way, ratio, seed))
        yield theirs | {
            "our_cycles_ratio": row.cycles_ratio,
            "our_difference_points": row.difference_top1,
            "our_untuned_difference_points": untuned_points(ours),
        }


def one_other(
    options: argparse.Namespace,
    pattern: Pattern,
    way: Callable[[Subject, float], dict[str, Any]],
    ratio: float,
    seed: int,
) -> Row:
    """As much as the cycles ask for, then fine-tuned."""
    settings, ledger, data = settings_of(options, seed, pattern=pattern), Ledger(), data_of(options, seed)
    subject = open_subject(settings, ledger, None, data)
    dense = subject.prices.total(subject.model, subject.zeros)

    def pruned(part: float) -> Network:
        return with_statistics(subject, to_torch(with_weights(subject.model, way(subject, part))), ledger)

    least, most = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        enough = own_cycles(subject, pruned(middle), ledger) <= ratio * dense
        least, most = (least, middle) if enough else (middle, most)
    network = pruned(most)
    dense_top1, untuned = (evaluate(each, data.test).top1 for each in (subject.network(), network))
    examples = data.train.joined(data.validation)  # as ours, for the network was trained on both
    recipe = recipe_for(examples, epochs=options.epochs, least_epochs=1, rate=settings.rate, seed=seed)
    recipe = msgspec.structs.replace(recipe, decay=settings.decay, distill_ratio=settings.distill_ratio)
    kept_weights = {layer.weight: state(network)[layer.weight] != 0 for layer in subject.layers}
    checkpoint = Path(options.work) / f"others-{pattern}-{ratio}-{seed}.npz"
    teacher = subject.network() if recipe.distill_ratio else None
    done = fine_tune_or_keep(
        network, examples, recipe, show, checkpoint=checkpoint, masks=kept_weights, teacher=teacher
    )
    return {
        "pattern": pattern,
        "way": way.__name__,
        "ratio": ratio,
        "seed": seed,
        "cycles_ratio": own_cycles(subject, network, ledger) / dense,
        "difference_points": 100 * (evaluate(network, data.test).top1 - dense_top1),
        "untuned_difference_points": 100 * (untuned - dense_top1),
        "epochs": 0.0 if done.done is None else done.done.epochs,
    }


def smallest_weights(subject: Subject, part: float) -> dict[str, Any]:
    """Zeros for this part of all weights, wherever they are smallest."""
    arrays = {layer.weight: subject.written.arrays[layer.weight] for layer in subject.layers}
    limit = np.quantile(np.concatenate([np.abs(array).ravel() for array in arrays.values()]), part)
    return {name: np.where(np.abs(array) <= limit, np.float32(0), array) for name, array in arrays.items()}


def torch_pruned(subject: Subject, part: float) -> dict[str, Any]:
    """What Torch-Pruning leaves: groups of the smallest norms over all layers, none of the classes."""
    pruning: Any = importlib.import_module("torch_pruning")
    plain = Plain(subject.written)
    image = torch.zeros(1, *subject.inputs.shape[1:])
    pruner = pruning.pruner.MagnitudePruner(
        plain,
        image,
        importance=pruning.importance.GroupMagnitudeImportance(p=2),
        global_pruning=True,
        pruning_ratio=min(part, 0.99),
        ignored_layers=[each for each in plain.modules() if isinstance(each, torch.nn.Linear)],
    )
    pruner.step()
    return plain.arrays()


class Plain(torch.nn.Module):  # type: ignore[misc]
    """A network of PyTorch's own modules, which other tools read, with the weights of a model of these operators."""

    def __init__(self, written: Listing) -> None:
        super().__init__()
        self.written, self.parts = written, torch.nn.ModuleDict()
        self.names: dict[str, tuple[Any, str]] = {}  # initializer -> module, its attribute
        for number, node in enumerate(written.nodes):
            names = [operand.name for operand in node.inputs[1:] if operand is not None]
            arrays = [torch.from_numpy(written.arrays[name]) for name in names if name in written.arrays]
            attributes = ["weight", "bias", "running_mean", "running_var"]
            if node.op == "Conv":
                outputs, inputs, *kernel = arrays[0].shape
                stride, pads = node.attributes.get("strides", (1, 1)), node.attributes.get("pads", (0, 0, 0, 0))
                made = torch.nn.Conv2d(inputs, outputs, tuple(kernel), stride, pads[:2], bias=len(arrays) > 1)  # type: ignore[index]
            elif node.op == "BatchNormalization":
                made = torch.nn.BatchNorm2d(len(arrays[0]))
            elif node.op == "Gemm":
                made = torch.nn.Linear(*reversed(arrays[0].shape))
            else:
                continue
            for name, attribute, array in zip(names, attributes, arrays, strict=False):
                getattr(made, attribute).data.copy_(array)
                self.names[name] = made, attribute
            self.parts[str(number)] = made
        self.eval()

    def arrays(self) -> dict[str, Any]:
        """What is left of each initializer."""
        return {name: getattr(made, attribute).detach().numpy() for name, (made, attribute) in self.names.items()}

    def forward(self, x: Any) -> Any:
        """The classes."""
        values = {next(o.name for o in self.written.nodes[0].inputs if o is not None): x}
        for number, node in enumerate(self.written.nodes):
            given = [values[operand.name] for operand in node.inputs if operand is not None and operand.name in values]
            y = self.parts[str(number)](*given) if str(number) in self.parts else PLAIN[node.op](*given)
            values[node.outputs[0].name] = y
        return y


PLAIN: dict[str, Callable[..., Any]] = {
    "Relu": torch.relu,
    "Add": torch.add,
    "GlobalAveragePool": functools.partial(torch.mean, dim=(2, 3), keepdim=True),
    "Flatten": functools.partial(torch.flatten, start_dim=1),
}


def blocks(options: argparse.Namespace) -> Iterator[Row]:
    """Zeros in blocks that this machine's kernels skip: latency beside ONNX Runtime's of the dense network."""
    for ratio, seed in itertools.product(options.ratios, range(options.seeds)):
        yield launched(options, f"blocks-{ratio}-{seed}", seed, target="cpu", cycles=ratio, pattern="block")


def in_bytes(options: argparse.Namespace) -> Iterator[Row]:
    """Zeros that this machine's kernels for bytes skip: latency beside ONNX Runtime's, accuracy of the written file."""
    dense = folded(load_model(options.model, None, None))
    for ratio, seed in itertools.product(options.ratios, range(options.seeds)):
        name = f"bytes-{ratio}-{seed}"
        result = made(options, name, seed, target="cpu", cycles=ratio, pattern="block", int8=True)
        row, data = result.configurations[result.chosen or 0], data_of(options, seed)
        in_int8 = quantised(dense, data.calibration.sample(512, seed).inputs())
        with TemporaryDirectory() as kept, pinned(default_core()):
            small = load_model(Path(options.work) / name / "model.onnx", None, None)
            runs = [(small, True), (in_int8, False), (dense, False)]
            took = timed([launcher(model, Path(kept), kernels=kernels)[0] for model, kernels in runs], LAUNCHES)
        yield {
            "ratio": ratio,
            "seed": seed,
            "difference_points": row.difference_top1,
            "untuned_difference_points": untuned_points(result),
            "dense_int8_difference_points": 100 * (evaluate(predictor(in_int8), data.test).top1 - result.dense.top1),
            "epochs": row.finetune_epochs,
            "sparsity_ratio": row.sparsity_ratio,
            "cycles_ratio": row.cycles_ratio,
            "microseconds": [float(one) for one in np.median(took, axis=0) * 1e6],
            "times_as_fast": times_faster(took, 1, 0),
            "times_as_fast_as_float32": times_faster(took, 2, 0),
        }


def launched(options: argparse.Namespace, name: str, seed: int, **settings: Any) -> Row:
    """A search, and its model launched on this machine in turn with the dense one."""
    result = made(options, name, seed, **settings)
    row = result.configurations[result.chosen or 0]
    small, dense = (load_model(one, None, None) for one in (Path(options.work) / name / "model.onnx", options.model))
    taken = [measured(small, dense) for _ in range(ROUNDS)]
    ratios = [sparse_ns / dense_ns for sparse_ns, dense_ns in taken]
    return {
        "target": settings["target"],
        "ratio": settings["cycles"],
        "seed": seed,
        "difference_points": row.difference_top1,
        "untuned_difference_points": untuned_points(result),
        "epochs": row.finetune_epochs,
        "parameters": row.parameters,
        "sparsity_ratio": row.sparsity_ratio,
        "cycles_ratio": row.cycles_ratio,
        "macs_ratio": small.macs / dense.macs,
        "latency_ns": [statistics.median(one) for one in zip(*taken, strict=True)],
        "latency_ratio": statistics.median(ratios),
        "latency_ratio_interval": interval(ratios, np.median),
        "times_as_fast": 1 / statistics.median(ratios),
        "fall_measured_to_modelled": (1 - statistics.median(ratios)) / (1 - row.cycles_ratio),
    }


def speed(options: argparse.Namespace) -> Iterator[Row]:
    """Seconds of building the database, and of a reward evaluation of 2,000 images."""
    settings, ledger = settings_of(options, 0, images=2000), Ledger()
    subject = open_subject(settings, ledger, None, data_of(options, 0))
    fresh = Path(options.work) / "database-timed.npz"
    fresh.unlink(missing_ok=True)
    started = time.perf_counter()
    database = make_database(subject, fresh, ledger, 0, Here(), show)
    built_s = time.perf_counter() - started
    problem = make_problem(subject, database, ledger)
    assignment = allocate(problem, problem.dense_cycles // 2)
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        problem.evaluate(assignment)
        taken.append(time.perf_counter() - started)
    yield {
        "database_seconds": built_s,
        "evaluation_seconds": statistics.median(taken),
        "evaluation_seconds_interval": interval(taken, np.median),
        "threads": torch.get_num_threads(),
    }


PARTS = {
    "bars": bars,
    "solvers": solvers,
    "blind": blind,
    "targets": targets,
    "channel": channel,
    "others": others,
    "blocks": blocks,
    "bytes": in_bytes,
    "speed": speed,
}


def main() -> None:
    """Run the parts that are asked for, and store their rows as they come."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--own-scaling", action="store_true", help="images are normalised by the training part's mean")
    parser.add_argument("--part", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ratios", type=float, nargs="*", default=[0.5, 0.4, 0.6])
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--images", type=int, default=1000, help="in each evaluation")
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--work", default="sparsity-work")
    parser.add_argument("--name", default="sparsity", help="of the results: NAME_PART.json")
    options = parser.parse_args()
    Path(options.work).mkdir(parents=True, exist_ok=True)
    scaling = " --own-scaling" if options.own_scaling else ""
    settings = f"--seeds {options.seeds} --evaluations {options.evaluations} --images {options.images}{scaling}"
    command = f"sparsity.py --data CIFAR10 --model {options.model.name} {settings} --epochs {options.epochs:g}"
    if options.ratios != parser.get_default("ratios"):
        command += f" --ratios {' '.join(map(str, options.ratios))} --name {options.name}"
    for part in options.part:
        rows: list[Row] = []
        for row in PARTS[part](options):
            rows.append(row)
            print({key: value for key, value in row.items() if key not in LONG}, flush=True)
            store(f"{options.name}_{part}", {"rows": rows, **summed(part, rows)}, f"{command} --part {part}")
        print(summed(part, rows), flush=True)


if __name__ == "__main__":
    main()
