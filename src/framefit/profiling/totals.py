"""Sums over operations whose edges are partly inferred, with the uncertainty of the sums.

Between two measured edges of a track lies a fixed time T; only how it divides into operations and idle
steps is uncertain, so errors inside a gap cancel: what one operation takes too much, its neighbours
lack. With independent steps of variance q_i, given their sum, the part S that belongs to one total has
the variance Q_S (Q - Q_S) / Q (conditioning of a normal distribution; the same bridge from which
each edge's variance Q_pj (Q_pq - Q_pj) / Q_pq comes). Only the ratios of the q_i are taken
from the measured steps: each gap's level is that of the intervals which the method gave its edges,
calibration included. Gaps are independent of each other, but for one thing: all of them rest on
the same medians. An error of step i's median moves a total by A_i = sum over gaps of (1 if i belongs to
it) - Q_S / Q, and adds se_i^2 A_i^2, with se_i = sqrt(pi / 2) sd_i / sqrt(n_i) of a median (Kendall and
Stuart, "The Advanced Theory of Statistics", volume 1, section 14.12). Where steps are skewed, sums follow their
means and not their medians, and A_i times these differences moves the middle of the interval. Beyond the first
and last measured edge nothing is fixed: there the variance is that of the steps.

Steps that were never measured have what the program expects, and its error: as much, in proportion, as the medians of
other operations are off their expectations, and for idle steps as these differ from each other. That part is normal
and is not stretched by what follows, for nothing that was received tells how wrong it is.

That model knows nothing of stalls, of drift, or of packets that were taken for others. So sums are calibrated as
edges are: measured edges are masked as losses struck and put back, and the error of each total of what was masked,
over the deviation that the model gives it, is a sample (split-conformal prediction; Vovk, Gammerman and Shafer,
"Algorithmic Learning in a Random World", section 4.1). The quantiles of all totals of one kind stretch the intervals.
What a stall or a pause adds to a gap is shared out among all that is in the gap, and an error of a median is in all
gaps: totals have much in common, and a mask is hardly more than one sample of that. So further samples are drawn from
the masked launches, with replacement (Efron, "Bootstrap Methods", Annals of Statistics 7, 1979; in blocks, Kuensch,
1989), until as many operations are touched as were lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from collections.abc import Sequence as Names
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.profile import How, OperationLog, Totals, WindowUse
from framefit.core.program import Program
from framefit.profiling.sequence import Sequence
from framefit.stats import MAD_TO_DEVIATION, robust_deviation, sorted_by_key, two_sided_z

__all__ = ["long_losses", "window_use"]


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LEAST_SAMPLES = 3  # to take a spread from
_STALL = 5.0  # deviations from the median
_LEAST_RATIO = 0.05  # spread of an operation that was never measured and has none in the program
_FEW_MEDIANS = 20  # of operations: below, they say nothing of the others
_FEW_TOTALS = 40  # of all masks: below, their quantiles are unsure
_MOST_BLOCKS = 256  # of launches, of one mask
_REPLICATES = 100  # sums that are drawn
_MOST_GROUPS = 256  # at once: bounds the memory of the sensitivities


@dataclass(frozen=True)
class MaskedRepair:
    """A log of which measured edges were masked and inferred again.

    Attributes:
        log: with what was inferred.
        error_ns: float64, true minus inferred duration of each entry, 0 where it is not known.
        touched: bool, entries whose true duration is known and of which an edge was inferred.
    """

    log: OperationLog
    error_ns: Floats
    touched: npt.NDArray[np.bool_]


KeyOf = Callable[[OperationLog], Ints]
"""Returns the index of the total that each entry of a log belongs to, or -1."""


class Sums:
    """Sums up the operations of a log by any key.

    ``confidence`` is that of the log's intervals and of the totals', ``repairs`` are of masked edges of the same log.
    """

    def __init__(
        self, log: OperationLog, sequence: Sequence, confidence: float, repairs: Names[MaskedRepair] = ()
    ) -> None:
        self._log, self._confidence, self._repairs = log, confidence, repairs
        self._masked = [Sums(repair.log, sequence, confidence) for repair in repairs]
        self._z = two_sided_z(confidence)
        self._duration = (log.end_ns - log.start_ns).astype(np.int64)
        self._inferred = (log.start_how != How.MEASURED).astype(np.int64) + (log.end_how != How.MEASURED)
        count = len(sequence.operations)
        position = sequence.first[log.program] + log.operation
        order = np.lexsort((log.end_ns, log.start_ns, sequence.track[position]))
        time, low, high = (
            np.stack([a[order], b[order]], 1).reshape(-1)
            for a, b in (
                (log.start_ns, log.end_ns),
                (log.start_low_ns, log.end_low_ns),
                (log.start_high_ns, log.end_high_ns),
            )
        )
        self._known = np.stack([log.start_how[order], log.end_how[order]], 1).reshape(-1) == How.MEASURED
        self._deviation = (high - low) / (2 * self._z)
        track = np.repeat(sequence.track[position[order]], 2)
        self._joined = track[1:] == track[:-1] if len(track) else np.zeros(0, np.bool_)
        # Step s lies between edges s and s + 1: even ones are operations, odd ones idle time before the next.
        step = np.arange(max(len(time) - 1, 0))
        self._busy = step % 2 == 0
        self._operation = order[(step + 1) // 2] if len(order) else step
        self._node = position[self._operation] + np.where(self._busy, 0, count) if len(order) else step
        whole = self._known[1:] & self._known[:-1] & self._joined
        self._deviations(np.diff(time)[whole], self._node[whole], sequence)

    def _deviations(self, step_ns: Ints, node: Ints, sequence: Sequence) -> None:
        """Estimate the spread of each kind of step from measured ones, and the error of its median."""
        count = len(sequence.operations)
        middle, number = medians(node, step_ns.astype(np.float64), 2 * count)
        away, _ = medians(node, np.abs(step_ns - middle[node]), 2 * count)
        spread = MAD_TO_DEVIATION * away
        seen = number >= _LEAST_SAMPLES
        busy, idle = seen[:count], seen[count:]
        waits = middle[count:][idle]
        prior = np.concatenate(
            [
                _error_of_expectations(middle[:count], busy, sequence) * sequence.expected_ns,
                np.full(count, robust_deviation(waits)) if len(waits) else _LEAST_RATIO * sequence.expected_ns,
            ]
        )
        unseen = np.concatenate(
            [
                np.maximum(sequence.sigma_ratio, _LEAST_RATIO) * sequence.expected_ns,
                np.full(count, np.median(spread[count:][idle])) if len(waits) else prior[count:],
            ]
        )
        squares = np.where(self._known, 0.0, self._deviation) ** 2
        stated = np.bincount(self._node, np.maximum(squares[1:], squares[:-1]), minlength=2 * count)
        stated = np.sqrt(stated / np.maximum(np.bincount(self._node, minlength=2 * count), 1))
        if len(waits):  # an edge that is always lost is always off by as much
            prior[count:] = np.maximum(prior[count:], stated[count:])
        spread = np.maximum(np.where(seen, spread, unseen), 1.0)
        self._variance = spread**2
        kept = np.abs(step_ns - middle[node]) <= _STALL * spread[node]  # stalls are not counted as skew of the rest
        total = np.bincount(node[kept], step_ns[kept], minlength=2 * count)
        mean = total / np.maximum(np.bincount(node[kept], minlength=2 * count), 1)
        self._skew = np.where(seen, mean - middle, 0.0)
        self._median_error = np.where(seen, math.sqrt(math.pi / 2) * spread / np.sqrt(np.maximum(number, 1)), 0.0)
        self._prior_error = np.where(seen, 0.0, np.maximum(prior, 1.0))

    def by(self, key_of: KeyOf, names: Names[str]) -> dict[str, Totals]:
        """Return a total for each of ``names``, which ``key_of`` numbers."""
        key = key_of(self._log)
        counted = key >= 0
        count = np.bincount(key[counted], minlength=len(names))
        total = np.zeros(len(names), np.int64)
        np.add.at(total, key[counted], self._duration[counted])
        inferred = np.bincount(key[counted], self._inferred[counted], minlength=len(names))
        certain = np.zeros(len(names), np.int64)
        np.add.at(certain, key[counted], np.where(self._inferred == 0, self._duration, 0)[counted])
        variance, prior, shift = self.uncertainty(key, len(names))
        below, above = self._quantiles(key_of, len(names))
        low = np.minimum(total + shift - np.sqrt(below**2 * variance + self._z**2 * prior), total)
        high = np.maximum(total + shift + np.sqrt(above**2 * variance + self._z**2 * prior), total)
        totals = {}
        for index in np.flatnonzero(count).tolist():
            totals[names[index]] = Totals(
                count=int(count[index]),
                duration_ns=int(total[index]),
                interval_ns=(max(math.floor(low[index]), int(certain[index])), math.ceil(high[index])),
                inferred_ratio=float(inferred[index] / (2 * count[index])),
            )
        return totals

    def _quantiles(self, key_of: KeyOf, count: int) -> tuple[float, float]:
        """Return how many of the model's deviations totals reach below and above their middle."""
        errors = []
        for sums, repair in zip(self._masked, self._repairs, strict=True):
            key = key_of(repair.log)
            variance, prior, shift = sums.uncertainty(np.where(repair.touched, key, -1), count)
            launches, launch = np.unique(repair.log.inference, return_inverse=True)
            blocks = min(len(launches), _MOST_BLOCKS)
            cell = launch * blocks // max(len(launches), 1) * count + key
            error = np.bincount(cell[key >= 0], repair.error_ns[key >= 0], minlength=blocks * count)
            deviation = np.where(variance > prior, np.sqrt(variance), np.inf)  # others tell nothing of the model
            errors.append((error.reshape(blocks, count) - shift / max(blocks, 1)) / deviation)
        touched = sum(np.count_nonzero(repair.touched) for repair in self._repairs) / max(len(errors), 1)
        pool = np.concatenate(errors) if errors else np.zeros((0, count))
        some = np.any(pool != 0, axis=0)
        if not touched or not some.any():
            return -self._z, self._z
        wanted = min(max(np.count_nonzero(self._inferred) / touched, 1.0), float(len(errors)))
        draws = round(wanted * len(pool) / len(errors))
        drawn = np.random.default_rng(0).multinomial(draws, np.full(len(pool), 1 / len(pool)), _REPLICATES)
        # What a pool has by chance is in all of its draws: their variance is larger by draws over pool.
        samples = (drawn @ pool[:, some]).ravel() / math.sqrt(wanted * (1 + draws / len(pool)))
        return _two_quantiles(samples, self._confidence, len(errors) * int(np.count_nonzero(some)))

    def uncertainty(self, key: Ints, count: int) -> tuple[Floats, Floats, Floats]:
        """Return the variance of each total, that which steps add that were never measured, and its offset.

        The offset is because steps are skewed.
        """
        touched = np.flatnonzero(self._joined & ~(self._known[1:] & self._known[:-1]))
        variance, prior, shift = np.zeros((3, count))
        if not len(touched):
            return variance, prior, shift
        # A gap's steps follow each other; it ends at a measured edge, or with its track.
        begins = self._known[touched] | np.r_[True, touched[1:] != touched[:-1] + 1]
        first = np.append(np.flatnonzero(begins), len(touched))
        group = np.where(self._busy[touched], key[self._operation[touched]], -1)
        node = self._node[touched]
        for low in range(0, count, _MOST_GROUPS):
            part = np.where((group >= low) & (group < low + _MOST_GROUPS), group - low, -1)
            width = min(_MOST_GROUPS, count - low)
            drawn, sensitivity = _gap_variances(
                touched, first, part, node, self._variance, self._known, self._deviation, width
            )
            variance[low : low + width] = drawn + self._median_error**2 @ sensitivity**2
            prior[low : low + width] = self._prior_error**2 @ sensitivity**2
            shift[low : low + width] = self._skew @ sensitivity
        return variance, prior, shift


