"""``framefit treeify``: decision trees in place of groups of layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from framefit.core.files import read_record, write_record
from framefit.core.model import Model
from framefit.core.settings import Notify, part_of, silent, verb
from framefit.core.tree_results import TreeifyOptions, TreeifyResult, TreeifySettings
from framefit.core.trees import Forest, read_forest
from framefit.training.campaign import SearchFolder, earlier_settings, objects_of, path_of

__all__ = ["treeify"]


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


@verb(TreeifyOptions, "model", "data", earlier=earlier_settings("treeify", TreeifySettings))
def treeify(settings: TreeifyOptions, *, notify: Notify = silent) -> Treeified:
    """Find groups of layers that trees can stand for, fit these, fine-tune, and write the hybrid.

    With ``resume``, what is not given is as in the earlier search; the result of one that had ended is read again.

    Args:
        settings: what to search.
        notify: receives what is being done.

    Raises:
        InputError: what cannot be used.
        KeyboardInterrupt: interrupted; what was found is kept in the folder.

    Example:
        >>> import framefit
        >>> framefit.treeify("mlp.onnx", "digits.npz", first=1, layers=2).result.chosen.top1  # doctest: +SKIP
        0.98
    """
    resume, model, data = settings.resume, settings.model, settings.data
    place = SearchFolder.of("treeify", "-trees", model, resume=resume, output=settings.output)
    asked = part_of(settings, TreeifySettings, model=path_of(model), data=path_of(data))
    stored = None if resume is None else read_record(place.mark, TreeifySettings)
    if asked == stored and (place.path / "result.json").is_file():
        return _exported(_finished(place.path), settings.export)
    objects = objects_of(model, data)
    if resume is None:
        place.check_free(force=settings.force)
    from framefit.trees.campaign import TreeifyCampaign  # loads torch

    campaign = TreeifyCampaign(place, asked, notify, *objects)
    alike = stored is not None and msgspec.structs.replace(asked, max_seconds=stored.max_seconds) == stored
    campaign.begin(keep=alike)  # what was found with other settings is of no use
    return _exported(Treeified(*campaign.finish(), place.path), settings.export)


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
