"""A first workload for models, and the JSON Schema of the project's files, by which editors complete and check them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from framefit.core.boards import Boards
from framefit.core.files import Record, check_new, toml_key, write_whole
from framefit.core.formats import BUILTIN_MODELS
from framefit.core.model import Model
from framefit.core.model.builtin import load_model
from framefit.core.model.loading import declared_inputs, integer_scalars
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import Target, resolve_target
from framefit.core.workload import Workload, load_workload
from framefit.execution.wiring import usual_option
from framefit.workflows.settings import InitSettings, SchemaSettings

__all__ = ["init", "schema"]

_CHANNELS = (1, 3, 4)
_SIDE = 224  # that of most image classifiers, and a multiple of 32, by which most detectors divide
SCHEMA_FILE = "app.schema.json"
_RECORDS: dict[str, type[Record]] = {"app": Workload, "target": Target, "boards": Boards}
_ATTRIBUTE = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {8}.*)*)", re.MULTILINE)
_REFERENCE = re.compile(r":\w+:`[~.]?([^`]*)`|``([^`]*)``")


class Initial(Record, kw_only=True):
    """What ``framefit init`` wrote.

    Attributes:
        app: path of the workload.
        priority: name of the model that runs in every window: the one with the fewest multiply-accumulates.
        background: names of the others.
        guesses: what the files leave open and a user should check, as sentences.
    """

    app: str
    priority: str
    background: tuple[str, ...]
    guesses: tuple[str, ...] = ()


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

    The model with the fewest multiply-accumulates runs in every window, the others in the time that is left. Sizes of
    images that files leave open, options and states are guessed, and said.

    Args:
        settings: of the workload.
        notify: receives messages on the progress.

    Raises:
        InputError: a model cannot be read or leaves other sizes open, or the file exists.

    Example:
        >>> framefit.init("face.onnx", "depth.onnx").priority  # doctest: +SKIP
        'face'
    """
    output = Path(settings.output)
    check_new(output, force=settings.force)
    resolve_target(settings.target, output.parent)
    names = _names([Path(path).stem for path in settings.models])
    drafts: list[_Draft] = []
    for name, path in zip(names, settings.models, strict=True):
        notify(f"reading {path}")
        drafts.append(_draft(name, path, settings.shapes))
    drafts.sort(key=lambda draft: draft.model.macs)
    text = _written(settings, drafts)
    with write_whole(output.parent / SCHEMA_FILE, force=True) as file:
        file.write(_described(Workload).encode())
    with write_whole(output, force=settings.force) as file:
        file.write(text.encode())
    load_workload(output)
    first, *others = (draft.name for draft in drafts)
    return Initial(
        app=str(output),
        priority=first,
        background=tuple(others),
        guesses=tuple(f"{draft.name}: {guess}" for draft in drafts for guess in draft.guesses),
    )


class _Draft(NamedTuple):
    """An entry of ``[[models]]``, with what its file leaves open: from the options or guessed."""

    name: str
    path: str
    model: Model
    shapes: dict[str, tuple[int, ...]]
    constants: dict[str, int]
    state: dict[str, str]
    guesses: list[str]


def _draft(name: str, path: str, given: Mapping[str, tuple[int, ...]]) -> _Draft:
    """Raises: InputError: the file is no model, or leaves a size open that is neither given nor an image's."""
    if path in BUILTIN_MODELS:
        return _Draft(name, path, load_model(path, None, None), {}, {}, {}, [])
    guesses: list[str] = []
    declared = declared_inputs(path)
    constants = {key: usual_option(key) or 1 for key in sorted(integer_scalars(path))} if len(declared) > 1 else {}
    guesses += [f"input {key!r} is one whole number, here {value}" for key, value in constants.items()]
    shapes: dict[str, tuple[int, ...]] = {}
    for key, sizes in declared.items():
        if key in given and (sizes is None or None in sizes):  # inputs of other models may have this name, too
            shapes[key] = given[key]
        elif sizes is not None and (image := _image(sizes)) is not None:
            shapes[key] = image
            guesses.append(f"input {key!r} leaves its size open, here {_shape(image)}")
    model = load_model(path, shapes, constants)
    state = _state(model)
    guesses += [f"input {key!r} is a state, which output {value!r} gives back" for key, value in state.items()]
    return _Draft(name, path, model, shapes, constants, state, guesses)


