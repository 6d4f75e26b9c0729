"""``framefit measure``: what each layer costs on a device, as a latency table.

A measuring campaign from its first layer to its audit: what is measured, in which order, for how long.

``framefit estimate``: a network's latency from a table, without running anything.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import read_record, write_record
from framefit.core.latency_table import LatencyTable, Unmeasured, check_fingerprint, read_table
from framefit.core.model import Model, configuration, epilogue_groups
from framefit.core.model.builtin import load_model
from framefit.core.model.lowering import owners
from framefit.core.run_record import LatencyEstimate
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import Cache, Memory, Processor, Target
from framefit.devices.device import Device
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.npu.cycles import CycleModel, unit_named
from framefit.devices.npu.work import LayerWork
from framefit.devices.registry import open_device
from framefit.errors import FramefitError, InputError
from framefit.latency.audit import LEAST_NETWORKS
from framefit.latency.audited import audit_networks, campaign_seconds, with_audit
from framefit.latency.calibrate import Analytical
from framefit.latency.campaign import (
    LEAST_REPEATS,
    Campaign,
    GridSpec,
    Subject,
    distinct_layers,
    grid_models,
    layer_key,
    refine,
)
from framefit.latency.estimate import Estimator
from framefit.latency.fusion import attributed, known_groups, measured_fusions, recorded
from framefit.latency.resident import ResidentCampaign
from framefit.latency.settings import EstimateSettings, MeasureSettings
from framefit.latency.shapes import ShapeChoice

__all__ = [
    "Measuring",
    "analytical_model",
    "estimate",
    "estimated",
    "layer_groups",
    "measure",
    "open_target",
    "table_device",
]


_REFINE_SECONDS = 30.0  # where nothing else is said: a third of what a table of a MobileNetV2 may take
_FIRST_SHAPES = 6  # of a grid, before the first look at what is uncertain
_MORE_SHAPES = 0.25  # of those that were measured, in each turn


class Measuring:
    """Layers of models, of audited networks and of a grid on one unit of a device.

    Args:
        device: any; its clock begins to count for ``max_seconds``.
        unit: of its target.
        settings: of the campaign.
        earlier: table of an interrupted campaign; what it found is not measured again.
        stop: asked between launches: what was measured is kept.
        notify: receives what is being done.
        on_round: told rounds done and rounds in all.
    """

    def __init__(
        self,
        device: Device,
        unit: str,
        settings: MeasureSettings,
        earlier: LatencyTable | None = None,
        *,
        stop: Callable[[], bool] | None = None,
        notify: Notify = silent,
        on_round: Callable[[int, int], None] | None = None,
    ) -> None:
        self._device, self._unit, self._settings, self._earlier = device, unit, settings, earlier
        self._stop, self._notify, self._on_round = stop, notify, on_round
        self._as_lowered = device.capabilities.lowers and settings.fusions == "device"
        self._begun = device.clock.now_ns()
        self._models: list[Model] = []
        self._grouped: list[Model] = []
        self._own: dict[str, Subject] = {}
        self._audited: dict[str, Subject] = {}
        self._networks: list[tuple[Model, Model]] = []
        self._failed: dict[str, Unmeasured] = {}
        found = None if earlier is None else earlier.fusions
        self._fusions = list(found or ())  # of the model that had a pair first, which counts
        self._warnings: list[str] = []

    def take(self, model: Model) -> None:
        """Measure a model's layers."""
        grouped, found, lost = self._layers(model)
        self._models.append(model)
        self._grouped.append(grouped)
        self._own |= {subject.key: subject for subject in found if subject.key not in self._own}
        self._failed |= {str((layer.op, layer.configuration)): layer for layer in lost}

    def audit(self, named: Sequence[Model], builtin: Sequence[Model]) -> None:
        """Measure networks whole, and their layers, where there is time for that.

        Args:
            named: by the user; all of them.
            builtin: those that are no model of this campaign: their estimates are to be predictions.
        """
        settings, own = self._settings, [_signature(model) for model in self._models]
        kept = [*named, *(network for network in builtin if _signature(network) not in own)]
        self._warnings += [
            f"{network.name} is audited and measured: its estimate is no prediction"
            for network in named
            if _signature(network) in own
        ]
        pairs = [(network, *self._layers(network)[:2]) for network in kept]
        fresh = {subject.key: subject for _, _, found in pairs for subject in found if subject.key not in self._own}
        if settings.max_seconds is not None and kept:
            repeats = LEAST_REPEATS if settings.repeats is None else settings.repeats
            counts = len(self._own), len(fresh)
            needed = campaign_seconds(self._device, self._unit, self._models, kept, counts, repeats, settings.seed)
            left = settings.max_seconds - (self._device.clock.now_ns() - self._begun) / 1e9
            if needed > left:
                self._warnings.append(
                    f"not audited: with {len(kept)} whole networks measuring would take about {needed:.0f} s, "
                    f"{max(left, 0):.0f} s are left: raise --max-seconds, or lower --repeats"
                )
                return
        self._audited = fresh
        self._networks = [(network, grouped) for network, grouped, _ in pairs]

    def table(self, points: Sequence[Model], most: int | None) -> LatencyTable:
        """Measure everything.

        Args:
            points: one-layer models of a grid.
            most: of them at most so many; ``None``: all, or as many as there is time for.

        Raises:
            DeviceError: no layer can be measured.
        """
        settings = self._settings
        grid: dict[str, Subject] = {}
        for point in points:
            _, found, lost = self._layers(point)
            grid |= {subject.key: subject for subject in found if subject.key not in self._own}
            self._failed |= {str((layer.op, layer.configuration)): layer for layer in lost}
        if most is None and settings.max_seconds is None:
            most = len(grid)
        most = len(grid) if most is None else min(most, len(grid))
        adaptive = most < len(grid) or settings.max_seconds is not None
        choice = ShapeChoice(list(grid.values()))
        first = choice.take((), min(_FIRST_SHAPES, most)) if adaptive else list(grid.values())
        subjects = [*self._own.values(), *(self._audited[key] for key in self._audited if key not in grid), *first]
        subjects += [grid[key] for key in self._audited if key in grid and grid[key] not in first]
        self._notify(f"compiling {len(subjects)} distinct layers")
        campaign = (ResidentCampaign if self._as_lowered else Campaign)(
            self._device,
            self._unit,
            subjects,
            auxiliary=settings.auxiliary,
            repeats=settings.repeats,
            seed=settings.seed,
            earlier=self._earlier,
            failed=self._failed.values(),
        )
        wholes = self._whole_runs(campaign)
        if self._earlier is not None:
            campaign.rounds.take_over(self._earlier.runs)
        self._notify(f"measuring {len(subjects)} layers")
        complete = campaign.measure(stop=self._ended, on_round=self._on_round)
        table = campaign.table(settings.overhead)
        if adaptive and complete:
            table, complete = self._grown(campaign, table, choice, len(first), most)
        if settings.repeats is None and complete:
            table = self._refined(campaign, table)
        if self._networks:
            rounds = campaign.rounds
            measured = [(one, rounds.told_ns(place)) for one, place in wholes if len(rounds.runs[place].samples_ns)]
            table = with_audit(table, measured, self._unit) if table.entries else table
        fusions = tuple(self._fusions) if settings.fusions == "measured" else None
        return msgspec.structs.replace(table, warnings=(*table.warnings, *self._warnings), fusions=fusions)

    def _layers(self, model: Model) -> tuple[Model, tuple[Subject, ...], tuple[Unmeasured, ...]]:
        """The model with what the device fuses as layers, each configuration once, and what cannot stand alone."""
        settings = self._settings
        if self._as_lowered:
            lowered = self._device.lowered(model)
            return (lowered, *distinct_layers(lowered, None, self._unit))
        if settings.fusions == "device":
            groups = [tuple(group) for group in self._device.fusions(model)]
        else:
            self._notify(f"finding the layers of {model.name}")
            pairs = measured_fusions(
                self._device,
                self._unit,
                model,
                known=self._fusions,
                repeats=LEAST_REPEATS if settings.repeats is None else settings.repeats,
                seed=settings.seed,
                stop=self._ended,
            )
            self._fusions += recorded(model, pairs)
            groups = list(known_groups(model, self._fusions))  # as whoever reads the table will group them
        grouped = model.grouped(groups)
        return (grouped, *distinct_layers(grouped, None, self._unit))

    def _whole_runs(self, campaign: Campaign | ResidentCampaign) -> list[tuple[Model, int]]:
        """Networks as layers, and their places among the campaign's runs."""
        found = []
        for network, grouped in self._networks:
            try:
                found.append((grouped, campaign.rounds.add("network", network)))
            except FramefitError as error:
                self._warnings.append(f"{network.name} is not audited: {error.what}")
        return found

    def _grown(
        self, campaign: Campaign | ResidentCampaign, table: LatencyTable, choice: ShapeChoice, taken: int, most: int
    ) -> tuple[LatencyTable, bool]:
        """More of a grid's shapes, turn by turn, and whether there was time for all of their samples."""
        settings = self._settings
        while taken < most:
            if self._ended():
                return table, False
            more = choice.take(table.entries, min(max(int(_MORE_SHAPES * taken), 1), most - taken))
            taken += len(more)
            if not more:
                break
            self._notify(f"measuring shapes {taken} of {most}")
            campaign.add(more)
            complete = campaign.measure(stop=self._ended, on_round=self._on_round)
            newer = campaign.table(settings.overhead)
            if not newer.entries:  # stopped before one round of the last shapes
                return table, False
            table = newer
            if not complete:
                return table, False
        return table, True

    def _refined(self, campaign: Campaign | ResidentCampaign, table: LatencyTable) -> LatencyTable:
        """More samples of layers whose intervals are wide."""
        settings = self._settings
        self._notify("measuring again what is not certain yet")
        seconds = _REFINE_SECONDS if settings.max_seconds is None else settings.max_seconds
        left = refine(
            campaign,
            lambda: campaign.table(settings.overhead),
            self._device.clock,
            self._begun + round(seconds * 1e9),
            [_layers_of(grouped) for grouped in (*self._grouped, *(grouped for _, grouped in self._networks))],
            stop=self._ended,
            on_round=self._on_round,
        )
        if left:
            self._warnings.append(
                f"{left} of {len(table.entries)} layers are known neither to 3 % nor well enough for sums within "
                "1 %: allow more time with --max-seconds, or more --repeats"
            )
        return campaign.table(settings.overhead)

    def _ended(self) -> bool:
        settings = self._settings
        seconds = (self._device.clock.now_ns() - self._begun) / 1e9
        late = settings.max_seconds is not None and seconds >= settings.max_seconds
        return late or (self._stop is not None and self._stop())


