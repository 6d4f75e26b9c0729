"""What the user wants to run, on which device and in which windows (``app.toml``)."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from framefit.core.files import Record, read_bytes, read_record
from framefit.core.formats import check_workload_file
from framefit.core.grid import Grid, merged
from framefit.errors import InputError

__all__ = [
    "DEFAULT_QUEUE",
    "STRICTEST",
    "MachineSettings",
    "ModelEntry",
    "OnError",
    "Preprocess",
    "Schedule",
    "StreamEntry",
    "UnitEntry",
    "WhenFull",
    "Workload",
    "address_scheme",
    "in_order",
    "load_workload",
    "names_function",
    "streams_of",
    "with_environment",
    "without_password",
]


Role = Literal["priority", "background", "sporadic"]
WhenFull = Literal["drop-oldest", "drop-newest", "block"]
OnError = Literal["retry", "skip", "stop"]
OnNan = Literal["flag", "drop", "ignore"]
IMPLICIT_STREAM = "synthetic"  # the stream of a workload that names none
_MOST_PATTERN = 1000  # windows until the values of `every` repeat
DEFAULT_QUEUE = 2  # frames that may wait: a late frame does not cost the next one
_MOST_FRAMES = 10_000  # at once, or in a queue: the number of windows that bounds on ages consider
_LEAST, _MOST = 1e-6, 1e9  # Hz, ms and s: nanoseconds of thousands of windows fit into 64 bits
_MOST_NAME = 255  # bytes of a file's name (NAME_MAX of Linux's file systems)
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Schedule(Record, kw_only=True):
    """How windows are filled.

    Attributes:
        priority_position: of the priority period in its window.
        priority_threshold: models of this level and above are priority models; or
        num_priority: this many models of the highest levels are.
        segmentation: cut so finely that residuals are filled, into as few segments as possible, or into nearly equal
            ones.
        quantile: of a segment's duration, for planning.
        guard_ms: kept free before each reserved instant; default: from the machine's wake-up delays.
        preemption: "auto" uses the operating system's real-time priorities if they are permitted; "never" runs
            segments cooperatively.
        ladder: plan further timetables in advance, for launches that take longer than now, and change to them when
            launches do (docs/ladder.md).
        search_s: seconds of work that a solver may spend on a schedule of the priority models after the fast search
            has found none, counted by the solver: how busy the machine is does not matter; 0: it is not used.
    """

    priority_position: Literal["start", "middle", "end"] = "start"
    priority_threshold: int | None = None
    num_priority: int | None = None
    segmentation: Literal["fill", "fewest", "equal"] = "fill"
    quantile: float = 0.99
    guard_ms: float | None = None
    preemption: Literal["auto", "never"] = "auto"
    ladder: bool = False
    search_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.search_s <= _MOST:
            raise ValueError(f"search_s must be between 0 and {_MOST:g}, is {self.search_s}")
        if not 0.5 <= self.quantile < 1:
            raise ValueError(f"quantile must be at least 0.5 and below 1, is {self.quantile}")
        if self.guard_ms is not None and not 0 <= self.guard_ms <= _MOST:
            what = "must not be negative" if self.guard_ms < 0 else f"must be at most {_MOST:g}"
            raise ValueError(f"guard_ms {what}, is {self.guard_ms}")
        if self.num_priority is not None and self.num_priority < 0:
            raise ValueError(f"num_priority must not be negative, is {self.num_priority}")
        if self.num_priority is not None and self.priority_threshold is not None:
            raise ValueError("give priority_threshold or num_priority, not both")


class RateChange(Record, kw_only=True):
    """A new rate of a stream, from the first possible window after ``after_s`` seconds on."""

    after_s: float
    rate_hz: float

    def __post_init__(self) -> None:
        _need_positive("after_s", self.after_s)
        _need_positive("rate_hz", self.rate_hz)


_SINK_FILES = (".npz", ".parquet", ".jsonl")
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://")
_CAMERA = re.compile(r"/dev/video\d+")


class StreamEntry(Record, kw_only=True):
    """A source of frames.

    Attributes:
        source: "synthetic", a ``.npz``, ``.wav`` or video file, an image folder, "module:function" (a function
            without arguments that yields arrays), or a live one: a camera (``/dev/video0``), a microphone
            (``alsa://default``) or an address (``rtsp://``).
        shape: of one frame; for synthetic streams (default: what the models read) and live ones (default: what they
            say when they are opened).
        array: name of the array in the ``.npz``; its first axis counts frames.
        block: samples of a frame of sound: of a ``.wav``, a microphone or an address.
        hop: samples from the begin of a frame to the begin of the next one; default: as many as a frame has.
        queue: number of frames that may wait for a model; default: 2, or 1, the newest, for background models that look
            at single images.
        when_full: what happens to a new frame for a full queue: it takes the oldest one's place, is dropped, or
            waits ("block"), with all later ones.
        changes: of its rate during the run, in order.
        rates_hz: rates that a program may set during the run (``Runner.set_rate``): planned for in advance.
        times_ms: times of its events after the first release; for the stream of a sporadic model, if no program submits
            them. Default: random times from the seed, at least ``min_distance_ms`` apart and twice as much on average.
    """

    name: str
    source: str = "synthetic"
    rate_hz: float | None = None
    shape: tuple[int, ...] | None = None
    array: str | None = None
    block: int | None = None
    hop: int | None = None
    queue: int | None = None
    when_full: WhenFull = "drop-oldest"
    changes: tuple[RateChange, ...] = ()
    rates_hz: tuple[float, ...] = ()
    times_ms: tuple[float, ...] | None = None

    @property
    def live(self) -> bool:
        """Whether frames come whether or not they are asked for: of a camera, or from an address."""
        return _CAMERA.fullmatch(self.source) is not None or address_scheme(self.source) is not None

    @property
    def is_file(self) -> bool:
        """Whether frames are those of a file or folder."""
        return not (self.source == "synthetic" or names_function(self.source) or self.live)

    def __post_init__(self) -> None:
        _need_positive("rate_hz", self.rate_hz)
        times = self.times_ms or ()
        if any(not 0 <= time <= _MOST for time in times) or any(b < a for a, b in itertools.pairwise(times)):
            raise ValueError(f"times_ms must be in order, and between 0 and {_MOST:g}; they are {list(times[:8])}")
        after = [change.after_s for change in self.changes]
        for rate_hz in self.rates_hz:
            _need_positive("rates_hz", rate_hz)
        if any(later <= earlier for earlier, later in itertools.pairwise(after)):
            raise ValueError(f"changes must be in order of after_s, come after {after}")
        if self.queue is not None:
            _need_few("queue", self.queue)
        sound = self.source.startswith("alsa://") or (not self.live and self.source.lower().endswith(".wav"))
        if sound and self.block is None:
            raise ValueError("block, the samples of a frame, is missing: block = 160 is 10 ms at 16 kHz")
        if not (sound or self.live) and (self.block is not None or self.hop is not None):
            raise ValueError("block and hop go with a source of sound: a .wav file, a microphone or an address")
        if any(size is not None and size < 1 for size in (self.block, self.hop)):
            raise ValueError("block and hop must be 1 or more")
        if self.shape is not None and any(size < 1 for size in self.shape):
            raise ValueError(f"shape must be positive, is {list(self.shape)}")


class Preprocess(Record, kw_only=True):
    """How an image becomes a model's input: resized, then ``(x - mean) * scale``.

    Attributes:
        size: height and width; default: those of the input.
        layout: of the input.
        channels: of the input, in its order; images come as RGB or gray.
        mean: one for all channels, or one for each channel in that order; default: 0.
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
        inputs: graph input -> stream; a model with one free input and a workload with one stream need
            no entry.
        shapes: graph input -> shape, for dynamic dimensions.
        state: graph input -> the output that is fed back to it; zeros at first.
        constants: graph input -> value that never changes.
        frames: number of consecutive frames consumed at once, stacked along ``frames_axis``.
        aggregate: number of frames whose outputs are returned together.
        preprocess: how raw images become its inputs.
        postprocess: "module:function", called with the outputs; its result replaces them.
        every: number of windows between its frames; "3/2": two of three windows bring one, evenly spread. See
            :attr:`spacing`.
        min_distance_ms: least time between two frames of a sporadic model: these are events that come at any time, and
            wait for no window.
        always_split: whether to cut it even where it fits as a whole.
        on_error: response to a failed launch: "retry" it once before dropping the frame (default, except for priority
            models), "skip" the frame (their default), or "stop" the run.
        on_nan: response to NaN or infinity in a frame's outputs or state: "flag" it and keep the earlier state, also
            "drop" its outputs, or "ignore" it, without any check.
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
    every: int | str = 1
    min_distance_ms: float | None = None
    always_split: bool = False
    units: tuple[str, ...] | None = None
    on_error: OnError | None = None
    on_nan: OnNan = "flag"

    def __post_init__(self) -> None:
        _need_positive("deadline_ms", self.deadline_ms)
        _need_positive("min_distance_ms", self.min_distance_ms)
        for key in ("frames", "aggregate"):
            _need_few(key, getattr(self, key))
        _need_few("every", math.floor(self.spacing))
        if self.min_distance_ms is not None:
            self._check_sporadic(self.min_distance_ms)
        if self.postprocess is not None and not names_function(self.postprocess):
            raise ValueError(f'postprocess must read "module:function", is {self.postprocess!r}')

    @property
    def spacing(self) -> Fraction:
        """Windows between its frames in the mean, 1 or more: see :func:`framefit.core.spacing.own_frame`.

        Raises:
            ValueError: ``every`` is no fraction.
        """
        parts = re.fullmatch(r"([0-9]{1,5})(?:/([0-9]{1,5}))?", str(self.every))
        if parts is None or (parts[2] is not None and not int(parts[2])):
            raise ValueError(f'every must be a whole number or a fraction such as "3/2", is {self.every!r}')
        return Fraction(int(parts[1]), int(parts[2] or 1))

    def _check_sporadic(self, distance_ms: float) -> None:
        who = f"model {self.name!r} has min_distance_ms, so that"
        if self.priority in ("every-window", "background"):
            raise ValueError(f"{who} it is no model of priority = {self.priority!r}; give a level, or leave it out")
        if self.frames > 1 or self.spacing > 1:
            raise ValueError(f"{who} it takes each event by itself: leave frames and every out")
        if not self.inputs:
            raise ValueError(f"{who} its inputs must name the stream of its events")
        if self.deadline_ms is not None and self.deadline_ms > distance_ms:
            raise ValueError(f"{who} an event is done before the next one: deadline_ms must be at most {distance_ms:g}")


class OutputEntry(Record, kw_only=True):
    """Where a model's outputs go.

    Attributes:
        model: whose outputs.
        sink: a ``.npz``, ``.parquet`` or ``.jsonl`` file, "module:function", or an address (``mqtt://host/topic``).
        tensors: names of the outputs; default: all.
        rotate_mb: size at which a ``.jsonl`` becomes ``NAME.1.jsonl``, and a new one begins; default: it grows.
        keep: number of such earlier files; the oldest are deleted.
    """

    model: str
    sink: str
    tensors: tuple[str, ...] | None = None
    rotate_mb: float | None = None
    keep: int = 5

    @property
    def is_file(self) -> bool:
        """Whether outputs go into a file."""
        return address_scheme(self.sink) is None and self.sink.endswith(_SINK_FILES)

    def __post_init__(self) -> None:
        if self.rotate_mb is not None:
            _need_positive("rotate_mb", self.rotate_mb)
            if not (self.is_file and self.sink.endswith(".jsonl")):
                raise ValueError(f"rotate_mb goes with a .jsonl, and the sink is {self.sink!r}")
        if self.keep < 1:
            raise ValueError(f"keep must be 1 or more, is {self.keep}")


class UnitEntry(Record, kw_only=True):
    """One unit of this machine, where units differ.

    Attributes:
        name: for models in ``units``, and in results.
        provider: execution provider of ONNX Runtime, tried before ``providers``; default: these alone.
        device_id: number of the provider's device.
        options: of the provider, by its own names.
        cores: one for each thread, the first one launches; default: the last ones that no other unit has.
        threads: number for one launch; default: as many as ``cores``, else 1.
        same_as: name of a unit of exactly the same speed, whose measurements count here, too.
    """

    name: str
    provider: str | None = None
    device_id: int | None = None
    options: dict[str, bool | int | float | str] = {}
    cores: tuple[int, ...] = ()
    threads: int | None = None
    same_as: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a unit's name must not be empty")
        if self.threads is not None and not 1 <= self.threads <= _MOST_THREADS:
            raise ValueError(f"threads must be 1 to {_MOST_THREADS}, is {self.threads}")
        if self.threads is not None and self.cores and len(self.cores) != self.threads:
            raise ValueError(f"threads = {self.threads} needs as many cores, cores = {list(self.cores)}")
        if self.device_id is not None and self.device_id < 0:
            raise ValueError(f"device_id must not be negative, is {self.device_id}")
        if self.provider is None and (self.options or self.device_id is not None):
            raise ValueError("options and device_id belong to a provider: name it with provider")
        if "device_id" in self.options and self.device_id is not None:
            raise ValueError("give device_id once, not in options, too")

    @property
    def width(self) -> int:
        """Number of threads of one launch."""
        return self.threads or len(self.cores) or 1

    @property
    def given(self) -> dict[str, str]:
        """The provider's options in ONNX Runtime's form."""
        device = {} if self.device_id is None else {"device_id": self.device_id}
        return {key: str(value) for key, value in sorted((self.options | device).items())}

    @property
    def fact(self) -> str:
        """Everything that determines its speed."""
        options = "".join(f" {key}={value}" for key, value in self.given.items())
        return f"{self.name}: {self.provider or 'providers'}{options}, {self.width} thread{'s' * (self.width > 1)}"


_MOST_THREADS = 1024
_NOT_ALIKE = (
    "cores",
    "device",
    "units",
    "kernels",
)  # which cores execute does not affect the speed of equal ones; the others have facts of their own


class DeviceOptions(Record, kw_only=True):
    """The table ``[device]``: what the backend of this machine has to load.

    Attributes:
        custom_ops: libraries of custom operators for ONNX Runtime, relative to the file.
    """

    custom_ops: tuple[str, ...] = ()

    def facts(self) -> dict[str, str | int | float | bool]:
        """Its part of :meth:`MachineSettings.facts`: a library is identified by its content."""
        libraries = (f"{Path(path).name}:{_digest(path, Path(path).stat().st_mtime_ns)}" for path in self.custom_ops)
        return {"custom_ops": ",".join(libraries)} if self.custom_ops else {}


@functools.cache
def _digest(path: str, mtime_ns: int) -> str:  # noqa: ARG001 - a file that was written anew has another one
    return hashlib.sha256(read_bytes(path)).hexdigest()[:16]


def _is_due_later(model: ModelEntry, window_ns: int) -> bool:
    """Whether frames of what may be a priority model are due later than the next window begins."""
    due_ms = model.deadline_ms
    return model.priority != "background" and model.spacing > 1 and due_ms is not None and due_ms * 1e6 > window_ns + 1


class MachineSettings(Record, kw_only=True):
    """How this machine executes models: keys at the top of ``app.toml``, compared, merged and fingerprinted together.

    A new setting here is a key of ``app.toml``; its effect is up to the backend.

    Attributes:
        cores: one unit for each; default: the last one available.
        providers: execution providers of ONNX Runtime, in order of preference.
        device: libraries to load.
        units: one for each, if they differ in more than the core; instead of ``cores``.
        kernels: whether kernels that skip zeros execute layers for which a measurement says that they are faster.
    """

    cores: tuple[int, ...] | None = None
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    device: DeviceOptions = DeviceOptions()
    units: tuple[UnitEntry, ...] = ()
    kernels: Literal["auto", "never"] = "auto"

    def measured_as(self, unit: str) -> str:
        """The unit on which is measured what launches take on a unit: itself, but where it is said to be the same."""
        return next((entry.same_as for entry in self.units if entry.name == unit), None) or unit

    @property
    def unit_cores(self) -> tuple[int, ...]:
        """Cores that units name."""
        return tuple(core for unit in self.units for core in unit.cores)

    def facts(self) -> dict[str, str | int | float | bool]:
        """Settings that affect the speed, for fingerprints, without those that are not set."""
        values = {key: getattr(self, key) for key in MachineSettings.__struct_fields__ if key not in _NOT_ALIKE}
        units: dict[str, str | int | float | bool] = {"units": "; ".join(unit.fact for unit in self.units)}
        return (
            (units if self.units else {})
            | ({"kernels": self.kernels} if self.kernels != "auto" else {})
            | self.device.facts()
            | {
                key: ",".join(map(str, value)) if isinstance(value, tuple) else value
                for key, value in values.items()
                if value is not None
            }
        )


class Workload(MachineSettings, kw_only=True):
    """A device, windows, streams and models.

    Attributes:
        table: a latency table, or a store that has some (``framefit push``): if one belongs to the device, durations
            come from it, and nothing is run.
        table_fallback: estimate layers that it lacks by interpolation, or else by the calibrated analytical model.
        rate_hz: windows a second; or ``window_ms``, or the streams' rate.
    """

    file_kind: ClassVar[str] = "a workload (app.toml)"
    smallest: ClassVar[str] = 'rate_hz = 30\nmodels = [{ name = "face", path = "face.onnx" }]'

    schema_version: int = 1
    target: str = "cpu"
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
            raise ValueError("table_fallback needs a table: name it with table")
        if self.rate_hz is not None and self.window_ms is not None:
            raise ValueError("give rate_hz or window_ms, not both")
        if self.rate_hz is None and self.window_ms is None and not any(s.rate_hz for s in self.streams):
            raise ValueError("the windows' rate is missing: give rate_hz, window_ms or a stream's rate_hz")
        if not self.models:
            raise ValueError("no models")
        if self.cores is not None and self.units:
            raise ValueError("give cores or [[units]], not both")
        unit_names = [unit.name for unit in self.units]
        for kind, names in (("model", self.model_names), ("stream", self.stream_names), ("unit", unit_names)):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{kind} name {min(twice)!r} is used twice")
        for unit in self.units:
            _check_same(unit, self.units)
        pattern = math.lcm(*(model.spacing.numerator for model in self.models))
        if pattern > _MOST_PATTERN:
            raise ValueError(f"the values of every repeat only after {pattern} windows; choose multiples of each other")
        for output in self.outputs:
            if output.model not in self.model_names:
                raise ValueError(f"outputs name a model {output.model!r}; models: {', '.join(self.model_names)}")
        files = [output.sink for output in self.outputs if output.is_file]
        for sink in files:
            if files.count(sink) > 1:
                raise ValueError(f"sink {sink!r} is used twice: the outputs would overwrite each other")
        streams = self.stream_names or [IMPLICIT_STREAM]
        for model in self.models:
            for key, source in model.inputs.items():
                if source not in streams and self.producer(source) is None:
                    known = f"streams: {', '.join(streams)}; models: {', '.join(self.model_names)}"
                    raise ValueError(f"model {model.name!r}: input {key!r} reads {source!r}; {known}")
        self._check_events()

    def _check_events(self) -> None:
        """Refuse streams of events that have a rate, and models that read both kinds, or each other's results."""
        events = self.event_streams
        for stream in self.streams:
            if stream.name in events and (stream.rate_hz or stream.changes or stream.rates_hz):
                raise ValueError(f"stream {stream.name!r} brings the events of a sporadic model: it has no rate")
            if stream.times_ms is not None and stream.name not in events:
                raise ValueError(f"stream {stream.name!r} has times_ms, and no model with min_distance_ms reads it")
        readers = [(model.name, source) for model in self.models for source in set(model.inputs.values())]
        for model in self.models:
            for source in model.inputs.values():
                producer = None if source in self.stream_names else self.producer(source)
                sporadic = [m.name for m in self.models if m.min_distance_ms and m.name in (model.name, producer)]
                if producer is not None and sporadic:
                    raise ValueError(f"model {model.name!r} reads {producer!r}: a sporadic model reads streams only")
                others = [name for name, read in readers if read == source and name != model.name]
                if model.min_distance_ms is not None and others:
                    raise ValueError(
                        f"stream {source!r} brings the events of {model.name!r} and is read by {others[0]!r}, too"
                    )
            if not model.inputs and len(self.streams) < 2 and events:
                raise ValueError(f"model {model.name!r} reads stream {min(events)!r}, which brings events")

    @property
    def event_streams(self) -> dict[str, ModelEntry]:
        """Streams that bring the events of sporadic models, with these."""
        return {source: model for model in self.models if model.min_distance_ms for source in model.inputs.values()}

    @property
    def machine(self) -> MachineSettings:
        """How this machine executes the workload."""
        return MachineSettings(**{key: getattr(self, key) for key in MachineSettings.__struct_fields__})

    @property
    def model_names(self) -> list[str]:
        """Names in the order of the file."""
        return [model.name for model in self.models]

    @property
    def stream_names(self) -> list[str]:
        """Names in the order of the file."""
        return [stream.name for stream in self.streams]

    def producer(self, source: str) -> str | None:
        """The model that ``"model.output"`` or ``"model"`` names; of names with dots the longest that matches."""
        named = [name for name in self.model_names if source == name or source.startswith(f"{name}.")]
        return max(named, key=len, default=None)

    @property
    def rates_hz(self) -> dict[str, float]:
        """Rate of each stream except those of events: its own, else the given rate of windows, else the fastest's."""
        rates = [self.given_hz] if self.given_hz is not None else [s.rate_hz for s in self.streams if s.rate_hz]
        periodic = [stream for stream in self.streams if stream.name not in self.event_streams]
        return {stream.name: stream.rate_hz or max(rates) for stream in periodic}

    @property
    def rates_name(self) -> str:
        """The streams' rates in labels and file names: "30Hz", or one for each stream where they differ."""
        rates_hz = list(self.rates_hz.values()) or [self.beat_hz]
        if len(set(rates_hz)) == 1:
            return f"{rates_hz[0]:g}Hz"
        return "-".join(f"{rate_hz:g}Hz" for rate_hz in rates_hz)

    @property
    def grid(self) -> Grid:
        """The grid of windows: they begin at each release of a stream, and at the given rate if there is one.

        Where all streams have one rate, and a model that may have priority takes fewer frames and need not be done
        when the next window begins, the pattern is as long as its frames are apart: it may run across windows.

        Raises:
            InputError: the rates almost never coincide.
        """
        grid = merged(self.rates_hz, self.given_hz)
        if len(grid.offsets_ns) > 1:
            return grid
        later = [model.spacing.numerator for model in self.models if _is_due_later(model, grid.shortest_ns)]
        return grid.repeated(math.lcm(*later))

    @property
    def beat_hz(self) -> float:
        """Windows a second."""
        return self.grid.windows_hz

    @property
    def window_ns(self) -> int:
        """Length of the shortest window."""
        return self.grid.shortest_ns

    def announced(self) -> list[tuple[float, Workload]]:
        """The streams' changes of rate in order: seconds after the first release, and the workload from then on."""
        workloads: list[tuple[float, Workload]] = []
        workload = self
        changes = sorted((event.after_s, s.name, event.rate_hz) for s in self.streams for event in s.changes)
        for after_s, group in itertools.groupby(changes, key=lambda change: change[0]):
            workload = workload.at_rates({name: rate_hz for _, name, rate_hz in group})
            workloads.append((after_s, workload))
        return workloads

    def at_rates(self, rates_hz: Mapping[str, float]) -> Workload:
        """The same workload with other rates of streams.

        A given rate of windows stays in force while a stream follows it; when the last one that did has another rate,
        windows follow from the streams.

        Args:
            rates_hz: of the streams that change.
        """
        streams = tuple(
            msgspec.structs.replace(stream, rate_hz=rates_hz.get(stream.name, stream.rate_hz))
            for stream in self.streams
        )
        before, own_hz = self.rates_hz, self.given_hz
        after = before | dict(rates_hz)
        left = own_hz in before.values() and own_hz not in after.values()
        return msgspec.structs.replace(
            self,
            streams=streams,
            rate_hz=None if left else self.rate_hz,
            window_ms=None if left else self.window_ms,
        )

    def with_files(self, folder: Path) -> Workload:
        """The same workload with the files of its streams and sinks in a folder."""
        replace = msgspec.structs.replace
        return replace(
            self,
            streams=tuple(replace(s, source=str(folder / s.source)) if s.is_file else s for s in self.streams),
            outputs=tuple(replace(o, sink=str(folder / o.sink)) if o.is_file else o for o in self.outputs),
        )

    @property
    def given_hz(self) -> float | None:
        """The given rate of windows, beside the streams' rates."""
        if self.rate_hz is not None:
            return self.rate_hz
        return None if self.window_ms is None else 1e3 / self.window_ms


def address_scheme(text: str) -> str | None:
    """What stands before ``://`` in an address; ``None`` where it is none."""
    address = _ADDRESS.match(text)
    return None if address is None else address[1]


def with_environment(address: str) -> str:
    """An address with values of the environment in place of ``${NAME}``: so that no file holds a password.

    Raises:
        InputError: the environment has no such name.
    """

    def value(name: re.Match[str]) -> str:
        if name[1] not in os.environ:
            raise InputError(
                f"{without_password(address)} names {name[0]}, which is not in the environment",
                remedy=f"export {name[1]}=... before the command",
            )
        return os.environ[name[1]]

    return address if address_scheme(address) is None else re.sub(r"\$\{([A-Za-z_]\w*)\}", value, address)


def without_password(address: str) -> str:
    """An address as it may stand in messages."""
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", address)


def names_function(text: str) -> bool:
    """Whether it reads ``"module:function"``; the module may be dotted."""
    return _FUNCTION.fullmatch(text) is not None


def _need_positive(key: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{key} must be greater than 0, is {value}")
    if value is not None and not _LEAST <= value <= _MOST:
        raise ValueError(f"{key} must be {_LEAST:g} to {_MOST:g}, is {value}")


def _check_same(unit: UnitEntry, units: Sequence[UnitEntry]) -> None:
    """Refuse a unit that is said to be as fast as one that is not there, or that is visibly another."""
    if unit.same_as is None:
        return
    others = {other.name: other for other in units if other is not unit}
    same = others.get(unit.same_as)
    what = f"unit {unit.name!r}: same_as = {unit.same_as!r}"
    if same is None:
        raise ValueError(f"{what} must name another unit: {', '.join(others) or 'there is none'}")
    if same.same_as is not None:
        raise ValueError(f"{what} must name a unit that is measured, and {same.name!r} has same_as itself")
    for key in ("provider", "options", "width"):
        if getattr(unit, key) != getattr(same, key):
            raise ValueError(f"{what} must have the same {'threads' if key == 'width' else key}")


def _need_few(key: str, frames: int) -> None:
    if not 1 <= frames <= _MOST_FRAMES:
        what = "at least 1" if frames < 1 else f"at most {_MOST_FRAMES}"
        raise ValueError(f"{key} must be {what}, is {frames}")


def _grids(workload: Workload, path: Path) -> list[Grid]:
    """All grids of windows that the streams' rates give, in order.

    Raises:
        InputError: rates almost never coincide.
    """
    try:
        return [variant.grid for variant in (workload, *(changed for _, changed in workload.announced()))]
    except InputError as error:
        raise InputError(error.what, where=path, remedy=error.remedy) from error


def load_workload(path: str | Path) -> Workload:
    """Read an ``app.toml``; paths of table, models, streams and sinks become absolute.

    Raises:
        InputError: the file is missing, malformed or inconsistent.
    """
    path = Path(path)
    check_workload_file(path)
    workload = read_record(path, Workload)
    _grids(workload, path)
    folder = path.resolve().parent
    files = [m.path for m in workload.models] + [s.source for s in workload.streams]
    files += workload.device.custom_ops
    for name in (workload.target, workload.table or "", *files, *(o.sink for o in workload.outputs)):
        if "\0" in name or max(map(len, map(os.fsencode, Path(name).parts)), default=0) > _MOST_NAME:
            raise InputError(f"{name[:40]!r} ... is not a possible file name", where=path, remedy="correct it")
    models = tuple(msgspec.structs.replace(m, path=str(folder / m.path)) for m in workload.models)
    for index, model in enumerate(models):
        if not Path(model.path).is_file():
            raise InputError(f"$.models[{index}].path: no such file {model.path}", where=path, remedy="check the path")
    table = workload.table
    if table is not None and address_scheme(table) is None:
        table = str(folder / table)
        if not Path(table).exists():  # a folder may be a store
            raise InputError(
                f"$.table: no such file {table}", where=path, remedy="check the path, or leave the key out"
            )
    libraries = tuple(str(folder / library) for library in workload.device.custom_ops)
    for index, library in enumerate(libraries):
        if not Path(library).is_file():
            raise InputError(
                f"$.device.custom_ops[{index}]: no such file {library}", where=path, remedy="check the path"
            )
    device = msgspec.structs.replace(workload.device, custom_ops=libraries)
    return msgspec.structs.replace(workload.with_files(folder), table=table, models=models, device=device)


STRICTEST: tuple[WhenFull, ...] = ("block", "drop-newest", "drop-oldest")


def streams_of(workload: Workload) -> tuple[StreamEntry, ...]:
    """The workload's streams; a synthetic stream if it names none."""
    return workload.streams or (StreamEntry(name=IMPLICIT_STREAM),)


def in_order(workload: Workload, app: Path) -> list[ModelEntry]:
    """Sort models so that each follows those that it reads, otherwise in the order of the file.

    Raises:
        InputError: models that read each other.
    """
    names, streams = workload.model_names, {stream.name for stream in streams_of(workload)}
    reads = {
        m.name: {workload.producer(source) for source in m.inputs.values() if source not in streams}
        for m in workload.models
    }
    ordered: list[ModelEntry] = []
    left = list(workload.models)
    while left:
        there = {entry.name for entry in ordered}
        following = next((entry for entry in left if reads[entry.name] <= there), None)
        if following is None:
            raise InputError(
                f"models {', '.join(entry.name for entry in left)} read each other",
                where=f"{app}: $.models[{names.index(left[0].name)}].inputs",
                remedy="feed one of them from a stream, or an earlier frame back with state",
            )
        ordered.append(following)
        left.remove(following)
    return ordered
