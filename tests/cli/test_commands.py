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

from framefit import RunResult, Timetable, run
from framefit.core.events import Trace
from framefit.core.files import read_record
from framefit.core.program import read_program
from framefit.core.run_record import Metrics, RunInfo
from framefit.devices.host import realtime_priority_permitted
from workloads import listing, no_noise, write_app, write_models, write_target

SCRIPT = Path(sys.executable).with_name("framefit")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run of two windows."""
    folder = write_models(tmp_path_factory.mktemp("result"))
    with pytest.MonkeyPatch.context() as patch:
        no_noise(patch)
        return run(write_app(folder), windows=2, output=folder / "out")


def test_layers_are_written_as_csv(framefit: Framefit, models: Path) -> None:
    """What each costs, for a sheet or a script; the file is overwritten."""
    for _ in range(2):
        ended = framefit("cycles", models / "chain.onnx", "--target", "vpu", "--csv", "layers.csv", "--json")
        assert ended.code == 0, ended.err
    lines = Path("layers.csv").read_text().splitlines()
    report = json.loads(ended.out)
    assert lines[0].startswith("name,op,macs,cycles,bound")
    assert len(lines) == 1 + len(report["layers"])
    assert [int(line.split(",")[3]) for line in lines[1:]] == [layer["cycles"] for layer in report["layers"]]


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


@pytest.mark.timed
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


@pytest.mark.timed
def test_run_shows_figures_and_where_the_files_lie(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """A run without -o makes runs/NAME-1 in the current folder and says so."""
    ended = framefit("run", write_app(models), "--windows", 5, "--max-miss-ratio", 1)
    assert (ended.code, ended.err) == (0, "")
    folder = Path("runs") / "models-1"
    assert f"run folder: {folder}" in ended.out
    assert read_record(folder / "metrics.json", Metrics).windows == 5


@pytest.mark.timed
def test_run_json_is_only_json(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """With --json stdout is metrics.json and nothing else."""
    ended = framefit("run", write_app(models), "--windows", 3, "--max-miss-ratio", 1, "-o", tmp_path / "out", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == json.loads((tmp_path / "out" / "metrics.json").read_text())


@pytest.mark.timed
def test_doctor_json_is_only_json(framefit: Framefit) -> None:
    """The machine's findings as JSON."""
    ended = framefit("doctor", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out)["findings"]


