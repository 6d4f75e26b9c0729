"""Where trees can stand, and what a position reads: against what changes when an input element does."""

from __future__ import annotations

import numpy as np
import pytest

from framefit import GraphBuilder, Model
from framefit.core.trees import Patch, encode
from framefit.devices.device import allocate
from framefit.devices.ort import OrtDevice
from framefit.trees.groups import boundaries, patch_between
from trees_cases import random_ensemble


def _network(strides: tuple[int, int], kernels: tuple[int, int], pool: bool) -> Model:
    b = GraphBuilder("net", 1)
    x = b.conv(b.input("image", (1, 2, 9, 9)), 3, activation="Relu")
    y = b.conv(x, 3, kernel=kernels[0], stride=strides[0], norm=True, activation="Relu")
    if pool:
        y = b.op("AveragePool", y, kernel_shape=[2, 2], strides=[1, 1])
    z = b.conv(y, 3, kernel=kernels[1], stride=strides[1])
    if not pool and strides == (1, 1):
        z = b.op("Add", z, x)
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", z))), 2), "classes")
    return b.build()


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("kernels", [(3, 3), (5, 1)])
@pytest.mark.parametrize("pool", [False, True])
def test_a_position_reads_its_patch(strides: tuple[int, int], kernels: tuple[int, int], pool: bool) -> None:
    """Where an element of the input changes an output position, it lies within that position's patch."""
    model = _network(strides, kernels, pool)
    places = {place.weighted: place for place in boundaries(model)}
    start, end = places[1], places[3]
    patch = patch_between(model, start, end)
    assert patch is not None
    assert patch.positions(*start.shape[1:]) == end.shape[1:]
    segment = model.segment(start.position, end.position - 1)
    device = OrtDevice()
    handle = device.compile(segment, device.target.units[0].name, "group")
    tensors = {segment.inputs[0].name: np.ones((1, *start.shape), np.float32)}
    tensors[segment.outputs[0].name] = allocate(segment.outputs[0])
    binding = handle.bind(tensors)
    device.submit(binding)
    before = tensors[segment.outputs[0].name].copy()
    touched = 0
    for line, column in ((0, 0), (4, 4), (8, 3)):
        tensors[segment.inputs[0].name][:] = 1
        tensors[segment.inputs[0].name][0, :, line, column] = 9
        device.submit(binding)
        changed = (tensors[segment.outputs[0].name] != before).any(axis=(0, 1))
        for y, x in np.argwhere(changed):
            down = line - (y * patch.stride[0] - patch.padding[0])
            across = column - (x * patch.stride[1] - patch.padding[1])
            assert 0 <= down < patch.kernel[0]
            assert 0 <= across < patch.kernel[1]
            touched += 1
    assert touched


