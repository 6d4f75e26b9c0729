"""Replicas beside priority models: shares of ways, and what playing them at medians serves."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from unit_plans import checked

from framefit.core.timetable import PlannedModel
from framefit.planning.beat import Beat
from framefit.planning.candidates import Arranged, UnitCandidate, arrange_on_units
from framefit.planning.partition import Pieces
from framefit.planning.placement import Room
from framefit.planning.playback import median_rates
from framefit.planning.replicas import with_replicas

WINDOW_NS, US = 33_000_000, 1000
EXCESS = 0.05


def candidate(name: str, durations_us: list[int], speeds: dict[str, float], *, priority: bool = False) -> UnitCandidate:
    """A chain of layers, each with 5 % between median and quantile, on units of several speeds."""
    role = "priority" if priority else "background"
    model = PlannedModel(name=name, role=role, level=0, reasons=(), duration_ns=0, segments=())  # type: ignore[arg-type]
    pieces = {}
    for unit, speed in speeds.items():
        medians = np.asarray([round(us * US / speed) for us in durations_us], np.int64)
        pieces[unit] = Pieces(medians, (medians * 1.05).astype(np.int64), np.zeros(len(medians) - 1, np.int64))
    able = {unit: [True] * len(durations_us) for unit in speeds}
    names = [(f"{name}{number}", f"{name}{number}") for number in range(len(durations_us))]
    return UnitCandidate(model, pieces, able, [0] * len(durations_us), names)


def arranged(models: list[UnitCandidate], speeds: dict[str, float], *, replicated: bool = True) -> Arranged:
    """The best that is found."""
    replicate = partial(with_replicas, notify=lambda _: None) if replicated else None
    beat = Beat(WINDOW_NS, 0, excess_ratio=EXCESS)
    return arrange_on_units(models, beat, [Room(unit) for unit in speeds], replicate=replicate)


def least(found: Arranged, windows: int = 400) -> float:
    """Launches a window of the least-served model, at medians."""
    beat = Beat(WINDOW_NS, 0, excess_ratio=EXCESS).guarded(found.timetable.models)
    return min(median_rates(beat, found.timetable.models, windows)[0].values())


def test_long_layers_use_every_window_of_both_units() -> None:
    """Three layers of 25 ms: two of three windows' frames are served, where stages serve every second one."""
    speeds = {"u0": 1.0, "u1": 1.0}
    models = [candidate("face", [2000], speeds, priority=True), candidate("big", [25_000] * 3, speeds)]
    assert least(arranged(models, speeds, replicated=False)) == pytest.approx(1 / 2, abs=0.02)
    found = arranged(models, speeds)
    assert least(found) == pytest.approx(2 / 3, abs=0.02)
    assert len(found.timetable.model("big").replicas) == 2


def test_what_is_served_without_replicas_has_none() -> None:
    """Everything is served by one each."""
    speeds = {"u0": 1.0, "u1": 1.0}
    found = arranged([candidate("big", [5000] * 3, speeds), candidate("other", [4000] * 3, speeds)], speeds)
    assert found.share == 1
    assert [len(model.replicas) for model in found.timetable.models] == [1, 1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_workloads_come_near_the_fluid_bound(seed: int) -> None:
    """On two or three units: nothing beats what is possible, and packing loses no more than a quarter."""
    random = np.random.default_rng(seed)
    speeds = dict(zip(("u0", "u1", "u2"), random.choice([0.6, 1.0, 1.7], 2 + seed % 2), strict=False))
    models = [
        candidate(f"face{number}", random.integers(500, 3000, 3).tolist(), speeds, priority=True) for number in range(2)
    ]
    models += [
        candidate(f"big{number}", random.integers(1000, 9000, random.integers(6, 16)).tolist(), speeds)
        for number in range(random.integers(1, 3))
    ]
    found = arranged(models, speeds)
    beat = Beat(WINDOW_NS, 0, excess_ratio=EXCESS).guarded(found.timetable.models)
    assert checked(beat, found.timetable) == []
    served = least(found)
    assert served >= least(arranged(models, speeds, replicated=False)) * 0.98
    assert served >= 0.75 * found.bound
