"""What the pieces of models take on each of the units that they may use."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from framefit.core.target import Target
from framefit.core.timetable import PlannedModel
from framefit.execution.unit_support import supporting_units
from framefit.planning.durations import Durations, LaunchTimes, Samples, launch_times
from framefit.planning.partition import Pieces, beside, candidate_pieces, planned_quantile_ns
from framefit.planning.task import Bounds, SegmentedModel

_MOST_PIECES = 30  # of a model: finer ones move less than a hundredth of its load
_SHORT = 0.05  # of the window: what is shorter is not worth measuring in pieces


@dataclass
class PieceCosts:
    """A model's runs of layers on the units that it may use.

    Attributes:
        pieces: unit -> costs; any number where it does not support one.
        supported: unit -> whether it supports each.
    """

    pieces: dict[str, Pieces]
    supported: dict[str, list[bool]]


class UnitPrices:
    """Prices of models in pieces, on all units.

    Exact figures are asked for piece by piece, on each unit, without compiling anything. Measuring takes time: whole
    models are measured on each unit, pieces of the longer ones on their first unit, and in proportion on the others.

    Args:
        target: units that exist.
        units: durations on those that models may use.
        window_ns: of the shortest window.
    """

    def __init__(self, target: Target, units: Mapping[str, Durations], window_ns: int) -> None:
        self._target, self._units, self._window_ns = target, units, window_ns
        self._exact = all(durations.exact for durations in units.values())
        self._known: dict[str, PieceCosts] = {}

    def costs(self, task: SegmentedModel) -> PieceCosts:
        """Of a model's runs of layers, on the units that it may use."""
        known, allowed = self._known[task.name], self._allowed(task)
        may = {unit: [able and unit in allowed for able in row] for unit, row in known.supported.items()}
        return PieceCosts(known.pieces, may)

    def whole(self, tasks: Sequence[SegmentedModel]) -> tuple[list[SegmentedModel], list[int]]:
        """Planned quantile of each model where it is fastest, without cuts but where other units have to go on."""
        return self._stretched(tasks) if self._exact else self._measured(tasks)

    def refine(self, tasks: Sequence[SegmentedModel]) -> list[SegmentedModel]:
        """The models in finer pieces, with their prices; where they are measured, short models stay whole."""
        return [self._finer(task) if self._exact else self._finer_measured(task) for task in tasks]

    def segments(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """All models as they are to run; exact figures of uncut models are those of their pieces where these run."""
        if not self._exact:
            return launch_times(tasks, self._units)
        compiled = all(durations.compiles for durations in self._units.values())
        return [self._launched(task) if compiled else self._looked_up(task) for task in tasks]

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
            for unit, pieces in self._known[task.name].pieces.items():
                planned_ns = sum(segment.duration_ns for segment in before.segments if segment.unit == unit)
                took_ns = sum(segment.duration_ns for segment in after.segments if segment.unit == unit)
                if planned_ns and not 1 / ratio <= took_ns / planned_ns <= ratio:
                    self._known[task.name].pieces[unit] = pieces.scaled(took_ns / planned_ns)
                    changed = True
        return changed

    def _allowed(self, task: SegmentedModel) -> list[str]:
        """Units that a model may use."""
        names = task.wired.entry.units
        return [unit for unit in self._units if names is None or unit in names]

    def _stretched(self, tasks: Sequence[SegmentedModel]) -> tuple[list[SegmentedModel], list[int]]:
        durations, prepared = [], []
        for bare in tasks:
            grouped = self._units[self._allowed(bare)[0]].grouped(bare)
            task = dataclasses.replace(grouped, runs=self._stretches(grouped))
            self._known[task.name] = self._priced(task)
            costs = self.costs(task)
            columns = [np.where(costs.supported[u], costs.pieces[u].quantile_ns, np.inf) for u in costs.pieces]
            alone = [p.of([(0, len(p) - 1)])[1][0] for u, p in costs.pieces.items() if all(costs.supported[u])]
            durations.append(int(min([*alone, np.min(columns, axis=0).sum()])))
            prepared.append(task)
        return prepared, durations

    def _measured(self, tasks: Sequence[SegmentedModel]) -> tuple[list[SegmentedModel], list[int]]:
        prices: list[dict[str, tuple[int, int]]] = [{} for _ in tasks]
        for unit, durations in self._units.items():
            numbers = [n for n, task in enumerate(tasks) if unit in self._allowed(task)]
            here = [dataclasses.replace(tasks[n], unit=unit) for n in numbers]
            samples = durations.launched([(task, None) for task in here], thorough=False) if here else []
            excesses = durations.excesses(here, samples) if here else []
            for n, launch_ns, excess in zip(numbers, samples, excesses, strict=True):
                prices[n][unit] = int(np.median(launch_ns)), planned_quantile_ns(launch_ns, excess)
        prepared = [dataclasses.replace(task, runs=((0, len(task.model.layers) - 1),)) for task in tasks]
        for task, by_unit in zip(prepared, prices, strict=True):
            none = next(iter(by_unit.values()))
            pieces = {}
            for unit in self._units:
                median, quantile = by_unit.get(unit, none)
                pieces[unit] = Pieces(np.asarray([median]), np.asarray([quantile]), np.zeros(0, np.int64))
            self._known[task.name] = PieceCosts(pieces, {unit: [True] for unit in self._units})
        return prepared, [min(quantile for _, quantile in by_unit.values()) for by_unit in prices]

    def _finer(self, task: SegmentedModel) -> SegmentedModel:
        edges = {first for first, _ in (*task.runs, *candidate_pieces(task.model, _MOST_PIECES))}
        ordered = [*sorted(edges), len(task.model.layers)]
        finer = dataclasses.replace(task, runs=tuple((first, end - 1) for first, end in itertools.pairwise(ordered)))
        self._known[task.name] = self._priced(finer)
        return finer

    def _finer_measured(self, task: SegmentedModel) -> SegmentedModel:
        known, unit = self._known[task.name], self._allowed(task)[0]
        whole = known.pieces[unit]
        if len(task.runs) > 1 or whole.quantile_ns[0] < _SHORT * self._window_ns:
            return task
        task = self._units[unit].grouped(dataclasses.replace(task, unit=unit))
        task = dataclasses.replace(task, runs=tuple(candidate_pieces(task.model, _MOST_PIECES)))
        excess = whole.quantile_ns[0] / max(whole.median_ns[0], 1)
        pieces = self._units[unit].pieces(task, int(whole.quantile_ns[0]), float(excess))
        known.pieces = {
            name: pieces.scaled(float(uncut.median_ns[0] / max(whole.median_ns[0], 1)))
            for name, uncut in known.pieces.items()
        }
        known.supported = {name: able * len(task.runs) for name, able in known.supported.items()}
        return task

    def _launched(self, task: SegmentedModel) -> LaunchTimes:
        samples = [self._units[unit].launched([(task, index)])[0] for index, unit in enumerate(task.units)]
        (excess,) = self._units[task.units[0]].excesses([task], samples)
        return LaunchTimes(tuple(samples), self._uncut(task), excess)

    def _looked_up(self, task: SegmentedModel) -> LaunchTimes:
        """Nothing is compiled: segments cost what their pieces do."""
        segments, excess = [], 1.0
        for unit, run in zip(task.units, task.segment_runs, strict=True):
            median, quantile = self._known[task.name].pieces[unit].of([run])
            segments.append(np.asarray([round(median[0])], np.int64))
            excess = max(excess, float(quantile[0] / max(median[0], 1)))
        return LaunchTimes(tuple(segments), self._uncut(task), excess)

    def _uncut(self, task: SegmentedModel) -> Samples:
        """What a model would take if its pieces ran where they do, but were one launch."""
        total = 0.0
        for unit, (first, last) in zip(task.units, task.segment_runs, strict=True):
            pieces = self._known[task.name].pieces[unit]
            total += float((pieces.median_ns - beside(pieces.boundary_ns))[first : last + 1].sum())
        return np.asarray([round(total)], np.int64)

    def _priced(self, task: SegmentedModel) -> PieceCosts:
        """Its runs on all units, each stretch that a unit supports as a model of its own."""
        able = [supporting_units(self._target, list(self._units), task.model, *run) for run in task.runs]
        supported = {unit: [unit in here for here in able] for unit in self._units}
        pieces = dict[str, Pieces]()
        alike: dict[tuple[int, tuple[bool, ...]], Pieces] = {}
        for unit, row in supported.items():
            key = id(self._units[unit]), tuple(row)
            if key not in alike:
                alike[key] = self._on(task, unit, row)
            pieces[unit] = alike[key]
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
            stretch = self._units[unit].pieces(task.part(task.runs[number][0], task.runs[end][1], unit))
            median[number : end + 1], quantile[number : end + 1] = stretch.median_ns, stretch.quantile_ns
            boundary[number:end] = stretch.boundary_ns
            number = end + 1
        return Pieces(median, quantile, boundary)

    def _stretches(self, task: SegmentedModel) -> Bounds:
        """Runs of layers between legal cuts, as long as the same units support them."""
        edges = [0, *sorted(cut.position for cut in task.model.legal_cuts), len(task.model.layers)]
        allowed, runs = self._allowed(task), list[tuple[int, int]]()
        before: list[str] = []
        for first, end in itertools.pairwise(edges):
            able = supporting_units(self._target, allowed, task.model, first, end - 1)
            if runs and able == before:
                runs[-1] = runs[-1][0], end - 1
            else:
                runs.append((first, end - 1))
            before = able
        return tuple(runs)
