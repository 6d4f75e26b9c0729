"""Brief measurements, and the command line as a function."""

from __future__ import annotations

from pathlib import Path

import pytest
from console import Framefit, framefit_in

from workloads import no_noise, write_models


@pytest.fixture
def framefit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Framefit:
    """``framefit`` in an empty current folder; plans see no noise."""
    no_noise(monkeypatch)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return framefit_in(monkeypatch, capsys)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of two models."""
    return write_models(tmp_path / "models")
