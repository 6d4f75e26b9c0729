"""From files as users have them to graphs that can be cut, and clear refusals of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from framefit import Model
from framefit.errors import InputError, UnsupportedError
from networks import NETWORKS, Runner, difference, random_inputs, write_dynamic

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: list[Any] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """A declared input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def write(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None
) -> Path:
    """A file of opset 17 with ``constants`` as initializers."""
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


# Canonical form ------------------------------------------------------------------------------


def test_initializers_are_no_inputs(tmp_path: Path) -> None:
    """Initializers that an old exporter listed as inputs are parameters."""
    model = Model.load(write_dynamic(tmp_path / "m.onnx"))
    assert [tensor.name for tensor in model.inputs] == ["image"]
    assert [tensor.name for tensor in model.segment(0, 1).inputs] == ["image"]
    assert [layer.parameters for layer in model.layers] == [72, 0, 2, 192]  # 2: the target that was computed


def test_what_reading_put_in_order_is_said(tmp_path: Path) -> None:
    """Initializers taken out of the inputs, shapes computed ahead and branches taken are counted, each if there is one.

    The file's own constants and what stays as it is are not.
    """
    model = Model.load(write_dynamic(tmp_path / "m.onnx"))
    weights, shapes = model.cleaned
    assert weights.startswith("5 initializers were moved out of the graph's inputs")
    assert shapes.startswith("4 nodes were replaced by values that never change")
    assert model.grouped([]).cleaned == model.cleaned
    nodes = [helper.make_node("Constant", [], ["one"], value_float=1.0), helper.make_node("Add", ["a", "one"], ["y"])]
    assert Model.load(write(tmp_path / "tidy.onnx", nodes, [info("a", [1, 3])], [info("y", None)])).cleaned == ()


def test_shape_computations_on_static_shapes_are_no_layers(tmp_path: Path) -> None:
    """Shape, Gather, Unsqueeze and Concat become the value that they compute."""
    model = Model.load(write_dynamic(tmp_path / "m.onnx"))
    assert [layer.op for layer in model.layers] == ["Conv", "Relu", "Reshape", "MatMul"]
    assert all(cut.obstacle is None for cut in model.cuts)


def test_an_unnamed_batch_is_one_and_noted(tmp_path: Path) -> None:
    """A dynamic leading dimension without a shape is taken as 1, and ``defaulted_dims`` says so."""
    model = Model.load(write_dynamic(tmp_path / "m.onnx"))
    assert model.inputs[0].shape == (1, 2, 6, 6)
    assert model.outputs[0].shape == (1, 3)
    assert len(model.defaulted_dims) == 1
    assert "'image'" in model.defaulted_dims[0]
    assert "batch" in model.defaulted_dims[0]
    assert model.grouped([]).defaulted_dims == model.defaulted_dims


def test_a_given_batch_is_not_assumed(tmp_path: Path) -> None:
    """A shape that was given reaches every layer, and nothing is assumed."""
    path = write_dynamic(tmp_path / "m.onnx")
    model = Model.load(path, shapes={"image": (5, 2, 6, 6)})
    assert model.defaulted_dims == ()
    assert model.outputs[0].shape == (5, 3)
    assert model.macs == 5 * Model.load(path).macs
    feeds = random_inputs(model, 0)
    run = Runner(model)
    assert difference(run.whole(feeds), run.cut(feeds, [1, 2, 3])) <= 1e-6


def test_equal_symbols_take_equal_sizes(tmp_path: Path) -> None:
    """A size given for one input goes to every input whose dimension has the same symbol."""
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, [info("a", [1, "n"]), info("b", ["batch", "n"])], [info("y", None)])
    model = Model.load(path, shapes={"a": (1, 7)})
    assert [tensor.shape for tensor in model.inputs] == [(1, 7), (1, 7)]
    assert len(model.defaulted_dims) == 1
    with pytest.raises(InputError, match="'n' would be 7 and 8"):
        Model.load(path, shapes={"a": (1, 7), "b": (1, 8)})


