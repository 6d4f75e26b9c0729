"""The host's view of a run: one operation for each launch, from the files of a run folder, for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace
from framefit.core.files import read_record
from framefit.core.program import Group, Launches, Operation, Program, read_program
from framefit.core.run_record import Metrics
from framefit.core.timetable import Segment, Timetable
from framefit.errors import InputError

__all__ = ["HostView", "whole_operation"]


Releases = npt.NDArray[np.int64]


def whole_operation(label: str, segment: Segment) -> Operation:
    """A launch of a segment as one operation with the duration in the timetable."""
    spread = max(segment.duration_ns / max(segment.median_ns, 1) - 1, 0.0) / 2.33
    return Operation.opaque(label, segment.last_layer, segment.unit, segment.median_ns, spread)


def host_program(program: Program, timetable: Timetable) -> Program:
    """A run's program with one operation for each segment.

    Args:
        program: the program that the device executed.
        timetable: the timetable of the run.
    """
    segments = [segment for model in timetable.launched.models for segment in model.segments]
    programs = tuple(
        msgspec.structs.replace(
            segment_program, groups=(Group(index=0, operations=(whole_operation(segment_program.name, segment),)),)
        )
        for segment_program, segment in zip(program.programs, segments, strict=True)
    )
    return msgspec.structs.replace(program, programs=programs)


@dataclass(frozen=True)
class HostView:
    """The host's view of a run.

    Attributes:
        trace: START and END of each launch, on the host's clock; nothing is lost.
        program: one operation for each segment.
        launches: as they were submitted.
        releases_ns: int64, one for each window.
        in_force: times at which timetables came into force, with their names.
    """

    trace: Trace
    program: Program
    launches: Launches
    releases_ns: Releases
    in_force: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, program: Program, timetable: Timetable, launches: Launches, metrics: Metrics) -> HostView:
        """Make the view from a run's records.

        Args:
            program: the program that the device executed.
            timetable: the timetable of the run.
            launches: with their ends, and the windows' releases.
            metrics: of the run: when each timetable came into force.
        """
        seen = host_program(program, timetable)
        finished_ns, releases_ns = launches.finished_ns, launches.releases_ns
        assert finished_ns is not None
        assert releases_ns is not None
        core_of = {unit.name: unit.core for unit in program.units}
        cores = np.asarray([core_of[segment_program.groups[0].operations[0].unit] for segment_program in seen.programs])
        which = launches.program
        trace = Trace(
            time_ns=np.stack([launches.submit_ns, finished_ns], axis=1).reshape(-1),
            id=np.repeat(which, 2).astype(np.int32),
            type=np.tile([EventType.START, EventType.END], len(which)).astype(np.uint8),
            core=np.repeat(cores[which] if len(which) else which, 2).astype(np.int16),
            operation=np.zeros(2 * len(which), np.int64),
            kinds=tuple(segment_program.name for segment_program in seen.programs),
        )
        in_force = [(int(releases_ns[0]), "planned")] if len(releases_ns) else []
        in_force += [(int(releases_ns[s.window]), s.rung) for s in metrics.switches if s.window < len(releases_ns)]
        return cls(trace, seen, launches, releases_ns, tuple(in_force))

    @classmethod
    def read(cls, folder: Path) -> HostView:
        """Read the view from a run's folder.

        Raises:
            InputError: a file cannot be read, or launches have no ends, as in files of earlier versions.
        """
        program, launches = read_program(folder / "program.json")
        if launches is None or launches.finished_ns is None or launches.releases_ns is None:
            raise InputError(
                "the launches do not say when they ended", where=folder / "launches.npz", remedy="run it again"
            )
        timetable = read_record(folder / "timetable.json", Timetable)
        return cls.of(program, timetable, launches, read_record(folder / "metrics.json", Metrics))

    def part(self, first: int, last: int | None = None) -> tuple[Trace, Launches, Releases]:
        """The view of windows ``first`` to ``last`` - 1 (default: to the end)."""
        seen, launches = self.trace, self.launches
        # One of several units may already be in the next window when another one launches in the last one.
        window = np.maximum.accumulate(launches.window)
        begin = int(np.searchsorted(window, first))
        end = len(launches) if last is None else int(np.searchsorted(window, last))
        of_launches, events = slice(begin, end), slice(2 * begin, 2 * end)  # a START and an END each
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
                program=launches.program[of_launches],
                window=launches.window[of_launches],
                frame=launches.frame[of_launches],
                submit_ns=launches.submit_ns[of_launches],
            ),
            self.releases_ns[first:last],
        )

    def in_force_from(self, begin_ns: int) -> Sequence[tuple[int, str]]:
        """The timetables in force from a time on, the first of them since then."""
        last = [(begin_ns, name) for at, name in self.in_force if at <= begin_ns][-1:]
        return [*last, *(change for change in self.in_force if change[0] > begin_ns)]
