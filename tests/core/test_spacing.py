"""Which frames of a stream are a model's own."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.spacing import apart, every_of, least_apart, own_frame
from framefit.core.workload import ModelEntry


@pytest.mark.parametrize(
    ("every", "taken"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4]), ("3/2", [0, 2, 3, 5]), ("6/5", [0, 2, 3, 4, 5])]
)
def test_frames_are_evenly_spread(every, taken):
    """Two of three frames, five of six."""
    spacing = ModelEntry(name="net", path="net.onnx", every=every).spacing
    assert [number for number in range(6) if own_frame(number, spacing) is not None] == taken
    assert every_of(spacing) == every


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 500), st.integers(0, 60))
def test_frames_are_numbered_and_bounded(more, frames, number, count):
    """A model's frames are numbered without a gap, and are as far apart as the spacing says, to one frame."""
    spacing = Fraction(more + frames - 1, frames)
    assert own_frame(math.ceil(number * spacing), spacing) == number
    distance = math.ceil((number + count) * spacing) - math.ceil(number * spacing)
    assert least_apart(count, spacing) <= distance <= apart(count, spacing)
    numbers = [own_frame(each, spacing) for each in range(number)]
    assert [each for each in numbers if each is not None] == list(range(sum(each is not None for each in numbers)))


@pytest.mark.parametrize("every", ["2/3", 0, "0", "1/0", "two", "3/", "-3/2", "1.5"])
def test_what_is_no_spacing_is_refused(every):
    """The message names the key."""
    with pytest.raises(ValueError, match="every must be"):
        ModelEntry(name="net", path="net.onnx", every=every)
