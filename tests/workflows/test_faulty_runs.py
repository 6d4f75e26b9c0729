"""Faults that a user injects: what they do to a workload, and what is told of it."""

from __future__ import annotations

import contextlib
import csv
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefit import Plan, plan, run, simulate
from framefit.core.files import read_record
from framefit.core.run_record import Metrics
from framefit.errors import DeviceError, InputError, LostUnitError
from networks import NETWORKS
from workloads import no_noise, write_app, write_models, write_target

UNREADABLE = "fault: it could not be read, or had another shape"
RATE_HZ = 80  # windows of 12.5 ms: shorter than the chain
WINDOWS = 120


def app(folder: Path, **given: Any) -> Path:
    """A small priority model, and a background model that has to be cut, on a described device."""
    keys: dict[str, Any] = {"rate_hz": RATE_HZ, "guard_ms": None, "schedule": ""}
    return write_app(folder, target="target.toml", **keys | given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and a board without variation."""
    folder = write_models(tmp_path_factory.mktemp("faults"))
    NETWORKS["lstm"]().save(folder / "lstm.onnx")
    write_target(folder, variation="sigma_ratio = 0.0")
    return folder


@pytest.fixture(scope="module")
def planned(folder: Path) -> Plan:
    """With the chain in segments."""
    found = plan(app(folder))
    assert len(found.timetable.model("chain").segments) >= 2
    return found


def rows(folder: Path) -> list[dict[str, str]]:
    """Lines of ``frames.csv``; each model has each frame once."""
    with (folder / "frames.csv").open() as file:
        found = list(csv.DictReader(file))
    assert max(Counter((row["model"], row["frame"]) for row in found).values()) == 1
    return found


def reasons(folder: Path, model: str) -> Counter[str]:
    """Of frames of a model that were dropped, and of flagged ones."""
    return Counter(row["reason"] for row in rows(folder) if row["model"] == model and row["reason"])


def faults_of(metrics: Metrics) -> dict[str, tuple[bool, dict[str, int]]]:
    """Model -> whether it is degraded, and its faults."""
    return {model.name: (model.degraded, model.faults) for model in metrics.models}


def test_without_faults_nothing_is_reported(planned: Plan, tmp_path: Path) -> None:
    """No faults, no notes, nobody is degraded; and a run after one with faults has none."""
    simulate(planned, windows=WINDOWS, output=tmp_path / "bad", inject=["raise:chain"])
    result = simulate(planned, windows=WINDOWS, output=tmp_path / "good")
    assert faults_of(result.metrics) == {"small": (False, {}), "chain": (False, {})}
    assert result.metrics.misses == ()
    assert result.warnings == planned.timetable.reasons
    assert read_record(tmp_path / "good" / "metrics.json", Metrics) == result.metrics


def test_a_background_model_that_fails(planned: Plan, tmp_path: Path) -> None:
    """The priority model misses nothing; the other one is degraded, counted and explained."""
    result = simulate(planned, windows=WINDOWS, output=tmp_path / "out", inject=["raise:chain@20w.."])
    small, chain = result.metrics.models
    assert (small.missed, small.completed, small.faults) == (0, WINDOWS, {})
    assert chain.degraded
    assert chain.faults.keys() == {"error"}
    assert chain.completed > 0
    assert chain.completed + chain.dropped == chain.releases == WINDOWS
    told = reasons(tmp_path / "out", "chain")
    assert told["fault: a launch failed"] >= 3
    assert told["fault: the model rested after failures"] > 50
    assert any("'chain'" in warning and "degraded" in warning for warning in result.warnings)
    assert any("the launch failed (injected: raise:chain)" in warning for warning in result.warnings)
    assert result.metrics == read_record(tmp_path / "out" / "metrics.json", Metrics)


def test_a_priority_model_that_fails(planned: Plan, tmp_path: Path) -> None:
    """Each of its frames is a miss with that cause, and what the device said."""
    result = simulate(planned, windows=WINDOWS, output=tmp_path / "out", inject=["raise:small@10w..15w"])
    assert [(miss.window, miss.model, miss.cause) for miss in result.metrics.misses] == [
        (window, "small", "fault") for window in range(10, 15)
    ]
    assert all("the launch failed (injected: raise:small)" in miss.detail for miss in result.metrics.misses)
    assert faults_of(result.metrics)["small"] == (False, {"error": 5})
    assert result.metrics.miss_ratio == 5 / WINDOWS


def test_a_launch_that_hangs(planned: Plan, tmp_path: Path) -> None:
    """It is terminated, and the run goes on; whoever waited is late for a reason."""
    result = simulate(planned, windows=WINDOWS, output=tmp_path / "out", inject=["hang:chain@10w"])
    assert faults_of(result.metrics)["chain"] == (False, {"hang": 1})
    assert reasons(tmp_path / "out", "chain")["fault: a launch hung"] == 1
    small = result.metrics.models[0]
    assert 0 < small.missed < 6
    assert small.releases == WINDOWS
    misses = result.metrics.misses
    assert len(misses) == small.missed
    assert {miss.cause for miss in misses} == {"fault"}
    assert all(re.search(r"chain\[\d\] in window 1\d hung for", miss.detail) for miss in misses)


def test_a_unit_that_is_lost(planned: Plan, tmp_path: Path) -> None:
    """The run ends with an error of the device's, and its folder has every frame."""
    with pytest.raises(LostUnitError) as error:
        simulate(planned, windows=WINDOWS, output=tmp_path / "out", inject=["stick:chain@10w"])
    assert error.value.exit_code == 3
    metrics = read_record(tmp_path / "out" / "metrics.json", Metrics)
    assert 10 <= metrics.windows < 20
    assert len(rows(tmp_path / "out")) == 2 * metrics.windows


def test_a_slow_unit(planned: Plan, tmp_path: Path) -> None:
    """Everything takes longer from then on, in the device's own trace, too."""
    result = simulate(planned, windows=WINDOWS, output=tmp_path / "out", inject=["slow:small*3@60w"])
    begun, ended = (result.seen.time_ns[index::2] for index in (0, 1))
    small = result.launches.program == 0
    lasted = (ended - begun)[small]
    assert set(lasted[:60].tolist()) == {lasted[0]}
    assert np.abs(lasted[60:] - 3 * lasted[0]).max() <= 1


def test_streams(planned: Plan, tmp_path: Path) -> None:
    """Windows of a stall are empty and no misses, a burst fills queues, an end ends the run."""
    result = simulate(planned, windows=WINDOWS, output=tmp_path / "stall", inject=["stall:camera@10w..20w"])
    (stream,) = result.metrics.streams
    assert (stream.received, stream.empty_windows) == (WINDOWS - 10, 10)
    assert result.metrics.misses == ()
    result = simulate(planned, windows=WINDOWS, output=tmp_path / "burst", inject=["burst:camera*6@10w"])
    assert result.metrics.streams[0].received == WINDOWS + 5
    assert reasons(tmp_path / "burst", "small")["a newer frame took its place in the queue"] >= 3
    assert result.metrics.models[0].missed <= 6  # no later frame is late for those that came at once
    result = simulate(planned, windows=WINDOWS, output=tmp_path / "end", inject=["end:camera@30w"])
    assert (result.metrics.windows, result.metrics.streams[0].received) == (31, 30)
    assert not result.interrupted


@pytest.mark.parametrize("on_nan", ["flag", "drop", "ignore"])
def test_outputs_that_are_not_finite(folder: Path, tmp_path: Path, on_nan: str) -> None:
    """They are flagged, and handed on or not as asked; state does not stay spoilt but where nobody looks."""
    keys = f'state = {{ hidden = "next_hidden", cell = "next_cell" }}\non_nan = "{on_nan}"'
    sink = '[[outputs]]\nmodel = "lstm"\nsink = "lstm.npz"\n'
    made = plan(app(folder, priority=["lstm"], background=[], model=keys, more=sink))
    options: dict[str, Any] = {"outputs": True, "force": True, "windows": 20}
    result = simulate(made, output=tmp_path / "out", inject=["nan:lstm@5w"], **options)
    with np.load(folder / "lstm.npz") as archive:
        outputs = {name: archive[name] for name in archive.files}
    spoilt = [
        int(frame)
        for index, frame in enumerate(outputs["frame"])
        if any(np.isnan(outputs[name][index]).any() for name in outputs if name != "frame")
    ]
    (model,) = (model for model in result.metrics.models if model.name == "lstm")
    told = reasons(tmp_path / "out", "lstm")
    if on_nan == "ignore":
        assert model.faults == {}
        assert len(spoilt) > 5
        return
    assert model.faults["state"] == model.faults["not finite"] == 1
    assert len(spoilt) == (on_nan == "flag")
    assert told["outputs not finite" if on_nan == "flag" else "fault: outputs not finite"] == 1
    assert model.completed + model.dropped == 20
    assert model.dropped >= (on_nan == "drop")


def test_a_frame_of_another_shape(folder: Path, tmp_path: Path) -> None:
    """It is dropped for that, once for each model that reads it, and the run goes on."""
    made = plan(app(folder))
    result = simulate(made, windows=20, outputs=True, output=tmp_path / "out", inject=["shape:camera@5w..8w"])
    told = {name: reasons(tmp_path / "out", name)[UNREADABLE] for name in ("small", "chain")}
    assert told["small"] == 3
    assert told["chain"] >= 1
    assert [miss.cause for miss in result.metrics.misses] == ["fault"] * 3
    assert "injected" in result.metrics.misses[0].detail


@pytest.mark.parametrize(
    ("inject", "says"),
    [
        ("raise:chian", "did you mean 'chain'"),
        ("stall:chain", "no stream is called 'chain'"),
        ("raise", "cannot be read"),
        ("nan:chain", "none are read"),
        ("shape:camera", "none are read"),
    ],
)
def test_faults_that_cannot_be(planned: Plan, tmp_path: Path, inject: str, says: str) -> None:
    """They are refused before anything is simulated."""
    with pytest.raises(InputError, match=says):
        simulate(planned, windows=10, output=tmp_path / "out", inject=[inject])
    assert not (tmp_path / "out").exists()


def test_a_model_may_stop_the_run(folder: Path, tmp_path: Path) -> None:
    """Where its entry says so; every frame is accounted for."""
    path = app(folder, last='on_error = "stop"')
    with pytest.raises(DeviceError, match="injected: raise:chain"):
        simulate(path, windows=WINDOWS, output=tmp_path / "out", inject=["raise:chain@10w"])
    metrics = read_record(tmp_path / "out" / "metrics.json", Metrics)
    assert len(rows(tmp_path / "out")) == 2 * metrics.windows < 2 * WINDOWS


@pytest.mark.parametrize("outputs", [False, True])
def test_a_unit_that_fails_for_good(folder: Path, tmp_path: Path, outputs: bool) -> None:
    """What ran there goes on on the other unit, behind the priority model that is there, and the notes say so."""
    write_target(
        folder, "two.toml", units=('name = "a"\ncore = 3', 'name = "b"\ncore = 5'), variation="sigma_ratio = 0.0"
    )
    keys: dict[str, Any] = {"rate_hz": 40, "guard_ms": None, "schedule": "", "background": ["chain1", "chain2"]}
    sinks = '[[outputs]]\nmodel = "chain1"\nsink = "1.npz"\n[[outputs]]\nmodel = "chain2"\nsink = "2.npz"\n'
    made = plan(write_app(folder, target="two.toml", more=sinks, **keys))
    units = {model.name: {segment.unit for segment in model.segments} for model in made.timetable.models}
    (failing,) = {"a", "b"} - units["small"]
    (moves,) = (name for name, used in units.items() if used == {failing})
    result = simulate(
        made, windows=80, outputs=outputs, force=True, output=tmp_path / "out", inject=[f"raise:{failing}@20w.."]
    )
    by_name = {model.name: model for model in result.metrics.models}
    assert by_name["small"].missed == 0
    assert not any(model.degraded for model in result.metrics.models)
    assert any(f"model {moves!r} went on" in note for note in result.warnings)
    done = [int(row["frame"]) for row in rows(tmp_path / "out") if row["model"] == moves and row["fate"] == "done"]
    assert len([frame for frame in done if frame < 20]) == 20
    assert len([frame for frame in done if frame > 25]) > 20
    if outputs:
        with np.load(folder / f"{moves[-1]}.npz") as archive:
            assert archive["frame"].tolist() == done


@pytest.mark.timed
def test_in_real_time(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch hangs for real until it is terminated; the run goes on, with outputs."""
    no_noise(monkeypatch)
    monkeypatch.setattr("framefit.runtime.session._LEAST_FLOOR", 3)
    monkeypatch.setattr("framefit.runtime.watchdog._LEAST_REAL_NS", 60_000_000)
    made = plan(app(folder), in_real_time=True)
    result = run(made, windows=40, output=tmp_path / "out", inject=["hang:chain@5w", "raise:small@20w"])
    assert result.metrics.windows == 40
    by_name = faults_of(result.metrics)
    assert by_name == {"small": (False, {"error": 1}), "chain": (False, {"hang": 1})}
    assert len(rows(tmp_path / "out")) == 80


@pytest.mark.timed
def test_times_of_faults_count_from_the_first_release(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes until a run in real time begins."""
    no_noise(monkeypatch)
    monkeypatch.setattr("framefit.runtime.session._LEAST_FLOOR", 3)

    @contextlib.contextmanager
    def slowly() -> Iterator[None]:
        time.sleep(0.2)
        yield

    monkeypatch.setattr("framefit.runtime.session.steady", slowly)
    result = run(plan(app(folder), in_real_time=True), windows=40, output=tmp_path / "out", inject=["raise:small@20w"])
    (fault,) = result.metrics.injected
    assert fault.times == 1
    assert fault.first_window in (20, 21)
