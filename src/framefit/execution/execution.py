"""One model, cut or whole, ready to launch segment by segment.

Also compares two results of the same model.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from framefit.core.functions import error_text
from framefit.core.model import Model, TensorInfo
from framefit.core.program import Operation
from framefit.core.timetable import PlannedModel
from framefit.devices.clock import Clock
from framefit.devices.device import Array, Binding, Completion, Device, Handle, Tensors, allocate, random_inputs
from framefit.devices.faulty import FaultyDevice
from framefit.errors import FramefitError, InputError
from framefit.execution.buffers import Feedback, check_state, frame_sets, runs_of, unit_bytes
from framefit.execution.prepare import Preparation, one_frame, place_of

__all__ = ["Execution", "Launchable", "TimedExecution"]


class Launchable(Protocol):
    """What a job launches: an :class:`Execution`, or bare durations."""

    @property
    def frame_inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of one frame."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Kinds of its segments in the trace."""

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Take a frame, or as many as the model consumes at once."""

    @property
    def steps(self) -> Sequence[Callable[[], Completion]]:
        """Functions that run each segment of the frame in flight."""

    def output(self, name: str) -> Array:
        """An output of the frame in flight; valid until the next frame's launches."""

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Copies of the outputs of the frame in flight."""

    def finish(self) -> bool:
        """Complete the frame; returns whether its state, if there is any, can be used for the next one."""

    def abandon(self) -> None:
        """Give up the frame: the next one takes its place, and finds the state before it."""

    def skip(self) -> None:
        """Give up a frame that an earlier stage has worked on: its place stays empty."""

    def follow(self, cut: Launchable) -> None:
        """Continue the frame in flight of another cut of the same model, which shares its tensors."""


_LEAST = float(np.finfo(np.float32).tiny)  # asked here: where denormals are flushed, numpy warns


def greatest_difference(joined: Tensors, whole: Tensors) -> float:
    """Greatest max|a - b| / max|b| over outputs; infinite where shapes, NaNs or infinities differ."""
    worst = 0.0
    for name, reference in whole.items():
        if reference.shape != joined[name].shape:
            return float("inf")
        a, b = joined[name].astype(np.float64), reference.astype(np.float64)
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
            return float("inf")
        if finite.any():
            scale = max(float(np.abs(b[finite]).max()), _LEAST)
            worst = max(worst, float(np.abs(a[finite] - b[finite]).max()) / scale)
    return worst


Prepare = Callable[[Array], Array]  # a raw frame -> one frame of an input
Postprocess = Callable[[dict[str, Array]], dict[str, Array]]  # all outputs -> what replaces them


class Execution:
    """Compiled segments, the memory between them, and the recurrent state.

    One frame is in flight at a time: :meth:`load` it, :meth:`launch` the segments in order, read the
    :meth:`results`, and :meth:`finish` it. State for the next frame is passed on without a copy: sets of bindings
    alternate. A model that consumes several frames at once is loaded with all of them.

    Where segments run on several units, each of its :meth:`stages` has a frame in flight. Tensors between stages
    exist once for each of ``slots`` frames, in bindings made in advance.

    Args:
        model: canonical.
        segments: first and last layer of each, in order, without gaps.
        device: the device that runs it.
        unit: name of the unit, or the unit of each segment.
        state: graph input -> output that is fed back to it; initially zeros.
        name: prefix of the labels in the trace; default: the model's name.
        frames: number of frames consumed at once, stacked along ``frames_axis`` of each input that
            is not state.
        frames_axis: may be counted from the end.
        prepare: graph input -> function from a raw frame to a frame of that input; its time counts in
            the first launch. :class:`Preparation` writes directly into the input.
        postprocess: called with the model's outputs, which it must not keep; its time counts in the last
            launch.
        slots: largest number of frames in flight in its stages. It is one where a frame needs state that
            a later stage produces.
        together: first and last of segments that :meth:`recut` may join: tensors of such launches do not
            share memory.

    Raises:
        InputError: ``state`` or ``prepare`` names an unknown input or output, shapes differ, or
            ``frames`` do not divide an input.
        DeviceError: a segment cannot be compiled.
    """

    bounds: tuple[tuple[int, int], ...]
    parts: tuple[Model, ...]
    labels: tuple[str, ...]
    operations: tuple[tuple[Operation, ...], ...]
    _bindings: list[list[Binding]]
    _last: int

    def __init__(
        self,
        model: Model,
        segments: Sequence[tuple[int, int]],
        device: Device,
        unit: str | Sequence[str],
        *,
        state: Mapping[str, str] | None = None,
        name: str | None = None,
        frames: int = 1,
        frames_axis: int = 0,
        prepare: Mapping[str, Prepare] | None = None,
        postprocess: Postprocess | None = None,
        slots: int = 1,
        together: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.name = name or model.name
        self.model = model
        self.state = dict(state or {})
        self._device = device
        self._launcher: _Launcher = device
        self.frames = frames
        self._postprocess = postprocess
        check_state(model, self.state, self.name)
        self._one = {t.name: one_frame(t, frames, frames_axis, f"model {self.name!r}") for t in self.inputs}
        self._shapes = {name: _accepted(tensor) for name, tensor in self._one.items()}
        self._prepare = self._check_prepare(prepare or {})
        self._compiled: dict[tuple[int, int], tuple[str, Handle]] = {}
        self.units = (unit,) * len(segments) if isinstance(unit, str) else tuple(unit)
        self._compile(segments, self.name)
        self.slots = 1 if self._waits_for_state() else slots
        self._tensors = frame_sets(model, self.parts, self.units, self.state, self.slots, together)
        apart = bool(device.target.links)
        self.unit_bytes = unit_bytes(
            model, self.bounds, self.units, self.state, slots=self.slots, separate=apart, together=together
        )
        self.memory_bytes = sum(self.unit_bytes.values())
        self._output_names = tuple(tensor.name for tensor in model.outputs)
        self._turn = 0  # index of the present set
        self._bind()
        self._places = [
            [
                {t.name: place_of(tensors[t.name], self._one[t.name], number, frames_axis) for t in self.inputs}
                for number in range(frames)
            ]
            for tensors in self._tensors
        ]
        self._guarded = False
        self._waiting: Sequence[Tensors] = ()
        self._results: dict[str, Array] | None = None

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Graph inputs that are not state, as the model takes them."""
        return tuple(tensor for tensor in self.model.inputs if tensor.name not in self.state)

    @property
    def frame_inputs(self) -> tuple[TensorInfo, ...]:
        """Inputs that streams have to provide: the same for one frame, raw where it is prepared.

        An input without a shape takes the stream's frames as they are.
        """
        return tuple(self._raw(tensor) for tensor in self._one.values())

    def example(self, random: np.random.Generator) -> list[dict[str, Array]]:
        """Random frames to load, as many as the model consumes at once; raw images have a typical size."""
        return [{name: self._example(tensor, random) for name, tensor in self._one.items()} for _ in range(self.frames)]

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Take a frame, or a list of as many as the model consumes at once.

        Frames are prepared and copied to their place in the first launch.

        Args:
            frame: arrays for :attr:`frame_inputs`; a leading 1 in their shape may be left out.

        Raises:
            InputError: there are too few or too many frames, an input is missing, or an array has
                another shape.
        """
        waiting: Sequence[Tensors] = (frame,) if isinstance(frame, dict | Mapping) else frame
        if len(waiting) != self.frames:
            raise InputError(
                f"got {len(waiting)} frames, the model consumes {self.frames} at once",
                where=f"model {self.name!r}",
                remedy="load as many as frames says",
            )
        for arrays in waiting:
            if arrays.keys() != self._one.keys():
                self._refuse(arrays)
            for name, array in arrays.items():
                if array.shape not in self._shapes[name] and name not in self._prepare:
                    shape = self._one[name].shape
                    raise InputError(
                        f"a frame is {list(array.shape)}, but input {name!r} takes {list(shape or ())}",
                        where=f"model {self.name!r}",
                        remedy="give frames of the input's shape",
                    )
        self._waiting = waiting

    def launch(self, index: int) -> Completion:
        """Run segment ``index``.

        The time of the first launch includes preparing and transferring the frame, that of the last one
        ``postprocess``.

        Raises:
            DeviceError: the launch failed.
            FramefitError: ``postprocess`` failed.
        """
        binding = self._bindings[self._turn][index]
        hands_over = not index and bool(self._waiting)
        postprocess = self._postprocess if index == self._last else None
        if not hands_over and postprocess is None:
            return self._launcher.submit(binding)
        clock = self._launcher.clock
        started = clock.now_ns()
        if hands_over:
            self._hand_over()
        done = self._launcher.submit(binding)
        finished = done.finished_ns
        if postprocess is not None:
            self._results = self._postprocessed(postprocess)
            finished = clock.now_ns()
        return Completion(started if hands_over else done.started_ns, finished)

    @property
    def steps(self) -> Sequence[Callable[[], Completion]]:
        """:meth:`launch` for each segment of the frame in flight, prepared so that nothing is decided meanwhile."""
        return self._steps[self._turn]

    def expected_ns(self, index: int) -> int:
        """Duration of segment ``index`` according to the device; 0 where it does not know."""
        return sum(operation.expected_ns for operation in self.operations[index])

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Bindings of the segments for the first frame: for launches without frames."""
        return tuple(self._bindings[0])

    def disarm(self) -> None:
        """Remove all effects, but run the same code: small frames go to arrays of their own, and to no device.

        For a copy (``copy.copy``) that goes through the same steps as the original.
        """
        self._one = {name: msgspec.structs.replace(tensor, shape=(1,)) for name, tensor in self._one.items()}
        self._shapes = {name: _accepted(tensor) for name, tensor in self._one.items()}
        small = [{name: allocate(tensor) for name, tensor in self._one.items()} for _ in range(self.frames)]
        self._places = [small] * len(self._places)
        self._prepare, self._postprocess = {}, None
        self._launcher = _LaunchesNothing(self._device.clock)
        self._line_up()

    def output(self, name: str) -> Array:
        """An output of the frame in flight; valid until the next frame's launches."""
        return self._outputs[self._turn][name](name)

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Copies of the outputs of the frame in flight, or of what ``postprocess`` returned.

        Args:
            names: names of the outputs; default: all.

        Raises:
            InputError: there is no output of that name.
        """
        results = self._results
        if results is None and names is None:
            return {name: output(name).copy() for name, output in self._outputs[self._turn].items()}
        if results is None:
            outputs = self._outputs[self._turn]
            results = {name: outputs[name](name) for name in names or self._output_names if name in outputs}
        for name in names or ():
            if name not in results:
                known = ", ".join(results if self._results is not None else self._output_names)
                raise InputError(
                    f"model {self.name!r} has no output {name!r}; outputs: {known}",
                    where="$.outputs",
                    remedy="correct the name",
                )
        return {name: np.array(results[name]) for name in (results if names is None else names)}

    def finish(self) -> bool:
        """Complete the frame: its state becomes the next one's; if it is not finite, keep the old one, return False."""
        self._results = None
        fit = not self._guarded or self._feedback.settle(self._tensors[self._turn])
        self._turn = (self._turn + 1) % len(self._bindings)
        return fit

    def abandon(self) -> None:
        """Give up the frame: the next one takes its place, and finds the state before it."""
        self._waiting, self._results = (), None

    def skip(self) -> None:
        """Give up a frame that an earlier stage has worked on: its place stays empty."""
        self._results = None
        self._feedback.keep(self._tensors[self._turn])
        self._turn = (self._turn + 1) % len(self._bindings)

    def guard_state(self, guarded: bool) -> None:
        """Set whether to check the state after each frame: NaN would never disappear again."""
        self._guarded = guarded and bool(self.state)

    def replace(self, predecessor: Execution) -> None:
        """Take over from an execution of the model on another unit: with its state, through its device."""
        tensors, before = self._tensors[self._turn], predecessor._tensors[predecessor._turn]
        for name in self.state:
            np.copyto(tensors[name], before[name])
        self.guard_state(predecessor._guarded)
        self.through(predecessor._device)

    def through(self, device: Device) -> None:
        """Submit further launches through another device: its own, or the same one with injected faults."""
        self._device = self._launcher = device
        self._line_up()
        if not isinstance(device, FaultyDevice):
            return
        for bindings in self._bindings:
            for binding, label, unit, part in zip(bindings, self.labels, self.units, self.parts, strict=True):
                device.register(binding, label, unit, [tensor.name for tensor in part.outputs])

    def stages(self) -> tuple[Execution, ...]:
        """Executions of the segments on one unit each, in order, each with a frame in flight.

        The first one takes frames, the last one has results; each of them is finished for each frame. They share
        tensors with this execution, which must not be used meanwhile. With a single unit it is the only stage.
        """
        runs = runs_of(self.units)
        if len(runs) == 1:
            return (self,)
        stages = tuple(copy.copy(self) for _ in runs)
        for stage, (first, last) in zip(stages, runs, strict=True):
            stage.keep(first, last)
        return stages

    def keep(self, first: int, last: int) -> None:
        """Become a stage of these segments."""
        if first:
            self._one, self._shapes, self._prepare = {}, {}, {}
        if last < self._last:
            self._postprocess = None
        kept = slice(first, last + 1)
        self.labels, self.units, self.operations = self.labels[kept], self.units[kept], self.operations[kept]
        self.parts, self.bounds = self.parts[kept], self.bounds[kept]
        self._bindings = [bindings[kept] for bindings in self._bindings]
        self._feedback = Feedback(self.state, self.parts)
        self._last, self._turn, self._waiting, self._results = last - first, 0, (), None
        self._line_up()

    def recut(self, segments: Sequence[tuple[int, int]], name: str) -> Execution:
        """Cut the model in another way over the same tensors: a frame can continue from one cut in another.

        Args:
            segments: first and last layer of each: this execution's segments, some of them joined, see ``together``.
            name: prefix of the labels of segments that no other cut has.

        Raises:
            DeviceError: a segment cannot be compiled.
        """
        recut = copy.copy(self)
        recut.cut(segments, name)
        return recut

    def cut(self, segments: Sequence[tuple[int, int]], name: str) -> None:
        """Change to this cut; see :meth:`recut`."""
        unit_at = {first: unit for (first, _), unit in zip(self.bounds, self.units, strict=True)}
        self.name, self.units = name, tuple(unit_at[first] for first, _ in segments)
        self._compile(segments, name)
        self._bind()

    @property
    def flight(self) -> tuple[int, Sequence[Tensors], dict[str, Array] | None]:
        """State in flight: the number of its set of tensors, frames that are not transferred yet, and results."""
        return self._turn, self._waiting, self._results

    def follow(self, cut: Launchable) -> None:
        """Continue the frame that another cut of the same model, over the same tensors, has in flight."""
        assert isinstance(cut, Execution)
        self._turn, self._waiting, self._results = cut.flight

    def reset(self) -> None:
        """Zero the state."""
        for tensors in self._tensors:
            for name in self.state:
                tensors[name].fill(0)

    def run(self, frame: Tensors | Sequence[Tensors]) -> dict[str, Array]:
        """Run all segments for one frame; returns copies of the model's outputs, before any ``postprocess``."""
        self.load(frame)
        for index in range(len(self.parts)):
            self.launch(index)
        outputs = {tensor.name: self.output(tensor.name).copy() for tensor in self.model.outputs}
        self.finish()
        return outputs

    def _compile(self, segments: Sequence[tuple[int, int]], name: str) -> None:
        """Change to these segments; segments that were compiled for another cut are not compiled again."""
        whole = len(segments) == 1
        model, device, compiled = self.model, self._device, self._compiled
        self.bounds = tuple(segments)
        self.parts = tuple(model if whole else model.segment(first, last) for first, last in segments)
        for index, (bounds, part, unit) in enumerate(zip(self.bounds, self.parts, self.units, strict=True)):
            if bounds not in compiled:
                label = name if whole else f"{name}.{index}"
                compiled[bounds] = label, device.compile(part, unit, label)
        self.labels = tuple(compiled[bounds][0] for bounds in self.bounds)
        self.operations = tuple(compiled[bounds][1].operations for bounds in self.bounds)

    def _bind(self) -> None:
        """Bind the segments to their tensors."""
        handles = [self._compiled[bounds][1] for bounds in self.bounds]
        self._bindings = [[handle.bind(tensors) for handle in handles] for tensors in self._tensors]
        self._last = len(handles) - 1
        producer = {tensor.name: index for index, part in enumerate(self.parts) for tensor in part.outputs}
        self._outputs = [
            {name: bindings[producer[name]].output for name in self._output_names if name in producer}
            for bindings in self._bindings
        ]
        self._feedback = Feedback(self.state, self.parts)
        self._line_up()

    def _line_up(self) -> None:
        """Prepare the launch of each segment; between two of them there is no time for that."""
        submit, launch = self._launcher.submit, self.launch
        last = self._last if self._postprocess is not None else -1
        self._steps = [
            [
                functools.partial(launch, index)
                if index == last or (not index and self._one)
                else functools.partial(submit, binding)
                for index, binding in enumerate(bindings)
            ]
            for bindings in self._bindings
        ]

    def _raw(self, tensor: TensorInfo) -> TensorInfo:
        """The input that a stream has to provide."""
        prepare = self._prepare.get(tensor.name)
        if prepare is None:
            return tensor
        return (
            prepare.raw if isinstance(prepare, Preparation) else msgspec.structs.replace(tensor, dtype="", shape=None)
        )

    def _example(self, tensor: TensorInfo, random: np.random.Generator) -> Array:
        prepare = self._prepare.get(tensor.name)
        if isinstance(prepare, Preparation):
            return random.integers(0, 256, prepare.example, np.uint8)
        return random_inputs([tensor], random)[tensor.name]

    def _hand_over(self) -> None:
        """Prepare and copy the frames."""
        prepares = self._prepare
        for frame, places in zip(self._waiting, self._places[self._turn], strict=True):
            for name, array in frame.items():
                prepare = prepares.get(name) if prepares else None
                if prepare is None:
                    np.copyto(places[name], array, casting="same_kind")
                elif isinstance(prepare, Preparation):
                    prepare(array, places[name])
                else:
                    np.copyto(places[name], prepare(array), casting="same_kind")

    def _postprocessed(self, postprocess: Postprocess) -> dict[str, Array]:
        where = f"model {self.name!r}, postprocess"
        try:
            results = postprocess({name: self.output(name) for name in self._output_names})
        except Exception as error:  # the user's code may raise anything
            raise FramefitError(f"the function raised {error_text(error)}", where=where, remedy="correct it") from error
        if not isinstance(results, Mapping) or not all(isinstance(name, str) for name in results):
            raise FramefitError(
                f"the function returned {type(results).__name__}",
                where=where,
                remedy="return a dict of arrays by name",
            )
        return {name: np.asarray(array) for name, array in results.items()}

    def _refuse(self, frame: Tensors) -> None:
        """Raise an error that names the missing or superfluous input of a frame."""
        missing = [name for name in self._one if name not in frame]
        what = (
            f"a frame lacks input {missing[0]!r}"
            if missing
            else f"a frame holds {next(name for name in frame if name not in self._one)!r}, which is not an input"
        )
        raise InputError(
            what, where=f"model {self.name!r}", remedy=f"give exactly: {', '.join(self._one) or 'nothing'}"
        )

    def _check_prepare(self, prepare: Mapping[str, Prepare]) -> dict[str, Prepare]:
        for name in prepare:
            if name not in self._one:
                raise InputError(
                    f"no input {name!r}; inputs: {', '.join(self._one)}",
                    where=f"model {self.name!r}, preprocess",
                    remedy="correct it",
                )
        return dict(prepare)

    def _waits_for_state(self) -> bool:
        """Whether a stage reads state that a later stage produces."""
        stage_of = [number for number, (first, last) in enumerate(runs_of(self.units)) for _ in range(first, last + 1)]
        reads: dict[str, int] = {}
        gives: dict[str, int] = {}
        for index, part in enumerate(self.parts):
            for tensor in part.inputs:
                reads.setdefault(tensor.name, stage_of[index])
            gives |= {tensor.name: stage_of[index] for tensor in part.outputs}
        return any(gives.get(sink, 0) > reads.get(source, stage_of[-1]) for source, sink in self.state.items())


