"""What a runtime's operators take, told of the layers that the user knows.

A runtime names what it makes of a layer after the layer's result, and puts its own copies between
layouts around it: such a copy counts with what made the tensor, or, at the beginning, with what
reads it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from framefit.core.model import Layer, Model
from framefit.core.results import LatencyEstimate, LayerLatency

__all__ = ["attributed", "owners"]

_OWN_NAMES = re.compile(r"(_token_\d+|(_bn)?_nchwc|_new_reshape|/MatMul\w*Fusion.*)$")


def owners(model: Model, lowered: Model) -> list[int]:
    """Which layer each of a runtime's operators belongs to.

    Args:
        model: as the user has it, with groups as layers.
        lowered: what the runtime made of it.

    Returns:
        For each layer of ``lowered`` the position of one of ``model``.
    """
    owner = {tensor.name: index for index, layer in enumerate(model.layers) for tensor in layer.outputs}
    owner |= {name: index for index, layer in enumerate(model.layers) for name in layer.nodes}
    maker: dict[str, int] = {}
    found: list[int | None] = []
    for layer in lowered.layers:
        known = _owner(layer, owner)
        if known is None:
            known = max((maker[tensor.name] for tensor in layer.inputs if tensor.name in maker), default=None)
        found.append(known)
        if known is not None:
            maker |= {tensor.name: known for tensor in layer.outputs}
    places, following = [], 0
    for known in reversed(found):  # what nothing made belongs to what comes next
        following = following if known is None else known
        places.append(following)
    return places[::-1]


def attributed(model: Model, places: Sequence[int], found: LatencyEstimate) -> LatencyEstimate:
    """An estimate by the layers of a model, whatever the runtime made of them.

    Args:
        model: as the user has it, with groups as layers.
        places: of :func:`owners`.
        found: the estimate of what the runtime made of it.

    Returns:
        The same total; a layer whose work the runtime gave to another one takes nothing.
    """
    parts: list[list[LayerLatency]] = [[] for _ in model.layers]
    for place, told in zip(places, found.layers, strict=True):
        parts[place].append(told)
    layers = tuple(_joined(layer, own) for layer, own in zip(model.layers, parts, strict=True))
    return msgspec.structs.replace(found, layers=layers)


def _owner(layer: Layer, owner: dict[str, int]) -> int | None:
    """The user's layer that an operator is named after, or whose result it makes."""
    for name in (*(tensor.name for tensor in layer.outputs), layer.name):
        while name not in owner and (shorter := _OWN_NAMES.sub("", name)) != name:
            name = shorter
        if name in owner:
            return owner[name]
    return None


def _joined(layer: Layer, parts: list[LayerLatency]) -> LayerLatency:
    """Sum of a layer's operators; their errors are independent."""
    total = sum(part.latency_ns for part in parts)
    low = math.sqrt(sum((part.latency_ns - part.interval_ns[0]) ** 2 for part in parts))
    high = math.sqrt(sum((part.interval_ns[1] - part.latency_ns) ** 2 for part in parts))
    sources = list(dict.fromkeys(part.source for part in parts))
    return LayerLatency(
        name=layer.name,
        op=layer.op,
        latency_ns=total,
        interval_ns=(max(round(total - low), 0), round(total + high)),
        source=", ".join(sources) if sources else "part of another layer",
    )
