"""The registry of kinds of steps."""

from __future__ import annotations

from framefit.fit.steps import known_steps, step_names


def test_every_file_is_a_kind_of_step_of_its_name() -> None:
    """What costs nothing comes first, and what changes a network least among what costs alike."""
    known = known_steps()
    assert sorted(known) == list(step_names())
    assert list(known) == ["cuts", "levels", "units", "queues", "int8", "sparsify", "trees", "rate"]
    assert [kind.cost for kind in known.values()] == ["none"] * 4 + ["accuracy"] * 3 + ["rate"]
    assert [kind.__module__.rpartition(".")[2] for kind in known.values()] == list(known)
