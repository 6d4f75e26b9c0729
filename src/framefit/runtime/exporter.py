"""Counts and response times of a run for Prometheus, over HTTP."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.journal import Data
from framefit.devices.host import keep_off
from framefit.errors import InputError, needs_extra
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.session import Session

__all__ = ["exported", "metrics_address"]

_BUCKETS_S = np.asarray([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
_DRAIN_S = 1.0


class Exporter:
    """What a scrape reads: frames of each model by what became of them, and their response times.

    Args:
        models: names, by number.
        windows: how many have begun.
    """

    def __init__(self, models: Sequence[str], windows: Callable[[], int]) -> None:
        self._models, self._windows = models, windows
        self._waiting: queue.SimpleQueue[Data] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._frames = np.zeros((len(models), len(FrameOutcome)), np.int64)
        self._responses = np.zeros((len(models), len(_BUCKETS_S) + 1), np.int64)
        self._response_sums_s = np.zeros(len(models))

    def take(self, data: Data) -> None:
        """Rows of a log of frames; returns at once."""
        self._waiting.put(data)

    def count(self) -> None:
        """Count all rows that were taken."""
        with self._lock, contextlib.suppress(queue.Empty):
            while True:
                rows = np.frombuffer(self._waiting.get_nowait(), np.int64)
                self._add(rows.reshape(-1, len(FrameLog.columns)))

    def collect(self) -> Iterator[Any]:
        """The metrics, in the form of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        self.count()
        windows = CounterMetricFamily("framefit_windows", "Windows that have begun.")
        windows.add_metric([], self._windows())
        frames = CounterMetricFamily(
            "framefit_frames", "Frames by model and by what became of them.", labels=("model", "outcome")
        )
        responses = HistogramMetricFamily(
            "framefit_response_seconds", "From a frame's release to its result.", labels=("model",)
        )
        bounds = [*map(str, _BUCKETS_S.tolist()), "+Inf"]
        with self._lock:
            for at, name in enumerate(self._models):
                for outcome in FrameOutcome:
                    frames.add_metric([name, outcome.name.lower().replace("_", "-")], self._frames[at, outcome])
                reached = np.cumsum(self._responses[at]).tolist()
                responses.add_metric([name], list(zip(bounds, reached, strict=True)), self._response_sums_s[at])
        yield from (windows, frames, responses)

    def _add(self, rows: npt.NDArray[np.int64]) -> None:
        models = rows[:, FrameLog.MODEL]
        np.add.at(self._frames, (models, rows[:, FrameLog.OUTCOME]), 1)
        done = rows[:, FrameLog.FINISHED] >= 0
        seconds = (rows[done, FrameLog.FINISHED] - rows[done, FrameLog.RELEASED]) / 1e9
        np.add.at(self._responses, (models[done], np.searchsorted(_BUCKETS_S, seconds)), 1)
        np.add.at(self._response_sums_s, models[done], seconds)


@contextlib.contextmanager
def exported(session: Session, address: str | None) -> Iterator[None]:
    """Answer scrapes while a run goes on; enter before it is played.

    Rows come with the journal's: about a second late.

    Args:
        session: with a journal that has names.
        address: "host:port", or a port of this machine alone; ``None``: nothing is exported.

    Raises:
        InputError: the address cannot be used.
        MissingExtraError: without the extra ``metrics``.
    """
    if address is None:
        yield
        return
    host, port = metrics_address(address)
    import prometheus_client as prometheus

    exporter = Exporter([model.name for model in session.opened.models], lambda: session.group.windows)
    registry = prometheus.CollectorRegistry()
    registry.register(exporter)
    session.journal.observe("frames-", exporter.take)
    opened: queue.Queue[tuple[Any, threading.Thread] | OSError] = queue.Queue()
    over = threading.Event()

    def serve() -> None:
        keep_off(session.beat_cores())
        try:
            opened.put(prometheus.start_http_server(port, host, registry))
        except OSError as error:
            opened.put(error)
            return
        while not over.wait(_DRAIN_S):
            exporter.count()

    threading.Thread(target=serve, name="framefit-metrics", daemon=True).start()
    server = opened.get()
    if isinstance(server, OSError):
        raise InputError(
            f"{address} cannot be used: {server.strerror or server}", where="--metrics", remedy="choose another port"
        ) from server
    try:
        yield
    finally:
        over.set()
        server[0].shutdown()
        server[0].server_close()
        server[1].join()


def metrics_address(text: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        InputError: it is no address.
        MissingExtraError: without the extra ``metrics``.
    """
    with needs_extra("prometheus_client", "metrics"):
        import prometheus_client  # noqa: F401 - before anything is planned
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"{text!r} is no address", where="--metrics", remedy="write a port, or host:port")
    return host, int(port)
