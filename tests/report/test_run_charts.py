"""What a run's charts are drawn from."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np

from framefit.core.profile import WindowUse
from framefit.core.run_record import FrameTimes, Metrics, ModelMetrics, Percentiles, RunInfo
from framefit.profiling.pairing import pair_events
from framefit.report.sections.profile import profile_charts
from framefit.report.sections.run import KIND, RunContent
from framefit.report.timeline import Happened, TimelineWindows

NOTHING = Percentiles.of(())


def model(name, role, start_ns=NOTHING, finish_ns=NOTHING):
    """A model that kept all deadlines."""
    return ModelMetrics(
        name=name, role=role, releases=20, completed=20, missed=0, dropped=0, throughput_hz=30.0, fluid_bound_hz=None,
        packing_bound_hz=None, release_to_start_ns=start_ns, release_to_finish_ns=finish_ns, miss_ratio_upper=0.15,
        result_age_windows_max=1, segmentation_overhead_ratio=0.0, max_relative_difference=0.0,
    )  # fmt: skip


def content_of(run, starts_ns):
    """A run folder's content; frames were begun so much after their release."""
    times = {"face": FrameTimes(np.asarray(starts_ns), np.full(len(starts_ns), 7_000_000))}
    log = pair_events(run.trace, run.program, run.launches)
    windows = TimelineWindows(run.releases_ns, np.zeros((0, 2), np.int64))
    metrics = Metrics(
        windows=len(run.releases_ns),
        models=(model("face", "priority", Percentiles.of(starts_ns)), model("segmenter", "background")),
        residual_utilisation_ratio=0.9, guard_loss_ratio=0.0, packing_loss_ratio=0.1, floor_release_to_start_ns=NOTHING,
        estimate_exceeded_ratio=0.0, dispatch_ns=NOTHING, peak_memory_bytes=0, rung_switches=0, streams=(), misses=(),
    )  # fmt: skip
    info = RunInfo(command="framefit run", created="", seed=0, interrupted=False, workload={}, host={})
    return RunContent(
        info=info,
        metrics=metrics,
        timetable=None,
        workload=None,
        times=times,
        use=WindowUse(1, np.linspace(0.5, 0.9, 18)),
        happened=Happened(log, run.program, run.launches, windows),
        profile=None,
    )


def test_charts_of_one_and_of_several(run):
    """One run is told without its name; several share the charts, each with a colour of its own."""
    content = content_of(run, np.full(20, 20_000))
    alone = {chart.title: chart for chart in KIND.charts([("a", content)])}
    assert {
        "face: frames against their deadline",
        "Jitter: when frames were begun",
        "Residual in use, window by window",
    } <= set(alone)
    assert "Median 70.0 %, 99 of 100 windows above 50.4 %." in alone["Residual in use, window by window"].summary
    assert not any(line.name == "a" for chart in alone.values() for line in chart.lines)
    both = {chart.title: chart for chart in KIND.charts([("a", content), ("b", content)])}
    assert set(both) == set(alone)
    for chart in both.values():
        named = [line for line in chart.lines if line.name in ("a", "b")]
        assert {line.name for line in named} == {"a", "b"}
        assert len({line.colour for line in named}) == 2


def test_what_files_do_not_tell_is_left_out(run):
    """Without frames and a trace only the figures' chart is left."""
    content = content_of(run, np.full(20, 20_000))
    bare = dataclasses.replace(content, times={}, use=None)
    assert [chart.title for chart in KIND.charts([("a", bare)])] == ["Background throughput"]


def test_operations_that_are_segments_are_called_so(profiled):
    """On a core a launch is one operation: kinds, layers and groups would be three tables of the same."""
    totals = profiled.profile.totals_by_layer
    kinds = {f"depth.{place}": total for place, total in enumerate(totals.values())}
    segments = msgspec.structs.replace(
        profiled.profile,
        totals_by_kind=kinds,
        totals_by_group={f"{kind}/0": total for kind, total in kinds.items()},
    )
    assert [chart.title for chart in profile_charts([("", segments)])] == ["Time by segment"]
    assert profile_charts([("", profiled.profile)])[0].title == "Time by layer"
