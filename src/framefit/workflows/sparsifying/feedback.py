"""New labelled data from the deployed model: retraining where its accuracy there is too low."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from framefit.core.files import read_record
from framefit.core.sparsity import Configuration, SparsityResult
from framefit.errors import InputError
from framefit.sparsity.gates import judge
from framefit.sparsity.solver import Found
from framefit.training.data import check_fits
from framefit.training.evaluate import evaluate
from framefit.training.network import to_model, to_torch
from framefit.workflows.classifiers import open_data
from framefit.workflows.cycles import load_model
from framefit.workflows.sparsifying.finish import configuration, joined, tuned
from framefit.workflows.sparsifying.rounds import Override, Rounds, overridden
from framefit.workflows.sparsifying.search import Arm, own_zeros

__all__ = ["fed_back"]


def fed_back(
    rounds: Rounds, source: str | Path | Iterable[Any], targets: Sequence[str], override: Override | None
) -> SparsityResult:
    """Judge the folder's model on new data, and train it again where it is not good enough there.

    The new data are split as any data are: their test part judges before and after, their training part
    joins the old training data.

    Args:
        rounds: of the folder.
        source: the new data.
        targets: that a model that passes its gates is compiled for.
        override: "retrain": also where the accuracy is good enough; "deploy": whatever the gates say.

    Raises:
        InputError: the folder holds no model, or the data do not fit it.
    """
    subject, settings, folder = rounds.subject, rounds.settings, rounds.folder
    stored = folder / "result.json"
    result = read_record(stored, SparsityResult) if stored.is_file() else None
    if result is None or result.chosen is None:
        raise InputError("holds no finished model", where=folder, remedy="let the search end: --resume alone")
    row = result.configurations[result.chosen]
    model = load_model(folder / "model.onnx", None, None)
    shape = subject.data.input_shape
    new = open_data(source, shape, seed=settings.seed, mean=settings.mean, std=settings.std)
    check_fits(new, model)
    network = to_torch(model)
    found = evaluate(network, new.test)
    rounds.ledger.forwarded(found.images)
    threshold = result.threshold.top1
    low, high = found.top1_interval
    interval = f"{100 * low:.2f} to {100 * high:.2f} %"
    said = f"feedback: top-1 {100 * found.top1:.2f} % ({interval}) on {found.images:,} new images"
    if found.top1 >= threshold and override != "retrain":
        note = f"{said}, at least the threshold {100 * threshold:.2f} %: not trained again"
        result = msgspec.structs.replace(result, notes=(*result.notes, note))
        rounds.write(result, model, own_zeros(subject, network, rounds.ledger), targets)
        return result
    rounds.say("training again on old and new data")
    examples = joined(subject.data.train, new.train)
    alone = msgspec.structs.replace(settings, distill_ratio=0.0)  # the dense model may be wrong on the new data, too
    tuning = tuned(subject, network, alone, rounds.ledger, folder, rounds.say, examples, new.validation)
    after = evaluate(network, new.test)
    arm = Arm(Found(row.solver, np.zeros(0, np.int64), row.validation_top1, 0, ()), hardware=row.hardware)
    zeros = own_zeros(subject, network, rounds.ledger)
    model = to_model(network)
    now = configuration(
        subject, arm, model, zeros, found.top1, after, row.finetune_epochs + tuning.epochs, result.dense
    )
    note = f"{said}, below the threshold {100 * threshold:.2f} %: trained again, now {100 * after.top1:.2f} %"
    result = _rejudged(result, now, after.images, override, tuning.reasons)
    result = msgspec.structs.replace(result, notes=(*result.notes, note), ledger=rounds.ledger.spent())
    rounds.write(result, model, zeros, targets)
    return result


def _rejudged(
    result: SparsityResult, row: Configuration, images: int, override: Override | None, reasons: tuple[str, ...]
) -> SparsityResult:
    """A result whose chosen model was trained again.

    Args:
        result: from before.
        row: of the model now.
        images: that its accuracy rests on.
        override: of the gates.
        reasons: what is said of the training beside them.
    """
    assert result.chosen is not None
    verdict = judge(row.top1, row.top1_interval, images, row.cycles_ratio, result.threshold)
    rows = list(result.configurations)
    rows[result.chosen] = row
    return msgspec.structs.replace(
        result,
        configurations=tuple(rows),
        decision=verdict.decision,
        deployed=verdict.decision == "deploy" or override == "deploy",
        reasons=(*verdict.reasons, *overridden(verdict, override), *reasons),
    )
