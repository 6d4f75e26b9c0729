"""Acceptance of a changed model: which data nothing was trained on, and what is lost against the original there.

``sparsify``, ``treeify`` and ``fit`` judge by these functions alone. Data that decide between models are never those
of the final test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.acceptance import Acceptance, Measure, Unseen
from framefit.errors import InfeasibleError
from framefit.stats import paired_interval, wilson
from framefit.training.data import Dataset, Examples
from framefit.training.evaluate import scores
from framefit.training.joined import InSequence

__all__ = ["VALIDATION_LEARNT", "UnseenData", "compared", "compared_on", "unseen_data"]


VALIDATION_LEARNT = (
    "the model is no worse on the validation data than on the training data: it may have been trained on both, so a "
    "third of the test data decides, and the rest is for the final test"
)
"""The remark in a result where :class:`UnseenData` is ``learnt``."""
_NOT_VERIFIED = "not verified: the network may have been trained on all of the data, so nothing shows what is lost"
_REMEDY = "give data that it was not trained on, as x_test, y_test (and x_val, y_val), or a folder test"
_JUDGED = 5000  # training examples that show what the network knows
_CHOICE = 3  # one part in so many of the test data decides; the final test's interval is to be the narrower one
_LEAST = 20  # examples of a part: fewer tell nothing about a few points


@dataclass(frozen=True)
class UnseenData:
    """Examples that neither the network nor anything in its place was trained on.

    Attributes:
        choice: decide between changed models.
        final: for the final test of the chosen one; no other use.
        choice_from: where ``choice`` comes from.
        final_from: where ``final`` comes from.
        learnt: whether the network has seen the validation part of the training data.
        forwarded: images that went through the network to see that.
    """

    choice: Examples
    final: Examples
    choice_from: Unseen
    final_from: Unseen
    learnt: bool = False
    forwarded: int = 0


def unseen_data(network: Any, data: Dataset, *, seed: int, trained_here: bool = False) -> UnseenData:
    """Find data that a network was not trained on.

    The user's validation data are such where they were given. Else a part of the training data was set aside; a network
    that is no worse there than on the rest may have been trained on both, as the user's split differs from ours. Then
    a third of the test data is for choices, and the rest for the final test.

    Args:
        network: the original, see :func:`~framefit.training.evaluate.evaluate`.
        data: already split.
        seed: for the split of the test data.
        trained_here: whether it was trained on ``data.train`` alone.

    Raises:
        InfeasibleError: the network may have been trained on everything; the result would not be verified.
    """
    if data.train.task.measure != "top1":  # the original is right on all frames, whatever it was trained on
        return UnseenData(data.validation, data.test, "frames", "frames")
    if data.validation_given or trained_here:
        return UnseenData(data.validation, data.test, "validation", "test")
    known = scores(network, data.train.sample(_JUDGED, seed))
    least = wilson(int(known.sum()), len(known))[0]
    forwarded = len(known) + len(data.validation)
    if scores(network, data.validation).mean() < least:
        return UnseenData(data.validation, data.test, "validation", "test", forwarded=forwarded)
    if not data.test_given and scores(network, data.test).mean() >= least:
        raise InfeasibleError(_NOT_VERIFIED, where="data", remedy=_REMEDY)
    order = np.random.default_rng((seed, 3)).permutation(len(data.test))
    part = len(order) // _CHOICE
    if part < _LEAST:
        raise InfeasibleError(
            f"not verified: {len(order)} test examples are too few for a choice and a final test",
            where="data",
            remedy=f"give at least {_CHOICE * _LEAST}, or x_val, y_val",
        )
    choice, final = (data.test.take(np.sort(rows)) for rows in (order[:part], order[part:]))
    return UnseenData(choice, final, "part of test", "part of test", learnt=True, forwarded=forwarded)


def compared(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    max_drop: float,
    *,
    data: Unseen,
    measure: Measure = "top1",
    sequence: bool = False,
) -> Acceptance:
    """Compare two models by their scores on the same examples.

    Args:
        before: score of the original on each example, 0 to 1, or booleans; at least one.
        after: the changed model's.
        max_drop: the mean loss that is allowed.
        data: where the examples come from.
        measure: what the scores are.
        sequence: whether each example depends on those before it.
    """
    first, second = (np.asarray(scores, np.float64) for scores in (before, after))
    return Acceptance(
        data=data,
        measure=measure,
        examples=len(first),
        before=float(first.mean()),
        after=float(second.mean()),
        interval=paired_interval(first - second, sequence=sequence),
        max_drop=max_drop,
    )


def compared_on(
    original: Any,
    changed: Any,
    examples: Examples,
    max_drop: float,
    data: Unseen,
) -> Acceptance:
    """Compare two networks on the same examples; for networks see :func:`~framefit.training.evaluate.evaluate`.

    A changed network that gets its own states needs the examples as a sequence, which hold those of the original.
    """
    return compared(
        scores(original, examples),
        scores(changed, examples),
        max_drop,
        data=data,
        measure=examples.task.measure,
        sequence=isinstance(changed, InSequence),
    )
