"""Chrome traces and profiles of ONNX Runtime are read, also where they are cut off or odd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import InputError
from framefit.profiling.formats import chrome as json_events
from framefit.profiling.formats import ort as ort_profile
from framefit.profiling.formats.chrome import parse_events, read_chrome_events
from framefit.profiling.formats.ort import is_ort_profile, read_ort_events


def chrome(events: list[Any] | dict[str, Any] | str) -> tuple[list[tuple[int, str, int, int]], tuple[str, ...]]:
    """Packets as (time_ns, kind, type, core), and warnings."""
    text = events if isinstance(events, str) else json.dumps(events)
    parsed, odd = parse_events(text.encode(), "made")
    named, more = read_chrome_events(parsed, "made")
    trace = named.trace
    columns = (trace.time_ns, [trace.kinds[kind] for kind in trace.id], trace.type, trace.core)
    return list(zip(*map(list, columns), strict=True)), (*odd, *more)


def event(ph: str, ts: float, name: str | None = "conv", tid: int = 1, **more: Any) -> dict[str, Any]:
    """One event of a Chrome trace."""
    return {"ph": ph, "ts": ts, "pid": 1, "tid": tid} | ({} if name is None else {"name": name}) | more


PAIR = [event("B", 1), event("E", 3.5)]
READ = [(1000, "conv", 0, 0), (3500, "conv", 1, 0)]


@pytest.mark.parametrize(
    "form",
    [
        PAIR,
        {"traceEvents": PAIR, "displayTimeUnit": "ns"},
        json.dumps(PAIR)[:-1],
        json.dumps(PAIR)[:-1] + ",",
        "\ufeff " + json.dumps(PAIR),
        json.dumps({"displayTimeUnit": "ms", "traceEvents": PAIR})[:-2],
    ],
)
def test_every_form_of_the_file_is_read(form: Any) -> None:
    """An array, one without an end, an object, and an object that is cut off."""
    packets, warnings = chrome(form)
    assert packets == READ
    assert len(warnings) == (isinstance(form, str) and "]" not in form)


def test_whole_events_are_listed_in_the_order_of_time() -> None:
    """X events are split; their threads are cores as they come."""
    packets, _ = chrome([event("X", 5, "pool", dur=2), event("X", 1, "conv", dur=4), event("X", 2, "conv", 7, dur=1)])
    assert packets == [
        (1000, "conv", 0, 0),
        (2000, "conv", 0, 1),
        (3000, "conv", 1, 1),
        (5000, "conv", 1, 0),
        (5000, "pool", 0, 0),
        (7000, "pool", 1, 0),
    ]


def test_whole_events_of_no_length_come_before_what_begins_then() -> None:
    """A reshape that takes no time is over when the next operation begins, wherever the file tells it."""
    packets, _ = chrome([event("X", 1, "conv", dur=4), event("X", 5, "pool", dur=2), event("X", 5, "reshape", dur=0)])
    assert [(name, type_) for _, name, type_, _ in packets] == [
        ("conv", 0),
        ("conv", 1),
        ("reshape", 0),
        ("reshape", 1),
        ("pool", 0),
        ("pool", 1),
    ]


def test_an_end_without_a_name_ends_what_is_open() -> None:
    """Nested events end inside out, also where an END of a named one was lost."""
    packets, _ = chrome([event("B", 1, "a"), event("B", 2, "b"), event("E", 3, "a"), event("E", 4, None)])
    assert [kind for _, kind, _, _ in packets] == ["a", "b", "a"]


def test_half_a_pair_is_kept_for_the_repair() -> None:
    """A B or E whose other half was lost is a packet like any other."""
    packets, _ = chrome([event("E", 1, "a"), event("B", 2, "b")])
    assert packets == [(1000, "a", 1, 0), (2000, "b", 0, 0)]


def test_pairs_stay_in_the_order_of_the_file() -> None:
    """Without X events the file's order is that of arrival, so that late packets can be seen."""
    packets, _ = chrome([event("B", 5), event("E", 3), event("B", 7)])
    assert [time for time, *_ in packets] == [5000, 3000, 7000]


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (event("X", 1), "1 events have no duration"),
        (event("X", 1, dur=-1), "or a negative one"),
        (event("X", 1e300, dur=1), "1 events have no time"),
        (event("B", 1, None), "1 events have no name"),
        (event("B", 0) | {"ts": True}, "1 events have no time"),
        (7, "1 entries are not events"),
    ],
)
def test_what_is_odd_is_left_out_and_reported(odd: Any, said: str) -> None:
    """One sentence each; the rest is read."""
    packets, warnings = chrome([*PAIR, odd])
    assert packets == READ
    assert any(said in warning for warning in warnings)


