"""How models take part in the beat, and what their tensors need of units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from framefit.core.target import Link
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.devices.npu import NpuDevice
from framefit.errors import FramefitError, InputError
from framefit.scheduling.beat import Beat, Demand
from framefit.scheduling.check import check_timetable
from framefit.workflows.planning.opening import supporting
from framefit.workflows.planning.task import PlannedTask, given_bytes

__all__ = ["check_plan", "demands_of", "host_links", "stored_ratio", "with_memory"]


def demands_of(tasks: Sequence[PlannedTask], workload: Workload, app: Path) -> dict[str, Demand]:
    """What each model wants.

    Args:
        tasks: all models, their roles decided.
        workload: that they belong to.
        app: its file, for messages.

    Raises:
        InputError: a model reads streams of different rates.
    """
    by_name = {task.name: task for task in tasks}
    return {task.name: _demand(task, by_name, workload, app) for task in tasks}


def _demand(task: PlannedTask, tasks: Mapping[str, PlannedTask], workload: Workload, app: Path) -> Demand:
    entry, grid = task.wired.entry, workload.grid
    deadline_ns = None if entry.deadline_ms is None else round(entry.deadline_ms * 1e6)
    releases = None
    root = task
    while root.wired.after:  # its frames are those of what it reads
        root = tasks[root.wired.after[0]]
    places = {grid.places(stream): stream for stream in dict.fromkeys(root.wired.sources.values())}
    if len(places) > 1:
        raise InputError(
            f"reads streams {', '.join(map(repr, places.values()))} of different rates",
            where=f"{app}: model {root.name!r}",
            remedy="give them one rate, or feed one of them through a model of its own",
        )
    if places and len(grid.offsets_ns) > 1:
        ((own, stream),) = places.items()
        releases = own if root is task else None
        if task.priority and deadline_ns is None:
            deadline_ns = grid.period_ns(stream)
    return Demand(
        deadline_ns=deadline_ns,
        queue=task.wired.depth,
        every=entry.every,
        frames=entry.frames,
        refuses=task.wired.when_full != "drop-oldest",
        waits=task.wired.waits,
        releases=releases,
    )


def stored_ratio(device: Device) -> float:
    """Bytes of a tensor on a device over those on the host."""
    return device.stored_ratio if isinstance(device, NpuDevice) else 1.0


def host_links(device: Device) -> tuple[Link, ...]:
    """A device's links in bytes of the host: that is how boundaries are counted."""
    ratio = stored_ratio(device)
    return tuple(
        link
        if link.bandwidth_gbps is None
        else msgspec.structs.replace(link, bandwidth_gbps=link.bandwidth_gbps / ratio)
        for link in device.target.links
    )


def with_memory(
    timetable: Timetable, tasks: Sequence[PlannedTask], device: Device, limits: Mapping[str, int], unit: str
) -> Timetable:
    """With the memory of all tensors, as the device stores them; infeasible where a unit has less.

    Args:
        timetable: of the tasks.
        tasks: as they are to run.
        device: where.
        limits: unit -> bytes that it has.
        unit: what a plan that uses none is told of.
    """
    needed: dict[str, float] = dict.fromkeys(timetable.units or (unit,), 0.0)
    ratio, apart = stored_ratio(device), bool(device.target.links)
    for task in tasks:
        if not set(task.units) <= set(needed):
            continue  # of a plan that does not fit: it was placed nowhere
        for name, count in task.memory_bytes(separate=apart).items():
            needed[name] += count * ratio
        needed[task.units[0]] += given_bytes(task, timetable) * ratio
    found = {name: math.ceil(count) for name, count in needed.items()}
    timetable = msgspec.structs.replace(timetable, memory_bytes=found)
    over = next((name for name, count in found.items() if count > limits.get(name, count)), None)
    if over is None or not timetable.feasible:
        return timetable
    return msgspec.structs.replace(
        timetable,
        feasible=False,
        binding_constraint=f"the models' tensors take {found[over] / 2**20:.2f} MiB on unit {over!r}, which has "
        f"{limits[over] / 2**20:.2f} MiB",
    )


def check_plan(
    timetable: Timetable,
    tasks: Sequence[PlannedTask],
    beat: Beat,
    device: Device,
    units: Sequence[str],
    limits: Mapping[str, int],
) -> None:
    """Let somebody else look at a plan: the independent checker.

    Args:
        timetable: that says it is feasible.
        tasks: in the order of its models.
        beat: that it was made for.
        device: where it runs, on
        units: of it, where a model names none.
        limits: unit -> bytes that it has.

    Raises:
        FramefitError: something is wrong with it.
    """
    supported = {
        task.name: [
            set(supporting(device.target, task.wired.entry.units or units, task.model, *bounds))
            for bounds in task.segments
        ]
        for task in tasks
    }
    violations = check_timetable(
        timetable,
        deadlines_ns={name: d.deadline_ns for name, d in beat.demands.items() if d.deadline_ns is not None},
        every={name: demand.every for name, demand in beat.demands.items()},
        releases={name: d.releases for name, d in beat.demands.items() if d.releases is not None},
        lengths_ns=beat.lengths_ns,
        supported=supported,
        memory_limit_bytes=limits,
        stored_ratio=stored_ratio(device),
    )
    if violations:
        raise FramefitError(f"the timetable fails its check: {violations[0]}", remedy="report this as a bug")
