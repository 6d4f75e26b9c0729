"""The pictures of a run, made from its folder: ``trace.pftrace`` for viewers, and ``run.svg``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from framefit.core.files import read_record, write_whole
from framefit.core.host_view import HostView
from framefit.core.program import Launches
from framefit.core.timetable import Timetable
from framefit.profiling.pairing import pair_events
from framefit.report.drawing import run_picture, run_rows
from framefit.report.perfetto import write_perfetto

_MOST_SHOWN = 100_000  # launches in trace.pftrace and run.svg: some 20 MB


def write_run_pictures(folder: Path) -> None:
    """Write ``trace.pftrace`` and ``run.svg`` into a run folder: of a long run its last windows.

    Args:
        folder: with the run's records.

    Raises:
        InputError: a record is missing or cannot be read.
    """
    timetable, view = read_record(folder / "timetable.json", Timetable), HostView.read(folder)
    priority = [model.name for model in timetable.models if model.role == "priority"]
    pattern = max(len(timetable.windows), 1)
    first = first_shown(view.launches, pattern)
    seen, launches, releases = view.part(first)
    executed = pair_events(seen, view.program, launches)
    write_perfetto(
        folder / "trace.pftrace",
        executed,
        view.program,
        launches,
        releases,
        priority,
        in_force=view.in_force_from(int(releases[0]) if len(releases) else 0),
        force=True,
    )
    turn = first % pattern
    reserved, overhang = (
        {unit: ns[turn:] + ns[:turn] for unit, ns in rooms.items()}
        for rooms in (timetable.first_reserved_ns, timetable.overhang_ns)
    )
    rows = run_rows(executed, view.program, launches, releases, priority, reserved_ns=reserved, overhang_ns=overhang)
    with write_whole(folder / "run.svg", force=True) as file:
        file.write(run_picture(rows).encode())


def left_out(launches: Launches) -> list[str]:
    """Notes on what the pictures of a run will not show."""
    if len(launches) <= _MOST_SHOWN:
        return []
    return [f"trace.pftrace and run.svg show the last {_MOST_SHOWN} of {len(launches)} launches"]


def first_shown(launches: Launches, pattern: int) -> int:
    """The first window that the pictures show: of a long run its last part, whole repetitions where they are short.

    Args:
        launches: of the run.
        pattern: windows of the timetable until it repeats.
    """
    window = launches.window
    beyond = len(window) - _MOST_SHOWN
    if beyond <= 0:
        return 0
    first = -(-int(window[beyond]) // pattern) * pattern
    skipped = int(np.searchsorted(window, first)) - beyond
    return first if skipped <= _MOST_SHOWN // 2 else int(window[beyond])
