"""Which channels can go together, and the model without them."""

from __future__ import annotations

import numpy as np
import pytest

from framefit.core.model import GraphBuilder, Model, listing, with_weights
from framefit.devices.kernels.network import FOUR, network_of
from framefit.devices.ort import quantised
from framefit.sparsity.layers import ChannelGroup, Place, WeightLayer, find_groups, find_layers, neighbours, shrunk


def residual() -> Model:
    """A stem, a residual block, an inverted residual block with a depthwise convolution, a classifier."""
    b = GraphBuilder("net", 3)
    x = b.conv(b.input("image", (1, 3, 8, 8)), 8, norm=True, activation="Relu")
    y = b.conv(b.conv(x, 6, norm=True, activation="Relu"), 8, norm=True)
    x = b.op("Relu", b.op("Add", y, x))
    y = b.conv(x, 16, kernel=1, norm=True, activation="Relu")
    y = b.conv(b.conv(y, 16, groups=16, norm=True, activation="Relu"), 8, kernel=1, norm=True)
    x = b.op("GlobalAveragePool", b.op("Add", y, x))
    b.output(b.dense(b.op("Flatten", x), 5), "classes")
    return b.build()


def opened(model: Model) -> tuple[dict[str, np.ndarray], tuple[WeightLayer, ...], tuple[ChannelGroup, ...]]:
    """Its arrays, layers and groups."""
    written = listing(model)
    layers, notes = find_layers(written.nodes, written.arrays)
    assert not notes
    return written.arrays, layers, find_groups(written.nodes, written.arrays, layers, ["classes"])


def test_channels_are_coupled_through_sums_and_depthwise_convolutions() -> None:
    """The stream through both sums is one group, each block's inside another; the classes stay."""
    _, layers, groups = opened(residual())
    assert [group.channels for group in groups] == [8, 6, 16]
    stream, _, inverted = groups
    assert len(stream.readers) == 3  # both blocks' first convolutions, and the classifier
    assert {place.name for place in inverted.readers} == {layers[5].name}
    assert Place(layers[4].weight) in inverted.makers  # the depthwise convolution


def check_removal(model: Model, gone: dict[int, list[int]]) -> None:
    """Without these channels of each group the model gives what it gives with zeros where they are read."""
    import onnxruntime

    arrays, layers, groups = opened(model)
    removed = [(groups[number], channels) for number, channels in gone.items()]
    zeroed: dict[str, np.ndarray] = {}
    weights = {layer.name: layer.weight for layer in layers}
    for group, channels in removed:
        for place in group.readers:
            weight = zeroed.setdefault(weights[place.name], arrays[weights[place.name]].copy())
            np.moveaxis(weight, place.axis, 0)[place.of(channels)] = 0
    small = with_weights(model, shrunk(arrays, zeroed, removed, layers))
    assert small.parameters < model.parameters
    random = np.random.default_rng(0)
    data = {one.name: random.standard_normal(one.shape).astype(np.float32) for one in model.inputs}
    smaller, whole = (
        onnxruntime.InferenceSession(one.to_bytes()).run(None, data)[0] for one in (small, with_weights(model, zeroed))
    )
    assert np.allclose(smaller, whole, rtol=1e-4, atol=1e-5)


def test_the_model_without_channels_computes_what_zeroed_readers_compute() -> None:
    """Physical removal equals zeros where the channels are read, in ONNX Runtime."""
    check_removal(residual(), {0: [1, 6], 1: [0], 2: [3, 4, 15]})


def test_a_flattened_picture_counts_each_channel_as_often_as_it_has_positions() -> None:
    """Behind a flatten of 4 x 4 pictures a channel is 16 inputs."""
    b = GraphBuilder("flat", 1)
    x = b.conv(b.input("image", (1, 1, 4, 4)), 6, activation="Relu")
    b.output(b.dense(b.op("Flatten", x), 3), "classes")
    _, layers, groups = opened(b.build())
    assert groups[0].readers == [Place(layers[1].name, 0, times=16)]


