"""Settings of ``framefit inject-loss``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from framefit.core.settings import Settings, option

__all__ = ["InjectLossSettings"]


LossKind = Literal["random", "burst", "overflow", "start-only", "inference"]


class InjectLossSettings(Settings, kw_only=True):
    """Options of ``framefit inject-loss``."""

    trace: Annotated[
        Any,
        option("Run folder, or a trace of any format.", python="a trace", argument=True, metavar="TRACE", names="path"),
    ]
    rate: Annotated[
        float | None, option('Part of the packets that are lost, 0 to 1; of kind "inference", part of the launches.')
    ] = None
    kind: Annotated[
        LossKind | None, option("How packets are lost (default: random, or burst where --burst is given).")
    ] = None
    burst: Annotated[int | None, option("Consecutive packets of one burst (default: 20).", ge=1)] = None
    buffer_events: Annotated[int, option('Packets that the buffer of a core holds, for kind "overflow".', ge=1)] = 64
    program: Annotated[
        Any,
        option(
            'Executed program (program.json), for kind "inference" (default: the one beside the trace).',
            python="a program",
            metavar="PATH",
            names="path",
        ),
    ] = None
    repeat: Annotated[
        int | None,
        option(
            "Profile so many times at each of --rates and --bursts, and size the buffer; -o is a folder then.",
            ge=1,
        ),
    ] = None
    rates: Annotated[
        tuple[float, ...],
        option("Parts of the packets that --repeat loses.", metavar="R,R,...", example="0.05,0.1", joined=True),
    ] = (0.05, 0.1, 0.2, 0.4)
    bursts: Annotated[
        tuple[int, ...],
        option("Burst lengths of --repeat; 1: one by one.", metavar="N,N,...", example="1,20", joined=True),
    ] = (1, 5, 20)
    drain_rate: Annotated[
        float | None,
        option(
            "Events that leave the buffer of a core in a second, for --repeat (default: as the trace says).",
            metavar="HZ",
            gt=0,
        ),
    ] = None
    output: Annotated[
        str | None,
        option(
            "Write the remaining trace to this file (.npz), or the study of --repeat to this folder.",
            "-o",
            "--output",
            metavar="PATH",
            names="new path",
        ),
    ] = None
    force: Annotated[bool, option("Overwrite an existing file, or folder of a study.")] = False
    seed: Annotated[int, option("Random seed; the same seed takes the same packets.", ge=0)] = 0
