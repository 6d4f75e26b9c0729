"""How far whole networks take the sum of their layers, and what corrects the sum.

What layers and segments cost on a device (``*.table.json``).

``framefit table``: latency tables shown, compared and merged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.files import Record, read_record, write_record
from framefit.errors import InputError
from framefit.stats import Z90

__all__ = [
    "AdditivityAudit",
    "AuditedNetwork",
    "Correction",
    "EntryComparison",
    "LatencyEntry",
    "LatencyTable",
    "MeasuredFusion",
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


class Correction(Record, kw_only=True):
    """What the audit of whole networks adds to the plain sum of layers.

    A network takes ``scale`` x sum of its layers + ``launch_ns`` + ``boundary_ns`` x boundaries
    + ``layout_ns_per_byte`` x bytes that stay in one layout + ``cold_ns_per_byte`` x weights, the
    last in networks of more than ``cache_bytes``. For each class of layers ``class_ratios`` x their sum is added.

    Attributes:
        beyond_ratio: of tables of earlier versions, which multiplied it onto the sum of every larger network,
            though one audited network told it; it is read, and neither kept nor applied.
        error_ratio: standard deviation of the relative error of networks that were left out of the fit.
        networks: how many were audited; 0: none.
    """

    scale: float = 1.0
    boundary_ns: float = 0.0
    launch_ns: float = 0.0
    layout_ns_per_byte: float = 0.0
    cold_ns_per_byte: float = 0.0
    beyond_ratio: float | msgspec.UnsetType = msgspec.UNSET
    class_ratios: dict[str, float] = {}
    cache_bytes: int = 0
    error_ratio: float = 0.0
    networks: int = 0

    def __post_init__(self) -> None:
        if self.beyond_ratio is not msgspec.UNSET:
            msgspec.structs.force_setattr(self, "beyond_ratio", msgspec.UNSET)


class AuditedNetwork(Record, kw_only=True):
    """A whole network, measured and predicted.

    Attributes:
        overhead_ns: of its launch: what is measured holds it, the plain sum does not.
        corrected_ns: with the correction that was fitted.
        left_out_ns: with one that was fitted without this network.
    """

    name: str
    measured_ns: int
    plain_sum_ns: int
    overhead_ns: int
    corrected_ns: int
    left_out_ns: int


class AdditivityAudit(Record, kw_only=True):
    """How far whole networks take the sum of their layers, and what corrects it.

    Attributes:
        terms: of the correction, in the order in which they helped.
        plain_error_ratio: median of |plain sum and overhead / measured - 1|.
        left_out_error_ratio: the same of the corrected estimate, each network left out of its own fit.
    """

    correction: Correction
    terms: tuple[str, ...]
    networks: tuple[AuditedNetwork, ...]
    plain_error_ratio: float
    left_out_error_ratio: float


_MOST_SPREAD = 100.0  # of a ratio, relative: beyond it nothing is known anyway, and its exponential has no number
Value = bool | int | float | str | list[bool | int | float | str | None] | None


class Overhead(Record, kw_only=True):
    """Linear model of what an inference costs beside its layers.

    Attributes:
        input_ns_per_byte, output_ns_per_byte: of what crosses between host and device.
        intercept_ns: of a launch, whatever it hands over.
        condition_number: of the design that they were fitted on, its columns scaled to length 1;
            above 30 they cannot be told apart (Belsley, Kuh and Welsch, 1980, "Regression
            Diagnostics", section 3.2).
        auxiliary: the auxiliary layer that they were fitted with; "" where that is not known.
        input_interval, output_interval: 90 %, ns a byte.
        intercept_interval_ns: 90 %.
        lack_of_fit_ns: standard deviation of what an affine model of the auxiliary layer's own
            time leaves unexplained.
        input_bend, output_bend: where transfers are no straight line: bytes, ascending, and the ns that transfers of
            so many take beyond it; linear between, constant beyond the last.
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
        configuration: what determines the cost; never a layer's name.
        unit: where it was measured.
        latency_ns: median.
        interval_ns: 90 % interval of the median.
        samples_ns: all samples, in order.
        source: "measured", "derived", "interpolated", "modelled" or "profiled"; "drifting"
            behind it: the machine's speed changed meanwhile.
        below_noise: whether the latency cannot be told from 0: it is below ``noise_floor_ns``.
        noise_floor_ns: 3.29 standard deviations of the estimate: the detection limit at 5 % risk on either
            side (Currie, 1968, "Limits for Qualitative Detection and Quantitative Determination").
        auxiliary: layer that was appended; "none": the layer alone; "" where that is not known.
        overhead_ns: what was subtracted from the median of the totals.
        literal_ns: total minus the auxiliary layer run alone, its bias of the transfers included.
    """

    op: str
    configuration: dict[str, Value]
    unit: str
    latency_ns: int
    interval_ns: tuple[int, int]
    samples_ns: tuple[int, ...] = ()
    source: str = "measured"
    below_noise: bool = False
    noise_floor_ns: int = 0
    auxiliary: str = ""
    overhead_ns: int = 0
    literal_ns: int | None = None

    def quantile_ns(self, quantile: float) -> int:
        """Upper empirical quantile of the samples (0 to 1); the latency where there are none."""
        if not self.samples_ns:
            return self.latency_ns
        return int(np.quantile(np.asarray(self.samples_ns), quantile, method="higher"))

    @property
    def deviation_ns(self) -> float:
        """Standard deviation of the latency, from its 90 % interval."""
        return (self.interval_ns[1] - self.interval_ns[0]) / (2 * Z90)


class FactDifference(Record, kw_only=True):
    """A fact in which two fingerprints differ; ``None``: one of them does not state it."""

    fact: str
    here: Value
    there: Value


class MeasuredRun(Record, kw_only=True):
    """A launch that was timed for a table: what its entries were made from.

    Attributes:
        role: "layer" (with its auxiliary layer), "auxiliary" (alone), "overhead", "network" (whole, for
            the audit) or "reference".
        digest: of the model that was launched.
        input_bytes, output_bytes: what crossed between host and device.
        runs: samples of each round.
        samples_ns: in order, drift of the device's speed taken out; rounds x runs.
    """

    role: str
    digest: str
    unit: str
    input_bytes: int
    output_bytes: int
    runs: int
    samples_ns: tuple[int, ...]


class Unmeasured(Record, kw_only=True):
    """A layer that could not be measured, and why."""

    op: str
    configuration: dict[str, Value]
    layers: tuple[str, ...]
    unit: str
    reason: str


class MeasuredFusion(Record, kw_only=True):
    """Two adjacent layers that were found to run as one, by the configuration that they have together.

    Attributes:
        apart: they were found to run apart: kept so that nobody tries them again.
    """

    op: str
    configuration: dict[str, Value]
    apart: bool = False


class LatencyTable(Record, kw_only=True, dict=True):
    """Entries of one target, found by configuration.

    Attributes:
        overhead: of a launch; that of the auxiliary layer which most entries have.
        audit: the networks that the correction was fitted to; ``None``: there was no audit.
        overheads: fitted with each auxiliary layer.
        unmeasured: layers without an entry.
        warnings: what makes figures uncertain, and the remedy.
        settings: of the measurement: repeats, seed and so on.
        runs: all samples.
        fusions: which layers are entries as one, found by measuring, and which are not; ``None``: as the
            device says.
        fingerprint: facts of device, clock, runtime and threads; a table from
            another fingerprint does not apply.
    """

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
    fusions: tuple[MeasuredFusion, ...] | None = None

    @cached_property
    def _index(self) -> dict[tuple[str, str, bytes], LatencyEntry]:
        return {_key(entry.op, entry.unit, entry.configuration): entry for entry in self.entries}

    def find(self, op: str, configuration: dict[str, Value], unit: str) -> LatencyEntry | None:
        """The entry of exactly this configuration on this unit, or None."""
        return self._index.get(_key(op, unit, configuration))

    def with_entries(self, entries: tuple[LatencyEntry, ...]) -> LatencyTable:
        """A table in which ``entries`` replace those of equal configuration."""
        both = self._index | {_key(entry.op, entry.unit, entry.configuration): entry for entry in entries}
        return msgspec.structs.replace(self, entries=tuple(both.values()))

    @property
    def units(self) -> tuple[str, ...]:
        """Units of its entries, in order."""
        return tuple(dict.fromkeys(entry.unit for entry in self.entries))


class EntryComparison(Record, kw_only=True):
    """One configuration in two tables.

    Attributes:
        ratio: there over here; ``None`` where one of them is not above 0.
        ratio_interval: 90 %.
    """

    op: str
    configuration: dict[str, Value]
    unit: str
    here_ns: int
    there_ns: int
    ratio: float | None
    ratio_interval: tuple[float, float] | None


class TableComparison(Record, kw_only=True):
    """Two latency tables side by side (``framefit table --against``).

    Attributes:
        differences: of their fingerprints.
        ratio: median of the entries' ratios, there over here; ``None``: there are none.
        only_here, only_there: entries that the other one lacks.
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
    """Read a ``*.table.json``; what older files do not state keeps its default.

    Raises:
        InputError: missing or malformed file, or two entries of one configuration and unit.
    """
    table = read_record(path, LatencyTable)
    keys = [_key(entry.op, entry.unit, entry.configuration) for entry in table.entries]
    if len(set(keys)) < len(keys):
        twice = next(index for index, key in enumerate(keys) if key in keys[:index])
        raise InputError(
            f"$.entries[{twice}] ({table.entries[twice].op}) has the configuration of an earlier entry",
            where=path,
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
    """Refuse a table that was measured on something else.

    Args:
        table: as it was read.
        facts: fingerprint of the device that it is to apply to.
        where: the table's file, for the message.
        remedy: what the user can do.

    Raises:
        InputError: the fingerprints differ; every differing fact is named.
    """
    if differences := differing_facts(table.fingerprint, facts):
        shown = "; ".join(
            f"{difference.fact}: {_shown(difference.here)} in the table, {_shown(difference.there)} here"
            for difference in differences
        )
        raise InputError(f"the table was measured on another device: {shown}", where=where, remedy=remedy)


def compared(here: LatencyTable, there: LatencyTable) -> TableComparison:
    """Entry by entry, matched by operator, configuration and unit.

    A ratio's interval takes both entries' errors as independent and small: on the logarithm,
    their relative deviations add in squares.
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
        only_here=tuple(one for one in here.entries if there.find(one.op, one.configuration, one.unit) is None),
        only_there=tuple(one for one in there.entries if here.find(one.op, one.configuration, one.unit) is None),
    )


def merged(tables: Sequence[LatencyTable]) -> LatencyTable:
    """One table of the entries of several; of equal configurations the last one stays.

    Overhead, correction with its audit, and settings are those of the first table that has them;
    runs and warnings of all are kept. Whether the tables belong together is for the caller to decide:
    see :func:`differing_facts`.

    Args:
        tables: one at least.
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
        fusions=_fused(tables),
    )


def _fused(tables: Sequence[LatencyTable]) -> tuple[MeasuredFusion, ...] | None:
    """What any of the tables found; ``None`` where none of them looked."""
    fusions = [fusion for table in tables for fusion in table.fusions or ()]
    fusions.sort(key=lambda fusion: not fusion.apart)  # where they contradict each other, fused counts
    known = {_key(fusion.op, "", fusion.configuration): fusion for fusion in fusions}
    return None if all(table.fusions is None for table in tables) else tuple(known.values())


def _shown(value: Value) -> str:
    return "not stated" if value is None else repr(value) if isinstance(value, str) else str(value)


def _key(op: str, unit: str, configuration: dict[str, Value]) -> tuple[str, str, bytes]:
    return op, unit, msgspec.json.encode(configuration, order="sorted")


def table(path: str | Path) -> LatencyTable:
    """Read a latency table, of this or an earlier version.

    Raises:
        InputError: missing or malformed file.

    Example:
        >>> framefit.table("board.table.json").entries[0].latency_ns  # doctest: +SKIP
        41250
    """
    return read_table(path)


def compare_tables(path: str | Path, against: str | Path) -> TableComparison:
    """Two tables entry by entry: ratios there over here, what each lacks, facts in which they differ.

    Args:
        path: the table here.
        against: the table there.

    Raises:
        InputError: missing or malformed file.
    """
    return compared(read_table(path), read_table(against))


def merge_tables(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    any_fingerprint: bool = False,
    force: bool = False,
) -> LatencyTable:
    """Write one table of the entries of several; of equal configurations the last one stays.

    Args:
        paths: the tables; target and fingerprint are those of the first one.
        output: the file to write.
        any_fingerprint: merge what was measured on different devices, too.
        force: overwrite the file.

    Raises:
        InputError: a file is missing or malformed, fingerprints differ (the facts are named), or the
            output exists.
    """
    if Path(output).exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    tables = [read_table(path) for path in paths]
    if not any_fingerprint:
        for path, table in zip(paths[1:], tables[1:], strict=True):
            facts = tables[0].fingerprint
            check_fingerprint(table, facts, path, "merge tables of one device, or merge them all the same "
                              "with --any-fingerprint")  # fmt: skip
    whole = merged(tables)
    write_record(output, whole, force=force)
    return whole
