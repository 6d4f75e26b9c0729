"""Files of records: validated, versioned, and written as a whole.

Every JSON or TOML file is one :class:`Record`. Unknown keys are errors that name the path and the nearest known key;
nothing is overwritten without a request; a file appears complete or not at all.

Records can also be written as TOML, which :func:`~framefit.core.files.read_record` reads.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import functools
import hashlib
import importlib
import itertools
import json
import math
import os
import platform
import re
import secrets
import shutil
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from framefit.core.formats import decode_toml, format_of
from framefit.errors import InputError

__all__ = [
    "Record",
    "cache_folder",
    "check_folder",
    "check_new",
    "claimed_folder",
    "decode_json",
    "from_data",
    "is_file_name",
    "read_bytes",
    "read_record",
    "to_json",
    "to_toml",
    "toml_key",
    "write_record",
    "write_whole",
    "write_whole_folder",
]


R = TypeVar("R", bound="Record")
_LONG = 60  # characters of a text that are shown in a line
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MANY_DIGITS = re.compile(rb"\d{19}")  # whole numbers of this length may have more than 63 bits


if typing.TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Nothing at run time: Python 3.10, on devices, does not have it."""
        return lambda kind: kind


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every typed record; invariants belong into ``__post_init__`` (raise ``ValueError``).

    For messages: ``file_kind`` says what a file of it is, with its article; ``smallest`` is the smallest valid file.
    """

    file_kind: ClassVar[str] = ""
    smallest: ClassVar[str] = ""

    @classmethod
    def upgraded(cls, data: Any) -> Any:
        """Plain data of a file, with what an earlier version wrote in this version's form."""
        return data


class Result(Record):
    """Base of records that people look at: notebooks show their tables, and pandas takes them."""

    def __repr__(self) -> str:
        """Its class and figures; of what it holds much of, how much."""
        shown = []
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name == "schema_version":
                continue
            if isinstance(value, str | int | float) and value != "":
                text = repr(value)
                shown.append(f"{field.name}={text if len(text) <= _LONG else text[:_LONG] + '...'}")
            elif isinstance(value, tuple | list | dict) and value:
                shown.append(f"{len(value)} {field.name}")
        return f"<{type(self).__name__}: {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        """Verdict, figures and tables, as a notebook shows them."""
        return str(_notebook().as_html(self))

    def to_pandas(self, table: str | None = None) -> Any:
        """A table of the result as a ``pandas.DataFrame``; needs pandas.

        Args:
            table: its title, as on the terminal; default: the longest one.

        Returns:
            A row for each of its rows; figures are numbers in the units of the record (ns, bytes, ratios).

        Raises:
            InputError: pandas is not installed, or there is no such table.
        """
        return _notebook().as_frame(self, table)


def _notebook() -> Any:
    """What shows results; asked for by name, as it lies above all that has results."""
    return importlib.import_module("framefit.report.notebook")


def _record_in(annotation: Any) -> tuple[type[Record] | None, str]:
    """The record type inside an annotation and how it is nested: "one", "list" or "dict"."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return annotation, "one"
    origin, arguments = get_origin(annotation), get_args(annotation)
    for argument in arguments:
        record, nesting = _record_in(argument)
        if record is not None:
            if isinstance(origin, type) and issubclass(origin, Mapping):
                return record, "dict"
            union = origin is types.UnionType or nesting == "list"
            return record, nesting if union else "list"
    return None, "one"


@functools.cache
def _keys(kind: type[Record]) -> dict[str, tuple[type[Record] | None, str]]:
    """Keys of a record as in its file, and the records that they hold; see :func:`_record_in`."""
    hints = get_type_hints(kind)
    return {field.encode_name: _record_in(hints[field.name]) for field in msgspec.structs.fields(kind)}


