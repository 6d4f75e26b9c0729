"""What Prometheus reads of a run."""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import framefit
from framefit.core.journal import Journal
from framefit.errors import InputError
from framefit.runtime.exporter import Exporter, exported, metrics_address
from framefit.runtime.log import FrameLog, FrameOutcome
from workloads import write_app, write_models

prometheus = pytest.importorskip("prometheus_client", reason="the extra 'metrics' is not installed")


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, *(sample.labels[key] for key in ("model", "outcome", "le") if key in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def session(folder: Path) -> Any:
    """What of a session an exporter looks at."""
    return SimpleNamespace(
        opened=SimpleNamespace(models=[SimpleNamespace(name="eye"), SimpleNamespace(name="big")]),
        group=SimpleNamespace(windows=7),
        journal=Journal(folder),
        beat_cores=frozenset,
    )


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_a_scrape_counts_frames_and_response_times(tmp_path: Path) -> None:
    """Of each model, by what became of them, as soon as their log is handed over."""
    running, port = session(tmp_path), free_port()
    log = FrameLog(None, running.journal.file("frames-0.bin"))
    with exported(running, f"127.0.0.1:{port}"):
        for frame in range(100):
            log.add(0, frame, FrameOutcome.DONE, frame, frame * 1000, frame * 1000, frame * 1000 + 4_000_000)
        log.add(1, 0, FrameOutcome.LATE, 0, 0, 0, 9_000_000_000)
        log.add(1, 1, FrameOutcome.QUEUE_FULL, 1, 0)
        log.settle()
        log.hand_over()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            read = samples(answer.read().decode())
    assert read["framefit_windows_total",] == 7
    assert read["framefit_frames_total", "eye", "done"] == 100
    assert read["framefit_frames_total", "big", "late"] == 1
    assert read["framefit_frames_total", "big", "queue-full"] == 1
    assert read["framefit_response_seconds_bucket", "eye", "0.002"] == 0
    assert read["framefit_response_seconds_bucket", "eye", "0.005"] == 100
    assert read["framefit_response_seconds_sum", "eye"] == pytest.approx(0.4)
    assert read["framefit_response_seconds_count", "big"] == 1
    assert read["framefit_response_seconds_bucket", "big", "5.0"] == 0
    with pytest.raises(OSError, match="refused"):  # the server is gone with the run
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20)


def test_rows_wait_for_no_scrape() -> None:
    """They are counted where they come, and take no memory."""
    exporter = Exporter(["eye"], lambda: 0)
    log = FrameLog()
    for frame in range(10):
        log.add(0, frame, FrameOutcome.DONE, frame, 0, 0, 1_000)
    exporter.take(log.rows().tobytes())
    exporter.count()
    exporter.count()
    (_, frames, _) = exporter.collect()
    assert [sample.value for sample in frames.samples if sample.labels["outcome"] == "done"] == [10]


def test_a_run_without_an_address_exports_nothing(tmp_path: Path) -> None:
    """No server, and no observer of the journal."""
    running = session(tmp_path)
    file = running.journal.file("frames-0.bin")
    with exported(running, None):
        assert file.observer is None


def test_addresses(tmp_path: Path) -> None:
    """A port means this machine alone; what is no address, or in use, is refused before the run."""
    assert metrics_address("9464") == ("127.0.0.1", 9464)
    assert metrics_address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert metrics_address("[::1]:80") == ("::1", 80)
    for text in ("", "host", "host:", "host:70000", "1.5"):
        with pytest.raises(InputError, match="is no address"):
            metrics_address(text)
    with socket.socket() as used, contextlib.ExitStack() as stack:
        used.bind(("127.0.0.1", 0))
        used.listen()
        with pytest.raises(InputError, match="cannot be used"):
            stack.enter_context(exported(session(tmp_path), str(used.getsockname()[1])))


def test_a_wrong_address_is_refused_before_anything_is_planned() -> None:
    """Even before the workload is read."""
    with pytest.raises(InputError, match=r"'1\.5' is no address"):
        framefit.run("nowhere.toml", metrics="1.5")


def test_the_frames_are_those_of_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last scrape of a run reads is what its result says."""
    registries = list[Any]()
    start = prometheus.start_http_server

    def kept(port: int, host: str, registry: Any) -> Any:
        registries.append(registry)
        return start(port, host, registry)

    monkeypatch.setattr(prometheus, "start_http_server", kept)
    app = write_app(write_models(tmp_path), background=(), target="vpu")
    result = framefit.run(app, windows=20, metrics=str(free_port()), output=str(tmp_path / "run"))
    read = samples(prometheus.generate_latest(registries[0]).decode())
    (model,) = result.metrics.models
    done = read["framefit_frames_total", "small", "done"] + read["framefit_frames_total", "small", "late"]
    assert done == model.completed == 20
    assert read["framefit_response_seconds_count", "small"] == 20
    assert read["framefit_windows_total",] == 20
