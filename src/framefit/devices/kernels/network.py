"""Networks as steps over images with channels last, as far as kernels for them exist.

A step is a convolution (or product) with the sum and the activation after it, a pooling or an element-wise operation.
Vectors are images of one pixel, one-dimensional signals are images of one row.

Images are float32, or unsigned bytes with a scale and the byte that means 0. ``DequantizeLinear`` is not a step: every
step reads and writes both. A convolution of bytes with signed bytes as weights is added up in whole numbers.
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
class Vectors:
    """Vector registers of a processor.

    Attributes:
        lanes: float32 numbers in one.
        tile: pixels at once, at most: accumulators that fit beside what is being multiplied.
        dot: LLVM's name of the instruction that adds products of four bytes each; "": there is none.
        signed: whether it multiplies signed bytes only, so that 128 is subtracted from those of images.
    """

    lanes: int
    tile: int
    dot: str = ""
    signed: bool = False


@dataclass(frozen=True)
class Image:
    """A tensor of one example.

    Attributes:
        name: of the tensor.
        channels, height, width: of the image.
        shape: of the tensor, as ONNX has it.
        dtype: float32, or uint8: a byte q means ``scale * (q - zero)``.
        scale, zero: of bytes.
    """

    name: str
    channels: int
    height: int
    width: int
    shape: tuple[int, ...]
    dtype: Literal["float32", "uint8"] = "float32"
    scale: float = 1.0
    zero: int = 0


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
        weight: conv: outputs x inputs of a group x rows x columns, float32, or int8 for a source of bytes.
        bias: conv: outputs, float32.
        scales: conv: outputs, float32: what 1 in a weight of bytes means.
        rounded: scale and zero of bytes to which values are rounded before they are joined with the other image.
        groups: conv: number of groups.
        window: rows and columns of a filter or of a pooling's window.
        stride: down, across.
        dilation: conv, depthwise: distance of a filter's rows, and of its columns.
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
    weight: npt.NDArray[Any] | None = None
    bias: Floats | None = None
    scales: Floats | None = None
    rounded: tuple[float, int] | None = None
    groups: int = 1
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    counts_pads: bool = False
    nodes: tuple[str, ...] = ()

    @property
    def even(self) -> bool:
        """Whether it makes whole vectors, rather than one number after the other of a flattened image."""
        source, output = self.source, self.output
        return self.kind != "copy" or source.height * source.width == output.height * output.width

    @property
    def macs(self) -> int:
        """Multiplications, zeros included."""
        weight = 0 if self.weight is None else self.weight.size
        return weight * self.output.height * self.output.width

    def kept_macs(self, lanes: int) -> int:
        """Multiplications of blocks of ``lanes`` outputs that are not all zero."""
        if self.kind != "conv" or self.weight is None:
            return self.macs
        kept = np.any(in_blocks(self.weight, lanes) != 0, axis=1)
        together = 1
        if self.weight.dtype == np.int8:
            kept, together = in_fours(kept).any(axis=2), FOUR
        return int(np.count_nonzero(kept)) * together * lanes * self.output.height * self.output.width


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


FOUR = 4
"""Inputs that an instruction for bytes multiplies at once."""


def in_blocks(weight: npt.NDArray[Any], lanes: int) -> npt.NDArray[Any]:
    """Weights by blocks of outputs: blocks x ``lanes`` x inputs x rows x columns, with zeros for missing outputs."""
    missing = -len(weight) % lanes
    padded = np.concatenate([weight, np.zeros((missing, *weight.shape[1:]), weight.dtype)])
    return padded.reshape(-1, lanes, *weight.shape[1:])


def in_fours(blocks: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The second axis, inputs, by fours: ... x inputs / 4 x 4 x ..., with zeros for missing inputs."""
    missing = np.zeros((len(blocks), -blocks.shape[1] % FOUR, *blocks.shape[2:]), blocks.dtype)
    padded = np.concatenate([blocks, missing], axis=1)
    return padded.reshape(len(blocks), -1, FOUR, *blocks.shape[2:])


def network_of(model: Model) -> Network:
    """Read a model as steps.

    Raises:
        NoKernelError: there is no kernel for one of its nodes, tensors or types.
    """
    return _Reader(model).network()


