"""Framefit's own environment on a board."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from loopback import SOURCE, Place

from framefit.boards.agent import package_files
from framefit.boards.install import wheel


def test_the_wheel_is_the_package_that_is_here(tmp_path: Path) -> None:
    """All files of it, and the same bytes each time; pip takes it, and its own check of the files holds."""
    name, data = wheel()
    assert wheel() == (name, data)
    (tmp_path / name).write_bytes(data)
    root = SOURCE / "framefit"
    with zipfile.ZipFile(tmp_path / name) as archive:
        for path in package_files(root):
            assert archive.read(f"framefit/{path.relative_to(root).as_posix()}") == path.read_bytes()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([*pip, tmp_path / "there", tmp_path / name], check=True, capture_output=True)
    assert (tmp_path / "there" / "framefit" / "boards" / "agent.py").exists()


@pytest.mark.slow
def test_add_installs_what_is_missing(place: Place, tmp_path: Path) -> None:
    """An environment is made on the board once; what it needs beside Framefit is there by other means in this test."""
    packages = Path(np.__file__).parents[1]
    (tmp_path / "board" / "environment").write_text(f"export PIP_NO_DEPS=1 PIP_NO_INDEX=1 PYTHONPATH={packages}\n")
    added = place("board", "add", "rack", "rack", "--json", timeout_s=120)
    assert added.returncode == 0, added.stderr
    assert "installing Framefit" in added.stderr
    (made,) = (tmp_path / "board" / ".local" / "share" / "framefit").iterdir()
    assert (made / "bin" / "python").exists()
    checked = place("board", "check", "rack")
    assert checked.returncode == 0
    assert "installing" not in checked.stderr
    ended = place("doctor", "--on", "rack", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)


def test_a_board_where_it_cannot_be_installed_is_named(place: Place, tmp_path: Path) -> None:
    """One error that says what to do, also for a folder without wheels."""
    (tmp_path / "board" / "environment").write_text("unset PYTHONPATH\n")
    ended = place("board", "add", "rack", "rack", "--wheels", str(tmp_path))
    assert ended.returncode == 2
    assert "no wheels" in ended.stderr
    (tmp_path / "board" / "environment").write_text("export PATH=/nowhere\n")
    ended = place("board", "add", "rack", "rack")
    assert ended.returncode == 3, ended.stderr
    assert "board rack" in ended.stderr
    assert "remedy" in ended.stderr
