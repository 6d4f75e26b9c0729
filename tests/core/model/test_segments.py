"""Segments run one after the other compute what the whole model computes."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import InputError, Model
from networks import NETWORKS, Runner, difference, random_inputs

TOLERANCE = 1e-4

every_network = pytest.mark.parametrize("name", NETWORKS)
few = settings(max_examples=12, deadline=None)


@functools.cache
def runner(name: str) -> Runner:
    """One runner a network, so that sessions are made once."""
    return Runner(NETWORKS[name]())


def draw_positions(data: st.DataObject, model: Model) -> set[int]:
    """Any legal cuts."""
    legal = [cut.position for cut in model.legal_cuts]
    return data.draw(st.sets(st.sampled_from(legal))) if legal else set()


@every_network
@given(data=st.data())
@few
def test_any_legal_cuts_keep_the_outputs(name: str, data: st.DataObject) -> None:
    """Any set of legal cuts gives the whole model's outputs."""
    run = runner(name)
    feeds = random_inputs(run.model, data.draw(st.integers(0, 99)))
    positions = draw_positions(data, run.model)
    assert difference(run.whole(feeds), run.cut(feeds, positions)) <= TOLERANCE


@every_network
def test_each_legal_cut_keeps_the_outputs(name: str) -> None:
    """Each legal cut alone, and all of them together, give the whole model's outputs."""
    run = runner(name)
    feeds = random_inputs(run.model, 0)
    expected = run.whole(feeds)
    assert all(np.isfinite(array).all() and np.any(array) for array in expected.values())
    legal = [cut.position for cut in run.model.legal_cuts]
    assert legal
    for positions in [*([position] for position in legal), legal]:
        assert difference(expected, run.cut(feeds, positions)) <= TOLERANCE, positions


@every_network
@given(data=st.data())
@few
def test_grouped_chains_keep_the_outputs(name: str, data: st.DataObject) -> None:
    """Contiguous chains as layers: each chain is one layer, and cuts between them keep the outputs."""
    plain = runner(name)
    nodes = [node for layer in plain.model.layers for node in layer.nodes]
    bounds = sorted({0, len(nodes), *data.draw(st.sets(st.integers(1, len(nodes) - 1)))})
    chains = [tuple(nodes[first:end]) for first, end in itertools.pairwise(bounds)]
    model = plain.model.grouped(chains)
    assert sorted(sorted(layer.nodes) for layer in model.layers) == sorted(sorted(chain) for chain in chains)
    assert model.macs == plain.model.macs
    feeds = random_inputs(model, 1)
    assert difference(plain.whole(feeds), Runner(model).cut(feeds, draw_positions(data, model))) <= TOLERANCE


@every_network
@given(data=st.data())
@few
def test_groups_of_any_nodes_keep_the_outputs(name: str, data: st.DataObject) -> None:
    """Groups that wait for each other are joined, so that the layers still run in their order."""
    plain = runner(name)
    nodes = [node for layer in plain.model.layers for node in layer.nodes]
    groups = data.draw(st.lists(st.sets(st.sampled_from(nodes), min_size=2, max_size=4), max_size=3))
    model = plain.model.grouped(groups)
    assert sorted(node for layer in model.layers for node in layer.nodes) == sorted(nodes)
    for group in groups:
        assert any(group <= set(layer.nodes) for layer in model.layers)
    feeds = random_inputs(model, 2)
    legal = [cut.position for cut in model.legal_cuts]
    assert difference(plain.whole(feeds), Runner(model).cut(feeds, legal)) <= TOLERANCE


@every_network
def test_segments_keep_names_and_are_valid(name: str) -> None:
    """A segment's inputs and outputs bear the names that they have in the whole model, and ONNX accepts it."""
    model = runner(name).model
    known = {tensor.name: tensor for layer in model.layers for tensor in (*layer.inputs, *layer.outputs)}
    known |= {tensor.name: tensor for tensor in (*model.inputs, *model.outputs)}
    bounds = [0, *(cut.position for cut in model.legal_cuts), len(model.layers)]
    layers = []
    for first, end in itertools.pairwise(bounds):
        part = model.segment(first, end - 1)
        layers += part.layers
        for tensor in (*part.inputs, *part.outputs):
            assert tensor == known[tensor.name]
        if all(tensor.shape is not None for tensor in part.outputs):
            onnx.checker.check_model(part.to_bytes(), full_check=True)
    assert [layer.nodes for layer in layers] == [layer.nodes for layer in model.layers]
    assert [layer.macs for layer in layers] == [layer.macs for layer in model.layers]


