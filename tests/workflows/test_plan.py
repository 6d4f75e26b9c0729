"""Plans of small workloads: on this machine with durations that follow from the layers, and on described targets."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from framefit import Plan, Timetable, cycles, plan
from framefit.core.files import read_record, write_record
from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.core.model import Model, configuration, epilogue_groups
from framefit.devices.device import Completion, random_inputs
from framefit.devices.host import realtime_priority_permitted
from framefit.devices.measure import Measurement
from framefit.errors import DeviceError, InputError, UnsupportedError
from framefit.execution import compiled
from framefit.planning import planner as module
from framefit.planning.check import check_timetable
from networks import difference
from workloads import LATE_NS, RATE_HZ, WINDOW_MS, Quiet, listing, no_noise, write_app, write_models, write_target

needs_realtime = pytest.mark.skipif(
    not realtime_priority_permitted(), reason="real-time priorities (SCHED_FIFO) are not permitted here"
)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Quiet:
    """Plans of this test see no noise."""
    return no_noise(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models."""
    return write_models(tmp_path_factory.mktemp("plan"))


def write_random(path: Path, kind: str) -> None:
    """Products with a random operator between them, without a seed."""
    weights = {f"weight{n}": np.random.default_rng(n).random((8, 8), np.float32) - 0.5 for n in range(3)}
    weights |= {"training": np.ones((), np.bool_), "ratio": np.full((), 0.5, np.float32)}
    given: dict[str, tuple[list[str], dict[str, Any]]] = {
        "RandomNormal": ([], {"shape": [1, 8]}),
        "Multinomial": (["a"], {"sample_size": 8}),
        "Bernoulli": (["positive"], {}),
        "Dropout": (["a", "ratio", "training"], {}),
    }
    inputs, attributes = given.get(kind, (["a"], {}))
    nodes = [
        helper.make_node("MatMul", ["x", "weight0"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["positive"]),
        helper.make_node(kind, inputs, ["drawn"], name="draw", **attributes),
        helper.make_node("Cast", ["drawn"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["positive", "number"], ["b"]),
        helper.make_node("MatMul", ["b", "weight1"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "weight2"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "random", ends[:1], ends[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), path)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Plan:
    """A plan in which everything fits whole."""
    with pytest.MonkeyPatch.context() as patch:
        no_noise(patch)
        return plan(write_app(folder), output=folder / "whole.json")


@pytest.fixture(scope="module")
def guard_ms(folder: Path) -> float:
    """A guard that leaves 0.6 of what the background model takes whole, ten times what a layer of it takes."""
    with pytest.MonkeyPatch.context() as patch:
        no_noise(patch)
        small, chain = plan(write_app(folder), cache=False).timetable.models
    return WINDOW_MS - (small.duration_ns + 0.6 * chain.segments[0].median_ns) / 1e6


@pytest.fixture(scope="module")
def cut(folder: Path, guard_ms: float) -> Plan:
    """A plan in which the background model has to be cut."""
    with pytest.MonkeyPatch.context() as patch:
        no_noise(patch)
        return plan(write_app(folder, guard_ms=guard_ms), output=folder / "cut.json")


def test_what_fits_runs_whole(whole: Plan) -> None:
    """A small priority and a small background model fit into 50 ms, each in one segment, priority first."""
    timetable = whole.timetable
    assert timetable.feasible
    assert [(m.name, m.role, len(m.segments)) for m in timetable.models] == [
        ("small", "priority", 1),
        ("chain", "background", 1),
    ]
    assert timetable.window_ns == WINDOW_MS * 1e6
    assert timetable.guard_ns == 1_000_000
    assert timetable.binding_constraint is None
    assert check_timetable(timetable) == []


def test_the_timetable_file_has_the_keys_that_others_rely_on(whole: Plan, folder: Path) -> None:
    """Every key of the contract is there, at its place; the file reads back as the plan's timetable."""
    data = json.loads((folder / "whole.json").read_text())
    expected = (
        "schema_version feasible worst_slack_ns hyperperiod_windows window_ns priority_ns residual_ns guard_ns units "
        "windows models memory_bytes bound gap_ratio binding_constraint reasons fixes"
    )
    assert set(expected.split()) <= set(data)
    window, model = data["windows"][0], data["models"][0]
    assert set(window) >= {"index", "length_ns", "priority", "residual_ns", "slots"}
    assert set(window["priority"][0]) >= {"unit", "start_ns", "end_ns", "model"}
    assert set(window["slots"][0]) >= {"unit", "start_ns", "duration_ns", "model", "segment", "frame"}
    assert set(model) >= {"name", "role", "level", "reasons", "duration_ns", "segments", "result_age_windows"}
    segment = "index unit fill_layer first_layer last_layer output_layers duration_ns boundary_bytes tensors"
    assert set(model["segments"][0]) >= set(segment.split())
    assert set(data["memory_bytes"]) == set(data["units"])
    assert msgspec.structs.replace(read_record(folder / "whole.json", Timetable), source=None) == whole.timetable


def test_what_does_not_fit_is_cut(cut: Plan) -> None:
    """The background model becomes segments that fit the residual less guard and cover its layers in order."""
    timetable = cut.timetable
    assert timetable.feasible
    chain = timetable.model("chain")
    assert len(chain.segments) >= 2
    assert all(s.duration_ns <= timetable.residual_ns - timetable.guard_ns for s in chain.segments)
    assert all(segment.boundary_bytes > 0 for segment in chain.segments[:-1])
    assert chain.segments[-1].boundary_bytes == 0
    assert chain.segments[-1].tensors == ("pooled",)
    task = cut.opened().models[1]
    assert [layer for first, last in task.execution.bounds for layer in range(first, last + 1)] == list(
        range(len(task.execution.model.layers))
    )
    assert check_timetable(timetable) == []


def test_the_segments_give_what_the_whole_model_gives(cut: Plan) -> None:
    """The plan reports a difference within 1e-4, and a frame that the plan never saw confirms it."""
    assert 0 <= cut.timetable.model("chain").max_relative_difference <= 1e-4
    task = cut.opened().models[1]
    frame = random_inputs(task.execution.inputs, np.random.default_rng(99))
    assert difference(task.whole.run(frame), task.execution.run(frame)) <= 1e-4


def test_segments_that_compute_something_else_are_refused(
    cut: Plan, folder: Path, guard_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A joined output that differs by more than 1e-4 is a device's failure, not a plan."""
    no_noise(monkeypatch)
    monkeypatch.setattr(compiled, "greatest_difference", lambda *_: 2e-4)
    with pytest.raises(DeviceError, match="joined segments differ") as error:
        plan(write_app(folder, guard_ms=guard_ms))
    assert error.value.where == "chain"


@pytest.mark.parametrize("kind", ["RandomNormal", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"])
def test_random_operators_draw_the_same_in_segments(
    kind: str, tmp_path: Path, quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get fixed seeds, which the plan says, and segments are compared with the whole model as ever.

    Where they differ all the same, the message names the operator and what to do.
    """
    write_random(tmp_path / "small.onnx", kind)
    app = write_app(tmp_path, priority=(), background=("small",), model="always_split = true")
    planned = plan(app)
    (model,) = planned.timetable.models
    assert len(model.segments) > 1
    assert model.max_relative_difference == 0
    assert [reason for reason in planned.timetable.reasons if "1 random operator was given a fixed seed" in reason]
    monkeypatch.setattr(compiled, "greatest_difference", lambda *_: 2e-4)
    with pytest.raises(DeviceError, match=f"random numbers than the whole model: {kind} 'draw'") as error:
        plan(app)
    assert "export the model without them" in str(error.value.remedy)


def test_a_second_plan_measures_nothing(cut: Plan, folder: Path, guard_ms: float, quiet: Quiet) -> None:
    """The same workload again is planned from the stored measurements, with the same result."""
    again = plan(write_app(folder, guard_ms=guard_ms))
    assert quiet.calls == 0
    assert again.identified.timetable == cut.timetable


def test_fresh_measures_again(whole: Plan, folder: Path, quiet: Quiet) -> None:
    """``fresh`` ignores what was stored."""
    plan(write_app(folder), cache=False)
    assert quiet.calls > 0


def test_a_model_that_turns_out_longer_is_cut_after_all(
    whole: Plan, folder: Path, guard_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first measurement was too good to be true, the model is cut instead of being called infeasible."""
    no_noise(monkeypatch, scales=[0.2])
    timetable = plan(write_app(folder, guard_ms=guard_ms), cache=False).timetable
    assert len(timetable.model("chain").segments) >= 2
    assert timetable.feasible


def test_a_layer_that_fits_no_window_is_named_with_a_rate_that_helps(cut: Plan, folder: Path, quiet: Quiet) -> None:
    """Infeasible: the layer and the model are named, and the workload fits at the rate of the fix."""
    chain_ns = sum(segment.median_ns for segment in cut.timetable.model("chain").segments)
    guard = WINDOW_MS - (LATE_NS + 0.04 * chain_ns) / 1e6  # a layer takes more than twice as much
    app = write_app(folder, priority=(), guard_ms=guard)
    timetable = plan(app, output=folder / "infeasible.json").timetable
    assert not timetable.feasible
    assert timetable.binding_constraint is not None
    assert "'chain'" in timetable.binding_constraint
    assert "layer" in timetable.binding_constraint
    brief = plan(app, explained=False).timetable
    assert (brief.binding_constraint, brief.fixes) == (timetable.binding_constraint, ())
    assert json.loads((folder / "infeasible.json").read_text())["feasible"] is False
    assert all(fix.verified for fix in timetable.fixes)
    (rate,) = (fix.change for fix in timetable.fixes if fix.change.startswith("rate_hz = "))
    rate_hz = float(rate.removeprefix("rate_hz = "))
    assert rate_hz < RATE_HZ
    assert plan(write_app(folder, priority=(), guard_ms=guard, rate_hz=rate_hz)).timetable.feasible


def test_a_deadline_that_cannot_hold_is_named_with_one_that_can(folder: Path, quiet: Quiet) -> None:
    """A slower beat would not help against a deadline of 1 us: the fix is a later deadline, and it works."""
    app = write_app(folder, model="deadline_ms = 0.001")
    timetable = plan(app).timetable
    assert not timetable.feasible
    assert timetable.binding_constraint is not None
    assert "'small'" in timetable.binding_constraint
    assert "deadline" in timetable.binding_constraint
    (fix,) = timetable.fixes
    assert fix.verified
    assert fix.change.endswith(" for 'small'")
    assert plan(write_app(folder, model=fix.change.removesuffix(" for 'small'"))).timetable.feasible


def test_an_existing_timetable_is_not_overwritten(folder: Path, quiet: Quiet) -> None:
    """Without ``force`` an existing output is refused before anything is measured."""
    (folder / "kept.json").write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        plan(write_app(folder), output=folder / "kept.json")
    assert (folder / "kept.json").read_text() == "mine"
    timetable = plan(write_app(folder), output=folder / "kept.json", force=True).timetable
    assert msgspec.structs.replace(read_record(folder / "kept.json", Timetable), source=None) == timetable


def test_the_guard_comes_from_the_machine_where_none_is_given(folder: Path, quiet: Quiet) -> None:
    """Without guard_ms the machine's floor is measured; the guard is at least 50 us."""
    app = write_app(folder)
    app.write_text(app.read_text().replace("guard_ms = 1.0\n", ""))
    timetable = plan(app).timetable
    assert timetable.guard_ns >= 50_000
    assert timetable.guard_ns != 1_000_000


def roles(result: Plan) -> list[tuple[str, str]]:
    """Names and roles, in order of service."""
    return [(model.name, model.role) for model in result.timetable.models]


def test_levels_are_determined_with_reasons(folder: Path, quiet: Quiet) -> None:
    """With "auto" each model gets a level from what it is like, the reasons add up to it, and it decides the role."""
    app = write_app(
        folder,
        priority=(),
        background=('chain:"auto"', 'small:"auto"'),
        last='task = "face-detection"\nlatency_sensitive = true',
        model="latency_sensitive = false",
    )
    result = plan(app)
    assert roles(result) == [("small", "priority"), ("chain", "background")]
    small, chain = result.timetable.models
    assert chain.level < 5
    assert small.level == 10  # more than ten points are ten
    assert {"+2 task face-detection", "+4 sensitive to latency"} <= set(small.reasons)
    assert any("MACs" in reason for reason in small.reasons)
    points = [int(reason.split()[0]) for reason in chain.reasons if reason[0] in "+-"]
    assert sum(points) == chain.level
    assert "-1 not sensitive to latency" in chain.reasons
    assert chain.reasons[-1].endswith("runs whole")
    assert all("task" not in reason for reason in chain.reasons)


@pytest.mark.parametrize(
    ("schedule", "count"),
    [
        ("", 2),
        ("num_priority = 0", 0),
        ("num_priority = 1", 1),
        ("num_priority = 3", 3),
        ("num_priority = 9", 4),
        ("priority_threshold = 10", 0),
        ("priority_threshold = 8", 1),
        ("priority_threshold = 4", 4),
    ],
)
def test_who_is_priority(schedule: str, count: int, folder: Path, quiet: Quiet) -> None:
    """The levels from the threshold (5) on, or the N highest, earlier models first among equals; highest first."""
    models = ("chain3:4", "chain:6", "small:9", "chain2:4")
    app = write_app(folder, priority=(), background=models, schedule=f'preemption = "never"\n{schedule}')
    result = plan(app)
    names = ["small", "chain", "chain3", "chain2"]
    assert [(m.name, m.level) for m in result.timetable.models] == list(zip(names, (9, 6, 4, 4), strict=True))
    assert roles(result) == [(name, "priority" if n < count else "background") for n, name in enumerate(names)]
    assert [period.model for period in result.timetable.windows[0].priority] == names[:count]
    assert check_timetable(result.timetable) == []


@needs_realtime
def test_preemption_keeps_models_whole(cut: Plan, folder: Path, guard_ms: float, quiet: Quiet) -> None:
    """Where the system may interrupt background work, what would have to be cut runs whole, without a guard."""
    timetable = plan(write_app(folder, guard_ms=guard_ms, schedule='preemption = "auto"')).timetable
    assert len(cut.timetable.model("chain").segments) >= 2
    assert not cut.timetable.preemptive
    assert timetable.feasible
    assert timetable.preemptive
    assert timetable.guard_ns == 0
    assert len(timetable.model("chain").segments) == 1
    assert check_timetable(timetable) == []


def test_without_permission_models_are_cut_and_it_is_said(
    cut: Plan, folder: Path, guard_ms: float, quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode "auto" where real-time priorities are refused: the same segments as with "never", and a reason."""
    monkeypatch.setattr(module, "realtime_priority_permitted", lambda: False)
    timetable = plan(write_app(folder, guard_ms=guard_ms, schedule='preemption = "auto"')).timetable
    assert not timetable.preemptive
    assert len(timetable.model("chain").segments) >= 2
    assert timetable.guard_ns == cut.timetable.guard_ns
    assert any("real-time priorities are not permitted here" in reason for reason in timetable.reasons)
    assert not any("real-time" in reason for reason in cut.timetable.reasons)


@needs_realtime
def test_nothing_to_preempt(folder: Path, quiet: Quiet) -> None:
    """Models of one role only never interrupt each other: no second thread is planned."""
    for models in ({"background": ()}, {"priority": ()}):
        timetable = plan(write_app(folder, **models, schedule="")).timetable
        assert timetable.feasible
        assert not timetable.preemptive
        assert timetable.guard_ns == 1_000_000


@pytest.mark.parametrize("position", ["middle", "end"])
def test_priority_periods_elsewhere(position: str, folder: Path, quiet: Quiet) -> None:
    """The period lies in the middle of its window, or ends the guard before its end; background work around it."""
    schedule = f'preemption = "never"\npriority_position = "{position}"'
    timetable = plan(write_app(folder, schedule=schedule)).timetable
    assert timetable.feasible
    assert check_timetable(timetable) == []
    (period,) = timetable.windows[0].priority
    before, after = period.start_ns, timetable.window_ns - period.end_ns
    if position == "end":
        assert after == timetable.guard_ns == 1_000_000
    else:
        assert abs(before - after) <= 1
    chain = [slot for slot in timetable.windows[0].slots if slot.model == "chain"]
    assert chain
    assert chain[0].start_ns + chain[0].duration_ns + timetable.guard_ns <= period.start_ns


def test_an_early_deadline_draws_a_late_period_forward(folder: Path, quiet: Quiet) -> None:
    """At the end of its window a priority model still keeps a deadline in its middle; one that never holds is told."""
    schedule = 'preemption = "never"\npriority_position = "end"'
    timetable = plan(write_app(folder, schedule=schedule, model="deadline_ms = 25")).timetable
    assert timetable.feasible
    assert timetable.windows[0].priority[0].start_ns > 0
    assert 25_000_000 - 1_000 <= timetable.windows[0].priority[-1].end_ns <= 25_000_000
    hopeless = plan(write_app(folder, schedule=schedule, model="deadline_ms = 0.001")).timetable
    assert "'small'" in (hopeless.binding_constraint or "")
    assert any("deadline_ms" in fix.change and fix.verified for fix in hopeless.fixes)


def test_ways_to_segment(folder: Path, quiet: Quiet) -> None:
    """Mode "fewest" makes no more segments than "fill", and "equal" as many as "fewest", of like duration."""
    small, chain = plan(write_app(folder)).timetable.models
    guard_ms = WINDOW_MS - (small.duration_ns + 0.6 * chain.segments[0].median_ns) / 1e6
    found = {}
    for mode in ("fill", "fewest", "equal"):
        schedule = f'preemption = "never"\nsegmentation = "{mode}"'
        timetable = plan(write_app(folder, guard_ms=guard_ms, schedule=schedule)).timetable
        assert timetable.feasible
        found[mode] = [segment.median_ns for segment in timetable.model("chain").segments]
        assert f"cut into {len(found[mode])} segments ({mode})" in timetable.model("chain").reasons[-1]
    assert 2 <= len(found["fewest"]) <= len(found["fill"])
    assert len(found["equal"]) == len(found["fewest"])
    assert min(found["equal"]) > 0.5 * max(found["equal"])


@pytest.mark.parametrize(
    "schedule", ['preemption = "never"', pytest.param("", marks=needs_realtime)], ids=["cooperative", "preemptive"]
)
def test_a_model_may_be_split_all_the_same(schedule: str, folder: Path, quiet: Quiet) -> None:
    """always_split cuts what would fit whole; the outputs stay the same."""
    result = plan(write_app(folder, schedule=schedule, last="always_split = true"))
    chain = result.timetable.model("chain")
    assert result.timetable.feasible
    assert len(chain.segments) >= 2
    assert 0 <= chain.max_relative_difference <= 1e-4


def test_every_second_window(folder: Path, quiet: Quiet) -> None:
    """A priority model of every second window leaves the other one to the background."""
    result = plan(write_app(folder, model="every = 2"))
    timetable = result.timetable
    assert timetable.feasible
    assert check_timetable(timetable, every={"small": 2}) == []
    assert len(timetable.windows) % 2 == 0
    assert [len(window.priority) for window in timetable.windows[:2]] == [1, 0]
    assert timetable.windows[1].residual_ns[0] == timetable.window_ns > timetable.windows[0].residual_ns[0]


class Drifting(Quiet):
    """The machine becomes half as fast in the middle of each measurement."""

    def __call__(self, launches: Sequence[Callable[[], Completion]], **limits: Any) -> list[Measurement]:
        """As told by the layers, at first."""
        found = super().__call__(launches, **limits)
        half = len(found[0].samples_ns) // 2
        return [Measurement(np.concatenate([m.samples_ns[:half], 2 * m.samples_ns[half:]])) for m in found]


def test_a_warning_of_drift_is_repeated_as_long_as_its_measurements_are_used(
    folder: Path, tmp_path: Path, guard_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second plan from the store warns as the first did, once; one that measures anew on a steady machine, never."""
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path))
    no_noise(monkeypatch)
    drifting = Drifting()
    monkeypatch.setattr("framefit.planning.durations.measure", drifting)
    app = write_app(folder, guard_ms=guard_ms)
    first = plan(app)
    calls = drifting.calls
    again = plan(app)
    assert drifting.calls == calls
    for result in (first, again):
        assert sum("drifted" in reason for reason in result.timetable.reasons) == 1
    assert again.timetable == first.timetable
    no_noise(monkeypatch)
    assert not any("drifted" in reason for reason in plan(app, cache=False).timetable.reasons)


def test_a_plan_asks_no_function_for_frames_and_opens_no_sink(folder: Path, quiet: Quiet) -> None:
    """What a run would read and write is checked, and neither read nor written."""
    (folder / "counted.py").write_text("asked = []\n\ndef frames():\n    asked.append(1)\n    yield from ()\n")
    more = '[[outputs]]\nmodel = "small"\nsink = "planned.jsonl"\n'
    assert plan(write_app(folder, stream='source = "counted:frames"', more=more)).timetable.feasible
    assert sys.modules["counted"].asked == []
    assert not (folder / "planned.jsonl").exists()
    (folder / "planned.jsonl").write_text("of an earlier run")
    assert plan(write_app(folder, more=more)).timetable.feasible


def test_what_waits_is_planned_by_when_it_comes(folder: Path, guard_ms: float, quiet: Quiet) -> None:
    """A background model that cannot keep up makes a stream wait: feasible, and its results are no older for it."""
    keys = "queue = {}\nwhen_full = {}"
    ages, warned = {}, {}
    for rule in ("block", "drop-newest"):
        found = plan(write_app(folder, guard_ms=guard_ms, stream=keys.format(3, f'"{rule}"'))).timetable
        assert found.feasible
        ages[rule] = found.model("chain").result_age_windows
        warned[rule] = [reason for reason in found.reasons if "wait" in reason]
    assert ages["block"] == ages["drop-newest"]
    assert warned["drop-newest"] == []
    assert len(warned["block"]) == 1
    assert "small may have no frame" in warned["block"][0]
    fits = plan(write_app(folder, stream=keys.format(3, '"block"'))).timetable
    assert not [reason for reason in fits.reasons if "wait" in reason]


# Described targets ---------------------------------------------------------------------------

LAUNCH_NS = 20_000  # what the host adds to each launch on the board of write_target
P99 = math.exp(0.02 * 2.3263478740408408)  # of its variation


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever measures, fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("framefit.planning.durations.measure", refuse)
    monkeypatch.setattr("framefit.planning.durations.measure_floor", refuse)


@pytest.fixture
def board(unmeasured: None, folder: Path) -> Callable[..., Path]:
    """Writes an app for the board; the chain takes 17 ms in windows of 12.5 ms, and no guard is given."""

    def write(**given: Any) -> Path:
        keys: dict[str, Any] = {"rate_hz": 80, "guard_ms": None, "schedule": "", "target": "target.toml"}
        if "target" not in given:
            write_target(folder)
        return write_app(folder, **keys | given)

    return write


def test_a_described_device_tells_what_layers_cost(board: Callable[..., Path], folder: Path) -> None:
    """Nothing is measured: medians are the cycle model's, with the host's part; quantiles follow from the variation."""
    timetable = plan(board(rate_hz=20, schedule='segmentation = "fewest"')).timetable
    for model in timetable.models:
        (segment,) = model.segments
        whole_ns = cycles(folder / f"{model.name}.onnx", target=str(folder / "target.toml")).total_ns
        assert segment.median_ns == pytest.approx(whole_ns + LAUNCH_NS, abs=len(model.segments) * 20)
        assert segment.duration_ns == math.ceil(segment.median_ns * P99)
        assert segment.unit == "npu0"
    assert (timetable.feasible, timetable.units, timetable.reasons) == (True, ("npu0",), ())
    assert check_timetable(timetable) == []


def test_a_described_plan_is_always_the_same(board: Callable[..., Path], folder: Path) -> None:
    """Two plans write one file, whatever was stored in between."""
    app = board()
    for name in ("one", "two"):
        plan(app, output=folder / f"{name}.json", cache=name != "two")
    assert (folder / "one.json").read_bytes() == (folder / "two.json").read_bytes()


def test_what_is_longer_than_the_window_is_cut(board: Callable[..., Path]) -> None:
    """Segments fit the residual less guard, give the whole model's outputs, and each pays its launch."""
    result = plan(board())
    timetable = result.timetable
    assert timetable.feasible
    assert check_timetable(timetable) == []
    chain = timetable.model("chain")
    whole_ns = result.opened().models[1].whole.expected_ns(0)
    assert whole_ns > timetable.window_ns
    assert len(chain.segments) >= 2
    assert all(s.duration_ns <= timetable.residual_ns - timetable.guard_ns for s in chain.segments)
    total = sum(segment.median_ns for segment in chain.segments)
    assert total == pytest.approx(whole_ns + (len(chain.segments) - 1) * LAUNCH_NS, abs=1000)
    assert chain.segmentation_overhead_ratio == pytest.approx(total / whole_ns - 1)
    assert 0 <= chain.max_relative_difference <= 1e-4


@pytest.mark.parametrize(
    ("variation", "excess_ratio"),
    [
        ("sigma_ratio = 0.02", 1.1 / P99 - 1),
        ("sigma_ratio = 0.02\ndrift_ratio = 0.05", 1.1 / P99 - 1),
        ("sigma_ratio = 0.2", 0.0),  # 1 % of launches are cut: the quantile is the greatest
        ("drift_ratio = 0.1", 0.0),
        ("sigma_ratio = 0.02\nmost_ratio = 0.3", 1.3 / P99 - 1),
        ("", 0.0),
    ],
)
def test_the_guard_is_the_greatest_excess_of_the_longest_segment(
    variation: str, excess_ratio: float, board: Callable[..., Path], folder: Path
) -> None:
    """No more and no less, where none is given; one that is given stays."""
    write_target(folder, "varied.toml", variation=variation)
    timetable = plan(board(target="varied.toml")).timetable
    longest = max(segment.duration_ns for segment in timetable.model("chain").segments)
    assert timetable.feasible
    assert timetable.guard_ns == pytest.approx(excess_ratio * longest, abs=2)
    given = plan(board(target="varied.toml", guard_ms=0.25)).timetable
    assert (given.feasible, given.guard_ns) == (True, 250_000)


@pytest.mark.parametrize("position", ["start", "middle", "end"])
def test_positions_and_every_on_a_described_target(position: str, board: Callable[..., Path]) -> None:
    """Periods lie where they are asked for, in every second window; nobody wakes up late there."""
    app = board(schedule=f'priority_position = "{position}"', model="every = 2")
    timetable = plan(app).timetable
    assert timetable.feasible
    assert check_timetable(timetable, every={"small": 2}) == []
    assert [len(window.priority) for window in timetable.windows[:2]] == [1, 0]
    (period,) = timetable.windows[0].priority
    small_ns = timetable.models[0].duration_ns
    assert period.end_ns - period.start_ns == small_ns
    free = timetable.window_ns - small_ns
    longest = max(segment.duration_ns for segment in timetable.model("chain").segments)
    own_guard_ns = timetable.guard_ns * small_ns / longest  # what follows it is for what it may take more
    wanted = {"start": 0, "middle": free // 2, "end": free - own_guard_ns}[position]
    assert period.start_ns == pytest.approx(wanted, abs=2)


def test_deadlines_on_a_described_target(board: Callable[..., Path]) -> None:
    """A deadline that cannot hold is infeasible with a fix that works; the same deadline later is none."""
    timetable = plan(board(model="deadline_ms = 0.025")).timetable
    assert not timetable.feasible
    assert "'small'" in (timetable.binding_constraint or "")
    fix = next(fix for fix in timetable.fixes if "deadline_ms" in fix.change)
    assert fix.verified
    assert plan(board(model=fix.change.removesuffix(" for 'small'"))).timetable.feasible
    tight = plan(board(last="deadline_ms = 12.5")).timetable  # of the chain, which takes 17
    assert not tight.feasible
    assert plan(board(last="deadline_ms = 60")).timetable.feasible


def test_levels_on_a_described_target(board: Callable[..., Path]) -> None:
    """What a model is worth follows from its share of the window there, and decides the role."""
    result = plan(board(priority=(), background=('chain:"auto"', 'small:"auto"'), last="latency_sensitive = true"))
    assert roles(result) == [("small", "priority"), ("chain", "background")]
    small, chain = result.timetable.models
    assert small.level > chain.level
    for model in (small, chain):
        assert sum(int(reason.split()[0]) for reason in model.reasons if reason[0] in "+-") in (model.level, 11, 12)


def test_a_layer_that_fits_no_window_is_named_there_too(board: Callable[..., Path]) -> None:
    """At 1 kHz a convolution is longer than the window: it is named, and the rate of the fix fits."""
    timetable = plan(board(rate_hz=1000)).timetable
    assert not timetable.feasible
    assert "layer" in (timetable.binding_constraint or "")
    assert "'chain'" in (timetable.binding_constraint or "")
    rate = next(fix.change for fix in timetable.fixes if fix.change.startswith("rate_hz = "))
    assert plan(board(rate_hz=float(rate.removeprefix("rate_hz = ")))).timetable.feasible


def test_a_unit_that_can_do_hardly_anything_stays_idle(board: Callable[..., Path], folder: Path) -> None:
    """Of three units one lacks most operators, and the fastest has everything where that serves all frames."""
    units = ('name = "a"\noperators = ["Concat"]', 'name = "b"\ncore = 1', 'name = "c"\nspeed_ratio = 2.0')
    write_target(folder, "three.toml", units=units)
    timetable = plan(board(target="three.toml", rate_hz=20)).timetable
    assert timetable.feasible
    assert "a" not in timetable.units
    assert {slot.unit for window in timetable.windows for slot in window.slots} == set(timetable.units)
    assert set(timetable.memory_bytes) == set(timetable.units)
    assert timetable.models == plan(board(target="three.toml", rate_hz=20)).timetable.models


def test_an_operator_that_no_unit_supports_is_named(board: Callable[..., Path], folder: Path, tmp_path: Path) -> None:
    """Model, layer, operator and unit; nothing is written."""
    units = ('name = "a"\noperators = ["Conv"]', 'name = "b"\nunsupported = ["GlobalAveragePool"]')
    write_target(folder, "few.toml", units=units)
    app = board(target="few.toml")
    before = listing(folder)
    with pytest.raises(InputError, match="no unit of target 'board' supports all operators") as error:
        plan(app, output=tmp_path / "timetable.json")
    assert "'b' lacks GlobalAveragePool" in str(error.value)
    assert "model 'small', layer 'GlobalAveragePool_1'" in str(error.value.where)
    assert error.value.remedy
    assert (listing(folder), listing(tmp_path)) == (before, {})


def test_units_that_can_be_interrupted_are_refused(board: Callable[..., Path], folder: Path) -> None:
    """A described unit runs a segment to its end; what says otherwise is not ignored."""
    write_target(folder, "soft.toml", units=('name = "a"', 'name = "b"\npreemptive = true'))
    with pytest.raises(UnsupportedError, match=r"units\[1\].preemptive") as error:
        plan(board(target="soft.toml"))
    assert str(error.value.where).endswith("soft.toml")


def test_a_function_beside_the_target_tells_the_costs(board: Callable[..., Path], folder: Path) -> None:
    """The target's path begins at the app's folder, the function's at the target's."""
    boards = folder / "boards"
    boards.mkdir()
    (boards / "own_prices.py").write_text(
        "def price(layer, unit, target):\n    return 1000.0 * len(layer.op.split('+'))\n"
    )
    write_target(boards, "own.toml", cost='source = "function"\nfunction = "own_prices:price"')
    app = board(target="boards/own.toml", rate_hz=1000)
    timetable = plan(app).timetable
    assert timetable.feasible
    # Conv+Relu and GlobalAveragePool; the Identity that names the output is a view, and free.
    assert timetable.models[0].segments[0].median_ns == LAUNCH_NS + 2000 + 1000


def test_a_table_beside_the_target_tells_the_costs(board: Callable[..., Path], folder: Path) -> None:
    """By configuration, whatever the layer is called, also of segments; what it lacks is named."""
    tabled = folder / "tabled"
    tabled.mkdir()
    entries = {}
    for name in ("small", "chain"):
        model = Model.load(folder / f"{name}.onnx")
        model = model.grouped(epilogue_groups(model))
        for layer, nodes in zip(model.layers, model.nodes, strict=True):
            entry = LatencyEntry(
                op=layer.op,
                configuration=configuration(nodes),
                unit="npu0",
                latency_ns=300_000,
                interval_ns=(300_000, 300_000),
            )
            entries[layer.op, json.dumps(entry.configuration)] = entry
    table = LatencyTable(target="board", fingerprint={}, entries=tuple(entries.values()))
    write_record(tabled / "board.table.json", table)
    write_target(tabled, cost='source = "table"\ntable = "board.table.json"')
    result = plan(board(target="tabled/target.toml", rate_hz=400))
    chain = result.timetable.model("chain")
    assert result.timetable.feasible
    assert result.timetable.models[0].segments[0].median_ns == LAUNCH_NS + 2 * 300_000
    assert len(chain.segments) >= 2
    count = sum(segment.median_ns - LAUNCH_NS for segment in chain.segments) / 300_000
    assert count == sum(layer.op != "Identity" for layer in result.opened().models[1].execution.model.layers)
    short = LatencyTable(target="board", fingerprint={}, entries=table.entries[:1])
    write_record(tabled / "board.table.json", short, force=True)
    with pytest.raises(InputError, match=r"board\.table\.json: no entry for layer"):
        plan(board(target="tabled/target.toml", rate_hz=400))


def test_a_target_that_is_given_begins_here(
    board: Callable[..., Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of the app's; its path begins at the current folder, not at the app's."""
    app = board(target="absent.toml")
    write_target(tmp_path, "near.toml", processor="clock_mhz = 200\nmacs_per_cycle = { fp32 = 64 }")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"absent\.toml: no such file"):
        plan(app)
    near = plan(app, target="near.toml").timetable
    slow = plan(board()).timetable
    assert near.feasible
    for faster, slower in zip(near.models, slow.models, strict=True):
        assert sum(s.median_ns for s in faster.segments) < sum(s.median_ns for s in slower.segments)
    with pytest.raises(InputError, match=r"target\.toml: no such file"):
        plan(app, target="target.toml")


def test_real_time_counts_the_hosts_wake_ups(board: Callable[..., Path], quiet: Quiet) -> None:
    """A device that is to run beside the host's clock: the first launch is as late as on this machine."""
    timetable = plan(board(), in_real_time=True).timetable
    assert quiet.calls == 0
    assert timetable.feasible
    small = timetable.models[0]
    (period,) = timetable.windows[0].priority
    assert period.end_ns - period.start_ns == small.duration_ns + LATE_NS
    assert timetable.guard_ns >= 50_000


class Deceptive(Quiet):
    """A machine on which cuts seem free while pieces are priced, and cost 40 us and ``extra_ns`` each afterwards."""

    def __init__(self, extra_ns: int) -> None:
        super().__init__()
        self.extra_ns = extra_ns

    def __call__(self, launches: Sequence[Callable[[], Completion]], **limits: Any) -> list[Measurement]:
        """Pieces are priced after two campaigns over whole models."""
        constant = -40_000 if self.calls == 2 else self.extra_ns
        return [Measurement(m.samples_ns + constant) for m in super().__call__(launches, **limits)]


@pytest.mark.parametrize(("extra_ns", "dear"), [(20_000, False), (500_000, True)])
def test_cuts_that_turn_out_dear_are_fewer(
    extra_ns: int, dear: bool, folder: Path, tmp_path: Path, guard_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few ways to cut are measured: one within 2 % is taken; where there is none, the best, and it is said."""
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path))
    no_noise(monkeypatch)
    honest = len(plan(write_app(folder, guard_ms=guard_ms), cache=False).timetable.model("chain").segments)
    deceptive = Deceptive(extra_ns)
    monkeypatch.setattr("framefit.planning.durations.measure", deceptive)
    timetable = plan(write_app(folder, guard_ms=guard_ms - 0.5), cache=False).timetable
    assert timetable.feasible
    assert deceptive.calls > 4, "ways to cut are measured before the one that is taken"
    assert 2 <= len(timetable.model("chain").segments) <= max(honest, 3)
    assert (timetable.model("chain").segmentation_overhead_ratio > 0.02) == dear
    assert any("none that fits stays within 2 %" in reason for reason in timetable.reasons) == dear
