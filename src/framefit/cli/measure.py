"""``framefit measure MODEL``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.run import Interrupt
from framefit.cli.screen import Progress, parse_constant, parse_shape, show, show_json

__all__ = ["measure"]


class Auxiliary(StrEnum):
    """What ``--auxiliary`` takes."""

    AUTO = "auto"
    AVGPOOL = "avgpool"
    CONV1X1 = "conv1x1"
    CONV3X3 = "conv3x3"


class Overhead(StrEnum):
    """What ``--overhead`` takes."""

    REGRESSION = "regression"
    AUXILIARY = "auxiliary"


class Fusions(StrEnum):
    """What ``--fusions`` takes."""

    DEVICE = "device"
    MEASURED = "measured"


def measure(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="An ONNX file, or a built-in model.")] = None,
    target: Annotated[str, typer.Option("--target", help="A built-in target, or a target.toml.")] = "cpu",
    unit: Annotated[str | None, typer.Option("--unit", help="Of the target (default: the first).")] = None,
    auxiliary: Annotated[Auxiliary, typer.Option("--auxiliary", help="Layer behind each one.")] = Auxiliary.AUTO,
    overhead: Annotated[Overhead, typer.Option("--overhead", help="How it is found.")] = Overhead.REGRESSION,
    fusions: Annotated[
        Fusions, typer.Option("--fusions", help="What is one layer: as the device says, or as measured.")
    ] = Fusions.DEVICE,
    audit: Annotated[
        list[str] | None,
        typer.Option(
            "--audit",
            metavar="MODEL",
            help="Network to measure whole, 3 at least; auto: built-in ones; none. Default: auto with a model.",
        ),
    ] = None,
    no_audit: Annotated[bool, typer.Option("--no-audit", help="The same as --audit none.")] = False,
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", min=1, help="Samples of every launch (default: 100, more where intervals are wide)."),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", min=0, help="End after so long on the device's clock.")
    ] = None,
    grid: Annotated[
        Path | None, typer.Option("--grid", metavar="SPEC.toml", help="Layers to measure, with a model or without.")
    ] = None,
    max_shapes: Annotated[
        int | None,
        typer.Option("--max-shapes", min=1, help="Of the grid, those that tell most about the others (default: all)."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the table (JSON) there.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the table there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="INPUT=1,3,H,W", help="Of an input with dynamic dimensions.")
    ] = None,
    constant: Annotated[
        list[str] | None, typer.Option("--constant", metavar="INPUT=NUMBER", help="An input that never changes.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights, inputs and resampling.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Measure what each layer costs on a device, into a latency table.

    Only start and end of launches are used: it works where nothing counts the layers' time.
    Ctrl-C keeps what was measured (exit code 130); --resume goes on. A few whole networks are
    measured beside the layers: what they take beyond the sum of theirs corrects the estimates.

    Example: framefit measure face.onnx --target vpu -o board.table.json

    Example: framefit measure face.onnx --audit a.onnx --audit b.onnx --audit c.onnx

    Example: framefit measure --grid convolutions.toml --max-shapes 40 -o board.table.json
    """
    if audit and no_audit:
        raise typer.BadParameter("--no-audit stands beside --audit", param_hint="--no-audit")
    from framefit.latency.verbs import measure as measure_workflow

    progress = Progress()
    with Interrupt() as interrupt:
        try:
            table = measure_workflow(
                model,
                grid=grid,
                max_shapes=max_shapes,
                target=target,
                unit=unit,
                auxiliary=auxiliary.value,
                overhead=overhead.value,
                fusions=fusions.value,
                audit="none" if no_audit else audit or None,
                repeats=repeats,
                max_seconds=max_seconds,
                seed=seed,
                shapes=dict(map(parse_shape, shape or ())),
                constants=dict(map(parse_constant, constant or ())),
                output=output,
                force=force,
                resume=resume,
                stop=interrupt,
                notify=progress,
                on_round=progress.rounds,
            )
        finally:
            progress.end()
    if json:
        show_json(table)
    else:
        from framefit.report.terminal.latency_tables import table_view

        lost = (f"not measured: {one.op} ({', '.join(one.layers)}): {one.reason}" for one in table.unmeasured)
        show(table_view(table), *lost)
    if interrupt.asked:
        raise typer.Exit(130)
