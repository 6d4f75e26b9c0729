"""Launches that do not end: how long one may take, and who terminates it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType

from framefit.core.timetable import Timetable
from framefit.devices.clock import RealClock
from framefit.devices.device import Device
from framefit.devices.host import on_other_cores, thread_state
from framefit.errors import LostUnitError
from framefit.runtime.units import UnitGroup

logger = logging.getLogger(__name__)
_TIMES = 4  # as long as the longest segment's planned quantile: drift and stalls are no hang
_LEAST_WINDOWS = 2
_LEAST_REAL_NS = 500_000_000  # a host that stops this machine does so for up to some 100 ms
_LOOKS = 4  # while patience lasts


def patience_ns(timetable: Timetable, unit: str, *, real: bool) -> int:
    """What a launch on a unit may take before it counts as hung.

    Four times the longest planned quantile of the unit's segments, as long as priority models may interrupt it, and
    two windows at least; where time is real half a second at least, for the machine itself may be stopped.

    Args:
        timetable: that runs.
        unit: of it.
        real: whether time is.
    """
    longest = max((s.duration_ns for model in timetable.models for s in model.segments if s.unit == unit), default=0)
    if timetable.preemptive:
        longest = longest * timetable.window_ns // max(timetable.residual_ns, 1)
    return max(_TIMES * longest, _LEAST_WINDOWS * timetable.window_ns, _LEAST_REAL_NS if real else 0)


def watched(run: UnitGroup, device: Device, patience: Mapping[str, int], play: Callable[[], None]) -> None:
    """Play a run in a thread of its own, and terminate launches that do not end.

    The calling thread looks a few times while patience lasts whether every thread of the run has done something since;
    one that has not, and is in a launch, gets its unit freed, unless it only waits for a core that other programs
    have. The run itself reports nothing for that: it costs it nothing.
    In virtual time nothing hangs for real, and the run is played as it is.

    Args:
        run: that is played.
        device: what its launches are submitted to.
        patience: unit -> how long a launch may take.
        play: plays it, until it is over.

    Raises:
        LostUnitError: a launch cannot be terminated; all frames are accounted for, and the thread is left to itself.
        BaseException: what ``play`` raised.
    """
    if not isinstance(device.clock, RealClock):
        play()
        return
    failures: list[BaseException] = []

    def work() -> None:
        try:
            play()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that watches
            failures.append(error)

    thread = threading.Thread(target=work, name="framefit-run", daemon=True)
    thread.start()
    watch = _Watch(run, device, patience)
    try:
        with on_other_cores():
            while thread.is_alive():
                thread.join(min(patience.values(), default=_LEAST_REAL_NS) / _LOOKS / 1e9)
                watch.look()
    except LostUnitError:
        run.abandon()
        raise
    except BaseException:  # Ctrl-C
        run.end_early()
        thread.join()
        raise
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class _Sign:
    """What a thread had done last, since when that is known, and what it had spent on the processor by then."""

    sign: object
    since_ns: int
    worked_ns: int
    terminated: bool = False


class _Watch:
    """What was seen of each thread of a run, and when it was seen to change last."""

    def __init__(self, run: UnitGroup, device: Device, patience: Mapping[str, int]) -> None:
        self._run, self._device, self._patience = run, device, patience
        self._submit: CodeType = type(device).submit.__code__
        self._seen: dict[int, _Sign] = {}

    def look(self) -> None:
        """Terminate what hangs.

        Raises:
            LostUnitError: what was terminated still hangs.
        """
        now_ns = self._device.clock.now_ns()
        for unit, dispatcher in self._run.dispatchers.items():
            for thread, sign in dispatcher.progress().items():
                seen = self._seen.get(thread)
                if seen is None or sign != seen.sign or not _within(thread, self._submit):
                    self._seen[thread] = _Sign(sign, now_ns, thread_state(thread)[1])
                elif now_ns - seen.since_ns > self._patience[unit] and not self._starves(thread, unit, seen):
                    self._end(unit, terminated=seen.terminated)
                    self._seen[thread] = _Sign(sign, now_ns, thread_state(thread)[1], terminated=True)

    def _starves(self, thread: int, unit: str, seen: _Sign) -> bool:
        """Whether other programs keep a thread from computing: that is no hang, however long it lasts."""
        runnable, worked_ns = thread_state(thread)
        return runnable and worked_ns - seen.worked_ns <= self._patience[unit]

    def _end(self, unit: str, *, terminated: bool) -> None:
        if terminated:
            raise LostUnitError(
                f"a launch on unit {unit!r} does not end, and cannot be terminated",
                where=self._device.target.name,
                remedy="reset the device, and look into its driver",
            )
        logger.warning(
            "a launch on unit %s has not ended in %.0f ms: it is terminated", unit, self._patience[unit] / 1e6
        )
        self._device.terminate(unit)


def _within(thread: int, code: CodeType) -> bool:
    """Whether a thread is inside of a function, or of what that called."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - public, for all its name
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
