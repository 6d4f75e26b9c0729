"""A layer as work for an accelerator: matrix products, element operations, bytes.

Convolutions are written as products the way systolic arrays run them ("im2col"; Samajdar et
al., 2020, "A Systematic Methodology for Characterizing Scalability of DNN Accelerators using
SCALE-Sim"): m output positions, n output channels, sums over k = channels x kernel.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from framefit.core.files import Record
from framefit.core.model import Layer, Model, Node, Operand, TensorInfo
from framefit.core.trees import TREES

__all__ = ["LayerWork", "dtype_bits", "layer_work"]


Method = Literal["products", "elements", "bytes", "view", "unknown"]
Tensor = tuple[int, str]
"""Number of elements, and their storage type."""


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_CONVERSIONS = _set("QuantizeLinear DequantizeLinear")
_VIEWS = _set("Reshape Flatten Squeeze Unsqueeze Identity Dropout")
_PART = _set("Gather GatherND GatherElements Slice")  # read only as much as they write
_MOVES = _set(
    "Cast Concat ConcatFromSequence DepthToSpace Expand Pad Scatter ScatterElements ScatterND SpaceToDepth Split "
    "Tile Transpose ReorderInput ReorderOutput"
)
_ELEMENTWISE = _set(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BatchNormalization BiasGelu BitShift Ceil Celu Clip Cos Cosh "
    "DequantizeLinear Div DynamicQuantizeLinear Elu Equal Erf Exp FastGelu Floor Gelu Greater GreaterOrEqual "
    "HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow "
    "QLinearAdd QLinearConcat QLinearLeakyRelu QLinearMul QLinearSigmoid QuantizeLinear QuickGelu Reciprocal Relu "
    "Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
)


# Normalisations read their input for statistics, again for the sum, and once more for the quotient.
_PASSES = 3
_NORMALISATIONS = _set(
    "Softmax LogSoftmax QLinearSoftmax Hardmax LayerNormalization InstanceNormalization GroupNormalization "
    "RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization LpNormalization MeanVarianceNormalization"
)
_RESIZE = {"nearest": 1, "linear": 4, "cubic": 16}  # neighbours that determine an element


class Product(Record, kw_only=True):
    """A matrix product: ``groups`` independent ones, in each of ``steps`` successive steps.

    Attributes:
        op: operator of the product.
        m, n: rows and columns of each result: positions and channels of the output.
        channels, area: the length of each sum is their product: input channels and kernel positions.
        groups: number of independent products of this size.
        steps: number of steps that depend on each other: of a recurrent layer, or iterations of a loop.
        constant: whether the second operand is a weight.
        inputs: elements of the first operand, in each group and step.
        halo: elements of it that adjacent rows of the output share, in each group.
        input_dtype, weight_dtype: storage types of the operands.
        input_outside, weight_outside: whether the operand comes from outside the layer.
        tail: element operations at the end of each step, before the next step can begin.
    """

    op: str
    m: int
    n: int
    channels: int
    area: int = 1
    groups: int = 1
    steps: int = 1
    constant: bool = True
    inputs: int = 0
    halo: int = 0
    input_dtype: str = "float32"
    weight_dtype: str = "float32"
    input_outside: bool = True
    weight_outside: bool = True
    tail: int = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all groups and steps."""
        return self.m * self.n * self.channels * self.area * self.groups * self.steps

    @property
    def weights(self) -> int:
        """Elements of the second operand."""
        return self.n * self.channels * self.area * self.groups


class LayerWork(Record, kw_only=True):
    """Work of a layer on any target; equal work has equal cost.

    Attributes:
        op: the layer's operators, joined by "+"; conversions only if there is nothing else.
        products: its matrix products.
        elements: operations on single elements outside of products; where the layer is one product with fused
            operators, these are applied in one pass to its output.
        reads, writes: tensors from, and to, other layers.
        constants: bytes of parameters that are not operands of products.
        method: "products"; "elements"; "bytes": an operator that the model does not know, priced by the bytes
            that it reads and writes; "view": nothing is computed or moved, or there are no elements;
            "unknown": a shape or a number of iterations depends on the data.
    """

    op: str
    products: tuple[Product, ...]
    elements: int
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    constants: int
    method: Method


@functools.cache
def dtype_bits(dtype: str) -> int:
    """Bits of an element of numpy's ``dtype``; 8 for bool."""
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) if digits else 8


def model_work(model: Model) -> tuple[LayerWork, ...]:
    """Work of each layer of a model."""
    return tuple(layer_work(layer, nodes) for layer, nodes in zip(model.layers, model.nodes, strict=True))


