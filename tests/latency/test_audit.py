"""Whole networks against the sum of their layers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from simulated import UNIT, fused, noisy_table, random_network, true_layers_ns, with_overhead

from framefit import InputError, Model, resolve_target
from framefit.core.latency_table import LatencyTable
from framefit.latency.audit import audit
from framefit.latency.estimate import Estimator
from framefit.latency.terms import CLASSES, Terms, terms_of

VPU = resolve_target("vpu")
AUDITED = [fused(random_network(seed)) for seed in range(100, 110)]
ASKED = [fused(random_network(seed)) for seed in range(20)]
TABLE = noisy_table([*AUDITED, *ASKED], VPU, np.random.default_rng(0))
Whole = Callable[[float, Terms], float]


def measured(models: list[Model], whole: Whole, noise: float = 0.005) -> list[tuple[Model, float]]:
    """Each model with what a device takes that is not additive."""
    random = np.random.default_rng(1)
    return [
        (model, whole(sum(true_layers_ns(model, VPU)), terms_of(model)) * np.exp(noise * random.standard_normal()))
        for model in models
    ]


def errors(table: LatencyTable, whole: Whole) -> tuple[float, float, int]:
    """Of networks that were not audited: median error of the total and of the plain sum, and how many are within."""
    found = [Estimator(table, UNIT).estimate(model) for model in ASKED]
    truth = np.asarray([ns for _, ns in measured(ASKED, whole)])
    total = np.asarray([one.total_ns for one in found])
    plain = np.asarray([one.plain_sum_ns + one.overhead_ns for one in found])
    held = sum(low <= ns <= high for (low, high), ns in zip((one.interval_ns for one in found), truth, strict=True))
    return float(np.median(np.abs(total / truth - 1))), float(np.median(np.abs(plain / truth - 1))), held


@pytest.mark.parametrize(
    "whole",
    [
        lambda plain, _: 1.2 * plain,
        lambda plain, terms: plain + 400 * terms.boundaries,
        lambda plain, terms: 0.9 * plain + 500 * terms.boundaries,
        lambda plain, terms: plain + 0.02 * terms.layout_bytes,
        lambda plain, terms: plain + 0.1 * terms.weight_bytes * (terms.working_bytes > 1 << 20),
        lambda plain, _: plain + 20_000,
    ],
    ids=["scale", "boundary", "both", "layout", "cold", "launch"],
)
def test_networks_that_were_not_audited_gain(whole: Whole) -> None:
    """Whatever is not additive: the corrected estimate is within 2 %, and at least 16 of 20 within their interval."""
    found = audit(measured(AUDITED, whole), TABLE, UNIT)
    total, plain, held = errors(msgspec.structs.replace(TABLE, correction=found.correction), whole)
    assert total < 0.02
    assert total < plain or plain < 0.01
    assert held >= 16
    assert found.left_out_error_ratio < 0.03


def test_what_is_additive_stays_as_it_is() -> None:
    """No term is fitted to noise, and the networks' scatter is reported."""
    found = audit(measured(AUDITED, lambda plain, _: plain), TABLE, UNIT)
    assert found.terms == ()
    assert (found.correction.scale, found.correction.boundary_ns) == (1.0, 0.0)
    assert found.correction.networks == len(AUDITED)
    assert 0.003 < found.correction.error_ratio < 0.02
    for network in found.networks:
        assert network.corrected_ns == network.left_out_ns == network.plain_sum_ns


def test_one_strange_network_does_not_decide() -> None:
    """A network that took three times as long leaves the scale of the others."""
    pairs = measured(AUDITED, lambda plain, _: 1.2 * plain)
    pairs[0] = (pairs[0][0], 3 * pairs[0][1])
    found = audit(pairs, TABLE, UNIT)
    asked, _, _ = errors(msgspec.structs.replace(TABLE, correction=found.correction), lambda plain, _: 1.2 * plain)
    assert asked < 0.06
    assert abs(found.networks[0].left_out_ns / found.networks[0].measured_ns - 1) > 0.5


def test_what_few_large_networks_take_is_not_multiplied_onto_larger_ones() -> None:
    """Two that exceed the cache and take half as much again leave the sum of others that exceed it about as it is."""

    def as_it_runs(model: Model) -> Model:
        lowered = model.grouped([])
        lowered.lowered = True
        return lowered

    def size(model: Model) -> int:
        return terms_of(model).working_bytes

    by_size = sorted(AUDITED, key=size)
    cache_bytes = size(by_size[-3])
    assert size(by_size[-2]) > cache_bytes
    told = measured(AUDITED, lambda plain, terms: plain * (1.5 if terms.working_bytes > cache_bytes else 1.0))
    found = audit([(as_it_runs(model), ns) for model, ns in told], TABLE, UNIT)
    assert set(found.terms) <= {*CLASSES, "boundary_ns", "launch_ns"}
    estimator = Estimator(msgspec.structs.replace(TABLE, correction=found.correction), UNIT)
    larger = [model for model in ASKED if size(model) > cache_bytes]
    assert larger
    for one in map(estimator.estimate, larger):
        assert one.total_ns == pytest.approx(one.plain_sum_ns, rel=0.15)


def test_the_overhead_is_taken_off_first() -> None:
    """With an overhead model in the table an additive device needs no correction."""
    table = with_overhead(TABLE, 100_000)

    def whole(plain: float, terms: Terms) -> float:
        return plain

    pairs = [
        (model, ns + 100_000 + 0.05 * sum(tensor.bytes for tensor in (*model.inputs, *model.outputs)))
        for model, ns in measured(AUDITED, whole)
    ]
    found = audit(pairs, table, UNIT)
    assert found.terms == ()
    assert found.plain_error_ratio < 0.01


def test_too_few_networks() -> None:
    """Two cannot be left out in turn."""
    with pytest.raises(InputError, match="needs at least 3 measured networks, got 2"):
        audit(measured(AUDITED[:2], lambda plain, _: plain), TABLE, UNIT)


def test_less_than_the_overhead() -> None:
    """A network that takes no longer than its launch alone is refused by name."""
    pairs = measured(AUDITED, lambda plain, _: plain)
    with pytest.raises(InputError, match="not more than its overhead") as error:
        audit(pairs, with_overhead(TABLE, 1e9), UNIT)
    assert error.value.where == AUDITED[0].name
