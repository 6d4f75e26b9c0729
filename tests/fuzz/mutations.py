"""Files made wrong: valid ones with a few things changed, from a random source that a test or a benchmark brings."""

from __future__ import annotations

import contextlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message

__all__ = ["Mutation", "bytes_changed", "json_changed", "npz_changed", "onnx_changed", "toml_changed"]

Mutation = Callable[[Random, bytes], bytes]

WHOLE = (0, 1, -1, 2, 7, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30)
REAL = (0.5, -0.5, 1e-300, 5e-324, 1e300, -1e300, 1e18, math.nan, math.inf, -math.inf)
TEXT = ("", " ", "x", "../../../../x", "/x", "..", "a\0b", "\ud800", "é", "x" * 5000, "a:b", "</script>", "%s{0}", "-1")


def bytes_changed(random: Random, raw: bytes) -> bytes:
    """Bits flipped; runs of bytes overwritten, removed, repeated or put in; the end cut off."""
    found = bytearray(raw)
    for _ in range(random.choice((1, 1, 2, 4))):
        at, length = random.randrange(len(found) + 1), random.choice((1, 1, 2, 4, 8, 64, 600))
        match random.randrange(6):
            case 0 if at < len(found):
                found[at] ^= 1 << random.randrange(8)
            case 1:
                found[at : at + length] = random.choice((b"\0", b"\xff", b"\x7f", b"9")) * length
            case 2:
                del found[at : at + length]
            case 3:
                found[at:at] = found[at : at + length]
            case 4:
                found[at:at] = bytes(random.randrange(256) for _ in range(min(length, 8)))
            case _:
                del found[at:]
    return bytes(found)


def odd_value(random: Random) -> Any:
    """What a key does not expect."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: random.choice(WHOLE),
        lambda: random.choice(REAL),
        lambda: random.choice(TEXT),
        lambda: random.choice((True, False, None, [], {}, [[]], {"": 0})),
        lambda: [random.choice(WHOLE)] * random.choice((1, 2, 3, 100)),
    )
    return random.choice(kinds)()


# JSON and TOML ----------------------------------------------------------------------------------


def json_changed(random: Random, raw: bytes) -> bytes:
    """Keys removed, renamed and doubled; odd values; elements doubled, removed, in another order; deep nesting."""
    data = json.loads(raw)
    doubled: set[int] = set()
    for _ in range(random.choice((1, 1, 2, 3))):
        holders = list(_holders(data))
        holder = random.choice(holders)
        if isinstance(holder, dict):
            key = random.choice(list(holder))
            match random.randrange(6):
                case 0:
                    del holder[key]
                case 1:
                    holder[random.choice(TEXT)] = holder.pop(key)
                case 2:
                    doubled.add(id(holder))
                case _:
                    holder[key] = _odd(random, holder[key])
        else:
            at = random.randrange(len(holder))
            match random.randrange(6):
                case 0:
                    del holder[at]
                case 1:
                    holder.insert(random.randrange(len(holder) + 1), holder[at])
                case 2:
                    random.shuffle(holder)
                case 3:
                    holder *= 2
                case _:
                    holder[at] = _odd(random, holder[at])
    text = _json(data, doubled).encode("utf-8", "surrogatepass")
    if random.randrange(20) == 0:  # in the place of some value
        depth = random.choice((50, 900, 100_000))
        text = text.replace(b": ", b": " + random.choice((b"[", b'{"a": ')) * depth, 1)
    return bytes_changed(random, text) if random.randrange(6) == 0 else text


def _odd(random: Random, value: Any) -> Any:
    """An odd value, mostly of the type that was there."""
    near: tuple[Any, ...] = ()
    if isinstance(value, str):
        near = TEXT
    elif isinstance(value, int) and not isinstance(value, bool):
        near = (*WHOLE, value + 1, value - 1, -value, value * 1000)
    elif isinstance(value, float):
        near = (*REAL, -value, value * 1e6)
    return random.choice(near) if near and random.randrange(3) else odd_value(random)


def _holders(data: Any) -> Iterator[dict[str, Any] | list[Any]]:
    """Objects and arrays that hold something, the outermost first."""
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list) and one:
            yield one
            waiting += one.values() if isinstance(one, dict) else one


def _json(data: Any, doubled: set[int]) -> str:
    """Text, with NaN where it is, in which some objects have all of their keys twice."""
    if isinstance(data, dict):
        pairs = [f"{json.dumps(key)}: {_json(value, doubled)}" for key, value in data.items()]
        return "{" + ", ".join(pairs * (2 if id(data) in doubled else 1)) + "}"
    if isinstance(data, list):
        return "[" + ", ".join(_json(item, doubled) for item in data) + "]"
    return json.dumps(data)


def toml_changed(random: Random, raw: bytes) -> bytes:
    """Lines removed, doubled and moved, values that are odd, tables that nobody knows."""
    lines = raw.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines))
        key, equals, _ = lines[at].partition("=")
        match random.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines.insert(random.randrange(len(lines) + 1), lines[at])
            case 2:
                lines[at] = f"{key} = {random.choice(('[' * 100_000, '{ a = ' * 900, '1979-05-27', '0x' + 'f' * 40))}"
            case 3:
                lines.insert(at, random.choice(("[x]", "[[models]]", "x = 1", "[" + "a." * 3000 + "a]", '"" = 0')))
            case _ if equals:
                lines[at] = f"{key}= {_toml(odd_value(random))}"
            case _:
                pass
        lines = lines or ["x = 1"]
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    return bytes_changed(random, text) if random.randrange(6) == 0 else text


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return str(value)  # nan and inf are TOML, too
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


# Archives of arrays -----------------------------------------------------------------------------


def npz_changed(random: Random, raw: bytes) -> bytes:
    """Arrays removed, renamed, doubled, of other types and shapes, cut off; headers that claim what is not there."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(list(members))
        match random.randrange(7):
            case 0:
                del members[name]
            case 1:
                members[random.choice(("../../x.npy", "x.npy", "x", "/x.npy", "meta.npy"))] = members.pop(name)
            case 2:
                members[name] = bytes_changed(random, members[name])
            case 3:
                members[name] = _npy(_claimed(random), random.choice(("<i8", "<f4", "|u1", "<U9", "|O", "|V0")))
            case 4:
                members[name] = random.choice((b"", b"no array", b"\0" * (1 << 20)))
            case _:
                members[name] = _other(random, members[name])
        members = members or {"x.npy": b""}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return bytes_changed(random, buffer.getvalue()) if random.randrange(4) == 0 else buffer.getvalue()


