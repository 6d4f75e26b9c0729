"""Plans of streams whose rates are no multiples of each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framefit import InputError, Plan, Timetable, plan
from framefit.planning.check import check_timetable
from networks import NETWORKS
from workloads import write_models, write_target

MS = 1_000_000
ONE, TWO = ('name = "a"',), ('name = "a"', 'name = "b"\ncore = 1')
FASTER = "clock_mhz = 300\nmacs_per_cycle = { fp32 = 64 }"  # the chain takes 6 ms there, else 18
Streams = Callable[..., Plan]


@pytest.fixture
def streams(tmp_path: Path) -> Streams:
    """Plans of ``small`` on a microphone's blocks and of another model on a camera's frames."""
    write_models(tmp_path)

    def planned(
        microphone_hz: float = 100,
        camera_hz: float = 30,
        *,
        units: Sequence[str] = ONE,
        camera: str = "chain",
        priority: str = "background",
        head: str = "",
        last: str = "",
        processor: str = "",
    ) -> Plan:
        write_target(tmp_path, units=units, **({"processor": processor} if processor else {}))
        text = f'schema_version = 1\ntarget = "target.toml"\n{head}\n'
        for stream, rate in (("microphone", microphone_hz), ("camera", camera_hz)):
            text += f'[[streams]]\nname = "{stream}"\nrate_hz = {rate}\n'
        for name, path, role, stream in (
            ("audio", "small", "every-window", "microphone"),
            ("video", camera, priority, "camera"),
        ):
            text += f'[[models]]\nname = "{name}"\npath = "{path}.onnx"\npriority = "{role}"\n'
            text += f'inputs = {{ image = "{stream}" }}\n'
        (tmp_path / "app.toml").write_text(text + last)
        return plan(tmp_path / "app.toml")

    return planned


def checked(timetable: Timetable, **deadlines_ms: float) -> list[str]:
    """What the independent check finds."""
    return check_timetable(
        timetable,
        deadlines_ns={name: int(ms * MS) for name, ms in deadlines_ms.items()},
        releases=timetable.releases,
        lengths_ns=timetable.lengths_ns,
    )


def test_windows_lie_between_releases_of_any_stream(streams: Streams) -> None:
    """10 ms blocks and frames of 33.3 ms: twelve windows in a tenth of a second, each model due in its own."""
    timetable = streams().timetable
    assert timetable.feasible
    assert [round(ns / MS, 2) for ns in timetable.lengths_ns] == [
        10,
        10,
        10,
        3.33,
        6.67,
        10,
        10,
        6.67,
        3.33,
        10,
        10,
        10,
    ]
    assert timetable.releases == {"audio": (0, 1, 2, 3, 5, 6, 7, 9, 10, 11), "video": (0, 4, 8)}
    assert timetable.window_ns == min(timetable.lengths_ns)
    assert timetable.hyperperiod_windows % 12 == 0
    due = [[period.model for period in window.priority] for window in timetable.windows[:12]]
    assert due == [["audio"] if window in timetable.releases["audio"] else [] for window in range(12)]
    assert checked(timetable, audio=10) == []


def test_every_frame_of_both_streams_is_served(streams: Streams) -> None:
    """The camera's model is longer than any window, and cut; all of its frames are done."""
    timetable = streams().timetable
    assert len(timetable.model("video").segments) > 2
    assert timetable.launches_of("video") == 3 * timetable.hyperperiod_windows // 12
    assert timetable.launches_of("audio") == 10 * timetable.hyperperiod_windows // 12


def test_rates_that_are_multiples(streams: Streams) -> None:
    """30 and 15 Hz: windows of the faster stream, every second one with a frame of the slower."""
    timetable = streams(30, 15).timetable
    assert timetable.feasible
    assert timetable.releases["video"] == (0,)
    assert [round(ns / MS, 1) for ns in timetable.lengths_ns] == [33.3, 33.3]


def test_one_rate_has_no_pattern(streams: Streams) -> None:
    """Streams of the same rate are planned as one."""
    timetable = streams(30, 30).timetable
    assert (timetable.lengths_ns, timetable.releases) == ((), {})


def test_a_beat_that_is_given_is_one_of_the_rates(streams: Streams) -> None:
    """Windows begin at its releases, too, though no stream has a frame then."""
    timetable = streams(20, 20, head="rate_hz = 40").timetable
    assert timetable.feasible
    assert timetable.releases == {"audio": (0,), "video": (0,)}
    assert len(timetable.lengths_ns) == 2


