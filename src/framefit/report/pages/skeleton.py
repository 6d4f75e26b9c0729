"""Pages of one file: skeleton, styles and scripts of ``assets/`` put together, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from framefit.core.files import write_whole
from framefit.report.pages.markup import Markup

__all__ = ["Use", "fragment", "script_json", "write_page"]


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
    return (files("framefit.report.pages") / "assets" / name).read_text(encoding="utf-8")