def _claimed(random: Random) -> tuple[int, ...]:
    """Shapes that are not there."""
    return random.choice(((1 << 40,), (1 << 31, 1 << 31), (-4,), (), (0, 1 << 40), (1 << 63,), (3,), (1,) * 33))


def _npy(shape: tuple[int, ...], dtype: str, content: bytes = b"") -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    return header.getvalue() + content


def _other(random: Random, content: bytes) -> bytes:
    """The same array with values, shape or type changed."""
    try:
        array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except ValueError:  # it was changed already
        return content
    if array.size > 1_000_000:  # of nothing: elements may have no bytes
        return content
    flat = array.reshape(-1).copy()
    if len(flat) and array.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            odd = np.asarray(random.choice(REAL if array.dtype.kind == "f" else WHOLE[:13]))
            flat[random.randrange(len(flat)) :: random.choice((1, 3, len(flat)))] = odd.astype(array.dtype)
    elif len(flat) and array.dtype.kind == "U":
        flat[random.randrange(len(flat))] = random.choice(TEXT[:7])
    changed = random.choice((flat.reshape(array.shape), flat, flat[:-1], flat[:0], flat[None], np.append(flat, flat)))
    if random.randrange(4) == 0:
        with contextlib.suppress(ValueError), np.errstate(all="ignore"):
            changed = changed.astype(random.choice(("f8", "u8", "i1", "?", "c16", "U3", "S3", "M8[ns]")))
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(changed), allow_pickle=False)
    return buffer.getvalue()


# Networks ---------------------------------------------------------------------------------------


def onnx_changed(random: Random, raw: bytes) -> bytes:
    """Fields of any message cleared, doubled, reordered, given odd values, or those of another place."""
    try:
        model = onnx.ModelProto.FromString(raw)
    except DecodeError:
        return raw
    names = [name for node in model.graph.node for name in (*node.input, *node.output)] or ["x"]
    for _ in range(random.choice((1, 1, 2, 3))):
        _change(random, model, names)
    changed = model.SerializeToString()
    return bytes_changed(random, changed) if random.randrange(5) == 0 else changed


def _change(random: Random, message: Message, names: list[str]) -> None:
    """One field of a message, or of one within it."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = random.choice(fields)
    if field.message_type is not None and random.randrange(6):
        inner = random.choice(value) if field.is_repeated and value else value
        if isinstance(inner, Message):
            _change(random, inner, names)
            return
    if field.is_repeated and value:
        at = random.randrange(len(value))
        match random.randrange(4):
            case 0:
                del value[at]
            case 1 if field.message_type is not None:
                value.add().CopyFrom(value[at])
            case 1:
                value.append(value[at])
            case _ if field.message_type is None:
                value[at] = _scalar(random, value[at], names)
            case _:
                del value[at:]
    elif field.message_type is not None or random.randrange(4) == 0:
        message.ClearField(field.name)
    else:
        with contextlib.suppress(ValueError):  # enums of version 2 have no other values
            setattr(message, field.name, _scalar(random, value, names))


def _scalar(random: Random, value: Any, names: list[str]) -> Any:
    if isinstance(value, bytes):
        return bytes_changed(random, value)
    if isinstance(value, str):
        return random.choice(
            (*names, "", "Relu", "Conv", "If", "Loop", "ConstantOfShape", "Reshape", "../../x", "a" * 3000)
        )
    if isinstance(value, float):
        return random.choice((0.0, -1.0, 1e30, math.nan, math.inf))
    near = (value + 1, value - 1, 0, -1, 7, 99, (1 << 31) - 1, 1 << 40, (1 << 63) - 1)
    return random.choice(near if value >= 0 else (0, -(1 << 31)))
