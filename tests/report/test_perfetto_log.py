"""Profiles as Perfetto traces, read back with Perfetto's own message classes."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.profile import HOW_WORDS, How
from framefit.core.program import ProgramUnit
from framefit.report.perfetto import Form, Given, PerRow, integer, message, width_of, write_perfetto

messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@dataclasses.dataclass
class Slice:
    """One slice of one track."""

    track: str
    name: str
    start: int
    end: int
    told: dict[str, int | str]


def slices(path) -> tuple[list[str], list[Slice]]:
    """Names of the tracks, and all slices, which must nest."""
    trace = messages.Trace()
    trace.ParseFromString(path.read_bytes())
    tracks, names = {}, {}
    events = []
    for packet in trace.packet:
        for table in ("event_names", "debug_annotation_names", "debug_annotation_string_values"):
            for entry in getattr(packet.interned_data, table):
                text = entry.str if table.endswith("values") else entry.name
                names[table, entry.iid] = text.decode() if isinstance(text, bytes) else text
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
        if packet.HasField("track_event"):
            events.append((packet.timestamp, packet.track_event))
    events.sort(key=lambda event: event[0])  # as Perfetto does: those of one time stay in order
    running, done = {}, []
    for time, event in events:
        if event.type == event.TYPE_SLICE_END:
            found = running[event.track_uuid].pop()
            found.end = time
            done.append(found)
            continue
        told = {}
        for one in event.debug_annotations:
            name = names["debug_annotation_names", one.name_iid]
            string = one.string_value_iid
            told[name] = names["debug_annotation_string_values", string] if string else one.int_value
        found = Slice(tracks[event.track_uuid], names["event_names", event.name_iid], time, -1, told)
        running.setdefault(event.track_uuid, []).append(found)
    assert not any(running.values())
    return list(tracks.values()), done


def write(path, made):
    """The trace of a profile."""
    write_perfetto(path, made.log, made.program, made.launches, made.windows.releases_ns, ("face",), force=True)
    return slices(path)


def test_profile(profiled, tmp_path):
    """Every operation is a slice that says how its edges are known, and within which bounds."""
    tracks, found = write(tmp_path / "trace.pftrace", profiled)
    assert tracks[1:] == ["windows", "npu0", "npu0: known how", "npu1", "npu1: known how"]
    log = profiled.log
    of = {(one.told["inference"], one.told["operation"]): one for one in found if one.track in ("npu0", "npu1")}
    assert len(of) == len(log)
    for at in range(len(log)):
        one = of[int(log.inference[at]), int(log.operation[at])]
        told = profiled.program.programs[log.program[at]]
        assert (one.start, one.end) == (log.start_ns[at], log.end_ns[at])
        assert one.told["start_how"] == HOW_WORDS[How(int(log.start_how[at]))]
        assert one.told["end_how"] == HOW_WORDS[How(int(log.end_how[at]))]
        assert (one.told["model"], one.told["segment"]) == (told.model, told.segment)
        assert (one.told["window"], one.told["frame"]) == (log.inference[at] // 2, log.inference[at] // 2 + 5)
        assert ("start_earlier_ns" in one.told) or not log.inferred[at]
        assert one.told.get("start_earlier_ns", 0) == log.start_ns[at] - log.start_low_ns[at]
        assert one.told.get("end_later_ns", 0) == log.end_high_ns[at] - log.end_ns[at]


def test_units_of_one_core_are_below_it(profiled, tmp_path):
    """Where units share a core their tracks are below one of the core."""
    units = tuple(ProgramUnit(name=unit.name, core=4) for unit in profiled.program.units)
    shared = msgspec.structs.replace(profiled.program, units=units)
    path = tmp_path / "trace.pftrace"
    write_perfetto(path, profiled.log, shared, profiled.launches, profiled.windows.releases_ns)
    trace = messages.Trace()
    trace.ParseFromString(path.read_bytes())
    described = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    name_of = {track.uuid: track.name for track in described}
    parents = {track.name: name_of.get(track.parent_uuid) for track in described}
    assert (parents["npu0"], parents["npu1"], parents["npu1: known how"]) == ("core 4", "core 4", "core 4")


def test_states(profiled, tmp_path):
    """Beside each unit a track says which operations in a row are measured, and which inferred."""
    _, found = write(tmp_path / "trace.pftrace", profiled)
    log = profiled.log
    for track, core in (("npu0", 4), ("npu1", 7)):
        at = np.flatnonzero(log.core == core)
        at = at[np.argsort(log.start_ns[at])]
        told = [one for one in found if one.track == f"{track}: known how"]
        assert sum(one.told["operations"] for one in told) == len(at)
        assert all(one.name != other.name and one.end <= other.start for one, other in itertools.pairwise(told))
        covering = {
            int(place): [one.name for one in told if one.start <= log.start_ns[place] < one.end] for place in at
        }
        assert all(names == [("measured", "inferred")[int(log.inferred[p])]] for p, names in covering.items())


def test_nothing_inferred(profiled, tmp_path):
    """Where all is measured there are neither intervals nor tracks of states."""
    none = np.zeros(len(profiled.log), np.uint8)
    clean = dataclasses.replace(profiled.log, start_how=none, end_how=none)
    tracks, found = write(tmp_path / "trace.pftrace", dataclasses.replace(profiled, log=clean))
    assert tracks[1:] == ["windows", "npu0", "npu1"]
    assert not any("start_earlier_ns" in one.told for one in found)


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 32), spread_ns=st.sampled_from([300, 5_000, 40_000]))
def test_operations_of_a_unit_never_overlap(profiled, tmp_path_factory, seed, spread_ns):
    """Whatever a method inferred, slices of a unit do not overlap, unless both are measured and one is inside."""
    log = profiled.log
    random = np.random.default_rng(seed)
    start = log.start_ns + np.where(log.start_how, random.integers(-spread_ns, spread_ns, len(log)), 0)
    longer = np.where(log.inferred | (random.random(len(log)) < 0.1), random.integers(0, 2 * spread_ns, len(log)), 0)
    end = np.maximum(start, log.end_ns + longer)
    changed = dataclasses.replace(log, start_ns=start, end_ns=end)
    path = tmp_path_factory.mktemp("overlap") / "trace.pftrace"
    tracks, found = write(path, dataclasses.replace(profiled, log=changed))
    for track in tracks[2:]:
        ordered = sorted((one for one in found if one.track == track), key=lambda one: (one.start, -one.end))
        for one, other in itertools.pairwise(ordered):
            inside = other.end <= one.end and one.told.get("start_how") == other.told.get("end_how") == "measured"
            assert other.start >= one.end or inside


def test_unknown_operations(profiled, tmp_path):
    """What the program does not know has its kind as name, beside those that it knows."""
    operation = profiled.log.operation.copy()
    operation[3] = 99
    changed = dataclasses.replace(profiled.log, operation=operation)
    _, found = write(tmp_path / "trace.pftrace", dataclasses.replace(profiled, log=changed))
    start = profiled.log.start_ns[3]
    one = next(one for one in found if one.start == start and one.track == "npu0")
    assert one.name == profiled.log.kinds[profiled.log.kind[3]]
    assert (one.told["model"], one.told["operation"]) == ("unknown", -1)


@given(
    values=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5),
    small=st.lists(st.integers(0, 1 << 20), min_size=5, max_size=5),
)
def test_numbers_of_any_size(values, small):
    """Numbers of 64 bits come back as they were, whether they are of a row or of a message."""
    given_values = np.array(values, np.int64)
    row = np.arange(len(values)) % 5
    parts = message(1, [*integer(1, Given("x", width_of(given_values))), *integer(5, PerRow(tuple(small)))])
    packed = bytes(Form(parts, 5).filled(row, {"x": given_values}))
    size = len(packed) // len(values)
    for place, value in enumerate(values):
        one = messages.TrackDescriptor()
        one.ParseFromString(packed[place * size + 2 : (place + 1) * size])
        assert (one.uuid, one.parent_uuid) == (value % (1 << 64), small[row[place]])
