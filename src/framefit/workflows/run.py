"""``framefit run``: the planned models, for real, on the beat.

``framefit simulate``: the same dispatcher on a described device, in virtual time.

``framefit soak``: a run until the device is warm: whether launches get slower, and by how much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from framefit.core.faults import read_fault
from framefit.core.journal import Claim, released
from framefit.core.settings import Notify, silent, verb
from framefit.core.soak import CONDITIONS, SoakResult, read_soak
from framefit.core.target import Target, resolve_target
from framefit.core.workload import Workload
from framefit.devices.clock import RealClock, VirtualClock
from framefit.devices.conditions import recorded_conditions
from framefit.devices.device import is_simulated
from framefit.devices.registry import capabilities_of
from framefit.errors import InputError
from framefit.planning.plan import Plan
from framefit.runtime.exporter import exported, metrics_address
from framefit.runtime.session import MeasuredRun, Session, check_faults
from framefit.workflows.plan import names_plan, plan, read_plan, ready
from framefit.workflows.record import (
    EarlierParts,
    RunResult,
    accepted,
    begin_record,
    check_table,
    claimed_run,
    earlier_parts,
    next_part,
    result_of,
    saved,
)
from framefit.workflows.settings import RunSettings, SimulateSettings, SoakSettings

__all__ = ["run", "simulate", "soak"]


@verb(RunSettings, "app")
def run(
    settings: RunSettings,
    *,
    notify: Notify = silent,
    stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Plan a workload, or open a stored plan, run it, and write the run folder.

    Args:
        settings: what to run, and for how long.
        notify: receives what is being done.
        stop: asked between launches; true ends the run, which is saved, once its first window has begun.
        on_idle: called with (windows begun, windows) where a window leaves time.

    Raises:
        InputError: see :func:`framefit.plan`; a folder or sink that exists; a length or seed that
            cannot be; a plan for virtual time; a stored plan for another device or other models.
        InfeasibleError: the plan does not fit.
        DeviceError: the device failed in mid-run; what happened until then is saved.

    Example:
        >>> framefit.run("app.toml", seconds=5).metrics.miss_ratio  # doctest: +SKIP
        0.0
    """
    return _play(settings, notify, stop, on_idle)


