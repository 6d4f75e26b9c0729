"""A backend for devices at the other end of a socket: a card, or a microcontroller behind a serial-to-network bridge.

It is a package of its own and uses public names of Framefit only. The device runs :mod:`device_program`, or a program
in any language that answers the same messages: a head (kind, number, length of what follows), then bytes.

    C 0 ONNX file             ->  K NUMBER           the segment is compiled, and has this number
    L NUMBER input tensors    ->  K NUMBER outputs   tensors one after the other, as they lie in memory
                              ->  E 0 text           it failed, in words

A launch takes as long as this machine waits for it, the transfers included: that is what a window has to have room for.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from framefit import DeviceError, InputError, Model, Target
from framefit.devices import (
    Array,
    Backend,
    Capabilities,
    Launch,
    LaunchingDevice,
    MachineSettings,
    Operation,
    Tensors,
    Unit,
    fitting,
)
from framefit.errors import HangError

__all__ = ["BACKEND", "SocketDevice"]

HEAD = struct.Struct("<cIQ")
_ANSWERS_WITHIN_S = 10.0  # to a connection; how long a launch may take, the runtime's watchdog decides
_MOST_TEXT = 1 << 16


class _Connection:
    """To one unit. One that was lost is opened again by the next message; the device then knows no segment any more."""

    def __init__(self, unit: Unit) -> None:
        self._socket: socket.socket | None = None
        self.address, self.lost = unit.device, 0  # and how often it was lost
        self._ended: socket.socket | None = None

    def __call__(self, kind: bytes, number: int, parts: Iterable[memoryview], answer: Iterable[memoryview]) -> int:
        """Send a message and receive its answer into ``answer``; return the answer's number.

        Raises:
            DeviceError: the device says so, or the connection is lost.
            HangError: :meth:`end` was called.
        """
        views, places = list(parts), list(answer)
        try:
            connection = self.open()
            connection.sendall(HEAD.pack(kind, number, sum(view.nbytes for view in views)))
            for view in views:
                connection.sendall(view)
            said, number, size = HEAD.unpack(_received(connection, HEAD.size))
            if said == b"E" and size <= _MOST_TEXT:
                raise DeviceError(f"the device says: {_received(connection, size).decode(errors='replace')}")
            if said != b"K" or size != sum(view.nbytes for view in places):
                raise OSError(f"the answer is {size} bytes of kind {said!r}")
            for view in places:
                _receive(connection, view)
        except OSError as error:
            ended = self._socket is not None and self._socket is self._ended
            self.close()
            if ended:
                raise HangError("the launch was terminated") from error
            raise DeviceError(
                f"the device at {self.address} is lost: {error}", remedy="see whether its program runs"
            ) from error
        return int(number)

    def open(self) -> socket.socket:
        """The connection, opened where there is none.

        Raises:
            OSError: the device does not answer.
        """
        if self._socket is None:
            host, _, port = self.address.rpartition(":")
            self._socket = socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN_S)
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def end(self) -> None:
        """Make what is waited for fail; any thread may call this."""
        connection = self._ended = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Forget the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self.lost += 1

    def __del__(self) -> None:
        self.close()


def _received(connection: socket.socket, size: int) -> bytes:
    received = bytearray(size)
    _receive(connection, memoryview(received))
    return bytes(received)


def _receive(connection: socket.socket, view: memoryview) -> None:
    """Fill a view.

    Raises:
        OSError: the connection ends before.
    """
    place = 0
    while place < view.nbytes:
        count = connection.recv_into(view[place:])
        if not count:
            raise ConnectionResetError("it ended the connection")
        place += count


class _Binding:
    """A segment with its arrays."""

    def __init__(self, handle: _Handle, inputs: list[Array], outputs: Tensors) -> None:
        self.kind, self.core = handle.kind, handle.core
        self._handle, self._inputs, self._outputs = handle, _views(inputs), outputs
        self._answer = _views(outputs.values())

    def run(self) -> None:
        """Launch it, and wait for its outputs."""
        number = self._handle.number()
        self._handle.connection(b"L", number, self._inputs, self._answer)

    def output(self, name: str) -> Array:
        """An output of the latest launch."""
        return self._outputs[name]


class _Handle:
    """A segment, which is compiled again where the device has forgotten it."""

    def __init__(self, segment: Model, label: str, kind: int, unit: Unit, connection: _Connection) -> None:
        self.operations = (Operation.opaque(label, segment.layers[-1].name if segment.layers else label, unit.name),)
        self.kind, self.core, self.connection = kind, unit.core, connection
        self._segment, self._label = segment, label
        self._file, self._number, self._lost = segment.to_bytes(), 0, -1

    def number(self) -> int:
        """Its number on the device.

        Raises:
            DeviceError: the device cannot compile it.
        """
        if self._lost != self.connection.lost:
            self._number = self.connection(b"C", 0, [memoryview(self._file)], [])
            self._lost = self.connection.lost
        return self._number

    def bind(self, tensors: Tensors) -> _Binding:
        """Attach arrays to all inputs and outputs."""
        arrays = {}
        for tensor in (*self._segment.inputs, *self._segment.outputs):
            if tensor.name not in tensors:
                raise DeviceError(f"{self._label}: no array for {tensor.name!r}")
            arrays[tensor.name] = fitting(tensors[tensor.name], tensor, self._label)
        outputs = {tensor.name: arrays[tensor.name] for tensor in self._segment.outputs}
        return _Binding(self, [arrays[tensor.name] for tensor in self._segment.inputs], outputs)


class SocketDevice(LaunchingDevice):
    """Units that are reached through sockets.

    Args:
        target: its units' ``device`` is an address, "HOST:PORT".
        trace_events: capacity of the event buffer.

    Raises:
        InputError: an address cannot be used, or nothing answers there.
    """

    capabilities = Capabilities(collects_events=True, ends_launches=True)

    def __init__(self, target: Target, trace_events: int = 1 << 18) -> None:
        super().__init__(target, trace_events=trace_events)
        self._connections = {unit.name: _Connection(unit) for unit in target.units}
        for connection in self._connections.values():
            if not connection.address.rpartition(":")[2].isdecimal():
                raise InputError(
                    f"{connection.address!r} is no address of a device",
                    remedy="name it as HOST:PORT: socket:10.0.0.7:4000",
                )
            try:
                connection.open()
            except OSError as error:
                raise InputError(
                    f"no device answers at {connection.address}: {error}",
                    remedy="start its program, or correct the address",
                ) from error

    def compile(self, segment: Model, unit: str, label: str) -> _Handle:
        """Send a segment to a unit, which compiles it."""
        place, kind = self.place(unit, label)
        for tensor in (*segment.inputs, *segment.outputs):
            if not tensor.fixed:
                raise DeviceError(f"the shape of {tensor.name!r} depends on the data", where=label)
        handle = _Handle(segment, label, kind, place, self._connections[unit])
        handle.number()
        return handle

    def terminate(self, unit: str) -> None:
        """End the connection: the launch fails, and the next one opens it again."""
        self._connections[unit].end()

    def failure(self, launch: Launch, error: Exception) -> DeviceError:
        """The device's own words, with the segment's name."""
        if isinstance(error, DeviceError):
            return type(error)(error.what, where=self.label(launch.kind), remedy=error.remedy)
        return super().failure(launch, error)


def _views(arrays: Iterable[Array]) -> list[memoryview]:
    """The bytes of contiguous arrays."""
    return [memoryview(array.reshape(-1).view(np.uint8)) for array in arrays]


def _open(
    target: Target,
    settings: MachineSettings,  # noqa: ARG001 - of this machine, as the next two
    where: Path | None,  # noqa: ARG001
    *,
    computes: bool,  # noqa: ARG001
) -> SocketDevice:
    """Open it; what this machine is set to means nothing to it."""
    return SocketDevice(target)


BACKEND = Backend(api=1, capabilities=SocketDevice.capabilities, open=_open)
