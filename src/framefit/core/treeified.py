"""What a search for groups of layers that trees can stand for found: ``result.json`` of ``framefit treeify``."""

from __future__ import annotations

from framefit.core.files import Record
from framefit.core.trees import TreeKind

__all__ = ["Candidate", "ChosenGroup", "Original", "TreeifiedModel", "TreeifyResult"]


class Original(Record, kw_only=True):
    """The network as it was given.

    Attributes:
        top1: on the test data, 0 to 1.
        latency_ns: of a frame, by ONNX Runtime on one core; ``None``: not measured.
    """

    top1: float
    latency_ns: int | None


class Candidate(Record, kw_only=True):
    """A group that was tried.

    Attributes:
        first_layer, last_layer: numbers of its layers with weights, from 0.
        bound_top1: on the validation data with the group's own output quantised: no trees are better but by chance.
        top1: with trees; ``None``: given up before they were fitted in full.
        latency_ns: of the group's trees, a frame; ``None``: not measured.
        lut6: look-up tables of a fixed-function circuit; ``None``: ``framefit rtl`` counts them.
    """

    first_layer: int
    last_layer: int
    bound_top1: float
    top1: float | None
    latency_ns: int | None
    lut6: int | None


class ChosenGroup(Record, kw_only=True):
    """A group that was replaced.

    Attributes:
        first_layer, last_layer: numbers of its layers with weights, from 0.
        depth: tests of a tree.
        trees: how many.
        kind: of their leaves.
        fit_seconds: that fitting took.
    """

    first_layer: int
    last_layer: int
    depth: int
    trees: int
    kind: TreeKind
    fit_seconds: float


class TreeifiedModel(Record, kw_only=True):
    """The hybrid.

    Attributes:
        groups: that were replaced, in order.
        top1: on the test data.
        latency_ns: the network's, less the groups', plus their trees'; ``None``: not measured.
        lut6: see :class:`Candidate`.
        bytes: of the trees.
    """

    groups: tuple[ChosenGroup, ...]
    top1: float
    latency_ns: int | None
    lut6: int | None
    bytes: int


class TreeifyResult(Record, kw_only=True):
    """``framefit treeify --json``, ``result.json``.

    Attributes:
        notes: what to know of the figures.
    """

    schema_version: int = 1
    model: str
    seed: int
    original: Original
    candidates: tuple[Candidate, ...]
    chosen: TreeifiedModel
    notes: tuple[str, ...] = ()
