"""Models on the beat inside a program: it hands frames over and takes results, and the beat goes on beside it.

A run that goes on in a thread of its own, while a program does something else.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from framefit.core.journal import Claim
from framefit.core.run_record import Metrics
from framefit.core.settings import Notify, silent
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload, load_workload, streams_of
from framefit.core.workload_merge import shared
from framefit.devices.clock import RealClock, SteppedClock
from framefit.devices.device import is_simulated
from framefit.devices.host import format_cores, reserved_cores
from framefit.errors import FramefitError, InputError
from framefit.planning.plan import Plan
from framefit.runtime.program import (
    EventQueue,
    FrameFate,
    Output,
    PushedStream,
    Request,
    SubmissionQueue,
    Subscription,
)
from framefit.runtime.session import MOST_SECONDS, MeasuredRun, Session
from framefit.workflows.plan import names_plan, plan, read_plan, ready, retimed
from framefit.workflows.record import (
    RunResult,
    accepted,
    begin_record,
    claimed_run,
    next_part,
    result_of,
    saved,
)

__all__ = ["Runner"]


logger = logging.getLogger(__name__)
_POLL_S = 0.002  # a thread that waits looks itself, where no window leaves the time to wake it


class RunThread:
    """A run from its first window to its end, whenever that comes.

    Args:
        planned: feasible and verified.
        submitted: streams whose frames are handed over.
        seed: of synthetic frames, and of a described device's variation.
        virtual: time only passes where it is let.
        measures: measure before and after, as a run does that leaves a folder.
        force: overwrite sinks.
        notify: receives what is being done.
        claim: of the run folder; ``None``: there is none.

    Attributes:
        session: what runs.
        failure: what ended it; ``None``: nothing did.
    """

    def __init__(
        self,
        planned: Plan,
        submitted: Collection[str],
        *,
        seed: int,
        virtual: bool,
        measures: bool,
        force: bool,
        notify: Notify,
        claim: Claim | None = None,
    ) -> None:
        self.clock: SteppedClock | RealClock = SteppedClock() if virtual else RealClock()
        if is_simulated(planned.device):
            planned.device.clock, planned.device.computes = self.clock, True
        self.session = Session(
            planned.opened(),
            seed=seed,
            submitted=submitted,
            published=True,
            journal=None if claim is None else next_part(claim),
        )
        self.failure: BaseException | None = None
        self._notify, self._plan, self._claim = notify, planned, claim
        self._measured = MeasuredRun(self.session, seed=seed, force=force, measures=measures, notify=notify)
        device = planned.device
        self._cores = {device.host_core}
        if device.capabilities.runs_on_host:
            self._cores |= {device.target.unit(unit).core for unit in planned.timetable.units}
        self._thread = threading.Thread(target=self._live, name="framefit-runner", daemon=True)
        self._warm, self._go, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._draining = self._stopping = False
        self._moved = threading.Condition()  # something may have come
        self._stepping = threading.RLock()
        self._windows_let = 0
        self._most = min([int(MOST_SECONDS * planned.workload.beat_hz) - 1, *self.session.sources.lengths()])
        self._leaving = contextlib.ExitStack()

    def begin(self) -> None:
        """Return when the first window is about to begin.

        Raises:
            FramefitError: a model does not run here, or a sink cannot be opened.
        """
        self._thread.start()
        try:
            self._warm.wait()
            if not isinstance(self.clock, SteppedClock) and self.failure is None:
                alone = self._leaving.enter_context(reserved_cores(self._cores, self._thread.native_id or 0))
                if not alone:
                    logger.warning(
                        "the program is not kept off the models' core %s: it has no other, or this system cannot",
                        format_cores(sorted(self._cores)),
                    )
            self._go.set()
            if isinstance(self.clock, SteppedClock):
                self.clock.wait_held()
                self.clock.pass_until(self.session.group.start_ns - 1)
            elif any(isinstance(submissions, EventQueue) for submissions in self.session.submission_queues):
                self._wait_for_release()  # bounds on waits hold from then on
            if self.failure is not None:
                raise self.failure
        except BaseException:
            self.end(drain=False)
            with contextlib.suppress(FramefitError):
                self.session.close()
            raise

    def _wait_for_release(self) -> None:
        """Return when the first window begins, or the run has failed."""
        group = self.session.group
        while not self._ended.is_set() and not 0 < group.start_ns <= self.clock.now_ns():
            time.sleep(_POLL_S)

    def end(self, *, drain: bool) -> None:
        """Bring it to its end.

        Args:
            drain: finish the frames that wait; else they are given up.
        """
        try:
            self._close()
            self._stopping, self._draining = not drain, True
            self._go.set()
            if isinstance(self.clock, SteppedClock):
                self.clock.let_go()
            self._thread.join()
        except BaseException:  # Ctrl-C while frames are finished
            self._stopping = True
            self._thread.join()
            raise
        finally:
            self._leaving.close()

    def step(self, windows: int) -> None:
        """Let windows of virtual time pass.

        Raises:
            InputError: time is real.
            FramefitError: what ended the run.
        """
        if not isinstance(self.clock, SteppedClock):
            raise InputError("time is real: it passes by itself", remedy="say virtual=True")
        with self._stepping:
            for _ in range(windows):
                self.check()
                self._pass(self.clock, None)
        self.check()

    def _pass(self, clock: SteppedClock, until_ns: int | None) -> None:
        """Let the rest of a window pass, or only the time until then."""
        with self._stepping:
            end_ns = self.session.group.release(self._windows_let + 1) - 1
            if until_ns is not None and until_ns < end_ns:
                clock.pass_until(until_ns)
                return
            self._windows_let += 1
            clock.pass_until(end_ns)

    # How a program's threads wait

    def alone(self) -> contextlib.AbstractContextManager[object]:
        """Keeps other threads from letting virtual time pass."""
        return self._stepping

    def until_ns(self, timeout_s: float | None) -> int | None:
        """When a wait from now on is over, on the run's clock; ``None``: never."""
        return None if timeout_s is None else self.clock.now_ns() + round(timeout_s * 1e9)

    def sooner_ns(self, until_ns: int | None, rest_ns: int) -> int | None:
        """Until then, or until a time has passed (0: none), whichever comes first."""
        if not rest_ns:
            return until_ns
        after_ns = self.clock.now_ns() + rest_ns
        return after_ns if until_ns is None else min(after_ns, until_ns)

    def pause(self, until_ns: int | None) -> bool:
        """Let some time pass; false where none is left, or nothing more will come."""
        if self.over():
            return False
        rest_ns = None if until_ns is None else until_ns - self.clock.now_ns()
        if rest_ns is not None and rest_ns <= 0:
            return False
        if isinstance(self.clock, SteppedClock):
            if rest_ns is None and not self.session.group.at_work():
                return False
            self._pass(self.clock, until_ns)
            return True
        with self._moved:
            self._moved.wait(_POLL_S if rest_ns is None else min(_POLL_S, rest_ns / 1e9))
        return True

    def over(self) -> bool:
        """Whether nothing more will come."""
        return self._ended.is_set()

    def check(self) -> None:
        """Raise what ended the run, if something did."""
        if self._ended.is_set() and self.failure is not None:
            raise self.failure

    # What came of it

    def metrics(self) -> Metrics:
        """Figures so far."""
        return self.session.metrics(self._measured.floor)

    def result(self, folder: Path, *, interrupted: bool) -> RunResult:
        """All of it, after the end.

        Raises:
            InputError: it goes on.
        """
        if not self.over():
            raise InputError("the run goes on", remedy="ask after the with block; until then call metrics()")
        return result_of(self._measured, folder, interrupted=interrupted)

    # The run's own thread

    def _live(self) -> None:
        """Warm up, keep the beat until the end, and account for everything."""
        session = self.session
        try:
            with self._measured.processor():
                self._measured.warm_up(0)
                if self._claim is not None:
                    begin_record(
                        self._claim, self._measured, self._plan, verb="Runner", windows=self._most, outputs=True
                    )
                self._warm.set()
                self._go.wait()
                self._notify("running")
                self._measured.play(self._most, stop=self._is_over, on_idle=self._on_idle)
                self.failure = self._measured.failure
        except BaseException as error:  # noqa: BLE001 - raised again in the program's threads
            self.failure = self.failure or error
        finally:
            self._close()
            for submissions in session.submission_queues:
                submissions.empty()
            self._ended.set()
            if isinstance(self.clock, SteppedClock):
                self.clock.leave()
            self._warm.set()
            self._wake()

    def _is_over(self) -> bool:
        """Asked before every launch."""
        return self._draining and (self._stopping or not self.session.group.at_work())

    def _on_idle(self, windows: int) -> None:  # noqa: ARG002 - the dispatcher's form
        """A window leaves time: wake whoever waits for a result or for room."""
        self._wake()
        for submissions in self.session.submission_queues:
            submissions.wake()

    def _wake(self) -> None:
        """Not at the price of waiting: a thread may have been put aside while it holds the lock."""
        if self._moved.acquire(blocking=False):
            self._moved.notify_all()
            self._moved.release()

    def _close(self) -> None:
        """Take no more frames."""
        for submissions in self.session.submission_queues:
            submissions.close(self._why)

    def _why(self) -> Exception:
        """What a program gets that hands a frame over too late."""
        if isinstance(self.failure, Exception):
            return self.failure
        return FramefitError("the run has ended", remedy="submit within the with block")


