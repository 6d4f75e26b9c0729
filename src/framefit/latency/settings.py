"""Options of ``framefit measure``, ``framefit calibrate`` and ``framefit estimate``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from framefit.core.settings import InputConstants, InputShapes, ModelFile, OverwriteFile, Settings, option

__all__ = ["CalibrateSettings", "EstimateSettings", "MeasureSettings"]


class MeasureSettings(Settings, kw_only=True):
    """Options of ``framefit measure``."""

    model: Annotated[
        Any,
        option(
            "ONNX file, or name of a built-in model.",
            python="a model, or several",
            argument=True,
            metavar="MODEL",
            names="model",
        ),
    ] = None
    target: Annotated[
        Any,
        option(
            "Built-in target, or path of a target.toml.",
            python="a target, or an open device",
            metavar="TARGET",
            names="target",
        ),
    ] = "cpu"
    unit: Annotated[str | None, option("Unit of the target (default: its first one).", metavar="UNIT")] = None
    grid: Annotated[
        Any,
        option(
            "TOML file of layers to measure, beside the model's or instead of them.",
            python="a record",
            metavar="SPEC.toml",
            names="path",
        ),
    ] = None
    max_shapes: Annotated[
        int | None,
        option(
            "Measure at most this many shapes of the grid, those that say most about all of it (default: all, or with "
            "--max-seconds as many as there is time for).",
            ge=1,
        ),
    ] = None
    auxiliary: Annotated[
        Literal["auto", "avgpool", "conv1x1", "conv3x3"],
        option("Layer that is appended to each measured layer; auto: one that reads the layer's own memory layout."),
    ] = "auto"
    overhead: Annotated[
        Literal["regression", "auxiliary"],
        option(
            "How the cost of a launch is separated from that of its layer: by a regression over all launches, or by "
            "measuring the auxiliary layers alone."
        ),
    ] = "regression"
    fusions: Annotated[
        Literal["device", "measured"],
        option("Which nodes form one layer: those that the device says it fuses, or those that measurements show."),
    ] = "device"
    audit: Annotated[
        Any,
        option(
            "Network to measure as a whole, to correct sums of layers by (at least three); auto: built-in networks; "
            "none: no audit (default: auto with a model, none with a grid alone).",
            python="models",
            metavar="MODEL",
            many=True,
            names="models",
        ),
    ] = None
    repeats: Annotated[
        int | None,
        option("Samples of every launch (default: 100, and more for layers whose intervals are wide).", ge=1),
    ] = None
    max_seconds: Annotated[
        float | None,
        option(
            "Stop after this many seconds on the device's clock, and keep what was measured.", metavar="SECONDS", ge=0
        ),
    ] = None
    shapes: InputShapes = {}
    constants: InputConstants = {}
    output: Annotated[
        str | None, option("Write the table to this file (JSON).", "-o", "--output", metavar="PATH", names="new path")
    ] = None
    resume: Annotated[bool, option("Continue the measurement whose table is at --output.")] = False
    force: OverwriteFile = False
    seed: Annotated[int, option("Random seed for weights, inputs and resampling.", ge=0)] = 0


class CalibrateSettings(Settings, kw_only=True):
    """Options of ``framefit calibrate``."""

    networks: Annotated[
        Any,
        option(
            "Network of your own to calibrate by, beside the built-in ones.",
            python="models",
            argument=True,
            metavar="MODEL",
            many=True,
            names="model",
        ),
    ] = ()
    target: Annotated[
        Any,
        option(
            "Built-in target, or path of a target.toml.",
            python="a target, or an open device",
            metavar="TARGET",
            names="target",
        ),
    ] = "cpu"
    unit: Annotated[str | None, option("Unit of the target (default: its first one).", metavar="UNIT")] = None
    repeats: Annotated[
        int | None,
        option("Samples of every launch (default: 100, and more for layers whose intervals are wide).", ge=1),
    ] = None
    max_seconds: Annotated[
        float | None, option("Stop after this many seconds on the device's clock.", metavar="SECONDS", ge=0)
    ] = None
    force: Annotated[
        bool, option("Replace a stored correction even where the device's speed has changed since then.")
    ] = False
    seed: Annotated[int, option("Random seed for weights, inputs and resampling.", ge=0)] = 0


class EstimateSettings(Settings, kw_only=True):
    """Options of ``framefit estimate``."""

    model: ModelFile
    table: Annotated[
        Any,
        option(
            "Latency table of the device, or a store that has one (framefit push).",
            python="a table",
            metavar="PATH_OR_STORE",
            names="path",
        ),
    ]
    target: Annotated[
        Any,
        option(
            "Device: a built-in target, or path of a target.toml (default: as in the table).",
            python="a target",
            metavar="TARGET",
            names="target",
        ),
    ] = None
    unit: Annotated[str | None, option("Unit of the table (default: its first one).", metavar="UNIT")] = None
    fallback: Annotated[
        bool,
        option(
            "Estimate layers that the table lacks, by interpolation between measured shapes or by the analytical "
            "model, instead of refusing."
        ),
    ] = False
    any_fingerprint: Annotated[bool, option("Use the table although it was measured on another device.")] = False
    shapes: InputShapes = {}
    constants: InputConstants = {}
    output: Annotated[
        str | None,
        option("Write the estimate to this file (JSON).", "-o", "--output", metavar="PATH", names="new path"),
    ] = None
    force: OverwriteFile = False
