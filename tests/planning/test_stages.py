"""Placed models in segments."""

from __future__ import annotations

from plans import uniform

from framefit.planning.candidates import Run, cut_stages
from framefit.planning.placement import Stage

PIECES = {"fast": uniform([10, 10, 10, 10]), "slow": uniform([30, 30, 30, 30])}
STAGES = [Stage("fast", 0, 1), Stage("slow", 2, 3)]


def test_only_a_stage_that_is_too_long_for_its_unit_is_cut() -> None:
    """20 on the fast unit fits into 50, 60 on the slow one does not."""
    for mode in ("fewest", "equal"):
        runs = cut_stages(PIECES, STAGES, {"fast": 50, "slow": 50}, 0, mode)  # type: ignore[arg-type]
        assert runs == [Run("fast", 0, 1), Run("slow", 2, 2), Run("slow", 3, 3)]


def test_what_fits_or_can_be_interrupted_runs_whole() -> None:
    """Each stage is one segment."""
    whole = [Run("fast", 0, 1), Run("slow", 2, 3)]
    assert cut_stages(PIECES, STAGES, {"fast": 20, "slow": 60}, 0, "fewest") == whole
    assert cut_stages(PIECES, STAGES, {"fast": 5, "slow": 5}, 0, preemptive=True) == whole
    assert cut_stages(PIECES, [Stage("fast", 0, 3)], {"fast": 40}, 0) == [Run("fast", 0, 3)]


def test_residuals_are_filled_by_more_segments_of_a_model_that_is_split_anyway() -> None:
    """Boundaries are free here: each piece is a segment."""
    runs = cut_stages(PIECES, STAGES, {"fast": 50, "slow": 60}, 0)
    assert runs == [Run("fast", 0, 0), Run("fast", 1, 1), Run("slow", 2, 2), Run("slow", 3, 3)]


def test_a_piece_that_is_too_long_has_no_cut() -> None:
    """30 in a room of 29, and no room at all."""
    assert cut_stages(PIECES, STAGES, {"fast": 20, "slow": 29}, 0) is None
    assert cut_stages(PIECES, STAGES, {"fast": 0, "slow": 60}, 0) is None
