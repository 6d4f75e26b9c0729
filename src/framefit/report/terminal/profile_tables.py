"""What a trace says, as tables for a terminal; the caller prints them."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.profile import EventCounts, Profile, Totals
from framefit.report.formats import format_duration, format_ratio, format_uncertain

__all__ = ["profile_view"]


_MAX_ROWS = 24
_BAR_CELLS = 24


def profile_view(profile: Profile) -> RenderableType:
    """A profile: events received and lost, where the time went, what took too long, and why events were lost.

    Args:
        profile: what the workflow found.

    Returns:
        A rich renderable, at its best from 100 columns.
    """
    blocks: list[RenderableType] = [_headline(profile), _events(profile.events)]
    if profile.utilisation_by_unit:
        blocks.append(_units(profile.utilisation_by_unit))
    for title, totals in (
        ("Time by kind", profile.totals_by_kind),
        ("Time by layer", profile.totals_by_layer),
        ("Time by group", profile.totals_by_group),
    ):
        if totals and not (title.endswith("group") and len(totals) == 1):
            blocks.append(_totals(title, totals))
    if profile.violations:
        blocks.append(_violations(profile))
    if profile.diagnosis:
        blocks.append(_sentences("Why events were lost" if profile.events.lost else "Diagnosis", profile.diagnosis))
    blocks += [Text.assemble(("warning: ", "yellow"), warning) for warning in profile.warnings]
    return Group(blocks[0], *(Padding(block, (1, 0, 0, 0)) for block in blocks[1:]))


def _headline(profile: Profile) -> Text:
    lost = profile.events.lost
    ratio = lost / profile.events.expected if profile.events.expected else 0.0
    told = Text.assemble((f"{profile.inferences:,} inferences", "bold"), f", {profile.events.received:,} events")
    if not lost:
        return told.append(", none lost: every time is measured", "green")
    told.append(f", {format_ratio(ratio)} lost and inferred", "yellow")
    method = {"align": "by alignment", "rule": "by rule"}.get(profile.method, profile.method)
    checked = "intervals calibrated on this trace" if profile.calibrated else "intervals not calibrated"
    return told.append(f" {method}; {checked}", "dim")


def _events(events: EventCounts) -> Table:
    grid = Table.grid(padding=(0, 3))
    counts = (
        ("received", events.received),
        ("expected", events.expected),
        ("lost", events.lost),
        ("spurious", events.spurious),
        ("duplicated", events.duplicated),
        ("out of order", events.out_of_order),
    )
    for _ in counts:
        grid.add_column(justify="right", no_wrap=True)
    grid.add_row(*(Text(name, style="dim") for name, _ in counts))
    grid.add_row(
        *(Text(f"{count:,}", style="yellow" if count and place > 1 else "") for place, (_, count) in enumerate(counts))
    )
    return grid


def _units(utilisation: dict[str, float]) -> Table:
    table = _table("Units", ["unit"], ["busy"])
    table.add_column("", no_wrap=True)
    for name, ratio in utilisation.items():
        cells = round(_BAR_CELLS * min(max(ratio, 0.0), 1.0))
        bar = Text("█" * cells, style="blue").append("·" * (_BAR_CELLS - cells), style="dim")
        table.add_row(Text(name), format_ratio(ratio), bar)
    return table


def _totals(title: str, totals: dict[str, Totals]) -> Table:
    """The longest first; what one execution takes, and all of them."""
    whole = sum(one.duration_ns for one in totals.values())
    table = _table(title, [""], ["count", "each", "all", "share", "inferred"])
    shown = sorted(totals.items(), key=lambda item: -item[1].duration_ns)
    for name, one in shown[:_MAX_ROWS]:
        count = max(one.count, 1)
        low, high = one.interval_ns
        table.add_row(
            Text(name, no_wrap=True, overflow="ellipsis"),
            f"{one.count:,}",
            format_uncertain(one.duration_ns / count, (low / count, high / count)),
            format_uncertain(one.duration_ns, one.interval_ns),
            format_ratio(one.duration_ns / whole) if whole else "-",
            Text(format_ratio(one.inferred_ratio), style="yellow" if one.inferred_ratio else "dim"),
        )
    if len(shown) > _MAX_ROWS:
        table.caption = f"... {len(shown) - _MAX_ROWS} more"
    return table


def _violations(profile: Profile) -> Table:
    table = _table("Longer than expected", ["operation"], ["times", "expected", "took", "ratio"])
    for one in profile.violations[:_MAX_ROWS]:
        table.add_row(
            Text(one.operation, no_wrap=True, overflow="ellipsis"),
            f"{one.count:,}",
            format_duration(one.expected_ns),
            format_uncertain(one.actual_ns, one.interval_ns),
            f"{one.actual_ns / one.expected_ns:.2f} x" if one.expected_ns > 0 else "-",
        )
    if len(profile.violations) > _MAX_ROWS:
        table.caption = f"... {len(profile.violations) - _MAX_ROWS} more"
    return table


def _sentences(title: str, sentences: Sequence[str]) -> Group:
    grid = Table.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row("-", Text(sentence))
    return Group(Text(title, style="bold"), Padding(grid, (0, 0, 0, 2)))


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """A table without frame; where it is narrow, names give way."""
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    table.title_style, table.header_style, table.caption_style = "bold", "dim", "dim"
    for name in left:
        table.add_column(name, overflow="ellipsis")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table
