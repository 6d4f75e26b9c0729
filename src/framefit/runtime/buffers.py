"""Memory for the tensors between segments, planned before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framefit.core.model import Model

__all__ = ["Placement", "place", "tensor_bytes"]

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


def tensor_bytes(model: Model, bounds: Sequence[tuple[int, int]], state: Mapping[str, str]) -> int:
    """Memory of a model's tensors in these segments: its ends, state twice, and the planned block between segments.

    Args:
        model: in the layers that ``bounds`` count.
        bounds: first and last layer of each segment.
        state: graph input -> output that is fed back to it.
    """
    keep = {tensor.name for tensor in model.outputs}
    feedback = set(state.values())
    lifetimes: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    for index, (_, last) in enumerate(bounds[:-1]):
        for tensor in model.cuts[last].tensors:
            if tensor.name not in keep:
                lifetimes[tensor.name] = lifetimes.get(tensor.name, (index, index))[0], index + 1
                sizes[tensor.name] = tensor.bytes
    ends = {tensor.name: tensor.bytes * (2 if tensor.name in state else 1) for tensor in model.inputs}
    ends |= {t.name: t.bytes for t in model.outputs if t.fixed and t.name not in feedback}
    return sum(ends.values()) + place(list(sizes.values()), [lifetimes[name] for name in sizes]).total_bytes
