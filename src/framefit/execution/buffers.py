"""Memory for the tensors between segments, planned before a run.

Recurrent state is handled here, too: outputs of one frame that are inputs of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from framefit.core.model import Model, TensorInfo
from framefit.core.timetable import PlannedModel
from framefit.devices.device import Array, Tensors, allocate
from framefit.errors import InputError

__all__ = ["copies_of", "finite", "unit_bytes"]


_ALIGNMENT = 64


@dataclass(frozen=True)
class Placement:
    """Places of tensors in one shared block.

    Attributes:
        offsets: in bytes, in the order of the request.
        total_bytes: size of the block.
    """

    offsets: tuple[int, ...]
    total_bytes: int


def place(sizes: Sequence[int], lifetimes: Sequence[tuple[int, int]]) -> Placement:
    """Share memory between tensors that are never needed at the same time.

    The largest tensors come first, each at the lowest offset that is free during its lifetime (Pisarchyk and Lee,
    2020, "Efficient Memory Management for Deep Neural Net Inference", greedy by size).

    Args:
        sizes: bytes.
        lifetimes: first and last segment, both inclusive, that need the tensor.
    """
    offsets = [0] * len(sizes)
    placed: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], lifetimes[i])):
        first, last = lifetimes[index]
        size = -(-sizes[index] // _ALIGNMENT) * _ALIGNMENT
        offset = 0
        for neighbour in sorted(placed, key=offsets.__getitem__):
            if lifetimes[neighbour][0] > last or lifetimes[neighbour][1] < first:
                continue
            if offset + size <= offsets[neighbour]:
                break
            offset = max(offset, offsets[neighbour] + -(-sizes[neighbour] // _ALIGNMENT) * _ALIGNMENT)
        offsets[index] = offset
        placed.append(index)
    total = max((offsets[i] + -(-sizes[i] // _ALIGNMENT) * _ALIGNMENT for i in placed), default=0)
    return Placement(tuple(offsets), total)


def runs_of(units: Sequence[str]) -> list[tuple[int, int]]:
    """Stages of a model: first and last of consecutive segments on one unit.

    Args:
        units: unit of each segment.
    """
    ends = [index for index in range(len(units)) if index + 1 == len(units) or units[index] != units[index + 1]]
    return list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))


def unit_bytes(
    model: Model,
    bounds: Sequence[tuple[int, int]],
    units: Sequence[str],
    state: Mapping[str, str],
    *,
    slots: int = 1,
    separate: bool = False,
    together: Sequence[tuple[int, int]] = (),
) -> dict[str, int]:
    """Memory of a model's tensors in these segments, on each unit.

    Between the segments of a stage one planned block is enough, since it holds one frame. The model's ends, and
    tensors between stages, exist once for each frame in flight, and state exists once more.

    Args:
        model: it has the layers that ``bounds`` count.
        bounds: first and last layer of each segment.
        units: unit of each segment.
        state: graph input -> output that is fed back to it.
        slots: largest number of frames in flight.
        separate: whether units have memories of their own, which also hold the tensors from other units.
        together: first and last of segments that may also be one launch.
    """
    stages = runs_of(units)
    stage_of = [number for number, (first, last) in enumerate(stages) for _ in range(first, last + 1)]
    keep = {tensor.name for tensor in model.outputs}
    feedback = set(state.values())
    lifetimes: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    for index, (_, last) in enumerate(bounds[:-1]):
        for tensor in model.cuts[last].tensors:
            if tensor.name not in keep:
                lifetimes[tensor.name] = lifetimes.get(tensor.name, (index, index))[0], index + 1
                sizes[tensor.name] = tensor.bytes
    lifetimes = {name: _kept(lifetime, together) for name, lifetime in lifetimes.items()}
    needed = dict.fromkeys(units, 0)
    kept = slots + 1
    needed[units[0]] += sum(t.bytes * (kept if t.name in state else slots) for t in model.inputs)
    needed[units[-1]] += slots * sum(t.bytes for t in model.outputs if t.fixed and t.name not in feedback)
    within: list[list[str]] = [[] for _ in stages]
    for name, (first, last) in lifetimes.items():
        if stage_of[first] == stage_of[last]:
            within[stage_of[first]].append(name)
            continue
        for unit in {units[index] for index in (range(first, last + 1) if separate else (first,))}:
            needed[unit] += slots * sizes[name]
    for (first, _), names in zip(stages, within, strict=True):
        needed[units[first]] += place([sizes[name] for name in names], [lifetimes[name] for name in names]).total_bytes
    return needed


def frame_sets(
    model: Model,
    parts: Sequence[Model],
    units: Sequence[str],
    state: Mapping[str, str],
    slots: int,
    together: Sequence[tuple[int, int]] = (),
) -> list[dict[str, Array]]:
    """Make arrays for all tensors of fixed shape, by name; frames use the sets in turn.

    Args:
        model: the model with these tensors.
        parts: its segments.
        units: unit of each segment.
        state: graph input -> output that is fed back to it: one set's output is the next one's input.
        slots: largest number of frames in flight.
        together: first and last of segments that may also be one launch.
    """
    stage_of = [number for number, (first, last) in enumerate(runs_of(units)) for _ in range(first, last + 1)]
    last_read = {tensor.name: index for index, part in enumerate(parts) for tensor in part.inputs}
    keep = {tensor.name for tensor in model.outputs}
    between = [
        (tensor, *_kept((index, last_read[tensor.name]), together))
        for index, part in enumerate(parts)
        for tensor in part.outputs
        if tensor.name not in keep
    ]
    once: dict[str, Array] = {}
    for stage in range(stage_of[-1] + 1):
        once |= _block([entry for entry in between if stage_of[entry[1]] == stage_of[entry[2]] == stage])
    feedback = set(state.values())
    each = [tensor for tensor, first, last in between if stage_of[first] != stage_of[last]]
    each += [tensor for tensor in model.inputs if tensor.name not in state]
    each += [tensor for tensor in model.outputs if tensor.fixed and tensor.name not in feedback]
    by_slot = [{tensor.name: allocate(tensor) for tensor in each} for _ in range(slots)]
    if not state:
        return [once | arrays for arrays in by_slot]
    shapes = {tensor.name: tensor for tensor in model.inputs}
    # One set more than frames: the newest frame must not overwrite what the oldest one in flight reads.
    ends = [{source: allocate(shapes[source]) for source in state} for _ in range(slots + 1)]
    sets = []
    for number in range(slots * len(ends)):
        before, after = ends[number % len(ends)], ends[(number + 1) % len(ends)]
        sets.append(once | by_slot[number % slots] | before | {sink: after[source] for source, sink in state.items()})
    return sets


def _kept(lifetime: tuple[int, int], together: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """First and last segment that need a tensor: a launch of several segments needs its tensors all the time."""
    made, read = lifetime
    first = min((begin for begin, end in together if begin <= made <= end < read), default=made)
    last = max((end for begin, end in together if made < begin <= read <= end), default=read)
    return first, last


def _block(tensors: Sequence[tuple[TensorInfo, int, int]]) -> dict[str, Array]:
    """Arrays in one block, for tensors with the first and the last segment that needs them."""
    plan = place([tensor.bytes for tensor, _, _ in tensors], [(first, last) for _, first, last in tensors])
    block = allocate(TensorInfo(name="intermediates", dtype="uint8", shape=(plan.total_bytes,)))
    arrays = {}
    for (tensor, _, _), offset in zip(tensors, plan.offsets, strict=True):
        assert tensor.shape is not None
        view = block[offset : offset + tensor.bytes].view(np.dtype(tensor.dtype))
        arrays[tensor.name] = view.reshape(tensor.shape)
    return arrays


def copies_of(depth: int, frames: int, givers: Sequence[PlannedModel]) -> int:
    """Number of copies of a model's input that must exist.

    One for each frame that may wait in its queue, those that it reads and those that it takes next, and one in
    transfer; for inputs of several models as many more as the slowest result may be late.

    Args:
        depth: length of its queue.
        frames: number that the model consumes at once.
        givers: models that it reads.
    """
    late = max((giver.result_age_windows or 1 for giver in givers), default=1) if len(givers) > 1 else 0
    return depth + 2 * frames + 1 + late


def finite(array: Array) -> bool:
    """Whether an array holds neither NaN nor infinity; arrays of other types than floats never do.

    About as fast as a copy: 1 us for 1,000 numbers, 8 us for 76,800. (A sum, which either would spoil: 3 and 18.)
    """
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


class Feedback:
    """The part of a model's state that some of its segments produce.

    Args:
        state: graph input -> output that is fed back to it.
        parts: the segments.
    """

    def __init__(self, state: Mapping[str, str], parts: Sequence[Model]) -> None:
        produced = {tensor.name: tensor.dtype for part in parts for tensor in part.outputs}
        self._pairs = [(source, sink) for source, sink in state.items() if sink in produced]
        self._floats = [sink for _, sink in self._pairs if np.dtype(produced[sink]).kind == "f"]

    def settle(self, tensors: Tensors) -> bool:
        """Whether the state after a frame is finite; otherwise the state before it is restored."""
        for sink in self._floats:
            if not finite(tensors[sink]):
                self.keep(tensors)
                return False
        return True

    def keep(self, tensors: Tensors) -> None:
        """Restore the state before the frame."""
        for source, sink in self._pairs:
            np.copyto(tensors[sink], tensors[source])


def check_state(model: Model, state: Mapping[str, str], name: str) -> None:
    """Refuse state that cannot be fed back.

    Args:
        model: the model with these inputs and outputs.
        state: graph input -> output that is fed back to it.
        name: of the model, for messages.

    Raises:
        InputError: an input or output does not exist, shapes differ, or an output feeds two inputs.
    """
    inputs = {tensor.name: tensor for tensor in model.inputs}
    outputs = {tensor.name: tensor for tensor in model.outputs}
    fed_back: dict[str, str] = {}
    for source, sink in state.items():
        where = f"model {name!r}, state.{source}"
        if (source_before := fed_back.setdefault(sink, source)) != source:
            raise InputError(
                f"output {sink!r} already feeds {source_before!r}", where=where, remedy="feed it back once"
            )
        if source not in inputs:
            raise InputError(f"no input {source!r}; inputs: {', '.join(inputs)}", where=where, remedy="correct it")
        if sink not in outputs:
            raise InputError(f"no output {sink!r}; outputs: {', '.join(outputs)}", where=where, remedy="correct it")
        if outputs[sink].shape not in (None, inputs[source].shape) or outputs[sink].dtype != inputs[source].dtype:
            raise InputError(
                f"output {sink!r} is {outputs[sink].dtype} {outputs[sink].shape}, "
                f"but the input is {inputs[source].dtype} {inputs[source].shape}",
                where=where,
                remedy="feed back an output of the input's shape",
            )
