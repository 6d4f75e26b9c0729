"""Imports PyTorch, which only the extra ``train`` installs, and sets how it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from framefit.errors import needs_extra

__all__ = ["one_thread", "torch"]


with needs_extra("torch", "train"):
    import torch
    from threadpoolctl import threadpool_limits


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: sums of several depend on how many there are, and so do the bytes of what is trained."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
