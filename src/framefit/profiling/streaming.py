"""Follows a stream of packets: where the device is, and a profile that grows in bounded memory."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace, TraceMeta
from framefit.core.files import Record
from framefit.core.profile import EventCounts, OperationLog, Profile, Totals
from framefit.core.program import Launches, Program, read_program
from framefit.errors import InputError
from framefit.profiling.align.aligner import Aligner, Position
from framefit.profiling.event_log import concatenate_logs, empty_log
from framefit.profiling.formats.raw import join_packets, read_chunks, read_header
from framefit.profiling.order import check_order
from framefit.profiling.profile import summarise
from framefit.profiling.sequence import PacketClass, Reconstruction, Sequence
from framefit.profiling.validation import drop_unreadable

__all__ = ["StreamPosition", "follow"]


_BLOCK = 100_000  # operations that are kept: some 15 MB


class RunningProfile:
    """Sums up blocks of operations as they become certain.

    Sums are of the whole stream; their intervals are added as if all blocks were wrong in the same
    direction, which errs on the side of caution. Violations and gaps are those of the latest block.
    """

    def __init__(self, sequence: Sequence, program: Program, confidence: float, resolution_ns: int) -> None:
        self._sequence, self._program = sequence, program
        self._confidence, self._resolution_ns = confidence, resolution_ns
        self._logs: list[OperationLog] = []
        self._before: Profile | None = None
        self._packet_classes = np.zeros(len(PacketClass), np.int64)
        self._late = 0
        self._first_ns: int | None = None
        self._last_ns = 0

    def add(self, log: OperationLog, packet_class: npt.NDArray[np.uint8], late: npt.NDArray[np.bool_]) -> None:
        """Add the next operations in order, and the class of the next packets and whether they came ``late``."""
        self._packet_classes += np.bincount(packet_class, minlength=len(PacketClass))
        self._late += int(np.count_nonzero(late))
        if not len(log):
            return
        first, last = int(log.start_ns.min()), int(log.end_ns.max())
        self._first_ns = first if self._first_ns is None else min(self._first_ns, first)
        self._last_ns = max(self._last_ns, last)
        self._logs.append(log)
        if sum(map(len, self._logs)) >= _BLOCK:
            self._before = self._join(self._block(calibrated=True, warnings=()))
            self._logs = []

    def counts(self) -> EventCounts:
        """Count the packets so far, and those that the program expects."""
        matched = int(self._packet_classes[PacketClass.MATCHED])
        expected = 2 * sum(map(len, self._logs)) + (0 if self._before is None else self._before.events.expected)
        return EventCounts(
            received=int(self._packet_classes.sum()),
            expected=expected,
            lost=max(expected - matched, 0),
            spurious=int(self._packet_classes[PacketClass.SPURIOUS]),
            duplicated=int(self._packet_classes[PacketClass.DUPLICATED]),
            out_of_order=self._late,
        )

    def profile(self, *, calibrated: bool, warnings: tuple[str, ...] = ()) -> Profile:
        """Return the profile of everything so far, with the warnings of the method."""
        whole = self._before
        if self._logs or whole is None:
            whole = self._join(self._block(calibrated=calibrated, warnings=warnings))
        elif warnings:
            whole = msgspec.structs.replace(whole, warnings=tuple(dict.fromkeys((*whole.warnings, *warnings))))
        covered = 0 if self._first_ns is None else self._last_ns - self._first_ns
        return msgspec.structs.replace(
            whole,
            events=self.counts(),
            calibrated=calibrated,
            covered_ns=covered,
            utilisation_by_unit={
                name: whole.totals_by_unit[name].duration_ns / covered
                if name in whole.totals_by_unit and covered
                else 0.0
                for name in whole.utilisation_by_unit
            },
        )

    def _block(self, *, calibrated: bool, warnings: tuple[str, ...]) -> Profile:
        log = concatenate_logs(self._logs) if self._logs else empty_log(self._sequence.kinds)
        nothing = np.zeros(0, np.uint8)
        reconstruction = Reconstruction(log, nothing, nothing.astype(np.bool_), calibrated, warnings)
        return summarise(
            reconstruction,
            self._sequence,
            self._program,
            method="align",
            confidence=self._confidence,
            resolution_ns=self._resolution_ns,
        )

    def _join(self, block: Profile) -> Profile:
        before = self._before
        if before is None:
            return block
        return msgspec.structs.replace(
            block,
            events=self.counts(),
            inferences=before.inferences + block.inferences,
            totals_by_kind=_add_totals(before.totals_by_kind, block.totals_by_kind),
            totals_by_layer=_add_totals(before.totals_by_layer, block.totals_by_layer),
            totals_by_group=_add_totals(before.totals_by_group, block.totals_by_group),
            totals_by_unit=_add_totals(before.totals_by_unit, block.totals_by_unit),
            warnings=tuple(dict.fromkeys((*before.warnings, *block.warnings))),
        )


def _add_totals(before: dict[str, Totals], block: dict[str, Totals]) -> dict[str, Totals]:
    totals = dict(before)
    for name, new in block.items():
        old = totals.get(name)
        if old is None:
            totals[name] = new
            continue
        count = old.count + new.count
        totals[name] = Totals(
            count=count,
            duration_ns=old.duration_ns + new.duration_ns,
            interval_ns=(old.interval_ns[0] + new.interval_ns[0], old.interval_ns[1] + new.interval_ns[1]),
            inferred_ratio=(old.inferred_ratio * old.count + new.inferred_ratio * new.count) / count,
        )
    return totals


_POLL_S = 0.05
_EVERY_S = 0.1  # between two reports: a screen's pace
_JUDGED = 4096  # packets that show whether the program is the stream's


class StreamPosition(Record, kw_only=True):
    """Where the device is, and how much was received so far.

    Attributes:
        inference: ordinal of the launch; -1, as the next two, if nothing is known yet.
        group: group of the operation in its program.
        operation: index within its program of the latest operation that sent a packet.
        name: of the operation, after that of its segment.
        confidence: probability that all of this is right.
        received: packets so far.
        settled: packets whose class is known.
        lost: lost events so far.
    """

    inference: int
    group: int
    operation: int
    name: str
    confidence: float
    received: int
    settled: int
    lost: int


def follow(
    source: str | Path,
    program: str | Path | Program,
    *,
    launches: Launches | None = None,
    confidence: float = 0.9,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
    on_position: Callable[[StreamPosition], None] | None = None,
) -> Profile:
    """Follow a raw stream until it ends or ``stop`` returns true; memory does not grow with the stream.

    Args:
        source: a pipe, which ends with its writer; a file, which may grow, until ``stop``; "-": standard input.
        program: the program that is being executed.
        launches: of a ``program`` that is given as an object.
        confidence: of all intervals.
        seed: of the draws with which they are calibrated.
        stop: called between packets and while there are none.
        on_position: receives the position of the device some ten times a second, and at the end.

    Returns:
        The profile of the stream.

    Raises:
        InputError: the file is missing or no raw stream, the program cannot be used, or its order is not that of the
            stream's first packets.
    """
    if isinstance(program, str | Path):
        program, launches = read_program(program)
    where = "standard input" if str(source) == "-" else str(source)
    try:
        descriptor = os.dup(sys.stdin.fileno()) if str(source) == "-" else os.open(source, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where, remedy="check the path") from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return _profile_stream(
            _StreamSource(file.fileno(), stop), where, program, launches, confidence, seed, on_position
        )


class _StreamSource:
    """Reads bytes as they come; a pipe ends with its writer, while a file may still grow."""

    def __init__(self, descriptor: int, stop: Callable[[], bool]) -> None:
        self._descriptor, self._stop = descriptor, stop
        self._grows = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, and none if there are none at present."""
        if self._stop():
            self._ended = True
            return b""
        ready, _, _ = select.select([self._descriptor], [], [], _POLL_S)
        if not ready:
            return b""
        data = os.read(self._descriptor, size)
        self._ended = not data and not self._grows
        return data

    def wait(self) -> bool:
        """Whether more bytes may come."""
        if self._ended or self._stop():
            return False
        if self._grows:
            time.sleep(_POLL_S)
        return True


