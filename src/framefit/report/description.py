"""What a report is made of: subjects of several kinds, and how each kind is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from framefit.report.charts import Chart
from framefit.report.markup import Markup, Use, cards

__all__ = ["Better", "Kind", "Quantity", "Subject", "card_row", "fraction_row"]


Better = Literal["less", "more", ""]
T = TypeVar("T")


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


@dataclass(frozen=True)
class Quantity:
    """A figure of a subject: for a card, and for a line of a comparison.

    Attributes:
        name: what it is; equal names of several subjects are compared.
        value: for differences, in any unit.
        text: with its unit.
        remark: what stands below it on a card.
        better: which way is better.
        card: whether it is one of the few that come first.
    """

    name: str
    value: float
    text: str
    remark: str = ""
    better: Better = ""
    card: bool = False


def fraction_row(name: str, ratio: float, better: Better = "", remark: str = "", *, card: bool = False) -> Quantity:
    """A ratio as a quantity, in percent."""
    return Quantity(name, ratio, f"{100 * ratio:.1f} %", remark, better, card)


@dataclass(frozen=True)
class Kind(Generic[T]):
    """How subjects of one kind are told.

    Attributes:
        noun, plural: what they are.
        verdict: the one sentence.
        quantities: figures; those with ``card`` come first.
        charts: of one subject, or of several overlaid.
        picture: what comes before the charts; needs an id.
        tables: what comes behind them; likewise.
        beside: of several, what their figures and charts do not tell.
        uses: of picture and tables.
    """

    noun: str
    plural: str
    verdict: Callable[[T], Markup]
    quantities: Callable[[T], Sequence[Quantity]]
    charts: Callable[[Sequence[tuple[str, T]]], Sequence[Chart]]
    tables: Callable[[T, str], Markup]
    picture: Callable[[T, str], Markup] | None = None
    beside: Callable[[Sequence[tuple[str, T]]], Markup] | None = None
    uses: tuple[Use, ...] = ()


def card_row(quantities: Sequence[Quantity]) -> Markup:
    """The quantities that are cards, beside each other."""
    shown = cards((one.name, one.text, one.remark) for one in quantities if one.card)
    return Markup(f'<div class="cards">{shown}</div>')
