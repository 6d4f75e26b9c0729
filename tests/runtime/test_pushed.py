"""Frames that a program hands over, until windows take them."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import ListSink
from framefit import FramefitError, InputError
from framefit.core.model import TensorInfo
from framefit.core.run_record import FrameTable
from framefit.core.workload import Preprocess, WhenFull
from framefit.execution.prepare import Preparation
from framefit.runtime.program import (
    NumberedSink,
    PushedStream,
    Reader,
    SubmissionQueue,
    TimeUpError,
    waits_ns,
    with_submitted,
)

IMAGE = TensorInfo(name="image", dtype="float32", shape=(1, 3, 4))
WHOLE = TensorInfo(name="whole", dtype="int64", shape=(3, 4))
RAW = TensorInfo(name="raw", dtype="", shape=None)


def stream(*readers: Reader, keep: int = 4, name: str = "camera") -> PushedStream:
    """A stream for inputs."""
    return PushedStream(name, readers or [(IMAGE, None)], keep=keep)


def submissions(depth: int = 2, when_full: WhenFull = "drop-oldest") -> SubmissionQueue:
    """For one stream, on a clock that ticks with every look at it."""
    return SubmissionQueue([stream()], depth, when_full, itertools.count(100).__next__)


def put(box: SubmissionQueue, value: float = 0.0, **options: Any) -> int:
    """Hand a frame over that is full of a number."""
    frame = np.full((3, 4), value, np.float32)
    return box.put({name: one.forms(frame, copy=True) for name, one in box.streams.items()}, **options)


def test_windows_take_frames_in_order() -> None:
    """One at a time, in the order of their numbers; none where none waits."""
    box = submissions(3)
    assert not box.take()
    assert [put(box, value) for value in (7, 8)] == [0, 1]
    assert [box.take(), box.take(), box.take()] == [True, True, False]
    assert put(box, 9) == 2
    assert box.take()
    values = [box.streams["camera"].read(index, IMAGE).ravel()[0] for index in range(3)]
    assert values == [7, 8, 9]
    assert [box.number(index) for index in range(3)] == [0, 1, 2]
    assert box.submitted_ns(0) < box.submitted_ns(1) < box.submitted_ns(2)


@pytest.mark.parametrize(
    ("rule", "taken", "reason"),
    [("drop-oldest", [2, 3], "a newer frame"), ("drop-newest", [0, 1], "others waited")],
)
def test_when_too_many_wait(rule: WhenFull, taken: list[int], reason: str) -> None:
    """One gives way, and is told why; numbers go on."""
    box = submissions(2, rule)
    assert [put(box) for _ in range(4)] == [0, 1, 2, 3]
    while box.take():
        pass
    assert box.numbers.tolist() == taken
    for number in range(4):
        why = box.dropped(number)
        assert (box.index(number) is None) == (why is not None) == (number not in taken)
        assert why is None or reason in why


def test_a_frame_waits_for_room() -> None:
    """Until a window takes one, or its time is up: then it has no number."""
    box = submissions(1, "block")
    put(box)
    with pytest.raises(TimeUpError, match="1 frames wait already") as error:
        put(box, timeout_s=0.01)
    assert isinstance(error.value, TimeoutError)
    assert isinstance(error.value, FramefitError)
    assert box.count == 1
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(put(box)))
    thread.start()
    assert box.take()
    box.wake()
    thread.join()
    assert found == [1]
    assert len(box) == 1


def test_nothing_is_taken_after_the_end() -> None:
    """Whoever hands a frame over then, or waits for room, gets the reason; what waits is accounted for."""
    box = submissions(1, "block")
    put(box)
    found = list[str]()

    def late() -> None:
        try:
            put(box)
        except FramefitError as error:
            found.append(error.what)

    thread = threading.Thread(target=late)
    thread.start()
    box.close(lambda: FramefitError("it is over"))
    thread.join()
    assert found == ["it is over"]
    assert not box.over
    box.empty()
    assert box.over
    assert box.dropped(0) == "the run ended before a window took it"
    with pytest.raises(FramefitError, match="it is over"):
        put(box)


@given(
    st.integers(1, 3),
    st.sampled_from(["drop-oldest", "drop-newest"]),
    st.lists(st.booleans(), max_size=40),
)
def test_every_frame_is_taken_or_accounted_for(depth: int, rule: WhenFull, puts: list[bool]) -> None:
    """Exactly one of the two, in order, and never too many wait."""
    box = submissions(depth, rule)
    for one in puts:
        if one:
            put(box)
        else:
            box.take()
        assert len(box) <= depth
    box.empty()
    never = [number for _, numbers, _ in box.never_taken for number in numbers.tolist()]
    assert sorted([*box.numbers.tolist(), *never]) == list(range(puts.count(True)))
    assert box.numbers.tolist() == sorted(box.numbers.tolist())


@pytest.mark.parametrize("rule", ["drop-oldest", "drop-newest", "block"])
def test_threads_hand_frames_over_at_once(rule: WhenFull) -> None:
    """Numbers are unique, none is lost, and each frame arrives under its own number."""
    box, numbers, done = submissions(2, rule), dict[int, float](), threading.Event()

    def submit(first: int) -> None:
        for value in range(first, first + 40):
            numbers[put(box, value)] = value

    def take() -> None:
        while not done.is_set() or len(box):
            if box.take():
                index = len(box.numbers) - 1
                values[box.number(index)] = float(box.streams["camera"].read(index, IMAGE).ravel()[0])
                box.wake()

    values = dict[int, float]()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        taker = threading.Thread(target=take)
        threads = [threading.Thread(target=submit, args=(40 * n,)) for n in range(4)]
        for thread in (taker, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        taker.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(numbers) == list(range(160))
    assert {number: numbers[number] for number in values} == values
    dropped = [number for number in range(160) if box.dropped(number) is not None]
    assert sorted([*values, *dropped]) == list(range(160))
    assert rule != "block" or not dropped


def test_frames_are_made_ready_when_they_are_submitted() -> None:
    """Each input gets its own type, with or without the leading 1; the caller may change what was copied."""
    one = stream((IMAGE, None), (WHOLE, None))
    frame = np.arange(12).reshape(3, 4)
    for index, copies in enumerate((True, False)):
        given = frame.copy()
        one.keep(index, one.forms(given, copy=copies))
        given[:] = -1
        np.testing.assert_array_equal(one.read(index, IMAGE), frame[None].astype(np.float32))
        np.testing.assert_array_equal(one.read(index, WHOLE), frame if copies else given)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (np.zeros((4, 3)), r"frames are \[4, 3\], but input 'image' takes \[1, 3, 4\]"),
        (np.zeros((3, 4), np.complex64), "complex64"),
        ("picture", "a frame is str"),
        (None, "a frame is NoneType"),
        ([[1, 2], [3]], "a frame is list"),
    ],
)
def test_frames_that_do_not_fit(frame: object, says: str) -> None:
    """They are refused when they are handed over, with stream and reason."""
    with pytest.raises(InputError, match=says) as error:
        stream().forms(frame, copy=True)
    assert "camera" in str(error.value.where)


def test_images_that_cannot_be_prepared() -> None:
    """Where any image is taken, one that is none is found when it is handed over, too."""
    prepare = Preparation(Preprocess(size=(4, 4)), TensorInfo(name="x", dtype="float32", shape=(1, 3, 4, 4)))
    one = stream((RAW, prepare))
    for shape in ((8, 6, 3), (4, 4), (2, 2, 1)):
        one.forms(np.zeros(shape, np.uint8), copy=True)
    with pytest.raises(InputError, match="not an image"):
        one.forms(np.zeros((8, 6, 2), np.uint8), copy=True)


def test_frames_are_let_go() -> None:
    """As many are kept as a model may be behind, and a few; one that is gone is told."""
    box = SubmissionQueue([stream(keep=2)], 1, "block", lambda: 0)
    for value in range(30):
        put(box, value)
        box.take()
    one = box.streams["camera"]
    assert one.read(27, IMAGE).ravel()[0] == 27
    with pytest.raises(FramefitError, match="frame 5 is gone"):
        one.read(5, IMAGE)


def test_sinks_get_the_numbers_that_were_given() -> None:
    """The second frame that a window took may be the fifth that was submitted."""
    box, sink = submissions(1), ListSink()
    numbered = NumberedSink(sink, box)
    for count in (1, 4):
        for _ in range(count):
            put(box)
        box.take()
    numbered.put(1, {})
    numbered.close()
    assert (sink.taken, sink.closed) == ([(4, {})], True)


def test_the_table_of_frames_has_those_that_no_window_took() -> None:
    """Under the numbers of submission, with the reason, ordered by time; other models' rows stay."""
    box = submissions(1)
    for count in (1, 3):
        for _ in range(count):
            put(box)
        box.take()
    put(box)
    box.empty()
    integers = [np.asarray(column, np.int64) for column in ([0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 1, 2], [9, 9, 9])]
    table = FrameTable(("a", "b"), ("camera", "disk"), (("done", ""),), *integers)
    found = with_submitted(table, {"a": box}, 0)
    assert [(one.model, one.frame, one.fate, one.reason[:7], one.finished_ns) for one in found] == [
        ("a", 0, "done", "", 9),
        ("b", 0, "done", "", 9),
        ("a", 3, "done", "", 9),
        ("a", 1, "dropped", "a newer", None),
        ("a", 2, "dropped", "a newer", None),
        ("a", 4, "dropped", "the run", None),
    ]
    waits = waits_ns(with_submitted(table, {"a": box}, 110), {"a": box}, 110)  # they came at 100 and 103
    assert {name: ns.tolist() for name, ns in waits.items()} == {"camera": [10, 9]}
