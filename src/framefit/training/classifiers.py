"""Opening what networks are taught with: a classifier and labelled data, whichever knows the input's shape first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from framefit.core.functions import load_function
from framefit.core.model import Model, free_batch
from framefit.core.model.builtin import load_model
from framefit.core.workload import names_function
from framefit.errors import InputError, UnsupportedError
from framefit.training.data import Dataset, check_fits, load_data
from framefit.training.network import from_module

__all__ = ["batch_left_open", "open_classifier", "open_data"]


def open_classifier(
    model: Any,
    data: Any,
    *,
    seed: int = 0,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
) -> tuple[Model, Dataset]:
    """Read model and data, and check that they fit each other.

    Args:
        model: path of an ONNX file, name of a built-in model, "module:function" that returns a
            ``torch.nn.Module``, such a module, or a model.
        data: see :func:`open_data`.
        seed: of the data's split.
        mean: of images, one a channel, of values 0 to 1; std: likewise.
        std: see ``mean``.

    Raises:
        InputError: what cannot be used.
    """
    opened, split = _opened(model, data, (seed, mean, std))
    check_fits(split, opened)
    return opened, split


def open_data(
    source: Any,
    shape: tuple[int, ...] | None,
    *,
    seed: int = 0,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
) -> Dataset:
    """Data, split with the seed.

    Args:
        source: path, iterable, or data that are split already.
        shape: of the model's input, without the batch; images of a folder are brought to it.
        seed: of the split.
        mean: of images, one a channel, of values 0 to 1; std: likewise.
        std: see ``mean``.
    """
    if isinstance(source, Dataset):
        return source
    image = shape is not None and len(shape) == 3 and isinstance(source, str | Path) and Path(source).is_dir()
    return load_data(
        source,
        seed=seed,
        size=(shape[1], shape[2]) if image and shape else None,
        channels=shape[0] if image and shape and shape[0] in (1, 3) else None,
        mean=mean,
        std=std,
    )


def _opened(
    model: Any, data: Any, choices: tuple[int, Iterable[float] | None, Iterable[float] | None]
) -> tuple[Model, Dataset]:
    def split(shape: tuple[int, ...] | None) -> Dataset:
        seed, mean, std = choices
        return open_data(data, shape, seed=seed, mean=mean, std=std)

    name = model if isinstance(model, str) else ""
    if names_function(name):
        model = load_function(name, Path(), "MODEL")()
    if not isinstance(model, str | Path | Model):
        found = split(None)
        return from_module(model, found.input_shape, name=re.sub(r"\W+", "-", name).strip("-") or "network"), found
    try:
        opened = load_model(model, None, None)
    except InputError as error:
        unknown = re.match(r"input '(.+)' has (the dynamic dimension|no shape)", error.what)
        if unknown is None:
            raise
        found = split(None)  # the data know the sizes that the file leaves open
        return load_model(model, {unknown[1]: (1, *found.input_shape)}, None), found
    return opened, split(tuple((opened.inputs[0].shape or ())[1:]))


def batch_left_open(source: Any, opened: Model) -> tuple[bool, tuple[str, ...]]:
    """Whether files of what becomes of a model leave the batch open, as the user's file does, or a module.

    Args:
        source: of the model, as :func:`open_classifier` takes it.
        opened: the model.

    Returns:
        Whether, and what keeps them from it.
    """
    from_file = isinstance(source, Model | Path) or (isinstance(source, str) and not names_function(source))
    if from_file and not opened.assumed:
        return False, ()
    try:
        free_batch(opened)
    except UnsupportedError as error:
        return False, (f"model.onnx takes one example at once: {error.what}",)
    return True, ()
