"""Eight bits by ONNX Runtime's own tool: static, with ``QuantizeLinear`` and ``DequantizeLinear`` in the graph."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model, folded
from framefit.errors import DeviceError

__all__ = ["quantised", "weight_nodes"]

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def weight_nodes(model: Model) -> tuple[str, ...]:
    """Names of the nodes whose multiplications eight bits make cheaper, in order."""
    return tuple(node.name for nodes in model.nodes for node in nodes if node.op in _WEIGHTED)


def quantised(model: Model, inputs: npt.NDArray[np.float32], *, but: Collection[str] = ()) -> Model:
    """The same network in int8, weights by channel; normalisations are folded into them first.

    Ranges of activations are the least and greatest values on ``inputs``: unsigned activations and signed weights, what
    the runtime's kernels on x86 and ARM take (ONNX Runtime, "Quantize ONNX Models", static quantization).

    Args:
        model: of one input, in floating point.
        inputs: examples of it, n x ..., float32; as many at once as the model takes.
        but: names of nodes that stay as they are.

    Raises:
        DeviceError: the tool cannot use the model.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        given, prepared, made = (Path(folder) / f"{name}.onnx" for name in ("given", "prepared", "made"))
        folded(model).save(given)
        try:
            # Marks the file as prepared, or the tool warns by the root logger; the graph is optimised at run time.
            quant_pre_process(given, prepared, skip_optimization=True, skip_symbolic_shape=True)
            quantize_static(
                prepared,
                made,
                _Reader(model, inputs),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=sorted(but),
            )
        except Exception as error:  # the tool's errors have no common class
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DeviceError(f"ONNX Runtime's tool cannot quantise it: {message}", where=model.name) from error
        return Model.load(made, name=model.name)


class _Reader:
    """Hands out examples as the tool asks for them: as many at once as the model takes."""

    def __init__(self, model: Model, inputs: npt.NDArray[np.float32]) -> None:
        (tensor,) = model.inputs
        batch = (tensor.shape or (1,))[0]
        whole = len(inputs) // batch * batch
        parts = inputs[:whole].reshape(-1, batch, *inputs.shape[1:])
        self._parts: Iterator[dict[str, Any]] = ({tensor.name: part} for part in parts)

    def get_next(self) -> dict[str, Any] | None:
        """The next ones, or ``None``: there are no more."""
        return next(self._parts, None)
