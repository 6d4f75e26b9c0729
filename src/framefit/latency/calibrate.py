"""Shapes that were never measured: an analytical model, scaled to the device's speed by a table.

For each class of operators, latency = (scale x analytical + offset) x operations^p x bytes moved^q
x bytes of constants^r. Scale and offset are fitted on the logarithm with small weights for outliers
(Huber, 1964, "Robust Estimation of a Location Parameter"; iteratively reweighted). The exponents,
near 0 where the model describes the device, are fitted with a prior to the trend in the errors (Bayesian
linear regression: Bishop, 2006, "Pattern Recognition and Machine Learning", section 3.3). A class with few
entries uses the fit of all entries together. The analytical model is passed in as a function: this room has no
cost model of its own.

A table's entry as work: the layer that a configuration describes, as a cost model needs it.

A latency table holds no models. To price or compare shapes, each entry's products, elements and bytes are
needed; :func:`entry_work` derives them from its configuration, the inverse of
:func:`framefit.core.model.configuration`. Tensors between fused operators are not in a configuration: they
are assumed to have the output's shape, since fused operators are applied to the output.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyEntry, Value
from framefit.core.model import Layer, Node, Operand, TensorInfo
from framefit.core.model.graph import Attribute
from framefit.devices.npu.work import LayerWork, dtype_bits, layer_work
from framefit.errors import InputError
from framefit.stats import Z90, huber_weights

_ONNX_NAMES = {
    "kernel": "kernel_shape",
    "stride": "strides",
    "padding": "pads",
    "dilation": "dilations",
    "groups": "group",
}
_OURS = ("inputs", "weights", "outputs", "precision", "fused")
_WEIGHT_RANK = {"MatMul": 2, "Gemm": 2}  # at least; other products have weights of their input's rank
_PRODUCT_PARTS = ("Conv", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "Einsum")


def entry_work(op: str, configuration: Mapping[str, Value]) -> LayerWork:
    """Work of an entry's layer; the ``method`` is "unknown" where a shape is not in the configuration.

    Bodies of an ``If``, ``Loop`` or ``Scan`` are ignored: such a layer is priced by its bytes.

    Raises:
        InputError: no layer has this configuration.
    """
    try:
        return layer_work(*_described(op, configuration))
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise InputError(
            f"no layer has this configuration: {error}",
            where=f"table entry {op!r}",
            remedy="remove the entry, and measure it again",
        ) from error


def _described(op: str, configuration: Mapping[str, Value]) -> tuple[Layer, list[Node]]:
    """The layer that an entry describes, and its nodes."""
    ops = op.split("+")
    read = [_operand(f"input {i}", text, constant=False) for i, text in enumerate(_texts(configuration, "inputs"))]
    fixed = [_operand(f"weight {i}", text, constant=True) for i, text in enumerate(_texts(configuration, "weights"))]
    written = [_tensor(f"output {i}", text) for i, text in enumerate(_texts(configuration, "outputs"))]
    main = _main(ops, _texts(configuration, "fused"))
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
        inputs=tuple(TensorInfo(name=operand.name, dtype=operand.dtype, shape=operand.shape) for operand in read),
        outputs=tuple(written),
        parameters=sum(_count(operand) for operand in fixed),
        parameter_bytes=sum(_count(operand) * dtype_bits(operand.stored_dtype) // 8 for operand in fixed),
        macs=0,
    )
    return layer, nodes


def op_class(work: LayerWork) -> str:
    """Name the class of layers of similar speed: the operator, and for convolutions the kind of kernel.

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
    """Multiply-accumulates, or elements where there are none; at least 1."""
    return float(max(sum(product.macs for product in work.products) or work.elements, 1))


def work_bytes(work: LayerWork) -> tuple[float, float]:
    """Bytes of tensors read and written, and of constants; each at least 1."""
    moved = sum(count * dtype_bits(dtype) / 8 for count, dtype in (*work.reads, *work.writes))
    fixed = sum(p.weights * dtype_bits(p.weight_dtype) / 8 for p in work.products if p.constant) + work.constants
    return max(moved, 1.0), max(fixed, 1.0)


