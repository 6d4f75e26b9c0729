"""The alignment as a whole: what it finds, keeps, and survives."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.events import Trace, TraceMeta
from framefit.core.profile import How, OperationLog
from framefit.profiling.align.aligner import Aligner, reconstruct
from framefit.profiling.inject import drop_packets
from framefit.profiling.sequence import PacketClass, Reconstruction, Sequence
from profiling_truth import Setting, Truth, scored, simulate

SMALL = Setting(operations=24, inferences=40, units=3, kinds=4, stall_rate=0.0)


def sequence_of(truth: Truth) -> Sequence:
    """What the trace is held against."""
    return Sequence.of(truth.program, truth.launches, truth.trace.kinds)


def part_of(trace: Trace, keep: npt.NDArray[np.int64] | slice) -> Trace:
    """Some of the packets."""
    return replace(
        trace,
        time_ns=trace.time_ns[keep],
        id=trace.id[keep],
        type=trace.type[keep],
        core=trace.core[keep],
        operation=trace.operation[keep],
    )


def assert_consistent(log: OperationLog, sequence: Sequence) -> None:
    """No operation ends before it starts, overlaps what it must not, or starts before what it waits for."""
    assert np.all(log.start_ns <= log.end_ns)
    flat = sequence.first[log.program] + log.operation
    ends: dict[tuple[int, int], int] = {}
    busy = dict.fromkeys(range(sequence.tracks), -(1 << 62))
    track = sequence.track[flat]
    for at in range(len(log)):
        for other, until in busy.items():
            if sequence.exclusive[track[at], other]:
                assert log.start_ns[at] >= until
        for one in sequence.after[sequence.after_first[flat[at]] : sequence.after_first[flat[at] + 1]]:
            assert log.start_ns[at] >= ends.get((int(log.inference[at]), int(one)), -(1 << 62))
        ends[int(log.inference[at]), int(flat[at])] = int(log.end_ns[at])
        busy[int(track[at])] = int(log.end_ns[at])


def assert_measured_stay(trace: Trace, reconstruction: Reconstruction) -> None:
    """Measured edges are the packets' own times; intervals hold their times."""
    log = reconstruction.log
    for event, time, how, low, high in (
        (log.start_event, log.start_ns, log.start_how, log.start_low_ns, log.start_high_ns),
        (log.end_event, log.end_ns, log.end_how, log.end_low_ns, log.end_high_ns),
    ):
        there = event >= 0
        assert np.array_equal(there, how == How.MEASURED)
        assert np.array_equal(time[there], trace.time_ns[event[there]])
        assert np.all((low <= time) & (time <= high))
        assert np.array_equal(low[there], high[there])


@pytest.mark.parametrize(
    "setting",
    [SMALL, replace(SMALL, models=3, seed=1), replace(SMALL, units=1, exclusive=("npu0",), seed=2)],
    ids=["cyclic", "interleaved", "one unit"],
)
def test_no_loss(setting: Setting) -> None:
    """A complete trace comes back as it is: everything measured, nothing inferred, nothing spurious."""
    truth = simulate(setting)
    reconstruction = reconstruct(truth.trace, sequence_of(truth))
    assert np.all(reconstruction.packet_class == PacketClass.MATCHED)
    assert not reconstruction.log.inferred.any()
    assert np.array_equal(reconstruction.log.start_ns, truth.start_ns)
    assert np.array_equal(reconstruction.log.end_ns, truth.end_ns)
    assert reconstruction.counts.lost == 0
    assert reconstruction.calibrated


@pytest.mark.parametrize(("kind", "rate", "matched"), [("random", 0.1, 0.995), ("burst", 0.3, 0.99)])
@pytest.mark.parametrize("models", [1, 2])
def test_accuracy(kind: str, rate: float, matched: float, models: int) -> None:
    """Packets find their operation, and intervals hold about as many true times as they say."""
    truth = simulate(replace(SMALL, inferences=100, models=models, seed=5))
    lossy = drop_packets(truth.trace, truth.program, truth.launches, kind=kind, rate=rate, seed=3)  # type: ignore[arg-type]
    reconstruction = reconstruct(lossy.trace, sequence_of(truth))
    score = scored(truth, lossy.kept, reconstruction)
    assert score.matched >= matched
    assert 0.82 <= score.coverage <= 0.97
    assert score.duration_error <= 0.08


@pytest.mark.parametrize("period_ns", [700_000.0, 560_000.0], ids=["idle", "hardly idle"])
def test_launches_with_idle_gaps(period_ns: float) -> None:
    """Launches of several models on one unit, each when it is submitted: bursts leave few packets without a place."""
    truth = simulate(
        Setting(
            operations=12, inferences=300, models=5, units=1, kinds=3, spread_ratio=1.0, period_ns=period_ns, seed=2
        )
    )
    lossy = drop_packets(truth.trace, truth.program, truth.launches, kind="burst", rate=0.1, burst=5, seed=1)
    reconstruction = reconstruct(lossy.trace, sequence_of(truth))
    assert scored(truth, lossy.kept, reconstruction).matched >= 0.995
    assert len(reconstruction.log) == len(truth.start_ns)


