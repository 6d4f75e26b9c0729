"""What a runtime makes of a model: its own operators, layouts and copies between layouts, as layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from google.protobuf.message import DecodeError

from framefit.core.model.model import Model
from framefit.core.model.reading import canonical, parsed
from framefit.errors import DeviceError, FramefitError

__all__ = ["lowered"]

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def lowered(model: Model, optimised: bytes, ask: Callable[[bytes, Sequence[str]], Shapes]) -> Model:
    """The graph that a runtime saved after optimising a model, each of its operators a layer.

    Args:
        model: as given to the runtime.
        optimised: the ONNX file that the runtime saved.
        ask: runs an ONNX file and tells type and shape of tensors that it returns: ONNX's inference
            does not know a runtime's own operators.

    Raises:
        DeviceError: the saved file is no ONNX model.
    """
    try:
        graph = parsed(optimised)
        canonical(graph, {}, {}, model.name)
        unknown = [v for node in graph.graph for v in node.outputs if v.name and (v.shape is None or v.dtype is None)]
        if unknown:
            outputs = list(graph.graph.outputs)
            graph.graph.outputs.extend(value for value in unknown if value not in outputs)
            found = ask(ir.to_proto(graph).SerializeToString(), [str(value.name) for value in unknown])
            del graph.graph.outputs[len(outputs) :]
            for value in unknown:
                if str(value.name) in found:
                    dtype, shape = found[str(value.name)]
                    value.shape = ir.Shape(shape)
                    value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    except (DecodeError, ValueError, FramefitError) as error:
        raise DeviceError(f"the runtime saved a graph that cannot be read: {error}", where=model.name) from error
    return Model(graph, name=model.name, assumed=model.assumed, handed_on=model.handed_on, lowered=True)
