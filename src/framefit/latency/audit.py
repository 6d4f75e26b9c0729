"""Additivity: how far the latency of whole networks differs from the sum of their layers, and how to correct it.

A few networks are measured whole, others than those to be estimated later. Their latency without overhead is fitted
by a factor for each class of layers, a part of what layers take more in turn with others than alone, a time for each
node, and a time for each byte of weights. That part grows with a network's weights, since it evicts its own layers from
the caches; by which size it grows is chosen by the networks that are left out. None of these is negative (nonnegative
least squares; Lawson and Hanson, 1974, "Solving Least Squares Problems", chapter 23); each has a prior around what
changes nothing (ridge regression; Hastie, Tibshirani and Friedman, 2009, "The Elements of Statistical Learning",
section 3.4.1), and a class that no audited network has is taken to be like the others. The fit is of relative errors,
and outliers have little weight (Huber, 1964), as has a network that evictions cost far more than others, since it alone
would say what they cost (Mallows' weights; Hampel et al., 1986, "Robust Statistics", section 6.3).
The correction applies only if it lowers the error of networks that were left out of its fit (ibid., section 7.10).

Nothing is multiplied onto the whole sum of networks that exceed a cache: what they lack is additive. Weights that a
core's own cache holds while their layer is measured alone come from farther away in a network, since other layers
have evicted them.

The networks that are audited where the user names none differ in what a sum of layers may miss. Small ones differ in
the number of nodes for their time; those of real size have 5 to 40 MB of weights in layers that each fit a core's own
cache of 1 MiB. Blocks have few sizes and networks share layers, so that few distinct layers have to be measured for
them. Weights are random.

The correction belongs to the machine: it is stored under the device's fingerprint, with the durations of two launches
by which it is checked each time that it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import cache_folder, read_record
from framefit.core.latency_table import (
    LARGE_BYTES,
    AdditivityAudit,
    AuditedNetwork,
    Correction,
    LatencyTable,
    MachineCorrection,
)
from framefit.core.model import GraphBuilder, Model
from framefit.devices.device import Device
from framefit.errors import InputError
from framefit.latency.estimate import Estimator
from framefit.latency.rounds import Rounds
from framefit.latency.terms import CLASSES, evicted_share, layers_digest, terms_of
from framefit.stats import Z90, huber_weights

Floats = npt.NDArray[np.float64]
LEAST_NETWORKS = 3
_GAIN = 0.9  # a correction has to reduce the left-out error to this part of what it was,
_SURE = 2.0  # and by this many standard errors of the gain
_FAR = 0.2  # of a network's latency: an error beyond it counts as this one
_LEVERAGE = 2.0  # times the median of what evictions cost networks: one that they cost more has less weight
_ITERATIONS = 20
_SCATTER = 0.04  # of a network's latency: the prior of what no term explains
_COMMON, _OWN = 0.3, 0.05  # prior standard deviations of factors around 1: what classes share, what each one has
_SHARE = 0.3  # the same, of the part of a usual network's latency that evictions, nodes or weights take
_REMAINING = 0.05  # of nodes and weights, where it was measured what evictions cost the layers
_EVICTING = tuple(1 << power for power in range(20, 27))  # bytes: between a second- and a third-level cache
_OFTEN = 0.9  # of left-out networks: their standard deviation follows from it, and one strange network is not in it
_FORM = 3  # of what is measured: corrections by another form of it are not used
MOST_ERROR = 0.1  # standard deviation of left-out networks: a correction that is worse is not applied
_LEAST_ERROR = 0.005  # the error of an audit of few networks is not stated as less; where caches count, not as less
# than what no term explains: audited networks resemble each other more than those of other makers do
_TERMS = (*CLASSES, "evicted_ratio", "weight_ns_per_byte", "node_ns")


def audited_network(model: Model, measured_ns: float, estimator: Estimator) -> AuditedNetwork:
    """What a correction is fitted to: a network that was measured whole, and the sums of its layers.

    Args:
        model: it has the device's fused groups as layers.
        measured_ns: of its launch, overhead included.
        estimator: of a table with its layers.

    Raises:
        InputError: a layer has no entry.
    """
    estimate = estimator.estimate(model)
    sums = estimator.class_sums(model)
    terms = terms_of(model)
    return AuditedNetwork(
        name=model.name,
        measured_ns=round(measured_ns),
        plain_sum_ns=estimate.plain_sum_ns,
        overhead_ns=estimate.overhead_ns,
        class_ns={name: ns for name, ns in sums.items() if ns},
        evicted_ns=round(sum(estimator.evicted_ns(model))),
        weight_bytes=terms.weight_bytes,
        nodes=terms.nodes,
        digest=layers_digest(model),
    )


def audit(networks: Sequence[AuditedNetwork]) -> AdditivityAudit:
    """Fit a correction to networks that were measured whole.

    None of them should be estimated with it later: for these there is ``left_out_ns``.

    Raises:
        InputError: fewer than 3 networks, or a network that took no longer than its overhead.
    """
    if len(networks) < LEAST_NETWORKS:
        raise InputError(
            f"an audit needs at least {LEAST_NETWORKS} measured networks, got {len(networks)}",
            remedy="measure more networks whole, of other architectures than those to be estimated",
        )
    whole = np.asarray([network.measured_ns for network in networks], np.float64)
    overhead = np.asarray([network.overhead_ns for network in networks], np.float64)
    for network in networks:
        if network.measured_ns <= network.overhead_ns:
            raise InputError(
                f"measured as {network.measured_ns} ns, which is not more than its overhead",
                where=network.name,
                remedy="audit with larger networks, or measure the overhead again",
            )
    measured = whole - overhead
    evicting = _EVICTING if any(network.evicted_ns for network in networks) else _EVICTING[:1]
    tried = [(np.asarray([_columns(network, size) for network in networks]), size) for size in evicting]
    left_outs = [_left_out(columns, measured) for columns, _ in tried]
    best = int(np.argmin([_errors(left_out, measured).mean() for left_out in left_outs]))
    (columns, evicting_bytes), left_out = tried[best], left_outs[best]
    coefficients = _fitted(columns, measured)
    plain = columns @ _NEUTRAL
    if not _better(_errors(left_out, measured), _errors(plain, measured)):
        coefficients, left_out = _NEUTRAL, plain
    corrected = columns @ coefficients
    values = dict(zip(_TERMS, coefficients.tolist(), strict=True))
    seen = [
        name
        for name, column, value in zip(_TERMS, columns.T, coefficients - _NEUTRAL, strict=True)
        if column.any() and value
    ]
    off, weight = np.abs(left_out / measured - 1), _bounded(columns, measured)
    least = _SCATTER if columns[:, _EVICTED].any() else _LEAST_ERROR
    large = np.asarray([network.weight_bytes > LARGE_BYTES for network in networks])
    whole_off = np.abs((left_out + overhead) / whole - 1)
    return AdditivityAudit(
        correction=Correction(
            class_factors={name: values[name] for name in CLASSES if name in seen},
            evicted_ratio=values["evicted_ratio"],
            evicting_bytes=evicting_bytes if values["evicted_ratio"] else 0,
            weight_ns_per_byte=values["weight_ns_per_byte"],
            node_ns=values["node_ns"],
            error_ratio=_deviation(off, weight, least),
            large_error_ratio=_deviation(off[large], weight[large], least) if large.sum() >= LEAST_NETWORKS else 0.0,
            networks=len(networks),
        ),
        terms=tuple(seen),
        networks=tuple(
            msgspec.structs.replace(network, corrected_ns=round(with_all), left_out_ns=round(without))
            for network, with_all, without in zip(networks, corrected + overhead, left_out + overhead, strict=True)
        ),
        plain_error_ratio=float(np.median(np.abs((plain + overhead) / whole - 1))),
        left_out_error_ratio=float(np.median(whole_off)),
        greatest_error_ratio=float(whole_off.max()),
    )


_NEUTRAL = np.asarray([float(name in CLASSES) for name in _TERMS])
_EVICTED = _TERMS.index("evicted_ratio")


def _deviation(off: Floats, weight: Floats, least: float) -> float:
    """Standard deviation of errors, from a quantile of them."""
    order = np.argsort(off)
    before = np.cumsum(weight[order]) - weight[order]
    places = before / max(before[-1], 1e-30)
    return max(float(np.interp(_OFTEN, places, off[order])) / Z90, least)


def _columns(network: AuditedNetwork, evicting_bytes: int) -> list[float]:
    by_class = (network.class_ns.get(name, 0.0) for name in CLASSES)
    evicted = network.evicted_ns * evicted_share(network.weight_bytes, evicting_bytes)
    return [*by_class, evicted, network.weight_bytes, network.nodes]


def _left_out(columns: Floats, measured: Floats) -> Floats:
    """Each network's latency by the fit to all others."""
    every = np.arange(len(measured))
    return np.asarray([columns[i] @ _fitted(columns[every != i], measured[every != i]) for i in every])


