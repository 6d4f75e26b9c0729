"""``framefit run APP.toml``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framefit.cli.screen import Interrupt, Progress, show, show_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from framefit.workflows.record import RunResult

__all__ = ["play", "run", "show_run"]


_SHOWN_WINDOWS = 8
_DRAWN_FROM = 32  # windows: what began in those shown may end later


def run(
    app: Annotated[Path, typer.Argument(metavar="APP.toml", help="The workload.")],
    target: Annotated[
        str | None, typer.Option("--target", help="Instead of the workload's: built-in name or target.toml.")
    ] = None,
    windows: Annotated[int | None, typer.Option("--windows", min=1, help="How many windows to run.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="How long to run (default: 10).")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Run folder (default: runs/APP-N).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite run folder and sinks.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew before planning.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of synthetic frames.")] = 0,
    update_table: Annotated[
        Path | None, typer.Option("--update-table", help="Write what layers took into this latency table.")
    ] = None,
    inject: Annotated[
        list[str] | None, typer.Option("--inject", help="What is to go wrong, such as raise:depth@2s (repeatable).")
    ] = None,
    max_miss_ratio: Annotated[
        float, typer.Option("--max-miss-ratio", min=0.0, max=1.0, help="Exit code 1 above it.")
    ] = 0.01,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Run the models of a workload on the beat, and say what happened.

    Plans first. Ctrl-C ends the run and saves it (exit code 130). Exit code 1 where a model ended
    degraded, too.

    Example: framefit run app.toml --seconds 30 -o runs/first
    """
    from framefit.workflows.run import run as run_workload

    workflow = functools.partial(
        run_workload,
        app,
        target=target,
        windows=windows,
        seconds=seconds,
        output=output,
        force=force,
        fresh=fresh,
        seed=seed,
        update_table=update_table,
        inject=inject or (),
    )
    play(workflow, max_miss_ratio, json=json)


def play(workflow: Callable[..., RunResult], max_miss_ratio: float, *, json: bool) -> None:
    """Run or simulate until Ctrl-C, show the result, and end with the exit code that it means.

    Args:
        workflow: but for progress and stopping, all is told.
        max_miss_ratio: exit code 1 above it.
        json: print only JSON.
    """
    progress = Progress()
    with Interrupt() as interrupt:
        try:
            result = workflow(notify=progress, stop=interrupt, on_idle=progress.windows)
        finally:
            progress.end()
    if json:
        show_json(result.metrics)
    else:
        show_run(result)
    if result.interrupted:
        raise typer.Exit(130)
    degraded = any(model.degraded for model in result.metrics.models)
    if degraded or result.metrics.miss_ratio > max_miss_ratio:
        raise typer.Exit(1)


def show_run(result: RunResult) -> None:
    """Figures, a picture, and where the files lie."""
    from framefit.report.drawing import run_rows, terminal_picture
    from framefit.report.sections.profile import run_notes
    from framefit.report.terminal.run_view import metrics_view

    notes = [] if result.profile is None else run_notes(result.profile, result.metrics.windows)
    priority = [model.name for model in result.metrics.models if model.role == "priority"]
    seen, launches, releases = result.part(0, _DRAWN_FROM)
    rows = run_rows(
        seen,
        result.seen_program,
        launches,
        releases,
        priority,
        reserved_ns=result.timetable.first_reserved_ns,
        overhang_ns=result.timetable.overhang_ns,
        windows=_SHOWN_WINDOWS,
    )
    show(
        metrics_view(result.metrics),
        terminal_picture(rows),
        *(f"note: {warning}" for warning in result.warnings),
        *(f"profile: {note}" for note in notes),
        f"run folder: {result.folder}\n"
        f"trace:      {result.folder / 'trace.pftrace'} (open it at https://ui.perfetto.dev)\n"
        f"picture:    {result.folder / 'run.svg'}",
    )
