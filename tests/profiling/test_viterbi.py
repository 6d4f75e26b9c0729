"""The search through one core's packets, against trying everything."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.profiling.align.aligner import BeamSearch
from framefit.profiling.align.estimates import initial_model
from framefit.profiling.align.tracks import LaunchTiming, Queue, Track
from framefit.profiling.align.viterbi import Costs, Delays, Workspace
from framefit.profiling.edge_inference import Precedence
from framefit.profiling.sequence import Sequence
from profiling_truth import Setting, simulate

LAUNCHES = 2


def lost_cost(costs: Costs, count: int, *, marked: bool) -> float:
    """Logarithm of the probability of a loss."""
    if count == 0:
        return costs.marked_kept if marked else costs.kept
    return (costs.marked_opened if marked else costs.opened) + float(costs.lengths[count])


def delay_cost(delays: Delays, tries: int, by: float) -> float:
    """Logarithm of the density of a delay, whose logarithm has Cauchy's distribution as long as none was seen."""
    assert delays.freedom == 1
    z = (math.log(by) - delays.middle) / delays.spread
    return math.log(delays.chance * tries / (math.pi * delays.spread * (1 + z**2) * by))


def step_cost(track: Track, costs: Costs, before: int, after: int, since: float) -> float:
    """Logarithm of the density of the time between two events, at speed 1."""

    def nominal(number: int, local: np.ndarray, period: float) -> float:
        return number // track.events * period + float(local[number % track.events])

    mean = nominal(after, track.local_mean, track.period_ns) - nominal(before, track.local_mean, track.period_ns)
    var = nominal(after, track.local_var, track.period_var) - nominal(before, track.local_var, track.period_var)
    idle = nominal(after, track.local_idle, track.period_idle) - nominal(before, track.local_idle, track.period_idle)
    idle = min(idle, track.period_ns)
    var += costs.floor_ns2
    excess = since - mean
    chance = -0.5 * excess**2 / var - 0.5 * math.log(2 * math.pi * var)
    if excess < 0 and excess + idle < 0 and (excess + idle) ** 2 > 64 * var:
        return -math.inf
    if excess > 0 and excess**2 > 4 * var:
        chance = max(chance, delay_cost(costs.stalls, after - before, excess + costs.stall_ns))
        if after // track.events > before // track.events:
            chance = max(chance, delay_cost(costs.pauses, 1, excess + costs.stall_ns))
    elif excess < 0 and excess**2 > 4 * var and excess + idle > 0:
        chance = max(chance, costs.early - math.log(idle))
    return chance


def score_of(track: Track, costs: Costs, queue: Queue, numbers: list[int]) -> float:
    """What an assignment is worth: for each packet the number of its event, -1 for a spurious one."""
    total, latest = 0.0, -1
    for at, number in enumerate(numbers):
        if number < 0:
            total += costs.spurious
        elif latest < 0:
            total += max(lost_cost(costs, number, marked=False), -6.0 - math.log(track.events))
            latest = at
        else:
            since = float(queue.time[at] - queue.time[latest])
            total += step_cost(track, costs, numbers[latest], number, since)
            total += lost_cost(costs, number - numbers[latest] - 1, marked=bool(queue.marked[at]))
            latest = at
    return total


def every_assignment(track: Track, queue: Queue, at: int = 0, latest: int = -1) -> list[list[int]]:
    """All that could be, whether likely or not; the first match is in the first launch."""
    if at == len(queue):
        return [[]]
    assignments = [[-1, *rest] for rest in every_assignment(track, queue, at + 1, latest)]
    for number in range(latest + 1, track.events * (1 if latest < 0 else LAUNCHES)):
        place = number % track.events
        kind = int(queue.symbol[at])
        if place in track.occurs[track.occurs_first[kind] : track.occurs_first[kind + 1]]:
            assignments += [[number, *rest] for rest in every_assignment(track, queue, at + 1, number)]
    return assignments


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), stretch=st.floats(0.3, 3.0), marked=st.booleans())
def test_best_of_all(seed: int, stretch: float, marked: bool) -> None:
    """With a beam that is wide enough the search finds what trying every assignment finds."""
    random = np.random.default_rng(seed)
    truth = simulate(Setting(operations=3, inferences=LAUNCHES, units=1, kinds=2, seed=seed))
    sequence = Sequence.of(truth.program, None, truth.trace.kinds)
    precedence, _ = Precedence.of(sequence)
    model = initial_model(sequence, precedence, 2, 1)
    track = model.tracks[0]
    costs = model.costs._replace(beam=1e6, cap=4096, patience=1000, inertia_ns=1e18)
    keep = np.sort(random.choice(len(truth.trace), 6, replace=False))
    time = (truth.trace.time_ns[keep] - truth.trace.time_ns[keep[0]]) * stretch
    symbol = 2 * truth.trace.id[keep] + truth.trace.type[keep]
    symbol[random.integers(6)] = random.integers(4)  # one that is perhaps wrong
    marks = random.random(6) < 0.3 if marked else np.zeros(6, np.bool_)
    queue = Queue(time.astype(np.float64), symbol.astype(np.int32), marks, np.arange(6))
    best = max(score_of(track, costs, queue, one) for one in every_assignment(track, queue))
    search = BeamSearch(track, Workspace.allocate())
    search.advance(queue, LaunchTiming(0, 1, 0.0, LAUNCHES, 0, np.zeros(0), np.inf, np.zeros(0), 0.0, 0.0), costs)
    _, match = search.settle(all_of_it=True)
    numbers = np.full(6, -1)
    numbers[match.packet] = match.launch * track.events + match.event
    assert score_of(track, costs, queue, numbers.tolist()) >= best - 1e-6
