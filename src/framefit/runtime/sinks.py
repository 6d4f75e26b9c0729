"""Where outputs go, in order: files, functions of the user's, and a check for NaN and infinity before them."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import queue
import struct
import threading
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec
import numpy as np

from framefit.core.files import write_whole
from framefit.core.functions import error_text
from framefit.core.journal import Journal, JournalFile, numbered_files
from framefit.core.workload import OutputEntry, names_function, with_environment, without_password
from framefit.devices.device import Array
from framefit.devices.host import keep_off
from framefit.errors import FramefitError, InputError, needs_extra
from framefit.execution.buffers import finite
from framefit.execution.messages import json_line
from framefit.execution.streams import check_path, check_sink

_ROW_GROUP_BYTES = 1 << 24
_WAITING_OUTPUTS = 256
_CLOSE_S = 5.0
_LOOK_S = 0.5  # how often it is looked whether a sink has failed

logger = logging.getLogger(__name__)


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


class CollectingSink:
    """Keeps outputs in a file of the journal, and writes them at the end; see :func:`write_outputs`.

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

    def array(self) -> Array:
        return np.frombuffer(self.read(), self.dtype).reshape(self.shape)


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
    """Write a file of outputs that lie in a journal.

    An ``.npz`` has an array for each tensor, and ``frame``. Arrays are named after the outputs. An output that is
    missing in some frames, or whose shape or type varies, becomes an array a frame, ``NAME.FRAME``. A name that is
    taken (an output called "frame", for one) gets an underscore behind it.

    A ``.parquet`` has a row for each frame: see :func:`_write_parquet`.

    Args:
        path: replaced, if it is there.
        files: of the journal, one a part of the run.

    Raises:
        InputError: it cannot be written.
    """
    if path.suffix == ".parquet":
        _write_parquet(path, files)
    else:
        _write_npz(path, files)


def _write_npz(path: Path, files: Sequence[BinaryIO]) -> None:
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


def _write_parquet(path: Path, files: Sequence[BinaryIO]) -> None:
    """A row for each frame: ``frame``, and a column for each output, in groups of some megabytes.

    An output of one number is a number; others are lists, in the order of their elements. Where all have one shape it
    is in the metadata of the column (``shape``), else in a column ``NAME.shape``. Outputs that a frame lacks are null.
    """
    with needs_extra("pyarrow", "parquet"):
        import pyarrow as pa
        from pyarrow import parquet
    kinds: dict[str, set[tuple[np.dtype[Any], tuple[int, ...]]]] = {}
    for file in files:
        for _, outputs in _unpacked(file):
            for name, place in outputs:
                kinds.setdefault(name, set()).add((place.dtype, place.shape))
    fields, columns = [pa.field("frame", pa.int64())], list[tuple[str, str, Callable[[_Place], object]]]()
    taken = {"frame"}

    def add(output: str, column: str, kind: Any, value: Callable[[_Place], object], shape: str | None = None) -> None:
        column = _free(column, taken)
        taken.add(column)
        fields.append(pa.field(column, kind, metadata=None if shape is None else {"shape": shape}))
        columns.append((output, column, value))

    for name, seen in kinds.items():
        element = pa.from_numpy_dtype(np.result_type(*(dtype for dtype, _ in seen)))
        shapes = {shape for _, shape in seen}
        if shapes == {()}:
            add(name, name, element, lambda place: place.array().item())
        else:
            one = json.dumps(shapes.pop()) if len(shapes) == 1 else None
            add(name, name, pa.list_(element), lambda place: place.array().reshape(-1), one)
            if one is None:
                add(name, f"{name}.shape", pa.list_(pa.int64()), lambda place: list(place.shape))
    schema = pa.schema(fields)
    with write_whole(path, force=True) as written, parquet.ParquetWriter(written, schema) as writer:
        for rows in _row_groups(files):
            values: list[list[object]] = [[frame for frame, _ in rows]]
            values += [[value(row[name]) if name in row else None for _, row in rows] for name, _, value in columns]
            writer.write_table(pa.table([pa.array(v, f.type) for v, f in zip(values, fields, strict=True)], schema))


def _row_groups(files: Sequence[BinaryIO]) -> Iterator[list[tuple[int, dict[str, _Place]]]]:
    """The frames, as many at a time as fit into memory with ease."""
    rows, size = list[tuple[int, dict[str, _Place]]](), 0
    for file in files:
        for frame, outputs in _unpacked(file):
            rows.append((frame, dict(outputs)))
            size += sum(place.dtype.itemsize * math.prod(place.shape) for _, place in outputs) + 64
            if size > _ROW_GROUP_BYTES:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


