"""What a run is asked for, and what it is told before it begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framefit import InputError, RunResult, plan, run, simulate
from framefit.runtime.session import Session, counted_windows
from workloads import listing, write_app, write_models, write_target


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload on a board."""
    folder = write_models(tmp_path_factory.mktemp("app"))
    write_target(folder)
    return write_app(folder, target="target.toml", guard_ms=None)


@pytest.mark.parametrize("verb", [run, simulate])
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"seconds": math.inf}, "too many"),
        ({"seconds": math.nan}, "seconds must be greater than 0, is nan"),
        ({"seconds": -math.inf}, "seconds must be greater than 0, is -inf"),
        ({"seconds": 1e12}, "too many"),
        ({"windows": 10**400}, "too many"),
        ({"windows": 3, "seed": -1}, "seed must be at least 0, is -1"),
    ],
)
def test_impossible_lengths_and_seeds(
    verb: Callable[..., RunResult], asked: dict[str, Any], says: str, app: Path, tmp_path: Path
) -> None:
    """They are told before the work of a plan, and nothing is left behind."""
    told: list[str] = []
    with pytest.raises(InputError, match=says):
        verb(app, output=tmp_path / "out", notify=told.append, **asked)
    assert (told, listing(tmp_path)) == ([], {})


def test_windows_of_a_length() -> None:
    """Seconds by the rate, at least one window; 292 years are the most, however they are told."""
    assert counted_windows(None, None, 30) == 300
    assert (counted_windows(None, 2.5, 30), counted_windows(None, 1e-9, 30), counted_windows(7, None, 30)) == (75, 1, 7)
    assert counted_windows(10**10, None, 30) == 10**10
    with pytest.raises(InputError, match="too many"):
        counted_windows(10**10, None, 1)


def test_a_plan_for_virtual_time_is_not_run(app: Path, tmp_path: Path) -> None:
    """It leaves no time for late wake-ups; the remedy says how to plan."""
    planned = plan(app)
    with pytest.raises(InputError, match="virtual time") as error:
        run(planned, windows=3, output=tmp_path / "out")
    assert "in_real_time=True" in (error.value.remedy or "")
    assert listing(tmp_path) == {}


def test_long_runs_say_what_they_will_take(app: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before a run whose logs take gigabytes, once; not before others."""
    session = Session(plan(app).opened(), seed=0, frames=False)
    assert session.windows(100_000, None) == 100_000
    assert caplog.messages == []
    assert session.windows(100_000_000, None) == 100_000_000
    (message,) = caplog.messages
    assert "100000000 windows" in message
    assert "GB" in message
