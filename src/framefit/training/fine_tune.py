"""Training: a whole network from scratch, or a pruned one for a few epochs.

The recipe is a record, a training that was interrupted a file of arrays; batches are cropped, mirrored and mixed whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import math
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.arrays import ArrayFile
from framefit.core.files import Record, to_json, write_whole
from framefit.core.settings import Notify
from framefit.errors import DivergedError, InputError
from framefit.training.data import Examples
from framefit.training.extra import torch
from framefit.training.network import Network, load_state, state

__all__ = [
    "TRIES",
    "Recipe",
    "as_progress",
    "augmented",
    "fine_tune",
    "fine_tune_or_keep",
    "fingerprint",
    "largest_crop",
    "mixed",
    "recipe_for",
]


class Recipe(Record, kw_only=True):
    """Settings of a training; it ends at whatever of ``epochs``, ``steps`` and ``seconds`` comes first.

    Attributes:
        epochs: passes through the data.
        steps: mini-batches at most.
        seconds: of wall clock at most.
        batch: examples in a mini-batch.
        rate: highest learning rate, of stochastic gradient descent with Nesterov momentum.
        momentum: 0 to 1.
        decay: weight decay (L2) of weights with two or more axes; others have none.
        smoothing: of labels, 0 to 1 (Szegedy et al., 2016, "Rethinking the Inception Architecture", section 7).
        rising_ratio: part of the training in which the learning rate rises.
        distill_ratio: weight of the teacher's answers in the loss, 0 to 1.
        temperature: of both answers (Hinton et al., 2015, "Distilling the Knowledge in a Neural Network").
        pad: random crops of images reach so many pixels beyond their border; 0: no crops.
        flip: mirror half of the images.
        bf16: compute in bfloat16 where PyTorch holds that safe.
        seed: of order, crops, flips and dropout.
    """

    epochs: float = 5.0
    steps: int | None = None
    seconds: float | None = None
    batch: int = 128
    rate: float = 0.05
    momentum: float = 0.9
    decay: float = 5e-4
    smoothing: float = 0.05
    rising_ratio: float = 0.2
    distill_ratio: float = 0.0
    temperature: float = 4.0
    pad: int = 4
    flip: bool = True
    bf16: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("epochs", 0.0, None),
            ("seconds", 0.0, None),
            ("steps", 0, None),
            ("batch", 2, None),
            ("rate", 0.0, None),
            ("momentum", 0.0, 1.0),
            ("decay", 0.0, None),
            ("smoothing", 0.0, 1.0),
            ("rising_ratio", 0.0, 1.0),
            ("distill_ratio", 0.0, 1.0),
            ("pad", 0, None),
        ):
            value = getattr(self, name)
            if value is not None and (not value >= least or (most is not None and value > most)):
                raise ValueError(f"{name} is {value}, not in {least} .. {'' if most is None else most}")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, not above 0")


class Progress(Record, kw_only=True):
    """Where a training stands.

    Attributes:
        step: mini-batches done.
        epoch: passes through the data done, with their fraction.
        ratio: of the whole training, 0 to 1.
        loss: mean over the mini-batches since the report before.
        seconds: of wall clock, those before an interruption included.
    """

    step: int
    epoch: float
    ratio: float
    loss: float
    seconds: float


class Tuned(Record, kw_only=True):
    """What a training came to.

    Attributes:
        steps: mini-batches done.
        epochs: passes through the data done.
        seconds: of wall clock.
        losses: mean training loss of each epoch.
        rate: highest learning rate that it was done at: the recipe's, or less where it diverged at that.
    """

    steps: int
    epochs: float
    seconds: float
    losses: tuple[float, ...]
    rate: float


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """How a fine-tuning went that must not cost the network.

    Attributes:
        done: what it came to; ``None``: it diverged at every rate, and the network is as it came.
        note: that it diverged and what was done then, as a sentence; empty: it did not.
    """

    done: Tuned | None
    note: str = ""


_SEARCH_BATCH, _LEAST_BATCHES = 128, 20  # examples in a mini-batch; mini-batches in an epoch
_LEAST_STEPS = 1000  # of a fine-tuning whose epochs nobody chose: few examples are seen more often
_CROP = 8  # a picture is cropped by at most this part of its height (CIFAR-10: 4 of 32)


def recipe_for(
    examples: Examples, *, epochs: float | None, least_epochs: float, rate: float, seed: int, pictures: bool = True
) -> Recipe:
    """How a network is fine-tuned on examples: crops by the picture's size, mirrored only where it has colours.

    Args:
        examples: to train on.
        epochs: passes through them; ``None``: ``least_epochs``, and more where these are fewer than 1,000 steps.
        least_epochs: see ``epochs``.
        rate: highest learning rate.
        seed: of order, crops and flips.
        pictures: whether examples with three axes are pictures.
    """
    shape = examples.stored.shape[1:]
    image = pictures and len(shape) == 3
    batch = max(min(_SEARCH_BATCH, len(examples) // _LEAST_BATCHES), 2)
    if epochs is None:
        epochs = max(least_epochs, _LEAST_STEPS * batch / max(len(examples), 1))
    pad, flip = largest_crop(shape) if image else 0, image and shape[0] == 3
    return Recipe(epochs=epochs, batch=batch, rate=rate, pad=pad, flip=flip, seed=seed)


def largest_crop(shape: tuple[int, ...]) -> int:
    """Pixels beyond its border that a crop of a picture, C x H x W, may reach."""
    return shape[1] // _CROP


def one_cycle(ratio: float, peak: float, rising_ratio: float) -> float:
    """Learning rate: up in a line to ``peak``, down in a line to zero.

    Smith and Topin, 2019, "Super-Convergence: Very Fast Training of Neural Networks Using Large
    Learning Rates", section 3.
    """
    if ratio < rising_ratio:
        return peak * ratio / rising_ratio
    return peak * (1 - ratio) / (1 - rising_ratio) if rising_ratio < 1 else peak


Array = npt.NDArray[Any]


def mixed(x: Array, count: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Examples between two others, for a network that says itself what becomes of them.

    Zhang et al., 2018, "mixup: Beyond Empirical Risk Minimization", section 2; labels are not mixed here: a teacher
    knows what it makes of any input.

    Args:
        x: examples x any shape, float32.
        count: how many to make.
        random: draws pairs, and where between them an example lies, uniformly.
    """
    first, second = random.integers(0, len(x), (2, count))
    part = random.random((count, *(1,) * (x.ndim - 1)), np.float32)
    made: npt.NDArray[np.float32] = x[first] + part * (x[second] - x[first])
    return made


