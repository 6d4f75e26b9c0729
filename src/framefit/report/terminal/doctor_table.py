"""The machine's findings as a table (``framefit doctor``)."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from framefit.core.run_record import Finding, HostReport

__all__ = ["doctor_view"]


class _Mark(NamedTuple):
    """How a status looks; symbol and word say it without colour, in ASCII for any terminal."""

    symbol: str
    style: str


_MARKS = {
    "good": _Mark("+", "green"),
    "fair": _Mark("~", "yellow"),
    "poor": _Mark("!", "bold red"),
    "unknown": _Mark("?", "dim"),
}


def doctor_view(report: HostReport) -> RenderableType:
    """The report as one row a topic: status, topic, what was found, why it matters and the remedy.

    Reads well from 60 columns on.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, leading=0)
    table.add_column("status", no_wrap=True)
    table.add_column("topic", max_width=18)
    table.add_column("found", ratio=1, overflow="fold")
    for finding in report.findings:
        table.add_row(_status(finding.status), Text(finding.topic), _found(finding))
    return Group(_machine(report), table, _count(report))


def _status(status: str) -> Text:
    mark = _MARKS[status]
    return Text(f"{mark.symbol} {status}", style=mark.style)


def _found(finding: Finding) -> Text:
    """The value; below it, unless all is well, why it matters and what to do."""
    text = Text(finding.value)
    if finding.status in ("fair", "poor"):
        text.append(f"\n{finding.why}", style="dim")
    if finding.remedy is not None:
        text.append("\nremedy: ", style="bold").append(finding.remedy, style="not bold")
    return text


def _machine(report: HostReport) -> Text:
    facts = report.fingerprint
    named = [f"{facts[key]}" for key in ("cpu", "machine", "os", "kernel") if key in facts]
    versions = [f"{key} {facts[key]}" for key in ("python", "numpy", "onnxruntime") if key in facts]
    return Text(", ".join(named) + "\n" + ", ".join(versions))


def _count(report: HostReport) -> Text:
    counts: Counter[str] = Counter(finding.status for finding in report.findings)
    return Text(", ".join(f"{counts[status]} {status}" for status in _MARKS if counts[status]))