def _unknown_keys(data: Any, kind: type[Record], path: str) -> Iterator[str]:
    """Messages about keys of ``data`` that ``kind`` does not have, depth first."""
    if not isinstance(data, dict):
        return
    known = _keys(kind)
    for key, value in data.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"
            yield f"unknown key {path}.{key}{hint}"
            continue
        record, nesting = known[key]
        if record is None:
            continue
        if nesting == "list" and isinstance(value, list):
            for index, item in enumerate(value):
                yield from _unknown_keys(item, record, f"{path}.{key}[{index}]")
        elif nesting == "dict" and isinstance(value, dict):
            for name, item in value.items():
                yield from _unknown_keys(item, record, f"{path}.{key}.{name}")
        else:
            yield from _unknown_keys(value, record, f"{path}.{key}")


def from_data(data: Any, kind: type[R], where: str | Path) -> R:
    """Check plain data against ``kind``.

    Args:
        data: result of a JSON or TOML reader.
        kind: the record to make of it.
        where: the file, for messages.

    Raises:
        InputError: a key is unknown, a type is wrong or an invariant broken; the message names the path.
    """
    version = data.get("schema_version") if isinstance(data, dict) else None
    known_version = next((f.default for f in msgspec.structs.fields(kind) if f.name == "schema_version"), None)
    if isinstance(known_version, int) and version not in (None, known_version):
        raise InputError(
            f"$.schema_version is {version!r}; this Framefit reads {known_version}",
            where=where,
            remedy="update Framefit, or write the file again with this version",
        )
    data = kind.upgraded(data)
    for message in _unknown_keys(data, kind, "$"):
        raise InputError(message, where=where, remedy="correct or remove the key")
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid(error, data, kind, where) from error


_PLAIN_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table of keys",
    "null": "null",
}
"""The names of types in msgspec's messages, as a reader would say them."""
_EXPECTED = re.compile(r"Expected `(?P<types>[a-z |]+)`, got `[a-z]+`(?: - at `(?P<path>.+)`)?")
_INVALID = re.compile(r"Invalid enum value .+ - at `(?P<path>.+)`")


