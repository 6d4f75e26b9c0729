"""The device's side of framefit_socket, for a device that runs Python: python device_program.py [HOST:PORT].

It prints its address. On a microcontroller the same messages are answered by a program in C.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading

import numpy as np
import onnxruntime

HEAD = struct.Struct("<cIQ")
_MOST_BYTES = 1 << 30  # of a message
_TYPES = {"float": "float32", "double": "float64"}


class Segment:
    """A compiled segment."""

    def __init__(self, file: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self._inputs = []
        for entry in self._session.get_inputs():
            kind = entry.type.removeprefix("tensor(").removesuffix(")")
            self._inputs.append((entry.name, np.dtype(_TYPES.get(kind, kind)), entry.shape))

    def launch(self, tensors: bytes) -> bytes:
        """The outputs for the inputs, one after the other."""
        feeds, place = {}, 0
        for name, dtype, shape in self._inputs:
            count = int(np.prod(shape, dtype=np.int64))
            feeds[name] = np.frombuffer(tensors, dtype, count, place).reshape(shape)
            place += count * dtype.itemsize
        return b"".join(np.ascontiguousarray(output).tobytes() for output in self._session.run(None, feeds))


def serve(connection: socket.socket) -> None:
    """Answer one connection's messages until it ends."""
    segments: list[Segment] = []
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, connection.makefile("rb") as received:
        while len(head := received.read(HEAD.size)) == HEAD.size:
            kind, number, size = HEAD.unpack(head)
            if size > _MOST_BYTES or len(payload := received.read(size)) < size:
                return
            try:
                answer = b""
                if kind == b"C":
                    segments.append(Segment(payload))
                    number = len(segments) - 1
                else:
                    answer = segments[number].launch(payload)
            except Exception as error:  # noqa: BLE001 - runtimes' errors have no common class
                said = b"E", 0, str(error).encode()[: 1 << 16]
            else:
                said = b"K", number, answer
            connection.sendall(HEAD.pack(said[0], said[1], len(said[2])) + said[2])


def main() -> None:
    """Serve each connection in a thread of its own."""
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:0").rpartition(":")
    with socket.create_server((host, int(port))) as server:
        print("{}:{}".format(*server.getsockname()[:2]), flush=True)
        while True:
            threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()


if __name__ == "__main__":
    main()
