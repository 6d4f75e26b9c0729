"""``framefit estimate``: a network's latency from a table, without running anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.files import write_record
from framefit.core.latency_table import LatencyTable, check_fingerprint, read_table
from framefit.core.model import Model, epilogue_groups
from framefit.core.results import LatencyEstimate
from framefit.core.target import Cache, Memory, Processor, Target
from framefit.devices.device import Device
from framefit.devices.facts import device_facts
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.npu.work import LayerWork
from framefit.devices.ort import OrtDevice
from framefit.errors import InputError
from framefit.latency.attribution import attributed, owners
from framefit.latency.calibrate import Analytical
from framefit.latency.estimate import Estimator
from framefit.latency.fusion import known_groups
from framefit.workflows.cycles import load_model
from framefit.workflows.measure import open_target

__all__ = ["analytical_model", "estimate", "estimated", "layer_groups", "table_device"]

# What a target without a described processor (a CPU) is taken to be like before calibration: only
# the balance of arithmetic, memory and overhead counts, the table brings its speed.
_PLAIN_HOST = Target(
    name="host",
    kind="npu",
    processor=Processor(
        clock_mhz=3000, macs_per_cycle={"fp32": 16.0, "fp16": 16.0, "int8": 32.0}, vector_lanes=8, layer_cycles=3000
    ),
    memory=(Memory(read_bandwidth_gbps=12.0, write_bandwidth_gbps=12.0, read_bus_bits=512, write_bus_bits=512),),
    cache=Cache(size_kib=1024, word_bits=512),
)


def estimate(
    model: str | Path | Model,
    table: str | Path | LatencyTable,
    *,
    target: str | Path | Target | None = None,
    unit: str | None = None,
    fallback: bool = False,
    any_fingerprint: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    force: bool = False,
) -> LatencyEstimate:
    """Add up what a network's layers take on a device, from its latency table.

    Args:
        model: path of an ONNX file, name of a built-in model, or a model.
        table: path of a ``*.table.json``, or a table.
        target: the device that the table is to apply to; default: the target that it names.
        unit: of the table; default: its first.
        fallback: tell layers without an entry by interpolation between measured shapes, else by the
            analytical model, calibrated with the table; else they are an error.
        any_fingerprint: use the table even where it was measured on something else.
        shapes: graph input -> shape, for dynamic dimensions of a file.
        constants: graph input -> value that never changes.
        output: write the estimate there as JSON.
        force: overwrite it.

    Returns:
        Total with its 90 % interval, plain sum, coverage, and each layer with its source.

    Raises:
        InputError: a file or name that cannot be used; a table of another device (the differing facts
            are named); a layer without an entry (named, with its configuration).

    Example:
        >>> framefit.estimate("face.onnx", "board.table.json").total_ns  # doctest: +SKIP
        4210500
    """
    if output is not None and Path(output).exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    loaded = load_model(model, shapes, constants)
    where = table.target if isinstance(table, LatencyTable) else table
    read = table if isinstance(table, LatencyTable) else read_table(table)
    device = table_device(read, target, where, checked=not any_fingerprint)
    chosen = unit or next(iter(read.units), "")
    analytical = analytical_model(None if device is None else device.target, chosen)
    estimator = Estimator(read, chosen, fallback=fallback, analytical=analytical)
    found = estimated(estimator, loaded.grouped(layer_groups(loaded, read, device)), device)
    if output is not None:
        write_record(output, found, force=force)
    return found


def estimated(estimator: Estimator, model: Model, device: Device | None) -> LatencyEstimate:
    """By the layers that a table of this device has, told by those of the model.

    Args:
        estimator: of the table.
        model: with groups as layers.
        device: of the table. One that says what it makes of a model was measured by that, unless the
            table has groups that were found by measuring.

    Raises:
        InputError: a layer has no entry.
    """
    if not isinstance(device, OrtDevice) or estimator.table.fusions is not None:
        return estimator.estimate(model)
    lowered = device.lowered(model)
    places = owners(model, lowered)
    return attributed(model, places, estimator.estimate(lowered, [model.layers[place].name for place in places]))


def layer_groups(model: Model, table: LatencyTable, device: Device | None) -> Sequence[Collection[str]]:
    """Which nodes of a model are one layer of a table: as it was measured.

    Args:
        model: to be looked up.
        table: where it is looked up; what it found to be fused counts before what the device says.
        device: of the table; ``None``: not known, then products with what follows them element by element.
    """
    if table.fusions is not None:
        return known_groups(model, table.fusions)
    return epilogue_groups(model) if device is None else device.fusions(model)


def analytical_model(target: Target | None, unit: str) -> Analytical:
    """Layers to nanoseconds on a described target; a plain processor where none is described.

    Args:
        target: the device; ``None``: not known.
        unit: of the target, where it has one of this name; else its first.
    """
    described = target if target is not None and target.processor is not None else _PLAIN_HOST
    known = unit if unit in {one.name for one in described.units} else None
    cycles = CycleModel(described, known)

    def price(works: Sequence[LayerWork]) -> npt.NDArray[np.int64]:
        return cycles.layer_ns(cycles.evaluate(cycles.table(works), 0.0).cycles)

    return price


def table_device(
    table: LatencyTable, target: str | Path | Target | None, where: str | Path, *, checked: bool = True
) -> Device | None:
    """The device that a table is to apply to, opened to be asked, not to run anything.

    Args:
        table: names its target.
        target: the device, where it is not the one that the table names.
        where: the table's file, for messages.
        checked: whether the table's fingerprint has to be the device's.

    Returns:
        The device; ``None``: the table does not name one that can be found, and need not.

    Raises:
        InputError: no such target; the fingerprints differ, and the facts are named.
    """
    try:
        device = open_target(target or table.target)
    except InputError as error:
        if target is not None:
            raise
        if checked:
            raise InputError(
                f"the table was measured on {table.target!r}, which is no built-in target",
                where=where,
                remedy="name the device with --target FILE, or use the table unchecked with --any-fingerprint",
            ) from error
        return None
    if checked:
        check_fingerprint(
            table,
            device_facts(device),
            where,
            "measure a table on this device, or use this one all the same with --any-fingerprint",
        )
    return device
