"""Ensembles as C99 for processors without floating point or a fast multiplier: ``framefit treeify --export c``.

One file holds all groups. It uses whole numbers only and no heap; thresholds are folded into an int8 input, so that a
comparison is one of two bytes. Each function is exactly the reference (:func:`framefit.core.trees.evaluate`) of the
input ``step * x``.

Votes on patches are computed for 32 positions of a row at once: each comparator bit of a channel is a plane, a test is
a word of it, a tree selects words (Biham, "A fast new DES implementation in software", 1997, for bit-slicing), and the
trees' votes are counted in vertical counters. Everything else visits trees row by row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

import numpy as np

from framefit.core.trees import Ensemble, Forest, FreeTree, ObliviousTree, Patch, as_image
from framefit.errors import InputError

_LANES = 32
_LINE = 20  # numbers of a table in a line
_LEAST_STEP = 2.0**-60
_PASSED = {(False, True, True): 0, (False, False, True): 1, (False, True, False): 2}  # words 0, 1, 2 by a node's bit


def c_source(forest: Forest) -> str:
    """C99 source of a function for each ensemble, with tables, sizes and what its input and output mean.

    Args:
        forest: ensembles of a model.

    Raises:
        InputError: one of them reads a volume.
    """
    names = _names(ensemble.name for ensemble in forest.ensembles)
    parts = [f"/* Trees of {_comment(forest.model)}: C99, whole numbers only, no heap. */\n#include <stdint.h>\n"]
    if any(_sliced(ensemble) for ensemble in forest.ensembles) or any(e.patch for e in forest.ensembles):
        parts.append(_LANE_FUNCTION)
    parts += [_group(ensemble, name) for ensemble, name in zip(forest.ensembles, names, strict=True)]
    return "\n".join(parts)


def input_step(ensemble: Ensemble) -> float:
    """What one step of the int8 input is worth: a power of two, with which thresholds lie within half of the range."""
    most = max((abs(value) for value in (*ensemble.encoder.low, *ensemble.encoder.high)), default=0.0)
    return 2.0 ** math.ceil(math.log2(max(most / 64, _LEAST_STEP)))


def folded(ensemble: Ensemble, step: float | None = None) -> tuple[list[int], list[int]]:
    """Thresholds of the int8 input: ``step * x`` exceeds a float32 threshold where ``x`` exceeds the whole number.

    Args:
        ensemble: the trees.
        step: what one step of the input is worth; default: :func:`input_step`.
    """
    values = np.arange(-128, 128, dtype=np.float32) * np.float32(step or input_step(ensemble))
    sides = (np.asarray(side, np.float32) for side in (ensemble.encoder.low, ensemble.encoder.high))
    low, high = ((values <= side[:, None]).sum(axis=1) - 129 for side in sides)
    return low.tolist(), high.tolist()


def _sliced(ensemble: Ensemble) -> bool:
    """Whether 32 positions are computed at once."""
    return (
        ensemble.patch is not None and ensemble.kind == "vote" and bool(ensemble.trees) and ensemble.levels is not None
    )


_LANE_FUNCTION = """
/* 32 columns of a row of bits from column "at" on; 0 beyond its words. */
static uint32_t lanes(const uint32_t *row, int32_t words, int32_t at)
{
    int32_t word = at >> 5, shift = at & 31;
    uint32_t low = word >= 0 && word < words ? row[word] : 0u, high;
    if (!shift)
        return low;
    high = word + 1 >= 0 && word + 1 < words ? row[word + 1] : 0u;
    return low >> shift | high << (32 - shift);
}
"""


def _group(ensemble: Ensemble, name: str) -> str:
    if ensemble.flat is ensemble:
        return _function(ensemble, name, "")
    patch = ensemble.patch
    if patch is None or patch.layout != "tokens":
        raise InputError(
            "trees on a volume have no form in C", where=ensemble.name, remedy="export core or ml, or another group"
        )
    output = "uint8_t" if ensemble.levels is not None else "int32_t"
    inputs, outputs, tokens = ensemble.image[0], ensemble.outputs, ensemble.positions
    return f"""{_function(ensemble.flat, f"{name}_turned", "static ")}
