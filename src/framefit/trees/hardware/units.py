"""The units of the programmable core: memories, and what passes tokens on between them.

A token is a payload with a valid bit. In the ring that tokens travel no unit ever waits, so a join is
a delay: as many cycles as the unit beside it was observed to take. Only where new tokens enter the
ring is there a ready bit.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence

from framefit.trees.hardware.extra import (
    In,
    Module,
    Out,
    Shape,
    Signal,
    Simulator,
    bits_for,
    data,
    memory,
    stream,
    wiring,
)

__all__ = ["Any", "Fork", "Join", "Lookup", "Switch", "observed_latency", "passing"]

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
