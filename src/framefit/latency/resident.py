"""A measuring campaign where host and device share their memory and their caches: a processor.

Nothing is transferred there. What counts instead is the state in which a layer finds the machine:
its input in the caches, because the layer before has just written it; tensors in the layout that
the runtime has chosen; views that copy nothing. So the layers are those that the runtime made of
the model (:meth:`framefit.devices.ort.OrtDevice.lowered`), and in front of each stands one that
writes its inputs, as behind it stands the auxiliary layer that reads its output:

    T(leads, layer, auxiliary) = c + leads(inputs) + layer + auxiliary(output)

What is not the layer comes from launches without one, for every tensor that occurs:

    one = c + lead + auxiliary,  twin = c + lead + 2 auxiliary,  pair = c + 2 lead + 2 auxiliary

so that c = 2 one - pair, lead = pair - twin, auxiliary = twin - one. By "regression" these times
are smoothed over all tensors by their sizes, by "auxiliary" they are each tensor's own.

Launched again and again, a layer would find everything in the nearest cache, so that one is filled
with other data ahead of each launch. A second copy of the layer on the same inputs, whose
difference would cancel more of the launch, finds code, branch predictors and inputs warmed by the
first: it takes up to 17 % less than a layer behind another one, and is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyEntry, LatencyTable, Overhead, Unmeasured
from framefit.core.model import Auxiliary, AuxiliaryKind, TensorInfo, auxiliary_runs, led, with_auxiliary
from framefit.devices.device import Device
from framefit.devices.measure import Measurement
from framefit.errors import DeviceError, FramefitError
from framefit.latency.campaign import LEAST_REPEATS, Subject
from framefit.latency.overhead import RESOLUTION_NS, fit_auxiliary_times, interval
from framefit.latency.rounds import RUNS, Rounds

__all__ = ["ResidentCampaign"]


Method = Literal["regression", "auxiliary"]
Floats = npt.NDArray[np.float64]
Key = tuple[str, tuple[int, ...]]
_STRIDE, _CHANNELS = 8, 16  # the cheapest auxiliary layer: 3 to 10 us on a tensor of 256 KiB
_DETECTION = 3.29  # standard deviations: 5 % risk on either side (Currie, 1968, "Limits for Qualitative Detection")
_NEAR_BYTES = 192 << 10  # more than first-level caches hold, a small part of the second level
_SMALL_BYTES = 1 << 17  # tensors whose launches tell the constant: what they move costs little


@dataclass(frozen=True)
class _Total:
    """A subject's launch, and the tensors around it."""

    subject: Subject
    run: int
    leads: tuple[Key, ...]
    observed: Key


@dataclass(frozen=True)
class _Around:
    """What launches have beside the layer, replicates x tensors, in the order of ``_tensors``.

    Attributes:
        launch: the constant, one a replicate.
        unexplained_ns: of the auxiliary layer's times, what its sizes do not tell beyond noise.
    """

    launch: Floats
    lead: Floats
    auxiliary: Floats
    unexplained_ns: float


