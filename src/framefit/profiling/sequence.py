"""A program as arrays, with which packets are matched, and the result of matching a trace."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from framefit.core.profile import EventCounts, OperationLog
from framefit.core.program import Launches, Operation, Program
from framefit.errors import InputError


@dataclass(frozen=True)
class Sequence:
    """A program as arrays: the operations of all segments, one segment after the other.

    Attributes:
        operations: all of them; program ``p`` has ``first[p]`` to ``first[p + 1]`` - 1.
        first: int64, one more than there are programs.
        kind: int32, index into ``kinds``.
        core: int16, of the operation's unit.
        group: int32, index of the group within its program.
        expected_ns: float64, at least 1.
        sigma_ratio: float64.
        after_first, after: int64; ``after[after_first[i]:after_first[i + 1]]`` are the operations
            (positions in ``operations``) that end before operation ``i`` starts.
        kinds: the trace's, then those that only the program names.
        exclusive: bool, ``exclusive[a, b]``: operations on cores ``a`` and ``b`` never run at once; always true
            for a core with itself. Cores are positions in ``cores``.
        cores: int16, core numbers of the units, ascending.
        launch_program: int32, the program of each launch, in order; ``None`` if the first one repeats.
        submit_ns: int64, host clock, of the same length; ``None`` where it is not known.
        repeats: how often the first program repeats; ``None``: until the trace ends, or by ``launch_program``.
    """

    operations: tuple[Operation, ...]
    first: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int32]
    core: npt.NDArray[np.int16]
    group: npt.NDArray[np.int32]
    expected_ns: npt.NDArray[np.float64]
    sigma_ratio: npt.NDArray[np.float64]
    after_first: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    kinds: tuple[str, ...]
    exclusive: npt.NDArray[np.bool_]
    cores: npt.NDArray[np.int16]
    launch_program: npt.NDArray[np.int32] | None
    submit_ns: npt.NDArray[np.int64] | None
    repeats: int | None

    @classmethod
    def of(cls, program: Program, launches: Launches | None, kinds: tuple[str, ...]) -> Sequence:
        """Make it from a program, its launches (``None``: the first program repeats) and the kinds of the trace.

        Raises :class:`~framefit.errors.InputError` if an operation names a missing unit or operation, or a launch a
        missing program, or if there are no operations.
        """
        core_of = {unit.name: unit.core for unit in program.units}
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
                if op.unit not in core_of:
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
        cores = np.unique(np.array([unit.core for unit in program.units], np.int16))
        at = {int(core): index for index, core in enumerate(cores)}
        exclusive = np.eye(len(cores), dtype=bool)
        for together in program.exclusive:
            known = [at[core_of[name]] for name in together if name in core_of]
            exclusive[np.ix_(known, known)] = True
        return cls(
            operations=tuple(operations),
            first=np.array(first, np.int64),
            kind=np.array([kind_of[op.kind] for op in operations], np.int32),
            core=np.array([core_of[op.unit] for op in operations], np.int16),
            group=np.array(group, np.int32),
            expected_ns=np.array([max(op.expected_ns, 1) for op in operations], np.float64),
            sigma_ratio=np.array([op.sigma_ratio for op in operations], np.float64),
            after_first=np.cumsum([0, *(len(positions) for positions in after)], dtype=np.int64),
            after=np.array([index for positions in after for index in positions], np.int64),
            kinds=tuple(kind_of),
            exclusive=exclusive,
            cores=cores,
            launch_program=None if launches is None else launches.program,
            submit_ns=None if launches is None else launches.submit_ns,
            repeats=program.repeats,
        )

    def recorded(self, selected_kinds: tuple[str, ...] | None) -> npt.NDArray[np.bool_]:
        """Mark operations that a device records if it records ``selected_kinds`` only; ``None`` selects all."""
        if selected_kinds is None:
            return np.ones(len(self.operations), np.bool_)
        return np.array([op.kind in selected_kinds for op in self.operations], np.bool_)

    def coinciding(self, core: int, recorded: npt.NDArray[np.bool_], resolution_ns: int) -> npt.NDArray[np.bool_]:
        """Mark packets that a core can send twice at one time: edges of operations of one kind and hardly any duration.

        ``recorded`` (bool) marks operations that send packets. The result (bool) is indexed by ``2 * kind + type``.
        """
        result = np.zeros(2 * len(self.kinds), np.bool_)
        for first, end in itertools.pairwise(self.first.tolist()):
            operations = first + np.flatnonzero((self.core[first:end] == core) & recorded[first:end])
            operations = operations[np.argsort(self.kind[operations], kind="stable")]
            kind, took = self.kind[operations], self.expected_ns - 1  # which is 1 where nothing is expected
            ended = np.cumsum(np.where(self.core[first:end] == core, took[first:end], 0))[operations - first]
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
