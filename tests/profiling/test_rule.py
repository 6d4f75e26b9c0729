"""The compensation rule, sentence by sentence, on cases made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.events import Trace, TraceMeta
from framefit.core.profile import How
from framefit.core.program import Launches, Program, RuleOffsets
from framefit.profiling.inject import drop_packets
from framefit.profiling.rule import match_in_order, place_lost, reconstruct
from framefit.profiling.sequence import PacketClass, Reconstruction, Sequence
from lossy_runs import played, program, segment, trace

OFFSETS = {"conv": RuleOffsets(t1=7, t2=5, t3=3), "pool": RuleOffsets(t1=70, t2=50, t3=30)}
KINDS = ("conv", "pool", "reformat")
CHAIN = program(segment("net", ("conv", "npu0", 100), ("pool", "npu0", 100), ("reformat", "npu0", 100)), repeats=1)
BOTH = program(
    segment("net", ("conv", "npu0", 100), ("pool", "npu1", 100), ("reformat", "npu0", 100)),
    units=("npu0", "npu1"),
    repeats=1,
)
EXCLUSIVE = Program(window_ns=BOTH.window_ns, units=BOTH.units, programs=BOTH.programs, exclusive=(("npu0", "npu1"),))
WHOLE = [
    (1000, "conv", 0, 0),
    (1100, "conv", 1, 0),
    (1120, "pool", 0, 0),
    (1220, "pool", 1, 0),
    (1240, "reformat", 0, 0),
    (1340, "reformat", 1, 0),
]


def repaired(packets: list[tuple[int, str, int, int]], held_against: Program = CHAIN) -> Reconstruction:
    """Packets repaired with the offsets above."""
    given = trace(packets, KINDS)
    return reconstruct(given, Sequence.of(held_against, None, KINDS), OFFSETS)


def edges(reconstruction: Reconstruction) -> list[tuple[int, int]]:
    """Start and end of each operation."""
    return list(zip(reconstruction.log.start_ns.tolist(), reconstruction.log.end_ns.tolist(), strict=True))


def without(*places: int) -> list[tuple[int, str, int, int]]:
    """The whole run less some packets."""
    return [packet for place, packet in enumerate(WHOLE) if place not in places]


def test_a_complete_trace_is_measured_throughout() -> None:
    """Every edge is the packet's time, and says which packet it was."""
    reconstruction = repaired(WHOLE)
    assert edges(reconstruction) == [(1000, 1100), (1120, 1220), (1240, 1340)]
    assert not reconstruction.log.inferred.any()
    assert reconstruction.log.start_event.tolist() == [0, 2, 4]
    assert reconstruction.log.end_event.tolist() == [1, 3, 5]
    assert reconstruction.counts.lost == 0


def test_a_lost_start_lies_t1_before_its_end() -> None:
    """Inserted at the time of the following event less t1 of its kind."""
    reconstruction = repaired(without(2))
    assert edges(reconstruction)[1] == (1220 - 70, 1220)
    assert reconstruction.log.start_how.tolist() == [How.MEASURED, How.T1, How.MEASURED]
    assert (reconstruction.log.start_low_ns[1], reconstruction.log.start_high_ns[1]) == (1100, 1220)


def test_a_lost_end_lies_t2_before_the_event_that_follows() -> None:
    """With nothing that excludes it, at the time of the following event less t2 of its kind."""
    reconstruction = repaired(without(1))
    assert edges(reconstruction)[0] == (1000, 1120 - 5)
    assert reconstruction.log.end_how[0] == How.T2


def test_a_lost_end_lies_where_an_operation_that_it_excludes_starts() -> None:
    """An overlap that cannot be ends the operation where the overlap starts."""
    packets = [(1000, "conv", 0, 0), (1130, "pool", 0, 1), (1230, "pool", 1, 1), (1300, "reformat", 0, 0)]
    packets.append((1400, "reformat", 1, 0))
    reconstruction = repaired(packets, EXCLUSIVE)
    assert edges(reconstruction) == [(1000, 1130), (1130, 1230), (1300, 1400)]
    assert reconstruction.log.end_how[0] == How.OVERLAP
    assert reconstruction.counts.lost == 1


def test_units_that_may_run_side_by_side_make_no_overlap() -> None:
    """Without exclusion the same packets give the following event of the core, less t2."""
    packets = [(1000, "conv", 0, 0), (1130, "pool", 0, 1), (1230, "pool", 1, 1), (1300, "reformat", 0, 0)]
    reconstruction = repaired([*packets, (1400, "reformat", 1, 0)], BOTH)
    assert edges(reconstruction)[0] == (1000, 1295)
    assert reconstruction.log.end_how[0] == How.T2


def test_an_overlap_whose_start_was_lost_too_is_seen_by_its_end() -> None:
    """The excluding operation's START is itself inferred, t1 before its END."""
    packets = [(1000, "conv", 0, 0), (1230, "pool", 1, 1), (1300, "reformat", 0, 0), (1400, "reformat", 1, 0)]
    reconstruction = repaired(packets, EXCLUSIVE)
    assert edges(reconstruction)[:2] == [(1000, 1160), (1160, 1230)]
    assert reconstruction.log.end_how[0] == How.OVERLAP


