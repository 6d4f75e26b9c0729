"""Sporadic models from the ``app.toml`` to the run folder, and in a program that submits their events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from framefit.cli.app import app as command_line
from framefit.core.run_record import TOO_SOON
from framefit.core.timetable import Timetable
from framefit.core.workload import load_workload
from framefit.errors import FramefitError, InputError
from framefit.planning.check import check_events, check_timetable
from framefit.planning.plan import Plan
from framefit.workflows.plan import plan
from framefit.workflows.record import RunResult
from framefit.workflows.run import simulate
from framefit.workflows.runner import Runner
from workloads import no_noise, write_app, write_models, write_target

RATE_HZ = 30
MS = 1_000_000
IMAGE = np.zeros((3, 16, 16), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and a board."""
    folder = write_models(tmp_path_factory.mktemp("sporadic"))
    write_target(folder)
    return folder


def with_wake(
    folder: Path, *, stream: str = "", model: str = "deadline_ms = 8", distance_ms: float = 50, **given: Any
) -> Path:
    """An ``app.toml`` with a sporadic model beside a small priority model and a chain of 18 ms."""
    keys: dict[str, Any] = {"rate_hz": RATE_HZ, "guard_ms": None, "schedule": "", "target": "target.toml"}
    camera = 'inputs = { image = "camera" }'
    path = write_app(folder, **keys | {"model": camera, "last": camera} | given)
    name = f"{abs(hash((stream, model, distance_ms, str(given)))):x}.toml"
    text = path.read_text() + (
        f'[[streams]]\nname = "trigger"\n{stream}\n[[models]]\nname = "wake"\npath = "small.onnx"\n'
        f'inputs = {{ image = "trigger" }}\nmin_distance_ms = {distance_ms}\n{model}\n'
    )
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture(scope="module")
def planned(folder: Path) -> Plan:
    """Events are due within 8 ms."""
    return plan(with_wake(folder))


@pytest.fixture(scope="module")
def ran(planned: Plan, folder: Path) -> RunResult:
    """A thousand windows of it."""
    return simulate(planned, windows=1000, seed=3, output=folder / "ran")


def test_background_models_are_cut_so_that_events_are_in_time(planned: Plan, folder: Path) -> None:
    """The chain would fit whole into the residual; an event must not wait for all of it."""
    timetable = planned.timetable
    longest = max(segment.duration_ns for segment in timetable.model("chain").segments)
    wake = timetable.model("wake")
    assert timetable.feasible
    assert wake.role == "sporadic"
    assert wake.min_distance_ns == 50 * MS
    assert longest < timetable.waits_ns["wake"] <= 8 * MS
    without = plan(write_app(folder, rate_hz=RATE_HZ, guard_ms=2, schedule="", target="target.toml")).timetable
    assert len(without.model("chain").segments) == 1


def test_a_simulated_run_keeps_the_bound(ran: RunResult, planned: Plan) -> None:
    """No event waits longer than planned; the worst of a thousand windows comes near it. Nobody misses."""
    frames = ran.frames
    wake = frames.model == frames.models.index("wake")
    waits = (frames.finished_ns - frames.released_ns)[wake & (frames.finished_ns >= 0)]
    bound = planned.timetable.waits_ns["wake"]
    assert check_events(planned.timetable, frames) == []
    assert len(waits) > 250
    assert bound / 2 < waits.max() <= bound
    assert np.diff(np.sort(frames.released_ns[wake])).min() >= 50 * MS
    assert ran.metrics.miss_ratio == 0
    assert [(model.name, model.missed) for model in ran.metrics.models] == [("small", 0), ("chain", 0), ("wake", 0)]


def test_events_come_at_any_time(ran: RunResult) -> None:
    """They are not released with windows, and are begun in the middle of them."""
    frames = ran.frames
    wake = frames.model == frames.models.index("wake")
    within = frames.released_ns[wake] % round(1e9 / RATE_HZ) / MS
    assert len(np.unique(np.floor(within))) > 25


