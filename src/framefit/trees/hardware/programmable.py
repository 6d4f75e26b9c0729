"""The programmable core: one comparator visits the nodes of many trees, one node in each cycle.

A token is the present place K in a tree and the bank of its row. It circulates in a ring:

    any ─► node memory ─► input memory ─► compare and select ─► switch ─┬─ K < N ─► any
                                                                        └─ leaf memory ─► sums

While it waits for a memory, other tokens are elsewhere in the ring: with as many trees under way as the ring has
steps, a node is finished in every cycle.

The units of the ring exchange tokens: payloads with a valid bit. No unit in the ring ever waits, so a join is a
delay of as many cycles as the unit beside it was observed to take. Only the entrance for new tokens has a ready bit.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Array, Cat, Const, Module, Shape, Signal, Value, signed, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from amaranth.utils import bits_for

from framefit.core.trees import Ensemble, FreeTree, ObliviousTree, TreeKind, TreeNode
from framefit.errors import InputError

_PATIENCE = 16  # cycles; longer than any memory here takes


def passing(shape: Shape) -> stream.Signature:
    """Signature of tokens in the ring, which never wait."""
    return stream.Signature(shape, always_ready=True)


class Fork(wiring.Component):  # type: ignore[misc]
    """Sends a token two ways at once: to the memory that it addresses, and to the join behind that."""

    def __init__(self, shape: Shape) -> None:
        super().__init__({"i": In(passing(shape)), "memory": Out(passing(shape)), "join": Out(passing(shape))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit: wires."""
        module = Module()
        for way in (self.memory, self.join):
            module.d.comb += [way.payload.eq(self.i.payload), way.valid.eq(self.i.valid)]
        return module


