"""Look-up tables of a fixed-function circuit, counted as it is built: without synthesis, in no time.

Yosys shares and removes some of them. Of the circuits in benchmarks/results/hardware.json it makes 15.9 tables an
output of nine votes where these rules count 16, and 647 of 32 vector trees where they count 628.
"""

from __future__ import annotations

from framefit.core.trees import Ensemble, ObliviousTree

__all__ = ["lut6_of"]

_INPUTS = 6
_ADDER_BIT = 1.2  # tables a bit of a sum without carry chains: benchmarks/results/hardware.json, digits-vectors


def lut6_of(ensemble: Ensemble) -> int:
    """Tables of six inputs for the trees, their sums and their outputs' levels; of a picture for one position.

    Args:
        ensemble: encoded inputs come from outside.
    """
    each = ensemble.trees_each
    leaves = sum(_leaf_tables(ensemble, place) for place in range(len(ensemble.members)))
    if ensemble.kind == "vote":
        groups = [min(_INPUTS, each - begin) for begin in range(0, each, _INPUTS)]
        widths = [count.bit_length() for count in groups]
        summing = float(sum(width for width, count in zip(widths, groups, strict=True) if count > 1))
    else:
        widths, summing = [8] * each, 0.0
    # Where six bits tell the sum, an output is a table of them; else they are added two by two.
    direct = ensemble.levels is not None and sum(widths) <= _INPUTS
    while len(widths) > 1 and not direct:
        pairs = [max(pair) + 1 for pair in zip(widths[::2], widths[1::2], strict=False)]
        summing += _ADDER_BIT * sum(pairs)
        widths = pairs + widths[len(pairs) * 2 :]
    compared = 0 if ensemble.levels is None else 2 * -(-max(widths) // _INPUTS)
    return round(leaves + ensemble.outputs * (summing + (2 if direct else compared)))


def _leaf_tables(ensemble: Ensemble, place: int) -> int:
    """One for each bit of a leaf that is not the same in all leaves; a node of a free tree selects each bit."""
    tree = ensemble.members[place]
    bits = 1 if ensemble.kind == "vote" else 8
    if not isinstance(tree, ObliviousTree):
        return len(tree.nodes) * (1 + bits * ensemble.width)
    found = 0
    for output in range(ensemble.width):
        column = tree.leaves[output :: ensemble.width]
        found += sum(len({value >> bit & 1 for value in column}) > 1 for bit in range(bits))
    return found
