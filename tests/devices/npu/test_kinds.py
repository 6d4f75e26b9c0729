"""Kinds of operation in event packets."""

from __future__ import annotations

import pytest

from framefit.core.model import epilogue_groups
from framefit.core.model import graph as model_layers
from framefit.devices.npu import work
from framefit.devices.npu.packets import _KINDS, event_kind
from networks import NETWORKS

CONTROL = ("If", "Loop", "Scan", "SequenceMap")


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("Conv", "conv"),
        ("Conv+BatchNormalization+Relu", "conv"),
        ("MaxPool+Conv", "conv"),
        ("Gemm+Relu", "matmul"),
        ("LSTM", "recurrent"),
        ("Pad", "pad_pool"),
        ("GlobalAveragePool+Identity", "pad_pool"),
        ("Transpose", "reformat"),
        ("ReduceMean", "reduce"),
        ("Softmax", "reduce"),
        ("Add+Relu", "elementwise"),
        ("BatchNormalization", "elementwise"),
        ("NobodyKnows", "elementwise"),
        ("If", "control"),
    ],
)
def test_kind_of_a_layer(op: str, kind: str) -> None:
    """Its heaviest operator's, else its first one's."""
    assert event_kind(op) == kind


def test_whatever_multiplies_has_a_kind_of_its_own() -> None:
    """Operators that the model or the cycle model knows as products are no element operations."""
    products = {*model_layers.WEIGHT_INPUT, *work._MAKERS, *model_layers._ATTENTION, "Einsum"}
    found = {op: event_kind(op) for op in products}
    assert set(found.values()) == {"conv", "matmul", "recurrent"}
    assert {op for op, kind in found.items() if kind == "conv"} == {op for op in products if "Conv" in op}
    assert {op for op, kind in found.items() if kind == "recurrent"} == {"LSTM", "GRU", "RNN"}


def test_whatever_only_moves_is_its_own_kind() -> None:
    """Views, parts and moves of the cycle model are reformatting or padding, statistics are reductions."""
    assert {event_kind(op) for op in work._VIEWS | work._PART} == {"reformat"}
    assert {op: event_kind(op) for op in work._MOVES if event_kind(op) != "reformat"} == {"Pad": "pad_pool"}
    assert {event_kind(op) for op in work._NORMALISATIONS} == {"reduce"}
    known = {op: event_kind(op) for op in work._ELEMENTWISE}
    assert {op for op, kind in known.items() if kind != "elementwise"} == {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConcat",
    }
    assert {known["QuantizeLinear"], known["QLinearConcat"]} == {"reformat"}
    assert {event_kind(op) for op in ("Resize", "Upsample")} == {"reformat"}
    assert {event_kind(op) for op in CONTROL} == {"control"}


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_networks_have_kinds(name: str) -> None:
    """Each layer has one of the known kinds; those with multiply-accumulates a heavy one."""
    model = NETWORKS[name]()
    for layer in model.grouped(epilogue_groups(model)).layers:
        assert event_kind(layer.op) in (*_KINDS, "elementwise")
        if layer.macs:
            assert event_kind(layer.op) in ("conv", "matmul", "recurrent", "control"), layer.op
