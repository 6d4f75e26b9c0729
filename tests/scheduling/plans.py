"""Planned models and timetables in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from framefit.core.timetable import PlannedModel, Segment
from framefit.scheduling.timetable import Beat

__all__ = ["beats_and_models", "planned"]


def planned(name: str, durations_ns: Sequence[int], *, priority: bool = False, unit: str = "cpu0") -> PlannedModel:
    """A model of segments that take ``durations_ns``."""
    segments = [
        Segment(
            index=index,
            unit=unit,
            fill_layer=f"{name}_{index}",
            first_layer=f"{name}_{index}",
            last_layer=f"{name}_{index}",
            output_layers=(f"{name}_{index}",),
            duration_ns=duration,
            median_ns=duration,
            boundary_bytes=0,
            tensors=(f"{name}_{index}_out",),
        )
        for index, duration in enumerate(durations_ns)
    ]
    return PlannedModel(
        name=name,
        role="priority" if priority else "background",
        level=10 if priority else 0,
        reasons=(),
        duration_ns=sum(durations_ns),
        segments=tuple(segments),
    )


@st.composite
def beats_and_models(draw: st.DrawFn) -> tuple[Beat, list[PlannedModel]]:
    """Windows of 100 to 1000 ns, up to two priority and three background models; not all of them fit."""
    window = draw(st.integers(100, 1000))
    longest = st.integers(1, window // 2)
    priority = draw(st.lists(st.lists(st.integers(1, window // 4), min_size=1, max_size=2), max_size=2))
    background = draw(st.lists(st.lists(longest, min_size=1, max_size=5), max_size=3))
    models = [planned(f"first{index}", durations, priority=True) for index, durations in enumerate(priority)]
    models += [planned(f"later{index}", durations) for index, durations in enumerate(background)]
    deadlines = {
        model.name: draw(st.integers(1, window)) for model in models if model.role == "priority" and draw(st.booleans())
    }
    queues = {model.name: draw(st.integers(1, 4)) for model in models}
    refusing = frozenset(model.name for model in models if draw(st.booleans()))
    return Beat(window, draw(st.integers(0, window // 5)), deadlines, queues, refusing), models
