"""A plan in a page, and as a page (``framefit plan --page``).

Pictures and words stand in the page as they are, so that it can be read and printed without a
script; the script adds what moves: details on touch, and labels where there is room for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from framefit.core.files import Record
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload
from framefit.report.explained import Account, accounts, loss_of
from framefit.report.formats import format_bytes, format_difference, format_duration, format_hz, format_ratio
from framefit.report.pages.charts import Axis, Chart, Line, colour, row_height_px
from framefit.report.pages.markup import Markup, bullet_list, folded, joined, panel, quantity, shares, table, verdict
from framefit.report.pages.parts import Better, Kind, Quantity, card_row, fraction_row
from framefit.report.pages.plan_picture import WindowPictures, need_picture
from framefit.report.pages.skeleton import fragment, script_json, write_page
from framefit.report.plan_words import common_prefix, format_beat, percentile_name, sentences, slack_sentence
from framefit.report.spanning import reserved_share

__all__ = ["PLANS", "PlanContent", "plan_markup", "write_plan_page"]


_FIRST_WINDOWS = 12  # drawn at once; more are folded, if it is more than
_FEW_WINDOWS = 4
_MOST_WINDOWS = 240  # of a plan that repeats later still, the page would take long to open
_ARROW = "\u2192"
_PLANNED = "quantile"  # where no workload says which


@dataclass(frozen=True)
class PlanContent:
    """A plan; ``workload`` is ``None`` where nothing tells what it was made for."""

    timetable: Timetable
    workload: Workload | None


class _Part(Record, kw_only=True):
    """A segment as the script tells of it: all texts ready."""

    unit: str
    fill: str
    last: str
    out: str
    planned: str
    median: str
    bytes: str


class _Told(Record, kw_only=True):
    name: str
    role: str
    bound: str
    parts: tuple[_Part, ...]


class _Page(Record, kw_only=True):
    """What the page's script reads; places in ``models`` and segments are those of the pictures."""

    percentile: str
    models: tuple[_Told, ...]


