"""``framefit table``: latency tables shown, compared and merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from framefit.core.files import write_record
from framefit.core.latency_table import (
    LatencyTable,
    TableComparison,
    check_fingerprint,
    compared,
    merged,
    read_table,
)
from framefit.errors import InputError

__all__ = ["compare_tables", "merge_tables", "table"]


def table(path: str | Path) -> LatencyTable:
    """Read a latency table, of this or an earlier version.

    Raises:
        InputError: missing or malformed file.

    Example:
        >>> framefit.table("board.table.json").entries[0].latency_ns  # doctest: +SKIP
        41250
    """
    return read_table(path)


def compare_tables(path: str | Path, against: str | Path) -> TableComparison:
    """Two tables entry by entry: ratios there over here, what each lacks, facts in which they differ.

    Args:
        path: the table here.
        against: the table there.

    Raises:
        InputError: missing or malformed file.
    """
    return compared(read_table(path), read_table(against))


def merge_tables(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    any_fingerprint: bool = False,
    force: bool = False,
) -> LatencyTable:
    """Write one table of the entries of several; of equal configurations the last one stays.

    Args:
        paths: the tables; target and fingerprint are those of the first one.
        output: the file to write.
        any_fingerprint: merge what was measured on different devices, too.
        force: overwrite the file.

    Raises:
        InputError: a file is missing or malformed, fingerprints differ (the facts are named), or the
            output exists.
    """
    if Path(output).exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    tables = [read_table(path) for path in paths]
    if not any_fingerprint:
        for path, other in zip(paths[1:], tables[1:], strict=True):
            facts = tables[0].fingerprint
            check_fingerprint(other, facts, path, "merge tables of one device, or merge them all the same "
                              "with --any-fingerprint")  # fmt: skip
    whole = merged(tables)
    write_record(output, whole, force=force)
    return whole
