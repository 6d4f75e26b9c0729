"""What a store holds: files, the latest last."""

from __future__ import annotations

from collections.abc import Iterator

from framefit.core.stored import StoredFile, StoreLog
from framefit.report.description import Block, Cell, Description, Detail, Kind, Section, Sentences, Verdict, columns

_SHORT = 12  # digits of a hash


def _describe(log: StoreLog, *, detail: Detail = "normal") -> Description:  # noqa: ARG001 - all of it is short
    """A row for each file."""
    count = len(log.files)
    verdict = Verdict("plain", f"{count} file{'s' * (count != 1)}", f"in {log.store}.")
    return Description(verdict, [], list(_blocks(log)))


def _blocks(log: StoreLog) -> Iterator[Block]:
    if log.damaged:
        yield Sentences("Records that cannot be read", log.damaged)
    rows = [
        (Cell(file.sha256[:_SHORT]), Cell(file.name), Cell(f"{file.bytes:,}"), Cell(file.kind), *_words(file))
        for file in log.files
    ]
    names, figures, words = ("hash", "file"), ("bytes",), ("kind", "pushed", "device", "command")
    yield Section("Files", columns(names, figures, words), rows, plain=True)


def _words(file: StoredFile) -> tuple[Cell, ...]:
    facts = [str(file.fingerprint[key]) for key in ("target", "cpu") if key in file.fingerprint]
    return Cell(file.time[:16].replace("T", " ")), Cell(", ".join(facts) or "-"), Cell(file.command or "-")


KIND: Kind[StoreLog] = Kind(noun="store", plural="stores", describe=_describe)
