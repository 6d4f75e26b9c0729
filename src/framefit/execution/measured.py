"""What launches cost: measured on the device at hand, or told by a described one."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from framefit.core.latency_table import Value
from framefit.core.settings import Notify
from framefit.devices.device import Completion, Device, ModelledDevice
from framefit.devices.host import at_realtime_priority
from framefit.devices.measure import Measurement, measure, measure_floor, mostly_drifting
from framefit.devices.store import MeasurementStore
from framefit.execution.execution import Execution

__all__ = ["Costs", "Launch", "MeasuredCosts", "ModelledCosts"]


Launch = tuple[Execution, int]  # a segment of a compiled model
_PROBE_NS, _PROBE_ROUNDS = 2_000_000_000, 12  # to decide with
_FINAL_NS, _FINAL_ROUNDS = 4_000_000_000, 25  # to plan with
_AROUND_NS, _AROUND_LEAST, _AROUND_MOST = 1_000_000_000, 6, 40  # before and after a run
_SHARED = 0.1  # of the launches' time, that other programs had the core for
_FLOOR_WAKE_UPS, _FLOOR_PERIOD_NS = 100, 5_000_000
_DRIFTED = "the machine's speed drifted while it was measured: see framefit doctor, plan again with --no-cache"
_BUSY = f"other programs had the core for more than {_SHARED:.0%} of the time while it was measured: "
_OTHERS = _BUSY + "stop them; what was measured is not kept, the next plan measures again"
_BEFORE_OTHERS = _BUSY + "it was measured at real-time priority; background models get less while they run"


class Costs(Protocol):
    """Durations of launches, how far they vary, and how late the host wakes up.

    Attributes:
        known: whether durations are told exactly, without running anything.
        warnings: of the machine, for the user.
    """

    known: bool
    warnings: list[str]

    def probe(self, launches: Sequence[Launch]) -> list[Measurement]:
        """A first look."""
        ...

    def final(self, launches: Sequence[Launch]) -> list[Measurement]:
        """To plan with."""
        ...

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """Beside a run."""
        ...

    def excess(self, quantile: float) -> float | None:
        """A launch's quantile (0 to 1) over its median; ``None``: only samples can tell."""
        ...

    def greatest_excess(self, quantile: float) -> float:
        """How much longer than its quantile a launch may be at most, relative to it; 0: nobody knows."""
        ...

    def wake_ups(self) -> tuple[int, ...]:
        """How late the idle host wakes up, in nanoseconds."""
        ...