def _error_of_expectations(middle_ns: Floats, seen: npt.NDArray[np.bool_], sequence: Sequence) -> Floats:
    """Return by how much, relatively, what was never measured may be off the program's expectation.

    The expectations of operations that were measured tell it, by their medians; where there are too few of these, the
    program's own spread does.
    """
    known = seen & (sequence.expected_ns > 0)
    if np.count_nonzero(known) < _FEW_MEDIANS:
        return np.maximum(sequence.sigma_ratio, _LEAST_RATIO)
    off = MAD_TO_DEVIATION * float(np.median(np.abs(middle_ns[known] / sequence.expected_ns[known] - 1)))
    return np.full(len(seen), off)


def _two_quantiles(samples: Floats, confidence: float, independent: int) -> tuple[float, float]:
    """Return quantiles with as much between them as ``confidence``; few independent samples give wider ones."""
    tail = (1 - confidence) / 2
    reach = min((1 - tail) * (independent + 1) / independent, 1.0)
    low, high = (float(edge) for edge in np.quantile(samples, [1 - reach, reach]))
    if independent < _FEW_TOTALS:
        wide = two_sided_z(confidence) * float(np.sqrt(np.mean(samples**2))) * (1 + 1 / independent)
        low, high = min(low, -wide), max(high, wide)
    return min(low, 0.0), max(high, 0.0)


