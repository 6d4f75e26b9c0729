"""Networks as steps over images with channels last, as far as kernels for them exist.

A step is a convolution (or product) with the sum and the activation after it, a pooling or an element-wise operation.
Vectors are images of one pixel, one-dimensional signals are images of one row.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model, Node, Operand, TensorInfo, listing

Floats = npt.NDArray[np.float32]
Pads = tuple[int, int, int, int]
"""Rows and columns of zeros around an image: top, left, bottom, right."""


class NoKernelError(Exception):
    """There is no kernel for a node: the runtime executes it.

    Attributes:
        node: its name; empty: it is a tensor of the model's ends.
    """

    node = ""


@dataclass(frozen=True)
class Image:
    """A tensor of one example.

    Attributes:
        name: of the tensor.
        channels, height, width: of the image.
        shape: of the tensor, as ONNX has it.
    """

    name: str
    channels: int
    height: int
    width: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Activation:
    """What follows a sum x: ``clip(slope * x + offset, low, high)``, or x times that.

    Attributes:
        slope, offset, low, high: of the function.
        gates: whether it is a factor of x.
    """

    slope: float = 1.0
    offset: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    gates: bool = False

    @property
    def nothing(self) -> bool:
        """Whether values stay as they are."""
        return self == Activation()


@dataclass(frozen=True)
class Step:
    """One kernel's work.

    Attributes:
        kind: "conv": convolution of any groups; "depthwise": one filter for each channel; "max" and "mean": pooling;
            "copy": the image, or another view of it.
        source: image that it reads.
        output: image that it makes.
        other: image that is added, or multiplied with, before the activation; of one pixel: with each of them.
        multiplies: whether it is multiplied with.
        activation: what follows.
        weight: conv: outputs x inputs of a group x rows x columns, float32.
        bias: conv: outputs, float32.
        groups: conv: number of groups.
        window: rows and columns of a filter or of a pooling's window.
        stride: down, across.
        pads: around the source.
        counts_pads: mean: whether zeros of the border count.
        nodes: names of the nodes that it stands for.
    """

    kind: Literal["conv", "depthwise", "max", "mean", "copy"]
    source: Image
    output: Image
    other: Image | None = None
    multiplies: bool = False
    activation: Activation = Activation()
    weight: Floats | None = None
    bias: Floats | None = None
    groups: int = 1
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    counts_pads: bool = False
    nodes: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Multiplications, zeros included."""
        weight = 0 if self.weight is None else self.weight.size
        return weight * self.output.height * self.output.width

    def kept_macs(self, lanes: int) -> int:
        """Multiplications of blocks of ``lanes`` outputs that are not all zero."""
        if self.kind != "conv" or self.weight is None:
            return self.macs
        kept = int(np.count_nonzero(in_blocks(self.weight, lanes).any(axis=1)))
        return kept * lanes * self.output.height * self.output.width


