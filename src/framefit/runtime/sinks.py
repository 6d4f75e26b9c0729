"""Where outputs go, in order: files, functions of the user's, and a check for NaN and infinity before them."""

from __future__ import annotations

import contextlib
import functools
import math
import struct
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec
import numpy as np

from framefit.core.files import write_whole
from framefit.core.functions import error_text
from framefit.core.journal import Journal, JournalFile
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
    """Keeps outputs in a file of the journal; at the end an array for each tensor, and ``frame``.

    Arrays are named after the outputs. An output that is missing in some frames, or whose
    shape or type varies, becomes an array a frame, ``NAME.FRAME``. A name that is taken
    (an output called "frame", for one) gets an underscore behind it.

    Args:
        path: written whole when closed.
        force: overwrite.
        file: of the journal.
        before: the files of the run's earlier parts.
    """

    def __init__(self, path: Path, *, force: bool, file: JournalFile, before: Sequence[Path] = ()) -> None:
        check_path(path, force=force)
        self._path = path
        self._file = file
        self._before = tuple(before)

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Keep them."""
        for name, array in outputs.items():
            if array.dtype.hasobject:
                raise InputError(
                    f"output {name!r} holds Python objects", where=self._path, remedy="give numbers or strings"
                )
        self._file.append(functools.partial(_packed, frame, dict(outputs)))

    def close(self) -> None:
        """Write the file."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self._before if path.exists()]
            write_outputs(self._path, [*files, stack.enter_context(self._file.open())])


class _Outputs(msgspec.Struct):
    """Outputs of a frame, as they lie in a journal: name, type and shape of each array."""

    frame: int
    arrays: list[tuple[str, str, tuple[int, ...]]]


class _Place(NamedTuple):
    """An array in one of several files."""

    frame: int
    file: BinaryIO
    at: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self) -> bytes:
        self.file.seek(self.at)
        return self.file.read(self.dtype.itemsize * math.prod(self.shape))


_LENGTHS = struct.Struct("<qq")  # of what describes the outputs of a frame, and of the outputs


def _packed(frame: int, outputs: Mapping[str, Array]) -> bytes:
    """The outputs of a frame, so that they can be read from a file that ends anywhere behind them."""
    arrays = [(name, array.dtype.str, array.shape) for name, array in outputs.items()]
    head = msgspec.json.encode(_Outputs(frame, arrays))
    data = [array.tobytes() for array in outputs.values()]
    return b"".join([_LENGTHS.pack(len(head), sum(map(len, data))), head, *data])


def _unpacked(file: BinaryIO) -> Iterator[tuple[int, list[tuple[str, _Place]]]]:
    """The frames that are whole, and where their outputs lie."""
    end = file.seek(0, 2)
    at = 0
    while at + _LENGTHS.size <= end:
        file.seek(at)
        head, data = _LENGTHS.unpack(file.read(_LENGTHS.size))
        at += _LENGTHS.size
        if at + head + data > end:
            return
        outputs = msgspec.json.decode(file.read(head), type=_Outputs)
        at += head
        places = []
        for name, kind, shape in outputs.arrays:
            places.append((name, _Place(outputs.frame, file, at, np.dtype(kind), shape)))
            at += places[-1][1].dtype.itemsize * math.prod(shape)
        yield outputs.frame, places


def write_outputs(path: Path, files: Sequence[BinaryIO]) -> None:
    """Write an ``.npz`` of outputs that lie in a journal; see :class:`NpzSink`.

    Args:
        path: replaced, if it is there.
        files: of the journal, one a part of the run.

    Raises:
        InputError: it cannot be written.
    """
    frames: list[int] = []
    named: dict[str, list[_Place]] = {}
    for file in files:
        for frame, outputs in _unpacked(file):
            frames.append(frame)
            for name, place in outputs:
                named.setdefault(name, []).append(place)
    arrays: dict[str, list[_Place]] = {}
    varying = []
    for name, places in named.items():
        if len({(place.shape, place.dtype) for place in places}) == 1 and len(places) == len(frames):
            taken = {"frame", *arrays}
            arrays[_free(name, {*taken, *named}) if name in taken else name] = places
        else:
            varying += [(f"{name}.{place.frame}", place) for place in places]
    single: dict[str, _Place] = {}
    for name, last in varying:
        single[_free(name, {"frame", *arrays, *single})] = last
    with write_whole(path, force=True) as written, zipfile.ZipFile(written, "w", allowZip64=True) as archive:
        with archive.open("frame.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, np.asarray(frames, np.int64), allow_pickle=False)
        for name, stacked in arrays.items():
            _write_array(archive, name, (len(stacked), *stacked[0].shape), stacked)
        for name, only in single.items():
            _write_array(archive, name, only.shape, [only])


def _write_array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], places: Sequence[_Place]) -> None:
    """An array that takes little memory, whatever its size."""
    descr = np.lib.format.dtype_to_descr(places[0].dtype)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:  # np.savez takes some names for its own options
        np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": shape})
        for place in places:
            member.write(place.read())


