"""A report: one page on what several files and folders hold, each kind compared where there are several of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from framefit.core.fit_results import FitResult
from framefit.core.latency_table import LatencyTable
from framefit.core.sparsity import SparsityResult
from framefit.core.tree_results import TreeifyResult
from framefit.report.charts import Chart, figure
from framefit.report.description import Kind, Quantity, Subject, card_row
from framefit.report.markup import Markup, Use, joined, panel, quantity, table, write_page
from framefit.report.sections.fit import FITS
from framefit.report.sections.latency import TABLES
from framefit.report.sections.plan import PLANS, PlanContent
from framefit.report.sections.profile import PROFILES, ProfileContent
from framefit.report.sections.run import RUNS, RunContent
from framefit.report.sections.sparsity import SPARSITY
from framefit.report.sections.trees import TREES

__all__ = ["Content", "write_report_page"]


Content = FitResult | RunContent | PlanContent | ProfileContent | LatencyTable | SparsityResult | TreeifyResult
_KINDS: dict[type, Kind[Any]] = {  # in the order of the page
    FitResult: FITS,
    RunContent: RUNS,
    PlanContent: PLANS,
    ProfileContent: PROFILES,
    LatencyTable: TABLES,
    SparsityResult: SPARSITY,
    TreeifyResult: TREES,
}
_EQUAL, _NOTABLE = 5e-4, 0.05  # relative differences: that no three digits show, and that is coloured


def write_report_page(
    path: str | Path, subjects: Sequence[Subject[Content]], *, made: str, force: bool = False
) -> None:
    """Write a report as a page that any current browser opens, without a server or a network.

    Args:
        path: usually ``report.html``.
        subjects: one at least; names are unique.
        made: when and by what, for the page's end.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    groups = {kind: [one for one in subjects if isinstance(one.content, kind)] for kind in _KINDS}
    present = [(kind, group) for kind, group in groups.items() if group]
    alone = len(subjects) == 1
    parts: list[Markup] = []
    if not alone:
        parts += [_contents(present), _glance(present)]
    for kind, group in present:
        parts += _told(_KINDS[kind], group, alone=alone)
    names = " + ".join(one.name for one in subjects)
    where = f": {subjects[0].where}" if alone else ""
    counts = [_count(_KINDS[kind], len(group)) for kind, group in present]
    body = joined(parts)
    uses: list[Use] = ["report", *dict.fromkeys(use for kind, _ in present for use in _KINDS[kind].uses)]
    uses += ["charts"] * ('class="plot"' in body)
    write_page(
        path,
        title=f"{names}: Framefit report",
        heading=names if len(subjects) < 4 else f"Framefit report on {' and '.join(counts)}",
        subtitle=f"Framefit report on {' and '.join(counts)}{where}" if len(subjects) < 4 else names,
        body=body,
        footer=f"{made} Percentiles are of all samples; intervals are 90 % where nothing else is said.",
        uses=uses,
        force=force,
    )


def _count(kind: Kind[Any], count: int) -> str:
    return f"a {kind.noun}" if count == 1 else f"{count} {kind.plural}"


def _anchor(kind: Kind[Any], place: int) -> str:
    return f"{kind.noun.replace(' ', '-')}-{place + 1}"


def _contents(present: Sequence[tuple[type, Sequence[Subject[Content]]]]) -> Markup:
    links = []
    for type_, group in present:
        kind = _KINDS[type_]
        if len(group) > 1:
            links.append((f"{kind.noun.replace(' ', '-')}-compared", f"{kind.plural} compared".capitalize()))
        links += [(_anchor(kind, place), one.name) for place, one in enumerate(group)]
    listed = "".join(f'<li><a href="#{anchor}">{escape(text)}</a></li>' for anchor, text in links)
    return Markup(f'<nav aria-label="Contents"><ul>{listed}</ul></nav>')


def _glance(present: Sequence[tuple[type, Sequence[Subject[Content]]]]) -> Markup:
    """Every subject's verdict under its name."""
    verdicts = [
        f'<div><dt><a href="#{_anchor(_KINDS[type_], place)}">{escape(one.name)}</a> '
        f"<small>{_KINDS[type_].noun}</small></dt><dd>{_KINDS[type_].verdict(one.content)}</dd></div>"
        for type_, group in present
        for place, one in enumerate(group)
    ]
    return Markup(f'<dl class="glance">{"".join(verdicts)}</dl>')


def _told(kind: Kind[Any], group: Sequence[Subject[Content]], *, alone: bool) -> Iterator[Markup]:
    named = [(one.name, one.content) for one in group]
    several = len(group) > 1
    if several:
        title = f"{kind.plural} compared".capitalize()
        yield Markup(f'<section class="part" id="{kind.noun.replace(" ", "-")}-compared"><h2>{escape(title)}</h2>')
        yield _charts(kind.charts(named))
        yield panel(
            "Figures",
            _compared(kind, named),
            f"Small figures: difference to {group[0].name}; coloured where it is above {100 * _NOTABLE:g} %.",
        )
        yield Markup("" if kind.beside is None else kind.beside(named))
        yield Markup("</section>")
    for place, one in enumerate(group):
        name = _anchor(kind, place)
        yield Markup(f'<section class="part" id="{name}">')
        if alone:
            yield Markup(f'<h2 class="unseen">{kind.noun.capitalize()}</h2>')
        else:
            yield Markup(f"<h2>{escape(one.name)} <small>{kind.noun}</small></h2>")
            yield Markup(f'<p class="where">{escape(one.where)}</p>')
        yield kind.verdict(one.content)
        yield card_row(kind.quantities(one.content))
        if kind.picture is not None:
            yield kind.picture(one.content, name)
        if not several:
            yield _charts(kind.charts(named))
        yield kind.tables(one.content, name)
        yield Markup("</section>")


def _charts(charts: Sequence[Chart]) -> Markup:
    return Markup(f'<div class="charts">{"".join(map(figure, charts))}</div>' if charts else "")


def _compared(kind: Kind[Any], named: Sequence[tuple[str, Content]]) -> Markup:
    """A line for each quantity, a column for each subject; differences to the first."""
    columns = [{one.name: one for one in kind.quantities(content)} for _, content in named]
    rows = []
    for name in dict.fromkeys(itertools.chain.from_iterable(columns)):
        first = columns[0].get(name)
        rows.append((name, *(_cell(column.get(name), None if at == 0 else first) for at, column in enumerate(columns))))
    return table(f"{kind.plural} compared", rows, left=("",), right=[name for name, _ in named], plain=True)


def _cell(one: Quantity | None, first: Quantity | None) -> str:
    if one is None:
        return "\u2013"
    if first is None:
        return quantity(one.value, one.text)
    difference = one.value - first.value
    if abs(difference) <= _EQUAL * abs(first.value):
        return quantity(one.value, one.text, "=")
    note = f"{100 * difference / first.value:+.1f} %" if first.value > 0 and one.value >= 0 else ""
    if not one.better:
        return quantity(one.value, one.text, note)
    good = (difference < 0) == (one.better == "less")
    notable = abs(difference) > _NOTABLE * abs(first.value)
    told = note or ("better" if good else "worse")
    return quantity(one.value, one.text, told, kind=("good" if good else "bad") if notable else "")
