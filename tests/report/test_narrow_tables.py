"""Tables on narrow terminals: figures whole, sentences below, and what has no room is named."""

from __future__ import annotations

import io

from rich.console import Console

from framefit.report.description import Section, columns
from framefit.report.terminal import _Table

STEPS = Section(
    "Steps",
    columns(("step",), ("predicted", "before", "after", "took"), ("what", "why")),
    [
        ["1", "164.9 %", "164.9 %", "93.4 %", "0.1 s", "sparsify 'reader' to 0.52 of its cycles", "it is the cheapest"],
        ["2", "-", "93.4 %", "-", "1.0 s", "simulate the plan", ""],
    ],
)


def lines(width: int, section: Section = STEPS) -> list[str]:
    """The table's lines on a terminal of this width."""
    console = Console(width=width, file=io.StringIO())
    console.print(_Table(section))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_where_there_is_room_words_stand_in_their_row() -> None:
    """One line a row."""
    shown = lines(140)
    assert [line.split()[0] for line in shown[3:]] == ["1", "2"]
    assert "sparsify 'reader' to 0.52 of its cycles" in shown[3]


def test_where_there_is_none_they_stand_below_and_no_word_is_broken() -> None:
    """Each row's words behind what begins the row; figures stay whole."""
    shown = lines(60)
    assert shown[3].split() == ["1", "164.9", "%", "164.9", "%", "93.4", "%", "0.1", "s"]
    assert shown[5].startswith("1 sparsify 'reader' to 0.52 of its cycles: it is the")
    assert shown[-1] == "2 simulate the plan"


def test_figures_without_room_are_named() -> None:
    """They are left out from the right."""
    shown = lines(34)
    assert shown[3].split() == ["1", "164.9", "%", "164.9", "%", "93.4", "%"]
    assert "No room for: took" in " ".join(shown)


def test_rows_that_begin_alike_differ_by_their_first_figure() -> None:
    """In the lines below the table; a row without words has none."""
    words = "a sentence that has no room beside the figures of a row"
    rows = [["board", "30 Hz", "10 %", words], ["board", "60 Hz", "20 %", "-"], ["other", "60 Hz", "30 %", words]]
    shown = lines(40, Section("Rates", columns(("target",), ("rate", "load"), ("why",)), rows))
    below = " ".join(" ".join(shown[6:]).split())
    assert below.startswith("board 30 Hz a sentence")
    assert "other 60 Hz a sentence" in below
    assert "board 60 Hz" not in below
