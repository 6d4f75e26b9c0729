"""What the order of events says of a trace's program, and how often it is asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foreign_runs import ForeignCase, make_run
from framefit.core.events import Trace
from framefit.profiling import order, profile
from framefit.profiling.profile import ProfileInput, profile_trace
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
