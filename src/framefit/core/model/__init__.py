"""ONNX models as layers, cuts and segments; the only importer of ``onnx`` and ``onnx_ir``."""

from framefit.core.model.auxiliary import (
    AUXILIARY_KINDS,
    Auxiliary,
    AuxiliaryKind,
    auxiliary_runs,
    led,
    picture_shape,
    with_auxiliary,
)
from framefit.core.model.builder import GraphBuilder
from framefit.core.model.graph import Layer, Node, Operand, TensorInfo, configuration
from framefit.core.model.lowering import epilogue_groups, fused_groups, lowered, lowered_around
from framefit.core.model.model import Model
from framefit.core.model.parts import group_nodes, with_part
from framefit.core.model.weights import Listing, folded, free_batch, listing, rebatched, with_weights

__all__ = [
    "AUXILIARY_KINDS",
    "Auxiliary",
    "AuxiliaryKind",
    "GraphBuilder",
    "Layer",
    "Listing",
    "Model",
    "Node",
    "Operand",
    "TensorInfo",
    "auxiliary_runs",
    "configuration",
    "epilogue_groups",
    "folded",
    "free_batch",
    "fused_groups",
    "group_nodes",
    "led",
    "listing",
    "lowered",
    "lowered_around",
    "picture_shape",
    "rebatched",
    "with_auxiliary",
    "with_part",
    "with_weights",
]
