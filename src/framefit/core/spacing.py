"""Which frames of a stream are a model's own, where it takes fewer than come (``every``).

A model of spacing p/q takes q of p frames, evenly spread: its frame n is the stream's frame ceil(n p / q), so that two
of its frames are floor(p / q) or ceil(p / q) apart. With q = 1 that is every p-th frame. The set of frames is the
Euclidean rhythm of q onsets in p steps (Bjorklund, "The Theory of Rep-Rate Pattern Generation in the SNS Timing
System", 2003), begun with an onset.
"""

from __future__ import annotations

import math
from fractions import Fraction

__all__ = ["apart", "every_of", "least_apart", "own_frame"]


def every_of(spacing: Fraction) -> int | str:
    """A spacing as the key ``every`` states it: 2, or "3/2"."""
    return spacing.numerator if spacing.denominator == 1 else str(spacing)


def own_frame(number: int, spacing: Fraction | int) -> int | None:
    """Number of a model's frame that is the stream's frame of this number; ``None``: the model leaves that out.

    Args:
        number: of the stream's frame; before its first one where it is negative.
        spacing: 1 or more.
    """
    frame, rest = divmod(number * spacing.denominator, spacing.numerator)
    return frame if rest < spacing.denominator else None


def apart(frames: int, spacing: Fraction | int) -> int:
    """The most frames of the stream that come from one frame of the model to the one so many later."""
    return math.ceil(frames * spacing)


def least_apart(frames: int, spacing: Fraction | int) -> int:
    """The fewest of them."""
    return math.floor(frames * spacing)