def _layers_of(grouped: Model) -> Counter[str]:
    """How often it has each layer."""
    return Counter(
        layer_key(layer.op, configuration(nodes)) for layer, nodes in zip(grouped.layers, grouped.nodes, strict=True)
    )


def _signature(model: Model) -> Counter[str]:
    """The same for models of equal nodes, whatever their weights."""
    return Counter(f"{node.op} {configuration((node,))}" for nodes in model.nodes for node in nodes)


Network = str | Path | Model


@verb(MeasureSettings, "model")
def measure(
    settings: MeasureSettings,
    *,
    stop: Callable[[], bool] | None = None,
    notify: Notify = silent,
    on_round: Callable[[int, int], None] | None = None,
) -> LatencyTable:
    """Measure the distinct layers of models, or of a grid, where only start and end are seen.

    Where ``max_seconds`` leaves no time for the audit, a warning of the table says so. How the cost of a launch is
    separated from that of its layer is described in :mod:`framefit.latency.campaign`.

    Args:
        settings: what to measure, and how.
        stop: asked between launches: what was measured is kept.
        notify: receives what is being done.
        on_round: told rounds done and rounds in all.

    Raises:
        InputError: a file, name or key that cannot be used; a table of another device to resume.
        DeviceError: no layer can be measured.

    Example:
        >>> import framefit
        >>> table = framefit.measure("detector", target="vpu", repeats=20)
        >>> table.overhead.intercept_ns > 90_000
        True
    """
    output, grid, seed = settings.output, settings.grid, settings.seed
    earlier_file = _existing(output, force=settings.force, resume=settings.resume)
    models = _models(settings.model, settings.shapes, settings.constants)
    points: list[Model] = []
    if grid is not None:
        points = list(grid_models(grid if isinstance(grid, GridSpec) else read_record(grid, GridSpec), seed))
    if not models and not points:
        raise InputError("nothing to measure", remedy="name a model, or --grid SPEC.toml")
    if settings.max_shapes is not None and not points:
        raise InputError("max_shapes chooses from a grid, and there is none", remedy="name one with --grid SPEC.toml")
    audit = settings.audit if settings.audit is not None else "auto" if models else "none"
    networks, builtin = _networks(audit, seed)
    device = open_target(settings.target)
    chosen = unit_named(device.target, settings.unit).name
    earlier = None if earlier_file is None else read_table(earlier_file)
    if earlier is not None and earlier_file is not None:
        check_fingerprint(earlier, device.fingerprint(), earlier_file, "measure into another file")
    with contextlib.ExitStack() as stack:
        if device.capabilities.runs_on_host:
            stack.enter_context(pinned(device.host_core))
            stack.enter_context(flushed_denormals())
        measuring = Measuring(device, chosen, settings, earlier, stop=stop, notify=notify, on_round=on_round)
        for model in models:
            measuring.take(model)
        measuring.audit(networks, builtin)
        table = measuring.table(points, settings.max_shapes)
    if output is not None:
        write_record(output, table, force=settings.force or settings.resume)
    return table


