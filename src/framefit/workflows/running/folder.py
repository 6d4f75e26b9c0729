"""The run folder: where it may lie, what is in it, and how it comes there whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.events import Trace
from framefit.core.files import check_folder, write_record, write_whole, write_whole_folder
from framefit.core.frames import FrameTable
from framefit.core.profile import Profile
from framefit.core.program import Launches, Program, write_program
from framefit.core.results import Metrics, RunInfo
from framefit.core.timetable import InstructionLists, Timetable
from framefit.devices.host import fingerprint
from framefit.errors import FramefitError
from framefit.report.files.frames import write_frames
from framefit.report.files.perfetto import write_perfetto
from framefit.report.pairs import executions
from framefit.report.pictures.rows import run_rows
from framefit.report.pictures.svg import run_picture
from framefit.scheduling.instructions import instructions
from framefit.workflows.plan import Plan

__all__ = ["RunResult", "check_place", "folder_stem", "free_folder", "left_out", "write_folder"]

Releases = np.ndarray[tuple[int], np.dtype[np.int64]]

_MARK, _WHAT = "run.json", "a run folder"
_MOST_SHOWN = 100_000  # launches in trace.pftrace and run.svg: some 20 MB


@dataclass(frozen=True)
class RunResult:
    """What a run or a simulation gave.

    Attributes:
        folder: the run folder, complete.
        timetable: the plan that was run.
        metrics: figures.
        frames: the fate of every frame; see :class:`~framefit.core.frames.FrameTable`.
        trace, program, launches, releases_ns: what happened, on the run's clock; the trace is the device's.
        seen, seen_program: the same as the host saw it, a launch an operation.
        interrupted: whether it was stopped before its end.
        in_force: from when on which timetable was in force.
        profile: what the device's trace says; ``None``: it could not be held against the program.
        warnings: what a reader of these should know, those of the plan first.
    """

    folder: Path
    timetable: Timetable
    metrics: Metrics
    frames: FrameTable
    trace: Trace
    program: Program
    seen: Trace
    seen_program: Program
    launches: Launches
    releases_ns: Releases
    interrupted: bool
    in_force: tuple[tuple[int, str], ...] = ()
    profile: Profile | None = None
    warnings: tuple[str, ...] = ()

    def part(self, first: int, last: int | None = None) -> tuple[Trace, Launches, Releases]:
        """What the host saw of windows ``first`` to ``last`` - 1 (default: to the end), for a picture."""
        seen, launches = self.seen, self.launches
        # Of several units one may already be in the next window when another one launches in the last.
        window = np.maximum.accumulate(launches.window)
        begin = int(np.searchsorted(window, first))
        end = len(launches) if last is None else int(np.searchsorted(window, last))
        told, events = slice(begin, end), slice(2 * begin, 2 * end)  # a START and an END each
        return (
            Trace(
                time_ns=seen.time_ns[events],
                id=seen.id[events],
                type=seen.type[events],
                core=seen.core[events],
                operation=seen.operation[events],
                kinds=seen.kinds,
            ),
            Launches(
                program=launches.program[told],
                window=launches.window[told],
                frame=launches.frame[told],
                submit_ns=launches.submit_ns[told],
            ),
            self.releases_ns[first:last],
        )


def left_out(launches: Launches) -> list[str]:
    """Notes on what the pictures of a run will not show."""
    if len(launches) <= _MOST_SHOWN:
        return []
    return [f"trace.pftrace and run.svg show the last {_MOST_SHOWN} of {len(launches)} launches"]


def _first_shown(result: RunResult) -> int:
    """The first window that the pictures show: of a long run its last part, whole repetitions where they are short."""
    window = result.launches.window
    beyond = len(window) - _MOST_SHOWN
    if beyond <= 0:
        return 0
    pattern = len(result.timetable.windows)
    first = -(-int(window[beyond]) // pattern) * pattern
    skipped = int(np.searchsorted(window, first)) - beyond
    return first if skipped <= _MOST_SHOWN // 2 else int(window[beyond])


def _shown(in_force: Sequence[tuple[int, str]], releases: Releases) -> list[tuple[int, str]]:
    """The timetables of the windows that the pictures show."""
    begin = int(releases[0]) if len(releases) else 0
    last = [(begin, name) for at, name in in_force if at <= begin][-1:]
    return [*last, *(one for one in in_force if one[0] > begin)]


def folder_stem(app: Path) -> Path:
    """``runs/APP``, to be numbered: named after the file, or its folder where it is just called app.toml."""
    return Path("runs") / (app.stem if app.stem != "app" else app.resolve().parent.name)


def free_folder(app: Path) -> Path:
    """``runs/APP-N``, the first N that is free now; which one it gets is decided when it is written."""
    stem, number = folder_stem(app), 1
    while (folder := stem.with_name(f"{stem.name}-{number}")).exists():
        number += 1
    return folder


def check_place(folder: Path, *, force: bool) -> None:
    """Whether a run folder may be written there: nothing else of the user's is ever replaced.

    Raises:
        InputError: something is there, without ``force`` or not a run folder.
    """
    check_folder(folder, _MARK, _WHAT, force=force)


def write_folder(
    result: RunResult,
    planned: Plan,
    *,
    seed: int,
    force: bool,
    command: str,
    error: FramefitError | None,
    claimed: bool = False,
) -> None:
    """The run folder: made beside its place, then renamed; ``claimed``: its number was."""
    with write_whole_folder(result.folder, _MARK, _WHAT, force=force, claimed=claimed) as part:
        info = RunInfo(
            command=command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seed=seed,
            interrupted=result.interrupted,
            error=None if error is None else str(error),
            workload=msgspec.to_builtins(planned.workload),
            host=dict(fingerprint()),
            warnings=result.warnings,
            app=str(planned.app.resolve()),
        )
        write_record(part / _MARK, info)
        write_record(part / "timetable.json", result.timetable)
        for rung in () if planned.ladder is None else planned.ladder.rungs[1:]:
            write_record(part / f"timetable-{rung.name}.json", rung.timetable)
        lists = InstructionLists(
            hyperperiod_windows=result.timetable.hyperperiod_windows, units=instructions(result.timetable)
        )
        write_record(part / "instructions.json", lists)
        write_program(part, result.program, result.launches)
        result.trace.write(part / "trace.npz")
        write_record(part / "metrics.json", result.metrics)
        if result.profile is not None:
            write_record(part / "profile.json", result.profile)
        write_frames(part / "frames.csv", result.frames)
        priority = [model.name for model in result.timetable.models if model.role == "priority"]
        first = _first_shown(result)
        seen, launches, releases = result.part(first)
        executed = executions(seen, result.seen_program, launches)
        write_perfetto(
            part / "trace.pftrace",
            executed,
            result.seen_program,
            launches,
            releases,
            priority,
            in_force=_shown(result.in_force, releases),
        )
        turn = first % max(len(result.timetable.windows), 1)
        reserved, overhang = (
            {unit: ns[turn:] + ns[:turn] for unit, ns in rooms.items()}
            for rooms in (result.timetable.first_reserved_ns, result.timetable.overhang_ns)
        )
        rows = run_rows(
            seen, result.seen_program, launches, releases, priority, reserved_ns=reserved, overhang_ns=overhang
        )
        with write_whole(part / "run.svg") as file:
            file.write(run_picture(rows).encode())