class JsonLinesSink:
    """One JSON object a frame; see :func:`json_line`.

    Args:
        path: grows line by line, so that another program can follow it.
        force: overwrite.
        journal: writes the file.
        resumes: the file has the lines of earlier parts of the run, which stay.
        rotation: bytes of a file, and how many earlier ones stay; default: one file that grows.
    """

    def __init__(
        self,
        path: Path,
        *,
        force: bool,
        journal: Journal,
        resumes: bool = False,
        rotation: tuple[int, int] | None = None,
    ) -> None:
        earlier = [] if rotation is None else numbered_files(path, rotation[1])
        for file in (path, *earlier):
            check_path(file, force=force)
        self._path = path
        try:
            for file in [] if resumes else earlier:
                file.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as opened:
                opened.truncate(_whole_lines(path) if resumes else 0)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=path, remedy="check the folder") from error
        self._file = journal.adopt(path)
        if rotation is not None:
            self._file.rotate(*rotation)

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Write a line."""
        try:
            self._file.append(json_line(frame, outputs) + b"\n")
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


class ThreadedSink:
    """A sink on a thread of its own, off the beat's cores: what it waits for holds up nothing else.

    Outputs wait in a queue. Where it is full the oldest are dropped, or whoever puts waits; their number is told at the
    end.

    Args:
        make: opens the sink, on that thread; its ``put`` and ``close`` are called there.
        shown: the sink in messages.
        place: whether a beat goes on, and where; otherwise ``put`` waits where the queue is full.

    Raises:
        FramefitError: it cannot be opened.
    """

    def __init__(self, make: Callable[[], Sink], shown: str, place: SinkPlace) -> None:
        self._shown, self._place, self._dropped = shown, place, 0
        self._queue: queue.Queue[tuple[int, dict[str, Array]] | None] = queue.Queue(_WAITING_OUTPUTS)
        self._failure: FramefitError | None = None
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(make,), name="framefit-sink", daemon=True)
        self._thread.start()
        self._opened.wait()
        self._check()

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Hand them to the thread.

        Raises:
            FramefitError: the sink raised something.
        """
        while True:
            self._check()
            try:
                self._queue.put((frame, outputs), block=not self._place.real_time, timeout=_LOOK_S)
            except queue.Full:
                if self._place.real_time:
                    with contextlib.suppress(queue.Empty):
                        self._queue.get_nowait()
                        self._dropped += 1
            else:
                return

    def close(self) -> None:
        """Wait some seconds until the sink has what waits, and close it.

        Raises:
            FramefitError: the sink raised something.
        """
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)
        left = self._dropped + (self._queue.qsize() if self._thread.is_alive() else 0)
        if left:
            logger.warning("%s: %d outputs were dropped: it was too slow", self._shown, left)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self, make: Callable[[], Sink]) -> None:
        keep_off(self._place.beat_cores)
        frame: int | None = None
        try:
            sink = make()
            try:
                self._opened.set()
                while (item := self._queue.get()) is not None:
                    frame, outputs = item
                    sink.put(frame, outputs)
            finally:
                sink.close()
        except FramefitError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - whatever the code of a package raises
            self._failure = FramefitError(
                f"it raised {error_text(error)}",
                where=f"sink {self._shown!r}" + ("" if frame is None else f", frame {frame}"),
                remedy="correct the address, or the package that brings this kind of sink",
            )
        finally:
            self._opened.set()


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
        real_time: whether a beat goes on that no sink may hold up.
        beat_cores: cores that threads of sinks leave alone.
    """

    journal: Journal = field(default_factory=Journal)
    file: str = "sink.bin"
    before: tuple[Path, ...] = ()
    real_time: bool = True
    beat_cores: frozenset[int] = frozenset()


def open_sink(output: OutputEntry, *, force: bool, folder: Path | None = None, place: SinkPlace | None = None) -> Sink:
    """The sink that an entry of ``app.toml`` names.

    Args:
        output: the entry.
        force: overwrite files.
        folder: the app's: files are written there, and functions looked for first;
            default: the current one.
        place: where outputs are kept; default: in a journal without a folder.

    Raises:
        InputError: the file exists or cannot be written, or there is no such function.
        UnsupportedError: no such kind of sink.
    """
    folder, place = folder or Path(), place or SinkPlace()
    resumes, sink = bool(place.before), output.sink
    make = check_sink(output, force=force or resumes, folder=folder)
    if make is not None and names_function(sink):
        return FunctionSink(make, sink)
    if make is not None:
        return ThreadedSink(functools.partial(make, with_environment(sink)), without_password(sink), place)
    if not sink.endswith(".jsonl"):
        before = [part / place.file for part in place.before]
        return CollectingSink(folder / sink, force=force or resumes, file=place.journal.file(place.file), before=before)
    rotation = None if output.rotate_mb is None else (int(output.rotate_mb * 1e6), output.keep)
    return JsonLinesSink(
        folder / sink, force=force or resumes, journal=place.journal, resumes=resumes, rotation=rotation
    )


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
