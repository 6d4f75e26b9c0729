"""``framefit profile``: what really happened, from a trace that lost events.

The profile folder: where it may lie, what is in it, and how it comes there whole.

What a profile writes into a latency table, for the next plan.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.events import Trace
from framefit.core.files import check_folder, claimed_folder, read_record, write_record, write_whole_folder
from framefit.core.latency_table import LatencyTable, Overhead, check_fingerprint, differing_facts, merged, read_table
from framefit.core.program import Launches, Program
from framefit.core.run_record import RunInfo
from framefit.core.settings import Notify, silent, verb
from framefit.core.workload import Workload
from framefit.devices.device import Device, is_modelled, is_simulated
from framefit.devices.registry import open_device
from framefit.errors import InputError
from framefit.profiling.expectation import apply_table_to_program, latency_entries, window_releases
from framefit.profiling.profile import ProfileResult, apply_table, open_trace, profile_trace
from framefit.profiling.totals import long_losses
from framefit.report.chrome import write_chrome
from framefit.report.csv_files import write_events, write_lost
from framefit.report.html import write_timeline_page
from framefit.report.perfetto import write_perfetto
from framefit.report.timeline import Happened, LossRegion, TimelineWindows
from framefit.workflows.settings import ProfileSettings

__all__ = [
    "check_profile_folder",
    "check_update",
    "happened",
    "own_profile_folder",
    "planned_expectations",
    "profile",
    "table_for",
    "table_of_run",
    "updated_table",
    "write_numbered_profile",
    "write_profile_folder",
    "write_update",
]


_MARK = "profile.json"


def own_profile_folder(trace: Path) -> Path | None:
    """``RUN/profile`` of a run folder; ``None``: a trace has none."""
    return trace / "profile" if trace.is_dir() else None


def write_numbered_profile(trace: Path, found: ProfileResult) -> ProfileResult:
    """Write a profile as ``profiles/TRACE-N``, the first N that is free.

    Args:
        trace: the file, or ``-``.
        found: its profile.

    Returns:
        It, with its folder.

    Raises:
        InputError: the files cannot be written.
    """
    name = "stream" if str(trace) == "-" else trace.name.split(".")[0] or "trace"
    if name == "trace":
        name = trace.resolve().parent.name or name
    with claimed_folder(Path("profiles") / name) as folder:
        _write(folder, found, force=False, claimed=True)
    return dataclasses.replace(found, folder=folder)


def check_profile_folder(folder: Path, *, force: bool) -> None:
    """Whether a profile may be written there: nothing else of the user's is ever replaced.

    Raises:
        InputError: something is there, without ``force`` or not a profile.
    """
    check_folder(folder, _MARK, "a profile", force=force)


def write_profile_folder(folder: Path, found: ProfileResult, *, force: bool = False) -> None:
    """The profile's files: made beside their place, then renamed.

    Args:
        folder: where they will lie.
        found: the profile.
        force: replace a profile that is there.

    Raises:
        InputError: something is there that may not be replaced, or the files cannot be written.
    """
    _write(folder, found, force=force, claimed=False)


def _write(folder: Path, found: ProfileResult, *, force: bool, claimed: bool) -> None:
    """See :func:`write_profile_folder`."""
    log, source = found.log, found.source
    program, launches, timetable = source.program, source.launches, source.timetable
    seen, releases, priority = happened(found), None, []
    if seen.windows is not None and timetable is not None:
        releases = seen.windows.releases_ns
        priority = [model.name for model in timetable.models if model.role == "priority"]
    with write_whole_folder(folder, _MARK, "a profile", force=force, claimed=claimed) as part:
        write_record(part / _MARK, found.profile)
        write_events(part / "events.csv", log, program)
        write_lost(part / "lost.csv", log, program)
        write_lost(part / "lost.json", log, program)
        write_events(part / "events.json", log, program)
        write_perfetto(part / "trace.pftrace", log, program, launches, releases, priority)
        write_chrome(part / "trace.json", log, program, launches)
        write_timeline_page(part / "timeline.html", seen, title=source.where, profile=found.profile)


def happened(found: ProfileResult) -> Happened:
    """What a trace says, with the beat and the losses around it.

    Args:
        found: its profile.
    """
    log, source = found.log, found.source
    program, launches, timetable, windows = source.program, source.launches, source.timetable, None
    if launches is not None and len(launches) and timetable is not None and timetable.windows and len(log):
        _, releases, reserved = window_releases(log, program, launches, timetable)
        periods = [
            np.stack([releases[one.at] + one.opens_ns, releases[one.at] + one.closes_ns], 1)[one.planned]
            for one in reserved
        ]
        together = np.concatenate([np.zeros((0, 2), np.int64), *periods])
        windows = TimelineWindows(releases, together[np.argsort(together[:, 0], kind="stable")])
    losses = tuple(
        LossRegion(start_ns=begin, end_ns=end, label=f"{count} events lost")
        for begin, end, count in zip(*(part.tolist() for part in long_losses(log)), strict=True)
    )
    return Happened(log, program, launches, windows, losses)


def table_for(workload: Workload, device: Device) -> LatencyTable:
    """The table that a workload is planned with on a device; an empty one where it has none that applies.

    Args:
        workload: with absolute paths.
        device: described, or this machine's.
    """
    facts = device.fingerprint()
    if is_simulated(device):
        facts["clock"] = "virtual"  # as it is when it is planned for
    if workload.table is not None:
        table = read_table(workload.table)
        if not differing_facts(table.fingerprint, facts):
            return table
    empty = LatencyTable(target=workload.target, fingerprint=facts)
    return msgspec.structs.replace(empty, overhead=_described(device)) if is_modelled(device) else empty


def planned_expectations(workload: Workload, device: Device, program: Program) -> Program:
    """A program with the durations that its plan was made with: those of the workload's table, if it has one."""
    return program if workload.table is None else apply_table_to_program(program, table_for(workload, device))[0]


