"""Imports PyTorch, which only the extra ``train`` installs."""

from __future__ import annotations

from framefit.errors import needs_extra

__all__ = ["torch"]


with needs_extra("torch", "train"):
    import torch