def test_names_are_kept(tmp_path: Path) -> None:
    """Nodes and tensors have the names of the file; a node without one gets one."""
    nodes = [
        helper.make_node("Relu", ["in/0"], ["middle:1"], name="my relu"),
        helper.make_node("Neg", ["middle:1"], ["out.2"]),
    ]
    model = Model.load(write(tmp_path / "given.onnx", nodes, [info("in/0", [2])], [info("out.2", [2])]))
    assert model.name == "given"
    assert model.layers[0].nodes == ("my relu",)
    assert model.layers[1].name
    assert [tensor.name for tensor in model.layers[0].outputs] == ["middle:1"]
    assert ([t.name for t in model.inputs], [t.name for t in model.outputs]) == (["in/0"], ["out.2"])
    assert Model.load(tmp_path / "given.onnx", name="other").name == "other"


def test_what_a_file_declares_counts_where_inference_knows_nothing(tmp_path: Path) -> None:
    """A foreign operator's result has its declared type and shape, and so has what follows from it."""
    nodes = [
        helper.make_node("Foreign", ["x"], ["own"], domain="elsewhere"),
        helper.make_node("Relu", ["own"], ["positive"]),
        helper.make_node("Concat", ["positive", "x"], ["y"], axis=0),
    ]
    declared = [info("own", [3, 4]), info("positive", [3, 4])]
    graph = helper.make_graph(nodes, "graph", [info("x", [2, 4])], [info("y", [5, 4])], value_info=declared)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    made = [(layer.outputs[0].dtype, layer.outputs[0].shape) for layer in Model.load(tmp_path / "m.onnx").layers]
    assert made == [("float32", (3, 4)), ("float32", (3, 4)), ("float32", (5, 4))]


def test_notes_on_values_are_kept(tmp_path: Path) -> None:
    """What an exporter wrote beside a tensor's type is in the file that is written again."""
    noted = info("h", [2])
    noted.metadata_props.add(key="scope", value="body.0")
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Abs", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "graph", [info("x", [2])], [info("y", [2])], value_info=[noted])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "m.onnx")
    written = onnx.ModelProto.FromString(Model.load(tmp_path / "m.onnx").to_bytes())
    assert [(prop.key, prop.value) for value in written.graph.value_info for prop in value.metadata_props] == [
        ("scope", "body.0")
    ]


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    """A file whose nodes come in any order has its layers in topological order."""
    nodes = [helper.make_node("Neg", ["m"], ["y"]), helper.make_node("Relu", ["x"], ["m"])]
    model = Model.load(write(tmp_path / "m.onnx", nodes, [info("x", [2])], [info("y", [2])]))
    assert [layer.op for layer in model.layers] == ["Relu", "Neg"]


def write_if(path: Path) -> Path:
    """If ``flag``: relu(x) + bias, else -x; then exp. The bias lies in the branch."""
    bias = numpy_helper.from_array(np.asarray([1, 2], np.float32), "bias")
    then = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Add", ["t", "bias"], ["then_out"])],
        "then",
        [],
        [info("then_out", [2])],
        [bias],
    )
    otherwise = helper.make_graph([helper.make_node("Neg", ["x"], ["else_out"])], "else", [], [info("else_out", [2])])
    nodes = [
        helper.make_node("If", ["flag"], ["chosen"], then_branch=then, else_branch=otherwise),
        helper.make_node("Exp", ["chosen"], ["y"]),
    ]
    return write(path, nodes, [info("x", [2]), info("flag", [], BOOL)], [info("y", [2])])


