"""One verdict on a workload: from whether deadlines hold, and from what each model gets."""

from dataclasses import dataclass

import pytest

from framefit.core.verdict import gets, share_ratio, verdict_of


@dataclass
class Model:
    """Named "tags"."""

    asked_hz: float
    served_hz: float
    name: str = "tags"


@pytest.mark.parametrize(
    ("feasible", "served_hz", "verdict"),
    [
        (True, 30.0, "fits"),
        (True, 29.5, "fits"),  # a timetable begins with idle units
        (True, 11.5, "fits with fewer frames"),
        (True, 0.0, "fits with fewer frames"),
        (False, 0.0, "does not fit"),
        (False, 30.0, "does not fit"),
    ],
)
def test_the_verdict(feasible, served_hz, verdict):
    """Deadlines decide first, then frames, to 2 %."""
    assert verdict_of([Model(30.0, 30.0), Model(30.0, served_hz)], feasible=feasible) == verdict


def test_a_model_that_asks_for_nothing_has_it():
    """There is nothing to be short of."""
    assert share_ratio(Model(0.0, 0.0)) == 1
    assert verdict_of([], feasible=True) == "fits"


def test_what_a_model_gets_in_words():
    """The rounding of a timetable is not told."""
    assert gets(Model(30.0, 11.5)) == "'tags' gets 11.5 of 30 Hz"
    assert gets(Model(30.0, 29.6)) == "'tags' gets 30 of 30 Hz"
