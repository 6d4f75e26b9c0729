"""System traces (STPv2) are decoded as the specification says, and read on where they are damaged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import InputError
from framefit.profiling.formats.stp import StpMapping, is_stp, read_stp
from stp_streams import ASYNC, Stream, packed

WIDE = StpMapping(id_shift=0, id_bits=30, type_bit="marker")


def read(
    nibbles: str, mapping: StpMapping | None = None
) -> tuple[list[tuple[int, str, int, int]], list[int], tuple[str, ...]]:
    """Events as (time_ns, kind, type, core), losses and warnings of a stream given as nibbles."""
    trace, warnings = read_stp(packed(nibbles), "made", mapping)
    columns = (trace.time_ns, [trace.kinds[kind] for kind in trace.id], trace.type, trace.core)
    return list(zip(*map(list, columns), strict=True)), trace.loss_after.tolist(), warnings


@pytest.mark.parametrize(
    ("packet", "value", "time"),
    [
        ("8 12 2 34", 0x12, 0x34),  # D8MTS, two nibbles of time
        ("9 1234 3 567", 0x1234, 0x567),
        ("a 01234567 4 89ab", 0x1234567, 0x89AB),
        ("d 7 1 5", 0x7, 0x5),  # D4MTS
        ("f4 12 d 00000000000034", 0x12, 0x34),  # D8TS, a length of 13 means 14 nibbles
        ("f5 1234 e 0000000000000567", 0x1234, 0x567),  # and one of 14 means 16
        ("f6 01234567 c 0000000089ab", 0x1234567, 0x89AB),
        ("fc 7 0", 0x7, 0),  # no nibble of the time has changed
        ("b 0000000000000007 1 5", 0x7, 0x5),  # D64MTS
    ],
)
def test_each_packet_is_read_as_the_table_of_opcodes_says(packet: str, value: int, time: int) -> None:
    """Payload and time of one packet of each width, by hand."""
    events, losses, warnings = read(ASYNC + "f003" + packet.replace(" ", ""), WIDE)
    marked = packet[0] != "f"
    assert events == [(time, f"event_{value}", int(marked), 0)]
    assert losses == []
    assert warnings == ()


def test_a_little_endian_stream_turns_its_numbers_round() -> None:
    """VERSION with the extension says that numbers come lowest nibble first."""
    events, _, _ = read(ASYNC + "f00b81" + "9" + "4321" + "3" + "765", WIDE)
    assert events == [(0x567, "event_4660", 1, 0)]


def test_masters_channels_and_their_extensions() -> None:
    """A new master starts at channel 0; M8 and C8 replace the low byte."""
    stream = ASYNC + "f003" + "f11234" + "f34321" + "81111" + "356" + "81111" + "107" + "81111" + "388" + "81111"
    mapping = StpMapping(id="channel", type_bit="marker", first_core=0x1200)
    events, _, _ = read(stream, mapping)
    kinds = [0x4321, 0x4356, 0x0, 0x88]
    assert [(kind, core) for _, kind, _, core in events] == [
        (f"event_{kind}", core) for kind, core in zip(kinds, (0x34, 0x34, 0x07, 0x07), strict=True)
    ]


def test_other_packets_take_the_room_that_is_theirs() -> None:
    """NULL, FLAG, TRIG, XSYNC, USER, TIME and FREQ are skipped over without losing the thread."""
    others = "0" + "fe" + "e15" + "f0112" + "f0655" + "f0a66" + "f023abcd" + "f0403" + "211" + "f09000f4240" + "17"
    events, _, warnings = read(ASYNC + "f003" + others + "81219", WIDE)
    assert events == [(9000, "event_18", 1, 0)]  # 1 MHz: 0xf4240
    assert warnings == ()


def test_the_frequency_turns_ticks_to_nanoseconds() -> None:
    """FREQ counts; else the mapping does."""
    body = "f6" + "00000003" + "8" + "00100000"
    told, _, _ = read(ASYNC + "f003" + "f08" + f"{24_000_000:08x}" + body)
    assert told[0][0] == round(0x100000 * 1e9 / 24_000_000)
    mapped, _, _ = read(ASYNC + "f003" + body, StpMapping(frequency_hz=2_000_000_000))
    assert mapped[0][0] == 0x100000 // 2


def test_reported_losses_stay_between_their_packets() -> None:
    """MERR and GERR become losses after the packets before them, and sentences."""
    stream = Stream().begin().data(2, 8, 10).lost().data(3, 8, 20).data(2, 8, 30).lost(whole=True)
    events, losses, warnings = read(stream.nibbles)
    assert len(events) == 3
    assert losses == [1, 3]
    assert any("1 times" in warning and "MERR" in warning for warning in warnings)
    assert any("GERR" in warning for warning in warnings)


def test_nonsense_is_skipped_to_the_next_async_and_counts_as_a_loss() -> None:
    """After an opcode that there is not, the stream is read on where it can be."""
    stream = Stream().begin().data(2, 8, 10)
    stream.nibbles += "f0e" + "44444"
    stream.begin().data(3, 8, 20)
    events, losses, warnings = read(stream.nibbles)
    assert [time for time, *_ in events] == [10, 20]
    assert losses == [1]
    assert any("1 places" in warning for warning in warnings)


def test_a_packet_that_an_async_cuts_off_is_a_loss() -> None:
    """A packet without its end is not made up from the ASYNC's ones."""
    stream = Stream().begin().data(2, 8, 10)
    stream.nibbles += "a0000"
    stream.begin().data(3, 8, 20)
    events, losses, _ = read(stream.nibbles)
    assert [time for time, *_ in events] == [10, 20]
    assert losses == [1]


