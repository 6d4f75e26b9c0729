"""What the pieces of models take on each of several units."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from framefit.core.target import Target
from framefit.core.timetable import PlannedModel
from framefit.devices.host import pinned
from framefit.runtime.models.costs import Costs, Launch
from framefit.scheduling.partition import Pieces, beside
from framefit.scheduling.pieces import candidate_pieces, planned_quantile_ns, pooled_excess
from framefit.workflows.planning.opening import supporting
from framefit.workflows.planning.pricing import MeasuredPricing, Priced, Samples, ToldPricing
from framefit.workflows.planning.task import PlannedTask

__all__ = ["MeasuredUnits", "ToldUnits", "UnitCosts", "UnitPrices"]

_MOST_PIECES = 30  # of a model: finer ones move less than a hundredth of its load
_SHORT = 0.05  # of the window: what is shorter is not worth measuring in pieces

Runs = Sequence[tuple[int, int]]


@dataclass
class UnitCosts:
    """A model's runs of layers on the units that it may use.

    Attributes:
        pieces: unit -> costs; any number where it does not support one.
        supported: unit -> whether it supports each.
    """

    pieces: dict[str, Pieces]
    supported: dict[str, list[bool]]


class UnitPrices:
    """Prices of models on units: what measured and told ones share.

    Args:
        target: units that exist, and
        units: names of those that models may use.
        window_ns: of the shortest window.
    """

    def __init__(self, target: Target, units: Sequence[str], window_ns: int) -> None:
        self.target, self.units, self.window_ns = target, tuple(units), window_ns
        self.known: dict[str, UnitCosts] = {}

    def allowed(self, task: PlannedTask) -> list[str]:
        """Units that a model may use."""
        own = task.wired.entry.units
        return [name for name in self.units if own is None or name in own]

    def costs(self, task: PlannedTask) -> UnitCosts:
        """Of a task's runs, on the units that it may use."""
        known, allowed = self.known[task.name], self.allowed(task)
        may = {unit: [able and unit in allowed for able in row] for unit, row in known.supported.items()}
        return UnitCosts(known.pieces, may)

    def correct(
        self,
        tasks: Sequence[PlannedTask],
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
                told = sum(segment.duration_ns for segment in before.segments if segment.unit == unit)
                took = sum(segment.duration_ns for segment in after.segments if segment.unit == unit)
                if told and not 1 / ratio <= took / told <= ratio:
                    self.known[task.name].pieces[unit] = own.scaled(took / told)
                    changed = True
        return changed

    def _supported(self, task: PlannedTask) -> dict[str, list[bool]]:
        """Of each run of a task's layers, on all units."""
        able = [supporting(self.target, self.units, task.model, first, last) for first, last in task.runs]
        return {unit: [unit in here for here in able] for unit in self.units}


class ToldUnits(UnitPrices):
    """As described devices and latency tables tell; nothing is compiled but what is to run.

    Args:
        target: units that exist, and
        units: names of those that models may use.
        window_ns: of the shortest window.
        pricing: by unit; units that are alike may share one.
        costs: of the segments that are to run; ``None``: nothing is compiled.
        quantile: that is planned with.
    """

    def __init__(
        self,
        target: Target,
        units: Sequence[str],
        window_ns: int,
        pricing: Mapping[str, ToldPricing],
        costs: Costs | None,
        quantile: float,
    ) -> None:
        super().__init__(target, units, window_ns)
        self._pricing, self._costs, self._quantile = pricing, costs, quantile

    @property
    def compiles(self) -> bool:
        """Whether segments are compiled to price them."""
        return self._costs is not None

    @property
    def warnings(self) -> list[str]:
        """Of all units."""
        return list(dict.fromkeys(text for pricing in self._pricing.values() for text in pricing.warnings))

    def whole(self, tasks: Sequence[PlannedTask]) -> list[int]:
        """Planned quantile of each model on the units that are fastest; it is cut where other units have to go on."""
        durations = []
        for task in tasks:
            self._pricing[self.allowed(task)[0]].group(task)
            task.runs = self._stretches(task)
            self.known[task.name] = self._priced(task)
            found = self.costs(task)
            columns = [np.where(found.supported[u], found.pieces[u].quantile_ns, np.inf) for u in found.pieces]
            alone = [p.of([(0, len(p) - 1)])[1][0] for u, p in found.pieces.items() if all(found.supported[u])]
            durations.append(int(min([*alone, np.min(columns, axis=0).sum()])))
        return durations

    def refine(self, tasks: Sequence[PlannedTask]) -> bool:
        """Price finer pieces, of all models; whether there are any."""
        before = sum(len(task.runs) for task in tasks)
        for task in tasks:
            edges = {first for first, _ in (*task.runs, *candidate_pieces(task.model, _MOST_PIECES))}
            ordered = [*sorted(edges), len(task.model.layers)]
            task.runs = [(first, end - 1) for first, end in itertools.pairwise(ordered)]
            self.known[task.name] = self._priced(task)
        return sum(len(task.runs) for task in tasks) > before

    def segments(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """All models as they are to run."""
        return [self._told(task) if self._costs is None else self._compiled(task, self._costs) for task in tasks]

    def _compiled(self, task: PlannedTask, costs: Costs) -> Priced:
        launches: list[Launch] = [(task.execution, index) for index in range(len(task.segments))]
        samples = tuple(found.samples_ns for found in costs.final(launches))
        return Priced(samples, self._uncut(task), costs.excess(self._quantile) or 1.0)

    def _told(self, task: PlannedTask) -> Priced:
        """From the costs of pieces."""
        parts, excess = [], 1.0
        for unit, run in zip(task.units, self._runs(task), strict=True):
            median, quantile = self.known[task.name].pieces[unit].of([run])
            parts.append(np.asarray([round(median[0])], np.int64))
            excess = max(excess, float(quantile[0] / max(median[0], 1)))
        return Priced(tuple(parts), self._uncut(task), excess)

    def _uncut(self, task: PlannedTask) -> Samples:
        """What a model would take if its pieces ran where they do, but were one launch."""
        total = 0.0
        for unit, (first, last) in zip(task.units, self._runs(task), strict=True):
            own = self.known[task.name].pieces[unit]
            total += float((own.median_ns - beside(own.boundary_ns))[first : last + 1].sum())
        return np.asarray([round(total)], np.int64)

    def _runs(self, task: PlannedTask) -> list[tuple[int, int]]:
        """Its segments as runs of its pieces."""
        first = {begin: number for number, (begin, _) in enumerate(task.runs)}
        last = {end: number for number, (_, end) in enumerate(task.runs)}
        return [(first[begin], last[end]) for begin, end in task.segments]

    def _priced(self, task: PlannedTask) -> UnitCosts:
        """Its runs on all units, each stretch that a unit supports as a model of its own."""
        supported, pieces = self._supported(task), dict[str, Pieces]()
        same: dict[tuple[int, tuple[bool, ...]], Pieces] = {}
        for unit, able in supported.items():
            key = id(self._pricing[unit]), tuple(able)
            if key not in same:
                same[key] = self._on(task, unit, able)
            pieces[unit] = same[key]
        return UnitCosts(pieces, supported)

    def _on(self, task: PlannedTask, unit: str, able: Sequence[bool]) -> Pieces:
        count, number = len(task.runs), 0
        median, quantile, boundary = (np.ones(size, np.int64) for size in (count, count, count - 1))
        while number < count:
            if not able[number]:
                number += 1
                continue
            end = number
            while end + 1 < count and able[end + 1]:
                end += 1
            told = self._pricing[unit].told_pieces(task.part(task.runs[number][0], task.runs[end][1], unit))
            median[number : end + 1], quantile[number : end + 1] = told.median_ns, told.quantile_ns
            boundary[number:end] = told.boundary_ns
            number = end + 1
        return Pieces(median, quantile, boundary)

    def _stretches(self, task: PlannedTask) -> list[tuple[int, int]]:
        """Runs of layers between legal cuts, as long as the same units support them."""
        edges = [0, *sorted(cut.position for cut in task.model.legal_cuts), len(task.model.layers)]
        allowed, runs = self.allowed(task), list[tuple[int, int]]()
        before: list[str] = []
        for first, end in itertools.pairwise(edges):
            able = supporting(self.target, allowed, task.model, first, end - 1)
            if runs and able == before:
                runs[-1] = runs[-1][0], end - 1
            else:
                runs.append((first, end - 1))
            before = able
        return runs


class MeasuredUnits(UnitPrices):
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
        pricing: MeasuredPricing,
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

    def whole(self, tasks: Sequence[PlannedTask]) -> list[int]:
        """Planned quantile of each uncut model where it is fastest."""
        found: list[dict[str, tuple[int, int]]] = [{} for _ in tasks]
        for unit in self.units:
            mine = [n for n, task in enumerate(tasks) if unit in self.allowed(task)]
            samples = self._launched([(tasks[n].whole_on(unit), 0) for n in mine], unit, first=True)
            excess = pooled_excess(samples, self._quantile) if samples else 1.0
            for n, own in zip(mine, samples, strict=True):
                found[n][unit] = int(np.median(own)), planned_quantile_ns(own, excess)
        for task, prices in zip(tasks, found, strict=True):
            task.runs = [(0, len(task.model.layers) - 1)]
            none = next(iter(prices.values()))
            pieces = {}
            for unit in self.units:
                median, quantile = prices.get(unit, none)
                pieces[unit] = Pieces(np.asarray([median]), np.asarray([quantile]), np.zeros(0, np.int64))
            self.known[task.name] = UnitCosts(pieces, {unit: [True] for unit in self.units})
        return [min(quantile for _, quantile in prices.values()) for prices in found]

    def refine(self, tasks: Sequence[PlannedTask]) -> bool:
        """Price the pieces of models that are not short; whether there are any."""
        refined = False
        for task in tasks:
            known = self.known[task.name]
            unit = self.allowed(task)[0]
            whole = known.pieces[unit]
            if len(task.runs) > 1 or whole.quantile_ns[0] < _SHORT * self.window_ns:
                continue
            task.unit = unit
            self._pricing.group(task)
            task.runs = candidate_pieces(task.model, _MOST_PIECES)
            excess = whole.quantile_ns[0] / max(whole.median_ns[0], 1)
            pieces = self._pricing.pieces(task, int(whole.quantile_ns[0]), float(excess))
            known.pieces = {
                name: pieces.scaled(float(own.median_ns[0] / max(whole.median_ns[0], 1)))
                for name, own in known.pieces.items()
            }
            known.supported = {name: able * len(task.runs) for name, able in known.supported.items()}
            refined |= len(task.runs) > 1
        return refined

    def segments(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """All models as they are to run: a long campaign on each unit."""
        samples: dict[tuple[int, int], Samples] = {}
        pooled: list[Samples] = []
        for unit in self.units:
            launches: list[Launch] = [
                (task.execution, index) for task in tasks for index, name in enumerate(task.units) if name == unit
            ]
            launches += [(task.whole, 0) for task in tasks if task.bounds and task.unit == unit]
            found = self._launched(launches, unit)
            pooled += found
            samples |= {(id(e), index): own for (e, index), own in zip(launches, found, strict=True)}
        excess = pooled_excess(pooled, self._quantile)
        return [Priced.of(task, samples, excess) for task in tasks]

    def _launched(self, launches: Sequence[Launch], unit: str, *, first: bool = False) -> list[Samples]:
        """Durations on the unit's core."""
        if not launches:
            return []
        with pinned(self.target.unit(unit).core):
            found = self._costs[unit].probe(launches) if first else self._costs[unit].final(launches)
        return [one.samples_ns for one in found]
