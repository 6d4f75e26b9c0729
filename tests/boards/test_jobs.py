"""Jobs outlive connections: what is killed, frozen or asked to stop, and what is left then."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import Place

from framefit.boards.jobs import Store
from workloads import write_app, write_models, write_target


def until(holds: Callable[[], object], what: str, limit_s: float = 30) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def children(process: int) -> list[int]:
    """Processes that a process started."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(part) for part in text.split()]


def is_locked(place: Place) -> bool:
    """Whether a job measures."""
    with (place.board.parent / "framefit-measures.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of two models."""
    return write_models(tmp_path / "models")


def measuring(place: Place, models: Path, output: str, *more: str) -> tuple[subprocess.Popen[str], str]:
    """Start a long measurement on the board, and give its job once it measures."""
    before = {state.job for state in Store(place.board).states()}
    long = ("--repeats", "100000", "--max-seconds", "60", "--audit", "none")
    host = place.start("measure", str(models / "small.onnx"), "--on", "lab", "-o", output, *long, *more)
    store = Store(place.board)
    until(lambda: {state.job for state in store.states()} - before or host.poll() is not None, "no job was begun")
    assert host.poll() is None, host.communicate()
    (job,) = {state.job for state in store.states()} - before
    return host, job


def measures(place: Place, job: str) -> bool:
    """Whether a job is past its start."""
    messages = place.board / "jobs" / job / "messages"
    return messages.exists() and b"measuring" in messages.read_bytes()


@pytest.mark.timed
def test_ctrl_c_stops_the_job_and_keeps_what_was_measured(place: Place, models: Path) -> None:
    """The table comes, the exit code is that of an interrupt, and nothing is left on the board."""
    host, job = measuring(place, models, "t.table.json")
    until(lambda: measures(place, job), "it does not measure")
    time.sleep(2)  # some layers
    begun_s = time.monotonic()
    host.send_signal(signal.SIGINT)
    output, messages = host.communicate(timeout=30)
    assert host.returncode == 130, messages
    assert time.monotonic() - begun_s < 6  # 2 s on a quiet machine: benchmarks/boards.py
    assert json.loads((place.here / "t.table.json").read_text())["entries"]
    assert output
    assert not (place.board / "jobs" / job).exists()
    assert not is_locked(place)


def test_a_job_that_is_asked_to_stop_at_its_start_ends_as_interrupted(place: Place, models: Path) -> None:
    """Not as one that was lost, whenever that is."""
    host, _ = measuring(place, models, "t.table.json")
    host.send_signal(signal.SIGINT)
    _, messages = host.communicate(timeout=30)
    assert host.returncode == 130, messages
    assert not place.left()


def test_a_job_goes_on_without_its_client_and_another_waits(place: Place, models: Path) -> None:
    """A killed client leaves its job; the next one is said who measures; attach follows it to its end."""
    first, job = measuring(place, models, "first.table.json")
    until(lambda: measures(place, job), "it does not measure")
    first.kill()
    first.wait()
    second, waiting = measuring(place, models, "second.table.json")
    until(lambda: Store(place.board).state(waiting).state == "waiting", "it does not wait")
    until(lambda: job in Store(place.board).state(waiting).waits_for, "it does not say for whom")
    listed = json.loads(place("board", "jobs", "lab", "--json").stdout)["jobs"]
    assert {(each["job"], each["state"]) for each in listed} == {(job, "running"), (waiting, "waiting")}
    second.send_signal(signal.SIGINT)
    _, messages = second.communicate(timeout=30)
    assert second.returncode == 130
    assert f"measures for job {job}" in messages
    assert place("board", "stop", "lab", job).returncode == 0
    attached = place("board", "attach", "lab", job)
    assert attached.returncode == 130, attached.stderr
    assert json.loads((place.here / "first.table.json").read_text())["entries"]
    assert not place.left()
    assert not is_locked(place)
    assert place("board", "attach", "lab", job).returncode == 2


def test_a_lost_connection_comes_back(place: Place, models: Path) -> None:
    """Killed ssh processes are started anew; what the job has written until then is neither lost nor repeated."""
    host, job = measuring(place, models, "t.table.json")
    for _ in range(3):
        before = children(host.pid)
        for process in before:
            os.kill(process, signal.SIGKILL)
        until(lambda: set(children(host.pid)) - set(before), "it does not connect again")  # noqa: B023
        time.sleep(0.3)
    until(lambda: measures(place, job), "it does not measure")
    host.send_signal(signal.SIGINT)
    _, messages = host.communicate(timeout=30)
    assert host.returncode == 130, messages
    assert "connecting again" in messages
    lines = [line for line in messages.splitlines() if "connect" not in line]
    assert len(lines) == len(set(lines))
    assert (place.here / "t.table.json").exists()


def test_a_job_whose_processes_are_gone_is_lost(place: Place, models: Path) -> None:
    """As after a new start of the board: it is said, nothing is left, and the lock is free."""
    host, job = measuring(place, models, "t.table.json")
    until(lambda: measures(place, job), "it does not measure")
    keeper = place.left(job)[0]
    os.kill(keeper, signal.SIGKILL)  # and the kernel ends its child
    _, messages = host.communicate(timeout=30)
    assert host.returncode == 3
    assert "is lost" in messages
    until(lambda: not place.left(), "an orphan is left", 5)
    assert not is_locked(place)
    assert not (place.here / "t.table.json").exists()


@pytest.mark.slow
def test_a_verb_that_crashes_is_said(place: Place, models: Path) -> None:
    """The exit code is that of a failed runtime; a frozen job can be ended."""
    host, job = measuring(place, models, "t.table.json")
    until(lambda: measures(place, job), "it does not measure")
    keeper = place.left(job)[0]
    os.kill(children(keeper)[0], signal.SIGSEGV)
    _, messages = host.communicate(timeout=30)
    assert host.returncode == 3
    assert "SIGSEGV" in messages
    host, job = measuring(place, models, "t.table.json")
    for process in place.left(job):
        os.kill(process, signal.SIGSTOP)
    assert place("board", "stop", "lab", job, "--now").returncode == 0
    host.communicate(timeout=30)
    assert host.returncode == 3
    until(lambda: not place.left(), "an orphan is left", 5)
    assert not is_locked(place)


@pytest.mark.slow
def test_a_job_ends_when_its_minutes_are_over(place: Place, models: Path) -> None:
    """It is asked to end, and keeps what it has."""
    text = (place.here.parent / "config" / "boards.toml").read_text()
    (place.here.parent / "config" / "boards.toml").write_text(text + "lock_minutes = 0.05\n")
    host, _ = measuring(place, models, "t.table.json")
    _, messages = host.communicate(timeout=40)
    assert host.returncode == 130
    assert "minutes are over" in messages


@pytest.mark.slow
def test_what_was_cut_off_is_resumed(place: Place, models: Path) -> None:
    """A table and a run folder go there with what they have, and come back complete."""
    host, job = measuring(place, models, "t.table.json")
    until(lambda: measures(place, job), "it does not measure")
    host.send_signal(signal.SIGINT)
    _, messages = host.communicate(timeout=30)
    assert host.returncode == 130, messages
    before = json.loads((place.here / "t.table.json").read_text())
    network = str(models / "small.onnx")
    options = ("--repeats", "100000", "--max-seconds", "1", "--audit", "none", "-o", "t.table.json", "--resume")
    ended = place("measure", network, "--on", "lab", *options)
    assert ended.returncode == 0, ended.stderr
    after = json.loads((place.here / "t.table.json").read_text())
    assert len(after["entries"][0]["samples_ns"]) > len(before["entries"][0]["samples_ns"])
    write_target(models)
    app = write_app(models, target="target.toml")
    cut = place.start("run", str(app), "--on", "lab", "--seconds", "4", "--max-miss-ratio", "1", "-o", "cut")
    jobs = place.board / "jobs"
    until(
        lambda: [*jobs.glob("/".join(("run-*", "work", str(place.here)[1:], "cut/journal/part-1/*")))],
        "it does not run",
    )
    time.sleep(1.5)
    os.kill(place.left()[0], signal.SIGKILL)
    _, messages = cut.communicate(timeout=30)
    assert cut.returncode == 3
    assert "--resume" in messages
    ended = place("run", "cut", "--resume", "--on", "lab", "--max-miss-ratio", "1", "-q")
    assert ended.returncode == 0, ended.stderr
    assert json.loads((place.here / "cut" / "metrics.json").read_text())["windows"] == 80
    assert not (place.here / "cut" / "journal").exists()


@pytest.mark.slow
def test_a_frozen_agent_is_noticed(place: Place, models: Path) -> None:
    """Within half a minute it is said; the client connects again, and the job is not touched by it."""
    host, job = measuring(place, models, "t.table.json")
    until(lambda: measures(place, job), "it does not measure")
    (agent,) = children(host.pid)
    os.kill(agent, signal.SIGSTOP)
    assert host.stderr is not None
    begun_s = time.monotonic()
    while "no answer came in time" not in (line := host.stderr.readline()):
        assert line
    assert time.monotonic() - begun_s < 35
    host.send_signal(signal.SIGINT)
    _, messages = host.communicate(timeout=30)
    assert host.returncode == 130, messages
    assert (place.here / "t.table.json").exists()
