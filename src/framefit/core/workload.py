"""What the user wants to run, and on which beat (``app.toml``)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from framefit.core.files import Record, read_record
from framefit.errors import InputError, UnsupportedError

__all__ = [
    "IMPLICIT_STREAM",
    "ModelEntry",
    "OutputEntry",
    "Preprocess",
    "Schedule",
    "StreamEntry",
    "WhenFull",
    "Workload",
    "load_workload",
    "names_function",
    "release_ns",
]

WhenFull = Literal["drop-oldest", "drop-newest", "block"]
IMPLICIT_STREAM = "synthetic"  # the stream of a workload that names none
_MOST_PATTERN = 1000  # windows until the values of `every` repeat
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Schedule(Record, kw_only=True):
    """How windows are filled.

    Attributes:
        priority_position: of the priority period in its window.
        priority_threshold: levels from here on are priority; or
        num_priority: so many models of the highest levels are.
        segmentation: cut so finely that residuals are filled, into as few segments as
            possible, or into nearly equal ones.
        quantile: of a segment's duration that is planned with.
        guard_ms: kept free before each reserved instant; default: from the machine's floor.
        preemption: "auto" uses the operating system's real-time priorities where they
            are permitted; "never" runs segments cooperatively.
    """

    priority_position: Literal["start", "middle", "end"] = "start"
    priority_threshold: int | None = None
    num_priority: int | None = None
    segmentation: Literal["fill", "fewest", "equal"] = "fill"
    quantile: float = 0.99
    guard_ms: float | None = None
    preemption: Literal["auto", "never"] = "auto"

    def __post_init__(self) -> None:
        if not 0.5 <= self.quantile < 1:
            raise ValueError(f"quantile must be at least 0.5 and below 1, is {self.quantile}")
        if self.guard_ms is not None and self.guard_ms < 0:
            raise ValueError(f"guard_ms must not be negative, is {self.guard_ms}")
        if self.num_priority is not None and self.num_priority < 0:
            raise ValueError(f"num_priority must not be negative, is {self.num_priority}")
        if self.num_priority is not None and self.priority_threshold is not None:
            raise ValueError("give priority_threshold or num_priority, not both")


class StreamEntry(Record, kw_only=True):
    """Where frames come from.

    Attributes:
        source: "synthetic", a ``.npz`` file, an image folder, or "module:function" (a
            function without arguments that gives arrays, one after the other).
        shape: of one frame; synthetic streams only (default: what the models read).
        array: name of the array in the ``.npz``; its first axis counts frames.
        queue: frames that may wait for a model.
        when_full: what a new frame does that finds a model's queue full: take the oldest
            one's place, be dropped, or wait ("block"), and all later ones with it.
    """

    name: str
    source: str = "synthetic"
    rate_hz: float | None = None
    shape: tuple[int, ...] | None = None
    array: str | None = None
    queue: int = 2
    when_full: WhenFull = "drop-oldest"

    def __post_init__(self) -> None:
        _need_positive("rate_hz", self.rate_hz)
        if self.queue < 1:
            raise ValueError(f"queue must be at least 1, is {self.queue}")
        if self.shape is not None and any(size < 1 for size in self.shape):
            raise ValueError(f"shape must be positive, is {list(self.shape)}")


class Preprocess(Record, kw_only=True):
    """How an image becomes a model's input: resized, then ``(x - mean) * scale``.

    Attributes:
        size: height and width; default: what the input takes.
        layout: of the input.
        channels: of the input, in its order; images come as RGB or gray.
        mean: one for all channels, or one a channel in that order; default: 0.
    """

    size: tuple[int, int] | None = None
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    channels: Literal["RGB", "BGR", "GRAY"] = "RGB"
    mean: tuple[float, ...] = ()
    scale: float = 1.0

    def __post_init__(self) -> None:
        count = 1 if self.channels == "GRAY" else 3
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"size must be positive, is {list(self.size)}")
        if len(self.mean) not in (0, 1, count):
            allowed = " or ".join(dict.fromkeys(("1 number", "1 number" if count == 1 else f"{count} numbers")))
            raise ValueError(f"mean must hold {allowed} for {self.channels}, holds {len(self.mean)}")
        if not all(map(math.isfinite, (*self.mean, self.scale))) or self.scale == 0:
            raise ValueError(f"mean and scale must be finite, scale not 0; they are {list(self.mean)}, {self.scale}")


class ModelEntry(Record, kw_only=True):
    """One network and how it takes part.

    Attributes:
        priority: "every-window", "background", "auto", or a level.
        inputs: graph input -> stream; a model with one free input and a workload
            with one stream need no entry.
        shapes: graph input -> shape, for dynamic dimensions.
        state: graph input -> the output that is fed back to it; zeros at first.
        constants: graph input -> value that never changes.
        frames: consecutive frames consumed at once, stacked along ``frames_axis``.
        aggregate: frames whose outputs are given out together.
        preprocess: how raw images become its inputs.
        postprocess: "module:function", called with the outputs; its result replaces them.
        every: windows between its frames.
        always_split: cut it even where it fits whole.
    """

    name: str
    path: str
    priority: int | Literal["every-window", "background", "auto"] = "auto"
    inputs: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    state: dict[str, str] = {}
    constants: dict[str, bool | int | float | list[bool | int | float]] = {}
    frames: int = 1
    frames_axis: int = 0
    aggregate: int = 1
    preprocess: Preprocess | None = None
    postprocess: str | None = None
    deadline_ms: float | None = None
    latency_sensitive: bool | None = None
    task: str | None = None
    every: int = 1
    always_split: bool = False
    units: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _need_positive("deadline_ms", self.deadline_ms)
        for key in ("frames", "aggregate", "every"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, is {getattr(self, key)}")
        if self.postprocess is not None and not names_function(self.postprocess):
            raise ValueError(f'postprocess must read "module:function", is {self.postprocess!r}')


class OutputEntry(Record, kw_only=True):
    """Where a model's outputs go: a ``.npz``, a ``.jsonl``, or "module:function"."""

    model: str
    sink: str
    tensors: tuple[str, ...] | None = None


