"""A profile: what was lost, where the time went, what took longer than expected; and the page of a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from framefit.core.profile import Certificate, Profile, Totals
from framefit.report.charts import Axis, Chart, Line, colour, row_height_px
from framefit.report.description import Kind, Quantity, card_row, fraction_row
from framefit.report.formats import format_duration, format_ratio, format_uncertain
from framefit.report.markup import Markup, bullet_list, joined, panel, panels, quantity, table, verdict, write_page
from framefit.report.timeline import Happened, timeline

__all__ = [
    "PROFILES",
    "ProfileContent",
    "audit_notes",
    "profile_charts",
    "profile_panels",
    "profile_verdict",
    "run_notes",
    "write_timeline_page",
]


_MOST = 3
_MATTERS = 0.01  # of the periods: plans reckon with the quantile 0.99


def run_notes(profile: Profile, windows: int) -> list[str]:
    """Operations that took longer than planned and periods that were not kept, the worst few; often none.

    Args:
        profile: of the run's own trace.
        windows: of the run.
    """
    notes = []
    events = profile.events
    if events.lost and events.expected:
        notes.append(f"the trace lost {format_ratio(events.lost / events.expected)} of its events")
    periods = [one for one in profile.violations if _is_period(one.operation)]
    slower = [one for one in profile.violations if not _is_period(one.operation)]
    notes += [
        f"{one.operation} takes {format_duration(one.actual_ns)}, expected {format_duration(one.expected_ns)}"
        for one in slower[:_MOST]
    ]
    if len(slower) > _MOST:
        notes.append(f"{len(slower) - _MOST} more operations take longer than expected")
    notes += [
        f"{one.operation} was overrun {one.count} times: {format_duration(one.actual_ns)}, "
        f"planned {format_duration(one.expected_ns)}"
        for one in [period for period in periods if period.count > _MATTERS * windows][:_MOST]
    ]
    return notes


def _is_period(name: str) -> bool:
    """Whether a violation is of a window or a cycle; operations have their segment before them."""
    return "/" not in name


def audit_notes(certificate: Certificate, confidence: float) -> list[str]:
    """What masking events of this very trace showed.

    Args:
        certificate: what was found.
        confidence: of the profile's intervals.
    """
    low, high = map(format_ratio, certificate.coverage_interval)
    half, most = format_duration(certificate.edge_error_ns.p50), format_duration(certificate.edge_error_ns.p90)
    how = f"in runs of {certificate.burst:.1f}, as this trace lost its own" if certificate.as_struck else "one by one"
    return [
        f"audit: {certificate.masked} of {certificate.matched} events were masked {how}, and put back",
        f"  {format_ratio(certificate.recognised_ratio)} of the others were recognised as before",
        f"  half of the masked events lie within {half} of where they were, nine of ten within {most}",
        f"  durations that rest on them are off by {format_ratio(certificate.duration_error_ratio)}",
        f"  {format_ratio(certificate.coverage_ratio)} lie in their {100 * confidence:g} % intervals ({low} to {high})",
    ]


_MOST_BARS = 16  # of a chart; tables have them all
_FOOTER = (
    "Times are from the first event. An inferred time is never shown as measured: it is hatched, and its interval "
    "holds 90 %."
)


@dataclass(frozen=True)
class ProfileContent:
    """What lies in a profile folder; ``happened`` is ``None`` where the events are not there."""

    profile: Profile
    happened: Happened | None


def write_timeline_page(
    path: str | Path, happened: Happened, *, title: str, profile: Profile | None = None, force: bool = False
) -> None:
    """Write the timeline as a page that any current browser opens, without a server or a network.

    Args:
        path: usually ``timeline.html``.
        happened: every operation.
        title: heading of the page.
        profile: figures above and tables below; ``None``: the timeline alone.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    units = [unit.name for unit in happened.program.units]
    models = dict.fromkeys(segment.model for segment in happened.program.programs)
    told = [f"{len(units)} unit{'s' * (len(units) != 1)}", ", ".join(filter(None, models))]
    body = [timeline(happened)]
    if profile is not None:
        body = [profile_verdict(profile), card_row(list(_quantities(profile))), *body, profile_panels(profile)]
    write_page(
        path,
        title=title,
        heading=title,
        subtitle=" \u00b7 ".join(filter(None, told)),
        body=joined(body),
        footer=_FOOTER,
        uses=("timeline",),
        force=force,
    )


