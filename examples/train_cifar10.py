"""Train a small network on CIFAR-10, or on any image folder of 32 x 32 pixels, and write it as ONNX.

    python examples/train_cifar10.py --data FOLDER [--network resnet20] [--epochs 50] [-o resnet20.onnx]

An interrupted training continues when the same command is given again. ``--network`` is
``resnet20`` or ``mobilenetv2``; ``framefit sparsify`` accepts its ``module:function``, too
(``train_cifar10:mobilenetv2``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from framefit.core.files import write_whole
from framefit.core.model import free_batch
from framefit.errors import FramefitError
from framefit.training.data import load_data
from framefit.training.evaluate import evaluate
from framefit.training.fine_tune import Progress, Recipe, fine_tune
from framefit.training.network import from_module, to_model, to_torch


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut (He et al., 2016, "Deep Residual Learning", figure 2)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(y)) + self.shortcut(x)).relu()


class InvertedResidual(nn.Module):
    """A block with a wide depthwise convolution in its middle (Sandler et al., 2018, "MobileNetV2", figure 3)."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        self.adds = stride == 1 and before == after
        widening = [nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()] if expansion > 1 else []
        self.layers = nn.Sequential(
            *widening,
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU()),
            *(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def resnet20() -> nn.Module:
    """ResNet-20 for 32 x 32 pixels: 41 M multiply-accumulates, 0.27 M parameters."""
    blocks, before = [], 16
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        for index in range(3):
            blocks.append(Residual(before, channels, stride if index == 0 else 1))
            before = channels
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mobilenetv2() -> nn.Module:
    """A small MobileNetV2 for 32 x 32 pixels: 5.3 M multiply-accumulates, 0.14 M parameters."""
    blocks, before = [], 16
    # expansion, channels, blocks, stride: as in table 2 of the paper, but narrower and four stages long
    for expansion, channels, count, stride in ((1, 16, 1, 2), (4, 16, 2, 1), (4, 32, 3, 2), (4, 64, 3, 2)):
        for index in range(count):
            blocks.append(InvertedResidual(before, channels, stride if index == 0 else 1, expansion))
            before = channels
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    last = (nn.Conv2d(before, 256, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU())
    return nn.Sequential(*stem, *blocks, *last, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


NETWORKS = {"resnet20": resnet20, "mobilenetv2": mobilenetv2}


def main() -> None:
    """Train, write, and print the accuracy on the test images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--epochs", type=float, default=50)
    parser.add_argument("--seconds", type=float, help="longest time, wall clock")
    parser.add_argument("--rate", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=None)
    options = parser.parse_args()
    output = options.output or Path(f"{options.network}.onnx")

    data = load_data(options.data, seed=options.seed)
    torch.manual_seed(options.seed)
    network = to_torch(from_module(NETWORKS[options.network](), data.input_shape, name=options.network))
    recipe = Recipe(epochs=options.epochs, seconds=options.seconds, rate=options.rate, seed=options.seed)

    def show(at: Progress) -> None:
        if sys.stderr.isatty():
            print(f"\repoch {at.epoch:6.2f}  loss {at.loss:.3f}  {at.seconds:6.0f} s", end="", file=sys.stderr)

    done = fine_tune(network, data.train, recipe, progress=show, checkpoint=output.with_suffix(".part.npz"))
    print(file=sys.stderr)
    with write_whole(output, force=True) as file:
        file.write(free_batch(to_model(network)))
    validated, final = evaluate(network, data.validation), evaluate(network, data.test)
    low, high = final.top1_interval
    print(f"{output}: {done.epochs:.1f} epochs in {done.seconds:.0f} s, validation {validated.top1:.4f}")
    print(f"test {final.top1:.4f} ({low:.4f} to {high:.4f}), {final.images / final.seconds:.0f} images/s")


if __name__ == "__main__":
    try:
        main()
    except FramefitError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command continues")
