"""A program as arrays, with which packets are matched, and the result of matching a trace."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import Trace
from framefit.core.profile import EventCounts, OperationLog
from framefit.core.program import Launches, Operation, Program
from framefit.errors import InputError

Ints = npt.NDArray[np.int64]
_NONE, _SEVERAL = -1, -2


class UnitTable(NamedTuple):
    """Says which unit a packet comes from, by its core and by the kind or the operation that it names.

    A track is everything that one unit did, in order. Units of one core that exclude each other, and exclude the same
    others, run one after the other in the order of the program: they share a track. So do units of one core whose
    packets look alike.

    Attributes:
        track: int64, track of each unit.
        track_core: int64, core number of each track.
        place: int64, row of each core number below; -1: no unit has it.
        by_kind: int64, cores x kinds, the unit whose operations are of the kind; -1: none, -2: several.
        by_operation: int64, cores x operations, the unit that runs the operation of this position in its program.
        track_by_kind, track_by_operation: int64, the same for tracks.
    """

    track: Ints
    track_core: Ints
    place: Ints
    by_kind: Ints
    by_operation: Ints
    track_by_kind: Ints
    track_by_operation: Ints

    @classmethod
    def of(cls, program: Program, kinds: tuple[str, ...], *, named: bool = False) -> UnitTable:
        """Make it for a program and the kinds of its trace; ``named``: every packet names its operation."""
        core = np.array([unit.core for unit in program.units], np.int64)
        number = {unit.name: index for index, unit in enumerate(program.units)}
        kind_of = {name: index for index, name in enumerate(kinds)}
        runs = {
            (number[op.unit], kind_of.get(op.kind, -1), position)
            for segment in program.programs
            for position, op in enumerate(op for group in segment.groups for op in group.operations)
            if op.unit in number
        }
        most = max((position for _, _, position in runs), default=0) + 1
        cores, row = np.unique(core, return_inverse=True)
        track = _share_tracks(program, core, runs, named=named)
        place = np.full(1 << 16, _NONE, np.int64)
        place[cores & 0xFFFF] = np.arange(len(cores))
        tables = [np.full((len(cores), size), _NONE, np.int64) for size in (len(kinds), most, len(kinds), most)]
        for unit, kind, position in sorted(runs):
            for table, column, value in zip(
                tables, (kind, position, kind, position), (unit, unit, track[unit], track[unit]), strict=True
            ):
                if column >= 0:
                    before = table[row[unit], column]
                    table[row[unit], column] = value if before in (_NONE, value) else _SEVERAL
        track_core = np.zeros(int(track.max(initial=-1)) + 1, np.int64)
        track_core[track] = core
        return cls(track, track_core, place, *tables)

    def units_of(self, trace: Trace) -> Ints:
        """Return the unit of each packet; negative where none or several could have sent it."""
        return np.asarray(_look_up(self.place, self.by_kind, self.by_operation, trace.core, trace.id, trace.operation))

    def tracks_of(self, trace: Trace) -> Ints:
        """Return the track of each packet; negative where none could have sent it."""
        tables = self.place, self.track_by_kind, self.track_by_operation
        return np.asarray(_look_up(*tables, trace.core, trace.id, trace.operation))


def exclusive_units(program: Program) -> npt.NDArray[np.bool_]:
    """Mark pairs of units that never run at once; a unit excludes itself."""
    number = {unit.name: index for index, unit in enumerate(program.units)}
    exclusive = np.eye(len(program.units), dtype=bool)
    for together in program.exclusive:
        known = [number[name] for name in together if name in number]
        exclusive[np.ix_(known, known)] = True
    return exclusive


def _share_tracks(program: Program, core: Ints, runs: set[tuple[int, int, int]], *, named: bool) -> Ints:
    """Return the track of each unit; tracks are numbered by core. ``runs``: units, kinds and operations' positions."""
    exclusive = exclusive_units(program)
    kinds: list[set[int]] = [set() for _ in program.units]
    positions: list[set[int]] = [set() for _ in program.units]
    for unit, kind, position in runs:
        kinds[unit].add(kind)
        positions[unit].add(position)
    track = np.arange(len(program.units))
    for first, second in itertools.combinations(range(len(track)), 2):
        if core[first] != core[second]:
            continue
        alike = bool(kinds[first] & kinds[second]) and not (named and not positions[first] & positions[second])
        if alike or np.array_equal(exclusive[first], exclusive[second]):
            track[track == track[second]] = track[first]
    order = {int(at): number for number, at in enumerate(sorted(set(track.tolist()), key=lambda at: (core[at], at)))}
    return np.array([order[int(at)] for at in track], np.int64)


