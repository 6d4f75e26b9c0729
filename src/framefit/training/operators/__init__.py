"""ONNX's operators in PyTorch: what a node computes on tensors, by the operator's specification."""

from framefit.training.operators import elementwise, shapes, spatial
from framefit.training.operators.registry import OPERATORS, Compute, Site

__all__ = ["OPERATORS", "Compute", "Site", "elementwise", "shapes", "spatial"]
