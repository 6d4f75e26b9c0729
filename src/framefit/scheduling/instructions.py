"""The list of what each unit does: units execute only that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

from framefit.core.timetable import Instruction, PlannedModel, Segment, Slot, Timetable

__all__ = ["HOST", "instructions"]

HOST = "host"


def instructions(timetable: Timetable) -> dict[str, tuple[Instruction, ...]]:
    """What each unit loads, runs and stores in one repetition of a timetable, in order.

    A segment's inputs are loaded where they come from elsewhere: from the host, from the unit of the segment before,
    or from that of a model whose outputs it reads. Between two segments on one unit tensors stay where they are.
    Outputs go to the host, and to the units of what reads them. The unit that has made a tensor stores it into
    the frame's copy, the one that needs it fetches it from there.

    Args:
        timetable: feasible; a launch that priority periods interrupt is one instruction.
    """
    models = {model.name: model for model in timetable.models}
    found: dict[str, list[Instruction]] = {unit: [] for unit in timetable.units}
    parts: dict[tuple[str, int, int], list[tuple[int, Slot]]] = {}
    for window in timetable.windows:
        for slot in window.slots:
            parts.setdefault((slot.model, slot.frame, slot.segment), []).append((window.index, slot))
    for launch in sorted(parts.values(), key=lambda launch: (launch[0][0], launch[0][1].start_ns)):
        index, slot = launch[0]
        found[slot.unit] += _of_launch(models, models[slot.model], index, slot)
    return {unit: tuple(steps) for unit, steps in found.items()}


def _of_launch(models: dict[str, PlannedModel], model: PlannedModel, window: int, slot: Slot) -> Iterator[Instruction]:
    """Fetch what is elsewhere, run, hand on what is needed elsewhere."""
    segment = model.segments[slot.segment]
    for source, tensors in _inputs(models, model, segment):
        yield _step("load", window, slot, model, tensors, source, slot.unit)
    yield _step("run", window, slot, model, (), slot.unit, slot.unit)
    last = slot.segment == len(model.segments) - 1
    if not last:
        following = model.segments[slot.segment + 1].unit
        if following != slot.unit:
            yield _step("store", window, slot, model, segment.tensors, slot.unit, following)
        return
    readers = [one.segments[0].unit for one in models.values() if model.name in one.after]
    for target in [HOST, *dict.fromkeys(unit for unit in readers if unit != slot.unit)]:
        yield _step("store", window, slot, model, segment.tensors, slot.unit, target)


def _inputs(
    models: dict[str, PlannedModel], model: PlannedModel, segment: Segment
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """From where which tensors have to be fetched."""
    if segment.index > 0:
        before = model.segments[segment.index - 1]
        if before.unit != segment.unit:
            yield before.unit, before.tensors
        return
    if not model.after:
        yield HOST, ()
    for last in itertools.chain.from_iterable(models[name].segments[-1:] for name in model.after):
        if last.unit != segment.unit:
            yield last.unit, last.tensors


def _step(
    kind: Literal["load", "run", "store"],
    window: int,
    slot: Slot,
    model: PlannedModel,
    tensors: tuple[str, ...],
    source: str,
    target: str,
) -> Instruction:
    return Instruction(
        unit=slot.unit,
        kind=kind,
        window=window,
        start_ns=slot.start_ns,
        model=slot.model,
        segment=slot.segment,
        frame=slot.frame,
        copy=slot.frame % model.slots,
        tensors=tensors,
        source=source,
        target=target,
    )
