"""What a file is by its content, for messages about files in the place of others.

Nothing is read for use here: magic numbers are those of each format's own documentation, records are known by their
keys. Nothing heavy is imported, so that the command line can ask before it loads a reader.
"""

from __future__ import annotations

import codecs
import difflib
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from framefit.errors import InputError

__all__ = ["BUILTIN_MODELS", "check_model", "check_model_file", "check_workload_file", "format_of"]


BUILTIN_MODELS = ("detector", "depth")
"""Names that stand for a model in the place of a file; framefit.core.model.builtin makes them."""
_HEAD_BYTES = 1024


class Format(NamedTuple):
    """A format of files.

    Attributes:
        name: with its article, for messages.
        remedy: how a file of it becomes one that is read here.
    """

    name: str
    remedy: str = ""


ONNX = Format("an ONNX model")
_TO_ONNX = "export it to ONNX with "
_TFLITE = Format(
    "a TensorFlow Lite model", _TO_ONNX + "python -m tf2onnx.convert --tflite MODEL.tflite --output MODEL.onnx"
)
_PYTORCH = Format("a PyTorch file", _TO_ONNX + 'torch.onnx.export(module, example, "MODEL.onnx")')
_KERAS = Format("a Keras model", _TO_ONNX + 'model.export("MODEL.onnx", format="onnx")')
_SAFETENSORS = Format(
    "a file of weights (safetensors), without a network",
    "load them into their network, and " + _TO_ONNX + 'torch.onnx.export(module, example, "MODEL.onnx")',
)
_ARRAYS = Format("an archive of arrays (.npz)")
_OPENVINO = Format("a model in OpenVINO's own format (.xml)", "give the ONNX file that it was made of")
_AFTER_VERSION = (b"\x12", b"\x1a", b"\x22", b"*", b"0", b":", b"B", b"r")
"""Protobuf tags that follow ONNX's first field, ir_version: the producer, a text, the graph, opsets or metadata."""
_MAGIC: tuple[tuple[int, bytes, Format], ...] = (
    (4, b"TFL3", _TFLITE),  # FlatBuffers: the identifier follows the offset of the root table
    (4, b"ORTM", Format("a model in ONNX Runtime's own format (.ort)", "give the ONNX file that it was made of")),
    (0, b"\x89HDF\r\n\x1a\n", _KERAS),
    (0, b"\x80\x02", _PYTORCH),  # pickle protocol 2, which torch.save wrote before its files were archives
    (0, b"GGUF", Format("a GGUF model", _TO_ONNX + "the tool of the network's maker")),
    (0, b"\x93NUMPY", Format("an array (.npy)", "store it with numpy.savez")),
    (0, b"PK\x05\x06", Format("an empty archive")),
)
"""Offset and bytes of magic numbers."""
_MEMBERS: tuple[tuple[tuple[str, ...], Format], ...] = (
    (("data.pkl", "serialized_exported_program.json", "models/model.json"), _PYTORCH),
    (("model.weights.h5",), _KERAS),
    ((".npy",), _ARRAYS),
)
"""Ends of names of files in a ZIP archive."""
_RECORDS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"hyperperiod_windows", "windows", "models"}), "a plan (timetable.json)"),
    (frozenset({"models", "streams"}), "a workload (app.toml)"),
    (frozenset({"models", "rate_hz"}), "a workload (app.toml)"),
    (frozenset({"models", "window_ms"}), "a workload (app.toml)"),
    (frozenset({"fingerprint", "entries"}), "a latency table (*.table.json)"),
    (frozenset({"ensembles"}), "trees (*.trees.json)"),
    (frozenset({"programs", "units"}), "a program (program.json)"),
    (frozenset({"kind", "units"}), "the description of a target (target.toml)"),
    (frozenset({"kind", "processor"}), "the description of a target (target.toml)"),
    (frozenset({"layers", "total_cycles"}), "a report of framefit cycles"),
    (frozenset({"layers", "plain_sum_ns"}), "an estimate of framefit estimate"),
)
"""Keys of records. The first that has all of its keys names the file."""
_LONG_KEY = re.compile(
    rb"(?<![\w\"'-])(?:[\w\"'-]+[ \t]*\.[ \t]*){100}"
)  # of TOML: tomllib's time grows with the square of its length