class Workload(Record, kw_only=True):
    """A device, a beat, streams and models.

    Attributes:
        table: a latency table: durations are planned from it where it is the device's own, and nothing is run.
        table_fallback: tell layers that it lacks by interpolation, else by the calibrated analytical model.
        rate_hz: windows a second; or ``window_ms``, or the streams' rate.
    """

    schema_version: int = 1
    target: str = "cpu"
    cores: tuple[int, ...] | None = None
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    table: str | None = None
    table_fallback: bool = False
    rate_hz: float | None = None
    window_ms: float | None = None
    schedule: Schedule = Schedule()
    streams: tuple[StreamEntry, ...] = ()
    models: tuple[ModelEntry, ...]
    outputs: tuple[OutputEntry, ...] = ()

    def __post_init__(self) -> None:
        _need_positive("rate_hz", self.rate_hz)
        _need_positive("window_ms", self.window_ms)
        if self.table_fallback and self.table is None:
            raise ValueError("table_fallback is about a table: name it with table")
        if self.rate_hz is not None and self.window_ms is not None:
            raise ValueError("give rate_hz or window_ms, not both")
        if self.rate_hz is None and self.window_ms is None and not any(s.rate_hz for s in self.streams):
            raise ValueError("the beat is missing: give rate_hz, window_ms or a stream's rate_hz")
        if not self.models:
            raise ValueError("no models")
        for kind, names in (("model", self.model_names), ("stream", self.stream_names)):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{kind} name {min(twice)!r} is used twice")
        pattern = math.lcm(*(model.every for model in self.models))
        if pattern > _MOST_PATTERN:
            raise ValueError(f"the values of every repeat only after {pattern} windows; choose multiples of each other")
        for output in self.outputs:
            if output.model not in self.model_names:
                raise ValueError(f"outputs name a model {output.model!r}; models: {', '.join(self.model_names)}")
        files = [output.sink for output in self.outputs if not names_function(output.sink)]
        for sink in files:
            if files.count(sink) > 1:
                raise ValueError(f"sink {sink!r} is used twice: the outputs would overwrite each other")
        streams = self.stream_names or [IMPLICIT_STREAM]
        for model in self.models:
            for key, source in model.inputs.items():
                producer = source.partition(".")[0]
                if source not in streams and producer not in self.model_names:
                    known = ", ".join(streams)
                    raise ValueError(f"model {model.name!r}: input {key!r} reads {source!r}; streams: {known}")

    @property
    def model_names(self) -> list[str]:
        """Names in the order of the file."""
        return [model.name for model in self.models]

    @property
    def stream_names(self) -> list[str]:
        """Names in the order of the file."""
        return [stream.name for stream in self.streams]

    @property
    def beat_hz(self) -> float:
        """Windows a second."""
        if self.rate_hz is not None:
            return self.rate_hz
        if self.window_ms is not None:
            return 1e3 / self.window_ms
        return max(stream.rate_hz for stream in self.streams if stream.rate_hz)

    @property
    def window_ns(self) -> int:
        """Length of the first window; the shortest or one more on an uneven grid."""
        return release_ns(1, self.beat_hz)


