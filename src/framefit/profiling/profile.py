"""Makes a profile from a trace: reads it with its program, reconstructs the run, and sums up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.files import read_record
from framefit.core.latency_table import LatencyTable
from framefit.core.profile import OperationLog, Profile
from framefit.core.program import Launches, Program, read_program
from framefit.core.run_record import Percentiles
from framefit.core.settings import Notify, silent
from framefit.core.timetable import Timetable
from framefit.errors import InputError
from framefit.profiling import rule
from framefit.profiling.diagnosis import diagnose
from framefit.profiling.expectation import (
    apply_table_to_program,
    find_overrun_periods,
    find_slow_operations,
    operation_positions,
)
from framefit.profiling.formats.readers import ReadTrace, read_trace
from framefit.profiling.order import check_order, log_likelihood
from framefit.profiling.pairing import pair_events
from framefit.profiling.sequence import PacketClass, Reconstruction, Sequence
from framefit.profiling.totals import MaskedRepair, Sums
from framefit.profiling.validation import (
    certify,
    drop_unreadable,
    find_first_launch,
    is_complete,
    repair_masked,
    sanity_warnings,
)

__all__ = ["ProfileInput", "ProfileResult", "apply_table", "open_trace", "profile_trace"]


Ints = npt.NDArray[np.int64]


def summarise(
    reconstruction: Reconstruction,
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
    repairs: Iterable[MaskedRepair] = (),
) -> Profile:
    """Sum up a run: totals, utilisation, gaps and violations; :mod:`framefit.profiling.totals` says how.

    ``confidence`` is that of the log's intervals, and all others get it, too. ``launches`` are in the log's numbering
    of inferences, ``resolution_ns`` is that of the trace's clock. ``warnings`` come before those of the
    reconstruction. ``repairs`` of masked edges calibrate the totals' intervals.
    """
    log = reconstruction.log
    sums = Sums(log, sequence, confidence, tuple(repairs))
    units, unit = [unit.name for unit in program.units], log.unit.astype(np.int64)
    layers, layer_of = _number_names(
        f"{part.model}/{op.layer}" for part in program.programs for group in part.groups for op in group.operations
    )
    groups, group_of = _number_names(
        f"{part.name}/{group.index}" for part in program.programs for group in part.groups for _ in group.operations
    )
    covered = int(log.end_ns.max() - log.start_ns.min()) if len(log) else 0
    by_unit = sums.by(lambda log: log.unit.astype(np.int64), units)
    return Profile(
        method=method,
        events=reconstruction.counts,
        inferences=len(np.unique(log.inference)),
        totals_by_kind=sums.by(lambda log: log.kind.astype(np.int64), log.kinds),
        utilisation_by_unit={
            name: by_unit[name].duration_ns / covered if name in by_unit and covered else 0.0 for name in units
        },
        totals_by_layer=sums.by(lambda log: layer_of[operation_positions(log, sequence)], layers),
        totals_by_group=sums.by(lambda log: group_of[operation_positions(log, sequence)], groups),
        violations=(
            *find_slow_operations(log, sequence, program, confidence, resolution_ns),
            *find_overrun_periods(log, program, launches, timetable, confidence, resolution_ns),
        ),
        diagnosis=tuple(diagnosis),
        calibrated=reconstruction.calibrated,
        warnings=tuple(dict.fromkeys((*warnings, *reconstruction.warnings))),
        confidence=confidence,
        covered_ns=covered,
        totals_by_unit=by_unit,
        gaps_by_unit=_idle_times(log, unit, units),
    )


def _number_names(names: Iterable[str]) -> tuple[list[str], Ints]:
    """Return distinct names in order, and the number of each name."""
    number: dict[str, int] = {}
    numbers = [number.setdefault(name, len(number)) for name in names]
    return list(number), np.array(numbers, np.int64)


def _idle_times(log: OperationLog, unit: Ints, names: list[str]) -> dict[str, Percentiles]:
    """Return idle times between consecutive operations of each unit; operations that touch leave none."""
    order = np.lexsort((log.end_ns, log.start_ns, unit))
    idle = log.start_ns[order][1:] - log.end_ns[order][:-1]
    same = (unit[order][1:] == unit[order][:-1]) & (idle > 0)
    percentiles = {}
    for index, name in enumerate(names):
        of_unit = idle[same & (unit[order][1:] == index)]
        if len(of_unit):
            percentiles[name] = Percentiles.of(of_unit)
    return percentiles


Method = Literal["align", "rule"]
_WORSE = 20.0  # nats by which alignment may be behind: where both are alike, its times are better


@dataclass(frozen=True)
class ProfileInput:
    """A trace with everything that is known about its run.

    Attributes:
        trace: as it was received.
        program: the program that was executed.
        launches: in order; ``None`` if the first program repeats.
        timetable: the plan, if there was one.
        where: name for messages.
        warnings: of reading.
    """

    trace: Trace
    program: Program
    launches: Launches | None
    timetable: Timetable | None
    where: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProfileResult:
    """A profile, and what it was made of.

    Attributes:
        profile: the figures.
        log: every operation.
        source: the trace and its program, with the expectations of a table if one was given.
        sequence: the program as arrays.
        folder: where the profile was written; ``None`` if it was not.
    """

    profile: Profile
    log: OperationLog
    source: ProfileInput
    sequence: Sequence
    folder: Path | None = None


def profile_trace(
    source: ProfileInput,
    *,
    method: Method = "align",
    confidence: float = 0.9,
    audit: bool = False,
    seed: int = 0,
    notify: Notify = silent,
) -> ProfileResult:
    """Make the profile of a trace.

    Args:
        source: the trace and its program.
        method: "align" or "rule".
        confidence: of all intervals, above 0 and below 1.
        audit: mask events of this trace, and find out how well they are reconstructed.
        seed: of that mask.
        notify: receives progress messages.

    Raises:
        InputError: program and launches do not belong together; no event of the trace is the program's.
    """
    trace, launches, first = source.trace, source.launches, 0
    if launches is not None and trace.meta.overwritten_events:
        first, before = find_first_launch(trace, source.program, launches)
        launches = _launches_from(launches, first)
        trace = dataclasses.replace(trace, meta=msgspec.structs.replace(trace.meta, overwritten_events=before))
    named = bool(np.all(trace.operation >= 0))
    sequence = Sequence.of(source.program, launches, trace.kinds, named=named)
    trace, notes = drop_unreadable(trace, sequence)
    reconstruction = None if launches is None else _pair_complete(trace, source.program, launches)
    if reconstruction is None:
        trace, contradictions = check_order(trace, sequence, source.where)
        notes += contradictions
    notify(f"matching {len(trace)} events with the program")
    methods = _Methods(method, sequence, source.program, confidence)
    reconstruct: Callable[[Trace], Reconstruction] = methods.reconstruct
    if reconstruction is None:
        reconstruction, reconstruct = methods.choose(trace)
    notes += sanity_warnings(reconstruction, trace, source.program, source.where)
    repairs = repair_masked(trace, reconstruction, reconstruct, seed)
    certificate = None
    if audit:
        notify("masking events to audit the reconstruction")
        certificate = certify(trace, reconstruction, reconstruct, seed)
        if certificate is None:
            notes.append("the trace has too few events for an audit")
    if first:
        log = dataclasses.replace(reconstruction.log, inference=reconstruction.log.inference + first)
        reconstruction = dataclasses.replace(reconstruction, log=log)
    notify("summing up")
    as_received = dataclasses.replace(trace, meta=source.trace.meta)
    summary = summarise(
        reconstruction,
        sequence,
        source.program,
        method=method,
        confidence=confidence,
        launches=source.launches,
        timetable=source.timetable,
        diagnosis=diagnose(as_received, sequence, reconstruction),
        warnings=(*source.warnings, *notes),
        resolution_ns=trace.meta.resolution_ns,
        repairs=repairs,
    )
    summary = msgspec.structs.replace(summary, certificate=certificate)
    return ProfileResult(summary, reconstruction.log, dataclasses.replace(source, trace=as_received), sequence)


def open_trace(
    trace: str | Path | Trace,
    program: str | Path | Program | None = None,
    launches: Launches | None = None,
    *,
    needs_program: bool = True,
) -> ProfileInput:
    """Read a trace and its program.

    Args:
        trace: a run folder, a trace file of any format, or a trace.
        program: a ``program.json`` with its launch list beside it, or a program; ``None``: as beside the
            trace, or as its format contains it.
        launches: of a ``program`` that is given as an object.
        needs_program: whether a missing program is an error; else the program is empty.

    Raises:
        InputError: a file cannot be used, or nothing says what was executed.
    """
    folder: Path | None = None
    read = ReadTrace(trace, None, ()) if isinstance(trace, Trace) else None
    if not isinstance(trace, Trace):
        path = Path(trace)
        if path.is_dir():
            folder, path = path, path / "trace.npz"
            if not path.is_file():
                raise InputError(
                    "is not a run folder: it has no trace.npz", where=trace, remedy="name a trace or a run folder"
                )
        read = read_trace(path)
        beside = path.with_name("program.json")
        if program is None and read.program is None and beside.is_file():
            program, folder = beside, path.parent
    assert read is not None
    where = "trace" if isinstance(trace, Trace) else str(trace)
    if isinstance(program, str | Path):
        folder = folder or Path(program).parent
        program, launches = read_program(program)
    if program is None:
        program, launches = read.program, None
    if program is None:
        if needs_program:
            raise InputError(
                "the program that was executed is unknown",
                where=where,
                remedy="name the program: --program program.json (docs/profiling.md says what is in it)",
            )
        program = Program(units=(), programs=())
    if program.launches is not None and launches is None:
        raise InputError(
            f"the program's launches are in {program.launches!r}, which was not given",
            where=where,
            remedy="give the launches beside the program, or the path of program.json",
        )
    timetable = None
    if folder is not None and (folder / "timetable.json").is_file():
        timetable = read_record(folder / "timetable.json", Timetable)
    packets, warnings = read.match(program) if program.programs else (read.trace, read.warnings)
    return ProfileInput(packets, program, launches, timetable, where, warnings)


@dataclass(frozen=True)
class _Methods:
    """The ways to reconstruct operations, of which one is chosen for a trace.

    Attributes:
        method: "align" stands for the likelier one of alignment and rule.
        sequence, program: what was executed.
        confidence: of intervals.
    """

    method: Method
    sequence: Sequence
    program: Program
    confidence: float

    def reconstruct(self, trace: Trace) -> Reconstruction:
        """Reconstruct the operations of a trace by the method that suits it."""
        return self.choose(trace)[0]

    def choose(self, trace: Trace) -> tuple[Reconstruction, Callable[[Trace], Reconstruction]]:
        """Reconstruct the operations of a trace, and return the method that suits it and what is masked of it, too.

        A trace that lost nothing needs no repair: where each packet is the next one that the program expects, that is
        how it was, and nothing is aligned. Masked, it has to be judged anew.
        """
        if self.method == "align" and (trace.meta.lost_events or len(trace.loss_after)):
            return self._by_alignment(trace)
        by_rule = self._by_rule(trace)
        complete = is_complete(by_rule, trace, self.sequence)
        by_rule = dataclasses.replace(by_rule, calibrated=complete)
        if self.method == "rule":
            return by_rule, self._by_rule
        if complete:
            return by_rule, self.reconstruct
        aligned, again = self._by_alignment(trace)
        by_times, by_order = (log_likelihood(each, trace, self.sequence) for each in (aligned, by_rule))
        if by_times > by_order - _WORSE:
            return aligned, again
        note = (
            "the order of the events alone explains the trace better than their times do, which are not as expected: "
            "events are matched in order, and lost ones are placed by rule"
        )
        return dataclasses.replace(by_rule, warnings=(*by_rule.warnings, note)), self._by_rule

    def _by_rule(self, trace: Trace) -> Reconstruction:
        return rule.reconstruct(trace, self.sequence, self.program.rule_offsets_ns)

    def _by_alignment(self, trace: Trace) -> tuple[Reconstruction, Callable[[Trace], Reconstruction]]:
        from framefit.profiling.align.aligner import reconstruct_and_learn  # compiled loops: only where needed

        reconstruction, learned = reconstruct_and_learn(trace, self.sequence, confidence=self.confidence)

        def again(part: Trace) -> Reconstruction:
            return reconstruct_and_learn(part, self.sequence, confidence=self.confidence, known=learned)[0]

        return reconstruction, again


def _pair_complete(trace: Trace, program: Program, launches: Launches) -> Reconstruction | None:
    """Return all operations of all launches, measured; ``None`` if something is missing. Units may preempt."""
    log = pair_events(trace, program, launches)
    if 2 * len(log) != len(trace) or not len(log) or (log.inference < 0).any():
        return None
    order = np.lexsort((log.operation, log.inference))
    columns = {field.name: getattr(log, field.name) for field in dataclasses.fields(log) if field.name != "kinds"}
    return Reconstruction(
        log=OperationLog(**{name: column[order] for name, column in columns.items()}, kinds=log.kinds),
        packet_class=np.full(len(trace), PacketClass.MATCHED, np.uint8),
        out_of_order=np.zeros(len(trace), bool),
        calibrated=True,
    )


def apply_table(source: ProfileInput, table: LatencyTable) -> ProfileInput:
    """Expect the durations of a latency table; a warning says what the table lacks.

    Args:
        source: the trace and its program.
        table: latency table of the device.
    """
    program, covered, lacking = apply_table_to_program(source.program, table)
    notes = list(source.warnings)
    if not covered:
        notes.append("the table has no entry for any operation: the durations of the program are expected")
    elif lacking:
        notes.append(
            f"the table has no entry for {lacking} of {covered + lacking} operations: "
            "the durations of the program are expected of these"
        )
    return dataclasses.replace(source, program=program, warnings=tuple(notes))


def _launches_from(launches: Launches, first: int) -> Launches:
    """Return the launches from ``first`` on."""
    return Launches(
        program=launches.program[first:],
        window=launches.window[first:],
        frame=launches.frame[first:],
        submit_ns=launches.submit_ns[first:],
    )
