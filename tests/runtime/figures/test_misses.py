"""Why a priority frame was late: of models on several units."""

from __future__ import annotations

from crews import MS, WINDOW_NS, Entry, made
from fakes import FakeDevice
from framefit.core.timetable import PlannedModel, PriorityPeriod, Segment, Timetable, Window
from framefit.runtime.figures.misses import misses


def planned(entry: Entry) -> PlannedModel:
    """An entry's part in the plan."""
    segments = tuple(
        Segment(
            index=index,
            unit=f"fake{unit}",
            fill_layer="a",
            first_layer="a",
            last_layer="a",
            output_layers=(),
            duration_ns=ns,
            median_ns=ns,
            boundary_bytes=16,
            tensors=(),
        )
        for index, (unit, ns) in enumerate(zip(entry.units, entry.estimates_ns, strict=True))
    )
    return PlannedModel(
        name=entry.name,
        role="priority" if entry.priority else "background",
        level=0,
        reasons=(),
        duration_ns=sum(entry.estimates_ns),
        segments=segments,
    )


def explained(device: FakeDevice, *entries: Entry) -> list[tuple[int, str, str]]:
    """Window, cause and detail of each miss in three windows; a face in two stages of 1 ms each is due at once."""
    crew, _ = made(device, *entries)
    crew.run(3)
    periods = tuple(
        PriorityPeriod(unit=f"fake{unit}", start_ns=unit * MS, end_ns=(unit + 1) * MS, model="face") for unit in (0, 1)
    )
    timetable = Timetable(
        feasible=True,
        worst_slack_ns=0,
        hyperperiod_windows=1,
        window_ns=WINDOW_NS,
        priority_ns=MS,
        residual_ns=WINDOW_NS - MS,
        guard_ns=0,
        units=("fake0", "fake1"),
        windows=(Window(index=0, length_ns=WINDOW_NS, priority=periods, residual_ns=(), slots=()),),
        models=tuple(planned(entry) for entry in entries),
        memory_bytes={},
    )
    found = misses(timetable, crew.launches, crew.frames, floor_p99_ns=0)
    return [(miss.window, miss.cause, miss.detail) for miss in found]


FACE = Entry("face", [(0, [MS]), (1, [MS])], priority=True, slots=2)


def test_a_later_stage_waits_for_a_segment_that_ran_over() -> None:
    """The background segment on its own unit is named, not the time that the whole model took."""
    took = iter([12 * MS])
    device = FakeDevice(lambda label, _: next(took, MS) if label == "b" else MS, units=2)
    ((window, cause, detail),) = explained(device, FACE, Entry("b", [(1, [MS])]))
    assert (window, cause) == (0, "overrun")
    assert detail == "b[0] took 12.00 ms, planned 1.00 ms, and ended 11.00 ms after the instant"


def test_a_stage_that_takes_too_long_is_named() -> None:
    """The other stage, which waited for it, is not blamed."""
    took = iter([11 * MS])
    device = FakeDevice(lambda label, _: next(took, MS) if label == "face.0" else MS, units=2)
    found = explained(device, FACE, Entry("b", [(1, [MS])]))
    assert found[0] == (0, "own duration", "took 11.00 ms, planned 1.00 ms")
