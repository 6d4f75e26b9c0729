"""A profile in a few lines: for the end of a run, and what an audit found."""

from __future__ import annotations

from framefit.core.profile import Certificate, Profile
from framefit.report.formats import format_duration, format_ratio

__all__ = ["audit_notes", "run_notes"]


_MOST = 3
_MATTERS = 0.01  # of the periods: plans reckon with the quantile 0.99


def run_notes(profile: Profile, windows: int) -> list[str]:
    """Operations that took longer than planned and periods that were not kept, the worst few; often none.

    Args:
        profile: of the run's own trace.
        windows: of the run.
    """
    notes = []
    events = profile.events
    if events.lost and events.expected:
        notes.append(f"the trace lost {format_ratio(events.lost / events.expected)} of its events")
    periods = [one for one in profile.violations if _is_period(one.operation)]
    slower = [one for one in profile.violations if not _is_period(one.operation)]
    notes += [
        f"{one.operation} takes {format_duration(one.actual_ns)}, expected {format_duration(one.expected_ns)}"
        for one in slower[:_MOST]
    ]
    if len(slower) > _MOST:
        notes.append(f"{len(slower) - _MOST} more operations take longer than expected")
    notes += [
        f"{one.operation} was overrun {one.count} times: {format_duration(one.actual_ns)}, "
        f"planned {format_duration(one.expected_ns)}"
        for one in [period for period in periods if period.count > _MATTERS * windows][:_MOST]
    ]
    return notes


def _is_period(name: str) -> bool:
    """Whether a violation is of a window or a cycle; operations have their segment before them."""
    return "/" not in name


def audit_notes(certificate: Certificate, confidence: float) -> list[str]:
    """What masking events of this very trace showed.

    Args:
        certificate: what was found.
        confidence: of the profile's intervals.
    """
    low, high = map(format_ratio, certificate.coverage_interval)
    half, most = format_duration(certificate.edge_error_ns.p50), format_duration(certificate.edge_error_ns.p90)
    how = f"in runs of {certificate.burst:.1f}, as this trace lost its own" if certificate.as_struck else "one by one"
    return [
        f"audit: {certificate.masked} of {certificate.matched} events were masked {how}, and put back",
        f"  {format_ratio(certificate.recognised_ratio)} of the others were recognised as before",
        f"  half of the masked events lie within {half} of where they were, nine of ten within {most}",
        f"  durations that rest on them are off by {format_ratio(certificate.duration_error_ratio)}",
        f"  {format_ratio(certificate.coverage_ratio)} lie in their {100 * confidence:g} % intervals ({low} to {high})",
    ]