@verb(SimulateSettings, "app")
def simulate(
    settings: SimulateSettings,
    *,
    notify: Notify = silent,
    stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Play a workload through on a described device, faster than time, and write the run folder.

    The dispatcher is the one that runs for real; only clock and device are others. The
    device takes what its description says, varied from the seed; the same seed gives the
    same run, bit for bit.

    Args:
        settings: what to simulate, and for how long.
        notify: receives what is being done.
        stop: asked between launches; true ends the run, which is saved, once its first window has begun.
        on_idle: called with (windows begun, windows) where a window leaves time.

    Raises:
        InputError: see :func:`framefit.plan`; a target that is this machine's processor, a
            folder or sink that exists, a length or seed that cannot be; a stored plan for another device or
            other models.
        InfeasibleError: the plan does not fit.

    Example:
        >>> framefit.simulate("app.toml", target="vpu", windows=100_000).metrics.miss_ratio  # doctest: +SKIP
        0.0
    """
    return _play(settings, notify, stop, on_idle)


@verb(SoakSettings, "app")
def soak(
    settings: SoakSettings,
    *,
    notify: Notify = silent,
    stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[int, int], None] | None = None,
) -> SoakResult:
    """Run a workload for many minutes, with clocks, temperatures and power, where the machine has sensors for them.

    The run folder is that of a run, with ``conditions.jsonl``. The first minute is the reference, so begin with a cool
    device.

    Args:
        settings: what to run, and for how long.
        notify: receives what is being done.
        stop: asked between launches; true ends the run, and what was seen until then is the result.
        on_idle: called with (windows begun, windows) where a window leaves time.

    Raises:
        InputError: see :func:`framefit.run`; a described device, which does not get warm.
        InfeasibleError: the plan does not fit.
        DeviceError: the device failed in mid-run; what happened until then is saved.

    Example:
        >>> framefit.soak("app.toml", minutes=30).sustained  # doctest: +SKIP
        {'priority': 1.12, 'background': 1.15}
    """
    given: dict[str, Any] = {
        name: getattr(settings, name) for name in ("app", "target", "cache", "output", "force", "seed")
    }
    run_settings = RunSettings(**given, seconds=settings.minutes * 60)
    result = _play(run_settings, notify, stop, on_idle, sensors=True)
    return read_soak(result.folder)


def _play(
    settings: RunSettings | SimulateSettings,
    notify: Notify,
    stop: Callable[[], bool],
    on_idle: Callable[[int, int], None] | None,
    *,
    sensors: bool = False,
) -> RunResult:
    """Open a plan, run it on a real or a virtual clock, and write what happened."""
    if isinstance(settings, RunSettings) and settings.metrics is not None:
        metrics_address(settings.metrics)
    if settings.resume:
        return _resumed(settings, notify, stop, on_idle)
    app = _stored_plan(settings, notify)
    virtual = isinstance(settings, SimulateSettings)
    file = app.app if isinstance(app, Plan) else Path(app)
    with released(claimed_run(file, settings.output, force=settings.force)) as claim:
        path, workload, _ = accepted(
            app,
            windows=settings.windows,
            seconds=settings.seconds,
            output=settings.output,
            force=settings.force,
            seed=settings.seed,
            sinks=_computes(settings),
        )
        for text in settings.inject:
            read_fault(text, workload.grid.release_ns)
        _check_clock(app, workload, path, settings.target, virtual=virtual)
        if sensors and capabilities_of(described := _target(app, workload, path, settings.target)).simulated:
            raise InputError(
                f"target {described.name!r} is described, and does not get warm",
                where=path,
                remedy="soak on the device itself, or on its board: --on",
            )
        if isinstance(app, Plan):
            planned = app
        else:
            options = (
                {"cache": settings.cache, "kernels": settings.kernels} if isinstance(settings, RunSettings) else {}
            )
            planned = plan(app, target=settings.target, in_real_time=not virtual, notify=notify, **options)
        return _recorded(settings, planned, claim, None, notify, stop, on_idle, sensors=sensors)


def _resumed(
    settings: RunSettings | SimulateSettings,
    notify: Notify,
    stop: Callable[[], bool],
    on_idle: Callable[[int, int], None] | None,
) -> RunResult:
    """Go on with a run that was cut off: the same plan, the windows that are left."""
    folder = settings.app
    given = {name: getattr(settings, name) for name in ("target", "windows", "seconds", "output", "inject")}
    if isinstance(folder, Plan) or any(given.values()):
        raise InputError(
            "a run that is resumed keeps its plan, its target, its length and its faults",
            where=None if isinstance(folder, Plan) else folder,
            remedy="give its run folder and --resume, and nothing else",
        )
    with released(claimed_run(Path(folder), None, force=False, resumes=True)) as claim:
        before = earlier_parts(claim.folder)
        header = before.header
        verb = "simulate" if isinstance(settings, SimulateSettings) else "run"
        if header.verb != verb:
            raise InputError(
                f"was made by framefit {header.verb}",
                where=folder,
                remedy=f"framefit {header.verb} --resume {folder}",
            )
        left = header.windows - before.run.windows
        if left <= 0:
            raise InputError(f"all {header.windows} windows were run", where=folder, remedy=f"framefit report {folder}")
        planned = read_plan(before.folders[-1], notify)
        _check_clock(planned, planned.workload, Path(folder), None, virtual=verb == "simulate")
        changes: dict[str, Any] = {"windows": left, "seconds": None, "seed": header.seed, "inject": header.inject}
        if isinstance(settings, SimulateSettings):
            changes["outputs"] = header.outputs
        settings = msgspec.structs.replace(settings, output=str(folder), **changes)
        return _recorded(settings, planned, claim, before, notify, stop, on_idle)


def _computes(settings: RunSettings | SimulateSettings) -> bool:
    """Whether outputs are computed and given to sinks."""
    return settings.outputs if isinstance(settings, SimulateSettings) else True


def _recorded(
    settings: RunSettings | SimulateSettings,
    planned: Plan,
    claim: Claim,
    before: EarlierParts | None,
    notify: Notify,
    stop: Callable[[], bool],
    on_idle: Callable[[int, int], None] | None,
    *,
    sensors: bool = False,
) -> RunResult:
    """Play a plan on a real or a virtual clock, and record what happens in a claimed folder."""
    virtual, seed, outputs = isinstance(settings, SimulateSettings), settings.seed, _computes(settings)
    faults = [read_fault(text, planned.workload.grid.release_ns) for text in settings.inject]
    check_table(planned, settings.update_table)
    planned = ready(planned, notify)
    device = planned.device
    if is_simulated(device):
        device.clock, device.computes = VirtualClock() if virtual else RealClock(), outputs
    opened = planned.opened()
    check_faults(faults, opened, frames=outputs)
    session = Session(
        opened,
        seed=seed,
        frames=outputs,
        inject=faults,
        journal=next_part(claim, resumes=before is not None),
        before=None if before is None else before.run,
        parts=() if before is None else before.folders,
    )
    count, group = session.windows(settings.windows, settings.seconds), session.group
    measured = MeasuredRun(session, seed=seed, force=settings.force, measures=True, notify=notify)
    address = settings.metrics if isinstance(settings, RunSettings) else None
    with measured.processor(), contextlib.ExitStack() as beside:
        beside.enter_context(exported(session, address))
        measured.warm_up(count)
        part = begin_record(
            claim,
            measured,
            planned,
            verb="simulate" if virtual else "run",
            windows=count + (0 if before is None else before.run.windows),
            outputs=outputs,
            inject=settings.inject,
            resumes=before is not None,
        )
        if sensors:
            beside.enter_context(recorded_conditions(part / CONDITIONS))
        notify(f"{'simulating' if virtual else 'running'} {count} windows")
        measured.play(
            count,
            stop=lambda: stop() and group.windows > 0,  # in this order: it is asked just before launches
            on_idle=None if on_idle is None else lambda begun: on_idle(begun, count),
        )
    interrupted = group.windows < count and not group.ended and measured.failure is None
    measured.close()
    folder = claim.folder if settings.output is None else Path(settings.output)
    return saved(
        result_of(measured, folder, interrupted=interrupted),
        planned,
        claim,
        seed=seed,
        failure=measured.failure,
        update_table=settings.update_table,
        notify=notify,
    )


def _stored_plan(settings: RunSettings | SimulateSettings, notify: Notify) -> str | Path | Plan:
    """The plan that a path names; a workload's path, and a plan, stay as they are."""
    app: str | Path | Plan = settings.app
    if isinstance(app, Plan) or not names_plan(app):
        return app
    other = isinstance(settings, RunSettings) and (not settings.cache or settings.kernels is not None)
    if settings.target is not None or other:
        raise InputError(
            "a stored plan has its target, its kernels and its durations",
            where=app,
            remedy="leave --target, --kernels and --no-cache out, or plan again from the app.toml",
        )
    return read_plan(app, notify)


def _check_clock(app: str | Path | Plan, workload: Workload, path: Path, target: str | None, *, virtual: bool) -> None:
    """Refuse, before anything is measured, a target or a plan that does not go with the clock.

    Raises:
        InputError: a simulation of this machine, or a run of a plan for virtual time.
    """
    planned = app if isinstance(app, Plan) else None
    if not virtual:
        if planned is not None and is_simulated(planned.device) and not planned.in_real_time:
            raise InputError(
                "this plan is for virtual time: it leaves no time for this host's late wake-ups",
                where=path,
                remedy="simulate it (framefit simulate), plan with in_real_time=True, or give run the app.toml",
            )
        return
    described = _target(app, workload, path, target)
    if not capabilities_of(described).simulated:
        raise InputError(
            f"target {described.name!r} is this machine, which cannot be simulated",
            where=path,
            remedy="name a described target (--target vpu; see framefit targets), or use framefit run",
        )


def _target(app: str | Path | Plan, workload: Workload, path: Path, target: str | None) -> Target:
    """That it is run on."""
    if isinstance(app, Plan):
        return app.device.target
    return resolve_target(target or workload.target, path.parent if target is None else Path())
