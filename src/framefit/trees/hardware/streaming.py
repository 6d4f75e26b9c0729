"""The streaming form: a fixed-function circuit behind a sensor, which gives its samples one by one.

A delay line keeps the comparator bits of as many samples as lie between the first and the last one that a position
reads. Rows of a picture follow one another in it, so that a place of the patch is always the same place of the line
(the line buffers of FPGA filters). Where a position is complete the trees read the line, and the outputs leave byte
by byte.

Time has no end: the circuit gives a position wherever the patch is complete, and begins anew only when it is told so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from framefit.core.trees import Ensemble, encode
from framefit.errors import InputError
from framefit.trees.c_source import folded, input_step
from framefit.trees.hardware.fixed import FixedFunction, output_bits_of, results_of

_BYTE = 8


def check_streams(ensemble: Ensemble) -> None:
    """Check that trees can read a stream.

    Raises:
        InputError: they read no patches, or patches that reach beyond the border.
    """
    if ensemble.patch is None:
        raise InputError(
            "the trees read all of their input at once, and a stream has no end",
            where=ensemble.name,
            remedy="choose the core fixed, or replace convolutions",
        )
    if any(ensemble.patch.padding):
        raise InputError(
            "the trees read beyond the border, and a stream has none",
            where=ensemble.name,
            remedy="train the network with convolutions without padding, or choose the core fixed",
        )


class Streaming(wiring.Component):  # type: ignore[misc]
    """A circuit that computes an ensemble's outputs from a stream of samples.

    Ports:
        samples: ``value``: an int8 of each channel, the first lowest; ``restart``: whether it is the first one of
            a window or picture. Samples of a picture come row by row.
        outputs: ``byte``: the outputs of a position as the fixed function gives them, the lowest byte first;
            ``first``: whether it is a position's first byte.

    A sample waits where it completes a position while bytes of the last one have not left.

    Args:
        ensemble: trees that :func:`check_streams` lets pass.
        step: what one step of a sample is worth; default: as in C (:func:`~framefit.trees.c_source.input_step`).
    """

    def __init__(self, ensemble: Ensemble, *, step: float | None = None) -> None:
        self.ensemble, self.step = ensemble, step or input_step(ensemble)
        self.geometry = Geometry.of(ensemble)
        self.bytes_each = -(-output_bits_of(ensemble) * ensemble.outputs // _BYTE)
        channels = len(ensemble.encoder.low)
        sample = data.StructLayout({"value": data.ArrayLayout(signed(_BYTE), channels), "restart": 1})
        outcome = data.StructLayout({"byte": _BYTE, "first": 1})
        super().__init__({"samples": In(stream.Signature(sample)), "outputs": Out(stream.Signature(outcome))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        trees = module.submodules.trees = FixedFunction(self.ensemble)
        line = self._line(module)
        complete = Signal()  # the position, by the sample that is here
        self._count(module, complete)
        module.d.comb += trees.x.eq(Cat(*(line[place][bits] for place, bits in self._taps())))

        due = Signal()  # the line holds a position
        left = Signal(range(self.bytes_each + 1))
        queue = Signal(_BYTE * self.bytes_each)
        first = Signal()
        sent = self.outputs.valid & self.outputs.ready
        module.d.comb += [
            self.outputs.valid.eq(left != 0),
            self.outputs.payload.byte.eq(queue[:_BYTE]),
            self.outputs.payload.first.eq(first),
            self.samples.ready.eq(~due),
        ]
        with module.If(self.samples.valid & self.samples.ready):
            module.d.sync += due.eq(complete)
        with module.If(due & (left == 0)):
            module.d.sync += [due.eq(0), left.eq(self.bytes_each), queue.eq(trees.y), first.eq(1)]
        with module.Elif(sent):
            module.d.sync += [left.eq(left - 1), queue.eq(queue >> _BYTE), first.eq(0)]
        return module

    def bytes_of(self, windows: Windows) -> list[int]:
        """Payloads of the port ``outputs`` that the model in :mod:`framefit.core.trees` expects for windows."""
        ensemble = self.ensemble
        rows = windows.shape[-1] if ensemble.image[1] == 1 else windows.shape[2]
        x = windows.astype(np.float32) * np.float32(self.step)
        return [
            outcome >> _BYTE * place & 0xFF | (place == 0) << _BYTE
            for outcome in results_of(ensemble, encode(part_of_input(ensemble, rows), x))
            for place in range(self.bytes_each)
        ]

    def _line(self, module: Module) -> list[Value]:
        """Comparator bits of the last samples, two for each channel; the latest is at place 0."""
        low, high = folded(self.ensemble, self.step)
        values = self.samples.payload.value
        bits = [
            Cat(*(values[channel] > Const(side[channel], signed(_BYTE + 1)) for side in (low, high)))
            for channel in range(len(low))
        ]
        line = [Signal(2 * len(low), name=f"line{place}") for place in range(self.geometry.held)]
        with module.If(self.samples.valid & self.samples.ready):
            module.d.sync += line[0].eq(Cat(*bits))
            module.d.sync += [place.eq(before) for before, place in itertools.pairwise(line)]
        return line

    def _taps(self) -> Iterator[tuple[int, slice]]:
        """Place in the line of each feature, and its bits there."""
        patch, geometry = self.ensemble.patch, self.geometry
        assert patch is not None
        for channel in range(len(self.ensemble.encoder.low)):
            for place in range(patch.area):
                row, column = divmod(place, geometry.kernel[1])
                yield geometry.held - 1 - (row * geometry.width + column), slice(2 * channel, 2 * channel + 2)

    def _count(self, module: Module, complete: Signal) -> None:
        """Follow rows and columns, and say where the sample that is here completes a position."""
        restart, geometry = self.samples.payload.restart, self.geometry
        taken = self.samples.valid & self.samples.ready
        across = _Phase(module, "column", geometry.kernel[1], geometry.stride[1], restart)
        down = _Phase(module, "row", geometry.kernel[0], geometry.stride[0], restart)
        ends: Value = Const(1)
        if geometry.width > 1:
            column, at = Signal(range(geometry.width)), Signal(range(geometry.width))
            module.d.comb += at.eq(Mux(restart, 0, column))
            ends = at == geometry.width - 1
            with module.If(taken):
                module.d.sync += column.eq(Mux(ends, 0, at + 1))
        with module.If(taken):
            module.d.sync += [
                across.register.eq(Mux(ends, 0, across.following)),
                down.register.eq(Mux(ends, down.following, down.now)),
            ]
        module.d.comb += complete.eq(across.complete & down.complete)


class _Phase:
    """Counts rows or columns up to the end of the patch, and from there on round by the stride."""

    def __init__(self, module: Module, name: str, kernel: int, stride: int, restart: Value) -> None:
        most = kernel + stride - 2
        self.register, self.now = (Signal(range(most + 1), name=f"{name}{part}") for part in ("_phase", "_now"))
        module.d.comb += self.now.eq(Mux(restart, 0, self.register))
        self.complete = self.now == kernel - 1
        self.following = Mux(self.now == most, kernel - 1, self.now + 1)


@dataclass(frozen=True)
class Geometry:
    """How a patch lies in a stream; a signal is a picture of one column, whose rows are its samples.

    Attributes:
        kernel, stride: rows and columns.
        width: samples of a row.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    width: int

    @classmethod
    def of(cls, ensemble: Ensemble) -> Geometry:
        """Geometry of an ensemble's patch."""
        patch = ensemble.patch
        assert patch is not None
        if ensemble.image[1] == 1:
            return cls((patch.kernel[1], 1), (patch.stride[1], 1), 1)
        return cls(patch.kernel, patch.stride, ensemble.image[2])

    @property
    def held(self) -> int:
        """Samples between the first and the last one that a position reads, with both."""
        return (self.kernel[0] - 1) * self.width + self.kernel[1]


