"""More samples where intervals are wide."""

from __future__ import annotations

from boards import UNIT, vpu
from framefit import GraphBuilder
from framefit.core.latency_table import LatencyEntry
from framefit.core.target import Variation
from framefit.devices.npu.device import NpuDevice
from framefit.latency.campaign import Campaign, wide
from framefit.latency.subjects import distinct_layers, layer_key


def entry(channels: int, latency_ns: int, half_ns: int) -> LatencyEntry:
    """Told apart by its channels."""
    return LatencyEntry(
        op="Conv",
        configuration={"channels": channels},
        unit=UNIT,
        latency_ns=latency_ns,
        interval_ns=(latency_ns - half_ns, latency_ns + half_ns),
    )


def test_a_layer_is_held_to_its_own_latency_or_to_the_sum() -> None:
    """2.5 % of its own, or so little that a network of such layers is known to 1 %."""
    entries = [entry(1, 100_000, 2400), entry(2, 100_000, 2600), entry(3, 10_000, 900), entry(4, 10_000, 1300)]
    keys = [layer_key(one.op, one.configuration) for one in entries]
    assert wide(entries) == [1, 2, 3]
    assert wide(entries, [dict.fromkeys(keys, 1)]) == [1, 3]  # 1 % of 220 us over the root of 4: 1.1 us
    assert wide(entries, [{keys[0]: 1, keys[2]: 5, keys[3]: 1}]) == [1, 2, 3]  # five times as wrong in this one


def test_entries_below_the_clocks_resolution_are_narrow() -> None:
    """Views take nothing: no number of samples makes that narrower."""
    assert wide([entry(1, 0, 1)]) == []


def campaign(seed: int) -> tuple[Campaign, NpuDevice]:
    """Of a heavy, a middling and a light layer; 0.3 % noise, 100 samples."""
    device = vpu(Variation(sigma_ratio=0.003), seed)
    b = GraphBuilder("three")
    x = b.conv(b.input("x", (1, 32, 64, 64)), 128, norm=True, activation="Relu")
    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    b.output(b.op("GlobalAveragePool", x))
    subjects, _ = distinct_layers(b.build(), device.fusions, UNIT)
    found = Campaign(device, UNIT, subjects, auxiliary="avgpool", seed=seed)
    found.measure()
    return found, device


def test_samples_go_where_intervals_are_wide() -> None:
    """A heavy layer is known after fewer samples than a light one, and all that were wide are known better."""
    measured, device = campaign(5)
    first = measured.table()
    assert {len(one.samples_ns) for one in first.entries} == {100}
    left = measured.refine(device.clock.now_ns() + 6 * 10**9, most_repeats=4000)
    last = measured.table()
    counts = [len(one.samples_ns) for one in last.entries]
    assert 100 <= counts[0] < max(counts) <= 4000
    assert len(wide(last.entries)) == len(left)
    for index in wide(first.entries):
        assert last.entries[index].deviation_ns < first.entries[index].deviation_ns


def test_time_is_used_beyond_the_usual_number_of_samples() -> None:
    """A light layer gets more than 4,000 samples where there is time for them, if nobody says otherwise."""
    measured, device = campaign(5)
    measured.refine(device.clock.now_ns() + 60 * 10**9)
    assert max(len(run.samples_ns) for run in measured.rounds.runs[1:]) > 4000 / 5


def test_what_is_subtracted_is_repeated_too() -> None:
    """Runs that had more samples before take part in each further round."""
    measured, _ = campaign(5)
    rounds = measured.rounds
    rounds.repeat(3, [1])
    rounds.repeat(4, [1, 2])
    assert len(rounds.runs[1].samples_ns) == 27
    assert len(rounds.runs[2].samples_ns) == 24


def test_time_ends_it() -> None:
    """On the device's clock: no turn is begun that would not be done by then."""
    measured, device = campaign(5)
    until = device.clock.now_ns() + 1_500_000_000
    measured.refine(until)
    assert device.clock.now_ns() < until + 50_000_000
    now = device.clock.now_ns()
    assert len(measured.refine(now)) == len(wide(measured.table().entries))
    assert device.clock.now_ns() == now
