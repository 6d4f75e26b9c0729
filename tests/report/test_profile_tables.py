"""A profile as text."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from framefit.report.formats import format_uncertain
from framefit.report.terminal import view


def text(profile, width=100):
    """What a terminal without colours shows."""
    console = Console(width=width, no_color=True, file=io.StringIO())
    with console.capture() as captured:
        console.print(view(profile))
    return captured.get()


@pytest.mark.parametrize(
    ("ns", "interval", "shown"),
    [
        (41_300, (40_900, 41_700), "41.30 us ± 0.40"),
        (41_300, (41_300, 41_300), "41 us"),
        (41_300, (41_200, 42_100), "41.30 us +0.80 -0.10"),
        (2_500_000, (2_400_000, 2_600_000), "2.50 ms ± 0.10"),
        (48_000, (8_000, 88_000), "48 us ± 40"),
        (0, (0, 0), "0 ms"),
        (5_000, (4_990, 5_010), "5.000 us ± 0.010"),
    ],
)
def test_digits_follow_the_interval(ns, interval, shown):
    """A duration has as many digits as its interval permits."""
    assert format_uncertain(ns, interval) == shown


def test_profile_view(profiled):
    """The summary has counts, totals with their uncertainty, violations, diagnosis and warnings."""
    shown = text(profiled.profile)
    for part in (
        "Inferences",
        f"{profiled.profile.events.received:,}",
        "put back by alignment",
        "face/conv_12",
        "41.30 us ± 0.40",
        "6.0 %",
        "depth, segment 3, conv_3",
        "1.60 x",
        "A buffer of 64 events would have kept them.",
        "The trace begins within an inference.",
        "42.0 %",
    ):
        assert part in shown
    assert "Time by group" not in shown


def test_narrow_profile_view(profiled):
    """Within 60 columns no line is wider and no figure is cut."""
    shown = text(profiled.profile, 60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "41.30 us ± 0.40" in shown


def test_profile_of_nothing(profiled):
    """A profile without operations, and one that lost nothing, say so."""
    events = replace(profiled.profile.events, received=0, expected=0, lost=0, spurious=0)
    empty = replace(
        profiled.profile, events=events, inferences=0, totals_by_kind={}, totals_by_layer={}, totals_by_group={},
        utilisation_by_unit={}, violations=(), diagnosis=(), warnings=(),
    )  # fmt: skip
    shown = text(empty)
    assert re.search(r"Inferences +0", shown)
    assert "Nothing lost" in shown