def medians(key: Ints, value: Floats, count: int) -> tuple[Floats, Ints]:
    """Return the median (0 without values) and the number of values of each key from 0 to ``count`` - 1."""
    number = np.bincount(key, minlength=count).astype(np.int64)
    last = np.cumsum(number)
    ordered = np.append(sorted_by_key(key, value, count), 0.0)
    low = np.minimum(last - number + np.maximum(number - 1, 0) // 2, len(value))
    high = np.minimum(last - number + number // 2, len(value))
    return np.where(number > 0, (ordered[low] + ordered[high]) / 2, 0.0), number


@njit(cache=True)
def _gap_variances(
    steps: Any, first: Any, group: Any, node: Any, variance: Any, known: Any, deviation: Any, groups: int
) -> Any:
    """Return what gaps add to each total: variance, and the sensitivity to each step's median.

    Args:
        steps: int64, steps in gaps, ascending.
        first: where each gap begins in these, and the end of the last one.
        group: int64, total that each of the steps belongs to; -1: none.
        node: int64, what each of the steps is.
        variance: float64, of each node.
        known: bool, whether each edge is measured; step s goes from edge s to s + 1.
        deviation: float64, of each edge, by the method.
        groups: number of totals.
    """
    drawn = np.zeros(groups)
    sensitivity = np.zeros((len(variance), groups))
    share = np.zeros(groups)
    for gap in range(len(first) - 1):
        begin, end = first[gap], first[gap + 1]
        closed = known[steps[begin]] and known[steps[end - 1] + 1]
        whole = 0.0
        for at in range(begin, end):
            whole += variance[node[at]]
        # The method's own variances of the edges against the model's: the level of this gap.
        stated, modelled, until = 0.0, 0.0, 0.0
        forward = known[steps[begin]] or not known[steps[end - 1] + 1]
        for at in range(begin, end + 1):
            edge = steps[at] if at < end else steps[end - 1] + 1
            if not known[edge]:
                stated += deviation[edge] ** 2
                modelled += until * (whole - until) / whole if closed else (until if forward else whole - until)
            if at < end:
                until += variance[node[at]]
        level = stated / modelled if modelled > 0 else 1.0
        for at in range(begin, end):
            if group[at] >= 0:
                share[group[at]] += variance[node[at]]
        for at in range(begin, end):
            here = group[at]
            if here < 0 or share[here] == 0.0:
                continue
            part = share[here]
            share[here] = 0.0  # each total once
            ratio = part / whole if closed else 0.0
            drawn[here] += level * part * (1.0 - ratio)
            for step in range(begin, end):
                sensitivity[node[step], here] += (1.0 if group[step] == here else 0.0) - ratio
    return drawn, sensitivity


def long_losses(log: OperationLog, least: int = 4, most: int = 1000) -> tuple[Ints, Ints, Ints]:
    """Find the longest losses: events lost in a row, all cores together, between two that were received.

    Args:
        log: operations of the run.
        least: events of the shortest loss.
        most: number of losses.

    Returns:
        Begin and end of each, int64 ns, ascending, and its number of events, int64.
    """
    time = np.concatenate([log.start_ns, log.end_ns])
    lost = np.concatenate([log.start_how, log.end_how]) != How.MEASURED
    order = np.lexsort((lost, time))
    time, steps = time[order], np.diff(np.concatenate([[0], lost[order].astype(np.int8), [0]]))
    first, after = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    count = after - first
    chosen = np.flatnonzero(count >= least)
    chosen = np.sort(chosen[np.argsort(-count[chosen], kind="stable")[:most]])
    begins = time[np.maximum(first[chosen] - 1, 0)]
    ends = time[np.minimum(after[chosen], max(len(time) - 1, 0))]
    return begins, ends, count[chosen]


def window_use(log: OperationLog, program: Program, releases_ns: Ints, priority_models: Collection[str]) -> WindowUse:
    """Compute which part of what priority models left of each window was used by the others.

    Args:
        log: operations of the run.
        program: names its models and units.
        releases_ns: of the windows, ascending, on the log's clock; at least one.
        priority_models: their names.

    Returns:
        The windows that the trace covers as a whole: it may begin late, and ends within a window.
    """
    if not len(log):
        return WindowUse(0, np.zeros(0))
    reserved = np.array([*(segment.model in priority_models for segment in program.programs), False])[log.program]
    ends = np.append(releases_ns, releases_ns[-1] + program.period_ns)
    busy, first = np.zeros(len(releases_ns)), np.zeros(len(releases_ns))
    for unit in range(len(program.units)):
        here = log.unit == unit
        busy += np.diff(_busy_until(log.start_ns[here], log.end_ns[here], ends))
        here &= reserved
        first += np.diff(_busy_until(log.start_ns[here], log.end_ns[here], ends))
    used = (busy - first) / np.maximum(np.diff(ends) * len(program.units) - first, 1)
    begun, over = np.searchsorted(ends, (log.start_ns.min(), log.end_ns.max()))
    return WindowUse(int(begun), used[begun : max(over - 1, begun)])


def _busy_until(start_ns: Ints, end_ns: Ints, at_ns: Ints) -> Floats:
    """Return how much of the time up to each instant lies within any of the intervals."""
    if not len(start_ns):
        return np.zeros(len(at_ns))
    order = np.argsort(start_ns, kind="stable")
    start, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    apart = np.append(True, start[1:] > reach[:-1])  # the first of those that touch each other
    begin, end = start[apart], reach[np.append(apart[1:], True)]
    before = np.append(0, np.cumsum(end - begin))
    place = np.searchsorted(begin, at_ns, "right")
    beyond = np.maximum(end[place - 1] - at_ns, 0)
    return np.where(place > 0, before[place] - beyond, 0).astype(np.float64)
