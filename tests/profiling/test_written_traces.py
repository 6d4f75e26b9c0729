"""What Framefit writes of a run it reads again, and names of other tools' traces are matched with a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefit import InputError
from framefit.core.events import Trace
from framefit.core.files import write_record
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram
from framefit.profiling.inject import drop_packets
from framefit.profiling.profile import open_trace, profile_trace
from framefit.report.chrome import write_chrome
from framefit.report.csv_files import write_events, write_lost
from framefit.report.perfetto import write_perfetto
from profiling_truth import Setting, simulate

WRITERS = {
    "trace.json": lambda path, log, program: write_chrome(path, log, program),
    "trace.pftrace": lambda path, log, program: write_perfetto(path, log, program, None, np.array([0, 10**6])),
    "events.csv": write_events,
    "events.json": write_events,
}


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace]:
    """A folder with a profile's files and its program, and the packets that were received."""
    truth = simulate(Setting(operations=24, inferences=30, seed=4))
    thin = drop_packets(truth.trace, truth.program, None, kind="burst", rate=0.2, burst=6, seed=1).trace
    folder = tmp_path_factory.mktemp("written")
    write_record(folder / "program.json", truth.program)
    profiled = profile_trace(open_trace(thin, truth.program))
    for name, write in WRITERS.items():
        write(folder / name, profiled.log, truth.program)
    write_lost(folder / "lost.csv", profiled.log, truth.program)
    return folder, thin


def packets(trace: Trace) -> list[tuple[int, str, int, int]]:
    """Time, kind, type and core of each, by time."""
    kinds = [trace.kinds[kind] for kind in trace.id]
    return sorted(zip(trace.time_ns.tolist(), kinds, trace.type.tolist(), trace.core.tolist(), strict=True))


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_is_read_back_with_its_program(lossy: tuple[Path, Trace], name: str) -> None:
    """The packets are those that were received, on their cores; what was inferred is none, and operations are named."""
    folder, received = lossy
    read = open_trace(folder / name, folder / "program.json")
    assert packets(read.trace) == packets(received)
    assert (read.trace.operation >= 0).all()
    assert any("inferred" in warning for warning in read.warnings)
    counts = profile_trace(read).profile.events
    assert (counts.received, counts.spurious) == (len(received), 0)


def test_a_table_of_lost_events_is_no_trace(lossy: tuple[Path, Trace]) -> None:
    """It says which file to give instead."""
    folder, _ = lossy
    with pytest.raises(InputError, match="no event that was measured") as found:
        open_trace(folder / "lost.csv", folder / "program.json")
    assert "events.csv" in str(found.value.remedy)


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_files_give_a_trace_or_one_error(lossy: tuple[Path, Trace], tmp_path: Path, name: str) -> None:
    """Whatever is cut off or overwritten."""
    folder, _ = lossy
    content = (folder / name).read_bytes()
    random = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content[: int(random.integers(1, len(content)))])
        for at in random.integers(0, len(damaged), int(random.integers(0, 4))):
            damaged[at] = int(random.integers(0, 256))
        (tmp_path / name).write_bytes(damaged)
        try:
            read = open_trace(tmp_path / name, folder / "program.json")
        except InputError:
            continue
        assert len(read.trace.time_ns) == len(read.trace.id)


def program(*operations: tuple[str, str, str]) -> Program:
    """A program of (name, kind, unit), whose units have core numbers from 5 on."""
    units = dict.fromkeys(unit for _, _, unit in operations)
    made = tuple(Operation(name=name, kind=kind, unit=unit, expected_ns=1000) for name, kind, unit in operations)
    return Program(
        units=tuple(ProgramUnit(name=unit, core=5 + at) for at, unit in enumerate(units)),
        programs=(SegmentProgram(name="net", groups=(Group(operations=made),)),),
    )


def read_events(tmp_path: Path, events: list[dict[str, Any]], of: Program) -> tuple[Trace, tuple[str, ...]]:
    """Read a Chrome trace with a program."""
    (tmp_path / "chrome.json").write_text(json.dumps(events))
    read = open_trace(tmp_path / "chrome.json", of)
    return read.trace, read.warnings


def executed(name: str, at: int, tid: int = 1, **more: Any) -> dict[str, Any]:
    """A complete event."""
    return {"ph": "X", "name": name, "ts": at, "dur": 5, "pid": 1, "tid": tid} | more


TWO = program(("stem", "conv", "npu"), ("pool1", "pool", "vpu"), ("head", "conv", "npu"))


@pytest.mark.parametrize(
    ("events", "kinds", "operations"),
    [
        ([executed("stem", 0), executed("head", 9)], ["conv"] * 2, [0, 2]),
        ([executed("kernel7", 0, cat="conv")], ["conv"], [-1]),
        ([executed("kernel7", 0, cat="gpu", args={"op_name": "pool"})], ["pool"], [-1]),
        ([executed("kernel7", 0, args={"kind": "pool"}), executed("other", 9)], ["pool", "other"], [-1, -1]),
    ],
    ids=["names", "category", "arguments", "unknown"],
)
def test_names_are_operations_and_other_words_kinds(
    tmp_path: Path, events: list[dict[str, Any]], kinds: list[str], operations: list[int]
) -> None:
    """A name that fits is an operation; else the category or an argument gives the kind."""
    trace, _ = read_events(tmp_path, events, TWO)
    assert [trace.kinds[kind] for kind in trace.id[::2]] == kinds
    assert trace.operation[::2].tolist() == operations


def test_a_name_that_is_also_a_kind_of_others_is_the_kind(tmp_path: Path) -> None:
    """All convolutions of a trace that names kinds only are not the one that happens to be called so."""
    of = program(("conv", "conv", "npu"), ("conv_1", "conv", "npu"))
    trace, _ = read_events(tmp_path, [executed("conv", 0), executed("conv", 9)], of)
    assert trace.operation.tolist() == [-1] * 4
    assert [trace.kinds[kind] for kind in trace.id] == ["conv"] * 4


def test_tracks_are_units_by_what_they_show_or_are_called(tmp_path: Path) -> None:
    """Core numbers are those of the program; tracks of which nothing is in the program are left out, and named."""
    name = {"ph": "M", "name": "thread_name", "pid": 1}
    events = [
        {**name, "tid": 3, "args": {"name": "windows"}},
        {**name, "tid": 2, "args": {"name": "npu"}},
        executed("window", 0, tid=3),
        executed("pool1", 0, tid=1),
        executed("kernel", 9, tid=2, cat="conv"),
    ]
    trace, warnings = read_events(tmp_path, events, TWO)
    assert trace.core[::2].tolist() == [6, 5]
    assert len(trace) == 4
    assert [warning for warning in warnings if "'windows'" in warning]
