"""The units of the programmable core: memories, and what passes tokens on between them.

A token is a payload with a valid bit. In the ring that tokens travel no unit ever waits, so a join is
a delay: as many cycles as the unit beside it was observed to take. Only where new tokens enter the
ring is there a ready bit.

Look-up tables, counts of votes and sums, as circuits; and registers between their steps.

The comparators in front of the trees: float32 values to comparator bits.
"""

from __future__ import annotations

import struct
import typing
from collections.abc import Sequence

from framefit.core.trees import Encoder
from framefit.trees.hardware.extra import (
    Cat,
    Const,
    In,
    Module,
    Out,
    Shape,
    Signal,
    Simulator,
    Value,
    bits_for,
    data,
    memory,
    stream,
    wiring,
)

__all__ = [
    "Any",
    "FloatEncoder",
    "Fork",
    "Join",
    "Lookup",
    "Pipeline",
    "Switch",
    "count_ones",
    "look_up",
    "observed_latency",
    "passing",
    "sums",
]


_PATIENCE = 16  # cycles; no memory here takes that long


def passing(shape: Shape) -> stream.Signature:
    """Signature of tokens in the ring: nothing can hold them up."""
    return stream.Signature(shape, always_ready=True)


class Fork(wiring.Component):  # type: ignore[misc]
    """A token goes two ways at once: to a memory that it addresses, and to the join behind that.

    Args:
        shape: of tokens.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__({"i": In(passing(shape)), "memory": Out(passing(shape)), "join": Out(passing(shape))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit: wires."""
        module = Module()
        for way in (self.memory, self.join):
            module.d.comb += [way.payload.eq(self.i.payload), way.valid.eq(self.i.valid)]
        return module


