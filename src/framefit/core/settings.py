"""A settings record is the only list of a verb's options.

Each verb (``framefit run``, :func:`framefit.run`) has one frozen record. Its fields, their types, defaults, limits and
descriptions make the options of the command line, the signature and docstring of the Python function, and
docs/cli.md. Modules with settings records import nothing heavy: the command line is built from them. Options that
several verbs have in common are the types at the end of this module.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import msgspec

from framefit.core.files import Record
from framefit.errors import InputError

__all__ = [
    "InputConstants",
    "InputShapes",
    "ModelFile",
    "Notify",
    "Option",
    "OverwriteFile",
    "Settings",
    "SupportingUnit",
    "Workers",
    "check_workers",
    "option",
    "options",
    "part_of",
    "settings_of",
    "silent",
    "verb",
]


S = TypeVar("S", bound="Settings")
P = ParamSpec("P")
R = TypeVar("R")
Earlier = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Named = Literal["workload", "workload or plan", "model", "models", "module", "target", "path", "new path"]
"""What the text of an option names: a workload's file; this, or a stored plan or a run folder; a built-in model or an
ONNX file; this, or "auto" or "none"; this, or "module:function"; a target or its file; what must be there; what must
not be there unless it may be overwritten.
"""
Notify = Callable[[str], None]
"""An argument of verbs beside their settings: receives messages on the progress."""


def silent(message: str) -> None:
    """Receive messages, and ignore them."""


@dataclass(frozen=True)
class Option:
    """One field of a settings record, as an option.

    Attributes:
        name: of the field, and of the option in Python.
        kind: its type without ``None``; ``Any``: a path or name, or an object in Python.
        default: ``...`` if there is none.
        text: its description.
        flags: on the command line, if they are not the name with two dashes.
        metavar: name of the value in help texts.
        example: of a value, for messages about malformed ones.
        argument: whether it is a positional argument on the command line.
        python: what else it may be in Python, as a part of a sentence.
        many: whether it may be repeated on the command line.
        joined: whether its numbers are one value on the command line, with commas between them.
        none: the word for ``None`` on the command line, if that is not the default.
        names: what its text names, which the command line checks before anything heavy is loaded.
        ge, gt, le, lt: limits, as in ``msgspec.Meta``.
    """

    name: str
    kind: Any
    default: Any
    text: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    example: str | None = None
    argument: bool = False
    python: str | None = None
    many: bool = False
    joined: bool = False
    none: str | None = None
    names: Named | None = None
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is ...

    @property
    def choices(self) -> tuple[Any, ...]:
        """Values of a ``Literal``, alone, beside other types or several of them; empty: there is none."""
        several = _is_union(self.kind) or get_origin(self.kind) is tuple
        parts = get_args(self.kind) if several else (self.kind,)
        return tuple(value for part in parts if get_origin(part) is Literal for value in get_args(part))

    @property
    def flag(self) -> str:
        """Its name for a user of the command line."""
        if self.argument:
            return self.metavar or self.name.upper()
        return self.flags[-1].split("/")[0] if self.flags else f"--{self.name.replace('_', '-')}"

    def check(self, value: Any) -> None:
        """Check the limits. Raises: ValueError: a number is beyond them."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        limits = (
            ("at least", self.ge, operator.ge),
            ("greater than", self.gt, operator.gt),
            ("at most", self.le, operator.le),
            ("less than", self.lt, operator.lt),
        )
        stated = [(words, limit, holds) for words, limit, holds in limits if limit is not None]
        if not all(holds(value, limit) for _, limit, holds in stated):
            wanted = " and ".join(f"{words} {limit:g}" for words, limit, _ in stated)
            raise ValueError(f"{self.name} must be {wanted}, is {value}")


def option(text: str, *flags: str, **details: Any) -> msgspec.Meta:
    """Describe a field of a settings record, in its ``Annotated`` type.

    Args:
        text: a plain English description, with units, for ``--help``, docstrings and docs/cli.md.
        flags: see :class:`Option`.
        details: further fields of :class:`Option`.
    """
    return msgspec.Meta(description=text, extra={"flags": flags, **details})


class Settings(Record, kw_only=True):
    """Base of every settings record: limits are checked when a record is made."""

    def __post_init__(self) -> None:
        for each in options(type(self)).values():
            each.check(getattr(self, each.name))


@functools.cache
def options(kind: type[Settings]) -> dict[str, Option]:
    """The options of a settings record, in order: its fields with a description by :func:`option`."""
    hints = typing.get_type_hints(kind, include_extras=True)
    described = {}
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        meta = next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, msgspec.Meta)), None)
        if get_origin(hint) is not Annotated or meta is None or meta.description is None:
            continue
        default = field.default if field.default is not msgspec.NODEFAULT else ...
        if field.default_factory is not msgspec.NODEFAULT:
            factory = typing.cast("Callable[[], Any]", field.default_factory)
            default = factory()
        described[field.name] = Option(
            field.name, _without_none(get_args(hint)[0]), default, meta.description, **(meta.extra or {})
        )
    return described


