"""Built-in and own targets (``framefit targets``)."""

from __future__ import annotations

import itertools
from pathlib import Path

from framefit.core.files import read_bytes, write_whole
from framefit.core.results import TargetList, TargetSummary
from framefit.core.target import Target, builtin_targets, resolve_target, target_file

__all__ = ["describe_target", "targets"]


def targets() -> TargetList:
    """The built-in targets, in their fixed order."""
    return TargetList(
        targets=tuple(
            TargetSummary(
                name=target.name,
                kind=target.kind,
                units=tuple(unit.name for unit in target.units),
                description=target.description,
            )
            for target in builtin_targets()
        )
    )


def describe_target(
    name_or_path: str | Path, *, output: str | Path | None = None, force: bool = False
) -> tuple[Target, str]:
    """One target, with the sources of its figures.

    Args:
        name_or_path: built-in name, or path of a ``target.toml``.
        output: gets a copy of the target's file, comments included, to start an own one from.
        force: overwrite it.

    Returns:
        The target, all defaults filled in; and the comment that its file begins with.

    Raises:
        InputError: no such target, its file cannot be used, or ``output`` exists.
    """
    target = resolve_target(name_or_path)
    text = read_bytes(target_file(name_or_path))
    if output is not None:
        with write_whole(output, force=force) as file:
            file.write(text)
    head = itertools.takewhile(lambda line: line.startswith("#"), text.decode().splitlines())
    return target, "\n".join(line.removeprefix("#").removeprefix(" ") for line in head)