def test_times_of_events_are_the_workload_s(folder: Path) -> None:
    """One that comes too soon is dropped, and said to be; it is no miss."""
    result = simulate(with_wake(folder, stream="times_ms = [10, 30, 70.5]"), windows=10, output=folder / "times")
    frames = [frame for frame in result.frames if frame.model == "wake"]
    assert [(frame.frame, frame.released_ns) for frame in frames] == [
        (0, 10 * MS),
        (1, 30 * MS),
        (2, 70_500_000),
    ]
    assert [(frame.fate, frame.reason) for frame in frames] == [("done", ""), TOO_SOON, ("done", "")]
    model = next(model for model in result.metrics.models if model.name == "wake")
    assert (model.releases, model.dropped, model.missed) == (3, 1, 0)


def test_the_wait_is_shown(ran: RunResult, folder: Path) -> None:
    """``plan --json`` has the bound by model, and the terminal shows it; the run's folder has the plan."""
    path = with_wake(folder)
    shown = CliRunner().invoke(command_line, ["plan", str(path), "--json"])
    told = json.loads(shown.stdout)
    assert told["waits_ns"] == {"wake": ran.timetable.waits_ns["wake"]}
    assert [(model["name"], model["role"]) for model in told["models"]][-1] == ("wake", "sporadic")
    text = CliRunner().invoke(command_line, ["plan", str(path)]).stdout
    assert "from an event to its result" in text
    assert "sporadic" in text


def test_a_deadline_that_cannot_hold_is_refused_with_proof(folder: Path) -> None:
    """The priority model alone takes longer than the event may wait: no cutting helps, a later deadline does."""
    path = with_wake(folder, priority=("chain",), background=(), last="", model="deadline_ms = 10")
    timetable = plan(path).timetable
    assert not timetable.feasible
    assert timetable.proof is not None
    assert timetable.proof.kind == "proved"
    assert "an event of sporadic model 'wake' may take" in (timetable.binding_constraint or "")
    later = [fix for fix in timetable.fixes if fix.change.startswith("deadline_ms = ") and "'wake'" in fix.change]
    assert [fix.verified for fix in later] == [True]
    deadline = later[0].change.split()[2]
    path.write_text(path.read_text().replace("deadline_ms = 10", f"deadline_ms = {deadline}"))
    assert plan(path).timetable.feasible


def test_a_layer_that_is_too_long_for_an_event_is_named(folder: Path) -> None:
    """The shortest segments of the chain are still longer than the event may wait."""
    timetable = plan(with_wake(folder, model="deadline_ms = 0.5")).timetable
    assert not timetable.feasible
    assert "of 'chain'" in (timetable.binding_constraint or "")
    assert "in which events of 'wake' have to be in time" in (timetable.binding_constraint or "")


def test_a_sporadic_model_that_is_too_long_is_cut(folder: Path) -> None:
    """It fits into no residual whole: its segments run in several."""
    app = with_wake(folder, rate_hz=80, background=(), last="", model="", distance_ms=80)
    app.write_text(app.read_text().replace('name = "wake"\npath = "small.onnx"', 'name = "wake"\npath = "chain.onnx"'))
    planned = plan(app)
    assert planned.timetable.feasible
    assert len(planned.timetable.model("wake").segments) >= 2
    result = simulate(planned, windows=2000, output=folder / "cut")
    assert check_events(planned.timetable, result.frames) == []
    assert result.metrics.miss_ratio == 0