/* {_comment(ensemble.name)}: as above, for {tokens} tokens one behind the other. */
void {name}(const int8_t x[{tokens * inputs}], {output} y[{tokens * outputs}])
{{
    static int8_t turned[{tokens * inputs}];
    static {output} made[{tokens * outputs}];
    int32_t t, k;
    for (t = 0; t < {tokens}; t++)
        for (k = 0; k < {inputs}; k++)
            turned[k * {tokens} + t] = x[t * {inputs} + k];
    {name}_turned(turned, made);
    for (t = 0; t < {tokens}; t++)
        for (k = 0; k < {outputs}; k++)
            y[t * {outputs} + k] = made[k * {tokens} + t];
}}
"""


def _function(ensemble: Ensemble, name: str, storage: str) -> str:
    low, high = folded(ensemble)
    tables = _Tables(name)
    tables.add("int16_t", "low", low)
    tables.add("int16_t", "high", high)
    body = _sliced_body(ensemble, name, tables) if _sliced(ensemble) else _row_body(ensemble, name, tables)
    levels = ensemble.levels is not None
    output = "uint8_t" if levels else "int32_t"
    count = math.prod(ensemble.output_shape)
    meaning = "levels 0, 1, 2 of each output" if levels else "sums with their biases; an output is its scale times that"
    head = [
        f"{_comment(ensemble.name)}: {len(ensemble.members)} trees ({ensemble.kind}).",
        f"x: {' x '.join(map(str, ensemble.input_shape))} numbers, each {input_step(ensemble):.9g} times as much.",
        f"y: {' x '.join(map(str, ensemble.output_shape))}, {meaning}.",
        f"Flash: {tables.bytes} bytes of tables, and code. RAM: {_ram(ensemble)} bytes, and the stack.",
    ]
    lines = "\n * ".join(head)
    signature = f"{storage}void {name}(const int8_t x[{math.prod(ensemble.input_shape)}], {output} y[{count}])"
    return f"\n/* {lines} */\n{tables.text}{body.replace('@signature@', signature)}"


class _Tables:
    """Constant tables of a group, and how many bytes they take."""

    def __init__(self, name: str) -> None:
        self._name, self.text, self.bytes = name, "", 0

    def add(self, kind: str, name: str, values: Iterable[int]) -> None:
        listed = [int(value) for value in values] or [0]  # C has no empty tables
        rows = (listed[at : at + _LINE] for at in range(0, len(listed), _LINE))
        inner = ",\n    ".join(", ".join(map(str, row)) for row in rows)
        self.text += f"static const {kind} {self._name}_{name}[{len(listed)}] = {{\n    {inner}}};\n"
        self.bytes += len(listed) * {"int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4}[kind]


def _ram(ensemble: Ensemble) -> int:
    """Static memory beside the tables."""
    planes = 0
    if ensemble.patch is not None:
        planes = 4 * _plane_words(ensemble) * (2 * ensemble.image[0] * ensemble.image[1])
    return planes + (0 if _sliced(ensemble) else 3 * ensemble.features + 4 * ensemble.outputs)


def _plane_words(ensemble: Ensemble) -> int:
    """Words of one row of one plane: columns by their remainder, each begun anew."""
    patch = ensemble.patch
    assert patch is not None
    return patch.stride[1] * _row_words(ensemble)


def _row_words(ensemble: Ensemble) -> int:
    patch = ensemble.patch
    assert patch is not None
    return -(-ensemble.image[2] // (patch.stride[1] * _LANES))


def _planes(ensemble: Ensemble, name: str) -> str:
    """The planes of an image, and the function that fills them."""
    assert ensemble.patch is not None
    channels, height, width = ensemble.image
    stride, words, across = ensemble.patch.stride[1], _row_words(ensemble), ensemble.patch.kernel[1]
    return f"""static uint32_t {name}_planes[{2 * channels * height}][{stride * words}];

