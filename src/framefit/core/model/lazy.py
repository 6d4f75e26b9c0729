"""The ONNX libraries, loaded at their first use: a program that runs stored segments never needs them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    import onnx_ir.passes.common as passes
    from google.protobuf import message as protobuf
else:

    class _Module:
        """A module that is imported when a name of it is used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            value = getattr(importlib.import_module(self._name), attribute)
            setattr(self, attribute, value)
            return value

    onnx, ir, passes = _Module("onnx"), _Module("onnx_ir"), _Module("onnx_ir.passes.common")
    protobuf = _Module("google.protobuf.message")
