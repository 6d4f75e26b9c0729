"""Options of the verbs that ask described devices."""

from __future__ import annotations

from typing import Annotated, Any

from framefit.core.settings import Settings, option

__all__ = ["CyclesSettings"]


class CyclesSettings(Settings, kw_only=True):
    """Options of ``framefit cycles``."""

    model: Annotated[
        Any, option("ONNX file, or name of a built-in model.", python="a model", argument=True, metavar="MODEL")
    ]
    target: Annotated[Any, option("Built-in target, or path of a target.toml.", python="a target", metavar="TARGET")]
    unit: Annotated[
        str | None, option("Unit of the target (default: the first unit that supports the model).", metavar="UNIT")
    ] = None
    fuse: Annotated[
        bool,
        option(
            "Count normalisation and activation as part of the convolution or product before them, as accelerators do; "
            "otherwise every node is a layer.",
            "--fuse/--no-fuse",
        ),
    ] = True
    weight_sparsity: Annotated[
        float | tuple[float, ...] | None,
        option(
            "Part of the weights that is zero, 0 to 1 (default: as in the model).",
            python="one for each layer",
            metavar="RATIO",
        ),
    ] = None
    activation_sparsity: Annotated[
        float | tuple[float, ...],
        option("Part of each layer's input that is zero, 0 to 1.", python="one for each layer", metavar="RATIO"),
    ] = 0.0
    shapes: Annotated[
        dict[str, tuple[int, ...]],
        option(
            "Shape of an input with dynamic dimensions.",
            "--shape",
            metavar="INPUT=1,3,H,W",
            example="image=1,3,240,320",
        ),
    ] = {}
    constants: Annotated[
        dict[str, Any],
        option("Value of an input that never changes.", "--constant", metavar="INPUT=NUMBER", example="sr=16000"),
    ] = {}
    output: Annotated[str | None, option("Write the report to this file (JSON).", "-o", "--output", metavar="PATH")] = (
        None
    )
    force: Annotated[bool, option("Overwrite an existing file.")] = False
