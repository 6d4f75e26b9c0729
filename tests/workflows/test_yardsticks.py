"""What background models could reach at most: the same by both ways to work it out, where both apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from framefit.devices.clock import VirtualClock
from framefit.devices.npu import NpuDevice
from framefit.runtime.session import Session
from framefit.workflows.plan import plan
from framefit.workflows.record import _of_units, bounds_hz
from workloads import write_app, write_models, write_target


def test_one_unit_is_a_case_of_several(tmp_path: Path) -> None:
    """Two models that share a unit: fluid and packing bounds agree but for what cutting and whole windows cost."""
    write_models(tmp_path)
    write_target(tmp_path)
    background = ["chain", "chain2"]
    app = write_app(tmp_path, target="target.toml", guard_ms=None, schedule="", rate_hz=80, background=background)
    planned = plan(app)
    assert len(planned.timetable.units) == 1
    assert isinstance(planned.device, NpuDevice)
    planned.device.clock = VirtualClock()
    planned.device.restart(0)
    opened = planned.opened()
    session = Session(opened, seed=0, frames=False)
    session.group.run(200)
    medians = [one.median_ns for one in session.measure()]
    count = len(opened.models)
    one = bounds_hz(opened, session.group, medians[:-count], medians[-count:])
    several = _of_units(opened, session.group, medians[:-count])
    assert set(one) == set(several) == set(background)
    for name in background:
        assert several[name] == pytest.approx(one[name], rel=0.03)
        assert several[name][1] <= several[name][0] * 1.001