class _OrderCheck:
    """Refuses a stream whose first packets are not in the order of the program.

    Raises :class:`~framefit.errors.InputError` once there are enough of them, or at the end of the stream. Where the
    device has overwritten packets of listed launches, the first ones may be of any launch, and nothing is checked.
    """

    def __init__(self, sequence: Sequence, meta: TraceMeta, where: str) -> None:
        self._sequence, self._where = sequence, where
        self._open = not (sequence.launch_program is not None and meta.overwritten_events)
        self._parts: list[Trace] = []

    def add(self, packets: Trace) -> None:
        """Take in the next packets."""
        if self._open:
            self._parts.append(packets)
            if sum(map(len, self._parts)) >= _JUDGED:
                self.close()

    def close(self) -> None:
        """Check what there is, if that is not done."""
        if self._open and self._parts:
            readable, _ = drop_unreadable(join_packets(self._parts), self._sequence)
            check_order(readable, self._sequence, self._where)
        self._open, self._parts = False, []


def _profile_stream(
    source: _StreamSource,
    where: str,
    program: Program,
    launches: Launches | None,
    confidence: float,
    seed: int,
    on_position: Callable[[StreamPosition], None] | None,
) -> Profile:
    header = read_header(source, source.wait, where)
    if header is None:
        sequence = Sequence.of(program, launches, ())
        return RunningProfile(sequence, program, confidence, 1).profile(
            calibrated=False, warnings=("the stream had no events",)
        )
    sequence = Sequence.of(program, launches, header.kinds)
    aligner = Aligner(sequence, len(header.kinds), header.meta, confidence=confidence, seed=seed)
    running = RunningProfile(sequence, program, confidence, header.meta.resolution_ns)
    received, reported_s = 0, 0.0

    def report_position() -> None:
        if on_position is None:
            return
        at, counts = aligner.position() or Position(-1, -1, -1, 0.0), running.counts()
        name = ""
        if at.inference >= 0:
            which = 0 if launches is None else int(launches.program[at.inference])
            segment = program.programs[which]
            operations = [operation for group in segment.groups for operation in group.operations]
            name = f"{segment.name}/{operations[at.operation].name}"
        on_position(
            StreamPosition(
                inference=at.inference,
                group=at.group,
                operation=at.operation,
                name=name,
                confidence=at.confidence,
                received=received,
                settled=counts.received,
                lost=counts.lost,
            )
        )

    order = _OrderCheck(sequence, header.meta, where)
    for packets in read_chunks(source, header, source.wait):
        received += len(packets)
        order.add(packets)
        settled = aligner.feed(packets)
        running.add(settled.log, settled.packet_class, aligner.out_of_order)
        if time.monotonic() - reported_s >= _EVERY_S:
            report_position()
            reported_s = time.monotonic()
    report_position()
    order.close()
    settled = aligner.close()
    running.add(settled.log, settled.packet_class, aligner.out_of_order[:0])
    return running.profile(calibrated=aligner.calibrated, warnings=aligner.warnings())