@pytest.mark.parametrize(("flag", "ops"), [(True, ["Relu", "Add", "Exp"]), (False, ["Neg", "Exp"])])
def test_an_if_of_a_constant_is_the_branch_that_it_takes(tmp_path: Path, flag: bool, ops: list[str]) -> None:
    """A constant condition leaves the layers of one branch, which can be cut."""
    model = Model.load(write_if(tmp_path / "m.onnx"), constants={"flag": flag})
    assert [layer.op for layer in model.layers] == ops
    assert model.cleaned == ("1 If node was replaced by the branch that is always taken",)
    assert [tensor.name for tensor in model.inputs] == ["x"]
    assert [tensor.name for tensor in model.layers[-1].inputs] == ["chosen"]
    x = np.asarray([-1, 2], np.float32)
    expected = np.exp(np.maximum(x, 0) + np.asarray([1, 2]) if flag else -x)
    for positions in ([], [1]):
        np.testing.assert_allclose(Runner(model).cut({"x": x}, positions)["y"], expected, rtol=1e-6)


def test_an_if_of_an_input_stays(tmp_path: Path) -> None:
    """Without a constant condition the ``If`` is one layer."""
    assert [layer.op for layer in Model.load(write_if(tmp_path / "m.onnx")).layers] == ["If", "Exp"]


