"""Programs and launch lists as files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from framefit import InputError
from framefit.core.program import (
    Group,
    Launches,
    Operation,
    Program,
    ProgramUnit,
    RuleOffsets,
    SegmentProgram,
    read_program,
    write_program,
)


def program(launches: str | None) -> Program:
    """Two operations in two groups."""
    operations = [
        Operation(
            index=index,
            name=f"conv{index}",
            layer="conv",
            kind="conv",
            unit="dpu0",
            expected_ns=1000,
            sigma_ratio=0.02,
            after=tuple(range(index)),
        )
        for index in range(2)
    ]
    groups = tuple(Group(index=index, operations=(operation,)) for index, operation in enumerate(operations))
    return Program(
        window_ns=33_333_333,
        units=(ProgramUnit(name="dpu0", core=0),),
        rule_offsets_ns={"conv": RuleOffsets(t1=5)},
        exclusive=(("dpu0", "dpu1"),),
        programs=(SegmentProgram(name="net.0", model="net", segment=0, groups=groups),),
        launches=launches,
        repeats=3,
    )


def launch_list(count: int = 4) -> Launches:
    """Launches with numbers that need their types."""
    return Launches(
        program=np.zeros(count, np.int32),
        window=np.arange(count) + 2**40,
        frame=np.arange(count),
        submit_ns=np.arange(count) * 2**40,
    )


@pytest.mark.parametrize("count", [0, 4])
def test_round_trip(tmp_path: Path, count: int) -> None:
    """Program and launches read back equal, in the contract's types."""
    write_program(tmp_path, program("launches.npz"), launch_list(count))
    read, launches = read_program(tmp_path / "program.json")
    assert read == program("launches.npz")
    assert launches is not None
    assert len(launches) == count
    for name in ("program", "window", "frame", "submit_ns"):
        np.testing.assert_array_equal(getattr(launches, name), getattr(launch_list(count), name))
    assert (launches.program.dtype, launches.window.dtype, launches.submit_ns.dtype) == (np.int32, np.int64, np.int64)


def test_repeating_program_needs_no_launches(tmp_path: Path) -> None:
    """A program that names no launch list is read without one."""
    write_program(tmp_path, program(None), None)
    assert read_program(tmp_path / "program.json") == (program(None), None)


def test_launch_list_that_is_missing(tmp_path: Path) -> None:
    """A launch list that is named but absent is refused by its path."""
    write_program(tmp_path, program("gone.npz"), None)
    with pytest.raises(InputError, match="no such file") as found:
        read_program(tmp_path / "program.json")
    assert found.value.where == str(tmp_path / "gone.npz")


def test_launch_arrays_of_unequal_length(tmp_path: Path) -> None:
    """Arrays that do not belong together are refused, in memory and in a file."""
    good = launch_list()
    with pytest.raises(ValueError, match="launch arrays need one length"):
        Launches(program=good.program[:2], window=good.window, frame=good.frame, submit_ns=good.submit_ns)
    square = np.zeros((4, 4), np.int32)
    with pytest.raises(ValueError, match="launch arrays need one length"):
        Launches(program=square, window=square, frame=square, submit_ns=square)
    np.savez(tmp_path / "a.npz", program=good.program[:2], window=good.window, frame=good.frame, submit_ns=good.frame)
    with pytest.raises(InputError, match="launch arrays need one length"):
        Launches.read(tmp_path / "a.npz")


def test_the_smallest_file_has_all_defaults(tmp_path: Path) -> None:
    """Units, and name, kind, unit and expected duration of each operation are enough; the documentation shows it."""
    (tmp_path / "program.json").write_text(Program.smallest)
    read, launches = read_program(tmp_path / "program.json")
    assert launches is None
    assert (read.window_ns, read.period_ns, read.units[0].core) == (None, 0, 0)
    (part,) = read.programs
    (operation,) = part.groups[0].operations
    assert (part.name, part.model, part.segment, part.groups[0].index) == ("program0", "program0", 0, 0)
    assert (operation.index, operation.layer, operation.sigma_ratio) == (0, operation.name, 0.1)
    page = (Path(__file__).resolve().parents[2] / "docs" / "profiling.md").read_text()
    blocks = [block for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"programs"' in block]
    assert [json.loads(block) for block in blocks] == [json.loads(Program.smallest)]


def test_indices_count_through_all_groups() -> None:
    """Operations and groups without an index have their position; given ones stay."""

    def operation(index: int = -1) -> Operation:
        return Operation(index=index, name="conv", kind="conv", unit="npu", expected_ns=1)

    groups = (Group(operations=(operation(), operation())), Group(operations=(operation(), operation(7))))
    part = SegmentProgram(model="net", groups=groups)
    assert [[op.index for op in group.operations] for group in part.groups] == [[0, 1], [2, 7]]
    assert [group.index for group in part.groups] == [0, 1]
    assert part.name == "net"


@pytest.mark.parametrize("key", ["units", "programs", "groups", "operations", "kind", "expected_ns"])
def test_a_missing_key_shows_the_smallest_file(tmp_path: Path, key: str) -> None:
    """The message names the key and shows what a file cannot do without."""
    data = json.loads(Program.smallest)
    for place in (data, data["programs"][0], data["programs"][0]["groups"][0]):
        place.pop(key, None)
    if "programs" in data and "groups" in data["programs"][0]:
        for group in data["programs"][0]["groups"]:
            for operation in group.get("operations", ()):
                operation.pop(key, None)
    (tmp_path / "program.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=rf"\.{key} is missing") as found:
        read_program(tmp_path / "program.json")
    assert found.value.remedy is not None
    assert Program.smallest in found.value.remedy


def test_a_launch_list_needs_programs_only(tmp_path: Path) -> None:
    """Frames of each program are counted, each launch has its window, and submit times are unknown."""
    np.savez(tmp_path / "a.npz", program=np.array([1, 0, 1, 1, 0]))
    launches = Launches.read(tmp_path / "a.npz")
    assert launches.frame.tolist() == [0, 0, 1, 2, 1]
    assert launches.window.tolist() == [0, 1, 2, 3, 4]
    assert not launches.submit_ns.any()
