"""``framefit estimate MODEL --table FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import parse_constant, parse_shape, show, show_json

__all__ = ["estimate"]


def estimate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file, or a built-in model.")],
    table: Annotated[Path, typer.Option("--table", help="The device's latency table.")],
    target: Annotated[
        str | None, typer.Option("--target", help="The device: a built-in target, or a target.toml (default: as told).")
    ] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="Of the table (default: its first).")] = None,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Interpolate or model what the table lacks, instead of refusing.")
    ] = False,
    any_fingerprint: Annotated[
        bool, typer.Option("--any-fingerprint", help="Use a table that was measured on something else.")
    ] = False,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="INPUT=1,3,H,W", help="Of an input with dynamic dimensions.")
    ] = None,
    constant: Annotated[
        list[str] | None, typer.Option("--constant", metavar="INPUT=NUMBER", help="An input that never changes.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the estimate (JSON) there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Say what a model takes on a device, from the device's latency table.

    Nothing is run. A layer that the table does not have is an error, unless --fallback is given.

    Example: framefit estimate face.onnx --table board.table.json
    """
    from framefit.latency.verbs import estimate as estimate_workflow

    found = estimate_workflow(
        model,
        table,
        target=target,
        unit=unit,
        fallback=fallback,
        any_fingerprint=any_fingerprint,
        shapes=dict(map(parse_shape, shape or ())),
        constants=dict(map(parse_constant, constant or ())),
        output=output,
        force=force,
    )
    if json:
        show_json(found)
    else:
        from framefit.report.terminal.latency_tables import estimate_view

        show(estimate_view(found))
