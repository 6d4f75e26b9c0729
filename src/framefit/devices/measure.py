"""The one way to time anything: after a warm-up, interleaved, with all samples kept.

It also compares whole models on this machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.devices.clock import Clock
from framefit.devices.device import Completion, Device, allocate, random_inputs
from framefit.devices.host import at_realtime_priority, pinned
from framefit.devices.ort import OrtDevice
from framefit.stats import Z90

__all__ = ["Measurement", "launch_of", "measure", "measure_floor", "medians_ns", "mostly_drifting"]


_LEAST_WARM_UP, _MOST_WARM_UP = 3, 12
_LEAST_SLEEP_NS = 1_000_000
_PAUSE = 8  # a round at real-time priority is followed by a pause of an eighth of its time
_SETTLED = 0.05  # largest relative difference of two rounds' medians after the warm-up
_UNSTABLE = 0.10  # relative difference of the medians of first and second half: the machine's speed drifted


@dataclass(frozen=True)
class Measurement:
    """Durations of one launch, one for each round, in order.

    Attributes:
        samples_ns: int64.
        away_ratio: part of the time of all interleaved launches in which other threads had the calling thread's
            processor; meaningless where launches do not run on that thread.
    """

    samples_ns: npt.NDArray[np.int64]
    away_ratio: float = 0.0

    @property
    def median_ns(self) -> int:
        """The 0.5 quantile."""
        return int(np.median(self.samples_ns))

    def quantile_ns(self, quantile: float) -> int:
        """An upper empirical quantile: a value that was observed."""
        return int(np.quantile(self.samples_ns, quantile, method="higher"))

    @property
    def interval_ns(self) -> tuple[int, int]:
        """90 % interval of the median, from order statistics (binomial, normal approximation)."""
        ordered = np.sort(self.samples_ns)
        count = len(ordered)
        spread = Z90 * np.sqrt(count) / 2
        low, high = int(np.floor((count - 1) / 2 - spread)), int(np.ceil((count - 1) / 2 + spread))
        return int(ordered[max(low, 0)]), int(ordered[min(high, count - 1)])

    @property
    def drift_ratio(self) -> float:
        """Median of the second half over that of the first, minus 1."""
        half = len(self.samples_ns) // 2
        if half == 0:
            return 0.0
        return float(np.median(self.samples_ns[half:]) / max(np.median(self.samples_ns[:half]), 1) - 1)

    @property
    def stable(self) -> bool:
        """Whether the machine's speed was constant during the measurement."""
        return abs(self.drift_ratio) <= _UNSTABLE


