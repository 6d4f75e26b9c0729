"""Priority periods that go on beyond the end of their window."""

from __future__ import annotations

from framefit.core.timetable import PriorityPeriod, Slot, Timetable, Window, reserved_share, within_windows


def period(model: str, start_ns: int, end_ns: int) -> PriorityPeriod:
    """On the only unit."""
    return PriorityPeriod(unit="a", start_ns=start_ns, end_ns=end_ns, model=model)


def plan(*windows: tuple[int, list[PriorityPeriod]]) -> Timetable:
    """Windows of these lengths."""
    listed = [
        Window(
            index=index,
            length_ns=length,
            priority=tuple(periods),
            residual_ns=(),
            slots=tuple(
                Slot(unit="a", start_ns=start, duration_ns=end - start, model=model, segment=0, frame=0)
                for model, start, end in ((p.model, p.start_ns, p.end_ns) for p in periods)
            ),
        )
        for index, (length, periods) in enumerate(windows)
    ]
    lengths = tuple(length for length, _ in windows)
    return Timetable(
        feasible=True,
        worst_slack_ns=0,
        hyperperiod_windows=len(listed),
        window_ns=min(lengths),
        priority_ns=30,
        residual_ns=0,
        guard_ns=0,
        units=("a",),
        windows=tuple(listed),
        models=(),
        memory_bytes={},
        lengths_ns=lengths if len(set(lengths)) > 1 else (),
    )


def spans(timetable: Timetable) -> list[list[tuple[str, int, int]]]:
    """Periods of each window."""
    return [[(p.model, p.start_ns, p.end_ns) for p in window.priority] for window in timetable.windows]


def test_what_stays_within_its_window_is_left_alone() -> None:
    """The very same plan."""
    timetable = plan((100, [period("x", 0, 30)]), (50, []))
    assert within_windows(timetable) is timetable
    assert reserved_share(timetable) == 0.3


def test_what_goes_on_is_parted_at_the_end_of_each_window() -> None:
    """170 from 20 on: 80 in the first window, 50 in the next, and 40 that begin the first one again."""
    parted = within_windows(plan((100, [period("x", 20, 190)]), (50, [])))
    assert spans(parted) == [[("x", 0, 40), ("x", 20, 100)], [("x", 0, 50)]]


def test_what_begins_behind_it_moves_along() -> None:
    """The second model begins in the middle of the next window, as planned."""
    timetable = plan((30, [period("x", 0, 50)]), (100, [period("y", 20, 40)]))
    assert spans(within_windows(timetable)) == [[("x", 0, 30)], [("x", 0, 20), ("y", 20, 40)]]
    assert reserved_share(timetable) == 1
    slots = [[(s.model, s.start_ns, s.duration_ns) for s in w.slots] for w in within_windows(timetable).windows]
    assert [len(one) for one in slots] == [1, 1], "no model of the plan is a priority model: slots stay"
