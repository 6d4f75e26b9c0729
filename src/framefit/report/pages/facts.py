"""Facts by name: what was asked, and on what it ran."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from framefit.report.pages.markup import Markup, panel

__all__ = ["facts_panel"]


def facts_panel(title: str, facts: Iterable[tuple[str, object]]) -> Markup:
    """Names and values, in order; empty values are left out.

    Args:
        title: above.
        facts: plain text, numbers or truth values.
    """
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(_told(value))}</dd></div>"
        for name, value in facts
        if value not in ("", None)
    )
    return panel(title, Markup(f'<dl class="facts">{rows}</dl>'))


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
