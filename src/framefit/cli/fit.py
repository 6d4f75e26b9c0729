"""``framefit fit APP.toml``."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import Progress, show, show_json

__all__ = ["fit"]


class Without(StrEnum):
    """What ``--without`` takes."""

    CUTS = "cuts"
    UNITS = "units"
    INT8 = "int8"
    SPARSIFY = "sparsify"
    TREES = "trees"
    RATE = "rate"


def fit(
    app: Annotated[Path | None, typer.Argument(metavar="APP.toml", help="The workload.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="[MODEL=]DATA", help="Labelled data: an image folder, or an .npz (repeatable)."),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option("--max-drop", min=0, max=1, help="Of each model's top-1 that may be lost (default: 0.01)."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Take the steps; else they are only proposed.")] = False,
    target: Annotated[
        str | None, typer.Option("--target", help="Instead of the workload's: built-in name or target.toml.")
    ] = None,
    without: Annotated[
        list[Without] | None, typer.Option("--without", help="A kind of step that is not to be taken (repeatable).")
    ] = None,
    max_miss_ratio: Annotated[
        float | None,
        typer.Option("--max-miss-ratio", min=0, max=1, help="Late or dropped frames of a verification (default: 0.01)"),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", min=0, help="After which no step begins (default: 1200).")
    ] = None,
    verify_seconds: Annotated[
        float | None, typer.Option("--verify-seconds", min=0, help="Length of each verification (default: 10).")
    ] = None,
    finetune_epochs: Annotated[
        float | None, typer.Option("--finetune-epochs", min=0, help="Of models that lost weights or layers.")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the fit there.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder (default: APP-fit).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of everything drawn (default: 0).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Make a workload fit: plan, take the cheapest step that helps, plan again, until a simulation or run shows it.

    Steps, the cheapest first: other cuts, other units; int8, sparsity, decision trees, within --max-drop on labelled
    data; fewer frames. Your files stay as they are: the result is DIR/app.toml, which framefit run takes. Without
    --apply the steps are proposed. Ctrl-C keeps what was done (exit code 130); --resume goes on. Exit code 1: it does
    not fit (yet).

    Example: framefit fit app.toml --data tags=tags.npz --max-drop 0.01 --apply -o fitted
    """
    from framefit.fit.loop import fit as fit_workflow

    progress = Progress()
    try:
        done = fit_workflow(
            app,
            data=_named(data or ()),
            apply=apply,
            target=target,
            max_drop=max_drop,
            without=[measure.value for measure in without or ()],
            max_miss_ratio=max_miss_ratio,
            max_seconds=max_seconds,
            verify_seconds=verify_seconds,
            finetune_epochs=finetune_epochs,
            seed=seed,
            resume=resume,
            output=output,
            force=force,
            notify=progress,
        )
    finally:
        progress.end()
    if json:
        show_json(done.result)
    else:
        from framefit.report.terminal import view

        show(view(done.result, folder=done.folder))
    if done.result.interrupted:
        raise typer.Exit(130)
    if not done.result.fits:
        raise typer.Exit(1)


def _named(given: Iterable[str]) -> dict[str, str] | None:
    """``MODEL=DATA``, or data of the one model that they fit; a path may hold a "=", too."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        name, path = (name, path) if equals and not Path(text).exists() else ("", text)
        if name in found:
            raise typer.BadParameter(f"data of {name or 'one model'} are given twice", param_hint="--data")
        found[name] = path
    return found or None
