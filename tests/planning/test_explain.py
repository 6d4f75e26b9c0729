"""What follows from a plan: ways of frames, residuals, where their time goes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from explained_plans import MS, interrupted_plan, late_plan, long_plan, ns, plan_of_three, two_unit_plan, workload_of
from framefit.core.timetable import free_times, window_starts
from framefit.core.workload import StreamEntry
from framefit.planning.explain import loss_of, model_schedules


def test_a_way_leads_from_release_to_result():
    """The frame is released with the window of its first segment, and its legs are the windows' segments."""
    plan = plan_of_three()
    face, depth = model_schedules(plan, workload_of(plan))
    (way,) = depth.paths
    assert [(leg.window, leg.segments) for leg in way.hops] == [(0, (0, 1)), (1, (2, 3))]
    assert (way.release_window, way.release_ns, way.start_ns, way.result_ns) == (0, 0, ns(2.1), ns(18.1))
    assert way.age_ns == ns(18.1)
    assert [way.frame for way in face.paths] == [0, 1, 2]
    assert {way.age_ns for way in face.paths} == {ns(2.1)}  # to the end of the period


def test_a_model_of_every_second_window_took_an_older_frame():
    """A launch in window 1 of a model with a frame in every second window handles the frame of window 0."""
    plan = plan_of_three()
    moved = replace(plan, windows=(replace(plan.windows[2], index=0), *plan.windows[:2]))
    moved = replace(moved, windows=tuple(replace(window, index=at) for at, window in enumerate(moved.windows)))
    (way,) = model_schedules(moved, workload_of(moved, every=2))[1].paths
    assert (way.release_window, way.age_ns) == (0, ns(28.1))
    (way,) = model_schedules(moved, workload_of(moved))[1].paths
    assert (way.release_window, way.age_ns) == (1, ns(18.1))


def test_windows_of_differing_length_and_two_units():
    """Times add up over the windows' own lengths; a segment on another unit is a leg of its own."""
    plan = two_unit_plan()
    assert window_starts(plan) == (0, ns(10), ns(16))
    depth = model_schedules(plan, workload_of(plan))[1]
    first, second = depth.paths
    assert [(leg.window, leg.unit, leg.segments) for leg in second.hops] == [(0, "npu0", (0,)), (1, "npu1", (1,))]
    assert (first.age_ns, second.age_ns) == (ns(9.1), ns(14))
    assert depth.residual_ns == (ns(3.9), ns(7.9))
    assert depth.room_ns == ns(5.5)  # on the other unit, in the short window
    (free,) = free_times(plan, plan.windows[1], "npu1")
    assert (free.start_ns, free.end_ns, free.guard_ns) == (0, ns(6), ns(0.5))


def test_an_interrupted_launch_is_one_way():
    """Two slots of one segment are parts of one launch."""
    plan = interrupted_plan()
    (way,) = model_schedules(plan, workload_of(plan))[1].paths
    assert [leg.segments for leg in way.hops] == [(0,), (0,)]
    assert way.result_ns == ns(16.2)
    assert loss_of(plan, model_schedules(plan, workload_of(plan))).work_ns == ns(12)
    assert loss_of(plan, model_schedules(plan, workload_of(plan))).guard_ns == 0


def test_where_the_residuals_go():
    """The parts add up to all residuals; a gap that the next segment would have fitted into is no packing."""
    loss = loss_of(plan_of_three(), model_schedules(plan_of_three(), workload_of(plan_of_three())))
    assert loss.guard_ns == ns(3 * 0.5)
    assert loss.packing_ns == ns(2 * 1.4)
    assert loss.waiting_ns == ns(7.4)
    assert loss.boundary_ns == pytest.approx(12 * MS * 0.05 / 1.05, abs=1)
    assert loss.work_ns + loss.boundary_ns == ns(12)
    assert sum(ratio for _, ratio, _ in loss.shares) == pytest.approx(1)
    assert loss.shares[0][1] == pytest.approx(12 / 1.05 / (3 * 7.9))


