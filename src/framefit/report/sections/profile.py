"""A profile: what was lost, where the time went, and what took longer than expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from framefit.core.profile import Certificate, Profile, Totals
from framefit.report.charts import Axis, Chart, Line, colour, row_height_px
from framefit.report.description import (
    NONE,
    Block,
    Cell,
    Description,
    Detail,
    Kind,
    Quantity,
    Section,
    Sentences,
    Timeline,
    Verdict,
    columns,
    count,
    duration,
    ratio,
    ratio_quantity,
)
from framefit.report.formats import format_duration, format_ratio, format_uncertain
from framefit.report.timeline import Happened

__all__ = ["ProfileContent"]


_MOST = 3
_MATTERS = 0.01  # of the periods: plans reckon with the quantile 0.99
_MOST_BARS = 16  # of a chart; tables have them all
_MOST_ROWS = 24  # of a table on a terminal


@dataclass(frozen=True)
class ProfileContent:
    """What lies in a profile folder; ``happened`` is ``None`` where the events are not there."""

    profile: Profile
    happened: Happened | None = None


def _describe(content: ProfileContent | Profile, *, detail: Detail = "normal") -> Description:
    """A profile: events received and lost, where the time went, what took too long, and why events were lost."""
    content = ProfileContent(content) if isinstance(content, Profile) else content
    profile = content.profile
    pictures = [Timeline(content.happened)] if content.happened is not None and detail == "page" else []
    return Description(_verdict(profile), list(_quantities(profile)), [*pictures, *_blocks(profile)])


def _verdict(profile: Profile) -> Verdict:
    """Whether times are measured or inferred, and how far they can be trusted."""
    events = profile.events
    if not events.lost:
        text = f"all {events.received:,} events were received, every time is measured."
        return Verdict("plain", "Nothing lost:", text)
    method = {"align": "alignment", "rule": "rule"}.get(profile.method, profile.method)
    checked = "calibrated on this trace" if profile.calibrated else "not calibrated"
    text = (
        f"of {events.expected:,} events, {events.lost:,} in number; each was put back by {method} with an interval of "
        f"{100 * profile.confidence:g} %, {checked}."
    )
    return Verdict("plain", f"{format_ratio(_lost_ratio(profile))} lost", text)


def _lost_ratio(profile: Profile) -> float:
    return profile.events.lost / profile.events.expected if profile.events.expected else 0.0


def _quantities(profile: Profile) -> Iterator[Quantity]:
    events = profile.events
    odd = (("spurious", events.spurious), ("duplicated", events.duplicated), ("out of order", events.out_of_order))
    remarks = ", ".join(f"{number:,} {name}" for name, number in odd if number)
    remark = f"in {format_duration(profile.covered_ns)}"
    yield Quantity("Inferences", profile.inferences, f"{profile.inferences:,}", remark, card=True)
    remark = remarks or f"of {events.expected:,} expected"
    yield Quantity("Events received", events.received, f"{events.received:,}", remark, "more", card=True)
    lost = _lost_ratio(profile)
    remark = f"{events.lost:,}, all inferred" if events.lost else "nothing to infer"
    yield Quantity("Events lost", lost, format_ratio(lost), remark, "less", card=True)
    if profile.utilisation_by_unit:
        busiest = max(profile.utilisation_by_unit, key=lambda unit: profile.utilisation_by_unit[unit])
        busy = profile.utilisation_by_unit[busiest]
        yield Quantity("Busiest unit", busy, format_ratio(busy), busiest, card=True)
    over = len(profile.violations)
    remark = "operation" if over == 1 else "operations"
    yield Quantity("Beyond expectation", over, f"{over:,}", remark, "less", card=True)
    for name, busy in profile.utilisation_by_unit.items():
        yield ratio_quantity(f"{name}: busy", busy)
    for kind, totals in profile.totals_by_kind.items():
        each = totals.duration_ns / max(totals.count, 1)
        yield Quantity(f"{kind}: time of one", each, format_duration(each), "", "less")


def _blocks(profile: Profile) -> Iterator[Block]:
    events = profile.events
    if profile.diagnosis:
        yield Sentences("Why events were lost" if events.lost else "Diagnosis", profile.diagnosis)
    if profile.warnings:
        yield Sentences("What to know of these figures", profile.warnings)
    if profile.certificate is not None:
        yield Sentences("Audit", _audit_notes(profile.certificate, profile.confidence))
    counts = {
        "received": events.received,
        "expected": events.expected,
        "lost": events.lost,
        "spurious": events.spurious,
        "duplicated": events.duplicated,
        "out of order": events.out_of_order,
    }
    odd = ("lost", "spurious", "duplicated", "out of order")
    cells = [count(number, "uncertain" if number and name in odd else "") for name, number in counts.items()]
    yield Section("Events", columns(figures=tuple(counts)), [cells], plain=True)
    if profile.utilisation_by_unit:
        yield _units(profile)
    segments = _of_segments(profile)
    if profile.totals_by_kind:
        yield _totals("Time by segment" if segments else "Time by kind", profile.totals_by_kind)
    if profile.violations:
        yield _violations(profile)
    if profile.totals_by_layer and not segments:
        yield _totals("Time by layer", profile.totals_by_layer)
    if len(profile.totals_by_group) > 1 and not segments:
        yield _totals("Time by group", profile.totals_by_group)


def _of_segments(profile: Profile) -> bool:
    """Whether its operations are whole segments, as on a processor's core: kinds, layers and groups are then these."""
    return set(profile.totals_by_group) == {f"{kind}/0" for kind in profile.totals_by_kind}


