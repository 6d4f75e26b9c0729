"""A model on its way from a file to launches: how it is cut, and compiled only where somebody launches it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from framefit.core.model import Model
from framefit.core.timetable import PlannedModel, Timetable
from framefit.devices.device import Device
from framefit.errors import DeviceError
from framefit.runtime.buffers import tensor_bytes
from framefit.runtime.execution import Execution, greatest_difference
from framefit.runtime.wiring import WiredModel
from framefit.scheduling.partition import Pieces

__all__ = ["Bounds", "PlannedTask", "compared"]

Bounds = tuple[tuple[int, int], ...]
_TOLERANCE = 1e-4


@dataclass
class PlannedTask:
    """A model of the workload, whole or in segments.

    Attributes:
        wired: entry, model and sources.
        device: where it runs, on
        unit: of it.
        bounds: first and last layer of each segment; none: it runs whole.
        priority: whether windows are reserved for it.
        level: 0 to 10, for these
        reasons.
        runs: first and last layer of each piece between candidate cuts, and
        pieces: what they cost; empty and None where the model fits whole.
        uncut: the whole model as priced.
        layer_names: the user's, of the layers that ``bounds`` count, where those are the runtime's own.
    """

    wired: WiredModel
    device: Device
    unit: str
    bounds: Bounds = ()
    priority: bool = False
    level: int = 0
    reasons: tuple[str, ...] = ()
    runs: list[tuple[int, int]] = field(default_factory=list)
    pieces: Pieces | None = None
    uncut: PlannedModel | None = None
    layer_names: tuple[str, ...] = ()
    _whole: Execution | None = field(default=None, init=False, repr=False)
    _cut: Execution | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """The model's name in the workload."""
        return self.wired.entry.name

    @property
    def model(self) -> Model:
        """In the layers that ``bounds`` count."""
        return self.wired.model

    @property
    def segments(self) -> Bounds:
        """First and last layer of each segment, of the only one too."""
        return self.bounds or self._all

    @property
    def whole(self) -> Execution:
        """The uncut model, compiled when it is first asked for.

        Raises:
            DeviceError: it cannot be.
        """
        if self._whole is None:
            self._whole = self.compiled(self._all)
        return self._whole

    @property
    def execution(self) -> Execution:
        """As it is to run, compiled when it is first asked for; ``whole`` itself where it is not cut.

        Raises:
            DeviceError: a segment cannot be.
        """
        if not self.bounds:
            return self.whole
        if self._cut is None or self._cut.bounds != self.bounds:
            self._cut = self.compiled(self.bounds)
        return self._cut

    @property
    def memory_bytes(self) -> int:
        """Of its tensors, as it is to run."""
        return tensor_bytes(self.model, self.segments, self.wired.entry.state)

    def compiled(self, bounds: Sequence[tuple[int, int]]) -> Execution:
        """The model in these segments, for whoever asks only.

        Raises:
            DeviceError: a segment cannot be compiled.
        """
        return self.wired.execution(bounds, self.device, self.unit)

    def group(self, groups: Iterable[Collection[str]]) -> None:
        """Count groups of nodes as layers from here on; the uncut model stays the same launch."""
        self.wired = dataclasses.replace(self.wired, model=self.model.grouped(groups))

    def lower(self, model: Model, layer_names: Sequence[str]) -> None:
        """Cut what the runtime made of the model from here on; the uncut model stays the same launch.

        Args:
            model: the runtime's operators as layers.
            layer_names: for each the user's layer that it belongs to.
        """
        self.wired, self.layer_names = dataclasses.replace(self.wired, model=model), tuple(layer_names)

    @property
    def _all(self) -> Bounds:
        return ((0, len(self.model.layers) - 1),)


def compared(timetable: Timetable, tasks: Sequence[PlannedTask]) -> Timetable:
    """The joined segments against the whole model, two frames in a row (state included).

    Args:
        timetable: of the tasks.
        tasks: in the order of its models; they are compiled.

    Raises:
        DeviceError: a model does not run here, or its segments do not give its outputs.
    """
    models = []
    for task, planned in zip(tasks, timetable.models, strict=True):
        cut, whole, difference = task.execution, task.whole, 0.0
        cut.reset()
        if cut is not whole:
            whole.reset()
            random = np.random.default_rng(0)
            for _ in range(2):
                frame = cut.example(random)
                difference = max(difference, greatest_difference(cut.run(frame), whole.run(frame)))
            cut.reset()
            whole.reset()
        if not difference <= _TOLERANCE:
            raise DeviceError(
                f"the joined segments differ from the whole model by {difference:.2g} (relative)",
                where=task.name,
                remedy="report this model as a bug",
            )
        models.append(msgspec.structs.replace(planned, max_relative_difference=difference))
    return msgspec.structs.replace(timetable, models=tuple(models))
