"""Placement problems in plain numbers, and what a placement of them is worth, worked out once more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from framefit.core.target import Link
from framefit.planning.placement import Placeable, Placement, Problem, Room

__all__ = ["assignments", "best_share", "share_of", "some_problem", "units_of"]


def some_problem(random: np.random.Generator, *, models: int, units: int, pieces: int) -> Problem:
    """Units of different speed, operators that some lack, memory that may bind, at most two priority models."""
    window = int(random.integers(500, 2000))
    priority = int(random.integers(0, min(models, 3)))
    speed = np.exp(random.normal(0, 0.4, units))
    found = []
    for number in range(models):
        count = int(random.integers(1, pieces + 1))
        first = number < priority
        total = window * (0.25 if first else random.uniform(0.3, 1.2))
        base = random.dirichlet(np.full(count, 2.0)) * total
        cost = [[math.ceil(b / s * random.uniform(0.6, 1.6)) for s in speed] for b in base]
        lacks = [[random.random() < 0.15 and unit != piece % units for unit in range(units)] for piece in range(count)]
        median: list[list[int | None]] = [
            [None if no else ns for ns, no in zip(row, nos, strict=True)] for row, nos in zip(cost, lacks, strict=True)
        ]
        found.append(
            Placeable(
                name=f"m{number}",
                role="priority" if first else "background",
                duration_ns=[[None if ns is None else ns + ns // 20 for ns in row] for row in median],
                median_ns=median,
                parameter_bytes=random.integers(0, 100, count).tolist(),
                boundary_bytes=random.integers(0, 50, count + 1).tolist(),
                rate=float(random.choice([1, 0.5])),
                deadline_ns=int(window * random.uniform(0.4, 1)) if first and random.random() < 0.5 else None,
            )
        )
    names = [f"u{unit}" for unit in range(units)]
    links = [
        Link(between=(a, b), latency_ns=int(random.integers(0, window // 20)), bandwidth_gbps=1.0)
        for a, b in itertools.combinations(names, 2)
    ]
    memory = int(random.integers(150, 600)) if random.random() < 0.4 else None
    return Problem(
        window_ns=window,
        guard_ns=window // 50,
        units=[Room(name, memory) for name in names],
        models=found,
        links=links,
        slots=int(random.integers(2, 5)),
    )


def units_of(problem: Problem, placement: Placement) -> list[tuple[int, ...]]:
    """Number of each piece's unit, by model."""
    numbers = {unit.name: number for number, unit in enumerate(problem.units)}
    return [
        tuple(numbers[s.unit] for s in placement.stages[model.name] for _ in range(s.first, s.last + 1))
        for model in problem.models
    ]


def share_of(problem: Problem, assigned: Sequence[Sequence[int]]) -> float:
    """The least share of the demanded rates, 0 where something is violated."""
    count = len(problem.units)
    room = problem.window_ns - problem.guard_ns - problem.late_ns
    free, reserved = [0] * count, [0.0] * count
    load, longest, memory = [0.0] * count, [0] * count, [0] * count
    links = {frozenset(link.between): link for link in problem.links}
    for model, units in zip(problem.models, assigned, strict=True):
        priority = model.role == "priority"
        changes = [n for n in range(1, len(units)) if units[n] != units[n - 1]]
        if len(changes) >= problem.slots:
            return 0.0
        ready = 0
        for piece, unit in enumerate(units):
            duration, median = model.duration_ns[piece][unit], model.median_ns[piece][unit]
            if duration is None or median is None:
                return 0.0
            memory[unit] += model.parameter_bytes[piece]
            if priority:
                if piece in changes:
                    link = links[frozenset((problem.units[units[piece - 1]].name, problem.units[unit].name))]
                    ready += int(link.latency_ns) + model.boundary_bytes[piece]
                free[unit] = ready = max(ready, free[unit]) + duration
                reserved[unit] += duration * model.rate
            else:
                load[unit] += median * model.rate
                longest[unit] = max(longest[unit], duration)
        if priority and ready > (model.deadline_ns or room):
            return 0.0
        for piece in changes:
            for unit in (units[piece - 1], units[piece]):
                memory[unit] += model.boundary_bytes[piece] * (1 if priority else problem.slots)
        for unit in set(units):
            memory[unit] += max(
                model.boundary_bytes[n] + model.boundary_bytes[n + 1] for n in range(len(units)) if units[n] == unit
            )
    share = 1.0
    for unit, place in enumerate(problem.units):
        left = room - reserved[unit]
        if left < longest[unit] or left < 0 or (place.memory_bytes is not None and memory[unit] > place.memory_bytes):
            return 0.0
        if load[unit]:
            share = min(share, max(left, 1) / load[unit])
    return share


def assignments(problem: Problem) -> Iterator[list[tuple[int, ...]]]:
    """Every way to give each piece a unit."""
    units = range(len(problem.units))
    for choice in itertools.product(*(itertools.product(units, repeat=len(m.duration_ns)) for m in problem.models)):
        yield list(choice)


def best_share(problem: Problem) -> float:
    """The greatest least share of all placements."""
    return max(share_of(problem, assigned) for assigned in assignments(problem))
