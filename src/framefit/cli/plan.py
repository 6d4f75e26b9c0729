"""``framefit plan APP.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framefit.cli.screen import Progress, show, show_json
from framefit.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from framefit.core.timetable import Timetable
    from framefit.core.workload import Workload

__all__ = ["plan"]


def plan(
    app: Annotated[Path, typer.Argument(metavar="APP.toml", help="The workload.")],
    target: Annotated[
        str | None, typer.Option("--target", help="Instead of the workload's: built-in name or target.toml.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the timetable (JSON) there.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every window as a picture, and how each model came to its part.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write the plan as a page (HTML) there, for any browser.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite them.")] = False,
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

    Example: framefit plan app.toml --explain --page plan.html
    """
    if json and explain:
        raise typer.BadParameter("--json prints only the plan; --page goes with both", param_hint="--explain")
    if page is not None and page.exists() and not force:  # before measuring
        raise InputError("already exists", where=page, remedy="choose another path, or overwrite it with --force")
    from framefit.workflows.plan import plan as plan_workload

    progress = Progress()
    try:
        planned = plan_workload(app, target=target, output=output, force=force, fresh=fresh, notify=progress)
    finally:
        progress.end()
    timetable = planned.timetable
    if page is not None:
        from framefit.report.sections.plan import write_plan_page

        write_plan_page(page, timetable, planned.workload, title=app.name, force=force)
    if json:
        show_json(timetable)
    else:
        show(_view(timetable, planned.workload, explain=explain))
        if page is not None:
            show("", f"page: {page} (open it in a browser)")
    if not timetable.feasible:
        raise typer.Exit(1)


def _view(timetable: Timetable, workload: Workload, *, explain: bool) -> RenderableType:
    if explain:
        from framefit.report.terminal.explained_view import explained_view

        return explained_view(timetable, workload)
    from framefit.report.terminal.plan_tables import plan_view

    return plan_view(timetable)
