"""``framefit push``, ``pull`` and ``log``: files that a team shares in a store."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from framefit.core.files import check_new, from_text, read_bytes, write_record, write_whole
from framefit.core.history import figures_in, history
from framefit.core.latency_table import LatencyTable, differing_facts, read_table
from framefit.core.settings import Notify, part_of, silent, verb
from framefit.core.store import Store, merged_tables
from framefit.core.stored import StoredFigure, StoredFile, StoredKind, StoreLog
from framefit.devices.registry import open_device
from framefit.errors import InputError
from framefit.workflows.settings import LogSettings, PullSettings, PushSettings

__all__ = ["log", "pull", "push"]

_TIMETABLE = "timetable.json"
_SHORT = 12  # digits of a hash that names show
_KINDS: dict[StoredKind, set[str]] = {  # keys that only such a file has
    "table": {"fingerprint", "entries"},
    "plan": {"hyperperiod_windows", "windows"},
    "fit": {"before", "after", "steps"},
    "sparsity": {"dense", "configurations"},
    "run": {"residual_utilisation_ratio", "misses"},
    "profile": {"totals_by_kind", "events"},
}


@verb(PushSettings, "files")
def push(settings: PushSettings, *, notify: Notify = silent) -> StoreLog:
    """Add files to a store, under their hashes, with a record each.

    Args:
        settings: files and store.
        notify: receives what is being done.

    Raises:
        InputError: a file or the store cannot be used.

    Example:
        >>> framefit.push("pi5.table.json", store="/shared/framefit")  # doctest: +SKIP
    """
    store, records = Store(_url(settings.store)), []
    commit = _commit() if settings.commit is None else settings.commit
    named = [(Path(name), read_bytes(name)) for name in settings.files]
    for path, data in named:
        kind, fingerprint = _described(path, data)
        record = StoredFile(
            object=hashlib.sha256(data).hexdigest(),
            name=path.name,
            bytes=len(data),
            kind=kind,
            time=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            version=version("framefit"),
            command=settings.command,
            commit=commit,
            board=settings.board,
            fingerprint=fingerprint,
            models=tuple(hashlib.sha256(read_bytes(model)).hexdigest() for model in settings.models),
            parents=settings.parents,
            figures=_figures(kind, data, path.name, notify),
        )
        store.push(data, record)
        records.append(record)
        notify(f"{path.name} is in the store")
    return StoreLog(store=store.url, files=tuple(records))


@verb(LogSettings, "store")
def log(settings: LogSettings) -> StoreLog:
    """List what a store holds, the latest last, and what its files say of a model.

    Args:
        settings: store, and which files; with a model, those that are about its bytes or have figures of its name.

    Raises:
        InputError: there is no store.

    Example:
        >>> framefit.log("/shared/framefit", kind="table").files[-1].name  # doctest: +SKIP
        'pi5.table.json'
    """
    store = Store(_url(settings.store))
    files, damaged = store.records(settings.kind)
    facts = _facts(settings.target)
    name = Path(settings.model or "").stem
    models = {hashlib.sha256(read_bytes(settings.model)).hexdigest()} if settings.model else set()
    chosen = [
        file
        for file in files
        if (not models or models & {*file.models, file.object} or any(row.model == name for row in file.figures))
        and (facts is None or (bool(file.fingerprint) and not differing_facts(facts, file.fingerprint)))
        and settings.board in (None, file.board)
        and all(_matches(file, word) for word in settings.words)
    ]
    past = history(chosen, name) if settings.model else ()
    return StoreLog(store=store.url, files=tuple(chosen), damaged=tuple(damaged), history=past)


def _figures(kind: StoredKind, data: bytes, name: str, notify: Notify) -> tuple[StoredFigure, ...]:
    """What a file says of models; nothing, and a remark, where another version wrote it."""
    try:
        return figures_in(kind, data, name)
    except InputError as error:
        notify(f"{name}: no figures of it are in the log, for this version cannot read them: {error.what}")
        return ()


def _commit() -> str:
    """Of the git repository of this folder, with a remark on changes; empty without one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True)
class Pulled:
    """What :func:`pull` returns.

    Attributes:
        log: the files.
        paths: where each was written.
        table: the tables in one, if that was asked for.
        remarks: entries in which tables differ, as sentences.
    """

    log: StoreLog
    paths: tuple[Path, ...]
    table: Path | None = None
    remarks: tuple[str, ...] = ()


