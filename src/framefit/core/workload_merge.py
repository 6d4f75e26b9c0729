"""Merges several applications on one runner: their workloads become one, in which shared models exist once."""

from __future__ import annotations

import filecmp
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from framefit.core.model.loading import declared_inputs
from framefit.core.spacing import every_of
from framefit.core.workload import (
    DEFAULT_QUEUE,
    IMPLICIT_STREAM,
    STRICTEST,
    MachineSettings,
    ModelEntry,
    OutputEntry,
    Schedule,
    StreamEntry,
    Workload,
    in_order,
    names_function,
    streams_of,
)
from framefit.errors import InputError

__all__ = ["shared"]


# Fields in which two models have to be equal to be merged.
_SAME = ("inputs", "shapes", "state", "constants", "frames", "frames_axis", "aggregate", "preprocess", "postprocess")
_NEAR = 1e-9  # largest relative difference of equal rates


@dataclass(frozen=True)
class Shared:
    """Several workloads as one.

    Attributes:
        workload: the merged workload.
        names: for each application, model -> its name in ``workload``.
    """

    workload: Workload
    names: tuple[dict[str, str], ...]


@dataclass
class _Merging:
    """The merged part so far."""

    streams: dict[str, StreamEntry] = field(default_factory=dict)
    models: dict[str, ModelEntry] = field(default_factory=dict)
    outputs: list[OutputEntry] = field(default_factory=list)


def shared(apps: Sequence[tuple[Path, Workload]]) -> Shared:
    """Merge workloads.

    Streams of the same name are merged; so are models of the same file with the same inputs, which run once for each
    frame. Where applications differ, the stricter rule holds: the faster rate of a stream, the higher priority, the
    earlier deadline, the shorter queue, the rule that loses less. Contradictions are refused.

    Args:
        apps: files, and workloads with absolute paths; functions are searched in the first one's folder.

    Raises:
        InputError: targets, tables, schedules, rates, streams or models contradict each other.
    """
    first_path, first = apps[0]
    if len(apps) == 1:
        return Shared(first, ({name: name for name in first.model_names},))
    for path, workload in apps[1:]:
        for key in ("target", *MachineSettings.__struct_fields__, "table", "table_fallback"):
            _need_equal(getattr(first, key), getattr(workload, key), f"$.{key}", first_path, path)
        if path.resolve().parent != first_path.resolve().parent and (spec := _function(workload)):
            raise InputError(
                f"{spec!r} is searched beside the first application, {first_path}",
                where=path,
                remedy="put the applications of one runner into one folder",
            )
    rates_hz: dict[str, float] = {}
    for _, workload in apps:
        for name, rate_hz in _rates_hz(workload).items():
            rates_hz[name] = max(rate_hz, rates_hz.get(name, rate_hz))
    merging, names = _Merging(), []
    for path, workload in apps:
        names.append(_add(merging, path, _at_rates(path, workload, rates_hz)))
    merged = {
        "rate_hz": max((workload.given_hz for _, workload in apps if workload.given_hz is not None), default=None),
        "window_ms": None,
        "schedule": functools.reduce(_schedule, ((path, workload.schedule) for path, workload in apps))[1],
        "streams": tuple(merging.streams.values()),
        "models": tuple(merging.models.values()),
        "outputs": tuple(merging.outputs),
    }
    try:  # a workload is checked when it is made
        return Shared(msgspec.convert(msgspec.to_builtins(first) | msgspec.to_builtins(merged), Workload), tuple(names))
    except msgspec.ValidationError as error:
        where = ", ".join(str(path) for path, _ in apps)
        raise InputError(f"merged: {error}", where=where, remedy="change one of the applications") from error


def _rates_hz(workload: Workload) -> dict[str, float]:
    """Rate of each stream, including the implicit one."""
    return workload.rates_hz or {IMPLICIT_STREAM: workload.beat_hz}


def _at_rates(path: Path, workload: Workload, rates_hz: Mapping[str, float]) -> Workload:
    """A workload that names each stream and input, for streams that may be faster than it requires."""
    slower = {name: _times_slower(path, name, own_hz, rates_hz[name]) for name, own_hz in _rates_hz(workload).items()}
    streams = tuple(msgspec.structs.replace(entry, rate_hz=rates_hz.get(entry.name)) for entry in streams_of(workload))
    models = []
    for model in workload.models:
        inputs = dict(model.inputs)
        if len(streams) == 1:  # with several streams it has to be named
            free = [n for n in declared_inputs(model.path) if n not in model.state and n not in model.constants]
            inputs = dict.fromkeys(free, streams[0].name) | inputs
        read = {slower[source] for source in inputs.values() if source in slower}
        if max(slower.values()) > 1 and not slower.keys() >= set(inputs.values()):
            raise InputError(
                f"model {model.name!r} reads another model, but the other application's frames come faster",
                where=path,
                remedy="give its streams one rate in all applications",
            )
        every = every_of(model.spacing * max(read, default=1))
        models.append(msgspec.structs.replace(model, inputs=inputs, every=every))
    return msgspec.structs.replace(workload, streams=streams, models=tuple(models))


def _times_slower(path: Path, stream: str, own_hz: float, rate_hz: float) -> int:
    """Number of a stream's frames for each one that an application needs."""
    ratio = rate_hz / own_hz
    if abs(ratio / round(ratio) - 1) > _NEAR:
        raise InputError(
            f"stream {stream!r} has {own_hz:g} Hz, which does not divide the other application's {rate_hz:g} Hz",
            where=path,
            remedy="choose rates that are multiples of each other, or another name",
        )
    return round(ratio)


