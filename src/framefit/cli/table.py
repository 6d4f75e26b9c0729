"""``framefit table FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import show, show_json

__all__ = ["table"]


def table(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="A latency table; more of them after --merge.")],
    against: Annotated[Path | None, typer.Option("--against", metavar="OTHER", help="Compare with this one.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option("--merge", metavar="OTHER...", help="Add the entries of one or more tables.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where the merged table goes.")] = None,
    any_fingerprint: Annotated[
        bool, typer.Option("--any-fingerprint", help="Merge tables of different devices.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Show a latency table, compare it with another one, or merge several.

    Example: framefit table board.table.json --against yesterday.table.json
    """
    if merge and against is not None:
        raise typer.BadParameter("give either --against or --merge", param_hint="'--against'")
    if bool(merge) != (output is not None):
        raise typer.BadParameter("--merge and -o belong together: give both or neither", param_hint="'--merge'")
    file, *others = files
    if others and not merge:
        raise typer.BadParameter(f"one table at a time, or --merge; got {others[0]} too", param_hint="FILE")
    from framefit.core.latency_table import compare_tables, merge_tables
    from framefit.core.latency_table import table as read

    if against is not None:
        compared = compare_tables(file, against)
        if json:
            show_json(compared)
        else:
            from framefit.report.terminal.latency_tables import comparison_view

            show(comparison_view(compared))
        return
    if merge and output is not None:
        found = merge_tables([file, *merge, *others], output, any_fingerprint=any_fingerprint, force=force)
    else:
        found = read(file)
    if json:
        show_json(found)
    else:
        from framefit.report.terminal.latency_tables import table_view

        show(table_view(found))
