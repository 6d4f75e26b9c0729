"""What a run's charts are drawn from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.run_record import FrameTable, Metrics, ModelMetrics, Percentiles, RunInfo
from framefit.profiling.pairing import pair_events
from framefit.report.sections.run import KIND, RunContent, _busy_until
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
    """A run folder's content; frames were released with their windows and begun so much later."""
    own = run.launches.program == 0
    count = int(own.sum())
    released = run.releases_ns[:count] - run.releases_ns[0]
    frames = FrameTable(
        models=("face", "segmenter"),
        streams=("camera", "camera"),
        fates=(("done", ""), ("dropped", "too late")),
        model=np.r_[np.zeros(count, np.int64), 1],
        frame=np.r_[np.arange(count), 0],
        fate=np.r_[np.zeros(count, np.int64), 1],
        released_ns=np.r_[released, 0],
        finished_ns=np.r_[released + 7_000_000, -1],
    )
    submit = run.launches.submit_ns.copy()
    submit[own] = 77_000 + released + starts_ns[:count]  # on a clock of its own
    launches = dataclasses.replace(run.launches, submit_ns=submit)
    log = pair_events(run.trace, run.program, run.launches)
    windows = TimelineWindows(run.releases_ns, np.zeros((0, 2), np.int64))
    metrics = Metrics(
        windows=len(run.releases_ns),
        models=(model("face", "priority", Percentiles.of(starts_ns[:count])), model("segmenter", "background")),
        residual_utilisation_ratio=0.9, guard_loss_ratio=0.0, packing_loss_ratio=0.1, floor_release_to_start_ns=NOTHING,
        estimate_exceeded_ratio=0.0, dispatch_ns=NOTHING, peak_memory_bytes=0, rung_switches=0, streams=(), misses=(),
    )  # fmt: skip
    info = RunInfo(command="framefit run", created="", seed=0, interrupted=False, workload={}, host={})
    return RunContent(
        info=info,
        metrics=metrics,
        timetable=None,
        workload=None,
        frames=frames,
        program=run.program,
        launches=launches,
        happened=Happened(log, run.program, run.launches, windows),
        profile=None,
    )


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=12), st.lists(st.integers(-5, 150)))
def test_busy_time_is_counted_once(intervals, instants):
    """Up to each instant, however intervals overlap or nest: as counting every nanosecond says."""
    start = np.array([begin for begin, _ in intervals], np.int64)
    end = start + np.array([length for _, length in intervals], np.int64)
    busy = {ns for begin, stop in zip(start, end, strict=True) for ns in range(begin, stop)}
    found = _busy_until(start, end, np.array(instants, np.int64))
    assert found.tolist() == [sum(ns < at for ns in busy) for at in instants]


def test_starts_are_those_of_the_log(run):
    """Launches on a clock of their own, held against releases, give back how late each start was."""
    starts_ns = np.random.default_rng(0).integers(5_000, 90_000, 20)
    starts_ns[3] = 400_000
    content = content_of(run, starts_ns)
    assert content.start_us(content.metrics.models[0]) == pytest.approx(starts_ns / 1e3, abs=0.01)
    assert content.finish_ms("face") == pytest.approx(np.full(20, 7.0))
    assert len(content.finish_ms("segmenter")) == len(content.finish_ms("nobody")) == 0


def test_residual_in_use_is_what_the_trace_says(run):
    """In each window: background time over what the priority model left, wherever the trace covers it all."""
    content = content_of(run, np.full(20, 20_000))
    first, used = content.residual_use()
    log, releases = content.happened.log, run.releases_ns
    assert first == 1  # nothing runs before the first release has been heard
    assert len(used) >= 17
    for at, ratio in enumerate(used, start=first):
        inside = (log.start_ns >= releases[at]) & (log.end_ns <= releases[at + 1])
        spent = (log.end_ns - log.start_ns)[inside]
        face = log.program[inside] == 0
        assert ratio == pytest.approx(100 * spent[~face].sum() / (releases[at + 1] - releases[at] - spent[face].sum()))


def test_charts_of_one_and_of_several(run):
    """One run is told without its name; several share the charts, each with a colour of its own."""
    content = content_of(run, np.full(20, 20_000))
    alone = {chart.title: chart for chart in KIND.charts([("a", content)])}
    assert {"face: frames against their deadline", "Jitter: when frames were begun", "Background throughput"} <= set(
        alone
    )
    assert not any(line.name == "a" for chart in alone.values() for line in chart.lines)
    both = {chart.title: chart for chart in KIND.charts([("a", content), ("b", content)])}
    assert set(both) == set(alone)
    for chart in both.values():
        named = [line for line in chart.lines if line.name in ("a", "b")]
        assert {line.name for line in named} == {"a", "b"}
        assert len({line.colour for line in named}) == 2


def test_what_files_do_not_tell_is_left_out(run):
    """Without frames, launches and trace only the figures' chart is left."""
    content = content_of(run, np.full(20, 20_000))
    bare = dataclasses.replace(content, frames=None, launches=None, program=None, happened=None)
    assert [chart.title for chart in KIND.charts([("a", bare)])] == ["Background throughput"]
