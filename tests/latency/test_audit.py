"""Whole networks against the sum of their layers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from simulated import UNIT, fused, noisy_table, random_network, true_layers_ns, with_overhead

from framefit import InputError, Model, resolve_target
from framefit.core.latency_table import LARGE_BYTES, AdditivityAudit, LatencyTable, MeasuredNetwork
from framefit.core.model import epilogue_groups
from framefit.latency.audit import audit, audit_networks, audited_network
from framefit.latency.estimate import Estimator
from framefit.latency.terms import CLASSES, Terms, evicted_share, layers_digest, terms_of

VPU = resolve_target("vpu")
Whole = Callable[[float, Terms], float]


@functools.cache
def audited_models() -> list[Model]:
    """Networks that are measured whole."""
    return [fused(random_network(seed)) for seed in range(100, 110)]


@functools.cache
def other_models() -> list[Model]:
    """Networks that are estimated only."""
    return [fused(random_network(seed)) for seed in range(20)]


@functools.cache
def random_table() -> LatencyTable:
    """Measured layers of all of them."""
    return noisy_table([*audited_models(), *other_models()], VPU, np.random.default_rng(0))


def measured(models: list[Model], whole: Whole, noise: float = 0.005) -> list[tuple[Model, float]]:
    """Each model with what a device takes that is not additive."""
    random = np.random.default_rng(1)
    return [
        (model, whole(sum(true_layers_ns(model, VPU)), terms_of(model)) * np.exp(noise * random.standard_normal()))
        for model in models
    ]


def audited(pairs: list[tuple[Model, float]], table: LatencyTable | None = None) -> AdditivityAudit:
    """The correction fitted to models that took so long."""
    estimator = Estimator(table or random_table(), UNIT)
    return audit([audited_network(model, ns, estimator) for model, ns in pairs])


def errors(table: LatencyTable, whole: Whole) -> tuple[float, float, int]:
    """Of networks that were not audited: median error of the total and of the plain sum, and how many are within."""
    found = [Estimator(table, UNIT).estimate(model) for model in other_models()]
    truth = np.asarray([ns for _, ns in measured(other_models(), whole)])
    total = np.asarray([one.total_ns for one in found])
    plain = np.asarray([one.plain_sum_ns + one.overhead_ns for one in found])
    held = sum(low <= ns <= high for (low, high), ns in zip((one.interval_ns for one in found), truth, strict=True))
    return float(np.median(np.abs(total / truth - 1))), float(np.median(np.abs(plain / truth - 1))), held


@pytest.mark.parametrize(
    "whole",
    [
        lambda plain, _: 1.2 * plain,
        lambda plain, terms: plain + 400 * terms.nodes,
        lambda plain, terms: 0.9 * plain + 500 * terms.nodes,
        lambda plain, terms: plain + 0.1 * terms.weight_bytes,
        lambda plain, terms: 1.05 * plain + 300 * terms.nodes + 0.05 * terms.weight_bytes,
    ],
    ids=["factor", "nodes", "both", "weights", "all"],
)
def test_networks_that_were_not_audited_gain(whole: Whole) -> None:
    """Whatever is not additive: the corrected estimate is within 2 %, and at least 16 of 20 within their interval."""
    found = audited(measured(audited_models(), whole))
    total, plain, held = errors(msgspec.structs.replace(random_table(), correction=found.correction), whole)
    assert total < 0.02
    assert total < plain or plain < 0.01
    assert held >= 16
    assert found.left_out_error_ratio < 0.03


def test_networks_pay_the_more_of_their_layers_evictions_the_larger_they_are() -> None:
    """Of 0.7 to 40 MB of weights, what is left out is told within 1 %, and no byte of weights is blamed for it."""
    random = np.random.default_rng(3)
    networks = [model.grouped(epilogue_groups(model)) for model in audit_networks()]
    table = noisy_table(networks, VPU, random)
    entries = tuple(
        msgspec.structs.replace(entry, in_turn_ns=round(random.uniform(1, 1.6) * entry.latency_ns))
        for entry in table.entries
    )
    estimator = Estimator(msgspec.structs.replace(table, entries=entries), UNIT)
    rows = []
    for model in networks:
        evicted_ns = 0.8 * evicted_share(terms_of(model).weight_bytes, 8 << 20) * sum(estimator.evicted_ns(model))
        rows.append(audited_network(model, sum(true_layers_ns(model, VPU)) + evicted_ns, estimator))
    found = audit(rows)
    assert found.left_out_error_ratio < 0.01 < 0.05 < found.plain_error_ratio
    assert found.correction.evicted_ratio == pytest.approx(0.8, rel=0.2)
    assert found.correction.evicting_bytes in (4 << 20, 8 << 20, 16 << 20)
    assert found.correction.weight_ns_per_byte < 0.002


def test_one_network_that_nothing_explains_does_not_spoil_the_error_of_all() -> None:
    """Its own error is reported as the greatest; the others' intervals do not hold it."""
    pairs = measured(audited_models(), lambda plain, _: 1.2 * plain)
    pairs[0] = (pairs[0][0], 3 * pairs[0][1])
    found = audited(pairs)
    assert found.greatest_error_ratio > 0.5
    assert found.correction.error_ratio < 0.05


