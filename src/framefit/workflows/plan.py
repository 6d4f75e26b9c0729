"""``framefit plan``: from an ``app.toml`` to a checked timetable, and from its file back to a plan.

Joins ``planning`` with what durations come from (a device that ``execution`` measures on, its description, or a table
of ``latency``), and verifies on the device what was planned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from framefit.core.files import check_folder, check_new, read_record, write_record, write_whole_folder
from framefit.core.settings import Notify, silent, verb
from framefit.core.soak import read_soak
from framefit.core.target import absolute_target
from framefit.core.timetable import InstructionLists, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.device import Device, is_modelled, is_simulated
from framefit.devices.host import flushed_denormals, pinned, realtime_priority_permitted
from framefit.devices.registry import open_device
from framefit.devices.store import MeasurementStore
from framefit.errors import InfeasibleError, InputError
from framefit.execution.compiled import Compiler, verify
from framefit.execution.unit_support import usable_units
from framefit.execution.wiring import wire
from framefit.planning import planner
from framefit.planning.durations import MeasuredDurations, ModelledDurations, PricedDevice
from framefit.planning.ladder import with_ladder
from framefit.planning.plan import Plan, plan_facts
from framefit.planning.planner import PlanRequest, plan_request
from framefit.workflows.settings import PlanSettings

__all__ = ["again", "plan"]


_TIMETABLE, _WHAT = "timetable.json", "a plan folder"
_AGAIN = "plan again (framefit plan APP.toml -o PLAN)"


@verb(PlanSettings, "app")
def plan(
    settings: PlanSettings,
    *,
    in_real_time: bool = False,
    notify: Notify = silent,
    workload: Workload | None = None,
    priority_ratio: float = 1.0,
    background_ratio: float = 1.0,
    explained: bool = True,
    computes: bool = True,
) -> Plan:
    """Say whether and how a workload's models fit into every window.

    Args:
        settings: what to plan.
        in_real_time: a described device is to run beside this host's clock: the host's late
            wake-ups count. Without meaning for the CPU, where they always do.
        notify: receives what is being done, for progress.
        workload: with absolute paths, instead of what the file says.
        priority_ratio: for conditions other than the present ones: times what is measured priority models take then.
        background_ratio: and background models.
        explained: plan what would help where it does not fit (``fixes``); what binds is named in any case.
        computes: check that segments give what whole models give; otherwise nothing is compiled for a described device,
            and the plan is not to be run.

    Raises:
        InputError: a file, key or model that cannot be used; an operator that no unit supports.
        InfeasibleError: the models fit, but not at rates that a stream will have.
        DeviceError: a model does not run here, or its segments do not give its outputs.

    Example:
        >>> framefit.plan("app.toml").timetable.feasible  # doctest: +SKIP
        True
    """
    app, output = Path(settings.app), settings.output
    workload = load_workload(app) if workload is None else workload
    if output is not None:
        _check_output(Path(output), force=settings.force)
    if settings.target is not None:
        workload = msgspec.structs.replace(workload, target=absolute_target(settings.target, Path()))
    if settings.kernels is not None:
        workload = msgspec.structs.replace(workload, kernels=settings.kernels)
    device = _device_of(app, workload, computes=computes)
    warm = _Warm() if settings.sustained is None else _Warm.read(settings.sustained)
    request = PlanRequest(
        app,
        workload,
        in_real_time=in_real_time,
        priority_ratio=priority_ratio,
        background_ratio=background_ratio,
        explained=explained,
    )
    planned = plan_request(warm(request), _priced(request, device, notify, cache=settings.cache), notify)
    if planned.timetable.feasible:
        planned = _with_ladder(planned, notify, warm)
    if warm.reasons:
        reasons = (*warm.reasons, *planned.timetable.reasons)
        planned = dataclasses.replace(planned, timetable=msgspec.structs.replace(planned.timetable, reasons=reasons))
    if output is not None:
        planned = planned.identified
        _write_plan(planned, Path(output), force=settings.force)
    return planned


@dataclass(frozen=True)
class _Warm:
    """How much longer launches take on a device that is warm.

    Attributes:
        priority_ratio, background_ratio: of priority and of background models.
        reasons: in words.
    """

    priority_ratio: float = 1.0
    background_ratio: float = 1.0
    reasons: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: str) -> _Warm:
        """As a soak found it."""
        soak = read_soak(folder)
        priority, background = (soak.sustained.get(role, 1.0) for role in ("priority", "background"))
        text = (
            f"launches are planned as in the slowest minute of {soak.folder}: "
            f"priority models x {priority:.3f}, background models x {background:.3f}"
        )
        return cls(priority, background, (text,))

    def __call__(self, request: PlanRequest) -> PlanRequest:
        """The request for the warm device."""
        return dataclasses.replace(
            request,
            priority_ratio=request.priority_ratio * self.priority_ratio,
            background_ratio=request.background_ratio * self.background_ratio,
        )


def again(planned: Plan, request: PlanRequest, notify: Notify = silent) -> Plan:
    """Plan on the same device for other conditions; what was measured is not measured again.

    Args:
        planned: the plan for the present ones.
        request: the others.
        notify: receives what is being done.
    """
    return plan_request(request, _priced(request, planned.device, notify), notify)


def retimed(planned: Plan, workload: Workload, notify: Notify) -> Timetable:
    """A plan's own segments at other rates; see :func:`framefit.planning.planner.retimed`."""
    request = PlanRequest(planned.app, workload, in_real_time=planned.in_real_time)
    return planner.retimed(planned, workload, _without_table(request, planned.device, notify), notify)


