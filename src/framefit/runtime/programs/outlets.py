"""Results on their way to a program: what is finished, for whoever asked for it, in bounded queues."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, Self

from framefit.devices.device import Array
from framefit.errors import FramefitError, InputError
from framefit.runtime.frames.streams import Arrival
from framefit.runtime.models.job import Job
from framefit.runtime.outputs.sinks import AggregatingSink
from framefit.runtime.programs.pushed import Inbox, TimeUpError
from framefit.runtime.records.fates import fated
from framefit.runtime.records.log import Fate, Fates

__all__ = ["Channel", "FrameFate", "Output", "Request", "Subscription", "Tap", "Waits"]


class FrameFate(NamedTuple):
    """What has become of a frame at one model, and why."""

    fate: Literal["waiting", "done", "late", "dropped", "skipped"]
    reason: str


@dataclass(frozen=True, eq=False)
class Output:
    """What a model gave for a frame.

    Attributes:
        model: its name.
        frame: number of the frame, as ``submit`` gave it; of several at once the newest's.
        frames: all that went into it, in order.
        tensors: outputs by name, or what ``postprocess`` made of them; the receiver's own.
        submitted_ns: when the frame was handed over; ``None``: its stream has a source of its own.
        released_ns: begin of the window that took it.
        started_ns, finished_ns: of the model's launches. Times are on the runner's clock: the
            machine's (``time.perf_counter_ns``), or virtual.
        fate: "late" where it was finished after its deadline.
    """

    model: str
    frame: int
    frames: tuple[int, ...]
    tensors: Mapping[str, Array]
    submitted_ns: int | None
    released_ns: int
    started_ns: int
    finished_ns: int
    fate: Literal["done", "late"]


class Waits(Protocol):
    """How a program's thread waits: asleep, or by letting virtual time pass."""

    def until_ns(self, timeout_s: float | None) -> int | None:
        """When a wait from now on is over, on the run's clock; ``None``: never."""

    def pause(self, until_ns: int | None) -> bool:
        """Let some time pass; false where none is left, or nothing more will come."""

    def over(self) -> bool:
        """Whether nothing more will come."""

    def check(self) -> None:
        """Raise what ended the run, if something did."""


class _Finished(NamedTuple):
    """A frame that is done, as the run's thread leaves it."""

    arrivals: Sequence[Arrival]
    released_ns: int
    started_ns: int
    finished_ns: int
    late: bool
    tensors: Mapping[str, Array]
    shared: bool  # others have the same arrays


