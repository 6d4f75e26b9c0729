"""A cache of their own for these tests, brief measurements, and the command line as a function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from console import Framefit, framefit_in

from workloads import measure_briefly, no_noise, write_models


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled segments and measurements of the tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAMEFIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def framefit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Framefit:
    """``framefit`` in an empty current folder; plans see no noise."""
    measure_briefly(monkeypatch)
    no_noise(monkeypatch)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return framefit_in(monkeypatch, capsys)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of two models."""
    return write_models(tmp_path / "models")
