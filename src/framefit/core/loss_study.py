"""What losses of a trace would cost a profile, and which buffer would have lost nothing (``loss_study.json``)."""

from __future__ import annotations

from framefit.core.files import Record, Result

__all__ = ["BufferSize", "InjectedLoss", "LossPoint", "LossStudy"]


class InjectedLoss(Record, kw_only=True):
    """A trace that lost packets on purpose (``framefit inject-loss --json``).

    Attributes:
        lost: packets that were removed, of
        events: all.
        trace: file of the rest.
    """

    schema_version: int = 1
    lost: int
    events: int
    trace: str


class LossPoint(Record, kw_only=True):
    """Profiles of a trace that lost events in one way, against the profile of the whole trace.

    Attributes:
        rate: part of the events that was to be lost; of a buffer, what it lost.
        burst: consecutive events of one loss; 0: as the buffer lost them.
        buffer_events: of the buffer of each core; ``None``: losses were drawn.
        repeats: profiles.
        refused: of these, how many were refused, since too little was left.
        recognised_ratio: part of the events left that were recognised as what they are; mean of the repeats, as below.
        duration_error_ratio: absolute errors of the durations that rest on lost events, over these durations.
        duration_error_range: least and greatest of the repeats.
        total_error_ratio: greatest relative error of a layer's total.
        coverage_ratio: part of the lost events that lie in their intervals.
        calibrated_ratio: part of the profiles that call themselves calibrated.
    """

    rate: float
    burst: int = 0
    buffer_events: int | None = None
    repeats: int
    refused: int = 0
    recognised_ratio: float = 0.0
    duration_error_ratio: float = 0.0
    duration_error_range: tuple[float, float] = (0.0, 0.0)
    total_error_ratio: float = 0.0
    coverage_ratio: float = 0.0
    calibrated_ratio: float = 0.0


class BufferSize(Record, kw_only=True):
    """The smallest buffer of each core that loses nothing at one drain rate; ``None``: it would hold most events."""

    drain_rate_hz: float
    buffer_events: int | None


class LossStudy(Result, kw_only=True):
    """What ``framefit inject-loss --repeat`` found.

    Attributes:
        trace: its name.
        events: of the whole run, those that the trace had lost included.
        lost_before: events that the trace had lost; their times are inferred.
        mean_rate_hz: events of the busiest core, over the time that the trace covers.
        drain_rate_hz: events that leave a core's buffer in a second.
        drain_known: whether the trace or the caller says that rate; else it is the mean rate and a quarter more.
        buffer_events: the smallest buffer of each core that would have lost nothing at that rate.
        certificate: that as a sentence.
        drawn: rates and burst lengths, losses drawn at random.
        buffers: smaller buffers, what each would have lost.
        sizes: buffers that lose nothing, at other drain rates.
        warnings: sentences.
    """

    schema_version: int = 1
    trace: str
    repeats: int
    seed: int
    events: int
    lost_before: int
    mean_rate_hz: float
    drain_rate_hz: float
    drain_known: bool
    buffer_events: int | None
    certificate: str
    drawn: tuple[LossPoint, ...]
    buffers: tuple[LossPoint, ...]
    sizes: tuple[BufferSize, ...]
    warnings: tuple[str, ...] = ()