class Tap:
    """Where a model's results leave the run. Called by the run's thread: it takes no lock, and waits for nobody.

    Args:
        index: number of the model in the log.
        name: of the model.
        job: the model as it runs.
        inbox: where its frames waited; ``None``: its streams have sources of their own.
        fates: told at once.
        release: window -> when it began.
        outputs: names that can be asked for; ``None``: whatever its postprocess gives.
        aggregate: frames whose outputs are given out together.
    """

    def __init__(
        self,
        index: int,
        name: str,
        job: Job,
        inbox: Inbox | None,
        fates: Fates,
        release: Callable[[int], int],
        *,
        outputs: Sequence[str] | None,
        aggregate: int,
    ) -> None:
        self.name = name
        self.inbox = inbox
        self.outputs = outputs
        self.aggregate = aggregate
        self.after: tuple[Tap, ...] = ()
        """Of the models that this one reads: what they drop never comes to it."""
        self.wanted: dict[int, tuple[Request, ...]] = {}
        self._index, self._job, self._fates, self._release = index, job, fates, release
        self._receivers: tuple[tuple[Channel, ...], tuple[str, ...] | None] = ((), None)
        self._changing = threading.Lock()  # among those who subscribe
        job.told.append(self)

    def __call__(self, arrivals: Sequence[Arrival], started_ns: int, finished_ns: int) -> None:
        """A frame is done; hand its outputs to everybody who asked for them."""
        released = self._release(arrivals[-1].window)
        deadline = self._job.deadline_ns
        late = deadline is not None and finished_ns - released > deadline
        for arrival in arrivals:
            self._fates.decide(self._index, arrival.frame, Fate.LATE if late else Fate.DONE)
        (channels, names), requests = self._receivers, self._requests(arrivals) if self.wanted else ()
        if not channels and not requests:
            return
        shared = len(channels) + len(requests) > 1
        tensors = self._job.execution.results(None if requests else names)
        finished = _Finished(arrivals, released, started_ns, finished_ns, late, tensors, shared)
        for channel in channels:
            channel.put(finished)
        for request in requests:
            request.put(self, finished)

    def attach(self, channel: Channel) -> None:
        """Fill a channel from the next frame on."""
        with self._changing:
            self._send_to((*self._receivers[0], channel))

    def detach(self, channel: Channel) -> None:
        """Fill it no more."""
        with self._changing:
            self._send_to(tuple(one for one in self._receivers[0] if one is not channel))

    def fate(self, number: int) -> FrameFate:
        """What has become of the frame that was submitted under a number."""
        assert self.inbox is not None
        index = self.inbox.index(number)
        if index is None:
            why = self.inbox.dropped(number)
            return FrameFate("waiting", "") if why is None else FrameFate("dropped", why)
        fate = self._fates.of(self._index, index)
        if fate is not None:
            return FrameFate(*fated(fate))
        given = {tap.fate(number).fate for tap in self.after}
        if "dropped" in given:
            return FrameFate(*fated(Fate.NOT_GIVEN))
        return FrameFate(*fated(Fate.SKIPPED)) if "skipped" in given else FrameFate("waiting", "")

    def check(self, tensors: Sequence[str] | None) -> None:
        """Refuse names of outputs that there are not.

        Raises:
            InputError: the first of them.
        """
        for name in tensors or ():
            if self.outputs is not None and name not in self.outputs:
                raise InputError(
                    f"model {self.name!r} has no output {name!r}; outputs: {', '.join(self.outputs)}",
                    remedy="correct the name",
                )

    def output(self, finished: _Finished, names: Sequence[str] | None) -> Output:
        """For a receiver, in its own thread.

        Raises:
            InputError: its postprocess gave no output of a name.
        """
        given = finished.tensors
        for name in names or ():
            if name not in given:
                raise InputError(
                    f"model {self.name!r} gave no output {name!r}; it gave: {', '.join(given)}",
                    remedy="correct the name, or the postprocess",
                )
        tensors = {name: given[name] for name in (given if names is None else names)}
        if finished.shared:
            tensors = {name: array.copy() for name, array in tensors.items()}
        newest = finished.arrivals[-1].frame
        numbers = tuple(one.frame if self.inbox is None else self.inbox.number(one.frame) for one in finished.arrivals)
        return Output(
            model=self.name,
            frame=numbers[-1],
            frames=numbers,
            tensors=tensors,
            submitted_ns=None if self.inbox is None else self.inbox.submitted_ns(newest),
            released_ns=finished.released_ns,
            started_ns=finished.started_ns,
            finished_ns=finished.finished_ns,
            fate="late" if finished.late else "done",
        )

    def _send_to(self, channels: tuple[Channel, ...]) -> None:
        """From the next frame on, and copy no outputs but those that they ask for: in one step, for others read it."""
        named = [channel.names for channel in channels if channel.names is not None]
        everything = len(named) < len(channels) or self.outputs is None
        self._receivers = channels, None if everything else tuple(dict.fromkeys(itertools.chain(*named)))

    def _requests(self, arrivals: Sequence[Arrival]) -> tuple[Request, ...]:
        """Those for these frames; they are answered once."""
        assert self.inbox is not None
        found: tuple[Request, ...] = ()
        for arrival in arrivals:
            found += self.wanted.pop(self.inbox.number(arrival.frame), ())
        return found


