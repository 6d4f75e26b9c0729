"""``framefit profile``: what happened in a run, from a trace that lost events.

Joins ``profiling`` with the device that a table is of, with the plan that a run followed, and with the files that
``report`` writes: the profile folder, and the durations of layers in a latency table for the next plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from framefit.core.events import Trace
from framefit.core.files import check_folder, claimed_folder, read_record, write_record, write_whole_folder
from framefit.core.latency_table import LatencyTable, Overhead, check_fingerprint, differing_facts, merged, read_table
from framefit.core.program import Launches, Program
from framefit.core.run_record import RunInfo
from framefit.core.settings import Notify, silent, verb
from framefit.core.store import names_store, table_at
from framefit.core.workload import Workload
from framefit.devices.device import Device, is_modelled, is_simulated
from framefit.devices.registry import open_device
from framefit.errors import InputError
from framefit.profiling.expectation import apply_table_to_program, latency_entries, window_releases
from framefit.profiling.profile import ProfileResult, apply_table, open_trace, profile_trace
from framefit.profiling.totals import long_losses
from framefit.report.csv_files import write_events, write_layers, write_lost
from framefit.report.perfetto import write_perfetto
from framefit.report.timeline import Happened, LossRegion, TimelineWindows
from framefit.workflows.settings import ProfileSettings

__all__ = ["profile", "run_profile_folder", "write_numbered_profile"]


_MARK = "profile.json"


def run_profile_folder(trace: Path) -> Path | None:
    """Return ``RUN/profile`` for a run folder, and ``None`` for a trace file."""
    return trace / "profile" if trace.is_dir() else None


def write_numbered_profile(trace: Path, result: ProfileResult) -> ProfileResult:
    """Write a profile as ``profiles/TRACE-N`` with the first N that is free, and return it with its folder.

    Args:
        trace: the trace file, or ``-``.
        result: its profile.

    Raises:
        InputError: the files cannot be written.
    """
    name = "stream" if str(trace) == "-" else trace.name.split(".")[0] or "trace"
    if name == "trace":
        name = trace.resolve().parent.name or name
    with claimed_folder(Path("profiles") / name) as folder:
        _write_profile_folder(folder, result, claimed=True)
    return dataclasses.replace(result, folder=folder)


def _write_profile_folder(folder: Path, result: ProfileResult, *, force: bool = False, claimed: bool = False) -> None:
    """Write the files of a profile: they are made beside their place, then renamed."""
    from framefit.report.chrome import write_chrome  # a run, which imports this module, needs no page
    from framefit.report.html import write_timeline_page

    log, source = result.log, result.source
    program, launches, events = source.program, source.launches, happened(result)
    releases = None if events.windows is None else events.windows.releases_ns
    priority = () if events.windows is None else events.priority_models
    with write_whole_folder(folder, _MARK, "a profile", force=force, claimed=claimed) as part:
        write_record(part / _MARK, result.profile)
        write_layers(part / "layers.csv", result.profile)
        write_events(part / "events.csv", log, program)
        write_lost(part / "lost.csv", log, program)
        write_lost(part / "lost.json", log, program)
        write_events(part / "events.json", log, program)
        write_perfetto(part / "trace.pftrace", log, program, launches, releases, priority)
        write_chrome(part / "trace.json", log, program, launches)
        write_timeline_page(part / "timeline.html", events, title=source.where, profile=result.profile)


def happened(result: ProfileResult) -> Happened:
    """Return the operations of a profile for pictures and pages, with windows and losses."""
    log, source = result.log, result.source
    program, launches, timetable, windows = source.program, source.launches, source.timetable, None
    if launches is not None and len(launches) and timetable is not None and timetable.windows and len(log):
        _, releases, reserved = window_releases(log, program, launches, timetable)
        periods = [
            np.stack([releases[period.at] + period.opens_ns, releases[period.at] + period.closes_ns], 1)[period.planned]
            for period in reserved
        ]
        together = np.concatenate([np.zeros((0, 2), np.int64), *periods])
        windows = TimelineWindows(releases, together[np.argsort(together[:, 0], kind="stable")])
    losses = tuple(
        LossRegion(start_ns=begin, end_ns=end, label=f"{count} events lost")
        for begin, end, count in zip(*(part.tolist() for part in long_losses(log)), strict=True)
    )
    ahead = () if timetable is None else tuple(m.name for m in timetable.models if m.role != "background")
    return Happened(log, program, launches, windows, losses, ahead)


def table_for(workload: Workload, device: Device) -> LatencyTable:
    """Return the latency table that a workload is planned with on a device; an empty one if none applies.

    Args:
        workload: with absolute paths.
        device: described, or this machine's.
    """
    facts = device.fingerprint()
    if is_simulated(device):
        facts["clock"] = "virtual"  # as it is when it is planned for
    if workload.table is not None:
        try:
            table, _ = table_at(workload.table, facts)
        except InputError:
            if not names_store(workload.table):
                raise
        else:
            if not differing_facts(table.fingerprint, facts):
                return table
    empty = LatencyTable(target=workload.target, fingerprint=facts)
    return msgspec.structs.replace(empty, overhead=_described(device)) if is_modelled(device) else empty


def planned_expectations(workload: Workload, device: Device, program: Program) -> Program:
    """Replace the durations of a program by those of the workload's table, if it has one, as its plan did."""
    return program if workload.table is None else apply_table_to_program(program, table_for(workload, device))[0]


