"""Latency tables, estimates and cycle models: what layers cost, how surely that is known, and how tables differ."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from framefit.core.latency_table import (
    AdditivityAudit,
    Correction,
    EntryComparison,
    LatencyEntry,
    LatencyTable,
    MachineCorrection,
    TableComparison,
    Value,
    compared,
)
from framefit.core.run_record import CycleReport, LatencyEstimate, LayerCycles
from framefit.report.charts import Axis, Chart, Line, colour, row_height_px
from framefit.report.description import (
    NONE,
    Block,
    Cell,
    Description,
    Facts,
    Kind,
    Quantity,
    Section,
    Sentences,
    Verdict,
    columns,
    count,
    duration,
    ratio,
    size,
)
from framefit.report.formats import format_count, format_duration, format_ratio

_MOST_BARS = 20


def _correction_sentence(correction: Correction) -> str:
    """What is added to the plain sum of layers, and how well that does."""
    parts = [f"{factor:.3f} x layers of class {name}" for name, factor in correction.class_factors.items()]
    parts += [f"{correction.evicted_ratio:.2f} x what layers take more in turn"] * bool(correction.evicted_ratio)
    parts += [f"{format_duration(correction.node_ns)} a node"] * bool(correction.node_ns)
    parts += [f"{correction.weight_ns_per_byte:.3g} ns a byte of weights"] * bool(correction.weight_ns_per_byte)
    return (
        f"correction: {', '.join(parts) or 'none'}, from {correction.networks} networks; those that were left out "
        f"differ by {format_ratio(correction.error_ratio)} (standard deviation)."
    )


def _configuration(configuration: dict[str, Value]) -> str:
    """Shapes first, then what is not empty; all that there is where nothing has a shape."""
    shapes = [", ".join(map(str, _listed(configuration.get(name)))) for name in ("inputs", "outputs")]
    if not any(shapes):
        return "; ".join(f"{name} {_value(value)}" for name, value in configuration.items())
    rest = [
        f"{name} {_value(value)}"
        for name, value in configuration.items()
        if name in ("kernel", "stride", "groups") and value not in (None, 1)
    ]
    return "; ".join([" -> ".join(shapes), *rest])


def _value(value: Value) -> str:
    """A fact of a fingerprint or a configuration."""
    if isinstance(value, list):
        return "x".join(map(str, value))
    return "not stated" if value is None else str(value)


def _listed(value: Value) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _table(table: LatencyTable, **_: object) -> Description:
    """A latency table: its overhead and correction, entries, and where it was measured."""
    units = ", ".join(table.units) or "no unit"
    text = f"of {table.target}, unit {units}."
    if table.correction is not None and table.correction.networks:
        text += (
            " Whole networks that were left out of the fit differ from the corrected sum by "
            f"{format_ratio(table.correction.error_ratio)} (standard deviation of {table.correction.networks})."
        )
    if table.unmeasured:
        text += f" {len(table.unmeasured)} layers could not be measured."
    verdict = Verdict("plain", f"{len(table.entries):,} entries", text)
    return Description(verdict, list(_table_quantities(table)), list(_table_blocks(table)))


def _table_quantities(table: LatencyTable) -> Iterator[Quantity]:
    sources = ", ".join(f"{number} {name}" for name, number in Counter(e.source for e in table.entries).items())
    yield Quantity("Entries", len(table.entries), f"{len(table.entries):,}", sources, card=True)
    if (half := table.interval_ratio) is not None:
        remark = "90 %, of half of the entries at most"
        yield Quantity("Interval", half, f"\u00b1 {format_ratio(half)}", remark, "less", card=True)
    noisy = sum(entry.below_noise for entry in table.entries)
    yield Quantity("Below noise", noisy, f"{noisy:,}", "cannot be distinguished from 0", "less", card=True)
    if (overhead := table.overhead) is not None:
        ns, remark = overhead.intercept_ns, f"condition number {overhead.condition_number:.1f}"
        yield Quantity("Overhead of a launch", ns, format_duration(ns), remark, "less", card=True)
        for name, per_byte in (("input", overhead.input_ns_per_byte), ("output", overhead.output_ns_per_byte)):
            yield Quantity(f"Overhead of an {name} byte", per_byte, f"{per_byte:.3g} ns", "", "less", card=True)
    if table.audit is not None:
        error = table.audit.left_out_error_ratio
        remark = f"median, each left out of its fit; the greatest {format_ratio(table.audit.greatest_error_ratio)}"
        yield Quantity("Error on whole networks", error, format_ratio(error), remark, "less", card=True)


def _table_blocks(table: LatencyTable) -> Iterator[Block]:
    if table.warnings:
        yield Sentences("What to know of this table", table.warnings)
    if table.correction is not None:
        yield Sentences("Correction", [_correction_sentence(table.correction)])
    if table.audit is not None:
        yield _audit(table.audit)
    rows = []
    for entry in table.entries:
        cells = (*_latency_cells(entry), count(len(entry.samples_ns)) if entry.samples_ns else NONE)
        p99 = duration(entry.quantile_ns(0.99)) if entry.samples_ns else NONE
        source = entry.source + (", below noise" if entry.below_noise else "")
        rows.append((entry.op, entry.unit, *cells, p99, source, _configuration(entry.configuration)))
    figures = ("latency", "90 %", "samples", "p99")
    entry_columns = columns(
        ("op", "unit"), figures, ("source", "configuration"), page=("p99",), short=("configuration",)
    )
    yield Section("Entries", entry_columns, rows)
    if table.unmeasured:
        lacking = [(layer.op, layer.unit, ", ".join(layer.layers), layer.reason) for layer in table.unmeasured]
        yield Section("Not measured", columns(("op", "unit"), words=("layers", "why")), lacking)
    stated = itertools.chain(table.fingerprint.items(), table.settings.items())
    facts = [(name, value if isinstance(value, bool) else _value(value)) for name, value in stated]
    yield Facts("Device and settings", [*facts, *_conditions(table)], wide=True)


def _conditions(table: LatencyTable) -> Iterator[tuple[str, object]]:
    """What sensors said before and after the measurement."""
    for when, one in zip(("before", "after"), table.conditions or (), strict=False):
        if (hottest := one.hottest) is not None:
            yield f"temperature {when}", f"{hottest[1]:.0f} \u00b0C ({hottest[0]})"
        if one.clocks_mhz:
            low, high = min(one.clocks_mhz.values()), max(one.clocks_mhz.values())
            yield f"clock {when}", f"{low:,.0f} to {high:,.0f} MHz" if high > low else f"{high:,.0f} MHz"
        if one.throttled is not None:
            yield f"throttled {when}", one.throttled


def _latency_cells(entry: LatencyEntry) -> tuple[Cell, Cell]:
    return duration(entry.latency_ns), _interval(entry.latency_ns, entry.interval_ns)


def _interval(latency_ns: int, interval_ns: tuple[int, int]) -> Cell:
    """Bounds relative to what they are around."""
    if latency_ns <= 0:
        if interval_ns == (0, 0):
            return NONE
        return Cell(f"{format_duration(interval_ns[0])} .. {format_duration(interval_ns[1])}")
    low, high = (100 * (bound / latency_ns - 1) for bound in interval_ns)
    if abs(low + high) < 0.1 * (high - low):
        return Cell(f"\u00b1 {(high - low) / 2:.1f} %", high - low)
    return Cell(f"{low:+.0f} .. {high:+.0f} %", high - low)


def _audit(audit: AdditivityAudit) -> Section:
    """Whole networks as measured, and as they are estimated with and without correction."""
    rows = []
    for network in audit.networks:
        row: list[Cell | str] = [network.name, duration(network.measured_ns)]
        for ns in (network.plain_sum_ns + network.overhead_ns, network.corrected_ns, network.left_out_ns):
            error = ns / max(network.measured_ns, 1) - 1
            row.append(Cell(format_duration(ns), ns, f"({100 * error:+.1f} %)"))
        rows.append(row)
    kept = "" if audit.terms else "no correction improved the estimates of left-out networks, the sum stands as it is; "
    note = (
        f"{kept}median error {format_ratio(audit.plain_error_ratio)} of the sum, "
        f"{format_ratio(audit.left_out_error_ratio)} of networks left out of the fit, and of the worst of these "
        f"{format_ratio(audit.greatest_error_ratio)}."
    )
    figures = ("measured", "sum and overhead", "corrected", "left out")
    return Section("Whole networks", columns(("network",), figures), rows, note[0].upper() + note[1:])


def _machine_correction(correction: MachineCorrection, **_: object) -> Description:
    """What a calibration found, or why it was refused."""
    if correction.refused:
        stays = f"that of {correction.earlier} stays in use" if correction.earlier else "nothing is stored"
        verdict = Verdict("fails", "Refused", f"{'; '.join(correction.refused)}. So {stays}.")
    else:
        verdict = Verdict("fits", "Calibrated", f"{correction.target}, unit {correction.unit}, {correction.date}.")
    blocks: list[Block] = [Sentences("What to know", correction.warnings)] if correction.warnings else []
    if correction.audit is not None:
        blocks += [
            Sentences("Correction", [_correction_sentence(correction.audit.correction)]),
            _audit(correction.audit),
        ]
    return Description(verdict, [], blocks)


def _labels(entries: Sequence[LatencyEntry]) -> list[str]:
    """Operator and configuration; numbered where these are the same, as in other units."""
    seen: Counter[str] = Counter()
    labels = []
    for entry in entries:
        label = f"{entry.op} {_configuration(entry.configuration)}"
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label} ({entry.unit})")
    return labels


def _charts(named: Sequence[tuple[str, LatencyTable]]) -> Iterator[Chart]:
    """The most expensive entries with their intervals; of several tables those of the first, matched."""
    first = named[0][1]
    longest = sorted(first.entries, key=lambda entry: -entry.latency_ns)[:_MOST_BARS]
    if not longest:
        return
    scale, unit = (1e6, "ms") if longest[0].latency_ns >= 2e6 else (1e3, "us")
    lines = []
    for place, (name, table) in enumerate(named):
        matched = [(at, table.find(entry.op, entry.configuration, entry.unit)) for at, entry in enumerate(longest)]
        data = tuple(
            (float(at), max(entry.latency_ns, 0) / scale, entry.interval_ns[0] / scale, entry.interval_ns[1] / scale)
            for at, entry in matched
            if entry is not None
        )
        lines.append(Line(name=name if len(named) > 1 else "", kind="bars", data=data, colour=colour(place)))
    whole = sum(max(entry.latency_ns, 0) for entry in first.entries) or 1
    shown = sum(entry.latency_ns for entry in longest) / whole
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


def _beside(named: Sequence[tuple[str, LatencyTable]]) -> Iterator[Block]:
    """Ratios and facts of each table against the first."""
    here, first = named[0]
    for there, table in named[1:]:
        yield from _comparison_blocks(compared(first, table), here, there)


def _comparison(comparison: TableComparison, **_: object) -> Description:
    """Two tables: the median ratio, facts in which they differ, each shared entry, and what one lacks."""
    median = "no entry in common" if comparison.ratio is None else f"{comparison.ratio:.3f} x"
    text = (
        f"is the median of {len(comparison.entries)} entries of {comparison.there} over those of {comparison.here}; "
        f"{len(comparison.only_here)} only here, {len(comparison.only_there)} only there."
    )
    return Description(Verdict("plain", median, text), (), list(_comparison_blocks(comparison, "here", "there")))


def _comparison_blocks(comparison: TableComparison, here: str, there: str) -> Iterator[Block]:
    against = "" if here == "here" else f": {there} against {here}"
    if comparison.differences:
        facts = [
            (difference.fact, _value(difference.here), _value(difference.there))
            for difference in comparison.differences
        ]
        yield Section(f"Facts that differ{against}", columns(("fact",), words=(here, there)), facts)
    if comparison.entries:
        rows = [_compared_cells(entry) for entry in sorted(comparison.entries, key=_departure, reverse=True)]
        median = "no ratio" if comparison.ratio is None else f"the median ratio is {comparison.ratio:.3f}"
        alone = f"{len(comparison.only_here)} entries only in {here}, {len(comparison.only_there)} only in {there}"
        note = f"{median[0].upper()}{median[1:]}; {alone}. A coloured ratio differs from 1 beyond its 90 % interval."
        figures = (here, there, "ratio", "90 %")
        compared_columns = columns(("op", "unit"), figures, ("configuration",), short=("configuration",))
        yield Section(f"Entries{against}" if against else "Entries", compared_columns, rows, note)
    for side, lacking in ((here, comparison.only_here), (there, comparison.only_there)):
        if lacking:
            missing = [
                (entry.op, entry.unit, duration(entry.latency_ns), _configuration(entry.configuration))
                for entry in lacking
            ]
            only = columns(("op", "unit"), ("latency",), ("configuration",), short=("configuration",))
            yield Section(f"Only {side}" if not against else f"Only in {side}", only, missing)


def _compared_cells(entry: EntryComparison) -> Sequence[Cell | str]:
    interval, tone = entry.ratio_interval, ""
    between = NONE if interval is None else Cell(f"{interval[0]:.3f} to {interval[1]:.3f}", interval[1] - interval[0])
    cell = NONE
    if entry.ratio is not None:
        beyond = interval is not None and not interval[0] <= 1 <= interval[1]
        tone = "" if not beyond else "bad" if entry.ratio > 1 else "good"
        cell = Cell(f"{entry.ratio:.3f}", entry.ratio, tone="bad" if tone == "bad" else "good" if tone else "")
    times = (duration(entry.here_ns), duration(entry.there_ns))
    return (entry.op, entry.unit, *times, cell, between, _configuration(entry.configuration))


def _departure(entry: EntryComparison) -> float:
    """How far a ratio is from 1, either way."""
    return max(entry.ratio, 1 / entry.ratio) if entry.ratio else 0.0


def _estimate(estimate: LatencyEstimate, **_: object) -> Description:
    """A network's latency: the total, what it is made of, and each layer."""
    interval = _interval(estimate.total_ns, estimate.interval_ns).text
    text = f"(90 %: {interval}): {estimate.model} on {estimate.target}, unit {estimate.unit}"
    timed = sum(layer.source != "view" for layer in estimate.layers)
    coverage, remark = estimate.coverage_ratio, f"of {timed} layers have an entry of their own"
    figures: list[tuple[str, int, str]] = [
        ("Predicted", estimate.predicted_ns, _interval(estimate.predicted_ns, estimate.predicted_interval_ns).text),
        ("Plain sum", estimate.plain_sum_ns, "of the layers"),
        ("Correction", estimate.correction_ns, "from whole networks that were audited"),
        ("Overhead", estimate.overhead_ns, "of the host and of transfers, once"),
    ]
    if estimate.measured_in_turn_ns is not None:
        figures.insert(0, ("Measured in turn", estimate.measured_in_turn_ns, "behind other networks and layers"))
    if estimate.measured_ns is not None:
        figures.insert(0, ("Measured", estimate.measured_ns, "behind itself, with the caches as it left them"))
    quantities = [
        *(Quantity(name, ns, format_duration(ns), remark, card=True) for name, ns, remark in figures),
        Quantity("Coverage", coverage, format_ratio(coverage), remark, "more", card=True),
        Quantity(
            "Estimated",
            estimate.estimated_ns,
            format_duration(estimate.estimated_ns),
            "of the plain sum come from a fallback",
            "less",
            card=True,
        ),
    ]
    rows = [
        (
            layer.name,
            layer.op,
            duration(layer.latency_ns),
            _interval(layer.latency_ns, layer.interval_ns),
            ratio(layer.latency_ns / estimate.total_ns) if estimate.total_ns else NONE,
            Cell(layer.source, tone="uncertain" if layer.source in ("interpolated", "modelled") else ""),
        )
        for layer in estimate.layers
    ]
    rest = estimate.rest_ns
    share = ratio(rest / estimate.total_ns) if estimate.total_ns else NONE
    rows.append(("beside the layers", "", duration(rest), NONE, share, Cell("the rest of the total")))
    layers = Section("Layers", columns(("layer", "op"), ("latency", "90 %", "share"), ("source",)), rows)
    notes = [Sentences("Notes", estimate.notes)] if estimate.notes else []
    return Description(Verdict("plain", format_duration(estimate.total_ns), text), quantities, [layers, *notes])


