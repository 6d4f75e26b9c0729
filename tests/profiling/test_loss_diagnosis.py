"""What would have kept lost events is said, and, done, does keep them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from framefit.core.events import EventType, Trace, TraceMeta
from framefit.core.program import Program
from framefit.core.target import TraceUnit
from framefit.devices.npu.packets import PacketBuffer
from framefit.profiling.diagnosis import Remedies, diagnose, find_remedies
from framefit.profiling.inject import drop_packets
from framefit.profiling.rule import reconstruct
from framefit.profiling.sequence import Sequence
from lossy_runs import played, program, segment

NET = segment(
    "net",
    *((("reformat", "npu0", 300), ("conv", "npu0", 5000), ("pad_pool", "npu0", 500)) * 2),
    *((("reformat", "npu0", 100),) * 8),
    ("conv", "npu0", 20000),
)
PROGRAM = program(NET)


def recorded(unit: TraceUnit, launches: int = 80) -> Trace:
    """What a device with such a trace unit sends of launches of the network."""
    operations = NET.groups[0].operations
    buffer = PacketBuffer(unit)
    pattern = buffer.pattern([op.kind for op in operations], [op.expected_ns for op in operations], 0)
    generator = np.random.default_rng(0)
    for launch in range(launches):
        buffer.add(pattern, launch * 40_000, float(generator.normal(1, 0.05)))
    return buffer.drain()


def advised(trace: Trace, held_against: Program = PROGRAM) -> Remedies | None:
    """The advice on a trace that was repaired by rule."""
    sequence = Sequence.of(held_against, None, trace.kinds)
    return find_remedies(trace, sequence, reconstruct(trace, sequence, {}))


def diagnosis_of(trace: Trace, held_against: Program = PROGRAM) -> tuple[str, ...]:
    """The sentences on it."""
    sequence = Sequence.of(held_against, None, trace.kinds)
    return diagnose(trace, sequence, reconstruct(trace, sequence, {}))


def lost(trace: Trace) -> int:
    """What the device says that it dropped."""
    assert trace.meta.lost_events is not None
    return trace.meta.lost_events


OVERFLOWS = TraceUnit(buffer_events=6, drain_rate_hz=700_000.0)
BETWEEN_LAUNCHES = TraceUnit(buffer_events=24)


def found(unit: TraceUnit) -> Remedies:
    """The advice on a trace that overflowed."""
    trace = recorded(unit)
    assert lost(trace) > 100
    advice = advised(trace)
    assert advice is not None
    assert not advice.a_core
    return advice


def changed(unit: TraceUnit, **to: object) -> TraceUnit:
    """The unit with other settings."""
    keys = ("buffer_events", "drain_rate_hz", "selected")
    return TraceUnit(**({key: getattr(unit, key) for key in keys} | to))


@pytest.mark.parametrize("unit", [OVERFLOWS, BETWEEN_LAUNCHES])
def test_the_buffer_that_is_advised_keeps_everything(unit: TraceUnit) -> None:
    """The same run through the larger buffer loses nothing, and a much smaller one would not have done."""
    advice = found(unit)
    assert advice.buffer_events is not None
    assert lost(recorded(changed(unit, buffer_events=advice.buffer_events))) == 0
    assert lost(recorded(changed(unit, buffer_events=advice.buffer_events * 2 // 3))) > 0


def test_the_rate_that_is_advised_keeps_everything() -> None:
    """The same buffer, drained faster, loses nothing; at two thirds of the rate it does."""
    advice = found(OVERFLOWS)
    assert advice.drain_rate_hz is not None
    assert lost(recorded(changed(OVERFLOWS, drain_rate_hz=advice.drain_rate_hz))) == 0
    assert lost(recorded(changed(OVERFLOWS, drain_rate_hz=advice.drain_rate_hz * 2 / 3))) > 0
    assert found(BETWEEN_LAUNCHES).drain_rate_hz is None


def test_the_kinds_that_are_advised_fit() -> None:
    """Recorded by themselves, these kinds lose nothing."""
    for unit in (OVERFLOWS, BETWEEN_LAUNCHES):
        advice = found(unit)
        assert advice.kinds is not None
        assert "conv" in advice.kinds
        assert "reformat" not in advice.kinds
        assert lost(recorded(changed(unit, selected=advice.kinds))) == 0


def test_whether_starts_alone_would_do_is_reported() -> None:
    """Half the events fit a buffer of more than half the size, and not one of much less."""
    most = 2 * len(NET.groups[0].operations)
    assert found(TraceUnit(buffer_events=most * 3 // 4)).starts_only
    assert not found(TraceUnit(buffer_events=most // 4)).starts_only


def test_sentences_carry_the_figures() -> None:
    """Each remedy is a sentence with its number and the one it was."""
    trace = recorded(OVERFLOWS)
    advice = advised(trace)
    assert advice is not None
    sentences = diagnosis_of(trace)
    stated = next(int(sentence.split()[0]) for sentence in sentences if "events were lost" in sentence)
    assert stated == pytest.approx(lost(trace), rel=0.05)  # with half of it lost the matching is not exact
    assert any(f"a buffer of {advice.buffer_events} events (it was 6)" in sentence for sentence in sentences)
    assert any("(it was 700 k events/s)" in sentence for sentence in sentences)
    assert any(sentence.startswith("without events of") and "reformat" in sentence for sentence in sentences)
    assert any("STARTs only" in sentence for sentence in sentences)


def test_a_buffer_for_each_core_differs_from_one_for_all() -> None:
    """Losses of a core that alone is in a hurry are explained by its own buffer."""
    both = program(segment("net", *((("conv", "npu0", 500),) * 12), ("conv", "npu1", 9000)), units=("npu0", "npu1"))
    run = played(both, 60)
    injected = drop_packets(run, both, None, kind="overflow", rate=0.2, seed=0, buffer_events=8)
    advice = advised(injected.trace, both)
    assert advice is not None
    assert advice.a_core
    assert any("for each core" in sentence for sentence in diagnosis_of(injected.trace, both))
    assert any("core 0 lost the largest part" in sentence for sentence in diagnosis_of(injected.trace, both))


def test_losses_that_no_buffer_explains_are_said_to_be_elsewhere() -> None:
    """Random losses of a trace with a roomy buffer, and of one of which nothing is known."""
    run = recorded(TraceUnit())
    thin = drop_packets(run, PROGRAM, None, kind="random", rate=0.1, seed=0).trace
    assert advised(thin) is None
    assert any("does not overflow at these rates" in sentence for sentence in diagnosis_of(thin))
    unknown = replace(thin, meta=TraceMeta())
    assert any("one by one, not in runs" in sentence for sentence in diagnosis_of(unknown))


def test_runs_of_losses_by_an_unknown_buffer_name_the_room_that_lacked() -> None:
    """Where the device tells nothing of its buffer, the longest run is what it lacked; with it nothing is lost."""
    unknown = replace(recorded(BETWEEN_LAUNCHES), meta=TraceMeta())
    (line,) = (sentence for sentence in diagnosis_of(unknown) if "does not tell its size" in sentence)
    room = int(line.split("about ")[1].split()[0])
    assert lost(recorded(changed(BETWEEN_LAUNCHES, buffer_events=24 + room))) == 0


def test_one_sided_and_whole_losses_are_named() -> None:
    """Only STARTs lost, and whole inferences lost."""
    run = played(PROGRAM, 40)
    starts = drop_packets(run, PROGRAM, None, kind="start-only", rate=0.2, seed=0).trace
    assert any("nearly all lost events are STARTs" in sentence for sentence in diagnosis_of(starts))


def test_a_type_that_was_never_recorded_is_named() -> None:
    """A device that records STARTs only lost nothing on the way; what else was lost is described beside it."""
    run = played(PROGRAM, 40)
    begins = np.flatnonzero(run.type == EventType.START)

    def kept(which: npt.NDArray[np.int64]) -> Trace:
        columns = {name: getattr(run, name)[which] for name in ("time_ns", "id", "type", "core", "operation")}
        return replace(run, **columns)

    (line,) = diagnosis_of(kept(begins))
    assert line.startswith("no END was received")
    assert "no duration here was measured" in line
    first, second, *_ = diagnosis_of(kept(np.delete(begins, slice(100, 110))))
    assert first == line
    assert second.startswith(f"10 of {len(begins)} events were lost")
    ends = np.flatnonzero(run.type == EventType.END)
    assert diagnosis_of(kept(ends))[0].startswith("no START was received")


def test_what_lies_beyond_the_trace_is_known_by_the_devices_count() -> None:
    """A recorder that was full, and a host that kept the last events only."""
    run = played(PROGRAM, 5)
    size = len(run)
    full = replace(run, loss_after=np.array([size]), meta=TraceMeta(buffer_events=size, lost_events=30))
    (line,) = diagnosis_of(full)
    assert line.startswith(f"the recorder was full after {size} events and dropped the 30 that followed")
    assert f"room for {size + 30}" in line
    late = replace(run, meta=TraceMeta(overwritten_events=7))
    assert any("overwrote 7 before" in sentence for sentence in diagnosis_of(late))


def test_a_complete_trace_needs_no_remedy() -> None:
    """Nothing lost, nothing said; nothing received, nothing said."""
    run = played(PROGRAM, 5)
    assert diagnosis_of(run) == ()
    empty = recorded(OVERFLOWS, 0)
    assert diagnosis_of(empty) == ()