def _existing(output: str | Path | None, *, force: bool, resume: bool) -> Path | None:
    """The file to go on from; refuses to overwrite one, or to resume none."""
    if resume and output is None:
        raise InputError("nothing to resume: no output is named", remedy="name the table with -o")
    if output is None or not Path(output).exists():
        return None
    if not force and not resume:
        raise InputError(
            "already exists", where=output, remedy="choose another path, --resume it, or overwrite it with --force"
        )
    return Path(output) if resume else None


def _networks(audit: Network | Sequence[Network], seed: int) -> tuple[list[Model], list[Model]]:
    """What the user named, and the built-in networks where they are to be audited."""
    names = [audit] if isinstance(audit, str | Path | Model) else list(audit)
    if "none" in names:
        if len(names) > 1:
            raise InputError("'none' stands beside networks to audit", remedy="leave out one of them")
        return [], []
    builtin = list(audit_networks(seed)) if "auto" in names else []
    named = [one if isinstance(one, Model) else load_model(one, None, None) for one in names if one != "auto"]
    if len(named) + len(builtin) < LEAST_NETWORKS:
        raise InputError(
            f"an audit needs {LEAST_NETWORKS} networks at least, {len(named)} are named",
            remedy="name more, add the built-in ones (auto), or leave the audit out (none)",
        )
    return named, builtin


