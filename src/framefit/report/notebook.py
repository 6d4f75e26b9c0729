"""Results in a notebook: their verdict, figures and tables as HTML, and their tables for pandas."""

from __future__ import annotations

import importlib
from typing import Any

from framefit.errors import InputError
from framefit.report.description import Cell, Description, Section
from framefit.report.html import rendered
from framefit.report.sections import kind_of


def as_html(content: object) -> str:
    """What a terminal shows of a result, as HTML with its own styles."""
    _, kind = kind_of(content)
    return rendered("notebook.html", it=kind.describe(content, detail="normal"))


def as_frame(content: object, table: str | None = None) -> Any:
    """A table of a result.

    Args:
        content: the result.
        table: title of the table; default: its longest one.

    Returns:
        ``pandas.DataFrame`` with a row for each of its rows. Figures are numbers in the unit of the result's record
        (ns, bytes, ratios), and what is text is text.

    Raises:
        InputError: pandas is not installed, or there is no such table.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise InputError("pandas is not installed", remedy="pip install pandas") from error
    _, kind = kind_of(content)
    sections = _sections(kind.describe(content, detail="page"))
    if not sections:
        raise InputError(f"this {kind.noun} has no table", remedy="read its attributes")
    if table is None:
        section = max(sections, key=lambda each: len(each.rows))
    else:
        titled = [each for each in sections if each.title == table]
        if not titled:
            titles = ", ".join(repr(each.title) for each in sections)
            raise InputError(f"this {kind.noun} has no table {table!r}", remedy=f"name one of {titles}")
        section = titled[0]
    rows = [[_plain(cell) for cell in row] for row in section.rows]
    return pandas.DataFrame(rows, columns=[column.name for column in section.columns])


def _sections(description: Description) -> list[Section]:
    return [block for block in description.blocks if isinstance(block, Section)]


def _plain(cell: Cell | str) -> Any:
    """A cell's figure, else its text; ``None`` where there is none."""
    text = cell if isinstance(cell, str) else cell.text
    if not isinstance(cell, str) and cell.value is not None:
        return cell.value
    return None if text in ("", "-") else text
