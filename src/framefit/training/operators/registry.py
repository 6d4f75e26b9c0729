"""What an operator's function is made from, and the list of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Node
from framefit.errors import UnsupportedError

__all__ = ["OPERATORS", "Compute", "Site", "operator", "plain"]


Compute = Callable[..., Any]
"""Of all inputs of a node in order, as tensors; ``None`` where one is left out."""


@dataclass(frozen=True)
class Site:
    """Where an operator stands.

    Attributes:
        node: as in the graph.
        fixed: values of its constant inputs, by their place.
        opset: of the graph. Older forms are read too: axes, sizes and limits as attributes.
    """

    node: Node
    fixed: Mapping[int, npt.NDArray[Any]]
    opset: int

    def ints(self, name: str, default: Sequence[int]) -> list[int]:
        """An attribute of whole numbers."""
        value = self.node.attributes.get(name, tuple(default))
        return [int(size) for size in value] if isinstance(value, tuple) else [int(value)]

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        value = self.node.attributes.get(name, default)
        assert isinstance(value, int | float)
        return value

    def text(self, name: str, default: str) -> str:
        """An attribute that is a word."""
        return str(self.node.attributes.get(name, default))

    def given(self, place: int, name: str) -> list[int] | None:
        """Whole numbers that are a constant input or, in older files, an attribute; ``None``: left out.

        Raises:
            UnsupportedError: they depend on the data.
        """
        if name in self.node.attributes:
            return self.ints(name, ())
        if place >= len(self.node.inputs) or self.node.inputs[place] is None:
            return None
        if place not in self.fixed:
            raise self.refused(f"its {name} depend on the data")
        return [int(size) for size in np.ravel(self.fixed[place])]

    def refused(self, why: str) -> UnsupportedError:
        """The error for a node that cannot be trained, named."""
        return UnsupportedError(
            why,
            where=f"{self.node.op} {self.node.name!r}",
            remedy="leave it out of the part that is trained, or export it otherwise",
        )


Maker = Callable[[Site], Compute]
OPERATORS: dict[str, Maker] = {}
"""Operator -> what makes its function."""


def operator(*names: str) -> Callable[[Maker], Maker]:
    """Enter what makes the functions of these operators."""

    def enter(make: Maker) -> Maker:
        OPERATORS.update(dict.fromkeys(names, make))
        return make

    return enter


def plain(name: str, compute: Compute) -> None:
    """Enter an operator without attributes."""
    OPERATORS[name] = lambda site: compute  # noqa: ARG005 - the same function everywhere