def test_the_check_finds_a_bound_that_is_too_short(planned: Plan) -> None:
    """The independent check plays the worst arrivals through; so does the check of a run."""
    timetable = planned.timetable
    assert check_timetable(timetable, deadlines_ns={"wake": 8 * MS}) == []
    longest = max(segment.duration_ns for segment in timetable.model("chain").segments)
    for wrong in (longest, 0):
        found = check_timetable(msgspec.structs.replace(timetable, waits_ns={"wake": wrong}))
        assert any("an event may wait" in text for text in found)
    assert any("None ns" in text for text in check_timetable(msgspec.structs.replace(timetable, waits_ns={})))
    assert any("due after" in text for text in check_timetable(timetable, deadlines_ns={"wake": MS}))


def test_the_check_of_a_run_finds_what_is_wrong(ran: RunResult, planned: Plan) -> None:
    """An event that took longer than its bound, and two that came too close."""
    timetable = planned.timetable
    shorter = msgspec.structs.replace(timetable, waits_ns={"wake": MS})
    assert any("took" in text for text in check_events(shorter, ran.frames))
    models = tuple(
        msgspec.structs.replace(model, min_distance_ns=90 * MS) if model.name == "wake" else model
        for model in timetable.models
    )
    assert any("came" in text for text in check_events(msgspec.structs.replace(timetable, models=models), ran.frames))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": 'priority = "background"'}, "is no model of priority"),
        ({"model": "every = 2"}, "each event by itself"),
        ({"model": "deadline_ms = 60"}, "at most 50"),
        ({"stream": "rate_hz = 10"}, "has no rate"),
        ({"stream": "times_ms = [3, 1]"}, "in order"),
        ({"last": 'inputs = { image = "trigger" }'}, "is read by 'chain', too"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, changes: dict[str, Any], what: str) -> None:
    """A sporadic model has a stream of its own, and no rate."""
    with pytest.raises(InputError, match=what):
        load_workload(with_wake(folder, **changes))


def test_times_are_of_events_only(folder: Path) -> None:
    """A periodic stream has a rate."""
    path = with_wake(folder)
    path.write_text(path.read_text().replace('name = "camera"', 'name = "camera"\ntimes_ms = [1.0]'))
    with pytest.raises(InputError, match="no model with min_distance_ms reads it"):
        load_workload(path)


def test_faults_of_windows_are_not_of_events(planned: Plan, folder: Path) -> None:
    """A stream without a rate cannot stall; other faults of its frames can be injected."""
    with pytest.raises(InputError, match="'trigger' brings events"):
        simulate(planned, windows=10, output=folder / "stalled", inject=["stall:trigger@2w..4w"])
    result = simulate(planned, windows=60, output=folder / "failed", inject=["raise:wake@0w.."])
    assert {frame.fate for frame in result.frames if frame.model == "wake"} <= {"dropped"}
    assert all(model.missed == 0 for model in result.metrics.models if model.name != "wake")


# In a program ---------------------------------------------------------------------------------------------------------


def test_a_submitted_event_wakes_the_unit_in_the_middle_of_a_window(planned: Plan) -> None:
    """In virtual time: it is served at once where the unit is idle, and its result comes as others' do."""
    with Runner(planned, virtual=True, submitted=["trigger"]) as runner:
        clock = runner._running.clock
        runner._running.pause(clock.now_ns() + 25 * MS)  # the background model's segments are done by then
        at = clock.now_ns()
        assert runner.submit(IMAGE, "trigger") == 0
        runner.step(1)
        (output,) = [output for output in runner.outputs() if output.model == "wake"]
        assert (output.frame, output.fate) == (0, "done")
        assert output.submitted_ns == output.released_ns == output.started_ns == at
        assert output.finished_ns - at <= planned.timetable.waits_ns["wake"]


def test_an_event_is_behind_one_segment_only(planned: Plan) -> None:
    """It comes while a background segment runs: no window has to begin before it is done."""
    with Runner(planned, virtual=True, submitted=["trigger"]) as runner:
        clock = runner._running.clock
        runner._running.pause(clock.now_ns() + 2 * MS)
        request = runner.request(IMAGE, "trigger")
        runner._running.pause(clock.now_ns() + planned.timetable.waits_ns["wake"])
        assert request.done
        output = request.result()["wake"]
        assert output.started_ns > output.released_ns
        assert output.finished_ns - output.released_ns <= planned.timetable.waits_ns["wake"]


