"""What launches take on a unit: stated by a description, or measured and kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice
from framefit.core.target import Host, Target, Unit, Variation
from framefit.core.workload import MachineSettings, ModelEntry
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Completion
from framefit.devices.measure import Measurement
from framefit.devices.npu.device import NpuDevice
from framefit.devices.store import MeasurementStore
from framefit.execution.compiled import Compiler, Launch
from framefit.execution.execution import Execution
from framefit.execution.wiring import WiredModel
from framefit.planning.durations import MeasuredDurations, ModelledDurations, are_comparable
from framefit.planning.task import SegmentedModel
from networks import NETWORKS

BOARD = Target(name="board", kind="npu", units=(Unit(name="npu0"),), host=Host(inference_ns=500))
WINDOW_NS = 10_000_000


def board(variation: Variation | None = None, seed: int = 0) -> NpuDevice:
    """A microsecond for the first layer, two for the second, ..."""
    target = msgspec.structs.replace(BOARD, variation=variation or Variation())
    times = lambda model, unit: [1000 * (1 + index) for index in range(len(model.layers))]  # noqa: ARG005, E731
    return NpuDevice(target, VirtualClock(), times, seed=seed)


class Campaigns:
    """Stands in for ``measure``: notes what is asked for, and tells 1 us for the first launch, 2 us for the second."""

    def __init__(self, *, drifting: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self._drifting = drifting
        self.away_ratio = 0.0
        """At plain priority; before other programs' threads nobody takes the core."""

    def __call__(self, launches: Sequence[Callable[[], Completion]], **limits: Any) -> list[Measurement]:
        """Samples of each."""
        self.asked.append(limits)
        count = limits["least_rounds"]
        speed = np.where(np.arange(count) < count // 2, 1, 2) if self._drifting else np.ones(count)
        away = 0.0 if limits.get("realtime") else self.away_ratio
        return [Measurement((1000 * (1 + n) * speed).astype(np.int64), away) for n in range(len(launches))]


@pytest.fixture
def campaigns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Campaigns:
    """Measuring is counted, and kept in a folder of the test's own."""
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path))
    fake = Campaigns()
    monkeypatch.setattr("framefit.planning.durations.measure", fake)
    return fake


def measured(*, fresh: bool = False, told: list[str] | None = None, realtime: bool = False) -> MeasuredDurations:
    """Of a device that never runs."""
    notify = (told if told is not None else []).append
    store = MeasurementStore(MachineSettings(), fresh=fresh)
    return MeasuredDurations(
        Compiler(FakeDevice()), "fake0", "fake0", store, WINDOW_NS, 0.99, notify, realtime=realtime
    )


def modelled(device: NpuDevice, quantile: float = 0.99, host_wakes: tuple[int, ...] = (0,)) -> ModelledDurations:
    """Of a described device's unit."""
    return ModelledDurations(device, "npu0", Compiler(device), quantile, lambda _: None, host_wakes)


def excess(durations: ModelledDurations) -> float:
    """Planned quantile over median of any model's launches."""
    (ratio,) = durations.excesses([task()], [])
    return ratio


def task() -> SegmentedModel:
    """A model in two segments on a described unit."""
    model = NETWORKS["plain"]()
    entry = ModelEntry(name="plain", path="plain.onnx")
    return SegmentedModel(WiredModel(entry, model, {}), "npu0", bounds=((0, 1), (2, len(model.layers) - 1)))


def halves() -> list[Launch]:
    """A model in two segments."""
    model = NETWORKS["plain"]()
    middle, last = len(model.layers) // 2, len(model.layers) - 1
    execution = Execution(model, [(0, middle - 1), (middle, last)], FakeDevice(), "fake0")
    return [(execution, 0), (execution, 1)]


def medians(found: Sequence[Measurement]) -> list[int]:
    """Of each launch."""
    return [measurement.median_ns for measurement in found]


# Told ----------------------------------------------------------------------------------------


