"""Parts of a model as one node."""

from __future__ import annotations

import numpy as np
import pytest

from framefit import InputError
from framefit.core.model import GraphBuilder, Model, group_nodes, with_part


def _negated(width: int, batch: int = 1) -> Model:
    b = GraphBuilder("negated")
    b.output(b.op("Neg", b.input("in", (batch, width))), "out")
    return b.build()


def _chain() -> Model:
    b = GraphBuilder("chain")
    x = b.input("x", (1, 4))
    for _ in range(3):
        x = b.dense(x, 4, activation="Relu")
    b.output(x, "y")
    return b.build()


def test_a_part_keeps_the_tensors_around_it() -> None:
    """The node reads and makes the tensors of what it stands for, even where that is the model's output."""
    model = _chain()
    made = with_part(model, "Relu_1", "y", _negated(4), op="Minus", name="part", attributes={"size": 4}, note="hello")
    assert [layer.op for layer in made.layers] == ["Gemm", "Relu", "Minus"]
    assert ([t.name for t in made.outputs], made.notes) == (["y"], {"part": "hello"})
    assert made.nodes[-1][0].attributes == {"size": 4}
    assert made.layers[-1].inputs[0].name == "Relu_1"


def test_parts_beside_each_other() -> None:
    """Each part has a function of its own, whatever their operators are called."""
    model = _chain()
    for source, target, name in (("x", "Relu_1", "a"), ("Relu_1", "Relu_2", "b")):
        model = with_part(model, source, target, _negated(4), op="Minus", name=name, attributes={}, note=name)
    assert model.notes == {"a": "a", "b": "b"}
    assert [layer.name for layer in model.layers[:2]] == ["a", "b"]
    assert model.segment(1, 1).notes == {"b": "b"}


@pytest.mark.parametrize("part", [_negated(5), _negated(4, batch=2)])
def test_a_part_of_another_shape(part: Model) -> None:
    """A part that does not fit is refused, with the tensor's name."""
    with pytest.raises(InputError, match=r"the part has .* where the model has"):
        with_part(_chain(), "Relu_1", "Relu_2", part, op="Minus", name="part", attributes={}, note="")


def test_a_part_of_another_type() -> None:
    """Parts read and make what the model has there, type included."""
    b = GraphBuilder("halves")
    b.output(b.op("Cast", b.op("Cast", b.input("x", (1, 4)), to=10), to=1), "y")
    with pytest.raises(InputError, match="float16"):
        with_part(b.build(), "Cast_1", "Cast_2", _negated(4), op="Minus", name="part", attributes={}, note="")


def test_a_group_has_one_way_in_and_one_way_out() -> None:
    """Groups that other tensors lead into or out of are refused."""
    b = GraphBuilder("residual")
    x = b.input("x", (1, 4))
    y = b.dense(x, 4, activation="Relu")
    z = b.dense(y, 4)
    b.output(b.op("Add", y, z), "sum")
    model = b.build()
    assert group_nodes(model, "Relu_1", "sum")[0] == "Gemm_2"
    with pytest.raises(InputError, match="not on 'Gemm_2' alone"):
        group_nodes(model, "Gemm_2", "sum")
    with pytest.raises(InputError, match="'Relu_1' is read outside"):
        group_nodes(model, "x", "Gemm_2")
    with pytest.raises(InputError, match="no tensor 'nothing'"):
        group_nodes(model, "nothing", "sum")


def test_readers_are_redirected() -> None:
    """What read a tensor reads another that is made of it; what makes that still reads the first."""
    b = GraphBuilder("net")
    x = b.op("Relu", b.input("x", (1, 4)))
    b.output(b.op("Add", x, b.op("Neg", x)), "y")
    model = b.build()
    again = GraphBuilder("net", base=model)
    made = again.op("Mul", x, again.constant(np.asarray([2, 3, 4, 5], np.float32)))
    again.redirect(x, made)
    again.output("y")
    nodes = {node.op: [one.name for one in node.inputs if one] for layer in again.build().nodes for node in layer}
    assert nodes["Mul"][0] == x
    assert nodes["Neg"] == [made]
    assert nodes["Add"][0] == made