def ready(planned: Plan, notify: Notify = silent) -> Plan:
    """A plan that can be run: its segments are known to compute what whole models do, further timetables are planned.

    Args:
        planned: itself where all of that was done.
        notify: receives what is being done.

    Raises:
        InfeasibleError: the plan does not fit, or not at rates that a stream will have.
        DeviceError: a model does not run here, or its segments do not give its outputs.
    """
    timetable = planned.timetable
    if not timetable.feasible:
        changes = "; ".join(f"{fix.change} ({fix.effect})" for fix in timetable.fixes)
        raise InfeasibleError(
            f"the models do not fit: {timetable.binding_constraint}", where=planned.app, remedy=changes or None
        )
    planned = _with_ladder(planned, notify)
    return (planned if _is_verified(planned.timetable) else _verified(planned, notify)).identified


def names_plan(app: str | Path) -> bool:
    """Whether a path names a plan or a run rather than a workload: a ``.json`` file, or a folder with a timetable."""
    path = Path(app)
    return path.suffix == ".json" or path.is_dir()


def read_plan(path: str | Path, notify: Notify = silent) -> Plan:
    """A plan from its file: nothing is planned or measured again.

    Args:
        path: a file, or a folder with ``timetable.json``: of a plan, or of a run.
        notify: receives what is being done.

    Raises:
        InputError: no such file, or it holds no plan; the device, its description or a model is another one than
            the plan was made for.
    """
    path = Path(path) / _TIMETABLE if Path(path).is_dir() else Path(path)
    timetable = read_record(path, Timetable)
    source = timetable.source
    if source is None:
        raise InputError("this timetable does not say what it was made of", where=path, remedy=_AGAIN)
    notify("opening the plan")
    app, workload = Path(source.app), source.workload
    device = _device_of(app, workload)
    facts = plan_facts(device)
    for name in sorted({*facts, *source.device}):
        if facts.get(name) != source.device.get(name):
            raise InputError(
                f"the plan was made for another device: its {name} was {source.device.get(name)!r}, "
                f"now it is {facts.get(name)!r}",
                where=path,
                remedy=_AGAIN,
            )
    for entry in workload.models:
        if not Path(entry.path).is_file():
            raise InputError(f"model {entry.name!r} is not there any more: {entry.path}", where=path, remedy=_AGAIN)
    wired = {model.entry.name: model for model in wire(workload, app)}
    for planned in timetable.models:
        layers = planned.layers  # none: it was not laid out, for the models do not fit
        if layers is not None and wired[planned.name].model.digest != layers.digest:
            raise InputError(
                f"model {planned.name!r} is another one than the plan was made for ({wired[planned.name].entry.path})",
                where=path,
                remedy=_AGAIN,
            )
    request = PlanRequest(app, workload, in_real_time=source.in_real_time)
    priced = _without_table(request, device, notify)
    return Plan(
        app=app,
        workload=workload,
        timetable=msgspec.structs.replace(timetable, source=None),
        in_real_time=source.in_real_time,
        device=device,
        durations=priced.durations,
        wired=tuple(wired[model.name] for model in timetable.models),
        compiler=priced.compiler,
    )


def write_timetables(planned: Plan, folder: Path, *, force: bool = False) -> None:
    """Write a plan's timetables, and what each unit does, into a folder that is being made."""
    timetable = planned.stored
    write_record(folder / _TIMETABLE, timetable, force=force)
    for rung in () if timetable.ladder is None else timetable.ladder.rungs:
        write_record(folder / f"timetable-{rung.name}.json", rung.timetable, force=force)
    lists = InstructionLists(hyperperiod_windows=timetable.hyperperiod_windows, units=planned.instructions)
    write_record(folder / "instructions.json", lists, force=force)


