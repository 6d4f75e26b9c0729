"""``framefit profile`` and ``inject-loss``: what they say of good, bad and foreign traces, and how they end."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from console import Framefit

from framefit.core.events import Trace, TraceMeta
from framefit.core.files import write_record
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram
from lossy_runs import as_raw

KINDS = ("conv", "pad_pool", "reformat")
PATTERN = ((0, 41_000), (1, 12_000), (0, 33_000), (2, 7_000), (0, 58_000), (1, 9_000))
INFERENCES = 60
FILES = {
    "profile.json",
    "events.csv",
    "events.json",
    "lost.csv",
    "lost.json",
    "trace.pftrace",
    "trace.json",
    "layers.csv",
    "timeline.html",
}


def program(window_ns: int = 0) -> Program:
    """Six operations on one unit, over and over."""
    operations = tuple(
        Operation(
            index=index,
            name=f"{KINDS[kind]}_{index}",
            layer=f"layer_{index}",
            kind=KINDS[kind],
            unit="npu0",
            expected_ns=expected,
            sigma_ratio=0.03,
            op=KINDS[kind],
            configuration={"place": index},
        )
        for index, (kind, expected) in enumerate(PATTERN)
    )
    groups = (Group(index=0, operations=operations[:3]), Group(index=1, operations=operations[3:]))
    return Program(
        window_ns=window_ns,
        units=(ProgramUnit(name="npu0", core=0),),
        programs=(SegmentProgram(name="net.0", model="net", segment=0, groups=groups),),
    )


def complete(inferences: int = INFERENCES, seed: int = 0, meta: TraceMeta | None = None) -> Trace:
    """All of its packets."""
    random = np.random.default_rng(seed)
    kind, mean = np.array(PATTERN).T
    busy = np.maximum(random.normal(mean, 0.03 * mean, (inferences, len(mean))), 1)
    idle = random.gamma(9, 40, busy.shape) + np.where(np.arange(len(mean)) == 0, 20_000, 0)
    time = np.round(np.cumsum(np.stack([idle, busy], 2).reshape(-1))).astype(np.int64) + 1_000_000
    count = len(time)
    return Trace(
        time_ns=time,
        id=np.tile(np.repeat(kind, 2), inferences).astype(np.int32),
        type=np.tile([0, 1], count // 2).astype(np.uint8),
        core=np.zeros(count, np.int16),
        operation=np.full(count, -1, np.int64),
        kinds=KINDS,
        meta=meta or TraceMeta(),
    )


def of(trace: Trace, at: Any) -> Trace:
    """Packets of a trace, by number."""
    return Trace(
        **{name: getattr(trace, name)[at] for name in ("time_ns", "id", "type", "core", "operation")},
        kinds=trace.kinds,
        meta=trace.meta,
    )


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder with a program, a complete trace, and one that lost a tenth."""
    write_record(tmp_path / "net.json", program())
    trace = complete()
    trace.write(tmp_path / "whole.npz")
    kept = np.random.default_rng(3).random(len(trace)) > 0.1
    of(trace, np.flatnonzero(kept)).write(tmp_path / "thin.npz")
    return tmp_path


