"""Small networks for tests, and how to run a model whole or segment by segment."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from framefit import GraphBuilder, Model

__all__ = ["NETWORKS", "Runner", "difference", "random_inputs", "write_dynamic"]

Arrays = dict[str, np.ndarray[Any, Any]]


# Networks ------------------------------------------------------------------------------------


def plain() -> Model:
    """Convolutions in a chain and a classifier."""
    b = GraphBuilder("plain", 1)
    x = b.input("image", (1, 3, 16, 16))
    x = b.conv(x, 8, norm=True, activation="Relu")
    x = b.conv(x, 16, stride=2, norm=True, activation="Relu")
    x = b.conv(x, 16, dilation=2, activation="Relu")
    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Flatten", x)
    x = b.dense(x, 12, activation="Relu")
    b.output(b.op("Softmax", b.dense(x, 5), axis=1), "classes")
    return b.build()


def residual() -> Model:
    """Sums over skip connections, one with a convolution on the skip."""
    b = GraphBuilder("residual", 2)
    x = b.conv(b.input("image", (1, 3, 16, 16)), 8, norm=True, activation="Relu")
    for channels, stride in ((8, 1), (16, 2)):
        y = b.conv(x, channels, stride=stride, norm=True, activation="Relu")
        y = b.conv(y, channels, norm=True)
        skip = x if stride == 1 else b.conv(x, channels, kernel=1, stride=stride)
        x = b.op("Relu", b.op("Add", y, skip))
    b.output(b.op("GlobalAveragePool", x), "features")
    return b.build()


def inverted_residual() -> Model:
    """Inverted residual block with squeeze-and-excite and hard swish."""
    b = GraphBuilder("inverted_residual", 3)
    x = b.conv(b.input("image", (1, 3, 16, 16)), 8, stride=2, activation="HardSwish")
    y = b.conv(x, 24, kernel=1, norm=True, activation="HardSwish")
    y = b.conv(y, 24, groups=24, norm=True, activation="HardSwish")
    s = b.op("GlobalAveragePool", y)
    s = b.conv(s, 6, kernel=1, activation="Relu")
    s = b.conv(s, 24, kernel=1, activation="HardSigmoid")
    y = b.conv(b.op("Mul", y, s), 8, kernel=1, norm=True)
    b.output(b.op("Add", x, y), "features")
    return b.build()


def unet() -> Model:
    """Encoder, decoder and two skip connections that are open over the middle."""
    b = GraphBuilder("unet", 4)
    x = b.input("image", (1, 1, 16, 16))
    wide = b.conv(x, 4, activation="Relu")
    middle = b.conv(wide, 8, stride=2, activation="Relu")
    deep = b.conv(middle, 16, stride=2, activation="Relu")
    x = b.conv(b.op("Concat", b.upsample(deep), middle, axis=1), 8, activation="Relu")
    x = b.conv(b.op("Concat", b.upsample(x), wide, axis=1), 4, activation="Relu")
    b.output(b.conv(x, 1, kernel=1), "mask")
    return b.build()


def dense_block() -> Model:
    """Every convolution reads all that came before it."""
    b = GraphBuilder("dense_block", 5)
    made = [b.input("image", (1, 4, 8, 8))]
    for _ in range(4):
        x = made[0] if len(made) == 1 else b.op("Concat", *made, axis=1)
        made.append(b.conv(x, 4, activation="Relu"))
    b.output(b.op("Concat", *made, axis=1), "features")
    return b.build()


def lstm() -> Model:
    """Recurrent, its state a pair of inputs and outputs."""
    b = GraphBuilder("lstm", 6)
    x = b.input("sound", (4, 1, 10))
    hidden, cell = b.input("hidden", (1, 1, 8)), b.input("cell", (1, 1, 8))
    x = b.op("Relu", b.op("MatMul", x, b.weight((10, 6), 10)))
    w, r = b.weight((1, 32, 6), 6), b.weight((1, 32, 8), 8)
    y, new_hidden, new_cell = b.op("LSTM", x, w, r, "", "", hidden, cell, outputs=3, hidden_size=8)
    x = b.op("Squeeze", y, b.constant(np.asarray([1], np.int64)))
    b.output(b.op("Sigmoid", b.op("MatMul", x, b.weight((8, 1), 8))), "speech")
    b.output(new_hidden, "next_hidden")
    b.output(new_cell, "next_cell")
    return b.build()


def write_voice(path: Path, data: Path, *, gain: bool = False) -> None:
    """Layers without a state before one with it, and 400 blocks of sound; optionally a number that never changes."""
    b = GraphBuilder("voice", 6)
    x, hidden, cell = b.input("sound", (1, 12)), b.input("hidden", (1, 1, 8)), b.input("cell", (1, 1, 8))
    x = b.op("Mul", x, b.input("gain", ())) if gain else x
    x = b.op("Relu", b.dense(b.op("Relu", b.dense(x, 256)), 256))
    x = b.op("Unsqueeze", b.dense(x, 6), b.constant(np.asarray([0], np.int64)))
    w, r = b.weight((1, 32, 6), 6), b.weight((1, 32, 8), 8)
    y, *states = b.op("LSTM", x, w, r, "", "", hidden, cell, outputs=3, hidden_size=8)
    b.output(b.op("Sigmoid", b.dense(b.op("Squeeze", y, b.constant(np.asarray([0, 1], np.int64))), 1)), "speech")
    for state, name in zip(states, ("next_hidden", "next_cell"), strict=True):
        b.output(state, name)
    path.write_bytes(b.build().to_bytes())
    steps = np.random.default_rng(0).standard_normal((400, 12))
    np.savez(data, x=np.sin(np.cumsum(steps, axis=0)).astype(np.float32))


def attention() -> Model:
    """A vision transformer's block; layer normalisation from single operators."""
    b = GraphBuilder("attention", 7)
    tokens, width, heads = 9, 16, 4

    def normalised(x: str) -> str:
        centred = b.op("Sub", x, b.op("ReduceMean", x, axes=[-1]))
        variance = b.op("ReduceMean", b.op("Mul", centred, centred), axes=[-1])
        deviation = b.op("Sqrt", b.op("Add", variance, b.constant(np.float32(1e-5))))
        return str(b.op("Div", centred, deviation))

    def split(x: str, perm: list[int]) -> str:
        x = b.op("MatMul", x, b.weight((width, width), width))
        x = b.op("Reshape", x, b.constant(np.asarray([1, tokens, heads, width // heads], np.int64)))
        return str(b.op("Transpose", x, perm=perm))

    x = b.input("tokens", (1, tokens, width))
    y = normalised(x)
    query, key, value = split(y, [0, 2, 1, 3]), split(y, [0, 2, 3, 1]), split(y, [0, 2, 1, 3])
    scores = b.op("Softmax", b.op("Mul", b.op("MatMul", query, key), b.constant(np.float32(0.5))), axis=-1)
    y = b.op("Transpose", b.op("MatMul", scores, value), perm=[0, 2, 1, 3])
    y = b.op("Reshape", y, b.constant(np.asarray([1, tokens, width], np.int64)))
    x = b.op("Add", x, b.op("MatMul", y, b.weight((width, width), width)))
    y = b.op("MatMul", normalised(x), b.weight((width, 2 * width), width))
    y = b.op("MatMul", b.op("Relu", y), b.weight((2 * width, width), width))
    b.output(b.op("Add", x, y), "encoded")
    return b.build()


def two_ends() -> Model:
    """Two inputs and two outputs; one input is first read near the end."""
    b = GraphBuilder("two_ends", 8)
    image, bias = b.input("image", (1, 3, 8, 8)), b.input("bias", (1, 6, 1, 1))
    x = b.conv(image, 6, activation="Relu")
    b.output(b.op("GlobalMaxPool", x), "peak")
    x = b.conv(x, 6, activation="Relu")
    b.output(b.op("Add", x, bias), "shifted")
    return b.build()


def branching() -> Model:
    """An ``If`` whose condition depends on the data and whose branch reads an outer tensor."""
    b = GraphBuilder("branching", 9)
    x = b.input("image", (1, 2, 8, 8))
    early = b.conv(x, 4, activation="Relu")
    late = b.conv(early, 4, activation="Relu")
    mean = b.op("ReduceMean", x, keepdims=0)
    condition = b.op("Greater", mean, b.constant(np.float32(0)))
    chosen = b.op(
        "If", condition, then_branch=_branch(b, "Add", early, late), else_branch=_branch(b, "Sub", late, early)
    )
    b.output(b.conv(chosen, 2), "result")
    return b.build()


def looping() -> Model:
    """A ``Loop`` of three iterations whose body reads an outer tensor and one of its own making."""
    b = GraphBuilder("looping", 10)
    x = b.conv(b.input("image", (1, 2, 4, 4)), 2, activation="Relu")
    step = b.conv(x, 2)
    number = ir.Value(name="number", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    going = ir.Value(name="going", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    carried = ir.Value(name="carried", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 2, 4, 4]))
    still = ir.node("Identity", [going])
    half = ir.node("Mul", [carried, b._values[b.constant(np.float32(0.5))]])
    total = ir.node("Add", [half.outputs[0], b._values[step]])
    body = ir.Graph(
        [number, going, carried], [still.outputs[0], total.outputs[0]], nodes=[still, half, total], name="body"
    )
    times, true = b.constant(np.asarray(3, np.int64)), b.constant(np.asarray([True]).squeeze())
    x = b.op("Loop", times, true, x, body=body)
    b.output(b.op("Conv", x, b.weight((3, 2, 3, 3), 18), kernel_shape=[3, 3]), "result")
    return b.build()


def quantised() -> Model:
    """Two convolutions between QuantizeLinear and DequantizeLinear, weights in int8."""
    b = GraphBuilder("quantised", 11)
    random = np.random.default_rng(11)
    x = b.input("image", (1, 3, 8, 8))

    def through_int8(x: str, scale: float) -> str:
        pair = b.constant(np.float32(scale)), b.constant(np.asarray(3, np.int8))
        return str(b.op("DequantizeLinear", b.op("QuantizeLinear", x, *pair), *pair))

    for channels in (6, 4):
        x = through_int8(x, 0.04)
        shape = (channels, b.channels(x), 3, 3)
        weight = b.constant(random.integers(-63, 64, shape, dtype=np.int8))  # 7 bits: x86 kernels without VNNI saturate
        scales = b.constant(random.uniform(0.001, 0.003, channels).astype(np.float32))
        zeros = b.constant(np.zeros(channels, np.int8))
        weight = b.op("DequantizeLinear", weight, scales, zeros, axis=0)
        x = b.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    b.output(through_int8(x, 0.05), "result")
    return b.build()


def dynamic() -> Model:
    """An older exporter's habits, see :func:`write_dynamic`; batch taken as 1."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_dynamic(Path(folder) / "dynamic.onnx")
        return Model.load(path)


def write_dynamic(path: Path) -> Path:
    """Write a model with initializers among its inputs, a dynamic batch and shapes computed at run time.

    Input "image": batch x 2 x 6 x 6; output "flat": batch x 3. Returns ``path``.
    """
    random = np.random.default_rng(12)
    initializers = {
        "weight": random.standard_normal((4, 2, 3, 3)).astype(np.float32),
        "matrix": random.standard_normal((64, 3)).astype(np.float32),
        "zero": np.asarray(0, np.int64),
        "rest": np.asarray([-1], np.int64),
        "front": np.asarray([0], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["feature"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["feature"], ["positive"]),
        helper.make_node("Shape", ["positive"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "front"], ["batch_1d"]),
        helper.make_node("Concat", ["batch_1d", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["positive", "target"], ["long"]),
        helper.make_node("MatMul", ["long", "matrix"], ["flat"]),
    ]
    types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [
            helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 2, 6, 6]),
            *(helper.make_tensor_value_info(name, types[a.dtype], a.shape) for name, a in initializers.items()),
        ],
        [helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def inner_output() -> Model:
    """A graph output that other layers read too."""
    b = GraphBuilder("inner_output", 13)
    x = b.conv(b.input("image", (1, 2, 8, 8)), 4, activation="Relu")
    b.output(x)
    x = b.conv(x, 4, activation="Relu")
    b.output(b.conv(b.op("Add", x, b.conv(x, 4)), 2), "last")
    return b.build()


def passed_through() -> Model:
    """One output is an input as it came, another a constant."""
    b = GraphBuilder("passed_through", 14)
    image, stamp = b.input("image", (1, 2, 8, 8)), b.input("stamp", (1,), np.int64)
    x = b.conv(image, 4, activation="Relu")
    b.output(b.conv(x, 2), "result")
    b.output(stamp)
    b.output(b.constant(np.asarray([1, 2, 3], np.float32), "anchors"))
    return b.build()


def towers() -> Model:
    """Three towers side by side, joined at the end; two share their weight."""
    b = GraphBuilder("towers", 15)
    x = b.input("image", (1, 2, 8, 8))
    shared = b.weight((2, 2, 3, 3), 18)
    ends = []
    for tower in range(3):
        y = x
        for _ in range(3):
            if tower < 2:
                y = b.op("Relu", b.op("Conv", y, shared, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
            else:
                y = b.conv(y, 2, activation="Tanh")
        ends.append(y)
    b.output(b.op("Concat", *ends, axis=1), "joined")
    return b.build()


def split_channels() -> Model:
    """An operator with several outputs, one of them unread, shuffled and joined again."""
    b = GraphBuilder("split_channels", 16)
    x = b.conv(b.input("image", (1, 2, 8, 8)), 6, activation="Relu")
    first, second, _ = b.op("Split", x, b.constant(np.asarray([2, 2, 2], np.int64)), outputs=3, axis=1)
    first = b.conv(first, 2, activation="Relu")
    x = b.op("Concat", first, second, axis=1)
    x = b.op("Reshape", x, b.constant(np.asarray([1, 2, 2, 8, 8], np.int64)))
    x = b.op("Transpose", x, perm=[0, 2, 1, 3, 4])
    b.output(b.op("Reshape", x, b.constant(np.asarray([1, 4, 8, 8], np.int64))), "shuffled")
    return b.build()


def selecting() -> Model:
    """Tensors whose shape depends on the data, and a sequence: no segment can end there."""
    b = GraphBuilder("selecting", 17)
    x = b.conv(b.input("image", (1, 2, 4, 4)), 2)
    positions = b.op("NonZero", b.op("Relu", x))
    x = b.op("Add", x, b.op("Cast", b.op("ReduceMax", positions, keepdims=0), to=1))
    x = b.op("SequenceConstruct", x, x)
    x = b.op("ConcatFromSequence", x, axis=1)
    x = b.op("Reshape", x, b.constant(np.asarray([1, 4, 4, 4], np.int64)))
    b.output(b.conv(x, 2, activation="Relu"), "result")
    return b.build()


def _branch(b: GraphBuilder, kind: str, left: str, right: str) -> ir.Graph:
    node = ir.node(kind, [b._values[left], b._values[right]])
    return ir.Graph([], node.outputs, nodes=[node], name=f"{kind}_branch")


NETWORKS: dict[str, Callable[[], Model]] = {
    build.__name__: build
    for build in (
        plain,
        residual,
        inverted_residual,
        unet,
        dense_block,
        lstm,
        attention,
        two_ends,
        branching,
        looping,
        quantised,
        dynamic,
        inner_output,
        passed_through,
        towers,
        split_channels,
        selecting,
    )
}
"""Name -> network; the same weights at every call."""


# Running -------------------------------------------------------------------------------------


def random_inputs(model: Model, seed: int) -> Arrays:
    """Normal floats, small integers, for each of a model's inputs."""
    random = np.random.default_rng(seed)
    made = {}
    for tensor in model.inputs:
        assert tensor.shape is not None
        numbers = random.standard_normal(tensor.shape)
        made[tensor.name] = (numbers if "float" in tensor.dtype else numbers * 3).astype(tensor.dtype)
    return made


class Runner:
    """Runs a model whole or in segments; sessions are kept, one thread each."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._sessions: dict[tuple[int, int] | None, ort.InferenceSession] = {}

    def whole(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """Outputs of the uncut model."""
        return self._run(None, feeds)

    def cut(self, feeds: Mapping[str, np.ndarray[Any, Any]], positions: Iterable[int]) -> Arrays:
        """Outputs of the segments between ``positions``, run one after the other."""
        tensors = dict(feeds)
        bounds = [0, *sorted(positions), len(self.model.layers)]
        for first, end in itertools.pairwise(bounds):
            tensors |= self._run((first, end - 1), tensors)
        return {tensor.name: tensors[tensor.name] for tensor in self.model.outputs}

    def _run(self, key: tuple[int, int] | None, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        if key not in self._sessions:
            part = self.model if key is None else self.model.segment(*key)
            options = ort.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            # Not all optimisations: int8 kernels that span a cut would round otherwise than two segments do.
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
            options.log_severity_level = 3
            self._sessions[key] = ort.InferenceSession(part.to_bytes(), options, providers=["CPUExecutionProvider"])
        session = self._sessions[key]
        names = [output.name for output in session.get_outputs()]
        feeds = {value.name: tensors[value.name] for value in session.get_inputs()}
        return dict(zip(names, session.run(names, feeds), strict=True))


def difference(expected: Mapping[str, np.ndarray[Any, Any]], given: Mapping[str, np.ndarray[Any, Any]]) -> float:
    """Largest max|a - b| / max|a| of the outputs; infinite where names or shapes differ."""
    if expected.keys() != given.keys() or any(a.shape != given[name].shape for name, a in expected.items()):
        return float("inf")
    ratios = [0.0]
    for name, array in expected.items():
        if array.size:
            a, b = array.astype(np.float64), given[name].astype(np.float64)
            ratios.append(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)))
    return max(ratios)
