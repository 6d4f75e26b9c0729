"""``framefit treeify``: decision trees in place of groups of layers."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from framefit.core.files import check_folder, from_data, read_record, write_record
from framefit.core.model import Model
from framefit.core.tree_results import TreeifyResult, TreeifySettings
from framefit.core.trees import Forest, read_forest
from framefit.errors import InputError

__all__ = ["Treeified", "treeify"]


_MARK = "treeify.json"
_WHAT = "a folder of framefit treeify"


@dataclass(frozen=True)
class Treeified:
    """What a search left behind.

    Attributes:
        result: the figures.
        model: the hybrid; ``None``: no group is worth replacing.
        forest: its trees.
        folder: with ``result.json``, ``model.onnx``, ``trees.json``, a table and pictures of the candidates.
    """

    result: TreeifyResult
    model: Model | None
    forest: Forest | None
    folder: Path


def treeify(
    model: str | Path | Model | Any = None,
    data: str | Path | Iterable[Any] | Any = None,
    *,
    resume: str | Path | None = None,
    output: str | Path | None = None,
    force: bool = False,
    export: Literal["core", "ml"] = "core",
    notify: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Treeified:
    """Find groups of layers that trees can stand for, fit these, fine-tune, and write the hybrid.

    Args:
        model: a classifier with one input: path of an ONNX file, "module:function" that returns a
            ``torch.nn.Module``, such a module, or a model.
        data: what :func:`framefit.training.data.load_data` takes.
        resume: a folder of an earlier search that was interrupted, to go on with.
        output: folder; default: the model's name with ``-trees``, here.
        force: overwrite it.
        export: "ml": write ``model-ml.onnx``, too, whose trees are operators of ``ai.onnx.ml``; also for a search that
            is resumed and had ended.
        notify: is told what is being done.
        options: fields of :class:`~framefit.core.tree_results.TreeifySettings`; what is not given is as it says, or
            as in the search that is resumed.

    Raises:
        InputError: what cannot be used.
        KeyboardInterrupt: interrupted; what was found is kept in the folder.

    Example:
        >>> import framefit
        >>> framefit.treeify("mlp.onnx", "digits.npz", first=1, layers=2).result.chosen.top1  # doctest: +SKIP
        0.98
    """
    if export not in ("core", "ml"):
        raise InputError(f"export is {export!r}", where="options", remedy="give core or ml")
    folder = _folder(resume, output, model)
    stored = None if resume is None else read_record(folder / _MARK, TreeifySettings)
    settings = _settings(folder, model, data, options, stored)
    if settings == stored and (folder / "result.json").is_file():
        return _exported(_finished(folder), export)
    given = {"MODEL": (model, settings.model), "--data": (data, settings.data)}
    missing = [name for name, (value, named) in given.items() if value is None and not named]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} missing", remedy="give them, or --resume DIR of what was given files"
        )
    if stored is None:
        check_folder(folder.resolve(), _MARK, _WHAT, force=force)
    from framefit.trees.campaign import TreeifyCampaign as Rounds

    own_model, own_data = (None if isinstance(one, str | Path) else one for one in (model, data))
    rounds = Rounds(settings, own_model, own_data, folder, notify)
    if stored is None or msgspec.structs.replace(settings, max_seconds=stored.max_seconds) != stored:
        # What was found with other settings is of no use.
        shutil.rmtree(folder, ignore_errors=True)
        write_record(folder / _MARK, settings)
    result, hybrid, forest = rounds.finish()
    return _exported(Treeified(result, hybrid, forest, folder), export)


def _folder(resume: str | Path | None, output: str | Path | None, model: Any) -> Path:
    if resume is not None:
        if not (Path(resume) / _MARK).is_file():
            raise InputError(f"is not {_WHAT}", where=resume, remedy="give the folder that a search wrote")
        return Path(resume)
    if output is not None:
        return Path(output)
    name = Path(model).stem if isinstance(model, str | Path) else getattr(model, "name", "network")
    return Path(f"{str(name).replace(':', '-')}-trees")


def _settings(
    folder: Path, model: Any, data: Any, options: dict[str, Any], stored: TreeifySettings | None
) -> TreeifySettings:
    """As given; else as in the folder, else the defaults."""
    asked = {name: str(v) if isinstance(v, Path) else v for name, v in options.items() if v is not None}
    asked |= {name: str(v) for name, v in {"model": model, "data": data}.items() if isinstance(v, str | Path)}
    if stored is None:
        return from_data(msgspec.to_builtins(asked), TreeifySettings, "options")
    return from_data(msgspec.to_builtins(msgspec.to_builtins(stored) | asked), TreeifySettings, folder / _MARK)


def _finished(folder: Path) -> Treeified:
    """What an earlier run wrote."""
    result = read_record(folder / "result.json", TreeifyResult)
    if result.chosen is None:
        return Treeified(result, None, None, folder)
    hybrid = Model.load(folder / "model.onnx", name=result.model)
    return Treeified(result, hybrid, read_forest(folder / "trees.json"), folder)


def _exported(done: Treeified, flavour: Literal["core", "ml"]) -> Treeified:
    """With a file of another flavour beside ``model.onnx``, where one was asked for."""
    chosen = done.result.chosen
    if flavour == "core" or chosen is None or done.model is None or done.forest is None:
        return done
    from framefit.trees.exporting import export

    kept = [one for one in chosen.exports if one.flavour != flavour]
    batch_open = bool(Model.load(done.folder / "model.onnx").assumed)
    exports = (*kept, export(done.model, done.forest, flavour, done.folder, batch_open=batch_open))
    result = msgspec.structs.replace(done.result, chosen=msgspec.structs.replace(chosen, exports=exports))
    write_record(done.folder / "result.json", result, force=True)
    return dataclasses.replace(done, result=result)
