"""Reconstructs a run from a lossy trace by alignment, the default method.

**Alignment.** The packets of each track are aligned with the events of that track by a semi-Markov chain with
gaps, over the cyclic program or over the launch list (:mod:`framefit.profiling.align.viterbi`). A unit runs one
operation at a time in program order, so the order of a track's events is certain, whatever overlaps on other
tracks. In the merged order of all tracks neighbours change places with every variation of a duration, and a single
chain would have to undo that. A chain alone cannot know which launch follows a long silence; the track with the
most events is searched first and tells the others when launches began.

**The model** is learned from a bounded sample of the stream in two rounds of expectation maximisation: align
with the durations of the program, take median and deviation of every transition, align again
(:mod:`framefit.profiling.align.estimates`). Then the stream is aligned in one pass and in bounded memory. The
speed of the device from launch to launch is a random walk that is observed through durations of operations.

**Times of lost edges** come from the graph of operations, over all tracks at once
(:mod:`framefit.profiling.edge_inference`). Their intervals come from hiding received packets in the way in which
others were lost (:mod:`framefit.profiling.edge_inference`).

``docs/decisions/0009-alignment.md`` gives the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace, TraceMeta
from framefit.core.profile import OperationLog
from framefit.profiling.align.estimates import (
    RARE,
    Match,
    Model,
    estimate_times,
    estimate_tracks,
    hides_launches,
    initial_model,
    launch_begins,
    launches_too_early,
    operations_of,
    undecided_silences,
)
from framefit.profiling.align.tempo import estimate_tempo_model, with_tempo
from framefit.profiling.align.tracks import (
    EMPTY_QUEUE,
    LaunchTiming,
    Queue,
    ReorderBuffer,
    Track,
    concatenate_queues,
    take_earliest,
)
from framefit.profiling.align.viterbi import (
    BEAM,
    Costs,
    Workspace,
    assign_packets,
    common_match,
    compact,
    matches_of,
    trace_back,
)
from framefit.profiling.edge_inference import ErrorQuantiles, Precedence, Window, calibrate_intervals, infer_edges
from framefit.profiling.event_log import (
    concatenate_logs,
    empty_log,
    enter_packets,
    fill_launch_gaps,
    make_log,
    write_matches,
)
from framefit.profiling.sequence import PacketClass, Reconstruction, Sequence

Ints = npt.NDArray[np.int64]
_NODES = 1 << 17  # matches kept in assignments that are still possible: some 30,000 packets
_WIDE = 4096
_SCORE, _TIME, _NUMBER, _LAUNCH, _PLACE, _SPEED, _SHIFT, _NODE = 0, 1, 4, 5, 6, 7, 10, 11  # columns of an assignment


class BeamSearch:
    """Searches the packets of one track, chunk after chunk, and settles what all remaining assignments agree on.

    Searches that take turns may share a workspace.

    Attributes:
        log_likelihood: logarithm of the likelihood of the best assignment so far.
    """

    def __init__(self, track: Track, workspace: Workspace) -> None:
        self.track, self.log_likelihood, self._workspace = track, 0.0, workspace
        self._beam = np.zeros((_WIDE, BEAM))
        self._beam[0, _NUMBER] = self._beam[0, _LAUNCH] = self._beam[0, _NODE] = -1
        self._size, self._used, self._unmatched, self._since_restart = 1, 0, 0, 0
        self._nodes = np.empty((_NODES, 5), np.int64)
        self._token = 0  # of the first packet in ``_open``
        self._pending = EMPTY_QUEUE

    @property
    def pending_count(self) -> int:
        """Number of packets whose event is not settled."""
        return len(self._pending)

    @property
    def pending(self) -> Queue:
        """Packets whose event is not settled."""
        return self._pending

    @property
    def speed(self) -> float:
        """Factor by which the packets are slower than the track says, by the best assignment."""
        return float(self._beam[self._best(), _SPEED]) or 1.0

    def copy(self) -> BeamSearch:
        """Return an independent copy of the search."""
        duplicate = BeamSearch(self.track, self._workspace)
        duplicate._beam[: self._size] = self._beam[: self._size]
        duplicate._size, duplicate._used, duplicate._unmatched, duplicate._since_restart = (
            self._size,
            self._used,
            self._unmatched,
            self._since_restart,
        )
        duplicate._nodes[: self._used] = self._nodes[: self._used]
        duplicate._token, duplicate._pending = self._token, self._pending
        return duplicate

    def advance(self, queue: Queue, timing: LaunchTiming, costs: Costs) -> None:
        """Search further packets; :meth:`settle` returns what that settles."""
        done = len(self._pending)
        packets = self._pending = concatenate_queues(self._pending, queue)
        while done < len(packets):
            self._workspace.slots[:] = -1
            done, self._size, self._used, self._unmatched, self._since_restart, worth = assign_packets(
                packets.time, packets.symbol, packets.marked, done, self._token + done, self.track, timing, costs,
                self._workspace, self._beam, self._size, self._nodes, self._used, self._unmatched, self._since_restart,
            )  # fmt: skip
            self.log_likelihood += worth
            if done < len(packets):
                self._free_nodes()

    def _free_nodes(self) -> None:
        self._used = compact(self._beam, self._size, self._nodes, self._used)
        if self._used > _NODES // 2:  # nothing agreed on for tens of thousands of packets: the best one decides
            self._beam[0] = self._beam[self._best()]
            self._size = 1
            self._used = compact(self._beam, self._size, self._nodes, self._used)
        if self._used > _NODES // 2:
            self._nodes = np.concatenate([self._nodes[: self._used], np.empty((_NODES, 5), np.int64)])

    def _best(self) -> int:
        return int(np.argmax(self._beam[: self._size, _SCORE]))

    def settle(self, *, all_of_it: bool = False) -> tuple[Queue, Match]:
        """Return the packets whose event is settled, and the matches among them.

        With ``all_of_it`` no more packets come, and the best assignment decides for the last ones.
        """
        node = (
            int(self._beam[self._best(), _NODE])
            if all_of_it
            else int(common_match(self._beam, self._size, self._nodes))
        )
        if all_of_it:
            upto = len(self._pending)
        elif node < 0:
            return EMPTY_QUEUE, self._match(np.zeros(0, np.int64), 0)
        else:
            upto = int(self._nodes[node, 0]) - self._token + 1
        match = self._match(trace_back(self._nodes, node), upto)
        queue, self._pending = self._pending[:upto], self._pending[upto:]
        rest = self._nodes[node + 1 : self._used].copy()
        rest[:, 3] = np.maximum(rest[:, 3] - (node + 1), -1)
        self._nodes[: len(rest)] = rest
        self._used = len(rest)
        ends = self._beam[: self._size, _NODE]
        self._beam[: self._size, _NODE] = np.where(ends > node, ends - (node + 1), -1)
        self._token += upto
        return queue, match

    def best_matches(self) -> Match:
        """Return the matches of the best assignment among the packets that are not settled."""
        return self._match(trace_back(self._nodes, int(self._beam[self._best(), _NODE])), len(self._pending))

    def _match(self, path: Ints, packets: int) -> Match:
        track, waiting = self.track, self._pending
        packet, launch, event, time, marked = matches_of(
            self._nodes, path, self._token, track.first, track.launch_program, waiting.time, waiting.marked
        )
        return Match(packet, launch, event, time, marked, packets)

    def latest_matches(self) -> tuple[Match, npt.NDArray[np.float64]]:
        """Return the latest match of each possible assignment, and its probability."""
        beam = self._beam[: self._size]
        beam = beam[beam[:, _LAUNCH] >= 0]
        launch, place = beam[:, _LAUNCH].astype(np.int64), beam[:, _PLACE].astype(np.int64)
        track = self.track
        program = track.launch_program[launch] if len(track.launch_program) else np.zeros(len(beam), np.int64)
        weight = np.exp(beam[:, _SCORE] - beam[:, _SCORE].max(initial=0.0))
        match = Match(
            packet=np.zeros(len(beam), np.int64),
            launch=launch,
            event=track.first[program] + place,
            time=beam[:, _TIME] + beam[:, _SHIFT],
            marked=np.zeros(len(beam), np.bool_),
            packets=0,
        )
        return match, weight / max(float(weight.sum()), 1e-300)


Floats = npt.NDArray[np.float64]
_FIRST_SAMPLE = 8192  # of them, for the first round: as long as little is known, the search is slow
_ROUNDS = 2
_UNHIDDEN = -12.0  # added to the logarithm of the probability that a gap hides a launch, to rule it out
_ENDLESS = 1 << 40  # launches of a program that repeats until its trace ends
_START_PLACES = 3000  # places that a trace's first packet is tried at
_HUGE = 1 << 60
LAUNCH = 1
"""Column of a settled match that holds its launch, see :func:`framefit.profiling.event_log.enter_packets`."""


@dataclass(frozen=True)
class SampleEstimates:
    """Estimates from a sample of the stream.

    Attributes:
        model: the model that was learned.
        window: the sample; ``None`` if no packet fitted.
        log_likelihood: of the sample.
        hidden: whether launches are assumed to lie between two packets of a track.
        begins: the first launch with a packet.
        too_early: launches by which all are numbered too low.
        searches, matches: the last alignment of the sample, by track.
    """

    model: Model
    window: Window | None
    log_likelihood: float
    hidden: bool
    begins: int
    too_early: int
    searches: list[BeamSearch]
    matches: list[tuple[Queue, Match]]


class MultiCoreSearch:
    """Runs the searches of all tracks, and learns the model that they use.

    Where a model is ``known`` from a trace of which this one is a part, packets are matched with it, and only times are
    learned.

    Attributes:
        precedence: of the sequence.
        contradictions: number of entries of ``after`` that contradict the order on the units.
        sizes: int64, operations of each program.
        recorded: bool, operations of the sequence that send packets; kinds that were not selected send none.
        first: the model by the durations of the program, or the one that is known.
    """

    def __init__(self, sequence: Sequence, kinds: int, meta: TraceMeta, known: Model | None = None) -> None:
        self._sequence, self._meta = sequence, meta
        self.precedence, self.contradictions = Precedence.of(sequence)
        self.sizes = np.diff(sequence.first)
        self.recorded = sequence.recorded(meta.selected_kinds)
        self._known = known is not None
        self.first = known or initial_model(sequence, self.precedence, kinds, meta.resolution_ns, self.recorded)
        self._packets = np.sum([np.diff(track.first) for track in self.first.tracks], axis=0)
        self._workspace = Workspace.allocate()
        self._begins: int | None = None  # launch of the leading track's first packet, where it is known
        self._submit = np.zeros(0)
        if sequence.submit_ns is not None and len(sequence.submit_ns) and np.ptp(sequence.submit_ns) > 0:
            self._submit = (sequence.submit_ns - sequence.submit_ns[0]).astype(np.float64)
        tracks = self.first.tracks
        events = [track.count_before[-1] if len(track.launch_program) else track.events for track in tracks]
        self._track_order = [int(number) for number in np.argsort([-count for count in events], kind="stable")]

    @property
    def leading(self) -> int:
        """The track with the most events."""
        return self._track_order[0]

    def start_searches(self, model: Model) -> list[BeamSearch]:
        """Start a search for each track; they share one workspace."""
        return [BeamSearch(track, self._workspace) for track in model.tracks]

    def advance(
        self, searches: list[BeamSearch], queues: list[Queue], model: Model, *, all_of_it: bool
    ) -> list[tuple[Queue, Match]]:
        """Search the packets of every track, the leading track first; return by track what that settles."""
        settled: dict[int, tuple[Queue, Match]] = {}
        begin, first = np.zeros(0), 0
        for turn, number in enumerate(self._track_order):
            search = searches[number]
            search.advance(queues[number], self._timing(model, begin, first, number), model.costs)
            settled[number] = search.settle(all_of_it=all_of_it)
            if turn == 0 and len(self._track_order) > 1:
                likely = () if all_of_it else (search.best_matches(),)
                begin, first = _launch_begins(search, (settled[number][1], *likely))
        return [settled[number] for number in range(len(searches))]

    def _timing(self, model: Model, begin: Floats, first: int, number: int) -> LaunchTiming:
        track, programs, overwritten = (
            model.tracks[number],
            self._sequence.launch_program,
            self._meta.overwritten_events,
        )
        before, packets = 0.0, self._packets
        if programs is None:
            end = _ENDLESS if self._sequence.repeats is None else self._sequence.repeats
            low = max(min(overwritten // max(int(packets[0]), 1), end - 1), 0)
            high = min(low + 1, end)
            before = overwritten * track.events / max(int(packets[0]), 1)
        else:
            end = len(programs)
            reach = max(_START_PLACES // max(track.events, 1), 1)
            sent = np.cumsum(packets[programs]) if overwritten else np.zeros(0)
            low = int(np.searchsorted(sent, overwritten, "right"))
            if low < len(sent):
                part = 1 - (sent[low] - overwritten) / packets[programs[low]]
                before = float(track.count_before[low] + part * (track.count_before[low + 1] - track.count_before[low]))
            low, high = max(low - reach, 0), min(low + reach, end)
            if self._begins is not None:
                low, high = self._begins, self._begins + 1 if number == self.leading else high
        return LaunchTiming(
            low=low,
            high=high,
            overwritten=before,
            end=end,
            first_launch=first,
            begin_ns=begin,
            tolerance_ns=0.45 * track.period_ns + model.track_spread_ns,
            submit_ns=self._submit,
            offset_ns=np.nan if model.offset_ns is None else model.offset_ns,
            submit_var=model.submit_var,
            wrap_ns=0.0 if self._meta.wrap_bits is None else float(self._meta.resolution_ns << self._meta.wrap_bits),
        )

    def learn(self, queues: list[Queue]) -> SampleEstimates:
        """Learn a model in two rounds of alignment and estimates.

        A late launch and a lost one look much alike, and estimates are biased towards what was assumed. So where whole
        launches are assumed to lie between two packets, the rounds are repeated with that all but ruled out, and the
        likelier estimates are kept. The same is done where the trace seems to begin in the middle of the launches, as
        launches of a timetable repeat, and so do the times between them: that has to be a thousand times as likely.
        """
        self._begins = None
        estimates = self._rounds(queues, 0.0)
        if estimates.hidden and not self._known:
            candidate = self._rounds(queues, _UNHIDDEN)
            if candidate.log_likelihood > estimates.log_likelihood:
                estimates = candidate
        if estimates.too_early:
            self._begins = estimates.begins + estimates.too_early
            estimates = self._rounds(queues, 0.0)
        elif estimates.begins > 0 and self._meta.overwritten_events == 0 and len(self._submit):
            self._begins = 0
            candidate = self._rounds(queues, 0.0)
            if candidate.log_likelihood > estimates.log_likelihood - RARE:
                estimates = candidate
            else:
                self._begins = None
        return estimates

    def _rounds(self, queues: list[Queue], hidden_cost: float) -> SampleEstimates:
        """Estimate; ``hidden_cost`` is added to the logarithm of the probability that a gap hides a launch."""

        def with_hidden_cost(model: Model) -> Model:
            lengths = model.costs.lengths
            launch = min((track.events for track in model.tracks if len(track.operation)), default=1)
            lengths = lengths + hidden_cost * (np.arange(len(lengths)) // launch)
            costs = model.costs._replace(lengths=lengths, hidden=model.costs.hidden + hidden_cost)
            return replace(model, costs=costs)

        model = with_hidden_cost(self.first)
        window: Window | None = None
        log_likelihood, hidden = 0.0, False
        for turn in range(_ROUNDS if self._known else 0, _ROUNDS + 1):
            searches = self.start_searches(model)
            part = queues if turn else take_earliest(queues, _FIRST_SAMPLE)
            pieces = self.advance(searches, part, model, all_of_it=True)
            log_likelihood = sum(search.log_likelihood for search in searches)
            rows = match_rows(searches, pieces)
            if not len(rows):
                return SampleEstimates(model, None, log_likelihood, hidden, 0, 0, searches, pieces)
            hidden = hides_launches(model.tracks, [match for _, match in pieces])
            launches, _ = fill_launch_gaps(rows[:, LAUNCH])
            window, _ = self.window(launches, rows, model, np.full(len(model.tracks), -_HUGE, np.int64))
            if turn:
                tempo = estimate_tempo_model(window, self.precedence, model.times)
                window, _, _ = with_tempo(window, self.precedence, model.times, tempo)
                costs = model.costs._replace(launch_var=tempo.launch_var)
                model = replace(model, tempo=tempo, costs=costs)
            if turn < _ROUNDS:
                model = with_hidden_cost(
                    estimate_tracks(model, self.first, [m for _, m in pieces], self._sequence, window.tempo, launches)
                )
                window = window._replace(released=self._released(launches, model))
            model = estimate_times(model, window, self.precedence, self._sequence)
        begin = launch_begins(model, [match for _, match in pieces], launches)
        too_early = launches_too_early(begin, launches, self._sequence, self._meta.resolution_ns)
        return SampleEstimates(model, window, log_likelihood, hidden, int(launches[0]), too_early, searches, pieces)

    def window(self, launches: Ints, rows: Ints, model: Model, carried: Ints) -> tuple[Window, Ints]:
        """Return launches with what was received of them, and the positions of these packets."""
        programs = self._sequence.launch_program
        program = np.zeros(len(launches), np.int64) if programs is None else programs[launches].astype(np.int64)
        window = Window.of(program, self.sizes, self.precedence.last, carried, self._released(launches, model))
        arrival = np.full(window.seen.shape, -1, np.int64)
        enter_packets(window, launches, rows, self._sequence.first, arrival)
        return window, arrival

    def _released(self, launches: Ints, model: Model) -> Floats:
        if model.offset_ns is None or not len(self._submit):
            return np.full(len(launches), -float(_HUGE))
        return np.asarray(self._submit[launches] + model.offset_ns)


def match_rows(
    searches: list[BeamSearch], pieces: list[tuple[Queue, Match]], before: Ints | None = None, least: int = -_HUGE
) -> Ints:
    """Return matches as rows of :func:`~framefit.profiling.event_log.enter_packets`, after the rows ``before``.

    Matches of launches before ``least`` are left out.
    """
    at = 0 if before is None else len(before)
    rows = np.empty((at + sum(len(match.packet) for _, match in pieces), 5), np.int64)
    if before is not None:
        rows[:at] = before
    for search, (queue, match) in zip(searches, pieces, strict=True):
        at = write_matches(
            rows, at, queue.arrival, match.packet, match.launch, match.event, match.time, search.track.operation,
            search.track.type, least,
        )  # fmt: skip
    return rows[:at]


def _launch_begins(search: BeamSearch, matches: tuple[Match, ...]) -> tuple[Floats, int]:
    """Return when launches began by matches of the leading track (NaN: none), and the launch that this starts with."""
    launch = np.concatenate([match.launch for match in matches])
    if not len(launch) or launch[-1] - launch[0] > 4 * len(launch) + 1000:
        return np.zeros(0), 0
    since = np.concatenate([search.track.since_begin[match.event] for match in matches]) * search.speed
    at = launch - launch[0]
    count = np.bincount(at)
    total = np.bincount(at, np.concatenate([match.time for match in matches]) - since)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), int(launch[0])


Bools = npt.NDArray[np.bool_]
_SAMPLE = 32_768  # packets to learn from: 100 and more of each transition of a program of 150 operations
_CHUNK = 65_536  # packets of a track looked at together
_SILENT = 8  # launches: a track that has sent nothing for so long no longer holds up what the others settle
_THIN_RATIO = 0.01  # part of the intervals that may lack evidence


@dataclass(frozen=True)
class SettledBatch:
    """Packets and operations that have become certain.

    Attributes:
        log: operations of whole launches, the next ones in order.
        arrival: int64, positions in the stream of the packets that are now settled.
        packet_class: uint8, :class:`~framefit.profiling.sequence.PacketClass` of each of these packets.
    """

    log: OperationLog
    arrival: Ints
    packet_class: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Learned:
    """What a stream taught: it holds for its parts, too.

    Attributes:
        model: that packets are matched with.
        quantiles: that intervals are made of; ``None`` if no packet fitted.
    """

    model: Model
    quantiles: ErrorQuantiles | None


@dataclass(frozen=True)
class Position:
    """The position of the device in its program.

    Attributes:
        inference: launch.
        group: group of the operation in its program.
        operation: index within its program of the latest operation that sent a packet.
        confidence: probability that all of this is right.
    """

    inference: int
    group: int
    operation: int
    confidence: float


class Aligner:
    """Aligns a stream as its packets arrive; memory does not grow with the stream.

    ``kinds`` is the number of event ids that the trace has, which are the first ones of ``sequence.kinds``; ``seed``
    determines the draws that calibrate the intervals. ``known`` was learned from a stream of which this one is a part.

    Attributes:
        out_of_order: bool, packets of the last :meth:`feed` that arrived after a later one of the same core.
    """

    def __init__(
        self,
        sequence: Sequence,
        kinds: int,
        meta: TraceMeta,
        *,
        confidence: float = 0.9,
        seed: int = 0,
        known: Learned | None = None,
    ) -> None:
        self._sequence, self._meta, self._confidence, self._seed = sequence, meta, confidence, seed
        self._search = MultiCoreSearch(sequence, kinds, meta, None if known is None else known.model)
        self._precedence, self._model = self._search.precedence, self._search.first
        recorded, resolution_ns = self._search.recorded, meta.resolution_ns
        coinciding = np.stack([sequence.coinciding(track, recorded, resolution_ns) for track in range(sequence.tracks)])
        self._reorder_buffer = ReorderBuffer(sequence.units, self._model.tracks, kinds, meta, coinciding)
        tracks = sequence.tracks
        self._buffer = [EMPTY_QUEUE] * tracks
        self._searches: list[BeamSearch] = []
        self._quantiles = None if known is None else known.quantiles
        self._rows = np.zeros((0, 5), np.int64)
        self._latest = np.full(tracks, -1, np.int64)  # launch of each track's last settled match
        self._carried = np.full(tracks, -_HUGE, np.int64)
        self._next = -1  # the first launch that has not been handed out
        self._walk = 1.0, 1e-2
        self._longest = 2
        self._rough_model: tuple[int, Model] | None = None
        self._uncertain = self._inferred = self._skipped = self._undecided = 0
        self.out_of_order: Bools = np.zeros(0, np.bool_)

    def feed(self, packets: Trace) -> SettledBatch:
        """Take in the next packets of the stream and return what has become certain: often nothing, then much at once.

        ``loss_after`` of ``packets`` counts from the first of them.
        """
        queues, self.out_of_order = self._reorder_buffer.add(packets)
        self._buffer = [concatenate_queues(old, new) for old, new in zip(self._buffer, queues, strict=True)]
        waiting = sum(len(queue) for queue in self._buffer)
        settled = [self._take_rejected()]
        if waiting >= _SAMPLE:
            settled.append(self._process(close=False))
        return _join_batches(settled)

    def close(self) -> SettledBatch:
        """Return everything that is left when no more packets come."""
        self._buffer = [
            concatenate_queues(old, new) for old, new in zip(self._buffer, self._reorder_buffer.close(), strict=True)
        ]
        return self._process(close=True)

    def position(self) -> Position | None:
        """Estimate where the device is by the packets so far; ``None`` as long as none fitted."""
        queues = [
            concatenate_queues(queue, held)
            for queue, held in zip(self._buffer, self._reorder_buffer.held(), strict=True)
        ]
        model, searches = self._model, [search.copy() for search in self._searches]
        if not searches:
            count = sum(len(queue) for queue in queues)
            if self._rough_model is None or count > 2 * self._rough_model[0]:
                self._rough_model = count, self._search.learn(queues).model
            model = self._rough_model[1]
            searches = self._search.start_searches(model)
        self._search.advance(searches, queues, model, all_of_it=False)
        best: tuple[float, Position] | None = None
        for search in searches:
            match, probability = search.latest_matches()
            if not len(probability):
                continue
            operation = search.track.operation[match.event]
            leader = int(np.argmax(probability))
            same = (match.launch == match.launch[leader]) & (operation == operation[leader])
            at = int(operation[leader])
            program = int(np.searchsorted(self._sequence.first, at, "right")) - 1
            here = Position(
                inference=int(match.launch[leader]),
                group=int(self._sequence.group[at]),
                operation=at - int(self._sequence.first[program]),
                confidence=min(float(probability[same].sum()), 1.0),
            )
            if best is None or match.time[leader] > best[0]:
                best = float(match.time[leader]), here
        return None if best is None else best[1]

    @property
    def learned(self) -> Learned:
        """What is known so far."""
        return Learned(self._model, self._quantiles)

    @property
    def calibrated(self) -> bool:
        """Whether nearly all intervals so far rest on enough hidden packets, and inferences on what was decided."""
        return not self._undecided and self._uncertain <= _THIN_RATIO * self._inferred

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about everything that was returned so far, as sentences."""
        sentences = []
        if self._search.contradictions:
            sentences.append(
                f"{self._search.contradictions} entries of `after` contradict the order on the units and were ignored"
            )
        if self._uncertain:
            sentences.append(
                f"{self._uncertain} of {self._inferred} intervals of inferred edges are uncalibrated: "
                "too few packets were received around similar losses"
            )
        if self._skipped:
            sentences.append(f"{self._skipped} launches in long silences left no packet and are not in the profile")
        if self._undecided:
            sentences.append(
                f"in {self._undecided} silences the times do not decide whether the device paused or inferences were "
                "lost: from there on inferences may be numbered too low or too high"
            )
        return tuple(sentences)

    def _take_rejected(self) -> SettledBatch:
        """Return packets that no track could have sent, and duplicates."""
        foreign, duplicated = self._reorder_buffer.foreign, self._reorder_buffer.duplicated
        packet_class = np.repeat(
            np.array([PacketClass.SPURIOUS, PacketClass.DUPLICATED], np.uint8), [len(foreign), len(duplicated)]
        )
        return SettledBatch(empty_log(self._sequence.kinds), np.concatenate([foreign, duplicated]), packet_class)

    def _process(self, *, close: bool) -> SettledBatch:
        """Search the waiting packets in portions of bounded size."""
        if not self._searches:
            whole = close and max(len(queue) for queue in self._buffer) <= _CHUNK
            pieces = self._learn_model(whole=whole)
            if pieces is not None:
                self._buffer = [EMPTY_QUEUE] * len(self._buffer)
                return _join_batches([self._keep_matches(pieces), self._emit(close=True)])
        settled = []
        while True:
            cuts = _cuts(self._buffer)
            portion = [queue[:cut] for queue, cut in zip(self._buffer, cuts, strict=True)]
            self._buffer = [queue[cut:] for queue, cut in zip(self._buffer, cuts, strict=True)]
            last = not any(len(queue) for queue in self._buffer)
            pieces = self._search.advance(self._searches, portion, self._model, all_of_it=last and close)
            settled += [self._keep_matches(pieces), self._emit(close=last and close)]
            if last:
                return _join_batches(settled)

    def _learn_model(self, *, whole: bool) -> list[tuple[Queue, Match]] | None:
        """Learn a model from the first packets, and calibrate intervals on the same packets.

        Where these are the ``whole`` of what comes and one portion, the model's last alignment of them is returned: it
        is what another search would find.
        """
        sample = take_earliest(self._buffer, _SAMPLE)
        estimates = self._search.learn(sample)
        self._model, window = estimates.model, estimates.window
        done = whole and all(len(part) == len(queue) for part, queue in zip(sample, self._buffer, strict=True))
        self._searches = estimates.searches if done else self._search.start_searches(self._model)
        matches = estimates.matches if done else None
        if window is None:
            return matches
        edges = infer_edges(window, self._precedence, self._model.times)
        operation = operations_of(window, self._precedence)
        recorded = self._search.recorded[operation]
        shown = edges.known & recorded
        order = np.argsort(window.time[shown].ravel(), kind="stable")
        seen = window.seen[shown].ravel()[order]
        inside = np.flatnonzero(seen)  # what is before and after them was perhaps not recorded
        seen = seen[inside[0] : inside[-1] + 1] if len(inside) else seen
        turns = np.flatnonzero(seen[1:] != seen[:-1])
        self._longest = max(2, int(np.max(turns[1::2] - turns[::2], initial=0)))
        self._quantiles = self._quantiles or calibrate_intervals(
            window,
            self._precedence,
            self._model.times,
            self._sequence.kind[operation].astype(np.int64),
            recorded,
            len(self._sequence.kinds),
            self._confidence,
            np.random.default_rng(self._seed),
            lambda masked: with_tempo(masked, self._precedence, self._model.times, self._model.tempo)[0],
        )
        return matches

    # -- handing out -----------------------------------------------------------------------------------------

    def _keep_matches(self, pieces: list[tuple[Queue, Match]]) -> SettledBatch:
        """Keep matches until their launch is complete, and return the packets that have no event."""
        arrivals = []
        for number, (queue, match) in enumerate(pieces):
            unmatched = np.ones(len(queue), np.bool_)
            timely = match.launch >= self._next  # others are of launches that were handed out long ago
            unmatched[match.packet[timely]] = False
            arrivals.append(queue.arrival[unmatched])
            if number == self._search.leading:
                self._undecided += undecided_silences(self._searches[number].track, match, self._model.costs)
            if len(match.launch):
                self._latest[number] = match.launch[-1]
        self._rows = match_rows(self._searches, pieces, self._rows, self._next)
        positions = np.concatenate(arrivals)
        return SettledBatch(
            empty_log(self._sequence.kinds), positions, np.full(len(positions), PacketClass.SPURIOUS, np.uint8)
        )

    def _first_open_launch(self) -> int:
        """Return the first launch of which a packet may still come."""
        active = [number for number, search in enumerate(self._searches) if len(search.track.operation)]
        top = int(self._latest[active].max(initial=-1))
        quiet = {number for number in active if not self._searches[number].pending_count}
        return min(
            (max(int(self._latest[number]), (top - _SILENT) if number in quiet else -1) for number in active), default=0
        )

    def _emit(self, *, close: bool) -> SettledBatch:
        """Return the operations of the launches that are complete."""
        none = SettledBatch(empty_log(self._sequence.kinds), np.zeros(0, np.int64), np.zeros(0, np.uint8))
        rows = self._rows
        if not len(rows):
            return none
        until = int(rows[:, LAUNCH].max()) + 1 if close else self._first_open_launch()
        if until <= max(self._next, int(rows[:, LAUNCH].min())):
            return none
        if not close:  # what the last complete launches are followed by, as far as it is known
            ahead = [(search.pending, search.best_matches()) for search in self._searches]
            rows = match_rows(self._searches, ahead, rows, self._next)
        launches, skipped = fill_launch_gaps(rows[:, LAUNCH], self._next)
        window, arrival = self._search.window(launches, rows, self._model, self._carried)
        window, walk, walk_var = with_tempo(window, self._precedence, self._model.times, self._model.tempo, self._walk)
        edges = infer_edges(window, self._precedence, self._model.times)
        covered = self._covered(window, begins=self._next < 0, ends=close)
        count = int(np.searchsorted(launches, until))
        log, inferred, uncertain = make_log(
            window, edges, self._quantiles, covered, arrival, launches, count, self._sequence, self._search.recorded,
            self._confidence, self._reorder_buffer.origin_ns,
        )  # fmt: skip
        self._inferred += inferred
        self._uncertain += uncertain
        self._skipped += skipped
        if count < len(launches):
            ends = window.before[count]
            self._carried = np.where(ends >= 0, window.time[ends, 1], self._carried)
        self._walk = float(walk[count - 1]), float(walk_var[count - 1])
        self._next = until
        done = self._rows[:, LAUNCH] < until
        positions, self._rows = self._rows[done, 0], self._rows[~done]
        packet_class = np.where(_contained(positions, arrival), PacketClass.MATCHED, PacketClass.SPURIOUS).astype(
            np.uint8
        )
        return SettledBatch(log, positions, packet_class)

    def _covered(self, window: Window, *, begins: bool, ends: bool) -> Bools:
        """Mark operations that the trace covers; an empty result means all of them.

        Of operations before its first packet or after its last one, as many as are lost in a row elsewhere count as
        lost; where there are more, recording had not begun or had ended.
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


def _contained(positions: Ints, kept: Ints) -> Bools:
    """Mark the positions that are in ``kept``: a search that restarts can match another packet with an edge
    that already has one.
    """
    if not len(positions):
        return np.zeros(0, np.bool_)
    low, high = positions.min(), positions.max()
    there = np.zeros(int(high - low) + 1, np.bool_)
    there[kept[(kept >= low) & (kept <= high)] - low] = True
    return np.asarray(there[positions - low])


def _cuts(queues: list[Queue]) -> list[int]:
    """Choose how much of each queue to search next: up to one moment, and at most a chunk of any queue."""
    if max(len(queue) for queue in queues) <= _CHUNK:
        return [len(queue) for queue in queues]
    until = min(float(queue.time[_CHUNK]) for queue in queues if len(queue) > _CHUNK)
    cuts = [min(int(np.searchsorted(queue.time, until)), _CHUNK) for queue in queues]
    return cuts if any(cuts) else [min(len(queue), _CHUNK) for queue in queues]


def _join_batches(batches: Many[SettledBatch]) -> SettledBatch:
    return SettledBatch(
        concatenate_logs([batch.log for batch in batches]),
        np.concatenate([batch.arrival for batch in batches]),
        np.concatenate([batch.packet_class for batch in batches]),
    )


def reconstruct(trace: Trace, sequence: Sequence, *, confidence: float = 0.9, seed: int = 0) -> Reconstruction:
    """Reconstruct a run from a trace in which anything may be lost, duplicated, swapped or spurious.

    ``sequence`` must be made with the kinds of the trace. Every trace gives a result; what is wrong with the trace
    is said in the ``warnings`` of the result.
    """
    return reconstruct_and_learn(trace, sequence, confidence=confidence, seed=seed)[0]


def reconstruct_and_learn(
    trace: Trace, sequence: Sequence, *, confidence: float = 0.9, seed: int = 0, known: Learned | None = None
) -> tuple[Reconstruction, Learned]:
    """Reconstruct a run, and return what it taught; parts of its trace are then aligned with this as ``known``.

    How packets are matched and how wide intervals are is not learned anew from a part, while times are.
    """
    aligner = Aligner(sequence, len(trace.kinds), trace.meta, confidence=confidence, seed=seed, known=known)
    packet_class = np.full(len(trace), PacketClass.SPURIOUS, np.uint8)
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
        packet_class[settled.arrival] = settled.packet_class
        logs.append(settled.log)
    settled = aligner.close()
    packet_class[settled.arrival] = settled.packet_class
    log = concatenate_logs([*logs, settled.log])
    warnings = list(aligner.warnings())
    matched = int(np.count_nonzero(packet_class == PacketClass.MATCHED))
    if not len(trace):
        warnings.append("the trace has no events")
    elif 2 * matched < len(trace):
        warnings.append(
            f"only {matched} of {len(trace)} packets fit the program: check that this is the trace's program"
        )
    return Reconstruction(log, packet_class, out_of_order, aligner.calibrated, tuple(warnings)), aligner.learned
