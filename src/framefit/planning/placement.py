"""Which unit runs which part of which model.

Each model is a chain of pieces. A placement gives every piece a unit; pieces that follow
one another on one unit are a stage. What a placement is worth in the steady state:

- A background model's frames pass its stages one after the other, several frames at once,
  so a link delays them but takes no unit's time. A unit serves rates x_m of launches a window
  while the sum over models of x_m times what a launch takes there is at most its window,
  less guard, less what priority models reserve. This is the residual as a fluid: what is lost
  by packing segments into residuals is seen only when the timetable is built.
- Priority models run one after the other in each window, each stage as soon as its unit and
  its tensors are there, and must end by their deadlines.
- A piece must fit between a unit's priority periods and the window's end.
- Memory of a unit: parameters of its pieces, what each model holds there between two pieces, and
  the tensors that cross to or from another unit, once for each frame that may be in flight.

Wanted, in this order: priority models in time; the greatest least share of the demanded rates
(max-min fairness); the greatest sum of rates; the fewest changes of unit.

The share follows from the load: a share of s for all is served where each unit's load at the
demanded rates is at most 1/s times its capacity. So the least share is the reciprocal of the
greatest relative load, and finding it is the problem of unrelated machines (Lenstra, Shmoys and
Tardos, 1990, "Approximation algorithms for scheduling unrelated parallel machines") with chains.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from framefit.core.target import Link
from framefit.planning.bounds import fair_rates

Floats = npt.NDArray[np.float64]
Units = npt.NDArray[np.int64]
Rank = tuple[float, float, float, int]  # violation, relative load, -sum of rates, changes: the least is the best


@dataclass(frozen=True)
class Placeable:
    """A model to be placed; ``None`` where a unit does not support a piece.

    Attributes:
        duration_ns: planned quantile by piece and unit.
        median_ns: the same of the median.
        parameter_bytes: by piece.
        boundary_bytes: of what enters the first piece, of what each hands on to the next, and of what leaves
            the last one: one more than pieces.
        rate: launches a window that are wanted; of a priority model the part of windows that it is reserved in.
        deadline_ns: of a priority model; default: the window less guard.
    """

    name: str
    role: Literal["priority", "background"]
    duration_ns: Sequence[Sequence[int | None]]
    median_ns: Sequence[Sequence[int | None]]
    parameter_bytes: Sequence[int]
    boundary_bytes: Sequence[int]
    rate: float = 1.0
    deadline_ns: int | None = None

    def __post_init__(self) -> None:
        count = len(self.duration_ns)
        if not count or not len(self.median_ns) == len(self.parameter_bytes) == len(self.boundary_bytes) - 1 == count:
            raise ValueError(f"{self.name}: n pieces have n durations, medians and parameters, and n + 1 boundaries")
        if not self.rate > 0:
            raise ValueError(f"{self.name}: a rate must be greater than 0, is {self.rate}")
        for row, medians in zip(self.duration_ns, self.median_ns, strict=True):
            if [cost is None for cost in row] != [cost is None for cost in medians]:
                raise ValueError(f"{self.name}: a piece has a median where it has a duration")


@dataclass(frozen=True)
class Room:
    """A unit as a place for pieces; ``memory_bytes``: default enough."""

    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Problem:
    """Models to be placed on units.

    Attributes:
        models: priority models in the order in which they run in a window.
        links: between units, taken to be idle; where there is none, they share their memory.
        slots: frames of one background model in flight at once where it has several stages; so many
            stages it has at most.
        late_ns: of a window, before its first launch.
        longest_ns: of a piece of a background model, where windows differ: one of them may hold it; default: what
            priority models leave.
    """

    window_ns: int
    guard_ns: int
    units: Sequence[Room]
    models: Sequence[Placeable]
    links: Sequence[Link] = ()
    slots: int = 4
    late_ns: int = 0
    longest_ns: int | None = None

    def __post_init__(self) -> None:
        names = [unit.name for unit in self.units]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"units need names that differ, are {names}")
        for model in self.models:
            if any(len(row) != len(names) for row in model.duration_ns):
                raise ValueError(f"{model.name}: each piece has one duration a unit")
        for link in self.links:
            if not set(link.between) <= set(names):
                raise ValueError(f"a link between {' and '.join(link.between)}, units are {names}")

    @property
    def capacity_ns(self) -> int:
        """What a window has for launches, on each unit."""
        return self.window_ns - self.guard_ns - self.late_ns


@dataclass(frozen=True)
class Stage:
    """Pieces ``first`` to ``last`` of a replica, on one unit."""

    unit: str
    first: int
    last: int
    replica: int = 0


@dataclass(frozen=True)
class Placement:
    """Where everything runs, and how good that is.

    Attributes:
        method: which search found it.
        stages: of each model, in order.
        slots: frames of each model that may be in flight.
        launches: of each background model a window.
        least_share: of the demanded rates; 1 where all are served.
        bound: no placement has a greater least share.
        gap_ratio: bound over least share, minus 1.
        changes: of unit, of all models together.
        memory_bytes: by unit.
        reason: why it is none: what is violated.
    """

    method: Literal["heuristic", "solver"]
    stages: Mapping[str, tuple[Stage, ...]]
    slots: Mapping[str, int]
    launches: Mapping[str, float]
    least_share: float
    bound: float
    changes: int
    memory_bytes: Mapping[str, int]
    reason: str | None = None

    @property
    def feasible(self) -> bool:
        """Whether priority models are in time, and everything fits and is supported."""
        return self.reason is None

    @property
    def gap_ratio(self) -> float:
        """How much more a better placement may reach at most."""
        return self.bound / self.least_share - 1 if self.least_share > 0 else float("inf")


@dataclass(frozen=True)
class Paths:
    """Several ways for one model, and what each asks of the units.

    Attributes:
        units: number of each piece's unit; paths x pieces.
        load_ns: a window at the demanded rate (priority models: reserved); paths x units.
        longest_ns: piece of a background model; paths x units.
        memory_bytes: paths x units.
        changes: of unit; paths.
    """

    units: Units
    load_ns: Floats
    longest_ns: Floats
    memory_bytes: Floats
    changes: Units

    def __len__(self) -> int:
        return len(self.units)

    def joined(self, other: Paths) -> Paths:
        """Both, each path once."""
        _, first = np.unique(np.concatenate([self.units, other.units]), axis=0, return_index=True)
        kept = np.sort(first)
        return Paths(
            np.concatenate([self.units, other.units])[kept],
            np.concatenate([self.load_ns, other.load_ns])[kept],
            np.concatenate([self.longest_ns, other.longest_ns])[kept],
            np.concatenate([self.memory_bytes, other.memory_bytes])[kept],
            np.concatenate([self.changes, other.changes])[kept],
        )

    def only(self, chosen: Units) -> Paths:
        """Some of them."""
        return Paths(
            self.units[chosen],
            self.load_ns[chosen],
            self.longest_ns[chosen],
            self.memory_bytes[chosen],
            self.changes[chosen],
        )


class Costs:
    """A problem as arrays, and what placements of it are worth."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.count = len(problem.units)
        self.capacity_ns = float(problem.capacity_ns)
        self.memory_bytes = np.array([np.inf if u.memory_bytes is None else u.memory_bytes for u in problem.units])
        self.duration_ns = [_costs(model.duration_ns) for model in problem.models]
        self.median_ns = [_costs(model.median_ns) for model in problem.models]
        self.boundary_bytes = [np.asarray(model.boundary_bytes, np.float64) for model in problem.models]
        self.parameter_bytes = [np.asarray(model.parameter_bytes, np.float64) for model in problem.models]
        self.priority = [index for index, model in enumerate(problem.models) if model.role == "priority"]
        self.background = [index for index, model in enumerate(problem.models) if model.role == "background"]
        self._late: dict[bytes, float] = {}
        self._transfers: dict[int, Floats] = {}

    def barring(self, barred: Mapping[int, npt.NDArray[np.bool_]]) -> Costs:
        """The same where some pieces of models (pieces x units, by number) do not fit on some units."""
        other = copy.copy(self)
        other.duration_ns, other.median_ns = list(self.duration_ns), list(self.median_ns)
        for model, where in barred.items():
            other.duration_ns[model] = np.where(where, np.inf, self.duration_ns[model])
            other.median_ns[model] = np.where(where, np.inf, self.median_ns[model])
        return other

    def transfers_ns(self, model: int) -> Floats:
        """From one unit to another, of what crosses before each piece; pieces x units x units."""
        if model not in self._transfers:
            times = np.zeros((len(self.boundary_bytes[model]) - 1, self.count, self.count))
            numbers = {unit.name: number for number, unit in enumerate(self.problem.units)}
            for link in self.problem.links:
                carried = [np.ceil(link.occupied_ns(size)) for size in self.boundary_bytes[model][1:-1]]
                one, other = (numbers[name] for name in link.between)
                times[1:, one, other] = times[1:, other, one] = np.ceil(link.latency_ns) + np.asarray(carried)
            self._transfers[model] = times
        return self._transfers[model]

    def base_ns(self, model: int) -> Floats:
        """What a window's launches of it take, by piece and unit: inf where unsupported."""
        entry = self.problem.models[model]
        return (self.duration_ns[model] if entry.role == "priority" else self.median_ns[model]) * entry.rate

    def copies(self, model: int) -> int:
        """How often tensors exist that cross units."""
        return 1 if self.problem.models[model].role == "priority" else self.problem.slots

    def paths(self, model: int, units: Units) -> Paths:
        """What ways for a model ask for.

        Args:
            model: number.
            units: of each piece; paths x pieces.
        """
        here = units[:, :, None] == np.arange(self.count)
        base, duration, size = self.base_ns(model), self.duration_ns[model], self.boundary_bytes[model]
        zero = 0.0
        background = self.problem.models[model].role == "background"
        held = np.where(here, (size[:-1] + size[1:])[None, :, None], zero).max(axis=1)
        parameters = np.where(here, self.parameter_bytes[model][None, :, None], zero).sum(axis=1)
        changed = units[:, 1:] != units[:, :-1]
        crossing = np.where(changed, size[1:-1], zero)[:, :, None] * self.copies(model)
        crossing_bytes = (crossing * here[:, :-1]).sum(axis=1) + (crossing * here[:, 1:]).sum(axis=1)
        longest = np.where(here, duration[None], zero).max(axis=1)
        return Paths(
            units=units,
            load_ns=np.where(here, base[None], zero).sum(axis=1),
            longest_ns=longest if background else np.zeros_like(longest),
            memory_bytes=parameters + held + crossing_bytes,
            changes=changed.sum(axis=1),
        )

    def late_ns(self, ways: Mapping[int, Units], models: Sequence[int] | None = None) -> Floats:
        """How late priority models are, all together, on several ways at once.

        Args:
            ways: number of each priority model -> unit of each of its pieces; paths x pieces, or 1 x pieces.
            models: numbers of those that there are; default: all priority models.

        Returns:
            One a path.
        """
        rows = np.arange(max((len(units) for units in ways.values()), default=1))
        free, late = np.zeros((len(rows), self.count)), np.zeros(len(rows))
        for model in self.priority if models is None else models:
            units, ready = np.broadcast_to(ways[model], (len(rows), ways[model].shape[1])), np.zeros(len(rows))
            transfers, durations = self.transfers_ns(model), self.duration_ns[model]
            for piece in range(units.shape[1]):
                unit = units[:, piece]
                if piece:
                    ready = ready + transfers[piece, units[:, piece - 1], unit]
                ready = np.maximum(ready, free[rows, unit]) + durations[piece, unit]
                free[rows, unit] = ready
            deadline = self.problem.models[model].deadline_ns
            late += np.maximum(ready - (self.capacity_ns if deadline is None else deadline), 0.0)
        return late

    def late_together_ns(self, ways: Sequence[Units]) -> float:
        """The same for one way of each priority model, in their order; worked out once."""
        key = b"".join(units.tobytes() for units in ways)
        if key not in self._late:
            together = {model: units[None] for model, units in zip(self.priority, ways, strict=True)}
            self._late[key] = float(self.late_ns(together)[0])
        return self._late[key]

    def rank(self, chosen: Sequence[Paths]) -> Rank:
        """What one path for each model is worth."""
        priority, load, longest, memory, changes = self._sums(chosen)
        late = self.late_together_ns([chosen[model].units[0] for model in self.priority])
        violations, loads = self.worth(priority, load, longest, memory)
        violation, relative = float(violations) + late / self.capacity_ns, float(loads.max())
        rates = self.launches(chosen) if violation == 0 and relative > 1 else np.zeros(0)
        return violation, max(relative, 1.0), -round(float(rates.sum()), 9), changes

    def worth(self, priority: Floats, load: Floats, longest: Floats, memory: Floats) -> tuple[Floats, Floats]:
        """Violation, and the relative load of each unit; all arguments end in the axis of units.

        Args:
            priority: ns that are reserved.
            load: ns at the demanded rates.
            longest: ns of the longest piece.
            memory: bytes.
        """
        left = self.capacity_ns - priority
        room = left if self.problem.longest_ns is None else np.maximum(self.problem.longest_ns, left)
        fits = np.maximum(longest - room, 0).sum(axis=-1) / self.capacity_ns
        fits = fits + np.maximum(-left, 0).sum(axis=-1) / self.capacity_ns
        over = np.maximum(memory / self.memory_bytes - 1, 0).sum(axis=-1)
        relative = np.where(load > 0, load / np.maximum(left, 1.0), 0.0)
        unsupported = ~np.isfinite(load + priority).all(axis=-1)
        return np.where(unsupported, np.inf, fits + over), relative

    def launches(self, chosen: Sequence[Paths]) -> Floats:
        """Of each background model a window: all shares grow alike until their units are full."""
        wanted = np.array([self.problem.models[model].rate for model in self.background])
        work = np.array([chosen[model].load_ns[0] for model in self.background]) / wanted[:, None]
        reserved = sum((chosen[model].load_ns[0] for model in self.priority), np.zeros(self.count))
        return fair_rates(self.capacity_ns - reserved, work, wanted, wanted)

    def _sums(self, chosen: Sequence[Paths]) -> tuple[Floats, Floats, Floats, Floats, int]:
        nothing = np.zeros(self.count)
        priority = sum((chosen[model].load_ns[0] for model in self.priority), nothing)
        load = sum((chosen[model].load_ns[0] for model in self.background), nothing)
        longest = np.max([nothing, *(paths.longest_ns[0] for paths in chosen)], axis=0)
        memory = sum((paths.memory_bytes[0] for paths in chosen), nothing)
        return priority, load, longest, memory, sum(int(paths.changes[0]) for paths in chosen)

    def placement(self, chosen: Sequence[Paths], bound: float, method: Literal["heuristic", "solver"]) -> Placement:
        """One path for each model as a result.

        Args:
            chosen: one path each, in the order of the models.
            bound: of the least share.
            method: that found them.
        """
        violation, relative, _, changes = self.rank(chosen)
        models = self.problem.models
        *_, memory, _ = self._sums(chosen)
        launches = self.launches(chosen) if violation == 0 and self.background else np.zeros(len(self.background))
        share = 1 / relative if violation == 0 else 0.0
        return Placement(
            method=method,
            stages={m.name: self.stages(paths.units[0]) for m, paths in zip(models, chosen, strict=True)},
            slots={
                models[index].name: self.copies(index) if paths.changes[0] else 1 for index, paths in enumerate(chosen)
            },
            launches={models[m].name: float(rate) for m, rate in zip(self.background, launches, strict=True)},
            least_share=share,
            bound=max(bound, share),
            changes=changes,
            memory_bytes={unit.name: int(size) for unit, size in zip(self.problem.units, memory, strict=True)},
            reason=None if violation == 0 else self._reason(chosen),
        )

    def stages(self, units: Units) -> tuple[Stage, ...]:
        """Of a way: the unit of each piece."""
        stages, first = [], 0
        for unit, run in itertools.groupby(units):
            count = len(list(run))
            stages.append(Stage(self.problem.units[int(unit)].name, first, first + count - 1))
            first += count
        return tuple(stages)

    def _reason(self, chosen: Sequence[Paths]) -> str:
        """The first thing that is violated."""
        priority, load, longest, memory, _ = self._sums(chosen)
        if not np.isfinite(priority + load).all():
            return self._unsupported()
        for number, unit in enumerate(self.problem.units):
            if memory[number] > self.memory_bytes[number]:
                return f"unit {unit.name!r} would need {memory[number]:.0f} bytes and has {unit.memory_bytes}"
        if self.late_together_ns([chosen[model].units[0] for model in self.priority]) > 0:
            return "the priority models miss their deadlines on every placement that was tried"
        number = int((priority + longest).argmax())
        name, left = self.problem.units[number].name, max(self.capacity_ns - priority[number], 0)
        return (
            f"a piece on unit {name!r} takes {longest[number] / 1e6:.3g} ms, priority models and guard leave "
            f"{left / 1e6:.3g} ms"
        )

    def _unsupported(self) -> str:
        """The first piece that no unit supports, or the limit on stages."""
        for entry, durations in zip(self.problem.models, self.duration_ns, strict=True):
            for piece in np.flatnonzero(~np.isfinite(durations).any(axis=1)):
                return f"no unit supports piece {piece} of {entry.name!r}"
        return f"the units that support its pieces change more than {self.problem.slots - 1} times along some model"


def _costs(rows: Sequence[Sequence[int | None]]) -> Floats:
    return np.array([[np.inf if cost is None else cost for cost in row] for row in rows], np.float64)