class Runner:
    """Runs the models of a workload beside a program's own loop.

    The beat is the plan's. A frame that is submitted waits until the next window begins, which
    takes one frame of each stream; a window for which none was submitted is empty: no miss, and
    background models go on. The run has a thread of its own, pinned to the plan's core; those of
    the program are kept off it where there is another. All methods may be called by any thread.

    Args:
        apps: an ``app.toml`` or a plan of one, stored or not; or several files, of applications that share the
            runner: a model that two of them need runs once a frame.
        target: instead of the workload's, where that is not planned yet: a built-in name, or the path of a
            ``target.toml``.
        submitted: streams whose frames are submitted; default: those whose source is "synthetic".
        keep: results of each model that wait for :meth:`outputs`; the oldest gives way. With 0 results are
            only for those who subscribe or request.
        drain: at the end of the ``with`` block frames that wait are finished; else it ends at once. After
            an exception it always does.
        output: a run folder, written at the end.
        force: overwrite folder and sinks.
        cache: use measurements of earlier plans.
        seed: of a described device's variation, and of synthetic frames.
        virtual: for tests, on a described device: time only passes where the program lets it. A window passes
            when each stream was given a frame, and in :meth:`step`, :meth:`wait` and :meth:`Request.result`.
        notify: receives what is being done, from the run's thread too.

    Attributes:
        timetable: the plan, once it runs.

    Example:
        >>> with framefit.Runner("app.toml") as runner:  # doctest: +SKIP
        ...     for image in camera:
        ...         runner.submit(image)
        ...         for output in runner.outputs():
        ...             print(output.model, output.frame, output.tensors["boxes"])
    """

    timetable: Timetable

    def __init__(
        self,
        *apps: str | Path | Plan,
        target: str | None = None,
        submitted: Collection[str] | None = None,
        keep: int = 64,
        drain: bool = True,
        output: str | Path | None = None,
        force: bool = False,
        cache: bool = True,
        seed: int = 0,
        virtual: bool = False,
        notify: Notify = silent,
    ) -> None:
        if not apps:
            raise InputError("no application", remedy="name an app.toml")
        if len(apps) > 1 and any(isinstance(app, Plan) for app in apps):
            raise InputError("a plan beside another application", remedy="name their app.toml files: they are one plan")
        if len(apps) == 1 and not isinstance(apps[0], Plan) and names_plan(apps[0]):
            apps = (read_plan(apps[0], notify),)
        self._apps, self._target, self._streams, self._keep = apps, target, submitted, keep
        self._drain, self._output, self._force, self._cache = drain, output, force, cache
        self._seed, self._virtual, self._notify = seed, virtual, notify
        self._run_thread: RunThread | None = None
        self._all: Subscription | None = None
        self._names: tuple[dict[str, str], ...] = ()
        self._interrupted = False
        self._claim: Claim | None = None
        self._result: RunResult | None = None

    def __enter__(self) -> Self:
        """Plan, warm up, and begin.

        Raises:
            InputError: see :func:`framefit.plan` and :func:`framefit.run`; applications that cannot share a
                runner; a stream that is not there.
            InfeasibleError: the plan does not fit.
            DeviceError: a model does not run here.
        """
        if self._run_thread is not None:
            raise InputError("this runner has run", remedy="make another one")
        self._claim = None if self._output is None else claimed_run(Path(), self._output, force=self._force)
        try:
            return self._begun()
        except BaseException:
            if self._claim is not None:
                self._claim.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run: what was submitted is finished (``drain``), and every frame accounted for.

        Raises:
            FramefitError: what ended the run before; a sink or a folder that cannot be completed.
        """
        run_thread, ctrl_c = self._running, None
        self._interrupted = error is not None and error is not run_thread.failure
        try:
            run_thread.end(drain=self._drain and error is None)
        except BaseException as again:  # noqa: BLE001 - raised below, when all is saved
            self._interrupted, ctrl_c = True, again
        failure = run_thread.failure
        try:
            run_thread.session.close()
        except FramefitError as unfinished:
            failure = failure or unfinished
        if self._output is not None:
            try:
                self._result = self._saved(failure)
            except FramefitError as unwritten:
                failure = failure or unwritten
            finally:
                if self._claim is not None:
                    self._claim.release()
        if ctrl_c is not None:
            raise ctrl_c
        if failure is None or failure is error:
            return
        if error is None:
            raise failure
        error.add_note(f"the run had ended before: {failure}")

    # Frames

    def submit(
        self,
        frame: object,
        stream: str | None = None,
        *,
        timeout: float | None = None,
        copy: bool = True,
    ) -> int:
        """Hand a frame over; the next window that is free takes it. An event of a sporadic model waits for no window.

        An event that comes sooner than ``min_distance_ms`` after the one before is dropped, which :meth:`fate` and
        ``frames.csv`` say; where the stream's ``when_full`` is "block" this call waits until it may come.

        Args:
            frame: an array as the stream's frames are; for streams that one model reads together a
                dict, stream -> array.
            stream: its name; may be left out where there is one.
            timeout: seconds to wait for room where the stream's ``when_full`` is "block"; ``None``: for ever.
                The other rules never wait: a frame gives way.
            copy: take a copy. Without one the array belongs to the runner: leave it as it is.

        Returns:
            The frame's number: frames of a stream are counted from 0 as they are submitted, the ones
            that give way included.

        Raises:
            InputError: no such stream, or a frame that does not fit it.
            TimeUpError: there was no room in time. The frame was not taken.
            FramefitError: the run has ended, or what ended it.
        """
        return self._submit(frame, stream, timeout, None, copy=copy)

    def request(
        self,
        frame: object,
        stream: str | None = None,
        *,
        models: Sequence[str] | None = None,
        timeout: float | None = None,
        copy: bool = True,
    ) -> Request:
        """Submit a frame, and ask what models make of this very one.

        Args:
            frame: as for :meth:`submit`.
            stream: likewise.
            timeout: likewise, for room; ``result`` has its own.
            copy: likewise.
            models: names; default: all that read the stream.

        Returns:
            Its ``result()`` waits for the answers.

        Raises:
            InputError: also: a model that does not read the stream.
        """
        submissions = self._inbox(self._stream(frame, stream))
        readers = {name: tap for name, tap in self._taps.items() if tap.submissions is submissions}
        names = list(readers) if models is None else [self._model(name) for name in models]
        for name in names:
            if name not in readers:
                raise InputError(f"model {name!r} does not read that stream", remedy=f"ask for: {', '.join(readers)}")
        request = Request([readers[name] for name in names], self._running)
        self._submit(frame, stream, timeout, request, copy=copy)
        return request

    def fate(self, number: int, stream: str | None = None) -> dict[str, FrameFate]:
        """What has become of a frame: model -> fate and reason, for each that reads the stream.

        Args:
            number: as :meth:`submit` gave it.
            stream: its name; may be left out where there is one.

        Raises:
            InputError: no such stream, or no such frame.
        """
        submissions = self._inbox(self._stream(None, stream))
        if not 0 <= number < submissions.count:
            raise InputError(
                f"no frame {number}: {submissions.count} were submitted", remedy="give a number of submit()"
            )
        return {name: tap.fate(number) for name, tap in self._taps.items() if tap.submissions is submissions}

    def set_rate(self, stream: str, rate_hz: float) -> None:
        """Set the rate of a stream from now on: windows and timetable follow.

        The timetable changes at the first window in which all streams release together, under one that was
        planned ahead (``rates_hz`` of the stream) or that this call plans first, of the segments that there
        are. Until then windows go on as before: a frame that is late for one leaves it empty, and those that come
        too fast wait or give way by the stream's rules. Frames in flight are finished.

        Args:
            stream: its name.
            rate_hz: frames a second.

        Raises:
            InputError: no such stream, or rates that hardly ever meet.
            InfeasibleError: the models do not fit at that rate; it stays as it is.
        """
        if stream in self._plan.workload.event_streams:
            raise InputError(f"stream {stream!r} brings events: it has no rate", remedy="name another stream")
        names = self._plan.workload.stream_names
        if stream not in names:
            raise InputError(
                f"no stream {stream!r}; streams: {', '.join(names) or 'none is named'}", remedy="correct it"
            )
        session = self._running.session
        session.switching.set_rate(
            stream,
            rate_hz,
            lambda workload: retimed(self._plan, workload, self._notify),
            lambda: session.group.windows,
        )

    # Results

    def outputs(self) -> Iterator[Output]:
        """What was finished since the last call, each model's frames in order; never waits.

        Raises:
            FramefitError: what ended the run, after the last result.
        """
        return self._everything.outputs()

    def wait(self, timeout: float | None = None) -> Output | None:
        """The next result of :meth:`outputs`; ``None`` after ``timeout`` seconds, or where no more will come.

        Raises:
            FramefitError: what ended the run, after the last result.
        """
        return self._everything.wait(timeout)

    @property
    def dropped(self) -> int:
        """Results that :meth:`outputs` lost because nobody took them in time, as far as later ones were read."""
        return self._everything.dropped

    def subscribe(self, model: str, tensors: Sequence[str] | None = None, *, queue: int = 8) -> Subscription:
        """Results of a model from now on, in a queue of their own.

        Args:
            model: its name, in any of the applications.
            tensors: outputs; default: all.
            queue: results that wait at most; the oldest gives way, and is counted.

        Raises:
            InputError: no such model or output.
        """
        return Subscription([self._taps[self._model(model)]], tensors, queue, self._running)

    def metrics(self) -> Metrics:
        """Figures since the beginning; after the end those of the result.

        While the run goes on bounds are left out, overheads are the plan's, and what happened last may be missing.
        """
        return self.result().metrics if self._running.over() else self._running.metrics()

    def result(self) -> RunResult:
        """What :func:`framefit.run` gives, after the end.

        Without ``output`` nothing was written: ``folder`` is where it would lie.

        Raises:
            InputError: the run goes on.
        """
        if self._result is None:
            self._result = self._running.result(self._folder, interrupted=self._interrupted)
        return self._result

    def step(self, windows: int = 1) -> None:
        """Virtual time: let windows pass.

        Raises:
            InputError: time is real.
            FramefitError: what ended the run.
        """
        self._running.step(windows)

    # Within

    def _begun(self) -> Self:
        self._plan, self._folder = self._planned()
        self.timetable = self._plan.timetable
        run_thread = RunThread(
            self._plan,
            self._submitted(self._plan.workload),
            seed=self._seed,
            virtual=self._virtual,
            measures=self._output is not None and not self._virtual,
            force=self._force,
            notify=self._notify,
            claim=self._claim,
        )
        self._taps = run_thread.session.publishers
        taps = list(self._taps.values()) if self._keep else []
        everything = Subscription(taps, None, self._keep or 1, run_thread)
        run_thread.begin()
        self._run_thread, self._all = run_thread, everything
        return self

    @property
    def _running(self) -> RunThread:
        if self._run_thread is None:
            raise InputError("the runner has not begun", remedy="use it in a with block")
        return self._run_thread

    @property
    def _everything(self) -> Subscription:
        """What :meth:`outputs` reads."""
        if self._all is None:
            raise InputError("the runner has not begun", remedy="use it in a with block")
        return self._all

    def _planned(self) -> tuple[Plan, Path]:
        """The plan, and where the run folder will lie."""
        app = self._apps[0]
        if isinstance(app, Plan):
            path, workload = app.app, app.workload
        else:
            path = Path(app)
            files = [Path(str(app_file)) for app_file in self._apps]
            together = shared([(file, load_workload(file)) for file in files])
            workload, self._names = together.workload, together.names
        _, _, folder = accepted(
            app,
            windows=None,
            seconds=None,
            output=self._output,
            force=self._force,
            seed=self._seed,
            workload=workload,
        )
        if isinstance(app, Plan):
            planned = app
        else:
            planned = plan(
                path,
                target=self._target,
                cache=self._cache,
                in_real_time=not self._virtual,
                notify=self._notify,
                workload=workload,
            )
        described = is_simulated(planned.device)
        if (
            self._virtual
            and len(planned.timetable.units) > 1
            and self._submitted(workload) & workload.event_streams.keys()
        ):
            raise InputError(
                "events in virtual time need a plan on one unit: a program's thread wakes no other one there",
                where=path,
                remedy="name one unit for all models, or simulate with times_ms",
            )
        if self._virtual and not described:
            raise InputError(
                f"target {planned.device.target.name!r} is this machine: its time is real",
                where=path,
                remedy="name a described target, or leave virtual out",
            )
        if described and not self._virtual and not planned.in_real_time:
            raise InputError(
                "this plan is for virtual time: it leaves no time for this host's late wake-ups",
                where=path,
                remedy="plan with in_real_time=True, give the app.toml, or say virtual=True",
            )
        return ready(planned, self._notify), folder

    def _submitted(self, workload: Workload) -> frozenset[str]:
        """Streams whose frames are handed over."""
        streams = {entry.name: entry for entry in streams_of(workload)}
        if self._streams is None:
            return frozenset(name for name, entry in streams.items() if entry.source == "synthetic")
        for name in self._streams:
            if name not in streams:
                raise InputError(f"no stream {name!r}; streams: {', '.join(streams)}", remedy="correct submitted")
        return frozenset(self._streams)

    def _submit(
        self, frame: object, stream: str | None, timeout: float | None, request: Request | None, *, copy: bool
    ) -> int:
        name = self._stream(frame, stream)
        submissions = self._inbox(name)
        frames = frame if isinstance(frame, Mapping) else {name: frame}
        if frames.keys() != submissions.streams.keys():
            raise InputError(
                f"frames of {', '.join(map(repr, frames))} are given; "
                f"models read {', '.join(map(repr, submissions.streams))} together",
                remedy="submit a dict of all of them",
            )
        forms = {name: submissions.streams[name].forms(data, copy=copy) for name, data in frames.items()}
        announce = None if request is None else request.announce
        run_thread = self._running
        if not self._virtual:
            return submissions.put(forms, timeout_s=timeout, announce=announce)
        with run_thread.alone():
            until_ns = run_thread.until_ns(timeout)
            while submissions.full and run_thread.pause(run_thread.sooner_ns(until_ns, submissions.open_ns)):
                pass
            number = submissions.put(forms, timeout_s=0, announce=announce)
            queues = [queue for queue in run_thread.session.submission_queues if not isinstance(queue, EventQueue)]
            if submissions in queues and all(len(queue) for queue in queues):
                run_thread.step(1)
        return number

    def _stream(self, frame: object, stream: str | None) -> str:
        """The stream that is meant."""
        names = [name for submissions in self._running.session.submission_queues for name in submissions.streams]
        if isinstance(frame, Mapping) and stream is None:
            stream = next(iter(frame), None)
        if stream is None and len(names) == 1:
            return names[0]
        if stream is None:
            if not names:
                raise InputError(
                    "no stream takes frames: all have sources of their own", remedy="name some: submitted=[...]"
                )
            raise InputError("which stream is it for?", remedy=f"name one: {', '.join(names)}")
        return stream

    def _inbox(self, stream: str) -> SubmissionQueue:
        for submissions in self._running.session.submission_queues:
            if stream in submissions.streams:
                return submissions
        streams = self._running.session.sources.streams
        if isinstance(streams.get(stream), PushedStream):
            raise InputError(f"no model reads stream {stream!r}", remedy="name another one")
        what = f"stream {stream!r} has a source of its own" if stream in streams else f"no stream {stream!r}"
        known = ", ".join(
            name for submissions in self._running.session.submission_queues for name in submissions.streams
        )
        raise InputError(f"{what}; frames are taken for: {known or 'none'}", remedy="correct it")

    def _model(self, name: str) -> str:
        """A model by what any of the applications calls it."""
        for names in ({tap: tap for tap in self._taps}, *self._names):
            if name in names:
                return names[name]
        raise InputError(f"no model {name!r}; models: {', '.join(self._taps)}", remedy="correct the name")

    def _saved(self, failure: BaseException | None) -> RunResult:
        """The result, with its folder."""
        result = self._running.result(self._folder, interrupted=self._interrupted)
        assert self._claim is not None
        return saved(
            result,
            self._plan,
            self._claim,
            seed=self._seed,
            failure=failure if isinstance(failure, FramefitError) else None,
            notify=self._notify,
        )
