"""What a result says, once for terminal and page: a verdict, quantities, tables, lists and pictures.

A file of ``sections`` describes one kind of result with these; :mod:`~framefit.report.terminal` and
:mod:`~framefit.report.html` write any description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from framefit.core.verdict import SERVED, Served, frames_text, gets, share_ratio
from framefit.core.verdict import Verdict as WorkloadVerdict
from framefit.report.charts import Chart
from framefit.report.formats import format_bytes, format_duration, format_hz, format_ratio

if TYPE_CHECKING:
    from framefit.core.explanation import ModelGraph, PlanExplanation
    from framefit.core.profile import RunWindows
    from framefit.core.timetable import Timetable
    from framefit.report.timeline import Happened

__all__ = ["Detail", "Subject"]


T = TypeVar("T")
Better = Literal["less", "more", ""]
Detail = Literal["brief", "normal", "full", "page"]
"""How much is shown: the result alone, what a command prints, all that a terminal can show, or a page."""
Tone = Literal["", "good", "bad", "uncertain", "faint", "priority", "background", "sporadic"]
Use = Literal["report", "charts", "plan", "timeline"]
"""What a page holds beside words and tables: each has styles and scripts."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: with its unit.
        value: that a page sorts by; ``None``: by the text.
        note: a smaller remark behind it.
        tone: how it stands out.
        bar: drawn as a bar of this part of the whole, too.
    """

    text: str
    value: float | None = None
    note: str = ""
    tone: Tone = ""
    bar: float | None = None


NONE = Cell("-")
"""There is no such figure."""


def duration(ns: float | None) -> Cell:
    """A time in nanoseconds; of ``None`` there is none."""
    return NONE if ns is None else Cell(format_duration(ns), ns)


def ratio(value: float | None, tone: Tone = "") -> Cell:
    """A ratio as a percentage."""
    return NONE if value is None else Cell(format_ratio(value), value, tone=tone)


def count(number: float | None, tone: Tone = "") -> Cell:
    """A whole number."""
    return NONE if number is None else Cell(f"{number:,}", number, tone=tone)


def size(number: int | None) -> Cell:
    """A number of bytes."""
    return NONE if number is None else Cell(format_bytes(number), number)


def rate(hz: float | None) -> Cell:
    """Results a second."""
    return NONE if hz is None else Cell(format_hz(hz), hz)


def served(model: Served) -> Cell:
    """Frames a second that a model gets of those that it asks for; nothing where they are not told."""
    if not model.asked_hz:
        return NONE
    short = share_ratio(model) < SERVED
    return Cell(frames_text(model), model.served_hz, tone="uncertain" if short else "")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        kind: names and words stand left, figures right.
        page: it is shown on pages only, as a terminal has no room for it.
        short: where it is narrow, a terminal shortens its texts; other words are folded.
    """

    name: str
    kind: Literal["name", "figure", "words"] = "figure"
    page: bool = False
    short: bool = False


def columns(
    names: Sequence[str] = (),
    figures: Sequence[str] = (),
    words: Sequence[str] = (),
    page: Sequence[str] = (),
    short: Sequence[str] = (),
) -> tuple[Column, ...]:
    """Columns of names, figures and words, in this order; ``page`` and ``short`` name those that are so."""
    kinds: tuple[tuple[Sequence[str], Literal["name", "figure", "words"]], ...] = (
        (names, "name"),
        (figures, "figure"),
        (words, "words"),
    )
    return tuple(
        Column(name, kind, name in page, kind == "name" or name in short) for group, kind in kinds for name in group
    )


@dataclass(frozen=True)
class Section:
    """A table under its title.

    Attributes:
        rows: cells in the order of the columns; a string is a cell of that text.
        note: a sentence below it.
        most: rows that a terminal shows; a page shows all.
        plain: too short, or in an order that matters: a page does not sort it.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]
    note: str = ""
    most: int = 200
    plain: bool = False

    @property
    def wide(self) -> bool:
        """Whether it needs the width of a page."""
        return len(self.columns) > 6 or any(column.kind == "words" for column in self.columns)


@dataclass(frozen=True)
class Sentences:
    """Sentences under a title, one a point; some are about something that has a name."""

    title: str
    items: Sequence[str | tuple[str, str]]
    wide: bool = False


@dataclass(frozen=True)
class Prose:
    """A text under its title, line by line as it was written."""

    title: str
    text: str
    wide: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and their values under a title; empty values are left out."""

    title: str
    items: Sequence[tuple[str, object]]
    wide: bool = False

    @property
    def shown(self) -> list[tuple[str, str]]:
        """What is not empty, as text."""
        return [
            (name, ("yes" if value else "no") if isinstance(value, bool) else str(value))
            for name, value in self.items
            if value not in ("", None)
        ]


