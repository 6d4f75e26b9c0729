"""Launches in turn: equal models once, drift taken out, samples kept."""

from __future__ import annotations

import numpy as np
import pytest

from boards import UNIT, vpu
from fakes import FakeDevice
from framefit import DeviceError, GraphBuilder, Model
from framefit.core.target import Variation
from framefit.latency.rounds import RUNS, Rounds, interval, replicates


def layer(side: int = 32) -> Model:
    """A convolution."""
    b = GraphBuilder("conv")
    b.output(b.conv(b.input("x", (1, 16, side, side)), 16))
    return b.build()


def test_equal_models_are_one_run() -> None:
    """The same bytes, the same place."""
    rounds = Rounds(vpu(), UNIT)
    assert rounds.add("layer", layer()) == rounds.add("layer", layer()) != rounds.add("layer", layer(16))
    assert [run.role for run in rounds.runs] == ["reference", "layer", "layer"]


def test_a_steady_device_keeps_its_samples_as_they_are() -> None:
    """Without drift the reference changes nothing beyond a fraction of the noise."""
    device = vpu(Variation(sigma_ratio=0.01))
    rounds = Rounds(device, UNIT)
    place = rounds.add("layer", layer())
    assert rounds.measure(200)
    values = rounds.runs[place].samples_ns / np.median(rounds.runs[place].samples_ns)
    assert rounds.runs[place].samples_ns.shape == (200, RUNS)
    assert values.std() == pytest.approx(0.01, rel=0.1)
    assert rounds.drift_ratio < 0.01


def test_drift_is_taken_out() -> None:
    """A speed that varies by 10 % leaves samples whose rounds vary by noise alone."""
    device = vpu(Variation(sigma_ratio=0.002, drift_ratio=0.1, drift_period_ms=100))
    rounds = Rounds(device, UNIT)
    places = [rounds.add("layer", layer(side)) for side in (8, 16, 32, 64)]
    rounds.measure(100)
    assert 0.15 < rounds.drift_ratio < 0.25
    for place in places:
        assert np.std(rounds.runs[place].rounds_ns) / np.median(rounds.runs[place].rounds_ns) < 0.01


def test_on_a_shared_processor_first_launches_and_longest_rounds_are_left_out() -> None:
    """What a turn's first launches find is the others' doing, and disturbances only add."""
    places: list[int] = []  # within its turn, of each of the layer's launches

    def duration_ns(label: str, _: int) -> int:
        if label.startswith("reference"):
            places.append(-1)
            return 1000
        places.append(places[-1] + 1)
        disturbed = places.count(0) % 10 == 0 and places[-1] > 2
        return 5000 if disturbed else (900, 800, 700, 100, 100, 100, 100, 100)[places[-1]]

    rounds = Rounds(FakeDevice(duration_ns), "fake0", resident=True)
    place = rounds.add("layer", layer())
    assert rounds.measure(20)
    assert rounds.runs[place].samples_ns.shape == (20, RUNS)
    assert set(rounds.runs[place].samples_ns.ravel()) == {100, 5000}
    assert rounds.medians()[0, place] == pytest.approx(100)
    assert rounds.median_ns(place) == pytest.approx(100)


def test_whole_networks_settle_longer_than_layers() -> None:
    """Their tenth launch may still be longer than later ones; those that take long settle in fewer."""
    durations = {"reference 0": 1000, "layer 1": 7_000_000, "network 2": 7_000_000, "network 3": 50_000_000}
    rounds = Rounds(FakeDevice(lambda label, _: durations[label]), "fake0", resident=True)
    places = [rounds.add(role, layer(side)) for role, side in (("layer", 8), ("network", 16), ("network", 32))]
    assert [rounds.runs[place].settling for place in places] == [3, 14, 3]
    rounds.measure(2)
    assert {rounds.runs[place].samples_ns.shape for place in places} == {(2, RUNS)}


def test_first_launches_count_only_where_all_take_part() -> None:
    """What few others evict says nothing about what all of them do."""
    rounds = Rounds(FakeDevice(lambda *_: 1000), "fake0", resident=True)
    places = [rounds.add("layer", layer(side)) for side in (8, 16)]
    rounds.measure(4)
    rounds.repeat(3, places[:1])
    assert [len(rounds.runs[place].samples_ns) for place in places] == [7, 4]
    assert [len(rounds.runs[place].turns_ns) for place in places] == [4, 4]


def test_a_tensor_without_a_size_is_refused() -> None:
    """Its bytes are what the overhead depends on."""
    b = GraphBuilder("free")
    b.output(b.op("NonZero", b.input("x", (1, 4))))
    with pytest.raises(DeviceError, match="has no fixed size"):
        Rounds(vpu(), UNIT).add("layer", b.build())


def test_records_can_be_taken_over() -> None:
    """Into rounds over the same models, so that nothing is measured twice."""
    device = vpu(Variation(sigma_ratio=0.01))
    first = Rounds(device, UNIT)
    place = first.add("layer", layer())
    first.measure(4)
    second = Rounds(device, UNIT)
    second.add("layer", layer(64))
    same = second.add("layer", layer())
    second.take_over(first.records())
    assert second.runs[same].samples_ns == pytest.approx(first.runs[place].samples_ns, abs=0.5)
    assert not second.measured
    assert second.measure(4)
    assert second.measured


@pytest.mark.parametrize(("alike", "least"), [(0.0, 0.83), (0.7, 0.7)])
def test_intervals_know_that_rounds_drift(alike: float, least: float) -> None:
    """Also where rounds are like the ones before: drawn one by one they hold 56 % of means, in blocks 79 %."""
    random, held = np.random.default_rng(0), 0
    for _ in range(100):
        steps = random.standard_normal(220)
        for index in range(1, len(steps)):
            steps[index] += alike * steps[index - 1]
        low, high = interval(replicates([1000 + steps[20:]], random)[:, 0])
        held += low <= 1000 <= high
    assert held >= 100 * least
