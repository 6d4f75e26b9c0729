"""How far whole networks differ from the sum of their layers, and the correction of the sum.

Latencies of layers and segments on a device (``*.table.json``).

``framefit table``: shows, compares and merges latency tables.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from framefit.core.conditions import Conditions
from framefit.core.files import Record, Result, check_new, from_text, read_record, write_record
from framefit.errors import InputError
from framefit.stats import Z90

__all__ = [
    "AdditivityAudit",
    "AuditedNetwork",
    "Correction",
    "EntryComparison",
    "LatencyEntry",
    "LatencyTable",
    "MachineCorrection",
    "MeasuredFusion",
    "MeasuredNetwork",
    "MeasuredRun",
    "Overhead",
    "TableComparison",
    "Unmeasured",
    "Value",
    "check_fingerprint",
    "compare_tables",
    "compared",
    "differing_facts",
    "merge_tables",
    "merged",
    "read_table",
    "table",
]


LARGE_BYTES = 4 << 20
"""Weights of a network that evict each other from the caches of one core, and come from those that cores share."""


class Correction(Record, kw_only=True):
    """Correction of the plain sum of layers, from the audit of whole networks.

    A network takes, for each class of layers, ``class_factors`` x their sum, a part of what the layers take more in
    turn with others than alone, ``weight_ns_per_byte`` x bytes of weights and ``node_ns`` x layers. All of these are at
    least 0; a class that is not named has the factor 1. Of w bytes of weights that part is ``evicted_ratio`` x w / (w +
    ``evicting_bytes``): a small network leaves more of itself in the caches.

    Attributes:
        error_ratio: standard deviation of the relative error of networks that were left out of the fit.
        large_error_ratio: the same of networks of more than :data:`LARGE_BYTES`; 0: as all.
        networks: number of audited networks; 0: none.
    """

    class_factors: dict[str, float] = {}
    evicted_ratio: float = 0.0
    evicting_bytes: int = 0
    weight_ns_per_byte: float = 0.0
    node_ns: float = 0.0
    error_ratio: float = 0.0
    large_error_ratio: float = 0.0
    networks: int = 0

    def error_ratio_of(self, weight_bytes: int) -> float:
        """Standard deviation of the relative error of a network of so many bytes of weights."""
        large = weight_bytes > LARGE_BYTES and self.large_error_ratio
        return self.large_error_ratio if large else self.error_ratio

    def __post_init__(self) -> None:
        for name, value in (
            *self.class_factors.items(),
            ("evicted_ratio", self.evicted_ratio),
            ("weight_ns_per_byte", self.weight_ns_per_byte),
            ("node_ns", self.node_ns),
        ):
            if not value >= 0:
                raise ValueError(f"{name} of a correction must be at least 0, is {value}")


class AuditedNetwork(Record, kw_only=True):
    """A whole network, measured and predicted.

    Attributes:
        overhead_ns: of its launch: included in the measured latency, but not in the plain sum.
        corrected_ns: with the fitted correction.
        left_out_ns: with a correction that was fitted without this network.
        class_ns: sums of its layers by class.
        evicted_ns: what its layers take more in turn with others than alone, added up; 0 where that is not known.
        weight_bytes: of all its parameters.
        nodes: number of its layers.
        digest: of its layers, whatever their weights are.
    """

    name: str
    measured_ns: int
    plain_sum_ns: int
    overhead_ns: int
    corrected_ns: int = 0
    left_out_ns: int = 0
    class_ns: dict[str, float] = {}
    evicted_ns: int = 0
    weight_bytes: int = 0
    nodes: int = 0
    digest: str = ""


class AdditivityAudit(Record, kw_only=True):
    """How far whole networks differ from the sum of their layers, and the correction of the sum.

    Attributes:
        terms: of the correction that are not neutral; empty: no correction improved networks left out of its fit.
        plain_error_ratio: median of |plain sum and overhead / measured - 1|.
        left_out_error_ratio: the same of the corrected estimate, each network left out of its own fit.
        greatest_error_ratio: the greatest of those of left-out networks.
    """

    correction: Correction
    terms: tuple[str, ...]
    networks: tuple[AuditedNetwork, ...]
    plain_error_ratio: float
    left_out_error_ratio: float
    greatest_error_ratio: float = 0.0


_EARLIER_CORRECTION = (
    "its correction is of an earlier version and is not applied: sums of layers are not corrected; measure it again"
)
_MOST_SPREAD = 100.0  # of a ratio, relative: beyond it nothing is known, and its exponential would overflow
Value = bool | int | float | str | list[bool | int | float | str | None] | None


class Overhead(Record, kw_only=True):
    """Linear model of the overhead of an inference beside its layers.

    Attributes:
        input_ns_per_byte, output_ns_per_byte: for bytes transferred between host and device.
        intercept_ns: for a launch of any size.
        condition_number: of the design for the fit, its columns scaled to length 1; above 30 the coefficients
            cannot be separated (Belsley, Kuh and Welsch, 1980, "Regression Diagnostics", section 3.2).
        auxiliary: kind of the auxiliary layer in the fit; "" if it is not known.
        input_interval, output_interval: 90 %, ns for each byte.
        intercept_interval_ns: 90 %.
        lack_of_fit_ns: standard deviation of the auxiliary layer's own time around its affine model.
        input_bend, output_bend: departure of transfers from a straight line: bytes, ascending, and ns beside the line;
            linear between them, constant beyond the last.
    """

    input_ns_per_byte: float
    output_ns_per_byte: float
    intercept_ns: float
    condition_number: float
    auxiliary: str = ""
    input_interval: tuple[float, float] | None = None
    output_interval: tuple[float, float] | None = None
    intercept_interval_ns: tuple[float, float] | None = None
    lack_of_fit_ns: float = 0.0
    input_bend: tuple[tuple[float, float], ...] = ()
    output_bend: tuple[tuple[float, float], ...] = ()


class LatencyEntry(Record, kw_only=True):
    """One configuration on one unit, with every sample.

    Attributes:
        op: operator, fused operators joined by "+", or "segment".
        configuration: everything that determines the cost; never a layer's name.
        unit: unit of the measurement.
        latency_ns: median.
        in_turn_ns: of its first launch behind those of other layers, which have evicted its weights and code from the
            core's caches; at least ``latency_ns``. ``None``: not known.
        interval_ns: 90 % interval of the median.
        samples_ns: all samples, in order.
        source: "measured", "derived", "interpolated", "modelled" or "profiled"; followed by "drifting" if the
            machine's speed changed during the measurement.
        below_noise: whether the latency cannot be distinguished from 0: it is below ``noise_floor_ns``.
        noise_floor_ns: 3.29 standard deviations of the estimate: the detection limit at 5 % risk on either
            side (Currie, 1968, "Limits for Qualitative Detection and Quantitative Determination").
        auxiliary: layer that was appended; "none": the layer alone; "" if it is not known.
        overhead_ns: subtracted from the median of the totals.
        literal_ns: total minus the auxiliary layer run alone, including the bias by transfers.
    """

    op: str
    configuration: dict[str, Value]
    unit: str
    latency_ns: int
    interval_ns: tuple[int, int]
    in_turn_ns: int | None = None
    samples_ns: tuple[int, ...] = ()
    source: str = "measured"
    below_noise: bool = False
    noise_floor_ns: int = 0
    auxiliary: str = ""
    overhead_ns: int = 0
    literal_ns: int | None = None

    def quantile_ns(self, quantile: float) -> int:
        """Upper empirical quantile of the samples (0 to 1); the latency if there are none."""
        if not self.samples_ns:
            return self.latency_ns
        return int(np.quantile(np.asarray(self.samples_ns), quantile, method="higher"))

    @property
    def deviation_ns(self) -> float:
        """Standard deviation of the latency, from its 90 % interval."""
        return (self.interval_ns[1] - self.interval_ns[0]) / (2 * Z90)


class FactDifference(Record, kw_only=True):
    """A fact in which two fingerprints differ; ``None``: it is missing in one of them."""

    fact: str
    here: Value
    there: Value


class MeasuredRun(Record, kw_only=True):
    """A launch that was timed for a table, from which its entries were made.

    Attributes:
        role: "layer" (with its auxiliary layer), "auxiliary" (alone), "overhead", "network" (whole, for
            the audit) or "reference".
        digest: of the model that was launched.
        input_bytes, output_bytes: transferred between host and device.
        runs: number of samples in each round.
        samples_ns: in order, corrected for drift of the device's speed; rounds x runs.
    """

    role: str
    digest: str
    unit: str
    input_bytes: int
    output_bytes: int
    runs: int
    samples_ns: tuple[int, ...]


class Unmeasured(Record, kw_only=True):
    """A layer that could not be measured, and the reason."""

    op: str
    configuration: dict[str, Value]
    layers: tuple[str, ...]
    unit: str
    reason: str


class MeasuredFusion(Record, kw_only=True):
    """Two adjacent layers that measurements show to run as one, by their joint configuration.

    Attributes:
        apart: measurements show that they run separately: recorded so that they are not tested again.
    """

    op: str
    configuration: dict[str, Value]
    apart: bool = False


class LatencyTable(Result, kw_only=True, dict=True):
    """Entries of one target, found by configuration.

    Attributes:
        overhead: of a launch; that of the auxiliary layer of most entries.
        audit: the networks of the correction's fit; ``None``: there was no audit.
        overheads: for each auxiliary layer.
        unmeasured: layers without an entry.
        warnings: reasons why figures are uncertain, each with a remedy.
        settings: of the measurement: repeats, seed and so on.
        runs: all samples.
        networks: models that were launched whole.
        fusions: which layers measurements show to be one entry, and which not; ``None``: as the device says.
        conditions: what sensors said before and after the measurement; ``None``: they are not those of the device.
        fingerprint: facts of device, clock, runtime and threads; the table only applies to devices with the same
            fingerprint.
    """

    file_kind: ClassVar[str] = "a latency table (*.table.json)"

    schema_version: int = 1
    target: str
    fingerprint: dict[str, Value]
    overhead: Overhead | None = None
    correction: Correction | None = None
    audit: AdditivityAudit | None = None
    entries: tuple[LatencyEntry, ...] = ()
    overheads: tuple[Overhead, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    warnings: tuple[str, ...] = ()
    settings: dict[str, Value] = {}
    runs: tuple[MeasuredRun, ...] = ()
    networks: tuple[MeasuredNetwork, ...] = ()
    fusions: tuple[MeasuredFusion, ...] | None = None
    conditions: tuple[Conditions, Conditions] | None = None

    @cached_property
    def _index(self) -> dict[tuple[str, str, bytes], LatencyEntry]:
        return {_key(entry.op, entry.unit, entry.configuration): entry for entry in self.entries}

    def find(self, op: str, configuration: dict[str, Value], unit: str) -> LatencyEntry | None:
        """The entry of exactly this configuration on this unit, or None."""
        return self._index.get(_key(op, unit, configuration))

    @classmethod
    def upgraded(cls, data: Any) -> Any:
        """Without a correction of an earlier version, which had other terms, and with a warning in its place."""
        correction = data.get("correction") if isinstance(data, dict) else None
        if not isinstance(correction, dict) or "scale" not in correction:
            return data
        kept = {key: value for key, value in data.items() if key not in ("correction", "audit")}
        return kept | {"warnings": [*data.get("warnings", ()), _EARLIER_CORRECTION]}

    def with_entries(self, entries: tuple[LatencyEntry, ...]) -> LatencyTable:
        """A table in which ``entries`` replace those of equal configuration."""
        both = self._index | {_key(entry.op, entry.unit, entry.configuration): entry for entry in entries}
        return msgspec.structs.replace(self, entries=tuple(both.values()))

    @property
    def interval_ratio(self) -> float | None:
        """Median of half the entries' intervals over their latencies; ``None`` where no entry is above 0."""
        half = [
            (entry.interval_ns[1] - entry.interval_ns[0]) / (2 * entry.latency_ns)
            for entry in self.entries
            if entry.latency_ns > 0
        ]
        return float(np.median(half)) if half else None

    @property
    def units(self) -> tuple[str, ...]:
        """Units of its entries, in order."""
        return tuple(dict.fromkeys(entry.unit for entry in self.entries))