def _cycles(report: CycleReport, **_: object) -> Description:
    """A model's cost on a cycle model: the total, what binds, and each layer."""
    text = f"{format_duration(report.total_ns)} at {report.clock_mhz:g} MHz: {report.model} on {report.target}"
    text += f", unit {report.unit}" if report.unit != report.target else ""
    verdict = Verdict("plain", f"{report.total_cycles:,} cycles", text)
    notes = [Sentences("Notes", report.notes)] if report.notes else []
    return Description(verdict, (), [_layer_cycles(report), _binding(report), *notes])


def _layer_cycles(report: CycleReport) -> Section:
    sparse = any(layer.weight_sparsity_ratio or layer.activation_sparsity_ratio for layer in report.layers)
    rows: list[Sequence[Cell | str]] = []
    for layer in report.layers:
        utilisation = Cell(f"{100 * layer.utilisation_ratio:.0f} %", layer.utilisation_ratio) if layer.macs else NONE
        cells = [
            Cell(format_count(layer.macs), layer.macs) if layer.macs else NONE,
            size(layer.bytes_read + layer.bytes_written),
            count(layer.cycles),
            ratio(layer.cycles / report.total_cycles) if report.total_cycles else NONE,
            utilisation,
        ]
        if sparse:
            zeros = (layer.weight_sparsity_ratio, layer.activation_sparsity_ratio)
            cells.append(Cell(", ".join(f"{100 * part:.0f} %" for part in zeros), zeros[0]))
        rows.append((layer.name, layer.op, *cells, _bound(layer)))
    figures = ("MACs", "bytes", "cycles", "share", "used", *(("zeros",) if sparse else ()))
    note = "Bytes: read and written. Used: multiply-accumulates over what the unit could do meanwhile."
    note += " Zeros: of weights, of inputs." if sparse else ""
    return Section("Layers", columns(("layer", "op"), figures, ("binds",)), rows, note)


