"""Outputs that are sent over a network, and sinks that other packages bring."""

from __future__ import annotations

import json
import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefit.core.workload import OutputEntry
from framefit.errors import FramefitError, InputError, UnsupportedError
from framefit.runtime.sinks import Sink, SinkPlace, open_sink

Messages = queue.Queue[dict[str, Any]]


def opened(address: str, place: SinkPlace | None = None) -> Sink:
    """The sink of an address."""
    return open_sink(OutputEntry(model="a", sink=address), force=False, place=place)


class Broker:
    """A broker as a process, on a port of this machine.

    Args:
        folder: of its configuration.
        port: where it listens.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._configuration = folder / "broker.yaml"
        self._configuration.write_text(
            f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\nplugins:\n"
            "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
        )
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [sys.executable, "-c", "from amqtt.scripts.broker_script import main; main()", "-c"]
        self._process = subprocess.Popen(
            [*command, str(self._configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            assert self._process.poll() is None
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        pytest.fail("the broker does not listen")

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that runs."""
    pytest.importorskip("amqtt", reason="no broker for MQTT")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        made = Broker(tmp_path, free.getsockname()[1])
    made.start()
    yield made
    made.stop()


@pytest.fixture
def listen(broker: Broker) -> Iterator[Callable[[str], Messages]]:
    """Subscribes to a topic; gives a queue of its messages."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    clients = []

    def subscribe(topic: str) -> Messages:
        messages: Messages = queue.Queue()
        client, ready = Client(CallbackAPIVersion.VERSION2), threading.Event()
        client.on_message = lambda _, __, message: messages.put(json.loads(message.payload))
        client.on_subscribe = lambda *_: ready.set()
        client.connect("127.0.0.1", broker.port)
        client.subscribe(topic)
        client.loop_start()
        assert ready.wait(20)
        clients.append(client)
        return messages

    yield subscribe
    for client in clients:
        client.disconnect()
        client.loop_stop()


def test_a_broker_gets_a_message_a_frame(broker: Broker, listen: Callable[[str], Messages]) -> None:
    """In order, as JSON."""
    messages = listen("cars/boxes")
    sink = opened(f"mqtt://127.0.0.1:{broker.port}/cars/boxes")
    for frame in range(20):
        sink.put(frame, {"y": np.full((1, 2), frame), "frame": np.asarray(1)})
    assert [messages.get(timeout=20) for _ in range(20)] == [
        {"frame": frame, "y": [[frame, frame]], "frame_": 1} for frame in range(20)
    ]
    sink.close()


def test_a_broker_that_goes_away_ends_no_run(
    broker: Broker, listen: Callable[[str], Messages], caplog: pytest.LogCaptureFixture
) -> None:
    """What could not be sent is counted, and told at the end; a broker that comes back is connected again."""
    sink = opened(f"mqtt://127.0.0.1:{broker.port}/cars")
    sink.put(0, {"y": np.zeros(1)})
    time.sleep(0.2)
    broker.stop()
    time.sleep(0.5)
    for frame in range(3):
        sink.put(frame, {"y": np.zeros(1)})
    broker.start()
    messages, end_s = listen("cars"), time.monotonic() + 60
    while messages.empty() and time.monotonic() < end_s:
        sink.put(7, {"y": np.zeros(1)})
        time.sleep(0.2)
    assert messages.get(timeout=1) == {"frame": 7, "y": [0.0]}
    with caplog.at_level(logging.WARNING):
        sink.close()
    assert "messages were lost: the broker was not reached" in caplog.text


def test_a_broker_that_is_not_there() -> None:
    """The run is refused before it begins; a password does not stand in the message."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
    with pytest.raises(InputError, match=rf"no broker answers at mqtt://me@127\.0\.0\.1:{port}/x: ") as refused:
        opened(f"mqtt://me:secret@127.0.0.1:{port}/x")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("address", ["mqtt://host", "mqtt:///topic", "mqtt://host/a/+/b", "mqtt://host:x/topic"])
def test_addresses_without_a_topic(address: str) -> None:
    """They are refused without a connection."""
    with pytest.raises(InputError, match="is no address of a topic"):
        opened(address)


