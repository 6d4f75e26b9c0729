"""Rungs that cover launches which take longer: when the timetable changes, and when it does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fakes import FakeBinding, FakeDevice
from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.execution.execution import TimedExecution
from framefit.runtime.channel import FrameChannel
from framefit.runtime.job import Job, Part
from framefit.runtime.loop import Dispatcher
from framefit.runtime.switching import Drift, Ladder, Rung, Share, TimetableSwitcher

MS = 1_000_000
FACE_NS, BIG_NS = 2 * MS, 5 * MS
COVERED = ((1.0, 1.0), (1.2, 1.0), (1.5, 1.0), (1.5, 1.5))


def climbing(durations: Callable[[str, int], int], *, drifts: bool = True) -> tuple[Dispatcher, Ladder]:
    """A priority and a background model of one segment; the rungs are those of ``COVERED`` at 100 and at 50 Hz."""
    device = FakeDevice(durations)
    device._kinds = {"face": 0, "big": 1}
    jobs = [
        Job(
            execution=TimedExecution(device, [label], [FakeBinding(label, {})]),
            first_program=number,
            priority=number == 0,
            estimates_ns=[estimate],
            deadline_ns=None,
            sources={},
            input=FrameChannel(1),
        )
        for number, (label, estimate) in enumerate((("face", FACE_NS), ("big", BIG_NS)))
    ]
    tracks = [
        [
            Rung(
                Grid(rate),
                [
                    Share(
                        [[(0, 0)]],
                        0,
                        [
                            Part(job.execution, number, [round(job.estimates_ns[0] * ratio)], None, (0,))
                            for number, (job, ratio) in enumerate(zip(jobs, (priority, background), strict=True))
                        ],
                    )
                ],
                covers=(priority, background),
                name=f"{rate:g}, {priority}, {background}",
            )
            for priority, background in COVERED
        ]
        for rate in (100.0, 50.0)
    ]
    switcher = TimetableSwitcher(tracks[0][0])
    ladder = Ladder(switcher, tracks, [Drift({0: FACE_NS}, {1: BIG_NS})] if drifts else [])
    run = Dispatcher(
        device,
        device.clock,
        jobs,
        Grid(100.0),
        0,
        service=Rotation(1),
        switcher=switcher,
        launch_observer=next(iter(ladder.observers), None),
    )
    return run, ladder


def taken(run: Dispatcher) -> list[tuple[int, tuple[float, float]]]:
    """From which window on what was covered."""
    return [(stretch.window, stretch.rung.covers) for stretch in run.stretches]


def noisy(seed: int, ratio: Callable[[str, int], float] = lambda *_: 1.0) -> Callable[[str, int], int]:
    """Durations whose 0.99 quantile is the planned one, times a ratio that depends on the launch."""
    random = np.random.default_rng(seed)
    median = {"face": FACE_NS / 1.15, "big": BIG_NS / 1.15}
    return lambda label, number: int(median[label] * np.exp(0.06 * random.standard_normal()) * ratio(label, number))


@pytest.mark.parametrize("seed", range(5))
def test_noise_changes_nothing(seed: int) -> None:
    """Launches that vary as planned, with stalls of several frames in a row, leave the timetable as it is."""
    stalled = {number + after for number in range(0, 6000, 200) for after in range(0, 14, 2)}
    run, _ = climbing(noisy(seed, lambda _, number: 4.0 if number in stalled else 1.0))
    run.run(3000)
    assert taken(run) == [(0, (1.0, 1.0))]


@pytest.mark.parametrize("seed", range(3))
def test_a_slower_model_is_covered_within_its_last_launches(seed: int) -> None:
    """Half of the launches that are looked at suffice to go to a rung that covers what takes longer from one on."""
    run, _ = climbing(noisy(seed, lambda label, number: 1.55 if label == "face" and number >= 400 else 1.0))
    run.run(400)
    changes = taken(run)[1:]
    assert changes[-1][1] == (1.5, 1.0)
    assert all(200 <= window <= 200 + 16 for window, _ in changes)
    assert run.stretches[-1].why.startswith("launches take 1.")


def test_it_goes_back_when_the_reason_is_gone_for_a_while() -> None:
    """Not at once: what comes and goes would change it again and again."""
    run, _ = climbing(noisy(1, lambda label, number: 1.55 if label == "face" and 400 <= number < 800 else 1.0))
    run.run(1000)
    *_, (_, finer), (window, covers) = taken(run)
    assert (finer, covers) == ((1.5, 1.0), (1.0, 1.0))
    assert 400 + 64 <= window <= 400 + 64 + 32


def test_what_no_rung_covers_gets_the_last_one() -> None:
    """It is the finest."""
    run, _ = climbing(noisy(2, lambda label, number: 3.0 if label == "face" and number >= 100 else 1.0))
    run.run(200)
    assert taken(run)[-1][1] == COVERED[-1]


def test_slower_background_launches_are_planned_with_their_time() -> None:
    """Else they would run over reserved instants."""
    run, _ = climbing(noisy(3, lambda _, number: 1.3 if number >= 200 else 1.0))
    run.run(400)
    assert taken(run)[-1][1] == (1.5, 1.5)
    assert run.stretches[-1].rung.shares[0].parts[1].estimates_ns == [round(1.5 * BIG_NS)]


def test_other_rates_keep_what_is_covered() -> None:
    """A rate that changes under a finer rung changes to the one that covers as much at the new rate."""
    run, ladder = climbing(noisy(4, lambda label, number: 1.55 if label == "face" and number >= 100 else 1.0))
    ladder.turn(1, 200, "half the rate")
    run.run(300)
    assert [stretch.rung.name for stretch in run.stretches[-2:]] == ["100, 1.5, 1.0", "50, 1.5, 1.0"]
    assert run.stretches[-1].window == 200
    assert run.release(201) - run.release(200) == 20 * MS


def test_without_drift_only_rates_change_it() -> None:
    """Whatever launches take."""
    run, ladder = climbing(noisy(5, lambda *_: 2.0), drifts=False)
    ladder.turn(1, 20, "half the rate")
    run.run(50)
    assert [stretch.rung.name for stretch in run.stretches] == ["100, 1.0, 1.0", "50, 1.0, 1.0"]
