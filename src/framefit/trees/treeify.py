"""``framefit treeify``: replaces groups of layers by decision trees."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from framefit.core.executor import executor_of
from framefit.core.files import read_record, write_record, write_whole
from framefit.core.model import Model
from framefit.core.settings import Notify, part_of, silent, verb
from framefit.core.tree_results import TreeifyOptions, TreeifyResult, TreeifySettings
from framefit.core.trees import Forest, read_forest
from framefit.training.campaign import SearchFolder, earlier_settings, objects_of, path_of

__all__ = ["treeify"]


@dataclass(frozen=True)
class Treeified:
    """Result of a search, and its folder.

    Attributes:
        result: the figures.
        model: the hybrid; ``None``: no group is worth replacing.
        forest: the trees.
        folder: holds ``result.json``, ``model.onnx``, ``trees.json``, a table and pictures of the candidates.
    """

    result: TreeifyResult
    model: Model | None
    forest: Forest | None
    folder: Path


@verb(TreeifyOptions, "model", "data", earlier=earlier_settings("treeify", TreeifySettings))
def treeify(settings: TreeifyOptions, *, notify: Notify = silent) -> Treeified:
    """Find groups of layers that trees can replace, fit trees for these, fine-tune, and write the hybrid.

    With ``resume``, options that are not given are those of the earlier search; a finished result is read again. The
    same seed gives the same files on any number of cores and workers: each computes on one thread.

    Args:
        settings: options of the search.
        notify: receives messages on the progress.

    Raises:
        InputError: model, data or settings cannot be used.
        InfeasibleError: no group can be replaced, or the network may have been trained on all of the data.
        KeyboardInterrupt: interrupted; results so far are kept in the folder.

    Example:
        >>> import framefit
        >>> framefit.treeify("mlp.onnx", "digits.npz", first=1, layers=2).result.chosen.top1  # doctest: +SKIP
        0.98
    """
    resume, model, data = settings.resume, settings.model, settings.data
    place = SearchFolder.of("treeify", "-trees", model, resume=resume, output=settings.output)
    requested = part_of(settings, TreeifySettings, model=path_of(model), data=path_of(data))
    stored = None if resume is None else read_record(place.mark, TreeifySettings)
    if requested == stored and (place.path / "result.json").is_file():
        return _exported(_finished(place.path), settings.export)
    objects = objects_of(model, data)
    if resume is None:
        place.check_free(force=settings.force)
    from framefit.training.extra import one_thread  # loads torch
    from framefit.trees.campaign import TreeifyCampaign

    with one_thread(), executor_of(settings.workers) as executor:
        campaign = TreeifyCampaign(place, requested, notify, *objects, executor)
        alike = stored is not None and msgspec.structs.replace(requested, max_seconds=stored.max_seconds) == stored
        campaign.begin(keep=alike)  # results with other settings are of no use
        return _exported(Treeified(*campaign.finish(), place.path), settings.export)


def _finished(folder: Path) -> Treeified:
    """Read the result of an earlier run."""
    result = read_record(folder / "result.json", TreeifyResult)
    if result.chosen is None:
        return Treeified(result, None, None, folder)
    hybrid = Model.load(folder / "model.onnx", name=result.model)
    return Treeified(result, hybrid, read_forest(folder / "trees.json"), folder)


def _exported(done: Treeified, flavour: Literal["core", "ml", "c"]) -> Treeified:
    """Write a file of another flavour beside ``model.onnx``, if one is requested."""
    chosen = done.result.chosen
    if flavour == "core" or chosen is None or done.model is None or done.forest is None:
        return done
    if flavour == "c":
        from framefit.trees.c_source import c_source

        with write_whole(done.folder / "trees.c", force=True) as file:
            file.write(c_source(done.forest).encode())
        return done
    from framefit.trees.exporting import export

    kept = [earlier for earlier in chosen.exports if earlier.flavour != flavour]
    batch_open = bool(Model.load(done.folder / "model.onnx").defaulted_dims)
    exports = (*kept, export(done.model, done.forest, flavour, done.folder, batch_open=batch_open))
    result = msgspec.structs.replace(done.result, chosen=msgspec.structs.replace(chosen, exports=exports))
    write_record(done.folder / "result.json", result, force=True)
    return dataclasses.replace(done, result=result)
