"""The demo, wherever it is run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from framefit import InfeasibleError, Plan, plan
from framefit.workflows import demo as demo_module
from framefit.workflows.demo import demo, write_demo


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing fits; described devices are as they are."""

    def planned(app: Path, *, target: str | None = None, **options: Any) -> Plan:
        made = plan(app, target=target or "micro-npu", **options)
        if target is None:
            spoilt = msgspec.structs.replace(made.timetable, feasible=False, binding_constraint="busy")
            made = dataclasses.replace(made, timetable=spoilt)
        return made

    monkeypatch.setattr(demo_module, "plan", planned)


@pytest.mark.usefixtures("busy")
def test_where_it_does_not_fit_it_is_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture of what the tool does on any machine, which says what it is; with its page."""
    monkeypatch.chdir(tmp_path)
    planned, result = demo("demo", seconds=1.0)
    assert planned.timetable.feasible
    assert result.metrics.windows == 30
    assert result.metrics.models[0].missed == 0
    assert "simulation" in result.warnings[-1]
    assert (result.folder / "report.html").is_file()


@pytest.mark.usefixtures("busy")
def test_a_workload_of_the_users_own_is_not_simulated_instead(tmp_path: Path) -> None:
    """It says that it does not fit."""
    app = write_demo(tmp_path)
    app.write_text(app.read_text().replace("rate_hz = 30", "rate_hz = 31"))
    with pytest.raises(InfeasibleError, match="busy"):
        demo(tmp_path, seconds=1.0)