def result_of(framefit: Framefit, *arguments: object) -> dict[str, Any]:
    """The JSON of a call that ends well."""
    ended = framefit(*arguments, "--json")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_a_thinned_trace_is_repaired_and_the_folder_holds_everything(framefit: Framefit, there: Path) -> None:
    """Totals are within their intervals, files are complete, and nothing inferred is called measured."""
    out = there / "out"
    found = result_of(framefit, "profile", there / "thin.npz", "--program", there / "net.json", "-o", out)
    assert {path.name for path in out.iterdir()} == FILES
    thin = Trace.read(there / "thin.npz")
    assert found["events"]["received"] == len(thin)
    assert found["events"]["spurious"] == 0
    assert found["events"]["lost"] == found["events"]["expected"] - len(thin)
    whole = complete()
    real = dict.fromkeys(KINDS, 0)
    for start, end, kind in zip(whole.time_ns[::2], whole.time_ns[1::2], whole.id[::2], strict=True):
        real[KINDS[kind]] += int(end - start)
    for kind, totals in found["totals_by_kind"].items():
        low, high = totals["interval_ns"]
        assert low <= totals["duration_ns"] <= high
        assert abs(totals["duration_ns"] - real[kind]) < 0.01 * real[kind]
        assert 0.05 < totals["inferred_ratio"] < 0.15
    assert json.loads((out / "profile.json").read_text()) == found
    with (out / "events.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (out / "lost.csv").open() as file:
        lost = list(csv.DictReader(file))
    measured = [row for row in rows if row["source"] == "measured"]
    assert len(rows) == found["events"]["expected"]
    assert sorted(int(row["time_ns"]) for row in measured) == sorted(thin.time_ns.tolist())
    assert len(lost) == len(rows) - len(measured)
    assert all(int(row["lo_ns"]) <= int(row["time_ns"]) <= int(row["hi_ns"]) for row in lost)


def test_an_existing_folder_is_kept(framefit: Framefit, there: Path) -> None:
    """Without --force nothing is overwritten; with it only what is a profile."""
    arguments = ("profile", there / "whole.npz", "--program", there / "net.json", "-o", there / "out")
    assert framefit(*arguments).code == 0
    assert framefit(*arguments).code == 2
    assert framefit(*arguments, "--force").code == 0
    (there / "mine").mkdir()
    (there / "mine" / "thesis.txt").write_text("years")
    refused = framefit(*arguments[:-1], there / "mine", "--force")
    assert refused.code == 2
    assert "is not a profile" in refused.err
    assert (there / "mine" / "thesis.txt").read_text() == "years"


def test_profiles_get_a_folder_of_their_own(framefit: Framefit, there: Path) -> None:
    """Without -o they lie under profiles/, numbered."""
    for number in (1, 2):
        assert framefit("profile", there / "whole.npz", "--program", there / "net.json").code == 0
        assert (Path("profiles") / f"whole-{number}" / "timeline.html").is_file()


def damaged(name: str) -> Trace:
    """A trace in which something is wrong."""
    trace, random = complete(), np.random.default_rng(1)
    if name == "wrapped clock":
        meta = TraceMeta(wrap_bits=20, resolution_ns=1)
        return Trace(
            **{one: getattr(trace, one) for one in ("id", "type", "core", "operation", "kinds")},
            time_ns=trace.time_ns % (1 << 20),
            meta=meta,
        )
    if name == "swapped packets":
        order = np.arange(len(trace))
        order[100], order[101] = 101, 100
        order[301], order[302] = 302, 301
        return of(trace, order)
    if name == "duplicates":
        return of(trace, np.sort(np.append(np.arange(len(trace)), [50, 51, 200])))
    if name == "cut-off end":
        return of(trace, slice(0, len(trace) - 5))
    if name == "begins in the middle":
        return of(trace, slice(7, None))
    if name == "empty":
        return of(trace, slice(0, 0))
    if name == "one packet":
        return of(trace, slice(4, 5))
    changed = {one: getattr(trace, one).copy() for one in ("time_ns", "id", "type", "core", "operation")}
    if name == "unknown ids":
        changed["id"][random.integers(0, len(trace), 9)] = 77
        changed["id"][3] = -5
    elif name == "unknown types":
        changed["type"][[10, 20, 30]] = 9
    elif name == "unknown cores":
        changed["core"][[10, 20, 30]] = -7
    elif name == "impossible times":
        changed["time_ns"][[40, 90]] = [np.iinfo(np.int64).max, np.iinfo(np.int64).min]
    elif name == "numbered wrongly":
        changed["operation"][:] = 1234
    return Trace(**changed, kinds=trace.kinds, meta=trace.meta)


DAMAGE = {
    "wrapped clock": "",
    "swapped packets": "out of order|later ones",
    "duplicates": "twice",
    "cut-off end": "",
    "begins in the middle": "",
    "empty": "no events|empty",
    "one packet": "",
    "unknown ids": "id that the trace does not name",
    "unknown types": "neither START nor END",
    "unknown cores": "not a unit of the program",
    "impossible times": "impossible times",
}


@pytest.mark.parametrize("method", ["rule", "align"])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_bad_trace_is_reported_and_never_fatal(framefit: Framefit, there: Path, name: str, method: str) -> None:
    """What is wrong is said in a sentence; the rest is profiled all the same."""
    trace = damaged(name)
    trace.write(there / "bad.npz")
    arguments = ("profile", there / "bad.npz", "--program", there / "net.json", "--method", method, "-o", there / "o")
    found = result_of(framefit, *arguments)
    if DAMAGE[name]:
        assert any(any(word in note for word in DAMAGE[name].split("|")) for note in found["warnings"])
    assert found["events"]["received"] in (len(trace), len(trace) - 2)
    assert {path.name for path in (there / "o").iterdir()} == FILES
    if len(trace) > 100:
        assert found["inferences"] in (INFERENCES, INFERENCES - 1)
        expected = sum(mean for _, mean in PATTERN) * INFERENCES
        assert sum(one["duration_ns"] for one in found["totals_by_kind"].values()) == pytest.approx(expected, rel=0.05)
    if name in ("empty", "one packet", "unknown ids"):  # tables of nothing, of next to nothing, with a warning
        shown = framefit(*arguments, "--force")
        assert shown.code == 0
        assert "Traceback" not in shown.err


def test_a_program_that_is_not_the_traces_is_refused(framefit: Framefit, there: Path) -> None:
    """Exit code 2, with the kinds of both."""
    foreign = msgspec.json.decode(msgspec.json.encode(program()))
    for group in foreign["programs"][0]["groups"]:
        for operation in group["operations"]:
            operation["kind"] = "matmul"
    (there / "foreign.json").write_text(json.dumps(foreign))
    for method in ("align", "rule"):
        ended = framefit(
            "profile", there / "whole.npz", "--program", there / "foreign.json", "--method", method, "-o", there / "o"
        )
        assert ended.code == 2
        assert "'conv'" in ended.err
        assert "'matmul'" in ended.err
        assert not (there / "o").exists()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"garbage\0\1\2", "not a trace of a known format"),
        (b'{"kinds": ', ""),
        (b"PK\x03\x04zip", "npz"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(framefit: Framefit, there: Path, content: bytes, word: str) -> None:
    """Exit code 2 and one message with a remedy."""
    (there / "no.npz").write_bytes(content)
    ended = framefit("profile", there / "no.npz", "--program", there / "net.json")
    assert ended.code == 2
    assert word in ended.err
    assert "remedy" in ended.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("absent.npz",), "no such file"),
        (("whole.npz",), "the program that was executed is unknown"),
        (("whole.npz", "--program", "absent.json"), "no such file"),
        (("whole.npz", "--program", "net.json", "--confidence", "1.5"), "1.5"),
        (("whole.npz", "--program", "net.json", "--update-table", "t.json"), "--table"),
        ((".",), "no trace.npz"),
        (("whole.npz", "--follow"), "--program"),
        (("whole.npz", "--program", "net.json", "--follow", "-o", "x"), "--follow"),
    ],
)
def test_what_cannot_be_is_refused(
    framefit: Framefit, there: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], word: str
) -> None:
    """Exit code 2, the value and the remedy."""
    monkeypatch.chdir(there)
    ended = framefit("profile", *arguments)
    assert ended.code == 2
    assert word in ended.err


