"""A measured model as an entry of the timetable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.timetable import PlannedModel, Segment
from framefit.core.workload import ModelEntry
from framefit.scheduling.pieces import planned_quantile_ns

__all__ = ["planned_model"]

_HIGHEST_LEVEL = 10


def planned_model(
    entry: ModelEntry,
    model: Model,
    bounds: Sequence[tuple[int, int]],
    unit: str,
    *,
    samples_ns: Sequence[npt.NDArray[np.int64]],
    whole_ns: npt.NDArray[np.int64],
    excess: float,
    limit_ns: int,
) -> PlannedModel:
    """Segments with their durations, boundaries and reasons.

    Args:
        entry: its part of the workload.
        model: in the layers that ``bounds`` count.
        bounds: first and last layer of each segment.
        unit: where it runs.
        samples_ns: durations of each segment.
        whole_ns: durations of the uncut model, measured in turn with them.
        excess: quantile over median of this measurement.
        limit_ns: residual less guard.
    """
    outputs = {tensor.name for tensor in model.outputs}
    segments = []
    for index, ((first, last), samples) in enumerate(zip(bounds, samples_ns, strict=True)):
        later = {tensor.name for layer in model.layers[last + 1 :] for tensor in layer.inputs}
        leaving = [
            (layer.name, tensor)
            for layer in model.layers[first : last + 1]
            for tensor in layer.outputs
            if tensor.name in later or tensor.name in outputs
        ]
        segments.append(
            Segment(
                index=index,
                unit=unit,
                fill_layer=model.layers[first].name,
                first_layer=model.layers[first].name,
                last_layer=model.layers[last].name,
                output_layers=tuple(dict.fromkeys(layer for layer, _ in leaving)),
                duration_ns=planned_quantile_ns(samples, excess),
                median_ns=int(np.median(samples)),
                boundary_bytes=sum(tensor.bytes for _, tensor in leaving if tensor.name in later),
                tensors=tuple(tensor.name for _, tensor in leaving),
            )
        )
    priority = entry.priority == "every-window"
    reasons = [f'priority = "{entry.priority}" in the workload']
    if not priority:
        reasons.append(
            f"{planned_quantile_ns(whole_ns, excess) / 1e6:.2f} ms whole, "
            f"{limit_ns / 1e6:.2f} ms of residual less guard: "
            + ("runs whole" if len(segments) == 1 else f"cut into {len(segments)} segments")
        )
    medians = sum(segment.median_ns for segment in segments)
    return PlannedModel(
        name=entry.name,
        role="priority" if priority else "background",
        level=_HIGHEST_LEVEL if priority else 0,
        reasons=tuple(reasons),
        duration_ns=sum(segment.duration_ns for segment in segments),
        segments=tuple(segments),
        segmentation_overhead_ratio=medians / max(float(np.median(whole_ns)), 1) - 1 if len(segments) > 1 else 0.0,
    )
