"""Profiles: sums over operations, their intervals, and what was not as expected."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from bridged import Bridged, bridged, program_of
from hypothesis import assume, given
from hypothesis import strategies as st

from framefit.core.latency_table import LatencyTable
from framefit.core.profile import How, OperationLog, Profile
from framefit.core.program import Launches, Program
from framefit.core.timetable import PriorityPeriod, Timetable, Window
from framefit.profiling.expectation import apply_table_to_program, latency_entries, operation_positions, operation_times
from framefit.profiling.profile import summarise
from framefit.profiling.totals import Sums, window_use

PROGRAM = program_of("cppcrcccprccpprc")


def summary(run: Bridged, **given: object) -> Profile:
    """Its profile."""
    return summarise(run.reconstruction, run.sequence, run.program, method="align", **given)  # type: ignore[arg-type]


def covered(run: Bridged, names: list[str], key: np.ndarray) -> list[bool]:  # type: ignore[type-arg]
    """Whether each total's interval holds the truth."""
    truth = np.bincount(key, run.true_ns, len(names))
    totals = Sums(run.reconstruction.log, run.sequence, 0.9).by(lambda _: key.astype(np.int64), names)
    return [totals[name].interval_ns[0] <= true <= totals[name].interval_ns[1] for name, true in zip(names, truth)]  # noqa: B905


def test_a_complete_trace_has_exact_totals() -> None:
    """Where nothing was inferred, intervals are points and the inferred part is 0."""
    run = bridged(PROGRAM, 5, loss=0.0)
    profile = summary(run)
    for totals in (profile.totals_by_kind, profile.totals_by_layer, profile.totals_by_group, profile.totals_by_unit):
        assert sum(total.duration_ns for total in totals.values()) == run.true_ns.sum()
        assert sum(total.count for total in totals.values()) == 5 * 16
        assert all(total.interval_ns == (total.duration_ns, total.duration_ns) for total in totals.values())
        assert all(total.inferred_ratio == 0 for total in totals.values())
    assert profile.inferences == 5
    assert set(profile.totals_by_kind) == {"c", "p", "r"}
    assert profile.totals_by_layer.keys() == {f"net/layer{index}" for index in range(16)}
    assert profile.totals_by_group.keys() == {"net.0/0", "net.0/1"}
    log = run.reconstruction.log
    assert profile.covered_ns == log.end_ns[-1] - log.start_ns[0]
    assert profile.utilisation_by_unit["npu0"] == pytest.approx(run.true_ns.sum() / profile.covered_ns)
    assert profile.gaps_by_unit["npu0"].count == 5 * 16 - 1


@pytest.mark.parametrize(("loss", "burst"), [(0.1, 1), (0.4, 1), (0.1, 20), (0.4, 20)])
def test_intervals_of_totals_hold_the_truth(loss: float, burst: int) -> None:
    """About nine of ten intervals do, by kind, layer and group, whatever the loss."""
    hits: dict[str, list[bool]] = {"kind": [], "layer": [], "group": []}
    for seed in range(12):
        factors = tuple(np.random.default_rng(seed).uniform(0.3, 3, 16))
        run = bridged(PROGRAM, 40, loss=loss, burst=burst, seed=seed, factors=factors)
        log, at = run.reconstruction.log, operation_positions(run.reconstruction.log, run.sequence)
        hits["kind"] += covered(run, list(log.kinds), log.kind)
        hits["layer"] += covered(run, [str(index) for index in range(16)], at)
        hits["group"] += covered(run, ["0", "1"], run.sequence.group[at])
    assert 0.85 <= np.mean(hits["layer"]) <= 0.97  # of 192
    assert np.mean(hits["kind"]) >= 0.83  # of 36
    assert np.mean(hits["group"]) >= 0.83  # of 24


def test_errors_inside_a_gap_cancel() -> None:
    """A gap's length is known: a total of all of its operations is surer than the root of its parts' squares."""
    run = bridged(program_of("cccccccc"), 60, loss=0.3, burst=6, idle_ns=30)
    profile = summary(run)
    (whole,) = profile.totals_by_kind.values()
    parts = [total.interval_ns[1] - total.interval_ns[0] for total in profile.totals_by_layer.values()]
    assert whole.interval_ns[1] - whole.interval_ns[0] < 0.5 * np.sqrt(np.sum(np.square(parts)))