def test_start_and_end_lost_count_back_from_the_first_event_after_the_gap() -> None:
    """The END lies t3 before it, the START twice t3."""
    reconstruction = repaired(without(2, 3))
    assert edges(reconstruction)[1] == (1240 - 2 * 30, 1240 - 30)
    assert reconstruction.log.start_how[1] == reconstruction.log.end_how[1] == How.T3


def test_three_and_more_lost_count_back_by_their_own_kinds() -> None:
    """Each lost event lies its kind's t3 x index before the first event received after the gap."""
    reconstruction = repaired(without(1, 2, 3, 4))
    assert reconstruction.log.end_how[0] == reconstruction.log.start_how[2] == How.T3
    assert edges(reconstruction) == [(1000, 1340 - 90), (1340 - 90, 1340 - 60), (1340 - 10, 1340)]
    # 4 x 3 ns for the conv's END would be after the pool's START; order stands above the offset.


def test_what_is_put_in_never_precedes_what_was_received() -> None:
    """Offsets longer than the gap end at the event before it."""
    tight = [(1000, "conv", 0, 0), (1100, "conv", 1, 0), (1130, "pool", 1, 0), (1140, "reformat", 1, 0)]
    reconstruction = repaired(tight)
    assert edges(reconstruction) == [(1000, 1100), (1100, 1130), (1130, 1140)]


def test_a_kind_without_offsets_has_ten_nanoseconds() -> None:
    """The default of every offset is 10 ns."""
    assert edges(repaired(without(4)))[2] == (1330, 1340)


def test_a_trace_that_ends_in_an_operation_ends_there() -> None:
    """Without an event that follows, the last one of the trace stands in for it."""
    reconstruction = repaired(WHOLE[:5])
    assert edges(reconstruction)[2] == (1240, 1240)
    assert reconstruction.counts.lost == 1


def test_only_what_the_trace_covers_is_in_the_log() -> None:
    """Operations before the first and after the last packet are not made up."""
    reconstruction = repaired(WHOLE[2:4])
    assert reconstruction.log.operation.tolist() == [1]


def test_duplicates_and_strangers_are_counted_and_change_nothing() -> None:
    """A packet said twice is duplicated, one of an unknown core, kind or type spurious."""
    clean = repaired(WHOLE)
    packets = [WHOLE[0], WHOLE[0], (1050, "pool", 1, 9), (1060, "conv", 7, 0), *WHOLE[1:]]
    dirty = repaired(packets)
    packet_classes = [PacketClass.MATCHED, PacketClass.DUPLICATED, PacketClass.SPURIOUS, PacketClass.SPURIOUS] + 5 * [
        PacketClass.MATCHED
    ]
    assert dirty.packet_class.tolist() == packet_classes
    assert edges(dirty) == edges(clean)
    assert (dirty.counts.lost, dirty.counts.spurious, dirty.counts.duplicated) == (0, 2, 1)


def test_a_packet_of_the_wrong_kind_is_spurious() -> None:
    """A packet in the middle of a long run that the program does not expect there is left out."""
    kinds = ["conv", "pool", "reformat", "reformat", "conv", "reformat", "reformat", "reformat"]
    kinds += ["conv", "conv", "pool", "reformat"]
    endless = program(segment("net", *((kind, "npu0", 100) for kind in kinds)))
    run = played(endless, 20)
    column = {
        name: np.insert(getattr(run, name), 30, getattr(run, name)[29]) for name in ("core", "operation", "time_ns")
    }
    odd = Trace(id=np.insert(run.id, 30, 1), type=np.insert(run.type, 30, 1), kinds=run.kinds, **column)
    reconstruction = reconstruct(odd, Sequence.of(endless, None, run.kinds), {})
    assert np.count_nonzero(reconstruction.packet_class == PacketClass.SPURIOUS) == 1
    assert reconstruction.counts.lost == 0


def test_packets_that_come_late_are_put_in_order_and_named() -> None:
    """Two packets of a core that changed places are both matched; the late one is out of order."""
    late = [*WHOLE[:2], WHOLE[3], WHOLE[2], *WHOLE[4:]]
    reconstruction = repaired(late)
    assert edges(reconstruction) == edges(repaired(WHOLE))
    assert reconstruction.out_of_order.tolist() == [False, False, False, True, False, False]


def test_launches_name_the_operations() -> None:
    """With a launch list each packet belongs to the launch, and program, whose turn it was."""
    two = program(segment("a", ("conv", "npu0", 100)), segment("b", ("pool", "npu0", 100), ("conv", "npu0", 100)))
    order = np.array([0, 1, 0], np.int32)
    zeros = np.zeros(3, np.int64)
    launches = Launches(program=order, window=zeros, frame=zeros, submit_ns=zeros)
    kinds = ["conv", "pool", "conv", "conv"]
    packets = [(at * 100 + 50 * type_, kind, type_, 0) for at, kind in enumerate(kinds) for type_ in (0, 1)]
    given = trace(packets, KINDS)
    log = reconstruct(given, Sequence.of(two, launches, KINDS), {}).log
    assert log.inference.tolist() == [0, 1, 1, 2]
    assert log.program.tolist() == [0, 1, 1, 0]
    assert log.operation.tolist() == [0, 0, 1, 0]