def _described(device: Device) -> Overhead:
    """What a launch costs beside its layers, as the description says."""
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


def table_of_run(folder: str | Path | Trace) -> LatencyTable | None:
    """The table that a run was planned with, or an empty one of its device; ``None``: that is not known.

    Args:
        folder: of the run, or a file in it.

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
    own = (beside / workload.target).exists()
    device = open_device(workload.target, folder=beside if own else Path(), settings=workload.machine)
    return table_for(workload, device)


def check_update(path: str | Path, base: LatencyTable | None) -> None:
    """Refuse, before anything is done, an update that could not be written.

    Raises:
        InputError: nothing tells what device the table is of, or the file there is no table of that device.
    """
    if base is None:
        raise InputError(
            "nothing tells which device the table would be of",
            where=path,
            remedy="name the table that the run was planned with: --table TABLE",
        )
    if Path(path).exists():
        check_fingerprint(read_table(path), base.fingerprint, path, "choose another file")


def updated_table(found: ProfileResult, base: LatencyTable, path: str | Path | None = None) -> LatencyTable:
    """A table with what the layers really took.

    Args:
        found: the profile.
        base: what else it holds.
        path: a table that is to be updated, where it exists: its entries come before the base's.

    Raises:
        InputError: the program does not say which layers its operations are.
    """
    entries = latency_entries(found.log, found.sequence, found.profile.confidence)
    if not entries:
        raise InputError(
            "the profile has no layer that a table could hold",
            where=found.source.where,
            remedy="the program has to name op and configuration of its operations, as those of described devices do",
        )
    new = LatencyTable(target=base.target, fingerprint=base.fingerprint, entries=entries)
    there = [read_table(path)] if path is not None and Path(path).exists() else []
    return merged([base, *there, new])


def write_update(path: str | Path, found: ProfileResult, base: LatencyTable) -> LatencyTable:
    """Write the table; one that is there is updated: it keeps what the profile says nothing of.

    Raises:
        InputError: see :func:`updated_table` and :func:`check_update`.
    """
    check_update(path, base)
    table = updated_table(found, base, path)
    write_record(path, table, force=True)
    return table


@verb(ProfileSettings, "trace", "program")
def profile(settings: ProfileSettings, *, launches: Launches | None = None, notify: Notify = silent) -> ProfileResult:
    """Say what happened in a run, whatever its trace lost.

    Packets are matched with the program; lost ones are put back with intervals, and nothing inferred is
    told as measured. A bad trace is no error: what is wrong with it is in the profile's warnings. Without
    ``output`` nothing is written.

    Args:
        settings: what to profile.
        launches: of a ``program`` that is given as an object.
        notify: receives what is being done.

    Raises:
        InputError: a file that cannot be used; a program of which the trace holds no event; a folder that exists.

    Example:
        >>> framefit.profile("runs/first").profile.totals_by_kind["conv"].interval_ns  # doctest: +SKIP
        (41287310, 41296022)
    """
    trace, table, update_table = settings.trace, settings.table, settings.update_table
    folder = None if settings.output is None else Path(settings.output)
    if folder is not None:
        check_profile_folder(folder, force=settings.force)
    notify("reading the trace")
    source = open_trace(trace, settings.program, launches)
    if isinstance(table, str):
        table = read_table(table)
    if table is not None:
        source = apply_table(source, table)
    base = table
    if update_table is not None:
        base = table_of_run(trace) if base is None else base
        check_update(update_table, base)
    result = profile_trace(
        source,
        method=settings.method,
        confidence=settings.confidence,
        audit=settings.audit,
        seed=settings.seed,
        notify=notify,
    )
    if base is not None and update_table is not None:
        write_update(update_table, result, base)
    if folder is not None:
        notify("writing the profile")
        result = dataclasses.replace(result, folder=folder)
        write_profile_folder(folder, result, force=settings.force)
    return result
