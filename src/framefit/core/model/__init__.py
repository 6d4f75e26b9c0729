"""ONNX models as layers, cuts and segments; the only importer of ``onnx`` and ``onnx_ir``."""

from framefit.core.model.builder import GraphBuilder
from framefit.core.model.fusion import fused_groups
from framefit.core.model.layers import Layer, TensorInfo
from framefit.core.model.model import Cut, Model

__all__ = ["Cut", "GraphBuilder", "Layer", "Model", "TensorInfo", "fused_groups"]
