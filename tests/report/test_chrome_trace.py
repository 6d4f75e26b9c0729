"""Chrome's JSON, read back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from framefit import InputError
from framefit.core.profile import HOW_WORDS, How
from framefit.report.chrome import write_chrome


def test_complete_events_only(profiled, tmp_path):
    """Every operation is one complete event on its unit's thread, exact to the nanosecond, with its provenance."""
    path = tmp_path / "trace.json"
    write_chrome(path, profiled.log, profiled.program, profiled.launches)
    events = json.loads(path.read_text(), parse_float=lambda text: int(text.replace(".", "")))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["tid"]}
    assert list(names.values()) == ["npu0", "npu1"]
    log = profiled.log
    of = {(e["args"]["inference"], e["args"]["operation"]): e for e in events if e["ph"] == "X"}
    assert len(of) == len(log) == len(events) - 3
    for at in range(len(log)):
        event = of[int(log.inference[at]), int(log.operation[at])]
        args = event["args"]
        assert (event["ts"], event["dur"]) == (log.start_ns[at], log.end_ns[at] - log.start_ns[at])
        assert names[event["tid"]] == {4: "npu0", 7: "npu1"}[int(log.core[at])]
        assert args["start"] == HOW_WORDS[How(int(log.start_how[at]))]
        assert args["end"] == HOW_WORDS[How(int(log.end_how[at]))]
        inferred_end = [log.end_low_ns[at], log.end_high_ns[at]] if log.end_how[at] else None
        assert args.get("end_ns") == inferred_end
        assert args["frame"] == profiled.launches.frame[log.inference[at]]


def test_chrome_without_launches(profiled, tmp_path):
    """Without launches there is neither window nor frame, and the file is still whole."""
    path = tmp_path / "trace.json"
    write_chrome(path, profiled.log, profiled.program)
    events = json.loads(path.read_text())["traceEvents"]
    assert not any("window" in event["args"] for event in events)
    with pytest.raises(InputError, match="--force"):
        write_chrome(path, profiled.log, profiled.program)
    assert np.all([event["dur"] >= 0 for event in events if event["ph"] == "X"])
