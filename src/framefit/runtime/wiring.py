"""Which stream feeds which input of which model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from framefit.core.model import Model
from framefit.core.workload import ModelEntry, StreamEntry, Workload
from framefit.errors import InputError, UnsupportedError
from framefit.runtime.streams import frame_shape

__all__ = ["WiredModel", "streams_of", "wire"]


@dataclass(frozen=True)
class WiredModel:
    """A model of the workload with its inputs connected.

    Attributes:
        entry: its part of ``app.toml``.
        model: loaded, shapes fixed.
        sources: graph input -> name of the stream that feeds it.
    """

    entry: ModelEntry
    model: Model
    sources: dict[str, str]


def streams_of(workload: Workload) -> tuple[StreamEntry, ...]:
    """The workload's streams; one synthetic stream where it names none."""
    return workload.streams or (StreamEntry(name="synthetic"),)


def wire(workload: Workload, app: Path) -> list[WiredModel]:
    """Load all models; inputs that are not mentioned read the only stream.

    Args:
        workload: with absolute paths.
        app: its file, for messages.

    Returns:
        Priority models first, else in the order of the file.

    Raises:
        InputError: an input without a source, or a model or stream that does not fit.
    """
    entries = sorted(workload.models, key=lambda entry: entry.priority != "every-window")
    return [_wire(entry, workload, app) for entry in entries]


def _wire(entry: ModelEntry, workload: Workload, app: Path) -> WiredModel:
    streams = {stream.name: stream for stream in streams_of(workload)}
    names = Model.input_names(entry.path)
    where = f"{app}: model {entry.name!r}"
    for key in ("inputs", "shapes", "state", "constants"):
        for name in getattr(entry, key):
            if name not in names:
                raise InputError(
                    f"{key} names no input {name!r}; inputs: {', '.join(names)}", where=where, remedy="correct it"
                )
    sources = {}
    for name in names:
        if name in entry.state or name in entry.constants:
            continue
        source = entry.inputs.get(name) or (next(iter(streams)) if len(streams) == 1 else None)
        if source is None:
            raise InputError(f"input {name!r} has no source", where=where, remedy=f'inputs = {{ {name} = "a stream" }}')
        if source not in streams:
            raise UnsupportedError(
                f"input {name!r} reads another model ({source!r}), which is not supported yet",
                where=where,
                remedy="feed it from a stream",
            )
        sources[name] = source
    shapes = dict(entry.shapes)
    for name, source in sources.items():
        shape = frame_shape(streams[source])
        if shape is not None:
            shapes.setdefault(name, shape)
    model = Model.load(entry.path, shapes=shapes, constants=entry.constants, name=entry.name)
    return WiredModel(entry, model, sources)
