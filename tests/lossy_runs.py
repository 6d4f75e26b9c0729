"""Runs with a known truth, for tests of what profiling makes of their traces."""

from __future__ import annotations

import msgspec
import numpy as np

from framefit.core.events import Trace, TraceMeta
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram


def segment(name: str, *operations: tuple[str, str, int]) -> SegmentProgram:
    """Operations in one group as (kind, unit, expected_ns), each after the one before it."""
    made = tuple(
        Operation(
            index=index,
            name=f"{kind}_{index}",
            layer=f"layer_{index}",
            kind=kind,
            unit=unit,
            expected_ns=expected_ns,
            sigma_ratio=0.1,
        )
        for index, (kind, unit, expected_ns) in enumerate(operations)
    )
    return SegmentProgram(name=name, model=name, segment=0, groups=(Group(index=0, operations=made),))


def program(*segments: SegmentProgram, units: tuple[str, ...] = ("npu0",), repeats: int | None = None) -> Program:
    """A program on units that are numbered as they come."""
    return Program(
        window_ns=1_000_000,
        units=tuple(ProgramUnit(name=name, core=core) for core, name in enumerate(units)),
        programs=segments,
        repeats=repeats,
    )


def trace(packets: list[tuple[int, str, int, int]], kinds: tuple[str, ...], meta: TraceMeta | None = None) -> Trace:
    """Packets as (time_ns, kind, type, core), in order of arrival."""
    columns = list(zip(*packets, strict=True)) if packets else [(), (), (), ()]
    return Trace(
        time_ns=np.array(columns[0], np.int64),
        id=np.array([kinds.index(kind) for kind in columns[1]], np.int32),
        type=np.array(columns[2], np.uint8),
        core=np.array(columns[3], np.int16),
        operation=np.full(len(packets), -1, np.int64),
        kinds=kinds,
        meta=meta or TraceMeta(),
    )


def played(program: Program, inferences: int, *, seed: int = 0, gap_ns: int = 200, spread: float = 0.1) -> Trace:
    """A complete trace of a program's first segment: each unit one operation after the other, side by side."""
    generator = np.random.default_rng(seed)
    core_of = {unit.name: unit.core for unit in program.units}
    operations = [op for group in program.programs[0].groups for op in group.operations]
    free = dict.fromkeys(core_of, 0)
    packets: list[tuple[int, str, int, int]] = []
    for _ in range(inferences):
        for op in operations:
            start = free[op.unit] + int(generator.integers(1, gap_ns))
            end = start + max(int(op.expected_ns * generator.normal(1, spread)), 1)
            free[op.unit] = end
            core = core_of[op.unit]
            packets += [(start, op.kind, 0, core), (end, op.kind, 1, core)]
        together = max(free.values())
        free = dict.fromkeys(free, together)
    packets.sort(key=lambda packet: packet[0])
    return trace(packets, tuple(dict.fromkeys(op.kind for op in operations)))


def as_raw(trace: Trace) -> bytes:
    """A trace as a raw stream, which has no place for operation numbers and reported losses."""
    header = {"schema_version": 1, "kinds": trace.kinds, "meta": trace.meta}
    records = np.zeros(len(trace), np.dtype("<i8,<i4,<i2,u1,u1"))
    for place, column in enumerate((trace.time_ns, trace.id, trace.core, trace.type)):
        records[f"f{place}"] = column
    return msgspec.json.encode(header) + b"\n" + records.tobytes()