def test_an_audit_certifies_the_repair(framefit: Framefit, there: Path) -> None:
    """Masked events are found again near where they were, and lie in their intervals as often as these say."""
    arguments = ("profile", there / "thin.npz", "--program", there / "net.json", "--audit", "-o", there / "o")
    found = result_of(framefit, *arguments)["certificate"]
    assert found["masked"] >= 40
    assert found["as_struck"]
    assert found["recognised_ratio"] > 0.98
    assert found["duration_error_ratio"] < 0.1
    assert 0.75 <= found["coverage_ratio"] <= 1
    assert "were masked" in framefit(*arguments, "--force").out


def test_losses_are_injected_repeatably(framefit: Framefit, there: Path) -> None:
    """The same seed takes the same packets, and as many as asked for."""
    for name in ("a", "b"):
        ended = framefit(
            "inject-loss",
            there / "whole.npz",
            "--rate",
            "0.25",
            "--burst",
            "5",
            "--seed",
            "7",
            "-o",
            there / f"{name}.npz",
        )
        assert ended.code == 0
        assert "180 of 720 events lost" in ended.out
    first, second = Trace.read(there / "a.npz"), Trace.read(there / "b.npz")
    assert np.array_equal(first.time_ns, second.time_ns)
    assert len(first) == 540
    again = framefit("inject-loss", there / "whole.npz", "--rate", "0.25", "-o", there / "a.npz")
    assert again.code == 2
    assert "already exists" in again.err