class MeasuredNetwork(Record, kw_only=True):
    """A network of a table's layers that was launched whole.

    Attributes:
        digest: of its layers, whatever their weights are.
        alone_ns: of a launch behind others of itself: the caches hold what it left there.
        alone_interval_ns: 90 %.
        in_turn_ns: of a launch behind those of other networks and layers, which have filled the caches.
        in_turn_interval_ns: 90 %.
    """

    name: str
    digest: str
    unit: str
    alone_ns: int
    alone_interval_ns: tuple[int, int]
    in_turn_ns: int
    in_turn_interval_ns: tuple[int, int]


class MachineCorrection(Result, kw_only=True):
    """What ``framefit calibrate`` found on one unit of a device, by which later tables of it are corrected.

    Attributes:
        date: of the campaign, UTC, ISO 8601.
        launches_ns: of the reference and of a small network, by which later launches are compared.
        audit: the correction, and the networks of its fit; ``None``: it was refused before there was one.
        refused: why it was not stored; empty: it was.
        earlier: date of the correction that stays in use where this one is refused; "": there is none.
        warnings: reasons why figures are uncertain, each with a remedy.
    """

    schema_version: int = 1
    target: str
    unit: str
    fingerprint: dict[str, Value]
    date: str
    launches_ns: dict[str, float]
    audit: AdditivityAudit | None
    refused: tuple[str, ...] = ()
    earlier: str = ""
    warnings: tuple[str, ...] = ()