@pytest.mark.parametrize("plan", [plan_of_three(), two_unit_plan(), interrupted_plan(), late_plan(), long_plan(30)])
def test_nothing_is_lost_twice(plan):
    """Work, boundaries and losses are all that the priority periods leave, on every unit."""
    loss = loss_of(plan, model_schedules(plan, workload_of(plan)))
    left = sum(
        free.end_ns - free.start_ns
        for window in plan.windows
        for unit in plan.units
        for free in free_times(plan, window, unit)
    )
    parts = (loss.work_ns, loss.boundary_ns, loss.guard_ns, loss.packing_ns, loss.waiting_ns)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(left, abs=5)


def test_a_frame_that_is_not_there_yet_is_no_packing():
    """A model that waits for its next frame is not due; the one in the middle of a frame is."""
    plan = plan_of_three()
    changed = plan_of_three().windows[2]
    idle = loss_of(plan, model_schedules(plan, workload_of(plan, every=3)))
    assert idle.packing_ns == ns(1.4)  # in window 0; in window 1 the next frame is not there
    assert idle.waiting_ns == ns(1.4 + 7.4)
    depth = plan.models[1]
    short = replace(depth, name="short", segments=(replace(depth.segments[0], duration_ns=ns(1)),))
    own = replace(changed.slots[0], model="short", start_ns=ns(8.1), duration_ns=ns(1), frame=0)
    windows = (replace(plan.windows[0], slots=(*plan.windows[0].slots, own)), *plan.windows[1:])
    windows = tuple(replace(window, residual_ns=(*window.residual_ns, 0)) for window in windows)
    both = replace(plan, models=(*plan.models, short), windows=windows)
    lost = loss_of(both, model_schedules(both, workload_of(both, every=3)))
    assert lost.packing_ns == ns(0.4 + 1.4)  # the short one has no frame in window 1: the long one is due
    assert lost.waiting_ns == ns(7.4)


def test_a_window_without_residual():
    """A priority period longer than its window leaves nothing, and no shares of it."""
    plan = late_plan()
    assert free_times(plan, plan.windows[0], "npu0") == []
    assert loss_of(plan, model_schedules(plan, workload_of(plan))).shares == ()
    assert model_schedules(plan, workload_of(plan))[1].room_ns == 0


def test_a_plan_without_windows():
    """There is nothing to tell, and nothing fails."""
    plan = replace(plan_of_three(), windows=(), hyperperiod_windows=0, feasible=False)
    assert [account.paths for account in model_schedules(plan, workload_of(plan))] == [(), ()]
    assert loss_of(plan, model_schedules(plan, workload_of(plan))).shares == ()


def test_a_model_that_reads_another_has_its_release():
    """Its frame is as old as the one whose result it reads, the newest that is there when it starts."""
    plan = plan_of_three()
    depth = plan.models[1]
    reader = replace(depth, name="reader", after=(depth.name,), segments=depth.segments[:1])
    late = replace(plan.windows[2].slots[0], model="reader", start_ns=ns(4), duration_ns=ns(3))
    last = replace(plan.windows[2], slots=(*plan.windows[2].slots, late))
    windows = tuple(replace(window, residual_ns=(0, *window.residual_ns)) for window in (*plan.windows[:2], last))
    for models in ((plan.models[0], reader, depth), (plan.models[0], depth, reader)):
        changed = replace(plan, models=models, windows=windows)
        (way,) = next(one for one in model_schedules(changed, workload_of(changed)) if one.model.name == "reader").paths
        assert (way.release_window, way.age_ns) == (0, ns(27))


def test_a_stream_that_is_slower_than_the_beat():
    """A launch handles the newest frame of the stream that its model reads."""
    plan = plan_of_three()
    moved = replace(plan, windows=(plan.windows[2], *plan.windows[:2]))
    streams = (StreamEntry(name="fast"), StreamEntry(name="slow", rate_hz=50))
    workload = workload_of(moved, streams=streams, inputs={"x": "slow"})
    (way,) = model_schedules(moved, workload)[1].paths
    assert (way.release_window, way.age_ns) == (0, ns(28.1))
