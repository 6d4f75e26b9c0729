"""Tables of launches and frames."""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from framefit.core.events import Trace, TraceMeta
from framefit.core.journal import Journal
from framefit.runtime.log import FrameLog, FrameOutcome, FrameOutcomes, LaunchLog, Packets


def test_launches_that_failed_are_left_out() -> None:
    """All launches stand in the order in which they were added; the finished ones are those that ended."""
    log = LaunchLog()
    log.add(6, 3, 9, 121, 130, 120, followed=False, cpu_ns=8)
    log.add(5, 2, 8, 110, -1, 110, followed=False, cpu_ns=-1)
    log.add(4, 2, 7, 101, 200, 90, followed=True, cpu_ns=-1)
    assert len(log) == 3
    assert log.rows().tolist() == [
        [6, 3, 9, 121, 130, 120, 0, 8],
        [5, 2, 8, 110, -1, 110, 0, -1],
        [4, 2, 7, 101, 200, 90, 1, -1],
    ]
    assert log.finished()[:, LaunchLog.PROGRAM].tolist() == [6, 4]
    launches = log.launches()
    assert (launches.program.tolist(), launches.window.tolist()) == ([6, 4], [3, 2])
    assert (launches.frame.tolist(), launches.submit_ns.tolist()) == ([9, 7], [121, 101])


def test_settling_changes_nothing_and_clearing_forgets_all() -> None:
    """Rows are the same wherever they are kept, in the order in which they came."""
    log = FrameLog()
    for frame in range(4):
        log.add(0, frame, FrameOutcome.DONE, frame, 10 * frame)
        if frame % 2:
            log.settle()
        assert len(log) == frame + 1
    assert log.rows()[:, FrameLog.FRAME].tolist() == list(range(4))
    log.add(0, 4, FrameOutcome.DONE, 4, 40)
    log.clear()
    assert len(log) == 0
    assert log.rows().shape == (0, len(FrameLog.columns))


def test_empty_tables() -> None:
    """Nothing logged: no rows, of the right width."""
    assert LaunchLog().finished().shape == (0, len(LaunchLog.columns))
    assert FrameLog().rows().shape == (0, len(FrameLog.columns))
    assert len(LaunchLog().launches()) == 0


def test_frames_keep_the_order_of_their_fates() -> None:
    """One row a frame; times that are not given are -1."""
    log = FrameLog()
    log.add(1, 5, FrameOutcome.DONE, 6, 10, 11, 12)
    log.add(0, 4, FrameOutcome.REFUSED, 4, 9)
    assert log.rows().tolist() == [[1, 5, FrameOutcome.DONE, 10, 11, 12, 6], [0, 4, FrameOutcome.REFUSED, 9, -1, -1, 4]]


def test_frames_that_a_stream_did_not_have_are_forgotten() -> None:
    """Those of one model from a number on; the others stay, and more can be added."""
    log = FrameLog()
    for model, frame in ((0, 0), (1, 0), (0, 2), (1, 2), (0, 1)):
        log.add(model, frame, FrameOutcome.RUN_ENDED, frame, 10 * frame)
    log.forget(0, 1)
    log.add(0, 7, FrameOutcome.DONE, 7, 70, 71, 72)
    assert log.rows()[:, :2].tolist() == [[0, 0], [1, 0], [1, 2], [0, 7]]


def test_rows_are_a_copy() -> None:
    """A table that was read can grow on, and what was read stays."""
    log = FrameLog()
    log.add(0, 0, FrameOutcome.DONE, 0, 0, 1, 2)
    before = log.rows()
    log.add(0, 1, FrameOutcome.DONE, 1, 10, 11, 12)
    assert len(before) == 1
    assert len(log) == 2


