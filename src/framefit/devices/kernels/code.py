"""Machine code for steps, by LLVM.

**Zeros.** The outputs of a convolution come in blocks of as many channels as a vector has lanes. A block has a list of
the (row, column, input) that it reads, each with a vector of weights; what is zero in the whole block is not in the
list. For a tile of pixels the list is walked once: a vector of weights is loaded, one input of each pixel is spread
over a vector, and the products are added to the pixel's accumulator, which stays in a register (the sparse
convolutions of Elsen et al., "Fast Sparse ConvNets", 2020, have the same order with pixels as lanes).

Bytes are multiplied four inputs at a time, which share their zeros (VNNI's ``vpdpbusd``), and added up in whole
numbers, which are exact; scales, sums with other images, activations and rounding follow in float32.

**Memory.** Images have channels last, padded to whole vectors, and a border of zeros as wide as their readers need it.
All of a network's images are in one buffer, those that are not needed at the same time at the same place.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from framefit.devices.kernels.network import (
    FOUR,
    Activation,
    Image,
    Network,
    Pads,
    Step,
    Vectors,
    in_blocks,
    in_fours,
    readers_of,
)

_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_POINTER = ir.PointerType()
_FLOAT = 4  # bytes
_BYTES = {"float32": _FLOAT, "uint8": 1}
_ALIGNED = 64  # bytes: a cache line
_CACHED = 1 << 18  # bytes of an image that stay in a core's second cache, beside weights
_MOST_TAPS = 32  # of a depthwise filter that is written out
_MOST_BYTES = 8  # pixels at once of convolutions of bytes: more of them take longer each
_CHAINS = 4  # sums in turn, where a tile has too few pixels to hide how long an addition takes


@dataclass(frozen=True)
class Place:
    """Where an image lies.

    Attributes:
        offset: bytes from the buffer's begin to the image's first pixel, behind the border.
        row, pixel: bytes from row to row, from pixel to pixel.
    """

    offset: int
    row: int
    pixel: int


@dataclass(frozen=True)
class Plan:
    """Places of a network's images.

    Attributes:
        places: by image.
        bytes: of the buffer.
        zeros: begin, end and byte of the parts that are not filled with 0 for their borders.
    """

    places: dict[str, Place]
    bytes: int
    zeros: tuple[tuple[int, int, int], ...] = ()


def plan_of(network: Network, lanes: int) -> Plan:
    """Place a network's images; borders stay what they are at first."""
    readers, last = readers_of(network), {image.name: len(network.steps) for image in network.outputs}
    for number, step in enumerate(network.steps):
        for image in (step.source, step.other):
            if image is not None:
                last[image.name] = max(last.get(image.name, 0), number)
    free: dict[tuple[int, ...], list[int]] = {}  # begins by form: a border stays what it is
    places, top, zeros = dict[str, Place](), 0, list[tuple[int, int, int]]()
    ends: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    born = [(-1, image) for image in network.inputs] + [(n, step.output) for n, step in enumerate(network.steps)]
    for now, image in born:
        for then in [one for one in ends if one < now]:
            for form, begin in ends.pop(then):
                free.setdefault(form, []).append(begin)
        borders = [_border(step) for step in readers.get(image.name, ()) if step.source.name == image.name]
        above, left, below, right = (max(sides) for sides in zip(*borders, strict=True)) if borders else (0, 0, 0, 0)
        pixel = -(-image.channels // lanes) * lanes * _BYTES[image.dtype]
        row = (left + image.width + right) * pixel
        form = (above + image.height + below, row, pixel, above, left, image.zero)
        if free.get(form):
            begin = free[form].pop()
        else:
            begin, top = top, top + -(-form[0] * row // _ALIGNED) * _ALIGNED
            if image.zero:
                zeros.append((begin, begin + form[0] * row, image.zero))
        places[image.name] = Place(begin + above * row + left * pixel, row, pixel)
        ends.setdefault(last.get(image.name, now), []).append((form, begin))
    return Plan(places, top, tuple(zeros))


def _border(step: Step) -> Pads:
    """Zeros that a step reads around its source."""
    return step.pads if step.kind in ("conv", "depthwise") else (0, 0, 0, 0)


class Constants:
    """Collects the arrays that code reads, aligned, in one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.bytes = 0

    def add(self, array: npt.NDArray[Any]) -> int:
        """Add an array; return its offset."""
        offset, data = self.bytes, np.ascontiguousarray(array).tobytes()
        self._parts.append(data + bytes(-len(data) % _ALIGNED))
        self.bytes += len(self._parts[-1])
        return offset

    def array(self) -> npt.NDArray[np.uint8]:
        """All of them."""
        return np.frombuffer(b"".join(self._parts), np.uint8)


def source_of(network: Network, vectors: Vectors, plan: Plan, constants: Constants, name: str) -> str:
    """Write a network as a function in LLVM's language, and its weights to ``constants``.

    The function takes an array of pointers (its constants, its buffer, a number that ends it if it is not 0, inputs,
    outputs) and returns 0, or 1 if it was ended between two steps.
    """
    return _Writer(network, vectors, plan, constants).write(name)


class _Writer:
    """Writes the function of a network."""

    def __init__(self, network: Network, vectors: Vectors, plan: Plan, constants: Constants) -> None:
        self._network, self._vectors, self._plan, self._constants = network, vectors, plan, constants
        self._lanes = vectors.lanes
        self._vector, self._whole = ir.VectorType(_F32, vectors.lanes), ir.VectorType(_I32, vectors.lanes)
        self._module = ir.Module(name="kernels")

    def write(self, name: str) -> str:
        """Write all of it."""
        function = ir.Function(self._module, ir.FunctionType(_I32, [_POINTER]), name)
        b = self._b = ir.IRBuilder(function.append_basic_block())
        network = self._network
        pointers = [
            b.load(b.gep(function.args[0], [_I64(place)], source_etype=_POINTER), typ=_POINTER)
            for place in range(3 + len(network.inputs) + len(network.outputs))
        ]
        self._data, self._buffer, flag = pointers[:3]
        outside = dict(zip(network.inputs + network.outputs, pointers[3:], strict=True))
        for image in network.inputs:
            self._convert(image, outside[image], stores=False)
        for step in network.steps:
            ended = b.icmp_signed("!=", b.load(flag, typ=_I32), _I32(0))
            with b.if_then(ended, likely=False):
                b.ret(_I32(1))
            getattr(self, f"_write_{step.kind}")(step)
        for image in network.outputs:
            self._convert(image, outside[image], stores=True)
        b.ret(_I32(0))
        return str(self._module)

    # -- parts of code ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _loop(self, count: Any, begin: Any = 0) -> Iterator[Any]:
        """Count from ``begin`` to below ``count``, at least once; a single turn is no loop."""
        b = self._b
        if isinstance(count, int) and isinstance(begin, int) and count - begin == 1:
            yield _I64(begin)
            return
        first, limit = (_I64(value) if isinstance(value, int) else value for value in (begin, count))
        before, body, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.branch(body)
        b.position_at_end(body)
        index = b.phi(_I64)
        index.add_incoming(first, before)
        yield index
        following = b.add(index, _I64(1))
        index.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, limit), body, after)
        b.position_at_end(after)

    def _at(self, pointer: Any, *terms: tuple[Any, int] | int) -> Any:
        """A pointer moved by bytes: constants, and numbers times constants."""
        b, fixed = self._b, 0
        for term in terms:
            if isinstance(term, int):
                fixed += term
            elif isinstance(term[0], ir.Constant):
                fixed += int(term[0].constant) * term[1]
            else:
                moved = term[0] if term[1] == 1 else b.mul(term[0], _I64(term[1]))
                pointer = b.gep(pointer, [moved], source_etype=ir.IntType(8))
        return b.gep(pointer, [_I64(fixed)], source_etype=ir.IntType(8)) if fixed else pointer

    def _load(self, pointer: Any, kind: Any = None) -> Any:
        return self._b.load(pointer, typ=kind or self._vector, align=1)

    def _store(self, value: Any, pointer: Any) -> None:
        self._b.store(value, pointer, align=1)

    def _read(self, image: Image, pointer: Any) -> Any:
        """A vector of an image's values, as float32."""
        if image.dtype == "float32":
            return self._load(pointer)
        b = self._b
        whole = b.zext(self._load(pointer, ir.VectorType(_I8, self._lanes)), self._whole)
        return self._meant(b.sitofp(whole, self._vector), image.scale, image.zero)

    def _write(self, image: Image, value: Any, pointer: Any) -> None:
        """Store a vector of float32 as an image's values."""
        if image.dtype == "float32":
            self._store(value, pointer)
            return
        b = self._b
        rounded = self._call("lrint", self._scaled(value, image.scale, image.zero), result=self._whole)
        whole = b.add(rounded, ir.Constant(self._whole, [image.zero] * self._lanes))
        self._store(b.trunc(whole, ir.VectorType(_I8, self._lanes)), pointer)

    def _scaled(self, value: Any, scale: float, zero: int) -> Any:
        """Values in units of ``scale``, within the range of bytes before ``zero`` is added."""
        units = self._b.fmul(value, self._number(float(np.float32(1) / np.float32(scale))))
        return self._call("minnum", self._call("maxnum", units, self._number(-zero)), self._number(255 - zero))

    def _meant(self, value: Any, scale: float, zero: int) -> Any:
        """What bytes mean, given as numbers."""
        return (
            self._b.fmul(self._b.fsub(value, self._number(zero)), self._number(scale))
            if zero
            else self._b.fmul(value, self._number(scale))
        )

    def _rounded(self, value: Any, scale: float, zero: int) -> Any:
        """What bytes mean to which values are rounded."""
        return self._b.fmul(self._call("rint", self._scaled(value, scale, zero)), self._number(scale))

    def _spread(self, value: Any) -> Any:
        b, lanes, kind = self._b, ir.VectorType(_I32, self._lanes), ir.VectorType(value.type, self._lanes)
        one = b.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
        return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(lanes, [0] * self._lanes))

    def _number(self, value: float) -> Any:
        return ir.Constant(self._vector, [ir.Constant(_F32, value)] * self._lanes)

    def _call(self, operation: str, *values: Any, result: Any = None) -> Any:
        kind = ir.FunctionType(result or self._vector, [value.type for value in values])
        name = f"llvm.{operation}"
        if "." not in operation:
            name += f".v{self._lanes}i32" * (result is not None) + f".v{self._lanes}f32"
        declared = self._module.globals.get(name) or ir.Function(self._module, kind, name)
        return self._b.call(declared, values)

    def _activated(self, value: Any, activation: Activation) -> Any:
        made = value
        if (activation.slope, activation.offset) != (1.0, 0.0):
            made = self._call("fma", value, self._number(activation.slope), self._number(activation.offset))
        if activation.low > -math.inf:
            made = self._call("maxnum", made, self._number(activation.low))
        if activation.high < math.inf:
            made = self._call("minnum", made, self._number(activation.high))
        return self._b.fmul(value, made) if activation.gates else made

    def _image(self, image: Image) -> tuple[Any, Place]:
        place = self._plan.places[image.name]
        return self._at(self._buffer, place.offset), place

    @staticmethod
    def _element(image: Image) -> Any:
        return _F32 if image.dtype == "float32" else _I8

    def _step(self, image: Image) -> int:
        """Bytes from one block of an image's channels to the next."""
        return self._lanes * _BYTES[image.dtype]

    def _blocks(self, image: Image) -> int:
        return -(-image.channels // self._lanes)

    @contextlib.contextmanager
    def _tiles(self, image: Image, rows: int, columns: int, span: Any = None) -> Iterator[tuple[Any, Any]]:
        """First row and column of tiles that cover an image; the last ones overlap others.

        Args:
            image: the image.
            rows: of a tile.
            columns: of a tile.
            span: first row of tiles, and the one behind the last; default: all.
        """
        b = self._b
        begin, end = span or (0, -(-image.height // rows))
        with self._loop(end, begin) as turn:
            y = self._no_later(b.mul(turn, _I64(rows)), image.height - rows, image.height % rows)
            with self._loop(-(-image.width // columns)) as step:
                yield y, self._no_later(b.mul(step, _I64(columns)), image.width - columns, image.width % columns)

    @contextlib.contextmanager
    def _strips(self, step: Step, rows: int, row_bytes: int) -> Iterator[Any]:
        """Rows of tiles whose inputs stay in a core's cache while all blocks read them: first, and behind the last."""
        b = self._b
        tiles = -(-step.output.height // rows)
        together = max(1, _CACHED // (rows * row_bytes))
        with self._loop(-(-tiles // together)) as strip:
            if together >= tiles:
                yield 0, tiles
                return
            begin = b.mul(strip, _I64(together))
            end = b.add(begin, _I64(together))
            yield begin, b.select(b.icmp_signed(">", end, _I64(tiles)), _I64(tiles), end)

    def _no_later(self, value: Any, last: int, rest: int) -> Any:
        b = self._b
        return b.select(b.icmp_signed(">", value, _I64(last)), _I64(last), value) if rest else value

    def _finish(self, step: Step, sums: Sequence[Any], tile: tuple[int, int], y: Any, x: Any, block: Any) -> None:
        """Join with the other image, activate and store a tile of one block."""
        b = self._b
        b = self._b
        pointer, place = self._image(step.output)
        pointer = self._at(pointer, (y, place.row), (x, place.pixel), (block, self._step(step.output)))
        joined, row_bytes, pixel_bytes = None, 0, 0
        if step.other is not None:
            other, there = self._image(step.other)
            if step.other.height * step.other.width > 1:
                row_bytes, pixel_bytes = there.row, there.pixel
            joined = self._at(other, (y, row_bytes), (x, pixel_bytes), (block, self._step(step.other)))
        for number, value in enumerate(sums):
            row, column = divmod(number, tile[1])
            if step.rounded is not None:
                value = self._rounded(value, *step.rounded)
            if step.other is not None:
                factor = self._read(step.other, self._at(joined, row * row_bytes + column * pixel_bytes))
                value = b.fmul(value, factor) if step.multiplies else b.fadd(value, factor)
            done = self._activated(value, step.activation)
            self._write(step.output, done, self._at(pointer, row * place.row + column * place.pixel))

    # -- kernels ---------------------------------------------------------------------------------------------

    def _write_conv(self, step: Step) -> None:
        """A convolution: for each block and tile, the block's list."""
        b, lanes = self._b, self._lanes
        assert step.bias is not None
        source, place = self._image(step.source)
        source = self._at(source, -step.pads[0] * place.row - step.pads[1] * place.pixel)
        down, across = step.stride[0] * place.row, step.stride[1] * place.pixel
        whole = step.scales is not None
        tile = tile_of(step.output.height, step.output.width, _MOST_BYTES if whole else self._vectors.tile)
        pixels = tile[0] * tile[1]
        chains = 1 if pixels >= 2 * _CHAINS else _CHAINS
        weights, offsets, begins = block_lists(step, lanes, place, chains)
        w, o, s = (self._at(self._data, self._constants.add(array)) for array in (weights, offsets, begins))
        missing = np.zeros(-len(step.bias) % lanes, np.float32)
        bias, scales = np.concatenate([step.bias, missing]), None
        if step.scales is not None:
            starts, factors = whole_starts(step, 128 if self._vectors.signed else 0)
            bias = np.concatenate([starts, missing.astype(np.int32)])
            scales = self._at(self._data, self._constants.add(np.concatenate([factors, missing])))
        biases = self._at(self._data, self._constants.add(bias))
        kind = self._whole if whole else self._vector
        with self._strips(step, tile[0], down) as span, self._loop(self._blocks(step.output)) as block:
            first = b.sext(b.load(self._at(s, (block, 4)), typ=_I32), _I64)
            until = b.sext(b.load(self._at(s, (block, 4), 4), typ=_I32), _I64)
            start = self._load(self._at(biases, (block, lanes * _FLOAT)), kind)
            scale = None if scales is None else self._load(self._at(scales, (block, lanes * _FLOAT)))
            with self._tiles(step.output, *tile, span) as (y, x):
                here = self._at(source, (y, down), (x, across))
                sums = self._walk(here, (w, o), (first, until), start, tile, (down, across), chains)
                if scale is not None:
                    sums = [b.fmul(b.sitofp(total, self._vector), scale) for total in sums]
                self._finish(step, sums, tile, y, x, block)

    def _walk(
        self,
        source: Any,
        lists: tuple[Any, Any],
        span: tuple[Any, Any],
        start: Any,
        tile: tuple[int, int],
        strides: tuple[int, int],
        chains: int,
    ) -> list[Any]:
        """Sums of products of a tile over a block's list, which may be empty; whole numbers if ``start`` is one."""
        b, kind = self._b, start.type
        first, until = span
        pixels = tile[0] * tile[1]
        zero = ir.Constant(kind, None)
        starts = [start] * pixels + [zero] * (pixels * (chains - 1))
        before, body, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_signed("<", first, until), body, after)
        b.position_at_end(body)
        index = b.phi(_I64)
        index.add_incoming(first, before)
        sums = []
        for value in starts:
            sums.append(b.phi(kind))
            sums[-1].add_incoming(value, before)
        added = []
        for chain in range(chains):
            weight = self._load(self._at(lists[0], (index, self._lanes * 4), chain * self._lanes * 4), kind)
            offset = b.sext(b.load(self._at(lists[1], (index, 4), chain * 4), typ=_I32), _I64)
            here = self._at(source, (offset, 1))
            for pixel in range(pixels):
                row, column = divmod(pixel, tile[1])
                value = b.load(self._at(here, row * strides[0] + column * strides[1]), typ=kind.element, align=1)
                total = sums[chain * pixels + pixel]
                if kind is self._vector:
                    added.append(self._call("fma", self._spread(value), weight, total))
                else:
                    added.append(self._dot(total, self._spread(value), weight))
        following = b.add(index, _I64(chains))
        index.add_incoming(following, b.block)
        for total, value in zip(sums, added, strict=True):
            total.add_incoming(value, b.block)
        b.cbranch(b.icmp_signed("<", following, until), body, after)
        b.position_at_end(after)
        ends = []
        for value, total in zip(starts, added, strict=True):
            ends.append(b.phi(kind))
            ends[-1].add_incoming(value, before)
            ends[-1].add_incoming(total, body)
        add = b.fadd if kind is self._vector else b.add
        for chain in range(1, chains):
            ends[:pixels] = [add(ends[p], ends[chain * pixels + p]) for p in range(pixels)]
        return ends[:pixels]

    def _dot(self, total: Any, values: Any, weights: Any) -> Any:
        """Add products of four bytes to each whole number."""
        b, vectors = self._b, self._vectors
        if not vectors.signed:
            return self._call(vectors.dot, total, values, weights, result=total.type)
        signed = b.xor(values, ir.Constant(self._whole, [-0x7F7F7F80] * self._lanes))  # each byte less 128
        kind = ir.VectorType(_I8, FOUR * self._lanes)
        return self._call(vectors.dot, total, b.bitcast(signed, kind), b.bitcast(weights, kind), result=total.type)

    def _write_depthwise(self, step: Step) -> None:
        """One filter for each channel: vectors of channels times vectors of weights."""
        lanes = self._lanes
        assert step.weight is not None
        assert step.bias is not None
        source, place = self._image(step.source)
        source = self._at(source, -step.pads[0] * place.row - step.pads[1] * place.pixel)
        down, across = step.stride[0] * place.row, step.stride[1] * place.pixel
        tile = tile_of(step.output.height, step.output.width, self._vectors.tile // 2)
        blocks = self._blocks(step.output)
        rows, columns = step.window
        taps = rows * columns
        filled = np.zeros((blocks * lanes, taps + 1), np.float32)
        filled[: len(step.weight), :taps], filled[: len(step.weight), taps] = step.weight.reshape(-1, taps), step.bias
        by_block = filled.reshape(blocks, lanes, taps + 1).transpose(0, 2, 1)
        data = self._at(self._data, self._constants.add(by_block))
        with self._loop(blocks) as block:
            table = self._at(data, (block, (taps + 1) * lanes * _FLOAT))
            start = self._load(self._at(table, taps * lanes * _FLOAT))
            with self._tiles(step.output, *tile) as (y, x):
                here = self._at(source, (y, down), (x, across), (block, self._step(step.source)))
                sums = [start] * (tile[0] * tile[1])
                for tap in range(taps):
                    weight = self._load(self._at(table, tap * lanes * _FLOAT))
                    row, column = divmod(tap, columns)
                    spot = row * step.dilation[0] * place.row + column * step.dilation[1] * place.pixel
                    for pixel in range(len(sums)):
                        tile_row, tile_column = divmod(pixel, tile[1])
                        there = self._at(here, spot + tile_row * down + tile_column * across)
                        value = self._read(step.source, there)
                        sums[pixel] = self._call("fma", value, weight, sums[pixel])
                self._finish(step, sums, tile, y, x, block)

    def _write_copy(self, step: Step) -> None:
        """An image as it is, or flattened."""
        source, place = self._image(step.source)
        if not step.even:
            target, size = self._image(step.output)[0], _BYTES[step.source.dtype]
            with self._transposed(step.source, source, place, size) as (last, number):
                self._store(self._load(last, self._element(step.source)), self._at(target, (number, size)))
            return
        with self._loop(self._blocks(step.output)) as block, self._tiles(step.output, 1, 1) as (y, x):
            here = self._at(source, (y, place.row), (x, place.pixel), (block, self._step(step.source)))
            self._finish(step, [self._read(step.source, here)], (1, 1), y, x, block)

    def _write_max(self, step: Step) -> None:
        """The largest value of a window."""
        self._write_pool(step)

    def _write_mean(self, step: Step) -> None:
        """The mean of a window."""
        self._write_pool(step)

    def _write_pool(self, step: Step) -> None:
        """A pooling: windows are clipped at the image's edges."""
        b = self._b
        source, place = self._image(step.source)
        image, largest = step.source, step.kind == "max"
        with self._loop(self._blocks(step.output)) as block, self._tiles(step.output, 1, 1) as (y, x):
            spans = []
            for at, axis, size in ((y, 0, image.height), (x, 1, image.width)):
                begin = b.sub(b.mul(at, _I64(step.stride[axis])), _I64(step.pads[axis]))
                end = b.add(begin, _I64(step.window[axis]))
                low = b.select(b.icmp_signed("<", begin, _I64(0)), _I64(0), begin)
                high = b.select(b.icmp_signed(">", end, _I64(size)), _I64(size), end)
                spans.append((low, high))
            total = b.alloca(self._vector)
            self._store(self._number(-math.inf if largest else 0.0), total)
            with self._loop(spans[0][1], spans[0][0]) as row, self._loop(spans[1][1], spans[1][0]) as column:
                vector = (block, self._step(image))
                here = self._at(source, (row, place.row), (column, place.pixel), vector)
                value, so_far = self._read(image, here), self._load(total)
                joined = self._call("maxnum", so_far, value) if largest else b.fadd(so_far, value)
                self._store(joined, total)
            value = self._load(total)
            if not largest:
                counted = b.mul(b.sub(spans[0][1], spans[0][0]), b.sub(spans[1][1], spans[1][0]))
                whole = _I64(step.window[0] * step.window[1])
                count = b.sitofp(whole if step.counts_pads else counted, _F32)
                value = b.fdiv(value, self._spread(count))
            self._finish(step, [value], (1, 1), y, x, block)

    def _convert(self, image: Image, outside: Any, *, stores: bool) -> None:
        """Copy an image from outside, or to it: there channels come first."""
        pointer, place = self._image(image)
        size, lanes = _BYTES[image.dtype], self._lanes
        if image.width < lanes:
            with self._transposed(image, pointer, place, size) as (last, number):
                first = self._at(outside, (number, size))
                value = self._load(last if stores else first, self._element(image))
                self._store(value, first if stores else last)
            return
        kind = ir.VectorType(self._element(image), lanes)
        area = image.height * image.width * size
        for begin in range(0, image.channels, lanes):
            count = min(lanes, image.channels - begin)
            with self._tiles(image, 1, lanes) as (y, x):
                last = self._at(pointer, (y, place.row), (x, place.pixel), begin * size)
                first = self._at(outside, (y, image.width * size), (x, size), begin * area)
                lasts = [self._at(last, pixel * place.pixel) for pixel in range(lanes)]
                firsts = [self._at(first, channel * area) for channel in range(count)]
                if stores:
                    rows = self._turned([self._load(here, kind) for here in lasts])[:count]
                else:
                    missing = [ir.Constant(kind, None)] * (lanes - count)
                    rows = self._turned([self._load(here, kind) for here in firsts] + missing)
                for value, here in zip(rows, firsts if stores else lasts, strict=True):
                    self._store(value, here)

    def _turned(self, rows: list[Any]) -> list[Any]:
        """Transpose a square of vectors: the first half is interleaved with the second one, again and again."""
        count = self._lanes
        half = count // 2
        kind = ir.VectorType(_I32, count)
        low = ir.Constant(kind, [n // 2 + n % 2 * count for n in range(count)])
        high = ir.Constant(kind, [half + n // 2 + n % 2 * count for n in range(count)])
        for _ in range(count.bit_length() - 1):
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [self._b.shuffle_vector(one, two, order) for one, two in pairs for order in (low, high)]
        return rows

    @contextlib.contextmanager
    def _transposed(self, image: Image, pointer: Any, place: Place, size: int) -> Iterator[tuple[Any, Any]]:
        """Loop over an image's numbers: pointers to them, and their places where channels come first."""
        b = self._b
        with self._loop(image.height) as y, self._loop(image.width) as x, self._loop(image.channels) as channel:
            last = self._at(pointer, (y, place.row), (x, place.pixel), (channel, size))
            row = b.add(b.mul(channel, _I64(image.height)), y)
            yield last, b.add(b.mul(row, _I64(image.width)), x)


def tile_of(height: int, width: int, most: int) -> tuple[int, int]:
    """Rows and columns of the tile that covers an image with the least work.

    Walking a block's list costs about one product more for each of its entries than the tile has pixels.
    """
    best, least = (1, 1), math.inf
    for rows in range(1, min(height, most) + 1):
        for columns in range(1, min(width, most // rows) + 1):
            cost = -(-height // rows) * -(-width // columns) * (rows * columns + 1)
            if cost < least:
                best, least = (rows, columns), cost
    return best


def whole_starts(step: Step, less: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """What sums of whole numbers start with, and what 1 means in them, by output.

    A byte q stands for q - zero, and is multiplied as q - ``less``: the rest times the sum of the weights comes first.
    Borders are ``zero``, too.
    """
    assert step.weight is not None
    assert step.bias is not None
    assert step.scales is not None
    factors = step.scales.astype(np.float64) * np.float64(np.float32(step.source.scale))
    sums = step.weight.reshape(len(step.weight), -1).sum(axis=1, dtype=np.int64)
    starts = np.rint(step.bias / factors).astype(np.int64) - (step.source.zero - less) * sums
    return starts.astype(np.int32), factors.astype(np.float32)


def block_lists(
    step: Step, lanes: int, place: Place, chains: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """What each block of outputs reads.

    Args:
        step: a convolution.
        lanes: outputs of a block.
        place: of its source.
        chains: a block's entries are a multiple of this; those that are missing are zero.

    Returns:
        entries x lanes float32 weights, or entries x lanes x 4 of bytes; entries' offsets in bytes from a window's
        first input; blocks' first entries and the number of all.
    """
    assert step.weight is not None
    weight = step.weight
    whole = weight.dtype == np.int8
    shape = (lanes, FOUR) if whole else (lanes,)
    apart = FOUR if whole else _FLOAT  # bytes
    inputs = weight.shape[1]
    each = len(weight) // step.groups
    weights, offsets, begins = [], [], [0]
    numbers = np.arange(-(-len(weight) // lanes) * lanes).reshape(-1, lanes)
    for block, outputs in zip(in_blocks(weight, lanes), numbers, strict=True):
        group = np.minimum(outputs, len(weight) - 1) // each
        total = 0
        for one in np.unique(group):
            mine = np.where((group == one)[:, None, None, None], block, weight.dtype.type(0))
            parts = in_fours(mine) if whole else mine[:, :, None]  # lanes x parts x inputs of one x rows x columns
            kept = np.any(np.moveaxis(parts != 0, (2, 1), (1, 4)), axis=(0, 1))  # in the order of memory
            rows, columns, channels = np.nonzero(kept)
            weights.append(parts[:, channels, :, rows, columns].reshape(-1, *shape))
            first = one * inputs * _FLOAT
            taps = rows * step.dilation[0] * place.row + columns * step.dilation[1] * place.pixel
            offsets.append(taps + first + channels * apart)
            total += len(rows)
        missing = -total % chains
        weights.append(np.zeros((missing, *shape), weight.dtype))
        offsets.append(np.zeros(missing, np.int64))
        begins.append(begins[-1] + total + missing)
    return (
        np.concatenate(weights).astype(weight.dtype),
        np.concatenate(offsets).astype(np.int32),
        np.asarray(begins, np.int32),
    )
