"""Examples of models with several inputs, and states of recurrent models: a row of numbers for each example.

Training, searches and evaluations know one array of examples. Where a model has several inputs, an example is the row
of all their numbers, which the network takes apart (:meth:`~framefit.training.network.Network.forward`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from framefit.core.arrays import ArrayFile, shape_text
from framefit.core.model import Model, TensorInfo
from framefit.errors import InputError, MismatchError
from framefit.training.extra import torch
from framefit.training.network import Network, to_torch

__all__ = ["InSequence", "joined_examples"]

Array = npt.NDArray[Any]
Predict = Callable[[npt.NDArray[np.float32]], tuple[Array, ...]]
_WHOLE = 1 << 24  # float32 holds whole numbers up to here


def joined_examples(model: Model, source: Any, states: Mapping[str, str]) -> tuple[npt.NDArray[np.float32], ...]:
    """Read examples of a model with several inputs.

    States are what the model itself makes of the examples in their order, from zeros: what it would see where it runs.
    Neighbours in such a sequence are much alike, so its last tenth is set aside for the test.

    Args:
        model: several examples can run at once along some axis of each input and output, see
            :meth:`~framefit.training.network.Network.join_inputs`.
        source: path of an ``.npz`` with an array for each input that is no state, by its name, N x the input's shape
            without the batch; ``x`` will do where there is only one.
        states: input -> the output that becomes its next value.

    Returns:
        The examples, N x numbers; and those for the test, if the order of the examples matters.

    Raises:
        InputError: the file cannot be used; states name what is not there.
        MismatchError: an array has another shape than its input.
    """
    _check_states(model, states)
    given = {tensor.name: tensor for tensor in model.inputs if tensor.name not in states}
    if not given:
        raise InputError("every input is a state", where=model.name, remedy="name those that are fed from outside")
    arrays = {
        name: _fitting(name, array, given[name].shape or (), source)
        for name, array in _arrays(source, given, model).items()
    }
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise InputError(f"arrays differ in their number of examples ({shown})", where=source, remedy="store as many")
    if not states:
        return (np.concatenate([arrays[tensor.name] for tensor in model.inputs], axis=1),)
    rows = _with_states(model, arrays, states)
    test = max(len(rows) // 10, 1)
    return rows[:-test], rows[-test:]


def _check_states(model: Model, states: Mapping[str, str]) -> None:
    inputs, outputs = ({tensor.name: tensor for tensor in each} for each in (model.inputs, model.outputs))
    for source, target in states.items():
        for name, known in ((source, inputs), (target, outputs)):
            if not source:
                raise InputError(f"{target!r} is not of the form INPUT=OUTPUT", where="--state", remedy="name both")
            if name not in known:
                raise InputError(
                    f"no {'input' if known is inputs else 'output'} {name!r}",
                    where="--state",
                    remedy=f"choose from {', '.join(known)}",
                )
        before, after = inputs[source].shape or (), outputs[target].shape or ()
        if before != after:
            raise InputError(
                f"{source!r} is {shape_text(before)}, but {target!r} is {shape_text(after)}",
                where="--state",
                remedy="name the output that is the input's next value",
            )


def _arrays(source: Any, given: Mapping[str, TensorInfo], model: Model) -> dict[str, Array]:
    """The file's array for each input."""
    names = ", ".join(given)
    form = f"store {names}" + ("; or x" if len(given) == 1 else "") + ", one example behind the other, in an .npz"
    form += "".join(f"; or say {hint}" for hint in _hints(given.values(), model))
    if not isinstance(source, str | Path) or Path(source).suffix != ".npz":
        raise MismatchError("the model has several inputs", where=str(source), remedy=form)
    file = ArrayFile(Path(source))
    keys = {name: name if name in file.names else "x" if len(given) == 1 else name for name in given}
    missing = [key for key in keys.values() if key not in file.names]
    if missing:
        raise MismatchError(
            f"no array {', '.join(missing)}; the file holds {', '.join(file.names) or 'nothing'}",
            where=source,
            remedy=form,
        )
    read = file.read(keys.values())
    return {name: read[key] for name, key in keys.items()}