def test_nothing_bounds_what_lies_beyond_the_last_event() -> None:
    """Open ends widen a total by as much as their operations vary."""
    run = bridged(PROGRAM, 30, loss=0.0)
    log, last = run.reconstruction.log, len(run.reconstruction.log) - 1
    how, low, high = log.end_how.copy(), log.end_low_ns.copy(), log.end_high_ns.copy()
    how[last], low[last], high[last] = How.OUTSIDE, log.end_ns[last] - 700, log.end_ns[last] + 700
    open_log = dataclasses.replace(log, end_how=how, end_low_ns=low, end_high_ns=high)
    total = Sums(open_log, run.sequence, 0.9).by(lambda log: np.zeros(len(log), np.int64), ["all"])["all"]
    assert (total.interval_ns[1] - total.interval_ns[0]) / 2 == pytest.approx(700, rel=0.2)


@given(
    loss=st.sampled_from([0.0, 0.05, 0.5, 0.9]),
    burst=st.integers(1, 40),
    seed=st.integers(0, 99),
    open_ends=st.booleans(),
    inferences=st.integers(1, 6),
)
def test_profiles_of_any_loss_are_sound(loss: float, burst: int, seed: int, open_ends: bool, inferences: int) -> None:
    """Intervals hold their totals, totals add up, ratios stay between 0 and 1."""
    try:
        run = bridged(PROGRAM, inferences, loss=loss, burst=burst, seed=seed, open_ends=open_ends)
    except ValueError:
        assume(False)  # noqa: FBT003 - nothing was left
    profile = summary(run)
    log = run.reconstruction.log
    for totals in (profile.totals_by_kind, profile.totals_by_layer, profile.totals_by_group, profile.totals_by_unit):
        assert sum(total.duration_ns for total in totals.values()) == (log.end_ns - log.start_ns).sum()
        for total in totals.values():
            assert 0 <= total.interval_ns[0] <= total.duration_ns <= total.interval_ns[1]
            assert 0 <= total.inferred_ratio <= 1
    assert all(0 <= ratio <= 1 for ratio in profile.utilisation_by_unit.values())
    for violation in profile.violations:
        assert violation.interval_ns[0] <= violation.actual_ns <= violation.interval_ns[1]


def test_totals_of_many_keys_are_those_of_few() -> None:
    """What is added up in parts is the same as what is added up at once."""
    run = bridged(program_of("cp" * 150), 4, loss=0.3, burst=3)
    log = run.reconstruction.log
    sums, at = Sums(log, run.sequence, 0.9), operation_positions(log, run.sequence)
    many = sums.by(lambda _: at, [str(index) for index in range(300)])
    alone = sums.by(lambda _: np.where(at == 270, 0, -1).astype(np.int64), ["one"])
    assert many["270"] == alone["one"]


def test_an_empty_log_gives_an_empty_profile() -> None:
    """No operations, no totals, no traceback."""
    run = bridged(PROGRAM, 1, loss=0.0)
    log = run.reconstruction.log
    nothing = {
        field.name: getattr(log, field.name)[:0] for field in dataclasses.fields(OperationLog) if field.name != "kinds"
    }
    profile = summary(
        dataclasses.replace(
            run, reconstruction=dataclasses.replace(run.reconstruction, log=dataclasses.replace(log, **nothing))
        )
    )
    assert profile.totals_by_kind == {}
    assert profile.inferences == profile.covered_ns == 0
    assert profile.utilisation_by_unit == {"npu0": 0.0}


def test_slow_operations_are_listed_and_others_are_not() -> None:
    """A third more than expected is a violation, with an interval of the true median; 1 % more is none."""
    factors = (1.0, 1.01, 1.33, *(1.0,) * 13)
    profile = summary(bridged(PROGRAM, 60, loss=0.2, burst=3, factors=factors))
    (violation,) = profile.violations
    assert violation.operation == "net.0/p2"
    assert violation.expected_ns == 10_000
    assert violation.interval_ns[0] <= 13_300 <= violation.interval_ns[1]
    assert violation.interval_ns[1] - violation.interval_ns[0] < 1_000
    assert violation.count >= 50