class EntryComparison(Record, kw_only=True):
    """One configuration in two tables.

    Attributes:
        ratio: there over here; ``None`` if one of them is not above 0.
        ratio_interval: 90 %.
    """

    op: str
    configuration: dict[str, Value]
    unit: str
    here_ns: int
    there_ns: int
    ratio: float | None
    ratio_interval: tuple[float, float] | None


class TableComparison(Result, kw_only=True):
    """Comparison of two latency tables (``framefit table --against``).

    Attributes:
        differences: between their fingerprints.
        ratio: median of the entries' ratios, there over here; ``None``: there are none.
        only_here, only_there: entries that the other table lacks.
    """

    schema_version: int = 1
    here: str
    there: str
    differences: tuple[FactDifference, ...]
    ratio: float | None
    entries: tuple[EntryComparison, ...]
    only_here: tuple[LatencyEntry, ...]
    only_there: tuple[LatencyEntry, ...]


def read_table(path: str | Path) -> LatencyTable:
    """Read a ``*.table.json``; keys that older files lack have their defaults.

    Raises:
        InputError: the file is missing or malformed, or has two entries of one configuration and unit.
    """
    return _distinct(read_record(path, LatencyTable), path)


def parsed_table(data: bytes, where: str) -> LatencyTable:
    """A table from its bytes; see :func:`read_table`."""
    return _distinct(from_text(data, LatencyTable, where), where)