class Join(wiring.Component):  # type: ignore[misc]
    """Joins a token with the memory's answer: it is delayed for as long as the memory takes."""

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
    """Passes tokens of either input; those in the ring come first, so that they never wait."""

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
    """Returns tokens at inner nodes to the ring, and lets those at leaves out: the criterion is K < N.

    Ports:
        limit: N.
    """

    def __init__(self, shape: data.StructLayout) -> None:
        ports = {"i": In(passing(shape)), "inner": Out(passing(shape)), "leaf": Out(passing(shape))}
        super().__init__(ports | {"limit": In(shape["place"].shape)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit: a comparator."""
        module = Module()
        inner = self.i.payload.place < self.limit
        for way, selected in ((self.inner, inner), (self.leaf, ~inner)):
            module.d.comb += [way.payload.eq(self.i.payload), way.valid.eq(self.i.valid & selected)]
        return module


class Lookup(wiring.Component):  # type: ignore[misc]
    """A memory that is read in every cycle, and written through a second port.

    Ports:
        address, data: for reading; ``data`` follows some cycles later.
        write_address, write_data, write: for writing.
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
    """Cycles from an address to the data of a :class:`Lookup`, observed in a simulation."""
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


_NEVER_ABOVE = 3  # no word of two bits exceeds it, so larger references are equivalent


@dataclass(frozen=True)
class TreeProgram:
    """Nodes and leaves in one numbering: a place K < N is a node, K >= N is the leaf K - N.

    Attributes:
        trees: number of trees; their roots are the places 0 to trees - 1.
        nodes: the N inner nodes; ``i0`` and ``i1`` are places.
        leaves: for each the output that it adds to and its value; for vector leaves 0 and all values.
        features: number of words in a row.
        outputs: number of sums of a row.
        kind: of the ensemble: what a leaf holds.
        sum_bits: enough for every sum with its sign.
    """

    trees: int
    nodes: tuple[TreeNode, ...]
    leaves: tuple[tuple[int, tuple[int, ...]], ...]
    features: int
    outputs: int
    kind: TreeKind
    sum_bits: int


def as_free(tree: ObliviousTree) -> FreeTree:
    """An oblivious tree as nodes: a test of level k becomes 2 ** k of them."""
    nodes = []
    for level, (feature, bit) in enumerate(zip(tree.inputs, tree.bits, strict=True)):
        below = (2 << level) - 1
        nodes += [TreeNode(feature, bit, 0, 1, below + path, below + path + (1 << level)) for path in range(1 << level)]
    return FreeTree(nodes=tuple(nodes), leaves=tree.leaves)


def load_program(ensemble: Ensemble) -> TreeProgram:
    """The ensemble's trees in one numbering, roots first."""
    width = ensemble.width
    trees = [_with_node(as_free(t) if isinstance(t, ObliviousTree) else t) for t in ensemble.members]
    inner = sum(len(tree.nodes) for tree in trees)
    nodes: list[TreeNode | None] = [None] * inner
    leaves: list[tuple[int, tuple[int, ...]]] = []
    behind = len(trees)  # number of the next node that is not a root
    for number, tree in enumerate(trees):
        output = 0 if ensemble.kind == "vector" else number // ensemble.trees_each
        count = len(tree.nodes)
        places = [number, *range(behind, behind + count - 1)]
        places += range(inner + len(leaves), inner + len(leaves) + count + 1)
        for index, node in enumerate(tree.nodes):
            reference = min(node.a, _NEVER_ABOVE)
            nodes[places[index]] = TreeNode(node.x, reference, node.l, node.h, places[node.i0], places[node.i1])
        leaves += [(output, tree.leaves[begin : begin + width]) for begin in range(0, len(tree.leaves), width)]
        behind += count - 1
    return TreeProgram(
        trees=len(trees),
        nodes=tuple(node for node in nodes if node is not None),
        leaves=tuple(leaves),
        features=ensemble.features,
        outputs=ensemble.outputs,
        kind=ensemble.kind,
        sum_bits=ensemble.accumulator_bits + (ensemble.kind == "vote"),
    )


def _with_node(tree: FreeTree) -> FreeTree:
    """The tree; one without nodes gets a node with equal leaves, since evaluation begins at a node."""
    return tree if tree.nodes else FreeTree(nodes=(TreeNode(0, 0, 0, 0, 1, 2),), leaves=tree.leaves * 2)


def visited_nodes(program: TreeProgram, words: npt.NDArray[np.uint8]) -> int:
    """Number of inner nodes that all trees visit for these rows of words, rows x features."""
    count = 0
    table = np.array([tuple(getattr(node, name) for name in node.__struct_fields__) for node in program.nodes])
    for root in range(program.trees):
        place, rows = np.full(len(words), root), np.arange(len(words))
        while len(rows):
            count += len(rows)
            x, a, low, high, i0, i1 = table[place].T
            part = words[rows, x] >> low & (1 << high - low + 1) - 1
            place = np.where(part > a, i1, i0)
            inner = place < len(program.nodes)
            place, rows = place[inner], rows[inner]
    return count


LANES = 8
"""Words that enter in one cycle; a power of two, so that a row has entered before the preceding one is finished."""
_WORD_BITS = 2
_MOST_BANKS = 8
NODE_MEMORY, LEAF_MEMORY, LIMITS = range(3)
"""Addresses of the ``load`` port for limits: N at address 0 and the number of trees at address 1."""


class ProgrammableCore(wiring.Component):  # type: ignore[misc]
    """Evaluates the trees in its memories.

    Ports:
        words: rows of words, ``LANES`` at once, the first feature's lowest; each row begins with a new beat.
        sums: a row's sums, the first output's lowest, ``sum_bits`` each, signed; in the order of the rows.
        load: words for the memories, to change the program; only while no row is in the core.

    Args:
        program: initial contents of the memories.
        nodes, leaves: sizes of the memories; default: those of the program.
        registered: whether memories have a register at their output. Joins use the observed latency.

    Attributes:
        ring: cycles for one round, and so the number of trees that have to be under way.
    """

    def __init__(
        self, program: TreeProgram, *, nodes: int | None = None, leaves: int | None = None, registered: bool = False
    ) -> None:
        self.program = program
        self._room = max(nodes or 0, len(program.nodes)), max(leaves or 0, len(program.leaves))
        self._registered = registered
        self._latency = observed_latency(registered=registered)
        self.ring = 2 * self._latency + 1
        self.beats = -(-program.features // LANES)
        place = bits_for(sum(self._room))
        self._banks = _banks(program.trees, self.ring)
        bank = bits_for(self._banks - 1)
        self._token = data.StructLayout({"place": place, "bank": bank})
        self._node = data.StructLayout(
            {"x": bits_for(program.features - 1), "a": _WORD_BITS, "l": 1, "h": 1, "i0": place, "i1": place}
        )
        value = unsigned(1) if program.kind == "vote" else signed(8)
        self._values = program.outputs if program.kind == "vector" else 1
        self._leaf = data.StructLayout(
            {"output": bits_for(program.outputs - 1), "values": data.ArrayLayout(value, self._values)}
        )
        bits = max(Shape.cast(layout).width for layout in (self._node, self._leaf))
        load = data.StructLayout({"memory": 2, "address": place, "data": bits})
        super().__init__(
            {
                "words": In(stream.Signature(LANES * _WORD_BITS)),
                "sums": Out(stream.Signature(program.sum_bits * program.outputs)),
                "load": In(stream.Signature(load)),
            }
        )

    def contents(self, program: TreeProgram) -> tuple[list[dict[str, int]], list[dict[str, object]]]:
        """Words for the node and the leaf memory.

        Raises:
            InputError: the program is larger than the core, or has other inputs or outputs.
        """
        present = self.program
        same = (present.features, present.outputs, present.kind) == (program.features, program.outputs, program.kind)
        if not same or len(program.nodes) > self._room[0] or len(program.leaves) > self._room[1]:
            raise InputError(
                f"the program has {len(program.nodes)} nodes, {len(program.leaves)} leaves, {program.features} features"
                f" and {program.outputs} outputs ({program.kind}), the core has {self._room[0]}, {self._room[1]}, "
                f"{present.features} and {present.outputs} ({present.kind})",
                remedy="build a core with larger memories, or for these inputs and outputs",
            )
        if program.sum_bits > present.sum_bits:
            raise InputError(
                f"the program has sums of {program.sum_bits} bits, the core {present.sum_bits}",
                remedy="build the core for the program with the most trees",
            )
        nodes = [{"x": n.x, "a": n.a, "l": n.l, "h": n.h, "i0": n.i0, "i1": n.i1} for n in program.nodes]
        leaves: list[dict[str, object]] = [{"output": o, "values": list(values)} for o, values in program.leaves]
        return nodes, leaves

    def load_beats(self, program: TreeProgram) -> Iterator[dict[str, int]]:
        """Words to write through ``load`` for another program, beat by beat.

        Raises:
            InputError: the program does not fit.
        """
        nodes, leaves = self.contents(program)
        for number, layout, words in ((NODE_MEMORY, self._node, nodes), (LEAF_MEMORY, self._leaf, leaves)):
            for address, word in enumerate(words):
                yield {"memory": number, "address": address, "data": Const.cast(layout.const(word)).value}
        for address, limit in enumerate((len(program.nodes), program.trees)):
            yield {"memory": LIMITS, "address": address, "data": limit}

    def beats_of(self, words: npt.NDArray[np.uint8]) -> list[int]:
        """Payloads of ``words`` for rows x features."""
        padded = np.zeros((len(words), self.beats * LANES), np.int64)
        padded[:, : words.shape[1]] = words
        weights = 1 << np.arange(LANES) * _WORD_BITS
        beats: list[int] = (padded.reshape(-1, LANES) @ weights).tolist()
        return beats

    def sums_of(self, payload: int) -> list[int]:
        """Sums in a payload of port ``sums``."""
        bits = self.program.sum_bits
        parts = [payload >> place * bits & (1 << bits) - 1 for place in range(self.program.outputs)]
        return [part - (part >> bits - 1 << bits) for part in parts]

    def payload_of(self, sums: list[int]) -> int:
        """Payload of port ``sums`` that holds these sums."""
        bits = self.program.sum_bits
        return sum((value & (1 << bits) - 1) << place * bits for place, value in enumerate(sums))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        limit = Signal(self._token["place"].shape, init=len(self.program.nodes))
        trees = Signal(self._token["place"].shape, init=self.program.trees)
        nodes, leaves = self._memories(module, limit, trees)
        banks = _Rows(module, trees, self._banks)
        inputs = self._entrance(module, banks)
        token = self._ring(module, banks, (nodes, inputs), limit)
        self._exit(module, banks, leaves, token, limit)
        return module

    def _memories(self, module: Module, limit: Signal, trees: Signal) -> tuple[Lookup, Lookup]:
        """Make node and leaf memory, and the port that loads them."""
        memories = []
        load = self.load
        module.d.comb += load.ready.eq(1)
        nodes, leaves = self.contents(self.program)
        kept: tuple[tuple[data.StructLayout, Sequence[object]], ...] = ((self._node, nodes), (self._leaf, leaves))
        for number, (layout, words) in enumerate(kept):
            lookup = Lookup(layout, words, depth=max(2, self._room[number]), registered=self._registered)
            module.submodules["nodes" if number == NODE_MEMORY else "leaves"] = lookup
            module.d.comb += [
                lookup.write_address.eq(load.payload.address),
                lookup.write_data.as_value().eq(load.payload.data),
                lookup.write.eq(load.valid & (load.payload.memory == number)),
            ]
            memories.append(lookup)
        with module.If(load.valid & (load.payload.memory == LIMITS)):
            with module.If(load.payload.address[0]):
                module.d.sync += trees.eq(load.payload.data)
            with module.Else():
                module.d.sync += limit.eq(load.payload.data)
        return memories[0], memories[1]

    def _entrance(self, module: Module, banks: _Rows) -> Lookup:
        """Write rows into the banks of the input memory."""
        depth = self._banks << bits_for(self.beats - 1)
        inputs = Lookup(unsigned(LANES * _WORD_BITS), [], depth=depth, registered=self._registered)
        module.submodules.inputs = inputs
        beat = Signal(range(max(2, self.beats)))
        transferred = self.words.valid & self.words.ready
        module.d.comb += [
            self.words.ready.eq(~banks.full[banks.entering]),
            inputs.write_address.eq(Cat(beat, banks.entering)[: len(inputs.write_address)]),
            inputs.write_data.eq(self.words.payload),
            inputs.write.eq(transferred),
        ]
        with module.If(transferred):
            module.d.sync += beat.eq(beat + 1)
            with module.If(beat == self.beats - 1):
                module.d.sync += beat.eq(0)
                banks.enter()
        return inputs

    def _ring(self, module: Module, banks: _Rows, memories: tuple[Lookup, Lookup], limit: Signal) -> stream.Interface:
        """Make the ring; returns the stream of tokens at leaves."""
        nodes, inputs = memories
        merge, switch = Any(self._token), Switch(self._token)
        first, first_join = Fork(self._token), Join(self._token, self._latency)
        walking = data.StructLayout({"node": self._node, "bank": self._token["bank"].shape})
        second, second_join = Fork(walking), Join(walking, self._latency)
        module.submodules.any, module.submodules.switch = merge, switch
        module.submodules.node_fork, module.submodules.node_join = first, first_join
        module.submodules.input_fork, module.submodules.input_join = second, second_join
        wiring.connect(module, merge.o, first.i)
        wiring.connect(module, first.join, first_join.i)
        wiring.connect(module, second.join, second_join.i)
        wiring.connect(module, switch.inner, merge.loop)
        banks.issue(merge.new)
        lane_bits = LANES.bit_length() - 1
        fetched = second.memory.payload
        beat_bits = len(inputs.address) - bits_for(self._banks - 1)
        beat = Cat(fetched.node.x[lane_bits:], Const(0, beat_bits))[:beat_bits]
        module.d.comb += [
            nodes.address.eq(first.memory.payload.place),
            second.i.valid.eq(first_join.o.valid),
            second.i.payload.node.eq(nodes.data),
            second.i.payload.bank.eq(first_join.o.payload.bank),
            inputs.address.eq(Cat(beat, fetched.bank)),
            switch.limit.eq(limit),
        ]
        held = second_join.o.payload
        word = inputs.data.word_select(held.node.x[:lane_bits], _WORD_BITS)
        module.d.sync += [
            switch.i.valid.eq(second_join.o.valid),
            switch.i.payload.bank.eq(held.bank),
            switch.i.payload.place.eq(_selected(held.node, word)),
        ]
        return switch.leaf

    def _exit(self, module: Module, banks: _Rows, leaves: Lookup, token: stream.Interface, limit: Signal) -> None:
        """Add leaves to their row's sums, and put sums out."""
        program = self.program
        fork, join = Fork(self._token), Join(self._token, self._latency)
        module.submodules.leaf_fork, module.submodules.leaf_join = fork, join
        module.d.comb += [
            fork.i.valid.eq(token.valid),
            fork.i.payload.eq(token.payload),
            leaves.address.eq(fork.memory.payload.place - limit),
        ]
        wiring.connect(module, fork.join, join.i)
        shape = signed(program.sum_bits)
        sums = [[Signal(shape, name=f"sum{bank}_{o}") for o in range(program.outputs)] for bank in range(self._banks)]
        for bank, row in enumerate(sums):
            with module.If(join.o.valid & (join.o.payload.bank == bank)):
                if program.kind == "vector":
                    module.d.sync += [total.eq(total + leaves.data["values"][o]) for o, total in enumerate(row)]
                else:
                    total = Array(row)[leaves.data.output]
                    module.d.sync += total.eq(total + leaves.data["values"][0])
        with module.If(join.o.valid):
            banks.arrive(join.o.payload.bank)
        module.d.comb += [
            self.sums.valid.eq(banks.done),
            self.sums.payload.eq(Array([Cat(*row) for row in sums])[banks.leaving]),
        ]
        with module.If(self.sums.valid & self.sums.ready):
            for bank, row in enumerate(sums):
                with module.If(banks.leaving == bank):
                    module.d.sync += [total.eq(0) for total in row]
            banks.leave()


def _banks(trees: int, ring: int) -> int:
    """Rows under way at once, a power of two: while one enters, the others have trees for twice the ring."""
    banks = 2
    while banks < _MOST_BANKS and trees * (banks - 1) < 2 * ring:
        banks *= 2
    return banks


def _selected(node: data.View, word: Value) -> Value:
    """The place that a node leads to: its slice of the word, compared with its reference."""
    part = (word >> node.l)[:_WORD_BITS]
    part = part & Cat(Const(1, 1), node.h != node.l)
    return Array([node.i0, node.i1])[part > node.a]


class _Rows:
    """Banks in which rows enter, are evaluated, and leave; all in turns, so that rows keep their order."""

    def __init__(self, module: Module, trees: Signal, banks: int) -> None:
        self._module = module
        self._trees = trees
        self.full = Array(Signal(name=f"full{bank}") for bank in range(banks))
        self._awaited = Array(Signal(trees.shape(), name=f"awaited{bank}") for bank in range(banks))
        self.entering, self._walking, self.leaving = (
            Signal(range(banks), name=name) for name in ("entering", "walking", "leaving")
        )
        self._begun = Array(Signal(name=f"begun{bank}") for bank in range(banks))
        self._tree = Signal(trees.shape())

    def enter(self) -> None:
        """Record that the last beat of a row has entered."""
        self._module.d.sync += [
            self.full[self.entering].eq(1),
            self._begun[self.entering].eq(0),
            self._awaited[self.entering].eq(self._trees),
            self.entering.eq(self.entering + 1),
        ]

    def issue(self, new: stream.Interface) -> None:
        """Issue a token for each tree of a row that has entered."""
        module = self._module
        module.d.comb += [
            new.valid.eq(self.full[self._walking] & ~self._begun[self._walking]),
            new.payload.place.eq(self._tree),
            new.payload.bank.eq(self._walking),
        ]
        with module.If(new.valid & new.ready):
            module.d.sync += self._tree.eq(self._tree + 1)
            with module.If(self._tree + 1 == self._trees):
                module.d.sync += [
                    self._tree.eq(0),
                    self._begun[self._walking].eq(1),
                    self._walking.eq(self._walking + 1),
                ]

    def arrive(self, bank: Value) -> None:
        """Count a leaf of the bank's row."""
        self._module.d.sync += self._awaited[bank].eq(self._awaited[bank] - 1)

    @property
    def done(self) -> Value:
        """Whether the row that leaves next has all of its leaves."""
        return self.full[self.leaving] & (self._awaited[self.leaving] == 0)

    def leave(self) -> None:
        """Record that the sums of the row were taken."""
        self._module.d.sync += [self.full[self.leaving].eq(0), self.leaving.eq(self.leaving + 1)]
