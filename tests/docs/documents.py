"""Documents whose code is executed as a reader would: block after block, in one folder."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from framefit.cli.app import main

__all__ = ["ROOT", "Block", "Walkthrough", "blocks"]

ROOT = Path(__file__).resolve().parents[2]


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        kind: the word behind its fence.
        text: what is in it.
        line: of the document, where it begins.
    """

    kind: str
    text: str
    line: int


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = document.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(one[1], one[2], text.count("\n", 0, one.start()) + 1) for one in found]


@dataclass
class Walkthrough:
    """One way through a document.

    ``toml`` and ``json`` blocks whose first line is a comment with a file's name are that file. ``python`` blocks
    share their names. Of ``console`` blocks lines that begin with ``$`` are commands; what follows is what they
    print. A ``text`` block is what the Python block before it prints. ``...`` stands for anything.

    Attributes:
        folder: the current one.
        names: that Python blocks find.
        examples: command -> folder that it wrote once for all tests; other examples are run.
    """

    folder: Path
    names: dict[str, Any]
    examples: Mapping[str, Path] = field(default_factory=dict)
    printed: str = ""

    def follow(self, document: Path) -> None:
        """Execute a document's blocks.

        Raises:
            AssertionError: a command fails, or prints something else.
        """
        for block in blocks(document):
            where = f"{document.name}, line {block.line}"
            if block.kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(block.text, where, "exec"), self.names)
                self.printed = out.getvalue()
            elif block.kind == "console":
                for command, expected in _commands(block.text):
                    _compare(expected, self._run(shlex.split(command, comments=True)), f"{where}: {command}")
            elif block.kind == "text":
                _compare(block.text, self.printed, where)
            else:
                name = re.match(r"# (\S+)", block.text)
                assert name, f"{where}: nothing is done with this block"
                (self.folder / name[1]).write_text(block.text)

    def _run(self, words: list[str]) -> str:
        """What a command prints.

        Raises:
            AssertionError: it fails.
        """
        if words[0] == "framefit":
            return _called(words, main)
        assert words[0] == "python", words
        written = self.examples.get(shlex.join(words))
        if written is None:
            return _called(words[1:], lambda: runpy.run_path(str(ROOT / words[1]), run_name="__main__"))
        shutil.copytree(written, self.folder / written.name)
        return ""


def _called(words: list[str], function: Callable[[], object]) -> str:
    """What a program prints that finds these words as its arguments."""
    out, error = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        patch.setattr(sys, "argv", words)
        patch.setenv("COLUMNS", "120")
        code = _exit_code(function)
    assert not code, f"{shlex.join(words)} ended with {code}:\n{error.getvalue()}"
    return out.getvalue()


def _exit_code(function: Callable[[], object]) -> object:
    try:
        function()
    except SystemExit as end:
        return end.code
    return 0


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands of a console, with what they print."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.replace("\\\n", " ").partition("\n")
        yield command, expected


def _compare(expected: str, printed: str, where: str) -> None:
    """Word by word; ``...`` stands for any words, or none."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in expected.split("..."))
    if expected.strip() and not re.fullmatch(pattern, " ".join(printed.split())):
        raise AssertionError(f"{where} prints\n{printed}\nand not\n{expected}")
