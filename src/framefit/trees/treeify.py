"""``framefit treeify``: decision trees in place of groups of layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from framefit.core.files import read_record, write_record
from framefit.core.model import Model
from framefit.core.settings import Notify, silent
from framefit.core.tree_results import TreeifyResult, TreeifySettings
from framefit.core.trees import Forest, read_forest
from framefit.errors import InputError
from framefit.training.campaign import SearchFolder, objects_of

__all__ = ["Treeified", "treeify"]


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
    notify: Notify = silent,
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
        notify: receives what is being done.
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
    resumed = resume is not None
    place = SearchFolder.of("treeify", "-trees", model, resume=resume, output=output)
    given = {name: value for name, value in options.items() if value is not None}
    given |= {name: str(v) for name, v in {"model": model, "data": data}.items() if isinstance(v, str | Path)}
    settings = place.settings(TreeifySettings, given, {"MODEL": model, "--data": data}, resumed=resumed)
    stored = read_record(place.mark, TreeifySettings) if resumed else None
    if settings == stored and (place.path / "result.json").is_file():
        return _exported(_finished(place.path), export)
    objects = objects_of(settings, model, data)
    if not resumed:
        place.check_free(force=force)
    from framefit.trees.campaign import TreeifyCampaign  # loads torch

    campaign = TreeifyCampaign(place, settings, notify, *objects)
    alike = stored is not None and msgspec.structs.replace(settings, max_seconds=stored.max_seconds) == stored
    campaign.begin(keep=alike)  # what was found with other settings is of no use
    return _exported(Treeified(*campaign.finish(), place.path), export)


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
    batch_open = bool(Model.load(done.folder / "model.onnx").defaulted_dims)
    exports = (*kept, export(done.model, done.forest, flavour, done.folder, batch_open=batch_open))
    result = msgspec.structs.replace(done.result, chosen=msgspec.structs.replace(chosen, exports=exports))
    write_record(done.folder / "result.json", result, force=True)
    return dataclasses.replace(done, result=result)
