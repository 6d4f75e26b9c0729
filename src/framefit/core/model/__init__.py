"""ONNX models as layers, cuts and segments; the only importer of ``onnx`` and ``onnx_ir``."""

from framefit.core.model.auxiliary import (
    AUXILIARY_KINDS,
    Auxiliary,
    AuxiliaryKind,
    auxiliary_runs,
    led,
    with_auxiliary,
)
from framefit.core.model.builder import GraphBuilder
from framefit.core.model.fusion import epilogue_groups, fused_groups
from framefit.core.model.layers import Layer, TensorInfo
from framefit.core.model.lowering import lowered
from framefit.core.model.model import Cut, Model
from framefit.core.model.nodes import Node, Operand, configuration, zeros_ratio

__all__ = [
    "AUXILIARY_KINDS",
    "Auxiliary",
    "AuxiliaryKind",
    "Cut",
    "GraphBuilder",
    "Layer",
    "Model",
    "Node",
    "Operand",
    "TensorInfo",
    "auxiliary_runs",
    "configuration",
    "epilogue_groups",
    "fused_groups",
    "led",
    "lowered",
    "with_auxiliary",
    "zeros_ratio",
]
