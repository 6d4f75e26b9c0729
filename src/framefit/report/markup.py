"""Pieces of pages as markup, with the styles and scripts of ``assets/``; nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from framefit.core.files import write_whole

__all__ = [
    "Markup",
    "Use",
    "bullet_list",
    "cards",
    "facts_panel",
    "folded",
    "fragment",
    "joined",
    "panel",
    "panels",
    "quantity",
    "script_json",
    "shares",
    "table",
    "verdict",
    "write_page",
]


_SORTED_ROWS = 4  # shorter tables need no sorting
_LONG_ROWS = 20  # of longer ones the page shows the first dozen, until all are asked for
_SHARE_COLOURS = ("#2f9e6e", "#af7ac5", "#f5b041", "#e5683b", "#aab7b8")


class Markup(str):
    """Text that stands in a page as it is."""

    __slots__ = ()


def joined(parts: Iterable[Markup]) -> Markup:
    """Pieces one after the other."""
    return Markup("\n".join(parts))


def _marked(text: str) -> str:
    return text if isinstance(text, Markup) else escape(text)


def verdict(kind: Literal["fits", "fails", "plain"], word: str, text: str) -> Markup:
    """The one sentence that comes first.

    Args:
        kind: an answer, or none.
        word: its first words.
        text: the rest.
    """
    return Markup(f'<p class="verdict {kind}"><b>{_marked(word)}</b> {_marked(text)}</p>')


def cards(figures: Iterable[tuple[str, str, str]]) -> Markup:
    """The few figures that matter most: name, value with its unit, remark."""
    return Markup(
        "".join(
            f'<dl class="card"><dt>{_marked(name)}</dt><dd>{_marked(value)}<small>{_marked(remark)}</small></dd></dl>'
            for name, value, remark in figures
        )
    )


def panel(title: str, content: Markup, note: str = "") -> Markup:
    """Something under its title, with a remark below."""
    remark = f'<p class="note">{_marked(note)}</p>' if note else ""
    return Markup(f'<section class="panel"><h3>{_marked(title)}</h3>{content}{remark}</section>')


def panels(parts: Iterable[Markup], *, one: bool = False) -> Markup:
    """Panels side by side where there is room; ``one``: each as wide as the page. Nothing where there are none."""
    text = "".join(parts)
    return Markup(f'<div class="panels{" one" if one else ""}">{text}</div>' if text else "")


def folded(summary: str, content: Markup) -> Markup:
    """What unfolds on a click, and on paper."""
    return Markup(f"<details><summary>{_marked(summary)}</summary>{content}</details>")


def bullet_list(sentences: Iterable[str]) -> Markup:
    """Sentences, one a point."""
    return Markup(f"<ul>{''.join(f'<li>{_marked(sentence)}</li>' for sentence in sentences)}</ul>")


def quantity(value: float, text: str, note: str = "", *, kind: Literal["", "good", "bad"] = "") -> Markup:
    """A figure in a table: what it is sorted by, how it reads, and a smaller remark.

    Args:
        value: any unit.
        text: with the unit.
        note: behind it.
        kind: how it stands out.
    """
    small = f" <small>{_marked(note)}</small>" if note else ""
    mark = f' class="{kind}"' if kind else ""
    return Markup(f'<data value="{value:.17g}"{mark}>{_marked(text)}</data>{small}')


def table(
    label: str,
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[str] = (),
    right: Sequence[str] = (),
    words: Sequence[str] = (),
    plain: bool = False,
) -> Markup:
    """A table; all but short ones can be sorted, and of long ones the first rows are shown.

    Args:
        label: what it is, for those who do not see it.
        rows: cells in the order of the columns.
        left: columns of names.
        right: columns of figures, flush right.
        words: columns of sentences.
        plain: neither of that.
    """
    kinds = ["name"] * len(left) + [""] * len(right) + ["words"] * len(words)
    mark = [f' class="{kind}"' if kind else "" for kind in kinds]
    head = "".join(
        f'<th scope="col"{kind}>{_marked(name)}</th>' for name, kind in zip((*left, *right, *words), mark, strict=True)
    )
    lines = "".join(
        f"<tr>{''.join(f'<td{kind}>{_marked(cell)}</td>' for cell, kind in zip(row, mark, strict=True))}</tr>"
        for row in rows
    )
    kind = "" if plain or len(rows) < _SORTED_ROWS else "sorts long" if len(rows) > _LONG_ROWS else "sorts"
    return Markup(
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}"><table class="{kind}">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def shares(parts: Sequence[tuple[str, float, str]]) -> Markup:
    """Where something went: a bar, and its legend as a table.

    Args:
        parts: name, ratio of the whole and explanation of each; five at most.
    """
    bar, rows, reached = [], [], 0.0
    for (name, ratio, why), colour in zip(parts, _SHARE_COLOURS, strict=False):
        box = f'x="{100 * reached:.3f}%" width="{100 * ratio:.3f}%" height="22"'
        bar.append(f'<rect {box} y="0" fill="{colour}"><title>{_marked(name)} {100 * ratio:.1f} %</title></rect>')
        reached += ratio
        mark = Markup(f'<i style="background:{colour}"></i>{_marked(name)}')
        rows.append((mark, quantity(ratio, f"{100 * ratio:.1f} %"), why))
    told = ", ".join(f"{name} {100 * ratio:.1f} %" for name, ratio, _ in parts)
    picture = (
        f'<svg class="shares" width="100%" height="22" role="img" aria-label="{escape(told)}">{"".join(bar)}</svg>'
    )
    listed = table("shares", rows, left=("",), right=("share",), words=("what it is",), plain=True)
    return Markup(f'<div class="shares">{picture}{listed}</div>')


Use = Literal["report", "charts", "plan", "timeline"]
"""What a page holds beside words and tables."""
_READY = 'Object.assign(root.dataset, { wide: root.scrollWidth > innerWidth, state: "ready" });'
_STYLES: dict[Use, str] = {"report": "report.css", "plan": "plan/plan.css", "timeline": "timeline/timeline.css"}
_HOSTED: dict[Use, tuple[str, ...]] = {  # one scope for each element of that class, as a page may hold several
    "plan": ("plan/plan.js",),
    "timeline": tuple(f"timeline/{name}.js" for name in ("data", "aggregate", "draw", "overview", "control", "words")),
}


def write_page(
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
    """Write a page that any current browser opens, without a server or a network.

    Args:
        path: of the file.
        title: of the browser's tab.
        heading: above all.
        subtitle: below the heading.
        body: the page's content.
        footer: plain text.
        uses: which scripts and styles the content needs.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    scripts = ["page.js"] + ["echarts/echarts.min.js", "charts/series.js", "charts/charts.js"] * ("charts" in uses)
    code = [*map(_asset, scripts), *(_hosted(use) for use in uses if use in _HOSTED), _READY]
    text = fragment(
        "page.html",
        {
            "title": escape(title),
            "heading": escape(heading),
            "subtitle": escape(subtitle),
            "style": "\n".join(map(_asset, ("page.css", *(_STYLES[use] for use in uses if use in _STYLES)))),
            "body": body,
            "footer": escape(footer),
            "script": "\n".join(code),
        },
    )
    with write_whole(path, force=force) as file:
        file.write(text.encode())


def fragment(name: str, places: Mapping[str, str]) -> Markup:
    """A file of ``assets/`` with its places, such as ``@title@``, filled.

    Args:
        name: of the file.
        places: markup for each.
    """
    return Markup(re.sub(r"@(\w+)@", lambda found: places[found[1]], _asset(name)))


def script_json(value: object) -> str:
    """JSON for a script element; a ``</`` in a name would end it early."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _hosted(use: Use) -> str:
    code = "\n".join(map(_asset, _HOSTED[use]))
    return f'for (const host of document.querySelectorAll(".{use}")) (() => {{\n{code}\n}})();'


def _asset(name: str) -> str:
    return (files("framefit.report") / "assets" / name).read_text(encoding="utf-8")


def facts_panel(title: str, facts: Iterable[tuple[str, object]]) -> Markup:
    """Names and values, in order; empty values are left out.

    Args:
        title: above.
        facts: plain text, numbers or truth values.
    """
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(_fact_text(value))}</dd></div>"
        for name, value in facts
        if value not in ("", None)
    )
    return panel(title, Markup(f'<dl class="facts">{rows}</dl>'))


def _fact_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
