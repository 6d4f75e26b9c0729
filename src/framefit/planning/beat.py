"""The windows to be filled, and how models take part in them.

What priority models reserve in each window, and what that leaves free on each unit.

Where all streams have one rate a period lies within its window. Where streams have different rates the other
stream's release may follow at once: a period may go on beyond the end of its window then, or begin after it.
A priority model is in time by its deadline, which is its own stream's next release, not the next of any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from framefit.core.spacing import own_frame
from framefit.core.target import Link
from framefit.core.timetable import PlannedModel, Segment

__all__: list[str] = []


@dataclass(frozen=True)
class Demand:
    """How a model takes part in the beat.

    Attributes:
        deadline_ns: after its frame's release; default: the window for priority
            models, none for background models.
        queue: frames that may wait for it.
        every: windows between its frames, in the mean; where not every window is a release of its stream, releases
            between them; of a model that reads others, frames of theirs between its own.
        frames: frames that it takes at once.
        refuses: a full queue refuses the new frame instead of dropping the oldest.
        waits: a full queue, its own or another model's, makes the stream wait: its frames
            may come in any window. Their age counts from then on.
        releases: windows of the beat's pattern in which its stream releases a frame; default: all.
        distance_ns: of a sporadic model, whose frames come at any time: between two of them, at least.
    """

    deadline_ns: int | None = None
    queue: int = 1
    every: Fraction | int = 1
    frames: int = 1
    refuses: bool = False
    waits: bool = False
    releases: tuple[int, ...] | None = None
    distance_ns: int = 0


_USUAL = Demand()


@dataclass(frozen=True)
class Layout:
    """When the launches of priority models may begin, in the order in which their units execute them.

    Attributes:
        parts: model, window of the frame's release, number of the part, and the instant before which it waits
            although it might begin (after the first window's release; 0: it begins as soon as it can).
        cut: models whose segments are parts of their own, with other models' between them; else a stage is a part.
    """

    parts: tuple[tuple[str, int, int, int], ...]
    cut: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Beat:
    """The windows to be filled.

    Attributes:
        window_ns: length of the shortest window.
        guard_ns: time kept free before each reserved instant, at least: see :meth:`needed_ns`.
        late_ns: how late a window's first launch begins: wake-up and dispatch. It is
            part of the priority period.
        position: of the priority period in its window.
        preemptive: background work is interrupted for a priority period and goes on
            after it: no guard, no segment that does not fit.
        demands: model -> how it takes part; default: a frame in every window.
        excess_ratio: how much longer than its quantile a launch may be, at most. Where it
            is known (else 0), the guard behind each segment covers its excess, and the slack
            that of the priority models: a feasible plan is never late.
        lengths_ns: of the windows, one after the other, where they differ; they repeat.
        links: between units; where there is none, they share their memory.
        queued_ns: two units -> what their link can have to carry at once, of all models; see :meth:`shared`.
        layout: when priority launches may begin, where a search has found that; default: as soon as possible.
        yields: the model in turn yields the rest of a span that others fill better; see
            :class:`~framefit.core.policy.Rotation`.
        events: sporadic models in the order of service, each on one unit: they run in the residuals at any time, before
            background models. Their demands say how far apart events are, and when each is to be done.
    """

    window_ns: int
    guard_ns: int
    late_ns: int = 0
    position: Literal["start", "middle", "end"] = "start"
    preemptive: bool = False
    demands: Mapping[str, Demand] = field(default_factory=dict)
    excess_ratio: float = 0.0
    lengths_ns: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()
    queued_ns: Mapping[frozenset[str], int] = field(default_factory=dict)
    layout: Layout | None = None
    yields: bool = False
    events: tuple[PlannedModel, ...] = ()

    def __post_init__(self) -> None:
        if self.lengths_ns and min(self.lengths_ns) != self.window_ns:
            raise ValueError(f"window_ns is the shortest of lengths_ns, is {self.window_ns}: {self.lengths_ns}")

    @property
    def pattern_ns(self) -> tuple[int, ...]:
        """Lengths of the windows until they repeat."""
        return self.lengths_ns or (self.window_ns,)

    @property
    def even(self) -> bool:
        """Whether all windows are alike: equally long, and each brings a frame of every stream."""
        return not self.lengths_ns

    def of(self, model: str) -> Demand:
        """A model's demand."""
        return self.demands.get(model, _USUAL)

    def released(self, model: str, window: int) -> int | None:
        """Number of the frame that a model's stream releases for it in a window, or ``None``."""
        demand = self.of(model)
        number = window
        if demand.releases is not None:
            repeat, place = divmod(window, len(self.pattern_ns))
            if place not in demand.releases:
                return None
            number = repeat * len(demand.releases) + demand.releases.index(place)
        return own_frame(number, demand.every)

    def arriving(self, model: PlannedModel, models: Sequence[PlannedModel]) -> float:
        """Launches a window that a model has frames for, in the mean.

        Args:
            model: one of
            models: all of them.
        """
        demand = self.of(model.name)
        if demand.distance_ns:  # at most
            return sum(self.pattern_ns) / len(self.pattern_ns) / demand.distance_ns
        own = 1 / float(demand.every * demand.frames)
        if model.after:
            return own * min((self.arriving(one, models) for one in models if one.name in model.after), default=1.0)
        if demand.releases is None:
            return own
        return own * len(demand.releases) / len(self.pattern_ns)

    def link_ns(self, source: str, target: str, size_bytes: int) -> int:
        """From the end of a launch until its tensors are there on another unit, over an idle link."""
        link = self._link(source, target)
        return 0 if link is None else math.ceil(link.latency_ns) + math.ceil(link.occupied_ns(size_bytes))

    def longest_link_ns(self, source: str, target: str, size_bytes: int) -> int:
        """The same over a link that has to carry all that it can have to carry first."""
        link = self._link(source, target)
        if link is None:
            return 0
        own = math.ceil(link.occupied_ns(size_bytes))
        return math.ceil(link.latency_ns) + max(self.queued_ns.get(frozenset((source, target)), 0), own)

    def _link(self, source: str, target: str) -> Link | None:
        if source == target:
            return None
        return next((link for link in self.links if set(link.between) == {source, target}), None)

    def shared(self, models: Sequence[PlannedModel]) -> Beat:
        """With what each link can have to carry at once: what crosses it, as often as it exists.

        A link carries one thing at a time, in the order in which things were written: what crosses waits for
        no more than that. Of a model that others read there are as many outputs as its slots, one at least.
        """
        queued: dict[frozenset[str], int] = {}
        units = {model.name: model.segments[-1] for model in models}
        for model in models:
            crossing = [(before, after[0].unit) for before, after in _boundaries(model)]
            crossing += [(units[name], model.segments[0].unit) for name in model.after if name in units]
            for segment, unit in crossing:
                link = self._link(segment.unit, unit)
                if link is not None:
                    pair = frozenset(link.between)
                    spent = math.ceil(link.occupied_ns(segment.boundary_bytes)) * model.slots
                    queued[pair] = queued.get(pair, 0) + spent
        return replace(self, queued_ns=queued)

    def needed_ns(self, quantile_ns: int) -> int:
        """What a segment of this quantile needs before the guard: what it takes at most may reach into that."""
        return max(quantile_ns, math.ceil((1 + self.excess_ratio) * quantile_ns) - self.guard_ns)

    def own_guard_ns(self, quantile_ns: int) -> int:
        """What is kept free behind a segment of this quantile."""
        return self.guard_ns + self.needed_ns(quantile_ns) - quantile_ns

    def fitting_ns(self, room_ns: int) -> int:
        """The greatest quantile of which no more is needed than there is."""
        return min(room_ns, int((room_ns + self.guard_ns) / (1 + self.excess_ratio)))

    def guarded(self, models: Sequence[PlannedModel]) -> Beat:
        """With the guard that the priority models need where it is what follows them."""
        if self.position != "end":
            return self
        taken_ns = sum(model.duration_ns for model in models if model.role == "priority")
        return replace(self, guard_ns=max(self.guard_ns, math.ceil(self.excess_ratio * taken_ns)))


def _boundaries(model: PlannedModel) -> list[tuple[Segment, tuple[Segment, ...]]]:
    """The last segment of each stage, and the stage that follows it."""
    return [(before[-1], after) for before, after in itertools.pairwise(model.stages)]


Span = tuple[int, int]  # begin, and latest end, after the window's release
