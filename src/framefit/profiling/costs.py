"""What losses, delays and packets of nobody cost: how frequent each of them is in this trace."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from framefit.profiling.chain import Costs

__all__ = ["LATE_SPREAD", "Tally", "gap_lengths", "learned_costs"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LONG = 64  # events lost in a row: from here on the length says little
_LENGTHS = 1024  # of gaps, that are told apart
_PRIOR_GAPS = 5  # that what was thought of their lengths before counts as
_EXTENDED = 0.7  # probability that a gap goes on, before one was seen
_LONG_RATIO = 1e-2  # least part of gaps that are long
_SYMBOLS = 4  # that a stranger may well be, of those that a core sends at any one time
_PRIOR_STRANGERS = 2e-5  # packets that nobody sent: devices lose packets often, and make them up hardly ever
_FEW = 8  # delays: as many count as much as what was thought before
_LATE_LEAST = 0.5
LATE_SPREAD = 4.0
"""Scale of a delay's logarithm, before any was seen."""


@dataclass
class Tally:
    """Transitions that took as long as they should, and not: within a launch, and from launch to launch."""

    usual: int = 0
    late: int = 0
    early: int = 0
    opened: int = 0
    paused: int = 0
    released: int = 0

    delays: list[Floats] = field(default_factory=list)

    def add(self, excess: Floats, deviation: Floats, opens: npt.NDArray[np.bool_]) -> None:
        """Count transitions by how far they are from what they should take; ``opens``: into another launch."""
        z = excess / deviation
        self.delays.append(excess[z > 6])
        self.usual += int(np.count_nonzero(~opens))
        self.opened += int(np.count_nonzero(opens))
        self.late += int(np.count_nonzero((z > 6) & ~opens))
        self.paused += int(np.count_nonzero((z > 6) & opens))
        self.early += int(np.count_nonzero(z < -6))

    def lateness(self, costs: Costs) -> tuple[float, float]:
        """Median and scale of the logarithm of delays, against what was thought before."""
        delay = np.log(np.concatenate(self.delays) + costs.stall_ns)
        if not len(delay):
            return costs.late_log, costs.late_spread
        weight = len(delay) / (len(delay) + _FEW)
        middle = costs.late_log + weight * (float(np.median(delay)) - costs.late_log)
        scale = float(np.median(np.abs(delay - np.median(delay))))  # Cauchy's: half of its values are nearer
        return middle, max(weight * scale + (1 - weight) * LATE_SPREAD, _LATE_LEAST)


def gap_lengths(seen: Ints) -> Floats:
    """Logarithm of the probability that a gap is so long, by length.

    Devices lose packets in their own ways: single ones, as many as a buffer holds, as many as a flush takes. So
    each length has the frequency with which it was seen; before that (a Dirichlet prior of few gaps), a geometric
    distribution for short ones, and for long ones one that is even in the logarithm of the length.

    Args:
        seen: int64, lengths of gaps.
    """
    short = seen[seen < _LONG]
    further = (float(np.sum(short - 1)) + _PRIOR_GAPS * _EXTENDED / (1 - _EXTENDED)) / (len(short) + _PRIOR_GAPS)
    stay = further / (1 + further)
    long = max((len(seen) - len(short)) / (len(seen) + _PRIOR_GAPS), _LONG_RATIO)
    length = np.maximum(np.arange(_LENGTHS), 1)
    before = np.maximum((1 - stay) * stay ** (length - 1), np.where(length >= 8, long / 12 / length, 0.0))
    count = np.bincount(seen[seen < _LENGTHS], minlength=_LENGTHS)
    others = np.maximum(count - 1, 0)  # what a gap was taken for is no evidence for taking it for that
    return np.asarray(np.log((others + _PRIOR_GAPS * before) / (max(len(seen) - 1, 0) + _PRIOR_GAPS)))


def learned_costs(
    costs: Costs,
    lost: Ints,
    marked: npt.NDArray[np.bool_],
    tally: Tally,
    *,
    received: int,
    matched: int,
    elapsed_ns: float,
) -> Costs:
    """How often and how many events are lost, how often a packet is spurious or late.

    Args:
        costs: what was thought before.
        lost: int64, events lost in each transition.
        marked: bool, whether the device reported a loss there.
        tally: of transitions that took as long as they should, and not.
        received: packets,
        matched: and those that found their event.
        elapsed_ns: time that all cores together were seen for.
    """
    if not len(lost):
        return costs

    def gaps(part: Ints, opened: float) -> float:
        # A beta prior of 20 transitions keeps thin evidence near what was thought before.
        return (int(np.count_nonzero(part)) + 20 * opened) / (len(part) + 20)

    some, marked_some = gaps(lost[~marked], 0.1), gaps(lost[marked], 0.6)
    others = max(received - matched - 1, 0)
    spurious = min(max((others + _PRIOR_STRANGERS * 1000) / (received + 1000), 1e-5), 0.1)
    late_log, late_spread = tally.lateness(costs)
    pace = max(elapsed_ns / max(matched, 1), 1.0)
    return costs._replace(
        kept=np.log1p(-some),
        opened=np.log(some),
        marked_kept=np.log1p(-marked_some),
        marked_opened=np.log(marked_some),
        lengths=gap_lengths(lost[lost > 0]),
        spurious=np.log(spurious / pace / _SYMBOLS),
        stalled=min(tally.late / (tally.usual + 1000) + 1e-5, 0.1),
        paused=min((tally.paused + 1) / (tally.opened + tally.released + 20), 0.3),
        late_log=late_log,
        late_spread=late_spread,
        early=np.log(min((tally.early + 1) / (tally.usual + tally.opened + 1000), 0.1)),
    )
