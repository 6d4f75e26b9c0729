"""``framefit profile``: what really happened, from a trace that lost events."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

from framefit.core.events import Trace
from framefit.core.latency_table import LatencyTable, read_table
from framefit.core.program import Launches, Program
from framefit.errors import InputError
from framefit.workflows.profiles.folder import check_profile_folder, write_profile_folder
from framefit.workflows.profiles.profiled import Method, Notify, Profiled, expecting_table, opened, profiled, silent
from framefit.workflows.profiles.table import check_update, table_of_run, write_update

__all__ = ["profile"]


def profile(
    trace: str | Path | Trace,
    program: str | Path | Program | None = None,
    *,
    launches: Launches | None = None,
    method: Method = "align",
    table: str | Path | LatencyTable | None = None,
    update_table: str | Path | None = None,
    output: str | Path | None = None,
    force: bool = False,
    confidence: float = 0.9,
    audit: bool = False,
    seed: int = 0,
    notify: Notify = silent,
) -> Profiled:
    """Say what happened in a run, whatever its trace lost.

    Packets are matched with the program; lost ones are put back with intervals, and nothing inferred is
    told as measured. A bad trace is no error: what is wrong with it is in the profile's warnings.

    Args:
        trace: a run folder; a ``trace.npz``, STPv2 stream, ONNX Runtime profile or Chrome JSON; or a trace.
        program: a ``program.json`` with its launch list beside it, or a program; not needed for a run
            folder, nor where the trace's format tells what was executed.
        launches: of a ``program`` that is given as an object.
        method: "align": by all that is known of durations; "rule": at fixed offsets.
        table: latency table to expect durations from, instead of the program's own.
        update_table: write a latency table with what the layers really took there; merged with ``table``, or
            the one that the run was planned with.
        output: write the profile folder there; ``None``: nothing is written.
        force: overwrite it.
        confidence: of all intervals, above 0 and below 1.
        audit: find out what the repair is worth, by masking events of this very trace.
        seed: of that mask.
        notify: receives what is being done.

    Raises:
        InputError: a file that cannot be used; a program of which the trace holds no event; a folder that exists.

    Example:
        >>> framefit.profile("runs/first").profile.totals_by_kind["conv"].interval_ns  # doctest: +SKIP
        (41287310, 41296022)
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence {confidence} is no part of 1", remedy="give one between 0 and 1, such as 0.9")
    if method not in get_args(Method):
        raise InputError(f"no method {method!r}", remedy=f"choose from {', '.join(get_args(Method))}")
    if output is not None:
        check_profile_folder(Path(output), force=force)
    notify("reading the trace")
    source = opened(trace, program, launches)
    if isinstance(table, str | Path):
        table = read_table(table)
    if table is not None:
        source = expecting_table(source, table)
    base = table
    if update_table is not None:
        base = table_of_run(trace) if base is None else base
        check_update(update_table, base)
    found = profiled(source, method=method, confidence=confidence, audit=audit, seed=seed, notify=notify)
    if base is not None and update_table is not None:
        write_update(update_table, found, base)
    if output is not None:
        notify("writing the profile")
        found = dataclasses.replace(found, folder=Path(output))
        write_profile_folder(Path(output), found, force=force)
    return found
