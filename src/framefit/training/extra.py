"""PyTorch, which only the extra ``train`` brings."""

from __future__ import annotations

from framefit.errors import needs_extra

__all__ = ["torch"]


with needs_extra("torch", "train"):
    import torch
