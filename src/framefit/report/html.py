"""Descriptions as pages of one file: templates, styles and scripts put together, nothing loaded from elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from framefit.core.check import CheckResult
from framefit.core.choice import Choice
from framefit.core.files import Record, write_whole
from framefit.core.fit_results import FitResult
from framefit.core.latency_table import LatencyTable
from framefit.core.loss_study import LossStudy
from framefit.core.profile import Profile
from framefit.core.run_record import CycleReport, LatencyEstimate
from framefit.core.sparsity import SparsityResult
from framefit.core.stored import StoreLog
from framefit.core.timetable import Timetable
from framefit.core.tree_results import RtlReport, TreeifyResult
from framefit.report.description import (
    NONE,
    Beside,
    Block,
    Cell,
    Description,
    Facts,
    Folded,
    Graph,
    Kind,
    PlanPicture,
    Prose,
    Quantity,
    RunPicture,
    Section,
    Sentences,
    Subject,
    Timeline,
    Use,
    columns,
)
from framefit.report.drawing import WindowPictures, need_picture
from framefit.report.formats import format_bytes, format_duration
from framefit.report.graph import drawn_graph
from framefit.report.sections import kind_of
from framefit.report.sections.fit import FitContent
from framefit.report.sections.plan import PlanContent, format_beat
from framefit.report.sections.profile import ProfileContent
from framefit.report.sections.run import RunContent
from framefit.report.timeline import Happened, timeline_data

__all__ = ["Content", "write_plan_page", "write_report_page", "write_timeline_page"]


Content = (
    FitContent
    | FitResult
    | RunContent
    | PlanContent
    | ProfileContent
    | LatencyTable
    | LossStudy
    | Choice
    | SparsityResult
    | TreeifyResult
    | RtlReport
    | CycleReport
    | LatencyEstimate
    | CheckResult
    | StoreLog
)
_EQUAL, _NOTABLE = 5e-4, 0.05  # relative differences: that no three digits show, and that is coloured
_SORTED_ROWS = 4  # shorter tables need no sorting
_LONG_ROWS = 20  # of longer ones the page shows the first dozen, until all are asked for
_SHARE_COLOURS = ("#2f9e6e", "#af7ac5", "#f5b041", "#e5683b", "#aab7b8")
_FIRST_WINDOWS = 12  # of a plan, drawn at once; more are folded, if it is more than
_FEW_WINDOWS = 4
_MOST_WINDOWS = 240  # of a plan that repeats later still, the page would take long to open
_READY = 'Object.assign(root.dataset, { wide: root.scrollWidth > innerWidth, state: "ready" });'
_STYLES: dict[Use, str] = {"report": "report.css", "plan": "plan/plan.css", "timeline": "timeline/timeline.css"}
_HOSTED: dict[Use, tuple[str, ...]] = {  # one scope for each element of that class, as a page may hold several
    "plan": ("plan/plan.js",),
    "timeline": tuple(f"timeline/{name}.js" for name in ("data", "aggregate", "draw", "overview", "control", "words")),
}
_PLAN_FOOTER = "Durations are planned, not measured in a run: framefit run, or framefit simulate, shows what happens."
_TIMELINE_FOOTER = (
    "Times are from the first event. An inferred time is never shown as measured: it is hatched, and its interval "
    "holds 90 %."
)


def write_report_page(path: str | Path, subjects: Sequence[Subject[Content]], *, force: bool = False) -> None:
    """Write a report as a page that any current browser opens, without a server or a network.

    Args:
        path: usually ``report.html``.
        subjects: one at least; names are unique.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    made = f"Made by Framefit {version('framefit')} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    groups: dict[int, tuple[Kind[Any], list[Subject[Content]]]] = {}
    for subject in subjects:
        place, kind = kind_of(subject.content)
        groups.setdefault(place, (kind, []))[1].append(subject)
    parts = [_part(kind, group) for _, (kind, group) in sorted(groups.items(), key=lambda item: item[0])]
    alone = len(subjects) == 1
    names = " + ".join(subject.name for subject in subjects)
    where = f": {subjects[0].where}" if alone else ""
    counts = " and ".join(
        f"a {part.kind.noun}" if not part.several else f"{len(part.members)} {part.kind.plural}" for part in parts
    )
    uses: list[Use] = ["report", *dict.fromkeys(use for part in parts for use in part.kind.uses)]
    uses += ["charts"] * any(part.charts for part in parts)
    few = len(subjects) < 4
    _write_page(
        path,
        title=f"{names}: Framefit report",
        heading=names if few else f"Framefit report on {counts}",
        subtitle=f"Framefit report on {counts}{where}" if few else names,
        body=rendered("report.html", parts=parts, alone=alone),
        footer=f"{made} Percentiles are of all samples; intervals are 90 % where nothing else is said.",
        uses=uses,
        force=force,
    )


