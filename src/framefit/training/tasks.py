"""What a network is for: classes, or any other outputs. How its answers are read, scored, trained and held apart.

An answer is a row of numbers for each example. Where a network has no classes, the original's own outputs are right,
and what those of a changed one differ by is told as a part of their variance. So whatever is trained or judged is
written once, against :class:`Task`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.acceptance import Measure
from framefit.errors import InputError

__all__ = ["Classes", "Task"]


Array = npt.NDArray[Any]
Tensor = Any  # torch.Tensor
_MOST = 4096  # numbers of an answer: a detector's tens of thousands are drawn from


class Task(ABC):
    """How answers become scores and losses.

    Attributes:
        measure: what a score is, see :class:`~framefit.core.acceptance.Acceptance`.
    """

    measure: Measure

    @abstractmethod
    def answers(self, network: Any, x: Tensor) -> Tensor:
        """Answers of a network or module, N x D."""

    @abstractmethod
    def read(self, outputs: Any, count: int, labels: Array) -> Array:
        """Answers, N x D float32, from what a function returned for ``count`` examples: its outputs, or the first."""

    @abstractmethod
    def scores(self, answers: Array, labels: Array) -> Array:
        """One for each example, 0 to 1; of classes booleans."""

    @abstractmethod
    def among_five(self, answers: Array, labels: Array) -> Array:
        """Likewise, where the five likeliest classes count."""

    @abstractmethod
    def loss(self, answers: Array, labels: Array) -> float:
        """Sum over the examples."""

    @abstractmethod
    def trained(self, answers: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Mean loss of a mini-batch, to be differentiated."""

    @abstractmethod
    def distance(self, answers: Tensor, teacher: Tensor, heat: float) -> Tensor:
        """Mean distance from a teacher's answers, to be differentiated."""

    @abstractmethod
    def heat(self, answers: Tensor) -> float:
        """Temperature at which :meth:`divergence` tells networks apart."""

    @abstractmethod
    def divergence(self, expected: Tensor, answers: Tensor, heat: float) -> float:
        """Mean distance of answers from the right ones."""

    @abstractmethod
    def drawn(self, answers: Tensor, heat: float, random: Any) -> Tensor:
        """A random number with half the mean square of whose gradient :meth:`divergence` grows."""


