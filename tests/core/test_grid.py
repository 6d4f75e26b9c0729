"""Windows between the releases of several streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit import InputError
from framefit.core.grid import Grid, merged

RATES = st.lists(st.sampled_from([10, 15, 20, 24, 25, 30, 50, 60, 100]), min_size=1, max_size=3)


def test_audio_blocks_and_a_camera_make_windows_between_consecutive_releases() -> None:
    """10 ms and 33.3 ms: 12 windows in 100 ms, the camera in windows 0, 4 and 8."""
    grid = merged({"audio": 100, "camera": 30})
    assert sum(grid.lengths_ns) == 100_000_000
    assert len(grid.lengths_ns) == 12
    assert grid.places("camera") == (0, 4, 8)
    assert grid.lengths_ns[:5] == (10_000_000, 10_000_000, 10_000_000, 3_333_333, 6_666_667)
    assert grid.shortest_ns == 3_333_333
    assert grid.windows_hz == 120
    assert (grid.period_ns("audio"), grid.period_ns("camera")) == (10_000_000, 33_333_333)
    assert [grid.occurrence("camera", window) for window in (0, 1, 4, 5, 12, 13)] == [0, 1, 1, 2, 3, 4]


def test_one_rate_is_one_window_that_never_drifts() -> None:
    """All streams release in each window; window k begins at round(k x 1e9 / rate)."""
    grid = merged({"a": 30, "b": 30.0})
    assert grid.lengths_ns == (33_333_333,)
    assert (grid.places("a"), grid.places("c")) == ((0,), (0,))
    assert [grid.release_ns(window) for window in (1, 2, 3, 10**6)] == [
        33_333_333,
        66_666_667,
        100_000_000,
        round(10**15 / 30),
    ]


def test_a_beat_that_is_given_has_windows_of_its_own() -> None:
    """A stream of half its rate brings a frame in every second window."""
    grid = merged({"camera": 15}, 30)
    assert len(grid.offsets_ns) == 2
    assert grid.places("camera") == (0,)


@given(RATES)
def test_each_stream_releases_at_its_own_instants(rates: list[int]) -> None:
    """Release k of a stream is round(k x 1e9 / rate), to a nanosecond, in any repetition; no window is empty."""
    grid = merged({str(number): rate for number, rate in enumerate(rates)})
    count = len(grid.offsets_ns)
    for number, rate in enumerate(rates):
        places = grid.places(str(number))
        instants = [grid.release_ns(place + repeat * count) for repeat in (0, 1, 1000) for place in places]
        expected = [
            round((repeat * len(places) + k) * 1e9 / rate) for repeat in (0, 1, 1000) for k in range(len(places))
        ]
        assert all(abs(at - other) <= 1 for at, other in zip(instants, expected, strict=True))
        assert [grid.occurrence(str(number), place) for place in places] == list(range(len(places)))
    used = {place for number in range(len(rates)) for place in grid.places(str(number))}
    assert used == set(range(count))
    assert min(grid.lengths_ns) > 0


@given(RATES, st.floats(0.01, 3))
def test_windows_in_a_time_are_those_that_begin_within_it(rates: list[int], seconds: float) -> None:
    """As counting releases gives; where all are equal to the nearest whole number."""
    grid = merged({str(number): rate for number, rate in enumerate(rates)})
    counted = sum(grid.release_ns(window) < seconds * 1e9 for window in range(2000))
    assert abs(grid.windows_in(seconds) - counted) <= (len(grid.offsets_ns) == 1)


@pytest.mark.parametrize(
    ("rates", "named"),
    [({}, "no stream"), ({"a": 0.0}, "greater than 0"), ({"a": 999.0, "b": 1000.0}, "only after 1 s")],
)
def test_what_gives_no_grid_is_refused(rates: dict[str, float], named: str) -> None:
    """No stream, no rate, or rates that meet too seldom."""
    with pytest.raises(InputError, match=named):
        merged(rates)


@given(st.integers(0, 10**6), st.integers(1, 2000))
def test_releases_lie_on_an_exact_grid(window: int, rate_hz: int) -> None:
    """Window k begins at k x 1e9 / rate, rounded: errors never add up."""
    exact_twice = 2 * window * 10**9
    assert abs(2 * rate_hz * Grid(rate_hz).release_ns(window) - exact_twice) <= rate_hz


def test_a_grid_of_one_rate_needs_nothing_else() -> None:
    """Its windows are as long as its rate says."""
    assert Grid(100.0).lengths_ns == (10_000_000,)