def settings_of(kind: type[S], given: Mapping[str, Any]) -> S:
    """Make a settings record of what a caller or the command line gave.

    Args:
        kind: the record.
        given: option -> value; ``None``: it was not given.

    Raises:
        InputError: an option is unknown (the message names the nearest known one) or missing, or a value has another
            type or is beyond its limits.
    """
    return _made(kind, _converted(kind, given))


_WORKERS = re.compile(r"[1-9]\d*|ray(://\S+)?")


def check_workers(workers: int | str) -> None:
    """Refuse what names no executor (:mod:`framefit.core.executor`).

    Raises:
        ValueError: it is neither a number, nor "ray", nor an address of Ray.
    """
    if not _WORKERS.fullmatch(str(workers)):
        raise ValueError(f"workers is {workers!r}: give a number of processes, ray, or ray://HOST:PORT")


def part_of(settings: Settings, kind: type[S], **changed: Any) -> S:
    """Extract the fields that another record has, too: the stored part of a call's settings.

    Args:
        settings: it has at least the fields of ``kind``.
        kind: type of the other record.
        changed: fields with other values.
    """
    values = {name: getattr(settings, name) for name in kind.__struct_fields__}
    return kind(**(values | changed))


def verb(
    kind: type[S], *positional: str, earlier: Earlier | None = None
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[..., R]]:
    """Turn a function of a settings record into one that takes its fields as options.

    Then ``run(RunSettings(app="app.toml", seconds=5))`` and ``run("app.toml", seconds=5)`` are the same; keyword
    parameters of the function itself, such as ``notify``, are unchanged. Signature and docstring list all options.

    Args:
        kind: the record.
        positional: fields that may be positional, in order; a last one that is a tuple takes all that follow, one after
            the other or in a list.
        earlier: from given values to further ones, such as those of an earlier search that ``resume`` names.
    """

    def decorate(function: Callable[Concatenate[S, P], R]) -> Callable[..., R]:
        _, *parameters = inspect.signature(function).parameters.values()
        names = {parameter.name for parameter in parameters}
        untyped: Callable[..., R] = function

        @functools.wraps(function)
        def call(*arguments: Any, **given: Any) -> R:
            beside = {name: given.pop(name) for name in list(given) if name in names}
            if arguments and isinstance(arguments[0], kind):
                first, *more = arguments
                if more:
                    raise TypeError(f"{function.__name__}() takes no positional arguments beside {kind.__name__}")
                return untyped(msgspec.structs.replace(first, **_converted(kind, given)), **beside)
            values = _converted(kind, _named(function.__name__, kind, positional, arguments, given))
            if earlier is not None:
                values = dict(earlier(values)) | values
            return untyped(_made(kind, values), **beside)

        call.__signature__ = _signature(kind, positional, parameters)  # type: ignore[attr-defined]
        call.__doc__ = _documented(inspect.getdoc(function) or "", kind)
        return call

    return decorate


def _named(
    function: str, kind: type[Settings], positional: tuple[str, ...], arguments: tuple[Any, ...], given: dict[str, Any]
) -> dict[str, Any]:
    """All given values, by name."""
    if positional and get_origin(options(kind)[positional[-1]].kind) is tuple:
        before = len(positional) - 1
        listed = arguments[before:]
        if len(listed) == 1 and isinstance(listed[0], list | tuple):
            listed = tuple(listed[0])
        arguments = (*arguments[:before], listed) if len(arguments) > before else arguments
    if len(arguments) > len(positional):
        raise TypeError(f"{function}() takes {len(positional)} positional arguments, {len(arguments)} were given")
    by_position = dict(zip(positional, arguments, strict=False))
    twice = by_position.keys() & given.keys()
    if twice:
        raise TypeError(f"{function}() got {', '.join(sorted(twice))} twice")
    return by_position | given


def _converted(kind: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """Given values, converted to the types of the fields."""
    known = options(kind)
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"unknown option {name!r}{hint}", remedy=f"known options: {', '.join(known)}")
        if value is not None:
            values[name] = _value(known[name], value)
    return values


def _value(known: Option, value: Any) -> Any:
    if known.none is not None and isinstance(value, str) and value == known.none:
        return None
    if known.kind is Any and isinstance(value, list | tuple):
        return [os.fspath(one) if isinstance(one, os.PathLike) else one for one in value]
    if known.kind is Any:
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    if get_origin(known.kind) is dict and isinstance(value, str | os.PathLike):
        value = {"": value}  # a single path has the empty name
    try:
        return msgspec.convert(_plain(value), known.kind)
    except (msgspec.ValidationError, TypeError) as error:
        if known.choices:
            words = " or ".join(filter(None, [", ".join(map(str, known.choices)), known.none]))
            raise InputError(f"{known.name} is {value!r}", remedy=f"choose from {words}") from error
        what = str(error).partition(" - at ")[0]
        raise InputError(f"{known.name} is {value!r}: {what}", remedy="correct the value") from error