def test_a_position_of_a_signal_reads_its_patch() -> None:
    """Channels x length, as audio has: two strided convolutions with a pooling behind them."""
    b = GraphBuilder("audio", 1)
    x = b.input("signal", (1, 1, 64))
    for channels, inputs, kernel in ((3, 1, 8), (4, 3, 3)):
        weight = b.constant(np.ones((channels, inputs, kernel), np.float32), f"w{channels}")
        x = b.op("Relu", b.op("Conv", x, weight, kernel_shape=[kernel], strides=[2], pads=[kernel // 2, 0]))
    x = b.op("MaxPool", x, kernel_shape=[2], strides=[2])
    b.output(b.dense(b.op("Flatten", x), 2), "classes")
    model = b.build()
    places = {place.weighted: place for place in boundaries(model)}
    start, end = places[0], places[2]
    patch = patch_between(model, start, end)
    assert patch is not None
    assert (patch.kernel, patch.stride, patch.padding[:2]) == ((1, 12), (1, 4), (0, 6))
    assert patch.positions(1, 64) == (1, *end.shape[1:])


def _volume() -> Model:
    """Two convolutions along depth, height and width."""
    b = GraphBuilder("video", 1)
    x, channels = b.input("clip", (1, 1, 7, 6, 5)), 1
    for number, (kernel, stride, pads) in enumerate(([(3, 3, 3), (1, 1, 1), [1] * 6], [(2, 3, 1), (2, 1, 1), [0] * 6])):
        weight = b.constant(np.ones((2, channels, *kernel), np.float32), f"w{number}")
        given = {"kernel_shape": list(kernel), "strides": list(stride), "pads": pads}
        x, channels = b.op("Relu", b.op("Conv", x, weight, **given)), 2
    b.output(b.dense(b.op("Flatten", x), 2), "classes")
    return b.build()


def _tokens(*, mixed: bool) -> Model:
    """Two products for each token; mixed: with the mean of all tokens between them."""
    b = GraphBuilder("tokens", 1)
    x = b.input("tokens", (1, 6, 4))
    for number in range(2):
        weight = np.random.default_rng(number).normal(size=(4, 4)).astype(np.float32)
        x = b.op("Relu", b.op("MatMul", x, b.constant(weight, f"w{number}")))
        if mixed and not number:
            x = b.op("Add", x, b.op("ReduceMean", x, b.constant(np.asarray([1]), "axes"), keepdims=1))
    b.output(b.dense(b.op("Flatten", x), 2), "classes")
    return b.build()


@pytest.mark.parametrize("model", [_volume(), _tokens(mixed=False)], ids=["volume", "tokens"])
def test_positions_of_what_is_no_image(model: Model) -> None:
    """Where an element changes a position of the output, that position's features contain it."""
    places = {place.weighted: place for place in boundaries(model)}
    start, end = places[0], places[2]
    patch = patch_between(model, start, end)
    assert patch is not None
    assert patch.layout == model.name.replace("video", "volume")
    random = np.random.default_rng(2)
    given = {"input_shape": start.shape, "outputs": patch.outputs(end.shape)}
    ensemble = random_ensemble(random, patch=patch, **given)
    assert ensemble.output_shape == end.shape
    segment = model.segment(start.position, end.position - 1)
    device = OrtDevice()
    handle = device.compile(segment, device.target.units[0].name, "group")
    name, output = segment.inputs[0].name, segment.outputs[0]
    tensors = {name: np.zeros((1, *start.shape), np.float32), output.name: allocate(output)}
    binding = handle.bind(tensors)
    device.submit(binding)
    before, axis = tensors[output.name].copy(), -1 if patch.layout == "tokens" else 1
    low = np.full((1, *start.shape), -9, np.float32)
    still = encode(ensemble, low)
    touched = 0
    for place in (np.zeros(len(start.shape), int), np.asarray(start.shape) - 1, np.asarray(start.shape) // 2):
        tensors[name][:] = 0
        tensors[name][(0, *place)] = 9
        device.submit(binding)
        changed = (tensors[output.name] != before).any(axis=axis).ravel()
        raised = low.copy()
        raised[(0, *place)] = 9
        seen = (encode(ensemble, raised) != still).any(axis=1)
        assert not (changed & ~seen).any()
        touched += changed.sum()
    assert touched


def test_tokens_that_see_each_other_have_no_patch() -> None:
    """As behind attention: each position reads all."""
    model = _tokens(mixed=True)
    places = {place.weighted: place for place in boundaries(model)}
    assert patch_between(model, places[0], places[2]) is None


def test_residual_blocks_are_whole() -> None:
    """Inside a block two tensors cross: no boundary is there."""
    names = [place.weighted for place in boundaries(_network((1, 1), (3, 3), pool=False))]
    assert names == [0, 1, 3, 4]


def test_no_group_ends_where_a_later_layer_reads_the_input() -> None:
    """The input is in no cut, since every segment gets it; between such layers nothing is connected by one tensor."""
    b = GraphBuilder("sides", 1)
    x = b.input("image", (1, 1, 8, 8))
    y = b.op("Concat", *(b.conv(x, 4, kernel=size, activation="Relu") for size in (3, 5)), axis=1)
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", b.conv(y, 6, activation="Relu"))), 2), "classes")
    model = b.build()
    assert [place.weighted for place in boundaries(model)] == [0, 2, 3, 4]
    for place in boundaries(model)[1:-1]:
        segment = model.segment(place.position, len(model.layers) - 1)
        assert [tensor.name for tensor in segment.inputs] == [place.tensor]


def test_vectors_have_no_patch() -> None:
    """Between fully connected layers every element is a feature; so it is in front of a pooled classifier."""
    b = GraphBuilder("dense")
    x = b.input("x", (1, 8))
    for _ in range(3):
        x = b.dense(x, 8, activation="Relu")
    b.output(x, "y")
    places = boundaries(b.build())
    assert [(place.tensor, place.weighted) for place in places][:3] == [("x", 0), ("Relu_1", 1), ("Relu_2", 2)]
    assert patch_between(b.build(), places[0], places[2]) is None


def test_border_features_only_where_there_is_padding() -> None:
    """A 1 x 1 convolution pads nothing."""
    b = GraphBuilder("one")
    x = b.conv(b.input("image", (1, 2, 5, 5)), 3, kernel=1, activation="Relu")
    b.output(b.conv(x, 3, kernel=1, activation="Relu"), "y")
    places = boundaries(b.build())
    assert patch_between(b.build(), places[0], places[1]) == Patch(kernel=(1, 1))