def test_half_a_character_is_replaced() -> None:
    """Names come from JSON that no file could hold as it is."""
    packets, _ = chrome([event("X", 1, "a\ud800", dur=1) | {"args": {"\ud800": "\udfff"}}, 7])
    assert {kind for _, kind, _, _ in packets} == {"a?"}


@pytest.mark.parametrize("text", ["[]", "{}", "[[[[", "[" * 100_000, '{"traceEvents": 3}', "[1, 2]", '[{"ph": "M"}]'])
def test_what_holds_no_events_is_refused(text: str) -> None:
    """One clear error."""
    with pytest.raises(InputError):
        chrome(text)


def test_absurd_numbers_of_objects_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts objects in the text."""
    monkeypatch.setattr(json_events, "_MOST_OBJECTS", 5)
    with pytest.raises(InputError, match="6 objects; at most 5"):
        chrome([{}] * 6)


# ONNX Runtime ---------------------------------------------------------------------------------


def kernel(name: str, ts: int, dur: int, op: str = "Conv", tid: int = 9) -> dict[str, Any]:
    """A node's event."""
    made = event("X", ts, f"{name}_kernel_time", tid, dur=dur)
    return made | {"cat": "Node", "args": {"op_name": op, "provider": "CPUExecutionProvider", "node_index": "1"}}


def session(name: str, ts: int, dur: int) -> dict[str, Any]:
    """A session's event."""
    return event("X", ts, name, 9, dur=dur) | {"cat": "Session", "args": {}}


def profile(runs: int = 3) -> list[dict[str, Any]]:
    """Runs of a small model."""
    events = [session("session_initialization", 0, 50)]
    for run in range(runs):
        at = 1000 * (run + 1)
        events += [kernel("c1", at, 100 + run), kernel("p1", at + 200, 50, "MaxPool"), kernel("c2", at + 300, 400)]
        events += [session("SequentialExecutor::Execute", at - 1, 720), session("model_run", at - 5, 730)]
    return events


def test_a_profile_shows_its_program() -> None:
    """Nodes in order, each run an inference, medians as expectations."""
    parsed, _ = parse_events(json.dumps(profile()).encode(), "made")
    assert is_ort_profile(parsed)
    trace, program, warnings = read_ort_events(parsed, "made", "net")
    assert warnings == ()
    operations = program.programs[0].groups[0].operations
    assert [(operation.name, operation.kind, operation.expected_ns) for operation in operations] == [
        ("c1", "Conv", 101_000),
        ("p1", "MaxPool", 50_000),
        ("c2", "Conv", 400_000),
    ]
    assert program.repeats == 3
    assert program.window_ns == 1_000_000
    assert trace.operation.tolist() == [0, 0, 1, 1, 2, 2] * 3
    assert trace.time_ns[:2].tolist() == [1_000_000, 1_100_000]
    assert trace.meta.resolution_ns == 1000