def test_the_costliest_violation_comes_first() -> None:
    """Sorted by what all executions together took beyond the expectation."""
    factors = (1.0, 1.2, 1.5, 1.3, *(1.0,) * 12)
    profile = summary(bridged(PROGRAM, 40, factors=factors))
    assert [entry.operation for entry in profile.violations] == ["net.0/p2", "net.0/c3", "net.0/p1"]


def test_as_many_false_alarms_as_executions_allow() -> None:
    """Where everything takes what is expected, hardly an operation of 480 is called slow."""
    alarms = [len(summary(bridged(PROGRAM, 30, loss=0.3, burst=4, seed=seed)).violations) for seed in range(30)]
    assert sum(alarms) <= 5


def test_a_cycle_longer_than_its_period_is_a_violation() -> None:
    """Of a program that repeats on its own, the time from start to start counts."""
    kept = program_of("cccc", expected_ns=10_000, window_ns=60_000)
    late = program_of("cccc", expected_ns=10_000, window_ns=30_000)
    assert summary(bridged(kept, 20, idle_ns=100)).violations == ()
    (profile,) = summary(bridged(late, 20, idle_ns=100)).violations
    assert (profile.operation, profile.expected_ns, profile.count) == ("period of the cycle", 30_000, 19)
    assert 38_000 < profile.actual_ns < 43_000


def windows_of(late: tuple[int, ...], loss: float = 0.0) -> tuple[Bridged, Launches, Timetable]:
    """20 windows of 1 ms with a priority period of 60 us at 100 us; in some the launch is 50 us late."""
    program = program_of("cccc", expected_ns=12_000, window_ns=1_000_000)
    run = bridged(program, 20, loss=loss, idle_ns=100)
    log, inference = run.reconstruction.log, run.reconstruction.log.inference
    first = log.start_ns[np.searchsorted(inference, np.arange(20))]
    wanted = 5_000_000 + np.arange(20) * 1_000_000 + 100_000
    wanted[list(late)] += 50_000
    shift = (wanted - first)[inference]
    names = ("start_ns", "end_ns", "start_low_ns", "start_high_ns", "end_low_ns", "end_high_ns")
    moved = dataclasses.replace(log, **{name: getattr(log, name) + shift for name in names})
    launches = Launches(
        program=np.zeros(20, np.int32), window=np.arange(20), frame=np.arange(20), submit_ns=wanted - 12_345_678
    )
    window = Window(
        index=0,
        length_ns=1_000_000,
        priority=(PriorityPeriod(unit="npu0", start_ns=100_000, end_ns=160_000, model="net"),),
        residual_ns=(),
        slots=(),
    )
    timetable = Timetable(
        feasible=True,
        worst_slack_ns=0,
        hyperperiod_windows=1,
        window_ns=1_000_000,
        priority_ns=60_000,
        residual_ns=940_000,
        guard_ns=0,
        units=("npu0",),
        windows=(window,),
        models=(),
        memory_bytes={},
    )
    return (
        dataclasses.replace(run, reconstruction=dataclasses.replace(run.reconstruction, log=moved)),
        launches,
        timetable,
    )


@pytest.mark.parametrize("late", [(), (3,), (0, 7, 19)])
def test_priority_periods_that_were_not_kept_are_counted(late: tuple[int, ...]) -> None:
    """A launch that ends after its reserved time breaks its period, whatever the clocks' offset."""
    run, launches, timetable = windows_of(late)
    profile = summary(run, launches=launches, timetable=timetable).violations
    assert [(entry.operation, entry.expected_ns, entry.count) for entry in profile] == (
        [("priority period of net", 60_000, len(late))] if late else []
    )


def test_a_table_tells_what_to_expect_and_learns_what_was() -> None:
    """Entries of a profile are the true medians; a program that expects them has no violations."""
    factors = tuple(np.random.default_rng(3).uniform(0.5, 2, 16))
    run = bridged(PROGRAM, 80, loss=0.2, factors=factors)
    entries = latency_entries(run.reconstruction.log, run.sequence, 0.9)
    assert [entry.configuration["place"] for entry in entries] == list(range(16))
    assert {entry.source for entry in entries} == {"profiled"}
    for entry, factor in zip(entries, factors, strict=True):
        assert entry.latency_ns == pytest.approx(10_000 * factor, rel=0.03)
        assert entry.interval_ns[0] <= entry.latency_ns <= entry.interval_ns[1]
        assert 8 <= len(entry.samples_ns) <= 80
    assert len(summary(run).violations) >= 5
    told, profile, lacking = apply_table_to_program(
        PROGRAM, LatencyTable(target="x", fingerprint={}, entries=entries[1:])
    )
    assert (profile, lacking) == (15, 1)
    operations = [operation for group in told.programs[0].groups for operation in group.operations]
    assert operations[0].expected_ns == 10_000
    assert [one.expected_ns for one in operations[1:]] == [entry.latency_ns for entry in entries[1:]]
    assert all(0.02 < one.sigma_ratio < 0.1 for one in operations[1:])