@every_network
def test_inputs_of_a_segment_are_what_crosses(name: str) -> None:
    """What crosses a cut is what the part after it reads and the part before it gives."""
    model = runner(name).model
    graph_inputs = {tensor.name for tensor in model.inputs}
    graph_outputs = {tensor.name for tensor in model.outputs}
    for cut in model.legal_cuts:
        crossing = {tensor.name for tensor in cut.tensors}
        before = model.segment(0, cut.position - 1)
        after = model.segment(cut.position, len(model.layers) - 1)
        assert {tensor.name for tensor in after.inputs} - graph_inputs == crossing
        assert {tensor.name for tensor in before.outputs} - graph_outputs == crossing - graph_outputs
        assert cut.bytes == sum(tensor.bytes for tensor in cut.tensors) > 0


@every_network
def test_a_segment_of_a_segment_is_the_segment(name: str) -> None:
    """Cutting twice gives the same layers as cutting once."""
    model = runner(name).model
    legal = [cut.position for cut in model.legal_cuts]
    first, last = legal[0], legal[-1] - 1
    outer = model.segment(0, last)
    if first <= last:
        assert outer.segment(first, last).digest == model.segment(first, last).digest


@every_network
def test_a_saved_segment_loads_as_it_was(name: str, tmp_path: Path) -> None:
    """A segment is an ordinary ONNX file: written and read it has the same layers and gives the same numbers."""
    model = runner(name).model
    middle = model.legal_cuts[len(model.legal_cuts) // 2].position
    part = model.segment(0, middle - 1)
    path = tmp_path / "part.onnx"
    part.save(path)
    loaded = Model.load(path)
    assert loaded.layers == part.layers
    assert (loaded.inputs, loaded.outputs) == (part.inputs, part.outputs)
    feeds = random_inputs(part, 0)
    assert difference(Runner(part).whole(feeds), Runner(loaded).whole(feeds)) == 0


def test_digests_do_not_depend_on_the_process() -> None:
    """Two processes that hash strings differently give every segment the same digest."""
    code = (
        "from networks import NETWORKS\n"
        "for build in NETWORKS.values():\n"
        "    model = build()\n"
        "    middle = model.legal_cuts[len(model.legal_cuts) // 2].position\n"
        "    print(model.digest, model.segment(0, middle - 1).digest)\n"
        "    print(model.segment(middle, len(model.layers) - 1).digest)\n"
    )
    tests = str(Path(__file__).parents[2])

    def digests(seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": tests}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    first = digests("1")
    assert len(first.split()) == 3 * len(NETWORKS)
    assert digests("2") == first


def test_no_segment_ends_where_a_shape_depends_on_the_data() -> None:
    """Tensors of unknown shape and sequences are obstacles, and the refusal names the tensor and the layer."""
    model = runner("selecting").model
    obstacles = {cut.position: cut.obstacle for cut in model.cuts if cut.obstacle}
    assert any("depends on the data" in obstacle for obstacle in obstacles.values())
    assert any("does not hold numbers" in obstacle for obstacle in obstacles.values())
    for position, obstacle in obstacles.items():
        with pytest.raises(InputError, match=model.layers[position - 1].name) as error:
            model.segment(0, position - 1)
        assert obstacle in str(error.value)


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (3, 2), (0, 999)])
def test_a_segment_of_layers_that_do_not_exist_is_refused(first: int, last: int) -> None:
    """Bounds outside the model are an input error that says how many layers there are."""
    model = runner("plain").model
    with pytest.raises(InputError, match=str(len(model.layers))):
        model.segment(first, last)


def test_a_single_layer_has_no_cuts(tmp_path: Path) -> None:
    """A graph of one node is one layer without cuts."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph([node], "short", [value], [output])
    onnx.save(onnx.helper.make_model(graph, ir_version=8), tmp_path / "short.onnx")
    model = Model.load(tmp_path / "short.onnx")
    assert len(model.layers) == 1
    assert model.cuts == ()
