"""Kinds of operation that event packets tell apart, as trace units of accelerators do."""

from __future__ import annotations

__all__ = ["KINDS", "TRANSFER", "event_kind"]

TRANSFER = "transfer"
_KINDS = {
    "conv": "Conv ConvTranspose ConvInteger QLinearConv FusedConv NhwcConv NhwcFusedConv DeformConv",
    "matmul": "MatMul Gemm Einsum MatMulInteger QLinearMatMul FusedMatMul FusedGemm QGemm MatMulIntegerToFloat "
    "DynamicQuantizeMatMul Attention MultiHeadAttention",
    "recurrent": "LSTM GRU RNN",
    "pad_pool": "Pad MaxPool AveragePool GlobalMaxPool GlobalAveragePool LpPool GlobalLpPool MaxUnpool MaxRoiPool "
    "NhwcMaxPool QLinearAveragePool QLinearGlobalAveragePool",
    "reformat": "Transpose Reshape Concat Slice Split Squeeze Unsqueeze Flatten Gather GatherND GatherElements Scatter "
    "ScatterND ScatterElements Tile Expand Resize Upsample DepthToSpace SpaceToDepth Cast CastLike Identity "
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear ReverseSequence Compress ConcatFromSequence "
    "QLinearConcat ReorderInput ReorderOutput Dropout",
    "reduce": "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
    "ReduceLogSumExp ArgMax ArgMin CumSum TopK Softmax LogSoftmax QLinearSoftmax Hardmax LayerNormalization "
    "InstanceNormalization GroupNormalization RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "LpNormalization MeanVarianceNormalization",
    "control": "If Loop Scan SequenceMap",
}
_KIND_OF = {op: kind for kind, ops in _KINDS.items() for op in ops.split()}
KINDS = (*_KINDS, "elementwise", TRANSFER)
"""All kinds that a simulated accelerator's packets can have."""

_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")  # beside an operator they cost nothing
_MAIN = ("conv", "matmul", "recurrent", "control")


def event_kind(op: str) -> str:
    """The kind of a layer: of its heaviest operator.

    Args:
        op: operators in order, joined by "+", as in :class:`framefit.core.model.Layer`.

    Example:
        >>> event_kind("Conv+BatchNormalization+Relu")
        'conv'
    """
    ops = [one for one in op.split("+") if one not in _CONVERSIONS] or op.split("+")
    kinds = [_KIND_OF.get(one, "elementwise") for one in ops]
    return next((kind for kind in kinds if kind in _MAIN), kinds[0])