def part_of_input(ensemble: Ensemble, rows: int) -> Ensemble:
    """The ensemble on the first rows of a picture, or the first samples of a signal.

    Args:
        ensemble: with a patch that reaches not beyond the border.
        rows: at least those of the patch.
    """
    patch, geometry = ensemble.patch, Geometry.of(ensemble)
    assert patch is not None
    positions = (rows - geometry.kernel[0]) // geometry.stride[0] + 1
    axis = -1 if ensemble.image[1] == 1 else 1
    shapes = []
    for shape, size in ((ensemble.input_shape, rows), (ensemble.output_shape, positions)):
        sizes = list(shape)
        sizes[axis] = size
        shapes.append(tuple(sizes))
    return msgspec.structs.replace(ensemble, input_shape=shapes[0], output_shape=shapes[1])


def drawn_windows(ensemble: Ensemble, samples: int, random: np.random.Generator) -> list[Windows]:
    """Random int8 inputs: first a part of a window, so that the next one begins in its midst.

    Args:
        ensemble: with a patch.
        samples: at least so many, and hardly more.
        random: draws them.
    """
    geometry = Geometry.of(ensemble)
    height = ensemble.image[2] if ensemble.image[1] == 1 else ensemble.image[1]
    least = min(height, geometry.kernel[0] + geometry.stride[0])
    most = min(height, max(least, samples // geometry.width))
    drawn: list[Windows] = []
    while len(drawn) < 2 or sum(windows.size for windows in drawn) < samples * ensemble.image[0]:
        part = part_of_input(ensemble, most if drawn else least)
        drawn.append(random.integers(-128, 128, (1, *part.input_shape)).astype(np.int8))
    return drawn


Windows = npt.NDArray[np.int8]
"""Windows x the input's shape; they may be shorter than this, or pictures have fewer rows."""


def samples_of(windows: Windows) -> npt.NDArray[np.int64]:
    """Payloads of the port ``samples``: for windows x channels x positions, row by row."""
    channels = windows.shape[1]
    values = np.moveaxis(windows.reshape(len(windows), channels, -1), 1, 2).astype(np.int64) & 0xFF
    payloads: npt.NDArray[np.int64] = (values << np.arange(channels, dtype=np.int64) * _BYTE).sum(axis=2)
    payloads[:, 0] |= 1 << channels * _BYTE
    return payloads.reshape(-1)


def simulate_stream(circuit: Streaming, drawn: Sequence[Windows], *, taken_every: int = 1) -> list[int]:
    """Payloads of the port ``outputs``.

    Args:
        circuit: it is at its beginning.
        drawn: int8, each windows x the input's shape; shapes may differ in how many rows there are.
        taken_every: an output is taken once every this many cycles.
    """
    payloads = [int(payload) for windows in drawn for payload in samples_of(windows)]
    wanted = sum(len(circuit.bytes_of(windows)) for windows in drawn)
    outputs: list[int] = []

    async def feed(context: Any) -> None:
        context.set(circuit.samples.valid, 1)
        for payload in payloads:
            context.set(circuit.samples.payload.as_value(), payload)
            await context.tick().until(circuit.samples.ready)
        context.set(circuit.samples.valid, 0)

    async def take(context: Any) -> None:
        while len(outputs) < wanted:
            context.set(circuit.outputs.ready, 0)
            if taken_every > 1:
                await context.tick().repeat(taken_every - 1)
            context.set(circuit.outputs.ready, 1)
            port = circuit.outputs
            _, _, payload, valid = await context.tick().sample(port.payload.as_value(), port.valid)
            if valid:
                outputs.append(payload)

    simulator = Simulator(circuit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(feed)
    simulator.add_testbench(take)
    simulator.run()
    return outputs
