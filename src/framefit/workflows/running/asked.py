"""What a run is asked for: refused before the work of a plan where it cannot be done."""

from __future__ import annotations

from pathlib import Path

from framefit.core.workload import Workload, load_workload
from framefit.errors import InfeasibleError, InputError
from framefit.runtime.models.wiring import check_sinks
from framefit.workflows.plan import Plan
from framefit.workflows.running.folder import check_place, free_folder

__all__ = ["MOST_SECONDS", "accepted", "counted_windows", "needs_feasible"]

_DEFAULT_SECONDS = 10.0
MOST_SECONDS = 2.0**63 / 1e9  # 292 years


def counted_windows(windows: int | None, seconds: float | None, rate_hz: float) -> int:
    """How many windows are asked for; by default 10 seconds of them.

    Raises:
        InputError: none, told in two ways, or more than nanoseconds can count.
    """
    if windows is not None and seconds is not None:
        raise InputError("windows and seconds are both given", remedy="give one of them")
    asked = windows if windows is not None else seconds
    if asked is not None and not asked > 0:
        raise InputError(f"nothing to run: {asked}", remedy="ask for more than 0")
    if asked is not None and not asked < MOST_SECONDS * (1 if windows is None else rate_hz):
        raise InputError(
            f"{asked} {'seconds' if windows is None else 'windows'} are too many: times are nanoseconds in 64 bits",
            remedy=f"ask for less than {MOST_SECONDS:g} seconds",
        )
    return windows if windows is not None else max(round((seconds or _DEFAULT_SECONDS) * rate_hz), 1)


def accepted(
    app: str | Path | Plan,
    *,
    windows: int | None,
    seconds: float | None,
    output: str | Path | None,
    force: bool,
    seed: int,
    sinks: bool = True,
    workload: Workload | None = None,
) -> tuple[Path, Workload, Path]:
    """What a run is asked for, refused before the work of a plan where it cannot be done.

    Args:
        app: the file, or its plan.
        windows: how many; or
        seconds: of them.
        output: the run folder; ``None``: the first free one of the app's name.
        force: folder and sinks may exist.
        seed: of synthetic frames.
        sinks: whether they will be opened.
        workload: instead of the app's, where it was read already.

    Returns:
        The app's file, its workload, and where the run folder will lie.

    Raises:
        InputError: a length, seed or file that cannot be used; a folder or sink that exists.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", remedy="give 0 or a greater whole number")
    path = app.app if isinstance(app, Plan) else Path(app)
    folder = free_folder(path) if output is None else Path(output)
    check_place(folder, force=force)
    if workload is None:
        workload = app.workload if isinstance(app, Plan) else load_workload(path)
    counted_windows(windows, seconds, workload.beat_hz)
    if sinks:
        check_sinks(workload, path, force=force)  # they are only opened after warming up
    return path, workload, folder


def needs_feasible(planned: Plan) -> None:
    """Refuse a plan that does not fit.

    Raises:
        InfeasibleError: the binding constraint, with what would help.
    """
    timetable = planned.timetable
    if not timetable.feasible:
        changes = "; ".join(f"{fix.change} ({fix.effect})" for fix in timetable.fixes)
        raise InfeasibleError(
            f"the models do not fit: {timetable.binding_constraint}", where=planned.app, remedy=changes or None
        )
