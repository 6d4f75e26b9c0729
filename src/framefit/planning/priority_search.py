"""When, and on which units, priority models run: the exact answer, where the fast one has found none.

The priority frames of one repetition of the windows are a job shop: each frame has a release and a deadline, its
pieces run in order, each on one of the units that support it (the same one for all frames of a model), and what
crosses units takes the link's time. All take their quantiles with the greatest excess, so that whatever is found
holds at worst. For each background model the longest of its pieces has to fit, guard included, between two priority
launches: somewhere in each window, or in one of them where streams have different rates. OR-Tools' CP-SAT finds such
a schedule, or proves that there is none.

First each stage of a model runs in one go; where no such order exists, units may launch other models' pieces between a
model's own: it is cut where its segments do not follow one another at once.

Pieces are priced without what cutting between them costs, so that a proof holds however the models are cut; where what
was found does not hold with these costs, it is looked for once more with all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from framefit.core.settings import Notify
from framefit.core.timetable import Refusal, in_order
from framefit.planning.beat import Beat, Layout
from framefit.planning.candidates import Arranged, Run, UnitCandidate
from framefit.planning.partition import beside
from framefit.planning.placement_search import limited, spent_s
from framefit.planning.reserved import Due, frames_due

_MOST_INTERVALS = 4000  # frames x pieces x units that the solver gets somewhere with
_MOST_COPIES = 2  # of the repetition, where frames are in flight at its end
_WHOLE_SHARE = 0.3  # of the time that is spent on uncut models
_IMPOSSIBLE_S = 0.3  # for a proof that nothing fits, before anything else is tried
_LATENESS_S = 0.5  # for the least lateness, where nothing was found
_NEVER = 10**15


@dataclass(frozen=True)
class Schedule:
    """When and where the priority models run.

    Attributes:
        layout: when they begin.
        units: priority model -> unit of each of its pieces.
        pauses: priority model -> pieces before which it waits, although its unit is the same.
    """

    layout: Layout
    units: Mapping[str, Sequence[str]]
    pauses: Mapping[str, Sequence[int]]

    def placed(self, candidate: UnitCandidate) -> UnitCandidate:
        """A model that runs where the schedule has it, if that has it."""
        name = candidate.model.name
        return candidate.restricted(self.units[name], self.pauses[name]) if name in self.units else candidate


@dataclass(frozen=True)
class _Model:
    """A priority model in the pieces that may be placed and parted.

    Attributes:
        groups: first and last piece of each.
        work_ns: by group and unit; ``None`` where one is not supported.
        handed: bytes that each group hands on.
    """

    groups: list[tuple[int, int]]
    work_ns: list[list[int | None]]
    handed: list[int]


class PrioritySearch:
    """Looks for a schedule of one workload's priority models.

    Args:
        candidates: all models.
        beat: windows, guard, demands, links; its layout does not count.
        units: names.
        limit_s: of the solver's work, for all searches together.
        notify: receives what is being done.
        kept: models stay where they are supported, and are not cut.
    """

    def __init__(
        self,
        candidates: Sequence[UnitCandidate],
        beat: Beat,
        units: Sequence[str],
        limit_s: float,
        notify: Notify,
        *,
        kept: bool = False,
    ) -> None:
        # By name: the solver's answer is not to depend on the order of the file.
        self.candidates = sorted(candidates, key=lambda candidate: candidate.model.name)
        self.units, self.limit_s, self.notify = list(units), limit_s, notify
        self.beat = dataclasses.replace(beat, layout=None)
        self.kept, self.spent_s = kept, 0.0
        priority = [candidate for candidate in self.candidates if candidate.model.role == "priority"]
        bare = [one.planned([Run(self.units[0], 0, len(one.names) - 1)], 1) for one in priority]
        self.ordered = in_order(sorted(bare, key=lambda model: model.name))
        self.frames = frames_due(self.beat, self.ordered)
        self.by_name = {candidate.model.name: candidate for candidate in priority}
        self.total_ns = 0
        self.lengths_ns: list[int] = []
        for window in range(max((frame.window for frame in self.frames), default=0) + 1):
            self.lengths_ns.append(self.beat.pattern_ns[window % len(self.beat.pattern_ns)])
        while len(self.lengths_ns) % len(self.beat.pattern_ns):
            self.lengths_ns.append(self.beat.pattern_ns[len(self.lengths_ns) % len(self.beat.pattern_ns)])
        self.total_ns = sum(self.lengths_ns)
        self._impossible = False
        self.proved = False
        """Whether a search has shown that there is no schedule."""

    def schedules(self) -> Iterator[Schedule]:
        """Schedules in the order in which they are worth trying: the first that holds is the answer."""
        if not self.frames or self.impossible:
            return
        for cut, full in ((False, False), (True, False), (True, True)):
            if cut and (self.kept or all(len(one.names) == 1 for one in self.by_name.values())):
                self.proved = self.proved or self._impossible
                return
            limit_s = self._left_s() * (_WHOLE_SHARE if not cut else 1.0)
            if limit_s <= 0:
                return
            self.notify(
                "searching for an order of the priority models" + (", cut where others come between" if cut else "")
            )
            formulation = _Formulation(self, self._models(cut=cut, full=full), cut=cut)
            status, schedule = formulation.solved(limit_s)
            self.spent_s += formulation.spent_s
            self._impossible = status == "impossible"
            if schedule is not None:
                yield schedule
            elif status == "impossible" and cut and not full:
                self.proved = True
                return

    @functools.cached_property
    def impossible(self) -> bool:
        """Whether a bound, or the solver within a short time, excludes all schedules, however models are cut."""
        self.proved = self._binding[0] is not None
        if self.frames and not self.proved:
            models = self._models(cut=not self.kept, full=False)
            formulation = _Formulation(self, models, cut=not self.kept)
            status, _ = formulation.solved(min(self._left_s(), _IMPOSSIBLE_S))
            self.proved = status == "impossible"
            self.spent_s += formulation.spent_s
        return self.proved

    def arranged(self, arranged: Arranged, arrange: Callable[[Schedule], Arranged]) -> tuple[Arranged, Schedule | None]:
        """A workload arranged by the first schedule with which it fits; else as it was, refused.

        Args:
            arranged: infeasible.
            arrange: places, cuts and builds it by a schedule.

        Returns:
            It, and the schedule; without one where there is none, or where something else is in the way.
        """
        scheduled = False
        for schedule in self.schedules():
            scheduled = True
            better = arrange(schedule)
            if better.timetable.feasible:
                return better, schedule
        if scheduled:
            return arranged, None
        refusal, timetable = self.refusal(), arranged.timetable
        timetable = msgspec.structs.replace(
            timetable,
            proof=refusal,
            binding_constraint=refusal.reason,
            worst_slack_ns=min(timetable.worst_slack_ns, 0) if refusal.lateness_ns is None else -refusal.lateness_ns,
        )
        return dataclasses.replace(arranged, timetable=timetable), None

    def refusal(self) -> Refusal:
        """Why there is no schedule, or how far one was found to be missing."""
        reason, least_ns = self._binding
        models = self._models(cut=not self.kept, full=False)
        formulation = _Formulation(self, models, cut=not self.kept, late_ns=least_ns)
        late = formulation.least_lateness(min(max(self._left_s(), 0.2), _LATENESS_S))
        self.spent_s += formulation.spent_s
        lateness_ns, bound_ns = late if late is not None else (None, None)
        if reason is not None or self.proved:
            if reason is None and lateness_ns == 0:
                reason = self._no_room()
            reason = reason or (
                f"no order of the priority models on {', '.join(self.units)} meets all deadlines: the solver has gone "
                "through all of them"
            )
            return Refusal(
                kind="proved", reason=reason, searched_s=self.spent_s, lateness_ns=lateness_ns, bound_ns=bound_ns
            )
        return Refusal(
            kind="not found",
            reason=f"no order of the priority models that meets all deadlines was found in {self.spent_s:.2g} s of the "
            "solver's work, nor a "
            "proof that there is none",
            searched_s=self.spent_s,
            lateness_ns=lateness_ns,
            bound_ns=bound_ns,
        )

    def _left_s(self) -> float:
        return self.limit_s - self.spent_s

    # What binds -------------------------------------------------------------------------------------------------------

    def _least_ns(self, name: str) -> int:
        """Of a model's work wherever it is fastest."""
        model = self._model(self.by_name[name], self._most_groups(), full=False)
        rows = [[ns for ns in row if ns is not None] for row in model.work_ns]
        return sum(min(row) for row in rows if row)

    @functools.cached_property
    def _binding(self) -> tuple[str | None, int]:
        """A condition that every schedule meets and this workload does not, as a sentence; and its least lateness."""
        least = {name: self._least_ns(name) for name in self.by_name}
        for frame in self.frames:
            room = frame.due_ns - frame.release_ns
            if least[frame.model] > room:
                late_ns = least[frame.model] - room
                return f"{frame.model!r} alone takes {_ms(least[frame.model])}, its deadline is {_ms(room)}", late_ns
        count = len(self.units)
        where = f"unit {self.units[0]!r}" if count == 1 else f"the {count} units"
        total = sum(least[frame.model] for frame in self.frames)
        if total > count * self.total_ns:
            return f"the priority models' utilisation of {where} is {total / (count * self.total_ns):.3g}, above 1", 0
        by_due = sorted(self.frames, key=lambda frame: frame.due_ns)
        for begin in sorted({frame.release_ns for frame in self.frames}):
            demand = 0
            for frame in by_due:
                demand += least[frame.model] if frame.release_ns >= begin else 0
                late_ns = demand - count * (frame.due_ns - begin)
                if demand and late_ns > 0:
                    return (
                        f"what is released from {_ms(begin)} on and due by {_ms(frame.due_ns)} takes {_ms(demand)} on "
                        f"{where}, which {'has' if count == 1 else 'have'} {_ms(demand - late_ns)} in between"
                    ), late_ns // count
        return None, 0

    def _no_room(self) -> str:
        """All deadlines can be met, but not with room for background segments besides."""
        longest = {
            candidate.model.name: max((min(ns) for ns in self._rooms_needed(candidate)), default=0)
            for candidate in self.candidates
            if candidate.model.role == "background"
        }
        name = max(longest, key=lambda one: longest[one], default="")
        each = "each window" if self.beat.even else "any window"
        return (
            f"no order of the priority models that meets all deadlines leaves {_ms(longest.get(name, 0))} in one run, "
            f"guard included, in {each} for the longest layer of {name!r}: the solver has gone through all of them"
        )

    # The models -------------------------------------------------------------------------------------------------------

    def _most_groups(self) -> int:
        return max(_MOST_INTERVALS // max(len(self.frames) * len(self.units), 1), 1)

    def _models(self, *, cut: bool, full: bool) -> dict[str, _Model]:
        """Priority models in as many groups of pieces as the solver gets along with."""
        alone = len(self.units) == 1 and not cut
        most = 1 if alone else self._most_groups()
        return {name: self._model(candidate, most, full=full) for name, candidate in self.by_name.items()}

    def _model(self, candidate: UnitCandidate, most: int, *, full: bool) -> _Model:
        count = len(candidate.names)
        able = [tuple(candidate.supported[unit][piece] for unit in self.units) for piece in range(count)]
        weight = np.min([candidate.pieces[unit].quantile_ns for unit in self.units], axis=0).astype(np.float64)
        groups, share, filled = list[tuple[int, int]](), weight.sum() / most, 0.0
        for piece in range(count):
            fresh = not groups or able[piece] != able[piece - 1] or filled >= share * len(groups)
            filled += weight[piece]
            if fresh:
                groups.append((piece, piece))
            else:
                groups[-1] = groups[-1][0], piece
        columns = []
        for unit in self.units:
            own = candidate.pieces[unit]
            inside = np.maximum(own.median_ns - beside(own.boundary_ns), 0)
            bare = inside * (own.quantile_ns / np.maximum(own.median_ns, 1))
            _, whole = own.of(groups)
            columns.append(
                [
                    None
                    if not candidate.supported[unit][first]
                    else math.ceil((1 + self.beat.excess_ratio) * (whole[n] if full else bare[first : last + 1].sum()))
                    for n, (first, last) in enumerate(groups)
                ]
            )
        handed = [candidate.boundary_bytes[last] for _, last in groups]
        return _Model(groups, [list(row) for row in zip(*columns, strict=True)], handed)

    def rooms_needed(self) -> list[list[int | None]]:
        """What has to fit between priority launches for background models, guard included, by unit."""
        return [
            row
            for candidate in self.candidates
            if candidate.model.role == "background"
            for row in self._rooms_of(candidate)
        ]

    def _rooms_needed(self, candidate: UnitCandidate) -> list[list[int]]:
        return [[ns for ns in row if ns is not None] for row in self._rooms_of(candidate)]

    def _rooms_of(self, candidate: UnitCandidate) -> list[list[int | None]]:
        """Of a background model's pieces those that need most: what fits for them fits for all."""
        if self.beat.preemptive:
            return [[1 if any(candidate.supported[unit]) else None for unit in self.units]]
        rooms: list[list[int | None]] = []
        for piece in range(len(candidate.names)):
            row: list[int | None] = []
            for unit in self.units:
                own = candidate.pieces[unit]
                inside = max(float(own.median_ns[piece] - beside(own.boundary_ns)[piece]), 0.0)
                ns = math.ceil(inside * float(own.quantile_ns[piece] / max(own.median_ns[piece], 1)))
                row.append(self.beat.needed_ns(ns) + self.beat.guard_ns if candidate.supported[unit][piece] else None)
            rooms.append(row)
        kept: list[list[int | None]] = []
        for row in sorted(rooms, key=lambda row: -min((ns for ns in row if ns is not None), default=0)):
            if not any(_covers(other, row) for other in kept):
                kept.append(row)
        return kept


def _covers(room: Sequence[int | None], piece: Sequence[int | None]) -> bool:
    """Whether a piece fits wherever another one does."""
    return all(big is None or (small is not None and small <= big) for big, small in zip(room, piece, strict=True))


class _Formulation:
    """The job shop in the solver's terms.

    Args:
        search: what it is for.
        models: in pieces.
        cut: others may come between a model's pieces on a unit.
        late_ns: deadlines may be missed by so much at least, and by as little as possible; background models do not
            count. Default: they may not.
    """

    def __init__(
        self, search: PrioritySearch, models: Mapping[str, _Model], *, cut: bool, late_ns: int | None = None
    ) -> None:
        from ortools.sat.python import cp_model  # it takes a third of a second to load

        self.cp_model, self.model, self.search = cp_model, cp_model.CpModel(), search
        self.models, self.cut, self.beat, self.spent_s = models, cut, search.beat, 0.0
        self.units = range(len(search.units))
        self.starts: dict[tuple[int, int], Any] = {}
        self.ends: dict[tuple[int, int], Any] = {}
        self.intervals: dict[int, list[Any]] = {unit: [] for unit in self.units}
        self.wraps = any(frame.due_ns > search.total_ns for frame in search.frames)
        self.most_late_ns = 0 if late_ns is None else max(late_ns, self._one_by_one_ns())
        self.late = None if late_ns is None else self.model.new_int_var(late_ns, self.most_late_ns, "lateness")
        self.crosses: dict[str, Any] = {}
        self.on = {name: self._assigned(name, one) for name, one in models.items()}
        for number, frame in enumerate(search.frames):
            self._frame(number, frame)
        for number, frame in enumerate(search.frames):
            self._reads(number, frame)
            self._follows(number, frame)
        for unit in self.units:
            self.model.add_no_overlap(self.intervals[unit])
        if self.late is not None:
            self.model.minimize(self.late)
        else:
            for number, row in enumerate(search.rooms_needed()):
                self._room(number, row)

    def _one_by_one_ns(self) -> int:
        """How late frames are at most where all of a repetition run one after the other."""
        taken_ns = 0
        for frame in self.search.frames:
            one = self.models[frame.model]
            taken_ns += sum(max(ns for ns in row if ns is not None) for row in one.work_ns)
            taken_ns += sum(
                self.beat.longest_link_ns(unit, other, handed)
                for handed in one.handed
                for unit, other in itertools.pairwise(self.search.units)
            )
        return _MOST_COPIES * (self.search.total_ns + taken_ns)

    def _assigned(self, name: str, one: _Model) -> list[dict[int, Any]]:
        """Literals of each piece on each unit."""
        rows = []
        for piece, work in enumerate(one.work_ns):
            row = {
                unit: self.model.new_bool_var(f"{name}_{piece}_{unit}")
                for unit, ns in enumerate(work)
                if ns is not None
            }
            self.model.add_exactly_one(row.values())
            rows.append(row)
        crosses = self.crosses[name] = self.model.new_bool_var(f"{name}_crosses")
        for before, after in itertools.pairwise(rows):
            for unit, literal in before.items():
                for other, there in after.items():
                    if unit != other:
                        self.model.add_bool_or([~literal, ~there, crosses])
        return rows

    def _frame(self, number: int, frame: Due) -> None:
        """Its pieces: in order, between release and deadline."""
        model, one, rows = self.model, self.models[frame.model], self.on[frame.model]
        latest = frame.due_ns + self.most_late_ns
        if self.beat.even:
            latest = min(latest, frame.release_ns + self.beat.window_ns) if self.late is None else latest
        for piece, row in enumerate(rows):
            start = model.new_int_var(frame.release_ns + self.beat.late_ns, max(latest, 0) + self.beat.late_ns, "")
            end = model.new_int_var(frame.release_ns, max(latest, frame.release_ns), "")
            self.starts[number, piece], self.ends[number, piece] = start, end
            for unit, literal in row.items():
                work = one.work_ns[piece][unit]
                assert work is not None
                self._interval(unit, start, work, end, literal if len(row) > 1 else None)
            if piece == 0:
                continue
            before = self.ends[number, piece - 1]
            model.add(start >= before)
            for unit, literal in rows[piece - 1].items():
                for other, there in row.items():
                    if unit == other and not self.cut:
                        model.add(start == before).only_enforce_if(literal, there)
                    elif unit != other:
                        link = self.beat.link_ns(
                            self.search.units[unit], self.search.units[other], one.handed[piece - 1]
                        )
                        if link:
                            model.add(start >= before + link).only_enforce_if(literal, there)
        if self.late is None:
            model.add(self.starts[number, 0] <= frame.start_by_ns)
        else:
            model.add(self.ends[number, len(rows) - 1] <= frame.due_ns + self.late)

    def _follows(self, number: int, frame: Due) -> None:
        """The model's frame before is done; what crosses units exists once, and one instant later is free again.

        Lateness is that of one repetition: where it is carried over to the next one, it has no end.
        """
        before, earlier = frame.before or (number, 0)
        if (before == number and not earlier) or (earlier and self.late is not None):
            return
        end = self.ends[before, len(self.on[frame.model]) - 1] - earlier * self.search.total_ns
        self.model.add(self.starts[number, 0] >= end + self.crosses[frame.model])

    def _interval(self, unit: int, start: Any, work: int, end: Any, literal: Any) -> None:
        """On a unit; once more in the next repetition where frames are in flight at the end of this one."""
        for copy in range(_MOST_COPIES if self.wraps else 1):
            shift = copy * self.search.total_ns
            if literal is None:
                self.intervals[unit].append(self.model.new_interval_var(start + shift, work, end + shift, ""))
            else:
                self.intervals[unit].append(
                    self.model.new_optional_interval_var(start + shift, work, end + shift, literal, "")
                )

    def _reads(self, number: int, frame: Due) -> None:
        """Nothing begins before what it reads is there."""
        for source, _ in frame.sources:
            giver = self.search.frames[source].model
            last = len(self.on[giver]) - 1
            end, start = self.ends[source, last], self.starts[number, 0]
            self.model.add(start >= end)
            for unit, literal in self.on[giver][last].items():
                for other, there in self.on[frame.model][0].items():
                    names = self.search.units
                    link = self.beat.link_ns(names[unit], names[other], self.models[giver].handed[last])
                    if link:
                        self.model.add(start >= end + link).only_enforce_if(literal, there)

    def _room(self, number: int, row: Sequence[int | None]) -> None:
        """A background piece fits into each window, or into one of them."""
        model, begin = self.model, 0
        places: list[Any] = []
        for window, length in enumerate(self.search.lengths_ns):
            here = []
            for unit, ns in enumerate(row):
                room = length - self.beat.late_ns
                if ns is None or ns > room:
                    continue
                literal = model.new_bool_var(f"room_{number}_{window}_{unit}")
                first = begin + self.beat.late_ns
                start = model.new_int_var(first, begin + length - ns, "")
                here.append((literal, unit, model.new_optional_fixed_size_interval_var(start, ns, literal, "")))
            if self.beat.even:
                model.add_bool_or([literal for literal, *_ in here])
            places += here
            begin += length
        if not self.beat.even:
            model.add_bool_or([literal for literal, *_ in places])
        for unit in self.units:
            own = [interval for _, there, interval in places if there == unit]
            if own:
                model.add_no_overlap([*self.intervals[unit], *own])

    # Answers ----------------------------------------------------------------------------------------------------------

    def _ended(self, limit_s: float) -> tuple[Any, int]:
        """A solver that has ended, and its status."""
        solver = limited(self.cp_model.CpSolver(), limit_s)
        status = solver.solve(self.model)
        self.spent_s += spent_s(solver)
        return solver, status

    def solved(self, limit_s: float) -> tuple[Literal["found", "impossible", "unknown"], Schedule | None]:
        """A schedule, a proof that there is none, or neither."""
        solver, status = self._ended(limit_s)
        if status == self.cp_model.INFEASIBLE:
            return "impossible", None
        if status not in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE):
            return "unknown", None
        return "found", self._found(solver)

    def least_lateness(self, limit_s: float) -> tuple[int, int] | None:
        """The least lateness that was found, and a bound on it; ``None``: nothing was found."""
        solver, status = self._ended(limit_s)
        if status not in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE):
            return None
        return int(solver.objective_value), int(solver.best_objective_bound)

    def _found(self, solver: Any) -> Schedule:
        """The schedule as a layout."""
        search, frames = self.search, self.search.frames
        on = {
            name: [next(unit for unit, literal in row.items() if solver.boolean_value(literal)) for row in rows]
            for name, rows in self.on.items()
        }
        start = {key: solver.value(variable) for key, variable in self.starts.items()}
        end = {}
        for (number, piece), begin in start.items():
            name = frames[number].model
            end[number, piece] = begin + (self.models[name].work_ns[piece][on[name][piece]] or 0)
        pauses: dict[str, set[int]] = defaultdict(set)  # groups before which a model waits on the unit where it is
        for (number, piece), begin in start.items():
            name = frames[number].model
            if piece and on[name][piece] == on[name][piece - 1] and begin > end[number, piece - 1]:
                pauses[name].add(piece)
        parts = self._parts(on, pauses)
        late = self.beat.late_ns
        free: dict[int, int] = {}
        done: dict[tuple[int, int], int] = {}
        sequence = []
        every = [
            (start[number, own[0]], number, part)
            for number, frame in enumerate(frames)
            for part, own in enumerate(parts[frame.model])
        ]
        for begin, number, part in sorted(every):
            frame = frames[number]
            own = parts[frame.model][part]
            unit = on[frame.model][own[0]]
            natural = max(frame.release_ns + late, free.get(unit, 0))
            if part:
                before = parts[frame.model][part - 1][-1]
                link = self.beat.link_ns(
                    search.units[on[frame.model][before]], search.units[unit], self.models[frame.model].handed[before]
                )
                natural = max(natural, done[number, part - 1] + link)
            for source, _ in frame.sources if not part else ():
                giver = frames[source].model
                link = self.beat.link_ns(search.units[on[giver][-1]], search.units[unit], self.models[giver].handed[-1])
                natural = max(natural, done[source, len(parts[giver]) - 1] + link)
            sequence.append((frame.model, frame.window, part, begin - late if begin > natural else 0))
            done[number, part] = free[unit] = end[number, own[-1]]
        layout = Layout(tuple(sequence), frozenset(pauses))
        groups = {name: one.groups for name, one in self.models.items()}
        units = {
            name: [
                search.units[unit]
                for unit, (first, last) in zip(on[name], own, strict=True)
                for _ in range(first, last + 1)
            ]
            for name, own in groups.items()
        }
        return Schedule(
            layout,
            units,
            {name: sorted(own[group][0] for group in pauses.get(name, ())) for name, own in groups.items()},
        )

    def _parts(self, on: Mapping[str, list[int]], pauses: Mapping[str, set[int]]) -> dict[str, list[list[int]]]:
        """Groups that are launched at one instant."""
        parts: dict[str, list[list[int]]] = {}
        for name, units in on.items():
            own = [[0]]
            for group in range(1, len(units)):
                if units[group] != units[group - 1] or group in pauses.get(name, ()):
                    own.append([group])
                else:
                    own[-1].append(group)
            parts[name] = own
        return parts


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.4g} ms"
