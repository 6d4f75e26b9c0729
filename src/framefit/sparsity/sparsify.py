"""``framefit sparsify``: removes weights where the target rewards zeros."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from framefit.core.executor import executor_of
from framefit.core.settings import Notify, part_of, silent, verb
from framefit.core.sparsity import SparsifyOptions, SparsifySettings, SparsityResult
from framefit.errors import InputError
from framefit.training.campaign import SearchFolder, earlier_settings, objects_of, path_of

__all__ = ["sparsify"]


@dataclass(frozen=True)
class Sparsified:
    """Result of a search, and its folder.

    Attributes:
        folder: holds ``result.json``, ``model.onnx``, tables and pictures.
        result: the figures.
    """

    folder: Path
    result: SparsityResult


@verb(SparsifyOptions, "model", "data", "target", earlier=earlier_settings("sparsify", SparsifySettings))
def sparsify(settings: SparsifyOptions, *, notify: Notify = silent) -> Sparsified:
    """Find a sparse model within a part of the dense model's cycles, fine-tune it, and judge it.

    With ``resume``, options that are not given are those of the earlier search. Where ``dynamic`` and
    ``dynamic_accuracy`` are both set, the rounds of the first come before those of the second.

    Args:
        settings: options of the search.
        notify: receives messages on the progress.

    Returns:
        The folder and its result; after an interruption, the result so far.

    Raises:
        InputError: model, data, target or settings cannot be used.
        InfeasibleError: no sparsity reaches the cycles.
        MissingExtraError: without the extra ``train``.
        KeyboardInterrupt: interrupted before any result; evaluations are kept.

    Example:
        >>> framefit.sparsify("net.onnx", "data.npz", "vpu", cycles=0.5).result.decision  # doctest: +SKIP
        'deploy'
    """
    resume, model, data = settings.resume, settings.model, settings.data
    if resume is None and settings.feedback is not None:
        raise InputError("feedback needs the model of an earlier search", remedy="name its folder with --resume DIR")
    place = SearchFolder.of("sparsify", "-sparse", model, resume=resume, output=settings.output)
    objects = objects_of(model, data)
    from framefit.sparsity.campaign import SparsifyCampaign  # loads torch
    from framefit.sparsity.deploy import check_targets

    if resume is None:
        place.check_free(force=settings.force)
    search_settings = part_of(settings, SparsifySettings, model=path_of(model), data=path_of(data))
    with executor_of(settings.workers) as executor:
        campaign = SparsifyCampaign(
            place, search_settings, notify, *objects, compare=settings.compare, executor=executor
        )
        check_targets(campaign.subject.model, settings.deploy_to)
        campaign.begin(keep=resume is not None)
        targets, override = settings.deploy_to or (settings.target,), settings.override
        if settings.feedback is not None:
            return Sparsified(place.path, campaign.feedback(settings.feedback, targets, override))
        return Sparsified(place.path, campaign.finish(targets, override))
