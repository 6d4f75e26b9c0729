"""What the user wants to run, and on which beat (``app.toml``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from framefit.core.files import Record, read_record
from framefit.errors import InputError, UnsupportedError

__all__ = [
    "ModelEntry",
    "OutputEntry",
    "Preprocess",
    "Schedule",
    "StreamEntry",
    "Workload",
    "load_workload",
    "release_ns",
]


class Schedule(Record, kw_only=True):
    """How windows are filled."""

    priority_position: Literal["start", "middle", "end"] = "start"
    priority_threshold: int | None = None
    num_priority: int | None = None
    segmentation: Literal["fill", "fewest", "equal"] = "fill"
    quantile: float = 0.99
    guard_ms: float | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= self.quantile < 1:
            raise ValueError(f"quantile must be at least 0.5 and below 1, is {self.quantile}")
        if self.guard_ms is not None and self.guard_ms < 0:
            raise ValueError(f"guard_ms must not be negative, is {self.guard_ms}")


class StreamEntry(Record, kw_only=True):
    """Where frames come from.

    Attributes:
        source: "synthetic", a ``.npz`` file, an image folder, or "module:function".
        shape: of one frame; synthetic streams only (default: what the models read).
        array: name of the array in the ``.npz``; its first axis counts frames.
        queue: frames that may wait for a model.
        when_full: what happens to the frame that finds the queue full.
    """

    name: str
    source: str = "synthetic"
    rate_hz: float | None = None
    shape: tuple[int, ...] | None = None
    array: str | None = None
    queue: int = 2
    when_full: Literal["drop-oldest", "drop-newest", "block"] = "drop-oldest"

    def __post_init__(self) -> None:
        _need_positive("rate_hz", self.rate_hz)
        if self.queue < 1:
            raise ValueError(f"queue must be at least 1, is {self.queue}")
        if self.shape is not None and any(size < 1 for size in self.shape):
            raise ValueError(f"shape must be positive, is {list(self.shape)}")


class Preprocess(Record, kw_only=True):
    """How an image becomes a model's input."""

    size: tuple[int, int] | None = None
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    channels: Literal["RGB", "BGR", "GRAY"] = "RGB"
    mean: tuple[float, ...] = ()
    scale: float = 1.0


class ModelEntry(Record, kw_only=True):
    """One network and how it takes part.

    Attributes:
        priority: "every-window", "background", "auto", or a level.
        inputs: graph input -> stream; a model with one free input and a workload
            with one stream need no entry.
        shapes: graph input -> shape, for dynamic dimensions.
        state: graph input -> the output that is fed back to it; zeros at first.
        constants: graph input -> value that never changes.
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


class OutputEntry(Record, kw_only=True):
    """Where a model's outputs go."""

    model: str
    sink: str
    tensors: tuple[str, ...] | None = None


class Workload(Record, kw_only=True):
    """A device, a beat, streams and models.

    Attributes:
        rate_hz: windows a second; or ``window_ms``, or the streams' rate.
    """

    schema_version: int = 1
    target: str = "cpu"
    cores: tuple[int, ...] | None = None
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    table: str | None = None
    rate_hz: float | None = None
    window_ms: float | None = None
    schedule: Schedule = Schedule()
    streams: tuple[StreamEntry, ...] = ()
    models: tuple[ModelEntry, ...]
    outputs: tuple[OutputEntry, ...] = ()

    def __post_init__(self) -> None:
        _need_positive("rate_hz", self.rate_hz)
        _need_positive("window_ms", self.window_ms)
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
        for output in self.outputs:
            if output.model not in self.model_names:
                raise ValueError(f"outputs name a model {output.model!r}; models: {', '.join(self.model_names)}")
        for model in self.models:
            for key, source in model.inputs.items():
                producer = source.partition(".")[0]
                if source not in self.stream_names and producer not in self.model_names:
                    known = ", ".join(self.stream_names) or "none"
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


def release_ns(window: int, rate_hz: float) -> int:
    """When window number ``window`` begins, relative to window 0: round(k x 1e9 / rate)."""
    return round(window * 1e9 / rate_hz)


def _need_positive(key: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise ValueError(f"{key} must be greater than 0, is {value}")


# Keys of the contract that this version refuses by name: path, and when it counts as used.
_NOT_BUILT: dict[str, Callable[[Any], bool]] = {
    "$.table": lambda value: value is not None,
    "$.cores": lambda value: value is not None and len(value) > 1,
    "$.schedule.priority_position": lambda value: value != "start",
    "$.schedule.priority_threshold": lambda value: value is not None,
    "$.schedule.num_priority": lambda value: value is not None,
    "$.schedule.segmentation": lambda value: value != "fill",
    "$.streams.when_full": lambda value: value == "block",
    "$.models.priority": lambda value: value not in ("every-window", "background"),
    "$.models.frames": lambda value: value != 1,
    "$.models.aggregate": lambda value: value != 1,
    "$.models.preprocess": lambda value: value is not None,
    "$.models.postprocess": lambda value: value is not None,
    "$.models.latency_sensitive": lambda value: value is not None,
    "$.models.task": lambda value: value is not None,
    "$.models.every": lambda value: value != 1,
    "$.models.always_split": lambda value: value,
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
    """Read an ``app.toml``; model and stream paths become absolute.

    Raises:
        InputError: missing, malformed or inconsistent file.
        UnsupportedError: a key of the contract that is not built yet.
    """
    path = Path(path)
    workload = read_record(path, Workload)
    for key in _not_built(workload, "$", "$"):
        remedy = "leave the key out"
        if key.endswith("= 'auto'"):
            remedy = 'say priority = "every-window" or "background"'
        raise UnsupportedError(f"{key} is not supported yet", where=path, remedy=remedy)
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
        msgspec.structs.replace(s, source=str(folder / s.source)) if s.source.endswith(".npz") else s
        for s in workload.streams
    )
    outputs = tuple(
        msgspec.structs.replace(o, sink=str(folder / o.sink)) if o.sink.endswith((".npz", ".jsonl")) else o
        for o in workload.outputs
    )
    for index, model in enumerate(models):
        if not Path(model.path).is_file():
            raise InputError(f"$.models[{index}].path: no such file {model.path}", where=path, remedy="check the path")
    return msgspec.structs.replace(workload, models=models, streams=streams, outputs=outputs)
