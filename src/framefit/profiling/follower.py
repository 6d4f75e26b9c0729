"""One core's search through its packets, chunk after chunk, in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framefit.profiling.chain import BEAM, Costs, Room, advance
from framefit.profiling.estimates import Match
from framefit.profiling.intake import EMPTY, Queue, joined
from framefit.profiling.lineage import agreed, compacted, matches_of, path_of
from framefit.profiling.tracks import Tie, Track

__all__ = ["Follower"]

Ints = npt.NDArray[np.int64]

_NODES = 1 << 17  # matches kept in assignments that are still possible: some 30,000 packets
_WIDE = 4096
_SCORE, _NUMBER, _LAUNCH, _PLACE, _SPEED, _NODE = 0, 4, 5, 6, 7, 10  # columns of an assignment


class Follower:
    """Keeps the assignments that are still possible, and hands out what all of them agree on.

    Args:
        track: of the core.
        room: to work in; may be shared by searches that take turns.

    Attributes:
        worth: logarithm of the likelihood of the best assignment so far.
    """

    def __init__(self, track: Track, room: Room) -> None:
        self.track, self.worth, self._room = track, 0.0, room
        self._beam = np.zeros((_WIDE, BEAM))
        self._beam[0, _NUMBER] = self._beam[0, _LAUNCH] = self._beam[0, _NODE] = -1
        self._size, self._used, self._idle, self._born = 1, 0, 0, 0
        self._nodes = np.empty((_NODES, 4), np.int64)
        self._token = 0  # of the first packet in ``_open``
        self._open = EMPTY

    @property
    def open(self) -> int:
        """Packets of which it is not settled what they are."""
        return len(self._open)

    @property
    def waiting(self) -> Queue:
        """These packets."""
        return self._open

    @property
    def speed(self) -> float:
        """How slow the core is by its best assignment, over what its track says."""
        return float(self._beam[self._best(), _SPEED]) or 1.0

    def copy(self) -> Follower:
        """The same search, to be carried on elsewhere."""
        other = Follower(self.track, self._room)
        other._beam[: self._size] = self._beam[: self._size]
        other._size, other._used, other._idle, other._born = self._size, self._used, self._idle, self._born
        other._nodes[: self._used] = self._nodes[: self._used]
        other._token, other._open = self._token, self._open
        return other

    def follow(self, queue: Queue, tie: Tie, costs: Costs) -> None:
        """Look at packets; what they settle is handed out by :meth:`settle`."""
        done = len(self._open)
        packets = self._open = joined(self._open, queue)
        while done < len(packets):
            self._room.slots[:] = -1
            done, self._size, self._used, self._idle, self._born, worth = advance(
                packets.time, packets.symbol, packets.marked, done, self._token + done, self.track, tie, costs,
                self._room, self._beam, self._size, self._nodes, self._used, self._idle, self._born,
            )  # fmt: skip
            self.worth += worth
            if done < len(packets):
                self._make_room()

    def _make_room(self) -> None:
        self._used = compacted(self._beam, self._size, self._nodes, self._used)
        if self._used > _NODES // 2:  # nothing agreed on for tens of thousands of packets: the best one decides
            self._beam[0] = self._beam[self._best()]
            self._size = 1
            self._used = compacted(self._beam, self._size, self._nodes, self._used)
        if self._used > _NODES // 2:
            self._nodes = np.concatenate([self._nodes[: self._used], np.empty((_NODES, 4), np.int64)])

    def _best(self) -> int:
        return int(np.argmax(self._beam[: self._size, _SCORE]))

    def settle(self, *, all_of_it: bool = False) -> tuple[Queue, Match]:
        """Packets that it is now known of what they are, and the matches among them.

        Args:
            all_of_it: no more packets come: the best assignment is taken for the last ones.
        """
        node = int(self._beam[self._best(), _NODE]) if all_of_it else int(agreed(self._beam, self._size, self._nodes))
        if all_of_it:
            upto = len(self._open)
        elif node < 0:
            return EMPTY, self._match(np.zeros(0, np.int64), 0)
        else:
            upto = int(self._nodes[node, 0]) - self._token + 1
        match = self._match(path_of(self._nodes, node), upto)
        queue, self._open = self._open[:upto], self._open[upto:]
        rest = self._nodes[node + 1 : self._used].copy()
        rest[:, 3] = np.maximum(rest[:, 3] - (node + 1), -1)
        self._nodes[: len(rest)] = rest
        self._used = len(rest)
        ends = self._beam[: self._size, _NODE]
        self._beam[: self._size, _NODE] = np.where(ends > node, ends - (node + 1), -1)
        self._token += upto
        return queue, match

    def likely(self) -> Match:
        """Matches of the best assignment among the packets that are not settled."""
        return self._match(path_of(self._nodes, int(self._beam[self._best(), _NODE])), len(self._open))

    def _match(self, path: Ints, packets: int) -> Match:
        track, waiting = self.track, self._open
        packet, launch, event, time, marked = matches_of(
            self._nodes, path, self._token, track.first, track.launch_program, waiting.time, waiting.marked
        )
        return Match(packet, launch, event, time, marked, packets)

    def belief(self) -> tuple[Match, npt.NDArray[np.float64]]:
        """The latest match of each possible assignment, and its probability."""
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
            time=beam[:, 1],
            marked=np.zeros(len(beam), np.bool_),
            packets=0,
        )
        return match, weight / max(float(weight.sum()), 1e-300)