def _units(profile: Profile) -> Section:
    rows: list[Sequence[Cell | str]] = []
    for name, busy in profile.utilisation_by_unit.items():
        gaps = profile.gaps_by_unit.get(name)
        known = gaps is not None and gaps.count
        times = [duration(ns) for ns in (gaps.p50, gaps.p99, gaps.max)] if gaps is not None and known else [NONE] * 3
        rows.append((name, Cell(format_ratio(busy), busy, bar=busy), *times))
    return Section("Units", columns(("unit",), ("busy", "gap p50", "gap p99", "gap max")), rows)


def _totals(title: str, totals: Mapping[str, Totals]) -> Section:
    """The longest first; what one execution takes, and all of them."""
    whole = sum(total.duration_ns for total in totals.values()) or 1
    rows = []
    for name, total in sorted(totals.items(), key=lambda item: -item[1].duration_ns):
        number = max(total.count, 1)
        low, high = total.interval_ns
        each, share = total.duration_ns / number, total.duration_ns / whole
        rows.append(
            (
                name,
                count(total.count),
                Cell(format_uncertain(each, (low / number, high / number)), each),
                Cell(format_uncertain(total.duration_ns, total.interval_ns), total.duration_ns),
                Cell(format_ratio(share), share, bar=share),
                ratio(total.inferred_ratio, "uncertain" if total.inferred_ratio else "faint"),
            )
        )
    return Section(title, columns(("",), ("count", "each", "all", "share", "inferred")), rows, most=_MOST_ROWS)


def _violations(profile: Profile) -> Section:
    rows = [
        (
            violation.operation,
            count(violation.count),
            duration(violation.expected_ns),
            Cell(format_uncertain(violation.actual_ns, violation.interval_ns), violation.actual_ns),
            Cell(f"{violation.actual_ns / violation.expected_ns:.2f} x", violation.actual_ns / violation.expected_ns)
            if violation.expected_ns > 0
            else NONE,
        )
        for violation in profile.violations
    ]
    figures = ("times", "expected", "took (median)", "ratio")
    return Section("Longer than expected", columns(("operation",), figures), rows, most=_MOST_ROWS)


def run_notes(profile: Profile, windows: int) -> list[str]:
    """Operations that took longer than planned and periods that were not kept in a run, the worst few; often none."""
    notes = []
    events = profile.events
    if events.lost and events.expected:
        notes.append(f"the trace lost {format_ratio(events.lost / events.expected)} of its events")
    periods = [violation for violation in profile.violations if _is_period(violation.operation)]
    slower = [violation for violation in profile.violations if not _is_period(violation.operation)]
    notes += [
        f"{slow.operation} takes {format_duration(slow.actual_ns)}, expected {format_duration(slow.expected_ns)}"
        for slow in slower[:_MOST]
    ]
    if len(slower) > _MOST:
        notes.append(f"{len(slower) - _MOST} more operations take longer than expected")
    notes += [
        f"{period.operation} was overrun {period.count} times, in the median by "
        f"{format_duration(period.actual_ns - period.expected_ns)} of {format_duration(period.expected_ns)}"
        for period in [period for period in periods if period.count > _MATTERS * windows][:_MOST]
    ]
    return notes


