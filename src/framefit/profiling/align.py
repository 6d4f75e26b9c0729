"""Rebuilding a run from a lossy trace by alignment: the default method.

**How the trace is aligned.** Each core's packets are aligned to that core's own events: a semi-Markov
chain with gaps over the cyclic program, or over the launch list (:mod:`framefit.profiling.chain`). A unit
runs one operation at a time in program order, so the order of a core's events is certain, whatever
overlaps on other cores; in the merged order of all cores neighbours change places with every variation of
a duration, and one chain over it would have to undo that. What chains for themselves do not know, which
launch it is after a long silence, the core with the most events tells the others.

**What it is judged by** is learned from a bounded sample of the stream (:mod:`framefit.profiling.search`).
Then the stream is aligned in one pass.

**Times of lost edges** come from the graph of operations, over all cores at once
(:mod:`framefit.profiling.between`), their intervals from hiding received packets in the way in which
others were lost (:mod:`framefit.profiling.calibration`).

See ``docs/decisions/0009-alignment.md`` for why.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace, TraceMeta
from framefit.core.profile import OperationLog
from framefit.profiling.between import Window, fill
from framefit.profiling.calibration import Bands, calibrated_bands
from framefit.profiling.edges import empty_log, filled_launches, joined_logs, log_of
from framefit.profiling.estimates import Match, Model, operations_of
from framefit.profiling.follower import Follower
from framefit.profiling.intake import EMPTY, Intake, Queue, earliest, joined
from framefit.profiling.rebuilt import Fate, Rebuilt
from framefit.profiling.search import LAUNCH, Search, rows_of
from framefit.profiling.sequence import Sequence
from framefit.profiling.tempo import window_tempo

__all__ = ["Aligner", "Position", "Settled", "rebuild"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SAMPLE = 32_768  # packets to learn from: 100 and more of each transition of a program of 150 operations
_CHUNK = 65_536  # packets of a core looked at together
_SILENT = 8  # launches: a core that has sent nothing for so long no longer holds up what the others settle
_HUGE = 1 << 60
_THIN_RATIO = 0.01  # part of the intervals that may lack evidence


@dataclass(frozen=True)
class Settled:
    """What has become certain.

    Attributes:
        log: operations of whole launches, the next ones in order.
        arrival: int64, positions in the stream of packets of which it is now known what they are,
        fate: uint8, :class:`~framefit.profiling.rebuilt.Fate`, and what.
    """

    log: OperationLog
    arrival: Ints
    fate: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Position:
    """Where the device is.

    Attributes:
        inference: launch.
        group: of the operation, in its program.
        operation: index within its program; the latest one that sent a packet.
        confidence: probability of all of this.
    """

    inference: int
    group: int
    operation: int
    confidence: float


class Aligner:
    """Aligns a stream, packet after packet; what it keeps does not grow with the stream.

    Args:
        sequence: of the program that was executed.
        kinds: how many event ids the trace has: the first ones of ``sequence.kinds``.
        meta: of the trace.
        confidence: of the intervals.
        seed: of the draws with which they are calibrated.

    Attributes:
        out_of_order: bool, of the packets that were fed last: those that arrived after one that
            happened later on the same core.
    """

    def __init__(
        self, sequence: Sequence, kinds: int, meta: TraceMeta, *, confidence: float = 0.9, seed: int = 0
    ) -> None:
        self._sequence, self._meta, self._confidence, self._seed = sequence, meta, confidence, seed
        self._search = Search(sequence, kinds, meta)
        self._precedence, self._model = self._search.precedence, self._search.first
        recorded, resolution_ns = self._search.recorded, meta.resolution_ns
        coinciding = np.stack([sequence.coinciding(int(core), recorded, resolution_ns) for core in sequence.cores])
        self._intake = Intake(sequence.cores, self._model.tracks, kinds, meta, coinciding)
        cores = len(sequence.cores)
        self._buffer = [EMPTY] * cores
        self._followers: list[Follower] = []
        self._bands: Bands | None = None
        self._rows = np.zeros((0, 5), np.int64)
        self._latest = np.full(cores, -1, np.int64)  # launch of each core's last settled match
        self._carried = np.full(cores, -_HUGE, np.int64)
        self._next = -1  # the first launch that has not been handed out
        self._tempo = 1.0, 1e-2
        self._longest = 2
        self._rough: tuple[int, Model] | None = None
        self._uncertain = self._inferred = self._skipped = 0
        self.out_of_order: Bools = np.zeros(0, np.bool_)

    def feed(self, packets: Trace) -> Settled:
        """Take in the next packets of the stream.

        Args:
            packets: any number; their ``loss_after`` counts from the first of them.

        Returns:
            What has become certain: often nothing, then much at once.
        """
        queues, self.out_of_order = self._intake.add(packets)
        self._buffer = [joined(old, new) for old, new in zip(self._buffer, queues, strict=True)]
        waiting = sum(len(queue) for queue in self._buffer)
        settled = [self._outside()]
        if waiting >= _SAMPLE:
            settled.append(self._work(close=False))
        return _together(settled)

    def close(self) -> Settled:
        """Everything that is left: no more packets come."""
        self._buffer = [joined(old, new) for old, new in zip(self._buffer, self._intake.close(), strict=True)]
        return self._work(close=True)

    def position(self) -> Position | None:
        """Where the device is by the packets so far; ``None`` as long as none fitted."""
        queues = [joined(queue, held) for queue, held in zip(self._buffer, self._intake.held(), strict=True)]
        model, followers = self._model, [follower.copy() for follower in self._followers]
        if not followers:
            count = sum(len(queue) for queue in queues)
            if self._rough is None or count > 2 * self._rough[0]:
                self._rough = count, self._search.learned(queues).model
            model = self._rough[1]
            followers = self._search.followers(model)
        self._search.look(followers, queues, model, all_of_it=False)
        best: tuple[float, Position] | None = None
        for follower in followers:
            match, chance = follower.belief()
            if not len(chance):
                continue
            operation = follower.track.operation[match.event]
            leader = int(np.argmax(chance))
            same = (match.launch == match.launch[leader]) & (operation == operation[leader])
            at = int(operation[leader])
            program = int(np.searchsorted(self._sequence.first, at, "right")) - 1
            here = Position(
                inference=int(match.launch[leader]),
                group=int(self._sequence.group[at]),
                operation=at - int(self._sequence.first[program]),
                confidence=min(float(chance[same].sum()), 1.0),
            )
            if best is None or match.time[leader] > best[0]:
                best = float(match.time[leader]), here
        return None if best is None else best[1]

    @property
    def calibrated(self) -> bool:
        """Whether (nearly) all intervals so far rest on enough hidden packets."""
        return self._uncertain <= _THIN_RATIO * self._inferred

    def warnings(self) -> tuple[str, ...]:
        """What to know of all that was handed out so far, as sentences."""
        found = []
        if self._search.circles:
            found.append(
                f"{self._search.circles} entries of `after` contradict the order on the units and were ignored."
            )
        if self._uncertain:
            found.append(
                f"{self._uncertain} of {self._inferred} intervals of inferred edges are uncalibrated: "
                "too few packets were received around losses like theirs."
            )
        if self._skipped:
            found.append(f"{self._skipped} launches in long silences left no packet and are not filled in.")
        return tuple(found)

    def _outside(self) -> Settled:
        """Packets that no core could have sent, and ones that came twice."""
        foreign, again = self._intake.foreign, self._intake.duplicated
        fate = np.repeat(np.array([Fate.SPURIOUS, Fate.DUPLICATED], np.uint8), [len(foreign), len(again)])
        return Settled(empty_log(self._sequence.kinds), np.concatenate([foreign, again]), fate)

    def _work(self, *, close: bool) -> Settled:
        """Look at the packets that wait, in portions of bounded size."""
        if not self._followers:
            self._learn()
        settled = []
        while True:
            cuts = _cuts(self._buffer)
            portion = [queue[:cut] for queue, cut in zip(self._buffer, cuts, strict=True)]
            self._buffer = [queue[cut:] for queue, cut in zip(self._buffer, cuts, strict=True)]
            last = not any(len(queue) for queue in self._buffer)
            pieces = self._search.look(self._followers, portion, self._model, all_of_it=last and close)
            settled += [self._enter(pieces), self._hand_out(close=last and close)]
            if last:
                return _together(settled)

    def _learn(self) -> None:
        """Estimates from the first packets, and a calibration of the intervals on the same."""
        learned = self._search.learned(earliest(self._buffer, _SAMPLE))
        self._model, window = learned.model, learned.window
        self._followers = self._search.followers(self._model)
        if window is None:
            return
        found = fill(window, self._precedence, self._model.times)
        operation = operations_of(window, self._precedence)
        recorded = self._search.recorded[operation]
        told = found.known & recorded
        order = np.argsort(window.time[told].ravel(), kind="stable")
        seen = window.seen[told].ravel()[order]
        inside = np.flatnonzero(seen)  # what is before and after them was perhaps not recorded
        seen = seen[inside[0] : inside[-1] + 1] if len(inside) else seen
        turns = np.flatnonzero(seen[1:] != seen[:-1])
        self._longest = max(2, int(np.max(turns[1::2] - turns[::2], initial=0)))
        self._bands = calibrated_bands(
            window,
            self._precedence,
            self._model.times,
            self._sequence.kind[operation].astype(np.int64),
            recorded,
            len(self._sequence.kinds),
            self._confidence,
            np.random.default_rng(self._seed),
        )

    # -- handing out -----------------------------------------------------------------------------------------

    def _enter(self, pieces: list[tuple[Queue, Match]]) -> Settled:
        """Keep matches until their launch is complete; tell which packets are none."""
        arrivals = []
        for core, (queue, match) in enumerate(pieces):
            strange = np.ones(len(queue), np.bool_)
            timely = match.launch >= self._next  # others are of launches that were handed out long ago
            strange[match.packet[timely]] = False
            arrivals.append(queue.arrival[strange])
            if len(match.launch):
                self._latest[core] = match.launch[-1]
        self._rows = rows_of(self._followers, pieces, self._rows, self._next)
        told = np.concatenate(arrivals)
        return Settled(empty_log(self._sequence.kinds), told, np.full(len(told), Fate.SPURIOUS, np.uint8))

    def _complete(self) -> int:
        """The first launch of which a packet may still come."""
        active = [core for core, follower in enumerate(self._followers) if len(follower.track.operation)]
        top = int(self._latest[active].max(initial=-1))
        quiet = {core for core in active if not self._followers[core].open}
        return min(
            (max(int(self._latest[core]), (top - _SILENT) if core in quiet else -1) for core in active), default=0
        )

    def _hand_out(self, *, close: bool) -> Settled:
        """Operations of the launches of which nothing more can come."""
        none = Settled(empty_log(self._sequence.kinds), np.zeros(0, np.int64), np.zeros(0, np.uint8))
        rows = self._rows
        if not len(rows):
            return none
        until = int(rows[:, LAUNCH].max()) + 1 if close else self._complete()
        if until <= max(self._next, int(rows[:, LAUNCH].min())):
            return none
        if not close:  # what the last complete launches are followed by, as far as it is known
            ahead = [(one.waiting, one.likely()) for one in self._followers]
            rows = rows_of(self._followers, ahead, rows, self._next)
        launches, skipped = filled_launches(rows[:, LAUNCH], self._next)
        window, arrival = self._search.window(launches, rows, self._model, self._carried)
        tempo, _, _ = window_tempo(window, self._precedence, self._model.times, self._model.tempo_step, *self._tempo)
        window = window._replace(tempo=tempo)
        found = fill(window, self._precedence, self._model.times)
        covered = self._covered(window, begins=self._next < 0, ends=close)
        count = int(np.searchsorted(launches, until))
        log, inferred, uncertain = log_of(
            window, found, self._bands, covered, arrival, launches, count, self._sequence, self._search.recorded,
            self._confidence, self._intake.origin_ns,
        )  # fmt: skip
        self._inferred += inferred
        self._uncertain += uncertain
        self._skipped += skipped
        if count < len(launches):
            ends = window.before[count]
            self._carried = np.where(ends >= 0, window.time[ends, 1], self._carried)
        self._tempo = float(tempo[count - 1]), self._tempo[1]
        self._next = until
        done = self._rows[:, LAUNCH] < until
        told, self._rows = self._rows[done, 0], self._rows[~done]
        fate = np.where(_among(told, arrival), Fate.MATCHED, Fate.SPURIOUS).astype(np.uint8)
        return Settled(log, told, fate)

    def _covered(self, window: Window, *, begins: bool, ends: bool) -> Bools:
        """Operations that the trace tells of; empty: all.

        Of those before its first packet or after its last one: as many as are lost in a row elsewhere
        were lost; more were not recorded.
        """
        if not begins and not ends:
            return np.zeros(0, np.bool_)
        recorded = self._search.recorded[operations_of(window, self._precedence)]
        received = window.time[window.seen]
        unseen: Bools = np.asarray(~window.seen.any(axis=1) & recorded)
        covered = np.ones(len(unseen), np.bool_)
        before, after = unseen & (window.time[:, 1] <= received.min()), unseen & (window.time[:, 0] >= received.max())
        if begins and (self._meta.overwritten_events or 2 * np.count_nonzero(before) > self._longest):
            covered &= ~before
        if ends and 2 * np.count_nonzero(after) > self._longest:
            covered &= ~after
        return covered


def _among(positions: Ints, kept: Ints) -> Bools:
    """Which of some packets are among those that stayed where they were matched: a search that begins anew can
    find another packet for an edge that has one.
    """
    if not len(positions):
        return np.zeros(0, np.bool_)
    low, high = positions.min(), positions.max()
    there = np.zeros(int(high - low) + 1, np.bool_)
    there[kept[(kept >= low) & (kept <= high)] - low] = True
    return np.asarray(there[positions - low])


def _cuts(queues: list[Queue]) -> list[int]:
    """How much of each queue to look at next: up to one moment, at most a chunk of any."""
    if max(len(queue) for queue in queues) <= _CHUNK:
        return [len(queue) for queue in queues]
    until = min(float(queue.time[_CHUNK]) for queue in queues if len(queue) > _CHUNK)
    cuts = [min(int(np.searchsorted(queue.time, until)), _CHUNK) for queue in queues]
    return cuts if any(cuts) else [min(len(queue), _CHUNK) for queue in queues]


def _together(parts: Many[Settled]) -> Settled:
    return Settled(
        joined_logs([part.log for part in parts]),
        np.concatenate([part.arrival for part in parts]),
        np.concatenate([part.fate for part in parts]),
    )


def rebuild(trace: Trace, sequence: Sequence, *, confidence: float = 0.9, seed: int = 0) -> Rebuilt:
    """Hold a trace against its program.

    Args:
        trace: packets, in order of arrival; anything may be lost, doubled, swapped or made up.
        sequence: of the program that was executed, made with the trace's kinds.
        confidence: part of the inferred edges whose interval holds the true time.
        seed: of the draws with which intervals are calibrated.

    Returns:
        All operations that the trace covers. Whatever the trace is like, there is an answer; what is
        wrong with it is said in ``warnings``.
    """
    aligner = Aligner(sequence, len(trace.kinds), trace.meta, confidence=confidence, seed=seed)
    fate = np.full(len(trace), Fate.SPURIOUS, np.uint8)
    out_of_order = np.zeros(len(trace), np.bool_)
    logs = []
    losses = np.sort(np.asarray(trace.loss_after, np.int64))
    for begin in range(0, len(trace) + 1, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        here = losses[(losses >= begin) & (losses < begin + _CHUNK)] - begin
        piece = replace(
            trace,
            time_ns=trace.time_ns[part],
            id=trace.id[part],
            type=trace.type[part],
            core=trace.core[part],
            operation=trace.operation[part],
            loss_after=here,
        )
        settled = aligner.feed(piece)
        out_of_order[part] = aligner.out_of_order
        fate[settled.arrival] = settled.fate
        logs.append(settled.log)
    settled = aligner.close()
    fate[settled.arrival] = settled.fate
    log = joined_logs([*logs, settled.log])
    warnings = list(aligner.warnings())
    matched = int(np.count_nonzero(fate == Fate.MATCHED))
    if not len(trace):
        warnings.append("The trace is empty.")
    elif 2 * matched < len(trace):
        warnings.append(
            f"Only {matched} of {len(trace)} packets fit the program: check that this is the trace's program."
        )
    return Rebuilt(log, fate, out_of_order, aligner.calibrated, tuple(warnings))
