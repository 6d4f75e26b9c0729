"""Which stream feeds which input of which model, and how its frames become that input."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from framefit.core.files import toml_key
from framefit.core.functions import load_function
from framefit.core.model import Model, TensorInfo
from framefit.core.model.loading import declared_inputs, integer_scalars
from framefit.core.spacing import apart
from framefit.core.workload import (
    DEFAULT_QUEUE,
    STRICTEST,
    ModelEntry,
    Preprocess,
    StreamEntry,
    WhenFull,
    Workload,
    in_order,
    streams_of,
)
from framefit.devices.device import Device
from framefit.errors import InputError
from framefit.execution.buffers import check_state
from framefit.execution.execution import Execution, Postprocess
from framefit.execution.live import sample_rate
from framefit.execution.prepare import Preparation, image_axes, one_frame
from framefit.execution.streams import check_sink, check_stream, frame_shape

__all__ = ["WiredModel", "check_sinks", "usual_option", "wire"]


_READ_QUEUE = 2  # results that may wait for a model that reads others: as many as frames of a stream
_SAMPLING = ("sr", "fs", "rate", "sample_rate", "samplerate", "sampling_rate", "sample_rate_hz")
_SAMPLING_HZ = 16_000  # usual for speech models
_Sizes = tuple[int | None, ...] | None  # declared sizes of an input; None: dynamic


@dataclass(frozen=True)
class WiredModel:
    """A model of the workload with its inputs connected.

    Attributes:
        entry: its entry in ``app.toml``.
        model: loaded, with fixed shapes; inputs hold all frames that are consumed at once.
        sources: graph input -> name of the stream that feeds it.
        reads: graph input -> the model that feeds it, and which of its outputs, before any ``postprocess``.
        prepare: graph input -> function from a raw frame to a frame of that input.
        postprocess: function on the outputs.
        depth: length of its queue of frames; the smallest where its streams differ.
        when_full: what a full queue does; "block" precedes "drop-newest", which precedes "drop-oldest".
        in_step: streams that stay in step with those that the model reads, including these.
        waits: whether these streams wait, for this model or for another one that reads them.
    """

    entry: ModelEntry
    model: Model
    sources: dict[str, str]
    prepare: Mapping[str, Preparation] = field(default_factory=dict)
    postprocess: Postprocess | None = None
    depth: int = 1
    when_full: WhenFull = "drop-oldest"
    in_step: frozenset[str] = frozenset()
    waits: bool = False
    reads: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def after(self) -> tuple[str, ...]:
        """Models that it reads, without duplicates."""
        return tuple(dict.fromkeys(model for model, _ in self.reads.values()))

    @property
    def behind(self) -> int:
        """Number of frames of a stream that may have arrived since the oldest waiting one."""
        return apart(self.depth + self.entry.frames, self.entry.spacing)

    @property
    def frame_inputs(self) -> dict[str, TensorInfo]:
        """Graph input -> tensor that its stream has to provide: one frame, raw where it is prepared."""
        where = f"model {self.entry.name!r}"
        read = [tensor for tensor in self.model.inputs if tensor.name in self.sources]
        return {
            t.name: self.prepare[t.name].raw
            if t.name in self.prepare
            else one_frame(t, self.entry.frames, self.entry.frames_axis, where)
            for t in read
        }

    def execution(
        self,
        segments: Sequence[tuple[int, int]],
        device: Device,
        unit: str | Sequence[str],
        slots: int = 1,
        *,
        together: Sequence[tuple[int, int]] = (),
    ) -> Execution:
        """Compile the model in these segments, with all that its entry says about frames.

        Args:
            segments: first and last layer of each.
            device: the device that runs it.
            unit: name of the unit, or the unit of each segment.
            slots: largest number of frames in flight.
            together: first and last of segments that another cut of it joins; see :meth:`Execution.recut`.

        Raises:
            InputError: state or frames do not match the model.
            DeviceError: a segment cannot be compiled.
        """
        return Execution(
            self.model,
            segments,
            device,
            unit,
            state=self.entry.state,
            name=self.entry.name,
            frames=self.entry.frames,
            frames_axis=self.entry.frames_axis,
            prepare=self.prepare,
            postprocess=self.postprocess,
            slots=slots,
            together=together,
        )


def check_sinks(workload: Workload, app: Path, *, force: bool) -> None:
    """Refuse sinks before a run that could not be opened; nothing is opened.

    Args:
        workload: with absolute paths.
        app: its file; functions are searched in its folder.
        force: whether files may exist.

    Raises:
        InputError: a file exists or cannot be written, or a function does not exist.
        UnsupportedError: unknown kind of sink.
    """
    for output in workload.outputs:
        check_sink(output, force=force, folder=app.resolve().parent)


def wire(workload: Workload, app: Path) -> list[WiredModel]:
    """Load all models; inputs that are not mentioned read the only stream.

    Everything that a run would refuse later is refused here, without opening sinks or calling a function
    for frames.

    Args:
        workload: with absolute paths.
        app: its file, for messages, and its folder for functions.

    Returns:
        Priority models first, else in the order of the file.

    Raises:
        InputError: an input has no source, or a model, stream, function or output does not match.
        UnsupportedError: a kind of sink or source is not supported.
    """
    check_sinks(workload, app, force=True)
    for stream in streams_of(workload):
        sample_rate(stream, workload)
    there: dict[str, WiredModel] = {}
    for entry in in_order(workload, app):
        there[entry.name] = _wire(entry, workload, app, there)
    entries = sorted(workload.models, key=lambda entry: entry.priority != "every-window")
    wired = [there[entry.name] for entry in entries]
    for stream in streams_of(workload):
        readers = [
            (tensor, model.prepare.get(name))
            for model in wired
            for name, tensor in model.frame_inputs.items()
            if model.sources[name] == stream.name
        ]
        check_stream(stream, readers, folder=app.resolve().parent)
    return _in_step(wired)


def _in_step(models: Sequence[WiredModel]) -> list[WiredModel]:
    """Find streams that stay in step: those that one model reads together, and others that are read with these.

    A model that reads other models also reads their streams.
    """
    together: dict[str, frozenset[str]] = {}
    by_name = {model.entry.name: model for model in models}
    for model in models:
        joined = frozenset(n for source in _streams_behind(model, by_name) for n in together.get(source, {source}))
        together |= dict.fromkeys(joined, joined)
    steps = [together[next(iter(model.sources.values()))] if model.sources else frozenset() for model in models]
    waiting = {step for step, model in zip(steps, models, strict=True) if model.when_full == "block"}
    return [replace(m, in_step=step, waits=step in waiting) for m, step in zip(models, steps, strict=True)]


def _streams_behind(model: WiredModel, by_name: Mapping[str, WiredModel]) -> set[str]:
    """Streams of a model, and those of the models that it reads."""
    return set(model.sources.values()).union(*(_streams_behind(by_name[name], by_name) for name in model.after))


def _wire(entry: ModelEntry, workload: Workload, app: Path, there: Mapping[str, WiredModel]) -> WiredModel:
    """Load and wire one model; ``there`` holds at least the models that it reads."""
    streams = {stream.name: stream for stream in streams_of(workload)}
    where = f"{app}: model {entry.name!r}"
    declared = declared_inputs(entry.path)
    for key in ("inputs", "shapes", "state", "constants"):
        for name in getattr(entry, key):
            if name not in declared:
                raise InputError(
                    f"{key} names no input {name!r}; inputs: {', '.join(declared)}", where=where, remedy="correct it"
                )
    _check_constants(entry, declared, where)
    sources, reads = _sources(entry, list(declared), workload, there, where)
    images = _images(entry, declared, sources, where)
    shapes = dict(entry.shapes)
    frames = {source: frame_shape(streams[source]) for source in dict.fromkeys(sources.values())}
    raw = {name: _raw_shape(streams[sources[name]], frames[sources[name]], where) for name in images}
    for name, source in sources.items():
        frame = frames[source]
        if name in images:
            shape = _image_shape(entry, declared[name], raw[name], f"{where}, input {name!r}")
        else:
            shape = None if frame is None else _stacked(entry, frame, declared[name])
        if shape is None:
            continue
        if name not in images and Path(streams[source].source).is_dir() and not _fits(declared[name], shape):
            raise InputError(
                f"input {name!r} does not take images as they are read, {list(shape)}",
                where=where,
                remedy="say how they become its input: preprocess = { layout = ..., mean = ..., scale = ... }",
            )
        shapes.setdefault(name, shape)
    given = {name: _given(there[producer], output, name, where) for name, (producer, output) in reads.items()}
    for name, tensor in given.items():
        shapes.setdefault(name, _stacked(entry, tensor.shape or (), declared[name]))
    model = Model.load(entry.path, shapes=shapes, constants=entry.constants, name=entry.name)
    for tensor in model.inputs:
        if not tensor.dtype:
            raise InputError(
                f"input {tensor.name!r} does not hold numbers",
                where=where,
                remedy="remove the part of the model that converts it to numbers, and do that in a stream of your own",
            )
    check_state(model, entry.state, entry.name)
    _check_reads(entry, model, given, reads, where)
    prepare = {}
    for tensor in model.inputs:
        if tensor.name in sources:
            frame_tensor = one_frame(tensor, entry.frames, entry.frames_axis, where)
            if entry.preprocess is not None and tensor.name in images:
                synthetic = streams[sources[tensor.name]].source == "synthetic"
                prepare[tensor.name] = _preparation(
                    entry.preprocess, frame_tensor, raw[tensor.name], where, as_example=synthetic
                )
    postprocess = None
    if entry.postprocess is not None:
        postprocess = load_function(entry.postprocess, app.parent, f"{where}, postprocess")
    named = {name for output in workload.outputs if output.model == entry.name for name in output.tensors or ()}
    outputs = [tensor.name for tensor in model.outputs]
    if postprocess is None and not named.issubset(outputs):
        raise InputError(
            f"model {entry.name!r} has no output {min(named - set(outputs))!r}; outputs: {', '.join(outputs)}",
            where="$.outputs",
            remedy="correct the name",
        )
    read = [streams[source] for source in sources.values()]
    rules = {stream.when_full for stream in read}
    when_full: WhenFull = next((rule for rule in STRICTEST if rule in rules), "drop-oldest")
    newest = (
        when_full == "drop-oldest" and not reads and _looks_at_single_images(entry, model, sources, images, streams)
    )
    default = 1 if newest else DEFAULT_QUEUE
    depth = min((stream.queue or default for stream in read), default=_READ_QUEUE if reads else 1)
    return WiredModel(
        entry,
        model,
        sources,
        prepare,
        postprocess,
        depth=max(depth, entry.frames),
        when_full=when_full,
        reads=reads,
    )


def _looks_at_single_images(
    entry: ModelEntry,
    model: Model,
    sources: Mapping[str, str],
    images: Collection[str],
    streams: Mapping[str, StreamEntry],
) -> bool:
    """Whether the newest frame is worth more than the one before: not for audio, text, or models with state.

    Priority models have a frame in every window, and their frames never wait long.
    """
    if entry.state or entry.frames > 1 or entry.priority == "every-window":
        return False
    shapes = {tensor.name: tensor.shape or () for tensor in model.inputs}
    return all(
        name in images
        or Path(streams[source].source).is_dir()
        or (len(shapes.get(name, ())) == 4 and 3 in (shapes[name][1], shapes[name][3]))
        for name, source in sources.items()
    )


def usual_option(name: str) -> int | None:
    """What an input of one whole number usually is, by its name: a sampling rate in Hz; ``None``: not known."""
    return _SAMPLING_HZ if name.lower() in _SAMPLING else None


def _check_constants(entry: ModelEntry, declared: Mapping[str, _Sizes], where: str) -> None:
    """Refuse numbers from an unnamed stream beside other inputs: a sampling rate, for example."""
    fed = [name for name in declared if name not in entry.state and name not in entry.constants]
    left = [name for name in fed if name not in entry.inputs]
    if all(declared[name] not in ((), (1,)) for name in left) or len({declared[name] for name in fed}) == 1:
        return
    options = integer_scalars(entry.path)
    for name in left:
        if name in options:
            value = usual_option(name) or "..."
            raise InputError(
                f"input {name!r} takes a single whole number, but neither constants nor inputs name it",
                where=where,
                remedy=f"give the value that the model's documentation names: constants = {{ {toml_key(name)} = "
                f'{value} }}; or a stream: inputs = {{ {toml_key(name)} = "a stream" }}',
            )


def _sources(
    entry: ModelEntry,
    names: Sequence[str],
    workload: Workload,
    there: Mapping[str, WiredModel],
    where: str,
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Graph input -> stream, and graph input -> model and output of it."""
    streams = [stream.name for stream in streams_of(workload)]
    sources: dict[str, str] = {}
    reads: dict[str, tuple[str, str]] = {}
    for name in names:
        if name in entry.state or name in entry.constants:
            continue
        source = entry.inputs.get(name) or (streams[0] if len(streams) == 1 else None)
        if source is None:
            raise InputError(
                f"input {name!r} has no source", where=where, remedy=f'inputs = {{ {toml_key(name)} = "a stream" }}'
            )
        if source in streams:
            sources[name] = source
        else:
            producer = workload.producer(source)
            assert producer is not None  # else the workload would have been refused
            reads[name] = _output(there[producer], source, where)
    return sources, reads


