"""Profiles of a device that shares no assumption with the alignment (``tests/foreign_runs.py``)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from foreign_runs import ForeignCase, ForeignRun, ForeignScore, make_run, score
from framefit.core.events import Trace
from framefit.core.program import Launches, Program, ProgramUnit
from framefit.errors import InputError
from framefit.profiling.order import check_order
from framefit.profiling.pairing import pair_events
from framefit.profiling.profile import ProfileInput, ProfileResult, profile_trace
from framefit.profiling.sequence import Sequence, UnitTable


def profiled(run: ForeignRun, **options: Any) -> ProfileResult:
    """The profile of a run's trace."""
    return profile_trace(ProfileInput(run.trace, run.program, None, None, "trace"), **options)


def scores(case: ForeignCase, seeds: range, **options: Any) -> list[ForeignScore]:
    """How well runs of ``case`` are profiled."""
    results = []
    for seed in seeds:
        run = make_run(case, seed)
        result = profiled(run, **options)
        results.append(score(run, result.log, result.profile.utilisation_by_unit))
    return results


@pytest.mark.parametrize("burst", [1, 5, 20])
def test_units_of_one_core_are_separate(burst: int) -> None:
    """Units that send their packets on one core and run side by side have a track, and a utilisation, each."""
    found = scores(ForeignCase(overlap=True, burst=burst, inferences=100), range(3))
    assert min(each.matched for each in found) >= 0.998
    assert np.mean([each.duration_error for each in found]) <= 0.05
    assert 0.87 <= np.mean([each.coverage for each in found]) <= 0.93
    assert max(each.utilisation_error for each in found) <= 0.005


@pytest.mark.parametrize("whole", [0.05, 0.1, 0.2])
def test_whole_inferences_that_were_lost_are_counted(whole: float) -> None:
    """A silence of as many periods as were lost is no pause, where pauses are short and the period is steady."""
    found = scores(ForeignCase(operations=60, inferences=100, loss=0.0, whole=whole), range(3))
    assert [each.inferences for each in found] == [0, 0, 0]
    assert min(each.matched for each in found) == 1


def test_long_bursts_keep_the_count_of_inferences() -> None:
    """Bursts that may be longer than an inference do not become pauses."""
    found = scores(ForeignCase(operations=60, loss=0.2, burst=60), range(4))
    assert sorted(each.matched for each in found)[1] >= 0.99


def test_pauses_are_no_lost_inferences() -> None:
    """Silences that are no multiple of the period, again and again, are the device's pauses."""
    found = scores(ForeignCase(operations=60, inferences=100, rest_ratio=0.1, rest_ns=2_200_000.0), range(3))
    assert [each.inferences for each in found] == [0, 0, 0]
    assert min(each.matched for each in found) >= 0.99


def test_what_times_do_not_decide_is_said() -> None:
    """A single rest is a pause, one of a period a lost inference, and what lies between is said to be undecided."""
    run = make_run(ForeignCase(operations=60, inferences=100, loss=0.0), 0)
    period = int(np.median(np.diff(run.times_ns[:, 0, 0])))
    lost, undecided = [], []
    for ratio in np.linspace(0.9, 1.0, 11):
        times = run.times_ns + np.repeat([0, int(ratio * period)], [40, 60])[:, None, None]
        trace = replace(run.trace, time_ns=np.sort(times.ravel()))
        profile = profile_trace(ProfileInput(trace, run.program, None, None, "trace")).profile
        lost.append(profile.inferences - 100)
        undecided.append(any("in 1 silences the times do not decide" in warning for warning in profile.warnings))
        assert not (undecided[-1] and profile.calibrated)
    assert (lost[0], lost[-1]) == (0, 1)
    assert np.all(np.diff(lost) >= 0)
    assert any(undecided)
    assert not undecided[0]
    assert not undecided[-1]


def test_silences_longer_than_half_a_wrap_keep_the_time() -> None:
    """A clock that wraps around every 2.1 ms goes on forwards where bursts of packets are lost."""
    found = scores(ForeignCase(burst=20, wrap_bits=21, inferences=100), range(3))
    assert min(each.matched for each in found) >= 0.998


