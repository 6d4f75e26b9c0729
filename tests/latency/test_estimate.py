"""Networks from tables."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from simulated import UNIT, analytical, fused, noisy_table, random_network, true_layers_ns, with_overhead, without

from framefit import InputError, Model, resolve_target
from framefit.core.latency_table import Correction, LatencyTable
from framefit.latency.estimate import Estimator
from framefit.latency.terms import CLASSES, terms_of
from networks import NETWORKS

VPU = resolve_target("vpu")
NETWORK_COUNT = 20


def inside(model: Model, table: LatencyTable, truth_ns: float, **more: object) -> bool:
    """Whether the 90 % interval of the total contains the truth; it has to say something, too."""
    found = Estimator(table, UNIT, **more).estimate(fused(model))  # type: ignore[arg-type]
    assert found.interval_ns[1] - found.interval_ns[0] < 0.5 * truth_ns
    return found.interval_ns[0] <= truth_ns <= found.interval_ns[1]


def test_the_plain_sum_and_every_layer() -> None:
    """Without noise the sum is the model's; layers keep their names, views cost nothing and say so."""
    model = NETWORKS["residual"]()
    random = np.random.default_rng(0)
    table = noisy_table([model], VPU, random, samples=400)
    found = Estimator(table, UNIT).estimate(fused(model))
    truth = true_layers_ns(model, VPU)
    assert found.plain_sum_ns == pytest.approx(sum(truth), rel=0.005)
    assert found.total_ns == found.plain_sum_ns
    assert found.coverage_ratio == 1.0
    assert [layer.name for layer in found.layers] == [layer.name for layer in fused(model).layers]
    for layer, ns in zip(found.layers, truth, strict=True):
        assert layer.source == ("measured" if ns else "view")
        assert layer.latency_ns == pytest.approx(ns, rel=0.02)
    assert found.notes[-1].startswith("the table was not audited")


def test_intervals_hold_the_truth() -> None:
    """Of 20 random networks, each with a noisy table of its own, at least 16 are within their 90 % interval."""
    held = 0
    for seed in range(NETWORK_COUNT):
        model = random_network(seed)
        table = noisy_table([model], VPU, np.random.default_rng(seed))
        held += inside(model, table, sum(true_layers_ns(model, VPU)))
    assert held >= 16


def test_an_error_that_all_entries_share_counts_for_each() -> None:
    """The overhead that was taken off is off by the same in every entry: 16 of 20 still are within."""
    half = 300.0
    held = independent = 0
    for seed in range(NETWORK_COUNT):
        model, random = random_network(seed), np.random.default_rng(100 + seed)
        shift = half / 1.645 * random.standard_normal()
        table = noisy_table([model], VPU, random, shift_ns=shift)
        truth = sum(true_layers_ns(model, VPU)) + 100_000 + 0.05 * sum(t.bytes for t in (*model.inputs, *model.outputs))
        held += inside(model, with_overhead(table, 100_000 - shift, half), truth)
        independent += inside(model, with_overhead(table, 100_000 - shift, 0.0), truth)
    assert held >= 16
    assert independent < 10  # what would come of taking entries as independent


def test_intervals_of_fallbacks_hold_the_truth() -> None:
    """A third of the entries is missing and told by a fallback: 16 of 20 are within, and all are wider."""
    others = [random_network(seed) for seed in range(50, 62)]
    known = noisy_table(others, VPU, np.random.default_rng(0))
    held = 0
    for seed in range(NETWORK_COUNT):
        model = random_network(seed)
        own = noisy_table([model], VPU, np.random.default_rng(seed))
        less = without(own, *range(0, len(own.entries), 3)).with_entries(known.entries)
        more = {"fallback": True, "analytical": analytical(resolve_target("edge-8"))}
        held += inside(model, less, sum(true_layers_ns(model, VPU)), **more)
        found = Estimator(less, UNIT, **more).estimate(fused(model))  # type: ignore[arg-type]
        full = Estimator(own, UNIT).estimate(fused(model))
        if found.coverage_ratio < 1:
            assert found.interval_ns[1] - found.interval_ns[0] > full.interval_ns[1] - full.interval_ns[0]
    assert held >= 16


def test_a_configuration_that_comes_again_is_wrong_again() -> None:
    """Four equal layers of a chain have four times the deviation of one, not twice."""
    model = NETWORKS["towers"]()
    table = noisy_table([model], VPU, np.random.default_rng(0))
    found = Estimator(table, UNIT).estimate(fused(model))
    timed = [layer for layer in found.layers if layer.source != "view"]
    deviations: dict[tuple[str, int], float] = {}
    for layer in timed:
        key = layer.op, layer.latency_ns
        deviations[key] = deviations.get(key, 0.0) + (layer.interval_ns[1] - layer.interval_ns[0]) / 2
    assert len(deviations) < len(timed)
    half = (found.interval_ns[1] - found.interval_ns[0]) / 2
    assert half == pytest.approx(np.sqrt(sum(one**2 for one in deviations.values())), abs=2)


def test_a_missing_layer_is_refused_by_name() -> None:
    """The message names layer, operators, unit and configuration, and what would help."""
    model = NETWORKS["plain"]()
    table = without(noisy_table([model], VPU, np.random.default_rng(0)), 0)
    with pytest.raises(InputError) as error:
        Estimator(table, UNIT).estimate(fused(model))
    layer = fused(model).layers[0]
    assert error.value.where == f"layer {layer.name}"
    assert layer.op in error.value.what
    assert "'unit'" in error.value.what
    assert "kernel [3, 3]" in error.value.what
    assert "--fallback" in str(error.value.remedy)