def test_a_stream_may_begin_and_end_in_the_middle() -> None:
    """What precedes the first ASYNC and a last packet that is cut off are left out."""
    stream = Stream().begin().data(2, 8, 10).data(3, 16, 20)
    events, losses, warnings = read("4444" + stream.nibbles + "a00")
    assert [time for time, *_ in events] == [10, 20]
    assert losses == []
    assert any("begins in the middle: 4 nibbles" in warning for warning in warnings)


def test_packets_without_time_stamps_are_reported() -> None:
    """Before the first stamp they are left out, later they have the time of the one before."""
    stream = Stream().begin().data(2, 8).data(2, 8, 10).data(3, 8)
    events, _, warnings = read(stream.nibbles)
    assert [time for time, *_ in events] == [10, 10]
    assert any("before the first time stamp" in warning for warning in warnings)
    assert any("no time stamp of their own" in warning for warning in warnings)
    with pytest.raises(InputError, match="has a time stamp"):
        read(Stream().begin().data(2, 8).nibbles)


def test_what_is_no_stream_is_refused() -> None:
    """Without ASYNC nothing can be read."""
    assert not is_stp(b"\xff" * 5)
    assert not is_stp(b"\xff" * 40)
    assert is_stp(b"\x12\x34" + packed(ASYNC))
    assert is_stp(packed("1" + ASYNC))
    with pytest.raises(InputError, match="no ASYNC"):
        read_stp(b"nothing of the kind", "made")


def test_the_mapping_names_kinds_cores_and_operations() -> None:
    """Bits of the payload are the type, the kind and the operation."""
    mapping = StpMapping(first_core=4, kinds=("conv", "pool"), operation_bits=8, operation_shift=8, id_bits=7)
    stream = Stream().begin().address(5, 0).data(7 << 8 | 1 << 1, 16, 10).data(7 << 8 | 1 << 1 | 1, 16, 30)
    trace, _ = read_stp(stream.raw(), "made", mapping)
    assert trace.kinds == ("conv", "pool")
    assert trace.id.tolist() == [1, 1]
    assert trace.type.tolist() == [0, 1]
    assert trace.core.tolist() == [1, 1]
    assert trace.operation.tolist() == [7, 7]


@pytest.mark.parametrize("change", [{"id_bits": 0}, {"type_bit": 64}, {"frequency_hz": 0}, {"operation_shift": -1}])
def test_a_mapping_that_cannot_be_is_refused(change: dict[str, int]) -> None:
    """Bits outside a payload have no meaning."""
    with pytest.raises(ValueError, match=next(iter(change))):
        StpMapping(**change)


PACKETS = st.tuples(
    st.integers(0, 300),  # master
    st.integers(0, 70000 % 65536),  # channel
    st.sampled_from([4, 8, 16, 32, 64]),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, 1 << 40),  # ticks since the one before
    st.booleans(),  # marker
    st.sampled_from(["", "", "", "async", "null", "flag", "flag_ts", "merr", "gerr"]),
)


@given(
    packets=st.lists(PACKETS, max_size=12),
    times=st.sampled_from(["natural", "gray", "delta"]),
    little=st.booleans(),
)
@settings(max_examples=30)
def test_what_was_encoded_is_decoded(packets: list, times: str, little: bool) -> None:
    """Masters, payloads, markers, times and losses come back, in every coding of time, in either order of nibbles."""
    stream = Stream(times=times, little=little).begin()
    now, expected, losses = 0, [], []
    for master, channel, bits, value, later, marked, before in packets:
        if before == "async":
            stream.begin()
        elif before == "null":
            stream.nibbles += "0"
        elif before in ("flag", "flag_ts"):
            stream.flag(None if before == "flag" else now)
        elif before:
            stream.lost(whole=before == "gerr")
            losses.append(len(expected))
        now += later
        value %= 1 << bits
        stream.address(master, channel).data(value, bits, now, marked)
        expected.append((now, value % (1 << 30), int(marked), master))
    trace, _ = read_stp(stream.raw(), "made", WIDE)
    got = [int(trace.kinds[kind].removeprefix("event_")) for kind in trace.id]
    assert list(zip(trace.time_ns.tolist(), got, trace.type.tolist(), trace.core.tolist(), strict=True)) == expected
    assert trace.loss_after.tolist() == sorted(set(losses))


@given(st.data())
@settings(max_examples=30)
def test_damage_never_does_more_than_harm_the_trace(data: st.DataObject) -> None:
    """Whatever bytes are changed, cut or added, there is a trace with increasing losses, or one clear error."""
    stream = Stream(times=data.draw(st.sampled_from(["natural", "gray", "delta"])))
    for at in range(3):
        stream.begin().frequency(10**9).address(at, at)
        for step in range(10):
            stream.data(step, 8, 1000 * at + step)
    raw = bytearray(stream.raw())
    for _ in range(data.draw(st.integers(1, 6))):
        if not raw:
            break
        place = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["change", "cut", "add", "end"])):
            case "change":
                raw[place] = data.draw(st.integers(0, 255))
            case "cut":
                del raw[place]
            case "add":
                raw[place:place] = data.draw(st.binary(max_size=12))
            case "end":
                del raw[max(place, 1) :]
    try:
        trace, warnings = read_stp(bytes(raw), "made")
    except InputError:
        return
    assert len(trace) <= len(raw)
    assert (trace.time_ns >= 0).all()
    assert (np.diff(trace.loss_after) > 0).all()
    assert all(isinstance(warning, str) for warning in warnings)
