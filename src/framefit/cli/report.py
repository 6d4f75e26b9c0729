"""``framefit report RUN_OR_RESULT...``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import Progress, show, show_json

__all__ = ["report"]


def report(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_RESULT...",
            help="Run folders, profile folders, folders of sparsify, treeify or fit, timetable.json, *.table.json.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The page (default: report.html in the first one's folder).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Write one page on what runs, plans, measurements and searches found, to read, print or send.

    What an input is, its content says. Several of a kind are compared. The page is one file that loads
    nothing from elsewhere.

    Example: framefit report runs/first

    Example: framefit report runs/before runs/after -o report.html
    """
    from framefit.workflows.report import write_report

    progress = Progress()
    try:
        page = write_report(*inputs, output=output, force=force, notify=progress)
    finally:
        progress.end()
    if json:
        from framefit.core.run_record import ReportPage

        show_json(ReportPage(page=str(page)))
    else:
        show(f"report: {page} (open it in a browser)")