def test_a_priority_model_goes_on_beyond_its_window(streams: Streams) -> None:
    """6 ms from a release that another follows after 3.3 ms: what is due there begins later, and both are in time."""
    timetable = streams(priority="every-window", processor=FASTER).timetable
    assert timetable.feasible
    assert timetable.model("video").role == "priority"
    window = timetable.windows[8]
    (period,) = window.priority
    assert period.model == "video"
    assert period.end_ns > window.length_ns
    (behind,) = timetable.windows[9].priority
    assert behind.model == "audio"
    assert behind.start_ns == period.end_ns - window.length_ns
    assert checked(timetable, audio=10, video=33.3) == []


def test_a_priority_model_longer_than_another_ones_period_finds_its_place(streams: Streams) -> None:
    """18 ms between two frames of the audio's 10 ms: one of these ends shortly before its deadline, the next begins."""
    timetable = streams(priority="every-window").timetable
    assert timetable.feasible
    assert [(m.name, m.role) for m in timetable.models] == [("audio", "priority"), ("video", "priority")]
    assert timetable.worst_slack_ns >= 0
    periods = [period for window in timetable.windows for period in window.priority if period.model == "audio"]
    assert any(period.start_ns > 0 for period in periods)
    assert checked(timetable, audio=10, video=33.4) == []


def test_without_a_search_it_runs_beside_background_models(streams: Streams) -> None:
    """Where no time is given to the search the model is a background model; its deadline bounds its results' age."""
    result = streams(priority="every-window", head="[schedule]\nsearch_s = 0")
    timetable = result.timetable
    assert timetable.feasible
    assert [(m.name, m.role) for m in timetable.models] == [("audio", "priority"), ("video", "background")]
    assert [wired.entry.name for wired in result.wired] == ["audio", "video"]
    video = timetable.model("video")
    assert video.result_age_windows is not None
    assert (video.result_age_windows - 1) * timetable.window_ns < 1e9 / 30
    assert any("video takes 17.9 ms" in reason and "33.3 ms" in reason for reason in timetable.reasons)
    assert checked(timetable, audio=10, video=33.4) == []


def test_on_two_units_it_has_one_of_its_own(streams: Streams) -> None:
    """Nothing is in its way there: it stays a priority model."""
    timetable = streams(priority="every-window", units=TWO).timetable
    assert timetable.feasible
    assert [model.role for model in timetable.models] == ["priority", "priority"]
    assert {timetable.model(name).segments[0].unit for name in ("audio", "video")} == {"a", "b"}


def test_what_cannot_be_held_is_named_with_fixes(streams: Streams) -> None:
    """At 60 Hz the model takes longer than its frames are apart: slower streams would help, all together."""
    timetable = streams(camera_hz=60, priority="every-window").timetable
    assert not timetable.feasible
    assert "'audio'" in (timetable.binding_constraint or "") or "'video'" in (timetable.binding_constraint or "")
    assert all(fix.verified for fix in timetable.fixes)
    assert any(fix.change.startswith("the rates of all streams x 0.") for fix in timetable.fixes)
    assert timetable.model("video").role == "priority"


def test_a_model_of_two_streams_needs_one_rate(streams: Streams, tmp_path: Path) -> None:
    """Nobody knows which of their frames belong together."""
    NETWORKS["two_ends"]().save(tmp_path / "both.onnx")
    both = (
        '[[models]]\nname = "both"\npath = "both.onnx"\npriority = "background"\n'
        'inputs = { image = "microphone", bias = "camera" }\n'
    )
    with pytest.raises(InputError, match="reads streams 'microphone', 'camera' of different rates"):
        streams(last=both)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1))
def test_every_feasible_plan_passes_the_check(streams: Streams, seed: int) -> None:
    """Any two rates, roles and one or two units: checked, or what binds is named."""
    random = np.random.default_rng(seed)
    rates = [float(random.choice([100, 50, 30, 25, 15])) for _ in range(2)]
    role = str(random.choice(["background", "every-window"]))
    processor = FASTER if random.random() < 0.5 else ""
    units = TWO if random.random() < 0.3 else ONE
    timetable = streams(*rates, units=units, priority=role, processor=processor).timetable
    if not timetable.feasible:
        assert timetable.binding_constraint
        return
    deadlines = {"audio": 1e3 / rates[0], "video": 1e3 / rates[1]}
    own = {m.name: deadlines[m.name] + 1e-3 for m in timetable.models if m.role == "priority"}
    assert checked(timetable, **own) == []