def _errors(made: Floats, measured: Floats) -> Floats:
    """Relative errors, in which a network that nothing describes counts as one that is far off, and no more."""
    return np.minimum(np.abs(made / measured - 1), _FAR)


def _better(off: Floats, before: Floats) -> bool:
    """Whether errors are certainly smaller than those of the plain sum."""
    gain = before - off
    by_chance = float(gain.std(ddof=1)) / np.sqrt(len(gain))
    return bool(off.mean() <= _GAIN * before.mean() and gain.mean() >= _SURE * by_chance)


def _bounded(columns: Floats, measured: Floats) -> Floats:
    """Weight of each network: less than 1 where evictions cost it far more than they cost others."""
    evicted = columns[:, _EVICTED] / measured
    if not evicted.all():
        return np.ones(len(measured))
    return np.minimum(_LEVERAGE * np.median(evicted) / evicted, 1.0)


def _fitted(columns: Floats, measured: Floats) -> Floats:
    """Coefficients of the terms, from networks' columns and their latencies without overhead."""
    relative = columns / measured[:, None]
    weight = bounded = _bounded(columns, measured)
    usual = np.maximum(np.sqrt(((relative * weight[:, None]) ** 2).mean(axis=0)), 1e-30)
    covariance = _COMMON**2 * np.outer(_NEUTRAL, _NEUTRAL)
    share = np.where(columns[:, _EVICTED].any() & (np.arange(len(_TERMS)) > _EVICTED), _REMAINING, _SHARE)
    covariance += np.diag(np.where(_NEUTRAL > 0, _OWN, share / usual) ** 2)
    prior = _SCATTER**2 * np.linalg.inv(covariance)
    coefficients = _NEUTRAL
    for _ in range(_ITERATIONS):
        weighted = relative * weight[:, None]
        gram = weighted.T @ relative + prior
        scale = 1 / np.sqrt(np.diag(gram))  # columns of one length
        moment = weighted.sum(axis=0) + prior @ _NEUTRAL
        coefficients = scale * _nonnegative(gram * scale[:, None] * scale, moment * scale)
        weight = bounded * huber_weights(1 - relative @ coefficients, 1e-6)
    return np.asarray(coefficients)


