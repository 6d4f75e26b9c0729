"""The overhead's regression, the auxiliary layers' own time, and the design behind both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.model import AUXILIARY_KINDS, Auxiliary
from framefit.latency.overhead import (
    auxiliaries_for,
    condition_number,
    fit_auxiliary_times,
    fit_overhead,
    overhead_design,
)
from framefit.latency.rounds import interval, replicates

every_kind = pytest.mark.parametrize("kind", AUXILIARY_KINDS)
coefficients = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e6))


def totals(design, overhead, auxiliary_ns):
    """What the design's models take with such an overhead: transfers, a launch, and its layers' own times."""
    into, out, launch = overhead
    times = []
    for model in design.models:
        own = sum(auxiliary_ns(layer.inputs[0].shape, layer.outputs[0].shape) for layer in model.layers)
        times.append(
            into * sum(t.bytes for t in model.inputs) + out * sum(t.bytes for t in model.outputs) + launch + own
        )
    return np.asarray(times)


def curved(shape, output_shape) -> float:
    """An auxiliary layer's time that no straight line describes."""
    return 1000 + 0.3 * np.prod(shape) ** 0.9 + 5 * np.prod(output_shape) ** 0.6


@every_kind
def test_sizes_vary_independently(kind: str) -> None:
    """The regression of every design is far from ill-conditioned, whatever sizes occur."""
    for sizes in ([4_000, 600_000], [100, 2_000], [50_000], [10**8]):
        design = overhead_design(kind, sizes)
        rows = np.asarray([contrast.row for contrast in design.contrasts], np.float64)
        assert condition_number(rows) < 10


@every_kind
def test_the_auxiliary_layers_own_time_cancels(kind: str) -> None:
    """Whatever it is, the coefficients come out: no model of it is needed."""
    design = overhead_design(kind, [4_000, 600_000])
    medians = np.tile(totals(design, (0.2, 0.5, 90_000), curved), (201, 1))
    fit = fit_overhead(design.contrasts, medians)
    assert fit.values[0] == pytest.approx([0.2, 0.5, 90_000], rel=1e-6)


@given(coefficients)
def test_coefficients_are_never_negative(overhead) -> None:
    """Also under noise, where some of them are 0."""
    design = overhead_design("avgpool", [4_000, 600_000])
    exact = totals(design, overhead, curved)
    noisy = exact * np.random.default_rng(0).normal(1, 0.02, (21, len(exact)))
    assert (fit_overhead(design.contrasts, noisy).values >= 0).all()


def test_one_wild_run_does_not_carry_the_fit() -> None:
    """A run that took twice as long moves the coefficients of least squares, not these."""
    design = overhead_design("conv1x1", [4_000, 600_000])
    exact = totals(design, (0.2, 0.5, 90_000), curved)
    medians = exact * np.random.default_rng(1).normal(1, 0.001, (201, len(exact)))
    medians[0] = exact
    medians[:, 12] *= 2
    fit = fit_overhead(design.contrasts, medians)
    assert fit.values[0] == pytest.approx([0.2, 0.5, 90_000], rel=0.05)


def test_intervals_hold_the_truth() -> None:
    """The 90 % interval of a coefficient contains it in about that part of experiments."""
    design = overhead_design("avgpool", [4_000, 600_000])
    exact = totals(design, (0.2, 0.5, 90_000), curved)
    random = np.random.default_rng(2)
    inside = []
    for _ in range(60):
        rounds = [one * random.normal(1, 0.01, 40) for one in exact]
        record = fit_overhead(design.contrasts, replicates(rounds, random)).record("avgpool", 0.0)
        assert record.input_interval is not None
        assert record.intercept_interval_ns is not None
        inside.append(record.input_interval[0] <= 0.2 <= record.input_interval[1])
        inside.append(record.intercept_interval_ns[0] <= 90_000 <= record.intercept_interval_ns[1])
    assert 0.8 <= np.mean(inside) <= 0.98


def auxiliary_runs(size: int, lack_ns: float, seed: int):
    """Features of runs of one layer, their times without overhead, and 1 % noise."""
    random = np.random.default_rng(seed)
    read = random.uniform(1e3, 1e6, size)
    written = read / random.choice([4, 16], size)
    true = 200_000 + 0.01 * read + 0.02 * written + random.normal(0, lack_ns, size)
    noise = random.normal(0, 500, (201, size))
    return np.column_stack([read, written, read * 2]), true, true + noise


def test_many_runs_help_each_other_where_the_model_holds() -> None:
    """An affine time is told better than by its own run."""
    features, true, observed = auxiliary_runs(40, 0.0, 0)
    found = fit_auxiliary_times(features, observed, np.zeros_like(observed), range(40))
    assert found.lack_of_fit_ns < 300
    assert np.std(found.values[0] - true) < 0.6 * np.std(observed[0] - true)


def test_each_run_stands_for_itself_where_the_model_fails() -> None:
    """What the affine model leaves unexplained is kept, and told."""
    features, _, observed = auxiliary_runs(40, 20_000.0, 0)
    found = fit_auxiliary_times(features, observed, np.zeros_like(observed), range(40))
    assert 10_000 < found.lack_of_fit_ns < 30_000
    assert np.abs(found.values[0] - observed[0]).max() < 200
    assert (found.deviation_ns < 600).all()


def test_medians_of_rounds_and_what_they_might_have_been() -> None:
    """Row 0 is the median of medians; the others spread as a median of so many values does."""
    random = np.random.default_rng(0)
    rounds = random.normal(1000, 10, 400)
    table = replicates([rounds, np.full(7, 5.0)], random)
    assert table[0].tolist() == [np.median(rounds), 5.0]
    assert table[1:, 0].std() == pytest.approx(1.2533 * 10 / np.sqrt(400), rel=0.35)
    assert (table[:, 1] == 5).all()
    low, high = interval(table[:, 0])
    assert low < 1000 < high
    assert low <= table[0, 0] <= high


def test_strides_alternate_by_size() -> None:
    """Neighbours in size have different strides; equal shapes have the same auxiliary layer."""
    found = auxiliaries_for([(1, 8, 8, 8), (1, 16, 8, 8), (1, 32, 8, 8), (1, 8, 8, 8)], "conv3x3")
    assert [auxiliary.stride for auxiliary in found.values()] == [4, 2, 4]
    assert all(isinstance(auxiliary, Auxiliary) and auxiliary.kind == "conv3x3" for auxiliary in found.values())