def test_networks_that_exceed_a_cores_cache_have_an_error_of_their_own() -> None:
    """What their weights cost depends on who else uses the caches; small networks' intervals stay narrow."""
    random = np.random.default_rng(5)

    def whole(plain: float, terms: Terms) -> float:
        return plain * (1 + random.uniform(-0.2, 0.2) * (terms.weight_bytes > LARGE_BYTES))

    networks = [model.grouped(epilogue_groups(model)) for model in audit_networks()]
    pairs = [(model, whole(sum(true_layers_ns(model, VPU)), terms_of(model))) for model in networks]
    table = noisy_table(networks, VPU, random)
    estimator = Estimator(table, UNIT)
    found = audit([audited_network(model, ns, estimator) for model, ns in pairs]).correction
    assert found.error_ratio_of(1 << 20) < found.error_ratio_of(8 << 20) == found.large_error_ratio > 0.07


def test_what_is_additive_stays_as_it_is() -> None:
    """No term is fitted to noise, and the networks' scatter is reported."""
    found = audited(measured(audited_models(), lambda plain, _: plain))
    assert found.terms == ()
    assert (found.correction.class_factors, found.correction.node_ns, found.correction.weight_ns_per_byte) == ({}, 0, 0)
    assert found.correction.networks == len(audited_models())
    assert 0.003 < found.correction.error_ratio < 0.02
    for network in found.networks:
        assert network.corrected_ns == network.left_out_ns == network.plain_sum_ns


def test_one_strange_network_does_not_decide() -> None:
    """A network that took three times as long leaves the scale of the others."""
    pairs = measured(audited_models(), lambda plain, _: 1.2 * plain)
    pairs[0] = (pairs[0][0], 3 * pairs[0][1])
    found = audited(pairs)
    asked, _, _ = errors(
        msgspec.structs.replace(random_table(), correction=found.correction), lambda plain, _: 1.2 * plain
    )
    assert asked < 0.06
    assert abs(found.networks[0].left_out_ns / found.networks[0].measured_ns - 1) > 0.5


def test_what_few_large_networks_take_is_not_multiplied_onto_larger_ones() -> None:
    """Two of ten that take half as much again leave the sum of others about as it is."""
    by_size = sorted(audited_models(), key=lambda model: terms_of(model).weight_bytes)
    pairs = [
        (model, ns * (1.5 if model in by_size[-2:] else 1))
        for model, ns in measured(audited_models(), lambda ns, _: ns)
    ]
    correction = audited(pairs).correction
    assert set(correction.class_factors) <= set(CLASSES)
    largest = terms_of(by_size[-1]).weight_bytes
    larger = [model for model in other_models() if terms_of(model).weight_bytes > largest] or other_models()
    estimator = Estimator(msgspec.structs.replace(random_table(), correction=correction), UNIT)
    for one in map(estimator.estimate, larger):
        assert one.total_ns == pytest.approx(one.plain_sum_ns, rel=0.15)