def _distinct(table: LatencyTable, where: str | Path) -> LatencyTable:
    """The table, unless it has two entries of one configuration and unit."""
    keys = [_key(entry.op, entry.unit, entry.configuration) for entry in table.entries]
    if len(set(keys)) < len(keys):
        twice = next(index for index, key in enumerate(keys) if key in keys[:index])
        raise InputError(
            f"$.entries[{twice}] ({table.entries[twice].op}) has the configuration of an earlier entry",
            where=where,
            remedy="remove one of them",
        )
    return table


def differing_facts(here: Mapping[str, Value], there: Mapping[str, Value]) -> tuple[FactDifference, ...]:
    """Facts in which two fingerprints differ, in the order of ``here``, then of ``there``."""
    return tuple(
        FactDifference(fact=fact, here=here.get(fact), there=there.get(fact))
        for fact in dict.fromkeys(itertools.chain(here, there))
        if here.get(fact) != there.get(fact)
    )


def check_fingerprint(table: LatencyTable, facts: Mapping[str, Value], where: str | Path, remedy: str) -> None:
    """Refuse a table that was measured on another device.

    Args:
        table: the table.
        facts: fingerprint of the device to which it shall apply.
        where: the table's file, for the message.
        remedy: for the user.

    Raises:
        InputError: the fingerprints differ; the message names every differing fact.
    """
    if differences := differing_facts(table.fingerprint, facts):
        shown = "; ".join(
            f"{difference.fact}: {_shown(difference.here)} in the table, {_shown(difference.there)} here"
            for difference in differences
        )
        raise InputError(f"the table was measured on another device: {shown}", where=where, remedy=remedy)


def compared(here: LatencyTable, there: LatencyTable) -> TableComparison:
    """Compare entries, matched by operator, configuration and unit.

    The interval of a ratio assumes that both entries' errors are independent and small: their relative deviations
    add up in squares.
    """
    entries = []
    for entry in here.entries:
        counterpart = there.find(entry.op, entry.configuration, entry.unit)
        if counterpart is None:
            continue
        ratio, interval = None, None
        if entry.latency_ns > 0 and counterpart.latency_ns > 0:
            ratio = counterpart.latency_ns / entry.latency_ns
            spread = math.hypot(
                entry.deviation_ns / entry.latency_ns, counterpart.deviation_ns / counterpart.latency_ns
            )
            spread = min(spread, _MOST_SPREAD)
            interval = ratio * math.exp(-Z90 * spread), ratio * math.exp(Z90 * spread)
        entries.append(
            EntryComparison(
                op=entry.op,
                configuration=entry.configuration,
                unit=entry.unit,
                here_ns=entry.latency_ns,
                there_ns=counterpart.latency_ns,
                ratio=ratio,
                ratio_interval=interval,
            )
        )
    ratios = [entry.ratio for entry in entries if entry.ratio is not None]
    return TableComparison(
        here=here.target,
        there=there.target,
        differences=differing_facts(here.fingerprint, there.fingerprint),
        ratio=float(np.median(ratios)) if ratios else None,
        entries=tuple(entries),
        only_here=tuple(row for row in here.entries if there.find(row.op, row.configuration, row.unit) is None),
        only_there=tuple(row for row in there.entries if here.find(row.op, row.configuration, row.unit) is None),
    )


