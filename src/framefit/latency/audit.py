"""Additivity: how far the latency of whole networks differs from the sum of their layers, and how to correct it.

A few networks are measured whole, others than those to be estimated later. What they take beyond the sum
of their layers and the launch's overhead is fitted by few terms: a scale, a constant for each launch and for
each boundary between layers, bytes that stay in one layout, weights that the cache does not hold. A term is
used only where it lowers the error of networks that were left out of the fit (Hastie, Tibshirani and Friedman,
2009, "The Elements of Statistical Learning", sections 3.3.2 and 7.10); the fit is of relative errors, and
outliers have little weight (Huber, 1964).

Where a runtime made the layers (:meth:`framefit.devices.device.Device.lowered`), all terms are used at once,
with a ratio for each class of layers and a prior on the distance of each from 0 (ridge regression, section
3.4.1): the best of many terms on a few noisy networks is often a coincidence. There is no ratio for what
exceeds a core's own cache: a single audited network determined it, from 0.05 to 0.54 from one campaign to the
next, and it was multiplied onto every larger network.

The networks that are audited where the user names none differ in what a sum of layers may miss: the number
of boundaries for the time, the part that stays in one layout, the number of weights. Blocks have few sizes and
networks share layers, so that few distinct layers have to be measured for them. Weights are random.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import AdditivityAudit, AuditedNetwork, Correction, LatencyTable
from framefit.core.model import GraphBuilder, Model
from framefit.errors import InputError
from framefit.latency.estimate import Estimator
from framefit.latency.terms import CLASSES, Terms, class_sums, terms_of
from framefit.stats import huber_weights

Floats = npt.NDArray[np.float64]
LEAST_NETWORKS = 3
_GAIN = 0.9  # a term has to reduce the left-out error to this part of what it was,
_SURE = 2.0  # and by this many standard errors of the gain: the best of many terms gains something by chance
_ITERATIONS = 20
_RIDGE = 0.02  # part of a network's latency by which a term differs from 0 at one standard deviation
_SCATTER = 0.04  # of a network's latency: the prior of what no term explains
_RATIO = 0.1  # prior standard deviations: of a class's ratio,
_BOUNDARY_NS = 500.0  # of a node's extra time behind a node of another kind: 0.05 to 0.5 us in chains here,
_LAUNCH_NS = 1000.0  # of the error of a launch's constant, which was measured with small launches
_CACHES = tuple(2**power for power in range(18, 28, 2))  # 256 KiB to 64 MiB
_LEAST_ERROR = 0.005  # the error of an audit of few networks is not stated as less


@dataclass(frozen=True)
class _Term:
    """A key of the correction, and its factor in each network.

    Attributes:
        prior: standard deviation of the coefficient around 0 before anything is measured; 0: no prior.
    """

    key: str
    column: Floats
    cache_bytes: int = 0
    prior: float = 0.0


@dataclass(frozen=True)
class _Networks:
    """Measured latencies without overhead, and sums of layers, of each network; in nanoseconds."""

    measured: Floats
    plain: Floats

    def __len__(self) -> int:
        return len(self.measured)

    def fitted(self, terms: Sequence[_Term], rows: npt.NDArray[np.bool_]) -> Floats:
        """Coefficients of the terms from these networks, for columns divided by the measured latencies."""
        if not terms:
            return np.zeros(0)
        columns = np.stack([term.column for term in terms], axis=1)[rows] / self.measured[rows, None]
        goal = 1 - self.plain[rows] / self.measured[rows]
        usual = np.maximum(np.sqrt((columns**2).mean(axis=0)), 1e-30)
        prior = np.asarray([term.prior for term in terms])
        size = np.where(prior > 0, 1 / np.maximum(prior, 1e-30), usual)
        ridge = np.diag(np.where(prior > 0, _SCATTER, _RIDGE) ** 2)
        columns, weight = columns / size, np.ones(int(rows.sum()))
        solution = np.zeros(len(terms))
        for _ in range(_ITERATIONS):
            weighted = columns * weight[:, None]
            solution = np.linalg.solve(weighted.T @ columns + ridge, weighted.T @ goal)
            weight = huber_weights(goal - columns @ solution, 1e-6)
        return np.asarray(solution / size)

    def predicted(self, terms: Sequence[_Term], coefficients: Floats) -> Floats:
        """Latency of every network as these terms predict it."""
        parts = (coefficient * term.column for coefficient, term in zip(coefficients, terms, strict=True))
        return self.plain + sum(parts, np.zeros(len(self)))

    def left_out(self, terms: Sequence[_Term]) -> Floats:
        """The same, with each network predicted from a fit of the others."""
        every = np.arange(len(self))
        return np.asarray([self.predicted(terms, self.fitted(terms, every != i))[i] for i in every])

    def off(self, predicted: Floats) -> Floats:
        """Size of each relative error."""
        return np.abs(predicted / self.measured - 1)

    def error(self, predicted: Floats) -> float:
        """Robust standard deviation of the relative error: the mean of its size, for a normal distribution."""
        return float(self.off(predicted).mean() * np.sqrt(np.pi / 2))


def audit(measured: Sequence[tuple[Model, float]], table: LatencyTable, unit: str) -> AdditivityAudit:
    """Fit a table's correction to networks that were measured whole.

    The networks have the device's fused groups as layers; each is given with the latency of its launch in ns,
    overhead included. None of them should be estimated from the table later. A correction in the table is ignored;
    the result holds the new one, and the error of each network's prediction with and without it.

    Raises:
        InputError: fewer than 3 networks, a network that took no longer than its overhead, or a layer
            without an entry.
    """
    if len(measured) < LEAST_NETWORKS:
        raise InputError(
            f"an audit needs at least {LEAST_NETWORKS} measured networks, got {len(measured)}",
            remedy="measure more networks whole, of other architectures than those to be estimated",
        )
    estimator = Estimator(msgspec.structs.replace(table, correction=None), unit)
    estimates = [estimator.estimate(model) for model, _ in measured]
    plain = np.asarray([estimate.plain_sum_ns for estimate in estimates], np.float64)
    overhead = np.asarray([estimate.overhead_ns for estimate in estimates], np.float64)
    networks = _Networks(np.asarray([ns for _, ns in measured], np.float64) - overhead, plain)
    for (model, ns), rest in zip(measured, networks.measured, strict=True):
        if rest <= 0:
            raise InputError(
                f"measured as {ns:.0f} ns, which is not more than its overhead",
                where=model.name,
                remedy="audit with larger networks, or measure the overhead again",
            )
    counted = [terms_of(model) for model, _ in measured]
    if all(model.lowered for model, _ in measured):
        sums = [
            class_sums(model.layers, (layer.latency_ns for layer in estimate.layers))
            for (model, _), estimate in zip(measured, estimates, strict=True)
        ]
        terms = _likely(plain, counted, sums)
        error = networks.error(networks.left_out(terms))
    else:
        terms, error = _chosen(networks, _candidates(plain, counted))
    coefficients = networks.fitted(terms, np.ones(len(networks), np.bool_))
    values: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for term, coefficient in zip(terms, coefficients, strict=True):
        (ratios if term.key in CLASSES else values)[term.key] = float(coefficient)
    if "scale" in values:
        values["scale"] += 1
    correction = Correction(
        **values,
        class_ratios=ratios,
        cache_bytes=max((term.cache_bytes for term in terms), default=0),
        error_ratio=max(error, _LEAST_ERROR),
        networks=len(networks),
    )
    whole = networks.measured + overhead
    corrected = networks.predicted(terms, coefficients) + overhead
    left_out = networks.left_out(terms) + overhead
    return AdditivityAudit(
        correction=correction,
        terms=tuple(term.key for term in terms),
        networks=tuple(
            AuditedNetwork(
                name=model.name,
                measured_ns=round(ns),
                plain_sum_ns=estimate.plain_sum_ns,
                overhead_ns=estimate.overhead_ns,
                corrected_ns=round(with_all),
                left_out_ns=round(without),
            )
            for (model, ns), estimate, with_all, without in zip(measured, estimates, corrected, left_out, strict=True)
        ),
        plain_error_ratio=float(np.median(np.abs((plain + overhead) / whole - 1))),
        left_out_error_ratio=float(np.median(np.abs(left_out / whole - 1))),
    )


def _candidates(plain: Floats, terms: Sequence[Terms]) -> list[_Term]:
    """All terms that differ between networks, or from 0."""
    working = np.asarray([network.working_bytes for network in terms])
    weights = np.asarray([network.weight_bytes for network in terms], np.float64)
    return _not_zero(
        _Term("scale", plain),
        _Term("launch_ns", np.ones(len(plain))),
        _Term("boundary_ns", np.asarray([network.boundaries for network in terms], np.float64)),
        _Term("layout_ns_per_byte", np.asarray([network.layout_bytes for network in terms], np.float64)),
        *(_Term("cold_ns_per_byte", weights * (working > size), size) for size in _CACHES),
    )


def _likely(plain: Floats, terms: Sequence[Terms], sums: Sequence[dict[str, float]]) -> list[_Term]:
    """All terms at once, each with a normal prior of its distance from 0."""
    boundaries = np.asarray([network.boundaries for network in terms], np.float64)
    return _not_zero(
        *(_Term(name, np.asarray([network[name] for network in sums]), prior=_RATIO) for name in CLASSES),
        _Term("boundary_ns", boundaries, prior=_BOUNDARY_NS),
        _Term("launch_ns", np.ones(len(plain)), prior=_LAUNCH_NS),
    )


def _not_zero(*terms: _Term) -> list[_Term]:
    return [term for term in terms if term.column.any()]


def _chosen(networks: _Networks, candidates: Sequence[_Term]) -> tuple[list[_Term], float]:
    """Terms that lower the left-out error most, and the error at the end.

    Terms are added one by one, or in pairs where none helps alone: a scale below 1 and a cost of boundaries
    conceal each other.
    """
    chosen: list[_Term] = []
    predicted = networks.plain
    most = (len(networks) - 1) // 2  # at least two networks for each coefficient
    while True:
        for count in (1, 2):
            better = _step(networks, candidates, chosen, predicted, count) if len(chosen) + count <= most else None
            if better is not None:
                chosen, predicted = better
                break
        else:
            return chosen, networks.error(predicted)


def _step(
    networks: _Networks, candidates: Sequence[_Term], chosen: list[_Term], predicted: Floats, count: int
) -> tuple[list[_Term], Floats] | None:
    """``count`` more terms and their left-out predictions, if these are certainly better than ``predicted``."""
    trials = []
    for more in itertools.combinations(candidates, count):
        terms = [*chosen, *more]
        if len({term.key for term in terms}) == len(terms):
            trials.append((networks.left_out(terms), terms))
    if not trials:
        return None
    best, terms = min(trials, key=lambda trial: networks.error(trial[0]))
    gain = networks.off(predicted) - networks.off(best)
    by_chance = float(gain.std(ddof=1)) / np.sqrt(len(networks))
    if networks.error(best) > _GAIN**count * networks.error(predicted) or gain.mean() < _SURE * by_chance:
        return None
    return terms, best


def with_audit(table: LatencyTable, measured: Sequence[tuple[Model, float]], unit: str) -> LatencyTable:
    """The table with the correction fitted to whole networks, or with a warning that says why there is none.

    Networks (fused groups as layers, and ns of a launch) are left out where one of their layers could not be
    measured.
    """
    usable, reasons = [], []
    for model, ns in measured:
        try:
            Estimator(table, unit).estimate(model)
        except InputError as error:
            reasons.append(f"{model.name}: {error.where or 'the table'}: {error.what}")
        else:
            usable.append((model, ns))
    try:
        result = audit(usable, table, unit)
    except InputError as error:
        why = "; ".join([error.what, *reasons])
        return msgspec.structs.replace(table, warnings=(*table.warnings, f"not audited: {why}"))
    return msgspec.structs.replace(table, correction=result.correction, audit=result)


_SIDE = 48
_WIDTHS = (24, 48, 96)  # channels of the stages; each halves the side of the one before
_Block = Callable[[GraphBuilder, str], str]


def audit_networks(seed: int = 0) -> tuple[Model, ...]:
    """Make eight small networks: plain, residual, inverted residual, branched, a decoder and dense layers."""
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
    """Layers with more weights than most caches hold, and little arithmetic."""
    b = GraphBuilder("audit-dense", seed)
    x = b.op("Flatten", b.op("MaxPool", _stem(b), kernel_shape=[4, 4], strides=[4, 4]))
    for _ in range(2):
        x = b.dense(x, 1024, activation="Relu")
    b.output(b.dense(x, 10))
    return b.build()
