"""``framefit plan APP.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import Progress, show, show_json

__all__ = ["plan"]


def plan(
    app: Annotated[Path, typer.Argument(metavar="APP.toml", help="The workload.")],
    target: Annotated[
        str | None, typer.Option("--target", help="Instead of the workload's: built-in name or target.toml.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the timetable (JSON) there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew; use nothing that was measured before.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Say whether and how the models of a workload fit into every window.

    Measures the models on this machine, or asks the described target for cycles, or looks
    their layers up in the workload's latency table (table = "board.table.json") where it was
    measured on this device: then nothing is measured. Cuts what is longer than the residual
    into segments, verifies that they give the same outputs (from a table, only when they are
    run), and places them. Exit code 1:
    they do not fit; the binding constraint and a change that would help are named.

    Example: framefit plan app.toml -o timetable.json
    """
    from framefit.workflows.plan import plan as plan_workload

    progress = Progress()
    try:
        timetable = plan_workload(
            app, target=target, output=output, force=force, fresh=fresh, notify=progress
        ).timetable
    finally:
        progress.end()
    if json:
        show_json(timetable)
    else:
        from framefit.report.tables import plan_view

        show(plan_view(timetable))
    if not timetable.feasible:
        raise typer.Exit(1)