def _nonnegative(gram: Floats, moment: Floats) -> Floats:
    """The x >= 0 of least x'Gx / 2 - m'x, by active sets (Lawson and Hanson, 1974, algorithm NNLS)."""
    x, free = np.zeros(len(moment)), np.zeros(len(moment), np.bool_)
    while True:
        gradient = np.where(free, 0.0, moment - gram @ x)
        if gradient.max() <= 1e-12:
            return x
        free[gradient.argmax()] = True
        while True:
            target = np.zeros(len(x))
            target[free] = np.linalg.solve(gram[np.ix_(free, free)], moment[free])
            below = free & (target <= 0)
            if not below.any():
                x = target
                break
            step = float((x[below] / (x[below] - target[below])).min())
            x += step * (target - x)
            free &= x > 1e-15


def with_audit(
    table: LatencyTable, measured: Sequence[tuple[Model, float]], unit: str, known: Sequence[AuditedNetwork] = ()
) -> LatencyTable:
    """The table with the correction fitted to whole networks, or with a warning that says why there is none.

    Networks (fused groups as layers, and ns of a launch) are left out where one of their layers could not be
    measured. ``known`` ones were measured before, on this machine; they alone correct the table where with the others
    the error is too great. A correction that leaves too great an error is not applied.
    """
    estimator = Estimator(msgspec.structs.replace(table, correction=None), unit)
    networks, reasons = {network.digest: network for network in known}, []
    for model, ns in measured:
        try:
            network = audited_network(model, ns, estimator)
        except InputError as error:
            reasons.append(f"{model.name}: {error.where or 'the table'}: {error.what}")
        else:
            networks[network.digest] = network
    warnings = list(table.warnings)
    try:
        result = audit(tuple(networks.values()))
        if (refused := too_great(result, "by the calibration alone")) and known and len(networks) > len(known):
            warnings.append(refused)
            result = audit(known)
    except InputError as error:
        warnings.append(f"not audited: {'; '.join([error.what, *reasons])}")
        return msgspec.structs.replace(table, warnings=tuple(warnings))
    if refused := too_great(result):
        warnings.append(refused)
        return msgspec.structs.replace(table, correction=None, audit=None, warnings=tuple(warnings))
    return msgspec.structs.replace(table, correction=result.correction, audit=result, warnings=tuple(warnings))