def _output(model: WiredModel, source: str, where: str) -> tuple[str, str]:
    """The model and output that ``"model.output"`` names, or ``"model"`` if it has one output."""
    name = model.entry.name
    output = source.removeprefix(name).removeprefix(".")
    outputs = [tensor.name for tensor in model.model.outputs]
    if not output and len(outputs) == 1:
        return name, outputs[0]
    if output not in outputs:
        raise InputError(
            f"{source!r} names no output of {name!r}; outputs: {', '.join(outputs)}",
            where=where,
            remedy=f'write "{name}.{outputs[0]}"',
        )
    return name, output


def _given(producer: WiredModel, output: str, name: str, where: str) -> TensorInfo:
    """The tensor that a model provides for input ``name``."""
    tensor = next(candidate for candidate in producer.model.outputs if candidate.name == output)
    if not tensor.fixed:
        raise InputError(
            f"input {name!r} reads {output!r} of {producer.entry.name!r}, which has no fixed shape",
            where=where,
            remedy="give that model fixed shapes, or an output of a fixed size",
        )
    return tensor


def _check_reads(
    entry: ModelEntry,
    model: Model,
    given: Mapping[str, TensorInfo],
    reads: Mapping[str, tuple[str, str]],
    where: str,
) -> None:
    """Check that other models' outputs match the inputs, frame by frame."""
    for tensor in model.inputs:
        if tensor.name not in given:
            continue
        expected, source = one_frame(tensor, entry.frames, entry.frames_axis, where), given[tensor.name]
        if (expected.dtype, expected.shape) != (source.dtype, source.shape):
            raise InputError(
                f"input {tensor.name!r} takes {expected.dtype} {list(expected.shape or ())}, but "
                f"{'.'.join(reads[tensor.name])} is {source.dtype} {list(source.shape or ())}",
                where=where,
                remedy="read another output, or give the input's size in shapes",
            )