def test_layers_of_one_configuration_share_an_entry() -> None:
    """Two operations of the same configuration on one unit are taken together, as a table finds them."""
    program = program_of("ccp")
    (segment,) = program.programs
    groups = tuple(
        msgspec.structs.replace(
            group,
            operations=tuple(msgspec.structs.replace(op, configuration={"kernel": [3, 3]}) for op in group.operations),
        )
        for group in segment.groups
    )
    same = msgspec.structs.replace(program, programs=(msgspec.structs.replace(segment, groups=groups),))
    run = bridged(same, 10, loss=0.0)
    entries = latency_entries(run.reconstruction.log, run.sequence, 0.9)
    assert [(entry.op, len(entry.samples_ns)) for entry in entries] == [("c", 20), ("p", 10)]


def test_few_executions_give_wide_intervals() -> None:
    """Three executions say between which bounds the median lies, no more."""
    run = bridged(PROGRAM, 3, loss=0.0)
    times = operation_times(run.reconstruction.log, operation_positions(run.reconstruction.log, run.sequence), 16, 0.9)
    taken = run.true_ns.reshape(3, 16)
    assert np.array_equal(times.low_ns, taken.min(0))
    assert np.array_equal(times.high_ns, taken.max(0))
    assert np.array_equal(times.median_ns, np.median(taken, 0))


def test_units_side_by_side_are_separate() -> None:
    """Each unit has its own totals, use and gaps; together they may be busy more than all of the time."""
    program: Program = program_of("cc", cores="01")
    run = bridged(program, 10, loss=0.0)
    profile = summary(run)
    assert profile.totals_by_unit.keys() == {"npu0", "npu1"}
    assert all(total.count == 10 for total in profile.totals_by_unit.values())
    assert 0.3 < profile.utilisation_by_unit["npu1"] < 0.6


def shown(*intervals: tuple[int, int, int]) -> OperationLog:
    """A measured log of (program, start, end), in the order of their starts."""
    program, start, end = np.array(sorted(intervals, key=lambda one: one[1]), np.int64).reshape(-1, 3).T
    nothing = np.zeros(len(start), np.int64)
    how = np.full(len(start), How.MEASURED, np.uint8)
    return OperationLog(
        np.arange(len(start)), program.astype(np.int32), nothing.astype(np.int32), nothing.astype(np.int32),
        nothing.astype(np.int16), nothing.astype(np.int16), start, end, how, how, start, start, end, end, nothing,
        nothing, ("c",),
    )  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 100), st.integers(0, 30)).map(
            lambda one: (one[0], one[1], one[1] + one[2])
        ),
        max_size=12,
    )
)
def test_the_use_of_the_residual_counts_busy_time_once(intervals: list[tuple[int, int, int]]) -> None:
    """However operations overlap or nest: as counting every nanosecond of each window says."""
    one = program_of("c", window_ns=20)
    other = msgspec.structs.replace(one.programs[0], name="other.0", model="other")
    program = msgspec.structs.replace(one, programs=(*one.programs, other))
    releases = np.arange(0, 120, 20)
    use = window_use(shown(*intervals), program, releases, ["net"])
    busy, first = (
        {ns for which, start, end in intervals if which in wanted for ns in range(start, end)}
        for wanted in ((0, 1), (0,))
    )
    for window, ratio in enumerate(use.used_ratio.tolist(), start=use.first):
        inside = set(range(20 * window, 20 * window + 20))
        assert ratio == pytest.approx(len(inside & busy - first) / max(len(inside - first), 1))
    ends = [end for _, _, end in intervals]
    assert len(use.used_ratio) == (
        max(math.ceil(max(ends) / 20) - 1 - math.ceil(min(start for _, start, _ in intervals) / 20), 0) if ends else 0
    )
