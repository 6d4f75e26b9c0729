"""The example that does not fit at first: by how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import framefit
from framefit.fit.situation import standing_of
from workloads import write_target


def test_the_reader_is_too_slow_by_as_much_as_it_says(
    example: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its network learns; on the target it takes 1.6 times what the others leave of a window, so it does not fit."""
    crowded = example("crowded")
    monkeypatch.setattr(crowded, "SMALL", msgspec.structs.replace(crowded.SMALL, epochs=2))
    assert crowded.write_models(tmp_path / "crowded", small=True) > 0.3
    target = write_target(tmp_path, processor="clock_mhz = 20\nmacs_per_cycle = { fp32 = 64 }")
    planned = framefit.plan(crowded.write_app(tmp_path / "crowded", str(target)))
    standing = standing_of(planned)
    assert not standing.fits
    models = {one.name: one for one in standing.models}
    taken = {name: one.duration_ns for name, one in models.items()}
    left = 1e9 / models["reader"].asked_hz - taken["detector"] - taken["light"] - planned.timetable.guard_ns
    assert taken["reader"] / left == pytest.approx(crowded.TOO_SLOW, rel=0.15)  # cut or not
