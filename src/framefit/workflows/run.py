"""``framefit run``: the planned models, for real, on the beat.

``framefit simulate``: the same dispatcher on a described device, in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from framefit.core.settings import Notify, silent, verb
from framefit.core.target import resolve_target
from framefit.devices.clock import RealClock, VirtualClock
from framefit.devices.device import is_modelled, is_simulated
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.measure import measure_floor
from framefit.devices.registry import capabilities_of
from framefit.errors import FramefitError, InputError
from framefit.planning.plan import Plan
from framefit.workflows.ladder import with_ladder
from framefit.workflows.plan import plan, verified
from framefit.workflows.record import RunResult, accepted, check_table, needs_feasible
from framefit.workflows.session import Session, asked_faults, check_faults, saved
from framefit.workflows.settings import RunSettings, SimulateSettings

__all__ = ["run", "simulate"]


_LEAST_FLOOR, _MOST_FLOOR = 30, 150  # windows of the idle control


@verb(RunSettings, "app")
def run(
    settings: RunSettings,
    *,
    notify: Notify = silent,
    stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Plan a workload, run it, and write the run folder.

    Args:
        settings: what to run, and for how long.
        notify: receives what is being done.
        stop: asked from the first window on; true ends the run, which is saved.
        on_idle: called with (windows begun, windows) where a window leaves time.

    Raises:
        InputError: see :func:`framefit.plan`; a folder or sink that exists; a length or seed that
            cannot be; a plan for virtual time.
        InfeasibleError: the plan does not fit.
        DeviceError: the device failed in mid-run; what happened until then is saved.

    Example:
        >>> framefit.run("app.toml", seconds=5).metrics.miss_ratio  # doctest: +SKIP
        0.0
    """
    app, seed, force = settings.app, settings.seed, settings.force
    path, workload, folder = accepted(
        app, windows=settings.windows, seconds=settings.seconds, output=settings.output, force=force, seed=seed
    )
    faults = asked_faults(settings.inject, workload)
    if isinstance(app, Plan) and is_simulated(app.device) and not app.in_real_time:
        raise InputError(
            "this plan is for virtual time: it leaves no time for this host's late wake-ups",
            where=path,
            remedy="plan with in_real_time=True, or give run the app.toml",
        )
    if isinstance(app, Plan):
        planned = app
    else:
        planned = plan(app, target=settings.target, cache=settings.cache, in_real_time=True, notify=notify)
    needs_feasible(planned)
    check_table(planned, settings.update_table)
    planned = with_ladder(verified(planned, notify), notify)
    device = planned.device
    if is_simulated(device):
        device.clock, device.computes = RealClock(), True
    check_faults(faults, planned, frames=True)
    session = Session(planned, seed=seed, inject=faults)
    count = session.windows(settings.windows, settings.seconds)
    group = session.group
    with pinned(device.host_core), flushed_denormals():
        notify("warming up")
        if is_modelled(device):  # whose launches are not measured
            session.launch_all()
        around = [session.measure()]
        notify("idle control")
        idle_windows = int(np.clip(count // 10, _LEAST_FLOOR, _MOST_FLOOR))
        floor = measure_floor(device.clock, planned.timetable.window_ns, idle_windows)
        session.ready(seed)
        session.open_sinks(force=force)  # last: whatever fails before leaves none behind
        notify(f"running {count} windows")
        failure = session.play(
            count,
            stop=lambda: group.windows > 0 and stop(),
            on_idle=None if on_idle is None else lambda begun: on_idle(begun, count),
        )
        interrupted = group.windows < count and not group.ended and failure is None
        if failure is None:
            notify("measuring once more")
            around.append(session.measure())
        device.events()
    try:
        session.close()
    except FramefitError as error:
        failure = failure or error
    result = session.result(folder, floor, around, interrupted=interrupted)
    return saved(
        result,
        planned,
        seed=seed,
        force=force,
        failure=failure,
        update_table=settings.update_table,
        numbered=settings.output is None,
        notify=notify,
    )


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
        stop: asked from the first window on; true ends the run, which is saved.
        on_idle: called with (windows begun, windows) where a window leaves time.

    Raises:
        InputError: see :func:`framefit.plan`; a target that is this machine's processor, a
            folder or sink that exists, a length or seed that cannot be.
        InfeasibleError: the plan does not fit.

    Example:
        >>> framefit.simulate("app.toml", target="vpu", windows=100_000).metrics.miss_ratio  # doctest: +SKIP
        0.0
    """
    app, target, outputs = settings.app, settings.target, settings.outputs
    seed, force = settings.seed, settings.force
    path, workload, folder = accepted(
        app,
        windows=settings.windows,
        seconds=settings.seconds,
        output=settings.output,
        force=force,
        seed=seed,
        sinks=outputs,
    )
    faults = asked_faults(settings.inject, workload)
    if isinstance(app, Plan):
        described = app.device.target
    else:
        described = resolve_target(target or workload.target, path.parent if target is None else Path())
    if not capabilities_of(described).simulated:  # said before anything is measured
        raise InputError(
            f"target {described.name!r} is this machine, which cannot be simulated",
            where=path,
            remedy="name a described target (--target vpu; see framefit targets), or use framefit run",
        )
    planned = app if isinstance(app, Plan) else plan(app, target=target, notify=notify)
    needs_feasible(planned)
    check_table(planned, settings.update_table)
    planned = with_ladder(verified(planned, notify), notify)
    device = planned.device
    assert is_simulated(device)
    device.clock, device.computes = VirtualClock(), outputs
    device.restart(seed)
    check_faults(faults, planned, frames=outputs)
    session = Session(planned, seed=seed, frames=outputs, inject=faults)
    session.reset()
    count = session.windows(settings.windows, settings.seconds)
    if outputs:
        session.open_sinks(force=force)
    group = session.group
    notify(f"simulating {count} windows")
    with flushed_denormals():
        failure = session.play(
            count,
            stop=lambda: group.windows > 0 and stop(),
            on_idle=None if on_idle is None else lambda begun: on_idle(begun, count),
        )
    interrupted = group.windows < count and not group.ended and failure is None
    try:
        session.close()
    except FramefitError as error:
        failure = failure or error
    result = session.result(folder, np.zeros(1, np.int64), [session.measure()], interrupted=interrupted)
    return saved(
        result,
        planned,
        seed=seed,
        force=force,
        failure=failure,
        update_table=settings.update_table,
        numbered=settings.output is None,
        notify=notify,
    )