class MeasuredCosts:
    """By running launches in turn, or from what an earlier plan measured.

    Args:
        device: the machine's own.
        unit: of the launches.
        store: keeps what was measured.
        window_ns: length of a window; on the beat each round follows a sleep, as in a run.
        notify: receives what is being done.
        realtime: in a run priority models go before other programs' threads, so that wake-ups are measured like
            that, and where others have the core, what is on the beat, too. It has to be permitted.
    """

    known = False

    def __init__(
        self,
        device: Device,
        unit: str,
        store: MeasurementStore,
        window_ns: int,
        notify: Notify,
        *,
        realtime: bool = False,
    ) -> None:
        self.warnings: list[str] = []
        self._realtime = realtime
        self._device, self._unit, self._store, self._window_ns, self._notify = device, unit, store, window_ns, notify

    def probe(self, launches: Sequence[Launch]) -> list[Measurement]:
        """A first look."""
        return self._measured(launches, _PROBE_NS, _PROBE_ROUNDS, on_beat=True)[0]

    def final(self, launches: Sequence[Launch]) -> list[Measurement]:
        """To plan with."""
        return self._measured(launches, _FINAL_NS, _FINAL_ROUNDS, on_beat=True)[0]

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """Beside a run; never from the store."""
        return measure(
            _calls(launches),
            budget_ns=_AROUND_NS,
            least_rounds=_AROUND_LEAST,
            most_rounds=_AROUND_MOST,
            clock=self._device.clock,
            period_ns=self._window_ns,
        )

    def medians(self, key: Mapping[str, Value], launches: Callable[[], Sequence[Launch]]) -> tuple[int, ...]:
        """Medians of a campaign back to back, kept under a key of its own.

        Args:
            key: what was measured.
            launches: made only where they have to be measured.
        """
        configuration = dict(key)
        if self._store.drifted("pieces", configuration, self._unit):
            self._warn(_DRIFTED)
        medians_ns = self._store.find_numbers("pieces", configuration, self._unit)
        if medians_ns is None:
            measured, kept = self._measured(launches(), _PROBE_NS, _PROBE_ROUNDS, on_beat=False)
            medians_ns = tuple(measurement.median_ns for measurement in measured)
            if kept:
                self._store.add_numbers(
                    "pieces", configuration, self._unit, medians_ns, drifted=mostly_drifting(measured)
                )
        return medians_ns

    def excess(self, quantile: float) -> None:
        """Nobody knows: see the samples."""

    def greatest_excess(self, quantile: float) -> float:  # noqa: ARG002 - the protocol's form
        """Nobody knows: the host may stall."""
        return 0.0

    def wake_ups(self) -> tuple[int, ...]:
        """Measured once, then from the store; not kept where the host was too busy to wake up within a period."""
        key: dict[str, Value] = {"period_ns": _FLOOR_PERIOD_NS, "realtime": self._realtime}
        known = self._store.find_numbers("wake-up", key, self._unit)
        if known is not None:
            return known
        self._notify("measuring the machine's floor")
        with at_realtime_priority() if self._realtime else contextlib.nullcontext():
            late = tuple(measure_floor(self._device.clock, _FLOOR_PERIOD_NS, _FLOOR_WAKE_UPS).tolist())
        if max(late) < _FLOOR_PERIOD_NS:
            self._store.add_numbers("wake-up", key, self._unit, late)
        return late

    def _measured(
        self, launches: Sequence[Launch], budget_ns: int, least_rounds: int, *, on_beat: bool
    ) -> tuple[list[Measurement], bool]:
        """From the store where it has all of them, else measured in turn; and whether the store has them now."""
        beside = hashlib.sha256("".join(sorted(e.parts[i].digest for e, i in launches)).encode()).hexdigest()[:16]
        known = [self._store.find(e.parts[index], self._unit, beside, least_rounds) for e, index in launches]
        measured_now, kept = [measurement for measurement in known if measurement is not None], True
        if len(measured_now) < len(launches):
            random = np.random.default_rng(0)
            for execution in {id(execution): execution for execution, _ in launches}.values():
                execution.run(execution.example(random))  # real values between the segments
            take = functools.partial(
                measure,
                _calls(launches),
                budget_ns=budget_ns,
                least_rounds=least_rounds,
                clock=self._device.clock,
                period_ns=self._window_ns if on_beat else 0,
            )
            measured_now = take()
            if _disturbed(measured_now) and self._realtime and on_beat:
                self._warn(_BEFORE_OTHERS)
                measured_now = take(realtime=True)
            kept = not _disturbed(measured_now)
            if kept:
                measured = [
                    (e.parts[index], self._unit, m) for (e, index), m in zip(launches, measured_now, strict=True)
                ]
                self._store.add(beside, measured)
            else:
                self._warn(_OTHERS)
        if mostly_drifting(measured_now):
            self._warn(_DRIFTED)
        return measured_now, kept

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


class ModelledCosts:
    """What a described device says.

    Args:
        device: told by its cost source.
        host_wakes: how late the host wakes up, where it has to: on a real clock.
    """

    known = True

    def __init__(self, device: ModelledDevice, host_wakes: tuple[int, ...] = (0,)) -> None:
        self.warnings: list[str] = []
        self._device = device
        self._host_wakes = host_wakes

    def probe(self, launches: Sequence[Launch]) -> list[Measurement]:
        """The nominal durations."""
        return [Measurement(np.asarray([e.expected_ns(index)], np.int64)) for e, index in launches]

    final = around = probe

    def excess(self, quantile: float) -> float:
        """Of the target's variation."""
        return self._device.quantile_ratio(quantile)

    def greatest_excess(self, quantile: float) -> float:
        """Of the target's variation."""
        return self._device.greatest_ratio() / self._device.quantile_ratio(quantile) - 1

    def wake_ups(self) -> tuple[int, ...]:
        """The host's."""
        return self._host_wakes


def _disturbed(measured: Sequence[Measurement]) -> bool:
    """Whether other programs had the core for a good part of the time."""
    return max(measurement.away_ratio for measurement in measured) > _SHARED


def _calls(launches: Sequence[Launch]) -> list[Callable[[], Completion]]:
    return [lambda e=execution, i=index: e.launch(i) for execution, index in launches]  # type: ignore[misc]
