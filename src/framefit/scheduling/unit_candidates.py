"""Models with what they take on each unit, and the placement problem that they make."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from framefit.core.timetable import PlannedModel, Segment
from framefit.scheduling.beat import Beat, in_order
from framefit.scheduling.partition import Pieces, beside
from framefit.scheduling.placement import Placeable, Placement, Problem, Room, Stage
from framefit.scheduling.stages import Run

__all__ = ["Terms", "UnitCandidate", "expanded", "problem_of", "whole_priority"]


@dataclass(frozen=True)
class UnitCandidate:
    """A model with what its pieces take on each unit.

    Attributes:
        model: name, role, level, reasons, and what it reads; its segments do not count.
        pieces: by unit; where it does not support one, any number.
        supported: by unit and piece.
        boundary_bytes: of what each piece hands on.
        names: first and last layer of each piece.
        stateful: a frame needs what the one before gives at its end: one of them is in flight.
    """

    model: PlannedModel
    pieces: Mapping[str, Pieces]
    supported: Mapping[str, Sequence[bool]]
    boundary_bytes: Sequence[int]
    names: Sequence[tuple[str, str]]
    stateful: bool = False

    def scaled(self, factor: float) -> UnitCandidate:
        """The same at other costs on all units."""
        pieces = {unit: own.scaled(factor) for unit, own in self.pieces.items()}
        return dataclasses.replace(self, pieces=pieces)

    @property
    def fewest_stages(self) -> int:
        """On its way over units that support its pieces."""
        count, possible = 1, set(self.supported)
        for piece in range(len(self.names)):
            here = {unit for unit, able in self.supported.items() if able[piece]}
            count, possible = (count, possible & here) if possible & here else (count + 1, here)
        return count

    def supports(self, runs: Sequence[Run]) -> bool:
        """Whether units support what they are to run."""
        return all(all(self.supported[run.unit][run.first : run.last + 1]) for run in runs)

    def planned(self, runs: Sequence[Run], slots: int, turns: int) -> PlannedModel:
        """The model in segments at estimated costs.

        Args:
            runs: its pieces as segments.
            slots: frames in flight.
            turns: in a round of each of its units.
        """
        segments = []
        for index, run in enumerate(runs):
            median, quantile = self.pieces[run.unit].of([(run.first, run.last)])
            first, last = self.names[run.first][0], self.names[run.last][1]
            segments.append(
                Segment(
                    index=index,
                    unit=run.unit,
                    fill_layer=first,
                    first_layer=first,
                    last_layer=last,
                    output_layers=(last,),
                    duration_ns=math.ceil(quantile[0]),
                    median_ns=round(median[0]),
                    boundary_bytes=self.boundary_bytes[run.last],
                    tensors=(),
                )
            )
        return PlannedModel(
            name=self.model.name,
            role=self.model.role,
            level=self.model.level,
            reasons=self.model.reasons,
            duration_ns=sum(segment.duration_ns for segment in segments),
            segments=tuple(segments),
            slots=slots,
            after=self.model.after,
            turns=turns,
        )


@dataclass
class Terms:
    """On which a placement is asked for.

    Attributes:
        stages: of a model at most.
        parted: priority models may have several, where one unit supports all of one.
        barred: model -> pieces, and units on which each does not fit.
        earlier_ns: than their deadlines priority models have to be ready.
        crowd: times their rates background models are wanted.
    """

    stages: int
    parted: bool
    barred: dict[str, set[tuple[int, str]]] = field(default_factory=dict)
    earlier_ns: int = 0
    crowd: float = 1.0

    def bar(self, misplaced: Sequence[tuple[str, int, str]]) -> None:
        """Keep pieces of models off units from here on."""
        for name, piece, unit in misplaced:
            self.barred.setdefault(name, set()).add((piece, unit))

    def able(self, candidate: UnitCandidate, unit: str) -> list[bool]:
        """Which pieces may run on a unit."""
        barred = self.barred.get(candidate.model.name, ())
        return [able and (piece, unit) not in barred for piece, able in enumerate(candidate.supported[unit])]


def whole_priority(candidates: Sequence[UnitCandidate], units: Sequence[Room], terms: Terms) -> set[str]:
    """Priority models that are to be placed in one piece: some unit can run all of one.

    Args:
        candidates: all models.
        units: where they may run.
        terms: of the placement.
    """
    return {
        candidate.model.name
        for candidate in candidates
        if not terms.parted
        and candidate.model.role == "priority"
        and any(all(terms.able(candidate, unit.name)) for unit in units)
    }


def problem_of(
    candidates: Sequence[UnitCandidate], beat: Beat, units: Sequence[Room], terms: Terms, whole: Collection[str]
) -> Problem:
    """The workload for a placement; windows of differing length count as their mean.

    Args:
        candidates: all models.
        beat: windows, guard, demands, links.
        units: with their memory.
        terms: of the placement.
        whole: models that are one piece.
    """
    models = [candidate.model for candidate in candidates]
    wanted = {model.name: beat.arriving(model, models) for model in models}
    priority = in_order([model for model in models if model.role == "priority"])
    ordered = [*priority, *(model for model in models if model.role == "background")]
    by_name = {candidate.model.name: candidate for candidate in candidates}
    return Problem(
        window_ns=sum(beat.pattern_ns) // len(beat.pattern_ns),
        guard_ns=beat.guard_ns,
        units=units,
        models=[
            _placeable(by_name[model.name], beat, units, terms, wanted[model.name], whole=model.name in whole)
            for model in ordered
        ],
        links=beat.links,
        slots=terms.stages,
        late_ns=beat.late_ns,
    )


def _placeable(
    candidate: UnitCandidate, beat: Beat, units: Sequence[Room], terms: Terms, wanted: float, *, whole: bool
) -> Placeable:
    """One model of the problem: what its pieces take within a stage."""
    columns = []
    for unit in units:
        own, able = candidate.pieces[unit.name], terms.able(candidate, unit.name)
        inside = np.maximum(own.median_ns - beside(own.boundary_ns), 0)  # inner boundaries are few, and cost little
        quantile = np.ceil(inside * (own.quantile_ns / np.maximum(own.median_ns, 1)))
        if whole:
            inside, quantile, able = inside.sum(keepdims=True), quantile.sum(keepdims=True), [all(able)]
        columns.append((inside, quantile, able))
    count, priority = len(columns[0][2]), candidate.model.role == "priority"
    within_ns = beat.window_ns - beat.guard_ns - beat.late_ns
    deadline_ns = beat.of(candidate.model.name).deadline_ns or within_ns
    if beat.even:
        deadline_ns = min(deadline_ns, within_ns)
    return Placeable(
        name=candidate.model.name,
        role=candidate.model.role,
        duration_ns=[[int(q[n]) if able[n] else None for _, q, able in columns] for n in range(count)],
        median_ns=[[int(m[n]) if able[n] else None for m, _, able in columns] for n in range(count)],
        parameter_bytes=[0] * count,
        boundary_bytes=[0, *candidate.boundary_bytes[-count:]],
        # Segments have to fit beside what is reserved in any window, so it counts in full where all are alike.
        rate=(1.0 if beat.even else wanted) if priority else wanted * terms.crowd,
        deadline_ns=max(deadline_ns - terms.earlier_ns, 1) if priority else None,
    )


def expanded(placement: Placement, candidates: Sequence[UnitCandidate], whole: Collection[str]) -> Placement:
    """In the models' own pieces again.

    Args:
        placement: of a problem in which some models
        candidates: of all
        whole: were one piece.
    """
    last = {candidate.model.name: len(candidate.names) - 1 for candidate in candidates}
    stages = {
        name: (Stage(found[0].unit, 0, last[name]),) if name in whole else found
        for name, found in placement.stages.items()
    }
    return dataclasses.replace(placement, stages=stages)
