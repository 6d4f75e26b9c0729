"""Files that claim to be what would fill the memory, go on without end, or lead elsewhere."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from fuzzed_readers import READERS, Trial
from onnx import TensorProto, helper

import framefit
from framefit import InputError
from framefit.core.program import Program
from framefit.core.trees import Forest
from trees_cases import random_ensemble

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)


def network(
    nodes: list[onnx.NodeProto], *weights: onnx.TensorProto, functions: tuple[onnx.FunctionProto, ...] = ()
) -> bytes:
    """A file of these nodes from "x" to "y"."""
    graph = helper.make_graph(nodes, "g", [X], [Y], list(weights))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, functions=functions).SerializeToString())


def weight(**fields: object) -> onnx.TensorProto:
    """Four numbers, and other fields."""
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    tensor.MergeFrom(onnx.TensorProto(**fields))
    return tensor


def elsewhere(location: str) -> bytes:
    """A network whose weight lies in another file."""
    tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return network([helper.make_node("Add", ["x", "w"], ["y"])], tensor)


def filled(shape: list[int], reader: str) -> bytes:
    """A constant of this shape on the way to the output."""
    sizes = helper.make_tensor("s", TensorProto.INT64, [len(shape)], shape)
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node(reader, ["c"], ["d"])]
    nodes += [helper.make_node("Cast", ["d"], ["e"], to=1), helper.make_node("Add", ["x", "e"], ["y"])]
    return network(nodes, sizes)


def branching(given: str, opset: int) -> bytes:
    """An ``If`` on the way to the output, whose branches give a tensor of this name."""
    output = helper.make_tensor_value_info(given, TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "branch", [], [output])
    chosen = helper.make_tensor("w", TensorProto.BOOL, [], [True])
    node = helper.make_node("If", ["w"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([node], "g", [X], [Y], [chosen])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString())


def calling(depth: int, *, itself: bool = False) -> bytes:
    """Functions of which each calls the next one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(depth):
        name = "F0" if itself else f"F{level + 1}"
        inner = [helper.make_node(name, ["a"], ["t"], domain="own"), helper.make_node(name, ["t"], ["b"], domain="own")]
        body = inner if itself or level + 1 < depth else [helper.make_node("Relu", ["a"], ["b"])]
        functions.append(helper.make_function("own", f"F{level}", ["a"], ["b"], body, opsets))
    return network([helper.make_node("F0", ["x"], ["y"], domain="own")], functions=tuple(functions))


def archive(claimed: int = 0, **members: bytes) -> bytes:
    """An ``.npz`` whose first member claims to have so many bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
        if claimed:
            file.infolist()[0].file_size = claimed
    return buffer.getvalue()


def header(shape: tuple[int, ...], dtype: str = "<i8") -> bytes:
    """The head of an array without its numbers."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def picture(width: int, height: int) -> bytes:
    """A PNG that claims this size."""
    size = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 1000)
    chunks = (struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (size, data))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