@pytest.mark.parametrize("identified", [True, False], ids=["named", "by kinds"])
@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_bursts_of_most_of_an_inference(rate: float, identified: bool) -> None:
    """Where bursts hide as much as late packets do, each packet still finds its inference: bursts are of one length."""
    truth = simulate(
        Setting(
            operations=15,
            inferences=200,
            kinds=5,
            units=1,
            sigma_ratio=0.1,
            median_ns=5_000.0,
            gap_ns=3_000.0,
            stall_rate=0.01,
            resolution_ns=1_000,
            identified=identified,
            seed=3,
        )
    )
    lossy = drop_packets(truth.trace, truth.program, None, kind="burst", rate=rate, burst=20, seed=1)
    assert scored(truth, lossy.kept, reconstruct(lossy.trace, sequence_of(truth))).matched >= 0.99


def test_ties_stay_as_they_arrived() -> None:
    """With clock ticks longer than the gaps, a lost START does not make the tied packets after it change places."""
    truth = simulate(replace(SMALL, units=1, gap_ns=1.0, resolution_ns=100, seed=3))
    starts = np.flatnonzero(truth.trace.type == 0)[5::7]
    kept = ~np.isin(np.arange(len(truth.trace)), starts)
    reconstruction = reconstruct(part_of(truth.trace, np.flatnonzero(kept)), sequence_of(truth))
    assert scored(truth, kept, reconstruction).matched == 1.0


@settings(max_examples=12)
@given(
    seed=st.integers(0, 1000),
    units=st.integers(1, 4),
    rate=st.floats(0.02, 0.7),
    kind=st.sampled_from(["random", "burst", "start-only", "inference", "overflow"]),
    exclusive=st.booleans(),
)
def test_consistent(seed: int, units: int, rate: float, kind: str, exclusive: bool) -> None:
    """Whatever is lost, what is rebuilt could have happened, and measured times are left alone."""
    names = tuple(f"npu{number}" for number in range(units))
    setting = Setting(
        operations=10, inferences=12, kinds=3, units=units, exclusive=names[:2] if exclusive else (), seed=seed
    )
    truth = simulate(setting)
    rate = min(rate, 0.45) if kind == "start-only" else rate
    lossy = drop_packets(truth.trace, truth.program, truth.launches, kind=kind, rate=rate, burst=5, seed=seed)  # type: ignore[arg-type]
    reconstruction = reconstruct(lossy.trace, sequence_of(truth))
    assert_measured_stay(lossy.trace, reconstruction)
    if scored(truth, lossy.kept, reconstruction).matched == 1.0:
        assert_consistent(reconstruction.log, sequence_of(truth))


def test_disturbed() -> None:
    """Doubled, swapped and made-up packets, and a clock that wraps, are told apart from the run."""
    truth = simulate(replace(SMALL, wrap_bits=22, seed=7))
    count = len(truth.trace)
    order = np.sort(np.concatenate([np.arange(count), [300, 900]]))  # two packets twice
    order[[500, 501]] = order[[501, 500]]
    trace = part_of(truth.trace, order)
    ids = trace.id.copy()
    ids[[50, 60]] = 99  # no such event
    reconstruction = reconstruct(replace(trace, id=ids), sequence_of(truth))
    assert np.count_nonzero(reconstruction.packet_class == PacketClass.DUPLICATED) == 2
    assert set(np.flatnonzero(reconstruction.packet_class == PacketClass.SPURIOUS)) == {50, 60}
    assert reconstruction.counts.lost == 2
    log = reconstruction.log
    measured = (log.start_how == How.MEASURED) & (log.end_how == How.MEASURED)
    assert np.array_equal((log.end_ns - log.start_ns)[measured], (truth.end_ns - truth.start_ns)[measured])


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_only_some_kinds_recorded(rate: float) -> None:
    """What was never recorded is neither in the log nor lost; all other packets find their operation."""
    truth = simulate(replace(SMALL, inferences=100, seed=4))
    chosen = truth.trace.kinds[:2]
    recorded = np.isin(truth.trace.id, [0, 1])
    trace = part_of(truth.trace, recorded)
    trace = replace(trace, meta=msgspec.structs.replace(trace.meta, selected_kinds=chosen))
    lossy = drop_packets(trace, truth.program, None, kind="random", rate=rate, seed=2)
    reconstruction = reconstruct(lossy.trace, sequence_of(truth))
    assert {reconstruction.log.kinds[kind] for kind in reconstruction.log.kind} == set(chosen)
    assert reconstruction.counts.expected == np.count_nonzero(recorded)
    assert reconstruction.counts.lost == lossy.lost
    kept = recorded.copy()
    kept[recorded] = lossy.kept
    score = scored(truth, kept, reconstruction)
    assert score.matched >= 0.99
    assert rate == 0 or score.coverage >= 0.82


