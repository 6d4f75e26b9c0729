"""A store of files that a team shares: in a folder, by ssh or in an object store.

A store has two folders. ``objects`` holds files under their SHA-256; they are never changed. ``index`` holds a record
of each push under a name of its own, by kind and device. Nothing is locked and nothing is written in place: a file is
written under a temporary name and then renamed, so that readers see all of it or nothing, and check its hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from framefit.core.latency_table import LatencyTable, Value, compared, differing_facts, merged, parsed_table, read_table
from framefit.core.stored import StoredFile, StoredKind
from framefit.core.workload import address_scheme, without_password
from framefit.errors import FramefitError, InputError

__all__ = ["Store", "merged_tables", "names_store", "table_at"]

_OBJECTS, _INDEX, _TEMPORARY = "objects", "index", "temporary"
_SHORT = 12  # digits of a hash that messages show


def names_store(place: str | Path) -> bool:
    """Whether it is a store, and not a file: an address, or a folder with an index."""
    return address_scheme(str(place)) is not None or (Path(place) / _INDEX).is_dir()


class Store:
    """A store at a URL.

    Args:
        url: a folder, or a URL of a file system that fsspec knows.

    Raises:
        InputError: there is no such file system, or it needs a package that is not installed.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = without_password(str(url))
        with self._reached("cannot be opened"):
            try:
                self._files, root = fsspec.core.url_to_fs(str(url))
            except (ImportError, ValueError) as error:
                raise InputError(
                    f"cannot be opened: {error}",
                    where=self.url,
                    remedy="give a folder or a URL such as ssh://host/folder or s3://bucket/folder; fsspec's page says "
                    "which package a protocol needs",
                ) from error
        self._root = str(root).rstrip("/")

    def push(self, data: bytes, record: StoredFile) -> None:
        """Add a file and its record.

        Raises:
            InputError: the store cannot be written.
        """
        place = self._object(record.object)
        with self._reached("cannot be written"):
            if not self._files.exists(place) or self._files.size(place) != len(data):
                self._write(place, data)
            name = f"{record.time.replace(':', '')}-{record.object[:_SHORT]}-{secrets.token_hex(4)}.json"
            folder = f"{self._root}/{_INDEX}/{record.kind}/{_device(record.fingerprint)}"
            self._write(f"{folder}/{name}", msgspec.json.encode(record))

    def records(self, kind: StoredKind | None = None) -> tuple[list[StoredFile], list[str]]:
        """Records in the order in which they were pushed, and the names of damaged ones.

        Args:
            kind: of files that are asked for; default: all.

        Raises:
            InputError: there is no store.
        """
        index = f"{self._root}/{_INDEX}"
        with self._reached("cannot be read"):
            self._files.invalidate_cache()  # others push, too
            names = self._files.find(index if kind is None else f"{index}/{kind}")
            names.sort(key=lambda name: name.rsplit("/", 1)[-1])
            if not names and not self._files.exists(index):
                raise InputError("there is no store", where=self.url, remedy="push a file, or correct the URL")
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
        where = f"{self.url}: {record.name} ({record.object[:_SHORT]})"
        with self._reached("cannot be read"):
            try:
                data: bytes = self._files.cat_file(self._object(record.object))
            except FileNotFoundError as error:
                raise InputError("it is not in the store any more", where=where, remedy="push it again") from error
        if hashlib.sha256(data).hexdigest() != record.object:
            raise InputError(
                "its bytes have changed since it was pushed", where=where, remedy="delete the object, and push it again"
            )
        return data

    @contextlib.contextmanager
    def _reached(self, failed: str) -> Iterator[None]:
        """Errors of file systems, which have classes of their own, as one of ours."""
        try:
            yield
        except FramefitError:
            raise
        except Exception as error:
            remedy = "check its address, your rights to it, and its space"
            raise InputError(
                f"{failed}: {str(error) or type(error).__name__}", where=self.url, remedy=remedy
            ) from error

    def _object(self, sha256: str) -> str:
        return f"{self._root}/{_OBJECTS}/{sha256[:2]}/{sha256[2:]}"

    def _write(self, place: str, data: bytes) -> None:
        """Write under another name first."""
        temporary = f"{self._root}/{_TEMPORARY}/{os.getpid()}-{secrets.token_hex(8)}"
        in_objects = self._files.async_impl  # of which none has folders, and some would make a bucket of a mistyped one
        for folder in () if in_objects else (temporary, place):
            self._files.makedirs(folder.rsplit("/", 1)[0], exist_ok=True)
        self._files.pipe_file(temporary, data)
        self._files.mv(temporary, place)


def table_at(place: str, facts: Mapping[str, Value]) -> tuple[LatencyTable, list[str]]:
    """A latency table from its file, or all that a store knows of a device in one.

    Args:
        place: path of a file, or a store.
        facts: fingerprint of the device, for a store.

    Returns:
        The table, and remarks on what was chosen from a store, as sentences.

    Raises:
        InputError: no file or store; a file is malformed; a store has no table of this device, or a damaged one.
    """
    if not names_store(place):
        return read_table(place), []
    store = Store(place)
    url = store.url
    tables, _ = store.records("table")
    mine = {file.object: file for file in tables if not differing_facts(file.fingerprint, facts)}
    if not mine:
        near = min((differing_facts(file.fingerprint, facts) for file in tables), key=len, default=())
        nearest = f"; of the nearest one {', '.join(difference.fact for difference in near[:3])} differ" if near else ""
        raise InputError(
            f"none of its {len(tables)} latency tables is of this device{nearest}",
            where=url,
            remedy="measure one and push it: framefit measure, framefit push",
        )
    named = [(file.name, parsed_table(store.read(file), f"{url}: {file.name}")) for file in mine.values()]
    table, remarks = merged_tables(named)
    latest = list(mine.values())[-1]
    several = f"{len(named)} latency tables" if len(named) > 1 else "one latency table"
    return table, [f"{url} has {several} of this device, the latest {latest.name} of {latest.time[:10]}", *remarks]


def merged_tables(named: Sequence[tuple[str, LatencyTable]]) -> tuple[LatencyTable, list[str]]:
    """Tables of one device in one: of equal configurations the latest is kept, and what differs is told.

    Args:
        named: name and table, the latest last; at least one.
    """
    remarks = []
    latest, last = named[-1]
    for name, table in named[:-1]:
        for entry in compared(table, last).entries:
            interval = entry.ratio_interval
            if interval is not None and not interval[0] <= 1 <= interval[1]:
                remarks.append(
                    f"{entry.op} on {entry.unit} took {entry.here_ns:,} ns in {name} and {entry.there_ns:,} ns in "
                    f"{latest}: the latter is kept"
                )
    return merged([table for _, table in named]), remarks


def _sane(file: StoredFile) -> bool:
    """Whether it names a file, and nothing else, and has a hash."""
    plain = (
        bool(file.name)
        and file.name == Path(file.name).name
        and not file.name.startswith(".")
        and "\\" not in file.name
    )
    return plain and re.fullmatch("[0-9a-f]{64}", file.object) is not None


def _device(fingerprint: Mapping[str, Value]) -> str:
    """A name for a device's folder of the index; "any": a file belongs to none."""
    facts = msgspec.json.encode(dict(fingerprint), order="sorted")
    return hashlib.sha256(facts).hexdigest()[:_SHORT] if fingerprint else "any"
