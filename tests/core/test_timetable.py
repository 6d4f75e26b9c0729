"""The plan as a file, and targets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from framefit import InputError
from framefit.core.files import read_record, write_record
from framefit.core.target import Target, cpu_target
from framefit.core.timetable import Fix, PlannedModel, PriorityPeriod, Segment, Slot, Timetable, Window

SEGMENT = Segment(
    index=0,
    unit="cpu1",
    fill_layer="conv1",
    first_layer="conv1",
    last_layer="relu9",
    output_layers=("conv3", "relu9"),
    duration_ns=6_000_000,
    median_ns=5_500_000,
    boundary_bytes=4096,
    tensors=("a", "b"),
)
TIMETABLE = Timetable(
    feasible=True,
    worst_slack_ns=-1,
    hyperperiod_windows=1,
    window_ns=33_333_333,
    priority_ns=6_000_000,
    residual_ns=27_333_333,
    guard_ns=300_000,
    units=("cpu1",),
    windows=(
        Window(
            index=0,
            length_ns=33_333_333,
            priority=(PriorityPeriod(unit="cpu1", start_ns=0, end_ns=6_000_000, model="face"),),
            residual_ns=(27_333_333,),
            slots=(Slot(unit="cpu1", start_ns=0, duration_ns=6_000_000, model="face", segment=0, frame=0),),
        ),
    ),
    models=(
        PlannedModel(
            name="face",
            role="priority",
            level=9,
            reasons=("runs in every window",),
            duration_ns=6_000_000,
            segments=(SEGMENT,),
            result_age_windows=1,
        ),
    ),
    memory_bytes={"cpu1": 12345},
    fixes=(Fix(change="rate_hz = 20", effect="fits", verified=True),),
)


def test_round_trip(tmp_path: Path) -> None:
    """A timetable reads back equal, and finds its models by name."""
    write_record(tmp_path / "timetable.json", TIMETABLE)
    read = read_record(tmp_path / "timetable.json", Timetable)
    assert read == TIMETABLE
    assert read.model("face").segments == (SEGMENT,)


def test_mistakes_deep_inside_are_found(tmp_path: Path) -> None:
    """A key that does not exist is named by its path through windows and slots."""
    write_record(tmp_path / "timetable.json", TIMETABLE)
    text = (tmp_path / "timetable.json").read_text()
    (tmp_path / "bad.json").write_text(text.replace('"frame"', '"framme"'))
    with pytest.raises(InputError) as found:
        read_record(tmp_path / "bad.json", Timetable)
    assert found.value.what == "unknown key $.windows[0].slots[0].framme; did you mean 'frame'?"


def test_cpu_target() -> None:
    """The built-in target has one preemptive unit a core, named after it; without cores there is no target."""
    target = cpu_target((1, 3))
    assert [(unit.name, unit.core, unit.preemptive) for unit in target.units] == [("cpu1", 1, True), ("cpu3", 3, True)]
    assert [unit.name for unit in Target(name="none", kind="ort").units] == ["none"]
    with pytest.raises(ValueError, match="names must differ"):
        Target(name="twice", kind="ort", units=target.units[:1] * 2)


def test_the_first_reserved_instant_of_each_window() -> None:
    """Where nothing is reserved in a window, its release counts."""
    (window,) = TIMETABLE.windows
    period = PriorityPeriod(unit="cpu1", start_ns=9, end_ns=10, model="face")
    alone = msgspec.structs.replace(window, priority=(period,))
    later = msgspec.structs.replace(window, priority=(period, *window.priority))
    none = msgspec.structs.replace(window, priority=())
    timetable = msgspec.structs.replace(TIMETABLE, windows=(later, window, none))
    assert timetable.first_reserved_ns == {"cpu1": (0, 0, 0)}
    timetable = msgspec.structs.replace(timetable, units=("cpu1", "cpu2"), windows=(alone, window, none))
    assert timetable.first_reserved_ns == {"cpu1": (9, 0, 0), "cpu2": (0, 0, 0)}
    assert msgspec.structs.replace(TIMETABLE, windows=()).first_reserved_ns == {"cpu1": ()}


def test_periods_that_end_in_the_next_window() -> None:
    """By so much, on their unit; others by nothing."""
    (window,) = TIMETABLE.windows
    period = PriorityPeriod(unit="cpu1", start_ns=0, end_ns=window.length_ns + 7, model="face")
    windows = (window, msgspec.structs.replace(window, priority=(period,)))
    timetable = msgspec.structs.replace(TIMETABLE, units=("cpu1", "cpu2"), windows=windows)
    assert timetable.overhang_ns == {"cpu1": (0, 7), "cpu2": (0, 0)}