def names_function(text: str) -> bool:
    """Whether it reads ``"module:function"``; the module may be dotted."""
    return _FUNCTION.fullmatch(text) is not None


def release_ns(window: int, rate_hz: float) -> int:
    """When window number ``window`` begins, relative to window 0: round(k x 1e9 / rate)."""
    return round(window * 1e9 / rate_hz)


def _need_positive(key: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise ValueError(f"{key} must be greater than 0, is {value}")


# Keys of the contract that this version refuses by name: path, and when it counts as used.
_NOT_BUILT: dict[str, Callable[[Any], bool]] = {
    "$.cores": lambda value: value is not None and len(value) > 1,
    "$.models.units": lambda value: value is not None,
}


def _not_built(record: Record, path: str, plain: str) -> Iterator[str]:
    """Paths of keys in use that no engine supports yet."""
    for field in msgspec.structs.fields(type(record)):
        value, here, key = getattr(record, field.name), f"{path}.{field.name}", f"{plain}.{field.name}"
        if key in _NOT_BUILT and _NOT_BUILT[key](value):
            yield f"{here} = {value!r}"
        if isinstance(value, Record):
            yield from _not_built(value, here, key)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Record):
                    yield from _not_built(item, f"{here}[{index}]", key)


def load_workload(path: str | Path) -> Workload:
    """Read an ``app.toml``; paths of table, models, streams and sinks become absolute.

    Raises:
        InputError: missing, malformed or inconsistent file.
        UnsupportedError: a key of the contract that is not built yet.
    """
    path = Path(path)
    workload = read_record(path, Workload)
    for key in _not_built(workload, "$", "$"):
        raise UnsupportedError(f"{key} is not supported yet", where=path, remedy="leave the key out")
    for index, stream in enumerate(workload.streams):
        if stream.rate_hz is not None and abs(stream.rate_hz / workload.beat_hz - 1) > 1e-9:
            raise UnsupportedError(
                f"$.streams[{index}].rate_hz = {stream.rate_hz} differs from the workload's {workload.beat_hz}; "
                "not supported yet",
                where=path,
                remedy="give all streams one rate",
            )
    folder = path.resolve().parent
    models = tuple(msgspec.structs.replace(m, path=str(folder / m.path)) for m in workload.models)
    streams = tuple(
        s
        if s.source == "synthetic" or names_function(s.source)
        else msgspec.structs.replace(s, source=str(folder / s.source))
        for s in workload.streams
    )
    outputs = tuple(
        msgspec.structs.replace(o, sink=str(folder / o.sink)) if o.sink.endswith((".npz", ".jsonl")) else o
        for o in workload.outputs
    )
    for index, model in enumerate(models):
        if not Path(model.path).is_file():
            raise InputError(f"$.models[{index}].path: no such file {model.path}", where=path, remedy="check the path")
    table = None if workload.table is None else str(folder / workload.table)
    if table is not None and not Path(table).is_file():
        raise InputError(f"$.table: no such file {table}", where=path, remedy="check the path, or leave the key out")
    return msgspec.structs.replace(workload, table=table, models=models, streams=streams, outputs=outputs)
