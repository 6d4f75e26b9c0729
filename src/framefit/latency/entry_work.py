"""A table's entry as work: the layer that a configuration describes, as a cost model sees it.

A latency table holds no models. What prices or compares shapes needs each entry's products,
elements and bytes; :func:`entry_work` reads them off its configuration, the inverse of
:func:`framefit.core.model.configuration`. What fused operators have between them is not in a
configuration: it is taken to be of the output's shape, as what is applied on the way out is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from framefit.core.latency_table import Value
from framefit.core.model import Layer, Node, Operand, TensorInfo
from framefit.core.model.nodes import Attribute
from framefit.devices.npu.work import LayerWork, dtype_bits, layer_work
from framefit.errors import InputError

__all__ = ["entry_work", "op_class", "work_bytes", "work_operations"]

_ONNX_NAMES = {
    "kernel": "kernel_shape",
    "stride": "strides",
    "padding": "pads",
    "dilation": "dilations",
    "groups": "group",
}
_OURS = ("inputs", "weights", "outputs", "precision", "fused")
_WEIGHT_RANK = {"MatMul": 2, "Gemm": 2}  # at least; products else have weights of their input's rank
_PRODUCT_PARTS = ("Conv", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "Einsum")


def entry_work(op: str, configuration: Mapping[str, Value]) -> LayerWork:
    """What an entry's layer asks of a device.

    Args:
        op: operators, joined by "+".
        configuration: as :func:`framefit.core.model.configuration` makes it; bodies of an ``If``,
            ``Loop`` or ``Scan`` are left out: such a layer is priced by its bytes.

    Returns:
        Work; its ``method`` is "unknown" where a shape is not in the configuration.

    Raises:
        InputError: no layer is like that.
    """
    try:
        return layer_work(*_described(op, configuration))
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise InputError(
            f"no layer is configured like this: {error}",
            where=f"table entry {op!r}",
            remedy="remove the entry, and measure it again",
        ) from error


def _described(op: str, configuration: Mapping[str, Value]) -> tuple[Layer, list[Node]]:
    """The layer that an entry is of, and its nodes."""
    ops = op.split("+")
    read = [_operand(f"input {i}", text, constant=False) for i, text in enumerate(_texts(configuration, "inputs"))]
    fixed = [_operand(f"weight {i}", text, constant=True) for i, text in enumerate(_texts(configuration, "weights"))]
    written = [_tensor(f"output {i}", text) for i, text in enumerate(_texts(configuration, "outputs"))]
    main = _main(ops, [str(one) for one in _listed(configuration.get("fused"))])
    between = written[0] if written else TensorInfo(name="between", dtype="", shape=None)
    nodes: list[Node] = []
    for index, kind in enumerate(ops):
        last = index == len(ops) - 1
        outputs = tuple(written) if last else (_named(between, f"between {index}"),)
        if index == main:
            inputs = _main_inputs(kind, read, fixed)
            attributes = _attributes(configuration)
        else:
            source = nodes[-1].outputs[0] if nodes else between
            inputs = [_as_operand(source)]
            attributes = {}
        nodes.append(Node(name=f"node {index}", op=kind, inputs=tuple(inputs), outputs=outputs, attributes=attributes))
    layer = Layer(
        name=op,
        op=op,
        nodes=tuple(node.name for node in nodes),
        inputs=tuple(TensorInfo(name=one.name, dtype=one.dtype, shape=one.shape) for one in read),
        outputs=tuple(written),
        parameters=sum(_count(one) for one in fixed),
        parameter_bytes=sum(_count(one) * dtype_bits(one.stored_dtype) // 8 for one in fixed),
        macs=0,
    )
    return layer, nodes


def op_class(work: LayerWork) -> str:
    """What layers of like speed have in common: the operator, and for convolutions the kind of kernel.

    Returns:
        "Conv depthwise", "Conv 1x1", "Conv 3x3", ... or the operator of the first product; without
        products the first operator.
    """
    if not work.products:
        return work.op.split("+")[0]
    first = work.products[0]
    if "Conv" not in first.op:
        return first.op
    if first.groups > 1:
        return f"{first.op} depthwise" if first.channels == 1 else f"{first.op} grouped"
    side = math.isqrt(first.area)
    return f"{first.op} {side}x{side}" if side * side == first.area else f"{first.op} of {first.area}"


def work_operations(work: LayerWork) -> float:
    """Multiply-accumulates, or elements where there are none; 1 at least."""
    return float(max(sum(product.macs for product in work.products) or work.elements, 1))


def work_bytes(work: LayerWork) -> tuple[float, float]:
    """Bytes of tensors read and written, and of constants; 1 at least each."""
    moved = sum(count * dtype_bits(dtype) / 8 for count, dtype in (*work.reads, *work.writes))
    fixed = sum(p.weights * dtype_bits(p.weight_dtype) / 8 for p in work.products if p.constant) + work.constants
    return max(moved, 1.0), max(fixed, 1.0)


def _main(ops: Sequence[str], fused: Sequence[str]) -> int:
    """The operator that the configuration does not list as fused: a product where several could be it."""
    found = [index for index in range(len(ops)) if [*ops[:index], *ops[index + 1 :]] == list(fused)] or [0]
    return next((index for index in found if _is_product(ops[index])), found[0])


def _main_inputs(kind: str, read: Sequence[Operand], fixed: Sequence[Operand]) -> list[Operand | None]:
    """Inputs in the operator's order, of which a configuration keeps tensors and constants apart."""
    if not _is_product(kind) or not read:
        return [*read, *fixed]
    data = next((one for one in read if len(one.shape or ()) >= 2), read[0])
    rank = next((rank for name, rank in _WEIGHT_RANK.items() if name in kind), len(data.shape or ()))
    others = [one for one in read if one is not data]
    weights = [one for one in fixed if len(one.shape or ()) >= rank and _fits(kind, data, one)]
    if not weights and others:  # a product of two tensors
        return [data, others[0], *fixed]
    weight = weights[0] if weights else None
    scales = kind.startswith(("QLinear", "QGemm"))  # x, its scale and zero point, then the weight
    rest = [one for one in fixed if one is not weight]
    return [data, *([*rest, None, None][:2] if scales else ()), weight, *(rest[2:] if scales else rest)]