def _main(ops: Sequence[str], fused: Sequence[str]) -> int:
    """Index of the operator that is not fused into another: a product where several are possible."""
    candidates = [index for index in range(len(ops)) if [*ops[:index], *ops[index + 1 :]] == list(fused)] or [0]
    return next((index for index in candidates if _is_product(ops[index])), candidates[0])


def _main_inputs(kind: str, read: Sequence[Operand], fixed: Sequence[Operand]) -> list[Operand | None]:
    """Inputs in the operator's order; a configuration lists tensors and constants separately."""
    if not _is_product(kind) or not read:
        return [*read, *fixed]
    data = next((operand for operand in read if len(operand.shape or ()) >= 2), read[0])
    rank = next((rank for name, rank in _WEIGHT_RANK.items() if name in kind), len(data.shape or ()))
    further = [operand for operand in read if operand is not data]
    weights = [operand for operand in fixed if len(operand.shape or ()) >= rank and _fits(kind, data, operand)]
    if not weights and further:  # product of two tensors
        return [data, further[0], *fixed]
    weight = weights[0] if weights else None
    scales = kind.startswith(("QLinear", "QGemm"))  # x, its scale and zero point, then the weight
    rest = [operand for operand in fixed if operand is not weight]
    return [data, *([*rest, None, None][:2] if scales else ()), weight, *(rest[2:] if scales else rest)]


def _fits(kind: str, data: Operand, weight: Operand) -> bool:
    """Whether a constant can be the weight of a matrix product rather than its bias."""
    if not any(name in kind for name in _WEIGHT_RANK):
        return True
    inner = set((data.shape or ())[-2:] if "Gemm" in kind else (data.shape or ())[-1:])
    return not inner.isdisjoint((weight.shape or ())[-2:])


def _is_product(kind: str) -> bool:
    return any(part in kind for part in _PRODUCT_PARTS)


def _attributes(configuration: Mapping[str, Value]) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    for name, value in configuration.items():
        if name in _OURS or name.split(".")[0].isdecimal() or value is None:
            continue
        if isinstance(value, list):
            attributes[_ONNX_NAMES.get(name, name)] = tuple(item for item in value if item is not None)
        else:
            attributes[_ONNX_NAMES.get(name, name)] = value
    return attributes


def _texts(configuration: Mapping[str, Value], key: str) -> list[str]:
    value = configuration.get(key)
    return [str(text) for text in value] if isinstance(value, list) else []


def _tensor(name: str, text: str) -> TensorInfo:
    """A tensor from its text in a configuration: "1x3x224x224 float32"; "?": not known."""
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


Floats = npt.NDArray[np.float64]
Analytical = Callable[[Sequence[LayerWork]], npt.ArrayLike]
"""Maps layers to numbers that grow with their latency, such as nanoseconds on a described device."""
_LEAST_SHAPES = 4  # a class with fewer has no fit of its own
_LEAST_SPREAD = 0.02
_FEW_SPREAD = 0.3  # added for a class that was not measured: classes differ in speed
_ITERATIONS = 30
_SETTLED = 1e-4  # relative change of a coefficient at which the iteration ends
_EXPONENT_DEVIATION = 0.3  # of the prior; for left-out entries of six simulated targets 0.1 to 1 are as good
_FOLDS = 5
_BLOCK = 8192  # the quickest of 2,000 to 100,000 with the cycle model: 0.8 us a layer; in one piece 1.4 us


@dataclass(frozen=True)
class Columns:
    """Layers with their scale, offset and spread; made by :meth:`Calibration.columns`.

    Attributes:
        scale, offset: ns of a layer = scale x analytical + offset.
        spread: standard deviation of the latency's logarithm.
    """

    scale: Floats
    offset: Floats
    spread: Floats

    def __len__(self) -> int:
        return len(self.scale)

    def rows(self, which: slice | npt.NDArray[np.int64]) -> Columns:
        """Select rows; a row may occur more than once."""
        return Columns(self.scale[which], self.offset[which], self.spread[which])


