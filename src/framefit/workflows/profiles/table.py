"""What a profile writes into a latency table, for the next plan."""

from __future__ import annotations

from pathlib import Path

import msgspec

from framefit.core.events import Trace
from framefit.core.files import read_record, write_record
from framefit.core.latency_table import (
    LatencyTable,
    Overhead,
    check_fingerprint,
    differing_facts,
    merged,
    read_table,
)
from framefit.core.program import Program
from framefit.core.results import RunInfo
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.devices.facts import device_facts
from framefit.devices.npu import NpuDevice
from framefit.errors import InputError
from framefit.profiling.learned import expecting, profiled_entries
from framefit.workflows.profiles.profiled import Profiled

__all__ = ["check_update", "planned_expectations", "table_for", "table_of_run", "updated_table", "write_update"]


def table_for(workload: Workload, device: Device) -> LatencyTable:
    """The table that a workload is planned with on a device; an empty one where it has none that applies.

    Args:
        workload: with absolute paths.
        device: described, or this machine's.
    """
    facts = device_facts(device)
    if isinstance(device, NpuDevice):
        facts["clock"] = "virtual"  # as it is when it is planned for
    if workload.table is not None:
        table = read_table(workload.table)
        if not differing_facts(table.fingerprint, facts):
            return table
    empty = LatencyTable(target=workload.target, fingerprint=facts)
    return msgspec.structs.replace(empty, overhead=_described(device)) if isinstance(device, NpuDevice) else empty


def planned_expectations(workload: Workload, device: Device, program: Program) -> Program:
    """A program with the durations that its plan was made with: those of the workload's table, if it has one."""
    return program if workload.table is None else expecting(program, table_for(workload, device))[0]


def _described(device: NpuDevice) -> Overhead:
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
    from framefit.workflows.planning.opening import open_device

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
    device, _ = open_device(workload, beside if own else Path())
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


def updated_table(found: Profiled, base: LatencyTable, path: str | Path | None = None) -> LatencyTable:
    """A table with what the layers really took.

    Args:
        found: the profile.
        base: what else it holds.
        path: a table that is to be updated, where it exists: its entries come before the base's.

    Raises:
        InputError: the program does not say which layers its operations are.
    """
    entries = profiled_entries(found.log, found.sequence, found.profile.confidence)
    if not entries:
        raise InputError(
            "the profile has no layer that a table could hold",
            where=found.source.where,
            remedy="the program has to name op and configuration of its operations, as those of described devices do",
        )
    new = LatencyTable(target=base.target, fingerprint=base.fingerprint, entries=entries)
    there = [read_table(path)] if path is not None and Path(path).exists() else []
    return merged([base, *there, new])


def write_update(path: str | Path, found: Profiled, base: LatencyTable) -> LatencyTable:
    """Write the table; one that is there is updated: it keeps what the profile says nothing of.

    Raises:
        InputError: see :func:`updated_table` and :func:`check_update`.
    """
    check_update(path, base)
    table = updated_table(found, base, path)
    write_record(path, table, force=True)
    return table
