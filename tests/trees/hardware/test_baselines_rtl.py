"""What stands beside the trees computes what it says."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="needs the extra hw: pip install 'framefit[hw]'")

from amaranth.sim import Simulator

from framefit.trees.hardware.synthesis import Int8Neuron, TernaryNeuron, drawn_int8, drawn_ternary


def outputs(circuit, inputs) -> list[int]:
    """Values of ``y``, for values of ``x``."""
    found = []

    async def drive(context) -> None:
        for value in inputs:
            context.set(circuit.x, value)
            found.append(context.get(circuit.y))

    simulator = Simulator(circuit)
    simulator.add_testbench(drive)
    simulator.run()
    return found


def test_an_int8_neuron_is_a_dot_product() -> None:
    """Extremes included: all inputs at -128 against all weights at 127 and -127."""
    random = np.random.default_rng(0)
    for weights in (drawn_int8(7, random), np.full(7, 127, np.int8), np.zeros(3, np.int8)):
        x = random.integers(-128, 128, (20, len(weights))).astype(np.int8)
        x[0], x[1] = -128, 127
        found = outputs(Int8Neuron(weights), [int.from_bytes(row.tobytes(), "little") for row in x])
        assert found == (x.astype(int) @ weights.astype(int)).tolist()


def test_a_ternary_neuron_is_a_dot_product_with_two_thresholds() -> None:
    """Of inputs and weights -1, 0 and 1."""
    random = np.random.default_rng(1)
    weights = drawn_ternary(15, random)
    assert set(weights.tolist()) == {-1, 0, 1}
    x = random.integers(-1, 2, (40, 15))
    bits = np.stack([x > -1, x > 0], axis=2).reshape(40, -1)
    packed = [int.from_bytes(row.tobytes(), "little") for row in np.packbits(bits, axis=1, bitorder="little")]
    total = x @ weights.astype(int)
    found = outputs(TernaryNeuron(weights, low=-1, high=2), packed)
    assert found == ((total >= -1) + 2 * (total >= 2)).tolist()
