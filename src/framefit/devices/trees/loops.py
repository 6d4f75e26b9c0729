"""The kernels' loops, compiled by numba; none of them holds the interpreter's lock.

Vectors of the processor are available in compiled code.

LLVM vectorises a loop only if it is long enough to justify the check that its arrays do not overlap: not for the
64 numbers of a leaf. These functions define vectors directly; on a processor with shorter ones LLVM uses several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types, uint64
from numba.extending import intrinsic, models, register_model

from framefit.core.trees import MAX_DEPTH

# Numbers of lanes are constants in the calling code.
_operation: Callable[[Callable[..., Any]], Any] = intrinsic(prefer_literal=True)


class _Lanes(types.Type):
    """``count`` numbers of a type, in a register."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(f"Lanes({dtype}, {count})")


@register_model(_Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: _Lanes) -> None:
        vector = _vector(manager.lookup(kind.dtype).get_value_type(), kind.count)
        super().__init__(manager, kind, vector)  # type: ignore[no-untyped-call]


def _vector(element: Any, count: int) -> Any:
    return ir.VectorType(element, count)


def _pointer(context: Any, builder: Any, array: Any, value: Any, start: Any, count: int) -> Any:
    """Pointer to ``count`` elements of a contiguous array."""
    data = context.make_array(array)(context, builder, value).data
    vector = _vector(context.get_data_type(array.dtype), count)
    return builder.bitcast(builder.gep(data, [start]), vector.as_pointer())


