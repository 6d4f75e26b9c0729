"""``framefit inject-loss TRACE --rate R -o FILE``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from framefit.cli.screen import show

__all__ = ["inject_loss"]


class Kind(StrEnum):
    """How packets are lost."""

    RANDOM = "random"
    BURST = "burst"
    OVERFLOW = "overflow"
    START_ONLY = "start-only"
    INFERENCE = "inference"


def inject_loss(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A run folder, or a trace of any format.")],
    rate: Annotated[float, typer.Option("--rate", help="Part of the packets that are lost, 0 to 1.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The thinned trace (.npz).")],
    kind: Annotated[
        Kind | None, typer.Option("--kind", help="How they are lost (default: random, or burst with --burst).")
    ] = None,
    burst: Annotated[int | None, typer.Option("--burst", min=1, help="Packets lost together (default: 20).")] = None,
    buffer_events: Annotated[
        int, typer.Option("--buffer-events", min=1, help="Packets that a core's buffer holds (overflow).")
    ] = 64,
    program: Annotated[
        Path | None, typer.Option("--program", help="program.json (inference; default: as beside the trace).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Take packets out of a trace, to see what a profile makes of the rest.

    The same seed takes the same packets.

    Example: framefit inject-loss runs/first --rate 0.1 --burst 20 --seed 1 -o thin.npz
    """
    from framefit.profiling.inject import inject_loss as inject

    injected = inject(
        trace,
        rate=rate,
        kind=None if kind is None else kind.value,
        burst=burst,
        program=program,
        buffer_events=buffer_events,
        seed=seed,
        output=output,
        force=force,
    )
    show(f"{injected.lost} of {len(injected.kept)} events lost: {output}")
