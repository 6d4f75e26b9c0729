"""Functions of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from framefit import InputError
from framefit.core.functions import error_text, load_function


@pytest.fixture(autouse=True)
def _clean_modules() -> object:
    """Modules of one test are not loaded for the next."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, text: str, name: str = "mine") -> Path:
    """A module."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return folder


def test_the_apps_folder_comes_first(tmp_path: Path) -> None:
    """The module beside the app is found, and Python's path is as before."""
    path = list(sys.path)
    assert load_function("mine:double", write(tmp_path, "def double(x): return 2 * x"), "here")(4) == 8
    assert sys.path == path


def test_installed_modules(tmp_path: Path) -> None:
    """Modules that are installed, and dotted ones, are found too."""
    import os.path

    assert load_function("os.path:join", tmp_path, "here") is os.path.join


def test_apps_with_modules_of_one_name(tmp_path: Path) -> None:
    """Each app gets its own module, whatever was loaded before."""
    for number in (1, 2, 1):
        folder = write(tmp_path / str(number), f"def which(): return {number}")
        assert load_function("mine:which", folder, "here")() == number


def test_a_module_called_like_a_loaded_one(tmp_path: Path) -> None:
    """The app's module hides another one from nobody else."""
    import json

    folder = write(tmp_path, "def dumps(x): return 'mine'", "json")
    assert load_function("json:dumps", folder, "here")(1) == "mine"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("spec", "text", "message"),
    [
        ("gone:f", "", "no module 'gone'"),
        ("mine.gone:f", "", "no module 'mine.gone'"),
        ("mine:f", "", "module 'mine' has no 'f'"),
        ("mine:f", "f = 3", "'mine:f' is a int, not a function"),
        ("mine:f", "import gone", r"importing 'mine' failed: ModuleNotFoundError: No module named 'gone' \(mine\.py"),
        ("mine:f", "\nraise ValueError('bad\\nworse')", r"failed: ValueError: bad \(mine\.py, line 2\)\n"),
        ("mine:f", "def f(:", r"importing 'mine' failed: SyntaxError: .* \(mine\.py, line 1\)\n"),
        ("mine:f", "import sys; sys.exit(1)", "importing 'mine' failed: SystemExit"),
        ("mine", "", "'mine' names no function"),
    ],
)
def test_functions_that_cannot_be_used(tmp_path: Path, spec: str, text: str, message: str) -> None:
    """Each mistake is told in one line, with where and what to do; the path stays as it was."""
    path = list(sys.path)
    with pytest.raises(InputError, match=message) as found:
        load_function(spec, write(tmp_path, text), "stream 'camera'")
    assert found.value.where == "stream 'camera'"
    assert found.value.remedy
    assert "\n" not in found.value.what
    assert sys.path == path


def test_exceptions_in_one_line() -> None:
    """Kind, the message's first line, and the place where it was raised."""
    assert error_text(KeyError()) == "KeyError"
    with pytest.raises(RuntimeError) as found:
        raise RuntimeError("one\ntwo")
    assert error_text(found.value).startswith("RuntimeError: one (test_functions.py, line ")
