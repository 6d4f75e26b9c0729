"""What a shared store holds: records of immutable files (``framefit push``, ``pull`` and ``log``)."""

from __future__ import annotations

from typing import ClassVar, Literal

from framefit.core.files import Record, Result
from framefit.core.latency_table import Value

__all__ = ["FigureName", "PastFigure", "StoreLog", "StoredFigure", "StoredFile", "StoredKind"]

StoredKind = Literal["table", "plan", "run", "fit", "sparsity", "profile", "model", "file"]
FigureName = Literal["latency", "response", "missed", "accuracy"]
"""Median time of the whole model in turn with others, ns; 99 % of the times from a frame's release to its result, ns;
part of the frames that missed their deadline; top-1 accuracy, or agreement with the original.
"""


class StoredFigure(Record, kw_only=True):
    """What a file says of a model.

    Attributes:
        model: its name in the file.
        interval: 90 %; ``None``: there is none.
    """

    model: str
    name: FigureName
    value: float
    interval: tuple[float, float] | None = None


class StoredFile(Record, kw_only=True):
    """A file in a store.

    Attributes:
        object: SHA-256 of its bytes, under which it lies there.
        name: of the file when it was pushed.
        bytes: its size.
        kind: what it is.
        time: when it was pushed, in UTC (ISO 8601).
        version: of Framefit.
        command: what made it, as far as the user said.
        commit: of the repository from which it was pushed, or as the user said; empty: of none.
        board: its name, as the user gave it; empty: not stated.
        fingerprint: of the device that a table, plan or run belongs to; empty: of none.
        models: SHA-256 of the models' files that it is about.
        parents: hashes of files that it was made of.
        figures: what it says of models.
    """

    file_kind: ClassVar[str] = "a record of a store"

    schema_version: int = 1
    object: str
    name: str
    bytes: int
    kind: StoredKind
    time: str
    version: str
    command: str = ""
    commit: str = ""
    board: str = ""
    fingerprint: dict[str, Value] = {}
    models: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    figures: tuple[StoredFigure, ...] = ()


class PastFigure(Record, kw_only=True):
    """A figure in the history of a model.

    Attributes:
        object, file, time, commit: of the file that says it.
        device: on which it holds; empty: not stated.
        before: the same figure on this device in the latest file before; ``None``: this is the first.
        worse: whether it is worse than that by more than both intervals.
    """

    object: str
    file: str
    time: str
    commit: str
    device: str
    figure: StoredFigure
    before: StoredFigure | None = None
    worse: bool = False


class StoreLog(Result, kw_only=True):
    """What a store holds, the latest last (``framefit log --json``).

    Attributes:
        store: its URL.
        files: that were asked for.
        damaged: records that cannot be read, by name.
        history: what the files say of the model that was asked for, in the order of time.
    """

    schema_version: int = 1
    store: str
    files: tuple[StoredFile, ...]
    damaged: tuple[str, ...] = ()
    history: tuple[PastFigure, ...] = ()

    @property
    def worse(self) -> list[PastFigure]:
        """Of the latest figures, one a kind and device, those that are worse than the ones before."""
        latest = {(row.figure.name, row.device): row for row in self.history}
        return [row for row in latest.values() if row.worse]
