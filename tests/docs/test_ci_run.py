"""What checks a clone does what the README has a newcomer do."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from documents import ROOT, blocks


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which a ``make`` that does nothing else notes where it is called, and with what."""
    make, notes = tmp_path / "make", tmp_path / "notes"
    make.write_text(f'#!/bin/sh\necho "$PWD: make $*" >> "{notes}"\n[ "$*" != "$FAILING" ]\n')
    make.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return notes


def in_readme() -> list[str]:
    """The README's commands of ``make``, in order."""
    text = "".join(block.text for block in blocks(ROOT / "README.md"))
    return re.findall(r"^make \w+", text, re.MULTILINE)


def test_the_readmes_commands_are_run_in_its_order_on_one_clone(noted: Path) -> None:
    """``.ci/run`` sets up and runs the example before it tests, as a newcomer does; the Makefile has both."""
    subprocess.run([ROOT / ".ci" / "run"], check=True)
    assert noted.read_text().splitlines() == [f"{ROOT}: {command}" for command in in_readme()]
    assert in_readme() == ["make demo", "make test"]
    rules = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command.split()[1]}:", rules, re.MULTILINE) for command in in_readme())


@pytest.mark.parametrize("command", in_readme())
def test_each_of_them_has_to_succeed(command: str, noted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one fails, ``.ci/run`` does, and nothing follows it."""
    monkeypatch.setenv("FAILING", command.removeprefix("make "))
    assert subprocess.run([ROOT / ".ci" / "run"], check=False).returncode != 0
    assert noted.read_text().splitlines()[-1] == f"{ROOT}: {command}"