@njit(cache=True, nogil=True, inline="always")
def look_up_packet(place: Any, by_kind: Any, by_operation: Any, core: Any, kind: Any, operation: Any) -> Any:
    """Return what a table of :class:`UnitTable` says of one packet: by its operation, or else by its kind."""
    row, result = place[np.int64(core) & 0xFFFF], np.int64(_NONE)
    if row >= 0:
        if 0 <= operation < by_operation.shape[1]:
            result = by_operation[row, operation]
        if result < 0 and 0 <= kind < by_kind.shape[1]:
            result = by_kind[row, kind]
    return result


@njit(cache=True, nogil=True)
def _look_up(place: Any, by_kind: Any, by_operation: Any, core: Any, kind: Any, operation: Any) -> Any:
    result = np.empty(len(core), np.int64)
    for index in range(len(core)):
        result[index] = look_up_packet(place, by_kind, by_operation, core[index], kind[index], operation[index])
    return result


@dataclass(frozen=True)
class Sequence:
    """A program as arrays: the operations of all segments, one segment after the other.

    Attributes:
        operations: all of them; program ``p`` has ``first[p]`` to ``first[p + 1]`` - 1.
        first: int64, one more than there are programs.
        kind: int32, index into ``kinds``.
        core: int16, of the operation's unit.
        unit: int16, position of the operation's unit in ``Program.units``.
        track: int64, of the operation's unit.
        group: int32, index of the group within its program.
        expected_ns: float64, at least 1.
        sigma_ratio: float64.
        after_first, after: int64; ``after[after_first[i]:after_first[i + 1]]`` are the operations
            (positions in ``operations``) that end before operation ``i`` starts.
        kinds: the trace's, then those that only the program names.
        exclusive: bool, ``exclusive[a, b]``: operations of tracks ``a`` and ``b`` never run at once; always true
            for a track with itself.
        units: says which unit and track a packet comes from.
        launch_program: int32, the program of each launch, in order; ``None`` if the first one repeats.
        submit_ns: int64, host clock, of the same length; ``None`` where it is not known.
        repeats: how often the first program repeats; ``None``: until the trace ends, or by ``launch_program``.
    """

    operations: tuple[Operation, ...]
    first: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int32]
    core: npt.NDArray[np.int16]
    unit: npt.NDArray[np.int16]
    track: Ints
    group: npt.NDArray[np.int32]
    expected_ns: npt.NDArray[np.float64]
    sigma_ratio: npt.NDArray[np.float64]
    after_first: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    kinds: tuple[str, ...]
    exclusive: npt.NDArray[np.bool_]
    units: UnitTable
    launch_program: npt.NDArray[np.int32] | None
    submit_ns: npt.NDArray[np.int64] | None
    repeats: int | None

    @classmethod
    def of(
        cls, program: Program, launches: Launches | None, kinds: tuple[str, ...], *, named: bool = False
    ) -> Sequence:
        """Make it from a program, its launches (``None``: the first program repeats) and the kinds of the trace.

        ``named`` says that every packet of the trace names its operation.

        Raises :class:`~framefit.errors.InputError` if an operation names a missing unit or operation, or a launch a
        missing program, or if there are no operations.
        """
        unit_of = {unit.name: index for index, unit in enumerate(program.units)}
        names = dict.fromkeys(
            (*kinds, *(op.kind for segment in program.programs for part in segment.groups for op in part.operations))
        )
        kind_of = {name: index for index, name in enumerate(names)}
        operations: list[Operation] = []
        group: list[int] = []
        after: list[list[int]] = []
        first = [0]
        for number, segment in enumerate(program.programs):
            where = f"program.json, $.programs[{number}]"
            here = [(op, part.index) for part in segment.groups for op in part.operations]
            position = {op.index: first[-1] + at for at, (op, _) in enumerate(here)}
            if len(position) < len(here):
                raise InputError("two operations have the same index", where=where, remedy="count through all groups")
            for op, part in here:
                unknown = [index for index in op.after if index not in position or index == op.index]
                if op.unit not in unit_of:
                    raise InputError(
                        f"operation {op.name!r} runs on unit {op.unit!r}, which is not defined",
                        where=where,
                        remedy="define it in $.units",
                    )
                if unknown:
                    raise InputError(
                        f"operation {op.name!r} comes after operation {unknown[0]}, which is missing",
                        where=where,
                        remedy="`after` lists indices of operations of the same program",
                    )
                operations.append(op)
                group.append(part)
                after.append([position[index] for index in op.after])
            first.append(len(operations))
        if not operations:
            raise InputError("has no operations", where="program.json", remedy="check that this is the trace's program")
        if launches is not None and len(launches):
            low, high = int(launches.program.min()), int(launches.program.max())
            if low < 0 or high >= len(program.programs):
                raise InputError(
                    f"a launch names program {low if low < 0 else high}, but there are {len(program.programs)}",
                    where=program.launches or "launches.npz",
                    remedy="check that launches and program belong together",
                )
        units = UnitTable.of(program, tuple(kind_of), named=named)
        exclusive = np.zeros((len(units.track_core), len(units.track_core)), np.bool_)
        np.logical_or.at(exclusive, tuple(np.ix_(units.track, units.track)), exclusive_units(program))
        unit = np.array([unit_of[op.unit] for op in operations], np.int16)
        return cls(
            operations=tuple(operations),
            first=np.array(first, np.int64),
            kind=np.array([kind_of[op.kind] for op in operations], np.int32),
            core=np.array([program.units[index].core for index in unit], np.int16),
            unit=unit,
            track=units.track[unit],
            group=np.array(group, np.int32),
            expected_ns=np.array([max(op.expected_ns, 1) for op in operations], np.float64),
            sigma_ratio=np.array([op.sigma_ratio for op in operations], np.float64),
            after_first=np.cumsum([0, *(len(positions) for positions in after)], dtype=np.int64),
            after=np.array([index for positions in after for index in positions], np.int64),
            kinds=tuple(kind_of),
            exclusive=exclusive,
            units=units,
            launch_program=None if launches is None else launches.program,
            submit_ns=None if launches is None else launches.submit_ns,
            repeats=program.repeats,
        )

    @property
    def tracks(self) -> int:
        """Number of tracks."""
        return len(self.units.track_core)

    def recorded(self, selected_kinds: tuple[str, ...] | None) -> npt.NDArray[np.bool_]:
        """Mark operations that a device records if it records ``selected_kinds`` only; ``None`` selects all."""
        if selected_kinds is None:
            return np.ones(len(self.operations), np.bool_)
        return np.array([op.kind in selected_kinds for op in self.operations], np.bool_)

    def coinciding(self, track: int, recorded: npt.NDArray[np.bool_], resolution_ns: int) -> npt.NDArray[np.bool_]:
        """Mark packets that a track can hold twice at one time: of operations of one kind and hardly any duration.

        ``recorded`` (bool) marks operations that send packets. The result (bool) is indexed by ``2 * kind + type``.
        """
        result = np.zeros(2 * len(self.kinds), np.bool_)
        for first, end in itertools.pairwise(self.first.tolist()):
            operations = first + np.flatnonzero((self.track[first:end] == track) & recorded[first:end])
            operations = operations[np.argsort(self.kind[operations], kind="stable")]
            kind, took = self.kind[operations], self.expected_ns - 1  # which is 1 where nothing is expected
            ended = np.cumsum(np.where(self.track[first:end] == track, took[first:end], 0))[operations - first]
            for type_, edge in enumerate((ended - took[operations], ended)):
                near = (kind[1:] == kind[:-1]) & (np.diff(edge) <= resolution_ns)
                result[2 * kind[1:][near] + type_] = True
        return result