def _hints(given: Iterable[TensorInfo], model: Model) -> list[str]:
    """Options for inputs that may be no part of an example: single numbers, and what has the shape of one output."""
    hints = []
    for tensor in given:
        alike = [output.name for output in model.outputs if output.shape == tensor.shape]
        if not tensor.shape:
            hints.append(f"--constant {tensor.name}=NUMBER")
        elif len(alike) == 1:
            hints.append(f"--state {tensor.name}={alike[0]}")
    return hints


def _fitting(name: str, array: Array, shape: tuple[int, ...], source: Any) -> npt.NDArray[np.float32]:
    """One input's examples as rows of float32."""
    sizes, wanted = [size for size in array.shape[1:] if size != 1], [size for size in shape if size != 1]
    if array.ndim < 1 or sizes != wanted:
        raise MismatchError(
            f"{name} is {shape_text(array.shape)}, but the model takes {shape_text(shape)} for each example",
            where=source,
            remedy="store one example behind the other, each in the input's shape",
        )
    what = None
    if array.dtype.kind not in "fiub":
        what = f"{name} is {array.dtype}"
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        what = f"{int((~np.isfinite(array)).sum())} numbers of {name} are infinite or NaN"
    elif array.dtype.kind in "iu" and array.size and int(np.abs(array.astype(np.int64)).max()) > _WHOLE:
        what = f"{name} has whole numbers beyond {_WHOLE}"
    if what is not None:
        raise InputError(what, where=source, remedy="store finite numbers, such as float32")
    return array.reshape(len(array), math.prod(shape)).astype(np.float32)


class InSequence:
    """A recurrent model as a function of consecutive examples: each gets the states that the one before made.

    Args:
        model: it has several inputs.
        predict: computes all its outputs from a row of numbers, 1 x n.
        states: input -> output that is its next value.
    """

    def __init__(self, model: Model, predict: Predict, states: Mapping[str, str]) -> None:
        self._predict = predict
        outputs = [tensor.name for tensor in model.outputs]
        self._fed = [(model.columns[name], outputs.index(target)) for name, target in states.items()]
        self._last: tuple[Array, ...] | None = None

    @classmethod
    def of(cls, network: Network, states: Mapping[str, str]) -> Self:
        """A network in evaluation mode."""

        def predict(rows: npt.NDArray[np.float32]) -> tuple[Array, ...]:
            with torch.inference_mode():
                outputs = network(torch.from_numpy(rows))
            return tuple(each.numpy() for each in (outputs if isinstance(outputs, tuple) else (outputs,)))

        return cls(network.eval().model, predict, states)

    def __call__(self, rows: npt.NDArray[np.float32]) -> tuple[Array, ...]:
        """All outputs for more examples; the first of all has the states that stand in its row."""
        made = []
        for each in rows:
            row = each[None].copy()
            if self._last is not None:
                for part, output in self._fed:
                    row[0, part] = self._last[output].ravel()
            self._last = self._predict(row)
            made.append(self._last)
        return tuple(np.concatenate(each) for each in zip(*made, strict=True))


def _with_states(
    model: Model, arrays: Mapping[str, npt.NDArray[np.float32]], states: Mapping[str, str]
) -> npt.NDArray[np.float32]:
    """Rows in which each state is what the model made of the examples before."""
    parts, outputs = model.columns, [tensor.name for tensor in model.outputs]
    rows = np.zeros((len(next(iter(arrays.values()))), *model.example_shape), np.float32)
    for name, array in arrays.items():
        rows[:, parts[name]] = array
    made = InSequence.of(to_torch(model), states)(rows)
    for name, target in states.items():
        rows[1:, parts[name]] = made[outputs.index(target)][:-1].reshape(len(rows) - 1, -1)
    if not np.isfinite(rows).all():
        raise InputError("the states become infinite or NaN", where=model.name, remedy="check the examples' scale")
    return rows
