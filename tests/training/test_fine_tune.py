"""Training: it learns, keeps masks, distils, can be interrupted and goes on exactly."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.model import GraphBuilder, Model, listing
from framefit.errors import DivergedError, InputError
from framefit.training.data import Dataset, Examples
from framefit.training.evaluate import evaluate
from framefit.training.fine_tune import Progress, Recipe, fine_tune, fine_tune_or_keep, one_cycle, recipe_for
from framefit.training.network import Network, load_state, state, to_model, to_torch

QUICK = Recipe(epochs=6, batch=16, rate=0.1, pad=0, flip=False, bf16=False)
RUINOUS = 100.0  # a rate that the plain network diverges at


def reader(*, dropout: bool = False) -> Model:
    """A convolution with batch norm and a classifier for the stripes."""
    b = GraphBuilder("reader", 2)
    x = b.conv(b.input("image", (1, 1, 8, 8)), 4, norm=True, activation="Relu")
    if dropout:
        x = b.op("Dropout", x, b.constant(np.float32(0.3)))
    b.output(b.dense(b.op("Flatten", x), 3), "logits")
    return b.build()


def same(one: Network, other: Network) -> bool:
    """Whether two networks have the same weights and statistics, bit for bit."""
    first, second = state(one), state(other)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_it_learns(stripes: Dataset) -> None:
    """A network that guessed at first is right on nearly all of the validation data, and ends in evaluation mode."""
    network = to_torch(reader())
    before = evaluate(network, stripes.validation)
    told: list[Progress] = []
    done = fine_tune(network, stripes.train, QUICK, progress=told.append)
    assert evaluate(network, stripes.validation).top1 >= 0.9 > before.top1
    assert not network.training
    in_epoch = len(stripes.train) // 16
    assert done.steps == 6 * in_epoch
    assert done.epochs == 6
    assert len(done.losses) == 6
    assert done.losses[-1] < done.losses[0]
    assert [progress.epoch for progress in told if progress.step % in_epoch == 0] == [1, 2, 3, 4, 5, 6]
    assert told[-1].ratio == 1


def test_it_learns_in_bfloat16(stripes: Dataset) -> None:
    """Computed in bfloat16 it learns as well; weights stay float32."""
    network = to_torch(reader())
    fine_tune(network, stripes.train, msgspec.structs.replace(QUICK, bf16=True))
    assert evaluate(network, stripes.validation).top1 >= 0.9
    assert {array.dtype for array in state(network).values()} == {np.dtype(np.float32)}


@given(seed=st.integers(0, 50), sparsity=st.floats(0, 1))
@settings(max_examples=8)
def test_masked_weights_stay_zero(stripes: Dataset, seed: int, sparsity: float) -> None:
    """Whatever is masked is exactly zero after training, in the model too, and what is kept changes."""
    network = to_torch(reader())
    random = np.random.default_rng(seed)
    masks = {name: random.random(tuple(w.shape)) >= sparsity for name, w in network.weights.items() if w.dim() > 1}
    before = state(network)
    fine_tune(network, stripes.train, msgspec.structs.replace(QUICK, steps=3), masks=masks)
    arrays = listing(to_model(network)).arrays
    for name, mask in masks.items():
        assert not arrays[name][~mask].any()
        assert not mask.any() or not np.array_equal(arrays[name][mask], before[name][mask])


def test_the_seed_decides(stripes: Dataset) -> None:
    """The same seed gives the same weights bit for bit, dropout included; another seed others."""
    networks = [to_torch(reader(dropout=True)) for _ in range(3)]
    for network, seed in zip(networks, (0, 0, 1), strict=True):
        fine_tune(network, stripes.train, msgspec.structs.replace(QUICK, epochs=1, seed=seed, pad=1, flip=True))
    assert same(networks[0], networks[1])
    assert not same(networks[0], networks[2])


def test_global_randomness_is_left_alone(stripes: Dataset) -> None:
    """PyTorch's own random numbers go on as if there had been no training."""
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fine_tune(to_torch(reader()), stripes.train, msgspec.structs.replace(QUICK, steps=1))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("stop", [1, 9, 10, 17])
def test_an_interrupted_training_goes_on_exactly(stripes: Dataset, tmp_path: Path, stop: int) -> None:
    """Ctrl-C saves after the step; the same call goes on and ends with the weights of a training without a break."""
    recipe = msgspec.structs.replace(QUICK, epochs=2, pad=1, flip=True)
    whole = to_torch(reader(dropout=True))
    once = fine_tune(whole, stripes.train, recipe)
    network, path = to_torch(reader(dropout=True)), tmp_path / "part.npz"
    examples, handler = Interrupting(stripes.train, stop), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(network, examples, recipe, checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is handler
    fresh = to_torch(reader(dropout=True))
    done = fine_tune(fresh, stripes.train, recipe, checkpoint=path)
    assert same(fresh, whole)
    assert (done.steps, done.losses) == (once.steps, once.losses)
    assert fine_tune(to_torch(reader(dropout=True)), stripes.train, recipe, checkpoint=path).steps == once.steps


class Interrupting(Examples):
    """Examples during whose n-th mini-batch somebody presses Ctrl-C."""

    def __init__(self, examples: Examples, step: int) -> None:
        super().__init__(examples.stored, examples.labels, examples.scaling)
        object.__setattr__(self, "left", step)

    def normalised(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A mini-batch; the signal comes with the last one."""
        object.__setattr__(self, "left", self.left - 1)  # type: ignore[attr-defined]
        if not self.left:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGINT)
        return super().normalised(stored)


def test_a_checkpoint_of_another_training_is_refused(stripes: Dataset, tmp_path: Path) -> None:
    """Another recipe, other masks, or a damaged file: refused with the path and what to do."""
    path = tmp_path / "part.npz"
    recipe = msgspec.structs.replace(QUICK, steps=2)
    fine_tune(to_torch(reader()), stripes.train, recipe, checkpoint=path)
    with pytest.raises(InputError, match=r"part\.npz: the checkpoint belongs to another training"):
        fine_tune(to_torch(reader()), stripes.train, msgspec.structs.replace(recipe, rate=0.2), checkpoint=path)
    network = to_torch(reader())
    masks = {name: np.ones(tuple(weight.shape)) for name, weight in network.weights.items()}
    with pytest.raises(InputError, match="another training"):
        fine_tune(network, stripes.train, recipe, masks=masks, checkpoint=path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="not a usable checkpoint"):
        fine_tune(to_torch(reader()), stripes.train, recipe, checkpoint=path)


def test_a_teacher_teaches(stripes: Dataset) -> None:
    """Learning from a trained network's answers alone, labels left out, gives its accuracy; the teacher stays."""
    teacher = to_torch(reader())
    fine_tune(teacher, stripes.train, QUICK)
    before = state(teacher)
    student = to_torch(reader())
    wrong = Examples(stripes.train.stored, np.zeros_like(stripes.train.labels))
    fine_tune(student, wrong, msgspec.structs.replace(QUICK, distill_ratio=1.0, temperature=2.0), teacher=teacher)
    assert evaluate(student, stripes.validation).top1 >= 0.9
    assert all(np.array_equal(array, before[name]) for name, array in state(teacher).items())


def test_seconds_end_a_training(stripes: Dataset) -> None:
    """A budget of seconds ends a training that has epochs left; none at all does nothing."""
    network = to_torch(reader())
    before = to_torch(reader())
    done = fine_tune(network, stripes.train, msgspec.structs.replace(QUICK, epochs=1e6, seconds=0.2))
    assert 0 < done.steps < 1e6
    assert done.seconds >= 0.2
    network = to_torch(reader())
    assert fine_tune(network, stripes.train, msgspec.structs.replace(QUICK, seconds=0.0)).steps == 0
    assert same(network, before)


def test_a_small_set_is_one_batch() -> None:
    """Fewer examples than a mini-batch holds are one mini-batch; a single one is refused."""
    x, y = np.zeros((5, 1, 8, 8), np.float32), np.zeros(5, np.int64)
    assert fine_tune(to_torch(reader()), Examples(x, y), msgspec.structs.replace(QUICK, epochs=3)).steps == 3
    with pytest.raises(InputError, match="1 examples are too few to train on"):
        fine_tune(to_torch(reader()), Examples(x[:1], y[:1]), QUICK)


def test_a_loss_that_is_not_a_number_is_an_error(stripes: Dataset) -> None:
    """A training that diverges is an input error with a remedy, not a network full of NaN handed on in silence."""
    with pytest.raises(InputError, match="loss is") as error:
        fine_tune(to_torch(reader()), stripes.train, msgspec.structs.replace(QUICK, rate=1e30))
    assert "learning rate" in str(error.value.remedy)


def plain() -> Model:
    """The reader without batch norm, as most exported files are: a high rate makes it diverge."""
    b = GraphBuilder("plain", 2)
    x = b.conv(b.input("image", (1, 1, 8, 8)), 4, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.conv(x, 4, activation="Relu")), 3), "logits")
    return b.build()


