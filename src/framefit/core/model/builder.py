"""A small graph builder: networks from code, without an exporter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model.lazy import ir
from framefit.core.model.loading import canonical, infer, parsed
from framefit.core.model.model import Model

_OPSET = 17
_OTHER_OPSETS = {"ai.onnx.ml": 3}  # else 1
_IR_VERSION = 8


class GraphBuilder:
    """Builds a network operator by operator; weights are drawn from ``seed``.

    Tensors are named by strings: every method takes names and returns the new one.

    Args:
        name: of the model.
        seed: for the weights.
        base: start from a copy of this model; its tensors keep their names, and none of them is an output yet.
        lowered: whether the model runs as it is, see :class:`Model`; also with such a base.

    Example:
        >>> b = GraphBuilder("tiny")
        >>> x = b.input("image", (1, 3, 32, 32))
        >>> x = b.conv(x, 8, kernel=3, stride=2, activation="Relu")
        >>> b.output(b.op("GlobalAveragePool", x), "pooled")
        >>> b.build().layers[0].op
        'Conv'
    """

    def __init__(self, name: str, seed: int = 0, base: Model | None = None, *, lowered: bool = False) -> None:
        self.name = name
        self._random = np.random.default_rng(seed)
        self._count: dict[str, int] = {}
        self._values: dict[str, ir.Value] = {}
        self._others: set[str] = set()  # names of the base's nodes
        self._ir_version = _IR_VERSION
        self._lowered = lowered or (base is not None and base.lowered)
        self._functions: list[ir.Function] = []
        if base is None:
            self._graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name=name)
            return
        copy = parsed(base.to_bytes())
        self._graph, self._ir_version = copy.graph, copy.ir_version
        self._functions = list(copy.functions.values())
        self._graph.outputs.clear()
        self._graph.opset_imports.setdefault("", _OPSET)
        made = (value for node in self._graph for value in node.outputs)
        values = (*self._graph.inputs, *self._graph.initializers.values(), *made)
        self._values = {str(value.name): value for value in values}
        self._others = {str(node.name) for node in self._graph}

    def input(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> str:
        """Add a graph input."""
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype))))
        self._graph.inputs.append(value)
        self._values[name] = value
        return name

    def lead(self, name: str) -> str:
        """Let a leading layer write a graph input: a single number, expanded.

        Returns:
            The input's new name.
        """
        old = self._values[name]
        shape = self.constant(np.asarray(self.shape(name), np.int64), self.fresh("shape"))
        number = self.input(self.fresh(f"{name}_number"), (1,) * max(len(self.shape(name)), 1), self.dtype(name))
        self._graph.inputs.remove(old)
        spread = self.op("Expand", number, shape)
        ir.convenience.replace_all_uses_with(old, self._values[spread], replace_graph_outputs=True)
        return number

    def redirect(self, tensor: str, made: str) -> None:
        """Replace a tensor for its readers by another one that is made of it; what makes that still reads the first."""
        old, new = self._values[tensor], self._values[made]
        between: set[ir.Node] = set()
        waiting = [new]
        while waiting:
            node = waiting.pop().producer()
            if node is not None and node not in between and node is not old.producer():
                between.add(node)
                waiting += [value for value in node.inputs if value is not None]
        for user, index in list(old.uses()):
            if user not in between:
                user.replace_input_with(index, new)

    def output(self, tensor: str, name: str | None = None) -> None:
        """Make a tensor a graph output, under ``name`` where given."""
        if name is not None and name != tensor:
            tensor = self._add("Identity", [tensor], {}, [name])[0]
        self._graph.outputs.append(self._values[tensor])

    def constant(self, array: npt.ArrayLike, name: str | None = None) -> str:
        """Add an initializer."""
        name = name or self.fresh("constant")
        value = ir.Value(name=name, const_value=ir.tensor(np.asarray(array), name=name))
        value.shape, value.dtype = ir.Shape(np.shape(array)), ir.DataType.from_numpy(np.asarray(array).dtype)
        self._graph.register_initializer(value)
        self._values[name] = value
        return name

    def weight(self, shape: Sequence[int], fan_in: int) -> str:
        """Add normal weights of variance 2 / fan_in (He et al., 2015, "Delving Deep into Rectifiers")."""
        scale = math.sqrt(2 / max(fan_in, 1))
        return self.constant((self._random.standard_normal(shape) * scale).astype(np.float32), self.fresh("weight"))

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add any operator; ``""`` leaves an optional input out.

        Returns:
            The output's name, or a list of names where ``outputs`` > 1.
        """
        label = self.fresh(kind)
        names = [label] if outputs == 1 else [f"{label}_{index}" for index in range(outputs)]
        made = self._add(kind, list(inputs), attributes, names, domain)
        return made[0] if outputs == 1 else made

    def dtype(self, tensor: str) -> str:
        """Numpy's name of a tensor's type."""
        value = self._values[tensor]
        if value.dtype is None:
            self._infer(value)
        assert value.dtype is not None
        return value.dtype.numpy().name

    def channels(self, tensor: str, axis: int = 1) -> int:
        """Size of a tensor along an axis."""
        return self.shape(tensor)[axis]

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Static shape of a tensor."""
        value = self._values[tensor]
        if value.shape is None:
            self._infer(value)
        shape = self._values[tensor].shape
        if shape is None or not all(isinstance(size, int) for size in shape):
            raise ValueError(f"the shape of {tensor!r} is not static: {shape}")
        return tuple(size for size in shape if isinstance(size, int))

    def conv(
        self,
        x: str,
        channels: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        bias: bool = True,
        norm: bool = False,
        activation: str | None = None,
    ) -> str:
        """Add a convolution with "same" padding, then batch norm and activation if requested; x: N x C x H x W."""
        features = self.channels(x) // groups
        inputs = [x, self.weight((channels, features, kernel, kernel), features * kernel * kernel)]
        if bias and not norm:
            inputs.append(self.constant(np.zeros(channels, np.float32), self.fresh("bias")))
        pad = dilation * (kernel - 1) // 2
        x = self.op(
            "Conv",
            *inputs,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            dilations=[dilation, dilation],
            pads=[pad] * 4,
            group=groups,
        )
        if norm:
            x = self.batch_norm(x)
        return self.op(activation, x) if activation else x

    def batch_norm(self, x: str) -> str:
        """Add a batch normalisation with mild random statistics; x: N x C x ..."""
        channels = self.channels(x)
        draw = self._random
        parameters = [
            draw.uniform(0.8, 1.2, channels),
            draw.normal(0, 0.1, channels),
            draw.normal(0, 0.1, channels),
            draw.uniform(0.8, 1.2, channels),
        ]
        return str(self.op("BatchNormalization", x, *(self.constant(p.astype(np.float32)) for p in parameters)))

    def dense(self, x: str, features: int, *, activation: str | None = None) -> str:
        """Add a fully connected layer; x: N x F."""
        width = self.channels(x, -1)
        bias = self.constant(np.zeros(features, np.float32), self.fresh("bias"))
        x = self.op("Gemm", x, self.weight((width, features), width), bias)
        return self.op(activation, x) if activation else x

    def upsample(self, x: str, factor: int = 2) -> str:
        """Add a nearest-neighbour resize; x: N x C x H x W."""
        scales = self.constant(np.asarray([1, 1, factor, factor], np.float32))
        return str(self.op("Resize", x, "", scales, mode="nearest"))

    def build(self) -> Model:
        """The network as a :class:`Model`."""
        graph = ir.Model(self._graph, ir_version=self._ir_version, producer_name="framefit", functions=self._functions)
        if self._lowered:  # ONNX's inference knows nothing behind a runtime's own operators
            for value in [value for node in self._graph for value in node.outputs]:
                self._infer(value)
        canonical(graph, {}, {}, self.name)
        return Model(graph, name=self.name, lowered=self._lowered)

    def fresh(self, stem: str) -> str:
        """Return an unused name."""
        while True:
            self._count[stem] = self._count.get(stem, 0) + 1
            name = f"{stem}_{self._count[stem]}"
            if name not in self._values and name not in self._others:
                return name

    def _add(
        self, kind: str, inputs: list[str], attributes: dict[str, Any], names: list[str], domain: str = ""
    ) -> list[str]:
        values = [ir.Value(name=name) for name in names]
        if domain:
            self._graph.opset_imports.setdefault(domain, _OTHER_OPSETS.get(domain, 1))
        node = ir.node(
            kind,
            [self._values[name] if name else None for name in inputs],
            {key: _attribute(key, value) for key, value in attributes.items()},
            domain=domain,
            outputs=values,
            name=names[0],
        )
        self._graph.append(node)
        self._values |= dict(zip(names, values, strict=True))
        return names

    def _infer(self, value: ir.Value) -> None:
        """Infer the shape of a value and of its inputs, node by node."""
        node = value.producer()
        if node is None or value.shape is not None:
            return
        sources = [source for source in node.inputs if source is not None]
        for source in sources:
            self._infer(source)
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            infer(ir.Model(self._graph, ir_version=8))  # its branches may read anything built so far
            return
        copies = {
            source: ir.Value(name=source.name, shape=source.shape, type=source.type, const_value=source.const_value)
            for source in sources
        }
        results = [ir.Value(name=output.name) for output in node.outputs]
        copy = ir.Node(
            node.domain,
            node.op_type,
            [None if source is None else copies[source] for source in node.inputs],
            node.attributes.values(),
            outputs=results,
        )
        constants = [copies[source] for source in copies if source.const_value is not None]
        inputs = [copies[source] for source in copies if source.const_value is None]
        graph = ir.Graph(
            inputs,
            results,
            nodes=[copy],
            initializers=constants,
            opset_imports=dict(self._graph.opset_imports),
            name="one",
        )
        infer(ir.Model(graph, ir_version=8))
        for output, result in zip(node.outputs, results, strict=True):
            output.shape, output.type = result.shape, result.type


def _attribute(name: str, value: Any) -> Any:
    """Lists of numbers and texts as attributes; onnx_ir asks each of these first whether it is a graph or tensor."""
    kinds = {type(item) for item in value} if isinstance(value, (list, tuple)) else set()
    if kinds == {int}:
        return ir.AttrInt64s(name, value)
    if kinds == {float}:
        return ir.AttrFloat32s(name, value)
    return ir.AttrStrings(name, value) if kinds == {str} else value
