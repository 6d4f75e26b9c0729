"""Circuits in Amaranth's simulator: what they give for rows of words, and how many cycles they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.trees import Encoder
from framefit.trees.hardware.extra import Module, Signal, Simulator
from framefit.trees.hardware.fixed import FixedFunction
from framefit.trees.hardware.programmable import ProgrammableCore, TreeProgram
from framefit.trees.hardware.units import FloatEncoder

__all__ = ["CoreRun", "simulate_core", "simulate_encoder", "simulate_fixed"]


_PERIOD_S = 1e-6  # of the simulated clock; nothing depends on it


@dataclass(frozen=True)
class CoreRun:
    """What the programmable core did.

    Attributes:
        sums: rows x outputs.
        cycles: from the first beat's to the last row's, both included.
    """

    sums: npt.NDArray[np.int64]
    cycles: int


def simulate_fixed(circuit: FixedFunction, inputs: Sequence[int]) -> list[int]:
    """Values of ``y`` for values of ``x``, one row a cycle."""
    return _stream(circuit, circuit.x, circuit.y, inputs, circuit.latency)


def simulate_encoder(encoder: Encoder, x: npt.NDArray[np.float32]) -> list[int]:
    """Comparator bits of rows x channels (or features), as values of ``FloatEncoder.y``."""
    circuit = FloatEncoder(encoder)
    inputs = [int.from_bytes(row.astype("<f4").tobytes(), "little") for row in x]
    return _stream(circuit, circuit.x, circuit.y, inputs, 0)


def _stream(circuit: Any, x: Signal, y: Signal, inputs: Sequence[int], latency: int) -> list[int]:
    """What a circuit gives for one input a cycle; without a clock where it has no register."""
    outputs: list[int] = []

    async def drive(context: Any) -> None:
        for cycle in range(len(inputs) + max(latency - 1, 0)):
            context.set(x, inputs[min(cycle, len(inputs) - 1)])
            if latency:
                await context.tick()
            if cycle + 1 >= latency:
                outputs.append(context.get(y))

    simulator = Simulator(circuit)
    if latency:
        simulator.add_clock(_PERIOD_S)
    simulator.add_testbench(drive)
    simulator.run()
    return outputs


def simulate_core(
    core: ProgrammableCore,
    words: npt.NDArray[np.uint8],
    *,
    program: TreeProgram | None = None,
    taken_every: int = 1,
) -> CoreRun:
    """Feed rows as fast as the core takes them.

    Args:
        core: at rest, as built.
        words: rows x features.
        program: loaded through the port before the first row; default: what the core was built with.
        taken_every: sums are taken in one cycle of so many.
    """
    loads = [] if program is None else list(core.load_beats(program))
    harness = Module()
    harness.submodules.core = core
    cycle = Signal(48)
    harness.d.sync += cycle.eq(cycle + 1)
    sums: list[list[int]] = []
    begin = end = 0

    async def feed(context: Any) -> None:
        nonlocal begin
        for load in loads:
            context.set(core.load.payload, load)
            context.set(core.load.valid, 1)
            await context.tick()
        context.set(core.load.valid, 0)
        begin = context.get(cycle)
        context.set(core.words.valid, 1)
        for beat in core.beats_of(words):
            context.set(core.words.payload, beat)
            await context.tick().until(core.words.ready)
        context.set(core.words.valid, 0)

    async def take(context: Any) -> None:
        nonlocal end
        while len(sums) < len(words):
            context.set(core.sums.ready, 0)
            if taken_every > 1:
                await context.tick().repeat(taken_every - 1)
            context.set(core.sums.ready, 1)
            sampled = await context.tick().sample(core.sums.payload, core.sums.valid, cycle)
            _, _, payload, valid, now = sampled
            if valid:
                sums.append(core.sums_of(payload))
                end = now + 1

    simulator = Simulator(harness)
    simulator.add_clock(_PERIOD_S)
    simulator.add_testbench(feed)
    simulator.add_testbench(take)
    simulator.run()
    return CoreRun(np.array(sums, np.int64).reshape(len(words), -1), end - begin)