@dataclass(frozen=True)
class Classes(Task):
    """Scores of classes; an answer is right or wrong.

    Attributes:
        measure: "classes": the user has no labels, and these are what the original network says.
    """

    measure: Measure = "top1"

    def answers(self, network: Any, x: Tensor) -> Tensor:
        """See :meth:`Task.answers`; scores before a final softmax."""
        from framefit.training.network import Network  # loads torch

        return network.logits(x) if isinstance(network, Network) else network(x)

    def read(self, outputs: Any, count: int, labels: Array) -> Array:
        """See :meth:`Task.read`.

        Raises:
            InputError: they are not a row of classes for each example.
        """
        rows = np.array(outputs[0] if isinstance(outputs, tuple) else outputs, np.float32)
        if rows.ndim > 2 and math.prod(rows.shape[2:]) == 1:
            rows = rows.reshape(rows.shape[:2])
        label = int(labels.max())
        if rows.ndim != 2 or len(rows) != count or rows.shape[1] <= label:
            raise InputError(
                f"{count} examples with labels up to {label} gave outputs of shape {rows.shape}",
                where="network",
                remedy="give a classifier with an output for each class",
            )
        most = float(np.finfo(np.float32).max)
        rows[np.isnan(rows)] = -most  # a network that pruning has broken is wrong, not an error
        return np.clip(rows, -most, most)

    def scores(self, answers: Array, labels: Array) -> Array:
        """See :meth:`Task.scores`; a tie with the right class counts as an error."""
        first: Array = _ranks(answers, labels) == 0
        return first

    def among_five(self, answers: Array, labels: Array) -> Array:
        """See :meth:`Task.among_five`."""
        return _ranks(answers, labels) < 5

    def loss(self, answers: Array, labels: Array) -> float:
        """Sum of cross-entropies, in nats."""
        shifted = answers.astype(np.float64) - answers.max(axis=1, keepdims=True)
        return float((np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]).sum())

    def trained(self, answers: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Mean cross-entropy, in nats.

        Raises:
            InputError: a label has no answer.
        """
        if int(labels.max()) >= answers.shape[1]:
            raise InputError(
                f"a label is {int(labels.max())}, but the network has {answers.shape[1]} outputs",
                where="network",
                remedy="give data with the classes of the network",
            )
        return _functional().cross_entropy(answers, labels, label_smoothing=smoothing)

    def distance(self, answers: Tensor, teacher: Tensor, heat: float) -> Tensor:
        """Kullback-Leibler divergence from the teacher's classes at a temperature.

        Gradients shrink with its square (Hinton et al., 2015, "Distilling the Knowledge in a Neural Network", section
        2), which makes up for that.
        """
        teacher_logs, own_logs = (_functional().log_softmax(part / heat, dim=1) for part in (teacher, answers))
        return _functional().kl_div(own_logs, teacher_logs, reduction="batchmean", log_target=True) * heat**2

    def heat(self, answers: Tensor) -> float:
        """Standard deviation over the classes, on average: divided by it, answers tell classes apart at any scale.

        At a temperature of 1 a network that is certain of everything shows no difference, whatever is done to it.
        """
        spread = float(answers.std(dim=1, correction=0).mean())
        return spread if spread > 0 else 1.0

    def divergence(self, expected: Tensor, answers: Tensor, heat: float) -> float:
        """Mean Kullback-Leibler divergence of classes at a temperature, in nats (Hinton et al., see above)."""
        soft, other = (_functional().log_softmax(part.double() / heat, dim=1) for part in (expected, answers))
        return float(_functional().kl_div(other, soft, reduction="batchmean", log_target=True))

    def drawn(self, answers: Tensor, heat: float, random: Any) -> Tensor:
        """Cross-entropy of labels that are drawn from the answers themselves: its gradients give the Fisher matrix."""
        soft = answers / heat
        labels = soft.detach().softmax(1).multinomial(1, generator=random)[:, 0]
        return _functional().cross_entropy(soft, labels, reduction="sum")


@dataclass(frozen=True, eq=False)
class Outputs(Task):
    """Numbers of all outputs, standardised; what the original network gives is right.

    An answer has coordinates whose squared distance from the right answer is the part of the outputs' variance by
    which they differ: each output counts alike, and within it each number.

    Attributes:
        places: of each output those of its numbers, flattened, that are read; none of an output that is left out.
        means: of each output's numbers, over examples.
        weights: by which each output's numbers are multiplied.
    """

    places: tuple[npt.NDArray[np.int64], ...]
    means: tuple[npt.NDArray[np.float32], ...]
    weights: tuple[float, ...]
    measure: Measure = "outputs"

    @classmethod
    def like(cls, outputs: Sequence[Array]) -> Outputs:
        """For networks whose outputs are distributed as these.

        Args:
            outputs: of the original, each N x ...; whole numbers and outputs that never change are left out.

        Raises:
            InputError: nothing is left.
        """
        random = np.random.default_rng(0)
        places, means, spreads = [], [], []
        for each in outputs:
            rows = np.asarray(each).reshape(len(each), -1)
            most = max(_MOST // len(outputs), 1)
            count = rows.shape[1] if rows.dtype.kind == "f" and len(each) > 1 else 0
            chosen = np.sort(random.permutation(count)[:most])
            read = rows[:, chosen].astype(np.float64)
            mean = read.mean(axis=0)
            variance = float(((read - mean) ** 2).mean()) if count else 0.0
            if not (math.isfinite(variance) and variance > _LEAST * float((mean**2).sum()) / max(count, 1)):
                chosen, mean, variance = chosen[:0], mean[:0], 1.0
            places.append(chosen)
            means.append(mean.astype(np.float32))
            spreads.append(math.sqrt(variance))
        used = sum(len(each) > 0 for each in places)
        if not used:
            raise InputError(
                "the network's outputs are the same for all examples, or are no real numbers",
                where="data",
                remedy="give examples that differ, normalised as the network takes them",
            )
        weights = [1 / (s * math.sqrt(used * len(p))) if len(p) else 0.0 for p, s in zip(places, spreads, strict=True)]
        return cls(tuple(places), tuple(means), tuple(weights))

    def answers(self, network: Any, x: Tensor) -> Tensor:
        """See :meth:`Task.answers`."""
        import torch

        made = network(x)
        outputs = made if isinstance(made, tuple) else (made,)
        parts = []
        for each, places, mean, weight in zip(outputs, self.places, self.means, self.weights, strict=True):
            if len(places):
                read = each.flatten(1).float()[:, torch.from_numpy(places)]
                parts.append((read - torch.from_numpy(mean)) * weight)
        return torch.cat(parts, dim=1)

    def read(self, outputs: Any, count: int, labels: Array) -> Array:  # noqa: ARG002 - of classes
        """See :meth:`Task.read`.

        Raises:
            InputError: other outputs than those that were seen.
        """
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        sizes = [np.asarray(each).size // max(count, 1) for each in given]
        if len(given) != len(self.places) or any(
            len(places) and places[-1] >= size for places, size in zip(self.places, sizes, strict=True)
        ):
            raise InputError(
                f"{len(given)} outputs of {', '.join(map(str, sizes))} numbers are not those of the original network",
                where="network",
                remedy="give a network with the same outputs",
            )
        parts = [
            (np.asarray(each).reshape(count, -1)[:, places].astype(np.float32) - mean) * np.float32(weight)
            for each, places, mean, weight in zip(given, self.places, self.means, self.weights, strict=True)
            if len(places)
        ]
        return np.concatenate(parts, axis=1)

    def scores(self, answers: Array, labels: Array) -> Array:
        """The outputs' variance over the sum of it and the squared error: 1/2 where both are equal."""
        scores: Array = 1 / (1 + _off(answers, labels))
        return scores

    def among_five(self, answers: Array, labels: Array) -> Array:
        """The same: there are no classes."""
        return self.scores(answers, labels)

    def loss(self, answers: Array, labels: Array) -> float:
        """Sum of the parts of the variance by which answers are off."""
        return float(_off(answers, labels).sum())

    def trained(self, answers: Tensor, labels: Tensor, smoothing: float) -> Tensor:  # noqa: ARG002 - of classes
        """See :meth:`distance`."""
        return self.distance(answers, labels, 1.0)

    def distance(self, answers: Tensor, teacher: Tensor, heat: float) -> Tensor:  # noqa: ARG002 - of classes
        """Mean squared distance: the part of the outputs' variance by which they differ."""
        return ((answers - teacher) ** 2).sum(dim=1).mean()

    def heat(self, answers: Tensor) -> float:  # noqa: ARG002 - of classes
        """None: answers are standardised."""
        return 1.0

    def divergence(self, expected: Tensor, answers: Tensor, heat: float) -> float:
        """See :meth:`distance`."""
        return float(self.distance(answers.double(), expected.double(), heat))

    def drawn(self, answers: Tensor, heat: float, random: Any) -> Tensor:  # noqa: ARG002 - of classes
        """A product with normal numbers: its gradients' mean squares are the diagonal of the Jacobian's square."""
        return math.sqrt(2) * (answers * answers.new_empty(answers.shape).normal_(generator=random)).sum()


_LEAST = 1e-12  # of the mean square: rounding is no variance


def _ranks(logits: Array, labels: Array) -> Array:
    """Rank of the right class, from 0; a tie with it counts as an error."""
    ranks: Array = (logits >= logits[np.arange(len(logits)), labels][:, None]).sum(axis=1) - 1
    return ranks


def _off(answers: Array, labels: Array) -> Array:
    """Of each example the part of the variance by which it is off; 1 and more where it is not a number."""
    squares: Array = ((answers.astype(np.float64) - labels) ** 2).sum(axis=1)
    return np.nan_to_num(squares, nan=1e9, posinf=1e9)


def _functional() -> Any:
    """PyTorch's, which takes seconds to load, where it is needed."""
    import torch

    return torch.nn.functional
