"""Shapes between measured ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simulated import noisy_table, without

from framefit import resolve_target
from framefit.core.latency_table import LatencyEntry
from framefit.core.model.builtin import BUILTIN
from framefit.latency.interpolation import REACH_RATIO, Interpolation


def pointwise(side: int, channels: int, latency_ns: float, *, kernel: int = 1) -> LatencyEntry:
    """A convolution that was measured to 1 %."""
    return LatencyEntry(
        op="Conv",
        configuration={
            "inputs": [f"1x{channels}x{side}x{side} float32"],
            "weights": [f"{channels}x{channels}x{kernel}x{kernel} float32"],
            "outputs": [f"1x{channels}x{side}x{side} float32"],
            "precision": "float32",
            "fused": [],
            "kernel": [kernel, kernel],
        },
        unit="unit",
        latency_ns=round(latency_ns),
        interval_ns=(round(0.99 * latency_ns), round(1.01 * latency_ns)),
    )


def roofline_ns(side: int, channels: int) -> float:
    """Arithmetic and memory, one after the other."""
    return 1000 + side**2 * channels**2 / 50 + 8 * side**2 * channels / 10


MEASURED = [pointwise(side, channels, roofline_ns(side, channels)) for side in (8, 16, 32, 64) for channels in (16, 64)]


@pytest.mark.parametrize(("side", "channels"), [(24, 16), (12, 64), (48, 32), (20, 40)])
def test_between_measured_shapes(side: int, channels: int) -> None:
    """Within 15 % of the truth, and the truth within two deviations."""
    found = Interpolation(MEASURED).find("Conv", pointwise(side, channels, 1).configuration)
    assert found is not None
    truth = math.log(roofline_ns(side, channels))
    assert found[0] == pytest.approx(truth, abs=0.15)
    assert abs(found[0] - truth) <= 2 * found[1]


def test_a_measured_shape_is_met() -> None:
    """At a measured shape the answer is close to the entry, and less certain further away."""
    between = Interpolation(MEASURED)
    at = between.find("Conv", MEASURED[3].configuration)
    away = between.find("Conv", pointwise(24, 32, 1).configuration)
    assert at is not None
    assert away is not None
    assert at[0] == pytest.approx(math.log(MEASURED[3].latency_ns), abs=0.03)
    assert away[1] > at[1]


@pytest.mark.parametrize(("side", "inside"), [(64, True), (76, True), (82, False), (512, False), (8, True), (2, False)])
def test_nothing_is_estimated_beyond_the_stated_factor(side: int, inside: bool) -> None:
    """Operations and bytes may exceed what was measured by the factor, no more."""
    assert REACH_RATIO == 1.5  # 64 * sqrt(1.5) = 78.4
    found = Interpolation(MEASURED).find("Conv", pointwise(side, 64, 1).configuration)
    assert (found is not None) == inside


def test_another_kernel_is_another_family() -> None:
    """Nothing is told of a kernel that was not measured, nor of an operator or of two shapes only."""
    between = Interpolation(MEASURED)
    assert between.find("Conv", pointwise(16, 32, 1, kernel=3).configuration) is None
    assert between.find("Conv+Relu", pointwise(16, 32, 1).configuration | {"fused": ["Relu"]}) is None
    assert Interpolation(MEASURED[:2]).find("Conv", MEASURED[0].configuration) is None


@pytest.mark.parametrize("name", ["vpu", "edge-8"])
def test_left_out_layers_of_simulated_targets(name: str) -> None:
    """Each entry as the others tell it: median error below 8 %, and 90 % intervals hold at least 80 %."""
    table = noisy_table([make(0) for make in BUILTIN.values()], resolve_target(name), np.random.default_rng(0))
    errors, held = [], []
    for place, entry in enumerate(table.entries):
        found = Interpolation(without(table, place).entries).find(entry.op, entry.configuration)
        if found is not None:
            errors.append(found[0] - math.log(entry.latency_ns))
            held.append(abs(errors[-1]) <= 1.645 * found[1])
    assert len(errors) > len(table.entries) / 3
    assert np.median(np.abs(errors)) < 0.08
    assert np.mean(held) >= 0.8