class _Entries:
    """Entry points of a package that brings a kind of sink."""

    def __init__(self, name: str, made: Any) -> None:
        self.name, self.value, self.dist, self._made = name, "package:make", None, made

    def load(self) -> Any:
        """What is registered, or its error."""
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Registers what makes sinks, as an installed package would."""

    def as_package(scheme: str, made: Any) -> None:
        def entry_points(*, group: str, name: str) -> list[_Entries]:
            return [_Entries(name, made)] if (group, name) == ("framefit.sinks", scheme) else []

        monkeypatch.setattr(metadata, "entry_points", entry_points)

    return as_package


class Slow:
    """A sink that waits.

    Args:
        address: as the workload names it.
    """

    taken: list[tuple[int, str]] = []
    go = threading.Event()

    def __init__(self, address: str) -> None:
        self.address = address

    def put(self, frame: int, outputs: dict[str, Any]) -> None:
        """Wait until the test says so."""
        Slow.go.wait(20)
        if "bad" in outputs:
            raise KeyError("bad")
        Slow.taken.append((frame, self.address))

    def close(self) -> None:
        """Note it."""
        Slow.taken.append((-1, "closed"))


@pytest.fixture
def slow(register: Callable[[str, Any], None]) -> type[Slow]:
    """A sink of another package, for addresses ``slow://``."""
    Slow.taken, Slow.go = [], threading.Event()
    register("slow", Slow)
    return Slow


def test_a_sink_of_another_package_holds_nothing_up(
    slow: type[Slow], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called on a thread of its own; where it is too slow the oldest outputs are dropped, and counted."""
    monkeypatch.setattr("framefit.runtime.sinks._WAITING_OUTPUTS", 4)
    sink = opened("slow://there")
    for frame in range(50):
        sink.put(frame, {"y": np.zeros(1)})
    slow.go.set()
    with caplog.at_level(logging.WARNING):
        sink.close()
    frames = [frame for frame, _ in slow.taken]
    assert frames[-4:-1] == [47, 48, 49]
    assert slow.taken[-1] == (-1, "closed")
    assert f"slow://there: {50 - len(frames) + 1} outputs were dropped" in caplog.text


def test_a_simulation_waits_for_its_sinks(slow: type[Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped where no beat goes on."""
    monkeypatch.setattr("framefit.runtime.sinks._WAITING_OUTPUTS", 4)
    sink = opened("slow://there", SinkPlace(real_time=False))
    slow.go.set()
    for frame in range(50):
        sink.put(frame, {"y": np.zeros(1)})
    sink.close()
    assert [frame for frame, _ in slow.taken] == [*range(50), -1]


def test_what_a_package_raises_ends_the_run(slow: type[Slow]) -> None:
    """With the sink and the frame."""
    sink = opened("slow://me:secret@there")
    slow.go.set()
    sink.put(3, {"bad": np.zeros(1)})
    with pytest.raises(FramefitError, match="it raised KeyError: 'bad'") as raised:
        sink.close()
    assert raised.value.where == "sink 'slow://me@there', frame 3"


def test_a_sink_that_fails_does_not_hold_up_a_simulation(slow: type[Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for room in its queue hears of it."""
    monkeypatch.setattr("framefit.runtime.sinks._WAITING_OUTPUTS", 2)
    sink = opened("slow://there", SinkPlace(real_time=False))
    slow.go.set()

    def put_all() -> None:
        for frame in range(50):
            sink.put(frame, {"bad": np.zeros(1)})

    with pytest.raises(FramefitError, match="it raised KeyError"):
        put_all()


def test_a_package_that_cannot_be_imported(register: Callable[[str, Any], None]) -> None:
    """Its error is told when the workload is read."""
    register("kafka", ImportError("no librdkafka"))
    with pytest.raises(InputError, match="importing 'package:make' failed: ImportError: no librdkafka"):
        opened("kafka://host/topic")


def test_addresses_that_no_package_knows() -> None:
    """They are refused with the name of the entry point that is missing."""
    with pytest.raises(UnsupportedError, match="kafka://host/topic' is not supported") as refused:
        opened("kafka://host/topic")
    assert "an entry point 'kafka' in framefit.sinks" in str(refused.value)
