"""A measuring campaign from its first layer to its audit: what is measured, in which order, for how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from framefit.core.latency_table import LatencyTable, Unmeasured
from framefit.core.model import AuxiliaryKind, Model, configuration
from framefit.devices.device import Device
from framefit.devices.ort import OrtDevice
from framefit.errors import FramefitError
from framefit.latency.audited import campaign_seconds, with_audit
from framefit.latency.campaign import Campaign, Method
from framefit.latency.fusion import known_groups, measured_fusions, recorded
from framefit.latency.refine import LEAST_REPEATS, refine
from framefit.latency.resident import ResidentCampaign
from framefit.latency.shapes import ShapeChoice
from framefit.latency.subjects import Subject, distinct_layers, layer_key

__all__ = ["Measuring", "Settings"]

_REFINE_SECONDS = 30.0  # where nothing else is said: a third of what a table of a MobileNetV2 may take
_FIRST_SHAPES = 6  # of a grid, before the first look at what is uncertain
_MORE_SHAPES = 0.25  # of those that were measured, in each turn


@dataclass(frozen=True)
class Settings:
    """Of one campaign; see :func:`framefit.workflows.measure.measure`."""

    auxiliary: AuxiliaryKind | Literal["auto"] = "auto"
    overhead: Method = "regression"
    fusions: Literal["device", "measured"] = "device"
    repeats: int | None = None
    max_seconds: float | None = None
    seed: int = 0
    stop: Callable[[], bool] | None = None
    notify: Callable[[str], None] = field(default=lambda message: None)  # noqa: ARG005 - nobody listens
    on_round: Callable[[int, int], None] | None = None


class Measuring:
    """Layers of models, of audited networks and of a grid on one unit of a device.

    Args:
        device: any; its clock begins to count for ``max_seconds``.
        unit: of its target.
        settings: of the campaign.
        earlier: table of an interrupted campaign; what it found is not measured again.
    """

    def __init__(self, device: Device, unit: str, settings: Settings, earlier: LatencyTable | None = None) -> None:
        self._device, self._unit, self._settings, self._earlier = device, unit, settings, earlier
        self._as_lowered = isinstance(device, OrtDevice) and settings.fusions == "device"
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
        settings.notify(f"compiling {len(subjects)} distinct layers")
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
        settings.notify(f"measuring {len(subjects)} layers")
        complete = campaign.measure(stop=self._ended, on_round=settings.on_round)
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
        if self._as_lowered and isinstance(self._device, OrtDevice):
            lowered = self._device.lowered(model)
            return (lowered, *distinct_layers(lowered, None, self._unit))
        if settings.fusions == "device":
            groups = [tuple(group) for group in self._device.fusions(model)]
        else:
            settings.notify(f"finding the layers of {model.name}")
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
            settings.notify(f"measuring shapes {taken} of {most}")
            campaign.add(more)
            complete = campaign.measure(stop=self._ended, on_round=settings.on_round)
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
        settings.notify("measuring again what is not certain yet")
        seconds = _REFINE_SECONDS if settings.max_seconds is None else settings.max_seconds
        left = refine(
            campaign,
            lambda: campaign.table(settings.overhead),
            self._device.clock,
            self._begun + round(seconds * 1e9),
            [_layers_of(grouped) for grouped in (*self._grouped, *(grouped for _, grouped in self._networks))],
            stop=self._ended,
            on_round=settings.on_round,
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
        return late or (settings.stop is not None and settings.stop())


def _layers_of(grouped: Model) -> Counter[str]:
    """How often it has each layer."""
    return Counter(
        layer_key(layer.op, configuration(nodes)) for layer, nodes in zip(grouped.layers, grouped.nodes, strict=True)
    )


def _signature(model: Model) -> Counter[str]:
    """The same for models of equal nodes, whatever their weights."""
    return Counter(f"{node.op} {configuration((node,))}" for nodes in model.nodes for node in nodes)
