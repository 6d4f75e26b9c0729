"""``framefit sparsify``: zeros where the target rewards them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from framefit.core.model import Model
from framefit.core.settings import Notify, silent
from framefit.core.sparsity import Pattern, RewardKind, SparsifySettings, SparsityResult
from framefit.errors import InputError
from framefit.training.campaign import SearchFolder, objects_of

__all__ = ["Sparsified", "sparsify"]


@dataclass(frozen=True)
class Sparsified:
    """What a search left behind.

    Attributes:
        folder: with ``result.json``, ``model.onnx``, tables and pictures.
        result: the figures.
    """

    folder: Path
    result: SparsityResult


def sparsify(
    model: str | Path | Model | Any = None,
    data: str | Path | Iterable[Any] | Any = None,
    target: str | Path | None = None,
    *,
    unit: str | None = None,
    cycles: float | Literal["derived"] | None = None,
    solver: str | None = None,
    pattern: Pattern | None = None,
    accuracy_drop: float | Literal["derived"] | None = None,
    dynamic: bool | None = None,
    dynamic_accuracy: bool | None = None,
    reward: RewardKind | None = None,
    episodes: int | None = None,
    images: int | None = None,
    agreement: float | None = None,
    finetune_epochs: float | None = None,
    rate: float | None = None,
    decay: float | None = None,
    max_seconds: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int | None = None,
    compare: bool = True,
    deploy_to: Sequence[str] = (),
    override: Literal["deploy", "retrain"] | None = None,
    resume: str | Path | None = None,
    feedback: str | Path | Iterable[Any] | None = None,
    output: str | Path | None = None,
    force: bool = False,
    notify: Notify = silent,
) -> Sparsified:
    """Find a sparse model within a part of the dense model's cycles, fine-tune it, and judge it.

    What is not given is as :class:`~framefit.core.sparsity.SparsifySettings` says, or as in the search that is resumed.

    Args:
        model: path of an ONNX file, "module:function" that returns a ``torch.nn.Module``, a model, or a module.
        data: an image folder, an ``.npz``, an iterable of (x, y), or data that are split already.
        target: a built-in target, or a ``target.toml``.
        unit: of the target; default: the first that runs the whole model.
        cycles: of the dense model's, at most; "derived": from model and target.
        solver: one of :data:`framefit.sparsity.solvers.SOLVERS`.
        pattern: of the zeros; default: what the target rewards.
        accuracy_drop: of top-1 that is allowed, 0 to 1; "derived": from the dense model's interval.
        dynamic: raise the threshold on cycles when it is met, lower it when it is out of reach, in rounds.
        dynamic_accuracy: the same of the threshold on accuracy, at the same cycles, training on in each round; after
            the rounds of ``dynamic`` where both are set.
        reward: by which solvers learn and the best is chosen.
        episodes: evaluations of each search at most.
        images: of the validation data in each evaluation.
        agreement: of predicted and received reward at which "ddpg" ends, relative.
        finetune_epochs: of fine-tuning; 0: none.
        rate: learning rate of it; decay: weight decay.
        decay: see ``rate``.
        max_seconds: of the search; fine-tuning comes on top.
        mean: of images, one a channel, of values 0 to 1; std: likewise.
        std: see ``mean``.
        seed: of splits, draws and training.
        compare: also run the rules, and the same search without the hardware.
        deploy_to: targets that a model that passes its gates is compiled for; default: ``target``.
        override: "deploy": register it whatever the gates say; "retrain": fine-tune it once more.
        resume: a folder of an earlier search to go on with.
        feedback: new labelled data for the model of that folder: it is retrained if its accuracy there is too low.
        output: the folder; default: the model's name and "-sparse".
        force: overwrite it.
        notify: receives what is being done.

    Returns:
        The folder and its result; where the user interrupted it, what was found so far.

    Raises:
        InputError: model, data, target or settings that cannot be used.
        InfeasibleError: the cycles are out of reach.
        MissingExtraError: without the extra ``train``.
        KeyboardInterrupt: interrupted before anything was found; what was evaluated is kept.

    Example:
        >>> framefit.sparsify("net.onnx", "data.npz", "vpu", cycles=0.5).result.decision  # doctest: +SKIP
        'deploy'
    """
    given = {
        "model": str(model) if isinstance(model, str | Path) else None,
        "data": str(data) if isinstance(data, str | Path) else None,
        "target": None if target is None else str(target),
        "unit": unit,
        "cycles_ratio": cycles,
        "solver": solver,
        "pattern": pattern,
        "accuracy_drop": accuracy_drop,
        "dynamic": dynamic,
        "dynamic_accuracy": dynamic_accuracy,
        "reward": reward,
        "evaluations": episodes,
        "images": images,
        "agreement": agreement,
        "finetune_epochs": finetune_epochs,
        "rate": rate,
        "decay": decay,
        "max_seconds": max_seconds,
        "mean": None if mean is None else tuple(mean),
        "std": None if std is None else tuple(std),
        "seed": seed,
    }
    asked = {name: None if value == "derived" else value for name, value in given.items() if value is not None}
    if resume is None and feedback is not None:
        raise InputError("feedback is about a model that was made", remedy="name its folder with --resume DIR")
    resumed = resume is not None
    place = SearchFolder.of("sparsify", "-sparse", model, resume=resume, output=output)
    needed = {"MODEL": model, "--data": data, "--target": target}
    given = asked if resumed else {"model": "", "data": "", **asked}
    settings = place.settings(SparsifySettings, given, needed, resumed=resumed)
    from framefit.sparsity.campaign import SparsifyCampaign  # loads torch
    from framefit.sparsity.deploy import check_targets

    if not resumed:
        place.check_free(force=force)
    campaign = SparsifyCampaign(place, settings, notify, *objects_of(settings, model, data), compare=compare)
    check_targets(campaign.subject.model, deploy_to)
    campaign.begin(keep=resumed)
    targets = deploy_to or (settings.target,)
    if feedback is not None:
        return Sparsified(place.path, campaign.feedback(feedback, targets, override))
    return Sparsified(place.path, campaign.finish(targets, override))
