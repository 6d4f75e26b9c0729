"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