class TimedExecution:
    """Launches that take their time and nothing else, of a run in which only time passes: no frames, no outputs.

    Args:
        device: what the bindings are for.
        labels: of the segments.
        bindings: one a segment.
    """

    frame_inputs: tuple[TensorInfo, ...] = ()

    def __init__(self, device: Device, labels: Sequence[str], bindings: Sequence[Binding]) -> None:
        self.labels = tuple(labels)
        self._device = device
        self._bindings = tuple(bindings)
        self.steps = tuple(functools.partial(device.submit, binding) for binding in bindings)

    def part(self, first: int, end: int) -> TimedExecution:
        """Of the segments from ``first`` up to, and without, ``end``."""
        return TimedExecution(self._device, self.labels[first:end], self._bindings[first:end])

    def in_stages(self, model: PlannedModel) -> list[TimedExecution]:
        """What each unit has of it."""
        ends = list(itertools.accumulate(len(stage) for stage in model.stages))
        return [self.part(first, end) for first, end in itertools.pairwise([0, *ends])]

    def elsewhere(self, labels: Sequence[str], bindings: Sequence[Binding]) -> TimedExecution:
        """The same by way of the same device, for another unit's bindings."""
        return TimedExecution(self._device, labels, bindings)

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Nothing to take."""

    def output(self, name: str) -> Array:  # noqa: ARG002 - the protocol's form
        """Nothing."""
        return np.zeros(0)

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:  # noqa: ARG002 - the protocol's form
        """Nothing."""
        return {}

    def finish(self) -> bool:
        """Nothing to hand on."""
        return True

    def abandon(self) -> None:
        """Nothing to keep."""

    def skip(self) -> None:
        """Nor then."""

    def follow(self, cut: Launchable) -> None:
        """Nothing to take over."""


class _Launcher(Protocol):
    """The part of a device that launches compiled segments."""

    @property
    def clock(self) -> Clock: ...

    def submit(self, binding: Binding) -> Completion: ...


@dataclass(frozen=True)
class _LaunchesNothing:
    clock: Clock

    def submit(self, binding: Binding) -> Completion:  # noqa: ARG002 - the protocol's form
        now_ns = self.clock.now_ns()
        return Completion(now_ns, now_ns)


def _accepted(tensor: TensorInfo) -> tuple[tuple[int, ...] | None, ...]:
    """Shapes that an input accepts: its own, also without a leading 1."""
    shape = tensor.shape
    return (shape, shape[1:]) if shape and shape[0] == 1 else (shape,)