def profile_verdict(profile: Profile) -> Markup:
    """Whether times are measured or inferred, and how far they can be trusted."""
    events = profile.events
    if not events.lost:
        return verdict(
            "plain", "Nothing lost:", f"all {events.received:,} events were received, every time is measured."
        )
    method = {"align": "alignment", "rule": "rule"}.get(profile.method, profile.method)
    checked = "calibrated on this trace" if profile.calibrated else "not calibrated"
    ratio = format_ratio(events.lost / events.expected) if events.expected else "0 %"
    text = (
        f"of {events.expected:,} events, {events.lost:,} in number; each was put back by {method} with an interval of "
        f"{100 * profile.confidence:g} %, {checked}."
    )
    return verdict("plain", f"{ratio} lost", text)


def _quantities(profile: Profile) -> Iterator[Quantity]:
    events = profile.events
    odd = (("spurious", events.spurious), ("duplicated", events.duplicated), ("out of order", events.out_of_order))
    told = ", ".join(f"{count:,} {name}" for name, count in odd if count)
    lost = events.lost / events.expected if events.expected else 0.0
    remark = f"in {format_duration(profile.covered_ns)}"
    yield Quantity("Inferences", profile.inferences, f"{profile.inferences:,}", remark, card=True)
    remark = told or f"of {events.expected:,} expected"
    yield Quantity("Events received", events.received, f"{events.received:,}", remark, "more", card=True)
    remark = f"{events.lost:,}, all inferred" if events.lost else "nothing to infer"
    yield Quantity("Events lost", lost, format_ratio(lost), remark, "less", card=True)
    if profile.utilisation_by_unit:
        busiest = max(profile.utilisation_by_unit, key=lambda unit: profile.utilisation_by_unit[unit])
        ratio = profile.utilisation_by_unit[busiest]
        yield Quantity("Busiest unit", ratio, format_ratio(ratio), busiest, card=True)
    over = len(profile.violations)
    remark = "operation" if over == 1 else "operations"
    yield Quantity("Beyond expectation", over, f"{over:,}", remark, "less", card=True)
    for name, ratio in profile.utilisation_by_unit.items():
        yield fraction_row(f"{name}: busy", ratio)
    for kind, one in profile.totals_by_kind.items():
        each = one.duration_ns / max(one.count, 1)
        yield Quantity(f"{kind}: time of one", each, format_duration(each), "", "less")


def profile_charts(named: Sequence[tuple[str, Profile]]) -> list[Chart]:
    """Where the time went, of one profile or of several side by side.

    Args:
        named: name and profile of each; a single one's name is not shown.
    """
    if not named:
        return []
    charts = [
        _totals_chart("Time by layer", [(name, profile.totals_by_layer) for name, profile in named]),
        _totals_chart("Time by kind of operation", [(name, profile.totals_by_kind) for name, profile in named]),
    ]
    return [chart for chart in charts if chart is not None]


def _totals_chart(title: str, named: Sequence[tuple[str, Mapping[str, Totals]]]) -> Chart | None:
    """Time of one execution, on the whole, with its interval; the longest in sum."""
    sums: dict[str, int] = {}
    for _, totals in named:
        for key, one in totals.items():
            sums[key] = max(sums.get(key, 0), one.duration_ns)
    keys = sorted(sums, key=lambda key: -sums[key])[:_MOST_BARS]
    if not keys:
        return None
    whole = [sum(one.duration_ns for one in totals.values()) or 1 for _, totals in named]
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


