"""The speed of launches: how fast it changes, whatever the variances of what is seen of it claim."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from framefit.profiling.align.tempo import estimate_launch_var, estimate_tempo_step, smooth_tempo

Floats = npt.NDArray[np.float64]

LAUNCHES = 600
NOISE = 0.004  # standard deviation of what one launch says of its speed


def seen(speed: Floats, seed: int, *, claimed: float = 1.0) -> tuple[Floats, Floats]:
    """What launches say of their speeds, some more surely than others; variances are ``claimed`` times too large."""
    random = np.random.default_rng(seed)
    var = NOISE**2 * random.uniform(0.5, 2.0, len(speed))
    return speed + random.normal(0.0, np.sqrt(var)), var * claimed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("claimed", [0.1, 1.0, 20.0])
def test_followed_whatever_variances_claim(seed: int, claimed: float) -> None:
    """A speed that swings by 15 % is followed better than launches tell it, also where the variances contain it."""
    speed = 1 + 0.15 * np.sin(np.arange(LAUNCHES) / 23)
    ratio, var = seen(speed, seed, claimed=claimed)
    step = estimate_tempo_step(ratio, var)
    smooth, _ = smooth_tempo(ratio, var, step, float(ratio[0]), 1e-2)
    assert np.std(smooth - speed) < 0.6 * np.std(ratio - speed)


@pytest.mark.parametrize("step_sd", [0.001, 0.002, 0.004])
def test_step_of_a_walk(step_sd: float) -> None:
    """A random walk's step is found where variances are right, past launches that say nothing or are disturbed."""
    walk = 1 + np.cumsum(np.random.default_rng(5).normal(0.0, step_sd, 2000))
    ratio, var = seen(walk, 6)
    var[::9] = np.inf
    ratio[::9] = 1.0
    ratio[4::50] += 0.03
    assert 0.5 < np.sqrt(estimate_tempo_step(ratio, var)) / step_sd < 2


@pytest.mark.parametrize("claimed", [0.05, 1.0, 20.0])
def test_steady_speed(claimed: float) -> None:
    """A speed that does not change is taken for one that hardly does, also where variances are far too small."""
    ratio, var = seen(np.ones(LAUNCHES), 7, claimed=claimed)
    smooth, _ = smooth_tempo(ratio, var, estimate_tempo_step(ratio, var), 1.0, 1e-2)
    assert np.std(smooth - 1) < 0.4 * np.std(ratio - 1)


@pytest.mark.parametrize("own_sd", [0.01, 0.05])
def test_deviation_of_each_launch(own_sd: float) -> None:
    """What launches deviate from a swinging speed, each for itself, is told from what their operations vary."""
    random = np.random.default_rng(8)
    speed = 1 + 0.15 * np.sin(np.arange(LAUNCHES) / 23) + random.normal(0.0, own_sd, LAUNCHES)
    ratio, var = seen(speed, 9)
    assert 0.8 < np.sqrt(estimate_launch_var(ratio, var)) / own_sd < 1.25


def test_launches_without_a_deviation_of_their_own() -> None:
    """A steady or slowly changing speed is no deviation of single launches."""
    for swing in (0.0, 0.15):
        ratio, var = seen(1 + swing * np.sin(np.arange(LAUNCHES) / 23), 10)
        assert estimate_launch_var(ratio, var) < NOISE**2 / 4


def test_too_few_launches() -> None:
    """Of a handful of launches no step is estimated, and nothing breaks."""
    nothing = np.full(3, np.inf)
    assert estimate_tempo_step(np.ones(3), nothing) == estimate_tempo_step(np.ones(0), np.ones(0)) > 0
    assert estimate_launch_var(np.ones(3), nothing) == 0
