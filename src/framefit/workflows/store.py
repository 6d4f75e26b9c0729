"""``framefit push``, ``pull`` and ``log``: files that a team shares, in a folder, by ssh or in an object store.

A store has two folders. ``objects`` holds files under their SHA-256; they are never changed. ``index`` holds a record
of each push under a name of its own. Nothing is locked and nothing is written in place: a file is written under a
temporary name and then renamed, so that readers see all of it or nothing, and check its hash.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from framefit.core.files import check_new, from_text, read_bytes, write_record, write_whole
from framefit.core.latency_table import LatencyTable, compare_tables, differing_facts, merged, read_table
from framefit.core.settings import Notify, silent, verb
from framefit.core.stored import StoredFile, StoredKind, StoreLog
from framefit.devices.registry import open_device
from framefit.errors import InputError
from framefit.workflows.settings import LogSettings, PullSettings, PushSettings

__all__ = ["log", "pull", "push"]

_OBJECTS, _INDEX, _TEMPORARY = "objects", "index", "temporary"
_SHORT = 12  # digits of a hash that names show
_KINDS: dict[StoredKind, set[str]] = {  # keys that only such a file has
    "table": {"fingerprint", "entries"},
    "plan": {"hyperperiod_windows", "windows"},
    "fit": {"before", "after", "steps"},
    "run": {"residual_utilisation_ratio", "misses"},
    "profile": {"totals_by_kind", "events"},
}


class Store:
    """A store at a URL.

    Args:
        url: a folder, or a URL of a file system that fsspec knows.

    Raises:
        InputError: there is no such file system, or it needs a package that is not installed.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        try:
            self._files, root = fsspec.core.url_to_fs(str(url))
        except (ImportError, ValueError) as error:
            raise InputError(
                f"cannot be opened: {error}",
                where=url,
                remedy="give a folder or a URL such as ssh://host/folder or s3://bucket/folder; fsspec's page says "
                "which package a protocol needs",
            ) from error
        self._root = str(root).rstrip("/")

    def push(self, data: bytes, record: StoredFile) -> None:
        """Add a file and its record.

        Raises:
            InputError: the store cannot be written.
        """
        place = self._object(record.sha256)
        try:
            if not self._files.exists(place) or self._files.size(place) != len(data):
                self._write(place, data)
            name = f"{record.time.replace(':', '')}-{record.sha256[:_SHORT]}-{secrets.token_hex(4)}.json"
            self._write(f"{self._root}/{_INDEX}/{name}", msgspec.json.encode(record))
        except OSError as error:
            raise InputError(
                f"cannot be written: {error}", where=self.url, remedy="check its rights and space"
            ) from error

    def records(self) -> tuple[list[StoredFile], list[str]]:
        """Records in the order in which they were pushed, and the names of damaged ones.

        Raises:
            InputError: there is no store.
        """
        folder = f"{self._root}/{_INDEX}"
        try:
            names = sorted(self._files.ls(folder, detail=False))
        except FileNotFoundError as error:
            raise InputError("there is no store", where=self.url, remedy="push a file, or correct the URL") from error
        contents = self._files.cat(names) if names else {}
        decoder, files, damaged = msgspec.json.Decoder(StoredFile), [], []
        for name in names:
            try:
                file = decoder.decode(contents[name])
                if not _sane(file):  # whoever can write into the store must not choose where files go here
                    raise msgspec.ValidationError(name)
                files.append(file)
            except (msgspec.DecodeError, KeyError):
                damaged.append(name.rsplit("/", 1)[-1])
        return files, damaged

    def read(self, record: StoredFile) -> bytes:
        """The bytes of a file.

        Raises:
            InputError: it is not there, or has been damaged.
        """
        where = f"{self.url}: {record.name} ({record.sha256[:_SHORT]})"
        try:
            data: bytes = self._files.cat_file(self._object(record.sha256))
        except OSError as error:
            raise InputError("it is not in the store any more", where=where, remedy="push it again") from error
        if hashlib.sha256(data).hexdigest() != record.sha256:
            raise InputError(
                "its bytes have changed since it was pushed", where=where, remedy="delete the object, and push it again"
            )
        return data

    def _object(self, sha256: str) -> str:
        return f"{self._root}/{_OBJECTS}/{sha256[:2]}/{sha256}"

    def _write(self, place: str, data: bytes) -> None:
        """Write under another name first."""
        temporary = f"{self._root}/{_TEMPORARY}/{os.getpid()}-{secrets.token_hex(8)}"
        for folder in (temporary, place):
            self._files.makedirs(folder.rsplit("/", 1)[0], exist_ok=True)
        self._files.pipe_file(temporary, data)
        self._files.mv(temporary, place)


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
    named = [(Path(name), read_bytes(name)) for name in settings.files]
    for path, data in named:
        kind, fingerprint = _described(path, data)
        record = StoredFile(
            sha256=hashlib.sha256(data).hexdigest(),
            name=path.name,
            bytes=len(data),
            kind=kind,
            time=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            version=version("framefit"),
            command=settings.command,
            fingerprint=fingerprint,
            models=tuple(hashlib.sha256(read_bytes(model)).hexdigest() for model in settings.models),
            parents=settings.parents,
        )
        store.push(data, record)
        records.append(record)
        notify(f"{path.name} is in the store")
    return StoreLog(store=store.url, files=tuple(records))


