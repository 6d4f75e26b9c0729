"""The examples as modules, and a cache of their own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images of the tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAMEFIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def example() -> Callable[[str], ModuleType]:
    """Imports an example by its name."""

    def load(name: str) -> ModuleType:
        path = Path(__file__).resolve().parents[2] / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"{name}_example", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
