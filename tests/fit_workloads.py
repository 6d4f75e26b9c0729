"""A workload that does not fit at first, with a network that was trained, and its labelled data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from framefit.core.files import write_whole
from framefit.core.model import GraphBuilder, free_batch
from framefit.fit.loop import Fitted, fit
from workloads import write_models, write_target

__all__ = ["fitted", "outcomes", "write_fit_app", "write_network", "write_pictures"]

_RATE_HZ = 550  # "net" takes 2.4 ms, and is left 1.5 of 1.8 ms


def fitted(app: Path, **changed: Any) -> Fitted:
    """A fit that takes steps, with a little fine-tuning and a short proof."""
    given: dict[str, Any] = {"apply": True, "output": app.parent / "out", "finetune_epochs": 1, "max_drop": 0.2}
    return fit(app, **(given | {"verify_seconds": 1} | changed))


def outcomes(done: Fitted) -> list[tuple[str, str]]:
    """Measure and outcome of each step."""
    return [(step.name, step.outcome) for step in done.result.steps]


def write_pictures(path: Path) -> Path:
    """Noisy pictures, 2 x 8 x 8, of three classes: a bright left, right or middle."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 400)
    x = random.standard_normal((400, 2, 8, 8)).astype(np.float32)
    for label, columns in enumerate((slice(0, 2), slice(6, 8), slice(3, 5))):
        x[labels == label, :, :, columns] += 1.5
    np.savez(path, x_train=x[100:], y_train=labels[100:], x_test=x[:100], y_test=labels[:100])
    return path


def write_network(path: Path, data: Path) -> Path:
    """A small residual network, trained on the pictures."""
    from framefit.training.data import load_data
    from framefit.training.fine_tune import Recipe, fine_tune
    from framefit.training.network import to_model, to_torch

    b = GraphBuilder("net", 2)
    x = b.conv(b.input("image", (1, 2, 8, 8)), 24, norm=True, activation="Relu")
    y = b.conv(x, 24, norm=True, activation="Relu")
    x = b.op("Relu", b.op("Add", b.conv(y, 24, norm=True), x))
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 3), "classes")
    network = to_torch(b.build())
    recipe = Recipe(epochs=4, batch=32, rate=0.05, pad=0, flip=False, bf16=False)
    fine_tune(network, load_data(data).train, recipe)
    with write_whole(path, force=True) as file:
        file.write(free_batch(to_model(network)))
    return path


def write_fit_app(
    folder: Path,
    *,
    rate_hz: float = _RATE_HZ,
    macs: str = "fp32 = 64",
    processor: str = "",
    unit: str = 'name = "npu0"',
    slow: Sequence[str] = ("net",),
    **tables: str,
) -> Path:
    """``app.toml`` over "net.onnx" of the folder: a priority model, two background models, one of them too slow.

    Args:
        folder: gets the app, its target and the other model.
        rate_hz: windows a second.
        macs: that the target's processor does in a cycle.
        processor: further lines of it.
        unit: lines of its only unit.
        slow: names of models that are "net.onnx".
        tables: lines of other tables of the target.
    """
    write_models(folder)
    tables = {"sparsity": 'skips = "weights"\ngranularity = "unstructured"'} | tables
    write_target(
        folder, units=(unit,), processor=f"clock_mhz = 5\nmacs_per_cycle = {{ {macs} }}\n{processor}", **tables
    )
    text = f'target = "target.toml"\nrate_hz = {rate_hz}\n'
    for name, file, role, more in (
        ("small", "small", "every-window", ""),
        ("other", "small", "background", "every = 2\n"),
        *((name, "net", "background", "") for name in slow),
    ):
        text += f'[[models]]\nname = "{name}"\npath = "{file}.onnx"\npriority = "{role}"\n{more}'
    app = folder / "app.toml"
    app.write_text(text)
    return app