def measure(
    launches: Sequence[Callable[[], Completion]],
    *,
    budget_ns: int = 2_000_000_000,
    least_rounds: int = 20,
    most_rounds: int = 200,
    clock: Clock | None = None,
    period_ns: int = 0,
    realtime: bool = False,
    runs: int | Sequence[int] = 1,
    stop: Callable[[], bool] | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> list[Measurement]:
    """Time launches in turn: each round runs each of them, in order.

    Interleaving gives each launch the caches that it finds in a real run, and lets drift of the machine's speed
    affect all of them alike. With a period each round begins after a sleep, as a window does: after a sleep the
    caches are cold and the processor is slow.

    Args:
        launches: launches to time; the device's own completion counts. Rounds that are not kept come first,
            until their totals change by less than 5 %.
        budget_ns: time for the measurement, within the two limits on rounds.
        least_rounds: least number of samples of each launch.
        most_rounds: largest number of samples of each launch.
        runs: number of launches of each in its turn, of all or one for each; limits count rounds, and samples are
            rounds x runs.
        stop: called before each launch's turn; if it returns true, the complete rounds are returned.
        on_round: called with the number of rounds done and the number in all.
        clock: sleeps between rounds where ``period_ns`` is given.
        period_ns: time between the beginnings of two rounds; more where a round takes longer.
        realtime: whether launches take precedence over other programs' threads, which needs permission. Pauses between
            the rounds leave these a ninth of the time: the kernel stops threads that leave less than a twentieth
            (sched_rt_runtime_us).

    Returns:
        One measurement for each launch, in order; without samples if it was stopped before the end of the first
            round.
    """
    total = before = 0
    counts = [runs] * len(launches) if isinstance(runs, int) else list(runs)
    nothing = [Measurement(np.empty(0, np.int64)) for _ in launches]
    for turn in range(_MOST_WARM_UP):
        durations = []
        for launch in launches:
            if stop is not None and stop():
                return nothing
            durations.append(launch().duration_ns)
        total = sum(durations)
        if turn + 1 >= _LEAST_WARM_UP and abs(total - before) <= _SETTLED * before:
            break
        before = total
    round_ns = sum(ns * count for ns, count in zip(durations, counts, strict=True))
    rounds = min(max(budget_ns // max(round_ns, period_ns, 1), least_rounds), most_rounds)
    samples = [np.empty((rounds, count), np.int64) for count in counts]
    worked_ns = 0
    for turn in range(rounds):
        if clock is not None and (period_ns or realtime):
            least_ns = max(_LEAST_SLEEP_NS, round_ns // _PAUSE if realtime else 0)
            clock.sleep_until_ns(clock.now_ns() + max(period_ns - total, least_ns))
        begun_ns = time.thread_time_ns()
        with at_realtime_priority() if realtime else contextlib.nullcontext():
            for index, launch in enumerate(launches):
                if stop is not None and stop():
                    return [Measurement(rows[:turn].ravel()) for rows in samples]
                for run in range(counts[index]):
                    samples[index][turn, run] = launch().duration_ns
        worked_ns += time.thread_time_ns() - begun_ns
        if on_round is not None:
            on_round(turn + 1, rounds)
    away_ratio = max(1 - worked_ns / max(sum(int(rows.sum()) for rows in samples), 1), 0.0)
    return [Measurement(rows.ravel(), away_ratio) for rows in samples]


def mostly_drifting(measured: Sequence[Measurement]) -> bool:
    """Whether the machine's speed changed for more than half of the interleaved launches."""
    return sum(not measurement.stable for measurement in measured) > len(measured) / 2


def measure_floor(clock: Clock, period_ns: int, windows: int) -> npt.NDArray[np.int64]:
    """Measure how late an idle machine wakes up: the control for other measurements.

    Args:
        clock: the clock of the run.
        period_ns: time between two wake-ups, on an absolute grid.
        windows: number of wake-ups.

    Returns:
        Lateness of each in nanoseconds, int64.
    """
    start = clock.now_ns() + period_ns
    late = np.empty(windows, np.int64)
    for window in range(windows):
        clock.sleep_until_ns(start + window * period_ns)
        late[window] = clock.now_ns() - start - window * period_ns
    return late


_BUDGET_NS = 1_000_000_000


def medians_ns(models: Sequence[Model], device: Device | None = None) -> tuple[int, ...]:
    """Median latency of each model on the default core of this machine, interleaved, in nanoseconds.

    Args:
        models: models to launch.
        device: the device; default: ONNX Runtime alone.

    Raises:
        DeviceError: the runtime cannot compile a model.
    """
    device = device or OrtDevice()
    with pinned(device.host_core):
        unit = device.target.units[0].name
        measured = measure([launch_of(device, model, unit) for model in models], budget_ns=_BUDGET_NS)
    return tuple(measurement.median_ns for measurement in measured)


def launch_of(device: Device, model: Model, unit: str) -> Callable[[], Completion]:
    """Make a launch of a whole model with random inputs.

    Raises:
        DeviceError: the model cannot be compiled.
    """
    handle = device.compile(model, unit, model.name)
    tensors = random_inputs(model.inputs, np.random.default_rng(0))
    bound = handle.bind(tensors | {tensor.name: allocate(tensor) for tensor in model.outputs if tensor.fixed})
    return lambda: device.submit(bound)