def has_kernel(node: Node) -> bool:
    """Whether there may be a kernel for a node, by its operator and types; :func:`network_of` decides."""
    tensors = [operand for operand in node.inputs if operand is not None and not operand.constant]
    known = all(tensor.dtype in ("float32", "uint8") for tensor in (*tensors, *node.outputs))
    return node.domain in ("", "ai.onnx") and node.op in _READ and known and all(map(_image, node.outputs))


def _image(tensor: TensorInfo) -> Image | None:
    shape = tensor.shape
    if shape is None or not 2 <= len(shape) <= 4 or shape[0] != 1 or math.prod(shape) == 0:
        return None
    channels, height, width = shape[1], 1, 1
    if len(shape) > 2:
        height, width = (1, shape[2]) if len(shape) == 3 else (shape[2], shape[3])
    return Image(tensor.name, channels, height, width, shape, "uint8" if tensor.dtype == "uint8" else "float32")


class _Reader:
    """Reads a model's nodes one after the other."""

    def __init__(self, model: Model) -> None:
        self._model, self._listing = model, listing(model)
        self._images: dict[str, Image] = {}
        self._steps: dict[str, Step] = {}  # by the tensor that they make
        self._views: dict[str, str] = {}  # the tensor of bytes that a tensor means
        self._view_nodes: dict[str, str] = {}  # that make them, until the first step that reads one
        self._bytes: dict[str, tuple[npt.NDArray[Any], npt.NDArray[np.float32]]] = {}  # weights, and what 1 means
        self._readers: dict[str, int] = {}
        self._outputs = {tensor.name for tensor in model.outputs}
        for node in self._listing.nodes:
            for operand in node.inputs:
                if operand is not None:
                    self._readers[operand.name] = self._readers.get(operand.name, 0) + 1
        for tensor in model.outputs:
            self._readers[tensor.name] = self._readers.get(tensor.name, 0) + 1

    def network(self) -> Network:
        """Read everything."""
        for tensor in self._model.inputs:
            self._tensor(tensor)
        for node in self._listing.nodes:
            try:
                self._read(node)
            except NoKernelError as error:
                error.node = node.name
                raise
        for tensor in self._model.outputs:
            if tensor.name in self._views:  # a tensor of bytes leaves as what it means
                source, output = self._tensor(tensor), _image(tensor)
                assert output is not None
                nodes = (self._view_nodes.pop(tensor.name),) if tensor.name in self._view_nodes else ()
                self._steps[tensor.name] = Step("copy", source, output, nodes=nodes)
                self._images[tensor.name] = output
                del self._views[tensor.name]
        inputs, outputs = (
            tuple(self._images[self._tensor(tensor).name] for tensor in tensors)
            for tensors in (self._model.inputs, self._model.outputs)
        )
        steps = tuple(
            replace(
                step,
                source=self._images[step.source.name],
                output=self._images[step.output.name],
                other=None if step.other is None else self._images[step.other.name],
            )
            for step in self._steps.values()
        )
        return Network(steps, inputs, outputs)

    def _read(self, node: Node) -> None:
        if not has_kernel(node) and not self._takes_constant(node):
            raise NoKernelError(f"{node.op} {node.name!r}")
        step = _READ[node.op](self, node)
        if step is None:
            return
        names = [self._view_nodes.pop(o.name) for o in node.inputs if o is not None and o.name in self._view_nodes]
        self._steps[step.output.name] = replace(step, nodes=(*names, *step.nodes))

    @staticmethod
    def _takes_constant(node: Node) -> bool:
        return node.op == "DequantizeLinear" and node.inputs[0] is not None and node.inputs[0].constant

    def _tensor(self, tensor: TensorInfo) -> Image:
        name = self._views.get(tensor.name, tensor.name)
        if name not in self._images:
            image = _image(tensor)
            if image is None or tensor.dtype not in ("float32", "uint8"):
                raise NoKernelError(f"tensor {tensor.name!r}")
            self._images[name] = image
        return self._images[name]

    def _constant(self, operand: Operand | None) -> npt.NDArray[Any]:
        if operand is not None and operand.name in self._bytes:
            array, scales = self._bytes[operand.name]
            return (array * scales).astype(np.float32)
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
        return step if alone and source.dtype == "float32" else None

    def _replaced(self, step: Step, **changes: Any) -> Step:
        del self._steps[step.output.name]
        return replace(step, **changes)

    def dequantised(self, node: Node) -> None:
        """Read what bytes mean: weights, or a tensor."""
        operand = node.inputs[0]
        assert operand is not None
        scale = np.asarray(self._constant(node.inputs[1]), np.float32).reshape(-1)
        zero = self._constant(node.inputs[2]).reshape(-1) if len(node.inputs) > 2 else np.zeros(1, np.uint8)
        name = node.outputs[0].name
        if operand.constant:
            array = self._constant(operand)
            axis = int(_ints(node, "axis", (1,))[0])
            if zero.any() or array.dtype not in (np.int8, np.int32):
                raise NoKernelError(f"{node.name!r}: weights of {array.dtype} with a zero point")
            self._bytes[name] = array, scale.reshape([-1 if n == axis else 1 for n in range(array.ndim)])
            return
        image = self._tensor(operand)
        if image.dtype != "uint8" or len(scale) > 1:
            raise NoKernelError(f"{node.name!r}: of signed bytes, or by channel")
        known = replace(image, scale=float(scale[0]), zero=int(zero[0]))
        if operand.name in self._steps and known != image:
            raise NoKernelError(f"{node.name!r}: bytes mean something else than what was written")
        self._images[operand.name] = known
        self._views[name], self._view_nodes[name] = operand.name, node.name
        # readers of the meaning are readers of the bytes
        self._readers[operand.name] += self._readers.pop(name, 0) - 1

    def quantised(self, node: Node) -> Step:
        """Read the rounding to bytes: part of the step before it, or a copy."""
        source = self._tensor(node.inputs[0])  # type: ignore[arg-type]  # it has one
        scale = np.asarray(self._constant(node.inputs[1]), np.float32).reshape(-1)
        zero = self._constant(node.inputs[2]).reshape(-1) if len(node.inputs) > 2 else np.zeros(1, np.uint8)
        if len(scale) > 1 or zero.dtype != np.uint8:
            raise NoKernelError(f"{node.name!r}: to signed bytes, or by channel")
        output = replace(self._tensor(node.outputs[0]), scale=float(scale[0]), zero=int(zero[0]))
        self._images[output.name] = output
        before = self._steps.get(source.name)
        if before is not None and source.dtype == "float32" and self._readers.get(source.name) == 1 and before.even:
            return self._replaced(before, output=output, nodes=(*before.nodes, node.name))
        return Step("copy", source, output, nodes=(node.name,))

    def _weights(self, node: Node, source: Image) -> tuple[npt.NDArray[Any], Floats | None]:
        """Weights of a product, and what 1 in weights of bytes means where the source is of bytes, too."""
        operand = node.inputs[1]
        if source.dtype == "uint8" and operand is not None and operand.name in self._bytes:
            array, scales = self._bytes[operand.name]
            turned = array.ndim == 2 and not node.attributes.get("transB", 0)  # outputs are columns
            if turned:
                array, scales = array.T, scales.T
            if scales.size not in (1, len(scales)):
                raise NoKernelError(f"{node.name!r}: scales of inputs")
            return array, np.broadcast_to(scales.reshape(-1), (len(array),)).astype(np.float32)
        weight = self._constant(operand)
        if weight.dtype != np.float32:
            raise NoKernelError(f"{node.name!r}: weights of {weight.dtype}")
        return weight.T if weight.ndim == 2 and not node.attributes.get("transB", 0) else weight, None

    def _bias(self, node: Node, outputs: int) -> Floats:
        if len(node.inputs) < 3 or node.inputs[2] is None:
            return np.zeros(outputs, np.float32)
        bias = np.asarray(self._constant(node.inputs[2]), np.float32).reshape(-1)
        return np.ascontiguousarray(np.broadcast_to(bias, (outputs,)))

    def conv(self, node: Node) -> Step:
        """Read a convolution."""
        source, output = self._ends(node)
        weight, scales = self._weights(node, source)
        if weight.ndim not in (3, 4) or len(source.shape) != weight.ndim:
            raise NoKernelError(f"{node.name!r}: a weight of {weight.ndim} axes")
        if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            raise NoKernelError(f"{node.name!r}: auto_pad")
        weight = weight.reshape(*weight.shape[:2], -1, weight.shape[-1]) if weight.ndim == 4 else weight[:, :, None]
        groups = int(_ints(node, "group", (1,))[0])
        depthwise = groups == source.channels == len(weight) and groups > 1
        if scales is not None and groups > 1:  # whole numbers do not pay: few of them are added up
            weight, scales = (weight * scales.reshape(-1, 1, 1, 1)).astype(np.float32), None
        return self._ready(
            Step(
                kind="depthwise" if depthwise else "conv",
                source=source,
                output=output,
                weight=weight,
                bias=self._bias(node, len(weight)),
                scales=scales,
                groups=groups,
                window=(weight.shape[2], weight.shape[3]),
                stride=_steps(node, "strides"),
                dilation=_steps(node, "dilations"),
                pads=_pads(node),
                nodes=(node.name,),
            )
        )

    @staticmethod
    def _ready(step: Step) -> Step:
        if step.kind == "conv" and step.source.dtype == "uint8" and step.scales is None:
            raise NoKernelError(f"{step.nodes[0]!r}: bytes times float32")
        return step

    def product(self, node: Node) -> Step:
        """Read a product of a vector with a matrix of weights."""
        source, output = self._ends(node)
        weight, scales = self._weights(node, source)
        if weight.ndim != 2 or len(source.shape) != 2:
            raise NoKernelError(f"{node.name!r}: not a vector and a matrix")
        if node.op == "Gemm":
            plain = node.attributes.get("alpha", 1.0) == 1.0 and node.attributes.get("beta", 1.0) == 1.0
            if not plain or node.attributes.get("transA", 0):
                raise NoKernelError(f"{node.name!r}: alpha, beta or transA")
        bias = self._bias(node, len(weight))
        before = self._steps.get(source.name)
        alike = before is not None and (before.source.dtype, before.source.scale, before.source.zero) == (
            source.dtype,
            source.scale,
            source.zero,
        )
        if before is not None and alike and before.kind == "copy" and before.source.height * before.source.width > 1:
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
        return self._ready(
            Step(
                kind="conv",
                source=source,
                output=output,
                weight=np.ascontiguousarray(weight),
                bias=bias,
                scales=scales,
                window=(weight.shape[2], weight.shape[3]),
                nodes=nodes,
            )
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
        fits = before is not None and before.other is None and before.scales is None
        if fits and before is not None and before.weight is not None and before.bias is not None:
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
            before = self._rounding(image) if image.name != other.name else None
            if before is not None and before.weight is not None and before.other is None:
                nodes = (*before.nodes, node.name)
                return self._replaced(before, output=output, other=other, multiplies=multiplies, nodes=nodes)
        return Step("copy", one, output, other=two, multiplies=multiplies, nodes=(node.name,))

    def _rounding(self, image: Image) -> Step | None:
        """The step that makes an image, as :meth:`_open`; one that rounds to bytes does so before what follows."""
        step = self._steps.get(image.name)
        alone = step is not None and self._readers.get(image.name) == 1
        if image.dtype == "float32" or step is None or not alone or not step.activation.nothing:
            return self._open(image)
        return replace(step, rounded=(image.scale, image.zero))

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
        window, stride, pads = _ints(node, "kernel_shape", ()), _steps(node, "strides"), _pads(node)
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
        if output.name not in self._outputs:
            output = replace(output, dtype=source.dtype, scale=source.scale, zero=source.zero)
            self._images[output.name] = output
        elif source.dtype != output.dtype and not same:
            raise NoKernelError(f"{node.name!r}: bytes that become a vector of numbers")
        before = self._steps.get(source.name)
        if same and before is not None and self._readers.get(source.name) == 1 and source.dtype == output.dtype:
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
    "QuantizeLinear": _Reader.quantised,
    "DequantizeLinear": _Reader.dequantised,
}


def _ints(node: Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = node.attributes.get(name, default)
    return tuple(int(one) for one in value) if isinstance(value, tuple) else (int(value),)


def _steps(node: Node, name: str) -> tuple[int, int]:
    """Down and across."""
    steps = _ints(node, name, (1, 1))
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
