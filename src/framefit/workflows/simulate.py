"""``framefit simulate``: the same dispatcher on a described device, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from framefit.core.target import resolve_target
from framefit.devices.clock import VirtualClock
from framefit.devices.host import flushed_denormals
from framefit.devices.npu import NpuDevice
from framefit.errors import FramefitError, InputError
from framefit.workflows.ladder import with_ladder
from framefit.workflows.plan import Notify, Plan, plan, silent, verified
from framefit.workflows.running.asked import accepted, needs_feasible
from framefit.workflows.running.faults import asked_faults, check_faults
from framefit.workflows.running.folder import RunResult
from framefit.workflows.running.outcome import saved
from framefit.workflows.running.own_profile import check_table
from framefit.workflows.running.session import Session

__all__ = ["simulate"]


def simulate(
    app: str | Path | Plan,
    *,
    target: str | None = None,
    windows: int | None = None,
    seconds: float | None = None,
    outputs: bool = False,
    output: str | Path | None = None,
    force: bool = False,
    seed: int = 0,
    update_table: str | Path | None = None,
    inject: Sequence[str] = (),
    notify: Notify = silent,
    stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Play a workload through on a described device, faster than time, and write the run folder.

    The dispatcher is the one that runs for real; only clock and device are others. The
    device takes what its description says, varied from the seed; the same seed gives the
    same run, bit for bit.

    Args:
        app: an ``app.toml``, or a plan that was made of one for a described device.
        target: instead of the workload's: a built-in name, or the path of a ``target.toml``.
        windows: how many; or ``seconds`` (default 10) of the device's time.
        seconds: length of the run.
        outputs: read frames, compute outputs for real and give them to the sinks; else only
            time passes, and streams do not end.
        output: the run folder; default: ``runs/APP-N``, the first N that is free.
        force: overwrite folder and sinks.
        seed: of the device's variation, and of synthetic frames.
        update_table: write a latency table with what the layers really took there, for the next plan: the
            plan's, or the one that is there, with entries of this run's profile.
        inject: what is to go wrong, in words such as ``"raise:depth@2s"``; see
            :func:`~framefit.core.faults.read_fault`.
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
    path, workload, folder = accepted(
        app, windows=windows, seconds=seconds, output=output, force=force, seed=seed, sinks=outputs
    )
    faults = asked_faults(inject, workload)
    if isinstance(app, Plan):
        described = app.device.target
    else:
        described = resolve_target(target or workload.target, path.parent if target is None else Path())
    if described.kind != "npu":  # said before anything is measured
        raise InputError(
            f"target {described.name!r} is this machine, which cannot be simulated",
            where=path,
            remedy="name a described target (--target vpu; see framefit targets), or use framefit run",
        )
    planned = app if isinstance(app, Plan) else plan(app, target=target, notify=notify)
    needs_feasible(planned)
    check_table(planned, update_table)
    planned = with_ladder(verified(planned, notify), notify)
    device = planned.device
    assert isinstance(device, NpuDevice)
    device.clock, device.computes = VirtualClock(), outputs
    device.restart(seed)
    check_faults(faults, planned, frames=outputs)
    session = Session(planned, seed=seed, frames=outputs, inject=faults)
    session.reset()
    count = session.windows(windows, seconds)
    if outputs:
        session.open_sinks(force=force)
    crew = session.crew
    notify(f"simulating {count} windows")
    with flushed_denormals():
        failure = session.play(
            count,
            stop=lambda: crew.windows > 0 and stop(),
            on_idle=None if on_idle is None else lambda begun: on_idle(begun, count),
        )
    interrupted = crew.windows < count and not crew.ended and failure is None
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
        update_table=update_table,
        numbered=output is None,
        notify=notify,
    )