def _spread(builder: Any, value: Any, count: int) -> Any:
    """The same number in all lanes."""
    vector = builder.insert_element(ir.Constant(_vector(value.type, count), ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(vector, vector, ir.Constant(_vector(ir.IntType(32), count), [0] * count))


@_operation
def zeros(typing: Any, array: Any, count: Any) -> Any:  # noqa: ARG001 - numba's form
    """Zeros of an array's type."""
    kind = _Lanes(array.dtype, count.literal_value)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return ir.Constant(context.get_value_type(kind), None)

    return kind(array, count), make


@_operation
def load(typing: Any, array: Any, start: Any, count: Any) -> Any:  # noqa: ARG001
    """``count`` elements of a contiguous array from ``start`` on."""
    kind = _Lanes(array.dtype, count.literal_value)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, _ = arguments
        return builder.load(_pointer(context, builder, signature.args[0], array, start, kind.count), align=1)

    return kind(array, types.intp, count), make


@_operation
def store(typing: Any, array: Any, start: Any, lanes: Any) -> Any:  # noqa: ARG001
    """Write lanes into a contiguous array of their type, from ``start`` on."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, value = arguments
        builder.store(value, _pointer(context, builder, signature.args[0], array, start, lanes.count), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), make


@_operation
def plus(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Sums of whole numbers, lane by lane."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.add(*arguments)

    return a(a, b), make


@_operation
def both(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Bits that are 1 in both."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.and_(*arguments)

    return a(a, b), make


@_operation
def differing(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Bits that are 1 in one of them."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.xor(*arguments)

    return a(a, b), make


@_operation
def widened(typing: Any, lanes: Any, like: Any) -> Any:  # noqa: ARG001
    """Signed whole numbers converted to an array's type, which is at least as wide."""
    kind = _Lanes(like.dtype, lanes.count)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        wanted = context.get_value_type(kind)
        return arguments[0] if wanted == arguments[0].type else builder.sext(arguments[0], wanted)

    return kind(lanes, like), make


@_operation
def above(typing: Any, array: Any, start: Any, limit: Any, count: Any) -> Any:  # noqa: ARG001
    """1 for each of ``count`` elements from ``start`` on that is greater than the limit, else 0; as bytes."""
    kind = _Lanes(types.uint8, count.literal_value)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, limit, _ = arguments
        read = builder.load(_pointer(context, builder, signature.args[0], array, start, kind.count), align=1)
        compared = builder.fcmp_ordered(">", read, _spread(builder, limit, kind.count))
        return builder.zext(compared, context.get_value_type(kind))

    return kind(array, types.intp, array.dtype, count), make


@_operation
def levelled(typing: Any, sums: Any, low: Any, high: Any, minus: Any, zero: Any, plus: Any) -> Any:  # noqa: ARG001
    """``plus`` where a sum reaches ``high``; else ``zero`` where it reaches ``low``; else ``minus``."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        totals, *ends = arguments
        low, high, minus, zero, plus = (_spread(builder, number, sums.count) for number in ends)
        reached = builder.icmp_signed(">=", totals, low)
        made = builder.select(reached, zero, minus)
        return builder.select(builder.icmp_signed(">=", totals, high), plus, made)

    return _Lanes(minus, sums.count)(sums, sums.dtype, sums.dtype, minus, minus, minus), make


@_operation
def scaled(typing: Any, sums: Any, bias: Any, scale: Any) -> Any:  # noqa: ARG001
    """Sums and a bias, as floats, times a scale."""
    kind = _Lanes(scale, sums.count)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        totals, *ends = arguments
        bias, scale = (_spread(builder, number, sums.count) for number in ends)
        return builder.fmul(builder.sitofp(builder.add(totals, bias), context.get_value_type(kind)), scale)

    return kind(sums, sums.dtype, scale), make


Array = npt.NDArray[Any]
TOGETHER = 4
"""Number of trees whose leaves are added at once."""
LANES = 16
"""Numbers that are added, compared or decoded at once: widths of leaves are padded to a multiple."""
WORDS = 8
"""Words of votes at once: outputs are padded to a multiple."""
_LEAVES = 1 << MAX_DEPTH
_BYTES = 64  # positions at once; spans are a multiple
_GATHER = uint64(0x0102040810204080)  # times eight bytes of 0 or 1: those bits, adjacent, in the top byte


@njit(nogil=True, cache=True)
def run_row(
    x: Array,
    y: Array,
    features: Array,
    limits: Array,
    leaves: Array,
    each: int,
    with_levels: bool,
    bounds: Array,
    values: Array,
) -> None:  # pragma: no cover - compiled
    """Oblivious trees for one vector."""
    trees, depth = features.shape
    totals = np.zeros(len(y), np.int32)
    for tree in range(trees):
        number = 0
        for level in range(depth):
            number |= int(x[features[tree, level]] > limits[tree, level]) << level
        if each:
            totals[tree // each] += leaves[tree, number, 0]
        else:
            for output in range(len(y)):
                totals[output] += leaves[tree, number, output]
    for output in range(len(y)):
        y[output] = _decoded(totals[output], output, with_levels, bounds, values)


@njit(nogil=True, cache=True)
def run_rows(
    x: Array,
    y: Array,
    limits: Array,
    masks: Array,
    frame: Array,
    tests: Array,
    leaves: Array,
    each: int,
    sum_kind: Array,
    with_levels: bool,
    bounds: Array,
    values: Array,
) -> None:  # pragma: no cover - compiled
    """Trees with whole-number leaves for images; ``sum_kind`` has the type of the sums."""
    lines, columns, pitch, span = frame[2], frame[3], frame[4], masks.shape[1]
    positions, outputs, width, size = lines * columns, y.shape[1], leaves.shape[2], leaves.shape[1] * leaves.shape[2]
    flat, leaf = _empty(frame, span), np.empty(TOGETHER * span, np.uint8)
    rows, totals = np.empty(positions * width, sum_kind.dtype), np.empty(outputs * positions, sum_kind.dtype)
    # Everything is flat: to reshape an array, or to take a row of it, costs more than 64 bytes of work.
    inside, held, made = masks.reshape(-1), leaves.reshape(-1), y.reshape(-1)
    for example in range(len(x)):
        _compare(x[example], limits, frame, flat)
        if each:
            totals[:] = 0
            for tree in range(len(tests)):
                _find(flat, inside, tests, tree, leaf, 0, span)
                first = tree // each * positions
                for line in range(lines):
                    for column in range(columns):
                        totals[first + line * columns + column] += held[tree * size + leaf[line * pitch + column]]
        else:
            rows[:] = 0
            for tree in range(0, len(tests), TOGETHER):
                for part in range(TOGETHER):
                    _find(flat, inside, tests, tree + part, leaf, part * span, span)
                _add(held, tree * size, size, leaf, span, frame, rows, width)
            for output in range(outputs):
                for row in range(positions):
                    totals[output * positions + row] = rows[row * width + output]
        for output in range(outputs):
            first = (example * outputs + output) * positions
            _decode(totals, output * positions, output, with_levels, bounds, values, made, first, positions)


@njit(nogil=True, cache=True)
def run_walks(
    x: Array,
    y: Array,
    limits: Array,
    masks: Array,
    frame: Array,
    starts: Array,
    nodes: Array,
    leaves: Array,
    each: int,
    with_levels: bool,
    bounds: Array,
    values: Array,
) -> None:  # pragma: no cover - compiled
    """Trees of any shape: follow nodes row by row."""
    lines, columns, pitch = frame[2], frame[3], frame[4]
    flat = _empty(frame, masks.shape[1])
    width = leaves.shape[1]
    total = np.zeros(y.shape[1], np.int32)
    for example in range(len(x)):
        _compare(x[example], limits, frame, flat)
        for line in range(lines):
            for column in range(columns):
                corner = line * pitch + column
                total[:] = 0
                for tree in range(len(starts) - 1):
                    first, inner = starts[tree], starts[tree + 1] - starts[tree]
                    place = 0
                    while place < inner:
                        node = nodes[first + place]
                        word = int(flat[node[0] + corner]) + int(flat[node[1] + corner])
                        word *= int(masks[node[2], corner])
                        place = node[7] if (word >> node[4]) & node[5] > node[3] else node[6]
                    row = leaves[first + tree + place - inner]  # a tree has one more leaf than inner nodes
                    if each:
                        total[tree // each] += row[0]
                    else:
                        for output in range(width):
                            total[output] += row[output]
                for output in range(len(total)):
                    output_value = _decoded(total[output], output, with_levels, bounds, values)
                    y[example, output, line * columns + column] = output_value


@njit(nogil=True, cache=True)
def run_votes(
    x: Array,
    y: Array,
    limits: Array,
    masks: Array,
    frame: Array,
    tests: Array,
    chosen: Array,
    leaves: Array,
    with_levels: bool,
    bounds: Array,
    values: Array,
) -> None:  # pragma: no cover - compiled
    """Trees with one-bit leaves: votes are counted for 64 rows at once."""
    lines, columns, pitch, span = frame[2], frame[3], frame[4], masks.shape[1]
    flat, lanes = _empty(frame, span), span // 64
    packed, inside = np.empty(len(flat) // 64, np.uint64), np.empty((len(masks), lanes), np.uint64)
    for number in range(len(masks)):
        _pack(masks[number].view(np.uint64), inside[number])
    each, _, width = chosen.shape
    outputs, bits = y.shape[1], 1
    while 1 << bits <= each:
        bits += 1
    words = np.zeros(len(tests) + 1, np.uint64)
    counts, held = np.empty(bits * width, np.uint64), leaves.reshape(-1)
    work = np.empty((_LEAVES // 4 + _LEAVES // 16 + 1) * width, np.uint64)
    total, made = np.empty(outputs * span, np.int32), y.reshape(-1)
    for example in range(len(x)):
        _compare(x[example], limits, frame, flat)
        _pack(flat.view(np.uint64), packed)
        for lane in range(lanes):
            for test in range(len(tests)):
                start = tests[test, 0] + 64 * lane
                chunk, shift = start >> 6, uint64(start & 63)
                # Shifted twice: a shift by 64 would have no effect.
                word = packed[chunk] >> shift | packed[chunk + 1] << uint64(1) << (uint64(63) - shift)
                words[test] = word & inside[tests[test, 1], lane]
            _count(words, chosen, held, counts, width, work)
            for output in range(outputs):
                sums = total[output * span + 64 * lane : output * span + 64 * lane + 64]
                sums[:] = 0
                for bit in range(bits):
                    votes = counts[bit * width + output]
                    for row in range(64):
                        sums[row] += np.int32(votes >> uint64(row) & uint64(1)) << bit
        for output in range(outputs):
            for line in range(lines):
                start, first = output * span + line * pitch, ((example * outputs + output) * lines + line) * columns
                _decode(total, start, output, with_levels, bounds, values, made, first, columns)


@njit(nogil=True, cache=True)
def _empty(frame: Array, span: int) -> Array:  # pragma: no cover - compiled
    """Planes before an image is compared: zeros, and ones where border features read."""
    flat = np.zeros(frame[8], np.uint8)
    flat[frame[7] : frame[7] + span] = 1
    return flat


@njit(nogil=True, cache=True)
def _compare(picture: Array, limits: Array, frame: Array, flat: Array) -> None:  # pragma: no cover - compiled
    """Write comparator bits of an image into their planes."""
    down, across, pitch, plane = frame[0], frame[1], frame[4], frame[5]
    channels, height, width = picture.shape
    source = picture.reshape(-1)
    for bit in range(2):
        for channel in range(channels):
            limit, begin = limits[bit, channel], channel * height * width
            first = frame[6] + (bit * channels + channel) * down * across * plane
            if down == 1 and across == 1 and pitch == width:
                _compare_line(source, begin, height * width, limit, flat, first)
                continue
            for line in range(height):
                start = first + line % down * across * plane + line // down * pitch
                if across == 1:
                    _compare_line(source, begin + line * width, width, limit, flat, start)
                    continue
                for phase in range(across):
                    for step in range((width - phase + across - 1) // across):
                        value = source[begin + line * width + phase + step * across]
                        flat[start + phase * plane + step] = value > limit


@njit(nogil=True, cache=True)
def _compare_line(
    source: Array, begin: int, count: int, limit: float, flat: Array, start: int
) -> None:  # pragma: no cover - compiled
    """Compare adjacent values."""
    whole = count // LANES * LANES
    for place in range(0, whole, LANES):
        store(flat, start + place, above(source, begin + place, limit, LANES))
    for place in range(whole, count):
        flat[start + place] = source[begin + place] > limit


@njit(nogil=True, cache=True)
def _find(
    flat: Array, inside: Array, tests: Array, tree: int, leaf: Array, first: int, span: int
) -> None:  # pragma: no cover - compiled
    """Write the numbers of a tree's leaves at all positions, a bit for each level, into ``leaf`` from ``first`` on."""
    for start in range(0, span, _BYTES):
        number = zeros(flat, _BYTES)
        for level in range(MAX_DEPTH - 1, -1, -1):
            seen = load(flat, tests[tree, level, 0] + start, _BYTES)
            bit = both(seen, load(inside, tests[tree, level, 1] * span + start, _BYTES))
            number = plus(plus(number, number), bit)
        store(leaf, first + start, number)


@njit(nogil=True, cache=True)
def _add(
    held: Array, first: int, size: int, leaf: Array, span: int, frame: Array, rows: Array, width: int
) -> None:  # pragma: no cover - compiled
    """Add the leaves of four trees, ``size`` each from ``first`` on; sums are loaded and stored once for all four."""
    lines, columns, pitch = frame[2], frame[3], frame[4]
    for line in range(lines):
        for column in range(columns):
            place, row = line * pitch + column, (line * columns + column) * width
            a = first + int(leaf[place]) * width
            b = first + size + int(leaf[place + span]) * width
            c = first + 2 * size + int(leaf[place + 2 * span]) * width
            d = first + 3 * size + int(leaf[place + 3 * span]) * width
            for output in range(0, width, LANES):
                total = load(rows, row + output, LANES)
                total = plus(total, widened(load(held, a + output, LANES), rows))
                total = plus(total, widened(load(held, b + output, LANES), rows))
                total = plus(total, widened(load(held, c + output, LANES), rows))
                total = plus(total, widened(load(held, d + output, LANES), rows))
                store(rows, row + output, total)


@njit(nogil=True, cache=True)
def _decoded(total: int, output: int, with_levels: bool, bounds: Array, values: Array) -> Any:  # pragma: no cover
    """Convert a sum to an output."""
    if with_levels:
        if total >= bounds[1, output]:
            return values[2, output]
        return values[1, output] if total >= bounds[0, output] else values[0, output]
    return np.float32(np.int32(total + bounds[0, output])) * values[0, output]


@njit(nogil=True, cache=True)
def _decode(
    totals: Array,
    start: int,
    output: int,
    with_levels: bool,
    bounds: Array,
    values: Array,
    y: Array,
    first: int,
    count: int,
) -> None:  # pragma: no cover - compiled
    """Convert ``count`` sums from ``start`` on to an output, into ``y`` from ``first`` on."""
    low, high = bounds[0, output], bounds[1, output]
    minus, zero, plus = values[0, output], values[1, output], values[2, output]
    whole = count // LANES * LANES
    for row in range(0, whole, LANES):
        sums = widened(load(totals, start + row, LANES), bounds)
        if with_levels:
            store(y, first + row, levelled(sums, low, high, minus, zero, plus))
        else:
            store(y, first + row, scaled(sums, low, minus))
    for row in range(whole, count):
        y[first + row] = _decoded(totals[start + row], output, with_levels, bounds, values)


@njit(nogil=True, cache=True)
def _pack(eights: Array, packed: Array) -> None:  # pragma: no cover - compiled
    """Pack bytes of 0 or 1, eight in a word, to bits."""
    for place in range(len(packed)):
        word = uint64(0)
        for part in range(8):
            word |= (eights[8 * place + part] * _GATHER >> uint64(56)) << uint64(8 * part)
        packed[place] = word


@njit(nogil=True, cache=True)
def _count(
    words: Array, chosen: Array, leaves: Array, counts: Array, width: int, work: Array
) -> None:  # pragma: no cover - compiled
    """Count the votes of all outputs for one word of rows, in ``counts``: bits x width."""
    counts[:] = 0
    first, second = np.empty(width, np.uint64), np.empty(width, np.uint64)
    for turn in range(len(chosen)):
        begin, made = turn * _LEAVES * width, 0
        for level in range(0, MAX_DEPTH, 2):  # two levels at once: a third of the loads and stores
            for side in range(width):
                first[side] = words[chosen[turn, level, side]]
                second[side] = words[chosen[turn, level + 1, side]]
            size = _LEAVES >> level + 2
            for place in range(size):
                if level == 0:
                    _choose(leaves, begin + 4 * place * width, first, second, work, made + place * width, width)
                else:
                    _choose(work, begin + 4 * place * width, first, second, work, made + place * width, width)
            begin, made = made, made + size * width
        for side in range(0, width, WORDS):
            carry = load(work, begin + side, WORDS)
            for place in range(side, len(counts), width):
                count = load(counts, place, WORDS)
                store(counts, place, differing(count, carry))
                carry = both(count, carry)


@njit(nogil=True, cache=True)
def _choose(
    held: Array, begin: int, first: Array, second: Array, made: Array, start: int, width: int
) -> None:  # pragma: no cover - compiled
    """Select one of four words by two tests, in each lane."""
    for side in range(0, width, WORDS):
        test, other = load(first, side, WORDS), load(second, side, WORDS)
        a, b = load(held, begin + side, WORDS), load(held, begin + width + side, WORDS)
        c, d = load(held, begin + 2 * width + side, WORDS), load(held, begin + 3 * width + side, WORDS)
        low, high = differing(a, both(test, differing(a, b))), differing(c, both(test, differing(c, d)))
        store(made, start + side, differing(low, both(other, differing(low, high))))
