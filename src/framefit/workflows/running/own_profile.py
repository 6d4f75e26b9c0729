"""The profile of a run that has just ended, and the latency table that it updates."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from framefit.core.events import Trace
from framefit.errors import FramefitError
from framefit.workflows.plan import Plan
from framefit.workflows.profiles.profiled import Notify, Source, profiled, silent
from framefit.workflows.profiles.table import check_update, table_for, write_update
from framefit.workflows.running.folder import RunResult

__all__ = ["check_table", "with_profile"]

_MOST = 1 << 15  # packets: a run that has ended is not held up for more than seconds


def check_table(planned: Plan, update_table: str | Path | None) -> None:
    """Refuse a table that could not be written after the run.

    Raises:
        InputError: the file there is no table of the plan's device.
    """
    if update_table is not None:
        check_update(update_table, table_for(planned.workload, planned.device))


def with_profile(
    result: RunResult, planned: Plan, update_table: str | Path | None = None, notify: Notify = silent
) -> RunResult:
    """A run with the profile of its own trace; a trace that cannot be used costs no run.

    Args:
        result: of the run.
        planned: what was run.
        update_table: written with what the layers took.
        notify: receives what is being done.
    """
    trace, notes = _latest(result.trace, str(result.folder))
    source = Source(trace, result.program, result.launches, result.timetable, str(result.folder), notes)
    try:
        found = profiled(source, notify=notify)
        result = dataclasses.replace(result, profile=found.profile)
        if update_table is not None:
            write_update(update_table, found, table_for(planned.workload, planned.device))
    except FramefitError as error:
        what = "profiled" if result.profile is None else f"put into {update_table}"
        note = f"the trace was not {what}: {error.what}"
        result = dataclasses.replace(result, warnings=(*result.warnings, note))
    return result


def _latest(trace: Trace, folder: str) -> tuple[Trace, tuple[str, ...]]:
    """The end of a long trace, and a note that says so."""
    beyond = len(trace) - _MOST
    if beyond <= 0:
        return trace, ()
    meta = msgspec.structs.replace(trace.meta, overwritten_events=trace.meta.overwritten_events + beyond)
    latest = Trace(
        time_ns=trace.time_ns[beyond:],
        id=trace.id[beyond:],
        type=trace.type[beyond:],
        core=trace.core[beyond:],
        operation=trace.operation[beyond:],
        kinds=trace.kinds,
        loss_after=trace.loss_after[trace.loss_after > beyond] - beyond,
        meta=meta,
    )
    return latest, (f"of the latest {_MOST} of {len(trace)} events; framefit profile {folder} takes all of them",)