class JsonLinesSink:
    """One JSON object a frame: ``frame``, then each tensor as nested lists.

    An output called "frame" becomes "frame_". JSON knows no NaN and no infinity: they
    become null.

    Args:
        path: grows line by line, so that another program can follow it.
        force: overwrite.
        journal: writes the file.
        resumes: the file has the lines of earlier parts of the run, which stay.
    """

    def __init__(self, path: Path, *, force: bool, journal: Journal, resumes: bool = False) -> None:
        check_path(path, force=force)
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.truncate(_whole_lines(path) if resumes else 0)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=path, remedy="check the folder") from error
        self._file = journal.adopt(path)

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Write a line."""
        line: dict[str, Any] = {"frame": frame}
        taken = {"frame", *outputs}
        for name, array in outputs.items():
            line[_free(name, taken) if name == "frame" else name] = array.tolist()
        try:
            self._file.append(msgspec.json.encode(line) + b"\n")
        except TypeError as error:
            raise InputError(
                f"frame {frame} cannot be written as JSON: {error}", where=self._path, remedy="use an .npz"
            ) from error

    def close(self) -> None:
        """Write what is left."""
        self._file.write()
        if self._file.failed:
            raise InputError("cannot be written to its end", where=self._path, remedy="check folder and space")


def _whole_lines(path: Path) -> int:
    """Bytes of a file up to the end of its last whole line."""
    with path.open("rb") as file:
        at = file.seek(0, 2)
        while at:
            size = min(at, 1 << 16)
            at -= size
            file.seek(at)
            if (end := file.read(size).rfind(b"\n")) >= 0:
                return at + end + 1
    return 0


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


@dataclass(frozen=True)
class SinkPlace:
    """Where the outputs of a sink are kept while the run goes on.

    Attributes:
        journal: of the run.
        file: name in the journal.
        before: folders of the run's earlier parts.
    """

    journal: Journal = field(default_factory=Journal)
    file: str = "sink.bin"
    before: tuple[Path, ...] = ()


def open_sink(sink: str, *, force: bool, folder: Path | None = None, place: SinkPlace | None = None) -> Sink:
    """The sink that an entry of ``app.toml`` names.

    Args:
        sink: a ``.npz``, a ``.jsonl`` or "module:function".
        force: overwrite files.
        folder: the app's: files are written there, and functions looked for first;
            default: the current one.
        place: where outputs are kept; default: in a journal without a folder.

    Raises:
        InputError: the file exists or cannot be written, or there is no such function.
        UnsupportedError: no such kind of sink.
    """
    folder, place = folder or Path(), place or SinkPlace()
    resumes = bool(place.before)
    function = check_sink(sink, force=force or resumes, folder=folder)
    if function is not None:
        return FunctionSink(function, sink)
    if sink.endswith(".npz"):
        before = [part / place.file for part in place.before]
        return NpzSink(folder / sink, force=force or resumes, file=place.journal.file(place.file), before=before)
    return JsonLinesSink(folder / sink, force=force or resumes, journal=place.journal, resumes=resumes)


class OffsetSink:
    """Numbers frames on after those of the run's earlier parts.

    Args:
        sink: takes them.
        first: number of the first frame.
    """

    def __init__(self, sink: Sink, first: int) -> None:
        self._sink, self._first = sink, first

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Pass on."""
        self._sink.put(frame + self._first, outputs)

    def close(self) -> None:
        """Pass on."""
        self._sink.close()


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
