"""From operations to a profile: totals, utilisation, gaps, and what was not as expected."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from framefit.core.profile import OperationLog, Profile
from framefit.core.program import Launches, Program
from framefit.core.run_record import Percentiles
from framefit.core.timetable import Timetable
from framefit.profiling.expectation import periods_not_kept, positions, slower_than_expected
from framefit.profiling.sequence import Rebuilt, Sequence
from framefit.profiling.totals import Sums

__all__ = ["summarise"]


Ints = npt.NDArray[np.int64]


def summarise(
    rebuilt: Rebuilt,
    sequence: Sequence,
    program: Program,
    *,
    method: str,
    confidence: float = 0.9,
    launches: Launches | None = None,
    timetable: Timetable | None = None,
    diagnosis: Iterable[str] = (),
    warnings: Iterable[str] = (),
    resolution_ns: int = 1,
) -> Profile:
    """Add up what happened; see :mod:`framefit.profiling.totals` for the intervals.

    Args:
        rebuilt: the operations, and what became of the packets.
        sequence: what they were held against.
        program: names models, segments and units.
        method: that rebuilt them.
        confidence: of the log's intervals; all others get it, too.
        launches: in the log's numbering of inferences; with their windows.
        timetable: with the priority periods.
        diagnosis: of the loss, as sentences.
        warnings: beside those of ``rebuilt``.
        resolution_ns: of the trace's clock.
    """
    log = rebuilt.log
    sums = Sums(log, sequence, confidence)
    position = positions(log, sequence)
    unit_names = {unit.core: unit.name for unit in program.units}
    units = [unit_names[int(core)] for core in sequence.cores]
    unit = np.searchsorted(sequence.cores, log.core).astype(np.int64)
    layers, layer_of = _numbered(
        f"{one.model}/{op.layer}" for one in program.programs for group in one.groups for op in group.operations
    )
    groups, group_of = _numbered(
        f"{one.name}/{group.index}" for one in program.programs for group in one.groups for _ in group.operations
    )
    covered = int(log.end_ns.max() - log.start_ns.min()) if len(log) else 0
    by_unit = sums.by(unit, units)
    return Profile(
        method=method,
        events=rebuilt.counts,
        inferences=len(np.unique(log.inference)),
        totals_by_kind=sums.by(log.kind.astype(np.int64), log.kinds),
        utilisation_by_unit={
            name: by_unit[name].duration_ns / covered if name in by_unit and covered else 0.0 for name in units
        },
        totals_by_layer=sums.by(layer_of[position], layers),
        totals_by_group=sums.by(group_of[position], groups),
        violations=(
            *slower_than_expected(log, sequence, program, confidence, resolution_ns),
            *periods_not_kept(log, program, launches, timetable, confidence, resolution_ns),
        ),
        diagnosis=tuple(diagnosis),
        calibrated=rebuilt.calibrated,
        warnings=tuple(dict.fromkeys((*warnings, *rebuilt.warnings))),
        confidence=confidence,
        covered_ns=covered,
        totals_by_unit=by_unit,
        gaps_by_unit=_gaps(log, unit, units),
    )


def _numbered(names: Iterable[str]) -> tuple[list[str], Ints]:
    """Distinct names in order, and each one's number."""
    number: dict[str, int] = {}
    numbers = [number.setdefault(name, len(number)) for name in names]
    return list(number), np.array(numbers, np.int64)


def _gaps(log: OperationLog, unit: Ints, names: list[str]) -> dict[str, Percentiles]:
    """Idle times between operations that follow each other on a unit; touching ones leave none."""
    order = np.lexsort((log.end_ns, log.start_ns, unit))
    idle = log.start_ns[order][1:] - log.end_ns[order][:-1]
    same = (unit[order][1:] == unit[order][:-1]) & (idle > 0)
    found = {}
    for index, name in enumerate(names):
        mine = idle[same & (unit[order][1:] == index)]
        if len(mine):
            found[name] = Percentiles.of(mine)
    return found
