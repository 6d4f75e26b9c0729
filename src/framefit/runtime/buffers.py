"""Memory for the tensors between segments, planned before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Placement", "place"]

_ALIGNMENT = 64


@dataclass(frozen=True)
class Placement:
    """Where each tensor lies in one shared block.

    Attributes:
        offsets: in bytes, in the order asked for.
        total_bytes: size of the block.
    """

    offsets: tuple[int, ...]
    total_bytes: int


def place(sizes: Sequence[int], lifetimes: Sequence[tuple[int, int]]) -> Placement:
    """Share memory between tensors that are never alive together.

    Largest first, each at the lowest offset at which nothing that lives at the same
    time is in the way (Pisarchyk and Lee, 2020, "Efficient Memory Management for Deep
    Neural Net Inference", greedy by size).

    Args:
        sizes: bytes.
        lifetimes: first and last segment, both inclusive, that need the tensor.
    """
    offsets = [0] * len(sizes)
    placed: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], lifetimes[i])):
        first, last = lifetimes[index]
        size = -(-sizes[index] // _ALIGNMENT) * _ALIGNMENT
        offset = 0
        for other in sorted(placed, key=offsets.__getitem__):
            if lifetimes[other][0] > last or lifetimes[other][1] < first:
                continue
            if offset + size <= offsets[other]:
                break
            offset = max(offset, offsets[other] + -(-sizes[other] // _ALIGNMENT) * _ALIGNMENT)
        offsets[index] = offset
        placed.append(index)
    total = max((offsets[i] + -(-sizes[i] // _ALIGNMENT) * _ALIGNMENT for i in placed), default=0)
    return Placement(tuple(offsets), total)
