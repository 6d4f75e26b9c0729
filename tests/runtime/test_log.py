"""Tables of launches and frames."""

from __future__ import annotations

import threading
import time
from array import array

import numpy as np

from framefit.runtime.log import Fate, FrameLog, LaunchLog


def test_a_launch_is_completed_in_its_place() -> None:
    """Launches stand in order of their beginning, whichever ends first; those that failed are left out."""
    log = LaunchLog()
    outer = log.begin(4, 2, 7, 100, 90, followed=True)
    failed = log.begin(5, 2, 8, 110, 110, followed=False)
    inner = log.begin(6, 3, 9, 120, 120, followed=False)
    log.end(inner, 121, 130, 8)
    log.end(outer, 101, 200, -1)
    assert len(log) == 3
    assert len({outer, failed, inner}) == 3
    assert log.rows().tolist() == [
        [4, 2, 7, 101, 200, 90, 1, -1],
        [5, 2, 8, 110, -1, 110, 0, -1],
        [6, 3, 9, 121, 130, 120, 0, 8],
    ]
    assert log.finished()[:, LaunchLog.PROGRAM].tolist() == [4, 6]
    launches = log.launches()
    assert (launches.program.tolist(), launches.window.tolist()) == ([4, 6], [2, 3])
    assert (launches.frame.tolist(), launches.submit_ns.tolist()) == ([7, 9], [101, 121])


def test_empty_tables() -> None:
    """Nothing logged: no rows, of the right width."""
    assert LaunchLog().finished().shape == (0, len(LaunchLog.columns))
    assert FrameLog().rows().shape == (0, len(FrameLog.columns))
    assert len(LaunchLog().launches()) == 0


def test_frames_keep_the_order_of_their_fates() -> None:
    """One row a frame; times that are not given are -1."""
    log = FrameLog()
    log.add(1, 5, Fate.DONE, 10, 11, 12)
    log.add(0, 4, Fate.REFUSED, 9)
    assert log.rows().tolist() == [[1, 5, Fate.DONE, 10, 11, 12], [0, 4, Fate.REFUSED, 9, -1, -1]]


def test_rows_are_a_copy() -> None:
    """A table that was read can grow on, and what was read stays."""
    log = FrameLog()
    log.add(0, 0, Fate.DONE, 0, 1, 2)
    before = log.rows()
    log.add(0, 1, Fate.DONE, 10, 11, 12)
    assert len(before) == 1
    assert len(log) == 2


class Hesitant(array):
    """Gives other threads a turn between reading its length and using it."""

    def __len__(self) -> int:
        """The length a moment ago."""
        length = super().__len__()
        time.sleep(0)
        return length


def test_two_threads_never_share_a_place() -> None:
    """Launches that two threads begin at the same time are all there, each completed by its own thread."""
    log, count = LaunchLog(), 2_000
    log._cells = Hesitant("q")

    def work(program: int) -> None:
        for number in range(count):
            place = log.begin(program, 0, number, 0, 0, followed=False)
            log.end(place, program, number, program)

    threads = [threading.Thread(target=work, args=(program,)) for program in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = log.finished()
    assert len(rows) == 2 * count
    assert (rows[:, LaunchLog.STARTED] == rows[:, LaunchLog.PROGRAM]).all()
    assert (rows[:, LaunchLog.CPU] == rows[:, LaunchLog.PROGRAM]).all()
    assert (rows[:, LaunchLog.FINISHED] == rows[:, LaunchLog.FRAME]).all()
    for program in (1, 2):
        assert np.array_equal(rows[rows[:, LaunchLog.PROGRAM] == program][:, LaunchLog.FRAME], np.arange(count))
