"""Training: a whole network from scratch, or a pruned one for a few epochs.

The recipe is a record, and a checkpoint is a file of arrays; crops, flips and mixtures are made for whole batches.
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
from framefit.training.data import Examples, at_once
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
    """Parameters of a training; it ends at the first of ``epochs``, ``steps`` and ``seconds``.

    Attributes:
        epochs: passes through the data.
        steps: largest number of mini-batches.
        seconds: longest time, wall clock.
        batch: examples in a mini-batch.
        rate: highest learning rate, of stochastic gradient descent with Nesterov momentum.
        momentum: of the optimiser, 0 to 1.
        decay: weight decay (L2) of weights with two or more axes; others have none.
        smoothing: label smoothing, 0 to 1 (Szegedy et al., 2016, "Rethinking the Inception Architecture", section 7).
        rising_ratio: part of the training in which the learning rate rises.
        distill_ratio: weight of the teacher's answers in the loss, 0 to 1.
        temperature: for both answers (Hinton et al., 2015, "Distilling the Knowledge in a Neural Network").
        clip: largest norm of the gradient of all weights that are kept (Pascanu et al., 2013, "On the difficulty of
            training recurrent neural networks", section 3.2).
        pad: pixels by which random crops of images extend beyond their border; 0: no crops.
        flip: mirror half of the images.
        bf16: compute in bfloat16 where PyTorch considers it safe and this processor multiplies it; elsewhere a step
            took 2.7 (AVX-512) and 13 times (AVX2) as long as in float32 (ResNet-20, tried by hand).
        seed: for order, crops, flips and dropout.
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
    clip: float = math.inf
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
        for name in ("temperature", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, not above 0")


class Progress(Record, kw_only=True):
    """Progress of a training.

    Attributes:
        step: number of mini-batches done.
        epoch: passes through the data done, with their fraction.
        ratio: part of the whole training that is done, 0 to 1.
        loss: mean over the mini-batches since the preceding report.
        seconds: wall clock, including the time before an interruption.
    """

    step: int
    epoch: float
    ratio: float
    loss: float
    seconds: float


class Tuned(Record, kw_only=True):
    """Result of a training.

    Attributes:
        steps: number of mini-batches.
        epochs: number of passes through the data.
        seconds: wall clock.
        losses: mean training loss of each epoch.
        rate: highest learning rate: the recipe's, or less where that did harm.
    """

    steps: int
    epochs: float
    seconds: float
    losses: tuple[float, ...]
    rate: float


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Result of a fine-tuning that keeps the network where training does harm.

    Attributes:
        done: the result; ``None``: every rate did harm, and the network has its original weights.
        note: remark on what was undone, as a sentence; empty: nothing was.
    """

    done: Tuned | None
    note: str = ""


_SEARCH_BATCH, _LEAST_BATCHES = 128, 20  # examples in a mini-batch; mini-batches in an epoch
_NUMBERS = 1 << 22  # of a mini-batch: 18 images of 240 x 320, of whose tensors gradients need hundreds of times as many
_CLIP = 1.0  # without batch norm, which bounds the gradient's effect, the usual rates destroy a network
_LEAST_STEPS = 1000  # of a fine-tuning with the default number of epochs: few examples are used more often
_CROP = 8  # an image is cropped by at most one part in 8 of its height (CIFAR-10: 4 of 32)


def recipe_for(
    examples: Examples, *, epochs: float | None, least_epochs: float, rate: float, seed: int, pictures: bool = True
) -> Recipe:
    """Choose a recipe for fine-tuning: crops by the image's size, flips only for images with colours.

    Args:
        examples: training data.
        epochs: passes through them; ``None``: ``least_epochs``, or more where these are fewer than 1,000 steps.
        least_epochs: see ``epochs``.
        rate: highest learning rate.
        seed: for order, crops and flips.
        pictures: whether examples with three axes are images.
    """
    shape = examples.stored.shape[1:]
    image = pictures and len(shape) == 3
    batch = max(min(at_once(shape, _SEARCH_BATCH, _NUMBERS), len(examples) // _LEAST_BATCHES), 2)
    if epochs is None:
        epochs = max(least_epochs, _LEAST_STEPS * batch / max(len(examples), 1))
    pad, flip = largest_crop(shape) if image else 0, image and shape[0] == 3
    return Recipe(epochs=epochs, batch=batch, rate=rate, clip=_CLIP, pad=pad, flip=flip, seed=seed)


def largest_crop(shape: tuple[int, ...]) -> int:
    """Pixels by which a crop of an image, C x H x W, may extend beyond its border."""
    return shape[1] // _CROP


def one_cycle(ratio: float, peak: float, rising_ratio: float) -> float:
    """Learning rate: it rises linearly to ``peak``, and falls linearly to zero.

    Smith and Topin, 2019, "Super-Convergence: Very Fast Training of Neural Networks Using Large
    Learning Rates", section 3.
    """
    if ratio < rising_ratio:
        return peak * ratio / rising_ratio
    return peak * (1 - ratio) / (1 - rising_ratio) if rising_ratio < 1 else peak


Array = npt.NDArray[Any]


def mixed(x: Array, count: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Mixtures of two examples each, for networks that give the labels themselves.

    Zhang et al., 2018, "mixup: Beyond Empirical Risk Minimization", section 2; labels are not mixed here: a teacher
    has an answer for any input.

    Args:
        x: examples x any shape, float32.
        count: number of mixtures.
        random: draws pairs, and the weight of each pair uniformly.
    """
    first, second = random.integers(0, len(x), (2, count))
    part = random.random((count, *(1,) * (x.ndim - 1)), np.float32)
    made: npt.NDArray[np.float32] = x[first] + part * (x[second] - x[first])
    return made


def augmented(images: Array, random: np.random.Generator, *, pad: int = 4, flip: bool = True) -> Array:
    """Crop each image randomly, reflected ``pad`` pixels beyond its border, and mirror half of them.

    He et al., 2016, "Deep Residual Learning for Image Recognition", section 4.2, with reflection instead of
    zeros.

    Args:
        images: N x C x H x W; arrays of another rank are returned unchanged.
        random: for crops and flips.
        pad: largest number of pixels in each direction; less where the image is smaller.
        flip: whether to mirror half of the images, left to right.

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
    """State of a training.

    Attributes:
        mark: identifies the training, see :func:`fingerprint`.
        step: number of mini-batches done.
        seconds: wall clock.
        losses: of the epochs that have ended.
        pending: losses of the present epoch, one for each mini-batch.
        weights: parameters and running statistics, by initializer.
        momenta: state of the optimiser, by initializer.
    """

    mark: str
    step: int
    seconds: float
    losses: tuple[float, ...]
    pending: tuple[float, ...]
    weights: Mapping[str, Array]
    momenta: Mapping[str, Array]


def fingerprint(weights: Mapping[str, Array], recipe: Recipe, masks: Mapping[str, Array], examples: Examples) -> str:
    """Identify a training: by its initial weights, recipe, masks and examples."""
    digest = hashlib.sha256(f"{to_json(recipe)} {examples.digest}".encode())
    for part in (weights, masks):
        for name in sorted(part):
            array = np.ascontiguousarray(part[name])
            digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint as a whole, in place of an older one."""
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
        InputError: it is damaged, or belongs to another training.
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
        raise InputError(f"not a usable checkpoint: {what}", where=path, remedy="remove it to start over") from error
    if checkpoint.mark != mark:
        raise InputError(
            "the checkpoint belongs to another training: network, recipe, masks or data differ",
            where=path,
            remedy="choose another path, or remove it to start over",
        )
    return checkpoint


def _part(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


_log = logging.getLogger(__name__)
Masks = Mapping[str, npt.NDArray[Any]]
Tensor = Any  # torch.Tensor
TRIES = 3
"""Largest number of attempts where the network must not be lost: at the recipe's rate, at a quarter, at a sixteenth."""
_REPORTS_NS = 500_000_000  # time between two reports of progress
_REMEDY = "lower the learning rate, or check the data's normalisation"
_LOWER = 4  # divisor of the rate after a training did harm


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
    check: Callable[[], None] | None = None,
) -> Tuned:
    """Train a network in place.

    The order of examples, crops and dropout follow from the seed and the step alone, so a training that is
    continued from its checkpoint has the result of an uninterrupted one.

    Args:
        network: it is in evaluation mode afterwards.
        examples: training data.
        recipe: parameters of the training.
        masks: weight -> which of its elements are kept; the others stay exactly zero.
        teacher: source of answers beside the labels, where ``recipe.distill_ratio`` is set: a network, or
            any module that returns logits; it is not changed.
        progress: called about twice a second, and at the end of each epoch.
        checkpoint: an ``.npz`` that is written at the end of each epoch and when the training is
            interrupted; if it exists, the training continues from it. Further attempts have files of their own
            beside it.
        tries: largest number of attempts. Where one did harm the training starts over from the original weights at
            a quarter of the rate.
        check: looks at the network after an attempt, in evaluation mode; raises ``DivergedError`` where it became
            worse.

    Raises:
        DivergedError: the last attempt did harm, too; the network has its original weights.
        InputError: masks or examples do not match, or the checkpoint belongs to another training.
        KeyboardInterrupt: interrupted; the step was completed and the checkpoint written.
    """
    if len(examples) < 2:
        raise InputError(f"{len(examples)} examples are too few to train on", where="data", remedy="give more examples")
    expected = network.model.example_shape
    if expected != examples.stored.shape[1:]:
        raise InputError(
            f"the examples are {examples.stored.shape[1:]}, but the network takes {expected}",
            where=network.model.name,
            remedy="give data in the network's shape",
        )
    if recipe.distill_ratio and teacher is None:
        raise InputError("distillation needs a teacher", where="distill_ratio", remedy="give the dense network")
    before, kept, first = state(network), _kept(network, masks or {}), None if checkpoint is None else Path(checkpoint)
    for number, rate in enumerate(rates(recipe, tries)):
        tried = msgspec.structs.replace(recipe, rate=rate)
        path = first if first is None or not number else first.with_stem(f"{first.stem}-{number}")
        run = _Run(network, examples, tried, kept, teacher)
        if path is not None:
            run.mark = fingerprint(state(network), tried, masks or {}, examples)
            if path.exists():
                run.resume(read_checkpoint(path, run.mark))
        try:
            with _interruptible() as interrupted:
                run.train(progress, path, interrupted)
            if check is not None:
                check()
            break
        except DivergedError as error:
            load_state(network, before)
            network.eval()
            if number + 1 == tries:
                raise
            _log.info("training at a rate of %g: %s; starting over at a lower one", rate, error)
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
    check: Callable[[], None] | None = None,
) -> FineTuning:
    """Train a network in place; where lower rates do harm, too, it keeps its original weights.

    Args:
        network: it is in evaluation mode afterwards.
        examples: training data.
        recipe: parameters of the training.
        notify: receives messages on the progress.
        checkpoint: see :func:`fine_tune`; so are ``masks``, ``teacher`` and ``check``.
        masks: weight -> which of its elements are kept.
        teacher: source of answers beside the labels.
        check: looks at the network after an attempt.

    Raises:
        KeyboardInterrupt: interrupted; the checkpoint is written, the network is in an intermediate state.
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
            check=check,
        )
    except DivergedError as error:
        tried = ", ".join(f"{rate:g}" for rate in rates(recipe))
        return FineTuning(None, f"not fine-tuned: training diverged or did harm at rates of {tried} ({error.what})")
    if done.rate < recipe.rate:
        note = f"fine-tuning at a rate of {recipe.rate:g} diverged or did harm, and was repeated at {done.rate:g}"
        return FineTuning(done, note)
    return FineTuning(done)


def as_progress(what: str, notify: Notify) -> Callable[[Progress], None]:
    """Make a progress function that reports lines of text.

    Args:
        what: name of the activity, "training" for example.
        notify: receives the lines.
    """
    return lambda now: notify(f"{what}: {100 * now.ratio:.0f} %, epoch {now.epoch:.1f}, loss {now.loss:.3f}")


def rates(recipe: Recipe, tries: int = TRIES) -> tuple[float, ...]:
    """Learning rates of the attempts, each for harm at the one before."""
    return tuple(recipe.rate / _LOWER**number for number in range(tries))


class _Run:
    """One attempt at a training: everything that changes from step to step."""

    def __init__(
        self, network: Network, examples: Examples, recipe: Recipe, masks: dict[str, Tensor], teacher: Any
    ) -> None:
        self.network, self.examples, self.recipe, self.teacher = network, examples, recipe, teacher
        self.task = examples.task
        self.kept = [(network.weights[name], mask) for name, mask in masks.items()]
        self.trained = list(network.weights.values())
        self.mark = ""
        self.batch = min(recipe.batch, len(examples))
        self.in_epoch = len(examples) // self.batch
        planned = round(recipe.epochs * self.in_epoch)
        self.planned = planned if recipe.steps is None else min(planned, recipe.steps)
        self.step = 0
        self.losses: list[float] = []
        self._pending: list[float] = []  # losses of the present epoch
        self._before_s, self._started = 0.0, time.perf_counter()
        self._shuffled = -1, np.empty(0, np.int64)  # number of an epoch, and its order
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
        """Wall clock, including the time before an interruption."""
        return self._before_s + time.perf_counter() - self._started

    @property
    def ratio(self) -> float:
        """Part of the training that is done."""
        done = self.step / self.planned if self.planned else 1.0
        if self.recipe.seconds is not None:
            done = max(done, self.seconds / self.recipe.seconds if self.recipe.seconds else 1.0)
        return min(done, 1.0)

    def train(
        self, progress: Callable[[Progress], None] | None, path: Path | None, interrupted: Callable[[], bool]
    ) -> None:
        """Train from the current step to the end."""
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
        """Continue from a checkpoint."""
        load_state(self.network, checkpoint.weights)
        for name, momentum in checkpoint.momenta.items():
            weight = self.network.weights[name]
            self.optimiser.state[weight]["momentum_buffer"] = torch.from_numpy(momentum).to(weight.dtype)
        self.step, self.losses, self._pending = checkpoint.step, list(checkpoint.losses), list(checkpoint.pending)
        self._before_s = checkpoint.seconds

    def _one(self, ratio: float) -> float:
        """Train on one mini-batch, and return its loss."""
        recipe = self.recipe
        torch.manual_seed(_number(recipe.seed, self.step))  # dropout
        x, labels = self._drawn()
        for group in self.optimiser.param_groups:
            group["lr"] = one_cycle(ratio, recipe.rate, recipe.rising_ratio)
        with _narrow(recipe):
            answers = self.task.answers(self.network, x)
        part = recipe.distill_ratio
        loss: Tensor = self._distance(x, answers.float()) if part else 0.0
        if part < 1:
            loss = (1 - part) * self.task.trained(answers.float(), labels, recipe.smoothing) + part * loss
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise DivergedError(f"the loss is {value} at step {self.step}", where="training", remedy=_REMEDY)
        self._clip()
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

    def _distance(self, x: Tensor, answers: Tensor) -> Tensor:
        """Distance from the teacher's answers at the recipe's temperature."""
        with torch.no_grad(), _narrow(self.recipe):
            right = self.task.answers(self.teacher, x)
        return self.task.distance(answers, right.float(), self.recipe.temperature)

    def _mask(self) -> None:
        with torch.no_grad():
            for weight, mask in self.kept:
                weight.mul_(mask)

    def _clip(self) -> None:
        if math.isfinite(self.recipe.clip):
            for weight, mask in self.kept:
                if weight.grad is not None:
                    weight.grad.mul_(mask)
            torch.nn.utils.clip_grad_norm_(self.trained, self.recipe.clip)

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


def _narrow(recipe: Recipe) -> Any:
    """A context that computes in bfloat16, where the recipe allows it and the processor gains by it."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.bf16 and _multiplies_bfloat16())


def _multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it."""
    known = torch.cpu.get_capabilities()
    if known.get("architecture") == "x86_64":  # oneDNN has kernels for AVX-512 that convert to float32 and back
        return bool(known.get("avx512_bf16"))
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - nothing public says it


def _kept(network: Network, masks: Masks) -> dict[str, Tensor]:
    """Masks as checked tensors."""
    kept = {}
    for name, mask in masks.items():
        if name not in network.weights:
            raise InputError(f"mask {name!r} does not belong to a weight", where="masks", remedy="name a weight")
        weight = network.weights[name]
        if np.shape(mask) != tuple(weight.shape):
            raise InputError(
                f"the mask of {name!r} is {np.shape(mask)}, but the weight is {tuple(weight.shape)}",
                where="masks",
                remedy="give a mask of the weight's shape",
            )
        kept[name] = torch.from_numpy(np.asarray(mask) != 0).to(weight.dtype)
    return kept


def _number(seed: int, step: int) -> int:
    """A different seed for each step."""
    return int(np.random.SeedSequence((seed, 2, step)).generate_state(1)[0])


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C complete the step; a second one stops at once. Outside the main thread signals are unchanged."""
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
