"""Launches timed in turn, a reference between them: what every estimate here is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import MeasuredRun
from framefit.core.model import Auxiliary, Model, TensorInfo, with_auxiliary
from framefit.devices.device import Completion, Device, allocate, random_inputs
from framefit.devices.measure import measure
from framefit.errors import DeviceError
from framefit.latency.design import input_bytes
from framefit.latency.overhead import replicates

__all__ = ["RUNS", "Rounds", "Run", "deviation"]

Floats = npt.NDArray[np.float64]

RUNS = 5  # of each launch in its turn
_BETWEEN_REFERENCES = 8  # launches
_REFERENCE = TensorInfo(name="x", dtype="float32", shape=(1, 16, 32, 32))


@dataclass
class Run:
    """A launch and its samples so far.

    Attributes:
        samples_ns: rounds x launches in a turn, drift taken out.
    """

    role: str
    model: Model
    launch: Callable[[], Completion]
    input_bytes: int
    output_bytes: int
    samples_ns: Floats = field(default_factory=lambda: np.empty((0, RUNS)))

    @property
    def rounds_ns(self) -> Floats:
        """Median of each round."""
        return np.asarray(np.median(self.samples_ns, axis=1))


class Rounds:
    """Times models on one unit: in turn, round after round, with a reference between them.

    Args:
        device: any; only start and end of its launches are used.
        unit: of its target.
        seed: of inputs and resampling.
    """

    def __init__(self, device: Device, unit: str, seed: int = 0) -> None:
        self.runs: list[Run] = []
        self.drift_ratio = 0.0
        """Range of the device's speed while it was measured."""
        self._device = device
        self._unit = unit
        self._seed = seed
        self._places: dict[str, int] = {}
        self._reference = self.add("reference", with_auxiliary(_REFERENCE, [Auxiliary(kind="avgpool")]))

    def add(self, role: str, model: Model) -> int:
        """Compile, bind and launch once; equal models are one run.

        Returns:
            Its place in ``runs``.

        Raises:
            FramefitError: it does not compile or run there, or a tensor of it has no fixed size.
        """
        if model.digest in self._places:
            return self._places[model.digest]
        tensors = (*model.inputs, *model.outputs)
        for tensor in tensors:
            if not tensor.fixed or not tensor.bytes:
                raise DeviceError(f"tensor {tensor.name!r} has no fixed size", where=model.name)
        handle = self._device.compile(model, self._unit, f"{role} {len(self.runs)}")
        arrays = {tensor.name: allocate(tensor) for tensor in tensors}
        for name, values in random_inputs(model.inputs, np.random.default_rng(self._seed)).items():
            arrays[name][...] = values
        binding = handle.bind(arrays)
        self._device.submit(binding)
        self._places[model.digest] = len(self.runs)
        out = sum(tensor.bytes for tensor in model.outputs)
        self.runs.append(Run(role, model, lambda: self._device.submit(binding), input_bytes(model), out))
        return len(self.runs) - 1

    def measure(
        self, rounds: int, stop: Callable[[], bool] | None = None, on_round: Callable[[int, int], None] | None = None
    ) -> bool:
        """Time what has less than so many rounds.

        Args:
            rounds: that every run is to have.
            stop: asked between launches; complete rounds stay.
            on_round: told rounds done and rounds in all.

        Returns:
            Whether every run has its rounds.
        """
        waiting = [run for run in self.runs if len(run.samples_ns) < rounds]
        if not waiting:
            return True
        reference = self.runs[self._reference]
        order: list[Run] = []
        for place, run in enumerate(run for run in waiting if run is not reference):
            order += [reference] * (place % _BETWEEN_REFERENCES == 0) + [run]
        order.append(reference)
        missing = rounds - min(len(run.samples_ns) for run in waiting)
        found = measure(
            [run.launch for run in order],
            least_rounds=missing,
            most_rounds=missing,
            runs=RUNS,
            stop=stop,
            on_round=on_round,
        )
        samples = np.asarray([one.samples_ns for one in found], np.float64).reshape(len(order), -1, RUNS)
        is_reference = np.asarray([run is reference for run in order])
        speeds = self._speeds(samples[is_reference], np.flatnonzero(is_reference), len(order))
        samples /= speeds[:, :, None]
        for run, values in zip(order, samples, strict=True):
            if run is not reference:
                run.samples_ns = np.concatenate([run.samples_ns, values])
        turns = samples[is_reference].transpose(1, 0, 2).reshape(-1, RUNS)
        reference.samples_ns = np.concatenate([reference.samples_ns, turns])
        return samples.shape[1] == missing

    @property
    def measured(self) -> bool:
        """Whether every run has samples."""
        return all(len(run.samples_ns) for run in self.runs)

    def medians(self) -> Floats:
        """Replicates x runs: medians of rounds' medians in row 0, what they might have been below."""
        return replicates([run.rounds_ns for run in self.runs], np.random.default_rng(self._seed))

    def take_over(self, earlier: Sequence[MeasuredRun]) -> None:
        """Samples of an interrupted campaign, where it ran the same models in turns of the same length."""
        for run in earlier:
            place = self._places.get(run.digest)
            if place is not None and run.unit == self._unit and run.runs == RUNS:
                self.runs[place].samples_ns = np.asarray(run.samples_ns, np.float64).reshape(-1, RUNS)

    def records(self) -> tuple[MeasuredRun, ...]:
        """All samples, as a latency table keeps them."""
        return tuple(
            MeasuredRun(
                role=run.role,
                digest=run.model.digest,
                unit=self._unit,
                input_bytes=run.input_bytes,
                output_bytes=run.output_bytes,
                runs=RUNS,
                samples_ns=tuple(np.rint(run.samples_ns.ravel()).astype(np.int64).tolist()),
            )
            for run in self.runs
        )

    def _speeds(self, references: Floats, places: npt.NDArray[np.intp], count: int) -> Floats:
        """How much slower than usual the device was, for each launch and round.

        Medians of the reference's turns, each with its neighbours, and only as far as they vary
        more than noise makes them vary: on a steady device this adds no noise of its own.

        Args:
            references: turns in a round x rounds x launches in a turn.
            places: of these turns in a round's order.
            count: launches of a round.
        """
        rounds = references.shape[1]
        if rounds == 0:
            return np.ones((count, 0))
        turns = np.median(references, axis=2).T.ravel()  # in order of time
        earlier = self.runs[self._reference].samples_ns
        usual = float(np.median(earlier)) if len(earlier) else float(np.median(turns))
        ratio = turns / usual
        padded = np.concatenate([ratio[:1], ratio, ratio[-1:]])
        smooth = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
        within = deviation(references.transpose(1, 0, 2).reshape(len(turns), -1) / turns[:, None] - 1)
        noise = (1.2533 * within) ** 2 / RUNS / 3  # of a median; of three of them
        seen = float(np.mean((smooth - 1) ** 2))
        share = max(0.0, 1 - noise / seen) if seen > 0 else 0.0
        speeds = 1 + share * (smooth - 1)
        self.drift_ratio = max(self.drift_ratio, share * float(np.subtract(*np.quantile(smooth, (0.95, 0.05)))))
        times = (np.arange(rounds)[:, None] * count + places[None, :]).ravel()
        return np.asarray(np.interp(np.arange(rounds * count), times, speeds)).reshape(rounds, count).T


def deviation(values: Floats) -> float:
    """Standard deviation of normal values, from the median absolute deviation (MAD)."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
