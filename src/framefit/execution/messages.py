"""Outputs as messages: JSON, one a frame, and where they are sent."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from framefit.core.workload import without_password
from framefit.devices.device import Array
from framefit.errors import FramefitError, InputError, needs_extra

__all__ = ["json_line"]

_CONNECT_S = 10.0
_SEND_S = 5.0
_PORTS = {"mqtt": 1883, "mqtts": 8883}

logger = logging.getLogger(__name__)


def json_line(frame: int, outputs: dict[str, Array]) -> bytes:
    """One JSON object: ``frame``, then each tensor as nested lists.

    An output called "frame" becomes "frame_". JSON knows no NaN and no infinity: they become null.

    Raises:
        TypeError: an output holds what JSON cannot say.
    """
    line: dict[str, Any] = {"frame": frame}
    for name, array in outputs.items():
        key = name
        while key == "frame" or (key != name and key in outputs):
            key += "_"
        line[key] = array.tolist()
    return msgspec.json.encode(line)


class MqttSink:
    """Publishes a JSON message a frame (QoS 0) to a broker; see :func:`json_line`.

    Where the connection is lost it is made again, and messages meanwhile are lost: a newer result is worth more than an
    old one. Their number is told at the end.

    Args:
        address: ``mqtt://user@host:port/topic``; ``mqtts`` for TLS. A password that is not in it is taken from
            the environment, ``MQTT_PASSWORD``.

    Raises:
        InputError: no topic, or no broker answers.
        MissingExtraError: without the extra ``mqtt``.
    """

    def __init__(self, address: str) -> None:
        with needs_extra("paho-mqtt", "mqtt"):
            from paho.mqtt.client import Client
            from paho.mqtt.enums import CallbackAPIVersion
        self._shown = without_password(address)
        self._lost = 0
        self._topic, parts = _topic(address, self._shown)
        self._client = Client(CallbackAPIVersion.VERSION2)
        if parts.username:
            password = os.environ.get("MQTT_PASSWORD") if parts.password is None else unquote(parts.password)
            self._client.username_pw_set(unquote(parts.username), password)
        if parts.scheme == "mqtts":
            self._client.tls_set()
        answer, self._answers = threading.Event(), list[str]()

        def connected(client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:  # noqa: ARG001
            if reason.is_failure:
                self._answers.append(str(reason))
            answer.set()

        self._client.on_connect = connected
        try:
            self._client.connect(str(parts.hostname), parts.port or _PORTS[parts.scheme])
        except (OSError, ValueError) as error:
            raise self._unreachable(str(error)) from error
        self._client.loop_start()
        if not answer.wait(_CONNECT_S) or self._answers:
            self.close()
            raise self._unreachable(self._answers[0] if self._answers else f"no answer in {_CONNECT_S:g} s")

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Publish them, and wait until they are on their way.

        Raises:
            FramefitError: they cannot be written as JSON.
        """
        try:
            line = json_line(frame, outputs)
        except TypeError as error:
            raise FramefitError(
                f"frame {frame} cannot be written as JSON: {error}",
                where=f"sink {self._shown!r}",
                remedy="give numbers or text with a postprocess",
            ) from error
        try:
            message = self._client.publish(self._topic, line)
            message.wait_for_publish(_SEND_S)
            sent = message.is_published()
        except (RuntimeError, ValueError):  # not connected, or its queue is full
            sent = False
        self._lost += not sent

    def close(self) -> None:
        """Say goodbye to the broker."""
        self._client.disconnect()
        self._client.loop_stop()
        if self._lost:
            logger.warning("%s: %d messages were lost: the broker was not reached", self._shown, self._lost)

    def _unreachable(self, reason: str) -> InputError:
        return InputError(
            f"no broker answers at {self._shown}: {reason}",
            where="$.outputs",
            remedy="check host, port, user and password (MQTT_PASSWORD), and that the broker runs",
        )


def check_mqtt(address: str) -> None:
    """Refuse an address that :class:`MqttSink` would refuse, without a connection."""
    with needs_extra("paho-mqtt", "mqtt"):
        import paho.mqtt  # noqa: F401
    _topic(address, without_password(address))


def _topic(address: str, shown: str) -> tuple[str, SplitResult]:
    parts = urlsplit(address)
    topic = unquote(parts.path.removeprefix("/"))
    try:
        port = parts.port
    except ValueError:
        port = 0
    if not parts.hostname or port == 0 or not topic or set(topic) & set("+#\0"):
        raise InputError(
            f"{shown!r} is no address of a topic", where="$.outputs", remedy="write mqtt://host/topic, without + and #"
        )
    return topic, parts
