"""A measured model as an entry of the timetable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.timetable import PlannedModel, Segment
from framefit.scheduling.pieces import planned_quantile_ns

__all__ = ["planned_model"]


def planned_model(
    name: str,
    model: Model,
    bounds: Sequence[tuple[int, int]],
    unit: str | Sequence[str],
    *,
    priority: bool,
    level: int,
    reasons: Sequence[str],
    samples_ns: Sequence[npt.NDArray[np.int64]],
    whole_ns: npt.NDArray[np.int64],
    excess: float,
    layer_names: Sequence[str] = (),
    slots: int = 1,
    after: Sequence[str] = (),
    handed_bytes: int = 0,
    turns: int = 1,
) -> PlannedModel:
    """Segments with their durations, boundaries and reasons.

    Args:
        name: in the workload.
        model: in the layers that ``bounds`` count.
        bounds: first and last layer of each segment.
        unit: where it runs, or where each segment does.
        priority: whether it is a priority model.
        level: 0 to 10.
        reasons: for role and level, and for how it is cut.
        samples_ns: durations of each segment.
        whole_ns: durations of the uncut model, measured in turn with them.
        excess: quantile over median of this measurement.
        layer_names: what the user calls the layers; default: their own names.
        slots: frames that may be in flight.
        after: models whose outputs it reads.
        handed_bytes: of its outputs that other models read.
        turns: of each of its stages in a round of its unit.
    """
    units = [unit] * len(bounds) if isinstance(unit, str) else unit
    names = layer_names or [layer.name for layer in model.layers]
    outputs = {tensor.name for tensor in model.outputs}
    last_read = {tensor.name: index for index, layer in enumerate(model.layers) for tensor in layer.inputs}
    segments = []
    for index, ((first, last), samples) in enumerate(zip(bounds, samples_ns, strict=True)):
        leaving = [
            (name, tensor)
            for name, layer in zip(names[first : last + 1], model.layers[first : last + 1], strict=True)
            for tensor in layer.outputs
            if last_read.get(tensor.name, 0) > last or tensor.name in outputs
        ]
        segments.append(
            Segment(
                index=index,
                unit=units[index],
                fill_layer=names[first],
                first_layer=names[first],
                last_layer=names[last],
                output_layers=tuple(dict.fromkeys(layer for layer, _ in leaving)),
                duration_ns=planned_quantile_ns(samples, excess),
                median_ns=int(np.median(samples)),
                boundary_bytes=sum(tensor.bytes for _, tensor in leaving if last_read.get(tensor.name, 0) > last)
                + (handed_bytes if index == len(bounds) - 1 else 0),
                tensors=tuple(tensor.name for _, tensor in leaving),
            )
        )
    medians = sum(segment.median_ns for segment in segments)
    return PlannedModel(
        name=name,
        role="priority" if priority else "background",
        level=level,
        reasons=tuple(reasons),
        duration_ns=sum(segment.duration_ns for segment in segments),
        segments=tuple(segments),
        slots=slots,
        after=tuple(after),
        turns=turns,
        segmentation_overhead_ratio=medians / max(float(np.median(whole_ns)), 1) - 1 if len(segments) > 1 else 0.0,
    )