def format_of(path: Path) -> Format | None:
    """The format of a file, if it is one that is often given in the place of another.

    Args:
        path: of a file; only its beginning is read, of archives the list of files, of JSON and TOML everything.

    Returns:
        ``None``: it cannot be read, or is of none of these formats.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head[:1] == b"\x08" and 0 < head[1] < 32 and head[2:3] in _AFTER_VERSION:
            return ONNX
        for offset, magic, known in _MAGIC:
            if head[offset : offset + len(magic)] == magic:
                return known
        if head.startswith(b"PK\x03\x04"):
            return _archive(path)
        if head[8:10] == b'{"' and head[7] == 0:
            return _SAFETENSORS  # the length of the header, then its JSON
        if head.lstrip()[:1] == b"<" and b"<net " in head:
            return _OPENVINO
        return _record(path, head)
    except (OSError, ValueError, IndexError, RecursionError, zipfile.BadZipFile, msgspec.DecodeError):
        return None


def _archive(path: Path) -> Format | None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return next((known for ends, known in _MEMBERS if any(name.endswith(ends) for name in names)), None)


def _record(path: Path, head: bytes) -> Format | None:
    """The record that a JSON or TOML file holds, by its top keys."""
    keys: Collection[str]
    if path.suffix == ".toml":
        keys = decode_toml(path.read_bytes().removeprefix(codecs.BOM_UTF8)).keys()
    elif head.lstrip()[:1] == b"{":
        keys = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw]).keys()
    else:
        return None
    return next((Format(name) for known, name in _RECORDS if known <= set(keys)), None)


def decode_toml(raw: bytes) -> dict[str, Any]:
    """The data of a TOML text. Raises: ValueError: it is malformed; RecursionError: it is nested too deeply."""
    if _LONG_KEY.search(raw):
        raise ValueError("a key of more than 100 parts")
    data: dict[str, Any] = msgspec.toml.decode(raw)
    return data


def check_model(model: str | Path) -> None:
    """Check that a command names a built-in model or an ONNX file. Raises: InputError: see :func:`check_model_file`."""
    path, name = Path(model), str(model)
    if name in BUILTIN_MODELS:
        return
    if not path.suffix and path.name == name and not path.exists():
        near = difflib.get_close_matches(name, BUILTIN_MODELS, n=1)
        raise InputError(
            f"no built-in model {name!r}, and no such file" + (f"; did you mean {near[0]!r}?" if near else ""),
            remedy=f"choose from {', '.join(BUILTIN_MODELS)}, or give the path of an ONNX file",
        )
    check_model_file(path)


def check_model_file(path: Path) -> None:
    """Check, without reading the graph, that a path names an ONNX file.

    Raises:
        InputError: there is no such file, or it is visibly something else; the message names what, and how that becomes
            an ONNX file.
    """
    if path.is_dir():
        raise InputError("is a folder, not an ONNX file", where=path, remedy=_folder_remedy(path))
    if not path.is_file():
        raise InputError("no such file", where=path, remedy="check the path")
    known = format_of(path)
    if known is not None and known != ONNX:
        raise InputError(
            f"is {known.name}, not {ONNX.name}", where=path, remedy=known.remedy or "give the path of an ONNX file"
        )


def check_workload_file(path: Path) -> None:
    """Check that the path of a workload is no folder. Raises: InputError: it is; the message says what to give."""
    if not path.is_dir():
        return
    if (path / "app.toml").is_file():
        remedy = f"give the workload in it, {path / 'app.toml'}"
    elif (path / "timetable.json").is_file():
        remedy = f"it holds a plan, which framefit run {path} takes; only a workload is planned"
    elif any(path.glob("*.onnx")):
        remedy = f"write a workload for the models in it: framefit init {path / '*.onnx'}"
    else:
        remedy = "give the path of an app.toml"
    raise InputError("is a folder, not a workload (app.toml)", where=path, remedy=remedy)


def _folder_remedy(folder: Path) -> str:
    if (folder / "saved_model.pb").is_file():
        return _TO_ONNX + f"python -m tf2onnx.convert --saved-model {folder} --output MODEL.onnx"
    files = sorted(folder.glob("*.onnx"))
    return f"give a file in it, such as {files[0]}" if files else "give the path of an ONNX file"
