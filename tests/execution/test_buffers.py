"""Memory shared by tensors that are never alive together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framefit.execution.buffers import place

lifetimes = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda ends: (min(ends), max(ends)))
tensors = st.lists(st.tuples(st.integers(0, 2000), lifetimes), max_size=14)


@given(tensors)
def test_tensors_alive_together_never_overlap(drawn: list[tuple[int, tuple[int, int]]]) -> None:
    """Each lies within the block, at a multiple of 64 bytes, apart from all that live at the same time."""
    sizes, spans = [size for size, _ in drawn], [span for _, span in drawn]
    plan = place(sizes, spans)
    assert len(plan.offsets) == len(sizes)
    for one, offset in enumerate(plan.offsets):
        assert offset % 64 == 0
        assert 0 <= offset <= offset + sizes[one] <= plan.total_bytes
        for other in range(one):
            together = spans[one][0] <= spans[other][1] and spans[other][0] <= spans[one][1]
            apart = offset + sizes[one] <= plan.offsets[other] or plan.offsets[other] + sizes[other] <= offset
            assert apart or not together


@given(tensors)
def test_total_lies_between_its_bounds(drawn: list[tuple[int, tuple[int, int]]]) -> None:
    """The block holds what is alive at once, and is no greater than all tensors side by side."""
    alive = [sum(size for size, (first, last) in drawn if first <= now <= last) for now in range(9)]
    total = place([size for size, _ in drawn], [span for _, span in drawn]).total_bytes
    assert max(alive) <= total <= sum(-(-size // 64) * 64 for size, _ in drawn)


def test_a_chain_needs_two_places() -> None:
    """In a chain each tensor takes the place of the one before last."""
    plan = place([640] * 6, [(index, index + 1) for index in range(6)])
    assert plan.total_bytes == 2 * 640
    assert plan.offsets == (0, 640, 0, 640, 0, 640)


def test_nothing_to_place() -> None:
    """A model that is not cut needs no shared memory."""
    plan = place([], [])
    assert (plan.offsets, plan.total_bytes) == ((), 0)
