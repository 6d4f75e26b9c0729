"""``framefit treeify MODEL``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from framefit.cli.screen import Progress, show, show_json

__all__ = ["treeify"]


class Method(StrEnum):
    """What ``--method`` takes."""

    GRADIENT = "gradient"
    ADA = "ada"


class Depth(StrEnum):
    """What ``--depth`` takes."""

    BOUNDED = "bounded"
    LAYERS = "layers"


_METHODS: dict[Method, Literal["gradient", "ada"]] = {Method.GRADIENT: "gradient", Method.ADA: "ada"}
_DEPTHS: dict[Depth, Literal["bounded", "layers"]] = {Depth.BOUNDED: "bounded", Depth.LAYERS: "layers"}


def treeify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A classifier: an ONNX file, or a built-in model.")],
    data: Annotated[str, typer.Option("--data", help="A folder of images, or an .npz.")],
    first: Annotated[
        int | None, typer.Option("--first", min=0, help="First layer with weights to replace (default: try each).")
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Layers to replace together (default: try 1, 2, ...).")
    ] = None,
    step: Annotated[int, typer.Option("--step", min=1, help="By which groups grow.")] = 1,
    groups: Annotated[int, typer.Option("--groups", min=1, help="To replace at most.")] = 1,
    method: Annotated[Method, typer.Option("--method", help="Vectors, or votes.")] = Method.GRADIENT,
    trees: Annotated[
        int | None, typer.Option("--trees", min=1, help="At most (default: 256; votes: 9 an output).")
    ] = None,
    depth: Annotated[Depth, typer.Option("--depth", help="min(6, 4 + layers), or as many as layers.")] = Depth.BOUNDED,
    levels: Annotated[int, typer.Option("--levels", min=0, max=3, help="Of outputs: 2, 3, or 0 (not quantised).")] = 3,
    threshold: Annotated[
        float | None, typer.Option("--threshold", min=0.0, help="Of normalised values (default: of least error).")
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=8, help="To fit trees on, at most.")] = 4000,
    epochs: Annotated[
        float, typer.Option("--finetune-epochs", min=0.0, help="Of the layers behind the last group.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder (default: NAME-trees).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Replace groups of layers by decision trees.

    Example: framefit treeify mlp.onnx --data digits.npz --first 1 --layers 2 -o hybrid
    """
    from framefit.workflows.treeify import treeify as treeify_workflow

    progress = Progress()
    try:
        done = treeify_workflow(
            model,
            data,
            first=first,
            layers=layers,
            step=step,
            groups=groups,
            method=_METHODS[method],
            trees=trees,
            depth=_DEPTHS[depth],
            levels=levels,
            threshold=threshold,
            examples=examples,
            epochs=epochs,
            seed=seed,
            output=output,
            force=force,
            notify=progress,
        )
    finally:
        progress.end()
    if json:
        show_json(done.result)
    else:
        from framefit.report.treeify_view import treeify_view

        show(treeify_view(done.result), f"\nresult: {done.folder}")
