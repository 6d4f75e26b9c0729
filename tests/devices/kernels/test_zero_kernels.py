"""Kernels that skip zeros, against numpy: the reference implementation of ONNX's own package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from framefit import GraphBuilder, Model
from framefit.core.model import listing, with_weights
from framefit.devices.kernels.code import block_lists, plan_of, tile_of
from framefit.devices.kernels.compiled import CompiledNetwork, host, vectors_of
from framefit.devices.kernels.network import NoKernelError, in_blocks, network_of
from framefit.devices.ort import quantised

FLOAT_TOLERANCE = 1e-4
Made = Callable[[GraphBuilder], str]


def network(make: Made, seed: int = 0, zeros: float = 0.5) -> Model:
    """A model whose weights have blocks of 16 outputs with zeros."""
    b = GraphBuilder("net", seed)
    b.output(make(b), "out")
    model, random = b.build(), np.random.default_rng(seed)
    new = {}
    for name, array in listing(model).arrays.items():
        if array.ndim == 4:
            kept = random.random((-(-len(array) // 16), *array.shape[1:])) >= zeros
            new[name] = array * np.repeat(kept, 16, axis=0)[: len(array)]
    return with_weights(model, new)


def outputs(model: Model, processor: tuple[str, str] | None = None, cache: Path | None = None) -> tuple:
    """What kernels make of random inputs, and what numpy does."""
    random = np.random.default_rng(1)
    feeds = {tensor.name: random.standard_normal(tensor.shape).astype(np.float32) for tensor in model.inputs}
    made = [np.full(tensor.shape, np.nan, np.float32) for tensor in model.outputs]
    compiled = CompiledNetwork(network_of(model), cache, processor)
    bound = compiled.bind(list(feeds.values()), made, np.zeros(1, np.int32))
    assert bound() == 0
    if any(node.op == "QuantizeLinear" for nodes in model.nodes for node in nodes):
        # onnx's own evaluator starts with a later version of this operator than the runtime's tool writes
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return made, onnxruntime.InferenceSession(model.to_bytes(), options).run(None, feeds)
    return made, ReferenceEvaluator(onnx.load_from_string(model.to_bytes())).run(None, feeds)


def assert_close(made: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Within float32's rounding of long sums."""
    for one, other in zip(made, expected, strict=True):
        assert np.abs(one - other).max() <= FLOAT_TOLERANCE * max(np.abs(other).max(), 1e-6)


def conv(b: GraphBuilder, x: str, outputs: int, kernel: tuple[int, int], **attributes: object) -> str:
    """A convolution with a bias."""
    groups = int(attributes.get("group", 1))  # type: ignore[call-overload]
    inputs = b.channels(x) // groups
    weight = b.weight((outputs, inputs, *kernel), inputs * kernel[0] * kernel[1])
    return str(b.op("Conv", x, weight, b.weight((outputs,), 4), **attributes))


def norm(b: GraphBuilder, x: str) -> str:
    """A normalisation with statistics of its own."""
    count = b.channels(x)
    random = np.random.default_rng(3)
    values = [random.uniform(0.5, 1.5, count), *random.standard_normal((2, count)), random.uniform(0.5, 2, count)]
    return str(b.op("BatchNormalization", x, *(b.constant(value.astype(np.float32)) for value in values)))


def residual(b: GraphBuilder) -> str:
    """A block with a sum after its second convolution."""
    x = b.op("Relu", norm(b, conv(b, b.input("x", (1, 3, 9, 9)), 24, (3, 3), pads=[1, 1, 1, 1])))
    y = norm(b, conv(b, b.op("Relu", conv(b, x, 24, (3, 3), pads=[1] * 4)), 24, (3, 3), pads=[1] * 4))
    return str(b.op("Relu", b.op("Add", x, y)))


def projected(b: GraphBuilder) -> str:
    """Both branches of a sum are convolutions, one with an activation of its own."""
    x = b.input("x", (1, 16, 8, 8))
    y = b.op("Relu", conv(b, x, 20, (1, 1), strides=[2, 2]))
    return str(b.op("Add", conv(b, x, 20, (3, 3), strides=[2, 2], pads=[1] * 4), y))


def gated(b: GraphBuilder) -> str:
    """Channels are multiplied with factors that a small network makes of their means."""
    x = b.op("HardSwish", conv(b, b.input("x", (1, 8, 7, 7)), 40, (1, 1)))
    gate = b.op("Relu", conv(b, b.op("GlobalAveragePool", x), 12, (1, 1)))
    gate = b.op("HardSigmoid", conv(b, gate, 40, (1, 1)), alpha=1 / 6, beta=0.5)
    return conv(b, b.op("Mul", x, gate), 17, (1, 1))


