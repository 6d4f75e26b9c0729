"""Which channels can go together, and the model without them."""

from __future__ import annotations

import numpy as np

from framefit.core.model import GraphBuilder, Model, listing, with_weights
from framefit.sparsity.layers import ChannelGroup, WeightLayer, find_groups, find_layers, neighbours, shrunk


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
    assert {name for name, _ in inverted.readers} == {layers[5].name}
    assert (layers[4].weight, 0) in inverted.makers  # the depthwise convolution


def test_the_model_without_channels_computes_what_zeroed_readers_compute() -> None:
    """Physical removal equals zeros where the channels are read, in ONNX Runtime."""
    import onnxruntime

    model = residual()
    arrays, layers, groups = opened(model)
    gone = [(groups[0], [1, 6]), (groups[1], [0]), (groups[2], [3, 4, 15])]
    zeroed: dict[str, np.ndarray] = {}
    by_name = {layer.name: layer for layer in layers}
    for group, channels in gone:
        for name, times in group.readers:
            layer = by_name[name]
            weight = zeroed.setdefault(layer.weight, arrays[layer.weight].copy())
            places = np.ravel(np.asarray(channels)[:, None] * times + np.arange(times))
            np.moveaxis(weight, 0 if layer.transposed else 1, 0)[places] = 0
    small = with_weights(model, shrunk(arrays, zeroed, gone, layers))
    assert small.parameters < model.parameters
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    found, expected = (
        onnxruntime.InferenceSession(one.to_bytes()).run(None, {"image": image})[0]
        for one in (small, with_weights(model, zeroed))
    )
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_flattened_picture_counts_each_channel_as_often_as_it_has_positions() -> None:
    """Behind a flatten of 4 x 4 pictures a channel is 16 inputs."""
    b = GraphBuilder("flat", 1)
    x = b.conv(b.input("image", (1, 1, 4, 4)), 6, activation="Relu")
    b.output(b.dense(b.op("Flatten", x), 3), "classes")
    _, layers, groups = opened(b.build())
    assert groups[0].readers == [(layers[1].name, 16)]


def test_what_operators_do_to_channels_is_not_guessed() -> None:
    """A concatenation keeps the channels that reach it."""
    b = GraphBuilder("joined", 1)
    x = b.input("image", (1, 3, 8, 8))
    y = b.op("Concat", b.conv(x, 4), b.conv(x, 4), axis=1)
    z = b.conv(b.conv(y, 6, activation="Relu"), 2)
    b.output(b.op("Flatten", b.op("GlobalAveragePool", z)), "classes")
    _, _, groups = opened(b.build())
    assert [group.channels for group in groups] == [6]


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