@dataclass(frozen=True)
class Network:
    """Steps in order.

    Attributes:
        steps: the steps.
        inputs, outputs: images that come from and go to the outside.
    """

    steps: tuple[Step, ...]
    inputs: tuple[Image, ...]
    outputs: tuple[Image, ...]

    def kept_ratio(self, lanes: int) -> float:
        """Part of the multiplications that remains when blocks of zeros are skipped."""
        total = sum(step.macs for step in self.steps)
        return sum(step.kept_macs(lanes) for step in self.steps) / total if total else 1.0

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of nodes that are one step."""
        return tuple(step.nodes for step in self.steps if len(step.nodes) > 1)


def in_blocks(weight: Floats, lanes: int) -> Floats:
    """Weights by blocks of outputs: blocks x ``lanes`` x inputs x rows x columns, with zeros for missing outputs."""
    missing = -len(weight) % lanes
    padded = np.concatenate([weight, np.zeros((missing, *weight.shape[1:]), np.float32)])
    return padded.reshape(-1, lanes, *weight.shape[1:])


def network_of(model: Model) -> Network:
    """Read a model as steps.

    Raises:
        NoKernelError: there is no kernel for one of its nodes, tensors or types.
    """
    return _Reader(model).network()


def has_kernel(node: Node) -> bool:
    """Whether there may be a kernel for a node, by its operator and types; :func:`network_of` decides."""
    tensors = [operand for operand in node.inputs if operand is not None and not operand.constant]
    floats = all(tensor.dtype == "float32" for tensor in (*tensors, *node.outputs))
    return node.domain in ("", "ai.onnx") and node.op in _READ and floats and all(_image(t) for t in node.outputs)


def _image(tensor: TensorInfo) -> Image | None:
    shape = tensor.shape
    if shape is None or not 2 <= len(shape) <= 4 or shape[0] != 1 or math.prod(shape) == 0:
        return None
    channels, height, width = shape[1], 1, 1
    if len(shape) > 2:
        height, width = (1, shape[2]) if len(shape) == 3 else (shape[2], shape[3])
    return Image(tensor.name, channels, height, width, shape)


class _Reader:
    """Reads a model's nodes one after the other."""

    def __init__(self, model: Model) -> None:
        self._model, self._listing = model, listing(model)
        self._images: dict[str, Image] = {}
        self._steps: dict[str, Step] = {}  # by the tensor that they make
        self._readers: dict[str, int] = {}
        for node in self._listing.nodes:
            for operand in node.inputs:
                if operand is not None:
                    self._readers[operand.name] = self._readers.get(operand.name, 0) + 1
        for tensor in model.outputs:
            self._readers[tensor.name] = self._readers.get(tensor.name, 0) + 1

    def network(self) -> Network:
        """Read everything."""
        inputs = tuple(self._tensor(tensor) for tensor in self._model.inputs)
        for node in self._listing.nodes:
            try:
                if not has_kernel(node):
                    raise NoKernelError(f"{node.op} {node.name!r}")
                step = _READ[node.op](self, node)
            except NoKernelError as error:
                error.node = node.name
                raise
            self._steps[step.output.name] = step
        outputs = tuple(self._tensor(tensor) for tensor in self._model.outputs)
        return Network(tuple(self._steps.values()), inputs, outputs)

    def _tensor(self, tensor: TensorInfo) -> Image:
        if tensor.name not in self._images:
            image = _image(tensor)
            if image is None or tensor.dtype != "float32":
                raise NoKernelError(f"tensor {tensor.name!r}")
            self._images[tensor.name] = image
        return self._images[tensor.name]

    def _constant(self, operand: Operand | None) -> npt.NDArray[Any]:
        if operand is None or operand.name not in self._listing.arrays:
            raise NoKernelError("an operand is not an initializer")
        return self._listing.arrays[operand.name]

    def _ends(self, node: Node) -> tuple[Image, Image]:
        operand = node.inputs[0]
        if operand is None or operand.constant:
            raise NoKernelError(f"{node.op} {node.name!r} of a constant")
        return self._tensor(operand), self._tensor(node.outputs[0])

    def _open(self, source: Image) -> Step | None:
        """The step that makes an image, if nothing else reads it and it has no activation yet."""
        step = self._steps.get(source.name)
        alone = step is not None and self._readers.get(source.name) == 1 and step.activation.nothing
        return step if alone else None

    def _replaced(self, step: Step, **changes: Any) -> Step:
        del self._steps[step.output.name]
        return replace(step, **changes)

    def conv(self, node: Node) -> Step:
        """Read a convolution."""
        source, output = self._ends(node)
        weight = self._constant(node.inputs[1])
        if weight.ndim not in (3, 4) or weight.dtype != np.float32 or len(source.shape) != weight.ndim:
            raise NoKernelError(f"{node.name!r}: a weight of {weight.ndim} axes")
        if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            raise NoKernelError(f"{node.name!r}: auto_pad")
        if any(step != 1 for step in _ints(node, "dilations", ())):
            raise NoKernelError(f"{node.name!r}: dilations")
        bias = np.zeros(len(weight), np.float32)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            bias = np.asarray(self._constant(node.inputs[2]), np.float32)
        weight = weight.reshape(*weight.shape[:2], -1, weight.shape[-1]) if weight.ndim == 4 else weight[:, :, None]
        groups = int(_ints(node, "group", (1,))[0])
        depthwise = groups == source.channels == len(weight) and groups > 1
        return Step(
            kind="depthwise" if depthwise else "conv",
            source=source,
            output=output,
            weight=weight,
            bias=bias,
            groups=groups,
            window=(weight.shape[2], weight.shape[3]),
            stride=_stride(node),
            pads=_pads(node),
            nodes=(node.name,),
        )

    def product(self, node: Node) -> Step:
        """Read a product of a vector with a matrix of weights."""
        source, output = self._ends(node)
        weight = self._constant(node.inputs[1])
        if weight.ndim != 2 or weight.dtype != np.float32 or len(source.shape) != 2:
            raise NoKernelError(f"{node.name!r}: not a vector and a matrix")
        if node.op == "Gemm":
            plain = node.attributes.get("alpha", 1.0) == 1.0 and node.attributes.get("beta", 1.0) == 1.0
            if not plain or node.attributes.get("transA", 0):
                raise NoKernelError(f"{node.name!r}: alpha, beta or transA")
        if not (node.op == "Gemm" and node.attributes.get("transB", 0)):
            weight = weight.T
        bias = np.zeros(len(weight), np.float32)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            bias = np.broadcast_to(np.asarray(self._constant(node.inputs[2]), np.float32).reshape(-1), bias.shape)
        before = self._steps.get(source.name)
        if before is not None and before.kind == "copy" and before.source.height * before.source.width > 1:
            # A flattened image: the product reads it as it lies, one filter as large as the image.
            image = before.source
            if self._readers.get(source.name) != 1:
                raise NoKernelError(f"{node.name!r}: a flattened image has other readers")
            self._replaced(before)
            shape = (len(weight), image.channels, image.height, image.width)
            nodes, source = (*before.nodes, node.name), image
            weight = weight.reshape(shape)
        else:
            nodes, weight = (node.name,), weight[:, :, None, None]
        return Step(
            kind="conv",
            source=source,
            output=output,
            weight=np.ascontiguousarray(weight),
            bias=np.ascontiguousarray(bias),
            window=(weight.shape[2], weight.shape[3]),
            nodes=nodes,
        )

    def norm(self, node: Node) -> Step:
        """Read a normalisation: it becomes part of the convolution before it, or a filter of one pixel."""
        source, output = self._ends(node)
        scale, shift, mean, var = (np.asarray(self._constant(operand), np.float64) for operand in node.inputs[1:5])
        epsilon = node.attributes.get("epsilon", 1e-5)
        if not isinstance(epsilon, (int, float)) or len(node.outputs) > 1:
            raise NoKernelError(f"{node.name!r}: in training")
        factor = scale / np.sqrt(var + epsilon)
        before = self._open(source)
        if before is not None and before.weight is not None and before.bias is not None and before.other is None:
            return self._replaced(
                before,
                output=output,
                weight=(before.weight * factor[:, None, None, None]).astype(np.float32),
                bias=((before.bias - mean) * factor + shift).astype(np.float32),
                nodes=(*before.nodes, node.name),
            )
        return Step(
            kind="depthwise",
            source=source,
            output=output,
            weight=factor.astype(np.float32).reshape(-1, 1, 1, 1),
            bias=(shift - mean * factor).astype(np.float32),
            groups=source.channels,
            nodes=(node.name,),
        )

    def join(self, node: Node) -> Step:
        """Read a sum or product of two images: it becomes part of a convolution before it."""
        operands = [operand for operand in node.inputs if operand is not None and not operand.constant]
        if len(operands) != 2:
            raise NoKernelError(f"{node.name!r}: with a constant")
        one, two = (self._tensor(operand) for operand in operands)
        output, multiplies = self._tensor(node.outputs[0]), node.op == "Mul"
        if one.shape != output.shape:
            one, two = two, one
        single = (two.channels, two.height, two.width) == (one.channels, 1, 1) and len(one.shape) == len(two.shape)
        if one.shape != output.shape or (two.shape != output.shape and not single):
            raise NoKernelError(f"{node.name!r}: of different shapes")
        pairs = [(one, two), (two, one)] if two.shape == one.shape else [(one, two)]
        made = [image.name for image in self._images.values()]
        for image, other in sorted(pairs, key=lambda pair: made.index(pair[0].name), reverse=True):
            before = self._open(image) if image.name != other.name else None
            if before is not None and before.weight is not None and before.other is None:
                nodes = (*before.nodes, node.name)
                return self._replaced(before, output=output, other=other, multiplies=multiplies, nodes=nodes)
        return Step("copy", one, output, other=two, multiplies=multiplies, nodes=(node.name,))

    def activation(self, node: Node) -> Step:
        """Read an activation: part of the step before it, or a copy with an activation."""
        source, output = self._ends(node)
        activation = self._activation(node)
        before = self._open(source)
        if before is not None and (before.kind != "copy" or before.other is not None):
            return self._replaced(before, output=output, activation=activation, nodes=(*before.nodes, node.name))
        return Step(kind="copy", source=source, output=output, activation=activation, nodes=(node.name,))

    def _activation(self, node: Node) -> Activation:
        if node.op == "Relu":
            return Activation(low=0.0)
        if node.op == "HardSwish":
            return Activation(1 / 6, 0.5, 0.0, 1.0, gates=True)
        if node.op == "HardSigmoid":
            slope, offset = (float(node.attributes.get(key, value)) for key, value in (("alpha", 0.2), ("beta", 0.5)))  # type: ignore[arg-type]
            return Activation(slope, offset, 0.0, 1.0)
        limits = [-math.inf, math.inf]
        for place, name in enumerate(("min", "max")):
            if name in node.attributes:
                limits[place] = float(node.attributes[name])  # type: ignore[arg-type]
            elif len(node.inputs) > place + 1 and node.inputs[place + 1] is not None:
                limits[place] = float(self._constant(node.inputs[place + 1]).reshape(()))
        return Activation(low=limits[0], high=limits[1])

    def pool(self, node: Node) -> Step:
        """Read a pooling."""
        source, output = self._ends(node)
        kind: Literal["max", "mean"] = "max" if node.op == "MaxPool" else "mean"
        if node.op == "GlobalAveragePool":
            return Step(kind, source, output, window=(source.height, source.width), nodes=(node.name,))
        if node.op == "ReduceMean":
            axes = _ints(node, "axes", ())
            if not axes and len(node.inputs) > 1:
                axes = tuple(int(axis) for axis in self._constant(node.inputs[1]).reshape(-1))
            if len(source.shape) != 4 or sorted(axis % 4 for axis in axes) != [2, 3]:
                raise NoKernelError(f"{node.name!r}: a mean over other axes")
            return Step(kind, source, output, window=(source.height, source.width), nodes=(node.name,))
        if len(node.outputs) > 1 or any(step != 1 for step in _ints(node, "dilations", ())):
            raise NoKernelError(f"{node.name!r}: indices or dilations")
        if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            raise NoKernelError(f"{node.name!r}: auto_pad")
        window, stride, pads = _ints(node, "kernel_shape", ()), _stride(node), _pads(node)
        window = (1, *window) if len(window) == 1 else window
        if len(window) != 2 or len(source.shape) < 3:
            raise NoKernelError(f"{node.name!r}: a window of {len(window)} axes")
        for axis, (size, made) in enumerate(((source.height, output.height), (source.width, output.width))):
            if (size + pads[axis] + pads[axis + 2] - window[axis]) // stride[axis] + 1 != made:
                raise NoKernelError(f"{node.name!r}: ceil_mode")
        return Step(
            kind,
            source,
            output,
            window=(window[0], window[1]),
            stride=stride,
            pads=pads,
            counts_pads=bool(node.attributes.get("count_include_pad", 0)),
            nodes=(node.name,),
        )

    def view(self, node: Node) -> Step:
        """Read another view of the same values."""
        source, output = self._ends(node)
        same = (source.channels, source.height, source.width) == (output.channels, output.height, output.width)
        flattened = len(output.shape) == 2 and output.channels == source.channels * source.height * source.width
        if not same and not flattened:
            raise NoKernelError(f"{node.name!r}: another shape")
        before = self._steps.get(source.name)
        if same and before is not None and self._readers.get(source.name) == 1:
            return self._replaced(before, output=output, nodes=(*before.nodes, node.name))
        return Step(kind="copy", source=source, output=output, nodes=(node.name,))


