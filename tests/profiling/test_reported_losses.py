"""Where the device reports a loss, something is missing there."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from framefit.core.profile import How
from framefit.profiling.inject import drop_by_buffer
from framefit.profiling.profile import ProfileInput, profile_trace
from lossy_runs import played, program, segment

PATTERN = (("conv", 492_000), ("conv", 48_000), ("conv", 473_000), ("add", 10_000))
NET = msgspec.structs.replace(
    program(segment("net", *((kind, "npu0", took) for kind, took in 8 * PATTERN))), window_ns=0
)
WHOLE = played(NET, 80, spread=0.004, gap_ns=40)


@pytest.mark.parametrize(("buffer_events", "rate_hz"), [(4, 5000.0), (16, 5000.0), (8, 4000.0)])
def test_no_operation_begins_before_a_reported_loss_and_ends_after_it(buffer_events: int, rate_hz: float) -> None:
    """On one unit START and END follow each other, so two packets with a loss between them are of two operations.

    A buffer loses the same events again and again here: the START of one operation and the END of a later one would
    make a duration that hardly varies.
    """
    thin = drop_by_buffer(WHOLE, buffer_events, rate_hz)
    result = profile_trace(ProfileInput(thin.trace, NET, None, None, "made"))
    log = result.log
    assert (result.profile.events.lost, result.profile.events.spurious) == (thin.lost, 0)
    measured = (log.start_how == How.MEASURED) & (log.end_how == How.MEASURED)
    reported = np.searchsorted(thin.trace.loss_after, [log.start_event[measured], log.end_event[measured]], "right")
    assert measured.any()
    assert (reported[0] == reported[1]).all()
    assert result.profile.violations == ()
