"""Latency tables and what is estimated from them, as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.latency_table import (
    AdditivityAudit,
    EntryComparison,
    LatencyEntry,
    LatencyTable,
    TableComparison,
    Value,
)
from framefit.core.run_record import LatencyEstimate
from framefit.report.formats import format_duration, format_ratio
from framefit.report.sections.latency import correction_kept, correction_sentence, format_configuration, format_value

__all__ = ["audit_view", "comparison_view", "estimate_view", "table_view"]


_MAX_ROWS = 200


def estimate_view(estimate: LatencyEstimate) -> RenderableType:
    """A network's latency: the total, what it is made of, and each layer.

    Args:
        estimate: what the workflow found.

    Returns:
        A rich renderable, at its best from 100 columns.
    """
    headline = Text.assemble(
        (format_duration(estimate.total_ns), "bold"),
        f"  (90 %: {_interval(estimate.total_ns, estimate.interval_ns)}): {estimate.model} on {estimate.target}, "
        f"unit {estimate.unit}",
    )
    timed = sum(layer.source != "view" for layer in estimate.layers)
    parts = Table.grid(padding=(0, 2))
    parts.add_column(style="dim", no_wrap=True)
    parts.add_column(justify="right", no_wrap=True)
    parts.add_column(overflow="fold")
    for name, value, remark in (
        ("plain sum", format_duration(estimate.plain_sum_ns), "of the layers"),
        ("correction", format_duration(estimate.correction_ns), "from whole networks that were audited"),
        ("overhead", format_duration(estimate.overhead_ns), "of the host and of transfers, once"),
        ("coverage", format_ratio(estimate.coverage_ratio), f"of {timed} layers have an entry of their own"),
        ("estimated", format_duration(estimate.estimated_ns), "of the plain sum come from a fallback"),
    ):
        parts.add_row(name, value, remark)
    layers = _table("Layers", ["layer", "op"], ["latency", "90 %", "share"], ["source"])
    _cut(layers, len(estimate.layers))
    for layer in estimate.layers[:_MAX_ROWS]:
        layers.add_row(
            *_names(layer.name, layer.op),
            format_duration(layer.latency_ns),
            _interval(layer.latency_ns, layer.interval_ns),
            format_ratio(layer.latency_ns / estimate.plain_sum_ns) if estimate.plain_sum_ns else "-",
            Text(layer.source),
            style={"view": "dim", "interpolated": "yellow", "modelled": "yellow"}.get(layer.source),
        )
    return _spaced([headline, parts, layers, *(Text(f"note: {note}") for note in estimate.notes)])


def table_view(table: LatencyTable) -> RenderableType:
    """A latency table: where it was measured, its overhead and correction, and its entries.

    Args:
        table: as it was read.

    Returns:
        A rich renderable, at its best from 100 columns.
    """
    sources = ", ".join(f"{count} {source}" for source, count in Counter(e.source for e in table.entries).items())
    headline = Text.assemble(
        (f"{len(table.entries)} entries", "bold"),
        f"  of {table.target}, unit {', '.join(table.units) or '-'}" + (f": {sources}" if sources else ""),
    )
    blocks: list[RenderableType] = [headline, _facts(table.fingerprint)]
    if (overhead := table.overhead) is not None:
        blocks.append(
            Text(
                f"overhead of a launch: {format_duration(overhead.intercept_ns)} + {overhead.input_ns_per_byte:.3g} ns "
                f"an input byte + {overhead.output_ns_per_byte:.3g} ns an output byte "
                f"(condition number {overhead.condition_number:.1f})"
            )
        )
    if (correction := table.correction) is not None:
        blocks.append(Text(correction_sentence(correction)))
    if table.audit is not None:
        blocks.append(audit_view(table.audit))
    entries = _table("Entries", ["op", "configuration"], ["latency", "90 %", "samples"], ["unit", "source"])
    _cut(entries, len(table.entries))
    for entry in table.entries[:_MAX_ROWS]:
        entries.add_row(
            *_names(entry.op, format_configuration(entry.configuration)),
            format_duration(entry.latency_ns),
            _interval(entry.latency_ns, entry.interval_ns),
            str(len(entry.samples_ns)) if entry.samples_ns else "-",
            Text(entry.unit),
            Text(entry.source + (", below noise" if entry.below_noise else "")),
        )
    return _spaced([*blocks, entries, *(Text(f"warning: {warning}") for warning in table.warnings)])


def audit_view(audit: AdditivityAudit) -> RenderableType:
    """Whole networks as measured, and as they are told with and without correction.

    Args:
        audit: of a table.

    Returns:
        A rich renderable, at its best from 100 columns.
    """
    kept = correction_kept(audit)
    table = _table("Audit", ["network"], ["measured", "sum + overhead", "", "corrected", "", "left out", ""])
    for one in audit.networks:
        row = [format_duration(one.measured_ns)]
        for told_ns in (one.plain_sum_ns + one.overhead_ns, one.corrected_ns, one.left_out_ns):
            row += [format_duration(told_ns), f"{100 * (told_ns / max(one.measured_ns, 1) - 1):+.1f} %"]
        table.add_row(*_names(one.name), *row)
    table.caption = (
        f"{kept}; median error {format_ratio(audit.plain_error_ratio)} of the sum, "
        f"{format_ratio(audit.left_out_error_ratio)} of networks left out of the fit"
    )
    return table


def comparison_view(comparison: TableComparison) -> RenderableType:
    """Two tables: the median ratio, facts in which they differ, each shared entry, and what one lacks.

    Args:
        comparison: what the workflow found; the greatest differences come first.

    Returns:
        A rich renderable, at its best from 100 columns.
    """
    median = "no entry in common" if comparison.ratio is None else f"{comparison.ratio:.3f} x"
    headline = Text.assemble(
        (median, "bold"),
        f"  median of {len(comparison.entries)} entries of {comparison.there} over those of {comparison.here}; "
        f"{len(comparison.only_here)} only here, {len(comparison.only_there)} only there",
    )
    blocks: list[RenderableType] = [headline]
    if comparison.differences:
        facts = _table("Facts that differ", ["fact", "here", "there"])
        for one in comparison.differences:
            facts.add_row(*(Text(format_value(value)) for value in (one.fact, one.here, one.there)))
        blocks.append(facts)
    if comparison.entries:
        ordered = sorted(comparison.entries, key=_departure, reverse=True)
        entries = _table("Entries", ["op", "configuration"], ["here", "there", "ratio", "90 %"], ["unit"])
        _cut(entries, len(ordered))
        for entry in ordered[:_MAX_ROWS]:
            interval = entry.ratio_interval
            told = interval is not None and not interval[0] <= 1 <= interval[1]
            entries.add_row(
                *_names(entry.op, format_configuration(entry.configuration)),
                format_duration(entry.here_ns),
                format_duration(entry.there_ns),
                "-" if entry.ratio is None else f"{entry.ratio:.3f}",
                "-" if interval is None else f"{interval[0]:.3f} .. {interval[1]:.3f}",
                Text(entry.unit),
                style=None if told else "dim",
            )
        entries.caption = "; ".join(filter(None, [str(entries.caption or ""), "dim: no difference beyond noise"]))
        blocks.append(entries)
    for title, lacking in (("Only here", comparison.only_here), ("Only there", comparison.only_there)):
        if lacking:
            blocks.append(_lacking(title, lacking))
    return _spaced(blocks)


def _lacking(title: str, entries: Sequence[LatencyEntry]) -> Table:
    table = _table(title, ["op", "configuration"], ["latency"], ["unit"])
    _cut(table, len(entries))
    for entry in entries[:_MAX_ROWS]:
        shown = format_duration(entry.latency_ns)
        table.add_row(*_names(entry.op, format_configuration(entry.configuration)), shown, Text(entry.unit))
    return table


def _departure(entry: EntryComparison) -> float:
    """How far a ratio is from 1, either way."""
    return max(entry.ratio, 1 / entry.ratio) if entry.ratio else 0.0


def _facts(fingerprint: dict[str, Value]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fingerprint.items():
        grid.add_row(Text(name), Text(format_value(value)))
    return grid


def _interval(latency_ns: int, interval_ns: tuple[int, int]) -> str:
    """Bounds relative to what they are around."""
    if latency_ns <= 0:
        return (
            "-" if interval_ns == (0, 0) else f"{format_duration(interval_ns[0])} .. {format_duration(interval_ns[1])}"
        )
    low, high = (100 * (bound / latency_ns - 1) for bound in interval_ns)
    if abs(low + high) < 0.1 * (high - low):
        return f"± {(high - low) / 2:.1f} %"
    return f"{low:+.0f} .. {high:+.0f} %"


def _names(*names: str) -> list[Text]:
    return [Text(name, no_wrap=True, overflow="ellipsis") for name in names]


def _cut(table: Table, count: int) -> None:
    if count > _MAX_ROWS:
        table.caption = f"... {count - _MAX_ROWS} more"


def _table(title: str, left: Sequence[str], right: Sequence[str] = (), after: Sequence[str] = ()) -> Table:
    """A table without frame; where it is narrow, names give way."""
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    table.title_style, table.header_style, table.caption_style = "bold", "dim", "dim"
    for name in left:
        table.add_column(name, overflow="ellipsis")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in after:
        table.add_column(name, no_wrap=True)
    return table


def _spaced(blocks: Sequence[RenderableType]) -> Group:
    return Group(blocks[0], *(Padding(block, (1, 0, 0, 0)) for block in blocks[1:]))
