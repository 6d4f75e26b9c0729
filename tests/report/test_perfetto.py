"""The bytes of a Perfetto trace, read back by a decoder that shares nothing with the writer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from framefit import InputError
from framefit.core.events import EventType, TraceMeta
from framefit.profiling.pairing import pair_events
from framefit.report.perfetto import write_perfetto


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A value and the position behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of one message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            assert tag & 7 == 0
            yield tag >> 3, value
    assert at == len(data)


def decode(data: bytes) -> tuple[dict[int, str], list[dict[str, object]]]:
    """Names of the tracks by uuid, and all slices."""
    names: dict[int, dict[int, str]] = {field: {} for field in (1, 2, 3, 29)}
    tracks: dict[int, str] = {}
    open_slices: dict[int, list[dict[str, object]]] = {}
    slices: list[dict[str, object]] = []
    for number, content in fields(data):
        assert number == 1
        packet = dict(fields(content))
        assert packet[10] == 1
        assert packet[13] in (1, 2)
        for field, entry in fields(packet.get(12, b"")):
            parts = dict(fields(entry))
            names[field][parts[1]] = parts[2].decode()
        if 60 in packet:
            track = dict(fields(packet[60]))
            tracks[track[1]] = dict(fields(track[3]))[6].decode() if 3 in track else track[2].decode()
        if 11 not in packet:
            continue
        event = list(fields(packet[11]))
        one = dict(event)
        if one[9] == 2:
            found = open_slices[one[11]].pop()
            found["end"] = packet[8]
            slices.append(found)
            continue
        found = {"track": tracks[one[11]], "name": names[2][one[10]], "start": packet[8]}
        if 3 in one:
            found["category"] = names[1][one[3]]
        for annotation in (dict(fields(value)) for field, value in event if field == 4):
            value = annotation[4] if 4 in annotation else names[29][annotation[17]]
            found[names[3][annotation[1]]] = value
        open_slices.setdefault(one[11], []).append(found)
    assert not any(open_slices.values())
    return tracks, slices


def write(path, run, *, force=False):
    """The run as its folder holds it."""
    log = pair_events(run.trace, run.program, run.launches)
    write_perfetto(path, log, run.program, run.launches, run.releases_ns, run.priority_models, force=force)


def test_slices(run, tmp_path):
    """Every operation and every window is a slice with its times, category and annotations."""
    path = tmp_path / "trace.pftrace"
    write(path, run)
    tracks, slices = decode(path.read_bytes())
    assert list(tracks.values()) == ["framefit", "windows", "cpu1"]
    windows = [found for found in slices if found["track"] == "windows"]
    assert [found["start"] for found in windows] == run.releases_ns.tolist()
    assert [found["end"] for found in windows[:-1]] == run.releases_ns[1:].tolist()
    assert windows[-1]["end"] == run.releases_ns[-1] + run.program.window_ns
    assert [found["window"] for found in windows] == list(range(len(run.releases_ns)))
    operations = [found for found in slices if found["track"] == "cpu1"]
    assert len(operations) == len(run.launches)
    for ordinal, found in enumerate(operations):
        segment = run.program.programs[run.launches.program[ordinal]]
        assert found == {
            "track": "cpu1",
            "name": segment.name,
            "start": run.trace.time_ns[2 * ordinal],
            "end": run.trace.time_ns[2 * ordinal + 1],
            "category": "priority" if segment.model == "face" else "background",
            "model": segment.model,
            "segment": segment.segment,
            "layer": segment.name,
            "kind": segment.name,
            "operation": 0,
            "inference": ordinal,
            "start_how": "measured",
            "end_how": "measured",
            "frame": run.launches.frame[ordinal],
            "window": run.launches.window[ordinal],
        }


def keep(run, mask):
    """The run without some of its events."""
    trace = run.trace
    kept = {name: getattr(trace, name)[mask] for name in ("time_ns", "id", "type", "core", "operation")}
    return dataclasses.replace(run, trace=dataclasses.replace(trace, **kept))


@pytest.mark.parametrize("lost", [0, 1, 7, 40])
def test_lost_event(run, tmp_path, lost):
    """The pair of a lost event is left out; a lost START leaves nobody with a guessed launch."""
    path = tmp_path / "trace.pftrace"
    mask = np.arange(len(run.trace)) != lost
    whole = pair_events(run.trace, run.program, run.launches)
    damaged = keep(run, mask)
    executed = pair_events(damaged.trace, run.program, run.launches)
    at = lost // 2
    assert executed.start_ns.tolist() == np.delete(whole.start_ns, at).tolist()
    assert executed.end_ns.tolist() == np.delete(whole.end_ns, at).tolist()
    start_lost = run.trace.type[lost] == EventType.START
    known = np.delete(whole.inference, at).tolist()
    assert executed.inference.tolist() == ([-1] * len(executed) if start_lost else known)
    write(path, damaged)
    operations = [found for found in decode(path.read_bytes())[1] if found["track"] == "cpu1"]
    assert len(operations) == len(executed)
    assert all(("model" in found) is not start_lost for found in operations)


def test_reported_loss(run):
    """Launches are not guessed where the device reports a loss, even when the numbers agree."""
    trace = dataclasses.replace(run.trace, meta=TraceMeta(lost_events=2))
    assert set(pair_events(trace, run.program, run.launches).inference.tolist()) == {-1}


def test_launches_of_other_segments(run):
    """Launches are not believed where their segments are not those of the trace."""
    launches = dataclasses.replace(run.launches, program=run.launches.program[::-1].copy())
    assert set(pair_events(run.trace, run.program, launches).inference.tolist()) == {-1}


def test_order_of_arrival(run):
    """Events that arrive out of order are paired by their times."""
    order = np.random.default_rng(1).permutation(len(run.trace))
    shuffled = keep(run, order)
    executed = pair_events(shuffled.trace, run.program, run.launches)
    assert executed.inference.tolist() == list(range(len(run.launches)))
    assert executed.start_ns.tolist() == run.trace.time_ns[::2].tolist()


def test_two_units(run):
    """With two units, launches are found unit by unit, whatever the events' order between units."""
    core = np.where(np.arange(len(run.trace)) // 2 % 2, 1, 2).astype(np.int16)
    programs = run.program.programs
    operations = [replace(one.groups[0].operations[0], unit="cpu2") for one in programs]
    moved = [
        replace(one, groups=(replace(one.groups[0], operations=(operation,)),))
        for one, operation in zip(programs, operations, strict=True)
    ]
    units = (run.program.units[0], replace(run.program.units[0], name="cpu2", core=2))
    program = replace(run.program, units=units, programs=(*programs, *moved))
    which = run.launches.program + np.where(core[::2] == 2, len(programs), 0).astype(np.int32)
    # submitted early for unit 2: the launches' order is not that of the starts
    order = np.argsort(run.launches.submit_ns - np.where(core[::2] == 2, 50_000_000, 0), kind="stable")
    launches = dataclasses.replace(run.launches, program=which[order], frame=run.launches.frame[order])
    trace = dataclasses.replace(run.trace, core=core)
    executed = pair_events(trace, program, launches)
    assert sorted(executed.inference.tolist()) == list(range(len(launches)))
    assert executed.inference.tolist() == np.argsort(order).tolist()


def test_wrapped_times(run):
    """A device counter that wraps does not bend the times."""
    wrapped = dataclasses.replace(run.trace, time_ns=run.trace.time_ns % (1 << 28), meta=TraceMeta(wrap_bits=28))
    executed = pair_events(wrapped, run.program, run.launches)
    offset = run.trace.time_ns[0] - executed.start_ns[0]
    assert executed.start_ns.tolist() == (run.trace.time_ns[::2] - offset).tolist()


def test_unknown_core(run, tmp_path):
    """Events of a core that the program does not name get a track of their own."""
    trace = dataclasses.replace(run.trace, core=np.full(len(run.trace), 7, np.int16))
    write(tmp_path / "trace.pftrace", dataclasses.replace(run, trace=trace))
    tracks, slices = decode((tmp_path / "trace.pftrace").read_bytes())
    assert list(tracks.values()) == ["framefit", "windows", "cpu1", "core 7"]
    assert sum(found["track"] == "core 7" for found in slices) == len(run.launches)


def test_empty(run, tmp_path):
    """A run without events or windows is still a trace."""
    empty = keep(run, np.zeros(len(run.trace), bool))
    empty = dataclasses.replace(empty, releases_ns=np.zeros(0, np.int64))
    write(tmp_path / "trace.pftrace", empty)
    assert decode((tmp_path / "trace.pftrace").read_bytes())[1] == []


def test_times_before_zero(run, tmp_path):
    """Times that the format cannot say are moved, all by the same amount, and the trace says by how much."""
    path = tmp_path / "trace.pftrace"
    move = run.releases_ns[0] + 7
    moved = dataclasses.replace(run.trace, time_ns=run.trace.time_ns - move)
    write(path, dataclasses.replace(run, releases_ns=run.releases_ns - move, trace=moved))
    tracks, slices = decode(path.read_bytes())
    assert tracks[1] == "framefit, all times + 7 ns"
    assert [found["start"] for found in slices if found["track"] == "cpu1"] == (
        run.trace.time_ns[::2] - run.releases_ns[0]
    ).tolist()


def test_overwriting(run, tmp_path):
    """A file is overwritten only with ``force``."""
    path = tmp_path / "trace.pftrace"
    write(path, run)
    with pytest.raises(InputError, match="--force"):
        write(path, run)
    write(path, run, force=True)