def test_fallbacks_are_named() -> None:
    """Interpolation where shapes around were measured, else the calibrated model; coverage is below 1."""
    model = random_network(3)
    others = [random_network(seed) for seed in range(20, 30)]
    table = noisy_table(others, VPU, np.random.default_rng(0))
    estimator = Estimator(table, UNIT, fallback=True, analytical=analytical(resolve_target("edge-8")))
    found = estimator.estimate(fused(model))
    sources = {layer.source for layer in found.layers}
    assert {"interpolated", "modelled"} <= sources
    timed = [layer for layer in found.layers if layer.source != "view"]
    covered = [layer for layer in timed if layer.source == "measured"]
    assert found.coverage_ratio == len(covered) / len(timed) < 1
    assert found.estimated_ns == pytest.approx(
        sum(layer.latency_ns for layer in timed if layer.source != "measured"), abs=len(timed)
    )
    assert found.plain_sum_ns == pytest.approx(sum(true_layers_ns(model, VPU)), rel=0.3)
    assert sum("layers have no entry" in note for note in found.notes) == 2


def test_layers_that_were_not_measured_have_the_usual_evictions() -> None:
    """Where the table's layers take a fifth more in turn, theirs do, too: a correction finds as much of either."""
    others = [random_network(seed) for seed in range(20, 30)]
    table = noisy_table(others, VPU, np.random.default_rng(0))
    entries = tuple(msgspec.structs.replace(entry, in_turn_ns=round(1.2 * entry.latency_ns)) for entry in table.entries)
    table = msgspec.structs.replace(table, entries=entries)
    estimator = Estimator(table, UNIT, fallback=True, analytical=analytical(resolve_target("edge-8")))
    found = estimator.estimate(fused(random_network(3)))
    assert found.coverage_ratio < 1
    for layer in found.layers:
        assert layer.evicted_ns == pytest.approx(0.2 * layer.latency_ns, rel=0.01, abs=1)


def test_without_an_analytical_model_only_interpolation_helps() -> None:
    """What no measured shape is around stays an error, which says that the fallback did not help."""
    model = NETWORKS["lstm"]()
    table = noisy_table([NETWORKS["plain"]()], VPU, np.random.default_rng(0))
    with pytest.raises(InputError, match="no fallback can estimate the layer"):
        Estimator(table, UNIT, fallback=True).estimate(fused(model))


def test_the_correction_is_the_default() -> None:
    """Total = factors x sums of classes + nodes + weights + overhead; its own error widens the interval."""
    model = NETWORKS["plain"]()
    table = noisy_table([model], VPU, np.random.default_rng(0))
    plain = Estimator(table, UNIT).estimate(fused(model))
    audited = Correction(
        class_factors=dict.fromkeys(CLASSES, 1.5), node_ns=100.0, weight_ns_per_byte=0.1, error_ratio=0.05, networks=6
    )
    table = with_overhead(msgspec.structs.replace(table, correction=audited), 1000.0)
    found = Estimator(table, UNIT).estimate(fused(model))
    terms = terms_of(fused(model))
    assert found.plain_sum_ns == plain.plain_sum_ns
    assert found.correction_ns == pytest.approx(
        0.5 * plain.plain_sum_ns + 100 * terms.nodes + 0.1 * terms.weight_bytes, abs=2
    )
    size = sum(tensor.bytes for tensor in (*model.inputs, *model.outputs))
    assert found.overhead_ns == round(1000 + 0.05 * size)
    assert found.total_ns == pytest.approx(found.plain_sum_ns + found.correction_ns + found.overhead_ns, abs=2)
    half = (found.interval_ns[1] - found.interval_ns[0]) / 2
    assert half > 2.015 * 0.05 * found.total_ns  # Student's t with 5 degrees of freedom
    assert not any("not audited" in note for note in found.notes)


def test_a_unit_without_entries() -> None:
    """It is refused with the units that there are."""
    table = noisy_table([NETWORKS["plain"]()], VPU, np.random.default_rng(0))
    with pytest.raises(InputError, match="no entry of unit 'dpu'") as error:
        Estimator(table, "dpu")
    assert error.value.remedy == "choose from unit"


def test_an_overhead_that_cancels_counts_once() -> None:
    """Fitted with an auxiliary layer, its constant is in no entry: its error is that of one launch."""
    model = random_network(1)
    table = with_overhead(noisy_table([model], VPU, np.random.default_rng(0)), 100_000, 5_000)
    assert table.overhead is not None
    cancels = msgspec.structs.replace(table, overhead=msgspec.structs.replace(table.overhead, auxiliary="conv1x1"))
    shared, once = (Estimator(one, UNIT).estimate(fused(model)).interval_ns for one in (table, cancels))
    plain = Estimator(msgspec.structs.replace(table, overhead=None), UNIT).estimate(fused(model)).interval_ns
    widths = [interval[1] - interval[0] for interval in (plain, once, shared)]
    assert widths[1] == pytest.approx(np.hypot(widths[0], 10_000), rel=0.01)
    timed = sum(ns > 0 for ns in true_layers_ns(model, VPU))
    assert widths[2] == pytest.approx(np.hypot(widths[0], 10_000 * (timed - 1)), rel=0.01)
