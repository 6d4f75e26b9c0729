"""Windows between the releases of several streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.errors import InputError
from framefit.scheduling.grid import merged


def test_audio_blocks_and_a_camera_make_windows_between_consecutive_releases() -> None:
    """10 ms and 33.3 ms: 12 windows in 100 ms, the camera in windows 0, 4 and 8."""
    grid = merged({"audio": 100, "camera": 30})
    assert sum(grid.lengths_ns) == 100_000_000
    assert len(grid.lengths_ns) == 12
    assert grid.releases["camera"] == (0, 4, 8)
    assert grid.lengths_ns[:5] == (10_000_000, 10_000_000, 10_000_000, 3_333_333, 6_666_667)


def test_one_rate_is_one_window() -> None:
    """All streams release in each window."""
    grid = merged({"a": 30, "b": 30.0})
    assert grid.lengths_ns == (33_333_333,)
    assert grid.releases == {"a": (0,), "b": (0,)}


@given(st.lists(st.sampled_from([10, 15, 20, 24, 25, 30, 50, 60, 100]), min_size=1, max_size=3))
def test_each_stream_releases_at_its_own_instants(rates: list[int]) -> None:
    """Release k of a stream is round(k x 1e9 / rate), over two patterns to a nanosecond."""
    grid = merged({str(number): rate for number, rate in enumerate(rates)})
    begins = [sum(grid.lengths_ns[:window]) for window in range(len(grid.lengths_ns))]
    whole = sum(grid.lengths_ns)
    for number, rate in enumerate(rates):
        windows = grid.releases[str(number)]
        instants = [begins[window] + repeat * whole for repeat in (0, 1) for window in windows]
        assert all(abs(at - round(k * 1e9 / rate)) <= 1 for k, at in enumerate(instants))
    assert set().union(*grid.releases.values()) == set(range(len(grid.lengths_ns)))
    assert min(grid.lengths_ns) > 0


@pytest.mark.parametrize(
    ("rates", "named"),
    [({}, "no stream"), ({"a": 0.0}, "greater than 0"), ({"a": 999.0, "b": 1000.0}, "only after 1 s")],
)
def test_what_gives_no_grid_is_refused(rates: dict[str, float], named: str) -> None:
    """No stream, no rate, or rates that meet too seldom."""
    with pytest.raises(InputError, match=named):
        merged(rates)