def test_an_event_that_is_submitted_too_soon_is_dropped(planned: Plan) -> None:
    """It has a number, a fate with the reason, and a request for it says so."""
    with Runner(planned, virtual=True) as runner:
        assert runner.submit(IMAGE, "trigger") == 0
        late = runner.request(IMAGE, "trigger")
        runner.step(2)
        assert runner.fate(0, "trigger")["wake"].fate == "done"
        assert runner.fate(1, "trigger")["wake"] == TOO_SOON
        with pytest.raises(FramefitError, match="sooner than the least distance"):
            late.result()
        assert runner.submit(IMAGE, "trigger") == 2  # two windows of 33 ms are more than the least distance
        runner.step(1)
    frames = {frame.frame: (frame.fate, frame.reason) for frame in runner.result().frames if frame.model == "wake"}
    assert frames == {0: ("done", ""), 1: TOO_SOON, 2: ("done", "")}
    assert check_events(planned.timetable, runner.result().frames) == []


def test_whoever_submits_too_soon_may_wait_instead(folder: Path) -> None:
    """With when_full = "block" the call lets time pass until the event may come."""
    with Runner(plan(with_wake(folder, stream='when_full = "block"')), virtual=True) as runner:
        for number in range(4):
            assert runner.submit(IMAGE, "trigger") == number
        runner.step(2)
    released = [frame.released_ns for frame in runner.result().frames if frame.model == "wake"]
    assert len(released) == 4
    assert np.diff(released).min() >= 50 * MS


def test_a_stream_of_events_has_no_rate_to_be_set(planned: Plan) -> None:
    """Its events come when they come."""
    with Runner(planned, virtual=True) as runner, pytest.raises(InputError, match="brings events"):
        runner.set_rate("trigger", 10)


@pytest.fixture
def _quiet() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        no_noise(patch)
        yield


@pytest.mark.usefixtures("_quiet")
def test_an_event_wakes_the_unit_on_this_machine(folder: Path) -> None:
    """In real time: results come long before the next window of two seconds begins."""
    path = with_wake(folder, target=None, rate_hz=0.5, guard_ms=1.0, schedule='preemption = "never"', model="")
    with Runner(plan(path)) as runner:
        for _ in range(3):
            request = runner.request(IMAGE, "trigger")
            output = request.result(timeout=1.5)["wake"]
            assert output.finished_ns - output.released_ns < 1_000 * MS
            while runner._inbox("trigger").open_ns:
                runner.wait(timeout=0.01)
        assert runner._running.session.group.windows <= 2
    assert isinstance(runner.timetable, Timetable)


def test_events_of_a_model_that_has_moved_keep_their_times(folder: Path) -> None:
    """Where the unit fails, the model goes on elsewhere: its frames came with their events, not with a window."""
    write_target(folder, "two.toml", units=('name = "a"', 'name = "b"\ncore = 1'))
    times_ms = [57 * number + 3 for number in range(1, 40)]
    planned = plan(with_wake(folder, target="two.toml", stream=f"times_ms = {times_ms}"))
    (unit,) = {segment.unit for segment in planned.timetable.model("wake").segments}
    output = folder / "moved"
    result = simulate(planned, windows=70, output=output, inject=[f"raise:{unit}@20w.."])
    assert any("model 'wake' went on" in note for note in result.warnings)
    rows = [line.split(",") for line in (output / "frames.csv").read_text(encoding="utf-8").splitlines()[1:]]
    done = {int(row[1]): int(row[5]) for row in rows if row[2] == "wake" and row[3] in ("done", "late")}
    assert max(done) > 30
    assert done == {number: times_ms[number] * MS for number in done}
