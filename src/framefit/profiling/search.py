"""One look at packets of all cores, and what is learned of them.

The core with the most events looks first and tells the others when launches began. What alignment is judged by
is learned in two rounds of expectation maximisation on a sample: align with the program's table, take median
and deviation of every transition, align again (:mod:`framefit.profiling.estimates`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from framefit.core.events import TraceMeta
from framefit.profiling.between import Window
from framefit.profiling.chain import Room
from framefit.profiling.edges import enter, filled_launches, lay_out
from framefit.profiling.estimates import Match, Model, first_model, hides_launches, learned_times, learned_tracks
from framefit.profiling.follower import Follower
from framefit.profiling.intake import Queue, earliest
from framefit.profiling.precedence import Precedence
from framefit.profiling.sequence import Sequence
from framefit.profiling.tempo import window_tempo
from framefit.profiling.tracks import Tie

__all__ = ["LAUNCH", "Learned", "Search", "rows_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_FIRST_SAMPLE = 8192  # of them, for the first round: as long as little is known, the search is slow
_ROUNDS = 2
_UNHIDDEN = -12.0  # added to the logarithm of the probability that a gap hides a launch, to rule it out
_RARE = 7.0  # by how much more likely it has to be that launches lie in gaps: a thousandth of traces have such ones
_ENDLESS = 1 << 40  # launches of a program that repeats until its trace ends
_STARTS = 3000  # places that a trace's first packet is tried at
_HUGE = 1 << 60
LAUNCH = 1
"""Column of a settled match that holds its launch, see :func:`framefit.profiling.edges.lay_out`."""


@dataclass(frozen=True)
class Learned:
    """Estimates from a sample.

    Attributes:
        model: what was learned.
        window: the sample; ``None``: no packet fitted.
        worth: logarithm of the sample's likelihood.
        hidden: whether launches are taken to lie between two packets of a core.
        begins: the first launch with a packet.
    """

    model: Model
    window: Window | None
    worth: float
    hidden: bool
    begins: int


class Search:
    """Looks at packets, in whatever state the followers of the cores are.

    Args:
        sequence: of the program.
        kinds: event ids of the trace.
        meta: of the trace.

    Attributes:
        precedence: of the sequence.
        circles: entries of ``after`` that contradict the order on the units.
        sizes: int64, operations of each program.
        recorded: bool, operations of the sequence that send packets: kinds that were not selected do not.
        first: what the program's table says.
    """

    def __init__(self, sequence: Sequence, kinds: int, meta: TraceMeta) -> None:
        self._sequence, self._meta = sequence, meta
        self.precedence, self.circles = Precedence.of(sequence)
        self.sizes = np.diff(sequence.first)
        self.recorded = sequence.recorded(meta.selected_kinds)
        self.first = first_model(sequence, self.precedence, kinds, meta.resolution_ns, self.recorded)
        self._packets = np.sum([np.diff(track.first) for track in self.first.tracks], axis=0)
        self._room = Room.make()
        self._from_first = False
        self._submit = np.zeros(0)
        if sequence.submit_ns is not None and len(sequence.submit_ns) and np.ptp(sequence.submit_ns) > 0:
            self._submit = (sequence.submit_ns - sequence.submit_ns[0]).astype(np.float64)
        tracks = self.first.tracks
        events = [track.count_before[-1] if len(track.launch_program) else track.events for track in tracks]
        self._turns = [int(core) for core in np.argsort([-count for count in events], kind="stable")]

    def followers(self, model: Model) -> list[Follower]:
        """Searches that begin, one a core; they share their room to work in."""
        return [Follower(track, self._room) for track in model.tracks]

    def look(
        self, followers: list[Follower], queues: list[Queue], model: Model, *, all_of_it: bool
    ) -> list[tuple[Queue, Match]]:
        """Let every core look at its packets, the leading one first; by core, what that settles."""
        settled: dict[int, tuple[Queue, Match]] = {}
        begin, first = np.zeros(0), 0
        for turn, core in enumerate(self._turns):
            follower = followers[core]
            follower.follow(queues[core], self._tie(model, begin, first, core), model.costs)
            settled[core] = follower.settle(all_of_it=all_of_it)
            if turn == 0 and len(self._turns) > 1:
                likely = () if all_of_it else (follower.likely(),)
                begin, first = _begins(follower, (settled[core][1], *likely))
        return [settled[core] for core in range(len(followers))]

    def _tie(self, model: Model, begin: Floats, first: int, core: int) -> Tie:
        track, programs, overwritten = model.tracks[core], self._sequence.launch_program, self._meta.overwritten_events
        if programs is None:
            end = _ENDLESS if self._sequence.repeats is None else self._sequence.repeats
            low = max(min(overwritten // max(int(self._packets[0]), 1), end - 1), 0)
            high = min(low + 1, end)
        else:
            end = len(programs)
            reach = max(_STARTS // max(track.events, 1), 1)
            low = int(np.searchsorted(np.cumsum(self._packets[programs]), overwritten, "right")) if overwritten else 0
            low, high = max(low - reach, 0), min(1 if self._from_first else low + reach, end)
        return Tie(
            low=low,
            high=high,
            end=end,
            first_launch=first,
            begin_ns=begin,
            tolerance_ns=0.45 * track.period_ns + model.astray_ns,
            submit_ns=self._submit,
            offset_ns=np.nan if model.offset_ns is None else model.offset_ns,
            submit_var=model.submit_var,
        )

    def learned(self, queues: list[Queue]) -> Learned:
        """Two rounds of alignment and estimates.

        A launch that is late and one that was lost look much alike, and estimates are drawn to what was taken
        for true. So where whole launches are taken to lie between two packets, the rounds are repeated with that
        all but ruled out, and the likelier estimates stay. Likewise where the trace is taken to begin in the middle
        of the launches: those of a timetable repeat, and so do the times between them.
        """
        self._from_first = False
        found = self._rounds(queues, 0.0)
        if found.hidden:
            other = self._rounds(queues, _UNHIDDEN)
            if other.worth > found.worth - _RARE:
                found = other
        if found.begins > 0 and self._meta.overwritten_events == 0 and self._sequence.launch_program is not None:
            self._from_first = True
            other = self._rounds(queues, 0.0)
            if other.worth > found.worth - _RARE:
                found = other
            else:
                self._from_first = False
        return found

    def _rounds(self, queues: list[Queue], hidden_cost: float) -> Learned:
        """Estimates; ``hidden_cost`` is added to the logarithm of the probability that a gap hides a launch."""

        def judged(model: Model) -> Model:
            lengths = model.costs.lengths
            launch = min((track.events for track in model.tracks if len(track.operation)), default=1)
            lengths = lengths + hidden_cost * (np.arange(len(lengths)) // launch)
            return replace(model, costs=model.costs._replace(lengths=lengths))

        model = judged(self.first)
        window: Window | None = None
        worth, hidden = 0.0, False
        for turn in range(_ROUNDS + 1):
            followers = self.followers(model)
            part = queues if turn else earliest(queues, _FIRST_SAMPLE)
            pieces = self.look(followers, part, model, all_of_it=True)
            worth = sum(follower.worth for follower in followers)
            rows = rows_of(followers, pieces)
            if not len(rows):
                return Learned(model, None, worth, hidden, 0)
            hidden = hides_launches(model.tracks, [match for _, match in pieces])
            launches, _ = filled_launches(rows[:, LAUNCH])
            window, _ = self.window(launches, rows, model, np.full(len(model.tracks), -_HUGE, np.int64))
            if turn:
                tempo, step, _ = window_tempo(window, self.precedence, model.times, None, 1.0, 1.0)
                window, model = window._replace(tempo=tempo), replace(model, tempo_step=step)
            if turn < _ROUNDS:
                model = judged(learned_tracks(model, [m for _, m in pieces], self._sequence, window.tempo, launches))
                window = window._replace(released=self._released(launches, model))
            model = learned_times(model, window, self.precedence, self._sequence)
        return Learned(model, window, worth, hidden, int(launches[0]))

    def window(self, launches: Ints, rows: Ints, model: Model, carried: Ints) -> tuple[Window, Ints]:
        """Launches with what was received of them, and which packets that was."""
        programs = self._sequence.launch_program
        program = np.zeros(len(launches), np.int64) if programs is None else programs[launches].astype(np.int64)
        window = Window.of(program, self.sizes, self.precedence.last, carried, self._released(launches, model))
        arrival = np.full(window.seen.shape, -1, np.int64)
        lay_out(window, launches, rows, self._sequence.first, arrival)
        return window, arrival

    def _released(self, launches: Ints, model: Model) -> Floats:
        if model.offset_ns is None or not len(self._submit):
            return np.full(len(launches), -float(_HUGE))
        return np.asarray(self._submit[launches] + model.offset_ns)


def rows_of(
    followers: list[Follower], pieces: list[tuple[Queue, Match]], before: Ints | None = None, least: int = -_HUGE
) -> Ints:
    """Matches with all that is needed to place them in a window.

    Args:
        followers: of the cores.
        pieces: packets and matches of each.
        before: rows to which they are added.
        least: matches of launches before it are left out.
    """
    at = 0 if before is None else len(before)
    rows = np.empty((at + sum(len(match.packet) for _, match in pieces), 5), np.int64)
    if before is not None:
        rows[:at] = before
    for follower, (queue, match) in zip(followers, pieces, strict=True):
        at = enter(
            rows, at, queue.arrival, match.packet, match.launch, match.event, match.time, follower.track.operation,
            follower.track.type, least,
        )  # fmt: skip
    return rows[:at]


def _begins(follower: Follower, matches: tuple[Match, ...]) -> tuple[Floats, int]:
    """When launches began by the leading core's matches (NaN: none), and the launch that this starts with."""
    launch = np.concatenate([match.launch for match in matches])
    if not len(launch) or launch[-1] - launch[0] > 4 * len(launch) + 1000:
        return np.zeros(0), 0
    since = np.concatenate([follower.track.since_begin[match.event] for match in matches]) * follower.speed
    at = launch - launch[0]
    count = np.bincount(at)
    total = np.bincount(at, np.concatenate([match.time for match in matches]) - since)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), int(launch[0])
