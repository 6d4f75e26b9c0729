"""Graphs of a plan's models: layers, what they cost, and where they are cut."""

from __future__ import annotations

from framefit.core.arrays import shape_text
from framefit.core.explanation import GraphLayer, ModelGraph
from framefit.core.model import Model
from framefit.core.timetable import PlannedModel
from framefit.devices.device import Device, is_modelled
from framefit.errors import FramefitError
from framefit.execution.compiled import in_layers
from framefit.execution.wiring import WiredModel
from framefit.planning.plan import Plan

__all__ = ["graphs_of"]


def graphs_of(planned: Plan) -> tuple[ModelGraph, ...]:
    """The graph of each model of a plan, as the plan executes it.

    Args:
        planned: feasible; else there are none.
    """
    if not planned.timetable.feasible:
        return ()
    wired = {model.entry.name: model for model in planned.wired}
    return tuple(_graph(wired[model.name], model.replicas[0], planned.device) for model in planned.timetable.models)


def _graph(wired: WiredModel, planned: PlannedModel, device: Device) -> ModelGraph:
    whole = len(planned.segments) == 1
    cut = wired.model.grouped(device.fusions(wired.model)) if whole else in_layers(wired, planned, device).model
    spans = [(0, len(cut.layers) - 1)] if whole else list(planned.spans)
    stated = _stated_ns(cut, spans, planned, device)
    kernels = device.kernels(cut)
    producer = {tensor.name: number for number, layer in enumerate(cut.layers) for tensor in layer.outputs}
    segment_of = [place for place, (first, last) in enumerate(spans) for _ in range(first, last + 1)]
    layers = tuple(
        GraphLayer(
            name=layer.name,
            op=layer.op,
            reads=tuple(dict.fromkeys(producer[t.name] for t in layer.inputs if t.name in producer)),
            output="" if not layer.outputs or layer.outputs[0].shape is None else shape_text(layer.outputs[0].shape),
            cost=layer.macs if stated is None else stated[number],
            segment=segment_of[number],
            kernel=kernels.issuperset(layer.nodes),
        )
        for number, layer in enumerate(cut.layers)
    )
    return ModelGraph(planned, layers, "macs" if stated is None else "time")


def _stated_ns(model: Model, spans: list[tuple[int, int]], planned: PlannedModel, device: Device) -> list[int] | None:
    """Nominal time of each layer on the unit of its segment; ``None``: the device does not state it."""
    if not is_modelled(device):
        return None
    times: list[int] = []
    try:
        for (first, last), segment in zip(spans, planned.segments, strict=True):
            part = model if len(spans) == 1 else model.segment(first, last)
            times += device.layers_ns(part, segment.unit)
    except FramefitError:
        return None
    return times if len(times) == len(model.layers) else None
