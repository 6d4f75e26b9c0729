"""What the order of events says of a trace's program, and how often it is asked."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from foreign_runs import EDITS, ForeignCase, edited, make_run
from framefit.core.events import Trace
from framefit.errors import InputError
from framefit.profiling import order, profile
from framefit.profiling.inject import drop_by_buffer
from framefit.profiling.profile import ProfileInput, check_program, profile_trace
from framefit.profiling.sequence import Sequence


def part(trace: Trace, kept: np.ndarray) -> Trace:  # type: ignore[type-arg]
    """Packets of a trace."""
    columns = {name: getattr(trace, name)[kept] for name in ("time_ns", "id", "type", "core", "operation")}
    return replace(trace, **columns)


def test_the_method_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alignment and rule are judged on the trace, and not again on each part that is masked to calibrate sums."""
    judged = []

    def judge(*arguments: object) -> float:
        judged.append(arguments)
        return order.log_likelihood(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(profile, "log_likelihood", judge)
    run = make_run(ForeignCase(operations=20, inferences=40), 0)
    result = profile_trace(ProfileInput(run.trace, run.program, None, None, "trace"))
    assert result.profile.events.lost
    assert len(judged) == 2


@pytest.mark.parametrize("begin", [0, 7, 1000])
def test_a_trace_in_the_order_of_its_program_needs_no_model(begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each packet is the next one of its track, nothing else is asked, wherever the trace begins."""
    run = make_run(ForeignCase(operations=20, inferences=40, overlap=True, loss=0.0), 0)
    trace = part(run.trace, np.arange(begin, len(run.trace)))
    sequence = Sequence.of(run.program, None, trace.kinds)
    monkeypatch.setattr(order, "_judge", lambda *_, **__: ("judged", 0.0))
    assert order.check_order(trace, sequence, "trace") == (trace, [])
    with pytest.raises(profile.InputError, match="judged"):
        order.check_order(part(trace, np.delete(np.arange(len(trace)), 500)), sequence, "trace")


@pytest.mark.parametrize("case", [ForeignCase(loss=0.0), ForeignCase(burst=20)])
@pytest.mark.parametrize("edit", EDITS)
def test_a_program_that_differs_by_one_layer_is_refused(case: ForeignCase, edit: str) -> None:
    """One layer more or less, two in the other order, or one of another kind; the executed one is not refused."""
    run = make_run(replace(case, inferences=60), 0)
    program = edited(run.program, edit, np.random.default_rng(0))
    with pytest.raises(InputError, match=r"the trace is not of this program: (after|in)"):
        check_program(run.trace, Sequence.of(program, None, run.trace.kinds), program, "trace")
    check_program(run.trace, Sequence.of(run.program, None, run.trace.kinds), run.program, "trace")


@pytest.mark.parametrize("edit", ["one less", "kind"])
def test_a_similar_program_is_refused_soon(edit: str) -> None:
    """60,000 events take no more than two seconds to be refused."""
    run = make_run(ForeignCase(inferences=370), 0)
    program = edited(run.program, edit, np.random.default_rng(0))
    check = Sequence.of(program, None, run.trace.kinds)
    begin = time.process_time()
    with pytest.raises(InputError, match="the trace is not of this program"):
        check_program(run.trace, check, program, "trace")
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("seed", range(6))
def test_the_executed_program_is_not_refused(seed: int) -> None:
    """Whatever was lost, one by one or in bursts."""
    case = ForeignCase(operations=30, inferences=40, loss=0.1 * (seed + 1), burst=(1, 20)[seed % 2], overlap=seed > 3)
    run = make_run(case, seed)
    check_program(run.trace, Sequence.of(run.program, None, run.trace.kinds), run.program, "trace")


@pytest.mark.parametrize(("seed", "size", "rate"), [(12, 2, 0.7), (27, 11, 0.5)])
@pytest.mark.parametrize("reported", [False, True])
def test_events_that_are_lost_again_and_again_do_not_refuse_a_program(
    seed: int, size: int, rate: float, reported: bool
) -> None:
    """A buffer that is full at the same places in every launch hides some operations in all of them."""
    case = ForeignCase(operations=30, loss=0.0, variation=0.002, stalls=0.0, units=1 + seed % 3)
    run = make_run(case, seed)
    rate_hz = rate * 1e9 * len(run.trace) / float(run.trace.time_ns[-1] - run.trace.time_ns[0])
    thin = drop_by_buffer(run.trace, size, rate_hz).trace
    if not reported:
        thin = replace(thin, loss_after=np.zeros(0, np.int64), meta=run.trace.meta)
    check_program(thin, Sequence.of(run.program, None, thin.kinds), run.program, "trace")