def _add(merging: _Merging, path: Path, workload: Workload) -> dict[str, str]:
    """Add one application's streams, models and outputs; returns the merged names of its models."""
    for stream in workload.streams:
        known = merging.streams.get(stream.name)
        merging.streams[stream.name] = stream if known is None else _stream(known, stream, path)
    names: dict[str, str] = {}
    for entry in in_order(workload, path):
        model = msgspec.structs.replace(entry, inputs=_read(entry, workload, names))
        same = next((candidate for candidate in merging.models.values() if _is_same(candidate, model)), None)
        if same is None and model.name in merging.models:
            raise InputError(
                f"model {model.name!r} differs from the one in the earlier application: "
                "its file or its inputs are not the same",
                where=path,
                remedy="rename one of them, or make them equal",
            )
        merging.models[model.name if same is None else same.name] = model if same is None else _model(same, model)
        names[model.name] = model.name if same is None else same.name
    merging.outputs += [msgspec.structs.replace(output, model=names[output.model]) for output in workload.outputs]
    return names


def _read(model: ModelEntry, workload: Workload, names: Mapping[str, str]) -> dict[str, str]:
    """Sources of a model's inputs, with the merged names of models."""
    sources = {}
    for name, source in model.inputs.items():
        producer = None if source in workload.stream_names else workload.producer(source)
        sources[name] = source if producer is None else names[producer] + source.removeprefix(producer)
    return sources


def _stream(known: StreamEntry, stream: StreamEntry, path: Path) -> StreamEntry:
    """Merge two streams."""
    for key in ("source", "shape", "array", "times_ms"):
        _need_equal(getattr(known, key), getattr(stream, key), f"stream {stream.name!r}: {key}", "before", path)
    rule = next(rule for rule in STRICTEST if rule in (known.when_full, stream.when_full))
    return msgspec.structs.replace(known, queue=_shallower(known.queue, stream.queue), when_full=rule)


def _shallower(first: int | None, second: int | None) -> int | None:
    """The shorter of two queues; ``None`` is up to the models, and at most the default."""
    queues = [queue for queue in (first, second) if queue is not None]
    return None if len(queues) < 2 and min(queues, default=DEFAULT_QUEUE) >= DEFAULT_QUEUE else min(queues)


def _is_same(first: ModelEntry, second: ModelEntry) -> bool:
    """Whether two entries are one model that does the same."""
    if any(getattr(first, key) != getattr(second, key) for key in (*_SAME, "min_distance_ms", "units")):
        return False
    return Path(first.path).resolve() == Path(second.path).resolve() or filecmp.cmp(
        first.path, second.path, shallow=False
    )


def _both(first: Fraction, second: Fraction) -> Fraction:
    """The greatest spacing whose frames are those of both, of those that are as easily said."""
    whole = first.denominator == second.denominator == 1
    return first if first == second else Fraction(math.gcd(first.numerator, second.numerator)) if whole else Fraction(1)


def _model(first: ModelEntry, second: ModelEntry) -> ModelEntry:
    """One model for two, with what is stricter of both."""
    deadlines = [entry.deadline_ms for entry in (first, second) if entry.deadline_ms is not None]
    felt = [entry.latency_sensitive for entry in (first, second) if entry.latency_sensitive is not None]
    return msgspec.structs.replace(
        first,
        priority=max(first.priority, second.priority, key=_strictness),
        deadline_ms=min(deadlines, default=None),
        latency_sensitive=max(felt, default=None),
        task=first.task or second.task,
        every=every_of(_both(first.spacing, second.spacing)),
        always_split=first.always_split or second.always_split,
        on_error=next((rule for rule in ("stop", "retry", "skip") if rule in (first.on_error, second.on_error)), None),
        on_nan=next(rule for rule in ("drop", "flag", "ignore") if rule in (first.on_nan, second.on_nan)),
    )


def _strictness(priority: int | str) -> float:
    """Of a priority; "auto" says nothing, so whatever is said beside it holds."""
    levels: Mapping[int | str, float] = {"every-window": 11, "background": 0, "auto": -1}
    return levels[priority] if isinstance(priority, str) else min(max(priority, 0), 10)


def _schedule(first: tuple[Path, Schedule], second: tuple[Path, Schedule]) -> tuple[Path, Schedule]:
    """Merge two schedules; a key with two different values, neither the default, is refused."""
    plain, chosen = Schedule(), {}
    for name in Schedule.__struct_fields__:
        a, b, default = (getattr(schedule, name) for schedule in (first[1], second[1], plain))
        if default not in (a, b):
            _need_equal(a, b, f"$.schedule.{name}", first[0], second[0])
        chosen[name] = b if a == default else a
    try:
        return first[0], Schedule(**chosen)
    except ValueError as error:
        raise InputError(f"$.schedule, together: {error}", where=second[0], remedy="change one of them") from error


def _need_equal(a: object, b: object, key: str, first: Path | str, path: Path) -> None:
    if a != b:
        raise InputError(f"{key} is {b!r}, and {a!r} in {first}", where=path, remedy="make them equal")


def _function(workload: Workload) -> str | None:
    """A function that it names, if there is one."""
    named: list[Any] = [stream.source for stream in workload.streams]
    named += [model.postprocess for model in workload.models] + [output.sink for output in workload.outputs]
    return next((name for name in named if name is not None and names_function(name)), None)
