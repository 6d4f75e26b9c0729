"""Settings of ``framefit inject-loss``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from framefit.core.settings import OverwriteFile, Settings, option

__all__ = ["InjectLossSettings"]


LossKind = Literal["random", "burst", "overflow", "start-only", "inference"]


class InjectLossSettings(Settings, kw_only=True):
    """Options of ``framefit inject-loss``."""

    trace: Annotated[
        Any,
        option("Run folder, or a trace of any format.", python="a trace", argument=True, metavar="TRACE"),
    ]
    rate: Annotated[
        float, option('Part of the packets that are lost, 0 to 1; of kind "inference", part of the launches.')
    ]
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
        ),
    ] = None
    output: Annotated[
        str | None, option("Write the remaining trace to this file (.npz).", "-o", "--output", metavar="PATH")
    ] = None
    force: OverwriteFile = False
    seed: Annotated[int, option("Random seed; the same seed takes the same packets.", ge=0)] = 0
