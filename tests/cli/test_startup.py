"""What the command line costs before it does anything."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("framefit")
HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "ortools", "rich")


def seconds(command: list[str | Path], code: int = 0) -> float:
    """Processor time of a process that ends so, the best of five: the wall's also counts what others do."""
    best = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(command, check=False, capture_output=True).returncode == code
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def test_help_lists_the_commands() -> None:
    """``framefit --help`` names every command."""
    shown = subprocess.run([SCRIPT, "--help"], check=True, capture_output=True, text=True).stdout
    for command in ("demo", "cycles", "plan", "run", "simulate", "targets", "doctor"):
        assert f"  {command} " in shown


@pytest.fixture(scope="module")
def numpy_s() -> float:
    """What it takes to import numpy, 0.1 s on a machine of today: bars in seconds would judge the machine."""
    return seconds([sys.executable, "-c", "import numpy"])


@pytest.mark.timed
def test_help_is_quick(numpy_s: float) -> None:
    """Under three times what numpy takes."""
    assert seconds([SCRIPT, "--help"]) < 3 * numpy_s


@pytest.mark.timed
def test_a_wrong_path_is_answered_quickly(numpy_s: float) -> None:
    """Under four times as long; tests/cli/test_bad_input.py counts what is imported for other wrong uses."""
    assert seconds([SCRIPT, "plan", "nosuch.toml"], code=2) < 4 * numpy_s


@pytest.mark.timed
def test_importing_costs_next_to_nothing(numpy_s: float) -> None:
    """``import framefit`` takes less than half of that more than Python itself."""
    ours, python = (seconds([sys.executable, "-c", code]) for code in ("import framefit", "pass"))
    assert ours - python < numpy_s / 2


@pytest.mark.parametrize("code", ["import framefit", "import framefit.cli.app"])
def test_nothing_heavy_is_imported(code: str) -> None:
    """Neither the package nor the command line loads numpy, onnx or the runtime."""
    script = f"import sys; {code}; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]"


def test_a_run_loads_no_engine_that_it_does_not_use() -> None:
    """``framefit.run`` and ``simulate`` load neither the engines of other verbs nor the writer of pages."""
    others = ("framefit.latency", "framefit.sparsity", "framefit.trees", "framefit.training", "framefit.report.html")
    script = f"import sys; import framefit.workflows.run; print([name for name in {others} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]"


def test_the_version_is_shown() -> None:
    """``framefit --version`` prints name and version."""
    shown = subprocess.run([SCRIPT, "--version"], check=True, capture_output=True, text=True).stdout
    assert shown.startswith("framefit ")
