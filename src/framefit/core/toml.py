"""Records as TOML text: the same files that :func:`~framefit.core.files.read_record` reads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from framefit.core.files import Record

__all__ = ["to_toml", "toml_key"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(record: Record) -> str:
    """The record as TOML: keys in its own order, those at their defaults left out.

    Records inside it are tables, tuples of records arrays of tables, and what lies deeper is written inline.

    Args:
        record: of text, numbers, booleans, tuples, dicts and records; ``None`` has no form in TOML and is left out.
    """
    lines = [f"schema_version = {record.schema_version}"] if hasattr(record, "schema_version") else []  # at its default
    tables: list[str] = []
    for name, value in _given(record):
        if name == "schema_version":
            continue
        if isinstance(value, Record):
            tables += ["", f"[{name}]", *_pairs(value)]
        elif isinstance(value, tuple) and value and all(isinstance(one, Record) for one in value):
            for one in value:
                tables += ["", f"[[{name}]]", *_pairs(one)]
        else:
            lines.append(f"{name} = {_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _given(record: Record) -> Iterator[tuple[str, Any]]:
    """Keys and values that are not the default."""
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
    """A key as TOML takes it: quoted where it has to be."""
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    """A basic string: TOML escapes what JSON does, and DEL besides."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