def test_cut_off() -> None:
    """A trace that begins and ends within an inference says nothing of what it did not see."""
    truth = simulate(SMALL)
    part = slice(21, len(truth.trace) - 21)
    reconstruction = reconstruct(part_of(truth.trace, part), sequence_of(truth))
    score = scored(truth, np.isin(np.arange(len(truth.trace)), np.arange(len(truth.trace))[part]), reconstruction)
    assert score.matched == 1.0
    assert len(reconstruction.log) < len(truth.start_ns)


def test_identified() -> None:
    """Packets that name their operation are matched to it even where nothing else tells."""
    truth = simulate(replace(SMALL, kinds=1, identified=True, sigma_ratio=0.1))
    lossy = drop_packets(truth.trace, truth.program, truth.launches, kind="burst", rate=0.5, burst=10, seed=1)
    assert scored(truth, lossy.kept, reconstruct(lossy.trace, sequence_of(truth))).matched >= 0.99


def _empty(trace: Trace) -> Trace:
    return part_of(trace, slice(0, 0))


def _unknown(trace: Trace) -> Trace:
    return replace(trace, id=np.full_like(trace.id, 77))


def _elsewhere(trace: Trace) -> Trace:
    return replace(trace, core=np.full_like(trace.core, 31))


def _noise(trace: Trace) -> Trace:
    random = np.random.default_rng(0)
    return replace(
        trace,
        time_ns=random.integers(-(1 << 40), 1 << 40, len(trace)),
        id=random.integers(-3, 9, len(trace)).astype(np.int32),
        type=random.integers(0, 4, len(trace)).astype(np.uint8),
        operation=random.integers(-5, 99, len(trace)),
        loss_after=np.array([-4, 10, 1 << 40]),
    )


def _still(trace: Trace) -> Trace:
    return replace(trace, time_ns=np.zeros_like(trace.time_ns))


def _leaping(trace: Trace) -> Trace:
    time = trace.time_ns.copy()
    time[len(time) // 2 :] += 1 << 50
    return replace(trace, time_ns=time)


@pytest.mark.parametrize("spoilt", [_empty, _unknown, _elsewhere, _noise, _still, _leaping])
def test_never_fatal(spoilt: object) -> None:
    """A trace of which nothing makes sense has an answer; where no packet fits, with a warning."""
    truth = simulate(replace(SMALL, inferences=6))
    trace = spoilt(truth.trace)  # type: ignore[operator]
    reconstruction = reconstruct(trace, sequence_of(truth))
    assert len(reconstruction.packet_class) == len(trace)
    assert np.all(reconstruction.log.start_ns <= reconstruction.log.end_ns)
    assert reconstruction.warnings or spoilt in (_still, _leaping, _noise)


def test_another_program() -> None:
    """A program that is not the trace's gives an answer and says that few packets fit."""
    truth, other = simulate(SMALL), simulate(replace(SMALL, seed=99, kinds=2))
    trace = replace(truth.trace, id=(truth.trace.id % 2).astype(np.int32), kinds=other.trace.kinds)
    reconstruction = reconstruct(trace, sequence_of(other))
    assert len(reconstruction.packet_class) == len(trace)
    assert np.all(reconstruction.log.start_ns <= reconstruction.log.end_ns)


def test_stream() -> None:
    """Fed in small pieces, a stream gives every packet one fate, and tells where the device is."""
    truth = simulate(replace(SMALL, inferences=60, seed=4))
    sequence = sequence_of(truth)
    aligner = Aligner(sequence, len(truth.trace.kinds), TraceMeta())
    assert aligner.position() is None
    packet_classes, operations = [], 0
    right = []
    for begin in range(0, len(truth.trace), 500):
        settled = aligner.feed(part_of(truth.trace, slice(begin, begin + 500)))
        packet_classes.append(settled.arrival)
        operations += len(settled.log)
        position = aligner.position()
        assert position is not None
        assert 0 < position.confidence <= 1.000001
        latest = min(begin + 500, len(truth.trace)) - 1
        right.append((position.inference, position.operation) == (truth.inference[latest], truth.operation[latest]))
    settled = aligner.close()
    assert np.mean(right) >= 0.8
    assert np.array_equal(np.sort(np.concatenate([*packet_classes, settled.arrival])), np.arange(len(truth.trace)))
    assert operations + len(settled.log) == len(truth.start_ns)


def test_same_seed() -> None:
    """The same trace and seed give the same answer."""
    truth = simulate(SMALL)
    lossy = drop_packets(truth.trace, truth.program, None, kind="burst", rate=0.2, burst=6, seed=1)
    first, second = (reconstruct(lossy.trace, sequence_of(truth), seed=3) for _ in range(2))
    assert np.array_equal(first.log.start_low_ns, second.log.start_low_ns)
    assert np.array_equal(first.log.end_high_ns, second.log.end_high_ns)
