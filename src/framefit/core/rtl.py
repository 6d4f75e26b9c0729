"""What ``framefit rtl`` found: ``report.json`` of its folder."""

from __future__ import annotations

from typing import Literal

from framefit.core.files import Record

__all__ = ["CircuitCost", "CoreKind", "GroupCircuit", "RtlReport"]

CoreKind = Literal["fixed", "programmable"]


class CircuitCost(Record, kw_only=True):
    """What one circuit takes, by synthesis without carry chains, multipliers or block memories of any vendor.

    Attributes:
        circuit: "trees", their "encoder" (not part of them), or what they replace: "int8" or "ternary".
        lut6, lut4: look-up tables of that many inputs; ``None``: not asked for.
        lut6_depth, lut4_depth: the most tables between registers, inputs and outputs; ``None``: not asked
            for, or only a part was synthesised.
        flip_flops: bits of registers.
        memory_bits: in memories, beside tables and registers.
        factor: the figures are those of the part that was synthesised times this.
        synthesised: that part, in words.
    """

    circuit: str
    lut6: int | None
    lut4: int | None
    lut6_depth: int | None
    lut4_depth: int | None
    flip_flops: int
    memory_bits: int
    factor: float
    synthesised: str


class GroupCircuit(Record, kw_only=True):
    """The circuit of one group's trees.

    Attributes:
        group: its name.
        kind: of its ensemble: "vote", "scalar" or "vector".
        features, outputs, trees: numbers of them; a feature is two comparator bits.
        positions: rows of one example: the circuit computes one row.
        latency_cycles: from a row's input to its output; ``None``: it depends on the row.
        rows, mismatches: that were simulated, and of these the ones that differ from the model.
        cycles, nodes: of the programmable core for all these rows, and inner nodes that they visited.
        cycles_per_node: one by the other.
        costs: of the trees, and of what stands beside them; empty where synthesis was left out.
        lut6_per_output: of the fixed-function trees, without the encoder.
        notes: what to know about these figures.
    """

    group: str
    kind: str
    features: int
    outputs: int
    trees: int
    positions: int
    latency_cycles: int | None
    rows: int
    mismatches: int
    cycles: int | None = None
    nodes: int | None = None
    cycles_per_node: float | None = None
    costs: tuple[CircuitCost, ...] = ()
    lut6_per_output: float | None = None
    notes: tuple[str, ...] = ()


class RtlReport(Record, kw_only=True):
    """The circuits of a model's trees.

    Attributes:
        model: that the trees stand in.
        core: which kind.
        yosys: its version.
        seed: of the rows, and of the weights of what stands beside the trees.
    """

    schema_version: int = 1
    model: str
    core: CoreKind
    yosys: str
    seed: int
    groups: tuple[GroupCircuit, ...]