def open_target(target: str | Path | Target | Device) -> Device:
    """The device of a target, alone on its own clock, that computes nothing where it is described; or the device.

    Raises:
        InputError: no such target, or its file cannot be used.
    """
    return open_device(target) if isinstance(target, str | Path | Target) else target


def _models(
    model: str | Path | Model | Sequence[Model] | None,
    shapes: Mapping[str, tuple[int, ...]] | None,
    constants: Mapping[str, Any] | None,
) -> list[Model]:
    if model is None:
        return []
    if isinstance(model, Model):
        return [model]
    if not isinstance(model, str | Path):
        return list(model)
    return [load_model(model, shapes, constants)]


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


@verb(EstimateSettings, "model", "table")
def estimate(settings: EstimateSettings) -> LatencyEstimate:
    """Add up what a network's layers take on a device, from its latency table.

    Args:
        settings: what to estimate.

    Returns:
        Total with its 90 % interval, plain sum, coverage, and each layer with its source.

    Raises:
        InputError: a file or name that cannot be used; a table of another device (the differing facts
            are named); a layer without an entry (named, with its configuration).

    Example:
        >>> framefit.estimate("face.onnx", "board.table.json").total_ns  # doctest: +SKIP
        4210500
    """
    output, table = settings.output, settings.table
    if output is not None and Path(output).exists() and not settings.force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    loaded = load_model(settings.model, settings.shapes, settings.constants)
    where = table.target if isinstance(table, LatencyTable) else table
    read = table if isinstance(table, LatencyTable) else read_table(table)
    device = table_device(read, settings.target, where, checked=not settings.any_fingerprint)
    chosen = settings.unit or next(iter(read.units), "")
    analytical = analytical_model(None if device is None else device.target, chosen)
    estimator = Estimator(read, chosen, fallback=settings.fallback, analytical=analytical)
    estimate = estimated(estimator, loaded.grouped(layer_groups(loaded, read, device)), device)
    if output is not None:
        write_record(output, estimate, force=settings.force)
    return estimate


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
    if device is None or not device.capabilities.lowers or estimator.table.fusions is not None:
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
            device.fingerprint(),
            where,
            "measure a table on this device, or use this one all the same with --any-fingerprint",
        )
    return device
