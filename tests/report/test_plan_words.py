"""A plan in words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from explained_plans import interrupted_plan, late_plan, plan_of_three, two_unit_plan, workload_of
from framefit.core.workload import Schedule
from framefit.planning.explain import model_schedules
from framefit.report.sections.plan import percentile_name, sentences, slack_sentence


def told(plan, model, schedule=None, **changed):
    """A model's sentences by their label."""
    workload = workload_of(plan, schedule, **changed)
    account = next(account for account in model_schedules(plan, workload) if account.model.name.startswith(model))
    found = sentences(account, plan, workload)
    assert len({label for label, _ in found}) == len(found)
    return dict(found)


def test_a_model_that_is_cut():
    """Level with reasons, duration beside residual, cut with its reason and cost, age with a way through windows."""
    words = told(plan_of_three(), "depth")
    assert words["level"].startswith(
        "2 of 10 (a model of level 5 or more comes first); it runs in the time that priority models leave."
    )
    assert words["level"].endswith("Why this level: +3 base; -1 big.")
    assert "takes 12.0 ms (p99). It finds the first residual" in words["duration"]
    assert words["duration"].endswith("7.90 ms; a segment may take at most 7.40 ms of it in one go.")
    assert "into 4 segments of 3.00 ms, since it is too long to run in one go (11.40 ms whole)" in words["cut"]
    assert "Boundaries cost 5.0 % more time; at most 4.0 KiB cross one." in words["cut"]
    assert words["age"].startswith("a result is ready within 3 windows (30.0 ms)")
    assert words["age"].endswith("whatever runs at that time.")
    queued = plan_of_three()
    models = tuple(replace(m, queue_age_windows=2 if m.name.startswith("depth") else 0) for m in queued.models)
    assert told(replace(queued, models=models), "depth")["age"].endswith(
        "Its queue may cost 2 windows of that: with queue = 1 of its stream only the newest frame waits."
    )
    assert words["path"] == (
        "the longest one in this plan, frame 0: release of window 0 -> segments 0-1 in window 0 -> "
        "segments 2-3 in window 1 -> result, 18.1 ms after the release."
    )
    assert words["rate"] == "1 result in 3 windows: 33.33 Hz."


def test_a_priority_model():
    """Its period, what of it is for waking up late, and how long before its deadline it is ready."""
    words = told(plan_of_three(), "face")
    assert "2.10 ms of every window are reserved for it, 100 us of that for waking up late" in words["duration"]
    assert words["result"] == "ready 2.10 ms after its frame's release, 7.90 ms before its deadline of 10.0 ms."
    assert "2.10 ms after its deadline of 10.0 ms" in told(late_plan(), "face")["result"]


def test_what_the_schedule_says():
    """Quantile, rule for levels and segmentation are the workload's own."""
    schedule = Schedule(quantile=0.95, num_priority=1, segmentation="equal")
    words = told(plan_of_three(), "depth", schedule)
    assert "num_priority = 1" in words["level"]
    assert "(p95)" in words["duration"]
    assert 'segmentation = "equal": into segments of nearly equal duration' in words["cut"]
    assert percentile_name(workload_of(plan_of_three(), Schedule(quantile=0.999))) == "p99.9"


def test_units_are_named_where_there_are_several():
    """Each leg of a way says on which unit."""
    assert "segment 0 in window 0 on npu0 -> segment 1 in window 1 on npu1" in told(two_unit_plan(), "depth")["path"]


def test_what_is_not_cut():
    """On a unit that can be interrupted nothing has to be; else it fits, or is too long."""
    words = told(interrupted_plan(), "depth")
    assert "nothing has to be cut" in words["cut"]
    assert "release of window 0 -> runs in window 0 -> goes on in window 1 -> result, 16.2 ms" in words["path"]
    plan = plan_of_three()
    whole = replace(plan.models[1], segments=plan.models[1].segments[:1])
    assert (
        told(replace(plan, models=(plan.models[0], whole)), "depth")["cut"] == "runs whole: it fits into one residual."
    )
    long = replace(whole, segments=(replace(whole.segments[0], duration_ns=12_000_000),))
    assert told(replace(plan, models=(plan.models[0], long)), "depth")["cut"] == (
        "not cut, and 4.60 ms too long to run in one go."
    )


def test_why_a_model_that_fits_is_cut():
    """Because it was asked for, or because residuals are filled better."""
    plan = plan_of_three()
    segments = tuple(replace(segment, duration_ns=1_000_000) for segment in plan.models[1].segments)
    plan = replace(plan, models=(plan.models[0], replace(plan.models[1], duration_ns=4_000_000, segments=segments)))
    assert "since shorter segments fill residuals better; it would fit whole" in told(plan, "depth")["cut"]
    assert "since always_split asks for it" in told(plan, "depth", always_split=True)["cut"]


def test_an_infeasible_plan_promises_nothing():
    """No bound on ages, no rate, and what is missing."""
    words = told(late_plan(), "depth")
    assert words["age"] == "no bound: a result may be of any age, since the plan does not hold."
    assert words["duration"] == "takes 12.0 ms (p99). No time is left for it: the priority models leave no residual."
    assert "differ" not in words["cut"]
    assert "rate" not in words
    assert "path" not in words
    assert slack_sentence(late_plan(), workload_of(late_plan())) == (
        "Where everything takes its p99, 2.10 ms are missing in the tightest window."
    )


@pytest.mark.parametrize("plan", [plan_of_three(), two_unit_plan(), interrupted_plan(), late_plan()])
def test_words_are_ascii(plan):
    """Whatever reads them, a log or an old terminal, can show them."""
    workload = workload_of(plan)
    for account in model_schedules(plan, workload):
        assert all(text.isascii() for _, text in sentences(account, plan, workload))


def test_without_priority_models_the_window_is_the_residual():
    """The first background model finds all of it, the next one what that one leaves."""
    plan = plan_of_three()
    models = (replace(plan.models[1], name="first"), replace(plan.models[1], name="second"))
    windows = tuple(replace(window, priority=(), residual_ns=(10_000_000, 4_000_000)) for window in plan.windows)
    plan = replace(plan, models=models, windows=windows)
    assert "the first residual, the whole window: 10.0 ms" in told(plan, "first")["duration"]
    assert "the second residual, what first leaves of a window: 4.00 ms" in told(plan, "second")["duration"]
    third = replace(plan.models[1], name="third")
    windows = tuple(replace(window, residual_ns=(*window.residual_ns, 1_000_000)) for window in plan.windows)
    plan = replace(plan, models=(*models, third), windows=windows)
    assert "the third residual, what first and second leave of a window: 1.00 ms" in told(plan, "third")["duration"]
