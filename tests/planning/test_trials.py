"""Which of several ways to cut is taken, and what measuring them teaches."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import planned, some_pieces

from framefit.planning.beat import Beat
from framefit.planning.cutting import Candidate, Cutting, Trial, learned, preferred, tried, ways_to_cut
from framefit.planning.partition import MOST_OVERHEAD_RATIO, Pieces
from framefit.planning.reserved import segment_room

MS = 1_000_000
BEAT = Beat(33 * MS, MS // 10)
FACE = Candidate(planned("face", [3 * MS], priority=True))


def priced(inside_ns: list[float], boundary_ns: list[float], excess: float) -> Pieces:
    """Pieces that bear half of the boundaries beside them."""
    median = np.asarray(inside_ns, np.float64)
    median[:-1] += np.asarray(boundary_ns) / 2
    median[1:] += np.asarray(boundary_ns) / 2
    return Pieces(
        median.astype(np.int64), np.ceil(median * excess).astype(np.int64), np.asarray(boundary_ns).astype(np.int64)
    )


def network(excess: float = 1.05, boundary_ms: float = 0.2) -> Candidate:
    """A background model of 48 ms in 48 like pieces."""
    model = planned("depth", [int(48 * MS * excess)])
    whole = msgspec.structs.replace(model.segments[0], median_ns=48 * MS)
    pieces = priced([float(MS)] * 48, [boundary_ms * MS] * 47, excess)
    return Candidate(msgspec.structs.replace(model, segments=(whole,)), pieces)


@settings(max_examples=15, deadline=None)
@given(st.floats(1.0, 1.4), st.floats(0.0, 1.0))
def test_ways_differ_and_fit(excess: float, boundary_ms: float) -> None:
    """Each way has another number of segments, all of which fit at their estimates; that of the fewest is there."""
    candidates = [FACE, network(excess, boundary_ms)]
    ways = ways_to_cut(candidates, BEAT, "fill", 4)
    room = segment_room(BEAT, [FACE.model])
    counts = [len(way.runs["depth"] or ()) for way in ways]
    assert 1 < len(ways) <= 4
    assert len(set(counts)) == len(counts)
    for way in ways:
        assert max(segment.duration_ns for segment in way.models[1].segments) <= room
    (fewest,) = ways_to_cut(candidates, BEAT, "fewest", 4)
    assert min(counts) == len(fewest.runs["depth"] or ())


def test_the_first_way_fills_windows_and_not_their_edges() -> None:
    """48 ms in windows that leave 29.8: two segments of 24 serve a frame in two windows, three of 16 need three."""
    first = ways_to_cut([FACE, network(1.1, 0.1)], BEAT, "fill", 4)[0]
    windows = 33 / 48 * 0.5 * 48 / 33
    assert windows == 0.5
    trial = tried([FACE, network(1.1, 0.1)], BEAT, first, {}, {})
    assert trial.served_ratio >= 0.5 * 48 / 33 - 0.01


def test_where_no_cut_fits_there_is_one_way() -> None:
    """A piece that is longer than the residual: nothing to choose from, and it says so."""
    pieces = Pieces(np.asarray([40 * MS, MS]), np.asarray([40 * MS, MS]), np.asarray([0]))
    (way,) = ways_to_cut([FACE, Candidate(planned("depth", [41 * MS]), pieces)], BEAT, "fill", 4)
    assert not way.fits


def test_a_trial_is_judged_by_what_was_measured() -> None:
    """Durations, quantiles, overhead and fit come from the medians, at the speed of the candidates' own campaign."""
    candidate = network(1.1)
    way = next(way for way in ways_to_cut([FACE, candidate], BEAT, "fill", 4) if len(way.runs["depth"] or ()) == 2)
    trial = tried([FACE, candidate], BEAT, way, {"depth": [50 * MS, 48 * MS]}, {"depth": 96.0 * MS})
    segments = trial.cutting.models[1].segments
    assert [segment.median_ns for segment in segments] == [25 * MS, 24 * MS], "the machine had half its speed"
    assert [segment.duration_ns for segment in segments] == pytest.approx([27.5 * MS, 26.4 * MS])
    assert trial.fits
    assert trial.overhead_ratio == pytest.approx(98 / 96 - 1)
    long = tried([FACE, candidate], BEAT, way, {"depth": [60 * MS, 36 * MS]}, {"depth": 96.0 * MS})
    assert not long.fits, "33 ms at the quantile"
    assert long.served_ratio == 0


