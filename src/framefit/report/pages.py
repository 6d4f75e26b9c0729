"""Pages of one file: skeleton, styles and scripts of ``page/`` put together, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files

import msgspec

__all__ = ["filled", "script_json"]


def filled(
    skeleton: str, *, title: str, styles: Sequence[str], scripts: Sequence[str], parts: dict[str, str] | None = None
) -> str:
    """A page's text.

    Args:
        skeleton: file in ``page/`` with places such as ``@title@``, ``@style@``, ``@script@``.
        title: plain text.
        styles: files in ``page/``, in order.
        scripts: files in ``page/``, in order: one script of them all.
        parts: for its other places: markup as it is to stand there.
    """
    folder = files("framefit.report") / "page"

    def joined(names: Sequence[str]) -> str:
        return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)

    places = {"title": escape(title), "style": joined(styles), "script": joined(scripts), **(parts or {})}
    return re.sub(r"@(\w+)@", lambda found: places[found[1]], (folder / skeleton).read_text(encoding="utf-8"))


def script_json(value: object) -> str:
    """JSON for a script element; a ``</`` in a name would end it early."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")
