"""Threads that are kept off a core."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from framefit.devices.host import available_cores, reserved_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")


@pytest.fixture
def other() -> Iterator[int]:
    """The native number of a thread that does nothing."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    yield thread.native_id
    done.set()
    thread.join()


def test_all_threads_but_one_leave_the_core(other: int) -> None:
    """They have it again at the end; meanwhile it still counts as this process's."""
    before, cores = os.sched_getaffinity(0), available_cores()
    if len(before) == 1:
        pytest.skip("there is one core")
    core = max(before)
    with reserved_cores({core}, other) as free:
        assert free
        assert os.sched_getaffinity(0) == before - {core}
        assert os.sched_getaffinity(other) == before
        assert available_cores() == cores
    assert os.sched_getaffinity(0) == before
    assert available_cores() == cores


def test_a_thread_that_has_no_other_core_stays(other: int) -> None:
    """That is told, and nothing changes."""
    before = os.sched_getaffinity(0)
    with reserved_cores(before, other) as free:
        assert not free
        assert os.sched_getaffinity(0) == before


def test_a_thread_that_chose_anew_keeps_its_choice(other: int) -> None:
    """Only what was taken is given back."""
    before = os.sched_getaffinity(0)
    if len(before) == 1:
        pytest.skip("there is one core")
    with reserved_cores({max(before)}, 0):
        os.sched_setaffinity(other, {max(before)})
    assert os.sched_getaffinity(other) == {max(before)}
