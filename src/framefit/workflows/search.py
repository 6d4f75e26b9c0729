"""``framefit sparsify`` and ``framefit treeify``: a search, and the tables and pictures of what it found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from framefit.report.sections.sparsity import write_sparsity_files
from framefit.report.sections.trees import write_tree_files
from framefit.sparsity.sparsify import sparsify as search_sparsity
from framefit.trees.treeify import treeify as search_trees

__all__ = ["sparsify", "treeify"]


class _Found(Protocol):
    @property
    def folder(self) -> Path: ...

    @property
    def result(self) -> Any: ...


P = ParamSpec("P")
F = TypeVar("F", bound=_Found)


def _with_report(search: Callable[P, F], write: Callable[[Path, Any], None]) -> Callable[P, F]:
    """The search, whose folder gets tables and pictures of its result as well."""

    @functools.wraps(search)
    def reported(*args: P.args, **kwargs: P.kwargs) -> F:
        outcome = search(*args, **kwargs)
        write(outcome.folder, outcome.result)
        return outcome

    return reported


sparsify = _with_report(search_sparsity, write_sparsity_files)
treeify = _with_report(search_trees, write_tree_files)