def dense_block() -> Model:
    """Two convolutions and the image behind each other, twice; then norm, depthwise, and a flattened picture."""
    b = GraphBuilder("dense", 1)
    x = b.input("image", (1, 3, 4, 4))
    first, second = b.conv(x, 4, activation="Relu"), b.conv(x, 6, activation="Relu")
    y = b.op("Concat", x, first, second, axis=1)
    y = b.op("Concat", b.conv(y, 5, norm=True, activation="Relu"), y, axis=-3)
    y = b.conv(y, 18, groups=18, norm=True, activation="Relu")
    b.output(b.dense(b.op("Flatten", y), 3), "classes")
    return b.build()


def test_channels_are_followed_through_concatenations() -> None:
    """Each reader knows where a group's channels begin; what is read beside them stays."""
    _, layers, groups = opened(dense_block())
    assert [group.channels for group in groups] == [4, 6, 5]
    third, depthwise, classes = layers[2:]
    assert groups[0].readers == [Place(third.name, 1, first=3), Place(classes.name, 0, times=16, first=16 * 8)]
    assert groups[1].readers == [Place(third.name, 1, first=7), Place(classes.name, 0, times=16, first=16 * 12)]
    assert groups[2].readers == [Place(classes.name, 0, times=16)]
    assert Place(depthwise.weight, first=12) in groups[1].makers
    check_removal(dense_block(), {0: [1], 1: [0, 5], 2: [2, 3]})


def divided(how: str) -> Model:
    """A convolution whose parts go different ways: one is passed on, one has a residual block; all are joined."""
    b = GraphBuilder("divided", 1)
    x = b.conv(b.input("image", (1, 3, 6, 6)), 10, norm=True, activation="Relu")
    if how == "Split":
        one, other = b.op("Split", x, b.constant(np.array([4, 6])), axis=1, outputs=2)
    else:
        zero, middle, end, axis = (b.constant(np.array([value])) for value in (0, 4, 2**63 - 1, 1))
        one, other = b.op("Slice", x, zero, middle, axis), b.op("Slice", x, middle, end, axis)
    y = b.op("Add", b.conv(b.conv(other, 5, activation="Relu"), 6), other)
    x = b.conv(b.op("Concat", one, other, y, axis=1), 7, kernel=1, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 3), "classes")
    return b.build()


@pytest.mark.parametrize("how", ["Split", "Slice"])
def test_channels_are_followed_through_splits(how: str) -> None:
    """A group is divided where the split is; each part is coupled with what it meets."""
    _, layers, groups = opened(divided(how))
    assert sorted(group.channels for group in groups) == [4, 5, 6, 7]
    halves = {group.channels: group for group in groups}
    assert Place(layers[0].weight, first=4) in halves[6].makers
    assert Place(layers[2].weight) in halves[6].makers
    places = [place for place in halves[6].readers if place.name == layers[3].name]
    assert [(place.first, place.times) for place in places] == [(4, 1), (10, 1)]
    order = [group.channels for group in groups]
    check_removal(divided(how), {order.index(4): [0, 3], order.index(6): [1, 2], order.index(5): [4]})


def signal() -> Model:
    """A residual block along time."""
    b = GraphBuilder("signal", 1)
    x = b.input("samples", (1, 2, 16))

    def conv(data: str, channels: int, inputs: int) -> str:
        weights = b.weight((channels, inputs, 3), 3 * inputs)
        return b.op("Relu", b.op("Conv", data, weights, pads=[1, 1]))

    x = conv(x, 6, 2)
    x = b.op("Add", conv(conv(x, 4, 6), 6, 4), x)
    b.output(b.dense(b.op("Flatten", b.op("MaxPool", x, kernel_shape=[2], strides=[2])), 3), "classes")
    return b.build()


def test_channels_of_signals() -> None:
    """The same along one axis."""
    _, _, groups = opened(signal())
    assert [group.channels for group in groups] == [6, 4]
    check_removal(signal(), {0: [0, 4], 1: [3]})