def test_the_last_run_may_be_incomplete() -> None:
    """A profile that is cut off in a run keeps what it has of it."""
    text = json.dumps(profile())
    cut = text[: text.index('"c2_kernel_time"', text.index('"c2_kernel_time"', text.index('"c2_kernel_time"') + 1) + 1)]
    parsed, odd = parse_events(cut.encode(), "made")
    trace, program, _ = read_ort_events(parsed, "made", "net")
    assert any("cut off" in warning for warning in odd)
    assert program.repeats == 3
    assert len(trace) == 16


def test_a_full_profile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many events as ONNX Runtime keeps at most mean that it stopped there."""
    parsed, _ = parse_events(json.dumps(profile()).encode(), "made")
    monkeypatch.setattr(ort_profile, "_MOST_EVENTS", len(parsed))
    _, _, warnings = read_ort_events(parsed, "made", "net")
    assert any("stopped recording" in warning for warning in warnings)
    assert ort_profile._MOST_EVENTS == 16


def test_kernels_inside_kernels_and_on_other_threads_are_not_the_program() -> None:
    """A Loop's body counts as the Loop; another thread's kernels are told."""
    events = [kernel("loop", 0, 100, "Loop"), kernel("body", 10, 5, "Add"), kernel("body", 20, 5, "Add")]
    events += [kernel("after", 200, 10), kernel("other", 0, 5, "Conv", 8), session("model_run", 0, 300)]
    parsed, _ = parse_events(json.dumps(events).encode(), "made")
    trace, program, warnings = read_ort_events(parsed, "made", "net")
    assert [entry.name for entry in program.programs[0].groups[0].operations] == ["loop", "after"]
    assert len(trace) == 6
    assert any("2 kernels ran inside another one" in entry for entry in warnings)
    assert any("1 kernels ran on other threads" in entry for entry in warnings)


def test_kernels_of_no_measurable_length_stay() -> None:
    """Microseconds are coarse: a kernel of none is still an operation."""
    events = [kernel("a", 5, 0), kernel("b", 5, 0), kernel("c", 5, 3), kernel("d", 8, 0), session("model_run", 0, 10)]
    parsed, _ = parse_events(json.dumps(events).encode(), "made")
    _, program, warnings = read_ort_events(parsed, "made", "net")
    assert sorted(operation.name for operation in program.programs[0].groups[0].operations) == ["a", "b", "c", "d"]
    assert warnings == ()
    assert min(operation.expected_ns for operation in program.programs[0].groups[0].operations) == 500


def test_a_profile_without_kernels_is_refused() -> None:
    """Nothing was run."""
    parsed, _ = parse_events(json.dumps([session("session_initialization", 0, 1)]).encode(), "made")
    assert is_ort_profile(parsed)
    with pytest.raises(InputError, match="is that of a kernel"):
        read_ort_events(parsed, "made", "net")


@given(st.data())
@settings(max_examples=25)
def test_damage_never_does_more_than_harm(data: st.DataObject) -> None:
    """Whatever is changed in a file, there is a trace or one clear error."""
    events = data.draw(st.sampled_from([profile(2), PAIR, {"traceEvents": profile(1)}]))
    raw = bytearray(json.dumps(events).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        if not raw:
            break
        place = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[place] = data.draw(st.integers(0, 255))
        else:
            raw[place : place + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8) | st.just(b"1e999"))
    try:
        parsed, _ = parse_events(bytes(raw), "made")
        trace = (
            read_ort_events(parsed, "made", "net")[0]
            if is_ort_profile(parsed)
            else read_chrome_events(parsed, "made")[0].trace
        )
    except InputError:
        return
    assert len(trace) <= len(raw)
    assert trace.time_ns.dtype == np.int64


def test_a_real_files_name_names_the_model(tmp_path: Path) -> None:
    """The model has no name in a profile; the file has."""
    from framefit.profiling.formats.readers import read_trace

    path = tmp_path / "resnet.json"
    path.write_text(json.dumps(profile()))
    read = read_trace(path)
    assert read.program is not None
    assert read.program.programs[0].model == "resnet"
