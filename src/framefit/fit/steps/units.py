"""Other units for models that were kept from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from framefit.core.settings import Notify
from framefit.core.workload import Workload
from framefit.devices.host import available_cores
from framefit.errors import FramefitError
from framefit.fit.situation import Situation, is_better
from framefit.fit.step import Offer, arranged, with_entries

__all__ = ["Units"]


class Units:
    """Units that models were kept from; on this machine further cores where the workload names none.

    Args:
        app: the workload's file.
        notify: receives what is being done.
    """

    def __init__(self, app: Path, notify: Notify) -> None:
        self._app, self._notify = app, notify

    def propose(self, situation: Situation) -> list[Offer]:
        """Each that planning anew shows to be better: the device is opened again."""
        offers = []
        for what, workload in self._ways(situation):
            try:
                found = Situation.of(self._app, workload, situation.margin_ratio, self._notify).standing
            except FramefitError:
                continue  # a model does not run there: no step
            if is_better(situation.standing, found):
                offers.append(arranged("units", what, "none", workload, found, situation))
        return offers

    @staticmethod
    def _ways(situation: Situation) -> Iterator[tuple[str, Workload]]:
        workload = situation.workload
        kept = [entry.name for entry in workload.models if entry.units is not None]
        if kept:
            freed = with_entries(workload, kept, lambda entry: msgspec.structs.replace(entry, units=None))
            yield f"let {' and '.join(map(repr, kept))} use all units", freed
        cores = available_cores()
        if not situation.described and workload.target == "cpu" and workload.cores is None and len(cores) > 1:
            yield f"use cores {', '.join(map(str, cores))}", msgspec.structs.replace(workload, cores=cores)
