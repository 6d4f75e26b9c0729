"""``framefit treeify MODEL --data D``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import Progress, parse_numbers, show, show_json

__all__ = ["treeify"]


class Quantise(StrEnum):
    """What ``--quantise`` takes."""

    TERNARY = "ternary"
    BINARY = "binary"


class Scope(StrEnum):
    """What ``--scope`` takes."""

    INPUT = "input"
    GROUP = "group"
    ALL = "all"


class Weights(StrEnum):
    """What ``--weights`` takes."""

    FLOAT = "float"
    EIGHT = "8bit"
    FOUR = "4bit"
    TERNARY = "ternary"
    BINARY = "binary"


class Objective(StrEnum):
    """What ``--objective`` takes."""

    ACCURACY = "accuracy"
    SPEED = "speed"
    LUTS = "luts"


class Order(StrEnum):
    """What ``--search`` takes."""

    SEQUENCE = "sequence"
    RANDOM = "random"


class Method(StrEnum):
    """What ``--method`` takes."""

    GRADIENT = "gradient"
    ADA = "ada"
    AUTO = "auto"


class Loss(StrEnum):
    """What ``--loss`` takes."""

    SQUARED = "squared"
    LOG = "log"
    HINGE = "hinge"


class Finetune(StrEnum):
    """What ``--finetune`` takes."""

    ALL = "all"
    TREES = "trees"
    TAIL = "tail"
    NONE = "none"


class Train(StrEnum):
    """What ``--train`` takes."""

    NETWORK = "network"
    HYBRID = "hybrid"


class Flavour(StrEnum):
    """What ``--export`` takes."""

    CORE = "core"
    ML = "ml"


def treeify(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="An ONNX file, or module:function that gives a PyTorch module."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="An image folder, or an .npz.")] = None,
    quantise: Annotated[
        Quantise | None, typer.Option("--quantise", help="Levels of what is quantised (default: ternary).")
    ] = None,
    scope: Annotated[
        Scope | None,
        typer.Option("--scope", help="The groups' inputs, also their outputs, or every layer's (default: group)."),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", min=0.0, help="Of normalised values (default: of least error).")
    ] = None,
    weights: Annotated[
        Weights | None, typer.Option("--weights", help="Of the layers that stay, but the first and last (float).")
    ] = None,
    quantise_data: Annotated[
        bool | None, typer.Option("--quantise-data/--float-data", help="Quantise the network's input, too (no).")
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option("--max-drop", min=0.0, help="Of validation accuracy, 0 to 1 (default: 0.01).")
    ] = None,
    objective: Annotated[
        Objective | None, typer.Option("--objective", help="Among accurate groups (default: accuracy).")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Whose times count: built-in name or target.toml (default: cpu).")
    ] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="Of the target (default: the first able one).")] = None,
    search: Annotated[
        Order | None, typer.Option("--search", help="Try every first layer, or draw one (default: sequence).")
    ] = None,
    first: Annotated[
        int | None, typer.Option("--first", min=0, help="First layer with weights to replace (default: --search).")
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Layers to replace together (default: try 1, 2, ...).")
    ] = None,
    step: Annotated[int | None, typer.Option("--step", min=1, help="By which groups grow (default: 1).")] = None,
    groups: Annotated[int | None, typer.Option("--groups", min=1, help="To replace at most (default: 1).")] = None,
    method: Annotated[
        Method | None, typer.Option("--method", help="Vectors, votes, or the better (default: gradient).")
    ] = None,
    loss: Annotated[
        Loss | None, typer.Option("--loss", help="Of the trees (default: squared; votes: exponential).")
    ] = None,
    trees: Annotated[
        int | None, typer.Option("--trees", min=1, help="At most (default: 96; votes: 9 an output).")
    ] = None,
    depth: Annotated[
        str | None, typer.Option("--depth", help="auto: min(6, 4 + layers); layers: as many; or 1 to 6.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", min=8, help="To fit trees on, at most (default: 4000 or fewer).")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", min=0.0, help="Of the search; fine-tuning comes on top.")
    ] = None,
    finetune: Annotated[
        Finetune | None, typer.Option("--finetune", help="Everything, trees and layers behind, or these (all).")
    ] = None,
    finetune_epochs: Annotated[
        float | None, typer.Option("--finetune-epochs", min=0.0, help="Default: 10, or 1,000 mini-batches.")
    ] = None,
    finetune_batches: Annotated[
        int | None, typer.Option("--finetune-batches", min=0, help="Mini-batches at most.")
    ] = None,
    finetune_seconds: Annotated[
        float | None, typer.Option("--finetune-seconds", min=0.0, help="For each group, at most.")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.0, help="Learning rate of fine-tuning.")] = None,
    train_epochs: Annotated[
        float | None, typer.Option("--train-epochs", min=0.0, help="Train what is not trained yet (default: it is).")
    ] = None,
    train: Annotated[
        Train | None, typer.Option("--train", help="The network first, or the hybrid end to end (network).")
    ] = None,
    mean: Annotated[str | None, typer.Option("--mean", metavar="R,G,B", help="Of images, values 0 to 1.")] = None,
    std: Annotated[str | None, typer.Option("--std", metavar="R,G,B", help="Of images, values 0 to 1.")] = None,
    export: Annotated[
        Flavour, typer.Option("--export", help="ml: also a file with trees of ai.onnx.ml, model-ml.onnx.")
    ] = Flavour.CORE,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the search there.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder (default: MODEL-trees).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of all that is drawn (default: 0).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Replace groups of layers by decision trees, fine-tune, and show what was tried.

    Ctrl-C keeps what was found (exit code 130); --resume goes on. Exit code 1: no group is worth replacing.

    Example: framefit treeify mlp.onnx --data digits.npz --first 1 --layers 2 -o hybrid
    """
    from framefit.workflows.search import treeify as treeify_workflow

    choices = {
        "quantise": quantise, "scope": scope, "weights": weights, "objective": objective, "search": search,
        "method": method, "loss": loss, "finetune": finetune, "train": train,
    }  # fmt: skip
    progress = Progress()
    try:
        done = treeify_workflow(
            model,
            data,
            **{name: None if choice is None else choice.value for name, choice in choices.items()},
            threshold=threshold,
            quantise_data=quantise_data,
            max_drop=max_drop,
            target=target,
            unit=unit,
            first=first,
            layers=layers,
            step=step,
            groups=groups,
            trees=trees,
            depth=_depth(depth),
            examples=examples,
            max_seconds=max_seconds,
            finetune_epochs=finetune_epochs,
            finetune_batches=finetune_batches,
            finetune_seconds=finetune_seconds,
            rate=rate,
            train_epochs=train_epochs,
            mean=parse_numbers(mean, "--mean"),
            std=parse_numbers(std, "--std"),
            seed=seed,
            export=export.value,
            resume=resume,
            output=output,
            force=force,
            notify=progress,
        )
    finally:
        progress.end()
    if json:
        show_json(done.result)
    else:
        from framefit.report.terminal import view

        show(view(done.result), f"\nresult: {done.folder}")
    if done.result.chosen is None:
        raise typer.Exit(1)


def _depth(text: str | None) -> str | int | None:
    if text is None or text in ("auto", "layers"):
        return text
    if text.isdecimal() and 1 <= int(text) <= 6:
        return int(text)
    raise typer.BadParameter(f"{text!r} is no depth; write auto, layers, or 1 to 6", param_hint="--depth")
