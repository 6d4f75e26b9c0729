"""Set-up of the devices' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("devices.conformance")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or fills the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FRAMEFIT_CACHE", str(folder))
    return folder