class Channel:
    """What one model finished, for one receiver. The run's thread fills it, and the oldest gives way.

    Args:
        tap: of the model.
        names: of the outputs; ``None``: all.
        depth: results that wait at most.
    """

    def __init__(self, tap: Tap, names: Sequence[str] | None, depth: int) -> None:
        self.tap = tap
        self.names = names
        self.dropped = 0
        self._queue: deque[tuple[int, _Finished]] = deque(maxlen=depth * tap.aggregate)
        self._filled = self._emptied = 0
        self._parts: list[Output] = []
        self._stack = _Stack()
        self._stacks = AggregatingSink(self._stack, tap.aggregate) if tap.aggregate > 1 else None

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, finished: _Finished) -> None:
        """Add a frame."""
        self._queue.append((self._filled, finished))
        self._filled += 1

    def next_ns(self) -> int | None:
        """When the frame that waited longest was finished; ``None``: none waits."""
        try:
            return self._queue[0][1].finished_ns
        except IndexError:
            return None

    def take(self) -> Output | None:
        """The frame that waited longest, or a whole stack; ``None``: there is none."""
        while True:
            try:
                ordinal, finished = self._queue.popleft()
            except IndexError:
                return None
            self.dropped += ordinal - self._emptied
            self._emptied = ordinal + 1
            output = self.tap.output(finished, self.names)
            if self._stacks is None:
                return output
            self._stacks.put(output.frame, dict(output.tensors))
            self._parts.append(output)
            if len(self._parts) == self.tap.aggregate:
                return self._stacked()

    def rest(self) -> Output | None:
        """An incomplete stack, after the last frame."""
        if self._stacks is None or not self._parts:
            return None
        self._stacks.close()
        return self._stacked()

    def _stacked(self) -> Output:
        parts, self._parts = self._parts, []
        late = any(part.fate == "late" for part in parts)
        return replace(
            parts[-1],
            frames=tuple(number for part in parts for number in part.frames),
            tensors=self._stack.outputs,
            started_ns=parts[0].started_ns,
            fate="late" if late else "done",
        )


class _Stack:
    """Takes a stack, and keeps it."""

    def __init__(self) -> None:
        self.outputs: dict[str, Array] = {}

    def put(self, frame: int, outputs: dict[str, Array]) -> None:  # noqa: ARG002 - the protocol's form
        self.outputs = outputs

    def close(self) -> None:
        """Nothing is left to do."""