def augmented(images: Array, random: np.random.Generator, *, pad: int = 4, flip: bool = True) -> Array:
    """A random crop of each image, reflected ``pad`` pixels beyond its border, half of them mirrored.

    He et al., 2016, "Deep Residual Learning for Image Recognition", section 4.2, with reflection in
    place of zeros.

    Args:
        images: N x C x H x W; of any other rank: returned as they are.
        random: decides crops and flips.
        pad: at most so many pixels in each direction; less where the image is smaller.
        flip: left and right.

    Returns:
        The same shape and type.
    """
    if images.ndim != 4:
        return images
    count, _, height, width = images.shape
    reach = min(pad, height - 1, width - 1)
    if reach:
        wide = np.pad(images, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(wide, (height, width), axis=(2, 3))
        down, right = random.integers(0, 2 * reach + 1, (2, count))
        images = windows[np.arange(count), :, down, right]
    if flip:
        mirrored = random.random((count, 1, 1, 1)) < 0.5
        images = np.where(mirrored, images[..., ::-1], images)
    return images


_WEIGHT, _MOMENTUM = "weight:", "momentum:"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where a training stands.

    Attributes:
        mark: of the training that it belongs to, see :func:`fingerprint`.
        step: mini-batches done.
        seconds: of wall clock.
        losses: of the epochs that ended.
        pending: losses of the epoch under way, one a mini-batch.
        weights: parameters and running statistics, by initializer.
        momenta: of the optimiser, by initializer.
    """

    mark: str
    step: int
    seconds: float
    losses: tuple[float, ...]
    pending: tuple[float, ...]
    weights: Mapping[str, Array]
    momenta: Mapping[str, Array]


def fingerprint(weights: Mapping[str, Array], recipe: Recipe, masks: Mapping[str, Array], examples: int) -> str:
    """What makes a training the same: the weights that it began with, the recipe, the masks, how many examples."""
    digest = hashlib.sha256(f"{to_json(recipe)} {examples}".encode())
    for part in (weights, masks):
        for name in sorted(part):
            array = np.ascontiguousarray(part[name])
            digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write it, whole or not at all, over an older one."""
    arrays = {
        "mark": np.asarray(checkpoint.mark),
        "step": np.asarray(checkpoint.step),
        "seconds": np.asarray(checkpoint.seconds),
        "losses": np.asarray(checkpoint.losses, np.float64),
        "pending": np.asarray(checkpoint.pending, np.float64),
    }
    arrays |= {f"{_WEIGHT}{name}": array for name, array in checkpoint.weights.items()}
    arrays |= {f"{_MOMENTUM}{name}": array for name, array in checkpoint.momenta.items()}
    with write_whole(path, force=True) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_checkpoint(path: Path, mark: str) -> Checkpoint:
    """Read the checkpoint of the training with this mark.

    Raises:
        InputError: damaged, or of another training.
    """
    try:
        arrays = ArrayFile(path).read()
        checkpoint = Checkpoint(
            mark=str(arrays["mark"]),
            step=int(arrays["step"]),
            seconds=float(arrays["seconds"]),
            losses=tuple(arrays["losses"].tolist()),
            pending=tuple(arrays["pending"].tolist()),
            weights=_part(arrays, _WEIGHT),
            momenta=_part(arrays, _MOMENTUM),
        )
    except (InputError, TypeError, ValueError, KeyError) as error:
        what = error.what if isinstance(error, InputError) else error
        raise InputError(f"not a usable checkpoint: {what}", where=path, remedy="remove it to begin again") from error
    if checkpoint.mark != mark:
        raise InputError(
            "the checkpoint of another training: network, recipe, masks or data differ",
            where=path,
            remedy="choose another path, or remove it to begin again",
        )
    return checkpoint


def _part(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


_log = logging.getLogger(__name__)
Masks = Mapping[str, npt.NDArray[Any]]
Tensor = Any  # torch.Tensor
TRIES = 3
"""Trainings at most where what is trained must not be lost: at the recipe's rate, a quarter of it, a sixteenth."""
_REPORTS_NS = 500_000_000  # between two reports of progress
_REMEDY = "lower the learning rate, or check the data's normalisation"
_LOWER = 4  # times: a rate that follows on one that a training diverged at


def fine_tune(
    network: Network,
    examples: Examples,
    recipe: Recipe,
    *,
    masks: Masks | None = None,
    teacher: Any = None,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: str | Path | None = None,
    tries: int = 1,
) -> Tuned:
    """Train a network in place.

    The order of examples, crops and dropout follow from the seed and the step alone, so a training that
    goes on from its checkpoint computes what it would have computed without the break.

    Args:
        network: ends in evaluation mode.
        examples: to train on.
        recipe: how.
        masks: weight -> where it is kept (not zero); the rest stays exactly zero.
        teacher: what it learns from beside the labels, where ``recipe.distill_ratio`` is set: a network, or
            any module that returns logits; it stays as it is.
        progress: is told about twice a second, and at the end of each epoch.
        checkpoint: an ``.npz`` that is written at the end of each epoch and when the training is
            interrupted; where it exists the training goes on from it. Trainings after the first have files of
            their own beside it.
        tries: trainings at most. One that diverges is begun anew from the weights that the network came with, at
            a quarter of the rate.

    Raises:
        DivergedError: the last of them diverged, too; the network is as it came.
        InputError: masks or examples that do not fit, a checkpoint of another training.
        KeyboardInterrupt: interrupted; the step was ended and the checkpoint written.
    """
    if len(examples) < 2:
        raise InputError(f"{len(examples)} examples to train on", where="data", remedy="give more")
    expected = (network.model.inputs[0].shape or ())[1:]
    if tuple(expected) != examples.stored.shape[1:]:
        raise InputError(
            f"the examples are {examples.stored.shape[1:]}, the network takes {expected}",
            where=network.model.name,
            remedy="give data in the network's shape",
        )
    if recipe.distill_ratio and teacher is None:
        raise InputError("distillation without a teacher", where="distill_ratio", remedy="give the dense network")
    before, kept, first = state(network), _kept(network, masks or {}), None if checkpoint is None else Path(checkpoint)
    for number, rate in enumerate(rates(recipe, tries)):
        tried = msgspec.structs.replace(recipe, rate=rate)
        path = first if first is None or not number else first.with_stem(f"{first.stem}-{number}")
        run = _Run(network, examples, tried, kept, teacher)
        if path is not None:
            run.mark = fingerprint(state(network), tried, masks or {}, len(examples))
            if path.exists():
                run.resume(read_checkpoint(path, run.mark))
        try:
            with _interruptible() as interrupted:
                run.train(progress, path, interrupted)
            break
        except DivergedError as error:
            load_state(network, before)
            network.eval()
            if number + 1 == tries:
                raise
            _log.info("training at a rate of %g: %s; begun anew at a lower one", rate, error)
    losses = tuple(run.losses)
    return Tuned(steps=run.step, epochs=run.step / run.in_epoch, seconds=run.seconds, losses=losses, rate=rate)


def fine_tune_or_keep(
    network: Network,
    examples: Examples,
    recipe: Recipe,
    notify: Notify,
    *,
    checkpoint: Path,
    masks: Masks | None = None,
    teacher: Any = None,
) -> FineTuning:
    """Train a network in place; where that diverges at lower rates, too, the network stays as it came.

    Args:
        network: ends in evaluation mode.
        examples: to train on.
        recipe: how.
        notify: receives how it goes.
        checkpoint: see :func:`fine_tune`; so are ``masks`` and ``teacher``.
        masks: weight -> where it is kept.
        teacher: what it learns from beside the labels.

    Raises:
        KeyboardInterrupt: interrupted; the checkpoint was written, the network may be anywhere between.
    """
    progress = as_progress("fine-tuning", notify)
    try:
        done = fine_tune(
            *(network, examples, recipe),
            masks=masks,
            teacher=teacher,
            progress=progress,
            checkpoint=checkpoint,
            tries=TRIES,
        )
    except DivergedError as error:
        tried = ", ".join(f"{rate:g}" for rate in rates(recipe))
        return FineTuning(None, f"not fine-tuned: that diverged at rates of {tried} ({error.what})")
    if done.rate < recipe.rate:
        return FineTuning(done, f"fine-tuning diverged at a rate of {recipe.rate:g}, and was done at {done.rate:g}")
    return FineTuning(done)


def as_progress(what: str, notify: Notify) -> Callable[[Progress], None]:
    """Where a training stands, as lines of text.

    Args:
        what: is done, "training" for example.
        notify: receives the lines.
    """
    return lambda now: notify(f"{what}: {100 * now.ratio:.0f} %, epoch {now.epoch:.1f}, loss {now.loss:.3f}")


def rates(recipe: Recipe, tries: int = TRIES) -> tuple[float, ...]:
    """Learning rates that are tried one after the other, each where a training diverged at those before."""
    return tuple(recipe.rate / _LOWER**number for number in range(tries))


class _Run:
    """One training: what changes from step to step."""

    def __init__(
        self, network: Network, examples: Examples, recipe: Recipe, masks: dict[str, Tensor], teacher: Any
    ) -> None:
        self.network, self.examples, self.recipe, self.teacher = network, examples, recipe, teacher
        self.kept = [(network.weights[name], mask) for name, mask in masks.items()]
        self.mark = ""
        self.batch = min(recipe.batch, len(examples))
        self.in_epoch = len(examples) // self.batch
        planned = round(recipe.epochs * self.in_epoch)
        self.planned = planned if recipe.steps is None else min(planned, recipe.steps)
        self.step = 0
        self.losses: list[float] = []
        self._pending: list[float] = []  # losses of the epoch under way
        self._before_s, self._started = 0.0, time.perf_counter()
        self._shuffled = -1, np.empty(0, np.int64)  # epoch, its order
        decayed = [weight for weight in network.weights.values() if weight.dim() > 1]
        others = [weight for weight in network.weights.values() if weight.dim() <= 1]
        self.optimiser = torch.optim.SGD(
            [{"params": decayed, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}],
            lr=recipe.rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
        )
        self._mask()

    @property
    def seconds(self) -> float:
        """Of wall clock, those before a break included."""
        return self._before_s + time.perf_counter() - self._started

    @property
    def ratio(self) -> float:
        """Of the training that is done."""
        done = self.step / self.planned if self.planned else 1.0
        if self.recipe.seconds is not None:
            done = max(done, self.seconds / self.recipe.seconds if self.recipe.seconds else 1.0)
        return min(done, 1.0)

    def train(
        self, progress: Callable[[Progress], None] | None, path: Path | None, interrupted: Callable[[], bool]
    ) -> None:
        """From the current step to the end."""
        self.network.train()
        if self.teacher is not None:
            self.teacher.eval()
        recent: list[float] = []
        reported_ns = time.monotonic_ns()
        with torch.random.fork_rng(devices=[]):
            while (ratio := self.ratio) < 1:
                loss = self._one(ratio)
                recent.append(loss)
                self._pending.append(loss)
                ended = self.step % self.in_epoch == 0 or self.ratio >= 1
                if ended:
                    self.losses.append(float(np.mean(self._pending)))
                    self._pending.clear()
                stopped = interrupted()
                if path is not None and (ended or stopped):
                    self._save(path)
                if progress is not None and (ended or time.monotonic_ns() - reported_ns > _REPORTS_NS):
                    progress(self._progress_of(recent))
                    recent.clear()
                    reported_ns = time.monotonic_ns()
                if stopped:
                    raise KeyboardInterrupt
        self.network.eval()
        if not all(np.isfinite(array).all() for array in state(self.network).values()):
            raise DivergedError("weights are NaN or Inf after the last step", where="training", remedy=_REMEDY)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from there."""
        load_state(self.network, checkpoint.weights)
        for name, momentum in checkpoint.momenta.items():
            weight = self.network.weights[name]
            self.optimiser.state[weight]["momentum_buffer"] = torch.from_numpy(momentum).to(weight.dtype)
        self.step, self.losses, self._pending = checkpoint.step, list(checkpoint.losses), list(checkpoint.pending)
        self._before_s = checkpoint.seconds

    def _one(self, ratio: float) -> float:
        """One mini-batch; its loss."""
        recipe = self.recipe
        torch.manual_seed(_number(recipe.seed, self.step))  # dropout
        x, labels = self._drawn()
        for group in self.optimiser.param_groups:
            group["lr"] = one_cycle(ratio, recipe.rate, recipe.rising_ratio)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.bf16):
            logits = self.network.logits(x)
        if int(labels.max()) >= logits.shape[1]:
            raise InputError(
                f"a label is {int(labels.max())}, the network has {logits.shape[1]} outputs",
                where=self.network.model.name,
                remedy="give data of the classes that the network was made for",
            )
        loss = torch.nn.functional.cross_entropy(logits.float(), labels, label_smoothing=recipe.smoothing)
        if recipe.distill_ratio:
            loss = (1 - recipe.distill_ratio) * loss + recipe.distill_ratio * self._distance(x, logits.float())
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise DivergedError(f"the loss is {value} at step {self.step}", where="training", remedy=_REMEDY)
        self.optimiser.step()
        self._mask()
        self.step += 1
        return value

    def _drawn(self) -> tuple[Tensor, Tensor]:
        """The current step's mini-batch, augmented."""
        epoch, place = divmod(self.step, self.in_epoch)
        if self._shuffled[0] != epoch:
            random = np.random.default_rng((self.recipe.seed, 0, epoch))
            self._shuffled = epoch, random.permutation(len(self.examples))
        rows = self._shuffled[1][place * self.batch : (place + 1) * self.batch]
        random = np.random.default_rng((self.recipe.seed, 1, self.step))
        stored = augmented(self.examples.stored[rows], random, pad=self.recipe.pad, flip=self.recipe.flip)
        return torch.from_numpy(self.examples.normalised(stored)), torch.from_numpy(self.examples.labels[rows])

    def _distance(self, x: Tensor, logits: Tensor) -> Tensor:
        """From the teacher's answers: Kullback-Leibler divergence at the recipe's temperature."""
        heat = self.recipe.temperature
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.recipe.bf16):
            answers = self.teacher.logits(x) if isinstance(self.teacher, Network) else self.teacher(x)
        functional = torch.nn.functional
        wanted, said = (functional.log_softmax(part / heat, dim=1) for part in (answers.float(), logits))
        # Gradients shrink with the temperature's square (Hinton et al., 2015, section 2).
        return functional.kl_div(said, wanted, reduction="batchmean", log_target=True) * heat**2

    def _mask(self) -> None:
        with torch.no_grad():
            for weight, mask in self.kept:
                weight.mul_(mask)

    def _progress_of(self, recent: list[float]) -> Progress:
        return Progress(
            step=self.step,
            epoch=self.step / self.in_epoch,
            ratio=self.ratio,
            loss=float(np.mean(recent)),
            seconds=self.seconds,
        )

    def _save(self, path: Path) -> None:
        momenta = {
            name: self.optimiser.state[weight]["momentum_buffer"].numpy().copy()
            for name, weight in self.network.weights.items()
            if self.optimiser.state[weight].get("momentum_buffer") is not None
        }
        write_checkpoint(
            path,
            Checkpoint(
                mark=self.mark,
                step=self.step,
                seconds=self.seconds,
                losses=tuple(self.losses),
                pending=tuple(self._pending),
                weights=state(self.network),
                momenta=momenta,
            ),
        )


def _kept(network: Network, masks: Masks) -> dict[str, Tensor]:
    """Masks as tensors, checked."""
    kept = {}
    for name, mask in masks.items():
        if name not in network.weights:
            raise InputError(f"a mask for {name!r}, which is not a weight", where="masks", remedy="name a weight")
        weight = network.weights[name]
        if np.shape(mask) != tuple(weight.shape):
            raise InputError(
                f"the mask of {name!r} is {np.shape(mask)}, the weight {tuple(weight.shape)}",
                where="masks",
                remedy="give one of the weight's shape",
            )
        kept[name] = torch.from_numpy(np.asarray(mask) != 0).to(weight.dtype)
    return kept


def _number(seed: int, step: int) -> int:
    """A seed of its own for each step."""
    return int(np.random.SeedSequence((seed, 2, step)).generate_state(1)[0])


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets the step end; a second one stops at once. Outside the main thread signals stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    old = signal.signal(signal.SIGINT, note)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, old)
