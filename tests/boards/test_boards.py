"""Boards on the command line: the list, what ssh's failures mean, and verbs that are done there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loopback import SOURCE, Place

from framefit.boards.client import explained
from framefit.boards.frames import MEASURING, VERBS
from framefit.core.boards import Board, destination
from framefit.core.bundle import read_bundle
from framefit.core.choice import Choice
from framefit.core.files import read_record
from workloads import write_app, write_models, write_target


def shown(text: str) -> dict[str, object]:
    """A result on standard output, which is JSON and nothing else."""
    result = json.loads(text)
    assert isinstance(result, dict)
    return result


def test_a_board_is_added_listed_checked_and_removed(place: Place, tmp_path: Path) -> None:
    """The list is a file; a check says what is there, and how far its clock is."""
    python = shown(place("board", "list", "--json").stdout)["boards"][0]["python"]  # type: ignore[index]
    added = place("board", "add", "rack", "ssh://me@rack:2222", "--python", python, "--core", "0", "--json")
    assert added.returncode == 0, added.stderr
    assert shown(added.stdout)["machine"] == os.uname().machine
    assert "-p 2222 -- me@rack" in (tmp_path / "ssh.log").read_text()
    again = place("board", "add", "rack", "rack")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert "rack: ssh://me@rack:2222" in place("board", "list").stdout
    checked = shown(place("board", "check", "rack", "--json").stdout)
    assert 0 < checked["clock_bound_ns"] < 1e9  # type: ignore[operator]
    assert abs(checked["clock_offset_ns"]) <= checked["clock_bound_ns"]  # type: ignore[operator, arg-type]
    assert place("board", "remove", "rack").returncode == 0
    assert place("doctor", "--on", "rack").returncode == 2


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ssh://pi@pi5.local", ("pi@pi5.local", None)),
        ("ssh://pi@pi5.local:2222", ("pi@pi5.local", "2222")),
        ("lab-board", ("lab-board", None)),
        ("pi@10.0.0.5", ("pi@10.0.0.5", None)),
        ("ssh://root@[fe80::1]:22", ("root@fe80::1", "22")),
    ],
)
def test_addresses(address: str, expected: tuple[str, str | None]) -> None:
    """Addresses are URLs, or names of ssh's own configuration."""
    assert destination(address) == expected


@pytest.mark.parametrize(
    "address", ["-oProxyCommand=x", "a b", "ssh://-x@y", "pi@-oX", "http://pi", "", "x;y", "ssh://a:99999"]
)
def test_what_ssh_would_read_as_an_option_is_refused(address: str) -> None:
    """No address becomes an option or a command."""
    with pytest.raises(ValueError, match="address"):
        Board(name="x", address=address)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("me@lab: Permission denied (publickey,password).", "ssh-copy-id me@lab"),
        ("Host key verification failed.", "compare the key"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "ssh-keygen -R lab"),
        ("ssh: Could not resolve hostname lab: Name or service not known", "check the address"),
        ("ssh: connect to host lab port 22: Connection refused", "ssh server"),
        ("ssh: connect to host lab port 22: Connection timed out", "switched on"),
        ("bash: line 1: .local/x/python: No such file or directory", "framefit board check pi5"),
        ("kex_exchange_identification: odd", "try ssh me@lab"),
    ],
)
def test_a_failure_of_ssh_has_a_remedy(words: str, expected: str) -> None:
    """What ssh and the board's shell say."""
    error = explained(Board(name="pi5", address="ssh://me@lab"), words, 255)
    assert error is not None
    assert expected in str(error)


def test_a_password_is_never_asked_for(place: Place, tmp_path: Path) -> None:
    """One message, and what a terminal would obey is left out."""
    (tmp_path / "refuses").write_text("\x1b[2Jme@lab: Permission denied (publickey,password).\n")
    ended = place("doctor", "--on", "lab")
    assert ended.returncode == 3
    assert ended.stdout == ""
    assert "ssh-copy-id me@lab" in ended.stderr
    assert "\x1b" not in ended.stderr
    assert ended.stderr.count("framefit: ") == 1


def test_the_result_of_doctor_is_that_of_the_board(place: Place) -> None:
    """Standard output is the verb's own; what a .bashrc and libraries print does no harm."""
    (place.board.parents[1] / "bashrc").write_text("echo welcome; echo FFB1; printf 'x%.0s' 1 2 3\n")
    (place.board.parents[1] / "environment").write_text("export LANG=C\n")
    ended = place("doctor", "--on", "lab", "--json")
    assert ended.returncode == 0, ended.stderr
    assert "findings" in shown(ended.stdout)
    assert not list((place.board / "jobs").iterdir())