def _is_period(name: str) -> bool:
    """Whether a violation is of a window or a cycle; operations have their segment before them."""
    return "/" not in name


def _audit_notes(certificate: Certificate, confidence: float) -> list[str]:
    """What masking events of this very trace showed."""
    low, high = map(format_ratio, certificate.coverage_interval)
    half, most = format_duration(certificate.edge_error_ns.p50), format_duration(certificate.edge_error_ns.p90)
    how = f"in runs of {certificate.burst:.1f}, as this trace lost events" if certificate.as_struck else "one by one"
    return [
        f"{certificate.masked} of {certificate.matched} events were masked {how}, and put back.",
        f"{format_ratio(certificate.recognised_ratio)} of the others were recognised as before.",
        f"Half of the masked events lie within {half} of where they were, nine of ten within {most}.",
        f"Durations that rest on them are off by {format_ratio(certificate.duration_error_ratio)}.",
        f"{format_ratio(certificate.coverage_ratio)} lie in their {100 * confidence:g} % intervals ({low} to {high}).",
    ]


def profile_charts(named: Sequence[tuple[str, Profile]]) -> list[Chart]:
    """Where the time went, of one profile or of several side by side.

    Args:
        named: name and profile of each; a single one's name is not shown.
    """
    if not named:
        return []
    by_kind = [(name, profile.totals_by_kind) for name, profile in named]
    if all(_of_segments(profile) for _, profile in named):
        charts = [_totals_chart("Time by segment", by_kind)]
    else:
        charts = [
            _totals_chart("Time by layer", [(name, profile.totals_by_layer) for name, profile in named]),
            _totals_chart("Time by kind of operation", by_kind),
        ]
    return [chart for chart in charts if chart is not None]


def _totals_chart(title: str, named: Sequence[tuple[str, Mapping[str, Totals]]]) -> Chart | None:
    """Time of one execution, on the whole, with its interval; the longest in sum."""
    sums: dict[str, int] = {}
    for _, totals in named:
        for key, total in totals.items():
            sums[key] = max(sums.get(key, 0), total.duration_ns)
    keys = sorted(sums, key=lambda key: -sums[key])[:_MOST_BARS]
    if not keys:
        return None
    whole = [sum(total.duration_ns for total in totals.values()) or 1 for _, totals in named]
    lines = tuple(
        Line(
            name=name if len(named) > 1 else "",
            kind="bars",
            colour=colour(place),
            data=tuple(
                (
                    float(at),
                    100 * totals[key].duration_ns / all_ns,
                    100 * totals[key].interval_ns[0] / all_ns,
                    100 * totals[key].interval_ns[1] / all_ns,
                )
                for at, key in enumerate(keys)
                if key in totals
            ),
        )
        for place, ((name, totals), all_ns) in enumerate(zip(named, whole, strict=True))
    )
    first = named[0][1]
    top = [f"{key} {format_ratio(first[key].duration_ns / whole[0])}" for key in keys[:3] if key in first]
    more = f" The chart shows the {len(keys)} longest of {len(sums)}." if len(sums) > len(keys) else ""
    who = f" of {named[0][0]}" if len(named) > 1 else ""
    return Chart(
        title=title,
        summary=f"Share of all execution time, with its 90 % interval. Most{who}: {', '.join(top)}.{more}",
        x=Axis(name="share of execution time", unit="%", low=0.0),
        y=Axis(name="", scale="category", categories=tuple(keys)),
        lines=lines,
        height_px=row_height_px(len(keys) * (1 if len(named) == 1 else 2)),
    )


def _charts(named: Sequence[tuple[str, ProfileContent]]) -> list[Chart]:
    return profile_charts([(name, content.profile) for name, content in named])


KIND: Kind[ProfileContent] = Kind(
    noun="profile", plural="profiles", describe=_describe, charts=_charts, uses=("timeline",)
)
