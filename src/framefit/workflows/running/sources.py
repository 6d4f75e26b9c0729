"""Where a run's frames come from: streams of the workload, and frames that a program hands over."""

from __future__ import annotations

import copy
from collections.abc import Collection

from framefit.runtime.frames.prepare import Preparation
from framefit.runtime.frames.streams import Feed, Stream, open_stream
from framefit.runtime.models.wiring import STRICTEST, streams_of
from framefit.runtime.programs.pushed import Inbox, PushedStream, Reader
from framefit.workflows.plan import Plan
from framefit.workflows.planning.task import PlannedTask

__all__ = ["Sources"]


class Sources:
    """Streams of one run, and what brings their frames.

    Args:
        planned: feasible.
        seed: of synthetic frames.
        frames: whether frames are read; else only time passes.
        submitted: streams whose frames the program hands over.

    Attributes:
        streams: by name.
        feeds: stream -> what brings its frames; those that stay in step have one.
    """

    def __init__(self, planned: Plan, *, seed: int, frames: bool, submitted: Collection[str]) -> None:
        self._plan = planned
        self._tasks = {task.name: task for task in planned.tasks}
        folder = planned.app.resolve().parent
        # A model that reads others, too, is as far behind as their results are old.
        models = [model for timetable in planned.timetables for model in timetable.models]
        ages = [model.result_age_windows or 0 for model in models if model.after]
        behind = max(task.wired.behind for task in planned.tasks) + max(ages, default=0)
        self.streams: dict[str, Stream] = {
            entry.name: PushedStream(entry.name, self._readers(entry.name), keep=behind)
            if entry.name in submitted
            else open_stream(entry, seed + index, folder=folder, keep=behind)
            for index, entry in enumerate(streams_of(planned.workload))
            if frames
        }
        self._steps = {
            task.wired.in_step: Feed(waits=task.wired.waits, streams=task.wired.in_step) for task in planned.tasks
        }
        for step, feed in self._steps.items():
            feed.intake = self._intake(step)
        self.feeds = {name: feed for step, feed in self._steps.items() for name in step}

    def feed(self, task: PlannedTask) -> Feed:
        """What brings a model's frames; of one that reads others: nothing does."""
        return self._steps[task.wired.in_step]

    def stream(self, task: PlannedTask) -> str:
        """The stream that a model's frames are counted by; "-": none."""
        return next(iter(self._root(task).wired.sources.values()), "-")

    def inbox(self, task: PlannedTask) -> Inbox | None:
        """Where a model's frames wait until windows take them; ``None``: its streams have sources of their own."""
        intake = self.feed(self._root(task)).intake
        return intake if isinstance(intake, Inbox) else None

    @property
    def inboxes(self) -> list[Inbox]:
        """All that models read from."""
        intakes = {id(feed.intake): feed.intake for feed in self.feeds.values()}
        return [intake for intake in intakes.values() if isinstance(intake, Inbox)]

    def lengths(self) -> list[int]:
        """Of streams that end a run when they end, because nothing of them can be left; where they are known."""
        waiting = {name for name, feed in self.feeds.items() if feed.waits or feed.intake is not None}
        return [s.length for name, s in self.streams.items() if s.length is not None and name not in waiting]

    def received(self, windows: int) -> dict[str, tuple[int, int]]:
        """Stream -> frames that came in so many windows, and windows in which it waited."""
        received = {}
        for name in [entry.name for entry in streams_of(self._plan.workload)]:
            feed = self.feeds.get(name, Feed(delivered=windows))  # nobody reads it
            came = feed.intake.count if isinstance(feed.intake, Inbox) else feed.delivered
            length = self.streams[name].length if name in self.streams else None
            received[name] = came if length is None else min(came, length), feed.waited
        return received

    def _root(self, task: PlannedTask) -> PlannedTask:
        """The model at the beginning of those that it reads; itself where it reads streams."""
        while task.wired.after:
            task = self._tasks[task.wired.after[0]]
        return task

    def _readers(self, stream: str) -> list[Reader]:
        """What frames of a stream are asked for."""
        found: list[Reader] = []
        for wired in (task.wired for task in self._plan.tasks):
            for name, tensor in wired.frame_inputs.items():
                if wired.sources[name] == stream:
                    prepare: Preparation | None = wired.prepare.get(name) if tensor.shape is None else None
                    found.append((tensor, copy.deepcopy(prepare)))  # the loop uses the other one meanwhile
        return found

    def _intake(self, step: Collection[str]) -> Inbox | None:
        """For those streams of a step whose frames are handed over."""
        streams = [self.streams[name] for name in sorted(step) if name in self.streams]
        pushed = [stream for stream in streams if isinstance(stream, PushedStream)]
        if not pushed:
            return None
        entries = [entry for entry in streams_of(self._plan.workload) if entry.name in {one.name for one in pushed}]
        rules = {entry.when_full for entry in entries}
        return Inbox(
            pushed,
            min(entry.queue for entry in entries),
            next(rule for rule in STRICTEST if rule in rules),
            self._plan.device.clock.now_ns,
        )