def test_a_plan_is_made_there_and_comes_here(place: Place, tmp_path: Path) -> None:
    """Absolute paths mean the same on both sides; a run sends no model again and fills the places here.

    A workload whose target is the board needs no ``--on``.
    """
    write_models(tmp_path / "models")
    write_target(tmp_path / "models")
    sink = f'[[outputs]]\nmodel = "small"\nsink = "{tmp_path}/small.jsonl"\n'
    app = write_app(tmp_path / "models", target="target.toml", background=(), more=sink)
    app.write_text(app.read_text().replace('"small.onnx"', f'"{tmp_path}/models/small.onnx"'))
    (place.here / "runs" / "models-1").mkdir(parents=True)
    ended = place("plan", str(app), "--on", "lab", "-o", "plan.json", "--page", "plan.html", "--json")
    assert ended.returncode == 0, ended.stderr
    assert "MB sent" in ended.stderr
    assert shown(ended.stdout)["models"]
    stored = (place.here / "plan.json").read_text()
    assert str(place.board) not in stored
    assert str(app.resolve()) in stored
    assert (place.here / "plan.html").exists()
    assert place("plan", str(app), "--on", "lab", "-o", "plan.json").returncode == 2
    contents = {entry.name for entry in (place.board / "files").iterdir()}
    app.write_text(app.read_text().replace('target = "target.toml"', 'target = "lab"'))
    ended = place("run", str(app), "--seconds", "0.3", "--max-miss-ratio", "1")
    assert ended.returncode == 0, ended.stderr
    new = [entry for entry in (place.board / "files").iterdir() if entry.name not in contents]
    assert len(new) == 1  # the workload, whose absolute paths are those of the job
    assert "small" in new[0].read_text()
    assert 'target = "cpu"' in new[0].read_text()
    assert (place.here / "runs" / "models-2" / "run.json").exists()
    assert (tmp_path / "small.jsonl").read_text().count("\n") > 3


def test_what_plans_or_runs_measures_alone() -> None:
    """All verbs of a board hold its lock but those that launch nothing on the beat."""
    assert set(VERBS) - MEASURING == {"doctor", "estimate", "profile", "report"}


def test_a_choice_is_made_there(place: Place) -> None:
    """For a target whose description is sent, at several rates; the folder comes here, and may be written again."""
    folder = write_models(place.here / "models")
    write_target(folder)
    app = write_app(folder, target="target.toml", guard_ms=None, schedule="")
    words = ("choose", str(app), "--targets", str(folder / "target.toml"), "--rates", "10,20", "--on", "lab")
    for _ in range(2):
        ended = place(*words, "-o", "choice", "-q", "--json")
        assert ended.returncode == 0, ended.stderr
        assert [cell["verdict"] for cell in shown(ended.stdout)["cells"]] == ["fits", "fits"]
    choice = read_record(place.here / "choice" / "choice.json", Choice)
    assert choice.front == [str(folder / "target.toml")]
    assert (place.here / "choice" / "report.html").exists()


def test_a_board_is_one_of_the_targets_of_a_choice(place: Place) -> None:
    """Its rows are planned there, at once, and are not planned again; the page is of all targets."""
    app = write_app(write_models(place.here / "models", brief=True), guard_ms=None, schedule="")
    words = ("choose", str(app), "--targets", "vpu,lab", "--rates", "5,10", "-o", "choice", "--json")
    ended = place(*words)
    assert ended.returncode == 0, ended.stderr
    cells = shown(ended.stdout)["cells"]
    assert [(cell["target"], cell["rate_hz"]) for cell in cells] == [
        (target, rate_hz) for target in ("vpu", "lab") for rate_hz in (5, 10)
    ]
    assert all(cell["verdict"] == "fits" for cell in cells if cell["target"] == "lab")
    assert (place.here / "choice" / "boards" / "lab" / "choice.json").exists()
    assert read_record(place.here / "choice" / "choice.json", Choice).targets == ["vpu", "lab"]
    (place.here / "choice" / "boards" / "lab" / "choice.json").unlink()
    again = place(*words)
    assert shown(again.stdout)["cells"] == cells
    assert not (place.here / "choice" / "boards" / "lab" / "choice.json").exists()
    assert "pi6" in place("choose", str(app), "--targets", "vpu,pi6").stderr