def too_great(result: AdditivityAudit, how: str = "not") -> str:
    """Why a correction must not be applied, since it leaves too great an error; "" where it may be."""
    if result.correction.error_ratio <= MOST_ERROR:
        return ""
    return (
        f"{how} corrected: networks left out of the fit differ by {100 * result.correction.error_ratio:.0f} % (at most "
        f"{100 * MOST_ERROR:.0f} %): stop other programs (framefit doctor), and measure again"
    )


_CHECKED = "audit-residual"  # the network that is launched to compare two days
_CHECK_ROUNDS, _CHECKS, _WAIT_NS = 5, 3, 2_000_000_000
SPEED_RATIO = 0.2  # by which a launch may differ from what it took during the calibration


def correction_path(device: Device, unit: str) -> Path:
    """Where the correction of a unit of this device is stored: by its fingerprint."""
    facts = msgspec.json.encode((device.fingerprint(), unit, _FORM), order="sorted")
    return cache_folder() / "corrections" / f"{hashlib.sha256(facts).hexdigest()[:16]}.json"


def stored_correction(device: Device, unit: str) -> MachineCorrection | None:
    """The correction that ``framefit calibrate`` stored; ``None``: there is none, or another version wrote it."""
    path = correction_path(device, unit)
    try:
        return read_record(path, MachineCorrection) if path.is_file() else None
    except InputError:
        return None


def check_launches(device: Device, unit: str) -> dict[str, float]:
    """Durations of the reference and of a small network, in ns, measured anew in a fraction of a second."""
    rounds = Rounds(device, unit, resident=device.capabilities.lowers)
    network = next(model for model in _small_networks(0) if model.name == _CHECKED)
    places = {"reference": 0, _CHECKED: rounds.add("network", network)}
    rounds.measure(_CHECK_ROUNDS)
    return {name: rounds.median_ns(place) for name, place in places.items()}


def check_correction(stored: MachineCorrection, device: Device) -> tuple[bool, str]:
    """Compare two launches with what they took during the calibration; where they differ, wait and launch them again.

    Returns:
        Whether the correction still applies: networks and single layers have changed alike; and a warning, or "".
    """
    for left in reversed(range(_CHECKS)):
        launches_ns = check_launches(device, stored.unit)
        ratio, network = (launches_ns[name] / stored.launches_ns[name] for name in ("reference", _CHECKED))
        slower, apart = (max(one, 1 / one) - 1 > SPEED_RATIO for one in (ratio, network / ratio))
        if not slower and not apart:
            return True, ""
        if left:
            device.clock.sleep_until_ns(device.clock.now_ns() + _WAIT_NS)
    seen = (
        f"the reference launch takes {ratio:.2f} times as long as during the calibration of {stored.date}, a network "
        f"{network:.2f} times"
    )
    if apart:
        return False, f"{seen}: the stored correction is not applied; calibrate again (framefit calibrate --force)"
    return True, f"{seen}: stop other programs (framefit doctor), or calibrate again (framefit calibrate --force)"


_SIDE = 48
_WIDTHS = (24, 48, 96)  # channels of the stages; each halves the side of the one before
_Block = Callable[[GraphBuilder, str], str]


def audit_networks(seed: int = 0) -> tuple[Model, ...]:
    """Make small networks (plain, residual, inverted residual, branched, excited, a decoder), and such of real size."""
    return (*_small_networks(seed), *_chained_networks(seed))


