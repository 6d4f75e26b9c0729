"""How a network is trained, as a record."""

from __future__ import annotations

from framefit.core.files import Record

__all__ = ["Progress", "Recipe", "Tuned", "one_cycle"]


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


def one_cycle(ratio: float, peak: float, rising_ratio: float) -> float:
    """Learning rate: up in a line to ``peak``, down in a line to zero.

    Smith and Topin, 2019, "Super-Convergence: Very Fast Training of Neural Networks Using Large
    Learning Rates", section 3.

    Args:
        ratio: of the training that is done, 0 to 1.
        peak: highest learning rate.
        rising_ratio: where the peak is.
    """
    if ratio < rising_ratio:
        return peak * ratio / rising_ratio
    return peak * (1 - ratio) / (1 - rising_ratio) if rising_ratio < 1 else peak
