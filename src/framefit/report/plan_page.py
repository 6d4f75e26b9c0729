"""A plan as a page (``framefit plan --page``): one file, nothing loaded from elsewhere.

Pictures and words stand in the page as they are, so that it can be read and printed without a
script; the script adds what moves: details on touch, and labels where there is room for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from framefit.core.files import Record, write_whole
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload
from framefit.report.explained import Account, accounts, loss_of
from framefit.report.pages import filled, script_json
from framefit.report.plan_picture import WindowPictures, need_picture
from framefit.report.plan_tables import common_prefix, format_beat
from framefit.report.plan_words import percentile_name, sentences, slack_sentence
from framefit.report.spanning import reserved_share
from framefit.report.tables import (
    format_bytes,
    format_difference,
    format_duration,
    format_ratio,
)

__all__ = ["write_plan_page"]

_FIRST_WINDOWS = 12  # drawn at once; more are folded, if it is more than
_FEW_WINDOWS = 4
_MOST_WINDOWS = 240  # of a plan that repeats later still, the page would take long to open
_OPEN_ROWS = 40  # of segments; a longer table is folded
_ARROW = "\u2192"
_SHARE_COLOURS = ("#2f9e6e", "#af7ac5", "#f5b041", "#e5683b", "#aab7b8")


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
    told = accounts(timetable, workload)
    pictures = WindowPictures(timetable, told)
    heading = " + ".join(model.name for model in timetable.models)
    parts = {
        "heading": escape(heading),
        "subtitle": escape(f"{title}, {_subtitle(timetable)}"),
        "verdict": _verdict(timetable, workload),
        "cards": "".join(_cards(timetable, told)),
        "help": _help(timetable),
        "legend": "".join(_legend(timetable, pictures)),
        "windows": _windows(timetable, pictures),
        "stories": "".join(_story(account, timetable, workload, pictures) for account in told),
        "losses": _losses(timetable, told),
        "models": _models(timetable, told),
        "segments": _segments(timetable, percentile_name(workload)),
        "notes": _panel("Notes", f"<ul>{_items(timetable.reasons)}</ul>") if timetable.reasons else "",
        "percentile": percentile_name(workload),
        "page": script_json(_page(timetable, workload)),
    }
    text = filled(
        "plan.html", title=f"{title}: {heading}", styles=("page.css", "plan.css"), scripts=("plan.js",), parts=parts
    )
    with write_whole(path, force=force) as file:
        file.write(text.encode())


def _page(timetable: Timetable, workload: Workload) -> _Page:
    return _Page(
        percentile=percentile_name(workload),
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


def _verdict(timetable: Timetable, workload: Workload) -> str:
    kind, word = ("fits", "Fits.") if timetable.feasible else ("fails", "Does not fit.")
    text = slack_sentence(timetable, workload)
    return f'<p class="verdict {kind}"><b>{word}</b> {escape(text)}</p>'


def _cards(timetable: Timetable, told: Sequence[Account]) -> Iterator[str]:
    window_ns = timetable.window_ns
    lengths = {window.length_ns for window in timetable.windows}
    differ = max(lengths, default=0) > min(lengths, default=0) + 1
    yield _card("Window", format_duration(window_ns), "the shortest one" if differ else "one beat")
    if timetable.priority_ns:
        share = format_ratio(reserved_share(timetable))
        yield _card("Priority period", format_duration(timetable.priority_ns), f"{share} of a window")
    left = timetable.residual_ns
    if left > 0:
        yield _card("Residual", format_duration(left), "what is left of it")
    else:
        yield _card("Residual", "none", f"{format_duration(-left)} beyond the window")
    if timetable.guard_ns:
        yield _card("Guard", format_duration(timetable.guard_ns), "kept free before each reserved instant")
    oldest = max((account.model.result_age_windows or 0 for account in told), default=0)
    if timetable.feasible and oldest:
        longest = format_duration(oldest * max(lengths))
        yield _card("Oldest result", longest, f"bound: {oldest} window{'s' * (oldest != 1)} after its release")
    shares = loss_of(timetable, told).shares
    if timetable.feasible and shares:
        yield _card("Residual at work", format_ratio(shares[0][1]), "the rest: see where it goes, below")
    if timetable.memory_bytes:
        most = max(timetable.memory_bytes, key=lambda unit: timetable.memory_bytes[unit])
        yield _card("Memory", format_bytes(timetable.memory_bytes[most]), f"tensors on {most}")


def _card(name: str, value: str, remark: str) -> str:
    return f'<dl class="card"><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></dl>'


def _help(timetable: Timetable) -> str:
    if timetable.feasible:
        return ""
    parts = []
    if timetable.binding_constraint:
        parts.append(_panel("What binds", f'<p class="binds">{escape(timetable.binding_constraint)}</p>'))
    if timetable.fixes:
        rows = [
            (
                f"<code>{escape(fix.change)}</code>",
                escape(fix.effect),
                '<b class="yes">planned again: fits</b>' if fix.verified else "not verified",
            )
            for fix in timetable.fixes
        ]
        parts.append(_panel("What would help", _table(("change", "what it gives", "sure?"), rows, "words")))
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
        summary = f"<summary>Windows {len(drawn) - len(rest)} to {len(drawn) - 1}</summary>"
        text += f'<details class="more">{summary}<div class="windows">{"".join(rest)}</div></details>'
    if count > len(drawn):
        text += (
            f'<p class="note">The plan goes on: {count - len(drawn)} more windows are left out here; '
            "timetable.json has them all.</p>"
        )
    return text


def _story(account: Account, timetable: Timetable, workload: Workload, pictures: WindowPictures) -> str:
    model = account.model
    told = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(text.replace('->', _ARROW))}</dd></div>"
        for label, text in sentences(account, timetable, workload)
    )
    return (
        f'<section class="panel story"><h2>{escape(model.name)} <small class="role {model.role}">{model.role}</small>'
        f"</h2>{need_picture(account, timetable, pictures.looks[model.name])}<dl>{told}</dl></section>"
    )


def _losses(timetable: Timetable, told: Sequence[Account]) -> str:
    shares = loss_of(timetable, told).shares
    if not shares or not timetable.feasible or all(model.role == "priority" for model in timetable.models):
        return ""
    bar, rows, reached = [], [], 0.0
    for (name, ratio, why), colour in zip(shares, _SHARE_COLOURS, strict=True):
        box = f'x="{100 * reached:.3f}%" width="{100 * ratio:.3f}%" height="22"'
        bar.append(f'<rect {box} y="0" fill="{colour}"><title>{escape(name)} {format_ratio(ratio)}</title></rect>')
        reached += ratio
        rows.append((f'<i style="background:{colour}"></i>{escape(name)}', format_ratio(ratio), escape(why)))
    text = f'<svg class="shares" width="100%" height="22" role="img" aria-label="shares">{"".join(bar)}</svg>'
    return _panel("Where the residuals go", text + _table(("", "share", "what it is"), rows, "words shares"))


def _models(timetable: Timetable, told: Sequence[Account]) -> str:
    rows = []
    windows = timetable.windows
    seconds = sum(window.length_ns for window in windows) / 1e9
    for account in told:
        model, cut = account.model, len(account.model.segments) > 1
        rows.append(
            (
                f"<b>{escape(model.name)}</b>",
                model.role,
                str(model.level),
                format_duration(model.duration_ns),
                str(len(model.segments)),
                f"{len(account.ways) / seconds:.2f} Hz" if account.ways and seconds else "\u2013",
                _bound(model.result_age_windows),
                format_ratio(model.segmentation_overhead_ratio) if cut else "\u2013",
                format_difference(model.max_relative_difference) if cut and timetable.feasible else "\u2013",
            )
        )
    head = ("model", "role", "level", "duration", "segments", "results", "age", "overhead", "difference")
    note = "Age: bound, in windows after the release. Overhead, difference: of cutting."
    return _panel("Models", _table(head, rows, "left2"), note)


def _segments(timetable: Timetable, percentile: str) -> str:
    rows = []
    for model in timetable.models:
        prefix = common_prefix(model)
        for segment in model.segments:
            out = ", ".join(layer.removeprefix(prefix) for layer in segment.output_layers)
            rows.append(
                (
                    f"<b>{escape(model.name)}</b>" if segment.index == 0 else "",
                    str(segment.index),
                    escape(segment.unit),
                    format_duration(segment.duration_ns),
                    format_duration(segment.median_ns),
                    format_bytes(segment.boundary_bytes),
                    escape(segment.fill_layer.removeprefix(prefix)),
                    escape(segment.last_layer.removeprefix(prefix)),
                    escape(out),
                )
            )
    head = ("model", "segment", "unit", percentile, "p50", "hands on", "fill layer", "last layer", "output layers")
    table = _table(head, rows, "layers")
    if len(rows) > _OPEN_ROWS:
        table = f"<details><summary>{len(rows)} segments</summary>{table}</details>"
    note = "The fill layer receives the tensors of the segment before; the output layers hand on."
    return _panel("Segments", table, note)


def _bound(age_windows: int | None) -> str:
    return "no bound" if age_windows is None else f"{age_windows}"


def _items(sentences: Iterable[str]) -> str:
    return "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)


def _panel(title: str, content: str, note: str = "") -> str:
    remark = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="panel"><h2>{escape(title)}</h2>{content}{remark}</section>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], style: str) -> str:
    """Cells are markup."""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    return (
        f'<div class="wide"><table class="{style}"><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>'
    )
