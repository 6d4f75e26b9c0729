"""``framefit targets [NAME]``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import show, show_json

__all__ = ["targets"]


def targets(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A built-in target, or the path of a target.toml.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write a copy of NAME's file there, to start your own from.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """List the built-in targets, or show everything about one.

    Example: framefit targets vpu -o mine.toml
    """
    from framefit.core.target import describe_target
    from framefit.core.target import targets as list_targets

    if name is None:
        if output is not None:
            raise typer.BadParameter("-o needs the NAME of the target to copy", param_hint="'-o'")
        listed = list_targets()
        if json:
            show_json(listed)
        else:
            from framefit.report.terminal.target_tables import targets_view

            show(targets_view(listed))
        return
    target, notes = describe_target(name, output=output, force=force)
    if json:
        show_json(target)
    else:
        from framefit.report.terminal.target_tables import target_view

        show(target_view(target, notes))