def test_silences_longer_than_a_wrap_keep_the_time() -> None:
    """Of a clock that wraps around every 1.05 ms the program says how often it did, unless a stall is as long."""
    case = ForeignCase(burst=40, loss=0.2, wrap_bits=20, inferences=100, stalls=0.0)
    found = scores(case, range(3))
    assert min(each.matched for each in found) >= 0.998


@pytest.mark.parametrize(
    ("case", "error"), [(ForeignCase(burst=20, drift=0.15), 0.042), (ForeignCase(loss=0.4, drift=0.15), 0.023)]
)
def test_a_drifting_clock_is_followed(case: ForeignCase, error: float) -> None:
    """Lost edges keep their accuracy and their coverage while the clock drifts by 15 %."""
    found = scores(case, range(3))
    assert np.mean([each.duration_error for each in found]) <= error
    assert 0.87 <= np.mean([each.coverage for each in found]) <= 0.93


def test_each_inference_has_a_speed_of_its_own() -> None:
    """Where inferences differ and their operations do not, received edges tell how long the lost ones took."""
    found = scores(ForeignCase(60, 100, own_speed=0.05, variation=0.002, stalls=0.0, burst=5), range(2))
    assert max(each.duration_error for each in found) <= 0.01
    assert min(each.coverage for each in found) >= 0.85


def test_operations_that_are_hardly_ever_seen_are_as_the_others_show() -> None:
    """A table that fits what is seen is believed of what is not, and what lies in a long loss is still recognised."""
    found = scores(ForeignCase(60, 100, loss=0.0, hidden=0.5, markers=True, table_error=0.02, stalls=0.0), range(2))
    assert max(each.duration_error for each in found) <= 0.035
    assert min(each.matched for each in found) >= 0.997


def test_four_units_of_one_core() -> None:
    """The rule matches by units, too, and nothing is invented where nothing was lost."""
    run = make_run(ForeignCase(operations=40, inferences=20, units=4, overlap=True, loss=0.0), 3)
    for method in ("align", "rule"):
        result = profiled(run, method=method)
        assert (result.profile.events.lost, result.profile.events.spurious) == (0, 0)
        assert np.array_equal(result.log.unit, np.tile(run.unit, 20))


def _program(run: ForeignRun, cores: tuple[int, ...], exclusive: tuple[tuple[str, ...], ...]) -> Program:
    units = tuple(ProgramUnit(name=unit.name, core=core) for unit, core in zip(run.program.units, cores, strict=True))
    return msgspec.structs.replace(run.program, units=units, exclusive=exclusive)


@pytest.mark.parametrize(
    ("cores", "exclusive", "track"),
    [
        ((0, 0, 0), (), [0, 1, 2]),
        ((0, 0, 0), (("FILE", "PU"),), [0, 0, 1]),
        ((0, 0, 0), (("FILE", "PU"), ("PU", "RU")), [0, 1, 2]),
        ((5, 2, 5), (("FILE", "PU", "RU"),), [1, 0, 1]),
    ],
)
def test_a_track_is_a_unit(cores: tuple[int, ...], exclusive: tuple[tuple[str, ...], ...], track: list[int]) -> None:
    """Units share a track only where they share a core and exclude each other and the same others."""
    run = make_run(ForeignCase(operations=20, inferences=1, loss=0.0), 0)
    table = UnitTable.of(_program(run, cores, exclusive), run.trace.kinds)
    assert table.track.tolist() == track


def test_units_of_one_core_are_paired() -> None:
    """In a complete trace each pair belongs to its unit, whatever runs beside it."""
    run = make_run(ForeignCase(operations=30, inferences=4, overlap=True, loss=0.0), 1)
    numbers = np.arange(4)
    log = pair_events(run.trace, run.program, Launches(np.zeros(4, np.int32), numbers, numbers, numbers))
    assert len(log) == 120
    assert np.array_equal(log.unit, run.unit[log.operation])
    assert np.array_equal(log.start_ns, run.times_ns[log.inference, log.operation, 0])


def test_a_packet_that_names_no_unit_has_none() -> None:
    """Kinds that no unit of the core runs, and unknown cores, belong to no unit."""
    run = make_run(ForeignCase(operations=20, inferences=1, loss=0.0), 0)
    trace = run.trace
    strange = Trace(
        time_ns=trace.time_ns[:3],
        id=np.array([99, -1, 0], np.int32),
        type=trace.type[:3],
        core=np.array([0, 0, 7], np.int16),
        operation=trace.operation[:3],
        kinds=trace.kinds,
    )
    assert UnitTable.of(run.program, trace.kinds).units_of(strange).tolist() == [-1, -1, -1]


