"""``framefit``: all commands, and how errors and interrupts end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from framefit.cli.commands import add_commands
from framefit.errors import FramefitError

app = typer.Typer(
    name="framefit",
    help="Fits several neural networks into every frame of a small device, and proves it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


add_commands(app)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"framefit {version('framefit')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Fits several neural networks into every frame of a small device, and proves it."""


def main() -> None:
    """Entry point of the console script."""
    ended(app)


def ended(program: Callable[[], object]) -> None:
    """Call a program; its errors end this one as one message and their exit code."""
    try:
        try:
            program()
        finally:
            sys.stdout.flush()
    except FramefitError as error:
        lines = str(error).splitlines()
        print("\n".join([f"framefit: {lines[0]}", *lines[1:]]), file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("framefit: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except BrokenPipeError:  # a reader such as `head` went away
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # of stdout, or of a file that nobody spoke of: the disk is full, or gone
        with contextlib.suppress(OSError):  # what is left to print would fail again when the interpreter ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"framefit: {error}\nremedy: check folder, permissions and space", file=sys.stderr)  # noqa: T201
        sys.exit(3)
