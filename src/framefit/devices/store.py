"""Measured segments of this machine, kept between plans."""

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
    """A latency table of segments, found by the content of the segment.

    Args:
        settings: of this machine; with its facts they name the table.
        fresh: ignore what earlier plans measured.
    """

    def __init__(self, settings: MachineSettings, *, fresh: bool = False) -> None:
        facts: dict[str, Value] = {**fingerprint(), **settings.facts()}
        digest = hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16]
        self._path = cache_folder() / "tables" / f"{digest}.table.json"
        self._empty, self._fresh = LatencyTable(target="cpu", fingerprint=facts), fresh

    @cached_property
    def _old(self) -> LatencyTable:
        """What earlier plans measured, read when it is first asked for: many plans measure nothing."""
        if not self._path.is_file():
            return self._empty
        try:
            return read_record(self._path, LatencyTable)
        except InputError:  # written by another version: measure again
            return self._empty

    @cached_property
    def _table(self) -> LatencyTable:
        """What counts of it, and what was measured since."""
        return self._empty if self._fresh else self._old

    def find(self, segment: Model, unit: str, beside: str, least_samples: int) -> Measurement | None:
        """What is known of a segment that was measured in turn with ``beside``, if that is enough."""
        entry = self._table.find("segment", {"digest": segment.digest, "beside": beside}, unit)
        if entry is None or len(entry.samples_ns) < least_samples:
            return None
        return Measurement(np.asarray(entry.samples_ns, np.int64))

    def find_numbers(self, what: str, configuration: dict[str, Value], unit: str) -> tuple[int, ...] | None:
        """Numbers that were derived from measurements of a whole campaign, such as the costs of all pieces."""
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
        """Keep such numbers, and whether the machine's speed changed meanwhile: later plans warn of it too."""
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
        """Keep measurements of (segment, unit) that were made in turn; written at once, whole."""
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
        except InputError as error:  # nothing is kept for the next plan, but this one goes on
            logger.warning("measurements are not kept: %s", error)