def _fits(kind: str, data: Operand, weight: Operand) -> bool:
    """Whether a constant can be the weight of a matrix product rather than what is added to it."""
    if not any(name in kind for name in _WEIGHT_RANK):
        return True
    inner = set((data.shape or ())[-2:] if "Gemm" in kind else (data.shape or ())[-1:])
    return not inner.isdisjoint((weight.shape or ())[-2:])


def _is_product(kind: str) -> bool:
    return any(part in kind for part in _PRODUCT_PARTS)


def _attributes(configuration: Mapping[str, Value]) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for name, value in configuration.items():
        if name in _OURS or name.split(".")[0].isdecimal() or value is None:
            continue
        if isinstance(value, list):
            found[_ONNX_NAMES.get(name, name)] = tuple(one for one in value if one is not None)
        else:
            found[_ONNX_NAMES.get(name, name)] = value
    return found


def _texts(configuration: Mapping[str, Value], key: str) -> list[str]:
    return [str(one) for one in _listed(configuration.get(key))]


def _listed(value: Value) -> list[bool | int | float | str | None]:
    return value if isinstance(value, list) else []


def _tensor(name: str, text: str) -> TensorInfo:
    """A tensor as a configuration shows it: "1x3x224x224 float32"; "?": not known."""
    sizes, _, dtype = text.partition(" ")
    shape = None if sizes == "?" else tuple(int(size) for size in sizes.split("x") if size)
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def _operand(name: str, text: str, *, constant: bool) -> Operand:
    tensor = _tensor(name, text)
    return Operand(name=name, dtype=tensor.dtype, shape=tensor.shape, constant=constant, stored_dtype=tensor.dtype)


def _as_operand(tensor: TensorInfo) -> Operand:
    return Operand(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, constant=False, stored_dtype=tensor.dtype)


def _named(tensor: TensorInfo, name: str) -> TensorInfo:
    return TensorInfo(name=name, dtype=tensor.dtype, shape=tensor.shape)


def _count(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape or ()) if tensor.shape is not None else 0
