"""A training that was interrupted, as a file: arrays in an ``.npz``, nothing pickled."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.arrays import ArrayFile
from framefit.core.files import to_json, write_whole
from framefit.errors import InputError
from framefit.training.recipe import Recipe

__all__ = ["Checkpoint", "fingerprint", "read_checkpoint", "write_checkpoint"]

Array = npt.NDArray[Any]
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
        found = Checkpoint(
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
    if found.mark != mark:
        raise InputError(
            "the checkpoint of another training: network, recipe, masks or data differ",
            where=path,
            remedy="choose another path, or remove it to begin again",
        )
    return found


def _part(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