def _small_networks(seed: int) -> Iterator[Model]:
    stages: dict[str, tuple[_Block, tuple[int, ...]]] = {
        "audit-plain": (_plain, (1, 2, 3)),
        "audit-residual": (_residual, (1, 1, 1)),
        "audit-residual-deep": (_residual, (2, 5, 8)),
        "audit-inverted": (_inverted, (1, 2, 4)),
        "audit-branches": (_branches, (2, 2, 3)),
        "audit-excited": (_excited, (2, 4, 8)),
    }
    yield from (_staged(name, block, depth, seed) for name, (block, depth) in stages.items())
    yield _decoder(seed)


def _chained_networks(seed: int) -> list[Model]:
    """Networks of 5 to 40 MB of weights, at most 0.95 MB in each layer."""
    stages: dict[str, tuple[int, tuple[tuple[_Block, int, int], ...]]] = {  # side, then block, channels and count
        "audit-large-plain": (14, ((_plain, 144, 16),)),
        "audit-large-pointwise": (7, ((_pointwise, 480, 40),)),
        "audit-large-residual": (28, ((_residual, 64, 3), (_residual, 128, 5), (_residual, 160, 4))),
        "audit-large-inverted": (14, ((_inverted, 96, 8), (_inverted, 224, 6))),
        "audit-large-dense": (1, ((_fully_connected, 480, 24),)),
        "audit-large-attention": (8, ((_attention, 192, 6),)),
        "audit-large-tokens": (14, ((_attention, 192, 4),)),
    }
    models = []
    for name, (side, blocks) in stages.items():
        b = GraphBuilder(name, seed)
        x = b.input("image", (1, 16, side, side))
        for index, (block, width, count) in enumerate(blocks):
            x = b.conv(x, width, stride=2 if index else 1, norm=True, activation="Relu")
            if block is _fully_connected:
                x = b.op("Flatten", x)
            for _ in range(count):
                x = block(b, x)
        pooled = x if blocks[-1][0] is _fully_connected else b.op("Flatten", b.op("GlobalAveragePool", x))
        b.output(b.dense(pooled, 10))
        models.append(b.build())
    return models


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


def _pointwise(b: GraphBuilder, x: str) -> str:
    return b.conv(x, b.channels(x), kernel=1, norm=True, activation="Relu")


def _fully_connected(b: GraphBuilder, x: str) -> str:
    return b.dense(x, b.channels(x, -1), activation="Relu")


def _attention(b: GraphBuilder, x: str) -> str:
    """Vaswani et al., 2017, "Attention Is All You Need", without normalisation; a position of the image is a token."""
    _, width, height, side = b.shape(x)
    tokens, heads = height * side, 3
    shapes = [
        b.constant(np.asarray(shape, np.int64))
        for shape in (
            (1, width, tokens),
            (1, tokens, heads, width // heads),
            (1, tokens, width),
            (1, width, height, side),
        )
    ]
    y = b.op("Transpose", b.op("Reshape", x, shapes[0]), perm=[0, 2, 1])
    parts = [b.op("MatMul", y, b.weight((width, width), width)) for _ in range(3)]
    query, key, value = (
        b.op("Transpose", b.op("Reshape", part, shapes[1]), perm=[0, 2, 3, 1] if index == 1 else [0, 2, 1, 3])
        for index, part in enumerate(parts)
    )
    z = b.op("MatMul", b.op("Softmax", b.op("MatMul", query, key), axis=-1), value)
    z = b.op("Reshape", b.op("Transpose", z, perm=[0, 2, 1, 3]), shapes[2])
    y = b.op("Add", y, b.op("MatMul", z, b.weight((width, width), width)))
    z = b.op("Relu", b.op("MatMul", y, b.weight((width, 4 * width), width)))
    y = b.op("Add", y, b.op("MatMul", z, b.weight((4 * width, width), 4 * width)))
    return str(b.op("Reshape", b.op("Transpose", y, perm=[0, 2, 1]), shapes[3]))


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


def _excited(b: GraphBuilder, x: str) -> str:
    """Howard et al., 2019, "Searching for MobileNetV3": many small nodes beside the convolutions."""
    wide = 2 * b.channels(x)
    y = b.op("HardSwish", b.conv(x, wide, kernel=1, norm=True))
    y = b.op("HardSwish", b.conv(y, wide, groups=wide, norm=True))
    z = b.conv(b.op("GlobalAveragePool", y), wide // 4, kernel=1, activation="Relu")
    y = b.op("Mul", y, b.op("HardSigmoid", b.conv(z, wide, kernel=1)))
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
