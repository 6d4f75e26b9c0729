"""Commands made from settings records: each field of a record is one option of the command line."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
import typer

from framefit.cli.inputs import check_inputs, known_words
from framefit.cli.screen import BoardScreen, Screen, logged, show_json
from framefit.core.files import Record
from framefit.core.settings import Option, Settings, options, settings_of
from framefit.errors import FramefitError

_METAVARS = {int: "N", float: "NUMBER", str: "TEXT"}


class Reason(Record, kw_only=True):
    """Why a command has no result, as ``--json`` prints it; the exit code says of which kind it is.

    Attributes:
        error: name of the class in :mod:`framefit.errors`.
        what, where, remedy: as in the message on stderr.
    """

    error: str
    what: str
    where: str | None
    remedy: str | None


S = TypeVar("S", bound=Screen)
Command = Callable[[dict[str, Any], S], int | None]
"""What does a verb's work: takes the options that were given to the verb, and the screen's; gives the exit code."""


def add_command(app: typer.Typer, name: str, verb: type[Settings] | None, screen: type[S], command: Command[S]) -> None:
    """Add a command whose options are the fields of two records.

    Args:
        app: gets it.
        name: of the command.
        verb: the record of the verb; ``None``: it has no options.
        screen: the record of what only the command line has.
        command: does the work; its docstring is the help text.
    """
    verb_options = {} if verb is None else options(verb)
    screen_options = options(screen)
    every = {**verb_options, **screen_options}

    def call(context: typer.Context, **values: Any) -> None:
        try:
            given = given_options(context, every, values)
            screen_given = {name: given.pop(name) for name in list(given) if name in screen_options}
            screen_settings = settings_of(screen, screen_given)
            board = _board(screen_settings, every, given)
            check_inputs(every, given, board)
            if verb is not None and "resume" not in given:  # else what is missing is as it was
                settings_of(verb, given)
            with logged(screen_settings):
                if board is not None:
                    from framefit.cli.boards import perform_there

                    code: int | None = perform_there(board, screen_settings, name, every, given, screen_given)
                else:
                    code = command(given, screen_settings)
        except FramefitError as error:
            if values.get("json"):
                show_reason(error)
            raise
        if code:
            raise typer.Exit(code)

    call.__doc__ = inspect.getdoc(command)
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    resumable = "resume" in every  # then what is not given is as in the folder that --resume names
    parameters = [_parameter(each, required=each.required and not resumable) for each in every.values()]
    call.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    call.__annotations__ = {"context": typer.Context}
    app.command(name)(call)


def _board(screen: Screen, every: Mapping[str, Option], given: Mapping[str, Any]) -> str | None:
    """The board on which a command is done: ``--on``, else the one that the workload names as its target."""
    if not isinstance(screen, BoardScreen):
        return None
    if screen.on is not None or {"target", "targets", "resume"} & given.keys():
        return screen.on
    for name, option in every.items():
        if option.names in ("workload", "workload or plan"):
            from framefit.boards.registry import named_board

            return named_board(Path(str(given.get(name, option.default))))
    return None


def show_reason(error: FramefitError) -> None:
    """Print why there is no result as JSON."""
    show_json(Reason(error=type(error).__name__, what=error.what, where=error.where, remedy=error.remedy))


def given_options(context: typer.Context, every: dict[str, Option], values: dict[str, Any]) -> dict[str, Any]:
    """What the user wrote, in the forms that settings records take; what is not written is left out."""
    given = {}
    for name, value in values.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT" and value is not None:
            given[name] = _read(every[name], value)
            try:
                every[name].check(given[name])
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint=every[name].flag) from None
    return given


def _parameter(each: Option, *, required: bool) -> inspect.Parameter:
    """A parameter as typer wants it; values are text to it, which :func:`_read` converts."""
    kind: Any = bool if each.kind is bool else list[str] if _is_repeated(each) else str
    details = dict[str, Any](help=_help(each))
    if kind is not bool:
        details["metavar"] = _metavar(each)
        details["autocompletion"] = lambda incomplete: [w for w in known_words(each) if w.startswith(incomplete)]
    if each.argument:
        info: Any = typer.Argument(show_default=False, **details)
    else:
        flags = each.flags or (f"--{each.name.replace('_', '-')}",)
        if kind is bool and not each.flags and each.default is True:
            flags = (f"{flags[0]}/--no-{flags[0][2:]}",)
        info = typer.Option(*flags, show_default=False, **details)
    default = each.default if kind is bool else None
    if each.required and required:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _metavar(each: Option) -> str:
    """The form of a value in help texts: a name, the words to choose from, or the range of a number."""
    words = "|".join(map(str, [*each.choices, *filter(None, [each.none])]))
    return each.metavar or (f"[{words}]" if each.choices else _METAVARS.get(each.kind, "TEXT"))


def _help(each: Option) -> str:
    more = "May be repeated." if _is_repeated(each) and not each.argument else ""
    default = f" [default: {_default_text(each)}]" if _shows_default(each) else ""
    return " ".join(filter(None, [each.text, more, default]))


def _shows_default(each: Option) -> bool:
    return not (each.argument or each.default is False or each.default in (..., None, (), {}, ""))


def _default_text(each: Option) -> str:
    if isinstance(each.default, bool):
        return (each.flags[0] if each.flags else each.flag).split("/")[0].removeprefix("--")
    return ", ".join(map(str, each.default)) if isinstance(each.default, tuple) else str(each.default)


def _is_repeated(each: Option) -> bool:
    return each.many or (get_origin(each.kind) in (tuple, dict) and not each.joined)


def _read(each: Option, value: Any) -> Any:
    """What typer gives, in the type of the field.

    Raises:
        typer.BadParameter: text of another form.
    """
    text = value
    try:
        if get_origin(each.kind) is dict:
            return _pairs(each, value)
        if isinstance(value, list) and get_origin(each.kind) is tuple:
            items = []
            for text in value:
                items.append(_item(get_args(each.kind)[0], text))
            return tuple(items)
        return _item(each.kind, value) if isinstance(value, str) and value != each.none else value
    except (ValueError, msgspec.ValidationError):
        text = " ".join(text) if isinstance(text, list) else text
        raise typer.BadParameter(f"{text!r} {_expected(each, text)}", param_hint=each.flag) from None


def _expected(each: Option, text: str) -> str:
    """What a value should have been, as the end of a sentence."""
    words = known_words(each)
    near = difflib.get_close_matches(text, words, n=1)
    if near:
        return f"is unknown; did you mean {near[0]!r}?"
    example = f", such as {each.example}" if each.example else ""
    if each.metavar and not (each.kind in (int, float) and each.metavar in _METAVARS.values()):
        form = each.metavar
    elif each.choices:
        return f"is unknown; choose from {', '.join(words)}"
    else:
        form = " or ".join(["a whole number" if each.kind is int else "a number", *words])
    return f"is not of the form {form}{example}"


def _item(kind: Any, text: Any) -> Any:
    """One value; ``1,3,240,320`` are numbers, ``128x64`` a pair of them."""
    if not isinstance(text, str) or kind in (str, Any):
        return text
    if get_origin(kind) is not tuple:
        return msgspec.convert(_number(text), kind)
    parts = text.split("," if get_args(kind)[-1] is Ellipsis else "x")
    return msgspec.convert([_number(part) for part in parts], kind)


def _number(text: str) -> int | float | str:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def _pairs(each: Option, texts: list[str]) -> dict[str, Any]:
    """``NAME=VALUE``; a path alone has the empty name, and may hold a "=", too."""
    _, kind = get_args(each.kind)
    pairs: dict[str, Any] = {}
    for text in texts:
        if kind is str:
            name, equals, value = text.partition("=")
            name, value = (name, value) if equals and not Path(text).exists() else ("", text)
        else:
            name, equals, value = text.rpartition("=")
            if not name:
                raise ValueError(text)
        if name in pairs:
            raise typer.BadParameter(f"{each.name} of {name or 'one model'} are given twice", param_hint=each.flag)
        pairs[name] = _item(float if kind is Any else kind, value)
    return pairs
