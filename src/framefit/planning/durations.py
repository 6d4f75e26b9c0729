"""What launches and cuts cost, for the planner: measured, modelled by a described device, or read from a latency table.

What the pieces of models take on each of several units.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from framefit.core.model.lowering import owners
from framefit.core.settings import Notify
from framefit.core.target import Target
from framefit.core.timetable import PlannedModel
from framefit.devices.device import Device, ModelledDevice
from framefit.devices.host import pinned
from framefit.execution.compiled import Compiler, operators_of
from framefit.execution.measured import Costs, Launch, MeasuredCosts, ModelledCosts
from framefit.execution.unit_support import supporting_units
from framefit.planning.partition import (
    Pieces,
    beside,
    candidate_pieces,
    paired,
    planned_quantile_ns,
    pooled_excess,
    priced_pieces,
)
from framefit.planning.task import Bounds, SegmentedModel

__all__ = ["DeviceDurations", "Durations", "LaunchTimes", "MeasuredDurations", "ModelledDurations"]


_NOISY = 2.0  # quantile over median
Samples = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LaunchTimes:
    """A model's launches.

    Attributes:
        segments_ns: durations of each segment; of the only one where it runs whole.
        whole_ns: of the uncut model.
        excess: quantile over median.
    """

    segments_ns: tuple[Samples, ...]
    whole_ns: Samples
    excess: float

    @classmethod
    def of(
        cls, task: SegmentedModel, samples: Mapping[tuple[int, int], Samples], excess: float, compiler: Compiler
    ) -> Self:
        """A model's launches, of samples by execution (its ``id``) and number of the segment."""
        execution = task.execution(compiler)
        segments = tuple(samples[id(execution), index] for index in range(len(task.segments)))
        return cls(segments, samples[id(task.whole(compiler)), 0], excess)


