"""``framefit demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.run import show_run
from framefit.cli.screen import Interrupt, Progress, show, show_json

__all__ = ["demo"]


def demo(
    folder: Annotated[Path, typer.Option("-o", "--output", help="Where its models and app.toml go.")] = Path(
        "framefit-demo"
    ),
    seconds: Annotated[float, typer.Option("--seconds", help="How long to run.")] = 8.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights and frames.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Plan and run two built-in models: a detector in every frame, depth in what is left.

    Their weights are random: the timing is real, the outputs mean nothing.

    Example: framefit demo --seconds 20
    """
    from framefit.workflows.demo import demo as run_demo

    progress = Progress()
    with Interrupt() as interrupt:
        try:
            planned, result = run_demo(
                folder, seconds=seconds, seed=seed, notify=progress, stop=interrupt, on_idle=progress.windows
            )
        finally:
            progress.end()
    if json:
        show_json(result.metrics)
    else:
        from framefit.report.terminal.plan_tables import plan_view
        from framefit.workflows.report import report_place

        show(
            "Two built-in networks with seeded random weights: the timing is real, their outputs mean nothing.\n"
            f"The workload is {folder / 'app.toml'}; change it and run it again with:\n"
            f"framefit run {folder / 'app.toml'}\n",
            plan_view(planned.timetable),
        )
        show_run(result)
        show(f"report:     {report_place(result.folder)} (open it in a browser)")
    if result.interrupted:
        raise typer.Exit(130)