def write_plan_page(
    path: str | Path, timetable: Timetable, workload: Workload, *, title: str, force: bool = False
) -> None:
    """Write a plan as a page that any current browser opens, without a server or a network.

    Args:
        path: usually ``plan.html``.
        timetable: the plan, feasible or not.
        workload: that it was made for.
        title: what the plan was made from, such as the workload's file.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    heading, content = " + ".join(model.name for model in timetable.models), PlanContent(timetable, workload)
    write_page(
        path,
        title=f"{title}: {heading}",
        heading=heading,
        subtitle=f"{title}, {_subtitle(timetable)}",
        body=joined([_verdict(content), card_row(list(_quantities(content))), plan_markup(timetable, workload)]),
        footer="Durations are planned, not measured in a run: framefit run, or framefit simulate, shows what happens.",
        uses=("plan",),
        force=force,
    )


def plan_markup(timetable: Timetable, workload: Workload | None, name: str = "plan") -> Markup:
    """A plan's windows, how each model came to its part, and its tables.

    Args:
        timetable: the plan, feasible or not.
        workload: that it was made for; ``None``: not known, and frames' ways and reasons are left out.
        name: its id in the page.
    """
    told = [] if workload is None else accounts(timetable, workload)
    pictures = WindowPictures(timetable, told)
    percentile = _PLANNED if workload is None else percentile_name(workload)
    stories = [] if workload is None else [_story(account, timetable, workload, pictures) for account in told]
    places = {
        "name": escape(name),
        "help": _help(timetable),
        "legend": "".join(_legend(timetable, pictures)),
        "windows": _windows(timetable, pictures),
        "stories": joined(stories),
        "losses": _losses(timetable, told),
        "models": _models(timetable, told),
        "segments": _segments(timetable, percentile),
        "notes": panel("Notes", bullet_list(timetable.reasons)) if timetable.reasons else "",
        "percentile": percentile,
        "page": script_json(_page(timetable, percentile)),
    }
    return fragment("plan/plan.html", places)


def _page(timetable: Timetable, percentile: str) -> _Page:
    return _Page(
        percentile=percentile,
        models=tuple(
            _Told(
                name=model.name,
                role=model.role,
                bound=_bound(model.result_age_windows),
                parts=tuple(
                    _Part(
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


def _subtitle(timetable: Timetable) -> str:
    units, count = timetable.units, timetable.hyperperiod_windows
    repeats = f"; the plan repeats after {count} windows" if count > 1 else ""
    return f"on {', '.join(units)}; windows of {format_beat(timetable)}{repeats}"


def _verdict(content: PlanContent) -> Markup:
    """Whether it fits, and by how much."""
    timetable, workload = content.timetable, content.workload
    if workload is not None:
        text = slack_sentence(timetable, workload)
    else:
        text = f"Worst slack {format_duration(timetable.worst_slack_ns)}."
    return verdict("fits", "Fits.", text) if timetable.feasible else verdict("fails", "Does not fit.", text)


def _quantities(content: PlanContent) -> Iterator[Quantity]:
    timetable = content.timetable
    lengths = {window.length_ns for window in timetable.windows}
    differ = max(lengths, default=0) > min(lengths, default=0) + 1
    yield _time("Window", timetable.window_ns, "the shortest one" if differ else "one beat")
    slack = timetable.worst_slack_ns
    yield _time("Worst slack", slack, "stays free in the tightest window" if slack >= 0 else "is missing", "more")
    if timetable.priority_ns:
        yield _time("Priority period", timetable.priority_ns, f"{format_ratio(reserved_share(timetable))} of a window")
    left = timetable.residual_ns
    remark = "what is left of it" if left > 0 else f"{format_duration(-left)} beyond the window"
    yield Quantity("Residual", left, format_duration(left) if left > 0 else "none", remark, "more", card=True)
    if timetable.guard_ns:
        yield _time("Guard", timetable.guard_ns, "kept free before each reserved instant")
    oldest = max((model.result_age_windows or 0 for model in timetable.models), default=0)
    if timetable.feasible and oldest and lengths:
        remark = f"bound: {oldest} window{'s' * (oldest != 1)} after its release"
        yield _time("Oldest result", oldest * max(lengths), remark, "less")
    parts = () if content.workload is None else loss_of(timetable, accounts(timetable, content.workload)).shares
    if timetable.feasible and parts:
        yield fraction_row("Residual at work", parts[0][1], "more", "the rest: see where it goes, below", card=True)
    if timetable.memory_bytes:
        most = max(timetable.memory_bytes, key=lambda unit: timetable.memory_bytes[unit])
        size = timetable.memory_bytes[most]
        yield Quantity("Memory", size, format_bytes(size), f"tensors on {most}", "less", card=True)
    for model in timetable.models:
        yield Quantity(f"{model.name}: duration", model.duration_ns, format_duration(model.duration_ns), "", "less")
        yield Quantity(f"{model.name}: segments", len(model.segments), str(len(model.segments)))


def _time(name: str, ns: int, remark: str, better: Better = "") -> Quantity:
    return Quantity(name, ns, format_duration(ns), remark, better, card=True)


def _help(timetable: Timetable) -> str:
    if timetable.feasible:
        return ""
    parts = []
    if timetable.binding_constraint:
        parts.append(panel("What binds", Markup(f'<p class="binds">{escape(timetable.binding_constraint)}</p>')))
    if timetable.fixes:
        rows = [
            (
                Markup(f"<code>{escape(fix.change)}</code>"),
                fix.effect,
                Markup('<b class="yes">planned again: fits</b>') if fix.verified else "not verified",
            )
            for fix in timetable.fixes
        ]
        listed = table("What would help", rows, words=("change", "what it gives", "sure?"))
        parts.append(panel("What would help", listed))
    return f'<div class="help">{"".join(parts)}</div>' if parts else ""


def _legend(timetable: Timetable, pictures: WindowPictures) -> Iterator[str]:
    def entry(mark: str, text: str) -> str:
        return f"<span>{mark}{escape(text)}</span>"

    for name, look in pictures.looks.items():
        shades = "".join(f'<i style="background:{shade}"></i>' for shade in dict.fromkeys((look.fill, look.alternate)))
        yield entry(shades, name)
    if timetable.priority_ns:
        yield entry('<i class="keep"></i>', "priority period")
    if timetable.guard_ns:
        yield entry('<i class="hatched"></i>', "guard")
    yield entry('<i class="arc"></i>', "a frame, from its release to its result; dashed: it waits")


def _windows(timetable: Timetable, pictures: WindowPictures) -> str:
    count = len(timetable.windows)
    if not count:
        return '<p class="note">There are no windows.</p>'
    drawn = [pictures.window(place) for place in range(min(count, _MOST_WINDOWS))]
    rest = drawn[_FIRST_WINDOWS:] if count > _FIRST_WINDOWS + _FEW_WINDOWS else []
    text = f'<div class="windows">{"".join(drawn[: len(drawn) - len(rest)])}</div>'
    if rest:
        more = Markup(f'<div class="windows">{"".join(rest)}</div>')
        text += f'<div class="more">{folded(f"Windows {len(drawn) - len(rest)} to {len(drawn) - 1}", more)}</div>'
    if count > len(drawn):
        text += (
            f'<p class="note">The plan goes on: {count - len(drawn)} more windows are left out here; '
            "timetable.json has them all.</p>"
        )
    return text


def _story(account: Account, timetable: Timetable, workload: Workload, pictures: WindowPictures) -> Markup:
    model = account.model
    told = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(text.replace('->', _ARROW))}</dd></div>"
        for label, text in sentences(account, timetable, workload)
    )
    return Markup(
        f'<section class="panel story"><h3>{escape(model.name)} <small class="role">{model.role}</small>'
        f"</h3>{need_picture(account, timetable, pictures.looks[model.name])}<dl>{told}</dl></section>"
    )


def _losses(timetable: Timetable, told: Sequence[Account]) -> str:
    parts = loss_of(timetable, told).shares if told else ()
    if not parts or not timetable.feasible or all(model.role == "priority" for model in timetable.models):
        return ""
    return panel("Where the residuals go", shares(parts))


def _models(timetable: Timetable, told: Sequence[Account]) -> Markup:
    rows = []
    seconds = sum(window.length_ns for window in timetable.windows) / 1e9
    results = {account.model.name: len(account.ways) for account in told}
    for model in timetable.models:
        cut, difference = len(model.segments) > 1, model.max_relative_difference
        rate_hz = results.get(model.name, 0) / seconds if seconds else 0.0
        rows.append(
            (
                model.name,
                model.role,
                quantity(model.level, str(model.level)),
                quantity(model.duration_ns, format_duration(model.duration_ns)),
                quantity(len(model.segments), str(len(model.segments))),
                quantity(rate_hz, format_hz(rate_hz)) if rate_hz else "\u2013",
                _bound(model.result_age_windows),
                quantity(model.segmentation_overhead_ratio, format_ratio(model.segmentation_overhead_ratio))
                if cut
                else "\u2013",
                format_difference(difference) if cut and timetable.feasible else "\u2013",
            )
        )
    right = ("level", "duration", "segments", "results", "age", "overhead", "difference")
    note = "Age: bound, in windows after the release. Overhead, difference: of cutting."
    return panel("Models", table("Models", rows, left=("model", "role"), right=right), note)


def _segments(timetable: Timetable, percentile: str) -> Markup:
    rows: list[tuple[str, ...]] = []
    for model in timetable.models:
        prefix = common_prefix(model)
        for segment in model.segments:
            layers = (segment.fill_layer, segment.last_layer, *segment.output_layers)
            fill, last, *out = (layer.removeprefix(prefix) for layer in layers)
            figures = (
                quantity(segment.index, str(segment.index)),
                quantity(segment.duration_ns, format_duration(segment.duration_ns)),
                quantity(segment.median_ns, format_duration(segment.median_ns)),
                quantity(segment.boundary_bytes, format_bytes(segment.boundary_bytes)),
            )
            rows += [(model.name, segment.unit, *figures, fill, last, ", ".join(out))]
    right = ("segment", percentile, "p50", "hands on")
    words = ("fill layer", "last layer", "output layers")
    note = "The fill layer receives the tensors of the segment before; the output layers hand on."
    listed = table("Segments", rows, left=("model", "unit"), right=right, words=words)
    return panel("Segments", listed, note)


def _bound(age_windows: int | None) -> str:
    return "no bound" if age_windows is None else str(age_windows)


def _durations(named: Sequence[tuple[str, PlanContent]]) -> list[Chart]:
    """What the models take, of several plans side by side; a single one's windows say it."""
    if len(named) == 1:
        return []
    models = tuple(dict.fromkeys(model.name for _, plan in named for model in plan.timetable.models))
    lines = []
    for place, (name, plan) in enumerate(named):
        ms = {model.name: model.duration_ns / 1e6 for model in plan.timetable.models}
        data = tuple((float(at), ms[model], None, None) for at, model in enumerate(models) if model in ms)
        lines.append(Line(name=name, kind="bars", data=data, colour=colour(place)))
    told = (f"{name}: worst slack {format_duration(plan.timetable.worst_slack_ns)}" for name, plan in named)
    return [
        Chart(
            title="What the models take",
            summary=f"The planned quantile of a whole frame. {'; '.join(told)}.",
            x=Axis(name="duration", unit="ms", low=0.0),
            y=Axis(name="", scale="category", categories=models),
            lines=tuple(lines),
            height_px=row_height_px(len(named) * len(models)),
        )
    ]


PLANS = Kind(
    noun="plan",
    plural="plans",
    verdict=_verdict,
    quantities=lambda content: list(_quantities(content)),
    charts=_durations,
    tables=lambda content, name: plan_markup(content.timetable, content.workload, f"{name}-plan"),
    uses=("plan",),
)