static void {name}_fill(const int8_t *x)
{{
    int32_t c, r, k;
    for (c = 0; c < {channels}; c++)
        for (r = 0; r < {height}; r++) {{
            uint32_t *low = {name}_planes[(2 * c) * {height} + r], *high = {name}_planes[(2 * c + 1) * {height} + r];
            for (k = 0; k < {stride * words}; k++)
                low[k] = high[k] = 0u;
            for (k = 0; k < {width}; k++, x++) {{
                int32_t at = k / {stride}, word = (k % {stride}) * {words} + (at >> 5);
                if (*x > {name}_low[c])
                    low[word] |= (uint32_t)1 << (at & 31);
                if (*x > {name}_high[c])
                    high[word] |= (uint32_t)1 << (at & 31);
            }}
        }}
}}

/* A test of 32 patches of a row: place in the patch, and twice the channel with the bit. */
static uint32_t {name}_test(int32_t row, int32_t column, int32_t place, int32_t bit)
{{
    int32_t r = row + place / {across}, k = place % {across} - {ensemble.patch.padding[1]};
    int32_t rest = ((k % {stride}) + {stride}) % {stride};
    int32_t at = column + (k - rest) / {stride};{_border(ensemble)}
    if (r < 0 || r >= {height})
        return 0u;
    return lanes({name}_planes[bit * {height} + r] + rest * {words}, {words}, at);
}}
"""


def _border(ensemble: Ensemble) -> str:
    """Border features: 1 where a place is in padding."""
    patch = ensemble.patch
    assert patch is not None
    if not patch.border:
        return ""
    channels, height, width = ensemble.image
    return f"""
    if (bit >= {2 * channels}) {{
        uint32_t inside = 0u;
        int32_t j;
        if (r >= 0 && r < {height})
            for (j = 0; j < 32; j++)
                if ((at + j) * {patch.stride[1]} + rest >= 0 && (at + j) * {patch.stride[1]} + rest < {width})
                    inside |= (uint32_t)1 << j;
        return ~inside;
    }}"""


def _tests(ensemble: Ensemble, patch: Patch) -> Iterator[tuple[int, int]]:
    """Place in the patch and plane of each test of oblivious trees, in order."""
    for tree in ensemble.trees:
        for feature, bit in zip(tree.inputs, tree.bits, strict=True):
            yield feature % patch.area, 2 * (feature // patch.area) + bit


def _sliced_body(ensemble: Ensemble, name: str, tables: _Tables) -> str:
    patch, levels = ensemble.patch, ensemble.levels
    assert patch is not None
    assert levels is not None
    tests = list(_tests(ensemble, patch))
    tables.add("uint16_t", "place", (place for place, _ in tests))
    tables.add("uint16_t", "bit", (bit for _, bit in tests))
    tables.add("uint8_t", "depth", (tree.depth for tree in ensemble.trees))
    leaves = [_leaf_pairs(tree) for tree in ensemble.trees]
    tables.add("uint8_t", "pairs", (pair for tree in leaves for pair in tree))
    tables.add("int32_t", "least", levels.low)
    tables.add("int32_t", "most", levels.high)
    rows, columns = as_image(ensemble.output_shape)[1:]
    bits = max(ensemble.trees_each.bit_length(), 1)
    top = patch.padding[0]
    return f"""{_planes(ensemble, name)}
/* 1 in each lane whose count is at least "bound". */
static uint32_t {name}_reach(const uint32_t *count, int32_t bound)
{{
    uint32_t equal = 0xffffffffu, more = 0u;
    int32_t k;
    if (bound <= 0)
        return 0xffffffffu;
    if (bound >= {1 << bits})
        return 0u;
    for (k = {bits - 1}; k >= 0; k--)
        if (bound >> k & 1)
            equal &= count[k];
        else {{
            more |= equal & count[k];
            equal &= ~count[k];
        }}
    return more | equal;
}}

