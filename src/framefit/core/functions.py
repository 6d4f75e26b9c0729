"""Functions of the user that a workload names: ``"module:function"``."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from framefit.core.workload import names_function
from framefit.errors import InputError

__all__ = ["error_text", "load_function", "load_plugin", "refuse_functions", "without_functions"]


_refusals: list[str] = []


def refuse_functions(reason: str) -> None:
    """From now on this process imports no function that a workload names.

    Args:
        reason: for the message.
    """
    _refusals.append(reason)


@contextmanager
def without_functions(reason: str) -> Iterator[None]:
    """The same for a while.

    Args:
        reason: for the message.
    """
    refuse_functions(reason)
    try:
        yield
    finally:
        _refusals.remove(reason)


def load_function(spec: str, folder: Path, where: str) -> Callable[..., Any]:
    """Import the function that ``spec`` names.

    The module is searched in ``folder`` first, then in Python's search path. A module of that name that is already
    loaded from elsewhere is not changed for other users.

    Args:
        spec: "module:function"; the module may be dotted.
        folder: folder of the app.
        where: key or entry, for messages.

    Raises:
        InputError: the module or attribute does not exist, the attribute cannot be called, the module fails while it
            is imported, or this process imports none.
    """
    if _refusals:
        raise InputError(
            f"{spec!r} is not imported: {_refusals[0]}", where=where, remedy="use files, or run the workload there"
        )
    if not names_function(spec):
        raise InputError(f"{spec!r} names no function", where=where, remedy='write "module:function"')
    name, _, attribute = spec.partition(":")
    root = name.partition(".")[0]
    folder = folder.resolve()
    with _importing_from(folder, root):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name != missing and not name.startswith(f"{missing}."):
                raise InputError(
                    f"importing {name!r} failed: {error_text(error)}", where=where, remedy=f"install {missing!r}"
                ) from error
            raise InputError(
                f"no module {name!r}", where=where, remedy=f"put {root}.py beside the app, or install it"
            ) from None
        except (Exception, SystemExit) as error:  # the user's module may raise anything
            raise InputError(
                f"importing {name!r} failed: {error_text(error)}", where=where, remedy="correct the module"
            ) from error
    try:
        function = getattr(module, attribute)
    except AttributeError:
        raise InputError(
            f"module {name!r} has no {attribute!r}", where=where, remedy="correct the name, or define it"
        ) from None
    if not callable(function):
        raise InputError(f"{spec!r} is a {type(function).__name__}, not a function", where=where, remedy="name one")
    loaded: Callable[..., Any] = function
    return loaded


def load_plugin(group: str, name: str, where: str) -> Callable[..., Any] | None:
    """What an installed package registers under a name.

    Args:
        group: of entry points.
        name: of the entry.
        where: key or entry, for messages.

    Returns:
        ``None`` where no package does.

    Raises:
        InputError: it cannot be imported.
    """
    from importlib import metadata  # takes 40 ms

    for entry in metadata.entry_points(group=group, name=name):
        try:
            loaded: Callable[..., Any] = entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else entry.value
            raise InputError(
                f"importing {entry.value!r} failed: {error_text(error)}",
                where=where,
                remedy=f"update or remove {package}",
            ) from error
        return loaded
    return None


def error_text(error: BaseException) -> str:
    """Describe an exception of the user's code in one line: kind, message, and where it was raised."""
    message = next(iter(str(error).splitlines()), "")
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename or '?').name}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{f': {message}' if message else ''}{place}"


@contextmanager
def _importing_from(folder: Path, root: str) -> Iterator[None]:
    """Search the folder first; a module of the same name from elsewhere is removed meanwhile."""
    removed = {}
    if (folder / f"{root}.py").is_file() or (folder / root).is_dir():
        loaded = sys.modules.get(root)
        file = getattr(loaded, "__file__", None)
        if loaded is not None and (file is None or not Path(file).resolve().is_relative_to(folder)):
            removed = _removed(root)
    path = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        if removed:
            _removed(root)
            sys.modules.update(removed)


def _removed(root: str) -> dict[str, Any]:
    """Remove a module and its submodules from Python's list of loaded modules."""
    names = [name for name in sys.modules if name == root or name.startswith(f"{root}.")]
    return {name: sys.modules.pop(name) for name in names}