class PacketClass(IntEnum):
    """The class of a packet after matching."""

    MATCHED = 0
    SPURIOUS = 1
    DUPLICATED = 2


@dataclass(frozen=True)
class Reconstruction:
    """The result of reconstructing a run from a trace.

    Attributes:
        log: every operation of every inference that the trace covers; of its first and last
            inference what lies within the trace.
        packet_class: uint8, :class:`PacketClass` of each packet, in order of arrival.
        out_of_order: bool, packets that arrived after one that happened later on the same core.
        calibrated: whether the intervals were checked on masked events of this trace.
        warnings: sentences.
    """

    log: OperationLog
    packet_class: npt.NDArray[np.uint8]
    out_of_order: npt.NDArray[np.bool_]
    calibrated: bool
    warnings: tuple[str, ...] = ()

    @property
    def counts(self) -> EventCounts:
        """Count the packets that were received, and those that the program expects."""
        matched = int(np.count_nonzero(self.packet_class == PacketClass.MATCHED))
        return EventCounts(
            received=len(self.packet_class),
            expected=2 * len(self.log),
            lost=2 * len(self.log) - matched,
            spurious=int(np.count_nonzero(self.packet_class == PacketClass.SPURIOUS)),
            duplicated=int(np.count_nonzero(self.packet_class == PacketClass.DUPLICATED)),
            out_of_order=int(np.count_nonzero(self.out_of_order)),
        )
