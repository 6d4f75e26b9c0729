"""An analytical model in a device's nanoseconds."""

from __future__ import annotations

import functools
import math
import time

import msgspec
import numpy as np
import pytest
from simulated import analytical, fused, noisy_table, random_network, without

from framefit import InputError, Model, resolve_target
from framefit.core.latency_table import LatencyTable
from framefit.core.model.builtin import BUILTIN
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.npu.work import model_work
from framefit.latency.calibrate import Calibration, entry_work, op_class


@functools.cache
def models() -> list[Model]:
    """The built-in networks."""
    return [make(0) for make in BUILTIN.values()]


def table_of(name: str) -> LatencyTable:
    """The built-in networks on a target."""
    return noisy_table(models(), resolve_target(name), np.random.default_rng(0))


def left_out(table: LatencyTable, model: str, step: int) -> tuple[np.ndarray, float]:
    """Errors of every ``step``-th entry as the others and a cycle model tell it, and the share within 90 %."""
    errors, held = [], []
    for place, entry in list(enumerate(table.entries))[::step]:
        calibration = Calibration(without(table, place).entries, analytical(resolve_target(model)))
        log, spread = calibration.find([entry_work(entry.op, entry.configuration)])[0]
        errors.append(log - math.log(entry.latency_ns))
        held.append(abs(errors[-1]) <= 1.645 * spread)
    return np.abs(errors), float(np.mean(held))


def test_the_right_model_needs_no_more_than_a_scale() -> None:
    """Left-out layers within 2 % where the device is the model three times as slow, behind a constant."""
    table = table_of("vpu")
    slower = tuple(
        msgspec.structs.replace(
            entry,
            latency_ns=3 * entry.latency_ns + 2000,
            interval_ns=(3 * entry.interval_ns[0] + 2000, 3 * entry.interval_ns[1] + 2000),
        )
        for entry in table.entries
    )
    errors, held = left_out(msgspec.structs.replace(table, entries=slower), "vpu", 4)
    assert np.quantile(errors, 0.9) < 0.02
    assert held >= 0.85


def test_a_model_of_another_device_is_brought_near() -> None:
    """Calibrated by the table, half of the left-out layers are within 25 %; and the spread says how far they are."""
    errors, held = left_out(table_of("gpu"), "vpu", 4)
    assert np.median(errors) < 0.25
    assert held >= 0.75


def test_outliers_have_little_say() -> None:
    """An entry that is ten times too slow leaves the others' predictions where they were."""
    table = table_of("vpu")
    place = next(place for place, entry in enumerate(table.entries) if entry.configuration.get("kernel") == [1, 1])
    wrong = msgspec.structs.replace(table.entries[place], latency_ns=10 * table.entries[place].latency_ns)
    entries = (*table.entries[:place], wrong, *table.entries[place + 1 :])
    model = analytical(resolve_target("vpu"))
    works = [entry_work(one.op, one.configuration) for one in table.entries]
    before = np.asarray([log for log, _ in Calibration(table.entries, model).find(works)])
    after = np.asarray([log for log, _ in Calibration(entries, model).find(works)])
    assert np.abs(after - before).max() < 0.02


def test_a_class_that_was_not_measured_is_less_certain() -> None:
    """It has the fit of all entries together, and a wider spread than classes of its own."""
    table = table_of("vpu")
    kept = [e for e in table.entries if op_class(entry_work(e.op, e.configuration)) != "Conv depthwise"]
    calibration = Calibration(kept, analytical(resolve_target("vpu")))
    assert "Conv depthwise" not in calibration.classes
    model = fused(models()[0])
    works = {op_class(work): work for work in model_work(model)}
    log, strange = calibration.find([works["Conv depthwise"]])[0]
    _, known = calibration.find([works["Conv 1x1"]])[0]
    truth = CycleModel(resolve_target("vpu")).layers(model)
    expected = next(
        ns.latency_ns for ns, one in zip(truth, model_work(model), strict=True) if one == works["Conv depthwise"]
    )
    assert log == pytest.approx(math.log(expected), abs=0.5)
    assert strange > 5 * known


def test_no_entry_to_calibrate_with() -> None:
    """It is refused: nothing says how fast the device is."""
    with pytest.raises(InputError, match="no entry with which an analytical model can be calibrated"):
        Calibration((), analytical(resolve_target("vpu")))


@pytest.mark.timed
def test_many_layers_at_once() -> None:
    """100,000 layers with zeros of their own, priced by the cycle model and calibrated: about 1 us a layer."""
    cycles = CycleModel(resolve_target("vpu"))
    calibration = Calibration(table_of("vpu").entries, analytical(resolve_target("vpu")))
    works = [work for seed in range(4) for work in model_work(fused(random_network(seed))) if work.method != "view"]
    table, columns = cycles.table(works), calibration.columns(works)
    random = np.random.default_rng(0)
    which, zeros = random.integers(0, len(works), 100_000), random.uniform(0, 0.9, 100_000)

    def price(rows: slice) -> np.ndarray:
        return cycles.layer_ns(cycles.evaluate(table, zeros[rows], which=which[rows]).cycles)

    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        found = calibration.query(price, columns.rows(which))
        best = min(best, time.perf_counter() - begun)
    one = calibration.query(lambda _: price(slice(70_000, 70_001)), columns.rows(which[70_000:70_001]))
    assert found[70_000] == one[0]
    assert best / 100_000 < 3e-6  # the bar is 1 us; a busy machine is let pass