@pytest.mark.timed
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
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 releases so many were missed: exit code 1 above --max-miss-ratio, which is 0.01 by default."""
    replace = msgspec.structs.replace
    first, *rest = result.metrics.models
    metrics = replace(result.metrics, models=(replace(first, releases=100, missed=missed), *rest))
    monkeypatch.setattr("framefit.workflows.run.run", lambda *_, **__: dataclasses.replace(result, metrics=metrics))
    assert framefit("run", write_app(models), *options).code == code


def interrupted(
    signals: int, folder: Path, *verb: str, rate_hz: float = 5, **given: str
) -> subprocess.CompletedProcess[str]:
    """A command of a minute or more that gets SIGINT once its first outputs are written."""
    sink = folder / "small.jsonl"
    workload = write_app(folder, rate_hz=rate_hz, more='[[outputs]]\nmodel = "small"\nsink = "small.jsonl"\n', **given)
    command = [SCRIPT, verb[0], workload, *verb[1:], "-o", folder / "out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        patience = time.monotonic() + 60
        while not (sink.exists() and sink.stat().st_size) and process.poll() is None:
            assert time.monotonic() < patience
            time.sleep(0.02)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.timed
@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for a child process")
def test_an_interrupted_run_is_saved(tmp_path: Path) -> None:
    """Ctrl-C in mid-run: exit code 130, and a complete run folder that says it was interrupted."""
    ended = interrupted(1, write_models(tmp_path, brief=True), "run", "--seconds", "15", rate_hz=500)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert read_record(tmp_path / "out" / "run.json", RunInfo).interrupted
    metrics = read_record(tmp_path / "out" / "metrics.json", Metrics)
    assert 1 <= metrics.windows < 7500
    lines = (tmp_path / "out" / "frames.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * metrics.windows


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for a child process")
def test_an_interrupted_simulation_is_saved(tmp_path: Path) -> None:
    """Ctrl-C: exit code 130, and a run folder that says so and reads back whole."""
    folder = write_models(tmp_path)
    write_target(folder)
    ended = interrupted(1, folder, "simulate", "--outputs", "--windows", "10000000", target="target.toml")
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert read_record(tmp_path / "out" / "run.json", RunInfo).interrupted
    metrics = read_record(tmp_path / "out" / "metrics.json", Metrics)
    assert 1 <= metrics.windows < 10_000_000
    program, launches = read_program(tmp_path / "out" / "program.json")
    assert launches is not None
    operations = [len(one.groups[0].operations) for one in program.programs]
    trace = Trace.read(tmp_path / "out" / "trace.npz")
    assert len(trace) + trace.meta.overwritten_events == 2 * sum(operations[index] for index in launches.program)
    lines = (tmp_path / "out" / "frames.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * metrics.windows


def test_simulate_shows_figures_and_where_the_files_lie(framefit: Framefit, models: Path) -> None:
    """The same view as a run's; the folder is the next free one in the current folder."""
    write_target(models)
    workload = write_app(models, target="target.toml", schedule="")
    for number in (1, 2):
        ended = framefit("simulate", workload, "--windows", 5)
        assert (ended.code, ended.err) == (0, "")
        folder = Path("runs") / f"models-{number}"
        assert f"run folder: {folder}" in ended.out
        assert read_record(folder / "metrics.json", Metrics).windows == 5
        for word in ("small", "chain", "priority", "background", "missed"):
            assert word in ended.out