def _device_of(app: Path, workload: Workload, *, computes: bool = True) -> Device:
    """The device that a workload names; what is wrong with its keys is said with the file that holds them."""
    try:
        return open_device(workload.target, folder=app.parent, settings=workload.machine, computes=computes)
    except InputError as error:
        if error.where is None or not error.where.startswith("$."):
            raise
        raise InputError(error.what, where=f"{app}: {error.where}", remedy=error.remedy) from error


def _check_output(path: Path, *, force: bool) -> None:
    """Refuse, before planning, a place where the plan could not be written."""
    if path.suffix == ".json":
        check_new(path, force=force)
    else:
        check_folder(path, _TIMETABLE, _WHAT, force=force)


def _write_plan(planned: Plan, path: Path, *, force: bool) -> None:
    """As a file that ends in ``.json``, or as a folder."""
    if path.suffix == ".json":
        write_record(path, planned.stored, force=force)
        return
    with write_whole_folder(path, _TIMETABLE, _WHAT, force=force) as part:
        write_timetables(planned, part)


def _priced(request: PlanRequest, device: Device, notify: Notify, *, cache: bool = True) -> PricedDevice:
    """A device with what launches take there: from the workload's table, stated by its description, or measured."""
    workload, bare = request.workload, _without_table(request, device, notify, cache=cache)
    if workload.table is None:
        return bare
    from framefit.workflows.table_durations import in_table  # loads latency, which nothing else here needs

    return dataclasses.replace(bare, units=in_table(workload, device, bare.units, notify))


def _without_table(request: PlanRequest, device: Device, notify: Notify, *, cache: bool = True) -> PricedDevice:
    """A device with what launches take there, as its description states or as it is measured."""
    workload, compiler = request.workload, Compiler(device)
    quantile, names = workload.schedule.quantile, usable_units(workload, device, request.app)
    store = MeasurementStore(workload.machine, fresh=not cache)
    host = (is_simulated(device) and device.computer) or device
    realtime = workload.schedule.preemption == "auto" and realtime_priority_permitted()

    def measured(unit: str, compiler: Compiler) -> MeasuredDurations:
        known = workload.machine.measured_as(unit)
        return MeasuredDurations(compiler, unit, known, store, workload.window_ns, quantile, notify, realtime=realtime)

    if not is_modelled(device):
        return PricedDevice(device, compiler, {unit: measured(unit, compiler) for unit in names})
    wakes: tuple[int, ...] = (0,)
    if request.in_real_time:
        with pinned(device.host_core), flushed_denormals():
            wakes = measured(host.target.units[0].name, Compiler(host)).wake_ups()
    alike = _alike(workload, device, names)
    units = {
        unit: ModelledDurations(device, unit, compiler, quantile, notify, wakes)
        for unit in dict.fromkeys(alike.values())
    }
    return PricedDevice(device, compiler, {unit: units[same] for unit, same in alike.items()})


def _alike(workload: Workload, device: Device, names: Sequence[str]) -> dict[str, str]:
    """For each unit the first one that takes as long for everything: the cycle model knows that of some."""
    if device.target.cost.source != "cycles" or workload.table is not None:
        return {name: name for name in names}
    units = [device.target.unit(name) for name in names]
    kinds = [msgspec.structs.replace(unit, name="any", core=0, memory_mib=None) for unit in units]
    return {name: names[kinds.index(kind)] for name, kind in zip(names, kinds, strict=True)}


def _with_ladder(planned: Plan, notify: Notify, warm: _Warm = _Warm()) -> Plan:
    """With all timetables that the workload asks for, their segments verified where the plan's own are."""
    laddered = with_ladder(planned, lambda request: again(planned, warm(request), notify), notify)
    if laddered is planned or not _is_verified(planned.timetable):
        return laddered
    assert laddered.timetable.ladder is not None
    notify(f"compiling {len(laddered.timetable.ladder.rungs) + 1} timetables")
    _verified(laddered, notify)
    return laddered


def _is_verified(timetable: Timetable) -> bool:
    """Whether its segments were launched once, and gave what whole models give."""
    return all(model.max_relative_difference is not None for model in timetable.models)


def _verified(planned: Plan, notify: Notify) -> Plan:
    """A plan whose segments were launched once, and gave what the whole models give."""
    notify("verifying the segments' outputs")
    if is_simulated(planned.device):
        planned.device.computes = planned.device.computer is not None
    with pinned(planned.device.host_core), flushed_denormals():
        return dataclasses.replace(planned, timetable=verify(planned.timetable, planned.opened().models))
