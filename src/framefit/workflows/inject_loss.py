"""``framefit inject-loss``: a trace thinned as devices thin theirs."""

from __future__ import annotations

from pathlib import Path

from framefit.core.events import Trace
from framefit.core.program import Launches, Program
from framefit.errors import InputError
from framefit.profiling.inject import Injected, LossKind
from framefit.profiling.inject import inject_loss as inject
from framefit.workflows.profiles.profiled import opened

__all__ = ["inject_loss"]

_NOTHING = Program(window_ns=0, units=(), programs=())


def inject_loss(
    trace: str | Path | Trace,
    *,
    rate: float,
    kind: LossKind | None = None,
    burst: int | None = None,
    program: str | Path | Program | None = None,
    launches: Launches | None = None,
    buffer_events: int = 64,
    seed: int = 0,
    output: str | Path | None = None,
    force: bool = False,
) -> Injected:
    """Take packets out of a trace, to see what a profile makes of the rest.

    Args:
        trace: a run folder, a trace of any format that ``framefit profile`` reads, or a trace.
        rate: part of the packets (of "inference": of the launches), 0 to 1.
        kind: "random", "burst", "overflow", "start-only" or "inference"; default: "burst" where ``burst``
            is given, else "random".
        burst: packets lost together; default: 20.
        program: what was executed; needed for "inference" only, where nothing beside the trace tells.
        launches: of a ``program`` that is given as an object.
        buffer_events: packets that a core's buffer holds ("overflow").
        seed: of what is drawn; the same seed takes the same packets.
        output: write the thinned trace there (``.npz``).
        force: overwrite it.

    Returns:
        The thinned trace, and which packets it kept.

    Raises:
        InputError: a file that cannot be used, or a loss that cannot be.

    Example:
        >>> framefit.inject_loss("runs/first", rate=0.1, output="thin.npz").lost  # doctest: +SKIP
        2000
    """
    if output is not None and Path(output).exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    if seed < 0:
        raise InputError(f"seed {seed} is negative", remedy="give 0 or a greater whole number")
    chosen: LossKind = kind or ("random" if burst is None else "burst")
    if burst is not None and chosen != "burst":
        raise InputError(f"--burst is of kind burst, not {chosen}", remedy="leave one of them out")
    if isinstance(trace, Trace) and chosen != "inference":
        source, told, listed = trace, program if isinstance(program, Program) else _NOTHING, launches
    else:
        found = opened(trace, program, launches, needs_program=chosen == "inference")
        source, told, listed = found.trace, found.program, found.launches
    injected = inject(
        source,
        told,
        listed,
        kind=chosen,
        rate=rate,
        burst=20 if burst is None else burst,
        seed=seed,
        buffer_events=buffer_events,
    )
    if output is not None:
        injected.trace.write(output, force=force)
    return injected
