"""What layers and segments cost on a device (``*.table.json``)."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

from framefit.core.files import Record

__all__ = ["Correction", "LatencyEntry", "LatencyTable", "Overhead", "Value"]

Value = bool | int | float | str | list[bool | int | float | str | None] | None


class Overhead(Record, kw_only=True):
    """Linear model of what an inference costs beside the layer (spec L3)."""

    input_ns_per_byte: float
    output_ns_per_byte: float
    intercept_ns: float
    condition_number: float


class Correction(Record, kw_only=True):
    """What the audit added to the plain sum of layers: scale and a constant a boundary."""

    scale: float = 1.0
    boundary_ns: float = 0.0


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
    """

    op: str
    configuration: dict[str, Value]
    unit: str
    latency_ns: int
    interval_ns: tuple[int, int]
    samples_ns: tuple[int, ...] = ()
    source: str = "measured"

    def quantile_ns(self, quantile: float) -> int:
        """Upper empirical quantile of the samples (0 to 1); the latency where there are none."""
        if not self.samples_ns:
            return self.latency_ns
        return int(np.quantile(np.asarray(self.samples_ns), quantile, method="higher"))


class LatencyTable(Record, kw_only=True, dict=True):
    """Entries of one target, found by configuration.

    Attributes:
        fingerprint: facts of device, clock, runtime and threads; a table from
            another fingerprint does not apply.
    """

    schema_version: int = 1
    target: str
    fingerprint: dict[str, Value]
    overhead: Overhead | None = None
    correction: Correction | None = None
    entries: tuple[LatencyEntry, ...] = ()

    @cached_property
    def _index(self) -> dict[tuple[str, str, bytes], LatencyEntry]:
        return {_key(entry.op, entry.unit, entry.configuration): entry for entry in self.entries}

    def find(self, op: str, configuration: dict[str, Value], unit: str) -> LatencyEntry | None:
        """The entry of exactly this configuration on this unit, or None."""
        return self._index.get(_key(op, unit, configuration))

    def with_entries(self, entries: tuple[LatencyEntry, ...]) -> LatencyTable:
        """A table in which ``entries`` replace those of equal configuration."""
        merged = self._index | {_key(entry.op, entry.unit, entry.configuration): entry for entry in entries}
        return msgspec.structs.replace(self, entries=tuple(merged.values()))


def _key(op: str, unit: str, configuration: dict[str, Value]) -> tuple[str, str, bytes]:
    return op, unit, msgspec.json.encode(configuration, order="sorted")