def profile_panels(profile: Profile) -> Markup:
    """Its sentences and tables."""
    wide = []
    if profile.violations:
        wide.append(panel("Longer than expected", _violations(profile)))
    if profile.totals_by_layer:
        wide.append(panel("Time by layer", _totals("Time by layer", profile.totals_by_layer)))
    return joined([panels(_panels(profile)), panels(wide, one=True)])


def _panels(profile: Profile) -> Iterator[Markup]:
    if profile.diagnosis:
        title = "Why events were lost" if profile.events.lost else "Diagnosis"
        yield panel(title, bullet_list(profile.diagnosis))
    if profile.warnings:
        yield panel("What to know of these figures", bullet_list(profile.warnings))
    if profile.certificate is not None:
        yield panel("Audit", bullet_list(audit_notes(profile.certificate, profile.confidence)))
    if profile.totals_by_kind:
        yield panel("Time by kind", _totals("Time by kind", profile.totals_by_kind))
    if profile.utilisation_by_unit:
        yield panel("Units", _units(profile))


def _violations(profile: Profile) -> Markup:
    rows = [
        (
            one.operation,
            quantity(one.count, f"{one.count:,}"),
            quantity(one.expected_ns, format_duration(one.expected_ns)),
            quantity(one.actual_ns, format_uncertain(one.actual_ns, one.interval_ns)),
            quantity(one.actual_ns / one.expected_ns, f"{one.actual_ns / one.expected_ns:.2f} \u00d7")
            if one.expected_ns
            else "\u2013",
        )
        for one in profile.violations
    ]
    return table(
        "Longer than expected", rows, left=("operation",), right=("times", "expected", "took (median)", "ratio")
    )


def _totals(title: str, totals: Mapping[str, Totals]) -> Markup:
    whole = sum(one.duration_ns for one in totals.values()) or 1
    rows = []
    for name, one in sorted(totals.items(), key=lambda item: -item[1].duration_ns):
        count = max(one.count, 1)
        low, high = one.interval_ns
        ratio = one.duration_ns / whole
        bar = Markup(
            f'{quantity(ratio, format_ratio(ratio))}<span class="bar" style="width:{100 * ratio:.2f}%"></span>'
        )
        rows.append(
            (
                name,
                quantity(one.count, f"{one.count:,}"),
                quantity(one.duration_ns, format_uncertain(one.duration_ns, one.interval_ns)),
                quantity(
                    one.duration_ns / count, format_uncertain(one.duration_ns / count, (low / count, high / count))
                ),
                bar,
                quantity(one.inferred_ratio, format_ratio(one.inferred_ratio)),
            )
        )
    return table(title, rows, left=("",), right=("count", "all", "each", "share", "inferred"))


def _units(profile: Profile) -> Markup:
    rows = []
    for name, ratio in profile.utilisation_by_unit.items():
        gaps = profile.gaps_by_unit.get(name)
        told = ["\u2013"] * 3
        if gaps is not None and gaps.count:
            told = [quantity(ns, format_duration(ns)) for ns in (gaps.p50, gaps.p99, gaps.max)]
        rows.append((name, quantity(ratio, format_ratio(ratio)), *told))
    return table("Units", rows, left=("unit",), right=("busy", "gap p50", "gap p99", "gap max"))


def _picture(content: ProfileContent, name: str) -> Markup:
    return Markup("") if content.happened is None else timeline(content.happened, f"{name}-timeline")


def _charts(named: Sequence[tuple[str, ProfileContent]]) -> list[Chart]:
    return profile_charts([(name, content.profile) for name, content in named])


def _tables(content: ProfileContent, _: str) -> Markup:
    return profile_panels(content.profile)


PROFILES = Kind(
    noun="profile",
    plural="profiles",
    verdict=lambda content: profile_verdict(content.profile),
    quantities=lambda content: list(_quantities(content.profile)),
    charts=_charts,
    picture=_picture,
    tables=_tables,
    uses=("timeline",),
)
