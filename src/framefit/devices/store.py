"""Measured segments of this machine, stored for later plans."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np

from framefit.core.files import cache_folder, read_record, write_record
from framefit.core.latency_table import LatencyEntry, LatencyTable, Value
from framefit.core.model import Model
from framefit.core.workload import MachineSettings
from framefit.devices.host import fingerprint
from framefit.devices.measure import Measurement
from framefit.errors import InputError

__all__ = ["MeasurementStore"]


_DRIFTING = ", drifting"
logger = logging.getLogger(__name__)


class MeasurementStore:
    """A latency table of segments, which are identified by their content.

    Args:
        settings: settings of this machine; with its facts they determine the table's name.
        fresh: whether to ignore measurements of earlier plans.
    """

    def __init__(self, settings: MachineSettings, *, fresh: bool = False) -> None:
        facts: dict[str, Value] = {**fingerprint(), **settings.facts()}
        digest = hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16]
        self._path = cache_folder() / "tables" / f"{digest}.table.json"
        self._empty, self._fresh = LatencyTable(target="cpu", fingerprint=facts), fresh

    @cached_property
    def _old(self) -> LatencyTable:
        """Measurements of earlier plans, read on first use: many plans measure nothing."""
        if not self._path.is_file():
            return self._empty
        try:
            return read_record(self._path, LatencyTable)
        except InputError:  # another version wrote it: measure again
            return self._empty

    @cached_property
    def _table(self) -> LatencyTable:
        """The valid ones of these, and new measurements."""
        return self._empty if self._fresh else self._old

    def find(self, segment: Model, unit: str, beside: str, least_samples: int) -> Measurement | None:
        """Look up a segment that was measured in turn with ``beside``; ``None``: too few samples."""
        entry = self._table.find("segment", {"digest": segment.digest, "beside": beside}, unit)
        if entry is None or len(entry.samples_ns) < least_samples:
            return None
        return Measurement(np.asarray(entry.samples_ns, np.int64))

    def find_numbers(self, what: str, configuration: dict[str, Value], unit: str) -> tuple[int, ...] | None:
        """Look up numbers that were derived from a whole campaign, such as the costs of all pieces."""
        entry = self._table.find(what, configuration, unit)
        return None if entry is None else entry.samples_ns

    def drifted(self, what: str, configuration: dict[str, Value], unit: str) -> bool:
        """Whether the machine's speed changed while such numbers were measured."""
        entry = self._table.find(what, configuration, unit)
        return entry is not None and entry.source.endswith(_DRIFTING)

    def add_numbers(
        self,
        what: str,
        configuration: dict[str, Value],
        unit: str,
        numbers_ns: Sequence[int],
        *,
        drifted: bool = False,
    ) -> None:
        """Store such numbers, and whether the machine's speed changed meanwhile: later plans warn of it, too."""
        middle = int(np.median(numbers_ns))
        self._keep(
            LatencyEntry(
                op=what,
                configuration=configuration,
                unit=unit,
                latency_ns=middle,
                interval_ns=(min(numbers_ns), max(numbers_ns)),
                samples_ns=tuple(numbers_ns),
                source="derived" + _DRIFTING * drifted,
            )
        )

    def add(self, beside: str, measured: Sequence[tuple[Model, str, Measurement]]) -> None:
        """Store interleaved measurements of (segment, unit); the file is written at once."""
        entries = tuple(
            LatencyEntry(
                op="segment",
                configuration={"digest": segment.digest, "beside": beside},
                unit=unit,
                latency_ns=measurement.median_ns,
                interval_ns=measurement.interval_ns,
                samples_ns=tuple(measurement.samples_ns.tolist()),
            )
            for segment, unit, measurement in measured
        )
        self._keep(*entries)

    def _keep(self, *entries: LatencyEntry) -> None:
        self._table = self._table.with_entries(entries)
        self._old = self._old.with_entries(entries)
        try:
            write_record(self._path, self._old, force=True)
        except InputError as error:  # nothing is stored for later plans, but this one continues
            logger.warning("measurements are not stored: %s", error)
