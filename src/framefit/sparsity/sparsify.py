"""``framefit sparsify``: zeros where the target rewards them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from framefit.core.files import check_folder, from_data, read_record, write_record
from framefit.core.model import Model
from framefit.core.sparsity import Pattern, RewardKind, SparsifySettings, SparsityResult
from framefit.errors import InputError
from framefit.sparsity.solver import Ledger

__all__ = ["Sparsified", "sparsify"]


_MARK, _WHAT = "sparsify.json", "a folder of framefit sparsify"


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
    notify: Callable[[str], None] | None = None,
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
        notify: told what is being done.

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
    folder = _folder(resume, output, model)
    settings = _settings(folder, asked, model, data, resumed=resume is not None)
    from framefit.sparsity.campaign import SparsifyCampaign, fed_back  # loads torch
    from framefit.sparsity.deploy import check_targets
    from framefit.sparsity.subject import open_subject

    say = notify or (lambda _: None)
    ledger = Ledger()
    if resume is None:
        check_folder(folder, _MARK, _WHAT, force=force)
    own_model, own_data = (None if isinstance(one, str | Path) else one for one in (model, data))
    subject = open_subject(settings, ledger, own_model, own_data)
    check_targets(subject.model, deploy_to)
    if resume is None:
        shutil.rmtree(folder, ignore_errors=True)
    write_record(folder / _MARK, settings, force=True)
    rounds = SparsifyCampaign(subject, settings, folder, ledger, say, compare=compare)
    targets = deploy_to or (settings.target,)
    result = rounds.finish(targets, override) if feedback is None else fed_back(rounds, feedback, targets, override)
    return Sparsified(folder, result)


def _folder(resume: str | Path | None, output: str | Path | None, model: Any) -> Path:
    if resume is not None:
        if not (Path(resume) / _MARK).is_file():
            raise InputError(f"is not {_WHAT}", where=resume, remedy="give the folder that a search wrote")
        return Path(resume)
    if output is not None:
        return Path(output)
    name = Path(model).stem if isinstance(model, str | Path) else getattr(model, "name", "network")
    return Path(f"{str(name).replace(':', '-')}-sparse")


def _settings(folder: Path, asked: dict[str, Any], model: Any, data: Any, *, resumed: bool) -> SparsifySettings:
    """As given; else as in the folder, else the defaults."""
    if resumed:
        stored = msgspec.to_builtins(read_record(folder / _MARK, SparsifySettings))
        return from_data(msgspec.to_builtins(stored | asked), SparsifySettings, folder / _MARK)
    needed = {"MODEL": model, "--data": data, "--target": asked.get("target")}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing", remedy="give them, or --resume DIR")
    return from_data(msgspec.to_builtins({"model": "", "data": "", **asked}), SparsifySettings, "options")
