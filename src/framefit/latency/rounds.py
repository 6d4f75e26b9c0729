"""Launches timed in turn with a reference between them: the samples of every estimate in this room.

A driver may report times in steps of a microsecond or more. The step of its clock is determined first, from launches
that begin at random moments. Where it matters, every launch begins at a random moment: reported durations are then
right on average (dither; Gray and Stockham, 1993, "Dithered Quantizers"), while medians lie on the clock's grid. So
means without outliers replace them, and the variance of a mean of n samples is at least step^2 / (6 n), that of a
difference of two such times.

Results are computed for many replicates of the same measurement at once: row 0 holds the medians, the other
rows those of resampled rounds (bootstrap; Efron and Tibshirani, 1993, "An Introduction to the Bootstrap",
chapter 6), so that each result has its own interval. Rounds are drawn in blocks of neighbours (Politis and Romano,
1992, "A Circular Block-Resampling Procedure for Stationary Data"): the speed of a machine drifts, so rounds that follow
each other are alike, and drawn one by one they would claim to say more than they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import MeasuredRun
from framefit.core.model import Auxiliary, Model, TensorInfo, with_auxiliary
from framefit.devices.device import Completion, Device, allocate, random_inputs
from framefit.devices.measure import Measurement, measure
from framefit.errors import DeviceError
from framefit.stats import robust_deviation

Floats = npt.NDArray[np.float64]
RUNS = 5  # of each launch in its turn
_SETTLING = 3  # launches; measured: a turn's first takes 1.1 to 2.9 times its fifth, the second 1.01 to 1.17 times
_MOST_SETTLING, _SETTLING_NS = 16, 100_000_000  # a whole network of 7 ms still takes 1.06 times in its eighth launch
_KEPT = 0.8  # of the rounds on a shared processor; unlike quantiles, their means add up from layers to networks
_BETWEEN_REFERENCES = 8  # launches
_DRIFTED = 0.05
_UNSTEADY = 0.10
_SPREAD = 0.05
_SLOW, _QUICK = 1.1, 0.1  # of a quick round's time; which quantile that is
_REFERENCE = TensorInfo(name="x", dtype="float32", shape=(1, 16, 32, 32))
_REPLICATES = 200
_PROBES = 40  # launches of the reference, to find the clock's step
_COARSE = 0.05  # step over a launch's own deviation: medians of steps this large are off by more than noise is
_EQUAL_NS = 2  # two times told in a step that is no whole number of ns
_OUTLYING, _STEPS = 5.0, 1.5  # deviations, and steps
_PROBE_WAIT_NS = 1_000_000


@dataclass
class Run:
    """A launch and its samples so far.

    Attributes:
        digest: of the model, and of the state in which it is launched.
        first_ns: duration of its first launch.
        settling: the first launches of a turn, which are not among the samples.
        samples_ns: rounds x launches in a turn, corrected for drift.
        turns_ns: the first launch of each turn, behind those of other runs; whether or not it is among the samples.
            Only of rounds in which all take part: how much few others evict says nothing.
    """

    role: str
    digest: str
    launch: Callable[[], Completion]
    input_bytes: int
    output_bytes: int
    first_ns: int
    settling: int
    samples_ns: Floats = field(default_factory=lambda: np.empty((0, RUNS)))
    turns_ns: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def rounds_ns(self) -> Floats:
        """Median of each round."""
        return np.asarray(np.median(self.samples_ns, axis=1))

    @property
    def usual_ns(self) -> float:
        """Duration of a launch, as far as it is known."""
        return float(np.median(self.rounds_ns)) if len(self.samples_ns) else float(self.first_ns)

    def kept_ns(self, step_ns: float) -> Floats:
        """The samples in order without those that something disturbed, where a clock tells steps of this size."""
        samples = self.samples_ns.ravel()
        middle = np.median(samples)
        away = np.abs(samples - middle)
        return np.asarray(samples[away <= _OUTLYING * robust_deviation(samples) + _STEPS * step_ns])


class Rounds:
    """Times models on one unit: in turn, round after round, with a reference between them.

    Only start and end of launches are used, so any device can be measured. The seed is for inputs and resampling.

    A resident unit is the host's processor, which others may share. The first launches of a turn find caches and
    branch predictors in the state of the preceding launches, and are not kept; whole networks take longer to settle
    than layers. Disturbances hit single launches, not all alike: drift is not corrected, as the samples would be
    divided by the reference's own disturbances; and since most disturbances only add time, the longest rounds are
    ignored.
    """

    def __init__(self, device: Device, unit: str, seed: int = 0, *, resident: bool = False) -> None:
        self.runs: list[Run] = []
        self.drift_ratio = 0.0
        """Range of the device's speed during the measurement."""
        self.slow_rounds: list[int] = []
        """Rounds of the latest call of :meth:`measure` that something slowed down, counted from its end, below 0."""
        self.step_ns = 0.0
        """Step of the device's clock where it is too coarse for medians; else 0."""
        self._device, self._resident = device, resident
        self._kept = _KEPT if resident else None
        self._unit = unit
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._wait_ns = 0.0  # before a launch begins, at most
        self._probed = False
        self._places: dict[str, int] = {}
        self._quick_ns: dict[int, float] = {}
        self._reference = self.add("reference", with_auxiliary(_REFERENCE, [Auxiliary(kind="avgpool")]))

    def add(self, role: str, model: Model, before: Callable[[], None] | None = None) -> int:
        """Compile, bind and launch once; equal models share a run. Returns its index in ``runs``.

        ``before`` is called before each launch and is not timed; for roles see
        :class:`~framefit.core.latency_table.MeasuredRun`.

        Raises:
            FramefitError: it does not compile or run, or one of its tensors has no fixed size.
        """
        digest = f"{model.digest} settled" if self._resident else model.digest
        if digest in self._places:
            return self._places[digest]
        tensors = (*model.inputs, *model.outputs)
        for tensor in tensors:
            if not tensor.fixed or not tensor.bytes:
                raise DeviceError(f"tensor {tensor.name!r} has no fixed size", where=model.name)
        handle = self._device.compile(model, self._unit, f"{role} {len(self.runs)}")
        arrays = {tensor.name: allocate(tensor) for tensor in tensors}
        for name, values in random_inputs(model.inputs, np.random.default_rng(self._seed)).items():
            arrays[name][...] = values
        binding = handle.bind(arrays)
        first = self._device.submit(binding)
        self._places[digest] = len(self.runs)
        read, written = (sum(tensor.bytes for tensor in crossing) for crossing in (model.inputs, model.outputs))

        def launch() -> Completion:
            if before is not None:
                before()
            if self._wait_ns:
                clock = self._device.clock
                clock.sleep_until_ns(clock.now_ns() + int(self._random.uniform(0, self._wait_ns)))
            return self._device.submit(binding)

        settling = _SETTLING if self._resident else 0
        if settling and role == "network":
            settling = min(max(_SETTLING_NS // max(first.duration_ns, 1), settling), _MOST_SETTLING)
        self.runs.append(Run(role, digest, launch, read, written, first.duration_ns, settling))
        return len(self.runs) - 1

    def measure(
        self,
        rounds: int,
        stop: Callable[[], bool] | None = None,
        on_round: Callable[[int, int], None] | None = None,
    ) -> bool:
        """Time all runs that have fewer rounds; return whether they have them now.

        ``stop`` is called between launches, and complete rounds are kept; ``on_round`` receives rounds done and in all.
        """
        waiting = [run for run in self.runs if len(run.samples_ns) < rounds]
        if not waiting:
            return True
        missing = rounds - min(len(run.samples_ns) for run in waiting)
        return self._time(waiting, missing, stop, on_round, turns=True)

    def repeat(
        self,
        rounds: int,
        places: Collection[int],
        stop: Callable[[], bool] | None = None,
        on_round: Callable[[int, int], None] | None = None,
    ) -> bool:
        """Time so many more rounds of the runs with these indices; return whether all of them were timed.

        Each run has a part in every round, however many samples it has: what is subtracted from another then saw the
        same machine.
        """
        return self._time([self.runs[place] for place in sorted(places)], rounds, stop, on_round)

    def _time(
        self,
        waiting: Sequence[Run],
        missing: int,
        stop: Callable[[], bool] | None,
        on_round: Callable[[int, int], None] | None,
        *,
        turns: bool = False,
    ) -> bool:
        """Time so many rounds of these runs, with the reference between them."""
        if not self._resident and not self._probed:
            self.step_ns = self._wait_ns = self._clock_step_ns()
            self._probed = True
        reference = self.runs[self._reference]
        order: list[Run] = []
        for place, run in enumerate(run for run in waiting if run is not reference):
            order += [reference] * (place % _BETWEEN_REFERENCES == 0) + [run]
        order.append(reference)
        timings = measure(
            [run.launch for run in order],
            least_rounds=missing,
            most_rounds=missing,
            runs=[run.settling + RUNS for run in order],
            stop=stop,
            on_round=on_round,
        )
        launches = [
            np.asarray(timing.samples_ns, np.float64).reshape(-1, run.settling + RUNS)
            for run, timing in zip(order, timings, strict=True)
        ]
        self.slow_rounds = self._slow(np.asarray([values.sum(axis=1) for values in launches]).sum(axis=0), len(order))
        samples = np.asarray([values[:, -RUNS:] for values in launches])
        firsts = np.asarray([values[:, 0] for values in launches])
        is_reference = np.asarray([run is reference for run in order])
        speeds = self._speeds(samples[is_reference], np.flatnonzero(is_reference), len(order))
        if not self._resident:
            samples, firsts = samples / speeds[:, :, None], firsts / speeds
        for run, values, first in zip(order, samples, firsts, strict=True):
            if run is not reference:
                run.samples_ns = np.concatenate([run.samples_ns, values])
                if turns:
                    run.turns_ns = np.concatenate([run.turns_ns, first])
        of_reference = samples[is_reference].transpose(1, 0, 2).reshape(-1, RUNS)
        reference.samples_ns = np.concatenate([reference.samples_ns, of_reference])
        reference.turns_ns = np.concatenate([reference.turns_ns, firsts[is_reference].T.ravel()])
        return bool(samples.shape[1] == missing)

    def drop_slow(self) -> None:
        """Forget the slow rounds of a measurement of all runs."""
        for place, run in enumerate(self.runs):
            if place != self._reference:
                run.samples_ns = np.delete(run.samples_ns, self.slow_rounds, axis=0)
                run.turns_ns = np.delete(run.turns_ns, self.slow_rounds)
        self.slow_rounds = []

    def round_ns(self, places: Collection[int]) -> float:
        """Duration of a round of these runs, including the reference's turns."""
        turns = len(places) // _BETWEEN_REFERENCES + 2
        runs = [*(self.runs[place] for place in places), *[self.runs[self._reference]] * turns]
        return sum((run.settling + RUNS) * run.usual_ns for run in runs)

    @property
    def measured(self) -> bool:
        """Whether every run has samples."""
        return all(len(run.samples_ns) for run in self.runs)

    def medians(self) -> Floats:
        """Replicates x runs: medians of rounds' medians in row 0, those of resampled rounds in the others.

        On a shared processor means of the shortest rounds' medians are used instead; with a coarse clock, means.
        """
        if self.step_ns:
            kept = [run.kept_ns(self.step_ns) for run in self.runs]
            means = np.asarray([samples.mean() for samples in kept])
            variances = [max(float(samples.var()), self.step_ns**2 / 6) / len(samples) for samples in kept]
            drawn = np.random.default_rng(self._seed).standard_normal((_REPLICATES, len(kept)))
            return np.vstack([means, means + drawn * np.sqrt(variances)])
        return replicates([run.rounds_ns for run in self.runs], np.random.default_rng(self._seed), self._kept)

    def in_turn(self) -> Floats | None:
        """As :meth:`medians`, of each turn's first launch; ``None`` where caches do not count, or it is not known."""
        if not self._resident or not all(len(run.turns_ns) for run in self.runs):
            return None
        return replicates([run.turns_ns for run in self.runs], np.random.default_rng(self._seed), self._kept)

    def median_ns(self, place: int) -> float:
        """Row 0 of :meth:`medians` for a run that has samples."""
        if self.step_ns:
            return float(self.runs[place].kept_ns(self.step_ns).mean())
        return float(_middle(self.runs[place].rounds_ns[None], self._kept)[0])

    def in_turn_ns(self, place: int) -> tuple[float, tuple[float, float]]:
        """Duration of a run behind others, with its 90 % interval."""
        turns = replicates([self.runs[place].turns_ns], np.random.default_rng(self._seed), self._kept)[:, 0]
        return float(turns[0]), interval(turns)

    def steady(self, place: int) -> bool:
        """Whether the device's speed stayed the same while this run was measured."""
        if not self.step_ns:
            return Measurement(self.runs[place].samples_ns.ravel()).stable  # type: ignore[arg-type]  # ns, not whole
        halves = np.array_split(self.runs[place].kept_ns(self.step_ns), 2)
        first, second = (max(float(half.mean()), 1.0) for half in halves)
        unknown = self.step_ns * np.sqrt(sum(1 / len(half) for half in halves) / 6)
        return bool(abs(second - first) <= _UNSTEADY * first + 2 * unknown)

    def take_over(self, earlier: Sequence[MeasuredRun]) -> None:
        """Adopt samples of an interrupted campaign, if it ran the same models in turns of the same length."""
        for run in earlier:
            place = self._places.get(run.digest)
            if place is None or len(self.runs[place].samples_ns):
                continue
            if run.unit == self._unit and run.runs == RUNS:
                self.runs[place].samples_ns = np.asarray(run.samples_ns, np.float64).reshape(-1, RUNS)

    def warnings(self) -> list[str]:
        """Reasons why the samples are uncertain, each with a remedy."""
        warnings: list[str] = []
        if not self.measured:
            return warnings
        if self.drift_ratio > _DRIFTED:
            done = "affected all launches alike" if self._resident else "the reference corrects"
            warnings.append(
                f"the device's speed changed by {100 * self.drift_ratio:.0f} % during the measurement, which {done}: "
                "stop other programs, let the clock settle (framefit doctor), and measure again"
            )
        noisy = 0
        for run in self.runs:
            coarse = self.step_ns / np.sqrt(6 * RUNS)
            middle = max(float(np.median(run.rounds_ns)), 1.0)
            noisy += robust_deviation(run.rounds_ns) > _SPREAD * middle + coarse
        if noisy > len(self.runs) / 4:
            warnings.append(
                f"{noisy} of {len(self.runs)} launches vary by more than {100 * _SPREAD:.0f} % from round to "
                "round: stop other programs (framefit doctor), or raise --repeats"
            )
        return warnings

    def records(self) -> tuple[MeasuredRun, ...]:
        """All samples, as records of a latency table."""
        return tuple(
            MeasuredRun(
                role=run.role,
                digest=run.digest,
                unit=self._unit,
                input_bytes=run.input_bytes,
                output_bytes=run.output_bytes,
                runs=RUNS,
                samples_ns=tuple(np.rint(run.samples_ns.ravel()).astype(np.int64).tolist()),
            )
            for run in self.runs
        )

    def _slow(self, totals_ns: Floats, launches: int) -> list[int]:
        """Rounds that took longer than the quick ones, of any call with as many launches; the last round is -1."""
        if not len(totals_ns):
            return []
        quick_ns = min(float(np.quantile(totals_ns, _QUICK)), self._quick_ns.get(launches, math.inf))
        self._quick_ns[launches] = quick_ns
        return (np.flatnonzero(totals_ns > _SLOW * quick_ns) - len(totals_ns)).tolist()

    def _clock_step_ns(self) -> float:
        """The step of the device's clock; 0 where it is fine beside the noise.

        Launches of the reference begin at random moments. All times that a stepped clock tells differ by whole steps;
        where a step is no whole number of ns, what launches take still differs by one step at least.
        """
        launch = self.runs[self._reference].launch
        self._wait_ns = _PROBE_WAIT_NS
        done = [launch() for _ in range(_PROBES)]
        durations = np.unique([completion.duration_ns for completion in done]).astype(np.float64)
        gaps = np.diff(durations)
        gaps = gaps[gaps > _EQUAL_NS]
        common = math.gcd(*(completion.started_ns - done[0].started_ns for completion in done[1:]))
        step = max(float(gaps.min()) if len(gaps) else 0.0, float(common))
        deviation = float(np.subtract(*np.quantile([one.duration_ns for one in done], (0.84, 0.16)))) / 2
        return step if step > max(_COARSE * deviation, _EQUAL_NS) else 0.0

    def _speeds(self, references: Floats, places: npt.NDArray[np.intp], count: int) -> Floats:
        """Slowdown of the device against its usual speed, for each launch and round.

        Medians of the reference's turns, each with its neighbours, and only as far as they vary more than noise
        explains: on a steady device this adds no noise of its own.

        Args:
            references: turns in a round x rounds x launches in a turn.
            places: indices of these turns in a round's order.
            count: launches of a round.
        """
        rounds = references.shape[1]
        if rounds == 0:
            return np.ones((count, 0))
        if self.step_ns:
            usual = float(np.median(references))
            most = _OUTLYING * robust_deviation(references.ravel()) + _STEPS * self.step_ns
            references = np.clip(references, usual - most, usual + most)
            turns = references.mean(axis=2).T.ravel()
        else:
            turns = np.median(references, axis=2).T.ravel()  # in order of time
        earlier = self.runs[self._reference].samples_ns
        middle = np.mean if self.step_ns else np.median
        usual = self.median_ns(self._reference) if len(earlier) else float(middle(turns))
        ratio = turns / usual
        padded = np.concatenate([ratio[:1], ratio, ratio[-1:]])
        smooth = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
        apart = references.transpose(1, 0, 2).reshape(len(turns), -1) - turns[:, None]
        if self.step_ns:
            noise = float(apart.var()) / usual**2 / (RUNS - 1) / 3  # of a mean; of three of them
        else:
            noise = (1.2533 * robust_deviation(apart / turns[:, None])) ** 2 / RUNS / 3  # of a median
        seen = float(np.mean((smooth - 1) ** 2))
        share = max(0.0, 1 - noise / seen) if seen > 0 else 0.0
        speeds = 1 + share * (smooth - 1)
        self.drift_ratio = max(self.drift_ratio, share * float(np.subtract(*np.quantile(smooth, (0.95, 0.05)))))
        times = (np.arange(rounds)[:, None] * count + places[None, :]).ravel()
        return np.asarray(np.interp(np.arange(rounds * count), times, speeds)).reshape(rounds, count).T


def replicates(rounds_ns: Sequence[Floats], random: np.random.Generator, kept_ratio: float | None = None) -> Floats:
    """(1 + replicates) x runs: the middle of each run's rounds, and that of as many, drawn in blocks of neighbours."""
    table = np.empty((1 + _REPLICATES, len(rounds_ns)))
    for column, values in enumerate(rounds_ns):
        count, length = len(values), max(round(len(values) ** (1 / 3)), 1)
        begins = random.integers(0, count, (_REPLICATES, math.ceil(count / length), 1))
        drawn = ((begins + np.arange(length)) % count).reshape(_REPLICATES, -1)[:, :count]
        table[0, column] = _middle(values[None], kept_ratio)[0]
        table[1:, column] = _middle(values[drawn], kept_ratio)
    return table


def _middle(values: Floats, kept_ratio: float | None) -> Floats:
    """The median of each row, or the mean of this part of its values, the shortest."""
    if kept_ratio is None:
        return np.asarray(np.median(values, axis=1))
    kept = max(round(kept_ratio * values.shape[1]), 1)
    return np.asarray(np.sort(values, axis=1)[:, :kept].mean(axis=1))


def interval(values: Floats) -> tuple[float, float]:
    """90 % interval from replicates; it contains row 0, the value itself."""
    low, high = np.quantile(values[1:], (0.05, 0.95))
    return float(min(low, values[0])), float(max(high, values[0]))
