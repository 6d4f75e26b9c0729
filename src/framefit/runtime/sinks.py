"""Where outputs go, in order."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Protocol

import msgspec
import numpy as np

from framefit.core.files import write_whole
from framefit.devices.device import Array
from framefit.errors import InputError, UnsupportedError

__all__ = ["JsonLinesSink", "NpzSink", "Sink", "open_sink"]


class Sink(Protocol):
    """Takes a model's outputs, frame after frame."""

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Outputs of one frame; the arrays are the sink's."""

    def close(self) -> None:
        """No more will come."""


class NpzSink:
    """Collects in memory; at the end one array for each tensor, and ``frame``.

    Args:
        path: written whole when closed.
        force: overwrite.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        if path.exists() and not force:
            raise InputError("already exists", where=path, remedy="choose another sink, or overwrite it with --force")
        self._path = path
        self._frames: list[int] = []
        self._outputs: dict[str, list[Array]] = {}

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Keep them."""
        self._frames.append(frame)
        for name, array in outputs.items():
            self._outputs.setdefault(name, []).append(array)

    def close(self) -> None:
        """Write the file; outputs whose shape varies become ``NAME.FRAME``."""
        arrays: dict[str, Array] = {"frame": np.asarray(self._frames, np.int64)}
        for name, outputs in self._outputs.items():
            if len({array.shape for array in outputs}) == 1:
                arrays[name] = np.stack(outputs)
            else:
                arrays |= {f"{name}.{frame}": array for frame, array in zip(self._frames, outputs, strict=True)}
        with write_whole(self._path, force=True) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its options


class JsonLinesSink:
    """One JSON object a frame: ``frame``, then each tensor as nested lists.

    Args:
        path: grows line by line, so that another program can follow it.
        force: overwrite.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        if path.exists() and not force:
            raise InputError("already exists", where=path, remedy="choose another sink, or overwrite it with --force")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("wb")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=path, remedy="check the folder") from error

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Write a line."""
        line = {"frame": frame} | {name: array.tolist() for name, array in outputs.items()}
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_sink(sink: str, *, force: bool) -> Sink:
    """The sink that an entry of ``app.toml`` names.

    Raises:
        InputError: the file exists or cannot be written.
        UnsupportedError: a kind of sink that is not built yet.
    """
    if sink.endswith(".npz"):
        return NpzSink(Path(sink), force=force)
    if sink.endswith(".jsonl"):
        return JsonLinesSink(Path(sink), force=force)
    raise UnsupportedError(f"sink = {sink!r} is not supported yet", where="$.outputs", remedy="use an .npz or .jsonl")