def tokens() -> Model:
    """The block behind the attention of a transformer, residual, with a layer norm."""
    b = GraphBuilder("tokens", 1)
    x = b.input("tokens", (1, 5, 8))
    hidden = b.op("Add", b.op("MatMul", x, b.weight((8, 12), 8)), b.weight((12,), 1))
    half = b.op("Mul", hidden, b.op("Add", b.op("Erf", hidden), b.weight((1,), 1)))
    y = b.op("Add", b.op("MatMul", half, b.weight((12, 8), 12)), x)
    y = b.op("LayerNormalization", y, b.weight((8,), 1), axis=-1)
    b.output(b.op("ReduceMean", y, axes=[1], keepdims=0), "classes")
    return b.build()


def test_hidden_channels_of_tokens() -> None:
    """They are on the last axis; what a norm over all of them reads stays."""
    _, layers, groups = opened(tokens())
    assert [group.channels for group in groups] == [12]
    assert groups[0].readers == [Place(layers[1].name, 0)]
    check_removal(tokens(), {0: [0, 7, 11]})


def attention(how: str) -> Model:
    """Three heads of four channels each, as exporters write them, and a residual sum."""
    b = GraphBuilder("attention", 1)
    x = b.input("tokens", (1, 5, 12))

    def linear(data: str, channels: int) -> str:
        return b.op("Add", b.op("MatMul", data, b.weight((12, channels), 12)), b.weight((channels,), 1))

    def shaped(data: str, *sizes: int) -> str:
        return b.op("Reshape", data, b.constant(np.array(sizes)))

    if how in ("one product", "sliced"):  # PyTorch Image Models, by two exporters
        one = b.op("Transpose", shaped(linear(x, 36), 1, 5, 3, 3, 4), perm=[2, 0, 3, 1, 4])
        if how == "sliced":
            zero, *ends = (b.constant(np.array([number])) for number in range(4))
            parts = [b.op("Slice", one, begin, end, zero) for begin, end in zip([zero, *ends], ends, strict=False)]
        else:
            parts = b.op("Split", one, b.constant(np.array([1, 1, 1])), axis=0, outputs=3)
        query, key, value = (b.op("Squeeze", part, b.constant(np.array([0]))) for part in parts)
        key = b.op("Transpose", key, perm=[0, 1, 3, 2])
    elif how == "three products":  # BERT; a bias for each place and head
        query, key, value = (b.op("Transpose", shaped(linear(x, 12), 1, 5, 3, 4), perm=[0, 2, 1, 3]) for _ in range(3))
        key = b.op("Transpose", key, perm=[0, 1, 3, 2])
    else:  # torch.nn.MultiheadAttention
        tokens = b.op("Transpose", x, perm=[1, 0, 2])
        one = b.op("Unsqueeze", shaped(linear(tokens, 36), 5, 1, 3, 12), b.constant(np.array([0])))
        one = b.op("Squeeze", b.op("Transpose", one, perm=[3, 1, 2, 0, 4]), b.constant(np.array([3])))
        parts = (b.op("Gather", one, b.constant(np.array(number)), axis=0) for number in range(3))
        query, key, value = (b.op("Transpose", shaped(part, 5, 3, 4), perm=[1, 0, 2]) for part in parts)
        key = b.op("Transpose", key, perm=[0, 2, 1])
    scores = b.op("MatMul", b.op("Mul", query, b.constant(np.float32(0.5))), key)
    if how == "three products":
        scores = b.op("Add", scores, b.weight((1, 3, 5, 5), 1))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), value)
    if how == "torch":
        mixed = b.op("Transpose", shaped(b.op("Transpose", mixed, perm=[1, 0, 2]), 5, 1, 12), perm=[1, 0, 2])
    else:
        mixed = shaped(b.op("Transpose", mixed, perm=[0, 2, 1, 3]), 1, 5, 12)
    b.output(b.op("Add", linear(mixed, 12), x), "classes")
    return b.build()


@pytest.mark.parametrize(
    ("how", "makers"),
    [
        ("one product", [(4, 0), (4, 12), (4, 24)]),
        ("sliced", [(4, 0), (4, 12), (4, 24)]),
        ("three products", [(4, 0)]),
        ("torch", [(4, 0), (4, 12), (4, 24)]),
    ],
)
def test_heads_of_an_attention_go_whole(how: str, makers: list[tuple[int, int]]) -> None:
    """With all that makes their queries, keys and values; also where as many heads as these come before each other."""
    _, layers, (heads,) = opened(attention(how))
    assert heads.channels == 3
    assert heads.readers == [Place(layers[-1].name, 0, times=4)]
    assert {(place.times, place.first) for place in heads.makers if place.axis == 1 and place.times > 1} == set(makers)
    check_removal(attention(how), {0: [1]})
    check_removal(attention(how), {0: [0, 2]})