def test_no_launch_is_lost_between_threads() -> None:
    """Two threads add launches while a third one moves them: all are there, whole and in their thread's order."""
    log, count = LaunchLog(), 2_000

    def work(program: int) -> None:
        for number in range(count):
            log.add(program, program, number, program, number, program, followed=False, cpu_ns=program)

    threads = [threading.Thread(target=work, args=(program,)) for program in (1, 2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            log.settle()
            time.sleep(1e-5)  # where there is one core, the others need it
    finally:
        sys.setswitchinterval(interval)
    for thread in threads:
        thread.join()
    rows = log.rows()
    assert len(rows) == 2 * count
    for column in (LaunchLog.WINDOW, LaunchLog.STARTED, LaunchLog.READY, LaunchLog.CPU):
        assert (rows[:, column] == rows[:, LaunchLog.PROGRAM]).all()
    for program in (1, 2):
        mine = rows[rows[:, LaunchLog.PROGRAM] == program]
        assert np.array_equal(mine[:, LaunchLog.FRAME], np.arange(count))
        assert np.array_equal(mine[:, LaunchLog.FINISHED], np.arange(count))


def test_a_snapshot_stays_as_it_is() -> None:
    """It holds what was logged until then, settled or not, and lets the log grow."""
    log = FrameLog()
    log.add(0, 0, FrameOutcome.DONE, 0, 5, 6, 7)
    log.settle()
    log.add(0, 1, FrameOutcome.LATE, 1, 8, 9, 10)
    copied = log.snapshot()
    log.add(0, 2, FrameOutcome.DONE, 2, 11, 12, 13)
    log.settle()
    assert copied[:, FrameLog.FRAME].tolist() == [0, 1]
    assert log.rows()[:, FrameLog.FRAME].tolist() == [0, 1, 2]
    assert FrameLog().snapshot().shape == (0, 7)


def test_a_file_can_be_read_while_it_grows(tmp_path: Path) -> None:
    """What is appended in the middle of reading is in the next reading; the thread that writes is not there yet."""
    journal = Journal(tmp_path)
    journal.in_thread = True
    file = journal.file("rows")

    def first() -> bytes:
        if not more:
            more.append(True)
            file.append(b"second")
        return b"first, "

    more: list[bool] = []
    file.append(first)
    assert file.read() == b"first, "
    assert file.read() == b"first, second"


def test_snapshots_while_another_thread_logs() -> None:
    """Each is a part of the log from its beginning: no row twice, none torn."""
    log, done = FrameLog(), threading.Event()

    def fill() -> None:
        for frame in range(20_000):
            log.add(frame % 3, frame, FrameOutcome.DONE, frame, frame, frame, frame)
            if frame % 7 == 0:
                log.settle()
        done.set()

    thread = threading.Thread(target=fill)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        while not done.is_set():
            rows = log.snapshot()
            frames = rows[:, FrameLog.FRAME]
            assert np.array_equal(frames, np.arange(len(rows)))
            assert np.array_equal(frames, rows[:, FrameLog.FINISHED])
    finally:
        thread.join()
        sys.setswitchinterval(interval)
    assert len(log) == 20_000


def test_fates_can_be_asked_for() -> None:
    """One is known as soon as it is decided or logged; before that, and beyond, nothing is."""
    fates = FrameOutcomes(2)
    log = FrameLog(fates)
    log.add(1, 3, FrameOutcome.SKIPPED, 3, 0)
    fates.decide(0, 1, FrameOutcome.LATE)
    assert [fates.of(0, frame) for frame in range(3)] == [None, FrameOutcome.LATE, None]
    assert [fates.of(1, frame) for frame in (2, 3, 4)] == [None, FrameOutcome.SKIPPED, None]
    assert len(log) == 1


def test_a_long_log_lies_in_a_file_and_reads_the_same() -> None:
    """Rows that were laid aside come back in order; those that replace them do, too."""
    log = LaunchLog()
    for window in range(5000):
        log.add(0, window, window, 10 * window, 10 * window + 5, 10 * window, followed=False, cpu_ns=-1)
        if window % 100 == 99:
            log.settle()
    assert len(log) == 5000
    assert log.snapshot()[:, LaunchLog.WINDOW].tolist() == list(range(5000))
    log.reorder(np.arange(5000)[::-1])
    assert log.rows()[:, LaunchLog.WINDOW].tolist() == list(range(5000))[::-1]
    log.clear()
    log.add(0, 7, 7, 0, 1, 0, followed=False, cpu_ns=-1)
    assert log.rows()[:, LaunchLog.WINDOW].tolist() == [7]


def test_without_room_for_files_logs_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk ends no run and loses no row."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    log = FrameLog()
    for frame in range(5000):
        log.add(0, frame, FrameOutcome.DONE, frame, frame)
        if frame % 100 == 99:
            log.settle()
    assert log.rows()[:, FrameLog.FRAME].tolist() == list(range(5000))


def test_what_is_known_of_packets_does_not_grow_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour hands packets over some thousand times; losses that the device reported stay where they were."""
    monkeypatch.setattr("framefit.runtime.log._HAND_OVER_S", -1.0)

    def events() -> Trace:
        taken.append(1)
        zeros = np.zeros(2, np.int64)
        return Trace(
            time_ns=zeros,
            id=zeros.astype(np.int32),
            type=zeros.astype(np.uint8),
            core=zeros.astype(np.int16),
            operation=zeros,
            kinds=tuple(f"operation {number}" for number in range(100)),
            loss_after=np.array([2] if len(taken) % 100 == 0 else [], np.int64),
            meta=TraceMeta(lost_events=1),
        )

    taken: list[int] = []
    packets = Packets(events, Journal(tmp_path))
    held = []
    tracemalloc.start()
    try:
        for number in range(1000):
            packets.collect()
            if number in (199, 999):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 400_000  # 500 bytes a time: what is not written yet, and the notes of it
    trace = packets.trace()
    assert len(trace) == 2000
    assert trace.loss_after.tolist() == [200 * number for number in range(1, 11)]
    assert trace.meta.lost_events == 1000
