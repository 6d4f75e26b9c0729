"""The same kernels on arm64, in an emulator: correctness only, durations mean nothing there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.slow
def test_kernels_are_right_on_arm64() -> None:
    """``FRAMEFIT_ARM64`` names an arm64 Python that has Framefit's dependencies and pytest, run by QEMU for example."""
    python = os.environ.get("FRAMEFIT_ARM64")
    if not python:
        pytest.skip("no arm64 Python (set FRAMEFIT_ARM64)")
    paths = f"{ROOT / 'src'}:{ROOT / 'tests'}"
    test = ("-m", "pytest", "-q", "-c", os.devnull, "--rootdir", HERE, "-p", "no:cacheprovider")
    ended = subprocess.run(
        [python, *test, HERE / "test_zero_kernels.py", "-k", "numpy or single_operators or blocks_of_zeros"],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONPATH_ARM64": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    assert " passed" in ended.stdout
