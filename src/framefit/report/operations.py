"""Which operation of the program each entry of a log is, with all of its names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.profile import OperationLog
from framefit.core.program import Program


@dataclass(frozen=True)
class NamedOperation:
    """One operation of a program.

    Attributes:
        index: within its program, -1 where the program does not know it.
        program: its program's name; empty where it is unknown, as are ``model`` and ``layer``.
        segment: -1 where it is unknown.
    """

    index: int
    name: str
    kind: str
    unit: str
    layer: str
    program: str
    model: str
    segment: int


@dataclass(frozen=True)
class NamedOperations:
    """The operations that a log may name.

    Attributes:
        named: those of all programs one after the other, then one for each kind, core and unit of the
            entries that no program knows.
        row: int64, for each entry of the log its place in ``named``.
    """

    named: tuple[NamedOperation, ...]
    row: npt.NDArray[np.int64]

    @classmethod
    def of(cls, log: OperationLog, program: Program) -> NamedOperations:
        """Look every entry of ``log`` up in ``program``; what is not there is named after its kind."""
        named: list[NamedOperation] = []
        first = [0]
        for segment in program.programs:
            listed = [operation for group in segment.groups for operation in group.operations]
            named += [
                NamedOperation(at, op.name, op.kind, op.unit, op.layer, segment.name, segment.model, segment.segment)
                for at, op in enumerate(listed)
            ]
            first.append(len(named))
        known = (log.program >= 0) & (log.program < len(program.programs)) & (log.operation >= 0)
        row = np.asarray(first, np.int64)[np.where(known, log.program, 0)] + log.operation
        ends = np.asarray([*first[1:], 0], np.int64)
        known &= row < ends[np.where(known, log.program, -1)]
        if known.all():
            return cls(tuple(named), row)
        sources = np.stack([log.kind[~known].astype(np.int64), log.core[~known], log.unit[~known]], axis=1)
        unknown, which = np.unique(sources, axis=0, return_inverse=True)
        row[~known] = len(named) + which.reshape(-1)
        for kind, core, unit in unknown.tolist():
            name = log.kinds[kind] if 0 <= kind < len(log.kinds) else f"kind {kind}"
            unit_name = program.units[unit].name if unit >= 0 else f"core {core}"
            named.append(NamedOperation(-1, name, name, unit_name, "", "", "", -1))
        return cls(tuple(named), row)


@dataclass(frozen=True)
class UnitTrack:
    """What one unit did.

    Attributes:
        entries: int64, places in the log, by start.
        shares_core: whether other units send their packets on the same core.
    """

    name: str
    core: int
    entries: npt.NDArray[np.int64]
    shares_core: bool = False


def unit_tracks(log: OperationLog, program: Program) -> list[UnitTrack]:
    """One track a unit in the program's order, then one for each core of entries whose unit is not known."""
    names = [(unit.name, unit.core, log.unit == index) for index, unit in enumerate(program.units)]
    units_on = Counter(unit.core for unit in program.units)
    unknown = log.unit < 0
    names += [(f"core {core}", core, unknown & (log.core == core)) for core in np.unique(log.core[unknown]).tolist()]
    tracks = []
    for name, core, its in names:
        entries = np.flatnonzero(its)
        start_ns = log.start_ns[entries]
        if np.any(start_ns[1:] < start_ns[:-1]):
            entries = entries[np.argsort(start_ns, kind="stable")]
        tracks.append(UnitTrack(name, core, entries, units_on[core] > 1))
    return tracks
