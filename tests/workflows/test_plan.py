"""Plans of small workloads, measured on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefit.core.files import read_record
from framefit.core.timetable import Timetable
from framefit.devices.device import Completion, random_inputs
from framefit.devices.measure import Measurement, measure
from framefit.errors import DeviceError, InputError
from framefit.scheduling.check import check_timetable
from framefit.workflows import plan as module
from framefit.workflows.plan import Plan, plan
from networks import difference
from workloads import RATE_HZ, WINDOW_MS, write_app, write_models


class Quiet:
    """Stands in for ``measure`` on a machine without noise: few rounds, and the least of them for all.

    It counts its calls; ``scales[n]`` multiplies the durations of call n.
    """

    def __init__(self, scales: Sequence[float] = ()) -> None:
        self.calls = 0
        self._scales = scales

    def __call__(self, launches: Sequence[Callable[[], Completion]], **limits: Any) -> list[Measurement]:
        """Take ``least_rounds``."""
        rounds = limits["least_rounds"]
        scale = self._scales[self.calls] if self.calls < len(self._scales) else 1.0
        self.calls += 1
        found = measure(launches, least_rounds=rounds, budget_ns=1)
        return [Measurement(np.full(rounds, int(m.samples_ns.min() * scale), np.int64)) for m in found]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Quiet:
    """Plans of this test see no noise."""
    fake = Quiet()
    monkeypatch.setattr(module, "measure", fake)
    return fake


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models."""
    return write_models(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def whole(folder: Path) -> Plan:
    """A plan in which everything fits whole, really measured."""
    return plan(write_app(folder), output=folder / "whole.json")


@pytest.fixture(scope="module")
def guard_ms(folder: Path) -> float:
    """A guard that leaves 0.6 of what the background model takes whole, ten times what a layer of it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "measure", Quiet())
        small, chain = plan(write_app(folder), fresh=True).timetable.models
    return WINDOW_MS - (small.duration_ns + 0.6 * chain.segments[0].median_ns) / 1e6


@pytest.fixture(scope="module")
def cut(folder: Path, guard_ms: float) -> Plan:
    """A plan in which the background model has to be cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "measure", Quiet())
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
    assert read_record(folder / "whole.json", Timetable) == whole.timetable


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
    task = cut.tasks[1]
    assert [layer for first, last in task.execution.bounds for layer in range(first, last + 1)] == list(
        range(len(task.execution.model.layers))
    )
    assert check_timetable(timetable) == []


def test_the_segments_give_what_the_whole_model_gives(cut: Plan) -> None:
    """The plan reports a difference within 1e-4, and a frame that the plan never saw confirms it."""
    assert 0 <= cut.timetable.model("chain").max_relative_difference <= 1e-4
    task = cut.tasks[1]
    frame = random_inputs(task.execution.inputs, np.random.default_rng(99))
    assert difference(task.whole.run(frame), task.execution.run(frame)) <= 1e-4


def test_segments_that_compute_something_else_are_refused(
    cut: Plan, folder: Path, guard_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A joined output that differs by more than 1e-4 is a device's failure, not a plan."""
    monkeypatch.setattr(module, "greatest_difference", lambda *_: 2e-4)
    with pytest.raises(DeviceError, match="joined segments differ") as error:
        plan(write_app(folder, guard_ms=guard_ms))
    assert error.value.where == "chain"


def test_a_second_plan_measures_nothing(cut: Plan, folder: Path, guard_ms: float, quiet: Quiet) -> None:
    """The same workload again is planned from the stored measurements, with the same result."""
    again = plan(write_app(folder, guard_ms=guard_ms))
    assert quiet.calls == 0
    assert again.timetable == cut.timetable


def test_fresh_measures_again(whole: Plan, folder: Path, quiet: Quiet) -> None:
    """``fresh`` ignores what was stored."""
    plan(write_app(folder), fresh=True)
    assert quiet.calls > 0


def test_a_model_that_turns_out_longer_is_cut_after_all(
    whole: Plan, folder: Path, guard_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first measurement was too good to be true, the model is cut instead of being called infeasible."""
    monkeypatch.setattr(module, "measure", Quiet(scales=[0.2]))
    timetable = plan(write_app(folder, guard_ms=guard_ms), fresh=True).timetable
    assert len(timetable.model("chain").segments) >= 2
    assert timetable.feasible


def test_a_layer_that_fits_no_window_is_named_with_a_rate_that_helps(whole: Plan, folder: Path, quiet: Quiet) -> None:
    """Infeasible: the layer and the model are named, and the workload fits at the rate of the fix."""
    guard = WINDOW_MS - 0.02 * whole.timetable.model("chain").duration_ns / 1e6
    app = write_app(folder, priority=(), guard_ms=guard)
    timetable = plan(app, output=folder / "infeasible.json").timetable
    assert not timetable.feasible
    assert timetable.binding_constraint is not None
    assert "'chain'" in timetable.binding_constraint
    assert "layer" in timetable.binding_constraint
    assert json.loads((folder / "infeasible.json").read_text())["feasible"] is False
    (fix,) = timetable.fixes
    assert fix.verified
    rate_hz = float(fix.change.removeprefix("rate_hz = "))
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
    assert read_record(folder / "kept.json", Timetable) == timetable


def test_the_guard_comes_from_the_machine_where_none_is_given(folder: Path, quiet: Quiet) -> None:
    """Without guard_ms the machine's floor is measured; the guard is at least 50 us."""
    app = write_app(folder)
    app.write_text(app.read_text().replace("guard_ms = 1.0\n", ""))
    timetable = plan(app).timetable
    assert timetable.guard_ns >= 50_000
    assert timetable.guard_ns != 1_000_000
