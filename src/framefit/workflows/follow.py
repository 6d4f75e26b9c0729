"""``framefit profile --follow``: where a device is, from the packets that it sends just now."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

from framefit.core.files import Record
from framefit.core.profile import Profile
from framefit.core.program import Launches, Program, read_program
from framefit.errors import InputError
from framefit.profiling.align import Aligner, Position
from framefit.profiling.running import RunningProfile
from framefit.profiling.sequence import Sequence
from framefit.profiling.stream import chunks, read_header

__all__ = ["Whereabouts", "follow"]

_POLL_S = 0.05
_EVERY_S = 0.1  # between two reports: a screen's pace


class Whereabouts(Record, kw_only=True):
    """Where the device is, and what came so far.

    Attributes:
        inference: ordinal of the launch; -1: nothing is known yet, as with the next two.
        group: in the segment's program.
        operation: index within its program; the latest one that sent a packet.
        name: of the operation, behind its segment's.
        confidence: that all of this is so, 0 to 1.
        received: packets so far.
        settled: those of which it is known what they are.
        lost: events so far that did not come.
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
    on_position: Callable[[Whereabouts], None] | None = None,
) -> Profile:
    """Follow a raw stream, until it ends or ``stop`` says so.

    Memory does not grow with the stream.

    Args:
        source: a pipe, which ends with its writer; a file, which may grow, until ``stop``; "-": standard input.
        program: what is being executed.
        launches: of a ``program`` that is given as an object.
        confidence: of all intervals.
        seed: of the draws with which they are calibrated.
        stop: asked while nothing comes, and between packets.
        on_position: told some ten times a second where the device is, and at the end.

    Returns:
        The profile of what came.

    Raises:
        InputError: no such file, no stream, or a program that cannot be used.
    """
    if isinstance(program, str | Path):
        program, launches = read_program(program)
    where = "standard input" if str(source) == "-" else str(source)
    try:
        descriptor = os.dup(sys.stdin.fileno()) if str(source) == "-" else os.open(source, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where, remedy="check the path") from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return _followed(_Source(file.fileno(), stop), where, program, launches, confidence, seed, on_position)


class _Source:
    """Bytes as they come; a pipe's end is its end, a file's may still grow."""

    def __init__(self, descriptor: int, stop: Callable[[], bool]) -> None:
        self._descriptor, self._stop = descriptor, stop
        self._grows = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; none: there are none at present."""
        if self._stop():
            self._ended = True
            return b""
        ready, _, _ = select.select([self._descriptor], [], [], _POLL_S)
        if not ready:
            return b""
        found = os.read(self._descriptor, size)
        self._ended = not found and not self._grows
        return found

    def wait(self) -> bool:
        """Whether more may come."""
        if self._ended or self._stop():
            return False
        if self._grows:
            time.sleep(_POLL_S)
        return True


def _followed(
    source: _Source,
    where: str,
    program: Program,
    launches: Launches | None,
    confidence: float,
    seed: int,
    on_position: Callable[[Whereabouts], None] | None,
) -> Profile:
    header = read_header(source, source.wait, where)
    if header is None:
        sequence = Sequence.of(program, launches, ())
        return RunningProfile(sequence, program, confidence, 1).profile(
            calibrated=False, warnings=("the stream held no events",)
        )
    sequence = Sequence.of(program, launches, header.kinds)
    aligner = Aligner(sequence, len(header.kinds), header.meta, confidence=confidence, seed=seed)
    running = RunningProfile(sequence, program, confidence, header.meta.resolution_ns)
    received, told_s = 0, 0.0

    def tell() -> None:
        if on_position is None:
            return
        at, counts = aligner.position() or Position(-1, -1, -1, 0.0), running.counts()
        name = ""
        if at.inference >= 0:
            which = 0 if launches is None else int(launches.program[at.inference])
            one = program.programs[which]
            operations = [operation for group in one.groups for operation in group.operations]
            name = f"{one.name}/{operations[at.operation].name}"
        on_position(
            Whereabouts(
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

    for packets in chunks(source, header, source.wait):
        received += len(packets)
        settled = aligner.feed(packets)
        running.add(settled.log, settled.fate, aligner.out_of_order)
        if time.monotonic() - told_s >= _EVERY_S:
            tell()
            told_s = time.monotonic()
    tell()
    settled = aligner.close()
    running.add(settled.log, settled.fate, aligner.out_of_order[:0])
    return running.profile(calibrated=aligner.calibrated, warnings=aligner.warnings())