_READ: Mapping[str, Any] = {
    "Conv": _Reader.conv,
    "Gemm": _Reader.product,
    "MatMul": _Reader.product,
    "BatchNormalization": _Reader.norm,
    "Add": _Reader.join,
    "Mul": _Reader.join,
    "Relu": _Reader.activation,
    "Clip": _Reader.activation,
    "HardSwish": _Reader.activation,
    "HardSigmoid": _Reader.activation,
    "MaxPool": _Reader.pool,
    "AveragePool": _Reader.pool,
    "GlobalAveragePool": _Reader.pool,
    "ReduceMean": _Reader.pool,
    "Flatten": _Reader.view,
    "Reshape": _Reader.view,
    "Squeeze": _Reader.view,
    "Identity": _Reader.view,
    "Dropout": _Reader.view,
}


def _ints(node: Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = node.attributes.get(name, default)
    return tuple(int(one) for one in value) if isinstance(value, tuple) else (int(value),)


def _stride(node: Node) -> tuple[int, int]:
    steps = _ints(node, "strides", (1, 1))
    return (1, steps[0]) if len(steps) == 1 else (steps[0], steps[1])


def _pads(node: Node) -> Pads:
    pads = _ints(node, "pads", (0, 0, 0, 0))
    if node.attributes.get("auto_pad", "NOTSET") == "VALID":
        pads = (0,) * len(pads)
    return (0, pads[0], 0, pads[1]) if len(pads) == 2 else (pads[0], pads[1], pads[2], pads[3])


def readers_of(network: Network) -> dict[str, Collection[Step]]:
    """Steps that read an image, by its name."""
    readers: dict[str, list[Step]] = {}
    for step in network.steps:
        for image in (step.source, step.other):
            if image is not None:
                readers.setdefault(image.name, []).append(step)
    return dict(readers)