@pytest.mark.parametrize("kind", ["random", "burst", "overflow", "start-only", "inference"])
def test_every_kind_of_loss_can_be_injected(framefit: Framefit, there: Path, kind: str) -> None:
    """Whole inferences need the program; the others do not."""
    more = ("--program", there / "net.json") if kind == "inference" else ()
    ended = framefit(
        "inject-loss", there / "whole.npz", "--rate", "0.1", "--kind", kind, *more, "-o", there / "thin2.npz"
    )
    assert ended.code == 0
    assert len(Trace.read(there / "thin2.npz")) == 720 - 72


def test_an_injection_that_cannot_be_is_refused(framefit: Framefit, there: Path) -> None:
    """Rates beyond 1, bursts of another kind, missing programs."""
    for more, word in (
        (("--rate", "1.5"), "1.5"),
        (("--rate", "0.1", "--kind", "random", "--burst", "3"), "burst"),
        (("--rate", "0.1", "--kind", "inference"), "program that was executed is unknown"),
    ):
        ended = framefit("inject-loss", there / "whole.npz", *more, "-o", there / "n.npz")
        assert ended.code == 2
        assert word in ended.err


def test_a_stream_is_followed_to_its_end(framefit: Framefit, there: Path) -> None:
    """Positions come as JSON lines while a pipe lives; the last line is the profile."""
    trace = Trace.read(there / "thin.npz")
    os.mkfifo(there / "pipe")

    def write() -> None:
        content = as_raw(trace)
        with (there / "pipe").open("wb") as pipe:
            pipe.write(content[:1001])
            pipe.flush()
            pipe.write(content[1001:] + b"half")

    writer = threading.Thread(target=write)
    writer.start()
    ended = framefit("profile", there / "pipe", "--program", there / "net.json", "--follow", "--json")
    writer.join()
    assert ended.code == 0, ended.err
    *positions, profile = [json.loads(line) for line in ended.out.splitlines()]
    assert positions[-1]["received"] == len(trace)
    assert positions[-1]["inference"] in (INFERENCES - 1, INFERENCES - 2)
    assert positions[-1]["name"].startswith("net.0/")
    assert 0 < positions[-1]["confidence"] <= 1
    assert profile["events"]["received"] == len(trace)
    assert profile["inferences"] == INFERENCES


def test_a_stream_of_another_program_is_refused(framefit: Framefit, there: Path) -> None:
    """After some thousand packets, or at the end of a shorter stream, and not after minutes of matching nothing."""
    other = json.loads((there / "net.json").read_text())
    operations = [operation for group in other["programs"][0]["groups"] for operation in group["operations"]]
    kinds = [operation["kind"] for operation in operations]
    for operation, kind in zip(operations, np.random.default_rng(1).permutation(kinds).tolist(), strict=True):
        operation["kind"] = kind
    (there / "other.json").write_text(json.dumps(other))
    os.mkfifo(there / "pipe")
    writer = threading.Thread(target=lambda: (there / "pipe").write_bytes(as_raw(Trace.read(there / "thin.npz"))))
    writer.start()
    ended = framefit("profile", there / "pipe", "--program", there / "other.json", "--follow", "--json")
    writer.join()
    assert ended.code == 2
    assert "pipe: the trace is not of this program: after packet" in ended.err


@pytest.mark.parametrize("content", [b"", b"no header\n"])
def test_a_stream_without_packets_ends_clearly(framefit: Framefit, there: Path, content: bytes) -> None:
    """Nothing at all is a profile of nothing; no header is an error."""
    os.mkfifo(there / "pipe")
    writer = threading.Thread(target=lambda: (there / "pipe").write_bytes(content))
    writer.start()
    ended = framefit("profile", there / "pipe", "--program", there / "net.json", "--follow", "--json")
    writer.join()
    assert ended.code == (2 if content else 0)
    assert ("header" in ended.err) if content else (json.loads(ended.out)["inferences"] == 0)


def test_help_names_the_examples() -> None:
    """Both commands explain themselves."""
    script = Path(sys.executable).with_name("framefit")
    for command in ("profile", "inject-loss"):
        shown = subprocess.run([script, command, "--help"], check=True, capture_output=True, text=True).stdout
        assert "Example" in shown
