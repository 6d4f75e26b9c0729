"""Checks what options name before anything heavy is imported, so that a wrong path is answered at once.

The verbs read everything again, and check more: what passes here may still be refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from framefit.core.files import check_new
from framefit.core.formats import BUILTIN_MODELS, check_model, check_model_file, check_workload_file
from framefit.core.settings import Option
from framefit.errors import InputError


def check_inputs(every: Mapping[str, Option], given: Mapping[str, Any], board: str | None = None) -> None:
    """Check files, folders and names that are given.

    Args:
        every: the options of a command.
        given: option -> value, as far as the user gave them.
        board: on which it is done, which a workload may name as its target.

    Raises:
        InputError: one is missing, is visibly of another kind, is malformed, or exists and must not be overwritten.
    """
    if "resume" not in given:
        _check_default(every, given)
    for name, value in given.items():
        names = every[name].names
        if names == "new path":
            _check_new(value, every, given)
        elif names == "workload or plan" and given.get("resume"):
            _check_path(value)  # of a run that was cut off, which has neither yet
        elif names == "workload" or names == "workload or plan":
            _check_app(Path(value), plans=names != "workload", targets=(given.get("target"), board))
        elif names is not None:
            for text in _texts(value):
                _CHECKS[names](text)


def _check_new(value: str, every: Mapping[str, Option], given: Mapping[str, Any]) -> None:
    resumable = "resume" in every
    check_new(value, force=bool(given.get("force") or given.get("resume")), resumable=resumable)


def _texts(value: Any) -> Iterable[str]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
    return (text for text in values if isinstance(text, str))


def known_words(option: Option) -> list[str]:
    """Words that an option takes, beside numbers and paths: for completion, and for messages that name the nearest."""
    words = [str(word) for word in (*option.choices, option.none) if word is not None]
    if option.names in ("target", "target or board"):
        from framefit.core.target import BUILTIN_TARGETS

        words += BUILTIN_TARGETS
    elif option.names in ("model", "module"):
        words += BUILTIN_MODELS
    return words


def _check_default(every: Mapping[str, Option], given: Mapping[str, Any]) -> None:
    """Check that the workload that is used where none is named is there."""
    for name, option in every.items():
        if option.names in ("workload", "workload or plan") and name not in given and not Path(option.default).exists():
            raise InputError(
                f"no {option.flag} is given, and this folder has no {option.default}",
                remedy="name one, or write one with framefit init MODEL.onnx",
            )


def _check_app(path: Path, *, plans: bool, targets: tuple[str | None, str | None]) -> None:
    from framefit.core.target import resolve_target
    from framefit.core.workload import load_workload

    if plans and (path.suffix == ".json" or (path / "timetable.json").exists()):
        _check_path(str(path))
        return
    check_workload_file(path)
    workload = load_workload(path)
    target, board = targets
    if target is None and workload.target != board:
        resolve_target(workload.target, path.parent)
    for model in workload.models:
        check_model_file(Path(model.path))


def _check_target(name: str) -> None:
    from framefit.core.target import resolve_target

    resolve_target(name)


def _check_target_or_board(name: str) -> None:
    from framefit.boards.registry import named_boards

    if not named_boards([name]):
        _check_target(name)


def _check_module(name: str) -> None:
    from framefit.core.workload import names_function

    if not names_function(name):
        check_model(name)


def _check_path(name: str) -> None:
    if name != "-" and "://" not in name and not Path(name).exists():
        raise InputError("no such file or folder", where=name, remedy="check the path")


def _check_models(name: str) -> None:
    if name not in ("auto", "none"):
        check_model(name)


_CHECKS: dict[str, Callable[[str], None]] = {
    "model": check_model,
    "models": _check_models,
    "module": _check_module,
    "path": _check_path,
    "target": _check_target,
    "target or board": _check_target_or_board,
}
