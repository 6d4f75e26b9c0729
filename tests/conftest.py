"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadlines: machines stall. The same examples every time, so that a change is judged by what it
# changes; other ones: pytest --hypothesis-profile explore.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real models and data; the test is skipped where there is none."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("FRAMEFIT_SHARED") or default)
    if not folder.is_dir():
        pytest.skip(f"no real models and data: {folder} is no folder (set FRAMEFIT_SHARED)")
    return folder


@pytest.fixture(scope="session")
def shared_models(shared: Path) -> Path:
    """The folder of real models; the test is skipped where there is none."""
    folder = shared / "models"
    if not folder.is_dir():
        pytest.skip(f"no real models: {folder} is no folder (set FRAMEFIT_SHARED)")
    return folder