@dataclass(frozen=True)
class _Fit:
    """Fit of one class: latency = (scale x analytical + offset) x exp((sizes - centre) . exponents).

    ``covariance`` is that of the exponents.
    """

    scale: float
    offset: float
    centre: Floats
    exponents: Floats
    covariance: Floats

    def log_errors(self, priced: Floats, sizes: Floats, measured: Floats) -> Floats:
        """Logarithm of measured over predicted latency of entries."""
        predicted = np.log(self.scale * priced + self.offset) + (sizes - self.centre) @ self.exponents
        return np.asarray(np.log(measured) - predicted)


class Calibration:
    """An analytical model scaled to a device's nanoseconds, by the entries of one unit with a latency above 0.

    Raises:
        InputError: no entry can be priced.

    Attributes:
        classes: those with a fit of their own; every other class has that of all entries together.
    """

    def __init__(self, entries: Iterable[LatencyEntry], analytical: Analytical) -> None:
        self._analytical = analytical
        pairs = [(entry_work(e.op, e.configuration), e.latency_ns) for e in entries if e.latency_ns > 0]
        works = [work for work, _ in pairs if work.method not in ("unknown", "view")]
        measured = np.asarray([ns for work, ns in pairs if work.method not in ("unknown", "view")], np.float64)
        priced = np.asarray(analytical(works) if works else (), np.float64)
        known = priced > 0
        if not known.any():
            raise InputError(
                "the table has no entry with which an analytical model can be calibrated",
                remedy="measure some layers into it first",
            )
        names = np.asarray([op_class(work) for work in works])[known]
        sizes, priced, measured = _sizes(works)[known], priced[known], measured[known]
        whole = _fit(priced, sizes, measured)
        kinds = np.unique(names)
        strange = np.concatenate([_held_out(names == name, priced, sizes, measured) for name in kinds])
        fits = [whole]
        spread = [math.hypot(_spread(strange), _FEW_SPREAD) if len(kinds) > 2 else 1.0]
        self.classes: dict[str, int] = {}
        for name in kinds:
            rows = names == name
            members = priced[rows], sizes[rows], measured[rows]
            count = int(rows.sum())
            if count >= _LEAST_SHAPES:
                fits.append(_fit(*members))
                # By size: the model also prices shapes larger than those that were measured.
                folds = np.argsort(np.argsort(members[0])) * min(count, _FOLDS) // count
                errors = np.concatenate([_held_out(folds == fold, *members) for fold in np.unique(folds)])
                errors = errors * (1 + 2 / count)  # the maximum of few errors underestimates the true maximum
            else:  # the common trend, at the class's own level
                level = math.exp(float(np.median(whole.log_errors(*members))))
                fits.append(dataclasses.replace(whole, scale=whole.scale * level, offset=whole.offset * level))
                errors = np.append(whole.log_errors(priced, sizes, measured), _FEW_SPREAD)
            self.classes[str(name)] = len(fits) - 1
            spread.append(_spread(errors))
        self._fits, self._spreads = fits, spread

    def columns(self, works: Sequence[LayerWork]) -> Columns:
        """Prepare layers once for any number of :meth:`query` calls."""
        rows = [self._row(work, sizes) for work, sizes in zip(works, _sizes(works), strict=True)]
        return Columns(*np.asarray(rows, np.float64).reshape(-1, 3).T)

    def _row(self, work: LayerWork, sizes: Floats) -> tuple[float, float, float]:
        place = self.classes.get(op_class(work), 0)
        fit, away = self._fits[place], sizes - self._fits[place].centre
        factor = math.exp(float(away @ fit.exponents))
        spread = math.sqrt(self._spreads[place] ** 2 + float(away @ fit.covariance @ away))
        return fit.scale * factor, fit.offset * factor, spread

    def query(self, price: Callable[[slice], npt.ArrayLike], layers: Columns) -> Floats:
        """Latencies in ns of any number of layers, in blocks that fit in the processor's caches.

        Args:
            price: the analytical model for a range of the layers.
            layers: from :meth:`columns`.
        """
        latency = np.empty(len(layers))
        for begin in range(0, len(layers), _BLOCK):
            rows = slice(begin, min(begin + _BLOCK, len(layers)))
            latency[rows] = layers.scale[rows] * np.asarray(price(rows), np.float64) + layers.offset[rows]
        return latency

    def find(self, works: Sequence[LayerWork]) -> list[tuple[float, float]]:
        """Logarithm of each layer's latency in ns, and its standard deviation."""
        if not works:
            return []
        priced, layers = np.asarray(self._analytical(works), np.float64), self.columns(works)
        logs = np.log(np.maximum(self.query(lambda rows: priced[rows], layers), 1.0))
        return list(zip(logs.tolist(), layers.spread.tolist(), strict=True))


