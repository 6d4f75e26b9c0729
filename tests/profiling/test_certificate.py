"""The audit: it masks as this trace lost, and finds out what a repair is worth."""

from __future__ import annotations

import numpy as np
import pytest

from framefit.core.events import Trace
from framefit.core.profile import Certificate
from framefit.profiling.inject import drop_packets
from framefit.profiling.rule import reconstruct
from framefit.profiling.sequence import Reconstruction, Sequence
from framefit.profiling.settings import LossKind
from framefit.profiling.validation import _LossPattern, certify
from lossy_runs import played, program, segment

PROGRAM = program(
    segment(
        "net",
        *(("conv", "npu0", 9_000), ("pool", "npu0", 4_000), ("conv", "npu0", 7_000), ("pad", "npu0", 2_000)),
        *(("conv", "npu0", 3_000), ("reformat", "npu0", 1_500), ("pool", "npu0", 6_000)),
    )
)


def audited(trace: Trace, seed: int = 0) -> tuple[Reconstruction, Certificate | None, list[Trace]]:
    """A trace repaired by rule and audited, and the traces that were repaired for that."""
    sequence, seen = Sequence.of(PROGRAM, None, trace.kinds), []

    def again(masked: Trace) -> Reconstruction:
        seen.append(masked)
        return reconstruct(masked, sequence, {})

    reconstruction = reconstruct(trace, sequence, {})
    return reconstruction, certify(trace, reconstruction, again, seed), seen


def thinned(kind: LossKind, rate: float = 0.1, inferences: int = 90) -> Trace:
    """A run that lost some."""
    return drop_packets(played(PROGRAM, inferences), PROGRAM, None, kind=kind, rate=rate, burst=8, seed=4).trace


@pytest.mark.parametrize("kind", ["random", "burst"])
def test_what_is_masked_is_what_is_counted(kind: LossKind) -> None:
    """Masked events are gone from the trace that is repaired, the first and the last one stay."""
    trace = thinned(kind)
    _, certificate, (masked,) = audited(trace)
    assert certificate is not None
    assert len(masked) == len(trace) - certificate.masked
    assert 0.8 * certificate.masked < certificate.edge_error_ns.count <= certificate.masked  # some are not found again
    assert (masked.time_ns[0], masked.time_ns[-1]) == (trace.time_ns[0], trace.time_ns[-1])
    assert 0.05 * certificate.matched < certificate.masked <= 0.12 * certificate.matched
    assert (certificate.burst > 3) == (kind == "burst")
    assert certificate.as_struck
    low, high = certificate.coverage_interval
    assert 0 <= low <= certificate.coverage_ratio <= high <= 1


def test_a_rule_is_shown_to_be_far_off() -> None:
    """Fixed offsets put edges where they were not: durations that rest on them are off by half and more."""
    _, certificate, _ = audited(thinned("random"))
    assert certificate is not None
    assert certificate.duration_error_ratio > 0.3
    assert certificate.coverage_ratio > 0.9  # its intervals reach from event to event
    assert certificate.recognised_ratio > 0.9


def test_a_complete_trace_is_masked_singly() -> None:
    """Without losses of its own, one event in ten is masked."""
    trace = played(PROGRAM, 60)
    _, certificate, _ = audited(trace)
    assert certificate is not None
    assert not certificate.as_struck
    assert certificate.masked == pytest.approx(84, abs=2)
    assert certificate.burst < 1.5


def test_only_starts_are_masked_where_only_starts_were_lost() -> None:
    """The mask is of the type that was lost."""
    trace = thinned("start-only")
    _, certificate, (masked,) = audited(trace)
    assert certificate is not None
    gone = np.count_nonzero(trace.type == 0) - np.count_nonzero(masked.type == 0)
    assert gone >= 0.95 * certificate.masked


def test_reported_losses_are_reported_again() -> None:
    """A device that tells of losses would have told of the masked ones, too."""
    trace = thinned("overflow")
    _, certificate, (masked,) = audited(trace)
    assert certificate is not None
    assert len(masked.loss_after) > len(trace.loss_after)
    assert masked.loss_after.max() <= len(masked)


def test_too_little_is_no_evidence() -> None:
    """A few events certify nothing."""
    assert audited(played(PROGRAM, 2))[1] is None


def test_the_same_seed_masks_the_same() -> None:
    """And another one masks others."""
    trace = thinned("burst")
    assert audited(trace, 1)[1] == audited(trace, 1)[1]
    assert audited(trace, 1)[1] != audited(trace, 2)[1]


def test_losses_are_described_as_they_are() -> None:
    """Runs of lost events, and how many."""
    trace = thinned("burst", rate=0.2)
    losses = _LossPattern.of(reconstruct(trace, Sequence.of(PROGRAM, None, trace.kinds), {}).log)
    assert losses.count == losses.runs.sum()
    assert losses.ratio == pytest.approx(0.2, abs=0.03)
    assert np.median(losses.runs) == pytest.approx(8, abs=1)
    assert losses.only is None
