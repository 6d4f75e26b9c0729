"""What this machine permits (``framefit doctor``)."""

from __future__ import annotations

from framefit.core.results import HostReport
from framefit.devices.diagnosis import diagnose
from framefit.devices.host import fingerprint

__all__ = ["doctor"]


def doctor() -> HostReport:
    """Look at this machine, topic by topic; takes about half a second and never raises.

    Returns:
        Findings with their remedies, and the facts that decide how fast things run here.
    """
    return HostReport(findings=diagnose(), fingerprint=fingerprint())
