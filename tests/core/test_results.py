"""What runs found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.run_record import Metrics, ModelMetrics, Percentiles

NONE = Percentiles.of([])


def test_percentiles_of_nothing() -> None:
    """An empty sample has no percentiles: all are 0, and the count says why."""
    assert Percentiles(p50=0, p90=0, p99=0, p999=0, max=0, count=0) == NONE


def test_percentiles_of_a_known_sample() -> None:
    """Of 0 .. 1000 each percentile is its own number, in whatever order they come."""
    sample = np.random.default_rng(0).permutation(1001)
    assert Percentiles.of(sample) == Percentiles(p50=500, p90=900, p99=990, p999=999, max=1000, count=1001)


@given(st.lists(st.integers(-(10**9), 10**12), min_size=1, max_size=50))
def test_percentiles_are_ordered(sample: list[int]) -> None:
    """They rise from the median to the maximum, and a plain list will do."""
    found = Percentiles.of(sample)
    assert min(sample) <= found.p50 <= found.p90 <= found.p99 <= found.p999 <= found.max == max(sample)
    assert found.count == len(sample)


def model(role: str, releases: int, missed: int) -> ModelMetrics:
    """Figures of one model."""
    return ModelMetrics(
        name=role,
        role=role,
        releases=releases,
        completed=releases,
        missed=missed,
        dropped=0,
        throughput_hz=1,
        fluid_bound_hz=None,
        packing_bound_hz=None,
        release_to_start_ns=NONE,
        release_to_finish_ns=NONE,
        miss_ratio_upper=1,
        result_age_windows_max=1,
        segmentation_overhead_ratio=0,
        max_relative_difference=0,
    )


@pytest.mark.parametrize(
    ("models", "ratio"),
    [
        ([("priority", 10, 1), ("priority", 100, 50), ("background", 10, 10)], 0.5),
        ([("background", 10, 10)], 0.0),
        ([("priority", 0, 0)], 0.0),
        ([], 0.0),
    ],
)
def test_miss_ratio_is_the_worst_priority_models(models: list[tuple[str, int, int]], ratio: float) -> None:
    """Background models, and models that were never released, do not count."""
    metrics = Metrics(
        windows=1,
        models=tuple(model(*each) for each in models),
        residual_utilisation_ratio=0,
        guard_loss_ratio=0,
        packing_loss_ratio=0,
        floor_release_to_start_ns=NONE,
        estimate_exceeded_ratio=0,
        dispatch_ns=NONE,
        peak_memory_bytes=0,
        rung_switches=0,
        streams=(),
        misses=(),
    )
    assert metrics.miss_ratio == ratio
