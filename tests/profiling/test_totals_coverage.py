"""Intervals of totals hold what a device that shares no assumption with the profile really did."""

from __future__ import annotations

import numpy as np

from foreign_runs import ForeignCase, make_run
from framefit.core.profile import How
from framefit.profiling.expectation import find_slow_operations, latency_entries
from framefit.profiling.profile import ProfileInput, profile_trace


def coverage(case: ForeignCase, seeds: range) -> float:
    """Part of the layers with inferred edges whose interval holds the time that they took."""
    held = []
    for seed in seeds:
        run = make_run(case, seed)
        result = profile_trace(ProfileInput(run.trace, run.program, None, None, "made"))
        if not result.profile.calibrated:
            continue
        log = result.log
        shift = int(np.flatnonzero(run.kept.any(axis=(1, 2)))[0]) - int(log.inference.min())
        took = np.diff(run.times_ns, axis=2)[log.inference + shift, log.operation, 0]
        true = np.bincount(log.operation // 2, took)  # a layer is two operations
        for name, total in result.profile.totals_by_layer.items():
            low, high = total.interval_ns
            if total.inferred_ratio:
                held.append(low <= true[int(name.removeprefix("net/layer"))] <= high)
    assert len(held) > 60
    return float(np.mean(held))


def test_intervals_of_layers_hold_the_truth() -> None:
    """With stalls in one operation of a hundred, nine of ten layers lie in their intervals."""
    held = [
        coverage(ForeignCase(operations=60, inferences=100, loss=loss, burst=burst), range(4))
        for loss, burst in ((0.1, 1.0), (0.1, 5.0), (0.3, 1.0))
    ]
    held.append(coverage(ForeignCase(loss=0.0, whole=0.1), range(3)))  # inferences that were lost as a whole
    assert 0.86 <= np.mean(held) <= 0.94
    assert all(0.84 <= each <= 0.96 for each in held), held


def test_what_was_never_measured_is_not_slow_and_enters_no_table() -> None:
    """A trace of STARTs alone has no duration; the program's expectations stay what they are."""
    run = make_run(ForeignCase(operations=20, inferences=40, loss=0.0, stalls=0.0), 1)
    starts = run.trace.type == 0
    columns = {name: getattr(run.trace, name)[starts] for name in ("time_ns", "id", "type", "core", "operation")}
    trace = type(run.trace)(**columns, kinds=run.trace.kinds)
    result = profile_trace(ProfileInput(trace, run.program, None, None, "made"))
    assert not ((result.log.start_how == How.MEASURED) & (result.log.end_how == How.MEASURED)).any()
    assert find_slow_operations(result.log, result.sequence, run.program, 0.9) == ()
    assert latency_entries(result.log, result.sequence, 0.9) == ()
    assert not result.profile.calibrated