def merged(tables: Sequence[LatencyTable]) -> LatencyTable:
    """Merge the entries of several tables; of equal configurations the last one is kept.

    Overhead, correction with its audit, and settings are those of the first table that has them; runs and warnings of
    all are kept. The caller decides whether the tables belong together: see :func:`differing_facts`.

    Args:
        tables: at least one.
    """
    first = tables[0]
    whole = first.with_entries(tuple(entry for table in tables for entry in table.entries))
    corrected = next((table for table in tables if table.correction), first)
    return msgspec.structs.replace(
        whole,
        overhead=next((table.overhead for table in tables if table.overhead), None),
        correction=corrected.correction,
        audit=corrected.audit,
        overheads=tuple({part.auxiliary: part for table in reversed(tables) for part in table.overheads}.values()),
        unmeasured=tuple(
            {
                _key(part.op, part.unit, part.configuration): part
                for table in tables
                for part in table.unmeasured
                if whole.find(part.op, part.configuration, part.unit) is None
            }.values()
        ),
        warnings=tuple(dict.fromkeys(warning for table in tables for warning in table.warnings)),
        runs=tuple(run for table in tables for run in table.runs),
        networks=tuple(
            {(network.digest, network.unit): network for table in tables for network in table.networks}.values()
        ),
        fusions=_fused(tables),
        conditions=first.conditions if len(tables) == 1 else None,
    )


def _fused(tables: Sequence[LatencyTable]) -> tuple[MeasuredFusion, ...] | None:
    """Measured fusions of any of the tables; ``None`` if none of them has any."""
    fusions = [fusion for table in tables for fusion in table.fusions or ()]
    fusions.sort(key=lambda fusion: not fusion.apart)  # fused takes precedence
    known = {_key(fusion.op, "", fusion.configuration): fusion for fusion in fusions}
    return None if all(table.fusions is None for table in tables) else tuple(known.values())


def _shown(value: Value) -> str:
    return "not stated" if value is None else repr(value) if isinstance(value, str) else str(value)


def _key(op: str, unit: str, configuration: dict[str, Value]) -> tuple[str, str, bytes]:
    return op, unit, msgspec.json.encode(configuration, order="sorted")


def table(path: str | Path) -> LatencyTable:
    """Read a latency table, of this or an earlier version.

    Raises:
        InputError: the file is missing or malformed.

    Example:
        >>> framefit.table("board.table.json").entries[0].latency_ns  # doctest: +SKIP
        41250
    """
    return read_table(path)


def compare_tables(path: str | Path, against: str | Path) -> TableComparison:
    """Compare two tables: ratios of entries there over here, entries that one lacks, and differing facts.

    Args:
        path: the table here.
        against: the table there.

    Raises:
        InputError: a file is missing or malformed.
    """
    return compared(read_table(path), read_table(against))


def merge_tables(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    any_fingerprint: bool = False,
    force: bool = False,
) -> LatencyTable:
    """Write one table with the entries of several; of equal configurations the last one is kept.

    Args:
        paths: the tables; target and fingerprint are those of the first one.
        output: the file to write.
        any_fingerprint: whether to merge tables of different devices, too.
        force: whether to overwrite the file.

    Raises:
        InputError: a file is missing or malformed, fingerprints differ (the message names the facts), or the
            output exists.
    """
    check_new(output, force=force)
    tables = [read_table(path) for path in paths]
    if not any_fingerprint:
        for path, table in zip(paths[1:], tables[1:], strict=True):
            facts = tables[0].fingerprint
            check_fingerprint(table, facts, path, "merge tables of one device, or merge them all the same "
                              "with --any-fingerprint")  # fmt: skip
    whole = merged(tables)
    write_record(output, whole, force=force)
    return whole
