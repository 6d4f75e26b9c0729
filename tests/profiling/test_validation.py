"""What is said of a trace before and after it is held against its program."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from framefit import InputError
from framefit.core.events import Trace, TraceMeta
from framefit.core.program import Launches
from framefit.profiling.rule import reconstruct
from framefit.profiling.sequence import Sequence
from framefit.profiling.validation import drop_unreadable, find_first_launch, is_complete, sanity_warnings
from lossy_runs import played, program, segment, trace

PROGRAM = program(segment("net", ("conv", "npu0", 9_000), ("pool", "npu0", 4_000), ("conv", "npu0", 7_000)))
RUN = played(PROGRAM, 30)
PACKETS = ([0, 1, 2, 3], [0, 1, 2, 3], [2, 3])  # twice a kind, plus 1 for an END, of three programs


def left(kept: np.ndarray) -> Trace:  # type: ignore[type-arg]
    """Packets of the run."""
    columns = {name: getattr(RUN, name)[kept] for name in ("time_ns", "id", "type", "core", "operation")}
    return dataclasses.replace(RUN, **columns)


def launched(count: int = 30) -> Launches:
    """Known launches, on the device's clock."""
    return Launches(
        program=np.zeros(count, np.int32),
        window=np.arange(count),
        frame=np.arange(count),
        submit_ns=RUN.time_ns[::6][:count] - 50,
    )


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("gone", "complete"),
    [([], True), ([7], False), (range(60, 66), False), (range(60, 72), False), ([3, 100, 101], False)],
    ids=["nothing", "an event", "an inference", "two inferences", "three events"],
)
def test_a_trace_is_complete_where_nothing_is_missing(known: bool, gone: list[int], complete: bool) -> None:
    """A whole inference that is missing looks complete to matching in order; its pause, or its launch, tells."""
    part = left(np.setdiff1d(np.arange(len(RUN)), gone))
    sequence = Sequence.of(PROGRAM, launched() if known else None, part.kinds)
    assert is_complete(reconstruct(part, sequence, {}), part, sequence) == complete


def test_the_latest_packets_are_complete_where_programs_are_alike() -> None:
    """Two of three programs send the same: matching in order alone would begin at the first place that looks right."""
    alike = [("conv", "npu0", 9_000), ("pool", "npu0", 4_000)]
    whole = program(segment("a", *alike), segment("b", *alike), segment("c", ("pool", "npu0", 9_000)))
    launched_programs = np.tile(np.array([0, 1, 2, 0, 2, 0, 2], np.int32), 20)
    sent = np.concatenate([PACKETS[which] for which in launched_programs])
    kept = sent[-150:]
    part = Trace(
        time_ns=np.arange(len(kept)) * 1000,
        id=kept // 2,
        type=(kept % 2).astype(np.uint8),
        core=np.zeros(len(kept), np.int32),
        operation=np.full(len(kept), -1),
        kinds=("conv", "pool"),
        meta=TraceMeta(overwritten_events=len(sent) - len(kept), lost_events=0),
    )
    count = len(launched_programs)
    launches = Launches(launched_programs, np.arange(count), np.arange(count), np.arange(count) * 4000)
    sequence = Sequence.of(whole, launches, part.kinds)
    assert is_complete(reconstruct(part, sequence, {}), part, sequence)


def test_nothing_is_not_complete() -> None:
    """An empty trace has lost everything."""
    part = left(np.zeros(0, np.int64))
    sequence = Sequence.of(PROGRAM, None, part.kinds)
    assert not is_complete(reconstruct(part, sequence, {}), part, sequence)


@pytest.mark.parametrize("same_clock", [True, False])
def test_the_beginning_of_a_long_trace_is_found(same_clock: bool) -> None:
    """Launches that ended before the first packet that was kept are left out, hardly any other."""
    part = left(np.arange(120, len(RUN)))
    part = dataclasses.replace(part, meta=msgspec.structs.replace(part.meta, overwritten_events=120))
    launches = launched()
    if not same_clock:
        launches = dataclasses.replace(launches, submit_ns=launches.submit_ns - 10**12)
    beat = msgspec.structs.replace(PROGRAM, window_ns=10_000)
    first, before = find_first_launch(part, beat, launches)
    assert first <= 20
    assert before == 6 * (20 - first) if same_clock else first == 10
    assert find_first_launch(RUN, PROGRAM, launches) == (0, 0)


def test_a_sound_trace_raises_no_doubts() -> None:
    """Nothing is said of it."""
    sequence = Sequence.of(PROGRAM, None, RUN.kinds)
    same, notes = drop_unreadable(RUN, sequence)
    assert same is RUN
    assert notes == sanity_warnings(reconstruct(RUN, sequence, {}), RUN, PROGRAM, "trace") == []


def test_kinds_that_were_not_selected_are_reported() -> None:
    """It is said which operations the device was told not to record."""
    sequence = Sequence.of(PROGRAM, None, RUN.kinds)
    meta = msgspec.structs.replace(RUN.meta, selected_kinds=RUN.kinds[:1])
    _, notes = drop_unreadable(dataclasses.replace(RUN, meta=meta), sequence)
    assert any(RUN.kinds[1] in note and "not selected" in note for note in notes)


def test_a_foreign_trace_is_refused() -> None:
    """No packet of it is the program's."""
    foreign = trace([(1000 * at, "lstm", at % 2, 0) for at in range(40)], ("lstm",))
    sequence = Sequence.of(PROGRAM, None, foreign.kinds)
    _, notes = drop_unreadable(foreign, sequence)
    assert any("'lstm'" in note for note in notes)
    with pytest.raises(InputError, match="none of 40 events"):
        sanity_warnings(reconstruct(foreign, sequence, {}), foreign, PROGRAM, "trace")
