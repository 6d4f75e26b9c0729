"""The extra that this room needs, asked for once."""

from __future__ import annotations

from framefit.errors import MissingExtraError

__all__ = ["torch"]


try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train") from error