def _images(entry: ModelEntry, declared: Mapping[str, _Sizes], sources: Mapping[str, str], where: str) -> set[str]:
    """Inputs to which ``preprocess`` applies: the only one that reads a stream, else those that look like images."""
    if entry.preprocess is None or not sources:
        if entry.preprocess is not None:
            raise InputError(
                "preprocess is set, but no input reads a stream", where=where, remedy="leave preprocess out"
            )
        return set()
    if len(sources) == 1:
        return set(sources)
    names = set()
    for name in sources:
        sizes = declared[name] or entry.shapes.get(name)
        axes = None if sizes is None else image_axes(entry.preprocess.layout, len(sizes), entry.frames_axis)
        if sizes is None or axes is None:
            continue
        channels = (1 if entry.preprocess.channels == "GRAY" else 3) * _times(entry, axes, axes.index("C"))
        if sizes[axes.index("C")] in (None, channels):
            names.add(name)
    if not names:
        raise InputError(
            f"preprocess is set, but none of the inputs {', '.join(sources)} takes images of its layout and channels",
            where=where,
            remedy="correct layout and channels, or leave preprocess out",
        )
    return names


def _image_shape(
    entry: ModelEntry, declared: _Sizes, frame: tuple[int, ...] | None, where: str
) -> tuple[int, ...] | None:
    """Shape of a prepared input: as declared, with open sizes from ``preprocess``, else from the raw frames."""
    assert entry.preprocess is not None
    sizes: Sequence[int | None] = declared or (None,) * 4
    axes = image_axes(entry.preprocess.layout, len(sizes), entry.frames_axis)
    if axes is None:
        raise InputError(
            f"has {len(sizes)} axes, which is not an {entry.preprocess.layout} image",
            where=where,
            remedy="leave preprocess out, or do it in a stream of your own",
        )
    height, width = entry.preprocess.size or (frame[:2] if frame is not None and len(frame) > 1 else (None, None))
    axis_sizes = {"N": 1, "F": 1, "C": 1 if entry.preprocess.channels == "GRAY" else 3, "H": height, "W": width}
    shape = []
    for index, (size, axis) in enumerate(zip(sizes, axes, strict=True)):
        each = axis_sizes[axis]
        shape.append(size if size is not None else each and each * _times(entry, axes, index))
    if any(size is None for size in shape):
        return None  # it is given in shapes, or loading the model reports it
    return tuple(size for size in shape if size is not None)