def test_heads_that_attend_to_channels() -> None:
    """What is divided by its length along the tokens, and multiplied by a number for each head."""
    b = GraphBuilder("cross", 1)
    x = b.input("tokens", (1, 6, 8))
    shape = b.constant(np.array([1, 6, 2, 2, 2]))
    one = b.op("Transpose", b.op("Reshape", b.op("MatMul", x, b.weight((8, 8), 8)), shape), perm=[2, 0, 3, 4, 1])
    query, value = (b.op("Gather", one, b.constant(np.array(number)), axis=0) for number in range(2))
    length = b.op("Expand", b.op("ReduceL2", query, axes=[-1]), b.constant(np.array([1, 2, 2, 6])))
    query = b.op("Div", query, length)
    scores = b.op("MatMul", query, b.op("Transpose", value, perm=[0, 1, 3, 2]))
    mixed = b.op("MatMul", b.op("Softmax", b.op("Mul", scores, b.weight((2, 1, 1), 1)), axis=-1), value)
    mixed = b.op("Reshape", b.op("Transpose", mixed, perm=[0, 3, 1, 2]), b.constant(np.array([1, 6, 4])))
    b.output(b.op("MatMul", mixed, b.weight((4, 8), 4)), "classes")
    _, _, (heads,) = opened(b.build())
    assert heads.channels == 2
    check_removal(b.build(), {0: [0]})


def test_what_counts_several_parts_of_a_group() -> None:
    """Channels that are shuffled on one way, and flattened by sizes in the file on another."""
    b = GraphBuilder("parts", 1)
    x = b.conv(b.input("image", (1, 3, 4, 4)), 8, activation="Relu")
    y = b.op("Reshape", x, b.constant(np.array([1, 2, 4, 4, 4])))
    y = b.op("Reshape", b.op("Transpose", y, perm=[0, 2, 1, 3, 4]), b.constant(np.array([1, 8, 4, 4])))
    whole = b.op("MatMul", b.op("Reshape", x, b.constant(np.array([1, 128]))), b.weight((128, 3), 128))
    mean = b.dense(b.op("Flatten", b.op("GlobalAveragePool", y)), 3)
    b.output(b.op("Add", whole, mean), "classes")
    model = b.build()
    _, _, (group,) = opened(model)
    assert group.channels == 4
    check_removal(model, {0: [0, 3]})