@verb(LogSettings, "store")
def log(settings: LogSettings) -> StoreLog:
    """List what a store holds, the latest last.

    Args:
        settings: store, and which files.

    Raises:
        InputError: there is no store.

    Example:
        >>> framefit.log("/shared/framefit", kind="table").files[-1].name  # doctest: +SKIP
        'pi5.table.json'
    """
    store = Store(_url(settings.store))
    files, damaged = store.records()
    facts = _facts(settings.target)
    models = {hashlib.sha256(read_bytes(settings.model)).hexdigest()} if settings.model else set()
    chosen = [
        file
        for file in files
        if (settings.kind is None or file.kind == settings.kind)
        and (not models or models & {*file.models, file.sha256})
        and (facts is None or (bool(file.fingerprint) and not differing_facts(facts, file.fingerprint)))
        and all(_matches(file, word) for word in settings.words)
    ]
    return StoreLog(store=store.url, files=tuple(chosen), damaged=tuple(damaged))


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
    given = LogSettings(
        store=settings.store, words=settings.words, kind=settings.kind, model=settings.model, target=settings.target
    )
    listed = log(**{key: value for key, value in msgspec.structs.asdict(given).items() if value not in (None, ())})
    latest = {file.sha256: file for file in listed.files}  # the same bytes are fetched once
    if not latest:
        raise InputError("no file matches", where=listed.store, remedy="see framefit log")
    store, folder = Store(_url(settings.store)), Path(settings.output)
    names = [file.name for file in latest.values()]
    paths = []
    for file in latest.values():
        stem, dot, rest = file.name.partition(".")
        once = names.count(file.name) == 1
        paths.append(folder / (file.name if once else f"{stem}-{file.sha256[:_SHORT]}{dot}{rest}"))
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
    merged_table, remarks = merged_tables(tables)
    write_record(settings.merge, merged_table, force=settings.force)
    return Pulled(listed, tuple(paths), Path(settings.merge), tuple(remarks))


def merged_tables(paths: Sequence[Path]) -> tuple[LatencyTable, list[str]]:
    """Tables of one device in one: of equal configurations the latest is kept, and what differs is told.

    Raises:
        InputError: there is none, or they are of different devices.
    """
    if not paths:
        raise InputError("no latency table is among these files", remedy="leave --merge out, or choose --kind table")
    tables = [read_table(path) for path in paths]
    for path, table in zip(paths[1:], tables[1:], strict=True):
        if differing := differing_facts(tables[0].fingerprint, table.fingerprint):
            raise InputError(
                f"{path.name} is of another device than {paths[0].name}: its {differing[0].fact} differs",
                remedy="name the tables of one device, or choose them with --target",
            )
    remarks = []
    for path in paths[:-1]:
        for entry in compare_tables(path, paths[-1]).entries:
            interval = entry.ratio_interval
            if interval is not None and not interval[0] <= 1 <= interval[1]:
                remarks.append(
                    f"{entry.op} on {entry.unit} took {entry.here_ns:,} ns in {path.name} and {entry.there_ns:,} ns in "
                    f"{paths[-1].name}: the latter is kept"
                )
    return merged(tables), remarks


def _sane(file: StoredFile) -> bool:
    """Whether it names a file, and nothing else, and has a hash."""
    plain = (
        bool(file.name)
        and file.name == Path(file.name).name
        and not file.name.startswith(".")
        and "\\" not in file.name
    )
    return plain and re.fullmatch("[0-9a-f]{64}", file.sha256) is not None


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
    return word == file.name or (len(word) >= 4 and file.sha256.startswith(word.lower()))


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
    return kind, {}
