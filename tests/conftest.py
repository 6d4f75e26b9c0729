"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# Threads of PyTorch and BLAS gain nothing on networks this small, and wait for each other on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadlines: machines stall. The same examples every time, so that a change is judged by what it
# changes; other ones: pytest --hypothesis-profile explore.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("explore"), derandomize=True, max_examples=30)
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


@pytest.fixture(scope="session")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which backends were tried in processes of their own: once for all tests."""
    return tmp_path_factory.mktemp("trials")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, trials: Path) -> Iterator[None]:
    """Compiled segments, measurements and images of the tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        (cache / "trials").symlink_to(trials)
        patch.setenv("FRAMEFIT_CACHE", str(cache))
        yield


@pytest.fixture(scope="session", autouse=True)
def _a_core_each() -> Iterator[None]:
    """Of several processes of tests each keeps its plans and runs on another core: all would choose the last one."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    with pytest.MonkeyPatch.context() as patch:
        if worker and hasattr(os, "sched_getaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            core = cores[-1 - int(worker.removeprefix("gw")) % len(cores)]
            patch.setattr("framefit.devices.ort.default_core", lambda: core)
        yield


@pytest.fixture(scope="session", autouse=True)
def _briefly() -> Iterator[None]:
    """Plans and runs spend tenths of a second on measuring, and few windows on the idle control."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PROBE_NS", "_FINAL_NS"):
            patch.setattr(f"framefit.planning.durations.{name}", 200_000_000)
        patch.setattr("framefit.planning.durations._AROUND_NS", 100_000_000)
        patch.setattr("framefit.planning.durations._FLOOR_WAKE_UPS", 20)
        patch.setattr("framefit.devices.measure._BUDGET_NS", 200_000_000)
        patch.setattr("framefit.runtime.session._LEAST_FLOOR", 5)
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    """What the last tests did not close is found by the collector, as an error of the very last one."""
    gc.freeze()  # all that pytest has collected: no garbage, and a second to look at
    yield
    gc.unfreeze()
    gc.collect()


@pytest.fixture(autouse=True)
def _old_objects_are_no_garbage(request: pytest.FixtureRequest) -> None:
    """A run in real time collects garbage before it begins, and then counts old objects among it again."""
    if "timed" in request.keywords:
        gc.freeze()


@pytest.fixture(scope="session")
def example() -> Callable[[str], ModuleType]:
    """Imports an example by its name."""

    def load(name: str) -> ModuleType:
        path = Path(__file__).resolve().parents[1] / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"{name}_example", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def digits(example: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``python examples/digits.py --network mlp -o digits`` writes; skipped without scikit-learn and PyTorch."""
    pytest.importorskip("sklearn", reason="no digits without scikit-learn")
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    folder = tmp_path_factory.mktemp("examples") / "digits"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["digits.py", "--network", "mlp", "-o", str(folder)])
        example("digits").main()
    return folder