class Durations(Protocol):
    """Where the planner's durations come from.

    Attributes:
        exact: whether durations are known rather than measured: asked again, they are the same.
        compiles: whether models are compiled to price them; else nothing is run.
        warnings: for the user.
    """

    exact: bool
    compiles: bool
    warnings: list[str]

    def prepared(self, tasks: Sequence[SegmentedModel]) -> list[SegmentedModel]:
        """The models as they can be priced whole."""
        ...

    def whole(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """A first look at all models, uncut."""
        ...

    def segments(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """All models as they are to run, to plan with."""
        ...

    def group(self, task: SegmentedModel) -> SegmentedModel:
        """A model with what the device fuses as its layers."""
        ...

    def pieces(self, task: SegmentedModel, duration_ns: int, excess: float) -> Pieces:
        """Costs of a grouped task's runs of layers, and of the boundaries between them.

        Args:
            task: not cut yet.
            duration_ns: planned quantile of the whole model.
            excess: that over its median.
        """
        ...


class ExactDurations(Durations, Protocol):
    """What is known rather than measured can be asked for without compiling anything."""

    def exact_pieces(self, task: SegmentedModel) -> Pieces:
        """Costs of a grouped task's runs of layers: of a whole model, or of a part of it that the unit supports."""
        ...


@dataclass(frozen=True)
class DeviceDurations:
    """A device with what launches cost there.

    Attributes:
        device: where models run.
        compiler: of the device.
        costs: of launches on its first unit.
        unit_costs: on each of them.
        pricing: of models on a unit, made when it is asked for.
    """

    device: Device
    compiler: Compiler
    costs: Costs
    unit_costs: Mapping[str, Costs]
    pricing: Callable[[str], Durations]


class MeasuredDurations:
    """By running launches in turn.

    Args:
        compiler: of the machine's own device.
        costs: of its launches.
        quantile: that is planned with, 0 to 1.
        notify: receives what is being done.
    """

    exact, compiles = False, True

    def __init__(self, compiler: Compiler, costs: MeasuredCosts, quantile: float, notify: Notify) -> None:
        self.warnings: list[str] = []
        self.compiler = compiler
        self._costs, self._quantile, self._notify = costs, quantile, notify

    def prepared(self, tasks: Sequence[SegmentedModel]) -> list[SegmentedModel]:
        """As they are."""
        return list(tasks)

    def whole(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """A short campaign."""
        self._notify("compiling whole models")
        launches: list[Launch] = [(task.whole(self.compiler), 0) for task in tasks]
        self._notify("pricing whole models")
        found = self._costs.probe(launches)
        excess = pooled_excess([m.samples_ns for m in found], self._quantile)
        return [LaunchTimes((m.samples_ns,), m.samples_ns, excess) for m in found]

    def segments(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """A long campaign over all segments and uncut models, in turn, as they will run."""
        compiler = self.compiler
        launches: list[Launch] = [
            (task.execution(compiler), index) for task in tasks for index in range(len(task.segments))
        ]
        launches += [(task.whole(compiler), 0) for task in tasks if task.bounds]
        self._notify(f"measuring {len(launches)} segments")
        found = self._costs.final(launches)
        excess = pooled_excess([m.samples_ns for m in found], self._quantile)
        if excess > _NOISY:
            self.warnings.append(
                f"durations vary a lot here: the {self._quantile:g} quantile is {excess:.1f} x the median; stop other "
                "programs, see framefit doctor, and plan again with --no-cache"
            )
        samples = {(id(e), index): m.samples_ns for (e, index), m in zip(launches, found, strict=True)}
        return [LaunchTimes.of(task, samples, excess, compiler) for task in tasks]

    def group(self, task: SegmentedModel) -> SegmentedModel:
        """What the runtime makes of the model is cut, where it says: no boundary adds a copy between layouts then.

        Else the model itself, never inside what the runtime fuses.
        """
        device = self.compiler.device
        operators = operators_of(device, task.model)
        if operators is None:
            return task.grouped(device.fusions(task.model))
        return task.lowered(operators, [task.model.layers[place].name for place in owners(task.model, operators)])

    def pieces(self, task: SegmentedModel, duration_ns: int, excess: float) -> Pieces:
        """All pieces, all adjacent pairs and the whole model, back to back."""
        key = {"model": task.model.digest, "runs": str(list(task.runs))}
        *cost, whole_ns = self._costs.medians(key, lambda: self._ways_to_cut(task))
        pieces = priced_pieces(cost[: len(task.runs)], cost[len(task.runs) :], whole_ns, excess)
        return pieces.scaled(np.full(len(pieces), duration_ns / excess / max(whole_ns, 1)))

    def cuttings(
        self, tasks: Sequence[SegmentedModel], ways: Sequence[Sequence[Bounds]]
    ) -> tuple[list[list[list[int]]], list[int]]:
        """A short campaign over several ways to cut, back to back; the uncut models before, between and after them.

        Args:
            tasks: that are cut in some way.
            ways: for each way the bounds of each task's segments; empty: it stays whole.

        Returns:
            Medians: of each way's tasks' segments, and of each uncut model.
        """
        self._notify(f"measuring {len(ways)} ways to cut")
        key = {"models": ",".join(task.model.digest for task in tasks), "ways": str(ways)}
        found = list(self._costs.medians(key, lambda: self._on_trial(tasks, ways)))
        uncut, medians = [], []
        for number, way in enumerate(ways):
            if number in (0, len(ways) // 2):
                uncut.append([found.pop(0) for _ in tasks])
            medians.append([[found.pop(0) for _ in bounds] for bounds in way])
        uncut.append(found)
        return medians, np.mean(uncut, axis=0).astype(np.int64).tolist()

    def _on_trial(self, tasks: Sequence[SegmentedModel], ways: Sequence[Sequence[Bounds]]) -> list[Launch]:
        """All segments of all ways, and the uncut models before, between and after them."""
        whole: list[Launch] = [(task.whole(self.compiler), 0) for task in tasks]
        launches: list[Launch] = []
        for number, way in enumerate(ways):
            if number in (0, len(ways) // 2):
                launches += whole
            for task, bounds in zip(tasks, way, strict=True):
                cut = task.compiled(bounds, self.compiler.device) if bounds else task.whole(self.compiler)
                launches += [(cut, index) for index in range(len(bounds))]
        return launches + whole

    def _ways_to_cut(self, task: SegmentedModel) -> list[Launch]:
        """All pieces, all adjacent pairs, and the whole model."""
        device = self.compiler.device
        single = task.compiled(task.runs, device)
        launches: list[Launch] = [(single, index) for index in range(len(task.runs))]
        # Pieces 0+1, 2+3, ... and 1+2, 3+4, ... joined: two more ways to cut the model.
        joined = [task.compiled(paired(task.runs, start), device) for start in (0, 1)]
        launches += [(joined[left % 2], (left + left % 2) // 2) for left in range(len(task.runs) - 1)]
        return [*launches, (task.whole(self.compiler), 0)]


class ModelledDurations:
    """As a described device says; quantiles follow from its variation.

    Args:
        device: described.
        unit: of it.
        compiler: of the device.
        costs: of its launches.
        quantile: that is planned with, 0 to 1.
        notify: receives what is being done.
    """

    exact, compiles = True, True

    def __init__(
        self,
        device: ModelledDevice,
        unit: str,
        compiler: Compiler,
        costs: ModelledCosts,
        quantile: float,
        notify: Notify,
    ) -> None:
        self.warnings: list[str] = []
        self._device, self._unit, self._costs, self._notify = device, unit, costs, notify
        self._compiler = compiler
        self._excess = costs.excess(quantile)

    def prepared(self, tasks: Sequence[SegmentedModel]) -> list[SegmentedModel]:
        """As they are."""
        return list(tasks)

    def whole(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """What the launches of the uncut models take."""
        self._notify("compiling whole models")
        return self.segments(tasks)

    def segments(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """What the launches take."""
        priced = []
        for task in tasks:
            execution, whole_model = task.execution(self._compiler), task.whole(self._compiler)
            launches: list[Launch] = [(execution, index) for index in range(len(task.segments))]
            *parts, whole = self._costs.final([*launches, (whole_model, 0)])
            priced.append(LaunchTimes(tuple(part.samples_ns for part in parts), whole.samples_ns, self._excess))
        return priced

    def group(self, task: SegmentedModel) -> SegmentedModel:
        """As the device says."""
        return task.grouped(self._device.fusions(task.model))

    def pieces(self, task: SegmentedModel, duration_ns: int, excess: float) -> Pieces:  # noqa: ARG002 - known exactly
        """Layers' times, the host link at both ends, and a launch more at each boundary."""
        device = self._device
        layers = np.asarray(device.layers_ns(task.model, self._unit), np.int64)
        median = np.asarray([layers[first : last + 1].sum() for first, last in task.runs], np.int64) + device.launch_ns
        load, store = device.link_ns(task.model)
        median[0] += load - device.launch_ns
        median[-1] += store
        boundaries = np.full(len(task.runs) - 1, device.launch_ns, np.int64)
        return Pieces(median, np.ceil(median * excess).astype(np.int64), boundaries)

    def exact_pieces(self, task: SegmentedModel) -> Pieces:
        """The same, with the device's variation."""
        return self.pieces(task, 0, self._excess)


_MOST_PIECES = 30  # of a model: finer ones move less than a hundredth of its load
_SHORT = 0.05  # of the window: what is shorter is not worth measuring in pieces
Runs = Sequence[tuple[int, int]]


@dataclass
class PieceCosts:
    """A model's runs of layers on the units that it may use.

    Attributes:
        pieces: unit -> costs; any number where it does not support one.
        supported: unit -> whether it supports each.
    """

    pieces: dict[str, Pieces]
    supported: dict[str, list[bool]]


class UnitPieces:
    """Prices of models on units: what measured and exact ones share.

    Args:
        target: units that exist, and
        units: names of those that models may use.
        window_ns: of the shortest window.
    """

    def __init__(self, target: Target, units: Sequence[str], window_ns: int) -> None:
        self.target, self.units, self.window_ns = target, tuple(units), window_ns
        self.known: dict[str, PieceCosts] = {}

    def allowed(self, task: SegmentedModel) -> list[str]:
        """Units that a model may use."""
        own = task.wired.entry.units
        return [name for name in self.units if own is None or name in own]

    def costs(self, task: SegmentedModel) -> PieceCosts:
        """Of a task's runs, on the units that it may use."""
        known, allowed = self.known[task.name], self.allowed(task)
        may = {unit: [able and unit in allowed for able in row] for unit, row in known.supported.items()}
        return PieceCosts(known.pieces, may)

    def correct(
        self,
        tasks: Sequence[SegmentedModel],
        planned: Sequence[PlannedModel],
        priced: Sequence[PlannedModel],
        ratio: float,
    ) -> bool:
        """Take over what segments turned out to take.

        Args:
            tasks: all of them.
            planned: as they were estimated.
            priced: the same as priced.
            ratio: what is wrong by less stays.

        Returns:
            Whether anything changed.
        """
        changed = False
        for task, before, after in zip(tasks, planned, priced, strict=True):
            for unit, own in self.known[task.name].pieces.items():
                planned_ns = sum(segment.duration_ns for segment in before.segments if segment.unit == unit)
                took = sum(segment.duration_ns for segment in after.segments if segment.unit == unit)
                if planned_ns and not 1 / ratio <= took / planned_ns <= ratio:
                    self.known[task.name].pieces[unit] = own.scaled(took / planned_ns)
                    changed = True
        return changed

    def _supported(self, task: SegmentedModel) -> dict[str, list[bool]]:
        """Of each run of a task's layers, on all units."""
        able = [supporting_units(self.target, self.units, task.model, first, last) for first, last in task.runs]
        return {unit: [unit in here for here in able] for unit in self.units}


class ExactUnitPieces(UnitPieces):
    """As described devices and latency tables tell; nothing is compiled but what is to run.

    Args:
        target: units that exist, and
        units: names of those that models may use.
        window_ns: of the shortest window.
        pricing: by unit; units that are alike may share one.
        compiler: of the device.
        costs: of the segments that are to run; ``None``: nothing is compiled.
        quantile: that is planned with.
    """

    def __init__(
        self,
        target: Target,
        units: Sequence[str],
        window_ns: int,
        pricing: Mapping[str, ExactDurations],
        compiler: Compiler,
        costs: Costs | None,
        quantile: float,
    ) -> None:
        super().__init__(target, units, window_ns)
        self._pricing, self._compiler, self._costs, self._quantile = pricing, compiler, costs, quantile

    @property
    def compiles(self) -> bool:
        """Whether segments are compiled to price them."""
        return self._costs is not None

    @property
    def warnings(self) -> list[str]:
        """Of all units."""
        return list(dict.fromkeys(text for pricing in self._pricing.values() for text in pricing.warnings))

    def whole(self, tasks: Sequence[SegmentedModel]) -> tuple[list[SegmentedModel], list[int]]:
        """Planned quantile of each model on the units that are fastest; it is cut where other units have to go on."""
        durations, prepared = [], []
        for bare in tasks:
            grouped = self._pricing[self.allowed(bare)[0]].group(bare)
            task = dataclasses.replace(grouped, runs=self._stretches(grouped))
            self.known[task.name] = self._priced(task)
            found = self.costs(task)
            columns = [np.where(found.supported[u], found.pieces[u].quantile_ns, np.inf) for u in found.pieces]
            alone = [p.of([(0, len(p) - 1)])[1][0] for u, p in found.pieces.items() if all(found.supported[u])]
            durations.append(int(min([*alone, np.min(columns, axis=0).sum()])))
            prepared.append(task)
        return prepared, durations

    def refine(self, tasks: Sequence[SegmentedModel]) -> list[SegmentedModel]:
        """All models in finer pieces, with their prices."""
        finer = []
        for task in tasks:
            edges = {first for first, _ in (*task.runs, *candidate_pieces(task.model, _MOST_PIECES))}
            ordered = [*sorted(edges), len(task.model.layers)]
            finer.append(
                dataclasses.replace(task, runs=tuple((first, end - 1) for first, end in itertools.pairwise(ordered)))
            )
            self.known[task.name] = self._priced(finer[-1])
        return finer

    def segments(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """All models as they are to run."""
        return [self._from_pieces(task) if self._costs is None else self._compiled(task, self._costs) for task in tasks]

    def _compiled(self, task: SegmentedModel, costs: Costs) -> LaunchTimes:
        execution = task.execution(self._compiler)
        launches: list[Launch] = [(execution, index) for index in range(len(task.segments))]
        samples = tuple(found.samples_ns for found in costs.final(launches))
        return LaunchTimes(samples, self._uncut(task), costs.excess(self._quantile) or 1.0)

    def _from_pieces(self, task: SegmentedModel) -> LaunchTimes:
        """From the costs of pieces."""
        parts, excess = [], 1.0
        for unit, run in zip(task.units, self._runs(task), strict=True):
            median, quantile = self.known[task.name].pieces[unit].of([run])
            parts.append(np.asarray([round(median[0])], np.int64))
            excess = max(excess, float(quantile[0] / max(median[0], 1)))
        return LaunchTimes(tuple(parts), self._uncut(task), excess)

    def _uncut(self, task: SegmentedModel) -> Samples:
        """What a model would take if its pieces ran where they do, but were one launch."""
        total = 0.0
        for unit, (first, last) in zip(task.units, self._runs(task), strict=True):
            own = self.known[task.name].pieces[unit]
            total += float((own.median_ns - beside(own.boundary_ns))[first : last + 1].sum())
        return np.asarray([round(total)], np.int64)

    def _runs(self, task: SegmentedModel) -> list[tuple[int, int]]:
        """Its segments as runs of its pieces."""
        first = {begin: number for number, (begin, _) in enumerate(task.runs)}
        last = {end: number for number, (_, end) in enumerate(task.runs)}
        return [(first[begin], last[end]) for begin, end in task.segments]

    def _priced(self, task: SegmentedModel) -> PieceCosts:
        """Its runs on all units, each stretch that a unit supports as a model of its own."""
        supported, pieces = self._supported(task), dict[str, Pieces]()
        same: dict[tuple[int, tuple[bool, ...]], Pieces] = {}
        for unit, able in supported.items():
            key = id(self._pricing[unit]), tuple(able)
            if key not in same:
                same[key] = self._on(task, unit, able)
            pieces[unit] = same[key]
        return PieceCosts(pieces, supported)

    def _on(self, task: SegmentedModel, unit: str, able: Sequence[bool]) -> Pieces:
        count, number = len(task.runs), 0
        median, quantile, boundary = (np.ones(size, np.int64) for size in (count, count, count - 1))
        while number < count:
            if not able[number]:
                number += 1
                continue
            end = number
            while end + 1 < count and able[end + 1]:
                end += 1
            stretch = self._pricing[unit].exact_pieces(task.part(task.runs[number][0], task.runs[end][1], unit))
            median[number : end + 1], quantile[number : end + 1] = stretch.median_ns, stretch.quantile_ns
            boundary[number:end] = stretch.boundary_ns
            number = end + 1
        return Pieces(median, quantile, boundary)

    def _stretches(self, task: SegmentedModel) -> Bounds:
        """Runs of layers between legal cuts, as long as the same units support them."""
        edges = [0, *sorted(cut.position for cut in task.model.legal_cuts), len(task.model.layers)]
        allowed, runs = self.allowed(task), list[tuple[int, int]]()
        before: list[str] = []
        for first, end in itertools.pairwise(edges):
            able = supporting_units(self.target, allowed, task.model, first, end - 1)
            if runs and able == before:
                runs[-1] = runs[-1][0], end - 1
            else:
                runs.append((first, end - 1))
            before = able
        return tuple(runs)


class MeasuredUnitPieces(UnitPieces):
    """By running launches in turn, each on its unit's core; pieces on the first, in proportion on the others.

    Args:
        target: units that exist, and
        units: names of those that models may use.
        window_ns: of the shortest window.
        pricing: on the first unit.
        costs: by unit.
        quantile: that is planned with.
    """

    compiles = True

    def __init__(
        self,
        target: Target,
        units: Sequence[str],
        window_ns: int,
        pricing: MeasuredDurations,
        costs: Mapping[str, Costs],
        quantile: float,
    ) -> None:
        super().__init__(target, units, window_ns)
        self._pricing, self._costs, self._quantile = pricing, costs, quantile

    @property
    def warnings(self) -> list[str]:
        """Of all units."""
        own = [*self._pricing.warnings, *(text for costs in self._costs.values() for text in costs.warnings)]
        return list(dict.fromkeys(own))

    def whole(self, tasks: Sequence[SegmentedModel]) -> tuple[list[SegmentedModel], list[int]]:
        """Planned quantile of each uncut model where it is fastest."""
        compiler = self._pricing.compiler
        found: list[dict[str, tuple[int, int]]] = [{} for _ in tasks]
        for unit in self.units:
            mine = [n for n, task in enumerate(tasks) if unit in self.allowed(task)]
            samples = self._launched([(compiler.whole(tasks[n].wired, unit), 0) for n in mine], unit, first=True)
            excess = pooled_excess(samples, self._quantile) if samples else 1.0
            for n, own in zip(mine, samples, strict=True):
                found[n][unit] = int(np.median(own)), planned_quantile_ns(own, excess)
        prepared = [dataclasses.replace(task, runs=((0, len(task.model.layers) - 1),)) for task in tasks]
        for task, prices in zip(prepared, found, strict=True):
            none = next(iter(prices.values()))
            pieces = {}
            for unit in self.units:
                median, quantile = prices.get(unit, none)
                pieces[unit] = Pieces(np.asarray([median]), np.asarray([quantile]), np.zeros(0, np.int64))
            self.known[task.name] = PieceCosts(pieces, {unit: [True] for unit in self.units})
        return prepared, [min(quantile for _, quantile in prices.values()) for prices in found]

    def refine(self, tasks: Sequence[SegmentedModel]) -> list[SegmentedModel]:
        """Models that are not short in pieces, with their prices."""
        finer = []
        for coarse in tasks:
            task, known = coarse, self.known[coarse.name]
            unit = self.allowed(task)[0]
            whole = known.pieces[unit]
            if len(task.runs) > 1 or whole.quantile_ns[0] < _SHORT * self.window_ns:
                finer.append(task)
                continue
            task = self._pricing.group(dataclasses.replace(task, unit=unit))
            task = dataclasses.replace(task, runs=tuple(candidate_pieces(task.model, _MOST_PIECES)))
            finer.append(task)
            excess = whole.quantile_ns[0] / max(whole.median_ns[0], 1)
            pieces = self._pricing.pieces(task, int(whole.quantile_ns[0]), float(excess))
            known.pieces = {
                name: pieces.scaled(float(own.median_ns[0] / max(whole.median_ns[0], 1)))
                for name, own in known.pieces.items()
            }
            known.supported = {name: able * len(task.runs) for name, able in known.supported.items()}
        return finer

    def segments(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """All models as they are to run: a long campaign on each unit."""
        samples: dict[tuple[int, int], Samples] = {}
        pooled: list[Samples] = []
        compiler = self._pricing.compiler
        for unit in self.units:
            launches: list[Launch] = [
                (task.execution(compiler), index)
                for task in tasks
                for index, name in enumerate(task.units)
                if name == unit
            ]
            launches += [(task.whole(compiler), 0) for task in tasks if task.bounds and task.unit == unit]
            found = self._launched(launches, unit)
            pooled += found
            samples |= {(id(e), index): own for (e, index), own in zip(launches, found, strict=True)}
        excess = pooled_excess(pooled, self._quantile)
        return [LaunchTimes.of(task, samples, excess, compiler) for task in tasks]

    def _launched(self, launches: Sequence[Launch], unit: str, *, first: bool = False) -> list[Samples]:
        """Durations on the unit's core."""
        if not launches:
            return []
        with pinned(self.target.unit(unit).core):
            found = self._costs[unit].probe(launches) if first else self._costs[unit].final(launches)
        return [one.samples_ns for one in found]
