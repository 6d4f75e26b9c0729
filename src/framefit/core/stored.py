"""What a shared store holds: records of immutable files (``framefit push``, ``pull`` and ``log``)."""

from __future__ import annotations

from typing import ClassVar, Literal

from framefit.core.files import Record, Result
from framefit.core.latency_table import Value

__all__ = ["StoreLog", "StoredFile", "StoredKind"]

StoredKind = Literal["table", "plan", "run", "fit", "profile", "model", "file"]


class StoredFile(Record, kw_only=True):
    """A file in a store.

    Attributes:
        sha256: of its bytes, under which it lies there.
        name: of the file when it was pushed.
        bytes: its size.
        kind: what it is.
        time: when it was pushed, in UTC (ISO 8601).
        version: of Framefit.
        command: what made it, as far as the user said.
        fingerprint: of the device that a table or plan belongs to; empty: of none.
        models: SHA-256 of the models' files that it is about.
        parents: hashes of files that it was made of.
    """

    file_kind: ClassVar[str] = "a record of a store"

    schema_version: int = 1
    sha256: str
    name: str
    bytes: int
    kind: StoredKind
    time: str
    version: str
    command: str = ""
    fingerprint: dict[str, Value] = {}
    models: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()


class StoreLog(Result, kw_only=True):
    """What a store holds, the latest last (``framefit log --json``).

    Attributes:
        store: its URL.
        files: that were asked for.
        damaged: records that cannot be read, by name.
    """

    schema_version: int = 1
    store: str
    files: tuple[StoredFile, ...]
    damaged: tuple[str, ...] = ()