def _invalid(error: msgspec.ValidationError, data: Any, kind: type[Record], where: str | Path) -> InputError:
    """What msgspec says of a value, with the value, its place, and what may be there."""
    what = str(error)
    if "missing required field" in what:
        remedy = f"add the key; the smallest valid file is {kind.smallest}" if kind.smallest else "add the key"
        missing = what.replace("Object missing required field `", "the key `").partition("`")
        key, _, place = missing[2].partition("`")
        at = place.partition(" - at `")[2].removesuffix("`") or "$"
        return InputError(f"{at}.{key} is missing", where=where, remedy=remedy)
    expected = _EXPECTED.fullmatch(what)
    if expected is not None:
        path = expected["path"] or "$"
        types = [_PLAIN_TYPES.get(name, name) for name in expected["types"].split(" | ") if name != "null"]
        what = f"{path} must be {' or '.join(types)}, is {_value_text(data, path)}"
        return InputError(what, where=where, remedy="correct the value")
    invalid = _INVALID.fullmatch(what)
    choices = () if invalid is None else _choices(kind, invalid["path"])
    if invalid is not None and choices:
        path, value = invalid["path"], _value_text(data, invalid["path"])
        near = difflib.get_close_matches(value.strip("'"), map(str, choices), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return InputError(
            f"{path} is {value}{hint}", where=where, remedy=f"choose from {', '.join(map(repr, choices))}"
        )
    return InputError(what.replace(" - at `", ", at `"), where=where, remedy="correct the value")


_STEPS = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")


def _value_text(data: Any, path: str) -> str:
    """The value at a path such as ``$.models[0].priority``, shortened; its type where the path says less."""
    for step in _STEPS.finditer(path):
        if step["index"] == "...":
            return "a table with another kind of value"
        try:
            data = data[step["key"] if step["key"] is not None else int(step["index"])]
        except (KeyError, IndexError, TypeError):
            return "another kind of value"
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _choices(kind: Any, path: str) -> tuple[Any, ...]:
    """Values that a type permits at a path; empty: they are not listed."""
    for step in _STEPS.finditer(path):
        record, _ = _record_in(kind)
        if step["key"] is None:
            continue
        if record is None or step["key"] not in _keys(record):
            return ()
        name = next(f.name for f in msgspec.structs.fields(record) if f.encode_name == step["key"])
        kind = get_type_hints(record)[name]
    return _literals(kind)


def _literals(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(value for part in get_args(annotation) for value in _literals(part))


def read_record(path: str | Path, kind: type[R]) -> R:
    """Read a ``.json`` or ``.toml`` file as ``kind``.

    Raises:
        InputError: the file is missing, unreadable, malformed or not of this kind.
    """
    path = Path(path)
    try:
        return from_text(read_bytes(path), kind, path, form="TOML" if path.suffix == ".toml" else "JSON")
    except InputError as error:
        known, wanted = format_of(path), kind.file_kind or "a text file"
        if known is None or known.name == wanted:
            raise
        remedy = f"give {wanted} here" + (f"; the smallest valid file is {kind.smallest}" if kind.smallest else "")
        raise InputError(f"is {known.name}, not {wanted}", where=path, remedy=remedy) from error


def from_text(raw: bytes, kind: type[R], where: str | Path, *, form: Literal["JSON", "TOML"] = "JSON") -> R:
    """Read JSON or TOML as ``kind``.

    Args:
        raw: the text.
        kind: the record to make of it.
        where: the file, for messages.
        form: format of the text.

    Raises:
        InputError: the text is malformed, nested too deeply, or not of this kind.
    """
    try:
        raw = _as_utf8(raw)
        data = decode_toml(raw) if form == "TOML" else decode_json(raw)
        if form == "TOML" or _MANY_DIGITS.search(raw):
            _check_integers(data)
        return from_data(data, kind, where)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # by the text, its encoding, or its depth
        raise InputError(f"not valid {form}: {error}", where=where, remedy="correct the file") from error


_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _as_utf8(raw: bytes) -> bytes:
    """Text in UTF-8, without the byte order mark of some editors. Raises: ValueError: it has another encoding."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return raw.decode(encoding).encode()
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8") from None
    return raw


def decode_json(raw: bytes, kind: Any = Any) -> Any:
    """Decode JSON text; paths that are not UTF-8 are restored from what :func:`to_json` writes.

    Raises:
        ValueError: it is malformed, or not of this kind.
        RecursionError: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        if _SURROGATE.search(raw) is None:
            raise
        return json.loads(raw)


def _check_integers(data: Any) -> None:
    """Refuse whole numbers that no array can hold. Raises: ValueError: there is one."""
    if isinstance(data, int) and data.bit_length() > 63:
        raise ValueError(f"a whole number of {data.bit_length()} bits; the limit is 63")
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        _check_integers(item)


def is_file_name(text: str) -> bool:
    """Whether a text names a file in one folder, not a path that leads elsewhere."""
    return text not in ("", ".", "..") and not set(text) & set("/\\\0")


def read_bytes(path: str | Path) -> bytes:
    """Read a file's content, with one clear error.

    Raises:
        InputError: the file is missing or unreadable.
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", where=path, remedy="check the path") from None
    except (OSError, ValueError) as error:  # the latter if it is not a path
        what = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot be read: {what}", where=path, remedy="check the file") from error


def to_json(record: Record, *, indent: int | None = 1) -> str:
    """Convert a record to JSON text.

    Bytes of a path that are not UTF-8 are lone surrogates in Python's strings (PEP 383), and their escapes in the
    text, as Python's own module writes and reads them: such a path names the same file again.

    Args:
        record: any record.
        indent: ``None``: write a single line.
    """
    try:
        encoded = msgspec.json.encode(record)
    except UnicodeEncodeError:
        return json.dumps(_plain(msgspec.to_builtins(record)), indent=indent)
    return (encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode()


def _plain(data: Any) -> Any:
    """Values as msgspec writes them: numbers that JSON does not have are null."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_record(path: str | Path, record: Record, *, force: bool = False) -> None:
    """Write a record as a JSON file, as a whole or not at all.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    with write_whole(path, force=force) as file:
        file.write(to_json(record).encode() + b"\n")


def check_new(path: str | Path | None, *, force: bool, resumable: bool = False) -> None:
    """Check that nothing is at a path, or that it may be overwritten.

    Args:
        path: of a file or folder to be written; ``None``: nothing is.
        force: whether it may be overwritten.
        resumable: whether the verb could continue what is there, which the message says.

    Raises:
        InputError: it exists, and may not be overwritten.
    """
    if path is not None and Path(path).exists() and not force:
        resume = ", --resume it," if resumable else ","
        raise InputError(
            "already exists", where=path, remedy=f"choose another path{resume} or overwrite it with --force"
        )


@contextlib.contextmanager
def write_whole(path: str | Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """A binary file that takes its name only once it is complete.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    path = Path(path)
    check_new(path, force=force)
    temporary = _beside(path, "part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(path.parent)
        with temporary.open("w+b") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=path, remedy="check folder and space") from error
    finally:
        with contextlib.suppress(OSError):  # gone, or its folder is none
            temporary.unlink()


_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{16}\.(?P<kind>part|old)")
_cleared: set[Path] = set()


@functools.cache
def _host() -> str:
    """Name that distinguishes this machine from others that write to the same place."""
    return hashlib.blake2s(platform.node().encode(), digest_size=4).hexdigest()


def _beside(place: Path, kind: Literal["part", "old"]) -> Path:
    """A unique name, in this process and all others, for a file that is incomplete, or was replaced."""
    return place.with_name(f".{place.name}.{_host()}-{os.getpid()}-{secrets.token_hex(8)}.{kind}")


def process_lives(pid: int) -> bool:
    """Whether this machine has a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _clear_leftovers(folder: Path) -> None:
    """Remove leftovers of killed processes from a folder; once for each process, since the folder has to be listed.

    A folder that such a process was about to replace is restored.
    """
    if folder in _cleared:
        return
    _cleared.add(folder)
    for entry in list(folder.iterdir()):
        match = _LEFTOVER.fullmatch(entry.name)
        if match is None or match["host"] != _host() or process_lives(int(match["pid"])):
            continue
        with contextlib.suppress(OSError):  # another process clears, too
            if match["kind"] == "old" and not entry.with_name(match["name"]).exists():
                entry.rename(entry.with_name(match["name"]))
            elif entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()


def check_folder(folder: Path, mark: str, what: str, *, force: bool) -> None:
    """Check that a folder may be written there: no other files of the user are ever replaced.

    Args:
        folder: path of the folder.
        mark: name of a file that only such folders have.
        what: its kind in messages, such as "a run folder".
        force: whether to replace one of its kind, or an empty folder.

    Raises:
        InputError: the path exists, without ``force`` or as another kind.
    """
    if not folder.exists():
        return
    check_new(folder, force=force)
    if not folder.is_dir() or not ((folder / mark).is_file() or next(folder.iterdir(), None) is None):
        raise InputError(
            f"exists and is not {what}: it is not overwritten, even with --force",
            where=folder,
            remedy="choose another folder",
        )


@contextlib.contextmanager
def claimed_folder(stem: Path) -> Iterator[Path]:
    """Make ``STEM-N`` with the first free N: an empty folder, so that other callers get other numbers.

    If it is still empty at the end, it is removed; see ``claimed`` of :func:`write_whole_folder`.

    Raises:
        InputError: the folder cannot be made.
    """
    folder = claim_number(stem)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # something was written there
            folder.rmdir()


def claim_number(stem: Path) -> Path:
    """Make ``STEM-N`` with the first free N.

    Raises:
        InputError: the folder cannot be made.
    """
    for number in itertools.count(1):
        folder = stem.with_name(f"{stem.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.parent.is_dir():
                raise InputError("is not a folder", where=folder.parent, remedy="choose another place") from None
        except OSError as error:
            raise InputError(f"cannot be written: {error}", where=folder, remedy="check folder and space") from error
        else:
            return folder
    raise AssertionError("numbers do not end")


@contextlib.contextmanager
def write_whole_folder(folder: Path, mark: str, what: str, *, force: bool, claimed: bool = False) -> Iterator[Path]:
    """Make a folder beside its place, and rename it once it is complete; see :func:`check_folder`.

    Until then its name is unique: several programs may write to one place. Without ``force`` the first complete one
    takes the place; the others keep their folder beside it, and report its name.

    Args:
        folder: path of the folder.
        mark: name of a file that only such folders have.
        what: its kind in messages.
        force: whether to replace one of its kind, or an empty folder.
        claimed: whether the place is an empty folder of :func:`claimed_folder`.

    Raises:
        InputError: something there must not be replaced, or files cannot be written.
    """
    final = folder.resolve()  # for a link the folder itself
    keeps = claimed or not force
    if claimed:
        mark, force = "", True  # replaces an empty folder only
    if final.parent.is_dir():
        _clear_leftovers(final.parent)
    check_folder(final, mark, what, force=force)
    part = _beside(final, "part")
    try:
        part.mkdir(parents=True)
        yield part
        try:
            _take_place(part, final, mark, what, force=force)
        except InputError as error:
            if not keeps:
                raise
            kept = claim_number(final)
            _take_place(part, kept, "", what, force=True)
            raise InputError(
                "another process has written it meanwhile",
                where=final,
                remedy=f"look into {kept}: it holds the complete result",
            ) from error
    except OSError as error:
        raise InputError(f"cannot be written: {error}", where=final, remedy="check folder and space") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _take_place(part: Path, final: Path, mark: str, what: str, *, force: bool) -> None:
    """Rename a complete folder; if that fails, the replaced one is restored.

    Raises:
        InputError: something there must not be replaced.
        OSError: it cannot be renamed.
    """
    replaced: list[Path] = []
    try:
        while True:
            check_folder(final, mark, what, force=force)
            try:
                part.rename(final)  # on POSIX this replaces an empty folder, and nothing else
                break
            except OSError:
                if not final.exists():
                    raise
            check_folder(final, mark, what, force=force)
            old = _beside(final, "old")
            with contextlib.suppress(FileNotFoundError):  # another process has moved it
                final.rename(old)
                replaced.append(old)
    except BaseException:
        if replaced and not final.exists():
            replaced.pop().rename(final)
        raise
    finally:
        for old in replaced:
            shutil.rmtree(old, ignore_errors=True)


def cache_folder() -> Path:
    """Folder in which compiled segments and measured tables are stored between runs.

    ``FRAMEFIT_CACHE``, else ``XDG_CACHE_HOME/framefit``, else ``~/.cache/framefit``.
    """
    folder = os.environ.get("FRAMEFIT_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "framefit"


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(record: Record) -> str:
    """Convert a record to TOML: keys in its own order, without those at their defaults.

    Records inside it become tables, tuples of records arrays of tables, and deeper levels are written inline.

    Args:
        record: of text, numbers, booleans, tuples, dicts and records; ``None`` does not exist in TOML and is left out.
    """
    lines = [f"schema_version = {record.schema_version}"] if hasattr(record, "schema_version") else []  # at its default
    tables: list[str] = []
    for name, value in _given(record):
        if name == "schema_version":
            continue
        if isinstance(value, Record):
            tables += ["", f"[{name}]", *_pairs(value)]
        elif isinstance(value, tuple) and value and all(isinstance(entry, Record) for entry in value):
            for entry in value:
                tables += ["", f"[[{name}]]", *_pairs(entry)]
        else:
            lines.append(f"{name} = {_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _given(record: Record) -> Iterator[tuple[str, Any]]:
    """Keys and values that differ from the default."""
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if value is not None and value != default:
            yield field.encode_name, value


def _pairs(record: Record) -> list[str]:
    return [f"{name} = {_value(value)}" for name, value in _given(record)]


def _value(value: Any) -> str:
    if isinstance(value, Record):
        return _inline(_given(value))
    if isinstance(value, Mapping):
        return _inline(value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return _text(value) if isinstance(value, str) else repr(value)


def _inline(pairs: Iterable[tuple[str, Any]]) -> str:
    inner = ", ".join(f"{toml_key(name)} = {_value(value)}" for name, value in pairs)
    return f"{{ {inner} }}" if inner else "{}"


def toml_key(name: str) -> str:
    """Write a key in TOML, quoted if necessary."""
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    """Write a basic string: TOML escapes the same characters as JSON, and DEL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{text!a} is not UTF-8, which TOML files are", remedy="rename that folder or file") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