def _other_order(run: ForeignRun, seed: int) -> Program:
    """A program of the same operations, of the same kinds and units, in another order."""
    part = run.program.programs[0]
    operations = [operation for group in part.groups for operation in group.operations]
    order = np.random.default_rng(seed).permutation(len(operations))
    mixed = tuple(
        msgspec.structs.replace(operations[at], index=index, after=()) for index, at in enumerate(order.tolist())
    )
    segment = msgspec.structs.replace(part, groups=(msgspec.structs.replace(part.groups[0], operations=mixed),))
    return msgspec.structs.replace(run.program, programs=(segment,))


@pytest.mark.parametrize(
    "case",
    [
        ForeignCase(loss=0.0),
        ForeignCase(burst=20, drift=0.15),
        ForeignCase(loss=0.4),
        ForeignCase(overlap=True, burst=5),
        ForeignCase(operations=30),
        ForeignCase(whole=0.2, wrap_bits=20),
    ],
)
def test_a_similar_program_is_refused_and_the_right_one_is_not(case: ForeignCase) -> None:
    """Another network of the same kinds, and the same operations in another order, contradict the order of events."""
    for seed in range(3):
        run = make_run(case, seed)
        kinds = run.trace.kinds
        for program in (make_run(replace(case, inferences=1), seed + 50).program, _other_order(run, seed)):
            with pytest.raises(InputError, match=r"after packet \d+ of \d+ .* expects the (START|END) of 'op\d+'"):
                check_order(run.trace, Sequence.of(program, None, kinds), "trace")
        assert check_order(run.trace, Sequence.of(run.program, None, kinds), "trace") == (run.trace, [])


@pytest.mark.timed
@pytest.mark.parametrize("method", ["align", "rule"])
def test_a_wrong_program_is_refused_soon(method: str) -> None:
    """60,000 events of another network take no more than two seconds to be refused."""
    run = make_run(ForeignCase(inferences=370), 0)
    other = replace(run, program=make_run(ForeignCase(inferences=1), 100).program)
    begin = time.process_time()
    with pytest.raises(InputError, match="the trace is not of this program"):
        profiled(other, method=method)
    assert time.process_time() - begin < 2


def test_operations_that_packets_name_wrongly_are_not_used() -> None:
    """Where the names contradict the program and the kinds do not, the kinds are believed."""
    run = make_run(ForeignCase(inferences=40), 0)
    name = np.random.default_rng(0).permutation(90)
    number = np.full(run.trace.time_ns.shape, -1, np.int64)
    number[run.packet[run.packet >= 0]] = name[np.nonzero(run.packet >= 0)[1]]
    trace = replace(run.trace, operation=number)
    result = profile_trace(ProfileInput(trace, run.program, None, None, "trace"))
    assert any("only kinds were used" in warning for warning in result.profile.warnings)
    assert score(run, result.log).matched >= 0.999


@pytest.mark.parametrize("kept", [(1.0, 0.0), (0.95, 0.5)])
def test_losses_of_one_type_are_no_other_order(kept: tuple[float, float]) -> None:
    """Where most ENDs are lost, the program is still the right one."""
    run = make_run(ForeignCase(operations=30, units=1, loss=0.0), 1)
    stays = np.random.default_rng(0).random(len(run.trace)) < np.array(kept)[run.trace.type]
    thin = replace(
        run.trace, **{name: getattr(run.trace, name)[stays] for name in ("time_ns", "id", "type", "core", "operation")}
    )
    assert check_order(thin, Sequence.of(run.program, None, thin.kinds), "trace") == (thin, [])


def test_times_that_mislead_are_not_believed() -> None:
    """Where the order of the events explains a trace better than its times do, they are matched in order.

    A clock of 20 bits wraps around every 1.05 ms, and bursts hide several turns: times are wrong from there on.
    """
    for seed in (0, 2):
        run = make_run(ForeignCase(burst=20, wrap_bits=20, inferences=60), seed)
        aligned, by_rule = (profiled(run, method=method) for method in ("align", "rule"))
        assert score(run, aligned.log).matched >= score(run, by_rule.log).matched - 0.005
