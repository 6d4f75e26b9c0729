"""What depends on the processor, on arm64 in an emulator: correctness only, durations mean nothing there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.arm64
@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("test_host.py", "denormals or fastest or parts"),
        ("test_ort.py", "TestOrtDevice"),
        ("kernels/test_zero_kernels.py", "numpy or single_operators or blocks_of_zeros"),
    ],
)
def test_it_is_right_on_arm64(file: str, chosen: str) -> None:
    """``FRAMEFIT_ARM64`` names an arm64 Python that has Framefit's dependencies and pytest, run by QEMU for example."""
    python = os.environ.get("FRAMEFIT_ARM64")
    if not python:
        pytest.skip("no arm64 Python (set FRAMEFIT_ARM64)")
    paths = f"{ROOT / 'src'}:{ROOT / 'tests'}"
    test = ("-m", "pytest", "-q", "-c", os.devnull, "--rootdir", HERE, "-p", "no:cacheprovider")
    ended = subprocess.run(
        [python, *test, HERE / file, "-k", chosen],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONPATH_ARM64": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    assert " passed" in ended.stdout