def write_plan_page(path: str | Path, content: PlanContent, *, title: str, force: bool = False) -> None:
    """Write a plan as a page that any current browser opens, without a server or a network.

    Pictures and words stand in the page as they are, so that it can be read and printed without a script; the script
    adds what moves: details on touch, and labels where there is room for them.

    Args:
        path: usually ``plan.html``.
        content: the plan, feasible or not, and what it was made for.
        title: what the plan was made from, such as the workload's file.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    timetable = content.timetable
    heading, repeats = " + ".join(model.name for model in timetable.models), timetable.hyperperiod_windows
    again = f"; the plan repeats after {repeats} windows" if repeats > 1 else ""
    beat = f"on {', '.join(timetable.units)}; windows of {format_beat(timetable)}{again}"
    _, kind = kind_of(content)
    _write_page(
        path,
        title=f"{title}: {heading}",
        heading=heading,
        subtitle=f"{title}, {beat}",
        body=rendered("single.html", description=kind.describe(content, detail="page"), name=""),
        footer=_PLAN_FOOTER,
        uses=("plan",),
        force=force,
    )


def write_timeline_page(path: str | Path, happened: Happened, *, title: str, profile: Profile | None = None) -> None:
    """Write the timeline as a page that any current browser opens, without a server or a network.

    Args:
        path: usually ``timeline.html``.
        happened: every operation.
        title: heading of the page.
        profile: figures above and tables below; ``None``: the timeline alone.

    Raises:
        InputError: the file exists, or it cannot be written.
    """
    units = [unit.name for unit in happened.program.units]
    models = dict.fromkeys(segment.model for segment in happened.program.programs)
    named = [f"{len(units)} unit{'s' * (len(units) != 1)}", ", ".join(filter(None, models))]
    if profile is None:
        body = _drawn(Timeline(happened), "")
    else:
        _, kind = kind_of(profile)
        description = kind.describe(ProfileContent(profile, happened), detail="page")
        body = rendered("single.html", description=description, name="")
    _write_page(
        path,
        title=title,
        heading=title,
        subtitle=" \u00b7 ".join(filter(None, named)),
        body=body,
        footer=_TIMELINE_FOOTER,
        uses=("timeline",),
    )


@dataclass(frozen=True)
class _Member:
    """One subject of a report; ``pictures`` come before the charts, ``rest`` behind them."""

    name: str
    where: str
    anchor: str
    description: Description

    @property
    def pictures(self) -> Description:
        drawn = [block for block in self.description.blocks if isinstance(block, Timeline)]
        return replace(self.description, blocks=drawn)

    @property
    def rest(self) -> Description:
        rest = [block for block in self.description.blocks if not isinstance(block, Timeline)]
        return replace(self.description, blocks=rest)


@dataclass(frozen=True)
class _Part:
    """All subjects of one kind, compared where there are several."""

    kind: Kind[Any]
    anchor: str
    members: Sequence[_Member]
    charts: Sequence[Any]
    compared: Section
    beside: Description

    @property
    def several(self) -> bool:
        return len(self.members) > 1


def _part(kind: Kind[Any], group: Sequence[Subject[Content]]) -> _Part:
    anchor = kind.noun.replace(" ", "-")
    named = [(subject.name, subject.content) for subject in group]
    members = [
        _Member(subject.name, subject.where, f"{anchor}-{place}", kind.describe(subject.content, detail="page"))
        for place, subject in enumerate(group, start=1)
    ]
    several = len(group) > 1
    beside = Description(members[0].description.verdict, (), list(kind.beside(named)) if several else ())
    return _Part(kind, anchor, members, list(kind.charts(named)), _compared(kind, members), beside)


def _compared(kind: Kind[Any], members: Sequence[_Member]) -> Section:
    """A line for each quantity, a column for each subject; differences to the first."""
    figures = [{quantity.name: quantity for quantity in member.description.quantities} for member in members]
    rows: list[Sequence[Cell | str]] = []
    for name in dict.fromkeys(itertools.chain.from_iterable(figures)):
        first = figures[0].get(name)
        cells = [_compared_cell(column.get(name), first if at else None) for at, column in enumerate(figures)]
        rows.append((name, *cells))
    note = f"Small figures: difference to {members[0].name}; coloured where it is above {100 * _NOTABLE:g} %."
    shown = columns(("",), [member.name for member in members])
    return Section(f"{kind.plural} compared", shown, rows, note, plain=True)


def _compared_cell(quantity: Quantity | None, first: Quantity | None) -> Cell:
    if quantity is None:
        return NONE
    if first is None:
        return Cell(quantity.text, quantity.value)
    difference = quantity.value - first.value
    if abs(difference) <= _EQUAL * abs(first.value):
        return Cell(quantity.text, quantity.value, "=")
    note = f"{100 * difference / first.value:+.1f} %" if first.value > 0 and quantity.value >= 0 else ""
    if not quantity.better:
        return Cell(quantity.text, quantity.value, note)
    good = (difference < 0) == (quantity.better == "less")
    notable = abs(difference) > _NOTABLE * abs(first.value)
    remark = note or ("better" if good else "worse")
    return Cell(quantity.text, quantity.value, remark, ("good" if good else "bad") if notable else "")


# -- pages


def _write_page(
    path: str | Path,
    *,
    title: str,
    heading: str,
    subtitle: str,
    body: Markup,
    footer: str,
    uses: Sequence[Use],
    force: bool = False,
) -> None:
    scripts = ["page.js"] + ["echarts/echarts.min.js", "charts/series.js", "charts/charts.js"] * ("charts" in uses)
    code = [*map(_asset, scripts), *(_hosted(use) for use in uses if use in _HOSTED), _READY]
    styles = ("page.css", *(_STYLES[use] for use in uses if use in _STYLES))
    text = rendered(
        "page.html",
        title=title,
        heading=heading,
        subtitle=subtitle,
        style=Markup("\n".join(map(_asset, styles))),  # noqa: S704 - our own
        body=body,
        footer=footer,
        script=Markup("\n".join(code)),  # noqa: S704 - our own
    )
    with write_whole(path, force=force) as file:
        file.write(text.encode(errors="backslashreplace"))  # names that are not UTF-8


def _hosted(use: Use) -> str:
    code = "\n".join(map(_asset, _HOSTED[use]))
    return f'for (const host of document.querySelectorAll(".{use}")) (() => {{\n{code}\n}})();'


def _asset(name: str) -> str:
    return (files("framefit.report") / "assets" / name).read_text(encoding="utf-8")


# -- templates


def rendered(template: str, **context: object) -> Markup:
    """Fill in a template of this room."""
    return Markup(_environment().get_template(template).render(**context))  # noqa: S704 - autoescape is on


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("framefit.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["share_colours"] = _SHARE_COLOURS
    environment.filters |= {
        "dashed": lambda text: "\u2013" if text == "-" else text,
        "drawn": _drawn,
        "drawn_graph": drawn_graph,
        "exact": lambda value: f"{value:.17g}",
        "groups": lambda blocks: list(_groups(blocks)),
        "script_json": _script_json,
        "sorting": _sorting,
    }
    environment.tests |= {
        "facts": lambda block: isinstance(block, Facts),
        "graph": lambda block: isinstance(block, Graph),
        "prose": lambda block: isinstance(block, Prose),
        "section": lambda block: isinstance(block, Section),
        "sentences": lambda block: isinstance(block, Sentences),
    }
    return environment


def _script_json(value: object) -> Markup:
    """JSON for a script element; a ``</`` in a name would end it early."""
    return Markup(msgspec.json.encode(value).decode().replace("<", "\\u003c"))  # noqa: S704


def _sorting(section: Section) -> str:
    """The class of a table: all but short ones can be sorted, and of long ones the first rows are shown."""
    rows = len(section.rows)
    return "" if section.plain or rows < _SORTED_ROWS else "sorts long" if rows > _LONG_ROWS else "sorts"


@dataclass(frozen=True)
class _Group:
    """Panels side by side, or one under the other where they are ``wide``; a picture; plans; or what is folded."""

    panels: Sequence[Block] = ()
    wide: bool = False
    drawn: PlanPicture | Timeline | None = None
    beside: Beside | None = None
    folded: Folded | None = None


def _groups(blocks: Sequence[Block]) -> Iterator[_Group]:
    panels: list[Block] = []
    wide = False
    for block in blocks:
        single = isinstance(block, PlanPicture | Beside | Timeline | Folded | RunPicture)
        if panels and (single or wide != getattr(block, "wide", False)):
            yield _Group(panels, wide)
            panels = []
        if isinstance(block, PlanPicture | Timeline):
            yield _Group(drawn=block)
        elif isinstance(block, Beside):
            yield _Group(beside=block)
        elif isinstance(block, Folded):
            yield _Group(folded=block)
        elif not isinstance(block, RunPicture):  # of terminals
            panels, wide = [*panels, block], block.wide
    if panels:
        yield _Group(panels, wide)


def _drawn(block: PlanPicture | Timeline, name: str) -> Markup:
    """A picture's place in a page, with its data; ``name`` distinguishes it from others of its kind."""
    prefix = f"{name}-" if name else ""
    if isinstance(block, Timeline):
        return rendered("timeline.html", name=f"{prefix}timeline", timeline=timeline_data(block.happened))
    timetable, explanation = block.timetable, block.explanation
    schedules = () if explanation is None else explanation.schedules
    pictures = WindowPictures(timetable, schedules)
    count = len(timetable.windows)
    drawn = list(range(min(count, _MOST_WINDOWS)))
    first = _FIRST_WINDOWS if count > _FIRST_WINDOWS + _FEW_WINDOWS else len(drawn)
    needs = {
        schedule.model.name: need_picture(schedule, timetable, pictures.looks[schedule.model.name])
        for schedule in schedules
    }
    return rendered(
        "plan.html",
        name=f"{prefix}plan",
        timetable=timetable,
        pictures=pictures,
        drawn=drawn,
        first=drawn[:first],
        rest=drawn[first:],
        left_out=count - len(drawn),
        stories=[(story, needs[story.name]) for story in block.stories],
        percentile=block.percentile,
        data=_plan_data(timetable, block.percentile),
    )


class _SegmentData(Record, kw_only=True):
    """A segment as the script shows it: all texts ready."""

    unit: str
    fill: str
    last: str
    out: str
    planned: str
    median: str
    bytes: str


class _ModelData(Record, kw_only=True):
    name: str
    role: str
    bound: str
    parts: tuple[_SegmentData, ...]


class _PlanData(Record, kw_only=True):
    """What the script of a plan's windows reads; places in ``models`` and segments are those of the pictures."""

    percentile: str
    models: tuple[_ModelData, ...]


def _plan_data(timetable: Timetable, percentile: str) -> _PlanData:
    return _PlanData(
        percentile=percentile,
        models=tuple(
            _ModelData(
                name=model.name,
                role=model.role,
                bound="no bound" if model.result_age_windows is None else str(model.result_age_windows),
                parts=tuple(
                    _SegmentData(
                        unit=segment.unit,
                        fill=segment.fill_layer,
                        last=segment.last_layer,
                        out=", ".join(segment.output_layers),
                        planned=format_duration(segment.duration_ns),
                        median=format_duration(segment.median_ns),
                        bytes=format_bytes(segment.boundary_bytes),
                    )
                    for segment in model.segments
                ),
            )
            for model in timetable.models
        ),
    )