def _fit(priced: Floats, sizes: Floats, measured: Floats) -> _Fit:
    """Scale and offset, not negative, of least robust relative error; then exponents of sizes for the residuals."""
    scale, offset = _line(priced, measured)
    centre = sizes.mean(axis=0)
    errors = np.log(measured / (scale * priced + offset))
    spread = _spread(errors)
    rest = np.clip(errors, -2 * spread, 2 * spread)
    away = sizes - centre
    precision = away.T @ away / spread**2 + np.eye(away.shape[1]) / _EXPONENT_DEVIATION**2
    exponents = np.linalg.solve(precision, away.T @ (rest - np.median(rest)) / spread**2)
    return _Fit(scale, offset, centre, np.asarray(exponents), np.asarray(np.linalg.inv(precision)))


def _line(priced: Floats, measured: Floats) -> tuple[float, float]:
    scale, offset = float(np.exp(np.median(np.log(measured / priced)))), 0.0
    if len(priced) < 3 or np.ptp(np.log(priced)) < 0.1:
        return scale, offset
    for _ in range(_ITERATIONS):
        predicted = scale * priced + offset
        errors = np.log(measured / predicted)
        weight = huber_weights(errors, 1e-6)
        # A step of Gauss and Newton: near the prediction p, log(s a + o) is log p + (s a + o - p) / p.
        goal = 1 + np.clip(errors, -1.0, 1.0)
        before = scale, offset
        scale, offset = _not_negative(priced / predicted, 1 / predicted, goal, weight)
        if math.isclose(scale, before[0], rel_tol=_SETTLED) and math.isclose(offset, before[1], rel_tol=_SETTLED):
            break
    return scale, offset


def _not_negative(first: Floats, second: Floats, goal: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted least squares of two columns, coefficients at least 0."""
    aa, ab, bb = (float(weight @ (x * y)) for x, y in ((first, first), (first, second), (second, second)))
    ag, bg = float(weight @ (first * goal)), float(weight @ (second * goal))
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        scale, offset = (ag * bb - bg * ab) / determinant, (bg * aa - ag * ab) / determinant
        if scale > 0 and offset >= 0:
            return scale, offset
        if scale <= 0:
            return 1e-12, bg / bb
    return ag / aa, 0.0


def _held_out(rows: npt.NDArray[np.bool_], priced: Floats, sizes: Floats, measured: Floats) -> Floats:
    """Errors of some entries as the others predict them; empty where there are no others."""
    if rows.all():
        return np.zeros(0)
    fit = _fit(priced[~rows], sizes[~rows], measured[~rows])
    return fit.log_errors(priced[rows], sizes[rows], measured[rows])


def _sizes(works: Sequence[LayerWork]) -> Floats:
    return np.log([[work_operations(work), *work_bytes(work)] for work in works]).reshape(-1, 3)


def _spread(errors: Floats) -> float:
    """Standard deviation whose 90 % interval holds 90 % of the errors, robust where errors are many."""
    return max(float(np.quantile(np.abs(errors), 0.9)) / Z90 if len(errors) else 0.0, _LEAST_SPREAD)
