"""Latency tables: what layers cost, how surely that is known, and how tables differ."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from framefit.core.latency_table import AdditivityAudit, Correction, LatencyEntry, LatencyTable, Value, compared
from framefit.report.charts import Axis, Chart, Line, colour, row_height_px
from framefit.report.description import Kind, Quantity
from framefit.report.formats import format_duration, format_ratio, format_uncertain
from framefit.report.markup import Markup, bullet_list, facts_panel, joined, panel, panels, quantity, table, verdict

__all__ = ["TABLES", "correction_kept", "correction_sentence", "format_configuration", "format_value"]


_TERMS = {
    "scale": "a scale",
    "launch_ns": "a constant a launch",
    "boundary_ns": "a constant a boundary",
    "layout_ns_per_byte": "bytes that stay in one layout",
    "cold_ns_per_byte": "weights that the cache does not hold",
}


def correction_kept(audit: AdditivityAudit) -> str:
    """Which terms of the correction an audit has kept."""
    if audit.terms:
        return f"corrected by {', '.join(_TERMS.get(term, term) for term in audit.terms)}"
    return "no correction made networks that were left out better told: the sum stands as it is"


def correction_sentence(correction: Correction) -> str:
    """What is added to the plain sum of layers, and how well that does."""
    parts = [f"{correction.scale:.3f} x the sum"]
    parts += [
        f"{format_duration(ns)} {what}"
        for ns, what in (
            (correction.launch_ns, "a launch"),
            (correction.boundary_ns, "a boundary"),
        )
        if ns
    ]
    parts += [
        f"{ns:.3g} ns {what}"
        for ns, what in (
            (correction.layout_ns_per_byte, "a byte that stays in its layout"),
            (correction.cold_ns_per_byte, f"a byte of weights above {correction.cache_bytes >> 10} KiB"),
        )
        if ns
    ]
    return (
        f"correction: {', '.join(parts)}, from {correction.networks} networks; those that were left out differ by "
        f"{format_ratio(correction.error_ratio)} (standard deviation)"
    )


def format_configuration(configuration: dict[str, Value]) -> str:
    """Shapes first, then what is not empty; all that there is where nothing has a shape."""
    shapes = [", ".join(map(str, _listed(configuration.get(name)))) for name in ("inputs", "outputs")]
    if not any(shapes):
        return "; ".join(f"{name} {format_value(value)}" for name, value in configuration.items())
    rest = [
        f"{name} {format_value(value)}"
        for name, value in configuration.items()
        if name in ("kernel", "stride", "groups") and value not in (None, 1)
    ]
    return "; ".join([" -> ".join(shapes), *rest])


def format_value(value: Value) -> str:
    """A fact of a fingerprint or a configuration."""
    if isinstance(value, list):
        return "x".join(map(str, value))
    return "not stated" if value is None else str(value)


def _listed(value: Value) -> Sequence[object]:
    return value if isinstance(value, list) else ()


_MOST_BARS = 20


def _verdict(told: LatencyTable) -> Markup:
    units = ", ".join(told.units) or "no unit"
    text = f"of {told.target} on {units}."
    if told.correction is not None and told.correction.networks:
        text += (
            f" Whole networks that were left out of the fit differ from the corrected sum by "
            f"{format_ratio(told.correction.error_ratio)} (standard deviation of {told.correction.networks})."
        )
    if told.unmeasured:
        text += f" {len(told.unmeasured)} layers could not be measured."
    return verdict("plain", f"{len(told.entries)} layers priced", text)


def _quantities(told: LatencyTable) -> Iterator[Quantity]:
    sources = ", ".join(f"{count} {name}" for name, count in Counter(one.source for one in told.entries).items())
    yield Quantity("Entries", len(told.entries), f"{len(told.entries):,}", sources, card=True)
    wide = [
        (high - low) / (2 * one.latency_ns)
        for one in told.entries
        if one.latency_ns > 0
        for low, high in [one.interval_ns]
    ]
    if wide:
        half = float(np.median(wide))
        yield Quantity(
            "Interval", half, f"\u00b1 {format_ratio(half)}", "90 %, of half of the entries at most", "less", card=True
        )
    noisy = sum(one.below_noise for one in told.entries)
    yield Quantity("Below noise", noisy, f"{noisy:,}", "cannot be told from 0", "less", card=True)
    if (overhead := told.overhead) is not None:
        remark = f"condition number {overhead.condition_number:.1f}"
        yield Quantity(
            "Overhead of a launch",
            overhead.intercept_ns,
            format_duration(overhead.intercept_ns),
            remark,
            "less",
            card=True,
        )
        for name, ns in (("input", overhead.input_ns_per_byte), ("output", overhead.output_ns_per_byte)):
            yield Quantity(f"Overhead of an {name} byte", ns, f"{ns:.3g} ns", "", "less")
    if told.audit is not None:
        error = told.audit.left_out_error_ratio
        yield Quantity(
            "Error on whole networks", error, format_ratio(error), "median, each left out of its fit", "less", card=True
        )


def _labels(entries: Sequence[LatencyEntry]) -> list[str]:
    """Operator and configuration; numbered where these are the same, as in other units."""
    seen: Counter[str] = Counter()
    labels = []
    for one in entries:
        label = f"{one.op} {format_configuration(one.configuration)}"
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label} ({one.unit})")
    return labels


def _charts(named: Sequence[tuple[str, LatencyTable]]) -> Iterator[Chart]:
    """The most expensive entries with their intervals; of several tables those of the first, matched."""
    first = named[0][1]
    longest = sorted(first.entries, key=lambda one: -one.latency_ns)[:_MOST_BARS]
    if not longest:
        return
    scale, unit = (1e6, "ms") if longest[0].latency_ns >= 2e6 else (1e3, "us")
    lines = []
    for place, (name, told) in enumerate(named):
        found = [(at, told.find(one.op, one.configuration, one.unit)) for at, one in enumerate(longest)]
        data = tuple(
            (float(at), max(one.latency_ns, 0) / scale, one.interval_ns[0] / scale, one.interval_ns[1] / scale)
            for at, one in found
            if one is not None
        )
        lines.append(Line(name=name if len(named) > 1 else "", kind="bars", data=data, colour=colour(place)))
    whole = sum(max(one.latency_ns, 0) for one in first.entries) or 1
    shown = sum(one.latency_ns for one in longest) / whole
    yield Chart(
        title="What layers cost",
        summary=f"Median of each configuration, with its 90 % interval: the {len(longest)} longest of "
        f"{len(first.entries)}, {format_ratio(shown)} of all entries' time. The longest: "
        f"{format_duration(longest[0].latency_ns)}, {longest[0].op}.",
        x=Axis(name="latency", unit=unit, low=0.0),
        y=Axis(name="", scale="category", categories=tuple(_labels(longest))),
        lines=tuple(lines),
        height_px=row_height_px(len(longest) * (1 if len(named) == 1 else 2)),
    )


def _tables(told: LatencyTable, _: str) -> Markup:
    rows = []
    for one in told.entries:
        p99 = one.quantile_ns(0.99)
        rows.append(
            (
                one.op,
                one.unit,
                quantity(one.latency_ns, format_uncertain(one.latency_ns, one.interval_ns)),
                quantity(p99, format_duration(p99)) if one.samples_ns else "\u2013",
                quantity(len(one.samples_ns), f"{len(one.samples_ns):,}"),
                one.source + (", below noise" if one.below_noise else ""),
                format_configuration(one.configuration),
            )
        )
    right, words = ("p50, 90 %", "p99", "samples"), ("source", "configuration")
    listed = table("Entries", rows, left=("op", "unit"), right=right, words=words)
    parts = [panels([panel("Entries", listed)], one=True)]
    said = [] if told.correction is None else [correction_sentence(told.correction)]
    said += [] if told.audit is None else [correction_kept(told.audit)]
    few = [] if told.audit is None else [panel("Whole networks, measured and told", _audit(told))]
    few += [panel("Corrections", bullet_list(said))] if said else []
    few += [panel("What to know of this table", bullet_list(told.warnings))] if told.warnings else []
    if told.unmeasured:
        lacking = [(one.op, one.unit, one.reason) for one in told.unmeasured]
        few.append(panel("Not measured", table("Not measured", lacking, left=("op", "unit"), words=("why",))))
    parts.append(panels(few))
    stated = itertools.chain(told.fingerprint.items(), told.settings.items())
    facts = [(name, value if isinstance(value, bool) else format_value(value)) for name, value in stated]
    parts.append(panels([facts_panel("Device and settings", facts)], one=True))
    return joined(parts)


def _audit(told: LatencyTable) -> Markup:
    assert told.audit is not None
    rows = []
    for one in told.audit.networks:
        sums = (one.plain_sum_ns + one.overhead_ns, one.left_out_ns)
        errors = [ns / max(one.measured_ns, 1) - 1 for ns in sums]
        rows.append(
            (
                one.name,
                quantity(one.measured_ns, format_duration(one.measured_ns)),
                *(
                    quantity(ns, format_duration(ns), f"({100 * error:+.1f} %)")
                    for ns, error in zip(sums, errors, strict=True)
                ),
            )
        )
    return table("Audit", rows, left=("network",), right=("measured", "sum and overhead", "corrected, left out"))


def _beside(named: Sequence[tuple[str, LatencyTable]]) -> Markup:
    """Ratios and facts of each table against the first."""
    here, first = named[0]
    parts = []
    for there, other in named[1:]:
        found = compared(first, other)
        rows = []
        for one in found.entries:
            if one.ratio is None or one.ratio_interval is None:
                continue
            low, high = one.ratio_interval
            beyond = not low <= 1 <= high
            rows.append(
                (
                    one.op,
                    one.unit,
                    quantity(one.here_ns, format_duration(one.here_ns)),
                    quantity(one.there_ns, format_duration(one.there_ns)),
                    quantity(
                        one.ratio,
                        f"{one.ratio:.3f} \u00d7",
                        kind="" if not beyond else "bad" if one.ratio > 1 else "good",
                    ),
                    quantity(high - low, f"{low:.3f} to {high:.3f}"),
                    format_configuration(one.configuration),
                )
            )
        median = "no entry in common" if found.ratio is None else f"{found.ratio:.3f} \u00d7 is the median ratio"
        note = (
            f"{median}; {len(found.only_here)} entries only in {here}, {len(found.only_there)} only in {there}. A "
            "coloured ratio differs from 1 beyond its 90 % interval."
        )
        right = (here, there, "ratio", "90 %")
        listed = table("Entries in both", rows, left=("op", "unit"), right=right, words=("configuration",))
        parts.append(panel(f"{there} against {here}", listed, note))
        if found.differences:
            facts = [(one.fact, format_value(one.here), format_value(one.there)) for one in found.differences]
            parts.append(panel("Facts that differ", table("Facts", facts, left=("fact",), words=(here, there))))
    return panels(parts, one=True)


TABLES = Kind(
    noun="latency table",
    plural="latency tables",
    verdict=_verdict,
    quantities=lambda told: list(_quantities(told)),
    charts=lambda named: list(_charts(named)),
    tables=_tables,
    beside=_beside,
)