def test_what_no_output_needs_goes_with_all_that_only_it_reads(tmp_path: Path) -> None:
    """An ``If`` whose result nobody reads is no layer, and neither is what its branches read."""
    branches = [
        helper.make_graph([helper.make_node("Neg", ["a"], [name])], name, [], [info(name, [2])])
        for name in ("then", "else")
    ]
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("If", ["flag"], ["unread"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Relu", ["x"], ["b"]),
        helper.make_node("Abs", ["b"], ["y"]),
    ]
    model = Model.load(write(tmp_path / "m.onnx", nodes, [info("x", [2]), info("flag", [], BOOL)], [info("y", [2])]))
    assert [layer.op for layer in model.layers] == ["Relu", "Abs"]
    assert [model.segment(0, cut.position - 1).layers[-1].op for cut in model.legal_cuts] == ["Relu"]


def test_functions_are_inlined(tmp_path: Path) -> None:
    """A model-local function's nodes are layers."""
    body = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Neg", ["r"], ["b"])]
    opset = helper.make_opsetid("", 17)
    function = helper.make_function("local", "Both", ["a"], ["b"], body, [opset])
    nodes = [
        helper.make_node("Both", ["x"], ["m"], domain="local"),
        helper.make_node("Both", ["m"], ["y"], domain="local"),
    ]
    graph = helper.make_graph(nodes, "graph", [info("x", [2])], [info("y", [2])])
    opsets = [opset, helper.make_opsetid("local", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8), tmp_path / "m.onnx")
    model = Model.load(tmp_path / "m.onnx")
    assert [layer.op for layer in model.layers] == ["Relu", "Neg"] * 2
    assert len({layer.name for layer in model.layers}) == 4


def test_constants_are_cast_and_shaped_like_their_input(tmp_path: Path) -> None:
    """A plain number becomes a constant of the input's type and rank."""
    nodes = [helper.make_node("Add", ["x", "k"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, [info("x", [3], INT64), info("k", [1], INT64)], [info("y", [3], INT64)])
    model = Model.load(path, constants={"k": 4.0})
    assert [tensor.name for tensor in model.inputs] == ["x"]
    assert Runner(model).whole({"x": np.asarray([1, 2, 3])})["y"].tolist() == [5, 6, 7]


def test_external_data_is_read(tmp_path: Path) -> None:
    """Weights in a file beside the model are parameters like any other; without that file it is refused."""
    model = NETWORKS["plain"]()
    path = tmp_path / "m.onnx"
    proto = onnx.load_from_string(model.to_bytes())
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    loaded = Model.load(path)
    assert loaded.parameters == model.parameters
    feeds = random_inputs(model, 0)
    assert difference(Runner(model).whole(feeds), Runner(loaded.segment(0, len(loaded.layers) - 1)).whole(feeds)) == 0
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InputError, match=r"m\.onnx"):
        Model.load(path)


def test_a_file_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    """What is in use serves further calls, with the same shapes and constants only."""
    path, names = tmp_path / "m.onnx", [*NETWORKS][:2]
    first, second = (NETWORKS[name]() for name in names)
    first.save(path)
    loaded = Model.load(path)
    assert Model.load(path) is loaded
    assert Model.load(path, name="other").name == "other"
    second.save(path, force=True)
    assert Model.load(path).digest == Model.load(path, name="again").digest != loaded.digest


def test_constants_that_look_alike_are_different(tmp_path: Path) -> None:
    """Models in use are known by every value of their constants, also of arrays that print alike."""
    nodes = [helper.make_node("Add", ["x", "k"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, [info("x", [2000]), info("k", [2000])], [info("y", [2000])])
    first, second = np.zeros(2000, np.float32), np.zeros(2000, np.float32)
    second[1000] = 1
    models = [Model.load(path, constants={"k": values}) for values in (first, second)]
    assert models[0].digest != models[1].digest
    assert Model.load(path, constants={"k": first.copy()}) is models[0]


# Refusals ------------------------------------------------------------------------------------


def refusal(path: Path, **arguments: Any) -> InputError:
    """The error that loading raises; it says what, where and the remedy."""
    with pytest.raises(InputError) as caught:
        Model.load(path, **arguments)
    error = caught.value
    assert error.what
    assert error.remedy
    assert error.where == str(path)
    assert str(path) in str(error)
    return error


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """No such file."""
    assert "no such file" in refusal(tmp_path / "none.onnx").what


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder is no model."""
    refusal(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"# A model\n\nsee the other file\n", b"\x89PNG\r\n\x1a\n", b"{}"]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """Empty, text and image files are no models."""
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    refusal(path)


@pytest.mark.parametrize("name", NETWORKS)
def test_truncated_files_are_refused(tmp_path: Path, name: str) -> None:
    """A file cut off at any twentieth of its length, or one byte short, is an input error and nothing else."""
    whole = NETWORKS[name]().to_bytes()
    path = tmp_path / "m.onnx"
    for length in [*(len(whole) * part // 20 for part in range(20)), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refusal(path)


def test_a_tensor_that_nothing_makes_is_refused(tmp_path: Path) -> None:
    """A node that reads an unknown tensor is named in the error, and so is an output that nothing makes."""
    nodes = [helper.make_node("Relu", ["ghost"], ["y"], name="first")]
    error = refusal(write(tmp_path / "m.onnx", nodes, [info("x", [2])], [info("y", [2])]))
    assert "'ghost'" in error.what
    assert "'first'" in error.what
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    assert "'z'" in refusal(write(tmp_path / "n.onnx", nodes, [info("x", [2])], [info("z", [2])])).what


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    """Nodes that wait for each other cannot be ordered."""
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    assert "cycle" in refusal(write(tmp_path / "m.onnx", nodes, [info("x", [2])], [info("b", [2])])).what


@pytest.mark.parametrize("shape", [(1, 2, 6), (1, 3, 6, 6), (1, 2, 6, 6, 1), ()])
def test_a_shape_that_does_not_fit_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """The error names the input and both shapes."""
    error = refusal(write_dynamic(tmp_path / "m.onnx"), shapes={"image": shape})
    assert "'image'" in error.what
    assert "batch x 2 x 6 x 6" in error.what


@pytest.mark.parametrize("argument", ["shapes", "constants"])
def test_an_unknown_input_is_refused(tmp_path: Path, argument: str) -> None:
    """The error names the argument, the wrong name and the inputs that there are."""
    error = refusal(write_dynamic(tmp_path / "m.onnx"), **{argument: {"picture": (1, 2, 6, 6)}})
    for part in (argument, "'picture'", "image"):
        assert part in error.what


def test_a_parameter_is_no_input_to_be_shaped(tmp_path: Path) -> None:
    """An initializer that the file lists among its inputs cannot be given a shape."""
    refusal(write_dynamic(tmp_path / "m.onnx"), shapes={"weight": (4, 2, 3, 3)})


def test_a_dynamic_dimension_without_a_size_is_refused(tmp_path: Path) -> None:
    """The error names input, symbol and axis, and the remedy is what to write."""
    nodes = [helper.make_node("Relu", ["sound"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, [info("sound", [1, "samples"])], [info("y", None)])
    error = refusal(path)
    for part in ("'sound'", "samples", "axis 1"):
        assert part in error.what
    assert error.remedy is not None
    assert "shapes = { sound" in error.remedy
    assert Model.load(path, shapes={"sound": (1, 160)}).outputs[0].shape == (1, 160)


def test_a_remedy_quotes_what_toml_cannot_take_bare(tmp_path: Path) -> None:
    """It is written to be copied."""
    nodes = [helper.make_node("Relu", ["image:0"], ["y"])]
    error = refusal(write(tmp_path / "m.onnx", nodes, [info("image:0", [1, "h"])], [info("y", None)]))
    assert error.remedy is not None
    assert 'shapes = { "image:0" = [' in error.remedy


def test_a_model_of_constants_is_refused(tmp_path: Path) -> None:
    """Where no output depends on an input there is no layer to plan."""
    nodes = [helper.make_node("Add", ["w", "w"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, [info("x", [1])], [info("y", [3])], {"w": np.ones(3, np.float32)})
    assert "depend on no input" in refusal(path).what


def test_an_input_without_a_shape_is_refused(tmp_path: Path) -> None:
    """An input of unknown rank needs a shape."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, [info("x", None)], [info("y", None)])
    assert "'x'" in refusal(path).what
    assert Model.load(path, shapes={"x": (2, 3)}).outputs[0].shape == (2, 3)


@pytest.mark.parametrize("given", ["many", [1, 2, 3], None])
def test_a_constant_that_does_not_fit_is_refused(tmp_path: Path, given: Any) -> None:
    """A value that is no number, or of another shape than the input, is refused when it is given."""
    nodes = [helper.make_node("Add", ["x", "k"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, [info("x", [2], INT64), info("k", [2], INT64)], [info("y", [2], INT64)])
    assert "'k'" in refusal(path, constants={"k": given}).what


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(tmp_path: Path, size: int) -> None:
    """Frames have at least one element along each dimension."""
    refusal(write_dynamic(tmp_path / "m.onnx"), shapes={"image": (size, 2, 6, 6)})


@pytest.mark.parametrize("kind", ["sequence", "optional"])
def test_values_that_are_no_tensors_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    """Classifiers of other tools give sequences and maps; nothing can be bound to them."""
    made = {"sequence": "SplitToSequence", "optional": "Optional"}[kind]
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 4])
    wrap = {"sequence": helper.make_sequence_type_proto, "optional": helper.make_optional_type_proto}[kind]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node(made, ["y"], ["parts"])],
        "net",
        [helper.make_value_info("x", tensor)],
        [helper.make_value_info("y", tensor), helper.make_value_info("parts", wrap(tensor))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    with pytest.raises(UnsupportedError, match=f"output 'parts' is not a tensor .ONNX calls it {kind}"):
        Model.load(tmp_path / "net.onnx")


def test_sizes_that_are_left_open_are_shown(tmp_path: Path) -> None:
    """Open sizes have their names, or a question mark; the remedy repeats those that are known."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write(tmp_path / "open.onnx", nodes, [info("x", [None, 3, None, "width"])], [info("y", None)])
    with pytest.raises(InputError, match=r"takes \? x 3 x \? x width, not 1 x 4 x 5 x 5"):
        Model.load(path, shapes={"x": (1, 4, 5, 5)})
    with pytest.raises(InputError) as error:
        Model.load(path)
    assert "x = [?, 3, ?, width] } with numbers" in str(error.value.remedy)


@pytest.mark.parametrize(("given", "axes"), [((1, 8, 9, 3), "0, 3, 1, 2"), ((8, 9, 3), "0, 3, 1, 2")])
def test_channels_at_the_other_end_are_recognised(given: tuple[int, ...], axes: str, tmp_path: Path) -> None:
    """Where a transposed frame would fit, the remedy says how to transpose."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, [info("x", [1, 3, "h", "w"])], [info("y", None)])
    with pytest.raises(InputError) as error:
        Model.load(path, shapes={"x": given})
    assert f"x.transpose({axes})" in str(error.value.remedy)
