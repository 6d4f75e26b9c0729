"""The service policy played over the same free span of each window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import planned

from framefit.core.policy import Rotation
from framefit.planning.beat import Beat, Demand
from framefit.planning.playback import served_launches

WINDOW_NS = 100


@dataclass(frozen=True)
class Load:
    """A background model: what its segments take for one frame after the other, and how much more they need."""

    taken_ns: Sequence[Sequence[int]]
    more_ns: int = 0
    every: int = 1
    frames: int = 1
    queue: int = 1

    @property
    def needed_ns(self) -> list[int]:
        """To be started, of each segment."""
        return [max(times) + self.more_ns for times in zip(*self.taken_ns, strict=True)]


def load(*segments_ns: int, **demand: int) -> Load:
    """A model of exact durations."""
    return Load([segments_ns], **demand)


def served(loads: Sequence[Load], begin_ns: int, end_ns: int, windows: int) -> list[int]:
    """Launches of each."""
    names = [f"model{number}" for number in range(len(loads))]
    demands = {
        n: Demand(every=one.every, frames=one.frames, queue=one.queue) for n, one in zip(names, loads, strict=True)
    }
    return served_launches(
        Beat(WINDOW_NS, 0, demands=demands),
        [planned(name, one.needed_ns) for name, one in zip(names, loads, strict=True)],
        (begin_ns, end_ns),
        windows,
        {name: one.taken_ns for name, one in zip(names, loads, strict=True)},
    )


def by_hand(loads: Sequence[Load], begin_ns: int, end_ns: int, windows: int) -> list[int]:
    """The same in one loop over all windows, without stages, spans or units."""
    rotation = Rotation(len(loads))
    waiting, segment, launches = [0] * len(loads), [0] * len(loads), [0] * len(loads)
    for window in range(windows):
        for number, one in enumerate(loads):
            if window % one.every == 0:
                busy = one.frames if segment[number] else 0  # in flight, still counted as waiting
                waiting[number] = min(waiting[number] + 1, max(one.queue, one.frames) + busy)
        now = begin_ns
        while True:
            needed = [
                one.needed_ns[segment[n]] if segment[n] or waiting[n] >= one.frames else None
                for n, one in enumerate(loads)
            ]
            chosen = rotation.choose(needed, end_ns - now)
            if chosen is None:
                break
            taken = loads[chosen].taken_ns
            now += taken[launches[chosen] % len(taken)][segment[chosen]]
            segment[chosen] += 1
            if segment[chosen] == len(taken[0]):
                segment[chosen] = 0
                launches[chosen] += 1
                waiting[chosen] -= loads[chosen].frames
                rotation.finished(chosen)
    return launches


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Up to six segments that take the same for each frame, or differ from frame to frame."""
    count = draw(st.integers(1, 6))
    taken = draw(st.lists(st.lists(st.integers(1, 50), min_size=count, max_size=count), min_size=1, max_size=2))
    small = st.integers(1, 4)
    return Load(taken, draw(st.integers(0, 5)), draw(small), draw(small), draw(small))


@given(st.lists(loads(), min_size=0, max_size=4), st.integers(0, 60), st.integers(60, 100), st.integers(0, 120))
def test_it_is_the_policy_window_after_window(models: list[Load], begin_ns: int, end_ns: int, windows: int) -> None:
    """Stopping where a state repeats changes nothing, nor do stages and spans."""
    assert served(models, begin_ns, end_ns, windows) == by_hand(models, begin_ns, end_ns, windows)


@pytest.mark.parametrize(
    ("segments_ns", "launches"),
    [([60], 600), ([61], 0), ([30, 30], 600), ([40, 40], 300), ([20] * 6, 300), ([50, 20, 50], 200), ([5], 600)],
)
def test_segments_are_started_wherever_they_fit(segments_ns: list[int], launches: int) -> None:
    """Residuals of 60 ns, filled in order; one frame arrives a window."""
    assert served([load(*segments_ns)], 40, 100, 600) == [launches]


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_short_model_gets_every_frame(every: int, frames: int) -> None:
    """However many it takes at once."""
    assert served([load(10, every=every, frames=frames)], 40, 100, 600) == [600 // every // frames]


def test_what_finds_a_queue_full_is_dropped() -> None:
    """With one frame that waits a model runs in its turn only; with more of them it fills the gaps, too."""
    assert served([load(10), load(45, 45)], 50, 100, 600) == [200, 200]
    short, long = served([load(10, queue=9), load(45, 45)], 50, 100, 600)
    assert (short, long) == (pytest.approx(600, rel=0.02), 200)


def test_models_take_turns() -> None:
    """Residual 60, segments of 30: two models of two segments each get a frame in two windows."""
    assert served([load(30, 30), load(30, 30)], 40, 100, 600) == [300, 300]
    rare, other = served([load(30, 30, every=4), load(30, 30)], 40, 100, 600)
    assert (rare, other) == (150, pytest.approx(450, rel=0.01))


def test_a_segment_starts_only_where_what_it_needs_fits() -> None:
    """It takes 20 of the 60 that are left, but needs 41 to be started: one a window, not two."""
    assert served([Load([[20, 20]], more_ns=21)], 40, 100, 600) == [300]
    assert served([load(20, 20)], 40, 100, 600) == [600]


def test_a_model_that_never_fits_is_not_in_the_way_of_others() -> None:
    """The turn is its own for ever, and the time goes to whoever fits."""
    models = [planned("long", [70]), planned("short", [10])]
    assert served_launches(Beat(WINDOW_NS, 0), models, (40, 100), 50, {}) == [0, 50]