class ResidentCampaign:
    """Measures the layers that a runtime made of models; see :class:`framefit.latency.campaign.Campaign`.

    Args:
        device: one without memory of its own.
        unit: of its target.
        subjects: layers of lowered models.
        auxiliary: kind of the auxiliary layer; "auto": Conv 1x1, the cheapest.
        repeats: samples of every launch; ``None``: 100, to be refined.
        seed: of weights, inputs and resampling.
        earlier: a table of an interrupted campaign; its samples are kept.
        failed: layers that are none of the subjects because they cannot stand alone.

    Raises:
        DeviceError: no layer can be measured.
    """

    def __init__(
        self,
        device: Device,
        unit: str,
        subjects: Iterable[Subject],
        *,
        auxiliary: AuxiliaryKind | Literal["auto"] = "auto",
        repeats: int | None = None,
        seed: int = 0,
        earlier: LatencyTable | None = None,
        failed: Iterable[Unmeasured] = (),
    ) -> None:
        self.failed = list(failed)
        """Layers that cannot be measured."""
        self._device, self._unit, self._seed, self._auxiliary = device, unit, seed, auxiliary
        self._repeats: int | str = "auto" if repeats is None else repeats
        self._count = max(math.ceil((LEAST_REPEATS if repeats is None else repeats) / RUNS), 1)
        kind: AuxiliaryKind = "conv1x1" if auxiliary == "auto" else auxiliary
        self._link = Auxiliary(kind=kind, stride=_STRIDE, channels=_CHANNELS)
        self.rounds = Rounds(device, unit, seed, resident=True)
        """All launches; more may be added."""
        self._walked = np.ones(_NEAR_BYTES // 8)
        self._totals: list[_Total] = []
        self._tensors: dict[Key, tuple[int, int, int]] = {}
        self._earlier = () if earlier is None else earlier.runs
        self.add(subjects)
        if not self._totals:
            reason = self.failed[0].reason if self.failed else "there is none"
            raise DeviceError(f"no layer can be measured: {reason}", where=device.target.name)

    def add(self, subjects: Iterable[Subject]) -> None:
        """More layers; :meth:`measure` times what has no samples yet."""
        for subject in subjects:
            self._add(subject)
        self.rounds.take_over(self._earlier)

    def measure(
        self, *, stop: Callable[[], bool] | None = None, on_round: Callable[[int, int], None] | None = None
    ) -> bool:
        """Time everything in turn; see :meth:`framefit.latency.rounds.Rounds.measure`.

        Returns:
            Whether every launch has its samples.
        """
        return self.rounds.measure(self._count, stop, on_round)

    def medians(self) -> Floats:
        """Replicates x runs in ns; see :meth:`framefit.latency.rounds.Rounds.medians`."""
        return self.rounds.medians()

    def behind(self, entries: Iterable[int]) -> set[int]:
        """Places in ``rounds`` of what entries are made from, by their index in the table."""
        totals = [self._totals[index] for index in entries]
        tensors = {key for total in totals for key in (*total.leads, total.observed)}
        alone = {place for key in tensors for place in self._tensors[key]}
        return {*(total.run for total in totals), *alone}

    def table(self, method: Method = "regression") -> LatencyTable:
        """Latencies from the samples so far; entries of layers that were not reached are missing.

        Args:
            method: how the overhead is taken off; both use the same samples.
        """
        entries: list[LatencyEntry] = []
        unmeasured = list(self.failed)
        overhead = None
        if self.rounds.measured:
            medians = self.medians()
            around = self._around(medians, method)
            overhead = self._overhead(around)
            places = {key: place for place, key in enumerate(self._tensors)}
            entries = [self._entry(total, medians, around, places) for total in self._totals]
        else:
            reason = "the campaign ended before its first round did"
            unmeasured += [self._not_measured(total.subject, reason) for total in self._totals]
        return LatencyTable(
            target=self._device.target.name,
            fingerprint=self._device.fingerprint(),
            overhead=overhead,
            entries=tuple(entries),
            overheads=() if overhead is None else (overhead,),
            unmeasured=tuple(unmeasured),
            warnings=tuple(self.rounds.warnings()),
            settings={
                "repeats": self._count * RUNS if isinstance(self._repeats, int) else self._repeats,
                "seed": self._seed,
                "auxiliary": self._auxiliary,
                "overhead": method,
            },
            runs=self.rounds.records(),
        )

    def _add(self, subject: Subject) -> None:
        model = subject.model
        fixed = [tensor for tensor in model.outputs if tensor.fixed and tensor.bytes]
        try:
            if not fixed:
                raise DeviceError("it has no output of fixed size")
            tensor = max(fixed, key=lambda one: (one.dtype == "float32", one.bytes))
            leads = tuple(self._tensor(one) for one in model.inputs if one.shape)
            observed = self._tensor(tensor)
            whole = led(with_auxiliary(model, [self._link], tensor=tensor.name, seed=self._seed))
            run = self.rounds.add("layer", whole, self._evict)
            self._totals.append(_Total(subject, run, leads, observed))
        except FramefitError as error:
            self.failed.append(self._not_measured(subject, error.what))

    def _evict(self) -> None:
        """Leave the first-level cache to other data, as the rest of a network does between two of its launches."""
        np.add.reduce(self._walked)

    def _tensor(self, tensor: TensorInfo) -> Key:
        assert tensor.shape is not None
        key = tensor.dtype, tensor.shape
        if key not in self._tensors:
            one, twin, pair = (
                self.rounds.add("auxiliary", model, self._evict)
                for model in auxiliary_runs(tensor, self._link, self._seed)
            )
            self._tensors[key] = one, twin, pair
        return key

    def _not_measured(self, subject: Subject, reason: str) -> Unmeasured:
        return Unmeasured(
            op=subject.op, configuration=subject.configuration, layers=subject.layers, unit=self._unit, reason=reason
        )

    def _around(self, medians: Floats, method: Method) -> _Around:
        one, twin, pair = (medians[:, [places[n] for places in self._tensors.values()]] for n in range(3))
        shapes = [TensorInfo(name="x", dtype=dtype, shape=shape) for dtype, shape in self._tensors]
        sizes = np.asarray([tensor.bytes for tensor in shapes], np.float64)
        constants = 2 * one - pair
        near = sizes <= max(_SMALL_BYTES, float(np.quantile(sizes, 0.25)))
        launch = np.maximum(np.median(constants[:, near], axis=1), 0)
        lead, auxiliary = pair - twin, twin - one
        if method == "auxiliary":
            return _Around(launch, np.maximum(lead, 0), np.maximum(auxiliary, 0), 0.0)
        nothing, every = np.zeros_like(one), range(len(shapes))
        macs = [self._link.macs(shape) for _, shape in self._tensors]
        led_by = fit_auxiliary_times(sizes[:, None], lead, nothing, every)
        read_by = fit_auxiliary_times(np.column_stack([sizes, macs]), auxiliary, nothing, every)
        return _Around(launch, led_by.values, read_by.values, read_by.lack_of_fit_ns)

    def _overhead(self, around: _Around) -> Overhead:
        """Nothing is handed over: a launch costs its constant."""
        low, high = interval(around.launch)
        return Overhead(
            input_ns_per_byte=0.0,
            output_ns_per_byte=0.0,
            intercept_ns=float(around.launch[0]),
            condition_number=1.0,
            auxiliary=self._link.kind,
            input_interval=(0.0, 0.0),
            output_interval=(0.0, 0.0),
            intercept_interval_ns=(low, high),
            lack_of_fit_ns=around.unexplained_ns,
        )

    def _entry(self, total: _Total, medians: Floats, around: _Around, places: dict[Key, int]) -> LatencyEntry:
        run, whole = self.rounds.runs[total.run], medians[:, total.run]
        overhead = around.launch + around.auxiliary[:, places[total.observed]]
        for key in total.leads:
            overhead = overhead + around.lead[:, places[key]]
        layer = whole - overhead
        low, high = interval(layer)
        spread = float(np.subtract(*np.quantile(layer[1:], (0.8413, 0.1587)))) / 2
        floor = _DETECTION * math.hypot(spread, RESOLUTION_NS)
        alone = self._tensors[total.observed][0]
        steady = Measurement(run.samples_ns.ravel()).stable  # type: ignore[arg-type]  # ns, not whole ones
        return LatencyEntry(
            op=total.subject.op,
            configuration=total.subject.configuration,
            unit=self._unit,
            latency_ns=max(round(layer[0]), 0),
            interval_ns=(max(math.floor(low), 0), max(math.ceil(high), 0)),
            samples_ns=tuple(np.maximum(np.rint(run.samples_ns.ravel() - overhead[0]), 0).astype(np.int64).tolist()),
            source="measured" if steady else "measured, drifting",
            below_noise=bool(layer[0] < floor),
            noise_floor_ns=math.ceil(floor),
            auxiliary=self._link.kind,
            overhead_ns=round(overhead[0]),
            literal_ns=round(whole[0] - medians[0, alone]),
        )
