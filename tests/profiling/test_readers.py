"""A file's content says what it is; whatever it holds, there is a trace or one clear error."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import InputError
from framefit.core.events import Trace
from framefit.profiling.formats import readers
from framefit.profiling.formats.readers import read_trace
from framefit.profiling.formats.stp import StpMapping
from lossy_runs import as_raw, played, program, segment
from stp_streams import Stream

RUN = played(program(segment("net", ("conv", "npu0", 4000), ("pool", "npu0", 900))), 5)


def as_stp(trace: Trace) -> bytes:
    """A trace as the system trace that it is read from without a mapping."""
    stream = Stream().begin().frequency(1_000_000_000)
    for time, kind, type_, core in zip(trace.time_ns, trace.id, trace.type, trace.core, strict=True):
        stream.address(int(core), 0).data(int(kind) << 1 | int(type_), 8, int(time))
    return stream.raw()


def as_chrome(trace: Trace) -> bytes:
    """A trace as B and E events."""
    columns = (trace.time_ns.tolist(), trace.id.tolist(), trace.type.tolist(), trace.core.tolist())
    return json.dumps(
        [
            {"name": trace.kinds[kind], "ph": "BE"[type_], "ts": time / 1000, "pid": 0, "tid": core}
            for time, kind, type_, core in zip(*columns, strict=True)
        ]
    ).encode()


def own(trace: Trace, folder: Path) -> bytes:
    """A trace as ``trace.npz``."""
    path = folder / "own.npz"
    trace.write(path, force=True)
    return path.read_bytes()


@pytest.mark.parametrize("form", ["npz", "stream", "stp", "chrome"])
def test_content_decides(form: str, tmp_path: Path) -> None:
    """The same run comes back from each format, whatever the file is called."""
    forms = {"npz": own(RUN, tmp_path), "stream": as_raw(RUN), "stp": as_stp(RUN), "chrome": as_chrome(RUN)}
    path = tmp_path / "trace.dat"
    path.write_bytes(forms[form])
    mapping = StpMapping(kinds=RUN.kinds) if form == "stp" else None
    read = read_trace(path, mapping)
    assert read.warnings == ()
    assert read.program is None
    for name in ("time_ns", "type", "core"):
        np.testing.assert_array_equal(getattr(read.trace, name), getattr(RUN, name))
    assert [read.trace.kinds[kind] for kind in read.trace.id] == [RUN.kinds[kind] for kind in RUN.id]


def test_a_stream_may_end_in_a_record(tmp_path: Path) -> None:
    """The last record is left out, with a sentence."""
    path = tmp_path / "trace.bin"
    path.write_bytes(as_raw(RUN)[:-5])
    read = read_trace(path)
    np.testing.assert_array_equal(read.trace.time_ns, RUN.time_ns[:-1])
    assert read.warnings == ("the last record is cut off: 11 bytes at the end were left out",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"\x00\x01\x02", "not a trace of a known format"),
        (b"PK\x03\x04 and no archive", "not a readable .npz"),
        (b'{"kinds": ["conv"], "meta": {}}\n', "no whole record"),
        (b'{"kinds": 3}\n', "kinds"),
        (b'{"some": "json"}', "traceEvents"),
        (b"\xff" * 100, "not a trace of a known format"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    """One error that says what is wrong."""
    path = tmp_path / "trace.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_trace(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, and nothing at all."""
    with pytest.raises(InputError, match="is not a regular file"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "none")


def test_sizes_that_a_file_claims_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a large file nor an archive that would unpack to one is read."""
    path = tmp_path / "trace.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("time_ns.npy", b"\0" * 100_000)
    monkeypatch.setattr(readers, "_MOST_BYTES", 50_000)
    with pytest.raises(InputError, match="claims to hold 100000 bytes"):
        read_trace(path)
    path.write_bytes(b"[" + b" " * 60_000)
    with pytest.raises(InputError, match="has 60001 bytes"):
        read_trace(path)


@given(st.data())
@settings(max_examples=25)
def test_damaged_files_give_a_trace_or_one_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes changed, removed or put in, of any format: never anything else."""
    folder = tmp_path_factory.mktemp("damaged")
    small = replace(RUN, **{name: getattr(RUN, name)[:8] for name in ("time_ns", "id", "type", "core", "operation")})
    form = data.draw(st.sampled_from([own, lambda one, _: as_raw(one), lambda one, _: as_stp(one)]))
    raw = bytearray(form(small, folder))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        raw[place : place + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    path = folder / "trace"
    path.write_bytes(raw)
    try:
        read = read_trace(path)
    except InputError:
        return
    assert isinstance(read.trace, Trace)