def trial(*, fits: bool = True, overhead: float = 0.01, served: float = 0.5, segments: int = 2) -> Trial:
    """A trial as it is judged."""
    models = [planned("depth", [MS] * segments)]
    return Trial(Cutting(BEAT, {}, models), fits, overhead, served)


def test_what_is_preferred() -> None:
    """What fits, then what keeps twice the budget for boundaries, then what serves most, then fewer segments.

    What exceeds the budget has to serve a tenth more.
    """
    best = trial(served=0.5)
    others = [
        trial(fits=False, served=0.9),
        trial(overhead=2 * MOST_OVERHEAD_RATIO + 0.001, served=0.8),
        trial(overhead=MOST_OVERHEAD_RATIO + 0.001, served=0.54),
        trial(served=0.45),
        trial(served=0.501, segments=9),
    ]
    for order in itertools.permutations([best, *others]):
        assert preferred(order) is best
    assert preferred([best, trial(overhead=MOST_OVERHEAD_RATIO + 0.001, served=0.6)]) is not best
    assert preferred(others[:2]) is others[1], "where none keeps the budget"


def test_a_boundary_that_turned_out_dear_is_avoided() -> None:
    """One cut of four costs 0.5 where 0.1 was priced: it is dearer than the others, and they are a little dearer."""
    pieces = priced([1000.0] * 4, [100.0] * 3, 1.2)
    found = learned(pieces, [([(0, 1), (2, 3)], [2250, 2250], 4000.0)], 1.3)
    assert found.boundary_ns.tolist() == [500, 500, 500], "nothing else is known"
    found = learned(pieces, [([(0, 1), (2, 3)], [2250, 2250], 4000.0), ([(0, 0), (1, 3)], [1050, 3050], 4000.0)], 1.3)
    assert found.boundary_ns.tolist() == [100, 500, 300]
    assert found.quantile_ns.tolist() == np.ceil(found.median_ns * 1.3).astype(int).tolist()


@settings(max_examples=80, deadline=None)
@given(some_pieces(), st.integers(0, 2**32 - 1), st.floats(1.0, 1.5), st.floats(0.5, 2.0))
def test_what_was_learned_explains_what_was_measured(pieces: Pieces, seed: int, excess: float, speed: float) -> None:
    """A single cutting's segments get the costs that they had, the uncut model keeps its own; at any speed."""
    random = np.random.default_rng(seed)
    count = len(pieces)
    cuts = np.flatnonzero(random.random(count - 1) < 0.5).tolist() if count > 1 else []
    if not cuts:
        assert (learned(pieces, [], excess).boundary_ns == pieces.boundary_ns).all()
        return
    whole = pieces.joined()[0][0, -1]
    runs = [(first + 1, last) for first, last in itertools.pairwise([-1, *cuts, count - 1])]
    prices = random.integers(0, 200, len(cuts))
    parts = random.integers(1, 1000, len(runs)).astype(float)
    medians = parts / parts.sum() * whole
    medians[:-1] += prices / 2
    medians[1:] += prices / 2
    found = learned(pieces, [(runs, (medians * speed).tolist(), whole * speed)], excess)
    got, _ = found.of(runs)
    joined = found.joined()[0][0, -1]
    slack = 3 * count + 3  # whole nanoseconds
    assert joined == pytest.approx(inside(pieces), rel=0.02, abs=slack)
    assert sum(got) - joined == pytest.approx(prices.sum() * inside(pieces) / max(whole, 1), rel=0.02, abs=slack)


def inside(pieces: Pieces) -> float:
    """What the pieces take without their boundaries, none less than nothing."""
    halves = np.convolve(pieces.boundary_ns, [0.5, 0.5]) if len(pieces) > 1 else np.zeros(1)
    return float(np.maximum(pieces.median_ns - halves, 0).sum())
