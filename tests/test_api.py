"""The package's public names."""

from __future__ import annotations

from pathlib import Path

import pytest

import framefit
from workloads import write_app, write_models


@pytest.mark.parametrize("name", framefit.__all__)
def test_every_public_name_loads(name: str) -> None:
    """A name of ``__all__`` is an object of that name."""
    assert getattr(framefit, name).__name__ == name


def test_the_public_names_are_listed() -> None:
    """``dir(framefit)`` shows exactly the public names."""
    assert dir(framefit) == sorted(framefit.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist is refused as on any module."""
    with pytest.raises(AttributeError, match="'framefit' has no attribute 'simulat'"):
        framefit.simulat  # noqa: B018


@pytest.mark.timed
def test_plan_and_run_in_three_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload is planned, really measured, run and looked at without another import."""
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    app = write_app(write_models(tmp_path / "models"), rate_hz=20)
    plan = framefit.plan(app)
    result = framefit.run(plan, windows=3)
    assert plan.timetable.feasible
    assert result.folder == Path("runs") / "models-1"
    assert result.metrics.windows == 3
    assert 0 <= result.metrics.miss_ratio <= 1


def test_errors_share_one_tree(tmp_path: Path) -> None:
    """Whatever Framefit refuses can be caught as FramefitError, and says where and what to do."""
    with pytest.raises(framefit.FramefitError) as error:
        framefit.plan(tmp_path / "absent.toml")
    assert isinstance(error.value, framefit.InputError)
    assert error.value.where == str(tmp_path / "absent.toml")
    assert error.value.remedy