class Subscription:
    """Results for one receiver, in a bounded queue of its own; the oldest gives way, and is counted.

    Any thread may read it. It is a context manager that ends the subscription.

    Args:
        taps: of the models.
        names: of the outputs; ``None``: all.
        depth: results of each model that wait at most.
        waits: how to wait.
    """

    def __init__(self, taps: Sequence[Tap], names: Sequence[str] | None, depth: int, waits: Waits) -> None:
        if depth < 1:
            raise InputError(f"queue = {depth} holds nothing", remedy="give 1 or more")
        for tap in taps:
            tap.check(names)
        self._channels = [Channel(tap, names, depth) for tap in taps]
        self._waits = waits
        self._taking = threading.Lock()  # among receivers only
        self._closed = False
        for channel in self._channels:
            channel.tap.attach(channel)

    @property
    def dropped(self) -> int:
        """Results that gave way because nobody took them in time, as far as later ones were read."""
        return sum(channel.dropped for channel in self._channels)

    def outputs(self) -> Iterator[Output]:
        """What is finished by now and was not read yet, each model's frames in order; never waits.

        Raises:
            FramefitError: what ended the run, after the last result.
        """
        for _ in range(max(sum(map(len, self._channels)), 1)):
            output = self._take()
            if output is None:
                self._waits.check()
                return
            yield output

    def wait(self, timeout: float | None = None) -> Output | None:
        """The next result.

        Args:
            timeout: seconds; ``None``: for as long as one may come.

        Returns:
            ``None`` after that time, or where the run or the subscription has ended.

        Raises:
            FramefitError: what ended the run, after the last result.
        """
        until_ns = self._waits.until_ns(timeout)
        while True:
            output = self._take()
            if output is not None:
                return output
            if self._closed or not self._waits.pause(until_ns):
                output = self._take()
                if output is None:
                    self._waits.check()
                return output

    def __iter__(self) -> Iterator[Output]:
        """Results as they come, until the run or the subscription ends."""
        while (output := self.wait()) is not None:
            yield output

    def close(self) -> None:
        """End it; what waits can still be read."""
        self._closed = True
        for channel in self._channels:
            channel.tap.detach(channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> Output | None:
        """Of the models' oldest results the one that was finished first."""
        with self._taking:
            while True:
                waiting = [
                    (at, number) for number, one in enumerate(self._channels) if (at := one.next_ns()) is not None
                ]
                if not waiting:
                    break
                output = self._channels[min(waiting)[1]].take()
                if output is not None:
                    return output
            if self._waits.over():
                for channel in self._channels:
                    output = None if len(channel) else channel.rest()
                    if output is not None:
                        return output
            return None


class Request:
    """A frame that was handed over together with the question what models make of it.

    Attributes:
        number: of the frame.

    Args:
        taps: of the models that are asked.
        waits: how to wait.
    """

    def __init__(self, taps: Sequence[Tap], waits: Waits) -> None:
        self.number = -1
        self._taps = taps
        self._waits = waits
        self._found: dict[str, Output] = {}
        self._queue: deque[tuple[Tap, _Finished]] = deque()

    def announce(self, number: int) -> None:
        """Its frame has a number; from here on it may be answered."""
        self.number = number
        for tap in self._taps:
            for one in tuple(tap.wanted):  # requests whose frames were dropped are never answered
                if tap.fate(one).fate in ("dropped", "skipped"):
                    tap.wanted.pop(one, None)
            tap.wanted[number] = (*tap.wanted.get(number, ()), self)

    def put(self, tap: Tap, finished: _Finished) -> None:
        """An answer; called by the run's thread."""
        self._queue.append((tap, finished))

    @property
    def done(self) -> bool:
        """Whether :meth:`result` needs not wait."""
        return not self._open()

    def result(self, timeout: float | None = None) -> dict[str, Output]:
        """What the models made of the frame: model -> output.

        Args:
            timeout: seconds; ``None``: as long as it takes.

        Raises:
            TimeUpError: not all answered in time.
            FramefitError: a model dropped or skipped the frame, or what ended the run.
        """
        until_ns = self._waits.until_ns(timeout)
        while self._open():
            if not self._waits.pause(until_ns) and self._open():
                self._waits.check()
                raise TimeUpError(
                    f"frame {self.number} is not done in time", where=f"model {self._open()[0].name!r}",
                    remedy="wait longer",
                )  # fmt: skip
        for tap in self._taps:
            if tap.name not in self._found:
                self._waits.check()
                fate = tap.fate(self.number)
                again = "submit less often, or give the stream a deeper queue"
                raise FramefitError(
                    f"frame {self.number} was {fate.fate}: {fate.reason}",
                    where=f"model {tap.name!r}",
                    remedy="submit the next one: the run goes on" if fate.reason.startswith("fault") else again,
                )
        return dict(self._found)

    def _open(self) -> list[Tap]:
        """Models from which an answer may still come."""
        decided = {tap.name for tap in self._taps if self._decided(tap.fate(self.number))}
        while self._queue:
            tap, finished = self._queue.popleft()
            self._found[tap.name] = tap.output(finished, None)
        return [tap for tap in self._taps if tap.name not in self._found and tap.name not in decided]

    def _decided(self, fate: FrameFate) -> bool:
        """Whether a frame will not be answered; why the run has ended is known only when all of it has."""
        ended = fate.reason.startswith("the run ended")
        return fate.fate in ("dropped", "skipped") and (not ended or self._waits.over())
