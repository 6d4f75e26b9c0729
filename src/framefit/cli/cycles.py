"""``framefit cycles MODEL --target T``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import parse_constant, parse_shape, show, show_json

__all__ = ["cycles"]


def cycles(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file, or a built-in model.")],
    target: Annotated[str, typer.Option("--target", help="A built-in target, or a target.toml.")],
    unit: Annotated[str | None, typer.Option("--unit", help="Of the target (default: the first able one).")] = None,
    fuse: Annotated[
        bool, typer.Option("--fuse/--no-fuse", help="Apply normalisation and activation on the way out of a product.")
    ] = True,
    weight_sparsity: Annotated[
        float | None,
        typer.Option("--weight-sparsity", help="Part of the weights that is zero (default: as in the model)."),
    ] = None,
    activation_sparsity: Annotated[
        float, typer.Option("--activation-sparsity", help="Part of each layer's input that is zero.")
    ] = 0.0,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="INPUT=1,3,H,W", help="Of an input with dynamic dimensions.")
    ] = None,
    constant: Annotated[
        list[str] | None, typer.Option("--constant", metavar="INPUT=NUMBER", help="An input that never changes.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the report (JSON) there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Say what each layer of a model costs on a described target, and what binds it.

    Nothing is run: cycles come from the target's description.

    Example: framefit cycles face.onnx --target vpu --weight-sparsity 0.5
    """
    from framefit.devices.npu.costs import cycles as cycles_workflow

    report = cycles_workflow(
        model,
        target,
        unit=unit,
        fuse=fuse,
        weight_sparsity=weight_sparsity,
        activation_sparsity=activation_sparsity,
        shapes=dict(map(parse_shape, shape or ())),
        constants=dict(map(parse_constant, constant or ())),
        output=output,
        force=force,
    )
    if json:
        show_json(report)
    else:
        from framefit.report.terminal.cycle_table import cycles_view

        show(cycles_view(report))