def _image(sizes: Sequence[int | None]) -> tuple[int, ...] | None:
    """A usual size for an image that leaves its own open, channels first or last; ``None``: it is none."""
    if len(sizes) != 4:
        return None
    if sizes[1] in _CHANNELS and None in sizes[2:]:
        return (sizes[0] or 1, sizes[1] or 1, sizes[2] or _SIDE, sizes[3] or _SIDE)
    if sizes[3] in _CHANNELS and None in sizes[1:3]:
        return (sizes[0] or 1, sizes[1] or _SIDE, sizes[2] or _SIDE, sizes[3] or 1)
    return None


def _state(model: Model) -> dict[str, str]:
    """Inputs with the outputs that they are fed from: of one type and shape, and named alike ("state", "stateN")."""
    state: dict[str, str] = {}
    for tensor in model.inputs if len(model.inputs) > 1 else ():  # one input alone is what the model looks at
        alike = [
            output.name
            for output in model.outputs
            if (output.dtype, output.shape) == (tensor.dtype, tensor.shape)
            and (tensor.name in output.name or output.name in tensor.name)
            and output.name not in state.values()
        ]
        if len(alike) == 1:
            state[tensor.name] = alike[0]
    return state


def _written(settings: InitSettings, drafts: Sequence[_Draft]) -> str:
    """The text of an ``app.toml``: the first model runs in every window."""
    folder = Path(settings.output).resolve().parent
    lines = [
        f"#:schema ./{SCHEMA_FILE}",
        "# What may stand here: docs/planning.md, or the schema in an editor that reads it.",
        "",
        f"target = {_quoted(settings.target)}",
        f"rate_hz = {settings.rate_hz:g}  # frames a second, of the camera or of audio blocks",
    ]
    for place, draft in enumerate(drafts):
        inputs = ", ".join(f"{tensor.name} {_shape(tensor.shape)} {tensor.dtype}" for tensor in draft.model.inputs)
        shown = Path(draft.path).resolve()
        shown = shown.relative_to(folder) if shown.is_relative_to(folder) else shown
        lines += [
            "",
            "[[models]]",
            f"name = {_quoted(draft.name)}",
            f"path = {_quoted(shown.as_posix())}",
            f'priority = "{"background" if place else "every-window"}"',
            *_table("shapes", {key: str(list(shape)) for key, shape in draft.shapes.items()}),
            *_table("constants", {key: str(value) for key, value in draft.constants.items()}),
            *_table("state", {key: _quoted(value) for key, value in draft.state.items()}),
            *(f"# guessed: {guess}" for guess in draft.guesses),
            f"# {draft.model.macs / 1e6:,.1f} million multiply-accumulates; inputs: {inputs}",
        ]
    return "\n".join([*lines, ""])


def _table(key: str, values: Mapping[str, str]) -> list[str]:
    """The line of an entry's inline table, if anything is in it."""
    inner = ", ".join(f"{toml_key(name)} = {value}" for name, value in values.items())
    return [f"{key} = {{ {inner} }}"] if inner else []


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


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
    records = {record.__name__: record for record in _subclasses(Record)}
    for name, definition in described["$defs"].items():
        if name not in records:
            continue
        texts = [inspect.getdoc(base) or "" for base in reversed(records[name].__mro__) if issubclass(base, Record)]
        keys = {
            key: " ".join(words.split())
            for text in texts  # the record's own after those that it extends
            for names, words in _ATTRIBUTE.findall(text)
            for key in names.split(", ")
        }
        definition["description"] = _plain(texts[-1].split("\n\n")[0])
        for key, property_ in definition.get("properties", {}).items():
            if key in keys:
                property_["description"] = _plain(keys[key])
    title = kind.file_kind or kind.__name__
    return json.dumps(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **described}, indent=1
    )


def _subclasses(kind: type[Record]) -> Iterator[type[Record]]:
    for record in kind.__subclasses__():
        yield record
        yield from _subclasses(record)


def _plain(text: str) -> str:
    """Text of a docstring without its markup."""
    return _REFERENCE.sub(lambda match: match[1] or match[2], text).strip()