@signature@
{{
    int32_t row, column, o, t, k, j;
    {name}_fill(x);
    for (row = 0; row < {rows}; row++)
        for (column = 0; column < {columns}; column += 32) {{
            const uint16_t *place = {name}_place, *bit = {name}_bit;
            const uint8_t *pairs = {name}_pairs, *depth = {name}_depth;
            int32_t here = {columns} - column < 32 ? {columns} - column : 32;
            for (o = 0; o < {ensemble.outputs}; o++) {{
                uint32_t count[{bits}], least, most;
                uint8_t *out = y + (o * {rows} + row) * {columns} + column;
                for (k = 0; k < {bits}; k++)
                    count[k] = 0u;
                for (t = 0; t < {ensemble.trees_each}; t++, depth++) {{
                    uint32_t word[32], select[4], carry;
                    int32_t words = *depth ? 1 << (*depth - 1) : 1;
                    uint32_t first = *depth ? {name}_test(row * {patch.stride[0]} - {top}, column, *place, *bit) : 0u;
                    select[0] = 0u;
                    select[1] = ~first;
                    select[2] = first;
                    select[3] = 0xffffffffu;
                    for (k = 0; k < words; k++)
                        word[k] = select[*pairs++];
                    for (k = 1; k < *depth; k++) {{
                        uint32_t test = {name}_test(row * {patch.stride[0]} - {top}, column, place[k], bit[k]);
                        words >>= 1;
                        for (j = 0; j < words; j++)
                            word[j] = word[2 * j] ^ (test & (word[2 * j] ^ word[2 * j + 1]));
                    }}
                    place += *depth;
                    bit += *depth;
                    carry = word[0];
                    for (k = 0; k < {bits}; k++) {{
                        uint32_t sum = count[k] ^ carry;
                        carry &= count[k];
                        count[k] = sum;
                    }}
                }}
                least = {name}_reach(count, {name}_least[o]);
                most = {name}_reach(count, {name}_most[o]);
                for (j = 0; j < here; j++)
                    out[j] = (uint8_t)((least >> j & 1u) + (most >> j & 1u));
            }}
        }}
}}
"""


def _leaf_pairs(tree: ObliviousTree) -> list[int]:
    """What the first test selects, for each outcome of the others: 0, its complement, itself, 1 as 0 to 3."""
    leaves = tree.leaves if tree.depth else (*tree.leaves, *tree.leaves)
    return [leaves[at] + 2 * leaves[at + 1] for at in range(0, len(leaves), 2)]


def _row_body(ensemble: Ensemble, name: str, tables: _Tables) -> str:
    oblivious = bool(ensemble.trees)
    if oblivious:
        tables.add(
            "uint16_t",
            "tests",
            (3 * f + b for tree in ensemble.trees for f, b in zip(tree.inputs, tree.bits, strict=True)),
        )
        tables.add("uint8_t", "depth", (tree.depth for tree in ensemble.trees))
    else:
        tables.add("uint16_t", "node", (number for tree in ensemble.free_trees for number in _nodes(tree)))
        tables.add("uint16_t", "inner", (len(tree.nodes) for tree in ensemble.free_trees))
    tables.add("int8_t", "leaves", (leaf for tree in ensemble.members for leaf in tree.leaves))
    walk = f"""                int32_t leaf = 0;
                for (k = 0; k < {name}_depth[t]; k++)
                    leaf |= (int32_t){name}_bits[*test++] << k;
                leaves_of = 1 << {name}_depth[t];
"""
    if not oblivious:
        walk = f"""                int32_t inner = {name}_inner[t], leaf = 0;
                while (leaf < inner) {{
                    const uint16_t *at = node + 3 * leaf;
                    leaf = {name}_bits[at[0]] ? at[2] : at[1];
                }}
                leaf -= inner;
                node += 3 * inner;
                leaves_of = inner + 1;
