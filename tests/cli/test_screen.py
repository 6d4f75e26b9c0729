"""What every command takes beside its verb: progress, notes, a log file, completion."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from console import Framefit

from framefit.cli.screen import Progress, Screen, logged
from workloads import write_app


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        """Whether it is one."""
        return True


@pytest.fixture
def here(models: Path, framefit: Framefit, monkeypatch: pytest.MonkeyPatch) -> Framefit:
    """``framefit`` in a folder with an app.toml."""
    monkeypatch.chdir(write_app(models).parent)
    return framefit


def test_the_workload_of_this_folder_is_the_default(here: Framefit) -> None:
    """``framefit plan`` is ``framefit plan app.toml``."""
    ended = here("plan")
    assert (ended.code, ended.out[:5]) == (0, "FITS.")


def test_off_a_terminal_each_step_is_a_line(here: Framefit) -> None:
    """Steps are on stderr; with -q there is nothing there, with -v the seconds since the start."""
    lines = here("plan").err.splitlines()
    assert lines[0] == "loading models"
    assert "verifying the segments' outputs" in lines
    assert here("plan", "-q").err == ""
    seconds, unit, step = here("plan", "-v", steps=True).err.splitlines()[0].split(maxsplit=2)
    assert (unit, step) == ("s", "loading models")
    assert 0 <= float(seconds) < 60


def test_another_package_that_logs_does_not_repeat_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """A handler of the root logger, as ONNX Runtime's quantising leaves one, gets nothing while a command runs."""
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:
        with logged(Screen(verbose=True)):
            logging.getLogger("framefit.cli.screen").info("a step")
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().err.count("a step") == 1
    assert logging.getLogger("framefit").propagate


def test_short_and_long_help_are_the_same(framefit: Framefit) -> None:
    """``-h`` is ``--help``, of the program and of each command."""
    for words in ([], ["plan"]):
        assert framefit(*words, "-h") == framefit(*words, "--help")
        assert framefit(*words, "-h").code == 0


def test_a_log_file_has_steps_and_the_error(here: Framefit, tmp_path: Path) -> None:
    """It begins with the command, has what -q hides, and is continued by the next command."""
    log = tmp_path / "framefit.log"
    assert here("plan", "-q", "--log-file", log).code == 0
    text = log.read_text()
    assert "framefit plan -q --log-file" in text.splitlines()[0]
    assert text.splitlines()[1].endswith("framefit.cli.screen: loading models")
    Path("small.onnx").write_bytes(b"no model")
    ended = here("plan", "--log-file", log)
    assert ended.code == 2
    assert log.read_text().startswith(text)
    assert "ERROR framefit.cli.screen: " in log.read_text()
    assert "small.onnx" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_an_unexpected_error_is_logged_with_its_traceback(tmp_path: Path) -> None:
    """What was no mistake of the user's can be reported with it; the package's logger is as it was."""
    log, package = tmp_path / "framefit.log", logging.getLogger("framefit")
    before = package.level, list(package.handlers)
    with pytest.raises(ZeroDivisionError), logged(Screen(log_file=str(log))):
        raise ZeroDivisionError("no such number")
    assert "Traceback" in log.read_text()
    assert (package.level, package.handlers) == before


def test_steps_that_differ_in_figures_only_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """A training's hundred messages do not fill a log; warnings are always shown."""
    with logged(Screen()), Progress(Screen()) as progress:
        for epoch in range(100):
            progress(f"training: epoch {epoch}")
            logging.getLogger("framefit.x").warning("training: %d", epoch)
        progress("testing")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: epoch 0"
    assert [line for line in lines if "epoch" not in line] == [f"training: {epoch}" for epoch in range(100)] + [
        "testing"
    ]
    assert len(lines) == 102


def test_a_bar_says_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, once two seconds show the pace: step n of m, and the time left."""
    now = [100.0]
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr("framefit.cli.screen.time.monotonic", lambda: now[0])
    progress = Progress(Screen())
    for second in range(6):
        now[0] = 100.0 + second
        progress.windows(30 * second, 300)
    shown = sys.stderr.getvalue().split("\r")  # type: ignore[attr-defined]
    assert shown[1].endswith("window 0 of 300")
    assert shown[-1].endswith("window 150 of 300, 5 s left")


def test_words_are_completed() -> None:
    """The shell is told the words of an option, and names of targets and built-in models."""

    def completed(line: str) -> list[str]:
        words = line.split(" ")
        settings = {"_FRAMEFIT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        script = Path(sys.executable).with_name("framefit")
        ended = subprocess.run([script], env=os.environ | settings, check=False, capture_output=True, text=True)
        return ended.stdout.split()

    assert completed("framefit si") == ["simulate"]
    assert completed("framefit cycles --target vp") == ["vpu", "vpu-two-queues"]
    assert completed("framefit cycles de") == ["detector", "depth"]
    assert completed("framefit profile x --method r") == ["rule"]
