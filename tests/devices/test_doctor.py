"""The doctor's report of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from framefit import doctor
from framefit.core.files import read_record, write_record
from framefit.core.run_record import HostReport
from framefit.devices import host


def test_report_survives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every topic is reported, with this machine's facts, in a record that reads back the same."""
    monkeypatch.setattr(host, "wake_up_lateness_ns", lambda: (40_000,))
    report = doctor()
    assert len({finding.topic for finding in report.findings}) == len(report.findings) >= 14
    assert report.fingerprint == host.fingerprint()
    write_record(tmp_path / "doctor.json", report)
    assert read_record(tmp_path / "doctor.json", HostReport) == report