@dataclass(frozen=True)
class Shares:
    """Where something went: name, ratio of the whole and explanation of each part, five at most."""

    title: str
    parts: Sequence[tuple[str, float, str]]
    wide: bool = False


@dataclass(frozen=True)
class Story:
    """How one model came to its part of a plan, as labelled sentences."""

    name: str
    role: str
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class PlanPicture:
    """The windows of a plan, and each model's story.

    Attributes:
        explanation: ``None``: not known; then paths and stories are left out.
        percentile: that durations are planned at.
    """

    timetable: Timetable
    explanation: PlanExplanation | None
    stories: Sequence[Story]
    percentile: str


@dataclass(frozen=True)
class Graph:
    """The layers of a model and its cuts, on a page; a terminal leaves it away."""

    title: str
    graph: ModelGraph
    wide: bool = True


@dataclass(frozen=True)
class Beside:
    """Plans side by side on a page, each with its title; a terminal leaves them away."""

    plans: Sequence[tuple[str, PlanPicture]]


@dataclass(frozen=True)
class RunPicture:
    """Windows of a run as a terminal draws them."""

    rows: RunWindows


@dataclass(frozen=True)
class Timeline:
    """Every operation of a trace, as a page draws them."""

    happened: Happened


@dataclass(frozen=True)
class Folded:
    """Another description, which a page unfolds on a click and a terminal leaves away."""

    summary: str
    content: Description


Block = Section | Sentences | Prose | Facts | Shares | PlanPicture | Graph | Beside | RunPicture | Timeline | Folded


@dataclass(frozen=True)
class Verdict:
    """The sentence that comes first.

    Attributes:
        kind: an answer, or none.
        word: its first words.
        text: the rest.
    """

    kind: Literal["fits", "fails", "plain"]
    word: str
    text: str

    @classmethod
    def of(cls, verdict: WorkloadVerdict, end: str, text: str, models: Sequence[Served] = ()) -> Verdict:
        """The verdict on a workload, with what the models get that get fewer frames than they ask for.

        Args:
            verdict: from a plan, a run or a fit.
            end: of its words.
            text: what follows.
            models: of the workload.
        """
        kinds: dict[WorkloadVerdict, Literal["fits", "fails", "plain"]] = {
            "fits": "fits",
            "fits with fewer frames": "plain",
            "does not fit": "fails",
        }
        short = [gets(model) for model in models if share_ratio(model) < SERVED and verdict != "does not fit"]
        sentence = f"{'; '.join(short)}." if short else ""
        return cls(kinds[verdict], verdict.capitalize() + end, " ".join(part for part in (sentence, text) if part))


@dataclass(frozen=True)
class Quantity:
    """A figure of a result: for a card, a line of a terminal, and a line of a comparison.

    Attributes:
        name: what it is; equal names of several results are compared.
        value: for differences, in any unit.
        text: with its unit.
        remark: what stands below or behind it.
        better: which way is better.
        card: whether it is one of the few that come first.
    """

    name: str
    value: float
    text: str
    remark: str = ""
    better: Better = ""
    card: bool = False


def ratio_quantity(name: str, value: float, better: Better = "", remark: str = "", *, card: bool = False) -> Quantity:
    """A ratio as a quantity, in percent."""
    return Quantity(name, value, f"{100 * value:.1f} %", remark, better, card)


@dataclass(frozen=True)
class Description:
    """All that is said of one result.

    Attributes:
        quantities: those with ``card`` come first, the others are only compared.
        blocks: in order.
    """

    verdict: Verdict
    quantities: Sequence[Quantity] = ()
    blocks: Sequence[Block] = ()

    @property
    def cards(self) -> list[Quantity]:
        """The few figures that matter most."""
        return [quantity for quantity in self.quantities if quantity.card]


def _nothing(_: Sequence[tuple[str, Any]]) -> Sequence[Any]:
    return ()


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of result.

    Attributes:
        noun, plural: what they are.
        describe: a result in words and figures; takes ``detail`` and what else only this kind has.
        charts: of one result, or of several overlaid.
        beside: of several, what their figures and charts do not show.
        uses: styles and scripts that its blocks need in a page.
    """

    noun: str
    plural: str
    describe: Callable[..., Description]
    charts: Callable[[Sequence[tuple[str, T]]], Iterable[Chart]] = _nothing
    beside: Callable[[Sequence[tuple[str, T]]], Iterable[Block]] = _nothing
    uses: tuple[Use, ...] = ()


@dataclass(frozen=True)
class Subject(Generic[T]):
    """One input of a report.

    Attributes:
        name: short, as legends and headings have it.
        where: its path.
        content: what was read there.
    """

    name: str
    where: str
    content: T