def test_weights_from_before_a_divergence_are_kept(stripes: Dataset) -> None:
    """A network whose training diverges at every rate ends as it came, in evaluation mode."""
    network = to_torch(plain())
    with pytest.raises(DivergedError):
        fine_tune(network, stripes.train, msgspec.structs.replace(QUICK, rate=1e30), tries=3)
    assert same(network, to_torch(plain()))
    assert not network.training


def test_weights_that_only_the_last_step_ruins_are_an_error(stripes: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step behind which no loss is computed any more does not hand on weights that are no numbers."""
    network = to_torch(plain())
    monkeypatch.setattr("framefit.training.fine_tune.one_cycle", lambda *_: float("inf"))
    with pytest.raises(DivergedError, match="after the last step"):
        fine_tune(network, stripes.train, msgspec.structs.replace(QUICK, steps=1))
    assert same(network, to_torch(plain()))


def test_a_lower_rate_is_tried(stripes: Dataset, tmp_path: Path) -> None:
    """What diverges is trained anew at a quarter of the rate, as if that had been asked for; also from checkpoints."""
    recipe = msgspec.structs.replace(QUICK, rate=RUINOUS)
    with pytest.raises(DivergedError):
        fine_tune(to_torch(plain()), stripes.train, recipe)
    network, expected = to_torch(plain()), to_torch(plain())
    done = fine_tune(network, stripes.train, recipe, tries=3, checkpoint=tmp_path / "training.npz")
    assert done.rate in {RUINOUS / 4, RUINOUS / 16}
    fine_tune(expected, stripes.train, msgspec.structs.replace(recipe, rate=done.rate))
    assert same(network, expected)
    again = to_torch(plain())
    assert fine_tune(again, stripes.train, recipe, tries=3, checkpoint=tmp_path / "training.npz").rate == done.rate
    assert same(again, expected)


def test_a_rate_that_does_harm_is_lowered(stripes: Dataset, tmp_path: Path) -> None:
    """What a check refuses is trained anew at a quarter of the rate; where it refuses all, the network is as before."""
    rates: list[float] = []

    def check() -> None:
        rates.append(len(rates))
        if len(rates) < 2:
            raise DivergedError("it became worse", where="training")

    network, expected = to_torch(plain()), to_torch(plain())
    done = fine_tune(network, stripes.train, QUICK, tries=3, check=check)
    assert (done.rate, len(rates)) == (QUICK.rate / 4, 2)
    fine_tune(expected, stripes.train, msgspec.structs.replace(QUICK, rate=QUICK.rate / 4))
    assert same(network, expected)

    def refuse() -> None:
        raise DivergedError("it became worse", where="training")

    path = tmp_path / "training.npz"
    kept = to_torch(plain())
    tuning = fine_tune_or_keep(kept, stripes.train, QUICK, lambda _: None, checkpoint=path, check=refuse)
    assert tuning.done is None
    assert "rates of 0.1, 0.025, 0.00625 (it became worse)" in tuning.note
    assert same(kept, to_torch(plain()))


def test_a_clipped_gradient_bears_a_high_rate(stripes: Dataset) -> None:
    """A network without batch norm that a rate ruins learns at the same rate where gradients are clipped."""
    wild = msgspec.structs.replace(QUICK, rate=1.0, epochs=2)
    outcomes = []
    for clip in (float("inf"), 0.1):
        network = to_torch(plain())
        fine_tune(network, stripes.train, QUICK)
        with contextlib.suppress(DivergedError):
            fine_tune(network, stripes.train, msgspec.structs.replace(wild, clip=clip))
            outcomes.append(evaluate(network, stripes.validation).top1)
    assert outcomes[-1] >= 0.9
    assert len(outcomes) == 1 or outcomes[0] < 0.9


@pytest.mark.parametrize(
    ("masks", "told"), [({"absent": np.ones(3)}, "'absent'"), ({"weight_1": np.ones(3)}, "the mask of 'weight_1'")]
)
def test_masks_that_do_not_fit_are_refused(stripes: Dataset, masks: dict[str, Any], told: str) -> None:
    """A mask for no weight, or of another shape, is named."""
    with pytest.raises(InputError, match=told):
        fine_tune(to_torch(reader()), stripes.train, QUICK, masks=masks)


def test_data_that_do_not_fit_are_refused(stripes: Dataset) -> None:
    """Other shapes than the network's, and labels that it has no output for, are told with both numbers."""
    other = Examples(np.zeros((20, 3, 8, 8), np.float32), np.zeros(20, np.int64))
    with pytest.raises(InputError, match="the network takes"):
        fine_tune(to_torch(reader()), other, QUICK)
    with pytest.raises(InputError, match="a label is 7, but the network has 3 outputs"):
        fine_tune(to_torch(reader()), Examples(stripes.train.stored, stripes.train.labels * 0 + 7), QUICK)


def test_distillation_needs_a_teacher(stripes: Dataset) -> None:
    """Asked to learn from a teacher that is not there, it says so."""
    with pytest.raises(InputError, match="needs a teacher"):
        fine_tune(to_torch(reader()), stripes.train, msgspec.structs.replace(QUICK, distill_ratio=0.5))


@pytest.mark.parametrize(
    "change", [{"batch": 1}, {"momentum": 1.5}, {"rate": float("nan")}, {"temperature": 0.0}, {"clip": 0.0}]
)
def test_recipes_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    """A value outside of its range is refused where the recipe is made."""
    with pytest.raises(ValueError, match=next(iter(change))):
        Recipe(**change)


@given(peak=st.floats(1e-4, 1), rising=st.floats(0, 1), ratio=st.floats(0, 1))
def test_the_learning_rate_peaks_once(peak: float, rising: float, ratio: float) -> None:
    """It rises up to its peak, falls after it, and never leaves 0 .. peak."""
    rate = one_cycle(ratio, peak, rising)
    assert 0 <= rate <= peak * (1 + 1e-12)
    assert one_cycle(rising, peak, rising) == pytest.approx(peak)
    later = min(ratio + 0.01, 1)
    if ratio < later <= rising:
        assert one_cycle(later, peak, rising) >= rate
    if rising <= ratio < later:
        assert one_cycle(later, peak, rising) <= rate


def test_weights_are_not_shared_between_networks() -> None:
    """Two networks of one model are trained apart."""
    model = reader()
    one, other = to_torch(model), to_torch(model)
    load_state(one, {name: np.zeros_like(array) for name, array in state(one).items()})
    assert not same(one, other)


def test_large_examples_are_trained_on_a_few_at_once() -> None:
    """Gradients need hundreds of times as many numbers as an example has: a mini-batch holds a number of these."""
    batches = []
    for height, width in ((32, 32), (240, 320)):
        pixels = np.broadcast_to(np.uint8(0), (6000, 3, height, width))
        examples = Examples(pixels, np.zeros(6000, np.int64))
        batches.append(recipe_for(examples, epochs=1, least_epochs=1, rate=0.02, seed=0).batch)
    assert batches == [128, 18]