"""
    add = f"                sum[t / {ensemble.trees_each}] += leaves[leaf];\n                leaves += leaves_of;\n"
    if ensemble.kind == "vector":
        add = f"""                for (o = 0; o < {ensemble.outputs}; o++)
                    sum[o] += leaves[leaf * {ensemble.outputs} + o];
                leaves += leaves_of * {ensemble.outputs};
"""
    if ensemble.levels is not None:
        tables.add("int32_t", "least", ensemble.levels.low)
        tables.add("int32_t", "most", ensemble.levels.high)
        out = f"(uint8_t)((sum[o] >= {name}_least[o]) + (sum[o] >= {name}_most[o]))"
    else:
        assert ensemble.scaled is not None
        tables.add("int32_t", "bias", ensemble.scaled.bias)
        out = f"sum[o] + {name}_bias[o]"
    begin = f"const uint16_t *{'test' if oblivious else 'node'} = {name}_{'tests' if oblivious else 'node'};"
    return f"""{_planes(ensemble, name) if ensemble.patch else ""}
static uint8_t {name}_bits[{3 * ensemble.features}];
static int32_t {name}_sums[{ensemble.outputs}];

@signature@
{{
    int32_t position, t, k, o, leaves_of, *sum = {name}_sums;
    {f"{name}_fill(x);" if ensemble.patch else ""}
    for (position = 0; position < {ensemble.positions}; position++) {{
        {begin}
        const int8_t *leaves = {name}_leaves;
{_bits(ensemble, name)}        for (o = 0; o < {ensemble.outputs}; o++)
            sum[o] = 0;
        for (t = 0; t < {len(ensemble.members)}; t++) {{
{walk}{add}            }}
        for (o = 0; o < {ensemble.outputs}; o++)
            y[o * {ensemble.positions} + position] = {out};
    }}
}}
"""


def _bits(ensemble: Ensemble, name: str) -> str:
    """Comparator bits of one row."""
    patch = ensemble.patch
    if patch is None:
        return f"""        for (k = 0; k < {ensemble.features}; k++) {{
            {name}_bits[3 * k] = x[k] > {name}_low[k];
            {name}_bits[3 * k + 1] = x[k] > {name}_high[k];
            {name}_bits[3 * k + 2] = {name}_bits[3 * k] ^ {name}_bits[3 * k + 1];
        }}
"""
    columns = ensemble.output_shape[-1]
    row = f"position / {columns} * {patch.stride[0]} - {patch.padding[0]}"
    return f"""        for (k = 0; k < {ensemble.features}; k++) {{
            for (t = 0; t < 2; t++)
                {name}_bits[3 * k + t] = {name}_test({row}, position % {columns}, k % {patch.area},
                    2 * (k / {patch.area}) + t) & 1u;
            {name}_bits[3 * k + 2] = {name}_bits[3 * k] ^ {name}_bits[3 * k + 1];
        }}
"""


def _nodes(tree: FreeTree) -> Iterator[int]:
    """Comparator bit, and where to go from each node without and with it: a word is 0, 1 or 2."""
    for node in tree.nodes:
        passed = [(word >> node.l & (1 << node.h - node.l + 1) - 1) > node.a for word in (0, 1, 2)]
        bit = _PASSED.get((passed[0], passed[1], passed[2]), 0)
        yield from (3 * node.x + bit, node.i0, node.i1 if any(passed) else node.i0)


def _names(names: Iterable[str]) -> list[str]:
    """Identifiers of C, all different."""
    made: list[str] = []
    for number, name in enumerate(names):
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "group"
        plain = plain if plain[0].isalpha() else f"trees_{plain}"
        made.append(plain if plain not in made else f"{plain}_{number}")
    return made


def _comment(text: str) -> str:
    """Text that ends no comment."""
    return re.sub(r"[^\x20-\x7e]", "?", text).replace("*/", "* /").replace("/*", "/ *")
