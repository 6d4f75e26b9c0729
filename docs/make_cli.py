"""Write docs/cli.md, the reference of all commands, from their settings records: ``python docs/make_cli.py``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_origin

from framefit.cli.commands import COMMANDS
from framefit.cli.screen import Screen
from framefit.core.settings import Option, options

HEAD = """\
# Commands and their options

Made by `python docs/make_cli.py` from the settings records: change these, not this page. `framefit VERB --help` shows \
the same. In Python the function of a verb takes options by the names in the second column, or its settings record: \
`framefit.run("app.toml", seconds=5)` is `framefit.run(RunSettings(app="app.toml", seconds=5))`. `--json` prints the \
result as JSON on standard output, and nothing else, or without a result the reason (`error`, `what`, `where`, \
`remedy`); progress and messages are on standard error. Exit codes: 0 done, \
1 a valid negative answer, 2 wrong usage or input, 3 the device or runtime failed, 4 undecided (`check`), \
130 interrupted. Where no workload \
is named, `app.toml` of the current folder is meant. On a terminal one line shows what a command is doing; elsewhere \
each step is a line on standard error. `framefit --install-completion` makes the shell complete commands, options and \
their words.

Every command also takes:

"""
_HEADING = "| option | in Python | default | meaning |\n| --- | --- | --- | --- |\n"


def reference() -> str:
    """The page."""
    shared = options(Screen)
    parts = [HEAD + _HEADING + "".join(_row(each, python=False) for each in shared.values())]
    for name, (verb, screen, command) in COMMANDS.items():
        text = (inspect.getdoc(command) or "").replace("\nExample: ", "\n    ")
        known = {} if verb is None else options(verb)
        rows = [_row(each, python=True) for each in known.values()]
        rows += [_row(each, python=False) for each in options(screen).values() if each.name not in shared]
        table = _HEADING + "".join(rows)
        record = "" if verb is None else f"\nSettings record: `{verb.__module__}.{verb.__qualname__}`.\n\n{table}"
        parts.append(f"## framefit {name}\n\n{text}\n{record}")
    return "\n".join(parts)


def _row(each: Option, *, python: bool) -> str:
    if each.argument:
        spelled = each.flag
    else:
        flags = ", ".join(each.flags or (each.flag,)).replace("/", " / ")
        spelled = flags if each.kind is bool else f"{flags} {_value(each)}"
    spelled = spelled.replace("|", "\\|")  # for a cell of a table
    text = each.text + (f" In Python also {each.python}." if each.python and python else "")
    name = f"`{each.name}`" if python else ""
    return f"| `{spelled}` | {name} | {_default(each)} | {text} |\n"


def _value(each: Option) -> str:
    words = [*map(str, each.choices), *filter(None, [each.none])]
    if each.metavar is None and words and not each.joined:
        return "|".join(words)
    return each.metavar or {int: "N", float: "NUMBER"}.get(each.kind, "TEXT")


def _default(each: Option) -> str:
    default: Any = each.default
    if default is ...:
        return "required"
    if each.none is not None and default is None:
        return each.none
    if default in (None, (), {}, "") or default is False:
        return ""
    if default is True:
        return "yes"
    return ", ".join(map(str, default)) if get_origin(each.kind) is tuple else f"{default}"


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(reference())