@pytest.mark.parametrize("outputs", [12, 24])
def test_groups_of_a_convolution_go_whole(outputs: int) -> None:
    """Of four groups with three inputs each, three or six outputs; a gate and a concatenation follow."""
    b = GraphBuilder("grouped", 1)
    x = b.conv(b.input("image", (1, 3, 4, 4)), 12, norm=True, activation="Relu")
    y = b.conv(x, outputs, groups=4, norm=True, activation="Relu")
    gate = b.op("Sigmoid", b.conv(b.op("GlobalAveragePool", y), outputs, kernel=1))
    y = b.op("Concat", b.conv(b.input("more", (1, 3, 4, 4)), 6), b.op("Mul", y, gate), axis=1)
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", b.conv(y, 5))), 3), "classes")
    model = b.build()
    _, layers, groups = opened(model)
    whole = next(group for group in groups if group.channels == 4)
    assert Place(layers[0].weight, times=3) in whole.makers
    assert Place(layers[1].weight, times=outputs // 4) in whole.makers
    assert Place(layers[4].name, 1, times=outputs // 4, first=6) in whole.readers
    check_removal(model, {groups.index(whole): [0, 2]})


def test_channels_that_are_shuffled() -> None:
    """Between two halves, as ShuffleNet does it: a channel of each goes, and a depthwise convolution loses both."""
    b = GraphBuilder("shuffled", 1)
    x = b.conv(b.input("image", (1, 3, 4, 4)), 8, activation="Relu")
    x = b.op("Reshape", x, b.constant(np.array([1, 2, 4, 4, 4])))
    x = b.op("Reshape", b.op("Transpose", x, perm=[0, 2, 1, 3, 4]), b.constant(np.array([1, 8, 4, 4])))
    x = b.conv(x, 8, groups=8, norm=True, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 3), "classes")
    _, layers, (group,) = opened(b.build())
    assert group.channels == 4
    assert group.makers[:2] == [Place(layers[0].weight), Place(layers[0].weight, first=4)]
    assert Place(layers[1].weight, times=2) in group.makers
    check_removal(b.build(), {0: [1, 3]})


def test_what_operators_do_to_channels_is_not_guessed() -> None:
    """An operator that is not known keeps the channels that reach it."""
    b = GraphBuilder("turned", 1)
    x = b.conv(b.op("Transpose", b.conv(b.input("image", (1, 3, 8, 8)), 8), perm=[0, 2, 1, 3]), 6, activation="Relu")
    b.output(b.op("Flatten", b.op("GlobalAveragePool", b.conv(x, 2))), "classes")
    _, _, groups = opened(b.build())
    assert [group.channels for group in groups] == [6]


@pytest.mark.parametrize(("shape", "groups"), [((6,), [6, 6]), ((1, 6), [])])
def test_constants_that_an_exporter_wrote_once(shape: tuple[int, ...], groups: list[int]) -> None:
    """Equal vectors of two layers are removed from one of them; what else both read stays whole."""
    b = GraphBuilder("equal", 1)
    x, equal = b.input("x", (1, 4)), b.weight(shape, 1)
    first, second = (b.op("Mul", b.op("MatMul", x, b.weight((4, 6), 4)), equal) for _ in range(2))
    b.output(b.op("Add", *(b.op("MatMul", each, b.weight((6, 3), 6)) for each in (first, second))), "classes")
    model = b.build()
    assert [group.channels for group in opened(model)[2]] == groups
    if groups:
        check_removal(model, {0: [1, 2], 1: [5]})


def test_layers_that_share_a_weight_stay_dense_and_say_so() -> None:
    """Their names are in the notes."""
    b = GraphBuilder("shared", 1)
    x = b.input("x", (1, 4))
    weight = b.weight((4, 4), 4)
    b.output(b.op("MatMul", b.op("Relu", b.op("MatMul", x, weight)), weight), "classes")
    written = listing(b.build())
    layers, notes = find_layers(written.nodes, written.arrays)
    assert not layers
    assert all("shares its weight" in note for note in notes)
    assert len(notes) == 2


def test_blocks_of_a_flattened_image_are_those_that_its_kernel_skips() -> None:
    """What multiplies it reads the image as it lies: four channels of a pixel, not four of its pixels."""
    b = GraphBuilder("net", 0)
    x = b.conv(b.input("image", (1, 3, 4, 4)), 8, activation="Relu")
    b.output(b.dense(b.op("Flatten", x), 16), "classes")
    model = b.build()
    written = listing(model)
    layer = find_layers(written.nodes, written.arrays)[0][1]
    assert (layer.pixels, layer.channels) == (16, 128)
    shared = neighbours(layer, FOUR, of_images=True)
    assert shared.max() + 1 == 32
    weight = written.arrays[layer.weight]
    kept = layer.weight_of(layer.matrix(weight) * (shared % 2))
    in_bytes = quantised(with_weights(model, {layer.weight: kept}), np.ones((1, 3, 4, 4), np.float32))
    step = next(step for step in network_of(in_bytes).steps if layer.name in step.nodes)
    assert step.macs == weight.size
    assert step.kept_macs(16) == weight.size // 2


def test_matrix_and_weight_are_each_others_inverse() -> None:
    """For every kind of layer; neighbours are channels, not kernel positions."""
    arrays, layers, _ = opened(residual())
    for layer in layers:
        weight = arrays[layer.weight]
        assert (layer.weight_of(layer.matrix(weight)) == weight).all()
    found = neighbours(layers[1], 4)
    assert found[0] == found[9] == found[27]  # position 0 of channels 0, 1 and 3
    assert found[0] != found[1]
    assert found[0] != found[36]  # channel 4
