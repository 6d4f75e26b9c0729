"""An audit within a measuring campaign: which networks, and what they make of the table.

The networks that are audited where the user names none differ in what a sum of layers may miss:
how many boundaries there are for the time, how much stays in one layout, how many weights there
are. Blocks come at few sizes, and the same layers in several networks, so that few distinct layers
have to be measured for them. Weights are random.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from framefit.core.latency_table import LatencyTable
from framefit.core.model import GraphBuilder, Model
from framefit.devices.device import Device
from framefit.errors import FramefitError, InputError
from framefit.latency.audit import audit
from framefit.latency.estimate import Estimator
from framefit.latency.rounds import Rounds

__all__ = ["audit_networks", "campaign_seconds", "with_audit"]


_TRIED = 3
_OVERHEAD_RUNS = 60  # of auxiliary layers of two kinds
_WARM_UP = 4  # launches
_SIDE = 48
_WIDTHS = (24, 48, 96)  # of the stages; each halves the side of the one before


def audit_networks(seed: int = 0) -> tuple[Model, ...]:
    """Eight small networks: plain, residual, inverted residual, branched, a decoder and dense layers.

    Args:
        seed: of the weights.
    """
    stages: dict[str, tuple[_Block, tuple[int, ...]]] = {
        "audit-plain": (_plain, (1, 2, 3)),
        "audit-plain-wide": (_plain, (4, 4, 1)),
        "audit-residual": (_residual, (1, 1, 1)),
        "audit-residual-deep": (_residual, (2, 5, 8)),
        "audit-inverted": (_inverted, (1, 2, 4)),
        "audit-branches": (_branches, (2, 2, 3)),
    }
    staged = [_staged(name, block, depth, seed) for name, (block, depth) in stages.items()]
    return (*staged, _decoder(seed), _dense(seed))


def campaign_seconds(
    device: Device,
    unit: str,
    models: Sequence[Model],
    networks: Sequence[Model],
    layers: tuple[int, int],
    repeats: int,
    seed: int = 0,
) -> float:
    """About what measuring layers of models and of audited networks takes, from a few launches of these.

    A layer is launched with an auxiliary layer, which is also launched alone; the networks are
    launched whole, and their layers once more.

    Args:
        device: to measure on.
        unit: of its target.
        models: whose layers are measured; one that does not run whole counts by its layers alone.
        networks: measured whole, too.
        layers: distinct ones of the models, and of the networks beyond those.
        repeats: samples of every launch.
        seed: of inputs.
    """
    rounds = Rounds(device, unit, seed)
    parts = 0.0
    for role, group in (("layer", models), ("network", networks)):
        for model in group:
            with contextlib.suppress(FramefitError):
                run = rounds.runs[rounds.add(role, model)]
                shortest = min(run.launch().duration_ns for _ in range(_TRIED))
                parts += shortest * (2 if role == "network" else 1)
    small = min(rounds.runs[0].launch().duration_ns for _ in range(_TRIED))
    parts += small * (2 * sum(layers) + _OVERHEAD_RUNS)
    return parts * (repeats + _WARM_UP) / 1e9


def with_audit(table: LatencyTable, measured: Sequence[tuple[Model, float]], unit: str) -> LatencyTable:
    """The table with the correction that networks give which were measured whole.

    Args:
        table: of the same campaign.
        measured: networks, fused groups as layers, and what a launch takes in ns; one with a layer that
            could not be measured is left out.
        unit: where they were measured.

    Returns:
        The table, with correction and audit, or with a warning that says why there is none.
    """
    told, reasons = [], []
    for model, ns in measured:
        try:
            Estimator(table, unit).estimate(model)
        except InputError as error:
            reasons.append(f"{model.name}: {error.where or 'the table'}: {error.what}")
        else:
            told.append((model, ns))
    try:
        found = audit(told, table, unit)
    except InputError as error:
        why = "; ".join([error.what, *reasons])
        return msgspec.structs.replace(table, warnings=(*table.warnings, f"not audited: {why}"))
    return msgspec.structs.replace(table, correction=found.correction, audit=found)


_Block = Callable[[GraphBuilder, str], str]


def _staged(name: str, block: _Block, depth: tuple[int, ...], seed: int) -> Model:
    b = GraphBuilder(name, seed)
    x = _stem(b)
    for stage, (width, count) in enumerate(zip(_WIDTHS, depth, strict=True)):
        if stage:
            x = b.conv(x, width, stride=2, norm=True, activation="Relu")
        for _ in range(count):
            x = block(b, x)
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 10))
    return b.build()


def _stem(b: GraphBuilder) -> str:
    return b.conv(b.input("image", (1, 3, 2 * _SIDE, 2 * _SIDE)), _WIDTHS[0], stride=2, norm=True, activation="Relu")


def _plain(b: GraphBuilder, x: str) -> str:
    return b.conv(x, b.channels(x), norm=True, activation="Relu")


def _residual(b: GraphBuilder, x: str) -> str:
    """He et al., 2016, "Deep Residual Learning for Image Recognition"."""
    y = b.conv(_plain(b, x), b.channels(x), norm=True)
    return str(b.op("Relu", b.op("Add", x, y)))


def _inverted(b: GraphBuilder, x: str) -> str:
    """Sandler et al., 2018, "MobileNetV2"."""
    wide = 4 * b.channels(x)
    y = b.conv(x, wide, kernel=1, norm=True, activation="Relu")
    y = b.conv(y, wide, groups=wide, norm=True, activation="Relu")
    return str(b.op("Add", x, b.conv(y, b.channels(x), kernel=1, norm=True)))


def _branches(b: GraphBuilder, x: str) -> str:
    """Iandola et al., 2016, "SqueezeNet": the fire module."""
    half = b.channels(x) // 2
    y = b.conv(x, half, kernel=1, norm=True, activation="Relu")
    wide = b.conv(y, half, norm=True, activation="Relu")
    return str(b.op("Concat", b.conv(y, half, kernel=1, norm=True, activation="Relu"), wide, axis=1))


def _decoder(seed: int) -> Model:
    """Ronneberger et al., 2015, "U-Net"."""
    b = GraphBuilder("audit-decoder", seed)
    x = _stem(b)
    skips = []
    for width in _WIDTHS[1:]:
        skips.append(x)
        x = _plain(b, b.conv(x, width, stride=2, norm=True, activation="Relu"))
    for skip in reversed(skips):
        x = b.op("Concat", b.upsample(x), skip, axis=1)
        x = _plain(b, b.conv(x, b.channels(skip), kernel=1, norm=True, activation="Relu"))
    b.output(b.op("Sigmoid", b.conv(x, 1, kernel=1)))
    return b.build()


def _dense(seed: int) -> Model:
    """Layers with more weights than most caches hold, and little work for them."""
    b = GraphBuilder("audit-dense", seed)
    x = b.op("Flatten", b.op("MaxPool", _stem(b), kernel_shape=[4, 4], strides=[4, 4]))
    for _ in range(2):
        x = b.dense(x, 1024, activation="Relu")
    b.output(b.dense(x, 10))
    return b.build()
