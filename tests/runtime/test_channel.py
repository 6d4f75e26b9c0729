"""Channels: bounded, in order, and nothing is lost unseen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framefit.core.workload import WhenFull
from framefit.runtime.channel import Channel
from framefit.runtime.streams import Arrival


def arrivals(*frames: int) -> list[Arrival]:
    """Frames that came in the window of their number."""
    return [Arrival(frame, frame) for frame in frames]


def emptied(channel: Channel[Arrival]) -> list[Arrival]:
    """Everything that waits, taken in turn."""
    items = []
    while (item := channel.pop()) is not None:
        items.append(item)
    return items


def test_a_full_channel_drops_the_oldest_or_the_newest() -> None:
    """The item that gives way is returned to the producer."""
    oldest, newest = Channel[Arrival](2), Channel[Arrival](2, "drop-newest")
    assert [oldest.put(frame) for frame in arrivals(0, 1, 2, 3)] == [None, None, *arrivals(0, 1)]
    assert [newest.put(frame) for frame in arrivals(0, 1, 2, 3)] == [None, None, *arrivals(2, 3)]
    assert [oldest.pop(), oldest.pop(), oldest.pop()] == [*arrivals(2, 3), None]
    assert newest.head() == arrivals(0)[0]
    assert emptied(newest) == arrivals(0, 1)
    assert len(newest) == 0
    assert newest.head() is None
    assert not oldest.full


def test_a_channel_that_waits_says_when_it_is_full() -> None:
    """From as many items on as may wait, until one is taken."""
    channel = Channel[Arrival](2, "block")
    assert not channel.full
    for frame in arrivals(0, 1):
        channel.put(frame)
    assert channel.full
    channel.pop()
    assert not channel.full


@given(st.integers(1, 4), st.sampled_from(["drop-oldest", "drop-newest"]), st.lists(st.booleans(), max_size=40))
def test_a_channel_keeps_order_and_loses_nothing(slots: int, when_full: WhenFull, puts: list[bool]) -> None:
    """Each item is taken, dropped or waiting, exactly once; taken in order, and never too many wait."""
    channel, frame = Channel[Arrival](slots, when_full), 0
    taken: list[Arrival] = []
    dropped: list[Arrival | None] = []
    for put in puts:
        if put:
            dropped.append(channel.put(Arrival(frame, frame)))
            frame += 1
        elif (item := channel.pop()) is not None:
            taken.append(item)
        assert len(channel) <= slots
    waiting = emptied(channel)
    assert [*taken, *waiting] == sorted([*taken, *waiting])
    assert sorted([*taken, *waiting, *(d for d in dropped if d is not None)]) == arrivals(*range(frame))
