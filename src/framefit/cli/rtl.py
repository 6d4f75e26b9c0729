"""``framefit rtl TREES``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from framefit.cli.screen import Progress, show, show_json

__all__ = ["rtl"]


class Core(StrEnum):
    """What ``--core`` takes."""

    FIXED = "fixed"
    PROGRAMMABLE = "programmable"


_CORES: dict[Core, Literal["fixed", "programmable"]] = {Core.FIXED: "fixed", Core.PROGRAMMABLE: "programmable"}


def rtl(
    trees: Annotated[
        str, typer.Argument(metavar="TREES", help="A *.trees.json, a network with trees, or their folder.")
    ],
    core: Annotated[
        Core, typer.Option("--core", help="A circuit for each tree, or one that walks the trees in its memories.")
    ] = Core.FIXED,
    group: Annotated[str | None, typer.Option("--group", help="The group of layers (default: all).")] = None,
    lut: Annotated[
        list[int] | None, typer.Option("--lut", help="Count tables of 6 or of 4 inputs (default: both).")
    ] = None,
    pipelined: Annotated[bool, typer.Option("--pipelined", help="Registers between the steps.")] = False,
    rows: Annotated[int, typer.Option("--rows", min=2, help="To simulate, and for the test bench.")] = 64,
    layer: Annotated[
        list[str] | None,
        typer.Option("--layer", metavar="INxOUT", help="That the group replaces, to count beside it; repeatable."),
    ] = None,
    count: Annotated[bool, typer.Option("--count/--no-count", help="Synthesise, which may take minutes.")] = True,
    max_seconds: Annotated[float, typer.Option("--max-seconds", min=1, help="For each circuit.")] = 300.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the rows.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder (default: NAME-rtl).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Write trees as Verilog with a test bench, check them against the model, count what they take.

    Example: framefit rtl digits.trees.json --layer 128x128 --layer 128x64 -o hardware
    """
    from framefit.trees.rtl import rtl as rtl_workflow

    progress = Progress()
    try:
        done = rtl_workflow(
            trees,
            core=_CORES[core],
            group=group,
            sizes=lut or (6, 4),
            pipelined=pipelined,
            rows=rows,
            products=[_product(text) for text in layer or ()],
            count=count,
            limit_s=max_seconds,
            seed=seed,
            output=output,
            force=force,
            notify=progress,
        )
    finally:
        progress.end()
    if json:
        show_json(done.report)
    else:
        from framefit.report.terminal import view

        show(view(done.report), f"\nresult: {done.folder}")


def _product(text: str) -> tuple[int, int]:
    inputs, _, outputs = text.partition("x")
    if not (inputs.isdecimal() and outputs.isdecimal()):
        raise typer.BadParameter(f"{text!r} is no layer; write 128x64", param_hint="--layer")
    return int(inputs), int(outputs)