TRACE = ("time_ns", "id", "type", "core", "kinds")
CASES: dict[str, tuple[str, str, Callable[[], bytes], str]] = {
    "weights that are not there": (
        "network",
        "plain.onnx",
        lambda: network([helper.make_node("Add", ["x", "w"], ["y"])], weight(dims=[1 << 38])),
        "'w' is larger than the file",
    ),
    "weights without any data": (
        "network",
        "plain.onnx",
        lambda: network(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 1 << 40, 3]),
        ),
        "'w' is larger than the file",
    ),
    "an attribute of another type": (
        "network",
        "plain.onnx",
        lambda: network([helper.make_node("Gemm", ["x", "w"], ["y"], transB="yes")], weight()),
        "attribute 'transB' of Gemm '' has the wrong type",
    ),
    "a branch that gives nothing": (
        "network",
        "plain.onnx",
        lambda: branching("", 17),
        "no node produces the tensor ''",
    ),
    "an opset that there is not": ("network", "plain.onnx", lambda: branching("b", 0), "opset 0"),
    "weights of less than nothing": (
        "network",
        "plain.onnx",
        lambda: network([helper.make_node("Add", ["x", "w"], ["y"])], weight(dims=[-1])),
        "data that do not match its shape",
    ),
    "weights in another folder": ("network", "plain.onnx", lambda: elsewhere("../../x.bin"), "outside"),
    "weights in a system file": ("network", "plain.onnx", lambda: elsewhere("/etc/hostname"), "outside"),
    "a function that calls itself": ("network", "plain.onnx", lambda: calling(1, itself=True), "'F0' calls itself"),
    "functions that double thirty times": ("network", "plain.onnx", lambda: calling(30), "536870912 nodes"),
    "an archive that claims a terabyte": (
        "frames",
        "frames.npz",
        lambda: archive(1 << 40, x=b"\0" * 1000),
        "claims to hold 1099511627776 bytes",
    ),
    "an array that claims a terabyte": ("frames", "frames.npz", lambda: archive(x=header((1 << 37,))), "readable"),
    "a terabyte of nothing": ("frames", "frames.npz", lambda: archive(x=header((1 << 40,), "|V0")), "of no bytes"),
    "a member that is no array": ("frames", "frames.npz", lambda: archive(x=b"text"), "not a readable .npz"),
    "a trace of terabytes": (
        "trace",
        "own.npz",
        lambda: archive(**dict.fromkeys(TRACE, header((1 << 37,)))),
        "not a readable .npz",
    ),
    "data of terabytes": (
        "data",
        "data.npz",
        lambda: archive(**dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), header((1 << 37, 4)))),
        "not a readable .npz",
    ),
    "a picture of terabytes": ("frames", "image.png", lambda: picture(1 << 20, 1 << 20), "cannot be read as an image"),
    "a table nested without end": ("table", "board.table.json", lambda: b"[" * 1_000_000, "not valid JSON"),
    "a workload nested without end": ("workload", "app.toml", lambda: b"a = " + b"[" * 100_000, "not valid TOML"),
    "keys nested without end": ("workload", "app.toml", lambda: b"a." * 100_000 + b"a = 1", "more than 100 parts"),
    "a number of a million digits": (
        "workload",
        "app.toml",
        lambda: b"rate_hz = " + b"9" * 1_000_000,
        "not valid TOML",
    ),
    "numbers beyond 64 bits": (
        "record",
        "timetable.json",
        lambda: b'{"feasible": true, "worst_slack_ns": 100000000000000000000}',
        "whole number of 67 bits",
    ),
    "events nested without end": ("trace", "chrome.json", lambda: b'{"traceEvents": [' + b"[" * 100_000, "none of 0"),
    "launches in another folder": (
        "profile",
        "program.json",
        lambda: b'{"window_ns": 1, "units": [], "programs": [], "launches": "../../launches.npz"}',
        "must be the name of a file",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file_is_refused(case: str, tmp_path: Path) -> None:
    """With one error that says why, before time or memory is taken."""
    reader, name, content, says = CASES[case]
    trial = Trial(READERS[reader], tmp_path)
    path = next(path for path in trial.valid if path.name == name)
    error = trial.read(path, content())
    assert error is not None
    assert says in error.what
    assert error.remedy


@pytest.mark.parametrize("reader", ["Identity", "NonZero", "Shape"])
def test_a_constant_of_terabytes_is_not_made(reader: str, tmp_path: Path) -> None:
    """It is a layer that nobody has computed; what only asks for its shape gets that."""
    trial = Trial(READERS["network"], tmp_path)
    path = next(iter(trial.valid))
    assert trial.read(path, filled([1 << 20, 1 << 20], reader)) is None


def test_what_a_file_of_trees_calls_its_groups_names_no_folder_elsewhere(tmp_path: Path) -> None:
    """Two groups have a folder each, below the output folder or not at all."""
    first = random_ensemble(np.random.default_rng(0))
    for name in ("..", "../x", "/x", "report.json"):
        other = msgspec.structs.replace(first, name=name)
        with pytest.raises(InputError, match="are not possible names of folders"):
            framefit.rtl(Forest(model="net", ensembles=(first, other)), output=tmp_path / "a" / "rtl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "/x", "a/b", "..\\x", "a\0"])
def test_launches_lie_beside_their_program(name: str) -> None:
    """Anything but a file's name is refused where the program is made."""
    with pytest.raises(ValueError, match="name of a file"):
        Program(window_ns=1, units=(), programs=(), launches=name)