def test_a_described_launch_costs_what_its_layers_do() -> None:
    """Layers, and the host's part for each launch; whenever it is asked, and without running anything."""
    device = board(Variation(sigma_ratio=0.3))
    model = NETWORKS["plain"]()
    execution = Execution(model, [(0, 1), (2, len(model.layers) - 1)], device, "npu0")
    durations = modelled(device)
    expected = [sum(one.expected_ns for one in operations) for operations in execution.operations]
    grouped = [len(part.grouped(device.fusions(part)).layers) for part in execution.parts]
    assert expected == [500 + 1000 * count * (count + 1) // 2 for count in grouped]
    assert [m.samples_ns.tolist() for m in durations.around([(execution, 0), (execution, 1)])] == [
        [ns] for ns in expected
    ]
    uncut = Execution(model, [(0, len(model.layers) - 1)], device, "npu0")
    launches = [(task(), 0), (task(), 1), (task(), None)]
    for thorough in (False, True):
        samples = durations.launched(launches, thorough=thorough)
        assert [ns.tolist() for ns in samples] == [[ns] for ns in (*expected, uncut.expected_ns(0))]
    assert device.clock.now_ns() == 0
    assert len(device.events()) == 0
    assert durations.exact
    assert not are_comparable(durations)
    assert durations.warnings == []


def test_the_excess_is_that_of_the_variation() -> None:
    """The quantile of log-normal jitter, up to its cut, at the worst of the drift; the greatest one beyond it."""
    z = NormalDist().inv_cdf(0.99)
    durations = modelled(board(Variation(sigma_ratio=0.02, most_ratio=0.1, drift_ratio=0.05)))
    assert excess(durations) == pytest.approx(math.exp(0.02 * z) * 1.05)
    assert durations.greatest_excess() == pytest.approx(1.1 / math.exp(0.02 * z) - 1)
    cut = modelled(board(Variation(sigma_ratio=0.2, most_ratio=0.1)))
    assert (excess(cut), cut.greatest_excess()) == (1.1, 0.0)
    still = modelled(board())
    assert (excess(still), still.greatest_excess()) == (1.0, 0.0)


def test_the_host_wakes_up_at_once_by_default() -> None:
    """In virtual time nobody waits; in real time the host's own wake-ups count."""
    assert modelled(board()).wake_ups() == (0,)
    assert modelled(board(), host_wakes=(70_000, 90_000)).wake_ups() == (70_000, 90_000)


@settings(deadline=None, max_examples=25)
@given(
    sigma=st.floats(0, 0.5),
    most=st.floats(0, 0.5),
    drift=st.floats(0, 0.3),
    quantile=st.floats(0.5, 0.999),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_launch_exceeds_the_greatest_excess(
    sigma: float, most: float, drift: float, quantile: float, seed: int
) -> None:
    """Whatever the device draws: quantile and greatest excess bound it, and so many launches exceed the quantile."""
    variation = Variation(sigma_ratio=sigma, most_ratio=most, drift_ratio=drift, drift_period_ms=3.0)
    device = board(variation, seed)
    durations = modelled(device, quantile)
    nominal = 1_000_000
    binding = device.timed("any", "npu0", nominal).bind({})
    took = np.asarray([device.submit(binding).duration_ns for _ in range(400)])
    planned = nominal * excess(durations)
    assert took.max() <= planned * (1 + durations.greatest_excess()) + 1
    assert (took > planned + 1).mean() <= 1 - quantile + 0.1


# Measured ------------------------------------------------------------------------------------


def test_what_was_measured_is_kept(campaigns: Campaigns) -> None:
    """A second first look, from another plan, measures nothing; planning with it asks for more rounds."""
    assert medians(measured().probe(halves())) == [1000, 2000]
    assert medians(measured().probe(halves())) == [1000, 2000]
    assert len(campaigns.asked) == 1
    assert campaigns.asked[0]["period_ns"] == WINDOW_NS
    assert medians(measured().final(halves())) == [1000, 2000]
    assert len(campaigns.asked) == 2
    assert campaigns.asked[1]["least_rounds"] > campaigns.asked[0]["least_rounds"]
    assert medians(measured().probe(halves())) == [1000, 2000]  # more rounds are enough
    assert len(campaigns.asked) == 2
    measured(fresh=True).final(halves())
    assert len(campaigns.asked) == 3


def test_what_others_had_the_core_for_is_not_kept(campaigns: Campaigns) -> None:
    """It is told once, and the next plan measures again."""
    campaigns.away_ratio = 0.4
    durations = measured()
    durations.probe(halves())
    durations.final(halves())
    assert len(durations.warnings) == 1
    assert "other programs" in durations.warnings[0]
    campaigns.away_ratio = 0.05
    again = measured()
    for _ in range(2):
        again.final(halves())
    assert (len(campaigns.asked), again.warnings) == (3, [])


def test_beside_other_programs_models_are_measured_as_they_will_run(campaigns: Campaigns) -> None:
    """Where priority models go before them, that is measured, said once, and kept."""
    campaigns.away_ratio = 0.4
    durations = measured(realtime=True)
    assert medians(durations.final(halves())) == [1000, 2000]
    assert [asked.get("realtime", False) for asked in campaigns.asked] == [False, True]
    (warning,) = durations.warnings
    assert "real-time priority" in warning
    measured(realtime=True).final(halves())
    assert len(campaigns.asked) == 2


def test_other_company_is_measured_anew(campaigns: Campaigns) -> None:
    """What runs beside a launch changes what it costs."""
    measured().probe(halves())
    measured().probe(halves()[:1])
    assert len(campaigns.asked) == 2


def test_around_a_run_nothing_comes_from_the_store(campaigns: Campaigns) -> None:
    """The machine as it is then."""
    for _ in range(2):
        assert medians(measured().around(halves())) == [1000, 2000]
    assert len(campaigns.asked) == 2


def test_medians_of_a_campaign_have_a_key_of_their_own(campaigns: Campaigns) -> None:
    """Launches are made only where they have to be measured, back to back."""
    made: list[str] = []

    def launches() -> list[Launch]:
        made.append("launches")
        return halves()

    for runs in ("0-1", "0-1", "0-2"):
        assert measured().medians({"model": "digest", "runs": runs}, launches) == (1000, 2000)
    assert len(made) == 2
    assert campaigns.asked[0]["period_ns"] == 0


def test_only_samples_tell_how_a_machine_varies() -> None:
    """There is no quantile in general, nobody knows the worst, and ways to cut have to be compared."""
    durations = measured()
    assert not durations.exact
    assert are_comparable(durations)
    samples = [np.asarray([100, 100, 150]), np.asarray([10, 10, 10])]
    ratio = float(np.quantile([1, 1, 1.5, 1, 1, 1], 0.99))
    assert durations.excesses([task(), task()], samples) == pytest.approx([ratio, ratio])
    assert durations.greatest_excess() == 0.0


def test_drift_is_reported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However many campaigns it spoils."""
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path))
    monkeypatch.setattr("framefit.planning.durations.measure", Campaigns(drifting=True))
    durations = measured()
    durations.probe(halves())
    durations.final(halves())
    (warning,) = durations.warnings
    assert "drifted" in warning
    assert "--no-cache" in warning


def test_wake_ups_are_measured_once(campaigns: Campaigns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they come from the store, and nothing is reported as being done."""
    floors = iter([np.asarray([50_000, 60_000]), np.asarray([1, 2])])
    monkeypatch.setattr("framefit.planning.durations.measure_floor", lambda *_: next(floors))
    told: list[str] = []
    assert measured(told=told).wake_ups() == (50_000, 60_000)
    assert measured(told=told).wake_ups() == (50_000, 60_000)
    assert told == ["measuring the machine's floor"]
    assert measured(fresh=True).wake_ups() == (1, 2)


def test_wake_ups_of_a_busy_host_are_not_kept(campaigns: Campaigns, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that wakes up a whole period late says nothing of the machine."""
    floors = iter([np.asarray([50_000, 43_000_000]), np.asarray([1, 2])])
    monkeypatch.setattr("framefit.planning.durations.measure_floor", lambda *_: next(floors))
    assert measured().wake_ups() == (50_000, 43_000_000)
    assert measured().wake_ups() == (1, 2)
