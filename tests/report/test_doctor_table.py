"""The machine's findings as a table."""

from __future__ import annotations

import io

from rich.console import Console

from framefit.core.run_record import Finding, HostReport
from framefit.report.terminal import view

REPORT = HostReport(
    findings=(
        Finding(topic="swap", status="good", value="off", why="pages cost time"),
        Finding(topic="governor", status="poor", value="powersave", why="cores slow down", remedy="cpupower [now]"),
        Finding(topic="turbo", status="unknown", value="not reported", why="heat"),
        Finding(topic="cores", status="fair", value="2 available " + "x" * 200, why="crowded", remedy="isolate one"),
    ),
    fingerprint={"cpu": "Some CPU", "cores": 2, "python": "3.11", "virtualised": True},
)


def rendered(width: int = 80) -> str:
    """What a terminal of this width shows."""
    file = io.StringIO()
    Console(file=file, width=width, no_color=True).print(view(REPORT))
    return file.getvalue()


def test_each_row_says_its_status_without_colour() -> None:
    """Symbol and word stand before the topic and the value."""
    lines = rendered().splitlines()
    for start, topic in (("+ good", "swap"), ("! poor", "governor"), ("? unknown", "turbo"), ("~ fair", "cores")):
        assert any(line.strip().startswith(start) and topic in line for line in lines)


def test_only_what_is_wrong_is_explained() -> None:
    """The reason stands where something can be gained; remedies appear as they were written."""
    text = rendered()
    assert "cores slow down" in text
    assert "pages cost time" not in text
    assert "remedy: cpupower [now]" in text


def test_fits_eighty_columns_and_cuts_nothing() -> None:
    """Long values are folded."""
    text = rendered()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("x") == 200


def test_is_plain_ascii_apart_from_the_rule() -> None:
    """The words survive terminals without Unicode."""
    assert rendered().replace("─", "-").isascii()


def test_counts_each_status() -> None:
    """The first line sums up."""
    assert rendered().startswith("1 good, 1 fair, 1 poor, 1 unknown: Some CPU")
