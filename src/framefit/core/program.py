"""Programs: the order in which launches were submitted to a device (``program.json``, ``launches.npz``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import force_setattr, replace

from framefit.core.arrays import read_arrays
from framefit.core.files import Record, is_file_name, read_record, write_record, write_whole
from framefit.core.latency_table import Value
from framefit.errors import InputError

__all__ = ["Group", "Launches", "Operation", "Program", "ProgramUnit", "RuleOffsets", "SegmentProgram"]


_BY_POSITION = -1  # an index that is not given


def _number(key: str, value: int, least: int = 0, below: int = 1 << 31) -> None:
    if not least <= value < below:  # limits of the arrays of traces and profiles
        raise ValueError(f"{key} must be 0 to {below - 1}, is {value}")


class Operation(Record, kw_only=True):
    """One operation.

    Attributes:
        index: counts through all groups of its segment's program; by default its position there.
        layer: by default the operation's name.
        kind: name of the event id, as in ``Trace.kinds``.
        sigma_ratio: spread of the duration over its expectation.
        after: operations of the same program that must have ended, beside those before it on its unit.
        op: operators, as in a latency table, where the operation is a whole layer; else "".
        configuration: of the layer, by which it is found in a latency table.
    """

    index: int = _BY_POSITION
    name: str
    layer: str = ""
    kind: str
    unit: str
    expected_ns: int
    sigma_ratio: float = 0.1
    after: tuple[int, ...] = ()
    op: str = ""
    configuration: dict[str, Value] = {}

    def __post_init__(self) -> None:
        _number("index", self.index, _BY_POSITION)
        if not self.layer:
            force_setattr(self, "layer", self.name)

    @classmethod
    def opaque(cls, label: str, layer: str, unit: str, expected_ns: int = 0, sigma_ratio: float = 0.0) -> Operation:
        """A segment that can only be seen as a whole: one operation of its own kind."""
        return cls(
            index=0, name=label, layer=layer, kind=label, unit=unit, expected_ns=expected_ns, sigma_ratio=sigma_ratio
        )


class Group(Record, kw_only=True):
    """Operations that the device executes together; ``index`` is by default the position in its program."""

    index: int = _BY_POSITION
    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        _number("index", self.index, _BY_POSITION)


class SegmentProgram(Record, kw_only=True):
    """Operations of one launch of one segment.

    Attributes:
        name: by default ``model``, else "program" and its number.
        model: by default the name.
        groups: with an index each, and one in each operation.
    """

    name: str = ""
    model: str = ""
    segment: int = 0
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        _number("segment", self.segment)
        force_setattr(self, "name", self.name or self.model)
        force_setattr(self, "model", self.model or self.name)
        if any(_BY_POSITION in (group.index, *(op.index for op in group.operations)) for group in self.groups):
            position = itertools.count()
            force_setattr(self, "groups", tuple(_numbered(group, at, position) for at, group in enumerate(self.groups)))


def _numbered(group: Group, at: int, position: Iterator[int]) -> Group:
    """Give a group, and its operations, the missing indices; ``position`` counts operations."""
    operations = tuple(
        replace(operation, index=here) if operation.index == _BY_POSITION else operation
        for operation, here in zip(group.operations, position, strict=False)
    )
    return replace(group, index=at if group.index == _BY_POSITION else group.index, operations=operations)


class ProgramUnit(Record, kw_only=True):
    """A unit and the core number of its events."""

    name: str
    core: int = 0

    def __post_init__(self) -> None:
        _number("core", self.core, below=1 << 15)


class RuleOffsets(Record, kw_only=True):
    """Offsets of the compensation rule (``spec/profiling.md``)."""

    t1: int = 10
    t2: int = 10
    t3: int = 10


class Program(Record, kw_only=True):
    """Everything that a trace is compared with.

    Attributes:
        window_ns: length of a window; ``None``: no period is checked.
        launches: name of the ``.npz`` beside it; ``None``: the first program repeats.
        repeats: number of repetitions; ``None``: until the trace ends.
    """

    file_kind: ClassVar[str] = "a program (program.json)"
    smallest: ClassVar[str] = (
        '{"units": [{"name": "npu"}], "programs": [{"groups": [{"operations": '
        '[{"name": "conv1", "kind": "conv", "unit": "npu", "expected_ns": 20000}]}]}]}'
    )

    schema_version: int = 1
    window_ns: int | None = None
    units: tuple[ProgramUnit, ...]
    rule_offsets_ns: dict[str, RuleOffsets] = {}
    exclusive: tuple[tuple[str, ...], ...] = ()
    programs: tuple[SegmentProgram, ...]
    launches: str | None = None
    repeats: int | None = None

    def __post_init__(self) -> None:
        if self.launches is not None and not is_file_name(self.launches):
            raise ValueError(f"launches must be the name of a file beside it, is {self.launches!r}")
        if not all(part.name for part in self.programs):
            named = (part if part.name else replace(part, name=f"program{at}") for at, part in enumerate(self.programs))
            force_setattr(self, "programs", tuple(named))

    @property
    def period_ns(self) -> int:
        """Length of a window; 0 if there are no windows."""
        return self.window_ns or 0


@dataclass(frozen=True)
class Launches:
    """Executions of segments, in the order in which the host submitted them.

    Attributes:
        program: int32, index into ``Program.programs``.
        window: int64, the window of its submission.
        frame: int64.
        submit_ns: int64, host clock; all equal if it is not known.
        finished_ns: int64, when the host saw them end; ``None``: not known.
        releases_ns: int64, when each window began; ``None``: not known.
    """

    program: npt.NDArray[np.int32]
    window: npt.NDArray[np.int64]
    frame: npt.NDArray[np.int64]
    submit_ns: npt.NDArray[np.int64]
    finished_ns: npt.NDArray[np.int64] | None = None
    releases_ns: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        finished_ns = self.submit_ns if self.finished_ns is None else self.finished_ns
        shapes = {np.shape(array) for array in (self.program, self.window, self.frame, self.submit_ns, finished_ns)}
        if len(shapes) > 1 or len(min(shapes)) != 1:
            raise ValueError(f"launch arrays need one length, have shapes {sorted(shapes)}")

    def __len__(self) -> int:
        return len(self.program)

    @classmethod
    def read(cls, path: str | Path) -> Launches:
        """Read ``launches.npz``, in which only ``program`` is required.

        By default each launch has a window of its own, frames of a program are counted, and submit times are unknown.

        Raises:
            InputError: the file is not a list of launches.
        """
        arrays = read_arrays(
            path,
            {"program": "i4"},
            {"window": "i8", "frame": "i8", "submit_ns": "i8", "finished_ns": "i8", "releases_ns": "i8"},
        )
        program = arrays["program"]
        defaults: dict[str, Any] = {
            "window": np.arange(program.size, dtype=np.int64),
            "frame": _ordinals(program.ravel()),
            "submit_ns": np.zeros(program.size, np.int64),
        }
        try:
            return cls(**defaults | arrays)
        except ValueError as error:
            raise InputError(str(error), where=path, remedy="write the file again") from error

    def write(self, path: str | Path, *, force: bool = False) -> None:
        """Write ``launches.npz``, as a whole or not at all."""
        with write_whole(path, force=force) as file:
            arrays: dict[str, Any] = {
                "program": self.program,
                "window": self.window,
                "frame": self.frame,
                "submit_ns": self.submit_ns,
                "finished_ns": self.finished_ns,
                "releases_ns": self.releases_ns,
            }
            np.savez(file, **{name: array for name, array in arrays.items() if array is not None})


def _ordinals(program: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Count the launches of each program from 0."""
    order = np.argsort(program, kind="stable")
    _, first, which = np.unique(program[order], return_index=True, return_inverse=True)
    ordinals = np.empty(len(program), np.int64)
    ordinals[order] = np.arange(len(program)) - first[which.reshape(-1)]
    return ordinals


def read_program(path: str | Path) -> tuple[Program, Launches | None]:
    """Read a program and the launches beside it."""
    program = read_record(path, Program)
    launches = None if program.launches is None else Launches.read(Path(path).parent / program.launches)
    return program, launches


def write_program(folder: str | Path, program: Program, launches: Launches | None, *, force: bool = False) -> None:
    """Write ``program.json`` and, where it names one, its launch list."""
    write_record(Path(folder) / "program.json", program, force=force)
    if launches is not None and program.launches is not None:
        launches.write(Path(folder) / program.launches, force=force)