def test_a_bundle_and_a_soak_are_made_there(place: Place) -> None:
    """Of the board's own plan, and with the board's sensors; all files come here."""
    app = write_app(write_models(place.here / "models", brief=True), rate_hz=20)
    ended = place("bundle", str(app), "--on", "lab", "-o", "doors.bundle", "-q")
    assert ended.returncode == 0, ended.stderr
    bundle, _, _ = read_bundle(place.here / "doors.bundle")
    assert [model.name for model in bundle.models] == ["small", "chain"]
    ended = place("soak", str(app), "--on", "lab", "--minutes", "0.02", "-o", "runs/warm", "-q", "--json")
    assert ended.returncode == 0, ended.stderr
    assert len(shown(ended.stdout)["minutes"]) == 1
    assert (place.here / "runs" / "warm" / "conditions.jsonl").read_text().count("\n") > 0


@pytest.mark.slow
def test_a_fit_is_made_there(place: Place, tmp_path: Path) -> None:
    """Its folder comes here, and its workload names the models that are here."""
    write_models(place.here / "models")
    write_target(place.here / "models")
    app = write_app(place.here / "models", target="lab")
    ended = place("fit", os.path.relpath(app, place.here), "--apply", "-q")
    assert ended.returncode == 0, ended.stderr
    fitted = (place.here / "app-fit" / "app.toml").read_text()
    assert 'path = "../models/small.onnx"' in fitted
    assert 'target = "lab"' in fitted
    ended = place("fit", "--resume", "app-fit", "--on", "lab", "-q", "--json")
    assert ended.returncode == 0, ended.stderr
    assert shown(ended.stdout)["verdict"]


def test_a_job_writes_into_its_own_folder_only(tmp_path: Path) -> None:
    """Whatever path an option or a record names."""
    script = f"""
import os, pathlib, shutil
from framefit.cli.forwarded import keep_inside
inside, outside = pathlib.Path({str(tmp_path)!r}, "job"), pathlib.Path({str(tmp_path)!r}, "else")
inside.mkdir(); outside.mkdir(); (outside / "mine").write_text("mine"); (inside / "link").symlink_to(outside)
keep_inside(inside)
(inside / "a").write_text("a"); (inside / "a").rename(inside / "b"); open("/dev/null", "w").close()
(outside / "mine").read_text()
for change in (
    lambda: (outside / "a").write_text("a"),
    lambda: (inside / "link" / "a").write_text("a"),
    lambda: open(outside / "mine", "ab"),
    lambda: os.open(outside / "mine", os.O_WRONLY),
    lambda: (inside / "b").rename(outside / "b"),
    lambda: (outside / "mine").rename(inside / "c"),
    lambda: (outside / "mine").unlink(),
    lambda: (outside / "d").mkdir(),
    lambda: shutil.rmtree(outside),
    lambda: (outside / "e").symlink_to(inside),
    lambda: (inside / ".." / "else" / "f").write_text("f"),
):
    try:
        change()
    except PermissionError:
        continue
    raise SystemExit("it was changed")
assert os.listdir(outside) == ["mine"]
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=30)


@pytest.mark.slow
def test_a_table_is_measured_there(place: Place, tmp_path: Path) -> None:
    """It is of the board, and a report of it is made there, too; an estimate that fails has its exit code."""
    models = write_models(tmp_path / "models")
    small = os.path.relpath(models / "small.onnx", place.here)
    ended = place("measure", small, "--on", "lab", "--repeats", "3", "--audit", "none", "-o", "t.table.json", "-q")
    assert ended.returncode == 0, ended.stderr
    assert (place.here / "t.table.json").exists()
    ended = place("estimate", str(models / "chain.onnx"), "--table", "t.table.json", "--on", "lab", "--json")
    assert ended.returncode == 2
    assert shown(ended.stdout)["error"]
    assert str(place.board) not in ended.stdout + ended.stderr
    ended = place("report", "t.table.json", "--on", "lab", "-q")
    assert ended.returncode == 0, ended.stderr
    assert (place.here / "report.html").exists()


def test_functions_of_the_user_are_not_sent(place: Place, tmp_path: Path) -> None:
    """A board executes nothing that it receives."""
    write_models(tmp_path / "models")
    app = write_app(tmp_path / "models", stream='source = "frames:camera"')
    ended = place("plan", str(app), "--on", "lab")
    assert ended.returncode == 2
    assert re.search("frames:camera.*executes nothing", ended.stderr)
    assert not list((place.board / "jobs").iterdir()) if place.board.exists() else True