def _times(entry: ModelEntry, axes: Sequence[object], index: int) -> int:
    """Factor of a frame's size along an axis."""
    return entry.frames if index == entry.frames_axis % len(axes) else 1


def _stacked(entry: ModelEntry, frame: tuple[int, ...], declared: _Sizes) -> tuple[int, ...]:
    """Shape of all frames that are consumed at once."""
    if entry.frames == 1:
        return frame
    if declared is not None and len(declared) == len(frame) + 1:
        frame = (1, *frame)
    if not -len(frame) <= entry.frames_axis < len(frame):
        return frame  # loading the model reports it
    return tuple(size * _times(entry, frame, index) for index, size in enumerate(frame))


def _raw_shape(stream: StreamEntry, shape: tuple[int, ...] | None, where: str) -> tuple[int, ...] | None:
    """Shape of a stream's raw images if it is known; that of a synthetic stream may be given as N x C x H x W."""
    if shape is None or len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)):
        return shape
    if stream.source == "synthetic" and shape[:-3] in ((), (1,)) and shape[-3:][:1] in ((1,), (3,)) and len(shape) > 2:
        return (*shape[-2:], shape[-3])
    raise InputError(
        f"preprocess needs images, but frames of stream {stream.name!r} are {list(shape)}",
        where=where,
        remedy="give height x width x 3 (RGB) or height x width (gray), or leave preprocess out",
    )


def _preparation(
    preprocess: Preprocess, frame: TensorInfo, shape: tuple[int, ...] | None, where: str, *, as_example: bool
) -> Preparation:
    """Function from raw frames to a model's input; ``as_example``: a synthetic stream provides them."""
    prepared = Preparation(preprocess, frame, example=shape, where=where)
    if not as_example:
        return prepared
    raw = TensorInfo(name=frame.name, dtype="uint8", shape=prepared.example)
    return Preparation(preprocess, frame, raw=raw, example=raw.shape, where=where)


def _fits(declared: _Sizes, shape: Sequence[int]) -> bool:
    """Whether an input declares a shape, with or without a leading 1."""
    if declared is None:
        return True
    return any(
        len(declared) == len(variant)
        and all(size in (None, number) for size, number in zip(declared, variant, strict=True))
        for variant in (tuple(shape), (1, *shape))
    )
