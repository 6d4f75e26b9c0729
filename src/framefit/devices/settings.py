"""Options of verbs for described devices."""

from __future__ import annotations

from typing import Annotated, Any

from framefit.core.settings import (
    InputConstants,
    InputShapes,
    ModelFile,
    OverwriteFile,
    Settings,
    SupportingUnit,
    option,
)

__all__ = ["CyclesSettings"]


class CyclesSettings(Settings, kw_only=True):
    """Options of ``framefit cycles``."""

    model: ModelFile
    target: Annotated[
        Any, option("Built-in target, or path of a target.toml.", python="a target", metavar="TARGET", names="target")
    ]
    unit: SupportingUnit = None
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
    activations: Annotated[
        str | None,
        option(
            "Result of framefit sparsify, its result.json: each layer's zeros are those of its chosen model.",
            metavar="PATH",
        ),
    ] = None
    shapes: InputShapes = {}
    constants: InputConstants = {}
    output: Annotated[
        str | None, option("Write the report to this file (JSON).", "-o", "--output", metavar="PATH", names="new path")
    ] = None
    force: OverwriteFile = False