def test_simulate_json_is_only_json(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """With --json stdout is metrics.json; the seed is kept, and decides."""
    write_target(models)
    workload = write_app(models, target="target.toml", schedule="")
    found = {}
    for name, seed in (("one", 5), ("same", 5), ("other", 6)):
        ended = framefit("simulate", workload, "--seconds", 1, "--seed", seed, "-o", tmp_path / name, "--json")
        assert (ended.code, ended.err) == (0, "")
        assert json.loads(ended.out) == json.loads((tmp_path / name / "metrics.json").read_text())
        info = read_record(tmp_path / name / "run.json", RunInfo)
        assert info.seed == seed
        assert "simulate" in info.command
        found[name] = ended.out
    assert found["one"] == found["same"] != found["other"]


@pytest.mark.parametrize(
    ("options", "code"), [([], 1), (["--max-miss-ratio", "1"], 0), (["--max-miss-ratio", "0.9"], 0)]
)
def test_a_simulation_that_misses_is_a_negative_answer(
    options: list[str], code: int, framefit: Framefit, models: Path
) -> None:
    """Stalls of two windows, some five in a second: above the threshold the exit code is 1."""
    write_target(models, variation="stall_rate_hz = 15\nstall_ns = 100_000_000")
    workload = write_app(models, target="target.toml", schedule="")
    ended = framefit("simulate", workload, "--windows", 100, *options)
    assert (ended.code, ended.err) == (code, "")
    assert json.loads((Path("runs") / "models-1" / "metrics.json").read_text())["misses"]


@pytest.mark.timed
def test_another_target_is_given(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """For plan, simulate and run: a path from the current folder, or a built-in name, instead of the workload's."""
    write_target(Path())
    workload = write_app(models, target="absent.toml", schedule="", guard_ms=None)
    planned = framefit("plan", workload, "--target", "target.toml", "--json")
    assert (planned.code, planned.err) == (0, "")
    assert json.loads(planned.out)["units"] == ["npu0"]
    simulated = framefit("simulate", workload, "--target", "target.toml", "--windows", 3)
    assert (simulated.code, simulated.err) == (0, "")
    ran = framefit("run", workload, "--target", "target.toml", "--windows", 3, "--max-miss-ratio", 1)
    assert (ran.code, ran.err) == (0, "")
    assert framefit("simulate", workload, "--target", "vpu", "--windows", 3).code == 0
    path = str(Path("target.toml").resolve())
    for number, target in enumerate((path, path, "vpu"), 1):
        folder = Path("runs") / f"models-{number}"
        assert read_record(folder / "run.json", RunInfo).workload["target"] == target
    ended = framefit("plan", workload)
    assert (ended.code, ended.out) == (2, "")
    assert "absent.toml: no such file" in ended.err


BAD_TARGETS = {
    "an operator": ({"units": ('name = "a"\noperators = ["Conv"]',)}, "lacks"),
    "a bandwidth": ({"head": "[[memory]]\nread_bandwidth_gbps = -1"}, "read_bandwidth_gbps"),
    "a key": ({"host": "latency = 3"}, "'latency_ns'"),
    "no clock": ({"processor": "macs_per_cycle = { fp32 = 64 }"}, "clock_mhz"),
    "bits": ({"processor": "clock_mhz = 100\nactivation_bits = 5"}, "activation_bits"),
    "a buffer": ({"trace": "buffer_events = 0"}, "buffer_events"),
    "an interruptible unit": ({"units": ('name = "a"\npreemptive = true',)}, "preemptive"),
}


@pytest.mark.parametrize("verb", ["plan", "run", "simulate"])
@pytest.mark.parametrize("wrong", BAD_TARGETS)
def test_a_bad_target_is_one_message(verb: str, wrong: str, framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """Exit code 2, what is wrong and a remedy; nothing is left behind."""
    tables, named = BAD_TARGETS[wrong]
    write_target(models, **tables)
    workload = write_app(models, target="target.toml", more='[[outputs]]\nmodel = "small"\nsink = "small.npz"\n')
    before = listing(tmp_path)
    outputs = ["--outputs"] if verb == "simulate" else []
    ended = framefit(verb, workload, *outputs, "-o", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("framefit: ")
    assert ended.err.count("framefit: ") == ended.err.count("\nremedy: ") == 1
    assert named in ended.err
    assert "Traceback" not in ended.err
    assert listing(tmp_path) == before


def test_simulate_refuses_this_machine(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """The cpu is not described: exit code 2, what to do instead, and nothing is left behind."""
    before = listing(tmp_path)
    ended = framefit("simulate", write_app(models), "--windows", 3, "-o", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert "'cpu'" in ended.err
    assert "--target vpu" in ended.err
    assert "framefit run" in ended.err
    (models / "app.toml").unlink()
    assert listing(tmp_path) == before


def test_an_infeasible_workload_is_not_simulated(framefit: Framefit, models: Path, tmp_path: Path) -> None:
    """Exit code 1, one message with the fix, and no run folder."""
    write_target(models)
    workload = write_app(models, target="target.toml", model="deadline_ms = 0.001")
    before = listing(tmp_path)
    ended = framefit("simulate", workload, "--windows", 3, "-o", tmp_path / "out")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("framefit: ")
    assert "remedy: deadline_ms" in ended.err
    assert listing(tmp_path) == before


@pytest.mark.slow
def test_the_demo_plans_and_runs(framefit: Framefit, tmp_path: Path) -> None:
    """``framefit demo`` writes models and workload, runs them, and says where everything lies."""
    ended = framefit("demo", "-o", tmp_path / "demo", "--seconds", 1)
    assert ended.code == 0
    assert "run folder: " in ended.out
    (page,) = Path("runs").glob("*/report.html")
    assert f"report:     {page} (open it in a browser)" in ended.out
    assert {path.name for path in (tmp_path / "demo").iterdir()} >= {"detector.onnx", "depth.onnx", "app.toml"}


def test_a_full_disk_behind_stdout_is_one_message(framefit: Framefit, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be printed ends the command with its reason, not with a traceback."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("framefit.cli.commands.show_json", full)
    ended = framefit("targets", "--json")
    assert ended.code == 3
    assert ended.err.startswith("framefit: [Errno 28] No space left on device\nremedy: ")
