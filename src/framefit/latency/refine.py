"""More samples for layers whose intervals are wide, until they are narrow or time is up.

Noise differs from layer to layer: a fixed number of samples is too many for those that take most
of a launch, and too few for those that take little of it. The bound is on the interval's width
relative to the latency (a sequential procedure of fixed relative width; Nadas, 1969, "An Extension of a
Theorem of Chow and Robbins on Sequential Confidence Intervals for the Mean").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.devices.clock import Clock
from framefit.latency.rounds import RUNS, Rounds
from framefit.latency.subjects import layer_key

__all__ = ["LEAST_REPEATS", "Refinable", "refine", "wide"]

LEAST_REPEATS = 100  # before intervals decide
_MOST_REPEATS = 4000  # all samples are kept, and drift adds what more of them would take off
_NARROW = 0.03  # half of a 90 % interval: a deviation of 1.8 %, 95 % of errors within 3.6 %
_NARROW_SUM = 0.01  # of a network's latency: half of the 90 % interval of the sum
_LEAST_NS = 1.0  # no clock here tells less
_LEAST_GROWTH = 0.25  # of the samples: less does not narrow an interval by more than a tenth
_WARM_UP = 3  # rounds, at least


class Refinable(Protocol):
    """A campaign with samples of every layer."""

    rounds: Rounds

    def behind(self, entries: Iterable[int]) -> Collection[int]:
        """Places in ``rounds`` of what entries of the table are made from."""


def refine(
    campaign: Refinable,
    told: Callable[[], LatencyTable],
    clock: Clock,
    until_ns: int,
    networks: Sequence[Mapping[str, int]] = (),
    *,
    stop: Callable[[], bool] | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> int:
    """Time layers again whose intervals are wide, with what their overhead is told from.

    Each turn doubles the samples of those that are left, 4000 at most.

    Args:
        campaign: with samples of every layer.
        told: the table from the samples so far.
        clock: the device's.
        until_ns: on this clock.
        networks: see :func:`wide`.
        stop: asked between launches; complete rounds stay.
        on_round: told rounds done and rounds in all of a turn.

    Returns:
        How many entries are wide at the end.
    """
    rounds, most = campaign.rounds, _MOST_REPEATS // RUNS
    while left := wide(told().entries, networks):
        places = campaign.behind(left)
        done = min(len(rounds.runs[place].samples_ns) for place in places)
        affordable = int((until_ns - clock.now_ns()) / rounds.round_ns(places)) - _WARM_UP
        more = min(done, most - done, affordable)
        if more < max(_LEAST_GROWTH * done, 1) or not rounds.measure(done + more, stop, on_round, places):
            break
    return len(left)


def wide(entries: Sequence[LatencyEntry], networks: Sequence[Mapping[str, int]] = ()) -> list[int]:
    """Indices of entries whose intervals are wide.

    An entry is narrow where half of its 90 % interval is 3 % of its latency, or so little that the
    sum of every network is known to 1 % where all of its layers are (they are independent).

    Args:
        entries: of a table.
        networks: for each one how often it has each layer (:attr:`Subject.key`); an entry of none of them
            is held to its own latency alone.
    """
    allowed: dict[str, float] = {}
    keys = [layer_key(entry.op, entry.configuration) for entry in entries]
    latency = dict(zip(keys, (entry.latency_ns for entry in entries), strict=True))
    for network in networks:
        known = {key: count for key, count in network.items() if key in latency}
        total = sum(count * latency[key] for key, count in known.items())
        for key, count in known.items():
            share = _NARROW_SUM * total / math.sqrt(len(known)) / count
            allowed[key] = min(allowed.get(key, share), share)
    return [
        index
        for index, (key, entry) in enumerate(zip(keys, entries, strict=True))
        if entry.interval_ns[1] - entry.interval_ns[0]
        > 2 * max(_NARROW * entry.latency_ns, allowed.get(key, 0.0), _LEAST_NS)
    ]