def test_no_term_takes_time_away() -> None:
    """Networks that are faster the more weights and nodes they have: factors below 1, and nothing negative."""
    correction = audited(
        measured(audited_models(), lambda plain, terms: 0.95 * plain - 200 * terms.nodes - 0.01 * terms.weight_bytes)
    ).correction
    assert min(correction.class_factors.values()) >= 0
    assert (correction.node_ns, correction.weight_ns_per_byte) == (0, 0)


def test_coefficients_are_stable_from_campaign_to_campaign() -> None:
    """Five campaigns of their own noise, 2 % of a network and 1 % of an entry: within 15 % of their mean."""
    networks = [model.grouped(epilogue_groups(model)) for model in audit_networks()]
    layers = {model: sum(true_layers_ns(model, VPU)) for model in networks}
    found = []
    for seed in range(5):
        random = np.random.default_rng(seed)
        table = noisy_table(networks, VPU, random)
        pairs = [
            (model, (1.06 * ns + 1000 * terms.nodes + 0.036 * terms.weight_bytes) * np.exp(0.02 * random.normal()))
            for (model, ns), terms in zip(layers.items(), map(terms_of, networks), strict=True)
        ]
        result = audited(pairs, table)
        found.append((result.correction.node_ns, result.correction.weight_ns_per_byte))
        assert result.greatest_error_ratio >= result.left_out_error_ratio
    values = np.asarray(found)
    assert np.abs(values / values.mean(axis=0) - 1).max() < 0.15, values
    assert values.mean(axis=0) == pytest.approx([1000, 0.036], rel=0.2)


def test_the_overhead_is_taken_off_first() -> None:
    """With an overhead model in the table an additive device needs no correction."""
    table = with_overhead(random_table(), 100_000)

    def whole(plain: float, terms: Terms) -> float:
        return plain

    pairs = [
        (model, ns + 100_000 + 0.05 * sum(tensor.bytes for tensor in (*model.inputs, *model.outputs)))
        for model, ns in measured(audited_models(), whole)
    ]
    found = audited(pairs, table)
    assert found.terms == ()
    assert found.plain_error_ratio < 0.01


def test_an_audited_network_does_not_hold_its_answer() -> None:
    """Its layers are those of the table, also where the table knows what the whole took: else no error is left."""
    model = audited_models()[0]
    plain = audited_network(model, 1e6, Estimator(random_table(), UNIT))
    whole = MeasuredNetwork(
        name=model.name,
        digest=layers_digest(model),
        unit=UNIT,
        alone_ns=2 * plain.plain_sum_ns,
        alone_interval_ns=(0, 1),
        in_turn_ns=2 * plain.plain_sum_ns,
        in_turn_interval_ns=(0, 1),
    )
    table = msgspec.structs.replace(random_table(), networks=(whole,))
    assert audited_network(model, 1e6, Estimator(table, UNIT)) == plain
    assert sum(plain.class_ns.values()) == pytest.approx(plain.plain_sum_ns, abs=1)


def test_too_few_networks() -> None:
    """Two cannot be left out in turn."""
    with pytest.raises(InputError, match="needs at least 3 measured networks, got 2"):
        audited(measured(audited_models()[:2], lambda plain, _: plain))


def test_less_than_the_overhead() -> None:
    """A network that takes no longer than its launch alone is refused by name."""
    pairs = measured(audited_models(), lambda plain, _: plain)
    with pytest.raises(InputError, match="not more than its overhead") as error:
        audited(pairs, with_overhead(random_table(), 1e9))
    assert error.value.where == audited_models()[0].name
