"""``framefit simulate APP.toml``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.run import play

__all__ = ["simulate"]


def simulate(
    app: Annotated[Path, typer.Argument(metavar="APP.toml", help="The workload.")],
    target: Annotated[
        str | None, typer.Option("--target", help="Instead of the workload's: built-in name or target.toml.")
    ] = None,
    windows: Annotated[int | None, typer.Option("--windows", min=1, help="How many windows to simulate.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Of the device's time (default: 10).")] = None,
    outputs: Annotated[bool, typer.Option("--outputs", help="Read frames and compute outputs for real.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Run folder (default: runs/APP-N).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite run folder and sinks.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the device's variation and of synthetic frames.")] = 0,
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
    """Would the models meet their deadlines on that board? The same dispatcher, in virtual time.

    Plans first, from the target's description. Ctrl-C ends the simulation and saves it (exit code 130).

    --inject shows what faults would do: raise:depth@2s, hang:npu1@100w, slow:face*1.4@5s, nan:depth@10w..20w,
    stall:camera@3s..4s, burst:camera*5@3s, end:camera@9s, shape:camera@3s (docs/faults.md).

    Example: framefit simulate app.toml --target vpu --windows 100000
    """
    from framefit.workflows.run import simulate as simulate_workload

    workflow = functools.partial(
        simulate_workload,
        app,
        target=target,
        windows=windows,
        seconds=seconds,
        outputs=outputs,
        output=output,
        force=force,
        seed=seed,
        update_table=update_table,
        inject=inject or (),
    )
    play(workflow, max_miss_ratio, json=json)