def layer_work(layer: Layer, nodes: Sequence[Node]) -> LayerWork:
    """Work of a layer from its nodes.

    An ``If`` counts with its more expensive branch, the one with the most multiply-accumulates. Conversions
    (``QuantizeLinear``, ``DequantizeLinear``) together with other operators are applied to inputs and outputs, and cost
    nothing.

    Args:
        layer: its inputs and outputs.
        nodes: those of the layer, from :attr:`framefit.core.model.Model.nodes`.
    """
    outside = {tensor.name for tensor in layer.inputs}
    work = [node for node in nodes if node.op not in _CONVERSIONS] or nodes
    levels: dict[str, int] = {}  # scales and zero points of those conversions: bytes that come with the commands
    for node in nodes:
        if node.op in _CONVERSIONS and len(work) < len(nodes):
            data, *rest = _operands(node)
            outside |= {output.name for output in node.outputs if data.name in outside}
            levels |= {operand.name: operand.bytes for operand in rest}
    products, counts, known = _sum(work, outside)
    elements = max(counts, default=0) if len(products) == 1 else sum(counts)
    reads = tuple((_count(tensor), tensor.dtype) for tensor in layer.inputs if tensor.dtype)
    writes = tuple((_count(tensor), tensor.dtype) for tensor in layer.outputs if tensor.dtype)
    used = sum(p.weights * dtype_bits(p.weight_dtype) for p in products if p.constant) // 8
    constants = max(layer.parameter_bytes - used - sum(levels.values()), 0)
    constants += sum(int(_number(node, "bytes", 0)) for node in nodes if node.op == TREES)
    if len(work) == 1 and work[0].op in _PART:
        written = sum(count for count, _ in writes)
        reads = tuple((min(count, written), dtype) for count, dtype in reads)
        constants = min(constants, sum(count * dtype_bits(dtype) for count, dtype in writes) // 8)
    method: Method = "products" if products else "elements"
    same_form = len(work) == len(nodes) or len({dtype for _, dtype in (*reads, *writes)}) == 1
    if (all(node.op in _VIEWS for node in work) and same_form) or _is_empty(layer):
        method, products, elements, reads, writes, constants = "view", (), 0, (), (), 0
    elif not all(_is_known(node) for node in _all(nodes)):
        method = "unknown"
    elif not known:
        method = "bytes"
    return LayerWork(
        op="+".join(node.op for node in work),
        products=products,
        elements=elements,
        reads=reads,
        writes=writes,
        constants=constants,
        method=method,
    )


def _is_empty(layer: Layer) -> bool:
    """Whether its results have no elements."""
    return bool(layer.outputs) and all(tensor.fixed and not _count(tensor) for tensor in layer.outputs)


def _is_known(node: Node) -> bool:
    """Whether all its shapes, and the number of its iterations, are the same in every frame."""
    return node.iterations is not None and all(tensor.fixed for tensor in (*_operands(node), *node.outputs))


def _sum(nodes: Iterable[Node], outside: set[str]) -> tuple[tuple[Product, ...], list[int], bool]:
    """Products, element operations of each node, and whether each operator is known."""
    products: list[Product] = []
    elements: list[int] = []
    known = True
    for node in nodes:
        if node.bodies:
            bodies = [_sum(body, outside) for body in node.bodies]
            dearest = max(bodies, key=lambda body: (sum(p.macs for p in body[0]), sum(body[1])))
            times = 1 if node.iterations is None else node.iterations
            products += [msgspec.structs.replace(p, steps=p.steps * times) for p in dearest[0]]
            elements += [count * times for count in dearest[1]]
            known &= all(body[2] for body in bodies)
            continue
        own_products = _products(node, outside)
        products += own_products
        if not own_products:
            count, priced = _elements(node)
            elements.append(count)
            known &= priced
        elif not any(product.macs for product in own_products):  # empty sums are zeros
            elements.append(sum(map(_count, node.outputs)))
    return tuple(product for product in products if product.macs), elements, known


def _elements(node: Node) -> tuple[int, bool]:
    """Element operations of a node without products, and whether its operator is known."""
    op = node.op
    read = _count(node.inputs[0]) if node.inputs and node.inputs[0] is not None else 0
    written = sum(_count(output) for output in node.outputs)
    if op in _VIEWS:
        return 0, True
    if op == TREES:  # counted for one example
        return int(_number(node, "operations", 0)) * _shape(node.outputs[0])[0], True
    if op in _NORMALISATIONS:
        return _PASSES * read, True
    if "Global" in op or op.startswith(("Reduce", "Arg", "CumSum")):
        return max(read, written), True
    if "Pool" in op:
        return _count(node.outputs[0]) * math.prod(_ints(node, "kernel_shape")), True
    if op in ("Resize", "Upsample"):
        return written * _RESIZE.get(str(node.attributes.get("mode", "nearest")), 1), True
    known = op in _ELEMENTWISE or op in _MOVES or op in _PART
    return (written if known else sum(map(_count, _operands(node))) + written), known


def _products(node: Node, outside: set[str]) -> list[Product]:
    """A node's matrix products; empty if it has none, or if a shape is not known."""
    make = _MAKERS.get(node.op)
    if make is None or not all(tensor.fixed for tensor in _operands(node)):
        return []
    return make(node, outside)


def _product(node: Node, outside: set[str], data: Operand, weight: Operand, **sizes: int) -> Product:
    return Product(
        op=node.op,
        constant=weight.constant,
        input_dtype=data.stored_dtype,
        weight_dtype=weight.stored_dtype,
        input_outside=data.name in outside,
        weight_outside=weight.constant or weight.name in outside,
        **sizes,
    )


def _convolution(node: Node, outside: set[str]) -> list[Product]:
    data, weight = _pair(node, 3 if node.op == "QLinearConv" else 1)
    if data is None or weight is None or not node.outputs[0].fixed:
        return []
    source, kernel, output = _shape(data), _shape(weight), _shape(node.outputs[0])
    last = node.op.startswith("Nhwc")  # channels are the last axis of the image and of the weight
    groups = int(_number(node, "group", 1))
    channels = kernel[-1 if last else 1]
    spatial = kernel[1:-1] if last else kernel[2:]
    height = source[1 if last else 2]
    dilation = (_ints(node, "dilations") or (1,))[0]
    rows = min((spatial[0] - 1) * dilation, height)
    return [
        _product(
            node,
            outside,
            data,
            weight,
            m=math.prod(output) // max(kernel[0], 1),
            n=kernel[0] // groups,
            channels=channels,
            area=math.prod(spatial),
            groups=groups,
            inputs=math.prod(source) // groups,
            halo=rows * math.prod(source[1:]) // max(height, 1) // groups,
        )
    ]


def _transposed(node: Node, outside: set[str]) -> list[Product]:
    data, weight = _pair(node, 1)
    if data is None or weight is None:
        return []
    source, kernel = _shape(data), _shape(weight)
    groups = int(_number(node, "group", 1))
    return [
        _product(
            node,
            outside,
            data,
            weight,
            m=math.prod(source) // max(source[1], 1),
            n=math.prod(kernel[1:]),
            channels=source[1] // groups,
            groups=groups,
            inputs=math.prod(source) // groups,
        )
    ]


def _matrix(node: Node, outside: set[str]) -> list[Product]:
    data, weight = _pair(node, 3 if node.op in ("QLinearMatMul", "QGemm") else 1)
    if data is None or weight is None or not node.outputs[0].fixed:
        return []
    first, second, output = _shape(data), _shape(weight), _shape(node.outputs[0])
    k = first[0 if _number(node, "transA", 0) else -1]
    n = (output[-1] if len(second) > 1 else 1) if output else 1
    batch = math.prod(second[:-2])  # of the second operand: each of its matrices is multiplied with other rows
    groups = batch if batch * n and math.prod(output) % (batch * n) == 0 else 1
    return [
        _product(
            node,
            outside,
            data,
            weight,
            m=math.prod(output) // max(n * groups, 1),
            n=n,
            channels=k,
            groups=groups,
            inputs=math.prod(first) // groups,
        )
    ]


def _einsum(node: Node, outside: set[str]) -> list[Product]:
    """Product of two operands; letters of both that remain in the result count groups."""
    equation = str(node.attributes.get("equation", "")).replace(" ", "")
    left, _, result = equation.partition("->")
    terms = left.split(",")
    data, weight = _pair(node, 1)
    if len(terms) != 2 or "..." in equation or "->" not in equation or data is None or weight is None:
        return []
    size = dict(zip(terms[0], _shape(data), strict=False)) | dict(zip(terms[1], _shape(weight), strict=False))
    first, second, kept = map(set, (terms[0], terms[1], result))

    def extent(letters: set[str]) -> int:
        return math.prod(size[letter] for letter in letters)

    groups = extent(first & second & kept)
    return [
        _product(
            node,
            outside,
            data,
            weight,
            m=extent(first - second),
            n=extent(second - first),
            channels=extent((first & second) - kept),
            groups=groups,
            inputs=math.prod(_shape(data)) // max(groups, 1),
        )
    ]


def _recurrent(node: Node, outside: set[str]) -> list[Product]:
    """Each step multiplies its features and the output of the preceding step."""
    data, weight = _pair(node, 1)
    if data is None or weight is None:
        return []
    (steps, batch, features), (directions, rows, _) = _shape(data), _shape(weight)
    hidden = int(_number(node, "hidden_size", rows // _GATES[node.op]))
    return [
        _product(
            node,
            outside,
            data,
            weight,
            m=batch,
            n=_GATES[node.op] * hidden,
            channels=features + hidden,
            groups=directions,
            steps=steps,
            inputs=batch * features,
            tail=directions * batch * _GATES[node.op] * hidden,
        )
    ]


def _attention(node: Node, outside: set[str]) -> list[Product]:
    """Scores of each query with each key, then sums of values; com.microsoft's operator projects first."""
    query, key = _pair(node, 1)
    if query is None or key is None:
        return []
    source = _shape(query)
    heads = int(_number(node, "q_num_heads", _number(node, "num_heads", 1)))
    made = []
    if node.op == "Attention" and node.domain == "com.microsoft":
        batch, tokens, features = source
        width = _shape(key)[1]
        project = {"m": batch * tokens, "n": width, "channels": features, "inputs": math.prod(source)}
        made.append(_product(node, outside, query, key, **project))
        keys, total, values, inner = tokens, width // 3, width // 3, True
    else:
        batch, tokens, keys = source[0], source[-2], _shape(key)[-2]
        value = node.inputs[2] if len(node.inputs) > 2 else None
        heads = source[1] if len(source) == 4 else heads
        total = source[-1] * (heads if len(source) == 4 else 1)
        values = total if value is None else _shape(value)[-1] * (heads if len(source) == 4 else 1)
        inner = False
    groups = batch * heads
    scores = _product(
        node,
        outside,
        query,
        key,
        m=tokens,
        n=keys,
        channels=total // heads,
        groups=groups,
        inputs=tokens * total // heads,
    )
    sums = _product(
        node, outside, query, key, m=tokens, n=values // heads, channels=keys, groups=groups, inputs=tokens * keys
    )
    scores = msgspec.structs.replace(
        scores,
        constant=False,
        weight_dtype=query.stored_dtype,
        input_outside=scores.input_outside and not inner,
        weight_outside=not inner,
        tail=3 * groups * tokens * keys,  # the softmax between them
    )
    sums = msgspec.structs.replace(
        sums, constant=False, weight_dtype=query.stored_dtype, input_outside=False, weight_outside=not inner
    )
    return [*made, scores, sums]


_CONVOLUTIONS = _set("Conv FusedConv NhwcConv NhwcFusedConv ConvInteger QLinearConv")
_MATRICES = _set(
    "MatMul FusedMatMul MatMulInteger DynamicQuantizeMatMul MatMulIntegerToFloat QLinearMatMul Gemm FusedGemm QGemm"
)
_MAKERS: dict[str, Callable[[Node, set[str]], list[Product]]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_MATRICES, _matrix),
    **dict.fromkeys(_GATES, _recurrent),
    "ConvTranspose": _transposed,
    "Einsum": _einsum,
    "Attention": _attention,
    "MultiHeadAttention": _attention,
}


def _all(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes, and those of their bodies."""
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from _all(body)


def _operands(node: Node) -> list[Operand]:
    return [operand for operand in node.inputs if operand is not None]


def _pair(node: Node, second: int) -> tuple[Operand | None, Operand | None]:
    return node.inputs[0], node.inputs[second] if second < len(node.inputs) else None


def _shape(tensor: TensorInfo) -> tuple[int, ...]:
    assert tensor.shape is not None, tensor.name
    return tensor.shape


def _count(tensor: TensorInfo | None) -> int:
    return 0 if tensor is None or tensor.shape is None else math.prod(tensor.shape)


def _ints(node: Node, name: str) -> tuple[int, ...]:
    value = node.attributes.get(name, ())
    return tuple(int(number) for number in value) if isinstance(value, tuple) else ()


def _number(node: Node, name: str, default: float) -> float:
    value = node.attributes.get(name, default)
    return float(value) if isinstance(value, int | float) else default
