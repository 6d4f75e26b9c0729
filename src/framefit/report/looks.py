"""How models look in pictures, on paper, screens and terminals; and round distances of ticks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

__all__ = ["OVERRUN_LOOK", "UNKNOWN_LOOK", "Look", "axis_line", "block_of", "looks_of", "step_ms"]


@dataclass(frozen=True)
class Look:
    """How a model's bars look: plain, in every other frame, and without colour."""

    fill: str
    alternate: str
    ink: str
    block: str
    ascii_block: str


# Chosen so that neighbours differ also for colour-blind readers (blue against yellow to
# orange) and in grey, on white and on dark ground; red is left for overruns.
_PRIORITY_LOOKS = (
    Look("#2563eb", "#2563eb", "#ffffff", "█", "#"),
    Look("#0891b2", "#0891b2", "#ffffff", "▉", "%"),
)
_BACKGROUND_LOOKS = (
    Look("#f5b041", "#fad7a0", "#3d2a05", "▒", "="),
    Look("#45b39d", "#a2d9ce", "#04302a", "░", "-"),
    Look("#af7ac5", "#d7bde2", "#2c1038", "▓", "+"),
    Look("#ec7fa9", "#f7c5da", "#420c23", "▞", "*"),
    Look("#9bb53c", "#d3e09a", "#262e08", "▙", "o"),
    Look("#aab7b8", "#d5dbdb", "#1c2526", "▌", "~"),
)
UNKNOWN_LOOK = Look("#8a94a6", "#8a94a6", "#ffffff", "▘", "?")
OVERRUN_LOOK = Look("#e5383b", "#e5383b", "#ffffff", "▚", "!")


def looks_of(models: Iterable[str], priority_models: Collection[str]) -> dict[str, Look]:
    """The look of each model, in the given order, priority models first.

    Args:
        models: their names.
        priority_models: names of those that have a period of their own.
    """
    names = list(dict.fromkeys(models))
    looks = {}
    for choice, wanted in ((_PRIORITY_LOOKS, True), (_BACKGROUND_LOOKS, False)):
        named = [model for model in names if (model in priority_models) is wanted]
        looks.update({model: choice[place % len(choice)] for place, model in enumerate(named)})
    return looks


def block_of(*, coloured: bool, ascii_only: bool) -> Callable[[Look], str]:
    """The character that fills a model's bar on a terminal.

    Args:
        coloured: the terminal shows colours: one block serves all models.
        ascii_only: it shows no other characters than ASCII's.
    """
    if ascii_only:
        return lambda look: look.ascii_block
    return (lambda _: "█") if coloured else (lambda look: look.block)


def step_ms(span_ms: float, most: int) -> float:
    """A round distance of ticks.

    Args:
        span_ms: what they divide.
        most: ticks at most.
    """
    raw = span_ms / most
    magnitude = 10.0 ** np.floor(np.log10(raw))
    return float(next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= raw * 0.999))


def axis_line(cells: int, span_ms: float) -> str:
    """Times below a row that is ``cells`` wide and stands between two walls.

    Args:
        cells: of the row, without the walls.
        span_ms: that it shows; it stands at the end.
    """
    line = [" "] * (cells + 3)
    step = step_ms(span_ms, max(cells // 10, 1))
    end = f"{span_ms:.4g} ms"
    at_end = len(line) - len(end)
    for tick in range(int(span_ms / step) + 1):
        at, label = 1 + round(tick * step * cells / span_ms), f"{tick * step:g}"
        if at + len(label) < at_end:
            line[at : at + len(label)] = label
    line[at_end:] = end
    return "".join(line)
