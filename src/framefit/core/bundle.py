"""What goes onto a device: a folder with a manifest (``bundle.json``), stored segments, and the sums of all files."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import msgspec

from framefit.core.files import Record, read_record
from framefit.core.model import TensorInfo
from framefit.core.target import Target, absolute_target
from framefit.core.timetable import Timetable
from framefit.core.workload import MachineSettings, WhenFull, Workload
from framefit.errors import InputError

__all__ = [
    "MANIFEST",
    "Bundle",
    "BundledImage",
    "BundledModel",
    "BundledPart",
    "names_bundle",
    "read_bundle",
    "write_sums",
]

MANIFEST, SUMS, _TIMETABLE = "bundle.json", "SHA256SUMS", "timetable.json"
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[^\n]+)")
_AGAIN = "copy the bundle again, or make it again (framefit bundle)"


class BundledPart(Record, kw_only=True):
    """A segment as it is stored.

    Attributes:
        span: numbers of its first and last layer.
        file: its ONNX file, relative to the bundle.
        digest: SHA-256 of the segment as a model.
        inputs, outputs: its tensors.
        across: tensors that later layers need behind its last layer.
        layer: name of its last layer.
        lowered: whether a runtime has optimised it, so that it is to run as it is.
    """

    span: tuple[int, int]
    file: str
    digest: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    across: tuple[TensorInfo, ...]
    layer: str
    lowered: bool


class BundledImage(Record, kw_only=True):
    """An input that is made of a raw image.

    Attributes:
        raw: the tensor that a stream has to provide.
        example: shape of a typical raw image.
    """

    raw: TensorInfo
    example: tuple[int, ...]


class BundledModel(Record, kw_only=True):
    """A model with its inputs connected, and its stored segments.

    Attributes:
        digest: SHA-256 of the loaded model.
        inputs, outputs: its tensors.
        sources: graph input -> stream.
        reads: graph input -> model and output that feed it.
        images: graph input -> what it is made of, where that is a raw image.
        depth, when_full: of its queue of frames.
        in_step, waits: streams in step with its own, and whether they wait.
        parts: all segments of all cuts.
        test: file with frames and the outputs that they gave.
        promised_ns: planned quantile of a frame.
    """

    name: str
    digest: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    sources: dict[str, str]
    reads: dict[str, tuple[str, str]]
    images: dict[str, BundledImage]
    depth: int
    when_full: WhenFull
    in_step: tuple[str, ...]
    waits: bool
    parts: tuple[BundledPart, ...]
    test: str
    promised_ns: int

    @property
    def uncut(self) -> bool:
        """Whether the whole model is stored as one segment."""
        last = max(part.span[1] for part in self.parts)
        return any(part.span == (0, last) for part in self.parts)


class Bundle(Record, kw_only=True):
    """The manifest of a bundle.

    Attributes:
        framefit, onnxruntime: versions that it was made with.
        target, settings: the device that it is for, as it was opened.
        quantile: of the promised durations.
        parents: what it was made of: name of a file -> SHA-256.
        models: in the order of the timetable's.
    """

    file_kind: ClassVar[str] = "the manifest of a bundle (bundle.json)"

    schema_version: int = 1
    name: str
    framefit: str
    onnxruntime: str
    created: str
    target: Target
    settings: MachineSettings
    quantile: float
    parents: dict[str, str]
    models: tuple[BundledModel, ...]


def names_bundle(path: str | Path) -> bool:
    """Whether a path names the folder of a bundle."""
    return (Path(path) / MANIFEST).is_file()


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        sums = hashlib.sha256()
        while piece := file.read(1 << 20):
            sums.update(piece)
    return sums.hexdigest()


def _files(folder: Path) -> dict[str, Path]:
    """Files of a folder by their relative names, without the sums."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: names[name] for name in sorted(names) if name != SUMS}


def write_sums(folder: Path) -> None:
    """Write the sums of all files, as ``sha256sum -c`` reads them."""
    lines = (f"{digest_of(path)}  {name}\n" for name, path in _files(folder).items())
    text = "".join(lines)
    (folder / SUMS).unlink(missing_ok=True)
    (folder / SUMS).write_text(text)


def check_sums(folder: Path) -> None:
    """Refuse a bundle of which a byte has changed.

    Raises:
        InputError: a file differs, is missing, or was added; the message names it.
    """
    try:
        text = (folder / SUMS).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{SUMS} cannot be read: {error}", where=folder, remedy=_AGAIN) from error
    lines = [_LINE.fullmatch(line) for line in text.removesuffix("\n").split("\n")]
    if not text.endswith("\n") or None in lines:
        raise InputError(f"{SUMS} is damaged", where=folder, remedy=_AGAIN)
    wanted = {line["name"]: line["digest"] for line in lines if line is not None}
    files = _files(folder)
    _refuse("is missing", wanted.keys() - files.keys(), folder)
    _refuse("does not belong to the bundle", files.keys() - wanted.keys(), folder)
    _refuse("has changed", (name for name, digest in wanted.items() if digest_of(files[name]) != digest), folder)


def _refuse(what: str, names: Iterable[str], folder: Path) -> None:
    for name in sorted(names):
        raise InputError(f"{name} {what}", where=folder, remedy=_AGAIN)


def read_bundle(folder: Path) -> tuple[Bundle, Timetable, Workload]:
    """The manifest, the plan and the workload of a bundle whose sums hold.

    From here on this process stores no compiled modules: they would lie in the bundle.

    Raises:
        InputError: the folder is no bundle, or a byte has changed.
    """
    if not names_bundle(folder):
        raise InputError("is not a bundle", where=folder, remedy="make one: framefit bundle app.toml -o app.bundle")
    check_sums(folder)
    sys.dont_write_bytecode = True
    bundle, timetable = read_record(folder / MANIFEST, Bundle), read_record(folder / _TIMETABLE, Timetable)
    assert timetable.source is not None
    workload, folder = timetable.source.workload.with_files(folder.resolve()), folder.resolve()
    return bundle, timetable, msgspec.structs.replace(workload, target=absolute_target(workload.target, folder))