def _binding(report: CycleReport) -> Section:
    """Cycles and layers by what binds."""
    cycles: defaultdict[str, int] = defaultdict(int)
    layers: Counter[str] = Counter()
    for layer in report.layers:
        cycles[layer.bound] += layer.cycles
        layers[layer.bound] += 1
    rows = [
        (
            bound,
            count(layers[bound]),
            count(cycles[bound]),
            ratio(cycles[bound] / report.total_cycles) if report.total_cycles else NONE,
        )
        for bound in sorted(cycles, key=lambda name: -cycles[name])
    ]
    return Section("What binds", columns(("binds",), ("layers", "cycles", "share")), rows)


def _bound(layer: LayerCycles) -> str:
    return layer.bound + {"bytes": " (by bytes)", "unknown": " (in part)"}.get(layer.method, "")


TABLE: Kind[LatencyTable] = Kind(
    noun="latency table",
    plural="latency tables",
    describe=_table,
    charts=_charts,
    beside=_beside,
)
COMPARISON: Kind[TableComparison] = Kind(noun="comparison", plural="comparisons", describe=_comparison)
ESTIMATE: Kind[LatencyEstimate] = Kind(noun="estimate", plural="estimates", describe=_estimate)
CORRECTION: Kind[MachineCorrection] = Kind(noun="calibration", plural="calibrations", describe=_machine_correction)
CYCLES: Kind[CycleReport] = Kind(noun="cycle report", plural="cycle reports", describe=_cycles)
