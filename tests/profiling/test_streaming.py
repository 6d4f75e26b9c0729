"""A profile that grows with a stream is the one that the whole log would give."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bridged import Bridged, bridged, program_of

from framefit.core.profile import OperationLog
from framefit.profiling.profile import summarise
from framefit.profiling.sequence import PacketClass
from framefit.profiling.streaming import RunningProfile


def part(log: OperationLog, at: slice) -> OperationLog:
    """Some of a log's operations."""
    names = [field.name for field in dataclasses.fields(log) if field.name != "kinds"]
    return dataclasses.replace(log, **{name: getattr(log, name)[at] for name in names})


def run_of(run: Bridged, pieces: int) -> RunningProfile:
    """Its log, taken in piece by piece."""
    running = RunningProfile(run.sequence, run.program, 0.9, 1)
    size = len(run.reconstruction.log)
    for at in np.array_split(np.arange(size), pieces):
        log = part(run.reconstruction.log, slice(int(at[0]), int(at[-1]) + 1))
        received = int((log.start_event >= 0).sum() + (log.end_event >= 0).sum())
        running.add(log, np.full(received, PacketClass.MATCHED, np.uint8), np.zeros(received, np.bool_))
    return running


@pytest.mark.parametrize("pieces", [1, 7])
def test_pieces_of_one_block_give_the_profile_of_the_whole(pieces: int) -> None:
    """However the operations come, as long as all of them are kept."""
    run = bridged(program_of("cppcrc"), 20, loss=0.2, burst=3)
    whole = summarise(run.reconstruction, run.sequence, run.program, method="align")
    assert run_of(run, pieces).profile(calibrated=True) == whole


def test_blocks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and counts are exact over blocks that were given up; intervals are no narrower than those of the whole."""
    run = bridged(program_of("cppcrc"), 60, loss=0.2, burst=3)
    whole = summarise(run.reconstruction, run.sequence, run.program, method="align")
    monkeypatch.setattr("framefit.profiling.streaming._BLOCK", 90)
    running = run_of(run, 13)
    assert sum(map(len, running._logs)) < 90
    profile = running.profile(calibrated=True, warnings=("careful",))
    assert profile.events == whole.events
    assert (profile.inferences >= whole.inferences, profile.covered_ns) == (True, whole.covered_ns)
    assert profile.utilisation_by_unit == pytest.approx(whole.utilisation_by_unit)
    assert profile.warnings == ("careful",)
    for name in ("totals_by_kind", "totals_by_layer", "totals_by_group", "totals_by_unit"):
        for key, totals in getattr(whole, name).items():
            summed = getattr(profile, name)[key]
            assert (summed.count, summed.duration_ns) == (totals.count, totals.duration_ns)
            assert summed.inferred_ratio == pytest.approx(totals.inferred_ratio)
            assert summed.interval_ns[0] <= summed.duration_ns <= summed.interval_ns[1]
    assert profile.totals_by_unit["npu0"].interval_ns[0] <= whole.totals_by_unit["npu0"].interval_ns[0] * 1.001


def test_nothing_is_a_profile_too() -> None:
    """Before the first operation all figures are 0."""
    run = bridged(program_of("cp"), 2, loss=0.0)
    profile = RunningProfile(run.sequence, run.program, 0.9, 1).profile(calibrated=False)
    assert profile.inferences == profile.events.received == profile.covered_ns == 0
    assert profile.totals_by_kind == {}
