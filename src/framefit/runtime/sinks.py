"""Where outputs go, in order: files, functions of the user's, and a check for NaN and infinity before them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import numpy as np

from framefit.core.files import write_whole
from framefit.core.functions import error_text
from framefit.devices.device import Array
from framefit.errors import FramefitError, InputError
from framefit.execution.buffers import finite
from framefit.execution.streams import check_path, check_sink


class Sink(Protocol):
    """Takes a model's outputs, frame after frame."""

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Outputs of one frame; the arrays are the sink's."""

    def close(self) -> None:
        """No more will come."""


class OpenSink(Protocol):
    """Opens a sink."""

    def __call__(self, *, force: bool) -> Sink:
        """Open it; ``force``: overwrite files."""


class NpzSink:
    """Collects in memory; at the end one array for each tensor, and ``frame``.

    Arrays are named after the outputs. An output that is missing in some frames, or whose
    shape or type varies, becomes an array a frame, ``NAME.FRAME``. A name that is taken
    (an output called "frame", for one) gets an underscore behind it.

    Args:
        path: written whole when closed.
        force: overwrite.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        check_path(path, force=force)
        self._path = path
        self._frames: list[int] = []
        self._outputs: dict[str, list[tuple[int, Array]]] = {}

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Keep them."""
        for name, array in outputs.items():
            if array.dtype.hasobject:
                raise InputError(
                    f"output {name!r} holds Python objects", where=self._path, remedy="give numbers or strings"
                )
        self._frames.append(frame)
        for name, array in outputs.items():
            self._outputs.setdefault(name, []).append((frame, array))

    def close(self) -> None:
        """Write the file."""
        arrays: dict[str, Array] = {"frame": np.asarray(self._frames, np.int64)}
        varying = []
        for name, outputs in self._outputs.items():
            kinds = {(array.shape, array.dtype) for _, array in outputs}
            if len(kinds) == 1 and len(outputs) == len(self._frames):
                key = _free(name, {*arrays, *self._outputs}) if name in arrays else name
                arrays[key] = np.stack([array for _, array in outputs])
            else:
                varying += [(f"{name}.{frame}", array) for frame, array in outputs]
        for name, array in varying:
            arrays[_free(name, arrays)] = array
        with write_whole(self._path, force=True) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            for name, array in arrays.items():  # np.savez takes some names for its own options
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


class JsonLinesSink:
    """One JSON object a frame: ``frame``, then each tensor as nested lists.

    An output called "frame" becomes "frame_". JSON knows no NaN and no infinity: they
    become null.

    Args:
        path: grows line by line, so that another program can follow it.
        force: overwrite.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        check_path(path, force=force)
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("wb")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=path, remedy="check the folder") from error

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Write a line."""
        line: dict[str, Any] = {"frame": frame}
        taken = {"frame", *outputs}
        for name, array in outputs.items():
            line[_free(name, taken) if name == "frame" else name] = array.tolist()
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except TypeError as error:
            raise InputError(
                f"frame {frame} cannot be written as JSON: {error}", where=self._path, remedy="use an .npz"
            ) from error
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror}", where=self._path, remedy="check folder and space"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class FunctionSink:
    """Hands outputs to a function of the user's.

    Args:
        function: called with the frame's number and the outputs by name.
        spec: how the workload names it.
    """

    def __init__(self, function: Callable[[int, dict[str, Array]], object], spec: str) -> None:
        self._function = function
        self._spec = spec

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Call it.

        Raises:
            FramefitError: the function raised something.
        """
        try:
            self._function(frame, outputs)
        except Exception as error:  # whatever the user's code raises
            raise FramefitError(
                f"the function raised {error_text(error)}",
                where=f"sink {self._spec!r}, frame {frame}",
                remedy="correct the function",
            ) from error

    def close(self) -> None:
        """Nothing is left to do."""


class AggregatingSink:
    """Gives the outputs of several frames out together, stacked along a new first axis.

    They carry the number of the last of these frames. What is left at the end is a
    shorter stack.

    Args:
        sink: takes the stacks.
        count: frames of one stack.
    """

    def __init__(self, sink: Sink, count: int) -> None:
        self._sink = sink
        self._count = count
        self._waiting: list[tuple[int, dict[str, Array]]] = []

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Keep them; hand the stack on when it is complete.

        Raises:
            FramefitError: outputs differ in shape from those before them.
        """
        if self._waiting:
            self._check(frame, outputs)
        self._waiting.append((frame, outputs))
        if len(self._waiting) == self._count:
            self._hand_on()

    def close(self) -> None:
        """Hand on what is left, and close the sink."""
        try:
            if self._waiting:
                self._hand_on()
        finally:
            self._sink.close()

    def _hand_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        last, outputs = waiting[-1]
        self._sink.put(last, {name: np.stack([arrays[name] for _, arrays in waiting]) for name in outputs})

    def _check(self, frame: int, outputs: dict[str, Array]) -> None:
        before, kept = self._waiting[-1]
        for name in sorted(kept.keys() | outputs.keys()):
            kept_shape, new_shape = (list(a[name].shape) if name in a else "absent" for a in (kept, outputs))
            if kept_shape != new_shape:
                raise FramefitError(
                    f"output {name!r} is {kept_shape} in frame {before} and {new_shape} in frame {frame}: no stack",
                    where="aggregate",
                    remedy="leave aggregate out, or give outputs of one shape with a postprocess",
                )


class DeferredSink:
    """A sink that is opened just before the run: whatever fails before leaves no file behind.

    Args:
        open_sink: opens it; with ``force`` it overwrites files.
    """

    def __init__(self, open_sink: OpenSink) -> None:
        self._open_sink = open_sink
        self._sink: Sink | None = None

    def open(self, *, force: bool) -> None:
        """Open it.

        Raises:
            FramefitError: it cannot be opened.
        """
        self._sink = self._open_sink(force=force)

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Pass on."""
        assert self._sink is not None
        self._sink.put(frame, outputs)

    def close(self) -> None:
        """Close it, if it was opened."""
        if self._sink is not None:
            self._sink.close()


def open_sink(sink: str, *, force: bool, folder: Path | None = None) -> Sink:
    """The sink that an entry of ``app.toml`` names.

    Args:
        sink: a ``.npz``, a ``.jsonl`` or "module:function".
        force: overwrite files.
        folder: the app's: files are written there, and functions looked for first;
            default: the current one.

    Raises:
        InputError: the file exists or cannot be written, or there is no such function.
        UnsupportedError: no such kind of sink.
    """
    folder = folder or Path()
    function = check_sink(sink, force=force, folder=folder)
    if function is not None:
        return FunctionSink(function, sink)
    kind = NpzSink if sink.endswith(".npz") else JsonLinesSink
    return kind(folder / sink, force=force)


def _free(name: str, taken: Collection[str]) -> str:
    """The name, with underscores behind it until nothing else has it."""
    while name in taken:
        name += "_"
    return name


class CheckedSink:
    """Looks at outputs before another sink gets them: where a window leaves time, and at the copies.

    Args:
        sink: gets them.
        on_not_finite: called with the number of each frame whose outputs are not finite.
        drops: those are not handed on.
    """

    def __init__(self, sink: Sink, on_not_finite: Callable[[int], None], *, drops: bool) -> None:
        self._sink, self._on_not_finite, self._drops = sink, on_not_finite, drops

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Look, and hand on."""
        if not all(map(finite, outputs.values())):
            self._on_not_finite(frame)
            if self._drops:
                return
        self._sink.put(frame, outputs)

    def close(self) -> None:
        """Pass on."""
        self._sink.close()
