"""Timetables planned ahead, and runs that change between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import framefit
from framefit import InfeasibleError, InputError, Timetable
from framefit.core.files import read_record
from framefit.core.run_record import Metrics
from framefit.planning import ladder
from framefit.workflows.report import write_views
from workloads import write_app, write_models, write_target

IMAGE = np.zeros((1, 3, 16, 16), np.float32)
COARSE = 'segmentation = "fewest"\nladder = {}'


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A folder with models and a board."""
    write_target(write_models(tmp_path))
    return tmp_path


def change(after_s: float, rate_hz: float) -> str:
    """A line of the stream's changes."""
    return f"\n[[streams.changes]]\nafter_s = {after_s}\nrate_hz = {rate_hz}"


def test_announced_rates_change_windows_and_timetable(board: Path) -> None:
    """At the first release from the time given on; windows, figures and files say so."""
    app = write_app(
        board, target="target.toml", rate_hz=100, stream='source = "synthetic"' + change(1, 50) + change(2.005, 60)
    )
    result = framefit.simulate(app, seconds=3, output=board / "run")
    metrics = result.metrics
    assert [(one.window, one.rung) for one in metrics.switches] == [(100, "50Hz"), (151, "60Hz")]
    assert metrics.rung_switches == 2
    assert metrics.windows == 100 + 51 + 59
    starts = result.releases_ns - result.releases_ns[0]
    assert starts[[99, 100, 101, 151, 152]].tolist() == [990e6, 1000e6, 1020e6, 2020e6, round(2020e6 + 1e9 / 60)]
    small, chain = metrics.models
    assert (small.releases, small.missed) == (210, 0)
    assert small.throughput_hz == pytest.approx(210 / 3, rel=0.01)
    assert 0 < chain.completed < 210
    assert any("timetable '50Hz' was in force: rates: camera 50 Hz" in line for line in result.warnings)
    assert read_record(board / "run" / "metrics.json", Metrics).switches == metrics.switches
    assert read_record(board / "run" / "timetable-50Hz.json", Timetable).window_ns == 20_000_000
    write_views(board / "run", None)
    packets = Trace.FromString((board / "run" / "trace.pftrace").read_bytes()).packet
    tracks = {packet.track_descriptor.uuid: packet.track_descriptor.name for packet in packets}
    events = [packet.track_event for packet in packets if packet.HasField("track_event")]
    assert sum(tracks[event.track_uuid] == "timetable" and event.type == 1 for event in events) == 3


def test_a_rate_that_cannot_be_kept_is_refused_before_the_run(board: Path) -> None:
    """Changes are planned ahead."""
    app = write_app(board, target="target.toml", stream='source = "synthetic"' + change(1, 30_000))
    with pytest.raises(InfeasibleError, match="do not fit at camera 30000 Hz"):
        framefit.simulate(app, seconds=3, output=board / "run")


def coarse(folder: Path, *, climbs: bool) -> Path:
    """A priority model that takes half of its window, and a background model in two segments."""
    return write_app(
        folder,
        priority=("chain",),
        background=("chain2",),
        target="target.toml",
        rate_hz=30,
        schedule=COARSE.format(str(climbs).lower()),
        more='[[outputs]]\nmodel = "chain2"\nsink = "chain2.npz"\n',
    )


def test_a_slower_model_gets_a_finer_rung(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the background model's segments do not fit any more; frames in flight are right all the same."""
    monkeypatch.setattr(ladder, "COVERED", ((1.5, 1.0),))
    slow = {"windows": 160, "inject": ["slow:chain*1.4@60w"], "outputs": True, "force": True}
    fixed = framefit.simulate(coarse(board, climbs=False), output=board / "fixed", **slow)
    outputs = np.load(board / "chain2.npz")
    before = dict(zip(outputs["frame"].tolist(), outputs["pooled"], strict=True))
    climbing = framefit.simulate(coarse(board, climbs=True), output=board / "climbing", **slow)
    outputs = np.load(board / "chain2.npz")
    assert fixed.metrics.rung_switches == 0
    (switch,) = climbing.metrics.switches
    assert switch.rung == "1.5"
    assert 60 <= switch.window <= 76
    assert fixed.metrics.models[1].completed <= 35  # one in two windows, as long as it goes well
    assert climbing.metrics.models[1].completed >= 50  # then one in three
    assert climbing.metrics.models[0].missed == 0
    frames = outputs["frame"].tolist()
    assert frames == sorted(set(frames))
    for frame, pooled in zip(frames, outputs["pooled"], strict=True):
        if frame in before:
            np.testing.assert_allclose(pooled, before[frame], rtol=1e-4, atol=1e-6)
    assert len(set(frames) & set(before)) > 10
    assert climbing.profile is not None
    assert climbing.profile.events.lost == 0


def test_where_nothing_slows_down_nothing_changes(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ladder costs no frame."""
    monkeypatch.setattr(ladder, "COVERED", ((1.2, 1.0),))
    fixed = framefit.simulate(coarse(board, climbs=False), windows=300, output=board / "fixed")
    climbing = framefit.simulate(coarse(board, climbs=True), windows=300, output=board / "climbing")
    assert climbing.metrics.rung_switches == 0
    assert [model.completed for model in climbing.metrics.models] == [model.completed for model in fixed.metrics.models]


def test_a_program_may_change_a_rate(board: Path) -> None:
    """With the next window; results are those of the frames, and none is lost."""
    app = write_app(board, target="target.toml", rate_hz=100, schedule="")
    with framefit.Runner(app, virtual=True) as runner:
        numbers = [runner.submit(IMAGE) for _ in range(5)]
        runner.set_rate("camera", 50)
        numbers += [runner.submit(IMAGE) for _ in range(5)]
        found = [output.frame for output in runner.outputs() if output.model == "small"]
    assert found == numbers
    metrics = runner.result().metrics
    assert [(one.window, one.rung, one.why) for one in metrics.switches] == [(5, "50Hz", "camera comes at 50 Hz")]
    assert np.diff(runner.result().releases_ns).tolist()[:9] == [10_000_000] * 5 + [20_000_000] * 4


def test_rates_a_program_cannot_set(board: Path) -> None:
    """Of no stream, or too high for the segments that there are: the run goes on as it was."""
    app = write_app(board, target="target.toml", rate_hz=100, schedule="")
    with framefit.Runner(app, virtual=True) as runner:
        runner.submit(IMAGE)
        with pytest.raises(InputError, match="no stream 'sound'; streams: camera"):
            runner.set_rate("sound", 50)
        with pytest.raises(InfeasibleError, match="the present segments do not fit"):
            runner.set_rate("camera", 900)
        runner.submit(IMAGE)
        assert runner.metrics().rung_switches == 0


def test_a_rate_that_was_named_ahead_has_segments_of_its_own(board: Path) -> None:
    """So that a program may set it where the present ones would not fit."""
    app = write_app(
        board, target="target.toml", rate_hz=100, schedule="", stream='source = "synthetic"\nrates_hz = [250]'
    )
    with framefit.Runner(app, virtual=True) as runner:
        runner.submit(IMAGE)
        runner.set_rate("camera", 250)
        for _ in range(20):
            runner.submit(IMAGE)
    metrics = runner.result().metrics
    assert [one.rung for one in metrics.switches] == ["250Hz"]
    assert metrics.models[0].missed == 0