def test_a_core_that_is_silent_is_named() -> None:
    """Operations of a core that sent nothing are not invented; a sentence says so."""
    reconstruction = repaired([packet for packet in WHOLE if packet[1] != "pool"], BOTH)
    assert reconstruction.log.operation.tolist() == [0, 2]
    assert any("core 1 sent no packet" in warning for warning in reconstruction.warnings)


def test_a_counter_that_wraps_is_laid_out() -> None:
    """Short time stamps give the same durations as long ones."""
    run = played(CHAIN, 30)
    endless = Sequence.of(program(CHAIN.programs[0]), None, run.kinds)
    short = replace(run, time_ns=run.time_ns % (1 << 10), meta=TraceMeta(wrap_bits=10))
    long, wrapped = reconstruct(run, endless, {}).log, reconstruct(short, endless, {}).log
    np.testing.assert_array_equal(long.end_ns - long.start_ns, wrapped.end_ns - wrapped.start_ns)


def test_a_trace_that_begins_in_the_middle_is_numbered_alike_on_all_cores() -> None:
    """The first operations of two cores belong to one inference, or to two that follow each other."""
    cycle = program(*BOTH.programs, units=("npu0", "npu1"))
    run = played(cycle, 40)
    sequence = Sequence.of(cycle, None, run.kinds)
    whole = reconstruct(run, sequence, {}).log
    for cut in range(1, 12):
        part = replace(
            run, **{name: getattr(run, name)[cut:] for name in ("time_ns", "id", "type", "core", "operation")}
        )
        log = reconstruct(part, sequence, {}).log
        known = (log.start_event >= 0) & (log.end_event >= 0)
        same = np.isin(whole.start_event, log.start_event[known] + cut)
        shift = whole.inference[same] - log.inference[known]
        assert len(np.unique(shift)) == 1, cut


@given(
    kind=st.sampled_from(["random", "burst", "overflow", "start-only", "inference"]),
    rate=st.floats(0, 0.5),
    seed=st.integers(0, 3),
)
@settings(max_examples=10)
def test_what_was_received_stays_as_it_was(kind: str, rate: float, seed: int) -> None:
    """However much is lost, measured edges are packets of their own kind, and time never goes backwards on a core."""
    run = played(BOTH, 15)
    endless = program(*BOTH.programs, units=("npu0", "npu1"))
    thin = drop_packets(run, endless, None, kind=kind, rate=rate, burst=5, seed=seed).trace
    reconstruction = reconstruct(thin, Sequence.of(endless, None, run.kinds), OFFSETS)
    log = reconstruction.log
    for time, how, event, low, high, type_ in (
        (log.start_ns, log.start_how, log.start_event, log.start_low_ns, log.start_high_ns, 0),
        (log.end_ns, log.end_how, log.end_event, log.end_low_ns, log.end_high_ns, 1),
    ):
        measured = how == How.MEASURED
        np.testing.assert_array_equal(measured, event >= 0)
        packets = event[measured]
        np.testing.assert_array_equal(time[measured], thin.time_ns[packets])
        np.testing.assert_array_equal(log.kind[measured], thin.id[packets])
        assert (thin.type[packets] == type_).all()
        assert (low <= time).all()
        assert (time <= high).all()
    assert (log.start_ns <= log.end_ns).all()
    for core in (0, 1):
        mine = log.core == core
        assert (log.end_ns[mine][:-1] <= log.start_ns[mine][1:]).all()
    assert (
        np.count_nonzero(reconstruction.packet_class == PacketClass.MATCHED)
        == 2 * len(log) - reconstruction.counts.lost
    )


def test_look_ahead_finds_its_place_after_bursts_where_greed_does_not() -> None:
    """Of a repetitive program, bursts of loss leave far more packets in their right place than greedy matching does."""
    generator = np.random.default_rng(0)
    kinds = ["conv", "conv", "conv", "pool", "reformat"]
    long = program(segment("net", *((kinds[generator.integers(5)], "npu0", 1000) for _ in range(120))))
    run = played(long, 40)
    sequence = Sequence.of(long, None, run.kinds)
    injected = drop_packets(run, long, None, kind="burst", rate=0.1, seed=0)
    truth = np.flatnonzero(injected.kept) // 2
    right = {ahead: np.mean(match_in_order(injected.trace, sequence, ahead).place == truth) for ahead in (0, 16)}
    assert right[16] > 0.97
    assert 1 - right[0] > 2 * (1 - right[16])
    reconstruction = place_lost(injected.trace, sequence, {}, match_in_order(injected.trace, sequence))
    assert len(reconstruction.log) == 40 * 120
    assert not reconstruction.calibrated


def test_an_empty_trace_gives_an_empty_log() -> None:
    """Nothing received, nothing made up."""
    reconstruction = repaired([])
    assert len(reconstruction.log) == 0
    assert reconstruction.counts.expected == 0