def _plain(value: Any) -> Any:
    """Convert paths to text, arrays and their numbers to Python's own, also inside containers."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _made(kind: type[S], values: Mapping[str, Any]) -> S:
    known = options(kind)
    missing = [each.flag for each in known.values() if each.required and each.name not in values]
    if missing:
        resume = " or name an earlier result with --resume DIR" if "resume" in known else ""
        raise InputError(f"{' and '.join(missing)} missing", remedy=f"give what is missing{resume}")
    try:
        return kind(**values)
    except ValueError as error:
        raise InputError(str(error), remedy="correct the value") from error


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _without_none(kind: Any) -> Any:
    if not _is_union(kind):
        return kind
    parts = tuple(part for part in get_args(kind) if part is not types.NoneType)
    return parts[0] if len(parts) == 1 else Union[parts]  # noqa: UP007 - as many as there are


def _signature(
    kind: type[Settings], positional: tuple[str, ...], parameters: list[inspect.Parameter]
) -> inspect.Signature:
    """The signature with all options, and the function's own parameters."""
    keyword, either = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    known = options(kind)

    def parameter(each: Option, how: Any, *, optional: bool = False) -> inspect.Parameter:
        default = inspect.Parameter.empty if each.required and not optional else each.default
        return inspect.Parameter(each.name, how, default=None if default is ... else default, annotation=each.kind)

    first = [known[name] for name in positional]
    if first and get_origin(first[-1].kind) is tuple:
        rest = inspect.Parameter(first.pop().name, inspect.Parameter.VAR_POSITIONAL)
        leading = [parameter(each, either) for each in first] + [rest]
    else:  # optional parameters must not precede required ones
        optional = [any(not before.required for before in first[:at]) for at in range(len(first))]
        leading = [parameter(each, either, optional=after) for each, after in zip(first, optional, strict=True)]
    others = [parameter(each, keyword) for each in known.values() if each.name not in positional]
    return inspect.Signature([*leading, *others, *(each.replace(kind=keyword) for each in parameters)])


def _documented(text: str, kind: type[Settings]) -> str:
    """A docstring with all options among its ``Args:``, in place of ``settings``."""
    lines = [
        f"    {each.name}: {each.text}" + (f" In Python also {each.python}." if each.python else "")
        for each in options(kind).values()
    ]
    place = text.splitlines()
    at = next(at for at, line in enumerate(place) if line.startswith("    settings:"))
    return "\n".join([*place[:at], *lines, *place[at + 1 :]])


ModelFile = Annotated[
    Any,
    option("ONNX file, or name of a built-in model.", python="a model", argument=True, metavar="MODEL", names="model"),
]
SupportingUnit = Annotated[
    str | None, option("Unit of the target (default: the first unit that supports the model).", metavar="UNIT")
]
InputShapes = Annotated[
    dict[str, tuple[int, ...]],
    option(
        "Shape of an input with dynamic dimensions.", "--shape", metavar="INPUT=1,3,H,W", example="image=1,3,240,320"
    ),
]
InputConstants = Annotated[
    dict[str, Any],
    option("Value of an input that never changes.", "--constant", metavar="INPUT=NUMBER", example="sr=16000"),
]
InputStates = Annotated[
    dict[str, str],
    option(
        "Input that is fed with an earlier output, zeros at first.",
        "--state",
        metavar="INPUT=OUTPUT",
        example="state=stateN",
    ),
]
Workers = Annotated[
    int | str,
    option("Processes that do it; ray, or ray://HOST:PORT: the workers of a Ray cluster.", metavar="N|ray|URL"),
]
OverwriteFile = Annotated[bool, option("Overwrite an existing file.")]
LabelledData = Annotated[
    Any,
    option(
        "Labelled data: an image folder, or an .npz file.",
        metavar="PATH",
        python="an iterable of (x, y), or data that are split already",
        names="path",
    ),
]
ChannelMean = Annotated[
    tuple[float, ...] | None,
    option("Mean of each image channel, for values 0 to 1.", metavar="R,G,B", example="0.49,0.48,0.45", joined=True),
]
ChannelStd = Annotated[
    tuple[float, ...] | None,
    option(
        "Standard deviation of each image channel, for values 0 to 1.",
        metavar="R,G,B",
        example="0.49,0.48,0.45",
        joined=True,
    ),
]
ResumedSearch = Annotated[str | None, option("Continue the search in this folder.", metavar="DIR", names="path")]
OverwriteSearch = Annotated[bool, option("Overwrite an existing folder of a search.")]