def _described(device: Device) -> Overhead:
    """Return the overhead of a launch by the description of its device."""
    host, stored = device.target.host, device.stored_ratio
    read, written = (
        stored * (host.byte_ns + (1 / bandwidth if bandwidth else 0.0))
        for bandwidth in (host.input_bandwidth_gbps, host.output_bandwidth_gbps)
    )
    return Overhead(
        input_ns_per_byte=read,
        output_ns_per_byte=written,
        intercept_ns=host.inference_ns + 2 * host.latency_ns,
        condition_number=1.0,
    )


def _table_of_run(folder: str | Path | Trace) -> LatencyTable | None:
    """Return the latency table that a run was planned with, or an empty one of its device; ``None`` if it is unknown.

    Raises:
        InputError: the run's target or table cannot be read any more.
    """
    if isinstance(folder, Trace):
        return None
    info = (Path(folder) if Path(folder).is_dir() else Path(folder).parent) / "run.json"
    if not info.is_file():
        return None
    run = read_record(info, RunInfo)
    try:
        workload = msgspec.convert(run.workload, Workload)
    except msgspec.ValidationError as error:
        raise InputError(f"$.workload: {error}", where=info, remedy="name the table with --table") from error
    beside = Path(run.app).parent  # where the workload's target is, unless the command named another one
    has_target = (beside / workload.target).exists()
    device = open_device(workload.target, folder=beside if has_target else Path(), settings=workload.machine)
    return table_for(workload, device)


def check_update(path: str | Path, base: LatencyTable | None) -> None:
    """Refuse, before anything is done, an update of a table that could not be written.

    Raises:
        InputError: the device of the table is unknown, or the existing file is not a table of that device.
    """
    if base is None:
        raise InputError(
            "the device of the table is unknown",
            where=path,
            remedy="name the table that the run was planned with: --table TABLE",
        )
    if Path(path).exists():
        check_fingerprint(read_table(path), base.fingerprint, path, "choose another file")


def _updated_table(result: ProfileResult, base: LatencyTable, path: str | Path | None = None) -> LatencyTable:
    """Make a latency table with the durations that the layers had.

    Args:
        result: the profile.
        base: all other entries.
        path: table to update, if it exists; its entries come before those of ``base``.

    Raises:
        InputError: the program does not say which layers its operations are.
    """
    entries = latency_entries(result.log, result.sequence, result.profile.confidence)
    if not entries:
        raise InputError(
            "the profile has no layer for a latency table",
            where=result.source.where,
            remedy="name op and configuration of its operations in the program, as described devices do",
        )
    new = LatencyTable(target=base.target, fingerprint=base.fingerprint, entries=entries)
    there = [read_table(path)] if path is not None and Path(path).exists() else []
    return merged([base, *there, new])


def write_update(path: str | Path, result: ProfileResult, base: LatencyTable) -> LatencyTable:
    """Write the latency table; entries of an existing one that the profile says nothing about are kept.

    Raises:
        InputError: see :func:`_updated_table` and :func:`check_update`.
    """
    check_update(path, base)
    table = _updated_table(result, base, path)
    write_record(path, table, force=True)
    return table


@contextlib.contextmanager
def _compiling_noted(notify: Notify) -> Iterator[Notify]:
    """Say that loops are compiled where they are not kept yet, in each step: else a first profile seems to stand still.

    Yields:
        What hears of the steps.
    """
    from numba.core import event

    class Listener(event.Listener):
        silent = True

        def on_start(self, event: Any) -> None:  # noqa: ARG002 - of whichever loop
            if self.silent:
                notify("compiling loops for this processor: once, about half a minute in all")
            self.silent = False

        def on_end(self, event: Any) -> None:
            """Nothing."""

    listener = Listener()

    def step(message: str) -> None:
        listener.silent = True
        notify(message)

    with event.install_listener("numba:compile", listener):
        yield step


@verb(ProfileSettings, "trace", "program")
def profile(settings: ProfileSettings, *, launches: Launches | None = None, notify: Notify = silent) -> ProfileResult:
    """Find out what happened in a run, whatever its trace lost.

    Packets are matched with the program, lost ones are inferred with intervals, and nothing inferred is shown as
    measured. A bad trace is no error: the warnings of the profile say what is wrong with it. Without ``output``
    nothing is written.

    Args:
        settings: what to profile.
        launches: of a ``program`` that is given as an object.
        notify: receives progress messages.

    Raises:
        InputError: a file cannot be used, the trace has no event of the program, or the folder exists.

    Example:
        >>> framefit.profile("runs/first").profile.totals_by_kind["conv"].interval_ns  # doctest: +SKIP
        (41287310, 41296022)
    """
    trace, table, update_table = settings.trace, settings.table, settings.update_table
    folder = None if settings.output is None else Path(settings.output)
    if folder is not None:
        check_folder(folder, _MARK, "a profile", force=settings.force)
    notify("reading the trace")
    source = open_trace(trace, settings.program, launches)
    if isinstance(table, str):
        table = read_table(table)
    if table is not None:
        source = apply_table(source, table)
    base = table
    if update_table is not None:
        base = _table_of_run(trace) if base is None else base
        check_update(update_table, base)
    with _compiling_noted(notify) as step:
        result = profile_trace(
            source,
            method=settings.method,
            confidence=settings.confidence,
            audit=settings.audit,
            seed=settings.seed,
            notify=step,
        )
    if base is not None and update_table is not None:
        write_update(update_table, result, base)
    if folder is not None:
        notify("writing the profile")
        result = dataclasses.replace(result, folder=folder)
        _write_profile_folder(folder, result, force=settings.force)
    return result