@verb(PullSettings, "words")
def pull(settings: PullSettings, *, notify: Notify = silent) -> Pulled:
    """Fetch files from a store, and check their hashes; merge latency tables of one device.

    Args:
        settings: store, which files, and where they go.
        notify: receives what is being done.

    Raises:
        InputError: no file matches, one is damaged, or it exists here.

    Example:
        >>> framefit.pull("pi5.table.json", store="/shared/framefit", output="tables")  # doctest: +SKIP
    """
    listed = log(part_of(settings, LogSettings))
    latest = {file.object: file for file in listed.files}  # the same bytes are fetched once
    if not latest:
        raise InputError("no file matches", where=listed.store, remedy="see framefit log")
    store, folder = Store(_url(settings.store)), Path(settings.output)
    names = [file.name for file in latest.values()]
    paths = []
    for file in latest.values():
        stem, dot, rest = file.name.partition(".")
        once = names.count(file.name) == 1
        paths.append(folder / (file.name if once else f"{stem}-{file.object[:_SHORT]}{dot}{rest}"))
    for path in paths:
        check_new(path, force=settings.force)
    if settings.merge is not None:
        check_new(settings.merge, force=settings.force)
    folder.mkdir(parents=True, exist_ok=True)
    for file, path in zip(latest.values(), paths, strict=True):
        data = store.read(file)
        with write_whole(path, force=settings.force) as target:
            target.write(data)
        notify(f"{path} ({file.bytes:,} bytes)")
    result = Pulled(listed, tuple(paths))
    if settings.merge is None:
        return result
    tables = [path for file, path in zip(latest.values(), paths, strict=True) if file.kind == "table"]
    merged_table, remarks = _merged(tables)
    write_record(settings.merge, merged_table, force=settings.force)
    return Pulled(listed, tuple(paths), Path(settings.merge), tuple(remarks))


def _merged(paths: Sequence[Path]) -> tuple[LatencyTable, list[str]]:
    """Tables of one device in one, with remarks.

    Raises:
        InputError: there is none, or they are of different devices.
    """
    if not paths:
        raise InputError("no latency table is among these files", remedy="leave --merge out, or choose --kind table")
    named = [(path.name, read_table(path)) for path in paths]
    for name, table in named[1:]:
        if differing := differing_facts(named[0][1].fingerprint, table.fingerprint):
            raise InputError(
                f"{name} is of another device than {named[0][0]}: its {differing[0].fact} differs",
                remedy="name the tables of one device, or choose them with --target",
            )
    return merged_tables(named)


def _url(store: str | None) -> str:
    """The store that is named, or that of the environment.

    Raises:
        InputError: there is none.
    """
    url = store or os.environ.get("FRAMEFIT_STORE")
    if not url:
        raise InputError("--store missing", remedy="give --store URL, or set FRAMEFIT_STORE")
    return url


def _facts(target: str | None) -> dict[str, Any] | None:
    return None if target is None else open_device(target).fingerprint()


def _matches(file: StoredFile, word: str) -> bool:
    return word == file.name or (len(word) >= 4 and file.object.startswith(word.lower()))


def _described(path: Path, data: bytes) -> tuple[StoredKind, dict[str, Any]]:
    """What a file is, and the fingerprint in it."""
    if path.suffix == ".onnx":
        return "model", {}
    if path.suffix != ".json":
        return "file", {}
    try:
        content = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return "file", {}
    keys = set(content) if isinstance(content, dict) else set()
    kind: StoredKind = next((kind for kind, needed in _KINDS.items() if needed <= keys), "file")
    if kind == "table":
        return kind, from_text(data, LatencyTable, path).fingerprint
    beside = path.parent / _TIMETABLE
    if kind == "plan":
        return kind, _device(data)
    return kind, _device(beside.read_bytes()) if kind == "run" and beside.is_file() else {}


class _Source(msgspec.Struct):
    """Of a plan, what it was made of: only the device is read."""

    device: dict[str, Any] = {}


class _Planned(msgspec.Struct):
    """A plan, of which only the source is read."""

    source: _Source | None = None


def _device(plan: bytes) -> dict[str, Any]:
    """Fingerprint of the device that a plan is for; empty where it does not say it."""
    try:
        source = msgspec.json.decode(plan, type=_Planned).source
    except msgspec.DecodeError:
        return {}
    return {} if source is None else source.device