def classifier(b: GraphBuilder) -> str:
    """A picture is flattened, and multiplied with matrices."""
    x = b.op("MaxPool", conv(b, b.input("x", (1, 2, 10, 10)), 6, (3, 3)), kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Relu", b.op("Gemm", b.op("Flatten", x), b.weight((6 * 16, 33), 96), b.weight((33,), 4)))
    x = b.op("Clip", x, b.constant(np.float32(-0.1)), b.constant(np.float32(0.6)))
    return str(b.op("Gemm", x, b.weight((10, 33), 33), b.weight((10,), 4), transB=1))


def several(b: GraphBuilder) -> str:
    """An image has several readers with borders of different widths, and is an output, too."""
    x = conv(b, b.input("x", (1, 5, 12, 11)), 16, (3, 3), pads=[1] * 4)
    b.output(x, "first")
    wide = conv(b, x, 16, (5, 5), pads=[2] * 4)
    narrow = conv(b, x, 16, (1, 1))
    b.output(b.op("Add", b.op("Add", wide, narrow), x), "second")
    return str(b.op("Relu", x))


CASES: dict[str, Made] = {
    "wide": lambda b: conv(b, b.input("x", (1, 19, 3, 37)), 21, (3, 3), pads=[1] * 4),
    "3x3": lambda b: conv(b, b.input("x", (1, 16, 14, 14)), 32, (3, 3), pads=[1] * 4),
    "odd channels": lambda b: conv(b, b.input("x", (1, 5, 9, 7)), 19, (3, 3), pads=[1] * 4),
    "uneven padding": lambda b: conv(b, b.input("x", (1, 4, 9, 12)), 16, (3, 5), pads=[0, 1, 2, 3], strides=[2, 3]),
    "dilated": lambda b: conv(
        b, b.input("x", (1, 6, 13, 12)), 19, (3, 3), dilations=[2, 3], pads=[2, 3, 1, 0], strides=[1, 2]
    ),
    "dilated depthwise": lambda b: conv(
        b, b.input("x", (1, 18, 11, 9)), 18, (3, 3), group=18, dilations=[3, 2], pads=[3, 2, 3, 2]
    ),
    "dilated signal": lambda b: b.op(
        "Conv", b.input("x", (1, 6, 40)), b.weight((16, 6, 3), 18), b.weight((16,), 4), dilations=[4], pads=[8, 0]
    ),
    "1x1": lambda b: conv(b, b.input("x", (1, 24, 7, 7)), 40, (1, 1)),
    "groups": lambda b: conv(b, b.input("x", (1, 32, 6, 6)), 64, (3, 3), group=2, pads=[1] * 4),
    "groups across blocks": lambda b: conv(b, b.input("x", (1, 12, 6, 6)), 18, (3, 3), group=3, pads=[1] * 4),
    "depthwise": lambda b: conv(b, b.input("x", (1, 21, 11, 11)), 21, (5, 5), group=21, pads=[2] * 4, strides=[2, 2]),
    "one pixel": lambda b: conv(b, b.input("x", (1, 50, 3, 3)), 20, (3, 3)),
    "relu6": lambda b: b.op(
        "Clip",
        conv(b, b.input("x", (1, 8, 8, 8)), 16, (3, 3)),
        b.constant(np.float32(0)),
        b.constant(np.float32(6)),
    ),
    "norm alone": lambda b: norm(b, b.op("Relu", b.input("x", (1, 18, 5, 5)))),
    "max": lambda b: b.op("MaxPool", b.input("x", (1, 7, 9, 9)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "mean": lambda b: b.op("AveragePool", b.input("x", (1, 7, 9, 9)), kernel_shape=[3, 3], pads=[1] * 4),
    "mean with padding": lambda b: b.op(
        "AveragePool", b.input("x", (1, 7, 9, 8)), kernel_shape=[2, 3], pads=[1, 0, 0, 1], count_include_pad=1
    ),
    "residual": residual,
    "projected": projected,
    "gated": gated,
    "classifier": classifier,
    "several readers": several,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("zeros", [0.0, 0.7])
def test_outputs_are_those_of_numpy(case: str, zeros: float) -> None:
    """Any layer that has a kernel, with and without zeros."""
    assert_close(*outputs(network(CASES[case], zeros=zeros)))


def test_blocks_of_zeros_only(tmp_path: Path) -> None:
    """A block may have nothing that it reads: its outputs are the biases."""
    assert_close(*outputs(network(CASES["3x3"], zeros=1.0), cache=tmp_path))


@pytest.mark.parametrize("case", ["odd channels", "depthwise", "residual", "gated", "classifier"])
def test_a_processor_with_shorter_vectors(case: str) -> None:
    """AVX2: eight outputs at once."""
    name, features = host()
    narrow = ",".join(feature.replace("+avx512", "-avx512") for feature in features.split(","))
    if "+avx2" not in narrow or "+fma" not in narrow:
        pytest.skip("this processor has no AVX2")
    assert_close(*outputs(network(CASES[case]), (name, narrow)))


def test_only_what_is_not_zero_is_multiplied() -> None:
    """A list's length is the number of blocks that are not zero, and so is what is counted."""
    model = network(CASES["3x3"], zeros=0.7)
    made = network_of(model)
    (step,) = made.steps
    kept = int(in_blocks(step.weight, 16).any(axis=1).sum())
    weights, offsets, begins = block_lists(step, 16, plan_of(made, 16).places["x"], chains=1)
    assert len(weights) == len(offsets) == begins[-1] == kept
    assert made.kept_ratio(16) == pytest.approx(kept * 16 / step.weight.size)
    assert 0.2 < made.kept_ratio(16) < 0.4


def test_images_that_are_not_needed_at_once_share_memory() -> None:
    """A chain of twelve equal layers needs three images' memory: its input's and two in turn."""

    def chain(b: GraphBuilder) -> str:
        x = b.input("x", (1, 16, 16, 16))
        for _ in range(12):
            x = conv(b, x, 16, (3, 3), pads=[1] * 4)
        return x

    plan = plan_of(network_of(network(chain)), 16)
    assert plan.bytes <= 4 * 18 * 18 * 16 * 4


def test_tiles_waste_little() -> None:
    """Rows of seven pixels are walked as they are, long rows in equal parts."""
    assert tile_of(7, 7, 16) == (1, 7)
    assert tile_of(14, 14, 16) == (1, 14)
    assert tile_of(56, 56, 16) == (2, 8)
    assert tile_of(1, 1, 16) == (1, 1)


@pytest.mark.parametrize("op", ["Sigmoid", "Softmax"])
def test_other_operators_are_left_to_the_runtime(op: str) -> None:
    """The node is named."""
    model = network(lambda b: b.op(op, conv(b, b.input("x", (1, 4, 4, 4)), 16, (1, 1))))
    with pytest.raises(NoKernelError, match=op) as refused:
        network_of(model)
    assert op in refused.value.node


def test_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled once; a damaged file is made anew."""
    model = network(CASES["residual"])
    first, _ = outputs(model, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    made = kept.read_bytes()
    monkeypatch.setattr(llvm, "parse_assembly", refuse_code(llvm.parse_assembly))
    again, _ = outputs(model, cache=tmp_path)
    assert (again[0] == first[0]).all()
    monkeypatch.undo()
    kept.write_bytes(made[:100])
    again, _ = outputs(model, cache=tmp_path)
    assert (again[0] == first[0]).all()
    assert kept.read_bytes() == made


def refuse_code(parse: Callable[..., object]) -> Callable[..., object]:
    """Let nothing be compiled but an empty module."""

    def parsed(text: str) -> object:
        assert not text, "it is compiled again"
        return parse(text)

    return parsed


def test_a_run_can_be_ended() -> None:
    """A number that is not 0 ends it before the next layer."""
    model = network(CASES["residual"])
    flag, made = np.ones(1, np.int32), np.full(model.outputs[0].shape, np.nan, np.float32)
    x = np.zeros(model.inputs[0].shape, np.float32)
    bound = CompiledNetwork(network_of(model)).bind([x], [made], flag)
    assert bound() == 1
    assert np.isnan(made).all()
    flag[0] = 0
    assert bound() == 0
    assert not np.isnan(made).any()


def in_bytes(case: str, zeros: float = 0.6) -> Model:
    """The same network in int8, by the runtime's own tool."""
    model = network(CASES[case], zeros=zeros)
    (tensor,) = model.inputs
    x = np.random.default_rng(2).standard_normal((8, *tensor.shape[1:])).astype(np.float32)
    return quantised(model, x)


@pytest.mark.parametrize(
    "case", ["3x3", "wide", "odd channels", "uneven padding", "dilated", "1x1", "residual", "projected", "classifier"]
)
def test_bytes_are_those_of_single_operators(case: str) -> None:
    """At most one step of the output's scale apart, in few values: where two ways of rounding meet."""
    if not vectors_of(host()[1]).dot:
        pytest.skip("this processor has no instruction for products of bytes")
    model = in_bytes(case)
    made, expected = outputs(model)
    scale = next(step.source.scale for step in network_of(model).steps if step.output.name == model.outputs[0].name)
    steps = np.abs(made[0] - expected[0]) / scale
    assert steps.max() <= 1.001
    assert np.count_nonzero(steps > 0.001) <= 0.001 * steps.size + 1
