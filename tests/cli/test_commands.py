"""What commands print, and how they end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from console import Framefit

from framefit.core.files import read_record
from framefit.core.results import Metrics, RunInfo
from framefit.core.timetable import Timetable
from framefit.devices.host import realtime_priority_permitted
from framefit.workflows.run import run
from framefit.workflows.session import RunResult
from workloads import listing, measure_briefly, no_noise, write_app, write_models

SCRIPT = Path(sys.executable).with_name("framefit")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run of two windows."""
    folder = write_models(tmp_path_factory.mktemp("result"))
    with pytest.MonkeyPatch.context() as patch:
        measure_briefly(patch)
        no_noise(patch)
        return run(write_app(folder), windows=2, output=folder / "out")


def test_plan_shows_a_table(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """A feasible plan ends with 0, names its models on stdout and writes the timetable."""
    ended = framefit("plan", write_app(models), "-o", tmp_path / "timetable.json")
    assert (ended.code, ended.err) == (0, "")
    assert "small" in ended.out
    assert "chain" in ended.out
    assert read_record(tmp_path / "timetable.json", Timetable).feasible


def test_plan_json_is_only_json(framefit: Framefit, models: Path) -> None:
    """With --json stdout is the timetable and nothing else; nothing is on stderr."""
    ended = framefit("plan", write_app(models), "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out)["feasible"] is True


def test_plan_tells_levels_and_reasons(framefit: Framefit, models: Path) -> None:
    """Roles that were determined come with the level and what it is made of, in the table and as JSON."""
    workload = write_app(
        models,
        priority=('small:"auto"',),
        background=('chain:"auto"',),
        model='task = "tracking"',
        last="latency_sensitive = false",
    )
    ended = framefit("plan", workload, "--json")
    assert ended.code == 0
    small, chain = json.loads(ended.out)["models"]
    assert (small["name"], small["role"]) == ("small", "priority")
    assert (chain["name"], chain["role"]) == ("chain", "background")
    assert "+2 task tracking" in small["reasons"]
    assert small["level"] >= 5 > chain["level"]
    shown = framefit("plan", workload)
    assert shown.code == 0
    assert "task tracking" in " ".join(shown.out.split())


@pytest.mark.skipif(not realtime_priority_permitted(), reason="real-time priorities are not permitted here")
def test_run_may_preempt(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """Where permitted, and not forbidden, background work is interrupted; the command line says the same things."""
    workload = write_app(models, schedule="")
    ended = framefit("run", workload, "--windows", 10, "--max-miss-ratio", 1, "-o", tmp_path / "out")
    assert (ended.code, ended.err) == (0, "")
    assert read_record(tmp_path / "out" / "timetable.json", Timetable).preemptive
    assert read_record(tmp_path / "out" / "metrics.json", Metrics).windows == 10
    assert "chain" in ended.out


def test_an_infeasible_plan_is_a_negative_answer(framefit: Framefit, models: Path) -> None:
    """Exit code 1, no error message, and the binding constraint with its fix in the answer."""
    workload = write_app(models, model="deadline_ms = 0.001")
    ended = framefit("plan", workload, "--json")
    assert (ended.code, ended.err) == (1, "")
    answer = json.loads(ended.out)
    assert answer["feasible"] is False
    assert "deadline" in answer["binding_constraint"]
    assert answer["fixes"][0]["verified"] is True
    shown = framefit("plan", workload)
    assert shown.code == 1
    assert answer["fixes"][0]["change"] in " ".join(shown.out.split())


def test_an_infeasible_workload_is_not_run(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """Exit code 1, one message with the fix, and no run folder."""
    workload = write_app(models, model="deadline_ms = 0.001")
    before = listing(tmp_path)
    ended = framefit("run", workload, "--windows", 3, "-o", tmp_path / "out")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("framefit: ")
    assert "remedy: deadline_ms" in ended.err
    assert listing(tmp_path) == before


def test_run_shows_figures_and_where_the_files_lie(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """A run without -o makes runs/NAME-1 in the current folder and says so."""
    ended = framefit("run", write_app(models), "--windows", 5, "--max-miss-ratio", 1)
    assert (ended.code, ended.err) == (0, "")
    folder = Path("runs") / "models-1"
    assert f"run folder: {folder}" in ended.out
    assert read_record(folder / "metrics.json", Metrics).windows == 5


def test_run_json_is_only_json(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """With --json stdout is metrics.json and nothing else."""
    ended = framefit("run", write_app(models), "--windows", 3, "--max-miss-ratio", 1, "-o", tmp_path / "out", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == json.loads((tmp_path / "out" / "metrics.json").read_text())


def test_doctor_json_is_only_json(framefit: Framefit) -> None:
    """The machine's findings as JSON."""
    ended = framefit("doctor", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out)["findings"]


@pytest.mark.parametrize(
    ("missed", "options", "code"),
    [
        (0, [], 0),
        (1, [], 0),
        (2, [], 1),
        (2, ["--max-miss-ratio", "0.02"], 0),
        (3, ["--max-miss-ratio", "0.02"], 1),
        (100, ["--max-miss-ratio", "1"], 0),
    ],
)
def test_misses_above_the_threshold_are_a_negative_answer(
    missed: int,
    options: list[str],
    code: int,
    framefit: Framefit,
    result: RunResult,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 releases so many were missed: exit code 1 above --max-miss-ratio, which is 0.01 by default."""
    replace = msgspec.structs.replace
    first, *rest = result.metrics.models
    metrics = replace(result.metrics, models=(replace(first, releases=100, missed=missed), *rest))
    monkeypatch.setattr("framefit.workflows.run.run", lambda *_, **__: dataclasses.replace(result, metrics=metrics))
    assert framefit("run", "app.toml", *options).code == code


def interrupted(signals: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """``framefit run`` of a minute that gets SIGINT once its first outputs are written."""
    sink = folder / "small.jsonl"
    workload = write_app(folder, rate_hz=5, more='[[outputs]]\nmodel = "small"\nsink = "small.jsonl"\n')
    command = [SCRIPT, "run", workload, "--seconds", "60", "-o", folder / "out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        patience = time.monotonic() + 60
        while not (sink.exists() and sink.stat().st_size) and process.poll() is None:
            assert time.monotonic() < patience
            time.sleep(0.02)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for a child process")
def test_an_interrupted_run_is_saved(tmp_path: Path) -> None:
    """Ctrl-C in mid-run: exit code 130, and a complete run folder that says it was interrupted."""
    ended = interrupted(1, write_models(tmp_path))
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert read_record(tmp_path / "out" / "run.json", RunInfo).interrupted
    metrics = read_record(tmp_path / "out" / "metrics.json", Metrics)
    assert 1 <= metrics.windows < 300
    lines = (tmp_path / "out" / "frames.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * metrics.windows


@pytest.mark.slow
def test_the_demo_plans_and_runs(framefit: Framefit, tmp_path: Path) -> None:
    """``framefit demo`` writes models and workload, runs them, and says where everything lies."""
    ended = framefit("demo", "-o", tmp_path / "demo", "--seconds", 1)
    assert ended.code == 0
    assert "run folder: " in ended.out
    assert {path.name for path in (tmp_path / "demo").iterdir()} >= {"detector.onnx", "depth.onnx", "app.toml"}
