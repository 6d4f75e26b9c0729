"""Whatever a file holds, reading it ends in a result or in one error that says what is wrong, and soon."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fuzzed_readers import READERS, Trial, changed
from hypothesis import given, settings
from hypothesis import strategies as st

_EXAMPLES = {"plan": 12, "profile": 12, "target": 25}


@pytest.mark.parametrize("name", READERS)
def test_right_files_are_read(name: str, tmp_path: Path) -> None:
    """What the wrong ones are made of is right."""
    trial = Trial(READERS[name], tmp_path)
    assert trial.valid
    for path, content in trial.valid.items():
        assert trial.read(path, content) is None


@pytest.mark.filterwarnings("default")  # as for users: NumPy's are no exceptions
@pytest.mark.parametrize("name", READERS)
def test_wrong_files_end_in_a_result_or_one_error(name: str, tmp_path: Path) -> None:
    """No other exception, no long wait, no memory beyond what the file's size explains, no file elsewhere."""
    trial = Trial(READERS[name], tmp_path)
    refused = []

    @settings(max_examples=_EXAMPLES.get(name, 40))
    @given(random=st.randoms(use_true_random=False))
    def read(random: Random) -> None:
        path, content = random.choice(list(trial.valid.items()))
        refused.append(trial.read(path, changed(random, path, content)) is not None)

    read()
    assert any(refused)  # what is wrong is noticed at all