class Join(wiring.Component):  # type: ignore[misc]
    """A token meets the memory's answer: it is held for as long as the memory takes.

    Args:
        shape: of tokens.
        latency: cycles; see :func:`observed_latency`.
    """

    def __init__(self, shape: Shape, latency: int) -> None:
        self._shape = shape
        self._latency = latency
        super().__init__({"i": In(passing(shape)), "o": Out(passing(shape))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit: a register for each cycle."""
        module = Module()
        payload, valid = self.i.payload, self.i.valid
        for step in range(self._latency):
            next_payload, next_valid = Signal(self._shape, name=f"payload{step}"), Signal(name=f"valid{step}")
            module.d.sync += [next_payload.eq(payload), next_valid.eq(valid)]
            payload, valid = next_payload, next_valid
        module.d.comb += [self.o.payload.eq(payload), self.o.valid.eq(valid)]
        return module


class Any(wiring.Component):  # type: ignore[misc]
    """Tokens of either input; those in the ring first, so that they never wait.

    Args:
        shape: of tokens.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__({"loop": In(passing(shape)), "new": In(stream.Signature(shape)), "o": Out(passing(shape))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit: a multiplexer."""
        module = Module()
        module.d.comb += [
            self.new.ready.eq(~self.loop.valid),
            self.o.valid.eq(self.loop.valid | self.new.valid),
            self.o.payload.eq(self.new.payload),
        ]
        with module.If(self.loop.valid):
            module.d.comb += self.o.payload.eq(self.loop.payload)
        return module


class Switch(wiring.Component):  # type: ignore[misc]
    """Tokens at inner nodes go round, the others leave: the criterion K < N.

    Ports:
        limit: N.

    Args:
        shape: of tokens, with a ``place`` K.
    """

    def __init__(self, shape: data.StructLayout) -> None:
        ports = {"i": In(passing(shape)), "inner": Out(passing(shape)), "leaf": Out(passing(shape))}
        super().__init__(ports | {"limit": In(shape["place"].shape)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit: a comparator."""
        module = Module()
        inner = self.i.payload.place < self.limit
        for way, taken in ((self.inner, inner), (self.leaf, ~inner)):
            module.d.comb += [way.payload.eq(self.i.payload), way.valid.eq(self.i.valid & taken)]
        return module


class Lookup(wiring.Component):  # type: ignore[misc]
    """A memory that is read every cycle, and written through a port of its own.

    Ports:
        address, data: of the reading; ``data`` follows some cycles later.
        write_address, write_data, write: of the writing.

    Args:
        shape: of a word.
        content: initial words.
        depth: words there is room for.
        registered: whether what was read passes a register, as fast block memories want.
    """

    def __init__(self, shape: Shape, content: Sequence[object], *, depth: int, registered: bool) -> None:
        self._memory = memory.Memory(shape=shape, depth=depth, init=content)
        self._registered = registered
        self.room = depth
        address = bits_for(depth - 1)
        super().__init__(
            {
                "address": In(address),
                "data": Out(shape),
                "write_address": In(address),
                "write_data": In(shape),
                "write": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        module.submodules.memory = self._memory
        reading, writing = self._memory.read_port(), self._memory.write_port()
        module.d.comb += [
            reading.addr.eq(self.address),
            writing.addr.eq(self.write_address),
            writing.data.eq(self.write_data),
            writing.en.eq(self.write),
        ]
        domain = module.d.sync if self._registered else module.d.comb
        domain += self.data.eq(reading.data)
        return module


def observed_latency(*, registered: bool) -> int:
    """Cycles from an address to the data of a :class:`Lookup`, seen in a simulation of one.

    Args:
        registered: as of the memory in question.
    """
    probe = Lookup(Shape(1), [0, 1], depth=2, registered=registered)
    seen = []

    async def watch(context: typing.Any) -> None:
        await context.tick().repeat(_PATIENCE)
        context.set(probe.address, 1)
        for cycle in range(1, _PATIENCE):
            await context.tick()
            if context.get(probe.data):
                seen.append(cycle)
                return

    simulator = Simulator(probe)
    simulator.add_clock(1e-6)
    simulator.add_testbench(watch)
    simulator.run()
    return seen[0]


_COUNTED = 6  # bits: the count of six is three functions of six inputs, three look-up tables


class Pipeline:
    """Registers between the steps of a circuit, or none.

    Args:
        module: that the registers belong to.
        on: whether there are any.

    Attributes:
        latency: cycles from the circuit's input to what was registered last.
    """

    def __init__(self, module: Module, *, on: bool) -> None:
        self._module = module
        self._on = on
        self.latency = 0

    def register(self, rows: Sequence[Sequence[Value]]) -> list[list[Value]]:
        """The same values, one cycle later where there are registers."""
        if not self._on:
            return [list(row) for row in rows]
        self.latency += 1
        held = []
        for number, row in enumerate(rows):
            places = [Signal(value.shape(), name=f"step{self.latency}_{number}_{i}") for i, value in enumerate(row)]
            self._module.d.sync += [place.eq(value) for place, value in zip(places, row, strict=True)]
            held.append(places)
        return held


def look_up(values: Sequence[int], index: Value) -> Value:
    """One of ``values``, a table for each bit of the result.

    Args:
        values: 2 ** bits of the index; signed where one is negative.
        index: which.

    Returns:
        A value no wider than the largest needs.
    """
    negative = min(values) < 0
    width = max(bits_for(value, require_sign_bit=negative) for value in values)
    if len(values) == 1:
        return Const(values[0])
    bits = [
        Const(sum((value >> place & 1) << row for row, value in enumerate(values)), len(values)).bit_select(index, 1)
        for place in range(width)
    ]
    together = Cat(*bits)
    return together.as_signed() if negative else together


def count_ones(rows: Sequence[Sequence[Value]], pipeline: Pipeline) -> list[Value]:
    """How many bits of each row are set: tables that count six, then an adder tree.

    Args:
        rows: bits; as many in each row.
        pipeline: what lies between the steps.
    """
    counted = []
    for row in rows:
        groups = [row[begin : begin + _COUNTED] for begin in range(0, len(row), _COUNTED)]
        counted.append([look_up([place.bit_count() for place in range(1 << len(g))], Cat(*g)) for g in groups])
    return sums(pipeline.register(counted), pipeline)


def sums(rows: Sequence[Sequence[Value]], pipeline: Pipeline) -> list[Value]:
    """The sum of each row by a tree of adders, no bit lost.

    Args:
        rows: numbers; as many in each row.
        pipeline: what lies between the steps.
    """
    level = [list(row) for row in rows]
    while len(level[0]) > 1:
        added = []
        for row in level:
            pairs = [left + right for left, right in zip(row[::2], row[1::2], strict=False)]
            added.append(pairs + row[len(pairs) * 2 :])
        level = pipeline.register(added)
    return [value for (value,) in level]


_INFINITY = 0x7F800000  # magnitudes above it are no numbers: above no threshold


class FloatEncoder(wiring.Component):  # type: ignore[misc]
    """Two comparisons with constants for each channel or feature; IEEE 754 single precision, no arithmetic.

    Ports:
        x: the values' bits, 32 each, the first lowest.
        y: comparator bits as :class:`~framefit.trees.hardware.fixed.FixedFunction` reads them.

    Args:
        encoder: the thresholds.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        count = len(encoder.low)
        super().__init__({"x": In(32 * count), "y": Out(2 * count)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        for number, pair in enumerate(zip(self._encoder.low, self._encoder.high, strict=True)):
            value = self.x.word_select(number, 32)
            module.d.comb += self.y.word_select(number, 2).eq(Cat(*(_above(value, threshold) for threshold in pair)))
        return module


def _above(value: Value, threshold: float) -> Value:
    """Whether a float32 value is above a constant: by sign, then by magnitude as a whole number."""
    negative, magnitude = value[31], value[:31]
    (bits,) = struct.unpack("<I", struct.pack("<f", threshold))
    size = Const(bits & 0x7FFFFFFF, 31)
    below_zero = bits >> 31 and bits & 0x7FFFFFFF  # -0 is not
    above = ~negative | (magnitude < size) if below_zero else ~negative & (magnitude > size)
    return above & (magnitude <= _INFINITY)
