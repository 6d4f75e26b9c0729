"""The journal of a run: what a killed run, a full disk or a second run leaves, and how a run goes on after that."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from framefit import Plan, plan, run, simulate, write_report
from framefit.cli.app import app as command_line
from framefit.core.events import Trace
from framefit.core.files import read_record
from framefit.core.journal import journal_parts
from framefit.core.run_record import Metrics, RunInfo
from framefit.errors import InputError, RecordingError
from framefit.report.csv_files import read_frames
from workloads import RATE_HZ, listing, write_app, write_models, write_target

SINKS = (
    '[[outputs]]\nmodel = "small"\nsink = "small.npz"\n'
    '[[outputs]]\nmodel = "chain"\nsink = "chain.jsonl"\n'
    '[[outputs]]\nmodel = "small"\nsink = "witness:note"\n'
)
WITNESS = """
import os
file = os.open(os.environ.get("WITNESS", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(frame, outputs):
    os.write(file, f"{frame}\\n".encode())
"""
MAIN = "import sys; from framefit.cli.app import main; sys.exit(main())"


class Killed(BaseException):
    """Ends a run as nothing that a run survives would."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models, a board without noise, and a sink that says at once what came."""
    write_target(write_models(tmp_path), variation="sigma_ratio = 0.0")
    (tmp_path / "witness.py").write_text(WITNESS)
    return tmp_path


@pytest.fixture
def app(folder: Path) -> Path:
    """A workload on the board, with sinks of each kind."""
    return write_app(folder, target="target.toml", guard_ms=None, more=SINKS)


@pytest.fixture
def planned(app: Path) -> Plan:
    """Its plan for virtual time."""
    return plan(app)


def stop_at(windows: int) -> Callable[[int, int], None]:
    """Kills the run when so many windows have begun."""

    def on_idle(begun: int, count: int) -> None:
        if begun >= windows:
            raise Killed

    return on_idle


def cut_off(planned: Plan, out: Path, at: int, windows: int = 40, *, outputs: bool = True) -> None:
    """A simulation that is killed when so many of its windows have begun."""
    with pytest.raises(Killed):
        simulate(planned, windows=windows, output=out, outputs=outputs, on_idle=stop_at(at))


def frames_of(out: Path, model: str) -> dict[int, str]:
    """Frame -> what became of it at a model; each has one line."""
    rows = [row.split(",") for row in (out / "frames.csv").read_text().splitlines()[1:]]
    mine = [(int(row[1]), row[3]) for row in rows if row[2] == model]
    assert len(dict(mine)) == len(mine)
    return dict(mine)


@pytest.mark.timed
@pytest.mark.parametrize(("verb", "seed"), [("simulate", 1), ("run", 3)])
def test_a_killed_process_loses_a_second_at_most(verb: str, seed: int, app: Path, tmp_path: Path) -> None:
    """Whenever it is killed, the report shows the rest, and says that the run was cut off and when."""
    out, witness = tmp_path / "out", tmp_path / "witness.txt"
    length = ["--seconds", "20"] if verb == "run" else ["--windows", "10000000", "--outputs"]
    command = [sys.executable, "-c", MAIN, verb, str(app), "-o", str(out), *length]
    process = subprocess.Popen(command, env=os.environ | {"WITNESS": str(witness)}, stderr=subprocess.DEVNULL)
    try:
        while not (out / "journal" / "part-1" / "trace.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0.8, 1.8))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    killed_s = time.time()
    done = CliRunner().invoke(command_line, ["report", str(out)])
    assert done.exit_code == 0, done.stderr
    assert "was cut off at" in " ".join(done.stderr.split())
    info, metrics = read_record(out / "run.json", RunInfo), read_record(out / "metrics.json", Metrics)
    assert info.interrupted
    assert info.error is not None
    assert "was cut off at" in (out / "report.html").read_text()
    until = datetime.strptime(info.error.split(" at ")[1].split(",")[0], "%Y-%m-%d %H:%M:%S %Z").replace(tzinfo=UTC)
    assert killed_s - until.timestamp() < 2.5  # the time is in whole seconds
    assert "there is no timeline" not in (out / "report.html").read_text()
    times = Trace.read(out / "trace.npz").time_ns
    assert len(times) > 0
    if verb == "run":
        assert metrics.windows / RATE_HZ - (times[-1] - times[0]) / 1e9 < 2.5
    frames = frames_of(out, "small")
    assert set(frames.values()) <= {"done", "late", "dropped"}
    assert metrics.windows >= len(frames) > 0
    if verb == "run":
        given = [int(line) for line in witness.read_text().split()]
        assert max(given) - max(frames) <= RATE_HZ
        with np.load(tmp_path / "small.npz") as archive:
            assert archive["frame"].tolist() == list(range(len(archive["frame"])))
            assert max(given) - len(archive["frame"]) < RATE_HZ
        lines = [json.loads(line) for line in (tmp_path / "chain.jsonl").read_text().splitlines(keepends=True)[:-1]]
        assert [line["frame"] for line in lines] == sorted(line["frame"] for line in lines)


def test_a_journal_that_ends_anywhere(planned: Plan, tmp_path: Path) -> None:
    """Its files may have been cut at any byte: what is whole is shown."""
    cut_off(planned, tmp_path / "out", 30)
    files = [path for path in (tmp_path / "out" / "journal" / "part-1").iterdir() if path.suffix in (".bin", ".jsonl")]
    assert {"frames-0.bin", "launches-0.bin", "sink-0.bin", "state.jsonl"} <= {path.name for path in files}
    whole, windows = {path: path.read_bytes() for path in files}, []
    for seed in range(12):
        cut = random.Random(seed)
        for path, data in whole.items():
            first = len(data.splitlines(keepends=True)[0]) if path.suffix == ".jsonl" else 0
            path.write_bytes(data[: cut.randint(first, len(data)) if seed else len(data)])
        for name in ("run.json", "report.html"):
            (tmp_path / "out" / name).unlink(missing_ok=True)
        write_report(str(tmp_path / "out"))
        windows.append(read_record(tmp_path / "out" / "metrics.json", Metrics).windows)
        assert read_frames(tmp_path / "out" / "frames.csv") is not None
    assert windows[0] == max(windows) == 30


def test_a_second_run_into_the_folder_is_refused_at_once(planned: Plan, tmp_path: Path) -> None:
    """Before anything is planned or compiled, and with ``force``, too; the first one does not notice."""
    messages: list[str] = []
    refused: list[str] = []

    def run_another(begun: int, count: int) -> None:
        for force in (False, True):
            with pytest.raises(InputError, match="another run writes into it: process") as error:
                simulate(planned.app, windows=3, output=tmp_path / "out", force=force, notify=messages.append)
            assert error.value.exit_code == 2
            refused.append(str(error.value))

    simulate(planned, windows=5, output=tmp_path / "out", on_idle=run_another)
    assert refused
    assert messages == []
    assert "choose another folder" in refused[0]
    assert not journal_parts(tmp_path / "out")
    assert len(frames_of(tmp_path / "out", "small")) == 5


def test_a_run_that_was_cut_off_is_overwritten_only_by_force(planned: Plan, tmp_path: Path) -> None:
    """The message says what else can be done; an earlier run survives until another one begins to record."""
    out = tmp_path / "out"
    cut_off(planned, out, 5)
    before = listing(out)
    with pytest.raises(InputError, match="holds a run that was cut off") as error:
        simulate(planned, windows=3, output=out)
    assert all(word in str(error.value) for word in ("framefit report", "--resume", "--force"))
    with pytest.raises(InputError):
        simulate(tmp_path / "none.toml", windows=3, output=out, force=True)
    assert {name: data for name, data in listing(out).items() if "claim" not in name} == {
        name: data for name, data in before.items() if "claim" not in name
    }
    simulate(planned, windows=3, output=out, force=True)
    assert len(frames_of(out, "small")) == 3
    assert not (out / "journal").exists()


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("outputs", [False, True])
def test_a_resumed_run_is_a_part_of_the_same_record(
    planned: Plan, tmp_path: Path, outputs: bool, reported: bool
) -> None:
    """Windows, frames, times, traces and outputs follow those before, as often as it is cut off."""
    out = tmp_path / "out"
    cut_off(planned, out, 12, outputs=outputs)
    with pytest.raises(Killed):
        simulate(out, resume=True, on_idle=stop_at(9))
    if reported:
        write_report(str(out))
        assert read_record(out / "metrics.json", Metrics).windows == 21
    result = simulate(out, resume=True)
    assert not (out / "journal").exists()
    assert (result.metrics.windows, result.metrics.rung_switches, result.interrupted) == (40, 0, False)
    assert [warning for warning in result.warnings if "resumed" in warning] == [
        f"the run was cut off before window {window}, and resumed there" for window in (12, 21)
    ]
    frames = frames_of(out, "small")
    lost = set(range(40)) - set(frames)
    assert lost <= {11, 20}  # that were under way
    assert all(outcome == "done" for outcome in frames.values())
    launches = result.launches
    assert np.all(np.diff(launches.submit_ns) > 0)
    assert np.all(np.diff(result.releases_ns) == result.releases_ns[1] - result.releases_ns[0])
    assert np.array_equal(np.searchsorted(result.releases_ns, launches.submit_ns, "right") - 1, launches.window)
    assert np.all(np.diff(result.trace.time_ns) >= 0)
    if outputs:
        with np.load(tmp_path / "small.npz") as archive:
            assert archive["frame"].tolist() == sorted(frames)
        taken = [json.loads(line)["frame"] for line in (tmp_path / "chain.jsonl").read_text().splitlines()]
        assert taken == sorted(set(taken))
        assert taken[-1] >= 38


def test_frames_of_a_resumed_run_go_on_in_the_stream(folder: Path) -> None:
    """A stream that has an end gives its next frames, and ends where it would have ended."""
    images = np.random.default_rng(0).random((30, 1, 3, 16, 16), np.float32)
    np.savez(folder / "camera.npz", camera=images)
    sink = '[[outputs]]\nmodel = "small"\nsink = "small.npz"\n'
    app = write_app(folder, target="target.toml", guard_ms=None, stream='source = "camera.npz"', more=sink)
    whole = simulate(plan(app), windows=100, output=folder / "whole", outputs=True)
    with np.load(folder / "small.npz") as archive:
        expected = {name: archive[name] for name in archive.files}
    (folder / "small.npz").unlink()
    cut_off(plan(app), folder / "out", 10, windows=100)
    result = simulate(folder / "out", resume=True)
    assert result.metrics.windows == whole.metrics.windows
    with np.load(folder / "small.npz") as archive:
        places = np.searchsorted(expected["frame"], archive["frame"])
        assert len(places) >= 29
        for name in expected:
            assert np.array_equal(archive[name], expected[name][places])


def test_what_cannot_be_resumed(planned: Plan, tmp_path: Path) -> None:
    """A complete run, another verb, options that the run folder decides, and one of which nothing was recorded."""
    out = tmp_path / "out"
    simulate(planned, windows=3, output=out)
    with pytest.raises(InputError, match="not the folder of a run that was cut off"):
        simulate(out, resume=True)
    cut_off(planned, tmp_path / "cut", 5)
    with pytest.raises(InputError, match="made by framefit simulate"):
        run(tmp_path / "cut", resume=True)
    with pytest.raises(InputError, match="keeps its plan"):
        simulate(tmp_path / "cut", resume=True, windows=5)


@pytest.mark.parametrize("after", [0, 100_000])
def test_a_full_disk_ends_recording_and_not_the_beat(
    after: int, planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on to its end; exit code 3, with what was recorded in a complete folder."""
    written = 0

    def pwrite(file: int, data: memoryview, at: int) -> int:
        nonlocal written
        if written >= after:
            raise OSError(28, "No space left on device")
        done = original(file, data[: after - written], at)
        written += done
        return done

    original = os.pwrite
    begun: list[int] = []
    with pytest.raises(RecordingError, match="No space left on device; it went on without") as error:
        simulate(
            planned,
            windows=2000,
            output=tmp_path / "out",
            on_idle=lambda window, _: (begun.append(window), monkeypatch.setattr(os, "pwrite", pwrite))[0],
        )
    assert error.value.exit_code == 3
    assert max(begun) == 2000
    if not after:
        assert not (tmp_path / "out" / "run.json").exists()
        return
    info = read_record(tmp_path / "out" / "run.json", RunInfo)
    assert info.error is not None
    assert "No space left" in info.error
    kept = read_record(tmp_path / "out" / "metrics.json", Metrics).windows
    assert 0 < len(frames_of(tmp_path / "out", "small")) <= kept < 2000
    assert not (tmp_path / "out" / "journal").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_is_full_keeps_what_was_recorded(planned: Plan, small_disk: Path, tmp_path: Path) -> None:
    """The run goes on to its end, exit code 3; with room again, the report shows the windows that were recorded."""
    out, begun = small_disk / "out", list[int]()

    def in_real_time(window: int, _: int) -> None:  # records are appended every second
        begun.append(window)
        time.sleep(0.0015)

    with pytest.raises(RecordingError, match="No space left on device") as error:
        simulate(planned, windows=3000, output=out, on_idle=in_real_time)
    assert error.value.exit_code == 3
    assert f"framefit report {out} then shows what was recorded" in str(error.value.remedy)
    assert max(begun) == 3000
    assert not (out / "run.json").exists()
    with pytest.raises(InputError, match="No space left on device"):
        write_report(out, output=tmp_path / "report.html")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    page = write_report(out, output=tmp_path / "report.html").read_text(encoding="utf-8")
    kept = read_record(out / "metrics.json", Metrics).windows
    assert 100 < kept < 3000
    assert f"after {kept} of 3000 windows" in page
    assert "there is no timeline" not in page
    frames = frames_of(out, "small")
    assert sorted(frames) == list(range(len(frames)))
    assert kept / 2 < len(frames) <= kept
    assert set(frames.values()) == {"done"}


def test_the_memory_of_a_long_run_does_not_grow(app: Path, tmp_path: Path) -> None:
    """From a quarter of it to its end."""
    resident: dict[int, int] = {}

    def look(begun: int, count: int) -> None:
        quarter = 4 * begun // count
        if quarter not in resident:
            resident[quarter] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    simulate(app, windows=20_000, output=tmp_path / "out", on_idle=look)
    assert resident[3] - resident[1] < 0.02 * resident[1]
