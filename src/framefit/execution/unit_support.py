"""Which of a device's units models may use, and which support them."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from pathlib import Path

from framefit.core.model import Model
from framefit.core.target import Target
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.errors import InputError
from framefit.execution.wiring import WiredModel

__all__ = ["check_support", "home_unit", "supporting_units", "usable_units"]


def usable_units(workload: Workload, device: Device, app: Path) -> list[str]:
    """Names of the units that some model may use, in the device's order.

    Args:
        workload: its models may name units.
        device: the device with the units.
        app: the workload's file, for messages.

    Raises:
        InputError: a model names a unit that does not exist, or an empty list.
    """
    names = [unit.name for unit in device.target.units]
    for index, model in enumerate(workload.models):
        where = f"{app}: $.models[{index}].units"
        if model.units is not None and not model.units:
            raise InputError("names no unit", where=where, remedy=f"choose from {', '.join(names)}, or leave it out")
        for name in model.units or ():
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise InputError(
                    f"no unit {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                    where=where,
                    remedy=f"choose from {', '.join(names)}",
                )
    used = {name for model in workload.models for name in (names if model.units is None else model.units)}
    return [name for name in names if name in used]


def supporting_units(target: Target, units: Sequence[str], model: Model, first: int, last: int) -> list[str]:
    """Units that support all operators of layers ``first`` to ``last``.

    Args:
        target: the device.
        units: names of the units in question.
        model: the model with these layers.
        first: layer.
        last: layer.
    """
    ops = {op for layer in model.layers[first : last + 1] for op in layer.op.split("+")}
    return [name for name in units if all(map(target.unit(name).supports, ops))]


def home_unit(target: Target, units: Sequence[str], wired: WiredModel) -> str:
    """The first permitted unit that supports all of a model; empty where none does.

    Args:
        target: the device.
        units: names of the units that models may use.
        wired: the model.
    """
    permitted = [name for name in units if wired.entry.units is None or name in wired.entry.units]
    return next(iter(supporting_units(target, permitted, wired.model, 0, len(wired.model.layers) - 1)), "")


def check_support(target: Target, units: Sequence[str], wired: WiredModel) -> None:
    """Check that a unit can run every layer, together with the layers from which it cannot be cut.

    Args:
        target: the device.
        units: names of the units that models may use.
        wired: the model.

    Raises:
        InputError: no unit supports a layer.
    """
    if home_unit(target, units, wired):
        return
    model = wired.model
    permitted = [name for name in units if wired.entry.units is None or name in wired.entry.units]
    edges = [0, *sorted(cut.position for cut in model.legal_cuts), len(model.layers)]
    for first, end in itertools.pairwise(edges):
        if supporting_units(target, permitted, model, first, end - 1):
            continue
        lacks = {}
        for name in permitted:
            lacks[name] = next(
                (layer.name, op)
                for layer in model.layers[first:end]
                for op in layer.op.split("+")
                if not target.unit(name).supports(op)
            )
        missing = ", ".join(f"unit {name!r} lacks {op}" for name, (_, op) in lacks.items())
        raise InputError(
            f"no unit of target {target.name!r} supports all operators: {missing}",
            where=f"model {wired.entry.name!r}, layer {lacks[permitted[-1]][0]!r}",
            remedy="choose another target, or replace the layer",
        )
