"""A first workload for models, and the JSON Schema of the project's files, by which editors complete and check them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from framefit.core.files import Record, check_new, toml_key, write_whole
from framefit.core.model import Model
from framefit.core.model.builtin import load_model
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import Target, resolve_target
from framefit.core.workload import Workload, load_workload
from framefit.errors import InputError
from framefit.workflows.settings import InitSettings, SchemaSettings

__all__ = ["init", "schema"]

SCHEMA_FILE = "app.schema.json"
_RECORDS: dict[str, type[Record]] = {"app": Workload, "target": Target}
_ATTRIBUTE = re.compile(r"^ {8}(\w[\w, ]*): (.*(?:\n {12}.*)*)", re.MULTILINE)
_REFERENCE = re.compile(r":\w+:`[~.]?([^`]*)`|``([^`]*)``")


class Initial(Record, kw_only=True):
    """What ``framefit init`` wrote.

    Attributes:
        app: path of the workload.
        priority: name of the model that runs in every window: the one with the fewest multiply-accumulates.
        background: names of the others.
    """

    app: str
    priority: str
    background: tuple[str, ...]


@verb(SchemaSettings, "kind")
def schema(settings: SchemaSettings) -> str:
    """Return the JSON Schema (draft 2020-12) of a kind of file, as text; its descriptions are those of the records.

    Args:
        settings: which kind of file.

    Raises:
        InputError: the file to write exists, or cannot be written.

    Example:
        >>> json.loads(framefit.schema("app"))["title"]
        'a workload (app.toml)'
    """
    text = _described(_RECORDS[settings.kind])
    if settings.output is not None:
        with write_whole(settings.output, force=settings.force) as file:
            file.write(text.encode())
    return text


@verb(InitSettings, "models")
def init(settings: InitSettings, *, notify: Notify = silent) -> Initial:
    """Write a first workload for ONNX files, and its schema beside it.

    The model with the fewest multiply-accumulates runs in every window, the others in the time that is left.

    Args:
        settings: of the workload.
        notify: receives messages on the progress.

    Raises:
        InputError: a model cannot be read, or the file exists.

    Example:
        >>> framefit.init("face.onnx", "depth.onnx").priority  # doctest: +SKIP
        'face'
    """
    output = Path(settings.output)
    check_new(output, force=settings.force)
    resolve_target(settings.target, output.parent)
    models: list[Model] = []
    for path in settings.models:
        notify(f"reading {path}")
        models.append(_loaded(path, settings.shapes))
    names = _names([Path(path).stem for path in settings.models])
    order = sorted(range(len(models)), key=lambda place: (models[place].macs, place))
    text = _written(settings, [(names[place], models[place], settings.models[place]) for place in order])
    with write_whole(output.parent / SCHEMA_FILE, force=True) as file:
        file.write(_described(Workload).encode())
    with write_whole(output, force=settings.force) as file:
        file.write(text.encode())
    load_workload(output)
    first, *others = (names[place] for place in order)
    return Initial(app=str(output), priority=first, background=tuple(others))


def _loaded(path: str, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """The model with those of the shapes that it needs: other models' inputs have them, too."""
    given: dict[str, tuple[int, ...]] = {}
    while True:
        try:
            return load_model(path, given, None)
        except InputError as error:
            name = next((name for name in shapes if repr(name) in error.what and name not in given), None)
            if name is None:
                raise
            given[name] = shapes[name]


def _written(settings: InitSettings, models: Sequence[tuple[str, Model, str]]) -> str:
    """The text of an ``app.toml``: the first model runs in every window."""
    folder = Path(settings.output).resolve().parent
    lines = [
        f"#:schema ./{SCHEMA_FILE}",
        "# What may stand here: docs/planning.md, or the schema in an editor that reads it.",
        "",
        f"target = {msgspec.json.encode(settings.target).decode()}",
        f"rate_hz = {settings.rate_hz:g}  # frames a second, of the camera or of audio blocks",
    ]
    for place, (name, model, path) in enumerate(models):
        inputs = ", ".join(f"{tensor.name} {_shape(tensor.shape)} {tensor.dtype}" for tensor in model.inputs)
        shown = Path(path).resolve()
        shown = shown.relative_to(folder) if shown.is_relative_to(folder) else shown
        lines += [
            "",
            "[[models]]",
            f"name = {msgspec.json.encode(name).decode()}",
            f"path = {msgspec.json.encode(shown.as_posix()).decode()}",
            f'priority = "{"background" if place else "every-window"}"',
            *_shapes(model, settings.shapes),
            f"# {model.macs / 1e6:,.1f} million multiply-accumulates; inputs: {inputs}",
        ]
    return "\n".join([*lines, ""])


def _shapes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The line of an entry that fixes the open shapes of its model."""
    fixed = [
        f"{toml_key(tensor.name)} = {list(tensor.shape or ())}"
        for tensor in model.inputs
        if tuple(tensor.shape or ()) == tuple(shapes.get(tensor.name, ("",)))
    ]
    return [f"shapes = {{ {', '.join(fixed)} }}"] if fixed else []


def _shape(shape: Sequence[int | str | None] | None) -> str:
    return "of any shape" if shape is None else "x".join(str(size) for size in shape) or "scalar"


def _names(stems: Sequence[str]) -> list[str]:
    """Names of models: the files', numbered where several have the same."""
    names: list[str] = []
    for stem in stems:
        count = 2
        name = stem
        while name in names:
            name, count = f"{stem}-{count}", count + 1
        names.append(name)
    return names


def _described(kind: type[Record]) -> str:
    """The schema of a kind of file; docstrings are split into descriptions of the record and of its keys."""
    described: dict[str, Any] = msgspec.json.schema(kind)
    for definition in described["$defs"].values():
        text = definition.get("description", "")
        keys = {
            name: " ".join(words.split()) for names, words in _ATTRIBUTE.findall(text) for name in names.split(", ")
        }
        if "description" in definition:
            definition["description"] = _plain(text.split("\n\n")[0])
        for key, property_ in definition.get("properties", {}).items():
            if key in keys:
                property_["description"] = _plain(keys[key])
    title = kind.file_kind or kind.__name__
    return json.dumps(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **described}, indent=1
    )


def _plain(text: str) -> str:
    """Text of a docstring without its markup."""
    return _REFERENCE.sub(lambda match: match[1] or match[2], text).strip()
